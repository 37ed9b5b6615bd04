"""How `direct-chat` reaches the interception: lost answers, retries, the life of its session."""

import asyncio
import gc
import socket
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from openai import APIStatusError
from pydantic import ValidationError
from pydantic_core import to_json

import verifiers.v1 as vf
from direct_chat import DirectChatConfig, DirectChatHarness, transport
from direct_chat.dialect import ROUTE
from tests.direct_chat_endpoint import Json, ScriptedEndpoint, Step, fail, hang_up, never, say
from verifiers.v1.runtimes import ProgramResult, provision_runtime

BODY = b'{"messages": [{"role": "user", "content": "plain"}]}'


class Detour(DirectChatHarness):
    """Sends the calls to `url` instead, and remembers where they should have gone."""

    def __init__(self) -> None:
        super().__init__(DirectChatConfig(id="direct-chat"))
        self.url = ""
        self.endpoint = ""

    async def launch(self, *args: Any, **kwargs: Any) -> ProgramResult:
        ctx, trace, runtime, self.endpoint, *rest = args
        return await super().launch(ctx, trace, runtime, self.url, *rest, **kwargs)


def agent_for(url: str, harness: vf.Harness | None = None, **config: Any) -> vf.Agent:
    agent = vf.make_agent(
        vf.AgentConfig(
            **config,
            harness=DirectChatConfig(id="direct-chat"),
            runtime=vf.SubprocessConfig(),
            model="student",
            client=vf.EvalClientConfig(base_url=url, api_key_var="DIRECT_CHAT_TEST_KEY"),
        )
    )
    agent.harness = harness or agent.harness
    return agent


def task(prompt: str) -> vf.Task:
    return vf.Task(vf.TaskData(prompt=prompt))


async def test_a_lost_answer_is_replayed_not_sampled_again() -> None:
    detour = Detour()
    retry_counts = []

    async def forward_and_lose_the_first(request: web.Request) -> web.StreamResponse:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(
                f"{detour.endpoint}{ROUTE}",
                content=await request.read(),
                headers=request.headers,
            )
        retry_counts.append(request.headers["x-stainless-retry-count"])
        response = web.Response(body=answer.content, content_type="application/json")
        return hang_up(request, response) if len(retry_counts) == 1 else response

    app = web.Application()
    app.router.add_post(ROUTE, forward_and_lose_the_first)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    detour.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ScriptedEndpoint({"plain": [say("first"), say("second")]}) as endpoint:
        trace = await agent_for(endpoint.url, detour).run(task("plain"))
    await runner.cleanup()
    assert retry_counts == ["0", "1"]
    assert len(endpoint.requests["plain"]) == 1
    assert (trace.ok, trace.num_turns, len(trace.calls)) == (True, 1, 1)
    assert trace.last_reply == "first"


async def test_an_unreachable_interception_is_named() -> None:
    detour = Detour()
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        detour.url = f"http://127.0.0.1:{bound_but_not_listening.getsockname()[1]}"
        trace = await agent_for(detour.url, detour).run(task("plain"))
    assert (trace.ok, trace.stop_condition, trace.calls) == (False, "interception_error", [])
    assert trace.errors[0].message.startswith(
        f"no answer from the interception at {detour.url}{ROUTE}: ClientConnectorError"
    )


async def test_the_rollout_timeout_ends_a_call_that_hangs() -> None:
    async with ScriptedEndpoint({"hang": [never]}) as endpoint:
        trace = await agent_for(endpoint.url, timeout={"rollout": 0.1}).run(task("hang"))
    assert (trace.ok, trace.stop_condition, trace.errors) == (True, "agent_timeout", [])


async def test_another_runtime_is_refused_with_the_remedy() -> None:
    async with provision_runtime(vf.SubprocessConfig()) as runtime:
        # A box of another type without its container: the check reads the type alone.
        runtime.config = vf.DockerConfig()  # type: ignore[attr-defined]
        trace = await agent_for("http://127.0.0.1:9/v1").run(task("plain"), runtime=runtime)
    [error] = trace.errors
    assert (trace.ok, error.type) == (False, "HarnessError")
    assert "'docker' runtime" in error.message
    assert "--env.agent.runtime.type subprocess" in error.message
    assert "--local" in error.message


@pytest.mark.parametrize("field", [{"env": {"A": "b"}}, {"forward_env": ["A"]}])
def test_settings_for_a_program_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="starts no program"):
        DirectChatConfig(id="direct-chat", **field)


async def test_retry_after_is_honoured() -> None:
    script = [fail(429, **{"retry-after": "0.001"}), fail(503, **{"retry-after": "3600"})]
    async with ScriptedEndpoint({"plain": script}) as endpoint:
        with pytest.raises(APIStatusError) as caught:
            await transport.complete(f"{endpoint.url}/chat/completions", "secret", BODY)
    assert caught.value.status_code == 503
    assert endpoint.retry_counts["plain"] == ["0", "1"]


@pytest.mark.parametrize("header", ["", "soon", "-1", "nan"])
def test_an_unusable_retry_after_is_ignored(header: str) -> None:
    response = httpx.Response(
        429, headers={"retry-after": header}, request=httpx.Request("POST", "http://host")
    )
    assert transport.retry_after(APIStatusError("", response=response, body=None)) is None


async def one_finished_one_cancelled(sessions: list[aiohttp.ClientSession]) -> None:
    scripts: dict[str, list[Step]] = {"plain": [say("done")], "hang": [never]}
    async with ScriptedEndpoint(scripts) as endpoint, agent_for(endpoint.url) as agent:
        trace = await agent.run(task("plain"))
        assert trace.ok
        endpoint.asked.clear()
        hanging = asyncio.create_task(agent.run(task("hang")))
        await endpoint.asked.wait()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    sessions.append(await transport.loop_session())
    assert not sessions[-1].closed


@pytest.mark.filterwarnings("error")
def test_a_loop_takes_its_session_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sessions: list[aiohttp.ClientSession] = []
    asyncio.run(one_finished_one_cancelled(sessions))
    asyncio.run(one_finished_one_cancelled(sessions))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(one_finished_one_cancelled(sessions))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert len(set(sessions)) == 3
    assert [session.closed for session in sessions] == [True, True, True]
    assert loop not in transport._held
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.filterwarnings("error")
async def test_a_large_request_arrives_whole() -> None:
    text = "plain " + "x" * 3_000_000
    body = to_json({"messages": [{"role": "user", "content": text}]})
    async with ScriptedEndpoint({"plain": [fail(500), say("done")]}) as endpoint:
        await transport.complete(f"{endpoint.url}/chat/completions", "secret", body)
    received = [request["messages"][0]["content"] for request in endpoint.requests["plain"]]
    assert received == [text, text]


def test_a_proxy_in_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def call() -> Json:
        async with ScriptedEndpoint({"plain": [say("done")]}) as endpoint:
            return await transport.complete(f"{endpoint.url}/chat/completions", "secret", BODY)

    assert asyncio.run(call())["choices"][0]["message"]["content"] == "done"
