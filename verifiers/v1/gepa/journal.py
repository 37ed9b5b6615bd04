"""The append-only record of a run: `traces.jsonl` and `reflections.jsonl`.

Every finished episode is one line of `traces.jsonl`, written by the host's own writer in the host's
own format, with one more key, `gepa`, that says which candidate it belongs to and what it counted
as; the host's readers pass over a key that they don't know. Every teacher exchange is one line of
`reflections.jsonl`. A line is in the file before what it records is counted.
"""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from verifiers.v1.episode import Episode, GroupInfo
from verifiers.v1.gepa.failures import Fault, Kind
from verifiers.v1.utils.trace_store import append_episode

REFLECTIONS_FILE = "reflections.jsonl"

Phase = Literal["optimize"]
"""What a rollout is for: the search. Only this one is charged to the budget."""


def prompt_digest(prompt: str) -> str:
    """SHA-256 of a candidate's text: its name in the record."""
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
    attempt: int
    verdict: Kind
    cause: str = ""
    score: float | None = None
    """The measured score; None where the episode was not measured, or never reached its rewards."""
    charged: bool
    """Whether it counts against the budget."""


class RecordedEpisode(Episode):
    """An episode as a line of `traces.jsonl`."""

    gepa: Stamp


class Journal:
    """Appends to the record of one run; without a directory (`save_results` off) to nothing."""

    def __init__(self, run_dir: Path | None) -> None:
        self.run_dir = run_dir
        self._lock = asyncio.Lock()
        self._reflections = 0

    async def episode(self, episode: Episode, stamp: Stamp) -> None:
        """Append a finished episode. Raises `Fault` where the line could not be written."""
        if self.run_dir is None:
            return
        fields = {name: getattr(episode, name) for name in Episode.model_fields}
        fields["group"] = GroupInfo(id=f"{stamp.phase}/{stamp.split}/{stamp.candidate[:12]}")
        recorded = RecordedEpisode.model_construct(**fields, gepa=stamp)
        try:
            await append_episode(self.run_dir, recorded, self._lock)
        except OSError as error:
            raise Fault(f"the journal could not be written: {error}") from error

    def reflection(self, exchange: dict[str, Any]) -> None:
        """Append a teacher exchange. Raises `Fault` where the line could not be written."""
        self._reflections += 1
        if self.run_dir is None:
            return
        line = json.dumps({"id": self._reflections, **exchange}, allow_nan=False)
        try:
            with (self.run_dir / REFLECTIONS_FILE).open("ab") as file:
                file.write(line.encode() + b"\n")
        except OSError as error:
            raise Fault(f"the journal could not be written: {error}") from error
