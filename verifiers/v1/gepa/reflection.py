"""The teacher as gepa's reflection strategy: records of minibatches in, proposals out.

All proposals of an iteration are one gather on the run's loop. What the record of a resumed run
holds is not asked for again; every other exchange is recorded before it counts.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gepa.proposer.reflective_mutation.reflection_lm import ReflectionJob, ReflectionProposal

from verifiers.v1.gepa.adapter import Shown
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import MEASURED, Fault, Verdict
from verifiers.v1.gepa.record.files import COMPONENT
from verifiers.v1.gepa.record.history import History
from verifiers.v1.gepa.record.journal import Journal
from verifiers.v1.gepa.record.replay import Replay
from verifiers.v1.gepa.record.usage import note_calls, recorded_usage
from verifiers.v1.gepa.spend.budget import Budget
from verifiers.v1.gepa.teacher.client import NOT_TEXT, Answer, Teacher
from verifiers.v1.gepa.teacher.proposals import NoProposal
from verifiers.v1.gepa.teacher.quality import Quality, describe
from verifiers.v1.gepa.teacher.replies import Replies, exchange
from verifiers.v1.gepa.teacher.requests import Request, Requests
from verifiers.v1.types import Usage
from verifiers.v1.utils.drive import Drive

logger = logging.getLogger(__name__)


class Reflection:
    """gepa's reflection strategy (`BatchReflectionLM`) on top of the teacher. Every exchange is
    recorded. Raises `Fault` for what trying again can't mend."""

    def __init__(
        self,
        config: GEPAConfig,
        quality: Quality,
        drive: Drive,
        journal: Journal,
        replay: Replay,
        budget: Budget,
        hide: Mapping[str, str],
        history: History,
    ) -> None:
        self.teacher = Teacher(config)
        self.requests = Requests(config, hide, lambda **p: str(self.teacher.build_messages(**p)))
        self.replies = Replies(quality, config.teacher[1].base_url)
        self._history = history
        self._drive = drive
        self._journal = journal
        self._replay = replay
        self._budget = budget

    def reflect(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> tuple[ReflectionProposal, "Reflection"]:
        """One proposal; see `reflect_many`."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(
        self, jobs: list[ReflectionJob]
    ) -> list[tuple[ReflectionProposal, "Reflection"]]:
        """One proposal per job, in order, all teacher calls in flight together. A job without a
        usable reply gets a proposal without texts, which gepa skips at no cost. Raises `Fault`,
        `SearchStopped` or `Divergence`: gepa would swallow anything else and ask again."""
        try:
            proposals = self._propose(jobs)
        except Exception as error:
            raise Fault(f"the teacher could not be asked: {error!r}") from error
        if self.replies.stop is not None:
            raise self.replies.stop
        return [(proposal, self) for proposal in proposals]

    def _propose(self, jobs: list[ReflectionJob]) -> list[ReflectionProposal]:
        requests = [
            self.requests.request(
                candidate[COMPONENT], [dict(record) for record in data[COMPONENT]]
            )
            for candidate, data, _ in jobs
        ]
        recalled = [self._recall(request) for request in requests]
        shown = [cast("Shown", dataset) for _, dataset, _ in jobs]
        if any(answer is None and r.prompt for r, answer in zip(requests, recalled, strict=True)):
            self._replay.check_at_end(f"teacher call {self.replies.counts['tried'] + 1}")
        return self._drive.run(self._ask_all(requests, shown, recalled))

    def _recall(self, request: Request) -> Answer | None:
        """The recorded answer to this very request, if the record of a resumed run holds it."""
        exchange = self._replay.exchange(request.key)
        if exchange is None:
            return None
        return Answer(
            Verdict(**exchange["answer"]),
            exchange["reply"],
            NOT_TEXT if exchange["reason"] == NOT_TEXT else "",
            exchange["finish_reason"],
            recorded_usage(exchange["usage"]),
            recorded=True,
        )

    async def _ask_all(
        self, requests: list[Request], shown: list[Shown], recalled: list[Answer | None]
    ) -> list[ReflectionProposal]:
        """The proposals of all requests, which are in flight together. Each answer is recorded as
        soon as those before it are, so that a kill loses little."""
        asked = [
            asyncio.ensure_future(self.teacher.ask(request.prompt, self._note_lost))
            if answer is None and request.prompt
            else None
            for request, answer in zip(requests, recalled, strict=True)
        ]
        proposals: list[ReflectionProposal] = []
        try:
            for request, minibatch, answer, task in zip(
                requests, shown, recalled, asked, strict=True
            ):
                reply = await task if task is not None else answer
                proposals.append(
                    ReflectionProposal(new_texts={})
                    if reply is None
                    else self._proposal(request, minibatch, reply)
                )
        finally:
            rest = zip(requests, shown, asked, strict=True)
            for request, minibatch, task in [*rest][len(proposals) :]:
                if task is not None and not task.cancel():
                    self._keep(request, minibatch, task)
        return proposals

    def _note_lost(self, usage: Usage) -> None:
        """An attempt was paid for, and is not the one whose exchange goes on record."""
        note_calls([("teacher", usage)], self._journal, self._budget)

    def _keep(self, request: Request, shown: Shown, task: "asyncio.Future[Answer]") -> None:
        """Record an answer that had come when the run was cut short."""
        if not task.cancelled() and task.exception() is None:
            self._proposal(request, shown, task.result())

    def _proposal(self, request: Request, shown: Shown, answer: Answer) -> ReflectionProposal:
        """The proposal that an answer holds, recorded and counted."""
        text, failed = self.replies.judge(request, answer)
        if not answer.recorded:
            self._journal.reflection(exchange(request, answer, text, failed))
        if answer.verdict == MEASURED:
            self._budget.spending.count("teacher", answer.usage)
        usage = answer.usage
        tokens = {"input": usage.input_tokens, "output": usage.completion_tokens} if usage else None
        if isinstance(text, NoProposal):
            self._history.replied(request.parent, shown.minibatch, None, text.reason, tokens)
            return ReflectionProposal(new_texts={})
        self._history.replied(request.parent, shown.minibatch, text, "", tokens)
        for line in describe(self.replies.quality.flags(text, request.parent)):
            logger.info("the proposed prompt %s", line)
        return ReflectionProposal(
            new_texts={COMPONENT: text},
            prompts={COMPONENT: request.prompt},
            raw_lm_outputs={COMPONENT: answer.text or ""},
        )
