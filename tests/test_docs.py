"""The documentation, tried out: its commands and programs run, and its tables name what there is.

Commands run in this process (a process of their own would cost seconds each) against the scripted
student and teacher, in the order of their page. URLs become those of the endpoint; runs whose size
a page does not state are made small.
"""

import ast
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

import pytest
from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

import verifiers.v1 as vf
from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.config import EnvironmentVariables, GEPAConfig, narrow
from verifiers.v1.gepa.records import EXAMPLES_CHARS, RECORD_CHARS
from verifiers.v1.gepa.sources import parse_config
from verifiers_gepa.endpoint import Endpoint
from verifiers_gepa.scripted import scripted

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))

NOT_RUN = {
    "make quickstart": "makes a virtual environment; what it runs in it is tried below",
    "make test": "makes a virtual environment and runs these tests",
    "pip install .": "test_packaging.py installs the package",
    "pip install ./environments/reverse_text_v1 ./environments/gsm8k_v1": "the same",
}
"""Commands that no test here runs, and why."""

SMALL = {
    "--num-train": "4",
    "--num-val": "3",
    "--num-test": "2",
    "--max-total-rollouts": "12",
    "--reflection-minibatch-size": "2",
}
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Endpoint]]:
    """The working directory of a reader, with `configs/`, and the endpoint behind every URL."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VF_RUN_ID", "docs")
    with Endpoint(scripted()) as endpoint:
        monkeypatch.setenv("TASK_ENDPOINTS", endpoint.url)
        monkeypatch.setenv("REFLECTION_MODEL_BASE_URL", endpoint.teacher_url)
        for file in (tmp_path / "configs").iterdir():
            file.write_text(URL.sub(endpoint.url, file.read_text("utf-8")), "utf-8")
        yield tmp_path, endpoint
    for number, handler in handlers.items():
        signal.signal(number, handler)  # vf-eval leaves its own


def localized(words: list[str], endpoint: Endpoint) -> list[str]:
    """The words of a command with the endpoint's URLs for those of the page."""
    urls = []
    for before, word in zip(["", *words], words, strict=False):
        to_teacher = "reflection" in f"{before} {word}".casefold()
        urls.append(URL.sub(endpoint.teacher_url if to_teacher else endpoint.url, word))
    return urls


