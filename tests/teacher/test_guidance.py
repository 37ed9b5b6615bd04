"""The user's guidance for the teacher: where it comes from, where it goes, what it may not be."""

import codecs
import hashlib
import json
from pathlib import Path

import pytest

from tests.support import Run, run, scripted, teacher_requests
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.command.sources import parse_config
from verifiers.v1.gepa.config import GEPAConfig

BUDGET = ["--max-total-rollouts", "12"]

WORD = "Antworte auf Deutsch.\nKeep {customer} and `````\n--as it is."

SECTION = f"""
The user knows the task and says this of it and of the prompt. Keep to it, also where the examples
suggest something else:
<guidance>
{WORD}
</guidance>
"""

UNGUIDED = "b4f9662c69161f3e984d8a518069bc66587577f428a3f97b117807f86fc82ce5"
"""SHA-256 of the request of `asked` without guidance: the records of runs depend on it."""


def asked(folder: Path, *flags: str) -> str:
    """What the teacher of a run with these flags is asked."""
    with scripted() as endpoint:
        assert run(endpoint, folder, *BUDGET, *flags).status == 0
        (request,) = teacher_requests(endpoint)
    return request.user


def test_without_guidance_the_request_is_what_it_was_and_with_some_has_a_section_more(
    tmp_path: Path,
) -> None:
    rules = ["--max-prompt-chars", "5000", "--protect", "Answer."]
    plain = asked(tmp_path, *rules)
    assert hashlib.sha256(plain.encode()).hexdigest() == UNGUIDED
    guided = asked(tmp_path, *rules, "--reflection-guidance", WORD)
    before, found, after = guided.partition(SECTION)
    assert found
    assert before + after == plain
    assert before.endswith("Keep what already works.\n")
    assert after.startswith("\nThe new prompt may have at most 5000 characters")


@pytest.mark.parametrize(
    "words",
    [
        ["--reflection-guidance", "@notes.md"],
        ["--reflection-guidance", "@", "notes.md"],
        ["--reflection-guidance=@notes.md"],
        ["--reflection_guidance", "@notes.md"],
        ["@", "guided.toml"],
        ["--reflection-guidance", WORD],
        ["--reflection-guidance=" + WORD],
    ],
    ids=["flag", "blank", "attached", "underscore", "TOML", "text", "text attached"],
)
def test_every_way_to_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_bytes(codecs.BOM_UTF8 + f"\n{WORD}\n".encode())
    (tmp_path / "guided.toml").write_text('reflection_guidance = "@notes.md"\n', "utf-8")
    config, _ = parse_config(["board-v1", *words, "-n", "5"])
    assert config.reflection_guidance == WORD
    assert config.select.limit == 5
    assert GEPAConfig(reflection_guidance="@notes.md").reflection_guidance == WORD


@pytest.mark.parametrize("text", ["--num-train", "-n", "a=b", "mail@x.toml"])
def test_no_guidance_is_taken_for_anything_else(text: str) -> None:
    config, _ = parse_config(["board-v1", "--reflection-guidance", text, "-n", "5"])
    assert (config.reflection_guidance, config.select.limit) == (text, 5)


