"""gepa's adapter: candidates and task indices in, scores out.

gepa calls synchronously and hands over everything that one iteration needs at once
(`batch_evaluate`), so it all goes out as one batch. What gepa keeps in its state is ids and scores;
episodes live only as the trajectories of the iteration that reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gepa.core.adapter import EvaluationBatch, ProposalFn

from verifiers.v1.gepa.budget import BudgetExhausted
from verifiers.v1.gepa.dataset import Split
from verifiers.v1.gepa.records import Record, episode_records
from verifiers.v1.gepa.rollouts import Job, Measurement, Rollouts
from verifiers.v1.utils.drive import Drive

Candidate = dict[str, str]

COMPONENT = "system_prompt"
"""The one text of a candidate that is optimized."""

Evaluation = EvaluationBatch[Measurement, str]


@dataclass
class GEPAAdapter:
    """The bridge between `gepa.optimize` and a run's rollouts. Tasks are named by their index in
    the taskset (`TaskData.idx`)."""

    rollouts: Rollouts
    split: Split
    drive: Drive
    columns: Sequence[str] = ()
    hide: Mapping[str, str] = field(default_factory=dict)
    """Texts kept from the teacher, see `records.hidden_texts`."""
    unvalidated: list[str] = field(default_factory=list)
    """Accepted prompts whose val pass no longer fitted into the budget."""
    propose_new_texts: ProposalFn | None = None
    """Part of gepa's protocol: None leaves proposing to the reflection strategy."""

    def __post_init__(self) -> None:
        self._tasks = {
            task.data.idx: (name, task)
            for name in ("train", "val")
            for task in getattr(self.split, name)
        }

    def evaluate(
        self, batch: list[int], candidate: Candidate, capture_traces: bool = False
    ) -> Evaluation:
        """Scores of one candidate on the tasks of `batch`, in order."""
        (evaluation,) = self.batch_evaluate([(candidate, batch)])
        if not capture_traces:
            evaluation.trajectories = None
        return evaluation

    def batch_evaluate(self, items: list[tuple[Candidate, list[int]]]) -> list[Evaluation]:
        """Scores of every (candidate, batch) pair, all rollouts in flight together. Raises
        `BudgetExhausted` before the first of them where they don't all fit."""
        jobs = [
            Job(candidate[COMPONENT], self._tasks[idx][1], self._tasks[idx][0])
            for candidate, batch in items
            for idx in batch
        ]
        try:
            measured = self.drive.run(self.rollouts.measure(jobs))
        except BudgetExhausted:
            if all(job.split == "val" for job in jobs):
                self.unvalidated += [candidate[COMPONENT] for candidate, _ in items]
            raise
        evaluations = []
        for _, batch in items:
            mine, measured = measured[: len(batch)], measured[len(batch) :]
            evaluations.append(
                EvaluationBatch(
                    outputs=[measurement.episode.id for measurement in mine],
                    scores=[measurement.score for measurement in mine],
                    trajectories=mine,
                )
            )
        return evaluations

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Evaluation, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the teacher reads about a minibatch: one record per trace, for every component."""
        records: list[Record] = [
            record
            for measurement in eval_batch.trajectories or []
            for record in episode_records(
                measurement.episode, measurement.score, self.columns, self.hide
            )
        ]
        return dict.fromkeys(components_to_update, records)
