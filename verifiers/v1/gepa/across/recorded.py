"""A run directory as the steps of its search, to lay it beside another one."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from verifiers.v1.gepa.dataset import NAMES
from verifiers.v1.gepa.prepare.identity import flat, recorded_identity
from verifiers.v1.gepa.record.files import PROMPT_FILE
from verifiers.v1.gepa.record.history import Proposal
from verifiers.v1.gepa.report.data import RunData, read_run
from verifiers.v1.gepa.teacher.proposals import UNANSWERED
from verifiers.v1.utils.texts import read_text

Pass = tuple[str, str, str]
"""Phase, part of the split, and digest of the prompt of some rollouts."""


@dataclass(frozen=True)
class Step:
    """One reply of the teacher and what became of it."""

    request: str
    """Digest of what the teacher was asked."""
    reply: str
    """Digest of what it answered."""
    proposal: Proposal | None = None
    """What became of it, None where `proposals.jsonl` has not come so far."""
    position: int = 0
    """Among the proposals of its iteration, counted from 1."""


@dataclass(frozen=True)
class RecordedRun:
    """What a run directory holds, as far as its run has come."""

    path: Path
    config: dict[str, Any]
    """The resolved config, its keys joined with dots."""
    result: dict[str, Any]
    """`result.json`, empty where there is none yet."""
    prompt: str | None
    """The deployed prompt."""
    seed_prompt: str | None
    digests: list[str]
    """Names of the candidates in the record, the seed prompt's first."""
    tasks: dict[str, dict[str, int]]
    """Content hash -> index of the tasks of train, val and test, in order."""
    scores: dict[Pass, dict[tuple[str, int], float | None]]
    """Score by content hash of the task and occurrence, of what was measured in each pass."""
    steps: list[Step]


def read_steps(path: Path) -> RecordedRun:
    """Read a run directory. Raises `DamagedRun`, or `OSError` where it can't be read."""
    data = read_run(path)
    tasks: dict[str, dict[str, int]] = {name: {} for name in NAMES}
    for content_hash, task in data.tasks.items():
        tasks[task.part][content_hash] = task.idx
    scores: defaultdict[Pass, dict[tuple[str, int], float | None]] = defaultdict(dict)
    for one in data.rollouts:
        if one.verdict == "measured":
            scores[one.phase, one.split, one.candidate][one.task, one.occurrence] = one.score
    prompt = path / PROMPT_FILE
    return RecordedRun(
        path=path,
        config=dict(flat(data.config or {})),
        result=data.result.model_dump() if data.result else {},
        prompt=read_text(prompt) if prompt.exists() else None,
        seed_prompt=recorded_identity(path).get("seed_prompt"),
        digests=data.digests,
        tasks=tasks,
        scores=dict(scores),
        steps=list(_steps(data)),
    )


def _steps(data: RunData) -> Iterator[Step]:
    """One per reply of the teacher. Both files have one line for each, in the same order;
    `proposals.jsonl` may end earlier, as a proposal stands there when it is decided."""
    # Where a call failed the run stopped; a resumed one asked again.
    exchanges = [one for one in data.exchanges if one.verdict != "failed"]
    rows = [row for row in data.proposals or [] if not row.reason.startswith(UNANSWERED)]
    position: Counter[int] = Counter()
    for exchange, row in zip_longest(exchanges, rows):
        if exchange is None:  # `reflections.jsonl` was cut: what it does not hold is no step
            return
        if row is None:
            yield Step(exchange.key, exchange.reply)
            continue
        position[row.iteration] += 1
        yield Step(exchange.key, exchange.reply, row, position[row.iteration])
