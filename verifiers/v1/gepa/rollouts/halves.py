"""Which tasks of a batch a prompt runs on, and when: where a best score is known, a proposal runs
on the first half of its minibatch, and on the rest only if it can still be accepted."""

from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.v1.gepa.rollouts.measurements import Measurement, mean_score


@dataclass(frozen=True)
class Asked:
    """One candidate on one batch of tasks."""

    prompt: str
    parent: str | None
    """The prompt that this one was made from, where it is compared with it on the batch."""
    split: str
    batch: list[int]
    """Indices of the tasks."""
    wanted: list[bool]
    """Which of them are to be run."""
    begun: dict[int, list[Measurement]]
    """What was measured of the batch before."""


@dataclass(frozen=True)
class Bar:
    """What a proposal's scores on a minibatch are held against."""

    perfect_score: float | None = None
    """The best score that a task can give, if there is one."""
    accepts_equal: bool = False
    """Whether a proposal is accepted that scores the same as its parent."""

    def first(self, asked: Asked) -> list[bool]:
        """The tasks to run at once."""
        if self.perfect_score is None or asked.parent is None:
            return asked.wanted
        half = (len(asked.batch) + 1) // 2
        return [*asked.wanted[:half], *[False] * (len(asked.batch) - half)]

    def rest(
        self,
        asked: Asked,
        first: list[bool],
        measured: Sequence[Sequence[Measurement]],
        before: Sequence[float | None],
    ) -> list[bool]:
        """The tasks still to run after those of `first` were `measured`: none where even the best
        score on all of them would not make the proposal accepted. `before` are its parent's scores,
        empty where there is no parent to compare with."""
        rest = [wanted and not done for wanted, done in zip(asked.wanted, first, strict=True)]
        if self.perfect_score is None or asked.parent is None:
            return rest
        best = [self.perfect_score if (own := mean_score(m)) is None else own for m in measured]
        reachable, needed = sum(best), sum(score or 0.0 for score in before)
        wins = reachable >= needed if self.accepts_equal else reachable > needed
        bounded = all((score or 0.0) <= self.perfect_score for score in before)
        return rest if wins or not bounded else [False] * len(rest)
