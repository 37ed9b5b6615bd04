"""When the search stops: asked before every iteration, each reason under its own name."""

import time
from pathlib import Path

from gepa.core.state import GEPAState
from gepa.utils import StopperProtocol

from verifiers.v1.gepa.budget import Budget, SearchStopped
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.progress import Progress
from verifiers.v1.gepa.reflection import Reflection

STOP_FILE = "gepa.stop"
"""A file of this name in the run directory stops the run in order."""

IDLE_ITERATIONS = 10
"""Iterations in a row that charge nothing before the run stops: it would go on for ever."""


def stop_check(
    config: GEPAConfig,
    proposal: int,
    budget: Budget,
    reflection: Reflection,
    progress: Progress,
    run_dir: Path | None,
    started: float,
) -> StopperProtocol:
    """gepa's stop callback for a run that started at `started` (`time.monotonic`) and whose
    proposals cost at least `proposal` rollouts. It raises `SearchStopped` rather than returning
    true, so that the reason is known."""
    charged_before = -1
    idle = 0

    def check(gepa_state: GEPAState) -> bool:
        nonlocal charged_before, idle
        idle = idle + 1 if budget.charged == charged_before else 0
        charged_before = budget.charged
        for reason, message in reasons():
            raise SearchStopped(reason, message)
        return False

    def reasons() -> "list[tuple[str, str]]":
        found = []
        if budget.left < proposal:
            found.append(("budget", "the budget does not pay for another proposal"))
        best = progress.best_val_mean
        if config.perfect_score is not None and best is not None and best >= config.perfect_score:
            found.append(("perfect", f"the val mean reached {best:g}"))
        if config.max_reflections and reflection.counts["tried"] >= config.max_reflections:
            found.append(("max_reflections", f"{config.max_reflections} teacher calls were made"))
        if config.max_tokens and budget.total_tokens >= config.max_tokens:
            found.append(("max_tokens", f"{budget.total_tokens} tokens were spent"))
        if config.max_minutes and time.monotonic() - started >= config.max_minutes * 60:
            found.append(("max_minutes", f"{config.max_minutes:g} minutes are over"))
        if config.patience and progress.since_better >= config.patience:
            found.append(("patience", f"{config.patience} proposals brought no better val mean"))
        if idle >= IDLE_ITERATIONS:
            found.append(("no_progress", f"{IDLE_ITERATIONS} iterations measured nothing"))
        if run_dir is not None and (run_dir / STOP_FILE).exists():
            found.append(("stop_file", f"{run_dir / STOP_FILE} is there"))
        return found

    return check
