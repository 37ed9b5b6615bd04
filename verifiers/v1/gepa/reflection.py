"""The teacher: reads the records of a minibatch and proposes a new prompt.

It is one of the host's `Judge`s, so that endpoint, key, headers and billing resolve as they do for
rollouts. `Judge.complete` opens an HTTP client per call and keeps the finish reason to itself,
and a reply that was cut off must not become a prompt; so `Teacher` asks through the host's client
builder directly, with one client for the whole run. gepa gets it as a batch reflection strategy:
all proposals of an iteration are one gather on the run's loop.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, cast

from gepa.proposer.reflective_mutation.reflection_lm import ReflectionJob, ReflectionProposal
from openai import APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletion

from verifiers.v1.clients.base import build_async_openai
from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.gepa.adapter import COMPONENT, Shown
from verifiers.v1.gepa.attempts import Attempts
from verifiers.v1.gepa.budget import Budget, SearchStopped
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.failures import MEASURED, Fault, Verdict, judge_error
from verifiers.v1.gepa.files import REFLECTIONS_FILE
from verifiers.v1.gepa.history import History
from verifiers.v1.gepa.journal import Journal, prompt_digest
from verifiers.v1.gepa.privacy import keys_of, scrub
from verifiers.v1.gepa.proposals import UNANSWERED, NoProposal, extract_prompt
from verifiers.v1.gepa.quality import Quality, describe
from verifiers.v1.gepa.records import Record, render_records, without
from verifiers.v1.gepa.replay import Replay
from verifiers.v1.gepa.retries import Troubles, retry_policy
from verifiers.v1.gepa.template import TEMPLATE, rules, tried
from verifiers.v1.gepa.usage import note_calls, recorded_usage, reported_usage
from verifiers.v1.judge import Judge
from verifiers.v1.types import Usage
from verifiers.v1.utils.drive import Drive

logger = logging.getLogger(__name__)

DUPLICATE = "the proposed text is not new in this run"

LEAST_SHARE = 4
"""The examples get at least one part in so many of a request's size, however long the prompt is."""

MAX_UNUSABLE = 10
"""Replies in a row that may hold no proposal before the run stops."""


@dataclass(frozen=True)
class Answer:
    """One attempt at a teacher call."""

    verdict: Verdict
    text: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    retry_after: float | None = None
    attempts: int = 1
    recorded: bool = False
    """Whether it comes from the record of a resumed run."""


@dataclass(frozen=True)
class Request:
    """What the teacher is asked about one minibatch."""

    parent: str
    """The prompt to improve."""
    prompt: str
    """The text sent, empty where there is nothing to show."""
    key: str
    """Digest of the same text before anything private was taken out: its name in the record."""


class Teacher(Judge[str, JudgeConfig]):
    """The teacher's endpoint. The client opens on the loop that it is first asked on; close it
    there with `aclose`."""

    prompt = TEMPLATE

    def __init__(self, config: GEPAConfig) -> None:
        model, client = config.teacher
        endpoint = client.model_dump(exclude={"type"})
        super().__init__(JudgeConfig(**endpoint, model=model, sampling=config.reflection_sampling))
        self._timeout = config.reflection_timeout
        self._keys = keys_of(config)
        self._client: AsyncOpenAI | None = None

    async def ask(self, prompt: str) -> Answer:
        """One request, no retry. A failure comes back as its verdict, never as an exception."""
        if self._client is None:
            self._client = build_async_openai(self.config)
        sampling = self.config.sampling.model_dump(exclude_none=True)
        try:
            async with asyncio.timeout(self._timeout):
                completion = await self._client.chat.completions.create(
                    model=self.config.model,
                    messages=[{"role": "user", "content": prompt}],
                    extra_body=sampling,
                )
        except TimeoutError:
            return Answer(Verdict("transient", f"no answer within {self._timeout:g} seconds"))
        except Exception as error:  # noqa: BLE001 - every failure of the call gets a verdict
            verdict = judge_error(error)
            verdict = replace(verdict, cause=scrub(verdict.cause, self._keys))
            return Answer(verdict, retry_after=_retry_after(error))
        if not isinstance(completion, ChatCompletion):
            return Answer(Verdict("transient", "the endpoint's answer is not a chat completion"))
        usage = reported_usage(completion)
        if not completion.choices:
            return Answer(Verdict("transient", "the endpoint's answer is empty"), usage=usage)
        choice = completion.choices[0]
        return Answer(MEASURED, _text(choice.message), choice.finish_reason, usage)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


