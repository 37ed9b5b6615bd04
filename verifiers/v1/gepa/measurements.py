"""What is asked of `rollouts.py` and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from verifiers.v1.episode import Episode, WireEpisode
from verifiers.v1.gepa.journal import Phase, Stored
from verifiers.v1.gepa.statistics import mean
from verifiers.v1.task import Task


@dataclass(frozen=True)
class Job:
    """One rollout to measure: `prompt` on `task`, which belongs to the part `split`."""

    prompt: str
    task: Task
    split: str
    phase: Phase = "optimize"
    keep: bool = False
    """Whether its episode will be read. It is read from the journal, where there is one: a val pass
    would hold hundreds at a time."""


@dataclass(frozen=True)
class Measurement:
    """What came of a job."""

    score: float | None
    """None where it could not be measured."""
    cause: str = ""
    """Why not; of a measured one, why no model call of it was answered."""
    occurrence: int = 0
    """How often the same prompt ran on the same task before."""
    episode_id: str = ""
    """Empty where no episode was measured, or another run measured it."""
    source: Episode | Stored | None = None
    """Where the episode is; None where there is none, or the job did not `keep` it."""
    live: bool = True
    """Whether it ran now, or comes from the record or the cache."""
    reused: bool = False
    """Whether the search had it before."""

    def episode(self) -> WireEpisode:
        """The episode as a reader of the record sees it, whether it ran now or then: what the
        teacher is shown must be the same for both."""
        assert self.source is not None
        if isinstance(self.source, Stored):
            return WireEpisode.model_validate_json(self.source.line())
        line = TypeAdapter(type(self.source)).dump_json(self.source, exclude_none=True)
        return WireEpisode.model_validate_json(line)


def mean_score(measurements: Sequence[Measurement]) -> float | None:
    """The mean of what was measured, None where nothing was."""
    scores = [m.score for m in measurements if m.score is not None]
    return mean(scores) if scores else None
