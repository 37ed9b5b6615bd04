"""The append-only record of a run, which is the run.

Three files of one JSON object per line, each line in the file before what it records is counted:

- `traces.jsonl`: every finished episode, in the host's own format, with one more key, `gepa`, that
  says which candidate it belongs to and what it counted as (the host's readers pass over a key that
  they don't know);
- `reflections.jsonl`: every teacher exchange;
- `decisions.jsonl`: what the run made of rollouts that could not be measured, and
  that a phase is over.

A write that the disk refuses is taken back, so that a line is in the record whole or not at all;
only a killed process can leave half of one, at the end, and `replay.py` drops that.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from verifiers.v1.episode import Episode, GroupInfo
from verifiers.v1.gepa.faults.failures import Fault, Kind
from verifiers.v1.gepa.record.files import DECISIONS_FILE, REFLECTIONS_FILE, TRACES_FILE
from verifiers.v1.gepa.record.mending import HalfPairs, mend_notes, mend_texts
from verifiers.v1.utils.appender import Appender
from verifiers.v1.utils.plain import Plain

Phase = Literal["optimize", "validate", "test"]
"""What a rollout is for. Only the search, `optimize`, is charged to the budget."""


@lru_cache(maxsize=64)
def prompt_digest(prompt: str) -> str:
    """SHA-256 of a text: a candidate's name in the record. Cached, because every rollout of a
    candidate asks for it."""
    return hashlib.sha256(prompt.encode("utf-8")).hexdigest()


class Stamp(BaseModel):
    """What an episode was run for and what it counted as."""

    phase: Phase
    split: str
    """The part of the split that its task belongs to."""
    candidate: str
    """`prompt_digest` of the system prompt that it ran with."""
    task: str
    """Content hash of its task, as in `splits.json`."""
    occurrence: int = 0
    """How often this phase had asked for this candidate on this task before."""
    attempt: int
    verdict: Kind
    cause: str = ""
    score: float | None = None
    """The measured score; None where the episode was not measured, or never reached its rewards."""
    charged: bool
    """Whether it counts against the budget."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A line of the record, which stays in the file till it is asked for."""

    name: str
    """The id of an episode, the key of a teacher exchange."""
    path: Path
    offset: int
    """Where the line starts, in bytes."""
    size: int

    def line(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


class RecordedEpisode(Episode):
    """An episode as a line of `traces.jsonl`."""

    gepa: Stamp


class Journal:
    """Appends to the record of one run; without a directory (`save_results` off) to nothing.
    Every method raises `Fault` where the line could not be written."""

    def __init__(self, run_dir: Path | None) -> None:
        self.run_dir = run_dir
        self._traces = Appender(run_dir / TRACES_FILE) if run_dir is not None else None
        self._half_pairs = HalfPairs()

    async def episode(self, episode: Episode, stamp: Stamp) -> Stored | None:
        """Append a finished episode; once begun, it is written whatever is cancelled. Where it was
        written, None without a directory."""
        if self._traces is None:
            return None
        fields = {name: getattr(episode, name) for name in Episode.model_fields}
        fields["group"] = GroupInfo(id=f"{stamp.phase}/{stamp.split}/{stamp.candidate[:12]}")
        try:
            line, replaced = episode_json(RecordedEpisode.model_construct(**fields, gepa=stamp))
            offset = await self._traces.append(line + b"\n")
        except (OSError, ValueError) as error:
            raise _refused(error) from error
        if replaced:
            self._half_pairs.found(episode)
        return Stored(episode.id, self._traces.path, offset, len(line) + 1)

    def reflection(self, exchange: dict[str, Any]) -> None:
        """Append a teacher exchange."""
        self._append(REFLECTIONS_FILE, exchange)

    def decision(self, decision: dict[str, Any]) -> None:
        """Append a decision: about rollouts that were not measured, or that a phase is over."""
        self._append(DECISIONS_FILE, decision)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        if self.run_dir is None:
            return
        path = self.run_dir / name
        text = json.dumps(Plain().value(line), allow_nan=False)
        try:
            with path.open("ab") as file:
                file.write(text.encode() + b"\n")
        except OSError as error:
            with contextlib.suppress(OSError):
                drop_torn_line(path)
            raise _refused(error) from error


def drop_torn_line(path: Path) -> bool:
    """Cut `path` after its last whole line; whether there was anything to cut."""
    if not path.exists():
        return False
    with path.open("r+b") as file:
        size = end = file.seek(0, 2)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
    return end < size


_recorded: TypeAdapter[Any] = TypeAdapter(RecordedEpisode)
_live: TypeAdapter[Any] = TypeAdapter(Episode)


def episode_json(episode: Episode) -> tuple[bytes, bool]:
    """An episode as a line of `traces.jsonl`, as the host writes it, without the line's end; and
    whether half of a surrogate pair was replaced in it. Mends the episode in place."""
    adapter = _recorded if isinstance(episode, RecordedEpisode) else _live
    replaced = mend_notes(episode)
    try:
        return adapter.dump_json(episode, exclude_none=True), replaced
    except ValueError:  # pydantic's, or that of the text itself
        replaced |= mend_texts(episode)
    return adapter.dump_json(episode, exclude_none=True), replaced


def _refused(error: Exception) -> Fault:
    return Fault(f"the journal could not be written: {error}")
