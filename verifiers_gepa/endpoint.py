"""An OpenAI-compatible endpoint on loopback whose replies are computed by a function.

It speaks real HTTP from a thread and an event loop of its own, so whatever calls it goes through
its own client, connection pool and error handling: only the model is scripted. What the function
returns is either an answer or a fault, and every request is kept for a test to look at.

    with Endpoint(lambda request: "hello") as endpoint:
        ...  # POST endpoint.url + "/chat/completions"
    assert len(endpoint.requests) == 1

Token usage is a number of words: those of the messages for the prompt, those of the reply for the
completion.
"""

import asyncio
import contextlib
import hashlib
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

POLL_SECONDS = 0.005
"""How often a hanging reply looks whether it may go on."""


@dataclass(frozen=True)
class Request:
    """One request as it arrived; `body` is its JSON object, `headers` ignore case."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    query: str = ""
    """What follows the `?` of the address."""

    @property
    def to_teacher(self) -> bool:
        return self.path.startswith("/teacher/")

    @property
    def system(self) -> str:
        """The text of the system and developer messages, joined by blank lines."""
        return "\n\n".join(self._texts("system", "developer"))

    @property
    def user(self) -> str:
        """The text of the last user message, empty if there is none."""
        return (self._texts("user") or [""])[-1]

    def _texts(self, *roles: str) -> list[str]:
        messages = self.body.get("messages") or []
        return [_text(m.get("content")) for m in messages if m.get("role") in roles]


@dataclass(frozen=True)
class Reply:
    """What to answer: the defaults make an ordinary completion, the rest makes faults."""

    text: str | None = ""
    tool_calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """The name and the arguments of each call."""
    finish_reason: str | None = None
    """None: `tool_calls` if there are any, else `stop`."""
    usage: Mapping[str, Any] | None = None
    """Replaces the counted usage; an empty one leaves it out."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | Mapping[str, Any] | None = None
    """Sent as it is instead of a completion: an object as JSON, a text as HTML unless `headers`
    give a Content-Type."""
    delay: float = 0.0
    """Seconds before the first byte."""
    until: threading.Event | None = None
    """Hangs till the event is set, the caller gives up, or the endpoint closes."""
    drop: bool = False
    """Breaks the connection without a byte of reply."""
    cut: int | None = None
    """Breaks the connection after that many bytes of the body."""

    @classmethod
    def error(
        cls,
        status: int,
        message: str,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """An error in the shape that OpenAI gives it."""
        error = {"message": message, "type": "error", "param": None, "code": code}
        return cls(status=status, body={"error": error}, headers=headers or {})


Respond = Callable[[Request], Reply | str | Awaitable[Reply | str]]


class Endpoint:
    """The server, a context manager: it listens on a free port of 127.0.0.1 while entered.

    `respond` runs on the server's loop, so it may be async and must not block. If it raises, the
    caller gets a 500 that carries the error's text. A request joins `requests`, in the order of
    arrival, before it is answered.
    """

    def __init__(self, respond: Respond, models: Sequence[str] = ("student", "teacher")) -> None:
        self.requests: list[Request] = []
        self._respond = respond
        self._models = models
        self._arrival = threading.Condition()
        self._closing = threading.Event()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)

    @property
    def url(self) -> str:
        """The base URL of the task model (the student)."""
        return f"http://127.0.0.1:{self._port.result()}/v1"

    @property
    def teacher_url(self) -> str:
        """The base URL of the teacher: the same server, told apart by the path."""
        return f"http://127.0.0.1:{self._port.result()}/teacher/v1"

    def wait_for(self, count: int, timeout: float = 60.0) -> None:
        """Block till `count` requests have arrived; TimeoutError after `timeout` seconds."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: len(self.requests) >= count, timeout):
                raise TimeoutError(f"{len(self.requests)} of {count} requests in {timeout:g} s")

    def __enter__(self) -> Self:
        self._thread.start()
        self._port.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # `__enter__` waits for the port and raises what kept it from being bound.
            if self._port.done():
                raise
            self._port.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        for base in ("/v1", "/teacher/v1"):
            app.router.add_post(f"{base}/chat/completions", self._complete)
            app.router.add_get(f"{base}/models", self._list_models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._port.set_result(runner.addresses[0][1])
            await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _hang(self, http: web.Request, until: threading.Event) -> None:
        while not (until.is_set() or self._closing.is_set()):
            if http.transport is None or http.transport.is_closing():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _list_models(self, _: web.Request) -> web.Response:
        data = [{"id": name, "object": "model", "owned_by": "simulated"} for name in self._models]
        return web.json_response({"object": "list", "data": data})

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        raw = await http.read()
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise web.HTTPBadRequest(text="the body is no JSON object")
        request = Request(http.path, body, http.headers, http.query_string)
        with self._arrival:
            self.requests.append(request)
            self._arrival.notify_all()
        try:
            answer = self._respond(request)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 - the caller is told
            answer = Reply.error(500, f"{type(error).__name__}: {error}")
        reply = Reply(answer) if isinstance(answer, str) else answer
        return await self._send(http, request, reply)

    async def _send(self, http: web.Request, request: Request, reply: Reply) -> web.StreamResponse:
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.until is not None:
            await self._hang(http, reply.until)
        response = web.StreamResponse(status=reply.status)
        if reply.drop:
            _abort(http)
            return response
        streamed = reply.body is None and bool(request.body.get("stream"))
        if streamed:
            payload = b"".join(_sse(request, reply))
            response.content_type = "text/event-stream"
        else:
            payload = _payload(request, reply)
            page = isinstance(reply.body, str)
            response.content_type = "text/html" if page else "application/json"
            response.content_length = len(payload)
        response.headers.update(reply.headers)
        with contextlib.suppress(ConnectionError):  # a caller that was killed meanwhile
            await response.prepare(http)
            await response.write(payload[: reply.cut])
        if reply.cut is not None:
            _abort(http)
        return response


def _abort(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _text(content: Any) -> str:
    """The text of a message's content, a string or a list of parts."""
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def _head(request: Request, kind: str) -> dict[str, Any]:
    # Named after the request, so that equal requests get equal replies.
    digest = hashlib.sha256(json.dumps(request.body, sort_keys=True).encode()).hexdigest()
    return {
        "id": f"chatcmpl-{digest[:24]}",
        "object": kind,
        "created": 0,
        "model": request.body.get("model", ""),
    }


