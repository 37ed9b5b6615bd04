"""What a report says, and what it does with runs that are cut short, damaged, old or huge."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from tests.support import Reply, Request, Run, good_student, resumed, run, scripted
from verifiers.v1.cli.gepa_report import main as gepa_report
from verifiers.v1.gepa.report.data import Result, RunData, read_run
from verifiers.v1.gepa.report.page import render_report
from verifiers.v1.gepa.report.result import TESTED_BEFORE
from verifiers.v1.gepa.report.verdict import verdict
from verifiers.v1.gepa.report.views import PAGE_CHARS, Views, curve_of
from verifiers.v1.utils.literal import literal
from verifiers.v1.utils.textdiff import diff

BUDGET = ["--max-total-rollouts", "24"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with scripted() as endpoint:
        return run(endpoint, tmp_path_factory.mktemp("finished"), *BUDGET, "--phase", "all")


@pytest.fixture
def copy(finished: Run, tmp_path: Path) -> Run:
    """The run's directory, to be changed."""
    for name, data in contents(finished.folder).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return Run(0, tmp_path)


def test_the_command_writes_the_runs_own_page_and_nothing_else(
    finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(finished.folder)
    other = tmp_path / "new/page.html"
    assert gepa_report([str(finished.folder), "--output", str(other)]) == 0
    assert gepa_report([str(finished.folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [str(other), str(finished.folder / "report.html")]
    assert contents(finished.folder) == before
    assert other.read_bytes() == before["report.html"]


def test_the_plot_has_the_runs_scores(finished: Run) -> None:
    result = finished.result
    views = Views(read_run(finished.folder))
    curve = curve_of(views)
    assert [value for _, value, _ in curve.val] == result["val_means"]
    assert [index for *_, index in curve.val] == [*range(len(result["val_means"]))]
    assert curve.val[0][0] == 4  # the seed prompt's val pass
    assert curve.budget == 24
    frontier = views.frontier()
    assert frontier is not None
    columns = zip(*[[score for score, *_ in cells] for _, cells in frontier.rows], strict=True)
    means = [sum(score or 0 for score in column) / len(column) for column in columns]
    assert means == [result["val_means"][index] for index in frontier.columns]


def test_a_failed_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    def student(request: Request) -> Any:
        return Reply.error(401, "bad key") if "v2" in request.system else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, "--initial-prompt", "v1 GOOD but not the best")
    assert done.status == 2
    page = (done.folder / "report.html").read_text("utf-8")
    assert "<h2>Cut short</h2>" in page
    assert "bad key" in page


def test_a_page_that_cant_be_written_is_a_warning(tmp_path: Path) -> None:
    def student(request: Request) -> str:
        (tmp_path / "run0/report.html").mkdir(exist_ok=True)  # in the way
        return good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    assert done.status == 0
    assert done.result["status"] == "finished"
    (warning,) = (text for text in done.result["warnings"] if "report.html" in text)
    assert warning.endswith(f"try again with gepa-report {done.folder}")
    assert "report" not in done.result["artifacts"]


def test_a_run_that_is_gone_on_with_gets_a_new_page(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
        old = (done.folder / "report.html").read_text("utf-8")
        seen = []

        def student(request: Request) -> str:
            seen.append((done.folder / "report.html").exists())
            return good_student(request)

    with scripted(student) as endpoint:
        assert resumed(endpoint, done, "--max-total-rollouts", "40").status == 0
    assert seen
    assert not any(seen)
    new = (done.folder / "report.html").read_text("utf-8")
    assert "charged, of 24" in old
    assert "charged, of 40" in new


def write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


def change(name: str, **values: Any) -> Any:
    def damage(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **values}))

    return damage


def append(name: str, text: str) -> Any:
    return lambda folder: (folder / name).open("a").write(text)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (write("result.json", "{"), "result.json is broken: "),
        (write("result.json", '{"a": 1}'), "result.json is broken: status: Field required"),
        (write("result.json", "[]"), "result.json is broken: "),
        (
            change("result.json", rollouts={"uncharged": [1]}),
            "result.json or another file holds what no run",
        ),
        (write("candidates.json", '[{"other": ""}]'), "candidates.json is broken: no 'system_p"),
        (write("candidates.json", '"text"'), "candidates.json is broken: "),
        (append("traces.jsonl", "{}\n"), r"traces.jsonl, line \d+ is broken: no 'gepa'"),
        (append("decisions.jsonl", "[1]\n"), "decisions.jsonl, line 4 is broken: "),
        (append("reflections.jsonl", "x\n"), r"reflections.jsonl, line \d+ is broken: "),
        (append("proposals.jsonl", "{}\n"), r"proposals.jsonl, line \d+ is broken: number"),
    ],
)
def test_a_damaged_run_is_one_line(
    copy: Run, damage: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(copy.folder)
    before = contents(copy.folder)
    assert gepa_report([str(copy.folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.match(f"gepa-report: {copy.folder}/{says}", err)
    assert contents(copy.folder) == before


def test_what_holds_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "splits.json").write_text("{}")
    assert gepa_report([str(tmp_path)]) == 2
    assert gepa_report([str(tmp_path / "nowhere")]) == 2
    assert gepa_report([]) == 2
    assert gepa_report([str(tmp_path), "--nonsense"]) == 2
    err = capsys.readouterr().err
    assert f"gepa-report: {tmp_path} holds no run: it has neither result.json" in err
    assert f"gepa-report: {tmp_path}/nowhere is not a directory" in err
    assert [path.name for path in tmp_path.iterdir()] == ["splits.json"]


def test_a_run_that_was_killed_is_shown_as_far_as_it_came(copy: Run) -> None:
    known = curve_of(Views(read_run(copy.folder)))
    for name in ("result.json", "report.html", "proposals.jsonl"):
        (copy.folder / name).unlink(missing_ok=True)
    append("traces.jsonl", '{"half')(copy.folder)
    before = contents(copy.folder)
    assert gepa_report([str(copy.folder)]) == 0
    page = (copy.folder / "report.html").read_text("utf-8")
    assert "<h2>No result yet</h2>" in page
    assert "the last line of traces.jsonl is only half written: left out" in page
    assert "This run has no proposals.jsonl." in page
    assert contents(copy.folder).items() >= before.items()
    assert curve_of(Views(read_run(copy.folder))).val == known.val


def test_the_traces_are_not_held(copy: Run) -> None:
    (line, *_) = (copy.folder / "traces.jsonl").read_bytes().splitlines()
    episode = json.loads(line)
    episode["traces"][0]["info"]["feedback"] = "long " * 200_000
    with (copy.folder / "traces.jsonl").open("a") as file:
        for _ in range(20):
            file.write(json.dumps(episode) + "\n")
    tracemalloc.start()
    data = read_run(copy.folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.rollouts) == len((copy.folder / "traces.jsonl").read_bytes().splitlines())
    assert peak < 6_000_000  # of 20 MB


def proposal(number: int, text: str, **more: Any) -> str:
    line = {"number": number, "iteration": number + 1, "parents": [0], "text": text}
    line |= {"candidate": None, "decision": "rejected", "reason": "its sum was no higher"}
    return json.dumps({**line, "charged": 8 + number, **more}) + "\n"


def test_every_proposal_is_there_and_the_page_is_bounded(copy: Run) -> None:
    lines = [proposal(n, f"{n} {'x' * 100_000}\n" * 2) for n in range(60)]
    scores = {"scores_before": [0.0, 1.0], "scores_after": [1.0, None]}
    lines.append(proposal(60, "\ud83d", reason="\x07 beep", minibatch=[0, 3], **scores))
    (copy.folder / "proposals.jsonl").write_text("".join(lines))
    data = read_run(copy.folder)
    page = render_report(data)
    assert page.count("<b>#") == 61
    assert len(page) < PAGE_CHARS + 2_000_000
    assert "\u2039U+D83D\u203a" in page
    assert "\u2039U+0007\u203a</samp> beep" in page
    curve = curve_of(Views(data))
    assert curve.before == [(68, 0.5)]
    assert curve.after == []  # not all of it was run


RESULT = {"status": "finished", "finish_reason": "budget", "partial": False, "rollouts": {}}
TESTED = {"baseline_mean": 0.5, "deployed_mean": 0.75, "delta_pp": 25.0, "ci95": [10.0, 40.0]}
WORSE = {"deployed_mean": 0.25, "delta_pp": -25.0, "ci95": [-40.0, -10.0]}
CUT = {"status": "interrupted", "finish_reason": "SIGINT", "partial": True, "message": "stopped"}


@pytest.mark.parametrize(
    ("result", "kind", "word", "says"),
    [
        ({**TESTED, "p_value": 0.01, "improved": True}, "improved", "Improved", "+10.0 to +40.0"),
        ({**TESTED, "p_value": 0.2}, "even", "No gain shown", "which chance may explain"),
        ({**TESTED, "p_value": 0.2}, "even", "No gain shown", "that nothing had read before"),
        (
            {**TESTED, "p_value": 0.2, "invalid_reasons": [TESTED_BEFORE]},
            "even",
            "No gain shown",
            "test tasks, the deployed prompt scores",
        ),
        ({**TESTED, **WORSE, "p_value": 0.01}, "worse", "Worse", "Keep the seed prompt"),
        ({**TESTED, **WORSE, "p_value": 0.2}, "even", "No gain shown", "-40.0 to -10.0"),
        (
            {**TESTED, "ci95": None, "statistics_reason": "only 3 tasks"},
            "untested",
            "No verdict",
            "without an interval: only 3 tasks",
        ),
        ({"fallback_reason": "no_candidate"}, "even", "No better prompt found", "No proposal"),
        ({"fallback_reason": "no_improvement"}, "even", "No better prompt found", "run afresh"),
        ({"statistics_reason": "no test tasks"}, "untested", "Not tested", "no test tasks"),
        ({"val_means": [0.25, 0.5]}, "untested", "Not tested", "0.2500 to 0.5000, which flatters"),
        ({**CUT, "val_means": [0.25]}, "untested", "Cut short", "accepted no prompt so far"),
        (
            {**CUT, **TESTED, "p_value": 0.01, "improved": True},
            "improved",
            "Improved, cut short",
            "Improved: ",
        ),
    ],
)
def test_the_verdict_claims_what_was_measured(
    result: dict[str, Any], kind: str, word: str, says: str
) -> None:
    found = verdict(RunData(Path(), result=Result.model_validate({**RESULT, **result})))
    assert (found.kind, found.word) == (kind, word)
    assert says in found.sentence
    assert found.partial == bool(result.get("partial"))
    assert any("stopped" in caveat for caveat in found.caveats) == found.partial


def test_a_page_needs_no_more_than_a_result() -> None:
    hints = [{"code": "budget", "text": "raise <the budget>"}]
    roles = {"student": {"input": 12_345, "usd": None, "reason": "no price for <model>"}}
    cost = {"usd": None, "reason": "of the student", "roles": roles}
    result = Result.model_validate({**RESULT, "hints": hints, "cost": cost})
    page = render_report(RunData(Path("runs/first"), result=result))
    assert "<li>raise &lt;the budget&gt;</li>" in page
    assert "<bdi>12,345</bdi>" in page
    assert '<bdi>unknown</bdi></td><td class="number"><bdi>no price for &lt;model&gt;</bdi>' in page
    assert "gepa-report runs/first" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\tb\n"),
        ("<b>&'\"", "&lt;b&gt;&amp;&#39;&#34;"),
        ("naïve 中文 שלום 👩\u200d👧", "naïve 中文 שלום 👩\u200d👧"),
        ("\r", "[000D]"),
        ("\0\x1b\x9b", "[0000][001B][009B]"),
        ("\u202eabc\u2069", "[202E]abc[2069]"),
        ("\u200b\ufeff\u2028\xad", "[200B][FEFF][2028][00AD]"),
        ("\ud800", "[D800]"),
        ("a" + "\0" * 100_000, "a[0000 x 100000]"),
        ("\U000e0041", "[E0041]"),
        (Markup("<b>"), "<b>"),
        (None, "None"),
    ],
)
def test_text_is_shown_as_its_characters(text: Any, shown: str) -> None:
    page = str(literal(text)).replace("<samp>\u2039U+", "[").replace("</samp>", "]")
    assert page.replace("\u203a", "") == shown


def test_a_diff_marks_the_words_and_leaves_out_what_is_the_same() -> None:
    same = [f"line {number}" for number in range(20)]
    found = diff("\n".join([*same, "use the red cup"]), "\n".join([*same, "use the blue cup", "!"]))
    assert (found.inserted, found.deleted, found.aligned) == (2, 1, True)
    skipped, *context = found.lines[:4]
    assert (skipped.kind, skipped.skipped) == ("skipped", 17)
    assert [line.segments for line in context] == [[(f"line {n}", False)] for n in (17, 18, 19)]
    assert [(line.kind, line.segments) for line in found.lines[4:]] == [
        ("deleted", [("use the ", False), ("red", True), (" cup", False)]),
        ("inserted", [("use the ", False), ("blue", True), (" cup", False)]),
        ("inserted", [("!", True)]),
    ]
    assert diff("a", "a").lines == []
    assert [line.segments for line in diff("", "a\rb\n").lines] == [
        [("a\rb", False)],
        [("", False)],
    ]


@pytest.mark.parametrize("line", ["{} {}\n", "{} a\n", "{}" + " word" * 3])
def test_a_diff_of_long_texts_holds_all_of_both(line: str) -> None:
    old = "".join(line.format(number, number % 7) for number in range(8_000))
    new = "".join(line.format(number + 1, number % 5) for number in range(8_000, 0, -1))
    found = diff(f"same\n{old}", f"same\n{new}")
    texts: dict[str, list[str]] = {"same": [], "deleted": [], "inserted": []}
    for entry in found.lines:
        texts[entry.kind].append("".join(text for text, _ in entry.segments))
    assert found.aligned == ("\n" not in line)
    assert "\n".join(texts["deleted"]) in old
    assert "\n".join(texts["inserted"]) in new
    assert len(texts["deleted"]) == found.deleted
