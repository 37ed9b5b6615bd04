"""The `direct-chat` harness through the real env and interception; only the model is scripted."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import verifiers.v1 as vf
from tests import direct_chat_taskset
from tests.direct_chat_endpoint import (
    Json,
    ScriptedEndpoint,
    Step,
    call,
    completion,
    cut_short,
    fail,
    no_choices,
    raw,
    reset,
    say,
)
from tests.direct_chat_taskset import GatedTask, KitTask, KitToolset
from verifiers.v1.mcp import SharedToolServer
from verifiers.v1.mcp.launch import serve_shared
from verifiers.v1.utils.loaders import load_environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = say("done")
SYSTEM = "  Höflich,\r\n\tbitte.\n{question} %s $VAR \\n {{}} 👩‍🚀\x00\u2028 end \n"
PIXEL = "data:image/png;base64,iVBORw0KGgo="
Tools = Mapping[str, SharedToolServer]

TOO_LONG = "This model's maximum context length is 8 tokens"
OBJECT_CALL: Json = {"function": {"name": "kit_add", "arguments": {"a": 1, "b": 2}}}
ONE_PLUS_TWO = ("kit_add", '{"a": 1, "b": 2}')


@dataclass(frozen=True)
class Case:
    """A task (fields of `TaskData`, the prompt by default its name) and the endpoint's script."""

    script: list[Step]
    data: dict[str, Any] = field(default_factory=dict)
    task: type[KitTask] = KitTask


@dataclass(frozen=True)
class Played:
    endpoint: ScriptedEndpoint
    traces: dict[str, vf.Trace]


def shared_cases(folder: Path) -> dict[str, Case]:
    """What `direct-chat` and `null` do alike; `folder` is where a denied call would write."""
    touch = ("kit_touch", f'{{"path": "{folder}/touched"}}')
    image = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url=PIXEL))
    messages = [
        vf.UserMessage(content=[vf.TextContentPart(text="messages first"), image]),
        vf.AssistantMessage(content="nice"),
        vf.UserMessage(content="go on"),
    ]
    bad_calls = call(("kit_add", "[1, 2]"), ("kit_add", "null"), ("nope", "{}"))
    thinking: Json = {"reasoning_content": "hm", "refusal": None}
    return {
        "plain": Case([DONE]),
        "system": Case([DONE], {"system_prompt": "Be kind."}),
        "blank": Case([say("")], {"system_prompt": ""}),
        "length": Case([say("cut o", "length")]),
        "messages": Case([DONE], {"prompt": messages}),
        "reasoning": Case([call(ONE_PLUS_TWO, **thinking), say("done", **thinking)]),
        "tools": Case([call(ONE_PLUS_TWO, ("kit_add", '{"a": 3, "b": 4}')), DONE]),
        "bad-json": Case([call(("kit_add", '{"a": 1')), bad_calls, DONE]),
        "long": Case([call(("kit_repeat", '{"text": "0123456789", "times": 3000}')), DONE]),
        "deny": Case([call(touch, ONE_PLUS_TWO), DONE], task=GatedTask),
        "stop": Case([call(("kit_repeat", '{"text": "a", "times": 2}')), DONE], task=GatedTask),
        "overflow": Case([call(ONE_PLUS_TWO), fail(400, TOO_LONG)]),
        "overflow-413": Case([fail(413, "Request Entity Too Large")]),
        "401": Case([fail(401)]),
        "404": Case([fail(404)]),
        "429-once": Case([fail(429), DONE]),
    }


def own_cases() -> dict[str, Case]:
    return {
        "bytes": Case([DONE], {"system_prompt": SYSTEM}),
        "surrogate": Case([DONE], {"system_prompt": "half a pair: \ud83d"}),
        "surrogate-call": Case([call(("kit_add", '{"a": "\\ud83d"}')), DONE]),
        "400": Case([fail(400, "no such parameter")]),
        "429": Case([fail(429)]),
        "500": Case([fail(500)]),
        "reset": Case([reset]),
        "reset-once": Case([call(ONE_PLUS_TWO), reset, DONE]),
        "cut-short": Case([cut_short]),
        "no-choices": Case([no_choices]),
        "object": Case([raw(completion({"tool_calls": [OBJECT_CALL]}, "tool_use")), DONE]),
    }


def agent_config(url: str, **fields: Any) -> vf.AgentConfig:
    return vf.AgentConfig.model_validate(
        {
            "harness": {"id": "direct-chat"},
            "runtime": {"type": "subprocess"},
            "model": "student",
            "client": {"type": "eval", "base_url": url, "api_key_var": "DIRECT_CHAT_TEST_KEY"},
        }
        | fields
    )