def _usage(request: Request, reply: Reply) -> Mapping[str, Any]:
    if reply.usage is not None:
        return reply.usage
    messages = request.body.get("messages") or []
    prompt = sum(len(_text(message.get("content")).split()) for message in messages)
    calls = sum(len(json.dumps(arguments).split()) for _, arguments in reply.tool_calls)
    completion = len((reply.text or "").split()) + calls
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _tool_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(reply.tool_calls)
    ]


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _payload(request: Request, reply: Reply) -> bytes:
    if isinstance(reply.body, str):
        return reply.body.encode()
    if reply.body is not None:
        return json.dumps(reply.body).encode()
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = _tool_calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
    completion = {**_head(request, "chat.completion"), "choices": [choice]}
    if usage := _usage(request, reply):
        completion["usage"] = usage
    return json.dumps(completion).encode()


def _sse(request: Request, reply: Reply) -> Iterator[bytes]:
    """The events of a streamed completion: a delta per word and per tool call."""
    head = _head(request, "chat.completion.chunk")

    def event(choices: list[dict[str, Any]], **extra: Any) -> bytes:
        return b"data: " + json.dumps({**head, "choices": choices, **extra}).encode() + b"\n\n"

    def delta(content: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return event([{"index": 0, "delta": content, "finish_reason": finish_reason}])

    yield delta({"role": "assistant"})
    for word in re.findall(r"\s*\S+\s*|\s+", reply.text or ""):
        yield delta({"content": word})
    for index, call in enumerate(_tool_calls(reply)):
        yield delta({"tool_calls": [{"index": index, **call}]})
    yield delta({}, _finish_reason(reply))
    usage = _usage(request, reply)
    if usage and (request.body.get("stream_options") or {}).get("include_usage"):
        yield event([], usage=usage)
    yield b"data: [DONE]\n\n"
