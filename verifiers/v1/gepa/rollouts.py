"""The one place where episodes run.

A batch of (prompt, task) pairs goes in, one measurement each comes out, in the same order however
the rollouts finish. What the record of a resumed run holds comes from there; for the rest, the
prompt is put into the task, an endpoint is chosen, the episode runs as soon as the throttle lets
it, is judged, tried again where that may help, written to the journal, and only then counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from itertools import compress

from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.budget import Batch, Budget, BudgetExhausted, SearchStopped
from verifiers.v1.gepa.cache import EvaluationCache
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import content_hash
from verifiers.v1.gepa.endpoints import Endpoints
from verifiers.v1.gepa.failures import Fault, Verdict, judge_episode, was_throttled
from verifiers.v1.gepa.interception import serving
from verifiers.v1.gepa.journal import Journal, Phase, Stamp, Stored, prompt_digest
from verifiers.v1.gepa.measurements import Job, Measurement
from verifiers.v1.gepa.privacy import keys_of, scrub_errors
from verifiers.v1.gepa.replay import Key, Recorded, Replay
from verifiers.v1.gepa.retries import Troubles, retry_policy
from verifiers.v1.gepa.reuse import Reuse
from verifiers.v1.gepa.usage import Calls as Answered
from verifiers.v1.gepa.usage import episode_calls, note_calls, recorded_calls, trace_calls
from verifiers.v1.gepa.workers import Calls, Workers
from verifiers.v1.task import Task
from verifiers.v1.trace import Trace
from verifiers.v1.utils.throttle import Throttle

logger = logging.getLogger(__name__)

PHASES: tuple[Phase, ...] = ("optimize", "validate", "test")

UNLIMITED = 4096
"""Rollouts in flight where the config sets no limit: the throttle needs a number to halve."""


@dataclass(frozen=True)
class _Attempt:
    episode: Episode
    verdict: Verdict
    stored: Stored | None
    retry_after: None = None  # the interception hands on no headers


class Rollouts:
    """Runs batches of jobs on the loop that it is awaited on."""

    def __init__(
        self, env: Env, config: GEPAConfig, budget: Budget, journal: Journal, replay: Replay
    ) -> None:
        self.env = env
        self.budget = budget
        self.journal = journal
        self.replay = replay
        self.workers = Workers(env, config, config.workers) if config.workers else None
        self.endpoints = Endpoints(config)
        self.throttle = Throttle(config.max_concurrent or UNLIMITED)
        folder = config.evaluation_cache
        self.cache = EvaluationCache(folder, config) if folder is not None else None
        self._config = config
        self._attempts = config.max_attempts
        self._patience = config.throttle_patience
        self.troubles = Troubles()
        self._keys = keys_of(config)
        self._lowest = 0.0
        self._hashes: dict[int | None, str] = {}
        limit = config.reuse_rollouts
        self._reuse: Reuse | None = None if limit is None else Reuse(limit)
        self.live_phases: tuple[Phase, ...] = PHASES if config.phase == "all" else (config.phase,)
        self._broken: Fault | None = None
        """The permanent fault after which no rollout starts any more."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """What must be held open while rollouts are measured."""
        return self.workers.serving() if self.workers else serving(self.env, self._config)

    async def measure(self, jobs: Sequence[Job], step: str) -> list[Measurement]:
        """Measure every job; `step` names the batch for a person.

        Raises `BudgetExhausted` before the first request where the batch does not fit into the
        budget, `Divergence` where the record of a resumed run holds something else, `Fault` as soon
        as a fault is permanent; what was measured until then is in the journal and counted.
        """
        if self._reuse is None or any(job.split != "train" for job in jobs):
            return await self._run(jobs, step)  # a val pass asks for nothing again
        keys = [self._key(job) for job in jobs]
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
            recalled = [self._recall(job) for job in jobs]
            missing = [
                (job, occurrence)
                for job, (occurrence, measurement) in zip(jobs, recalled, strict=True)
                if measurement is None
            ]
            if jobs:
                self.budget.batch = Batch(jobs[0].phase, len(jobs), len(jobs) - len(missing))
            if missing:
                self._check_live(missing[0][0].phase, step)
            fresh = iter(await self._measure_all(missing))
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
            self._recall(job)
        self.budget.release(room - (self.budget.charged - before))
        self.replay.check_at_end(step)

    def settle_rest(self) -> Counter[str]:
        """Count what the record holds of the phases after the search and this run did not ask for
        again: rollouts of another deployed prompt, paid for all the same. How many, by phase."""
        rest: Counter[str] = Counter()
        for recorded in self.replay.take_rest():
            rest[recorded.stamp.phase] += 1
            self.budget.count_uncharged(recorded.stamp.phase)
            self.budget.replayed += 1
            self.budget.attempted += 1
            self.budget.spending.count_all(recorded.calls)
        return rest

    def _check_live(self, phase: Phase, step: str) -> None:
        """Raise where this batch must not go out: its phase is not to be run, or the record of the
        search goes on with something else. A search that goes on after its end says so first."""
        ended = self.replay.ended
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

    def _recall(self, job: Job) -> tuple[int, Measurement | None]:
        """How often the job was asked for before, and what the record holds of it."""
        key = self._key(job)
        occurrence, recorded = self.replay.rollout(*key)
        if recorded is None:
            return occurrence, self._cached(key, occurrence)
        if not isinstance(recorded, Recorded):
            return occurrence, Measurement(None, "given up before", occurrence, live=False)
        self.budget.replayed += 1
        self.budget.attempted += 1
        self._count(job, True, recorded.calls)
        stamp, stored = recorded.stamp, recorded.stored
        kept = stored if job.keep else None
        name = stored.name
        measured = Measurement(stamp.score, stamp.cause, occurrence, name, kept, live=False)
        return occurrence, measured

    def _key(self, job: Job) -> Key:
        return job.phase, prompt_digest(job.prompt), self.task_hash(job.task)

    def _cached(self, key: Key, occurrence: int) -> Measurement | None:
        """What another run stored of this rollout, in a phase that is not charged."""
        if self.cache is None or key[0] == "optimize":
            return None
        score = self.cache.get(*key, occurrence)
        if score is None:
            return None
        self.budget.reused += 1
        return Measurement(score, "", occurrence, live=False)

    async def _measure_all(self, missing: Sequence[tuple[Job, int]]) -> list[Measurement]:
        """Measure live, all together; the first fault ends all of them."""
        tasks = [asyncio.create_task(self._measure(*job)) for job in missing]
        for task in tasks:
            task.add_done_callback(self.budget.batch.ended)
        try:
            if tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()  # raises what stopped the batch
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def with_floor(self, batch: Sequence[Measurement]) -> list[Measurement]:
        """`batch` with a score for what was refused before it reached its rewards: 0, or the worst
        that was measured so far where that is below 0 (worked out for everything that gepa asked
        for at once, so that neither the order of finishing nor a resume can matter)."""
        self._lowest = min([self._lowest, *(m.score for m in batch if m.score is not None)])
        return [
            replace(m, score=self._lowest) if m.score is None and m.episode_id else m for m in batch
        ]

    async def _measure(self, job: Job, occurrence: int) -> Measurement:
        what = f"rollout of task {job.task.data.idx}"
        policy = retry_policy(self._attempts, self._patience, what, self.troubles)
        number = 0

        async def attempt() -> _Attempt:
            nonlocal number
            number += 1
            return await self._attempt(job, occurrence, number)

        outcome: _Attempt = await policy(attempt)
        if self._broken is not None:
            raise self._broken
        if outcome.verdict.kind == "transient":
            cause = f"{outcome.verdict.cause} (in {number} attempts at {self.endpoints.names})"
            return Measurement(None, cause, occurrence)
        score = _score(outcome.episode) if outcome.verdict.scored else None
        if self.cache is not None and job.phase != "optimize" and score is not None:
            self.cache.put(*self._key(job), occurrence, score)
        episode, stored = outcome.episode, outcome.stored
        kept = (stored or episode) if job.keep else None
        cause = outcome.verdict.cause
        return Measurement(score, cause, occurrence, episode.id, kept)

    async def _attempt(self, job: Job, occurrence: int, number: int) -> _Attempt:
        # The place is held until the line is written: what a kill can lose is what is in flight.
        async with self.throttle.slot() as place:
            if self._broken is not None:
                raise self._broken
            endpoint = self.endpoints.take()
            try:
                episode = await self._episode(job, endpoint)
            finally:
                self.endpoints.free(endpoint)
            scrub_errors(episode, self._keys)
            verdict = judge_episode(episode)
            if verdict.kind == "permanent":
                self._broken = Fault(
                    f"task {job.task.data.idx} could not be measured: {verdict.cause} "
                    f"({self.endpoints.names})"
                )
            self.endpoints.report(endpoint, verdict)
            self._adapt(place, episode, verdict)
            stored = await self._record(job, episode, verdict, occurrence, number)
        return _Attempt(episode, verdict, stored)

    async def _record(
        self, job: Job, episode: Episode, verdict: Verdict, occurrence: int, number: int
    ) -> Stored | None:
        """Write the episode, then count it and its calls. Where it was written."""
        measured = verdict.kind == "measured"
        stamp = Stamp(
            phase=job.phase,
            split=job.split,
            candidate=prompt_digest(job.prompt),
            task=self.task_hash(job.task),
            occurrence=occurrence,
            attempt=number,
            verdict=verdict.kind,
            cause=verdict.cause,
            score=_score(episode) if measured and verdict.scored else None,
            charged=measured and job.phase == "optimize",
        )
        calls = episode_calls(episode)
        try:
            stored = await self.journal.episode(episode, stamp)
        except asyncio.CancelledError as cancelled:
            # The journal finishes its line before it lets the cancellation through.
            if cancelled.__cause__ is None:
                self._count(job, measured, calls)
            raise
        self._count(job, measured, calls)
        return stored

    async def _episode(self, job: Job, endpoint: int) -> Episode:
        task, context = job.task.with_system_prompt(job.prompt), self.endpoints.contexts[endpoint]
        self.budget.attempted += 1
        calls: Calls = {}
        traces: list[Trace] = []
        kept: set[str] = set()
        try:
            if self.workers is not None:
                episode = await self.workers.run(task, context, calls)
            else:
                (slot,) = self.env.slots(task)
                episode = await self.env.run_slot(slot, context, on_trace=traces.append)
            kept = {trace.id for trace in episode.traces}
        finally:
            # What the host's own retries threw away, or an interrupt: paid for all the same.
            for trace in traces:
                if trace.id not in kept:
                    note_calls(trace_calls(trace), self.journal, self.budget)
            lost = [rows for trace_id, rows in calls.items() if trace_id not in kept]
            note_calls(recorded_calls({"traces": lost}), self.journal, self.budget)
        return episode

    def _adapt(self, place: int, episode: Episode, verdict: Verdict) -> None:
        if verdict.kind == "permanent":  # a used-up quota is a 429 too
            return
        if not was_throttled(episode):
            if verdict.kind == "measured":
                self.throttle.succeeded()
        elif self.throttle.refused(place):
            logger.warning(
                "the endpoint throttles (429): going on with %d rollouts in flight",
                self.throttle.limit,
            )

    def _count(self, job: Job, measured: bool, calls: Answered) -> None:
        self.budget.spending.count_all(calls)
        if not measured:
            self.budget.failed += 1
        elif job.phase == "optimize":
            self.budget.charge()
        else:
            self.budget.count_uncharged(job.phase)

    def task_hash(self, task: Task) -> str:
        """The content hash of a task, worked out once."""
        if task.data.idx not in self._hashes:
            self._hashes[task.data.idx] = content_hash(task)
        return self._hashes[task.data.idx]


def _score(episode: Episode) -> float:
    """The mean reward of the episode's traces (one, in a single-agent env)."""
    rewards = [trace.reward for trace in episode.traces]
    return sum(rewards) / len(rewards)
