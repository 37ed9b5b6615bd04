"""Whether the proposals of a search made any difference.

A model that ignores its prompt, and a reward that gives the same score to everything, look alike
from outside: proposals come and go, all are rejected, the budget is spent. Both show in gepa's
trace, which holds the scores of every evaluated proposal beside its parent's on the same tasks.
"""

from dataclasses import dataclass

from gepa.core.state import GEPAState


@dataclass(frozen=True)
class Effects:
    """What the evaluated proposals of a search changed."""

    evaluated: int = 0
    """Proposals that were run on their minibatch."""
    effective: int = 0
    """Those of them that changed the score of at least one task."""
    only_score: float | None = None
    """The one score that every task had with every prompt, None where there were several."""
    highest: float | None = None
    """The highest score that a task had with any prompt, None before the first."""


def effects_of(state: GEPAState[str, int] | None) -> Effects:
    """The effects so far. A task that could not be measured changed nothing."""
    if state is None:
        return Effects()
    pairs = [
        (task["subsample_scores"], task["new_subsample_scores"])
        for iteration in state.full_program_trace
        for task in iteration.get("tasks", ())
        if "new_subsample_scores" in task
    ]
    scores = {score for pair in pairs for scores in pair for score in scores}
    scores |= {score for mine in state.prog_candidate_val_subscores for score in mine.values()}
    highest = max(scores, default=None)
    return Effects(
        evaluated=len(pairs),
        effective=sum(list(before) != list(after) for before, after in pairs),
        only_score=highest if len(scores) == 1 else None,
        highest=highest,
    )
