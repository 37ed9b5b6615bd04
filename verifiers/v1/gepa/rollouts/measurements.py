"""What is asked of `rollouts.py`, under which name it is on record, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.v1.episode import Episode, WireEpisode
from verifiers.v1.gepa.dataset import content_hash
from verifiers.v1.gepa.record.journal import Phase, Stored, episode_json, prompt_digest
from verifiers.v1.gepa.record.replay import Key
from verifiers.v1.task import Task
from verifiers.v1.utils.statistics import mean


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


class Keys:
    """The names of jobs and tasks in the record. A task's is worked out once."""

    def __init__(self) -> None:
        self._hashes: dict[int | None, str] = {}

    def job(self, job: Job) -> Key:
        """Phase, candidate and task of a job."""
        return job.phase, prompt_digest(job.prompt), self.task(job.task)

    def task(self, task: Task) -> str:
        """The content hash of a task."""
        if task.data.idx not in self._hashes:
            self._hashes[task.data.idx] = content_hash(task)
        return self._hashes[task.data.idx]


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
    refused: bool = False
    """Whether the endpoint refused it, and nothing tells yet whether it refuses everything."""

    def episode(self) -> WireEpisode:
        """The episode as a reader of the record sees it, whether it ran now or then: what the
        teacher is shown must be the same for both."""
        assert self.source is not None
        if isinstance(self.source, Stored):
            return WireEpisode.model_validate_json(self.source.line())
        return WireEpisode.model_validate_json(episode_json(self.source)[0])


def mean_score(measurements: Sequence[Measurement]) -> float | None:
    """The mean of what was measured, None where nothing was."""
    scores = [m.score for m in measurements if m.score is not None]
    return mean(scores) if scores else None


def known_scores(
    scores: Sequence[float], measured: Sequence[Sequence[Measurement]]
) -> list[float | None]:
    """The scores of a minibatch as measured: None for a task that was not run or could not be."""
    return [
        None if mean_score(rollouts) is None else score
        for score, rollouts in zip(scores, measured, strict=True)
    ]


def charged(measured: Sequence[Sequence[Measurement]]) -> int:
    """How many of these rollouts count against the budget."""
    return sum(bool(m.episode_id) and not m.reused for rollouts in measured for m in rollouts)
