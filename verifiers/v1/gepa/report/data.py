"""A run directory, read for its report.

Only read: another process may be at work in it. Of `traces.jsonl`, which can be far larger than the
memory, what stays is a few words per episode and where it stands; `trace_text` reads one of them.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from verifiers.v1.gepa.dataset import NAMES
from verifiers.v1.gepa.record.files import (
    CANDIDATES_FILE,
    COMPONENT,
    CONFIG_FILE,
    DECISIONS_FILE,
    PROPOSALS_FILE,
    REFLECTIONS_FILE,
    RESULT_FILE,
    SPLITS_FILE,
    TRACES_FILE,
)
from verifiers.v1.gepa.record.history import Proposal, Text
from verifiers.v1.gepa.record.journal import Stamp, prompt_digest
from verifiers.v1.utils.texts import is_text

T = TypeVar("T")
BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a file raises that is not what it should be."""


class DamagedRun(ValueError):
    """The directory holds no run, or one that can't be read; the message names the file."""


class TestTask(BaseModel):
    """A test task with both prompts' mean scores."""

    idx: int
    hash: str
    baseline: FiniteFloat
    deployed: FiniteFloat


class Cost(BaseModel):
    """What the run cost, in US dollars; None where that is unknown."""

    usd: FiniteFloat | None = None
    reason: Text | None = None
    """Why it is unknown."""
    roles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Tokens, `usd`, and `source` of the price or `reason`, by role."""


class Result(BaseModel):
    """What the report needs of `result.json`; keys that an older version didn't write have a
    default."""

    model_config = ConfigDict(extra="allow")

    status: str
    finish_reason: str
    message: Text = ""
    partial: bool
    seed: int | None = None
    teacher: Text = ""
    cell: dict[str, Any] = Field(default_factory=dict)
    baseline_mean: FiniteFloat | None = None
    deployed_mean: FiniteFloat | None = None
    delta_pp: FiniteFloat | None = None
    ci95: tuple[FiniteFloat, FiniteFloat] | None = None
    p_value: FiniteFloat | None = None
    statistics_reason: Text | None = None
    improved: bool = False
    invalid_reasons: list[Text] = Field(default_factory=list)
    deployed_candidate: int | None = None
    fallback_reason: str | None = None
    val_means: list[FiniteFloat] = Field(default_factory=list)
    parents: list[Any] = Field(default_factory=list)
    validated_means: dict[int, FiniteFloat] = Field(default_factory=dict)
    test: list[TestTask] = Field(default_factory=list)
    unvalidated: list[Text] = Field(default_factory=list)
    dropped: list[int] = Field(default_factory=list)
    lost: dict[str, list[int]] = Field(default_factory=dict)
    rollouts: dict[str, Any]
    proposals: dict[str, int] = Field(default_factory=dict)
    tokens: dict[str, dict[str, int]] = Field(default_factory=dict)
    cost: Cost | None = None
    endpoints: list[dict[str, Any]] = Field(default_factory=list)
    warnings: list[Text] = Field(default_factory=list)
    hints: list[dict[str, Text]] = Field(default_factory=list)
    commands: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, Any] = Field(default_factory=dict)


class Rollout(NamedTuple):
    """One line of `traces.jsonl`: its stamp (`journal.Stamp`), and where it stands."""

    phase: str
    split: str
    candidate: str
    task: str
    occurrence: int
    score: float | None
    verdict: str
    cause: str
    charged: bool
    offset: int
    size: int


class Exchange(NamedTuple):
    """One line of `reflections.jsonl`, without its texts."""

    key: str
    """Digest of the request."""
    reply: str
    """Digest of the reply."""
    verdict: str
    reason: str
    """Why it brought no proposal."""
    cause: str
    """Why the endpoint did not answer."""


class TaskName(NamedTuple):
    """A task of the split."""

    part: str
    idx: int
    id: str | None


@dataclass
class RunData:
    """What a run directory holds. What is None was not there."""

    run_dir: Path
    result: Result | None = None
    candidates: list[str] = field(default_factory=list)
    """Texts of the candidates, the seed prompt first."""
    digests: list[str] = field(default_factory=list)
    """Their names in the record, in the same order."""
    proposals: list[Proposal] | None = None
    rollouts: list[Rollout] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    tasks: dict[str, TaskName] = field(default_factory=dict)
    """The tasks of the split by their content hash, in order."""
    config: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    """What is missing or left out."""


def read_run(run_dir: Path) -> RunData:
    """Read a run directory. Raises `DamagedRun`, or `OSError` where a file can't be read."""
    if not run_dir.is_dir():
        raise DamagedRun(f"{run_dir} is not a directory")
    known = (RESULT_FILE, CONFIG_FILE, TRACES_FILE)
    if not any((run_dir / name).exists() for name in known):
        raise DamagedRun(
            f"{run_dir} holds no run: it has neither {', '.join(known[:-1])} nor {known[-1]}"
        )
    data = RunData(run_dir)
    data.result = _read(run_dir / RESULT_FILE, Result.model_validate)
    data.config = _read(run_dir / CONFIG_FILE, dict)
    data.candidates = _read(run_dir / CANDIDATES_FILE, _candidates) or []
    data.digests = [prompt_digest(text) if is_text(text) else "" for text in data.candidates]
    data.tasks = _read(run_dir / SPLITS_FILE, _tasks) or {}
    if (run_dir / PROPOSALS_FILE).exists():
        data.proposals = _lines(data, PROPOSALS_FILE, lambda row, *_: Proposal.model_validate(row))
    data.rollouts = _lines(data, TRACES_FILE, _rollout)
    data.exchanges = _lines(data, REFLECTIONS_FILE, _exchange)
    data.decisions = _lines(data, DECISIONS_FILE, lambda row, *_: dict(row))
    if data.result is None:
        data.notes.append(
            f"there is no {RESULT_FILE}: the run is still going, or was killed before its end"
        )
    return data