async def play(harness: str, cases: Mapping[str, Case], tools: Tools) -> Played:
    """All cases at once, as episodes of one env."""
    async with ScriptedEndpoint({name: case.script for name, case in cases.items()}) as endpoint:
        config = vf.SingleAgentEnvConfig.model_validate(
            {
                "taskset": {"id": "direct-chat-taskset", "tools": {"url": tools["kit"].url}},
                "agent": agent_config(endpoint.url, harness={"id": harness}),
            }
        )
        env = load_environment(config)
        ctx = vf.ModelContext(model="", client=vf.EvalClientConfig(), sampling=vf.SamplingConfig())
        tasks = [
            case.task(vf.TaskData(**{"prompt": f"{name} please"} | case.data))
            for name, case in cases.items()
        ]
        async with env.serving():
            episodes = await asyncio.gather(*(env.run_episode(task, ctx) for task in tasks))
    assert [episode.errors for episode in episodes] == [[] for _ in cases]
    return Played(endpoint, dict(zip(cases, (e.traces[0] for e in episodes), strict=True)))


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The taskset is found by its id here, and by its module name in the tool server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "direct_chat_taskset", direct_chat_taskset)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        patch.setenv("DIRECT_CHAT_TEST_KEY", "the-key")
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tools() -> AsyncIterator[Tools]:
    async with serve_shared([KitToolset(vf.SharedToolsetConfig())]) as shared:
        yield shared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("touch")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tools: Tools, folder: Path) -> Played:
    return await play("direct-chat", shared_cases(folder) | own_cases(), tools)


def tool_results(trace: vf.Trace) -> list[object]:
    return [message.content for message in trace.tool_messages]


@pytest.mark.parametrize(
    ("name", "turns", "stop", "reward"),
    [
        ("plain", 1, "agent_completed", 1.0),
        ("blank", 1, "agent_completed", 0.25),
        ("length", 1, "agent_completed", 0.25),
        ("reasoning", 2, "agent_completed", 1.0),
        ("tools", 2, "agent_completed", 1.0),
        ("stop", 1, "no_repeating", 0.25),
        ("overflow", 1, "agent_completed", 0.25),
        ("overflow-413", 0, "agent_completed", 0.25),
        ("429-once", 1, "agent_completed", 1.0),
        ("reset-once", 2, "agent_completed", 1.0),
    ],
)
async def test_what_the_model_did_is_measured(
    played: Played, name: str, turns: int, stop: str, reward: float
) -> None:
    trace = played.traces[name]
    assert (trace.ok, trace.num_turns, trace.stop_condition) == (True, turns, stop)
    assert (trace.errors, trace.reward, trace.num_branches) == ([], reward, min(turns, 1))


@pytest.mark.parametrize(
    ("name", "stop", "error", "called"),
    [
        ("400", "provider_error", ("ProviderError", 400), 1),
        ("401", "provider_error", ("ProviderError", 401), 1),
        ("404", "provider_error", ("ProviderError", 404), 1),
        ("429", "provider_error", ("ProviderError", 429), 3),
        ("500", "provider_error", ("ProviderError", 500), 3),
        ("reset", "provider_error", ("ProviderError", 503), 3),
        ("cut-short", "provider_error", ("ProviderError", 503), 3),
        ("no-choices", "provider_error", ("ProviderError", 502), 3),
        ("surrogate", "harness_error", ("HarnessError", None), 0),
    ],
)
async def test_a_fault_is_recorded_with_its_cause(
    played: Played, name: str, stop: str, error: tuple[str, int | None], called: int
) -> None:
    trace = played.traces[name]
    assert (trace.ok, trace.stop_condition, trace.rewards) == (False, stop, {})
    assert [(e.type, e.status_code) for e in trace.errors] == [error]
    assert len(trace.calls) == called
    assert played.endpoint.retry_counts[name] == ["0", "1", "2"][:called]


async def test_a_retry_commits_one_turn(played: Played) -> None:
    trace = played.traces["reset-once"]
    assert [call.node for call in trace.calls] == [1, None, 3]
    assert [call.error and call.error.status_code for call in trace.calls] == [None, 503, None]
    assert played.endpoint.retry_counts["reset-once"] == ["0", "0", "1"]


async def test_the_system_prompt_arrives_byte_equal(played: Played) -> None:
    assert played.endpoint.requests["bytes"][0]["messages"] == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "bytes please"},
    ]
    assert played.traces["bytes"].messages[0].content == SYSTEM


async def test_a_lone_surrogate_is_named(played: Played) -> None:
    [error] = played.traces["surrogate"].errors
    assert "message 0 (system) can't be sent" in error.message
    assert r"\ud83d" in error.message
    [result] = tool_results(played.traces["surrogate-call"])
    assert str(result).startswith("error: invalid JSON in tool arguments (")


