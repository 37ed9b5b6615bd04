"""The documentation, tried out: its commands and programs run, and a run is what it says.

Commands run in this process (a process of their own would cost seconds each) against the scripted
student and teacher, in the order of their page. URLs become those of the endpoint; runs whose size
a page does not state are made small, unless they go on with another.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers.v1.cli.gepa import main
from verifiers.v1.cli.gepa_aggregate import main as gepa_aggregate
from verifiers.v1.cli.gepa_compare import main as gepa_compare
from verifiers.v1.cli.gepa_report import main as gepa_report
from verifiers_gepa.endpoint import Endpoint, Reply, Request, Respond
from verifiers_gepa.scripted import scripted

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENVIRONMENTS = sorted((ROOT / "environments").glob("*/README.md"))
SKILL = ROOT / "skills/optimize-prompts/SKILL.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *ENVIRONMENTS,
    SKILL,
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
SCHEMA = json.loads((DOCS / "result.schema.json").read_bytes())
MESSAGES = ROOT / "environments/support_intent_v1/support_intent_v1/messages.jsonl"

NOT_RUN = {
    "make quickstart": "makes a virtual environment; what it runs in it is tried below",
    "python -m verifiers_gepa.simulated gepa @ configs/quickstart.toml": "`quickstart` below does",
    "make test": "makes a virtual environment and runs these tests",
    "pip install .": "tests/test_packaging.py installs the package",
    "pip install ./environments/reverse_text_v1 ./environments/gsm8k_v1": "the same",
    **{f"pip install ./environments/{page.parent.name}": "the same" for page in ENVIRONMENTS[1:]},
    "python benchmarks/all.py": "takes 14 minutes",
    "python benchmarks/throughput.py": "takes minutes",
    "python benchmarks/startup.py": "times whole processes",
    **{
        f"python benchmarks/{name}.py": "tests/test_benchmarks.py runs a small one"
        for name in ("quality", "wallclock", "steps")
    },
    "gepa -h": "tests/command/test_cli.py does, and it takes seconds",
    "gepa support-intent-v1 -h": "the same",
    "make clean": "removes what the other targets made",
    ". .venv/bin/activate": "a shell's own environment",
    "python -m pytest tests/search/test_stops.py": "tests/docs/test_contributing.py finds the test",
    "python -m pytest tests/search/test_stops.py::test_a_file_stops_the_run": "the same",
    "pip install pre-commit": "installs a program",
    "pre-commit install": "writes into .git; tests/docs/test_contributing.py reads the hooks",
    "python -m hatchling build": "tests/test_packaging.py builds both",
    "python -m verifiers_gepa.simulated bash": "a shell; what is typed in it is tried below",
}
"""Commands that no test here runs, and why."""

SMALL = {
    "--num-train": "4",
    "--num-val": "3",
    "--num-test": "2",
    "--max-total-rollouts": "12",
    "--reflection-minibatch-size": "2",
}
SHOWN = [
    DOCS / "tutorial.md",
    DOCS / "why-not-better.md",
]
"""Pages whose commands run as they stand, and print what the page shows."""

SIMULATED = ["python", "-m", "verifiers_gepa.simulated"]
URL = re.compile(r"https?://[^\s,\"]+")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(
    r"^\| `([^`]+)`(?: \(`(-\w)`\))?(?:, `([^`]+)`)? \|(?: `([^`]*)` \|)?", re.MULTILINE
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of a page's fenced blocks, in order."""
    return BLOCK.findall(page.read_text("utf-8"))


def commands(block: str) -> list[str]:
    """The commands of a shell block, continued lines joined, comments left out."""
    lines = re.sub(r" *\\\n *", " ", block).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def section(page: Path, title: str) -> str:
    """The text of a page under a heading, up to the next one of its level."""
    return page.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(text: str) -> list[str]:
    """The code in the first column of a section's table rows."""
    return [name for row in ROW.finditer(text) for name in (row[1], row[3]) if name]


