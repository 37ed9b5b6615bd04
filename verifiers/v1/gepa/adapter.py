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
from verifiers.v1.gepa.failures import Fault
from verifiers.v1.gepa.journal import prompt_digest
from verifiers.v1.gepa.records import Record, episode_records
from verifiers.v1.gepa.rollouts import Job, Measurement, Rollouts, mean_score
from verifiers.v1.gepa.unmeasured import Unmeasured
from verifiers.v1.utils.drive import Drive

Candidate = dict[str, str]

COMPONENT = "system_prompt"
"""The one text of a candidate that is optimized."""

Evaluation = EvaluationBatch[list[Measurement], str]
"""gepa's result of one batch; a trajectory is the measurements of one task."""


@dataclass(frozen=True)
class _Asked:
    """One candidate on one batch of tasks."""

    prompt: str
    split: str
    batch: list[int]
    """Indices of the tasks."""
    wanted: list[bool]
    """Which of them are to be run."""


@dataclass
class GEPAAdapter:
    """The bridge between `gepa.optimize` and a run's rollouts. Tasks are named by their index in
    the taskset (`TaskData.idx`)."""

    rollouts: Rollouts
    split: Split
    drive: Drive
    unmeasured: Unmeasured
    repeats: int = 1
    """Rollouts per prompt and task, averaged."""
    seed_pass: dict[int, list[Measurement]] = field(default_factory=dict)
    """The seed prompt's measurements on the val tasks, made before the search starts."""
    seed_prompt: str = ""
    columns: Sequence[str] = ()
    """Extra fields to show the teacher."""
    columns_seen: set[str] = field(default_factory=set)
    """Those of them that a trace or a task had."""
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
        seed = candidate[COMPONENT] == self.seed_prompt
        if seed and not capture_traces and all(idx in self.seed_pass for idx in batch):
            mine = [self.seed_pass[idx] for idx in batch]
            return _evaluation(mine, [mean_score(measurements) or 0.0 for measurements in mine])
        (evaluation,) = self.batch_evaluate([(candidate, batch)])
        return evaluation

    def batch_evaluate(self, items: list[tuple[Candidate, list[int]]]) -> list[Evaluation]:
        """Scores of every (candidate, batch) pair, all rollouts in flight together. Raises
        `BudgetExhausted` before the first of them where they don't all fit."""
        asked = [self._ask(candidate[COMPONENT], batch) for candidate, batch in items]
        jobs = [
            Job(one.prompt, self._tasks[idx][1], one.split, keep=one.split == "train")
            for one in asked
            for idx, wanted in zip(one.batch, one.wanted, strict=True)
            for _ in range(self.repeats * wanted)
        ]
        step = f"the {asked[0].split} rollouts of prompt {prompt_digest(asked[0].prompt)[:12]}"
        try:
            batch_of_all = self.drive.run(self.rollouts.measure(jobs, step))
        except BudgetExhausted:
            self.unvalidated += [one.prompt for one in asked if one.split == "val"]
            raise
        measured = iter(self.rollouts.with_floor(batch_of_all))
        results = [
            [[next(measured) for _ in range(self.repeats * wanted)] for wanted in one.wanted]
            for one in asked
        ]
        for one, mine in zip(asked, results, strict=True):
            hashes = [self.rollouts.task_hash(self._tasks[idx][1]) for idx in one.batch]
            self.unmeasured.decide(one.split, one.prompt, one.batch, hashes, mine)
        return [
            _evaluation(mine, self.unmeasured.scores(one.split, one.batch, mine))
            for one, mine in zip(asked, results, strict=True)
        ]

    def _ask(self, prompt: str, batch: list[int]) -> _Asked:
        split = self._tasks[batch[0]][0]
        wanted = [self.unmeasured.wanted(split, batch, i) for i in range(len(batch))]
        return _Asked(prompt, split, batch, wanted)

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Evaluation, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the teacher reads about a minibatch: one record per measured trace, for every
        component. Raises `Fault`: gepa would swallow anything else and go on without a proposal."""
        try:
            records: list[Record] = [
                record
                for measurements in eval_batch.trajectories or []
                for measurement in measurements
                if measurement.source is not None and measurement.score is not None
                for record in episode_records(
                    measurement.episode(), measurement.score, self.columns
                )
            ]
            self.columns_seen.update(name for name in self.columns for r in records if name in r)
        except Exception as error:
            raise Fault(f"a trace can't be shown to the teacher: {error!r}") from error
        return dict.fromkeys(components_to_update, records)


def _evaluation(measured: list[list[Measurement]], scores: list[float]) -> Evaluation:
    return EvaluationBatch(
        outputs=[",".join(m.episode_id for m in measurements) for measurements in measured],
        scores=scores,
        trajectories=measured,
    )
