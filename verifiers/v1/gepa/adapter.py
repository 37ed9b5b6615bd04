"""gepa's adapter: candidates and task indices in, scores out.

gepa calls synchronously and hands over everything that one iteration needs at once
(`batch_evaluate`), so it all goes out as one batch. What gepa keeps in its state is ids and scores;
an episode that the teacher is to be shown is read from the journal then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gepa.core.adapter import EvaluationBatch, ProposalFn

from verifiers.v1.gepa.budget import SearchStopped
from verifiers.v1.gepa.dataset import Split
from verifiers.v1.gepa.failures import Fault
from verifiers.v1.gepa.frontier import Frontier
from verifiers.v1.gepa.journal import prompt_digest
from verifiers.v1.gepa.measurements import Job, Measurement, mean_score
from verifiers.v1.gepa.records import Record, episode_records
from verifiers.v1.gepa.rollouts import Rollouts
from verifiers.v1.gepa.unmeasured import Unmeasured
from verifiers.v1.utils.drive import Drive

Candidate = dict[str, str]

COMPONENT = "system_prompt"
"""The one text of a candidate that is optimized."""


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
        self.tasks = evaluation.tasks
        self.scores = known_scores(evaluation.scores, evaluation.trajectories or [])
        """Its scores, None where one could not be measured."""
        self.rollouts = 0 if evaluation.billed else charged(evaluation.trajectories or [])
        """Charged for it."""
        evaluation.billed = True


@dataclass(frozen=True)
class _Asked:
    """One candidate on one batch of tasks."""

    prompt: str
    parent: str | None
    """The prompt that this one was made from, where it is compared with it on the batch."""
    split: str
    batch: list[int]
    """Indices of the tasks."""
    wanted: list[bool]
    """Which of them are to be run."""
    begun: dict[int, list[Measurement]]
    """What was measured of the batch before."""


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
    seed_pass: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Episode ids and score of the seed prompt on the val tasks, from before the search."""
    seed_prompt: str = ""
    columns: Sequence[str] = ()
    """Extra fields to show the teacher."""
    columns_seen: set[str] = field(default_factory=set)
    """Those of them that a trace or a task had."""
    unvalidated: list[str] = field(default_factory=list)
    """Accepted prompts whose val pass no longer fitted into the budget."""
    frontier: Frontier | None = None
    """Keeps the objective scores where the frontier is made of them."""
    perfect_score: float | None = None
    accepts_equal: bool = False
    """Whether a proposal is accepted that scores the same as its parent."""
    lineage: dict[str, str] = field(default_factory=dict)
    """Proposal of this iteration -> the prompt that it was made from."""
    val_rollouts: dict[str, int] = field(default_factory=dict)
    """Proposal -> rollouts charged for its val pass."""
    propose_new_texts: ProposalFn | None = None
    """Part of gepa's protocol: None leaves proposing to the reflection strategy."""

    def __post_init__(self) -> None:
        self._tasks = {
            task.data.idx: (name, task)
            for name in ("train", "val")
            for task in getattr(self.split, name)
        }
        self._begun: dict[str, dict[int, list[Measurement]]] = {}
        """Val passes that were begun: prompt -> task -> measurements."""

    @property
    def val_cost(self) -> int:
        """Rollouts of one val pass."""
        return self.repeats * len(self.unmeasured.val_tasks)

    def reads(self, split: str) -> bool:
        """Whether the episodes of this part are looked at once they are measured."""
        return split == "train" or self.frontier is not None

    def start_iteration(self) -> None:
        """Forget the last iteration's minibatches."""
        self.unmeasured.forget_minibatches()
        self.lineage.clear()

    def evaluate(
        self, batch: list[int], candidate: Candidate, capture_traces: bool = False
    ) -> Evaluation:
        """Scores of one candidate on the tasks of `batch`, in order: gepa's way to ask for the
        seed prompt's val pass."""
        prompt = candidate[COMPONENT]
        if prompt == self.seed_prompt and not capture_traces and self.seed_pass.keys() >= {*batch}:
            ids, scores = zip(*(self.seed_pass[idx] for idx in batch), strict=True)
            objectives = self.frontier.scores(prompt, batch) if self.frontier else None
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
            self.unvalidated += [one.prompt for one in asked if one.split == "val"]
            raise
        self.unmeasured.check(
            asked[0].split, [(one.batch, mine) for one, mine in zip(asked, results, strict=True)]
        )
        for one, mine in zip(asked, results, strict=True):
            hashes = [self.rollouts.task_hash(self._tasks[idx][1]) for idx in one.batch]
            self.unmeasured.decide(one.split, one.prompt, one.parent, one.batch, hashes, mine)
            if one.split == "val":
                self.val_rollouts[one.prompt] = charged(mine)
        return [self._evaluation(one, mine) for one, mine in zip(asked, results, strict=True)]

    def begin_val(self, prompts: list[str]) -> list[list[float]]:
        """The first half of the val passes of `prompts`: the scores of each that could be measured.
        The whole pass goes on from there."""
        tasks = self.unmeasured.val_tasks
        half = tasks[: (len(tasks) + 1) // 2]
        asked = [_Asked(prompt, None, "val", half, [True] * len(half), {}) for prompt in prompts]
        try:
            results = self._run(asked, [one.wanted for one in asked])
        except SearchStopped:
            self.unvalidated += prompts
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
        self.val_rollouts[prompt] = charged(list(begun.values()))

    def _ask(self, prompt: str, batch: list[int], compared: bool) -> _Asked:
        split = self._tasks[batch[0]][0]
        parent = self.lineage[prompt] if compared and split == "train" else None
        begun = self._begun.pop(prompt, {}) if split == "val" else {}
        wanted = [
            self.unmeasured.wanted(split, parent, batch, i) and idx not in begun
            for i, idx in enumerate(batch)
        ]
        return _Asked(prompt, parent, split, batch, wanted, begun)

    def _measure(self, asked: list[_Asked]) -> list[list[list[Measurement]]]:
        """The measurements of every task of each of `asked`. Where a best score is known, proposals
        run on the first half of their minibatch, then on the rest if they can still be accepted."""
        first = [self._first(one) for one in asked]
        results = self._run(asked, first)
        rest = [self._rest(*each) for each in zip(asked, first, results, strict=True)]
        if any(map(any, rest)):
            self._give_up_half(asked, results)
            for mine, more in zip(results, self._run(asked, rest), strict=True):
                mine[:] = [new or old for old, new in zip(mine, more, strict=True)]
        flat = iter(self.rollouts.with_floor([m for one in results for mine in one for m in mine]))
        return [[[next(flat) for _ in mine] for mine in one] for one in results]

    def _give_up_half(self, asked: list[_Asked], results: list[list[list[Measurement]]]) -> None:
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

    def _run(self, asked: list[_Asked], now: list[list[bool]]) -> list[list[list[Measurement]]]:
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

    def _first(self, one: _Asked) -> list[bool]:
        """The tasks to run at once."""
        if self.perfect_score is None or one.parent is None:
            return one.wanted
        half = (len(one.batch) + 1) // 2
        return [*one.wanted[:half], *[False] * (len(one.batch) - half)]

    def _rest(
        self, one: _Asked, first: list[bool], mine: Sequence[Sequence[Measurement]]
    ) -> list[bool]:
        """The tasks still to run after `first` gave `mine`: none where even the best score on all
        of them would not make the proposal accepted."""
        rest = [wanted and not done for wanted, done in zip(one.wanted, first, strict=True)]
        if self.perfect_score is None or one.parent is None:
            return rest
        before = self.unmeasured.parent_scores(one.parent, one.batch)
        best = [self.perfect_score if (own := mean_score(m)) is None else own for m in mine]
        reachable, needed = sum(best), sum(score or 0.0 for score in before)
        wins = reachable >= needed if self.accepts_equal else reachable > needed
        bounded = all((score or 0.0) <= self.perfect_score for score in before)
        return rest if wins or not bounded else [False] * len(rest)

    def _evaluation(self, one: _Asked, mine: list[list[Measurement]]) -> Evaluation:
        scores = self.unmeasured.scores(one.split, one.parent, one.batch, mine)
        ids = [",".join(m.episode_id for m in measurements) for measurements in mine]
        if one.split == "val":  # nothing reads its episodes again
            objectives = self.frontier.note(one.prompt, one.batch, mine) if self.frontier else None
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
        assert isinstance(eval_batch, Evaluation)
        return Shown(COMPONENT, records, eval_batch)


def known_scores(
    scores: Sequence[float], measured: Sequence[Sequence[Measurement]]
) -> list[float | None]:
    """The scores of a minibatch as measured: None for a task that was not run or could not be."""
    return [
        None if mean_score(rollouts) is None else score
        for score, rollouts in zip(scores, measured, strict=True)
    ]


def charged(measured: Sequence[Sequence[Measurement]]) -> int:
    """How many of these rollouts count against the budget."""
    return sum(bool(m.episode_id) and not m.reused for rollouts in measured for m in rollouts)
