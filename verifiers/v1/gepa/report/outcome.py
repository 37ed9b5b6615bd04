"""The outcome of a run, and the last lines of the log that tell it to a person."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.evaluation import Evaluation
from verifiers.v1.gepa.prepare.rundir import resume_command
from verifiers.v1.gepa.record.files import PROMPT_FILE
from verifiers.v1.gepa.teacher.quality import Flag

logger = logging.getLogger(__name__)

Status = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Pool:
    """The prompts of the search."""

    candidates: list[str]
    """The seed prompt and the accepted ones, in the order of their acceptance."""
    val_means: list[float]
    """The search's val mean of each candidate: what it was picked by, too good to report. Empty
    where the seed prompt's val pass did not end."""
    parents: list[int | None]
    """Index of each candidate's parent, None for the seed prompt."""
    flags: list[list[Flag]] = field(default_factory=list)
    """What there is to look at in each candidate."""
    unvalidated: list[str] = field(default_factory=list)
    """Prompts that won their minibatch when the budget no longer paid for their val pass."""


@dataclass(frozen=True)
class Spent:
    """What the run took."""

    rollouts: dict[str, Any]
    """`budget`, `charged` (measured in the search), `attempted`, `failed`, `replayed` (measured by
    an earlier process of the run), `reused` (by other runs, or once more),
    `uncharged` (measured, by phase)."""
    proposals: dict[str, int]
    """`tried`, and of those `accepted`, `rejected`, `duplicate`, `unusable`, `failed`; `evaluated`,
    and of those `effective`."""
    tokens: dict[str, dict[str, int]]
    """Reported `input` and `output` tokens by role: student, teacher, judges."""
    cost: dict[str, Any]
    """What they cost: `usd`, `reason` where that is unknown, and the same by role, in `roles`."""
    endpoints: list[dict[str, Any]]
    """`url`, `attempts` and `failed` of each of the student's replicas, of this process."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Scores are in the taskset's own unit."""

    status: Status
    finish_reason: str
    """Why the search ended: `budget` or another stop condition, the signal's name, or `fault`."""
    message: str
    """The same for a person, with the cause of a fault."""
    best_candidate: int
    """Index of the deployed prompt among the candidates; while that is not decided, of the best of
    the search so far. 0 is the seed prompt."""
    pool: Pool
    evaluation: Evaluation
    """The phases after the search."""
    spent: Spent
    dropped: list[int]
    """Indices of the val tasks that could not be measured with the seed prompt."""
    warnings: list[str]
    run_dir: Path | None
    result: dict[str, Any] = field(default_factory=dict)
    """The object that `result.json` holds."""

    @property
    def best_system_prompt(self) -> str:
        """The text of the best candidate."""
        return self.candidates[self.best_candidate]

    @property
    def candidates(self) -> list[str]:
        return self.pool.candidates

    @property
    def val_means(self) -> list[float]:
        return self.pool.val_means

    @property
    def parents(self) -> list[int | None]:
        return self.pool.parents

    @property
    def rollouts(self) -> dict[str, Any]:
        return self.spent.rollouts

    @property
    def proposals(self) -> dict[str, int]:
        return self.spent.proposals

    @property
    def tokens(self) -> dict[str, dict[str, int]]:
        return self.spent.tokens

    @property
    def cost(self) -> dict[str, Any]:
        return self.spent.cost

    @property
    def partial(self) -> bool:
        """Whether the run was cut short, so that the prompt is the best so far."""
        return self.status != "finished"

    @property
    def seed_val_mean(self) -> float | None:
        return self.val_means[0] if self.val_means else None

    @property
    def best_val_mean(self) -> float | None:
        return max(self.val_means, default=None)

    @property
    def improved(self) -> bool:
        """Whether the deployed prompt is better on test than chance explains."""
        comparison = self.evaluation.comparison
        return comparison is not None and comparison.improved


def log_outcome(outcome: Outcome, config: GEPAConfig) -> None:
    """Say how the run ended, what it found and where, and how to go on."""
    for warning in outcome.warnings:
        logger.warning("%s", warning)
    if outcome.seed_val_mean is not None and outcome.best_val_mean is not None:
        logger.info(
            "search: val mean %.4f with the seed prompt, %.4f with the best of %d candidates",
            outcome.seed_val_mean,
            outcome.best_val_mean,
            len(outcome.val_means),
        )
    if headline := headline_of(outcome):
        logger.info("%s", headline)
    for hint in outcome.result["hints"]:
        logger.info("hint (%s): %s", hint["code"], hint["text"])
    logger.info("%s", cost_line(outcome.tokens, outcome.cost))
    if outcome.run_dir is not None:
        mark = " (partial: the best so far)" if outcome.partial else ""
        logger.info("prompt: %s%s", outcome.run_dir / PROMPT_FILE, mark)
        if report := outcome.result["artifacts"].get("report"):
            logger.info("report: %s", report)
        evaluation = outcome.evaluation
        complete = evaluation.comparison is not None or evaluation.test_skipped is not None
        if outcome.partial:
            logger.info("go on with: %s", resume_command(config))
        elif not complete:
            logger.info("go on with: %s --phase all", resume_command(config))
        else:
            logger.info("evaluate it with: %s", outcome.result["commands"]["vf_eval"])
    rollouts = outcome.rollouts
    summary = f"{rollouts['charged']} of {rollouts['budget']} rollouts"
    log = logger.error if outcome.status == "failed" else logger.info
    log("%s (%s): %s", outcome.status, summary, outcome.message)


def cost_line(tokens: dict[str, dict[str, int]], cost: dict[str, Any]) -> str:
    """Tokens and money by role, in one line."""
    parts = [
        f"{role} {used['input']} + {used['output']} ({usd_text(cost['roles'][role]['usd'])})"
        for role, used in tokens.items()
    ]
    total = usd_text(cost["usd"]) + (f" ({cost['reason']})" if cost["reason"] else "")
    return f"tokens in + out: {', '.join(parts) or 'none'}; cost: {total}"


def usd_text(usd: float | None) -> str:
    """An amount for a person; an unknown one says so."""
    return "unknown" if usd is None else f"${usd:.4f}"


def headline_of(outcome: Outcome) -> str | None:
    """The result in one sentence, None while there is none."""
    evaluation, comparison = outcome.evaluation, outcome.evaluation.comparison
    if evaluation.fallback_reason == "no_candidate":
        return "test: no proposal was accepted, the seed prompt stays"
    if evaluation.fallback_reason:
        return "test: no prompt was better than the seed prompt when run afresh, it stays"
    if comparison is None:
        return f"test: none: {evaluation.test_skipped}" if evaluation.test_skipped else None
    means = f"{comparison.baseline_mean:.4f} -> {comparison.deployed_mean:.4f}"
    delta = f"{100 * comparison.delta:+.1f} points"
    if comparison.ci95 is None:
        return f"test: {means}, {delta}; no interval: {comparison.reason}"
    low, high = (100 * end for end in comparison.ci95)
    verdict = "not more than chance explains"
    if comparison.improved:
        verdict = "improved"
    elif comparison.worse:
        verdict = "worse, keep the seed prompt"
    return f"test: {means}, {delta} (95 % interval {low:+.1f} to {high:+.1f}): {verdict}"
