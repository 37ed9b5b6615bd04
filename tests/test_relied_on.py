"""docs/architecture.md, "What is relied on": it is complete, and what it says of the host holds."""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from gepa.api import optimize as search
from gepa.core.adapter import EvaluationBatch
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

from tests.support import ROOT
from verifiers.v1.errors import ProviderError, model_error

PAGE = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## What is relied on")[2]
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
HOSTS = ("verifiers", "gepa", "pydantic_config")


def ours() -> set[str]:
    """The modules of this tree that lie where the host's would."""
    files = (ROOT / "verifiers/v1").rglob("*.py")
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return {name.removesuffix(".__init__") for name in names}


def imported() -> Iterator[tuple[str, str, Path]]:
    """Module, name and file of each import from the host, beside those from `verifiers.v1`."""
    known = ours()
    for folder in ("verifiers", "verifiers_gepa", "environments"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if not isinstance(node, ast.ImportFrom) or node.module in (None, "verifiers.v1"):
                    continue
                assert node.module is not None
                if node.module.partition(".")[0] in HOSTS and node.module not in known:
                    for alias in node.names:
                        if f"{node.module}.{alias.name}" not in known:
                            yield node.module, alias.name, file


def listed() -> dict[str, set[str]]:
    """The names that the page lists, by module."""
    modules = {}
    for line in PAGE.splitlines():
        if line.startswith("- `") and "`: `" in line:
            module, _, names = line.removeprefix("- ").partition(": ")
            modules[module.strip("`")] = set(re.findall(r"`(\w+)`", names))
    return modules


def test_every_import_from_the_host_is_listed() -> None:
    used: dict[str, set[str]] = {}
    for module, name, _ in imported():
        used.setdefault(module, set()).add(name)
    assert used == listed()


def test_every_name_of_the_tables_exists() -> None:
    names = [name for row in ROWS for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0])]
    dotted = [name for name in names if name.partition(".")[0] in (*HOSTS, "sys")]
    assert len(dotted) > 20
    for name in dotted:
        module, _, attribute = name.rpartition(".")
        try:
            holder = importlib.import_module(module)
        except ImportError:  # an attribute of a class
            outer, _, inner = module.rpartition(".")
            holder = getattr(importlib.import_module(outer), inner)
            assert attribute in _fields(holder), name
            continue
        assert hasattr(holder, attribute), name


def _fields(kind: type) -> set[str]:
    """What instances of a class have, as far as its source says."""
    source = ast.parse(Path(importlib.import_module(kind.__module__).__file__ or "").read_bytes())
    words = {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}
    return words | set(dir(kind)) | set(getattr(kind, "__annotations__", {}))


def test_every_test_of_the_tables_exists() -> None:
    assert len(ROWS) > 15
    for row in ROWS:
        (found,) = TEST.findall(row.rsplit(" | ", 1)[1])
        file, name = found
        source = (ROOT / file).read_text("utf-8")
        assert not name or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), row


def test_no_private_name_is_used_beside_those_of_the_list() -> None:
    """A name with an underscore that is not defined in the file where it is used is the host's."""
    for folder in ("verifiers", "verifiers_gepa", "environments"):
        for file in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(file.read_bytes())
            uses = {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
            }
            source = file.read_text("utf-8")
            own = {
                name
                for name in uses
                if re.search(rf"(def {name}\b|self\.{name}\b.*=|{name}: )", source)
            }
            for name in uses - own:
                assert f"`{name}`" in PAGE, f"{file}: {name}"


class Adapter:
    """The least adapter, with a record of what gepa asks of it."""

    propose_new_texts = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def evaluate(
        self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[str, str]:
        score = float(len(candidate["system_prompt"]))
        traces = [""] * len(batch) if capture_traces else None
        return EvaluationBatch([""] * len(batch), [score] * len(batch), traces)

    def batch_evaluate(
        self, items: list[tuple[dict[str, str], list[int]]]
    ) -> list[EvaluationBatch[str, str]]:
        self.asked.append("batch_evaluate")
        return [self.evaluate(batch, candidate, capture_traces=True) for candidate, batch in items]

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"system_prompt": [{"Score": 0}]}


