"""The one place where episodes run.

A batch of (prompt, task) pairs goes in, one measurement each comes out, in the same order however
the rollouts finish. In between: the prompt is put into the task, an endpoint is chosen, the episode
runs under the run's concurrency, it is judged, tried again where that may help, written to the
journal, and only then counted.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.v1.clients import ModelContext
from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.budget import Budget
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import content_hash
from verifiers.v1.gepa.failures import Fault, Verdict, judge_episode
from verifiers.v1.gepa.journal import Journal, Phase, Stamp, prompt_digest
from verifiers.v1.gepa.retries import retry_policy
from verifiers.v1.task import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One rollout to measure: `prompt` on `task`, which belongs to the part `split`."""

    prompt: str
    task: Task
    split: str
    phase: Phase = "optimize"


@dataclass(frozen=True)
class Measurement:
    """One measured rollout."""

    episode: Episode
    score: float


@dataclass(frozen=True)
class _Attempt:
    episode: Episode
    verdict: Verdict
    retry_after: None = None  # the interception hands on no headers


class Endpoints:
    """The student's replicas. A rollout takes the one with the least in flight and stays on it."""

    def __init__(self, config: GEPAConfig) -> None:
        self.contexts = [
            ModelContext(client=client, model=config.model, sampling=config.sampling)
            for client in config.endpoints
        ]
        self.in_flight = [0] * len(self.contexts)

    def take(self) -> int:
        """The index of the endpoint for the next rollout; give it back with `free`."""
        index = self.in_flight.index(min(self.in_flight))
        self.in_flight[index] += 1
        return index

    def free(self, index: int) -> None:
        self.in_flight[index] -= 1


class Rollouts:
    """Runs batches of jobs on the loop that it is awaited on."""

    def __init__(self, env: Env, config: GEPAConfig, budget: Budget, journal: Journal) -> None:
        self.env = env
        self.budget = budget
        self.journal = journal
        self.endpoints = Endpoints(config)
        self._attempts = config.max_attempts
        self._slots = asyncio.Semaphore(config.max_concurrent) if config.max_concurrent else None
        self._lowest = 0.0
        self._broken: Fault | None = None
        """The permanent fault after which no rollout starts any more."""

    async def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        """Measure every job. Raises `BudgetExhausted` before the first request where the batch
        does not fit into the budget, `Fault` as soon as one rollout can't be measured; what was
        measured until then is in the journal and counted."""
        charging = [job for job in jobs if job.phase == "optimize"]
        self.budget.reserve(len(charging))
        before = self.budget.charged
        tasks = [asyncio.create_task(self._measure(job)) for job in jobs]
        try:
            if tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()  # raises what stopped the batch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.budget.release(len(charging) - (self.budget.charged - before))
        return self._scored([task.result() for task in tasks])

    def _scored(self, attempts: list[_Attempt]) -> list[Measurement]:
        """Scores for a whole batch: what never reached its rewards is as bad as the worst that was
        measured so far (decided per batch, so that the order of finishing can't matter)."""
        scores = [_score(attempt.episode) for attempt in attempts if attempt.verdict.scored]
        self._lowest = min([self._lowest, *scores])
        return [
            Measurement(
                attempt.episode,
                _score(attempt.episode) if attempt.verdict.scored else self._lowest,
            )
            for attempt in attempts
        ]

    async def _measure(self, job: Job) -> _Attempt:
        policy = retry_policy(self._attempts, f"rollout of task {job.task.data.idx}")
        number = 0

        async def attempt() -> _Attempt:
            nonlocal number
            number += 1
            return await self._attempt(job, number)

        outcome: _Attempt = await policy(attempt)
        if outcome.verdict.kind == "transient":
            raise self._fault(job, outcome.verdict, f" in {number} attempts")
        if self._broken is not None:
            raise self._broken
        return outcome

    async def _attempt(self, job: Job, number: int) -> _Attempt:
        async with self._slots or contextlib.nullcontext():
            if self._broken is not None:
                raise self._broken
            episode = await self._episode(job)
            verdict = judge_episode(episode)
            if verdict.kind == "permanent":
                self._broken = self._fault(job, verdict)
        self._count_tokens(episode)
        measured = verdict.kind == "measured"
        stamp = Stamp(
            phase=job.phase,
            split=job.split,
            candidate=prompt_digest(job.prompt),
            task=content_hash(job.task),
            attempt=number,
            verdict=verdict.kind,
            cause=verdict.cause,
            score=_score(episode) if measured and verdict.scored else None,
            charged=measured and job.phase == "optimize",
        )
        try:
            await self.journal.episode(episode, stamp)
        except asyncio.CancelledError as cancelled:
            # The writer finishes its line before it lets the cancellation through.
            if cancelled.__cause__ is None:
                self._count(job, measured)
            raise
        self._count(job, measured)
        return _Attempt(episode, verdict)

    async def _episode(self, job: Job) -> Episode:
        (slot,) = self.env.slots(job.task.with_system_prompt(job.prompt))
        endpoint = self.endpoints.take()
        self.budget.attempted += 1
        try:
            return await self.env.run_slot(slot, self.endpoints.contexts[endpoint])
        finally:
            self.endpoints.free(endpoint)

    def _fault(self, job: Job, verdict: Verdict, how: str = "") -> Fault:
        urls = ", ".join(context.client.base_url for context in self.endpoints.contexts)
        task = f"task {job.task.data.idx}"
        return Fault(f"{task} could not be measured{how}: {verdict.cause} ({urls})")

    def _count(self, job: Job, measured: bool) -> None:
        if not measured:
            self.budget.failed += 1
        elif job.phase == "optimize":
            self.budget.charge()
        else:
            self.budget.count_uncharged(job.phase)

    def _count_tokens(self, episode: Episode) -> None:
        self.budget.count_tokens("student", episode.usage)
        for trace in episode.traces:
            for usage in trace.extra_usage:
                self.budget.count_tokens("judges", usage)


def _score(episode: Episode) -> float:
    """The mean reward of the episode's traces (one, in a single-agent env)."""
    rewards = [trace.reward for trace in episode.traces]
    return sum(rewards) / len(rewards)