async def test_a_messages_prompt_keeps_its_parts(played: Played) -> None:
    assert played.endpoint.requests["messages"][0]["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "messages first"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
            ],
        },
        {"role": "assistant", "content": "nice"},
        {"role": "user", "content": "go on"},
    ]


async def test_tool_calls(played: Played) -> None:
    names = [tool.name for tool in played.traces["tools"].tools]
    assert names == ["kit_add", "kit_repeat", "kit_touch"]
    assert tool_results(played.traces["tools"]) == ["3", "7"]
    assert tool_results(played.traces["bad-json"]) == [
        "error: invalid JSON in tool arguments (Expecting ',' delimiter: line 1 column 8 "
        "(char 7)); resend the call with valid JSON",
        "error: tool arguments must be a JSON object, got list; resend as an object",
        "error: tool arguments must be a JSON object, got NoneType; resend as an object",
        "error: unknown tool 'nope'",
    ]
    assert tool_results(played.traces["object"]) == ["3"]
    [long] = tool_results(played.traces["long"])
    assert isinstance(long, str)
    assert 20_000 < len(long) < 20_300
    assert "10000 bytes truncated" in long


async def test_an_assistant_message_goes_back_as_it_came(played: Played) -> None:
    _, first, result = played.endpoint.requests["reasoning"][1]["messages"]
    assert first == {
        "role": "assistant",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "kit_add", "arguments": '{"a": 1, "b": 2}'},
            }
        ],
    }
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": "3", "name": "kit_add"}


async def test_the_gate_decides_before_a_tool_runs(played: Played, folder: Path) -> None:
    assert tool_results(played.traces["deny"]) == ["not allowed", "3"]
    assert list(folder.iterdir()) == []
    assert len(played.endpoint.requests["stop"]) == 1


async def test_disabled_tools_are_not_offered(tools: Tools) -> None:
    async with ScriptedEndpoint({"plain": [call(ONE_PLUS_TWO), DONE]}) as endpoint:
        harness = {"id": "direct-chat", "disabled_tools": ["kit_add", "kit_touch"]}
        agent = vf.make_agent(agent_config(endpoint.url, harness=harness))
        trace = await agent.run(KitTask(vf.TaskData(prompt="plain")), tools=tools)
    assert [tool.name for tool in trace.tools] == ["kit_repeat"]
    assert tool_results(trace) == ["error: unknown tool 'kit_add'"]


async def test_a_turn_limit_ends_the_rollout_cleanly(tools: Tools) -> None:
    async with ScriptedEndpoint({"plain": [call(ONE_PLUS_TWO)]}) as endpoint:
        agent = vf.make_agent(agent_config(endpoint.url, max_turns=2))
        trace = await agent.run(KitTask(vf.TaskData(prompt="plain")), tools=tools)
    assert (trace.ok, trace.stop_condition, trace.num_turns) == (True, "max_turns", 2)
    assert len(endpoint.requests["plain"]) == 2


async def test_an_interaction_goes_on_with_the_whole_conversation() -> None:
    task = KitTask(vf.TaskData(prompt=None, system_prompt="Be kind."))
    async with ScriptedEndpoint({"hello": [say("hi"), say("done")]}) as endpoint:
        agent = vf.make_agent(agent_config(endpoint.url))
        async with agent.interaction(task) as interaction:
            replies = [
                (await interaction.turn("hello")).last_reply,
                (await interaction.turn("bye")).last_reply,
            ]
    assert replies == ["hi", "done"]
    assert endpoint.requests["hello"][1]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "bye"},
    ]
    trace = interaction.trace
    assert (trace.ok, trace.stop_condition, trace.num_branches) == (True, "user_closed", 1)


@pytest.mark.skipif(shutil.which("uv") is None, reason="the null harness needs uv")
async def test_the_trace_is_the_one_of_the_null_harness(
    played: Played, tools: Tools, folder: Path
) -> None:
    cases = shared_cases(folder)
    null = await play("null", cases, tools)
    for name in cases:
        assert record(played.traces[name]) == record(null.traces[name]), name


def record(trace: vf.Trace) -> Json:
    """The trace without ids, times, tracebacks and the agent's config."""
    return {
        "nodes": [
            (node.parent, node.sampled, node.message.model_dump(), node.tools)
            for node in trace.nodes
        ],
        "calls": [
            (call.node, call.model, call.endpoint, call.finish_reason, call.usage, call.sampling)
            + ((call.error.type, call.error.status_code, call.error.message) if call.error else ())
            for call in trace.calls
        ],
        "errors": [(error.type, error.status_code, error.message) for error in trace.errors],
        "tools": trace.tools,
        "rewards": trace.rewards,
        "metrics": trace.metrics,
        "rewrites": trace.request_rewrites,
        "end": (trace.ok, trace.stop_condition, trace.is_truncated, trace.is_timeout),
    }