def read_line(data: RunData, rollout: Rollout) -> Any:
    """The episode of a rollout as JSON has it. Raises `OSError` or `ValueError`."""
    with (data.run_dir / TRACES_FILE).open("rb") as file:
        file.seek(rollout.offset)
        return json.loads(file.read(rollout.size))


def _read(path: Path, check: Callable[[Any], T]) -> T | None:
    """What `check` makes of a JSON file, None where there is no such file."""
    if not path.exists():
        return None
    try:
        return check(_json(path.read_bytes()))
    except BROKEN as error:
        raise DamagedRun(f"{path} is broken: {_reason(error)}") from error


def _lines(data: RunData, name: str, take: Callable[[Any, int, int], T]) -> list[T]:
    """What `take` makes of every line of a file of the record: its JSON, offset and size. A last
    line without an end is one that was only half written, or is being written now."""
    path = data.run_dir / name
    taken: list[T] = []
    if not path.exists():
        return taken
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                data.notes.append(f"the last line of {name} is only half written: left out")
                break
            try:
                taken.append(take(_json(line), offset, len(line)))
            except BROKEN as error:
                raise DamagedRun(f"{path}, line {number} is broken: {_reason(error)}") from error
            offset += len(line)
    return taken


def _rollout(row: Any, offset: int, size: int) -> Rollout:
    stamp = Stamp.model_validate(row["gepa"])
    names = (stamp.phase, stamp.split, stamp.candidate, stamp.task)
    phase, split, candidate, task = map(sys.intern, names)
    verdict, cause = sys.intern(stamp.verdict), sys.intern(stamp.cause)
    return Rollout(
        phase,
        split,
        candidate,
        task,
        stamp.occurrence,
        stamp.score,
        verdict,
        cause,
        stamp.charged,
        offset,
        size,
    )


def _exchange(row: Any, *_: int) -> Exchange:
    reply = (row["reply"] or "").encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(reply).hexdigest()
    return Exchange(row["key"], digest, row["verdict"], row["reason"] or "", row["answer"]["cause"])


def _json(data: bytes) -> Any:
    return json.loads(data.decode("utf-8"))


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _candidates(value: Any) -> list[str]:
    return [str(candidate[COMPONENT]) for candidate in value]


def _tasks(value: Any) -> dict[str, TaskName]:
    return {
        task["hash"]: TaskName(part, task["idx"], task.get("id"))
        for part in NAMES
        for task in value[part]
    }
