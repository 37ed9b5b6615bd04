"""When the search stops: asked before every iteration, each reason under its own name."""

import time
from collections.abc import Iterator

from gepa.core.state import GEPAState
from gepa.utils import StopperProtocol

from verifiers.v1.gepa.adapter import GEPAAdapter
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.record.files import STOP_FILE
from verifiers.v1.gepa.reflection import Reflection
from verifiers.v1.gepa.search.effects import Effects, effects_of
from verifiers.v1.gepa.search.progress import Progress
from verifiers.v1.gepa.spend.budget import SearchStopped
from verifiers.v1.gepa.spend.money import Spending

IDLE_ITERATIONS = 10
"""Iterations in a row that charge nothing before the run stops: it would go on for ever."""

FUTILE_PROPOSALS = 20
"""Proposals that a search evaluates before it stops because not one of them has changed a score.
A larger `patience` takes its place."""


def stop_check(
    config: GEPAConfig,
    proposal: int,
    adapter: GEPAAdapter,
    reflection: Reflection,
    progress: Progress,
    started: float,
) -> StopperProtocol:
    """gepa's stop callback for a run that started at `started` (`time.monotonic`) and whose
    proposals cost at least `proposal` rollouts. It raises `SearchStopped` rather than returning
    true, so that the reason is known."""
    rollouts = adapter.rollouts
    charged_before = -1
    idle = 0
    effects = Effects()

    def check(gepa_state: GEPAState[str, int]) -> bool:
        nonlocal charged_before, idle, effects
        adapter.drive.check()
        progress.start_iteration(gepa_state)
        idle = idle + 1 if rollouts.budget.charged == charged_before else 0
        charged_before = rollouts.budget.charged
        if not effects.effective:  # one effect is enough, and the trace grows with the run
            effects = effects_of(gepa_state)
        if not rollouts.replay.used_up:
            return False  # what is on record was done, whatever the conditions are now
        ended = rollouts.replay.decisions.ended
        if "optimize" not in rollouts.live_phases:
            raise SearchStopped(*ended["optimize"])  # the run would not have begun without
        for reason, message in reasons():
            raise SearchStopped(reason, message)
        return False

    def reasons() -> Iterator[tuple[str, str]]:
        budget, run_dir = rollouts.budget, rollouts.journal.run_dir
        best = progress.best_val_mean
        if budget.left < proposal:
            yield "budget", "the budget does not pay for another proposal"
        if config.perfect_score is not None and best is not None and best >= config.perfect_score:
            yield "perfect", f"the val mean reached {best:g}"
        tried, allowed = effects.evaluated, max(FUTILE_PROPOSALS, config.patience or 0)
        if not effects.effective and tried >= allowed and effects.only_score is not None:
            yield "one_score", f"every rollout of {tried} proposals scored {effects.only_score:g}"
        elif not effects.effective and tried >= allowed:
            yield "no_effect", f"none of {tried} proposals changed the score of any task"
        if config.max_reflections and reflection.replies.counts["tried"] >= config.max_reflections:
            yield "max_reflections", f"{config.max_reflections} teacher calls were made"
        if config.max_tokens and budget.total_tokens >= config.max_tokens:
            yield "max_tokens", f"{budget.total_tokens} tokens were spent"
        if config.max_cost and (usd := _spent(budget.spending)) >= config.max_cost:
            yield "max_cost", f"{usd:.4f} US dollars were spent"
        if config.max_minutes and time.monotonic() - started >= config.max_minutes * 60:
            yield "max_minutes", f"{config.max_minutes:g} minutes are over"
        if config.patience and progress.since_better >= config.patience:
            yield "patience", f"{config.patience} proposals brought no better val mean"
        if idle >= IDLE_ITERATIONS:
            yield "no_progress", f"{IDLE_ITERATIONS} iterations measured nothing"
        if run_dir is not None and (run_dir / STOP_FILE).exists():
            yield "stop_file", f"{run_dir / STOP_FILE} is there"

    return check


def _spent(spending: Spending) -> float:
    """US dollars so far. Raises `Fault` where a part of that is unknown."""
    if spending.usd is None:
        raise Fault(f"--max-cost can't be kept: {spending.reason}")
    return spending.usd
