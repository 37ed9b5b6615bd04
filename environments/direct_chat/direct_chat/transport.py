"""HTTP to the interception: one session per event loop, and the retries of the OpenAI SDK.

All rollouts on a loop share one session and its connections. The loop closes it: the session
is held by an async generator started on that loop, and `asyncio.run` (or whoever owns the
loop) calls `loop.shutdown_asyncgens()` at its end. No hook of a harness runs that late.

The session is aiohttp's, because each request looks at one connection of its pool. httpx
looks at all of them, idle ones several times: with 256 rollouts in flight, that took more
CPU than everything else in a rollout together.
"""

import asyncio
import io
import itertools
from collections.abc import AsyncGenerator

import aiohttp
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

from direct_chat.answers import Json
from verifiers.v1.errors import InterceptionError

ATTEMPTS = 3
"""Model calls in all, as many as the OpenAI SDK makes by default."""

RETRIED_STATUS = frozenset({408, 409, 429})
"""Statuses below 500 worth another attempt."""

MAX_RETRY_AFTER = 120.0
"""Seconds a server may ask us to wait; if it asks for more, the call fails at once."""

BACKOFF = wait_exponential(multiplier=0.4, max=8.0) + wait_random(0.0, 0.1)
"""Seconds between attempts where the server names none: about 0.5, then about 1."""

# A rollout is bounded by its own timeout; an answer may take as long as the model needs.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0)

Held = tuple[aiohttp.ClientSession, AsyncGenerator[None, None]]
_held: dict[asyncio.AbstractEventLoop, Held] = {}


async def loop_session() -> aiohttp.ClientSession:
    """The running loop's session, opened on first use and closed by the loop's shutdown."""
    loop = asyncio.get_running_loop()
    if loop not in _held:
        session = aiohttp.ClientSession(
            # No cap on connections: rollouts would queue behind the slow answers of others.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=TIMEOUT,
            # The interception is on loopback, which a proxy of the environment can't reach.
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept": "application/json", "content-type": "application/json"},
        )
        keeper = _close_with_loop(loop, session)
        _held[loop] = (session, keeper)
        await anext(keeper)
    return _held[loop][0]


async def _close_with_loop(
    loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        del _held[loop]
        await session.close()


async def post(url: str, secret: str, body: bytes, attempt: int = 0) -> Json:
    """One POST of a JSON body; raises APIStatusError for a status from 400 on and
    `aiohttp.ClientError` if no answer came. `attempt` counts from 0."""
    session = await loop_session()
    headers = {
        "authorization": f"Bearer {secret}",
        # Tells the interception a repeated call from a second turn with the same text.
        "x-stainless-retry-count": str(attempt),
    }
    # A stream is sent in pieces, so that images of several MB don't block the loop.
    async with session.post(url, data=io.BytesIO(body), headers=headers) as answer:
        content = await answer.read()
    if not answer.ok:
        text = content.decode("utf-8", errors="replace")
        raise APIStatusError(
            f"HTTP {answer.status}: {text}",
            response=httpx.Response(
                answer.status,
                headers={"retry-after": answer.headers.get("retry-after", "")},
                request=httpx.Request("POST", url),
            ),
            body=None,
        )
    completion: Json = from_json(content)
    return completion


async def complete(url: str, secret: str, body: bytes) -> Json:
    """One model call, repeated with the same bytes while the failure may pass.

    Raises the last attempt's APIStatusError, or InterceptionError if the endpoint itself
    could not be reached.
    """
    attempts = itertools.count()

    async def attempt() -> Json:
        return await post(url, secret, body, next(attempts))

    try:
        return await AsyncRetrying(
            retry=retry_if_exception(may_pass),
            stop=stop_after_attempt(ATTEMPTS),
            wait=backoff,
            reraise=True,
        )(attempt)
    except aiohttp.ClientError as e:
        raise InterceptionError(
            f"no answer from the interception at {url}: {type(e).__name__}: {e}"
        ) from e


def may_pass(error: BaseException) -> bool:
    """Whether another attempt can help."""
    if isinstance(error, APIStatusError):
        if (retry_after(error) or 0.0) > MAX_RETRY_AFTER:
            return False
        return error.status_code in RETRIED_STATUS or error.status_code >= 500
    return isinstance(error, aiohttp.ClientError)


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
