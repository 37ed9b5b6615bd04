"""Do the endpoints answer, take the key and serve the models? Asked before anything is charged.

The list of models is free of charge; only where it can't tell is a completion of one token sent: to
the teacher, and to the student where it has several replicas (with one, the seed prompt's first
rollout is the probe).
"""

import asyncio
from typing import Literal

from openai import APIStatusError

from verifiers.v1.clients.base import build_async_openai
from verifiers.v1.configs.client import BaseClientConfig
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.failures import MEASURED, Fault, Verdict, judge_error
from verifiers.v1.gepa.reflection import Answer
from verifiers.v1.gepa.retries import retry_policy

Served = Literal["listed", "unlisted", "unknown"]

SECONDS = 60.0
"""How long one question may take."""


async def check_endpoints(config: GEPAConfig) -> None:
    """Raise `Fault`, naming endpoint and cause, where a run could only fail."""
    model, teacher = config.teacher
    replicas = config.endpoints
    await asyncio.gather(
        *(_check("student", config.model, one, config, len(replicas) > 1) for one in replicas),
        _check("teacher", model, teacher, config, True),
    )


async def _check(
    role: str, model: str, client: BaseClientConfig, config: GEPAConfig, probe: bool
) -> None:
    async def listing() -> Answer:
        return await _list_models(model, client)

    async def completion() -> Answer:
        return await _complete(model, client)

    answer: Answer = await retry_policy(config.max_attempts, f"asking the {role}'s endpoint")(
        listing
    )
    unsure = answer.verdict is MEASURED and answer.text != "listed"
    if unsure and (probe or answer.text == "unlisted"):
        answer = await retry_policy(config.max_attempts, f"probing the {role}")(completion)
    if answer.verdict.kind != "measured":
        raise Fault(
            f"preflight: the {role} {model!r} does not answer: {answer.verdict.cause} "
            f"({client.base_url}; --no-preflight skips this)"
        )


async def _list_models(model: str, client: BaseClientConfig) -> Answer:
    """Whether the endpoint lists the model, as the answer's text."""
    served: Served = "unknown"
    try:
        async with asyncio.timeout(SECONDS), build_async_openai(client) as api:
            models = [listed.id async for listed in api.models.list()]
            if models:
                served = "listed" if model in models else "unlisted"
    except APIStatusError as error:
        # Many servers and keys do completions only; but a wrong key is wrong for both.
        if error.status_code == 401:
            return Answer(judge_error(error))
    except TimeoutError:
        return Answer(Verdict("transient", f"no answer within {SECONDS:g} seconds"))
    except (TypeError, AttributeError, ValueError):
        served = "unknown"  # whatever it answered, it is no list of models
    except Exception as error:  # noqa: BLE001 - every failure of the call gets a verdict
        return Answer(judge_error(error))
    return Answer(MEASURED, served)


async def _complete(model: str, client: BaseClientConfig) -> Answer:
    try:
        async with asyncio.timeout(SECONDS), build_async_openai(client) as api:
            await api.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "ping"}], max_tokens=1
            )
    except TimeoutError:
        return Answer(Verdict("transient", f"no answer within {SECONDS:g} seconds"))
    except APIStatusError as error:
        # A parameter that this model does not take is no reason to doubt that it is there.
        if error.status_code in (400, 422):
            return Answer(MEASURED)
        return Answer(judge_error(error))
    except Exception as error:  # noqa: BLE001 - every failure of the call gets a verdict
        return Answer(judge_error(error))
    return Answer(MEASURED)
