"""After the search: which prompt is deployed, and what it is worth.

The val mean that picked a prompt is too good to report: among several prompts, luck is picked too.
So the *validate* phase runs the seed prompt and the few best ones afresh on val and deploys the one
with the best mean, the seed prompt where none is above it; and the *test* phase compares it with
the seed prompt on tasks that nothing has read before. Neither is charged to the budget.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, task_idx
from verifiers.v1.gepa.record.journal import Phase
from verifiers.v1.gepa.rollouts.measurements import Job, Measurement, mean_score
from verifiers.v1.gepa.rollouts.rollouts import Rollouts
from verifiers.v1.gepa.rollouts.unmeasured import Unmeasured
from verifiers.v1.task import Task
from verifiers.v1.utils.drive import Drive
from verifiers.v1.utils.statistics import DIGITS, Comparison, compare, mean

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskScores:
    """One test task with both prompts' mean scores on it."""

    idx: int
    hash: str
    baseline: float
    deployed: float


@dataclass
class Evaluation:
    """What the phases after the search found, as far as they came."""

    deployed: int | None = None
    """Index of the deployed candidate, None while it is not decided."""
    fallback_reason: str | None = None
    """Why the seed prompt is deployed: `no_candidate` or `no_improvement`."""
    validated: dict[int, float] = field(default_factory=dict)
    """Mean of the fresh rollouts on val, by candidate."""
    tasks: list[TaskScores] = field(default_factory=list)
    """Scores of the test phase."""
    comparison: Comparison | None = None
    test_skipped: str | None = None
    """Why there was nothing to test."""
    tested_before: int = 0
    """Rollouts on test of a prompt that the run had deployed before it went on."""
    lost: dict[str, list[int]] = field(default_factory=dict)
    """Tasks that could not be measured with every prompt, by phase; they count for none."""


@dataclass(frozen=True)
class Evaluator:
    """Runs the phases after the search."""

    config: GEPAConfig
    split: Split
    rollouts: Rollouts
    unmeasured: Unmeasured
    drive: Drive
    found: Evaluation

    def validate(self, candidates: Sequence[str], val_means: Sequence[float]) -> None:
        """Decide which candidate is deployed. Raises `Fault` where too many tasks are lost."""
        ranked = sorted(range(1, len(candidates)), key=lambda index: (-val_means[index], index))
        finalists = [0, *ranked[: self.config.num_finalists]]
        if len(finalists) == 1:
            self.found.deployed, self.found.fallback_reason = 0, "no_candidate"
            return
        prompts = [candidates[index] for index in finalists]
        repeats = self.config.validation_rollouts
        scores = self._scores("validate", prompts, self.split.val, repeats)
        means = [round(mean(mine), DIGITS) for mine in zip(*scores.values(), strict=True)]
        self.found.validated = dict(zip(finalists, means, strict=True))
        best = max(finalists, key=lambda index: self.found.validated[index])  # the first of equals
        self.found.deployed = best
        if best == 0:
            self.found.fallback_reason = "no_improvement"
        logger.info(
            "validated afresh: %s; deployed: %s",
            ", ".join(f"{_name(i)} {mean:.4f}" for i, mean in self.found.validated.items()),
            _name(best),
        )

    def test(self, candidates: Sequence[str]) -> None:
        """Compare the deployed prompt with the seed prompt on test."""
        deployed = self.found.deployed
        assert deployed is not None  # the validate phase comes first
        if not self.split.test:
            self.found.test_skipped = "there are no test tasks (num_test is 0)"
        elif deployed == 0:
            self.found.test_skipped = "the seed prompt is deployed: there is nothing to compare"
        if self.found.test_skipped:
            logger.info("no test: %s", self.found.test_skipped)
            return
        prompts = [candidates[0], candidates[deployed]]
        scores = self._scores("test", prompts, self.split.test, self.config.test_rollouts)
        for task in self.split.test:
            if (idx := task_idx(task)) in scores:
                pair = scores[idx]
                self.found.tasks.append(TaskScores(idx, self.rollouts.task_hash(task), *pair))
        baseline = [task.baseline for task in self.found.tasks]
        self.found.comparison = compare(baseline, [task.deployed for task in self.found.tasks])

    def _scores(
        self, phase: Phase, prompts: Sequence[str], tasks: Sequence[Task], repeats: int
    ) -> dict[int, list[float]]:
        """Mean score of every prompt on every task that all of them could be measured on."""
        split = "val" if phase == "validate" else "test"
        jobs = [
            Job(prompt, task, split, phase)
            for task in tasks
            for prompt in prompts
            for _ in range(repeats)
        ]
        batch = self.drive.run(self.rollouts.measure(jobs, f"the {phase} phase"))
        measured = iter(self.rollouts.with_floor(batch))
        scores: dict[int, list[float]] = {}
        lost: dict[int, str] = {}
        asked: list[tuple[str, str, list[Measurement]]] = []
        for task in tasks:
            idx = task_idx(task)
            rollouts = [[next(measured) for _ in range(repeats)] for _ in prompts]
            hashed = self.rollouts.task_hash(task)
            asked += [
                (prompt, hashed, mine) for prompt, mine in zip(prompts, rollouts, strict=True)
            ]
            means = [mean_score(mine) for mine in rollouts]
            known = [mean for mean in means if mean is not None]
            if len(known) == len(prompts):
                scores[idx] = known
            else:
                lost[idx] = rollouts[means.index(None)][0].cause
        if lost:
            cause = next(iter(lost.values()))
            self.unmeasured.check_share(len(lost), len(tasks), cause, split)
            self.found.lost[phase] = list(lost)
            self.unmeasured.warn(
                f"{split} tasks {list(lost)} count for no prompt in {phase}: {cause}"
            )
        for prompt, hashed, mine in asked:
            self.unmeasured.give_up(phase, prompt, hashed, mine)
        return scores


def _name(index: int) -> str:
    return f"prompt {index}" if index else "seed prompt"
