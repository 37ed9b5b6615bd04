"""gepa's adapter: candidates and task indices in, scores out.

gepa calls synchronously and hands over everything that one iteration needs at once
(`batch_evaluate`), so it all goes out as one batch. What gepa keeps in its state is ids and scores;
an episode that the teacher is to be shown is read from the journal then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from gepa.core.adapter import EvaluationBatch, ProposalFn

from verifiers.v1.gepa.dataset import Split
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.record.files import COMPONENT
from verifiers.v1.gepa.record.history import History, Minibatch
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.rollouts.halves import Asked, Bar
from verifiers.v1.gepa.rollouts.measurements import (
    Job,
    Measurement,
    charged,
    known_scores,
    mean_score,
)
from verifiers.v1.gepa.rollouts.rollouts import Rollouts
from verifiers.v1.gepa.rollouts.unmeasured import Unmeasured
from verifiers.v1.gepa.spend.budget import SearchStopped
from verifiers.v1.gepa.teacher.records import Reader, Record
from verifiers.v1.utils.drive import Drive

Candidate = dict[str, str]


@dataclass
class Evaluation(EvaluationBatch[list[Measurement], str]):
    """gepa's result of one batch; a trajectory is the measurements of one task, empty where it was
    not run."""

    tasks: list[int] = field(default_factory=list)
    """Indices of the tasks."""
    billed: bool = False
    """Whether its rollouts are counted for a proposal: several may share a parent's minibatch."""


class Shown(dict[str, list[Record]]):
    """gepa's reflective dataset of one minibatch, with where it comes from."""

    def __init__(self, component: str, records: list[Record], evaluation: Evaluation) -> None:
        super().__init__({component: records})
        measured = evaluation.trajectories or []
        self.minibatch = Minibatch(
            evaluation.tasks,
            known_scores(evaluation.scores, measured),
            0 if evaluation.billed else charged(measured),
        )
        evaluation.billed = True