def _text(message: Any) -> str | None:
    """The reply's text, which some servers send as a list of parts."""
    content = getattr(message, "content", None)
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


def _retry_after(error: Exception) -> float | None:
    if not isinstance(error, APIStatusError):
        return None
    asked = error.response.headers.get("retry-after", "")
    with contextlib.suppress(ValueError):
        return float(asked)
    with contextlib.suppress(ValueError, TypeError):  # the header's other form, a date
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
    return None


class Reflection:
    """gepa's reflection strategy (`BatchReflectionLM`) on top of the teacher. Every exchange is
    recorded; a reply becomes a proposal only if it holds a complete text that is new in this run
    (up to trailing blanks). Raises `Fault` for what trying again can't mend."""

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
        self.quality = quality
        self.attempts = Attempts()
        """Filled by the search's selection strategy."""
        self.counts = {"tried": 0, "duplicate": 0, "unusable": 0, "failed": 0}
        self._chars = config.max_reflection_chars
        self._most_attempts = config.max_attempts
        self._patience = config.throttle_patience
        self.troubles = Troubles()
        self.asking = 0
        """Teacher calls in flight, those that wait for another attempt included."""
        self._hide = hide
        self._history = history
        self._drive = drive
        self._journal = journal
        self._replay = replay
        self._budget = budget
        self._known = {prompt_digest(quality.seed_prompt.rstrip())}
        self._unusable_in_row = 0
        self._echoes_in_row = 0
        self._stop: BaseException | None = None

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
        if self._stop is not None:
            raise self._stop
        return [(proposal, self) for proposal in proposals]

    def _propose(self, jobs: list[ReflectionJob]) -> list[ReflectionProposal]:
        requests = [self._request(job) for job in jobs]
        recalled = [self._recall(request) for request in requests]
        shown = [cast("Shown", dataset) for _, dataset, _ in jobs]
        if any(answer is None and r.prompt for r, answer in zip(requests, recalled, strict=True)):
            self._replay.check_at_end(f"teacher call {self.counts['tried'] + 1}")
        return self._drive.run(self._ask_all(requests, shown, recalled))

    def _request(self, job: ReflectionJob) -> Request:
        candidate, dataset, _ = job
        records = [dict(record) for record in dataset[COMPONENT]]
        parent = candidate[COMPONENT]
        if not records:  # nothing of the minibatch could be measured
            return Request(parent, "", "")
        # What is hidden depends on this machine and its environment; the key must not.
        raw = self._text(parent, records)
        prompt = self._text(parent, without(records, self._hide))
        return Request(parent, prompt, prompt_digest(raw))

    def _text(self, parent: str, records: Sequence[Record]) -> str:
        parts = {
            "current_prompt": parent,
            "tried": tried(self.attempts.render(parent)),
            "rules": rules(self.quality.limit, self.quality.protect),
        }
        rest = len(TEMPLATE) + sum(map(len, parts.values()))
        room = max(self._chars - rest, self._chars // LEAST_SHARE)
        return str(self.teacher.build_messages(**parts, examples=render_records(records, room)))

    def _recall(self, request: Request) -> Answer | None:
        """The recorded answer to this very request, if the record of a resumed run holds it."""
        exchange = self._replay.exchange(request.key)
        if exchange is None:
            return None
        return Answer(
            Verdict(**exchange["answer"]),
            exchange["reply"],
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
            asyncio.ensure_future(self._ask(request.prompt))
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

    def _keep(self, request: Request, shown: Shown, task: "asyncio.Future[Answer]") -> None:
        """Record an answer that had come when the run was cut short."""
        if not task.cancelled() and task.exception() is None:
            self._proposal(request, shown, task.result())

    async def _ask(self, prompt: str) -> Answer:
        attempts = 0
        policy = retry_policy(self._most_attempts, self._patience, "teacher call", self.troubles)

        async def attempt() -> Answer:
            nonlocal attempts
            attempts += 1
            answer = await self.teacher.ask(prompt)
            if answer.verdict.kind != "transient" or answer.usage is None:
                return answer
            # The exchange that goes on record is the last attempt's.
            note_calls([("teacher", answer.usage)], self._journal, self._budget)
            return replace(answer, usage=None)

        self.asking += 1
        try:
            answer: Answer = await policy(attempt)
        finally:
            self.asking -= 1
        return replace(answer, attempts=attempts)

    def _proposal(self, request: Request, shown: Shown, answer: Answer) -> ReflectionProposal:
        """The proposal that an answer holds, recorded and counted."""
        text = self._usable(answer)
        if not answer.recorded:
            self._journal.reflection(_exchange(request, answer, text))
        if answer.verdict == MEASURED:
            self._budget.spending.count("teacher", answer.usage)
        self.counts["tried"] += 1
        usage = answer.usage
        tokens = {"input": usage.input_tokens, "output": usage.completion_tokens} if usage else None
        if isinstance(text, NoProposal):
            self._history.replied(request.parent, shown, None, text.reason, tokens)
            self._count(answer.verdict, text.reason)
            return ReflectionProposal(new_texts={})
        self._unusable_in_row = self._echoes_in_row = 0
        self._history.replied(request.parent, shown, text, "", tokens)
        for line in describe(self.quality.flags(text, request.parent)):
            logger.info("the proposed prompt %s", line)
        return ReflectionProposal(
            new_texts={COMPONENT: text},
            prompts={COMPONENT: request.prompt},
            raw_lm_outputs={COMPONENT: answer.text or ""},
        )

    def _usable(self, answer: Answer) -> str | NoProposal:
        if answer.verdict != MEASURED:
            refused = answer.verdict.kind == "measured"  # this prompt: too long, or filtered
            who = "the teacher refused" if refused else UNANSWERED
            return NoProposal(f"{who}: {answer.verdict.cause}")
        text = extract_prompt(answer.text, answer.finish_reason)
        if isinstance(text, NoProposal):
            return text
        digest = prompt_digest(text.rstrip())
        if digest in self._known:
            return NoProposal(DUPLICATE)
        if unfit := self.quality.refusal(text):
            return NoProposal(f"the proposed text can't be used: {unfit}")
        self._known.add(digest)
        return text

    def _count(self, verdict: Verdict, reason: str) -> None:
        """Count an answer without a proposal, and decide whether the run can go on."""
        logger.info("no proposal: %s", reason)
        if verdict.kind != "measured":
            self.counts["failed"] += 1
            where = self.teacher.config.base_url
            self._stop = Fault(f"the teacher failed: {verdict.cause} ({where})")
            return
        # The endpoint works; it is the reply that is of no use.
        echo = reason == DUPLICATE
        self.counts["duplicate" if echo else "unusable"] += 1
        self._unusable_in_row += 1
        self._echoes_in_row += echo
        if self._echoes_in_row == MAX_UNUSABLE:
            self._stop = SearchStopped(
                "teacher_echoes",
                f"{MAX_UNUSABLE} replies of the teacher in a row held a prompt that the run had "
                "already tried",
            )
        elif self._unusable_in_row == MAX_UNUSABLE:
            self._stop = SearchStopped(
                "unusable_replies",
                f"{MAX_UNUSABLE} replies of the teacher in a row held no proposal (the last: "
                f"{reason}); read {REFLECTIONS_FILE}, then start another run with another "
                "--reflection-model, a larger --reflection-sampling.max-tokens, or other "
                "--max-prompt-chars or --protect if those refused them",
            )


def _exchange(request: Request, answer: Answer, text: str | NoProposal) -> dict[str, Any]:
    """A line of `reflections.jsonl`."""
    failed = answer.verdict.kind != "measured"
    usable = isinstance(text, str)
    return {
        "parent": prompt_digest(request.parent),
        "prompt": request.prompt,
        "key": request.key,
        "reply": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage.model_dump(exclude_none=True) if answer.usage else None,
        "attempts": answer.attempts,
        "answer": asdict(answer.verdict),
        "verdict": "failed" if failed else "proposal" if usable else "no proposal",
        "reason": None if isinstance(text, str) else text.reason,
        "candidate": prompt_digest(text) if isinstance(text, str) else None,
    }
