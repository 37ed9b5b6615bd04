"""HTTP to the interception: one client per event loop, and the retries of the OpenAI SDK.

All rollouts on a loop share one client and its connections. The loop closes it: the client
is held by an async generator started on that loop, and `asyncio.run` (or whoever owns the
loop) calls `loop.shutdown_asyncgens()` at its end. No harness hook runs that late.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
from openai import APIStatusError
from pydantic_core import from_json
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from verifiers.v1.errors import InterceptionError

Json = dict[str, Any]

ATTEMPTS = 3
"""Model calls in all, as many as the OpenAI SDK makes by default."""

RETRIED_STATUS = frozenset({408, 409, 429})
"""Statuses below 500 worth another attempt."""

MAX_RETRY_AFTER = 120.0
"""Seconds a server may ask us to wait; if it asks for more, the call fails at once."""

BACKOFF = wait_exponential(multiplier=0.4, max=8.0) + wait_random(0.0, 0.1)
"""Seconds between attempts where the server names none: about 0.5, then about 1."""

# A rollout is bounded by its own timeout, and waits for a model, not for a connection: a
# cap on connections would make rollouts queue behind the slow answers of others.
TIMEOUT = httpx.Timeout(None, connect=10.0)
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)

_clients: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None, None]]] = {}


async def loop_client() -> httpx.AsyncClient:
    """The running loop's client, opened on first use and closed by the loop's shutdown."""
    loop = asyncio.get_running_loop()
    held = _clients.get(loop)
    if held is None:
        # The interception is on loopback: a proxy from the environment must not see it.
        client = httpx.AsyncClient(
            timeout=TIMEOUT,
            limits=LIMITS,
            trust_env=False,
            headers={"accept": "application/json", "content-type": "application/json"},
        )
        keeper = _close_with_loop(loop, client)
        held = _clients[loop] = (client, keeper)
        await anext(keeper)
    return held[0]


async def _close_with_loop(
    loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        del _clients[loop]
        await client.aclose()


async def post(url: str, secret: str, body: bytes, attempt: int = 0) -> Json:
    """One POST of a JSON body; raises APIStatusError for a status other than 2xx and
    `httpx.TransportError` if no answer came. `attempt` counts from 0."""
    client = await loop_client()
    response = await client.post(
        url,
        content=body,
        headers={
            "authorization": f"Bearer {secret}",
            # Tells the interception a repeated call from a second turn with the same text.
            "x-stainless-retry-count": str(attempt),
        },
    )
    if not response.is_success:
        raise APIStatusError(
            f"HTTP {response.status_code}: {response.text}", response=response, body=None
        )
    answer: Json = from_json(response.content)
    return answer


async def complete(url: str, secret: str, body: bytes) -> Json:
    """One model call, repeated with the same bytes while the failure may pass.

    Raises the last attempt's APIStatusError, or InterceptionError if the endpoint itself
    could not be reached.
    """
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(may_pass),
            stop=stop_after_attempt(ATTEMPTS),
            wait=backoff,
            reraise=True,
        ):
            with attempt:
                return await post(url, secret, body, attempt.retry_state.attempt_number - 1)
    except httpx.TransportError as e:
        raise InterceptionError(
            f"no answer from the interception at {url}: {type(e).__name__}: {e}"
        ) from e
    raise AssertionError("unreachable: the last attempt returns or raises")


def may_pass(error: BaseException) -> bool:
    """Whether another attempt can help."""
    if isinstance(error, APIStatusError):
        if (retry_after(error) or 0.0) > MAX_RETRY_AFTER:
            return False
        return error.status_code in RETRIED_STATUS or error.status_code >= 500
    return isinstance(error, httpx.TransportError)


def backoff(state: RetryCallState) -> float:
    """Seconds to wait before the next attempt: what the server asks for, else growing."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = retry_after(error) if isinstance(error, APIStatusError) else None
    return BACKOFF(state) if asked is None else asked


def retry_after(error: APIStatusError) -> float | None:
    """The seconds in the answer's Retry-After header; None if absent or not a number."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if seconds > 0 else None
