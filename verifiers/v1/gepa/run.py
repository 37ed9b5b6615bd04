"""The parts of a run, and what they add up to."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from verifiers.v1.gepa.adapter import GEPAAdapter
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.evaluation import Evaluation
from verifiers.v1.gepa.prepare.plan import Plan
from verifiers.v1.gepa.record.files import COMPONENT
from verifiers.v1.gepa.reflection import Reflection
from verifiers.v1.gepa.report.outcome import Outcome, Pool, Spent, Status
from verifiers.v1.gepa.report.result import result_object
from verifiers.v1.gepa.search.effects import effects_of
from verifiers.v1.gepa.search.progress import Progress
from verifiers.v1.gepa.teacher.quality import describe


@dataclass(frozen=True)
class Run:
    """The parts of a run."""

    config: GEPAConfig
    plan: Plan
    adapter: GEPAAdapter
    reflection: Reflection
    progress: Progress
    found: Evaluation
    """What the phases after the search find."""


View = Callable[[Run], AbstractContextManager[None]]
"""Shows a run while the context is open."""


@dataclass(frozen=True)
class Ending:
    """How the run ended."""

    status: Status
    reason: str
    message: str
    error: BaseException | None = None


def outcome_of(ending: Ending, run: Run) -> Outcome:
    """What the run came to, from what its parts know."""
    config, adapter = run.config, run.adapter
    budget, trials = adapter.rollouts.budget, adapter.rollouts.trials
    throttle = trials.throttle
    found = pool(run)
    candidates, val_means = found.candidates, found.val_means
    best = run.found.deployed
    if best is None:
        best = max(range(len(val_means)), key=val_means.__getitem__, default=0)
    warnings = [*run.plan.warnings, *adapter.unmeasured.warnings]
    if throttle.lowest < throttle.most:
        warnings.append(
            f"the endpoint throttled: at times only {throttle.lowest} rollouts were in flight"
        )
    for column in adapter.reader.unseen:
        warnings.append(f"--reflection-columns {column}: no trace and no task had it")
    quality = run.reflection.replies.quality
    texts = [None if parent is None else candidates[parent] for parent in found.parents]
    flags = [quality.flags(*pair) for pair in zip(candidates, texts, strict=True)]
    look = "look at it before you deploy it"
    # Its own, and what it has from those that it was made from.
    held = quality.flags(candidates[best], candidates[0])
    held = [*flags[best], *(flag for flag in held if flag not in flags[best])]
    warnings += [f"the prompt {line}: {look}" for line in describe(held)]
    if "\r" in candidates[best]:
        warnings.append(
            "the prompt holds carriage returns; vf-eval drops them when it reads the prompt's file"
        )
    effects = effects_of(run.progress.state)
    best_score, perfect = effects.highest, config.perfect_score
    if (
        perfect is not None
        and best_score is not None
        and best_score > perfect
        and not math.isclose(best_score, perfect)  # rewards that add up to it
    ):
        warnings.append(
            f"a task scored {best_score:g}, more than --perfect-score {perfect:g}: with a best "
            "score that is too low, the search stops early; start another run with the right one"
        )
    outcome = Outcome(
        status=ending.status,
        finish_reason=ending.reason,
        message=ending.message,
        best_candidate=best,
        pool=dataclasses.replace(found, flags=flags, unvalidated=adapter.history.unpaid),
        evaluation=run.found,
        spent=Spent(
            rollouts={
                "budget": budget.total,
                "charged": budget.charged,
                "attempted": budget.attempted,
                "failed": budget.failed,
                "replayed": budget.replayed,
                "reused": budget.reused,
                "uncharged": budget.uncharged,
            },
            proposals={
                **run.reflection.replies.counts,
                "accepted": adapter.history.counts["accepted"],
                "rejected": adapter.history.counts["rejected"],
                "evaluated": effects.evaluated,
                "effective": effects.effective,
            },
            tokens=budget.spending.tokens,
            cost=budget.spending.record(),
            endpoints=trials.endpoints.counts(),
        ),
        dropped=adapter.unmeasured.dropped,
        warnings=warnings,
        run_dir=config.run_dir if config.save_results else None,
    )
    result = result_object(outcome, config, run.plan.split)
    return dataclasses.replace(outcome, result=result)


def pool(run: Run) -> Pool:
    """The candidates so far, their val means and their parents."""
    state = run.progress.state
    if state is None:
        seed_mean = run.progress.seed_val_mean
        return Pool([run.plan.seed_prompt], [] if seed_mean is None else [seed_mean], [None])
    return Pool(
        [candidate[COMPONENT] for candidate in state.program_candidates],
        list(state.program_full_scores_val_set),
        [ids[0] for ids in state.parent_program_for_candidate],
    )
