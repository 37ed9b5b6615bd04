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
from verifiers.v1.gepa.journal import prompt_digest
from verifiers.v1.gepa.records import Record, episode_records
from verifiers.v1.gepa.rollouts import Job, Measurement, Rollouts
from verifiers.v1.gepa.unmeasured import Unmeasured
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
    unmeasured: Unmeasured
    seed_pass: dict[int, Measurement] = field(default_factory=dict)
    """The seed prompt's measurements on the val tasks, made before the search starts."""
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
        """Scores of one candidate on the tasks of `batch`, in order: gepa's way to ask for the
        seed prompt's val pass."""
        if not capture_traces and all(idx in self.seed_pass for idx in batch):
            return _evaluation([self.seed_pass[idx] for idx in batch], None)
        (evaluation,) = self.batch_evaluate([(candidate, batch)])
        return evaluation

    def batch_evaluate(self, items: list[tuple[Candidate, list[int]]]) -> list[Evaluation]:
        """Scores of every (candidate, batch) pair, all rollouts in flight together. Raises
        `BudgetExhausted` before the first of them where they don't all fit."""
        wanted = [
            (candidate[COMPONENT], idx)
            for candidate, batch in items
            for position, idx in enumerate(batch)
            if self.unmeasured.wanted(self._tasks[idx][0], batch, position)
        ]
        jobs = [Job(prompt, self._tasks[idx][1], self._tasks[idx][0]) for prompt, idx in wanted]
        kind = jobs[0].split if jobs else "no"
        step = f"the {kind} rollouts of prompt {prompt_digest(items[0][0][COMPONENT])[:12]}"
        try:
            measured = iter(self.drive.run(self.rollouts.measure(jobs, step)))
        except BudgetExhausted:
            if kind == "val":
                self.unvalidated += [candidate[COMPONENT] for candidate, _ in items]
            raise
        results = []
        for candidate, batch in items:
            split = self._tasks[batch[0]][0]
            mine = [
                next(measured) if self.unmeasured.wanted(split, batch, position) else None
                for position in range(len(batch))
            ]
            results.append((split, candidate[COMPONENT], batch, mine))
        for split, prompt, batch, mine in results:
            hashes = [self.rollouts.task_hash(self._tasks[idx][1]) for idx in batch]
            self.unmeasured.decide(split, prompt, batch, hashes, mine)
        return [
            _evaluation(mine, self.unmeasured.scores(split, batch, mine))
            for split, _, batch, mine in results
        ]

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Evaluation, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the teacher reads about a minibatch: one record per measured trace, for every
        component."""
        records: list[Record] = [
            record
            for measurement, score in zip(
                eval_batch.trajectories or [], eval_batch.scores, strict=True
            )
            if measurement.source is not None
            for record in episode_records(measurement.episode(), score, self.columns, self.hide)
        ]
        return dict.fromkeys(components_to_update, records)


def _evaluation(
    measurements: Sequence[Measurement | None], scores: list[float] | None
) -> Evaluation:
    """gepa's form of these measurements; `scores` replaces theirs where some have none."""
    filled = [measurement or Measurement(None) for measurement in measurements]
    if scores is None:
        scores = [measurement.score or 0.0 for measurement in filled]
    return EvaluationBatch(
        outputs=[measurement.episode_id for measurement in filled],
        scores=scores,
        trajectories=filled,
    )
