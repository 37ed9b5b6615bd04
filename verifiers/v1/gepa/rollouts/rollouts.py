"""The one place where rollouts are asked for.

A batch of (prompt, task) pairs goes in, one measurement each comes out, in the same order however
the rollouts finish. What the record of a resumed run holds comes from there (`recall.py`); the rest
is run (`trials.py`).
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import compress

from verifiers.v1.env import Env
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import Fault
from verifiers.v1.gepa.record.journal import Journal, Phase
from verifiers.v1.gepa.record.replay import Key, Replay
from verifiers.v1.gepa.rollouts.cache import EvaluationCache
from verifiers.v1.gepa.rollouts.measurements import Job, Keys, Measurement
from verifiers.v1.gepa.rollouts.recall import Recall
from verifiers.v1.gepa.rollouts.reuse import Reuse
from verifiers.v1.gepa.rollouts.trials import Trials
from verifiers.v1.gepa.spend.budget import Batch, Budget, BudgetExhausted, SearchStopped
from verifiers.v1.task import Task

PHASES: tuple[Phase, ...] = ("optimize", "validate", "test")


class Rollouts:
    """Measures batches of jobs on the loop that it is awaited on."""

    def __init__(
        self,
        env: Env,
        config: GEPAConfig,
        budget: Budget,
        journal: Journal,
        replay: Replay,
        cache: EvaluationCache | None = None,
    ) -> None:
        self.budget = budget
        self.journal = journal
        self.replay = replay
        self._keys = Keys()
        self._recall = Recall(self._keys, budget, replay, cache)
        self.trials = Trials(env, config, self._keys, budget, journal, replay, cache)
        limit = config.reuse_rollouts
        self._reuse: Reuse | None = None if limit is None else Reuse(limit)
        self.live_phases: tuple[Phase, ...] = PHASES if config.phase == "all" else (config.phase,)
        self._lowest = 0.0

    def serving(self) -> AbstractAsyncContextManager[None]:
        """What must be held open while rollouts are measured."""
        return self.trials.episodes.serving()

    def task_hash(self, task: Task) -> str:
        """The content hash of a task, worked out once."""
        return self._keys.task(task)

    async def measure(self, jobs: Sequence[Job], step: str) -> list[Measurement]:
        """Measure every job; `step` names the batch for a person.

        Raises `BudgetExhausted` before the first request where the batch does not fit into the
        budget, `Divergence` where the record of a resumed run holds something else, `Fault` as soon
        as a fault is permanent; what was measured until then is in the journal and counted.
        """
        if self._reuse is None or any(job.split != "train" for job in jobs):
            return await self._run(jobs, step)  # a val pass asks for nothing again
        keys = [self._keys.job(job) for job in jobs]
        fresh = self._reuse.fresh(keys)
        ran = iter(await self._run(list(compress(jobs, fresh)), step))
        measured = [next(ran) if wanted else None for wanted in fresh]
        for key, one in zip(keys, measured, strict=True):
            if one is not None and one.source is not None:
                self._reuse.keep(key, replace(one, live=False, reused=True))
        return [one or self._again(key) for key, one in zip(keys, measured, strict=True)]

    def _again(self, key: Key) -> Measurement:
        """A rollout of this search once more."""
        assert self._reuse is not None
        measured = self._reuse.take(key)
        if measured is None:  # it was to repeat one of this batch
            return Measurement(None, "no rollout to reuse was measured", live=False)
        self.budget.reused += 1
        return measured

    async def _run(self, jobs: Sequence[Job], step: str) -> list[Measurement]:
        """Take every job from the record, else run it."""
        charging = sum(job.phase == "optimize" for job in jobs)
        try:
            self.budget.reserve(charging)
        except BudgetExhausted:
            self._settle(jobs, step)
            raise
        before = self.budget.charged
        try:
            recalled = [self._recall.measurement(job) for job in jobs]
            missing = [
                (job, occurrence)
                for job, (occurrence, measurement) in zip(jobs, recalled, strict=True)
                if measurement is None
            ]
            if jobs:
                self.budget.batch = Batch(jobs[0].phase, len(jobs), len(jobs) - len(missing))
            if missing:
                self._check_live(missing[0][0].phase, step)
            fresh = iter(await self.trials.measure(missing))
        finally:
            self.budget.release(charging - (self.budget.charged - before))
        return [old or next(fresh) for _, old in recalled]

    def _settle(self, jobs: Sequence[Job], step: str) -> None:
        """Charge what the record holds of a batch that does not fit: a process with a larger budget
        had begun it."""
        if self.replay.used_up:
            return
        room, before = self.budget.left, self.budget.charged
        self.budget.reserve(room)
        for job in jobs:
            self._recall.measurement(job)
        self.budget.release(room - (self.budget.charged - before))
        self.replay.check_at_end(step)

    def settle_rest(self) -> Counter[str]:
        """Count what the record holds of the phases after the search and this run did not ask for
        again: rollouts of another deployed prompt, paid for all the same. How many, by phase."""
        return self._recall.rest()

    def forget(self, job: Job) -> None:
        """The last time that the job was asked for brought nothing, and does not count."""
        self.replay.forget(*self._keys.job(job))

    def _check_live(self, phase: Phase, step: str) -> None:
        """Raise where this batch must not go out: its phase is not to be run, or the record of the
        search goes on with something else. A search that goes on after its end says so first."""
        ended = self.replay.decisions.ended
        if phase not in self.live_phases:
            if phase == "optimize" and phase in ended and self.replay.used_up:
                raise SearchStopped(*ended[phase])  # it is over, whatever the budget is now
            raise Fault(
                f"--phase {'/'.join(self.live_phases)} runs nothing of the {phase} phase, which is "
                "not complete: run that first"
            )
        if phase == "optimize":
            self.replay.check_at_end(step)
            if ended:
                self.journal.decision({"decision": "continued"})
                ended.clear()

    def with_floor(self, batch: Sequence[Measurement]) -> list[Measurement]:
        """`batch` with a score for what was refused before it reached its rewards: 0, or the worst
        that was measured so far where that is below 0 (worked out for everything that gepa asked
        for at once, so that neither the order of finishing nor a resume can matter)."""
        self._lowest = min([self._lowest, *(m.score for m in batch if m.score is not None)])
        return [
            replace(m, score=self._lowest) if m.score is None and m.episode_id else m for m in batch
        ]
