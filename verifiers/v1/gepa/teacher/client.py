"""The teacher's endpoint: one request in, its answer or a verdict out.

The teacher is one of the host's `Judge`s, so that endpoint, key, headers and billing resolve as
they do for rollouts. `Judge.complete` opens an HTTP client per call and keeps the finish reason to
itself, and a reply that was cut off must not become a prompt; so `Teacher` asks through the host's
client builder directly, with one client for the whole run. It reads the answer as it came, mended
as `direct-chat` mends the student's: the models of OpenAI's SDK don't look at what they hold.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from openai import AsyncOpenAI
from pydantic_core import from_json

from direct_chat.answers import Unusable, mend
from verifiers.v1.clients.base import build_async_openai
from verifiers.v1.configs.client import BaseClientConfig
from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import MEASURED, Verdict, judge_error, judge_status, within
from verifiers.v1.gepa.faults.privacy import keys_of, scrub
from verifiers.v1.gepa.faults.retries import Retries
from verifiers.v1.gepa.record.usage import reported_usage
from verifiers.v1.gepa.teacher.template import TEMPLATE
from verifiers.v1.judge import Judge
from verifiers.v1.types import Usage
from verifiers.v1.utils.addresses import split_query
from verifiers.v1.utils.texts import is_text

BROKEN_OFF = "broken off"
"""What a verdict means where the endpoint began a reply and broke off."""

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
    attempts: int = 1
    recorded: bool = False
    """Whether it comes from the record of a resumed run."""


def open_api(config: BaseClientConfig) -> AsyncOpenAI:
    """The host's client for `config`'s endpoint, with the query of its base URL behind the path of
    each request, where the SDK would put it in front."""
    base, query = split_query(config.base_url)
    if not query:
        return build_async_openai(config)
    api = build_async_openai(config.model_copy(update={"base_url": base}))
    return api.with_options(default_query=dict(parse_qsl(query, keep_blank_values=True)))


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
            self._client = open_api(self.config)
        sampling = self.config.sampling.model_dump(exclude_none=True)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.chat.completions.with_raw_response.create(
                    model=self.config.model,
                    messages=[{"role": "user", "content": prompt}],
                    extra_body=sampling,
                )
        except TimeoutError:
            return Answer(Verdict("transient", f"no answer within {self._timeout:g} seconds"))
        except Exception as error:  # noqa: BLE001 - every failure of the call gets a verdict
            verdict = within(judge_error(error), self.retries.patience)
            return Answer(replace(verdict, cause=scrub(verdict.cause, self._keys)))
        return self._read(response.http_response.content)

    def _read(self, content: bytes) -> Answer:
        """The answer in a response of status 200, which may hold a failure all the same."""
        try:
            completion = _parsed(content)
        except ValueError:
            return Answer(Verdict("transient", "the endpoint's answer is not JSON"))
        usage = reported_usage(completion)
        try:
            choice = mend(completion)["choices"][0]
        except Unusable as error:
            verdict = judge_status(error.status, scrub(str(error), self._keys))
            if error.broken:
                verdict = replace(verdict, meaning=BROKEN_OFF)
            return Answer(within(verdict, self.retries.patience), usage=usage)
        said, reason = choice["message"].get("content"), choice.get("finish_reason")
        text = said if isinstance(said, str) else None
        unfit = "" if text is None or is_text(text) else NOT_TEXT
        return Answer(MEASURED, text, unfit, reason if isinstance(reason, str) else None, usage)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


def _parsed(content: bytes) -> Any:
    """An answer's JSON, which may hold half of a surrogate pair. Raises `ValueError`."""
    try:
        return from_json(content)
    except ValueError:
        return json.loads(content)