@contextlib.contextmanager
def working_directory(where: Path, respond: Respond) -> Iterator[Endpoint]:
    """The working directory of a reader, with `configs/`, and the endpoint behind every URL."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    shutil.copytree(ROOT / "configs", where / "configs")
    with pytest.MonkeyPatch.context() as patch, Endpoint(respond) as endpoint:
        patch.chdir(where)
        patch.setenv("VF_RUN_ID", "docs")
        patch.setenv("TASK_ENDPOINTS", endpoint.url)
        patch.setenv("REFLECTION_MODEL_BASE_URL", endpoint.teacher_url)
        for file in (where / "configs").iterdir():
            file.write_text(URL.sub(endpoint.url, file.read_text("utf-8")), "utf-8")
        yield endpoint
    for number, handler in handlers.items():
        signal.signal(number, handler)  # vf-eval leaves its own


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Path, Endpoint]]:
    with working_directory(tmp_path, scripted()) as endpoint:
        yield tmp_path, endpoint


def localized(words: list[str], endpoint: Endpoint) -> list[str]:
    """The words of a command with the endpoint's URLs for those of the page."""
    urls = []
    for before, word in zip(["", *words], words, strict=False):
        to_teacher = "reflection" in f"{before} {word}".casefold()
        urls.append(URL.sub(endpoint.teacher_url if to_teacher else endpoint.url, word))
    return urls


def run(
    command: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, small: bool = True
) -> None:
    """Run one command of a page, made small if it may be. Raises AssertionError where it fails or
    is of no known kind."""
    command = command.replace("$TASK_ENDPOINTS", endpoint.url)
    words = localized(shlex.split(command), endpoint)
    with monkeypatch.context() as patch:
        while re.match(r"[A-Z_]+=", words[0]):
            patch.setenv(*words.pop(0).split("=", 1))
        for variable in re.findall(r"api-key-var (\w+)", command):
            patch.setenv(variable, f"value of {variable}")
        if words[:3] == SIMULATED:
            words = words[words.index("gepa") :]
        before = len(endpoint.requests)
        argv = words[1:]
        if words[0] == "vf-eval":
            if small and not any(word.startswith(("-n", "--select")) for word in argv):
                argv += ["-n", "3", "--no-push"]
            patch.setattr(sys, "argv", ["vf-eval", *argv])
            vf_eval(argv)
        elif words[0] == "gepa-aggregate":
            assert gepa_aggregate(argv) == 0, command
        elif words[0] == "gepa-compare":
            assert gepa_compare(argv) in (0, 1), command
        elif words[0] == "gepa-report":
            assert gepa_report(argv) == 0, command
        else:
            assert words[0] == "gepa", f"no test for: {command}"
            if small and not {"--resume", "--dry-run", "configs/quickstart.toml"} & set(argv):
                argv += [word for flag in SMALL.items() if flag[0] not in argv for word in flag]
            assert main(argv) == 0, command
            if "--resume" not in argv:
                assert bool(endpoint.requests[before:]) != ("--dry-run" in argv)
    if found := re.search(r"--client.api-key-var (\w+)", command):
        sent = {r.headers["Authorization"] for r in endpoint.requests[before:] if not r.to_teacher}
        assert sent == {f"Bearer value of {found[1]}"}


