"""The loopback endpoint as real HTTP clients see it: completions, streams and every fault."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from verifiers_gepa.endpoint import Endpoint, Reply, Request

HELLO: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": [{"type": "text", "text": "hello you"}]},
]


def client(endpoint: Endpoint) -> openai.OpenAI:
    return openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0)


def ask(endpoint: Endpoint) -> Any:
    return client(endpoint).chat.completions.create(model="student", messages=HELLO)


def test_a_completion_as_the_openai_client_reads_it() -> None:
    def respond(request: Request) -> str:
        return f"{request.system}|{request.user}|{request.to_teacher}"

    with Endpoint(respond) as endpoint:
        completion = ask(endpoint)
        assert [model.id for model in client(endpoint).models.list()] == ["student", "teacher"]
    assert completion.model == "student"
    assert completion.choices[0].message.content == "be kind|hello you|False"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "total_tokens": 7,
    }
    (request,) = endpoint.requests
    assert request.path == "/v1/chat/completions"
    assert request.body == {"model": "student", "messages": HELLO}
    assert request.headers["authorization"] == "Bearer none"


@pytest.mark.parametrize("usage", [True, False])
def test_a_streamed_completion(usage: bool) -> None:
    text = " two\r\n\twords 🙂 "
    with Endpoint(lambda _: Reply(text, tool_calls=[("add", {"a": 1})])) as endpoint:
        chunks = list(
            client(endpoint).chat.completions.create(
                model="student",
                messages=HELLO,
                stream=True,
                stream_options={"include_usage": usage},
            )
        )
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == text
    (call,) = [call for delta in deltas for call in delta.tool_calls or []]
    assert call.function is not None
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "tool_calls"
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [9] * usage


def test_what_a_reply_can_set() -> None:
    async def respond(_: Request) -> Reply:
        await asyncio.sleep(0)
        return Reply(
            None,
            tool_calls=[("add", {"a": 1, "b": 2})],
            finish_reason="length",
            usage={},
            headers={"x-request-id": "7"},
            delay=0.001,
        )

    with Endpoint(respond) as endpoint:
        raw = client(endpoint).chat.completions.with_raw_response.create(
            model="student", messages=HELLO
        )
    assert raw.headers["x-request-id"] == "7"
    completion = raw.parse()
    assert completion.usage is None
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == (None, "length")
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1, "b": 2}')


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_an_error_status(status: int, error: type[openai.APIStatusError]) -> None:
    reply = Reply.error(status, "not now", code="why", headers={"retry-after": "3"})
    with Endpoint(lambda _: reply) as endpoint, pytest.raises(error, match="not now") as caught:
        ask(endpoint)
    assert caught.value.status_code == status
    assert caught.value.code == "why"
    assert caught.value.response.headers["retry-after"] == "3"


def test_a_responder_that_raises_is_a_500() -> None:
    def respond(_: Request) -> str:
        raise KeyError("oops")

    with Endpoint(respond) as endpoint, pytest.raises(openai.InternalServerError, match="oops"):
        ask(endpoint)


@pytest.mark.parametrize("reply", [Reply(drop=True), Reply("long enough", cut=10)])
def test_a_broken_connection(reply: Reply) -> None:
    with Endpoint(lambda _: reply) as endpoint, pytest.raises(openai.APIConnectionError):
        ask(endpoint)
    assert len(endpoint.requests) == 1


def test_a_stream_that_is_cut() -> None:
    with Endpoint(lambda _: Reply("one two three", cut=400)) as endpoint:
        stream = client(endpoint).chat.completions.create(
            model="student", messages=HELLO, stream=True
        )
        with pytest.raises(httpx.RemoteProtocolError):
            list(stream)


def test_a_body_of_ones_own() -> None:
    bodies: Iterator[Reply] = iter(
        [
            Reply(body={"choices": []}),
            Reply(body="<html>busy</html>", status=502),
            Reply(body="{", headers={"content-type": "application/json"}),
        ]
    )
    with Endpoint(lambda _: next(bodies)) as endpoint:
        url = f"{endpoint.teacher_url}/chat/completions"
        answers = [httpx.post(url, json={"messages": [], "stream": True}) for _ in range(3)]
        unread = [httpx.post(url, content=content) for content in (b"{", b"[]")]
    assert [(a.status_code, a.headers["content-type"], a.text) for a in answers] == [
        (200, "application/json", '{"choices": []}'),
        (502, "text/html", "<html>busy</html>"),
        (200, "application/json", "{"),
    ]
    assert [answer.status_code for answer in unread] == [400, 400]
    assert [request.to_teacher for request in endpoint.requests] == [True] * 3


async def test_a_reply_that_hangs_till_it_is_let_go() -> None:
    go = threading.Event()

    def respond(request: Request) -> Reply:
        return Reply("late", until=go) if request.user == "hang" else Reply("at once")

    async def say(text: str) -> str | None:
        completion = await caller.chat.completions.create(
            model="student", messages=[{"role": "user", "content": text}]
        )
        return completion.choices[0].message.content

    with Endpoint(respond) as endpoint:
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key="none") as caller:
            late = asyncio.create_task(say("hang"))
            await asyncio.to_thread(endpoint.wait_for, 1)
            assert await say("hello") == "at once"
            assert not late.done()
            go.set()
            assert await late == "late"
    assert [request.user for request in endpoint.requests] == ["hang", "hello"]


async def test_closing_does_not_wait_for_replies_that_hang() -> None:
    def respond(request: Request) -> Reply:
        if request.user == "event":
            return Reply("late", until=threading.Event())
        return Reply("late", delay=3600)

    async with httpx.AsyncClient(timeout=None) as caller:
        with Endpoint(respond) as endpoint:
            calls = [
                asyncio.create_task(
                    caller.post(
                        f"{endpoint.url}/chat/completions",
                        json={"messages": [{"role": "user", "content": text}]},
                    )
                )
                for text in ("event", "delay")
            ]
            await asyncio.to_thread(endpoint.wait_for, 2)
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(ended[1], httpx.TransportError)


def test_waiting_for_requests_that_do_not_come() -> None:
    with Endpoint(lambda _: "") as endpoint, pytest.raises(TimeoutError, match="0 of 1 requests"):
        endpoint.wait_for(1, timeout=0.001)
