"""A scripted OpenAI-compatible endpoint on loopback, faults included.

A conversation is scripted by the first word of its first user message: each model call of
it gets the script's next step, the last one again and again.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]
Step = Callable[[web.Request, Json], Awaitable[web.StreamResponse]]

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def say(text: str | None, finish: str = "stop", **fields: Any) -> Step:
    """Reply with an assistant message, streamed if the request asks for it."""
    message: Json = {"role": "assistant", "content": text, **fields}
    head = {"id": "chatcmpl-1", "created": 1, "model": "served"}

    async def step(request: web.Request, body: Json) -> web.StreamResponse:
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response(
                {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}
            )
        calls = [{**call, "index": i} for i, call in enumerate(message.get("tool_calls") or [])]
        delta = message | ({"tool_calls": calls} if calls else {})
        chunks: list[Json] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": USAGE},
        ]
        events = [{**head, "object": "chat.completion.chunk", **chunk} for chunk in chunks]
        lines = [json.dumps(event) for event in events] + ["[DONE]"]
        return web.Response(
            text="".join(f"data: {line}\n\n" for line in lines), content_type="text/event-stream"
        )

    return step


def call(*calls: tuple[str, str], **fields: Any) -> Step:
    """Reply with tool calls, each a name and its arguments as the model wrote them."""
    return say(
        None,
        "tool_calls",
        tool_calls=[
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": text}}
            for i, (name, text) in enumerate(calls)
        ],
        **fields,
    )


def raw(body: Any) -> Step:
    """Answer 200 with this body, or, where a stream is asked for, with the events of this list."""

    async def step(request: web.Request, asked: Json) -> web.StreamResponse:
        if not asked.get("stream"):
            return web.json_response(body)
        lines = [json.dumps(event) for event in body] + ["[DONE]"]
        return web.Response(
            text="".join(f"data: {line}\n\n" for line in lines), content_type="text/event-stream"
        )

    return step


def completion(message: Json, finish: str | None = "stop", **fields: Any) -> Json:
    """A completion of that message; `fields` replace or add to its own."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served"}
    return {**head, "choices": [choice], "usage": USAGE, **fields}


def fail(status: int, message: str = "refused", **headers: str) -> Step:
    """Answer with an error in OpenAI's form."""

    async def step(request: web.Request, body: Json) -> web.StreamResponse:
        error = {"error": {"message": message, "type": "scripted"}}
        return web.json_response(error, status=status, headers=headers)

    return step


async def no_choices(request: web.Request, body: Json) -> web.StreamResponse:
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served"}
    return web.json_response({**head, "choices": [], "usage": USAGE})


async def cut_short(request: web.Request, body: Json) -> web.StreamResponse:
    """Promise more bytes than are sent."""
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"id": "chatcmpl-1", ')
    return hang_up(request, response)


async def reset(request: web.Request, body: Json) -> web.StreamResponse:
    return hang_up(request, web.Response())


async def never(request: web.Request, body: Json) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def hang_up(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return response


def first_word(body: Json) -> str:
    content = next(m["content"] for m in body["messages"] if m["role"] == "user")
    return str(content if isinstance(content, str) else content[0]["text"]).split()[0]


class ScriptedEndpoint:
    """Serves the scripts while entered; keeps each conversation's requests and headers."""

    def __init__(self, scripts: Mapping[str, Sequence[Step]]) -> None:
        self.scripts = scripts
        self.requests: dict[str, list[Json]] = defaultdict(list)
        self.retry_counts: dict[str, list[str | None]] = defaultdict(list)
        self.asked = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        word = first_word(body)
        script = self.scripts[word]
        step = script[min(len(self.requests[word]), len(script) - 1)]
        self.requests[word].append(body)
        self.retry_counts[word].append(request.headers.get("x-stainless-retry-count"))
        self.asked.set()
        return await step(request, body)