REFUSED = {
    "a file that is not there": (
        "@absent.md",
        "absent.md can't be read (No such file or directory",
    ),
    "no file": ("@", "@ must be followed by the path of a file"),
    "a folder": ("@.", ". can't be read (Is a directory)"),
    "another encoding": ("@utf16.md", "utf16.md is UTF-16: save it as UTF-8"),
    "a file that names one": ("@at.md", "the text of at.md begins with @"),
    "an empty file": ("@empty.md", "it holds no text: leave it out"),
    "a blank": (" ", "it holds no text: leave it out"),
    "a file without the @": ("notes.md", "for what it holds, write @notes.md"),
    "half a character": ("\ud83d", "it holds a lone surrogate"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_guidance_is_refused_in_one_line_before_anything_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text(WORD, "utf-8")
    (tmp_path / "at.md").write_text("@notes.md", "utf-8")
    (tmp_path / "empty.md").write_text("\n", "utf-8")
    (tmp_path / "utf16.md").write_text(WORD, "utf-16")
    value, message = REFUSED[case]
    file = tmp_path / "said.json"
    file.write_text(json.dumps({"reflection_guidance": value}), "ascii")
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, "@", str(file))
        assert endpoint.requests == []
    assert done.status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gepa: --reflection-guidance")
    assert message in line


def test_guidance_that_leaves_the_examples_no_room_is_refused_with_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ["--max-reflection-chars", "20000"]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, *limit, "--reflection-guidance", "x" * 14_000)
        assert endpoint.requests == []
    assert done.status == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        "gepa: --reflection-guidance has 14000 characters: with the seed prompt (7)"
    )
    assert "of --max-reflection-chars 20000 to the examples, which get at least 5000" in line
    enough = line.rpartition(" ")[2]
    for number, status in ((enough, 0), (str(int(enough) - 1), 2)):
        limit = ["--max-reflection-chars", number, "--reflection-guidance", "x" * 14_000]
        with scripted() as endpoint:
            assert run(endpoint, tmp_path, *BUDGET, *limit, "--dry-run").status == status


def test_it_takes_from_what_the_examples_have(tmp_path: Path) -> None:
    flags = ["--max-reflection-chars", "20000", "--taskset.suffix", " and more" * 4_000]
    assert 19_000 < len(asked(tmp_path, *flags)) <= 20_000
    assert 19_000 < len(asked(tmp_path, *flags, "--reflection-guidance", "x" * 5_000)) <= 20_000


@pytest.fixture
def guided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A finished run with guidance from a file that is gone."""
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "notes.md"
    notes.write_text(WORD, "utf-8")
    runs = tmp_path / "runs"
    runs.mkdir()
    with scripted() as endpoint:
        done = run(endpoint, runs, *BUDGET, "--reflection-guidance", "@notes.md")
    notes.unlink()
    return done


def again(done: Run, *flags: str) -> tuple[int, list[str]]:
    """The status of a resume with these flags, and what it asked the teacher."""
    saved = str(done.folder / "configs/resolved/gepa.json")
    with scripted() as endpoint:
        where = ["--client.base-url", endpoint.url]
        where += ["--reflection-client.base-url", endpoint.teacher_url]
        status = main(["@", saved, "--resume", *where, "--max-total-rollouts", "20", *flags])
        return status, [request.user for request in teacher_requests(endpoint)]


def test_a_resume_says_the_same_without_the_file_and_is_refused_other_guidance(
    guided: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guided.json("configs/resolved/gepa.json")["reflection_guidance"] == WORD
    for other in ("Another.", "None"):
        status, requests = again(guided, "--reflection-guidance", other)
        assert (status, requests) == (2, [])
        err = capsys.readouterr().err
        assert 'teacher.guidance: "Antworte auf Deutsch.' in err
        assert ('"Another." now' if other == "Another." else "null now") in err
    status, requests = again(guided)
    assert status == 0
    assert len(requests) == 2
    assert all(SECTION in request for request in requests)
    page = (guided.folder / "report.html").read_text("utf-8")
    assert "<tr><th>guidance</th>" in page
    assert "Antworte auf Deutsch." in page


def test_a_record_from_before_there_was_guidance_goes_on_without_any(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    assert not any("guidance" in name for name in done.json("identity.json"))
    config = done.json("configs/resolved/gepa.json")
    assert config.pop("reflection_guidance") is None
    (done.folder / "configs/resolved/gepa.json").write_text(json.dumps(config), "utf-8")
    assert again(done, "--reflection-guidance", "Be kind.") == (2, [])
    status, requests = again(done)
    assert (status, len(requests)) == (0, 2)