def run(command: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one command of a page. Raises AssertionError where it fails or is of no known kind."""
    words = localized(shlex.split(command), endpoint)
    with monkeypatch.context() as patch:
        while re.match(r"[A-Z_]+=", words[0]):
            patch.setenv(*words.pop(0).split("=", 1))
        for variable in re.findall(r"api-key-var (\w+)", command):
            patch.setenv(variable, f"value of {variable}")
        if words[:3] == SIMULATED:
            words = words[words.index("gepa") :]
        before = len(endpoint.requests)
        if words[0] == "vf-eval":
            patch.setattr(sys, "argv", words)
            vf_eval(words[1:])
        else:
            assert words[0] == "gepa", f"no test for: {command}"
            argv = words[1:]
            if not {"-h", "--dry-run", "configs/quickstart.toml"} & set(argv):
                argv += [word for flag in SMALL.items() if flag[0] not in argv for word in flag]
            assert main(argv) == 0, command
            assert bool(endpoint.requests[before:]) != bool({"-h", "--dry-run"} & set(argv))
    if found := re.search(r"--client.api-key-var (\w+)", command):
        sent = {r.headers["Authorization"] for r in endpoint.requests[before:] if not r.to_teacher}
        assert sent == {f"Bearer value of {found[1]}"}


def is_excerpt(program: str) -> bool:
    """Whether a block shows a piece of a file instead of a program."""
    return any(program in file.read_text("utf-8") for file in (ROOT / "environments").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_program_of_a_page_runs(
    page: Path, folder: tuple[Path, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, endpoint = folder
    names: dict[str, Any] = {}
    for number, (language, block) in enumerate(blocks(page)):
        if language == "sh":
            for command in commands(block):
                if command not in NOT_RUN:
                    run(command, endpoint, monkeypatch)
        elif language == "python" and not is_excerpt(block):
            exec(compile(URL.sub(endpoint.url, block), page.name, "exec"), names)
        elif language == "toml":
            (where / f"{number}.toml").write_text(block, "utf-8")
            assert main(["@", f"{number}.toml", "--dry-run"]) == 0
        else:
            assert language in ("text", "python")
    # What the programs print is said to be a gain, or the same number twice.
    if "outcome" in names:
        assert names["outcome"].best_val_mean > names["outcome"].seed_val_mean
    if "charged" in names:
        assert names["means"] == names["result"]["val_means"]
        assert names["charged"] == names["result"]["rollouts"]["charged"]


def test_what_is_not_run_is_still_there() -> None:
    shown = {
        command
        for page in PAGES
        for language, block in blocks(page)
        if language == "sh"
        for command in commands(block)
    }
    assert NOT_RUN.keys() <= shown


@pytest.mark.parametrize("target", ["quickstart", "test"])
def test_the_make_targets(target: str) -> None:
    # Below another make, as in CI, it would announce its directory and take over its flags.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    recipe = subprocess.run(
        ["make", "-n", target], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    last = recipe.stdout.splitlines()[-1]
    assert "pytest" in last if target == "test" else last.endswith("gepa @ configs/quickstart.toml")


@pytest.fixture
def quickstart(
    folder: tuple[Path, Endpoint], capsysbinary: pytest.CaptureFixture[bytes]
) -> tuple[Path, bytes, str]:
    """The quickstart's run directory, and what it printed on stdout and stderr."""
    assert main(["@", "configs/quickstart.toml"]) == 0
    (run_dir,) = (folder[0] / "outputs").iterdir()
    out, err = capsysbinary.readouterr()
    return run_dir, out, err.decode()


def test_the_quickstart_prints_what_the_readme_shows(quickstart: tuple[Path, bytes, str]) -> None:
    _, out, err = quickstart
    log, prompt = (block for language, block in blocks(ROOT / "README.md") if language == "text")
    position = 0
    for line in log.splitlines():
        if line != "...":
            position = err.index(line, position)
    assert out.decode() == prompt.removesuffix("\n")


def test_the_quickstart_gets_better_ends_by_its_budget_and_runs_twice(
    quickstart: tuple[Path, bytes, str],
) -> None:
    result = json.loads((quickstart[0] / "result.json").read_bytes())
    assert (result["status"], result["finish_reason"]) == ("finished", "budget")
    assert result["best_val_mean"] >= result["seed_val_mean"] + 0.3
    assert main(["@", "configs/quickstart.toml"]) == 0


def test_the_files_and_keys_of_a_run(quickstart: tuple[Path, bytes, str]) -> None:
    run_dir, page = quickstart[0], ROOT / "docs/outputs.md"
    files = {str(file.relative_to(run_dir)) for file in run_dir.rglob("*") if file.is_file()}
    assert set(first_column(page.read_text("utf-8").split("\n## ")[0])) == files
    assert set(first_column(section(ROOT / "README.md", "The run directory"))) == files

    result = json.loads((run_dir / "result.json").read_bytes())
    nested = ("rollouts", "proposals", "artifacts", "commands", "versions")
    keys = [*result, *(f"{key}.{inner}" for key in nested for inner in result[key])]
    assert sorted(first_column(section(page, "result.json"))) == sorted(keys)
    assert set(result["artifacts"].values()) == {
        f"{run_dir.relative_to(Path.cwd())}/{name}" for name in files - {"result.json"}
    }

    def first_line(name: str) -> dict[str, Any]:
        line: dict[str, Any] = json.loads((run_dir / name).read_bytes().splitlines()[0])
        return line

    assert first_column(section(page, "traces.jsonl")) == [*first_line("traces.jsonl")["gepa"]]
    reflection = first_line("reflections.jsonl")
    assert first_column(section(page, "reflections.jsonl")) == [*reflection]
    (task, *_) = json.loads((run_dir / "splits.json").read_bytes())["train"]
    assert first_column(section(page, "splits.json")) == [*task, "same_as"]
    parts = re.findall(r"^### (.+)$", reflection["prompt"], re.MULTILINE)
    listed = section(ROOT / "docs/tasksets.md", "What the teacher sees")
    assert set(parts) <= set(re.findall(r"^\| ([A-Z][a-z ]+) \|", listed, re.MULTILINE))
    for size in (RECORD_CHARS, EXAMPLES_CHARS):
        assert f"{size:,} characters" in listed or f"{size:,}." in listed


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_config_plans(file: Path, folder: tuple[Path, Endpoint]) -> None:
    taskset = [] if "[taskset]" in file.read_text("utf-8") else ["support-intent-v1"]
    assert main([*taskset, "@", str(file), "--dry-run"]) == 0
    assert folder[1].requests == []


def leaves(name: str, info: FieldInfo) -> Iterator[tuple[str, str, str]]:
    """Name, short flag and default, as the tables have them, of a field and those inside it."""
    default = info.get_default(call_default_factory=True)
    if name == "agent.runtime":
        default = {"type": default.type}  # every type has options of its own
    if isinstance(default, BaseModel):
        for inner, field in type(default).model_fields.items():
            for path, short, _ in leaves(f"{name}.{inner}", field):
                yield path, short, rendered(default, path.removeprefix(f"{name}."))
        return
    alias = info.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else []
    short = next((f"-{choice}" for choice in choices if len(str(choice)) == 1), "")
    yield name, short, as_text(default)


def rendered(model: BaseModel, path: str) -> str:
    value: Any = model
    for key in path.split("."):
        value = getattr(value, key)
    return as_text({"type": value.type} if path == "runtime" else value)


def as_text(value: Any) -> str:
    return "None" if value is None else json.dumps(str(value) if isinstance(value, Path) else value)


@pytest.mark.parametrize(("title", "own"), [("The run", True), ("The environment", False)])
def test_the_tables_of_options_name_every_option_and_its_default(title: str, own: bool) -> None:
    run_fields = GEPAConfig.model_fields.keys() - vf.EnvConfig.model_fields.keys()
    expected = [
        leaf
        for name, info in narrow(GEPAConfig, "", "").model_fields.items()
        if (name in run_fields) == own
        for leaf in leaves(name, info)
    ]
    rows = ROW.findall(section(ROOT / "docs/configuration.md", title))
    assert sorted((name, short, default) for name, short, _, default in rows) == sorted(expected)


def test_the_table_of_environment_variables() -> None:
    listed = first_column(section(ROOT / "docs/configuration.md", "Environment variables"))
    assert listed == [name.upper() for name in EnvironmentVariables.model_fields]


def test_the_two_spellings_that_are_said_to_be_equal(folder: tuple[Path, Endpoint]) -> None:
    texts = [block for kind, block in blocks(ROOT / "docs/configuration.md") if kind == "toml"]
    configs = []
    for number, text in enumerate(texts):
        file = folder[0] / f"{number}.toml"
        file.write_text(text, "utf-8")
        configs.append(parse_config(["@", str(file)])[0].model_dump(exclude={"run"}))
    assert len(configs) == 2
    assert configs[0] == configs[1]


def test_the_table_of_modules_is_complete_and_in_the_order_of_imports() -> None:
    home = ROOT / "verifiers/v1/gepa"
    modules = first_column(section(ROOT / "docs/architecture.md", "Modules"))
    assert sorted(modules) == sorted(f.name for f in home.glob("*.py") if f.stem != "__init__")
    for position, module in enumerate(modules):
        for node in ast.walk(ast.parse((home / module).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "verifiers.v1.gepa."
            ):
                assert f"{(node.module or '').rsplit('.', 1)[1]}.py" in modules[:position], module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in slugs, target
