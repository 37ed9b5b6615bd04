"""From a job to its measurement: an endpoint is chosen, the episode runs as soon as the throttle
lets it, is judged, tried again where that may help, written to the journal, and only then counted.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import Fault, Verdict, judge_episode, was_throttled
from verifiers.v1.gepa.faults.privacy import keys_of, scrub_errors
from verifiers.v1.gepa.faults.retries import Retries
from verifiers.v1.gepa.record.journal import Journal, Stamp, Stored
from verifiers.v1.gepa.record.usage import episode_calls
from verifiers.v1.gepa.rollouts.cache import EvaluationCache
from verifiers.v1.gepa.rollouts.endpoints import Endpoints
from verifiers.v1.gepa.rollouts.episodes import Episodes
from verifiers.v1.gepa.rollouts.measurements import Job, Keys, Measurement
from verifiers.v1.gepa.spend.budget import Budget
from verifiers.v1.utils.throttle import Throttle

logger = logging.getLogger(__name__)

UNLIMITED = 4096
"""Rollouts in flight where the config sets no limit: the throttle needs a number to halve."""


@dataclass(frozen=True)
class _Attempt:
    episode: Episode
    verdict: Verdict
    stored: Stored | None
    retry_after: None = None  # the interception hands on no headers


class Trials:
    """Runs jobs, all of a batch together."""

    def __init__(
        self,
        env: Env,
        config: GEPAConfig,
        keys: Keys,
        budget: Budget,
        journal: Journal,
        cache: EvaluationCache | None,
    ) -> None:
        self.episodes = Episodes(env, config, budget, journal)
        self.endpoints = Endpoints(config)
        self.throttle = Throttle(config.max_concurrent or UNLIMITED)
        self.retries = Retries(config)
        self._keys = keys
        self._budget = budget
        self._journal = journal
        self._cache = cache
        self._secrets = keys_of(config)
        self._broken: Fault | None = None
        """The permanent fault after which no rollout starts any more."""

    async def measure(self, jobs: Sequence[tuple[Job, int]]) -> list[Measurement]:
        """Run jobs, each with how often it was asked for before; the first fault ends all."""
        tasks = [asyncio.create_task(self._measure(*job)) for job in jobs]
        for task in tasks:
            task.add_done_callback(self._budget.batch.ended)
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

    async def _measure(self, job: Job, occurrence: int) -> Measurement:
        policy = self.retries.policy(f"rollout of task {job.task.data.idx}")
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
        if self._cache is not None and job.phase != "optimize" and score is not None:
            self._cache.put(*self._keys.job(job), occurrence, score)
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
                episode = await self.episodes.run(job, self.endpoints.contexts[endpoint])
            finally:
                self.endpoints.free(endpoint)
            scrub_errors(episode, self._secrets)
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
        phase, candidate, task = self._keys.job(job)
        stamp = Stamp(
            phase=job.phase,
            split=job.split,
            candidate=candidate,
            task=task,
            occurrence=occurrence,
            attempt=number,
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


def _score(episode: Episode) -> float:
    """The mean reward of the episode's traces (one, in a single-agent env)."""
    rewards = [trace.reward for trace in episode.traces]
    return sum(rewards) / len(rewards)
