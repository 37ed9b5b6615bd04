"""Do the endpoints answer, take the key and serve the models? Asked before anything is charged.

The list of models is free of charge; only where it can't tell is a completion of one token sent: to
the teacher, and to the student where it has several replicas or knows no such address (else the
seed prompt's first rollout is the probe).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from openai import APIStatusError
from pydantic_core import from_json

from direct_chat.answers import Unusable, mend
from verifiers.v1.configs.client import BaseClientConfig
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import (
    MEASURED,
    Fault,
    Verdict,
    judge_error,
    judge_status,
    within,
)
from verifiers.v1.gepa.faults.privacy import keys_of, scrub
from verifiers.v1.gepa.faults.retries import Retries
from verifiers.v1.gepa.record.usage import reported_usage
from verifiers.v1.gepa.teacher.client import open_api
from verifiers.v1.types import Usage
from verifiers.v1.utils.addresses import split_query

SECONDS = 60.0
"""How long one question may take."""

VERSIONED = re.compile(r"/v\d")


Count = Callable[[str, Usage | None], None]
"""Takes role and usage of an answered call."""


async def check_endpoints(config: GEPAConfig, count: Count) -> None:
    """Raise `Fault`, naming endpoint and cause, where a run could only fail. Completions that were
    paid for are handed to `count`."""
    model, teacher = config.teacher
    replicas = config.endpoints
    await asyncio.gather(
        *(
            _check("student", config.student, one, config, len(replicas) > 1, count)
            for one in replicas
        ),
        _check("teacher", model, teacher, config, True, count),
    )


@dataclass(frozen=True)
class Reachable:
    """One question to an endpoint: whether it answered and, if asked, lists the model."""

    verdict: Verdict
    served: Literal["listed", "unlisted", "unknown", "nothing"] = "unknown"
    """`nothing`: it knows no such address."""


async def _check(
    role: str,
    model: str,
    client: BaseClientConfig,
    config: GEPAConfig,
    probe: bool,
    count: Count,
) -> None:
    async def listing() -> Reachable:
        return await _list_models(model, client)

    async def completion() -> Reachable:
        return await _complete(model, client, lambda usage: count(role, usage))

    async def ask(question: Callable[[], Awaitable[Reachable]]) -> Reachable:
        what = f"asking the {role}'s endpoint"
        retries = Retries(config)

        async def attempt() -> Reachable:
            answer = await question()
            return replace(answer, verdict=within(answer.verdict, retries.patience))

        answer: Reachable = await retries.policy(what)(attempt)
        return answer

    answer = await ask(listing)
    unsure = answer.verdict == MEASURED and answer.served != "listed"
    if unsure and (probe or answer.served != "unknown"):
        answer = await ask(completion)
    if answer.verdict.kind != "measured":
        cause = scrub(answer.verdict.cause, keys_of(config))
        raise Fault(
            f"preflight: the {role} {model!r} does not answer: {cause} "
            f"({client.base_url}; --no-preflight skips this)"
        )


async def _list_models(model: str, client: BaseClientConfig) -> Reachable:
    try:
        async with asyncio.timeout(SECONDS), open_api(client) as api:
            models = [listed.id async for listed in api.models.list()]
    except APIStatusError as error:
        # Many servers and keys do completions only; but a wrong key is wrong for both, and so may
        # the address be.
        if error.status_code == 401:
            return Reachable(judge_error(error))
        return Reachable(MEASURED, "nothing" if error.status_code == 404 else "unknown")
    except TimeoutError:
        return Reachable(Verdict("transient", f"no answer within {SECONDS:g} seconds"))
    except (TypeError, AttributeError, ValueError):
        return Reachable(MEASURED)  # whatever it answered, it is no list of models
    except Exception as error:  # noqa: BLE001 - every failure of the call gets a verdict
        return Reachable(judge_error(error))
    if not models:
        return Reachable(MEASURED)
    return Reachable(MEASURED, "listed" if model in models else "unlisted")


async def _complete(
    model: str, client: BaseClientConfig, count: Callable[[Usage | None], None]
) -> Reachable:
    try:
        async with asyncio.timeout(SECONDS), open_api(client) as api:
            response = await api.chat.completions.with_raw_response.create(
                model=model, messages=[{"role": "user", "content": "ping"}], max_tokens=1
            )
    except TimeoutError:
        return Reachable(Verdict("transient", f"no answer within {SECONDS:g} seconds"))
    except APIStatusError as error:
        # A parameter that this model does not take is no reason to doubt that it is there.
        verdict = judge_error(error)
        if verdict.kind in ("measured", "refused"):
            return Reachable(MEASURED)
        if error.status_code == 404 and not _is_about(model, error):
            verdict = replace(verdict, cause=f"{verdict.cause}; {_where(client, error)}")
        return Reachable(verdict)
    except Exception as error:  # noqa: BLE001 - every failure of the call gets a verdict
        return Reachable(judge_error(error))
    return _read(response.http_response.content, count)


def _read(content: bytes, count: Callable[[Usage | None], None]) -> Reachable:
    """Whether the model is there, by an answer of status 200."""
    try:
        completion = from_json(content)
    except ValueError:
        return Reachable(MEASURED)  # whatever it is, something answered
    count(reported_usage(completion))
    try:
        mend(completion)
    except Unusable as error:
        verdict = judge_status(error.status, str(error))
        if verdict.kind == "permanent":
            return Reachable(verdict)
    return Reachable(MEASURED)


def _is_about(model: str, error: APIStatusError) -> bool:
    """Whether a 404 is about the model, and not about the address."""
    text = error.response.text.lower()
    return model.lower() in text or "model" in text or "deployment" in text


def _where(client: BaseClientConfig, error: APIStatusError) -> str:
    """What was asked, and where else it may be."""
    asked = f"nothing is served at {error.request.url}"
    base, query = split_query(client.base_url)
    if VERSIONED.search(base):
        return asked
    better = f"{base.rstrip('/')}/v1" + (f"?{query}" if query else "")
    return f"{asked}, and most servers have their API under /v1: try {better}"
