"""The teacher's endpoint: one request in, its answer or a verdict out.

The teacher is one of the host's `Judge`s, so that endpoint, key, headers and billing resolve as
they do for rollouts. `Judge.complete` opens an HTTP client per call and keeps the finish reason to
itself, and a reply that was cut off must not become a prompt; so `Teacher` asks through the host's
client builder directly, with one client for the whole run.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

from openai import APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletion

from verifiers.v1.clients.base import build_async_openai
from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import MEASURED, Verdict, judge_error
from verifiers.v1.gepa.faults.privacy import keys_of, scrub
from verifiers.v1.gepa.faults.retries import Retries
from verifiers.v1.gepa.record.usage import reported_usage
from verifiers.v1.gepa.teacher.template import TEMPLATE
from verifiers.v1.judge import Judge
from verifiers.v1.types import Usage
from verifiers.v1.utils.texts import is_text

NOT_TEXT = "the reply holds half of a surrogate pair, which is no text"
"""Why such a reply is no proposal. On record it has U+FFFD in its place."""


@dataclass(frozen=True)
class Answer:
    """One attempt at a teacher call."""

    verdict: Verdict
    text: str | None = None
    unfit: str = ""
    """Why no prompt is looked for in the text, whatever it says."""
    finish_reason: str | None = None
    usage: Usage | None = None
    retry_after: float | None = None
    attempts: int = 1
    recorded: bool = False
    """Whether it comes from the record of a resumed run."""


class Teacher(Judge[str, JudgeConfig]):
    """The teacher's endpoint. The client opens on the loop that it is first asked on; close it
    there with `aclose`."""

    prompt = TEMPLATE

    def __init__(self, config: GEPAConfig) -> None:
        model, client = config.teacher
        endpoint = client.model_dump(exclude={"type"})
        super().__init__(JudgeConfig(**endpoint, model=model, sampling=config.reflection_sampling))
        self.retries = Retries(config)
        self.asking = 0
        """Calls in flight, those that wait for another attempt included."""
        self._timeout = config.reflection_timeout
        self._keys = keys_of(config)
        self._client: AsyncOpenAI | None = None

    async def ask(self, prompt: str, lost: Callable[[Usage], None]) -> Answer:
        """The answer to `prompt`, tried again where that may help; `lost` is told what an attempt
        used that another one followed."""
        attempts = 0

        async def attempt() -> Answer:
            nonlocal attempts
            attempts += 1
            answer = await self.ask_once(prompt)
            if answer.verdict.kind != "transient" or answer.usage is None:
                return answer
            lost(answer.usage)
            return replace(answer, usage=None)

        self.asking += 1
        try:
            answer: Answer = await self.retries.policy("teacher call")(attempt)
        finally:
            self.asking -= 1
        return replace(answer, attempts=attempts)

    async def ask_once(self, prompt: str) -> Answer:
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
        text = _text(choice.message)
        unfit = "" if text is None or is_text(text) else NOT_TEXT
        return Answer(MEASURED, text, unfit, choice.finish_reason, usage)

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