@dataclass
class SeedPass:
    """The seed prompt's val pass, which is run before the search."""

    prompt: str
    tasks: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Episode ids and score, by val task."""


@dataclass
class GEPAAdapter:
    """The bridge between `gepa.optimize` and a run's rollouts. Tasks are named by their index in
    the taskset (`TaskData.idx`)."""

    rollouts: Rollouts
    drive: Drive
    unmeasured: Unmeasured
    history: History
    split: InitVar[Split]
    seed_pass: SeedPass
    reader: Reader
    """Makes the teacher's records of what was measured."""
    bar: Bar
    repeats: int
    """Rollouts per prompt and task, averaged."""
    propose_new_texts: ProposalFn | None = None
    """Part of gepa's protocol: None leaves proposing to the reflection strategy."""

    def __post_init__(self, split: Split) -> None:
        self._tasks = {
            task.data.idx: (name, task)
            for name in ("train", "val")
            for task in getattr(split, name)
        }
        self._begun: dict[str, dict[int, list[Measurement]]] = {}
        """Val passes that were begun: prompt -> task -> measurements."""

    @property
    def val_cost(self) -> int:
        """Rollouts of one val pass."""
        return self.repeats * len(self.unmeasured.val_tasks)

    def reads(self, split: str) -> bool:
        """Whether the episodes of this part are looked at once they are measured."""
        return split == "train" or self.unmeasured.frontier is not None

    def evaluate(
        self, batch: list[int], candidate: Candidate, capture_traces: bool = False
    ) -> Evaluation:
        """Scores of one candidate on the tasks of `batch`, in order: gepa's way to ask for the
        seed prompt's val pass."""
        prompt, known = candidate[COMPONENT], self.seed_pass.tasks
        if prompt == self.seed_pass.prompt and not capture_traces and known.keys() >= {*batch}:
            ids, scores = zip(*(known[idx] for idx in batch), strict=True)
            frontier = self.unmeasured.frontier
            objectives = frontier.scores(prompt, batch) if frontier else None
            return Evaluation([*ids], [*scores], None, objectives, tasks=batch)
        (evaluation,) = self.batch_evaluate([(candidate, batch)])
        return evaluation

    def batch_evaluate(self, items: list[tuple[Candidate, list[int]]]) -> list[Evaluation]:
        """Scores of every (candidate, batch) pair, all rollouts in flight together. Raises
        `BudgetExhausted` before the first of them where they don't all fit."""
        compared = self.unmeasured.compares
        asked = [self._ask(candidate[COMPONENT], batch, compared) for candidate, batch in items]
        try:
            results = self._measure(asked)
        except SearchStopped:
            self.history.unpaid += [one.prompt for one in asked if one.split == "val"]
            raise
        self.unmeasured.check(
            asked[0].split, [(one.batch, mine) for one, mine in zip(asked, results, strict=True)]
        )
        for one, mine in zip(asked, results, strict=True):
            hashes = [self.rollouts.task_hash(self._tasks[idx][1]) for idx in one.batch]
            self.unmeasured.decide(one.split, one.prompt, one.parent, one.batch, hashes, mine)
            if one.split == "val":
                self.history.validated(one.prompt, charged(mine))
        return [self._evaluation(one, mine) for one, mine in zip(asked, results, strict=True)]

    def begin_val(self, prompts: list[str]) -> list[list[float]]:
        """The first half of the val passes of `prompts`: the scores of each that could be measured.
        The whole pass goes on from there."""
        tasks = self.unmeasured.val_tasks
        half = tasks[: (len(tasks) + 1) // 2]
        asked = [Asked(prompt, None, "val", half, [True] * len(half), {}) for prompt in prompts]
        try:
            results = self._run(asked, [one.wanted for one in asked])
        except SearchStopped:
            self.history.unpaid += prompts
            raise
        self._give_up_half(asked, results)
        for one, mine in zip(asked, results, strict=True):
            self._begun[one.prompt] = dict(zip(half, mine, strict=True))
        return [
            [score for measured in mine if (score := mean_score(measured)) is not None]
            for mine in results
        ]

    def stop_val(self, prompt: str) -> None:
        """The val pass that was begun for `prompt` does not go on."""
        begun = self._begun.pop(prompt)
        self.history.validated(prompt, charged(list(begun.values())))

    def _ask(self, prompt: str, batch: list[int], compared: bool) -> Asked:
        split = self._tasks[batch[0]][0]
        parent = self.history.parent_of(prompt) if compared and split == "train" else None
        begun = self._begun.pop(prompt, {}) if split == "val" else {}
        wanted = [
            self.unmeasured.wanted(split, parent, batch, i) and idx not in begun
            for i, idx in enumerate(batch)
        ]
        return Asked(prompt, parent, split, batch, wanted, begun)

    def _measure(self, asked: list[Asked]) -> list[list[list[Measurement]]]:
        """The measurements of every task of each of `asked`."""
        first = [self.bar.first(one) for one in asked]
        results = self._run(asked, first)
        rest = [
            self.bar.rest(one, half, mine, self._before(one))
            for one, half, mine in zip(asked, first, results, strict=True)
        ]
        if any(map(any, rest)):
            self._give_up_half(asked, results)
            for mine, more in zip(results, self._run(asked, rest), strict=True):
                mine[:] = [new or old for old, new in zip(mine, more, strict=True)]
        flat = iter(self.rollouts.with_floor([m for one in results for mine in one for m in mine]))
        return [[[next(flat) for _ in mine] for mine in one] for one in results]

    def _before(self, one: Asked) -> list[float | None]:
        """The scores that a proposal is compared with."""
        return [] if one.parent is None else self.unmeasured.parent_scores(one.parent, one.batch)

    def _give_up_half(self, asked: list[Asked], results: list[list[list[Measurement]]]) -> None:
        """Decide about what a first half misses before the second goes out: a resume would ask for
        it again, while its record goes on with the second."""
        pairs = list(zip(asked, results, strict=True))
        measured = [(one.batch, mine) for one, mine in pairs]
        self.unmeasured.check(asked[0].split, measured, whole=False)
        for one, mine in pairs:
            for position, rollouts in enumerate(mine):
                task = self.rollouts.task_hash(self._tasks[one.batch[position]][1])
                self.unmeasured.give_up("optimize", one.prompt, task, rollouts)
                mine[position] = [replace(measurement, live=False) for measurement in rollouts]

    def _run(self, asked: list[Asked], now: list[list[bool]]) -> list[list[list[Measurement]]]:
        """Run each of `asked` on the tasks that `now` says, all in flight together; the others have
        what was measured of them before, which may be nothing."""
        jobs = [
            Job(one.prompt, self._tasks[idx][1], one.split, keep=self.reads(one.split))
            for one, mask in zip(asked, now, strict=True)
            for idx, wanted in zip(one.batch, mask, strict=True)
            for _ in range(self.repeats * wanted)
        ]
        step = f"the {asked[0].split} rollouts of prompt {prompt_digest(asked[0].prompt)[:12]}"
        measured = iter(self.drive.run(self.rollouts.measure(jobs, step)))
        return [
            [
                [next(measured) for _ in range(self.repeats)] if wanted else one.begun.get(idx, [])
                for idx, wanted in zip(one.batch, mask, strict=True)
            ]
            for one, mask in zip(asked, now, strict=True)
        ]

    def _evaluation(self, one: Asked, mine: list[list[Measurement]]) -> Evaluation:
        scores = self.unmeasured.scores(one.split, one.parent, one.batch, mine)
        ids = [",".join(m.episode_id for m in measurements) for measurements in mine]
        if one.split == "val":  # nothing reads its episodes again
            frontier = self.unmeasured.frontier
            objectives = frontier.note(one.prompt, one.batch, mine) if frontier else None
            return Evaluation(ids, scores, None, objectives, tasks=one.batch)
        return Evaluation(ids, scores, mine, tasks=one.batch)

    def make_reflective_dataset(
        self,
        candidate: Candidate,
        eval_batch: EvaluationBatch[list[Measurement], str],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the teacher reads about a minibatch: one record per measured trace. Raises `Fault`:
        gepa would swallow anything else and go on without a proposal."""
        try:
            records = [
                record
                for measurements in eval_batch.trajectories or []
                for measurement in measurements
                if measurement.source is not None and measurement.score is not None
                for record in self.reader.read(measurement.episode(), measurement.score)
            ]
        except Exception as error:
            raise Fault(f"a trace can't be shown to the teacher: {error!r}") from error
        assert isinstance(eval_batch, Evaluation)
        return Shown(COMPONENT, records, eval_batch)