def is_excerpt(program: str) -> bool:
    """Whether a block shows a piece of a file instead of a program."""
    return any(program in file.read_text("utf-8") for file in (ROOT / "environments").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_and_program_of_a_page_runs(
    page: Path,
    folder: tuple[Path, Endpoint],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where, endpoint = folder
    names: dict[str, Any] = {}
    printed = ""
    for number, (language, block) in enumerate(blocks(page)):
        if language == "sh":
            for command in commands(block):
                if command not in NOT_RUN:
                    run(command, endpoint, monkeypatch, small=page not in SHOWN)
        elif language == "python" and not is_excerpt(block):
            exec(compile(URL.sub(endpoint.url, block), page.name, "exec"), names)
        elif language == "toml":
            (where / f"{number}.toml").write_text(block, "utf-8")
            assert main(["@", f"{number}.toml", "--dry-run"]) == 0
        elif language == "text" and page in SHOWN:
            printed += "".join(capsys.readouterr())
            for line in block.splitlines():
                assert line in printed
        else:
            assert language in ("text", "python", "mermaid")
    # What the programs print is said to be a gain, the teacher's request, or the same twice.
    if "outcome" in names:
        assert names["outcome"].best_val_mean > names["outcome"].seed_val_mean
    if "requests" in names:
        assert "<current_prompt>" in names["requests"][0].user
    if "charged" in names:
        assert names["means"] == names["result"]["val_means"]
        assert names["charged"] == names["result"]["rollouts"]["charged"]
    if "saved" in names:
        counts = names["outcome"].rollouts
        assert 100 < counts["replayed"] < counts["attempted"]
        assert counts["charged"] <= counts["budget"] == 160


def test_what_is_not_run_is_still_there() -> None:
    shown = {
        command
        for page in PAGES
        for language, block in blocks(page)
        if language == "sh"
        for command in commands(block)
    }
    assert NOT_RUN.keys() <= shown
    for file in re.findall(r"[\w/]+\.py", " ".join(NOT_RUN.values())):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("target", ["quickstart", "test"])
def test_the_make_targets(target: str) -> None:
    # Below another make, as in CI, it would announce its directory and take over its flags.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    recipe = subprocess.run(
        ["make", "-n", target], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    last = recipe.stdout.splitlines()[-1]
    assert "pytest" in last if target == "test" else last.endswith("gepa @ configs/quickstart.toml")


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, str]:
    """The quickstart's working directory, and what it printed on stdout and stderr."""
    where = tmp_path_factory.mktemp("quickstart")
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    seen = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with working_directory(where, scripted()), seen[0], seen[1]:
        # Twice: a run directory is not in the way of the next run.
        assert main(["@", "configs/quickstart.toml", "--run.name", "first"]) == 0
        printed = out.buffer.getvalue(), err.getvalue()
        assert main(["@", "configs/quickstart.toml", "--phase", "optimize"]) == 0
    assert len(list((where / "outputs").iterdir())) == 2
    return where, *printed


def test_the_quickstart_prints_what_the_readme_shows(quickstart: tuple[Path, bytes, str]) -> None:
    _, out, err = quickstart
    texts = [block for language, block in blocks(ROOT / "README.md") if language == "text"]
    log, prompt, headline = texts
    position = 0
    for line in log.splitlines():
        if line != "...":
            position = err.index(line, position)
    assert out.decode() == prompt.removesuffix("\n")
    assert headline in log


def test_the_quickstart_gets_better_and_ends_by_its_budget(
    quickstart: tuple[Path, bytes, str],
) -> None:
    result = json.loads((quickstart[0] / "outputs/first/result.json").read_bytes())
    assert (result["status"], result["finish_reason"]) == ("finished", "budget")
    assert result["improved"]
    assert result["valid_for_aggregation"]
    assert result["delta_pp"] >= 30


def test_a_resume_of_another_run_is_refused_as_shown(
    quickstart: tuple[Path, bytes, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(quickstart[0])
    argv = ["@", "configs/quickstart.toml", "--run.name", "first", "--resume", "--seed", "1"]
    assert main(argv) == 2
    (shown,) = (block for kind, block in blocks(DOCS / "failures.md") if kind == "text")
    assert capsys.readouterr().err.endswith(shown)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that lost one val task to the seed prompt and one to the next."""
    rows = [json.loads(line)["text"] for line in MESSAGES.read_text("utf-8").splitlines()[:14]]
    answer = scripted()

    def respond(request: Request) -> Any:
        is_seed = "\n" not in request.system
        if not request.to_teacher and request.user == rows[13 if is_seed else 12]:
            head = {"id": "", "object": "chat.completion", "created": 0, "model": "student"}
            return Reply(body={**head, "choices": []})
        return answer(request)

    where = tmp_path_factory.mktemp("damaged")
    with working_directory(where, respond):
        argv = ["support-intent-v1", "-m", "student", "--num-train", "4", "--num-val", "10"]
        argv += ["--num-test", "0", "--max-total-rollouts", "26", "--max-attempts", "1"]
        assert main([*argv, "--max-dropped-fraction", "0.2", "--run.name", "damaged"]) == 0
    return where / "outputs/damaged"


def test_the_files_of_a_run(quickstart: tuple[Path, bytes, str], damaged: Path) -> None:
    whole, page = quickstart[0] / "outputs/first", DOCS / "outputs.md"
    for run_dir in (damaged, whole):
        files = {str(file.relative_to(run_dir)) for file in run_dir.rglob("*") if file.is_file()}
        assert set(first_column(page.read_text("utf-8").split("\n## ")[0])) == files
        assert set(first_column(section(ROOT / "README.md", "The run directory"))) == files
    artifacts = json.loads((damaged / "result.json").read_bytes())["artifacts"]
    assert {f"outputs/damaged/{name}" for name in files} - set(artifacts.values()) == {
        f"outputs/damaged/{name}" for name in (".lock", "identity.json", "result.json")
    }


def schema_keys(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys that a JSON Schema names, those of objects within as `outer.inner`."""
    for key, inner in schema.get("properties", {}).items():
        yield f"{prefix}{key}"
        yield from schema_keys(inner.get("items", inner), f"{prefix}{key}.")


def test_the_keys_of_a_runs_files(quickstart: tuple[Path, bytes, str], damaged: Path) -> None:
    page, run_dir = DOCS / "outputs.md", quickstart[0] / "outputs/first"
    result = json.loads((damaged / "result.json").read_bytes())
    for known in (result, json.loads((run_dir / "result.json").read_bytes())):
        jsonschema.validate(known, SCHEMA)
    open_keys = [f"{key}.{inner}" for key in ("artifacts", "versions") for inner in result[key]]
    listed = first_column(section(page, "result.json"))
    assert sorted(listed) == sorted([*schema_keys(SCHEMA), *open_keys])

    def lines(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    episodes, exchanges = lines(run_dir / "traces.jsonl"), lines(run_dir / "reflections.jsonl")
    assert first_column(section(page, "traces.jsonl")) == [*episodes[0]["gepa"]]
    (failed, *_) = (e["gepa"] for e in lines(damaged / "traces.jsonl") if not e["gepa"]["charged"])
    assert episodes[0]["gepa"].keys() - failed.keys() == {"score"}
    assert first_column(section(page, "reflections.jsonl")) == [*exchanges[0]]
    assert set(re.findall(r"`(\w+)` is", section(page, "reflections.jsonl"))) < set(
        exchanges[0]["answer"]
    )
    dropped, *decisions = (
        line for line in lines(damaged / "decisions.jsonl") if line["decision"] != "narrowed"
    )
    assert dropped["decision"] == "dropped"
    assert [(one["decision"], one["phase"]) for one in decisions] == [
        ("given up", "optimize"),
        ("ended", "optimize"),
        ("given up", "validate"),
        ("ended", "validate"),
        ("ended", "test"),
    ]
    narrowed = ("iteration", "what", "number")  # of a run with several proposals per iteration
    spent = ("role", "usage")  # of a call that no other line holds, see tests/spend/test_money.py
    keys = dict.fromkeys([*decisions[0], *decisions[1], *narrowed, *spent])
    assert first_column(section(page, "decisions.jsonl")) == [*keys]
    proposals = lines(run_dir / "proposals.jsonl")
    assert first_column(section(page, "proposals.jsonl")) == [*proposals[0]]
    assert result["lost"] == {"validate": [12]}
    splits = json.loads((damaged / "splits.json").read_bytes())
    assert first_column(section(page, "splits.json")) == [*splits["train"][0], "same_as"]
    assert splits["dropped"] == result["dropped"] == [13]
    for name in splits:
        assert f"`{name}`" in section(page, "splits.json")


def test_the_parts_of_a_record(quickstart: tuple[Path, bytes, str]) -> None:
    reflections = (quickstart[0] / "outputs/first/reflections.jsonl").read_bytes()
    prompt = json.loads(reflections.splitlines()[0])["prompt"]
    listed = section(DOCS / "tasksets.md", "What the teacher sees")
    parts = re.findall(r"^### (.+)$", prompt, re.MULTILINE)
    assert set(parts) <= set(re.findall(r"^\| ([A-Z][a-z ]+) \|", listed, re.MULTILINE))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_config_plans(file: Path, folder: tuple[Path, Endpoint]) -> None:
    taskset = [] if "[taskset]" in file.read_text("utf-8") else ["support-intent-v1"]
    assert main([*taskset, "@", str(file), "--dry-run"]) == 0
    assert folder[1].requests == []