class Teacher:
    def __init__(self, asked: list[str], error: BaseException | None = None) -> None:
        self.asked, self.error = asked, error

    def reflect_many(self, jobs: list[Any]) -> list[tuple[ReflectionProposal, "Teacher"]]:
        self.asked.append("reflect_many")
        if self.error is not None:
            raise self.error
        return [
            (ReflectionProposal(new_texts={"system_prompt": job[0]["system_prompt"] + "!"}), self)
            for job in jobs
        ]

    def reflect(self, *job: Any) -> tuple[ReflectionProposal, "Teacher"]:
        return self.reflect_many([job])[0]


class Stop(BaseException):
    """As `SearchStopped`: no `Exception`."""


def optimize(adapter: Any, teacher: Any, callbacks: list[Any], iterations: int) -> Any:
    """A search of so many iterations, and gepa's state at its end."""
    seen: list[Any] = []

    def stop(gepa_state: Any) -> bool:
        seen.append(gepa_state)
        if gepa_state.i + 1 >= iterations:
            raise Stop
        return False

    with pytest.raises(Stop):
        search(
            seed_candidate={"system_prompt": "p"},
            trainset=[0, 1, 2, 3],
            valset=[4, 5],
            adapter=adapter,
            reflection_strategy=teacher,
            reflection_minibatch_size=2,
            stop_callbacks=stop,
            callbacks=callbacks,
            skip_perfect_score=False,
            seed=0,
        )
    return seen[-1]


def test_what_gepa_calls_and_catches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapter = Adapter()
    events: list[str] = []

    class Callbacks:
        def on_valset_evaluated(self, event: Any) -> None:
            assert {"average_score", "candidate_idx", "candidate", "is_best_program"} <= set(event)
            events.append("valset")

        def on_candidate_accepted(self, event: Any) -> None:
            events.append("accepted")

        def on_candidate_rejected(self, event: Any) -> None:
            events.append("rejected")

    optimize(adapter, Teacher(adapter.asked), [Callbacks()], 2)
    # Parent's minibatch, teacher, child's minibatch, val pass.
    assert adapter.asked[:4] == [
        "batch_evaluate",
        "reflect_many",
        "batch_evaluate",
        "batch_evaluate",
    ]
    assert events[:3] in (["valset", "valset", "accepted"], ["valset", "accepted", "valset"])
    assert list(tmp_path.iterdir()) == []  # nothing is written without a run directory
    # An `Exception` around a proposal is swallowed, anything else is not.
    optimize(Adapter(), Teacher([], ValueError("no")), [], 3)
    least: Any = Adapter()
    interrupted: Any = Teacher([], KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        search(
            seed_candidate={"system_prompt": "p"},
            trainset=[0, 1],
            valset=[2],
            adapter=least,
            reflection_strategy=interrupted,
            reflection_minibatch_size=1,
            max_metric_calls=20,
            skip_perfect_score=False,
        )


def test_what_gepas_state_holds() -> None:
    adapter = Adapter()
    state = optimize(adapter, Teacher(adapter.asked), [], 3)
    assert [c["system_prompt"] for c in state.program_candidates][:2] == ["p", "p!"]
    assert state.program_full_scores_val_set[:2] == [1.0, 2.0]
    assert [ids[0] for ids in state.parent_program_for_candidate][:2] == [None, 0]
    assert state.prog_candidate_val_subscores[0] == {0: 1.0, 1: 1.0}
    assert set(state.pareto_front_valset) == {0, 1}
    assert set(state.program_at_pareto_front_valset) == {0, 1}
    (task,) = state.full_program_trace[0]["tasks"]
    assert (task["subsample_scores"], task["new_subsample_scores"]) == ([1.0, 1.0], [2.0, 2.0])


def test_how_a_refusal_is_worded() -> None:
    error = model_error("upstream 400: {}", status_code=400)
    assert isinstance(error, ProviderError)
    assert (str(error), error.status_code) == ("upstream 400: {}", 400)
