"""A resumed run's memory: what the record holds, handed out in the order in which it was asked for.

gepa is deterministic given its seed, the scores and the proposals. So a resume is the same program
run again, with its rollouts and teacher replies taken from the record for as long as that lasts:
per candidate and task, first in first out, and the teacher's by the digest of its prompt. Where the
program asks for something that the record does not hold while the record holds something else, the
two have parted, and that is an error: going on would mix two runs. Nothing is read with pickle.
"""

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from verifiers.v1.gepa.journal import (
    DECISIONS_FILE,
    REFLECTIONS_FILE,
    Stamp,
    drop_torn_line,
    prompt_digest,
)
from verifiers.v1.types import Usage
from verifiers.v1.utils.trace_store import TRACES_FILE

logger = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""Phase, candidate, task of a rollout."""


class RecordError(ValueError):
    """The record can't be read, or is not this run's."""


class Divergence(BaseException):
    """The program asks for something else than the record holds. Not an `Exception`, because gepa
    catches those around a proposal and goes on without it."""


@dataclass(frozen=True)
class Recorded:
    """A measured rollout of the record; its episode stays in the file till it is asked for."""

    stamp: Stamp
    episode_id: str
    path: Path
    offset: int
    size: int

    def line(self) -> bytes:
        """The episode's line of `traces.jsonl`."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


GIVEN_UP = "given up"
"""What `Replay.rollout` says where the run went on without a measurement."""


class Replay:
    """The record of a run up to now; empty for a fresh one."""

    def __init__(self) -> None:
        self._rollouts: defaultdict[Key, deque[Recorded]] = defaultdict(deque)
        self._exchanges: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._given_up: set[tuple[str, str, str, int]] = set()
        self._asked: Counter[Key] = Counter()
        self.failed = 0
        """Episodes of the record that were not measured."""
        self.usage: list[tuple[str, Usage]] = []
        """Role and reported tokens of every call of the record."""
        self.dropped: dict[str, str] = {}
        """The val tasks that the seed prompt's val pass dropped: content hash -> cause."""

    @classmethod
    def load(cls, run_dir: Path) -> "Replay":
        """Read the record. A half-written last line is cut off with a warning. Raises
        `RecordError` with file and number for any other line that is broken."""
        replay = cls()
        readers: dict[str, Callable[[Any, Path, int, int], None]] = {
            TRACES_FILE: replay._take_episode,
            REFLECTIONS_FILE: replay._take_exchange,
            DECISIONS_FILE: replay._take_decision,
        }
        for name, take in readers.items():
            path = run_dir / name
            if drop_torn_line(path):
                logger.warning("%s: dropped a last line that was only half written", path)
            for number, offset, line in _lines(path):
                try:
                    take(from_json(line), path, offset, len(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise RecordError(f"{path}, line {number} is broken: {error}") from error
        return replay

    @property
    def left(self) -> tuple[int, int]:
        """How many of the search's rollouts and teacher exchanges were not asked for yet."""
        rollouts = sum(len(q) for (phase, *_), q in self._rollouts.items() if phase == "optimize")
        return rollouts, sum(map(len, self._exchanges.values()))

    def rollout(self, phase: str, candidate: str, task: str) -> tuple[int, Recorded | str | None]:
        """How often this candidate was asked for on this task before, and what the record holds of
        it: a measurement, `GIVEN_UP`, or nothing (None)."""
        key = (phase, candidate, task)
        occurrence = self._asked[key]
        self._asked[key] += 1
        if (*key, occurrence) in self._given_up:
            return occurrence, GIVEN_UP
        queue = self._rollouts.get(key)
        return occurrence, queue.popleft() if queue else None

    def exchange(self, prompt: str) -> dict[str, Any] | None:
        """The next recorded exchange with this very prompt."""
        queue = self._exchanges.get(prompt_digest(prompt))
        return queue.popleft() if queue else None

    def check_at_end(self, step: str) -> None:
        """Called before `step` of the search goes out live: raises `Divergence` if the search's
        record holds more."""
        rollouts, exchanges = self.left
        if not rollouts and not exchanges:
            return
        searched = (k for k, queue in self._rollouts.items() if queue and k[0] == "optimize")
        held = next(searched, None)
        first = f" (the first: prompt {held[1][:12]} on task {held[2][:12]})" if held else ""
        raise Divergence(
            f"the run has parted from its record at {step}: the record goes on with {rollouts} "
            f"rollouts{first} and {exchanges} teacher exchanges that nothing asks for; something "
            "that the scores or the teacher's prompts depend on has changed"
        )

    def _take_episode(self, row: dict[str, Any], path: Path, offset: int, size: int) -> None:
        stamp = Stamp.model_validate(row["gepa"])
        if stamp.verdict == "measured":
            recorded = Recorded(stamp, row["id"], path, offset, size)
            self._rollouts[stamp.phase, stamp.candidate, stamp.task].append(recorded)
        else:
            self.failed += 1
        for trace in row["traces"]:
            calls = [call["usage"] for call in trace.get("calls", []) if call.get("usage")]
            self.usage += [("student", Usage.model_validate(usage)) for usage in calls]
            judges = trace.get("extra_usage", [])
            self.usage += [("judges", Usage.model_validate(usage)) for usage in judges]

    def _take_exchange(self, row: dict[str, Any], *_: object) -> None:
        if usage := row.get("usage"):
            self.usage.append(("teacher", Usage.model_validate(usage)))
        if row["verdict"] != "failed":  # there the run stopped; a resumed one asks again
            self._exchanges[prompt_digest(row["prompt"])].append(row)

    def _take_decision(self, row: dict[str, Any], *_: object) -> None:
        if row["decision"] == "dropped":
            self.dropped[row["task"]] = row["cause"]
        else:
            key = (row["phase"], row["candidate"], row["task"])
            self._given_up.add((*key, row["occurrence"]))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of every line."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)
