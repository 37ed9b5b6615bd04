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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from verifiers.v1.gepa.record.files import DECISIONS_FILE, REFLECTIONS_FILE, TRACES_FILE
from verifiers.v1.gepa.record.journal import Stamp, Stored, drop_torn_line
from verifiers.v1.gepa.record.usage import Calls, recorded_calls, recorded_usage

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
    """A measured rollout of the record."""

    stamp: Stamp
    stored: Stored
    calls: Calls
    """Its answered calls."""


class GivenUp:
    """What the record holds where the run went on without a measurement."""


@dataclass
class Decisions:
    """What the run decided that no measurement tells."""

    given_up: set[tuple[Key, int]] = field(default_factory=set)
    """The rollouts, by their occurrence, that the run went on without."""
    dropped: dict[str, str] = field(default_factory=dict)
    """The val tasks that the seed prompt's val pass dropped: content hash -> cause."""
    narrowed: dict[tuple[int, str], int] = field(default_factory=dict)
    """How many of something an iteration did where the budget did not pay for all, by iteration and
    what."""
    ended: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Why each phase ended that did, as finish reason and message, by phase."""

    def take(self, row: dict[str, Any]) -> None:
        """One more line of `decisions.jsonl`."""
        if row["decision"] == "dropped":
            self.dropped[row["task"]] = row["cause"]
        elif row["decision"] == "ended":
            self.ended[row["phase"]] = row["reason"], row["message"]
        elif row["decision"] == "narrowed":
            self.narrowed[row["iteration"], row["what"]] = row["number"]
        elif row["decision"] == "continued":
            self.ended.clear()
        else:
            key = (row["phase"], row["candidate"], row["task"])
            self.given_up.add((key, row["occurrence"]))


class Replay:
    """The record of a run up to now; empty for a fresh one."""

    def __init__(self) -> None:
        self._rollouts: dict[tuple[Key, int], Recorded] = {}
        self._exchanges: defaultdict[str, deque[Stored]] = defaultdict(deque)
        self._asked: Counter[Key] = Counter()
        self._rollouts_left = 0
        self._exchanges_left = 0
        self.failed = 0
        """Episodes of the record that were not measured."""
        self.charged = 0
        """Rollouts of the record that count against the budget."""
        self.answered: set[str] = set()
        """The candidates of which the model answered a rollout."""
        self.calls: Calls = []
        """The answered calls of episodes that were not measured, and those that are on record by
        themselves."""
        self.decisions = Decisions()

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
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise RecordError(f"{path}, line {number} is broken: {error}") from error
        return replay

    @property
    def left(self) -> tuple[int, int]:
        """How many of the search's rollouts and teacher exchanges were not asked for yet."""
        return self._rollouts_left, self._exchanges_left

    @property
    def used_up(self) -> bool:
        """Whether the search has caught up with its record."""
        return self.left == (0, 0)

    def rollout(
        self, phase: str, candidate: str, task: str
    ) -> tuple[int, Recorded | type[GivenUp] | None]:
        """How often this candidate was asked for on this task before, and what the record holds of
        this time: a measurement, `GivenUp`, or nothing (None)."""
        key = (phase, candidate, task)
        occurrence = self._asked[key]
        self._asked[key] += 1
        if (key, occurrence) in self.decisions.given_up:
            return occurrence, GivenUp
        recorded = self._rollouts.pop((key, occurrence), None)
        self._rollouts_left -= recorded is not None and phase == "optimize"
        return occurrence, recorded

    def forget(self, phase: str, candidate: str, task: str) -> None:
        """The last `rollout` of these brought nothing, and does not count."""
        self._asked[phase, candidate, task] -= 1

    def take_rest(self) -> list[Recorded]:
        """The rollouts of the phases after the search that were not asked for; they are no longer
        held."""
        keys = [key for key in self._rollouts if key[0][0] != "optimize"]
        return [self._rollouts.pop(key) for key in keys]

    def exchange(self, key: str) -> dict[str, Any] | None:
        """The next recorded exchange of this key (`Reflection` says what that is)."""
        queue = self._exchanges.get(key)
        if not queue:
            return None
        self._exchanges_left -= 1
        return from_json(queue.popleft().line())

    def check_at_end(self, step: str) -> None:
        """Called before `step` of the search goes out live: raises `Divergence` if the search's
        record holds more."""
        rollouts, exchanges = self.left
        if not rollouts and not exchanges:
            return
        held = next((key for key, _ in self._rollouts if key[0] == "optimize"), None)
        first = f" (the first: prompt {held[1][:12]} on task {held[2][:12]})" if held else ""
        raise Divergence(
            f"the run has parted from its record at {step}: the record goes on with {rollouts} "
            f"rollouts{first} and {exchanges} teacher exchanges that nothing asks for; something "
            "that the scores or the teacher's prompts depend on has changed"
        )

    def _take_episode(self, row: dict[str, Any], path: Path, offset: int, size: int) -> None:
        stamp = Stamp.model_validate(row["gepa"])
        calls = list(recorded_calls(row))
        self.charged += stamp.charged
        if stamp.verdict == "measured" and not stamp.cause:
            self.answered.add(stamp.candidate)
        if stamp.verdict == "measured":
            key = (stamp.phase, stamp.candidate, stamp.task)
            stored = Stored(row["id"], path, offset, size)
            known = (key, stamp.occurrence) in self._rollouts
            self._rollouts_left += stamp.phase == "optimize" and not known
            self._rollouts[key, stamp.occurrence] = Recorded(stamp, stored, calls)
        else:
            self.failed += 1
            self.calls += calls

    def _take_exchange(self, row: dict[str, Any], path: Path, offset: int, size: int) -> None:
        if row["verdict"] != "failed":  # there the run stopped; a resumed one asks again
            self._exchanges_left += 1
            self._exchanges[row["key"]].append(Stored(row["key"], path, offset, size))

    def _take_decision(self, row: dict[str, Any], *_: object) -> None:
        if row["decision"] == "spent":
            self.calls.append((row["role"], recorded_usage(row["usage"])))
        else:
            self.decisions.take(row)


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of every line."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)
