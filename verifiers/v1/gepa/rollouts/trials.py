"""From a job to its measurement: an endpoint is chosen, the episode runs as soon as the throttle
lets it, is judged, tried again where that may help, written to the journal, and only then counted.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.advice import advice
from verifiers.v1.gepa.faults.failures import (
    Fault,
    Verdict,
    judge_episode,
    was_throttled,
    within,
)
from verifiers.v1.gepa.faults.privacy import keys_of, scrub_errors
from verifiers.v1.gepa.faults.retries import Retries
from verifiers.v1.gepa.record.journal import Journal, Stamp, Stored
from verifiers.v1.gepa.record.replay import Replay
from verifiers.v1.gepa.record.usage import episode_calls
from verifiers.v1.gepa.rollouts.cache import EvaluationCache
from verifiers.v1.gepa.rollouts.endpoints import Endpoints
from verifiers.v1.gepa.rollouts.episodes import Episodes
from verifiers.v1.gepa.rollouts.measurements import Job, Keys, Measurement
from verifiers.v1.gepa.rollouts.refused import Answers, Decision
from verifiers.v1.gepa.spend.budget import Budget
from verifiers.v1.utils.throttle import Throttle

logger = logging.getLogger(__name__)

UNLIMITED = 4096
"""Rollouts in flight where the config sets no limit: the throttle needs a number to halve."""


@dataclass(frozen=True)
class _Attempt:
    job: Job
    occurrence: int
    """How often the job was asked for before."""
    number: int
    """Counted from 1."""
    endpoint: int
    episode: Episode
    verdict: Verdict
    stored: Stored | None = None


class Trials:
    """Runs jobs, all of a batch together."""

    def __init__(
        self,
        env: Env,
        config: GEPAConfig,
        keys: Keys,
        budget: Budget,
        journal: Journal,
        replay: Replay,
        cache: EvaluationCache | None,
    ) -> None:
        self.episodes = Episodes(env, config, budget, journal)
        self.endpoints = Endpoints(config)
        self.throttle = Throttle(config.max_concurrent or UNLIMITED)
        self.retries = Retries(config)
        self._answers = Answers(len(self.endpoints.contexts), replay.answered)
        self._keys = keys
        self._budget = budget
        self._journal = journal
        self._cache = cache
        self._secrets = keys_of(config)
        self._broken: Fault | None = None
        """The permanent fault after which no rollout starts any more."""

    async def measure(self, jobs: Sequence[tuple[Job, int]]) -> list[Measurement]:
        """Run jobs, each with how often it was asked for before; the first fault ends all."""
        self._answers.start_batch()
        tasks = [asyncio.create_task(self._try(*job)) for job in jobs]
        for task in tasks:
            task.add_done_callback(self._budget.batch.ended)
        try:
            if tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()  # raises what stopped the batch
            return await self._settle([task.result() for task in tasks])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _try(self, job: Job, occurrence: int) -> Measurement | _Attempt:
        """The measurement of a job; the attempt itself where it was refused."""
        policy = self.retries.policy(f"rollout of task {job.task.data.idx}")
        number = 0

        async def attempt() -> _Attempt:
            nonlocal number
            number += 1
            return await self._attempt(job, occurrence, number)

        last: _Attempt = await policy(attempt)
        if self._broken is not None:
            raise self._broken
        return last if last.verdict.kind == "refused" else self._measurement(last)

    async def _settle(self, batch: Sequence[Measurement | _Attempt]) -> list[Measurement]:
        """The measurements of a batch, once it is decided what its refusals mean."""
        refused = [one for one in batch if isinstance(one, _Attempt)]
        decided: dict[int, Measurement] = {}
        for endpoint in sorted({one.endpoint for one in refused}):
            mine = [one for one in refused if one.endpoint == endpoint]
            candidates = [self._keys.job(one.job)[1] for one in mine]
            decision = self._answers.decide(endpoint, candidates)
            for one in mine:
                decided[id(one)] = self._measurement(await self._decide(one, decision))
            if decision == "every request":
                raise self._fault(mine[-1])
        return [decided[id(one)] if isinstance(one, _Attempt) else one for one in batch]

    async def _decide(self, one: _Attempt, decision: Decision) -> _Attempt:
        """A refused attempt with its final verdict, on record unless that has to wait."""
        if decision == "unknown":
            return one
        if decision == "every request":
            verdict = replace(one.verdict, kind="permanent")
        else:
            verdict = replace(one.verdict, kind="measured", scored=False)
        final = replace(one, verdict=verdict)
        return replace(final, stored=await self._record(final))

    def _measurement(self, one: _Attempt) -> Measurement:
        job, verdict, episode = one.job, one.verdict, one.episode
        if verdict.kind == "refused":
            return Measurement(None, verdict.cause, one.occurrence, refused=True)
        if verdict.kind == "transient":
            cause = f"{verdict.cause} (in {one.number} attempts at {self.endpoints.names})"
            return Measurement(None, cause, one.occurrence)
        score = _score(episode) if verdict.scored else None
        if self._cache is not None and job.phase != "optimize" and score is not None:
            self._cache.put(*self._keys.job(job), one.occurrence, score)
        kept = (one.stored or episode) if job.keep else None
        return Measurement(score, verdict.cause, one.occurrence, episode.id, kept)

    async def _attempt(self, job: Job, occurrence: int, number: int) -> _Attempt:
        # The place is held until the line is written: what a kill can lose is what is in flight.
        async with self.throttle.slot() as place:
            if self._broken is not None:
                raise self._broken
            endpoint = self.endpoints.take()
            try:
                episode = await self.episodes.run(job, self.endpoints.contexts[endpoint])
            finally:
                self.endpoints.free(endpoint)
            scrub_errors(episode, self._secrets)
            verdict = within(judge_episode(episode), self.retries.patience)
            one = _Attempt(job, occurrence, number, endpoint, episode, verdict)
            if verdict.kind == "permanent":
                self._broken = self._fault(one)
            elif _answered(verdict):
                self._answers.answered(endpoint, self._keys.job(job)[1])
            self.endpoints.report(endpoint, verdict)
            self._adapt(place, episode, verdict)
            if verdict.kind == "refused":
                return one  # on record once it is known what it means
            return replace(one, stored=await self._record(one))

    def _fault(self, one: _Attempt) -> Fault:
        """Why the run can't go on."""
        what = advice(one.verdict, "--sampling.")
        return Fault(
            f"task {one.job.task.data.idx} could not be measured: {one.verdict.cause} "
            f"({self.endpoints.names})" + (f"; {what}" if what else "")
        )

    async def _record(self, one: _Attempt) -> Stored | None:
        """Write the episode, then count it and its calls. Where it was written."""
        episode, verdict = one.episode, one.verdict
        measured = verdict.kind == "measured"
        phase, candidate, task = self._keys.job(one.job)
        stamp = Stamp(
            phase=one.job.phase,
            split=one.job.split,
            candidate=candidate,
            task=task,
            occurrence=one.occurrence,
            attempt=one.number,
            verdict=verdict.kind,
            cause=verdict.cause,
            score=_score(episode) if measured and verdict.scored else None,
            charged=measured and phase == "optimize",
        )
        calls = episode_calls(episode)
        try:
            stored = await self._journal.episode(episode, stamp)
        except asyncio.CancelledError as cancelled:
            # The journal finishes its line before it lets the cancellation through.
            if cancelled.__cause__ is None:
                self._budget.count(phase, measured, calls)
            raise
        self._budget.count(phase, measured, calls)
        return stored

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


def _answered(verdict: Verdict) -> bool:
    """Whether the model answered, so that the endpoint takes the run's settings."""
    return verdict.kind == "measured" and not verdict.cause


def _score(episode: Episode) -> float:
    """The mean reward of the episode's traces (one, in a single-agent env)."""
    rewards = [trace.reward for trace in episode.traces]
    return sum(rewards) / len(rewards)
