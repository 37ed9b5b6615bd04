"""Answers of status 200 that are nearly right, or none, on their way through the interception."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import verifiers.v1 as vf
import verifiers.v1.dialects as dialects
from direct_chat.answers import counted
from direct_chat.dialect import DirectChatDialect, register
from tests.direct_chat_endpoint import (
    USAGE,
    Json,
    ScriptedEndpoint,
    Step,
    call,
    completion,
    raw,
    say,
)
from tests.environments.test_direct_chat_transport import agent_for, task
from verifiers.v1.gepa.faults.failures import judge_status
from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig
from verifiers.v1.interception import InterceptionServer, server
from verifiers.v1.trace import Error


async def played(*script: Step, **config: Any) -> tuple[vf.Trace, ScriptedEndpoint]:
    async with ScriptedEndpoint({"plain": script}) as endpoint:
        trace = await agent_for(endpoint.url, **config).run(task("plain"))
    return trace, endpoint


@dataclass(frozen=True)
class Ended:
    """How a conversation ended whose endpoint always gives the same answer."""

    trace: vf.Trace
    asked: int

    @property
    def error(self) -> Error:
        [error] = self.trace.errors
        return error

    @property
    def verdict(self) -> str:
        return judge_status(self.error.status_code, self.error.message).kind


async def ended(bodies: Mapping[str, Any], **config: Any) -> dict[str, Ended]:
    """A conversation per body, all at once, so that their retries wait together."""
    words = {name: f"case{number}" for number, name in enumerate(bodies)}
    scripts = {words[name]: [raw(body)] for name, body in bodies.items()}
    async with ScriptedEndpoint(scripts) as endpoint:
        agent = agent_for(endpoint.url, **config)
        traces = await asyncio.gather(*(agent.run(task(word)) for word in words.values()))
    asked = [len(endpoint.requests[word]) for word in words.values()]
    return dict(zip(bodies, map(Ended, traces, asked), strict=True))


# Usage

COUNTS: dict[str, tuple[Any, tuple[int, int] | None]] = {
    "whole": (USAGE, (11, 7)),
    "none": (None, None),
    "empty": ({}, None),
    "nulls": (dict.fromkeys(USAGE), None),
    "only a total": ({"total_tokens": 18}, None),
    "a total and nulls": ({**dict.fromkeys(USAGE), "total_tokens": 18}, None),
    "half": ({"prompt_tokens": 11, "completion_tokens": None}, None),
    "half and a total": ({"prompt_tokens": 11, "total_tokens": 18}, (11, 7)),
    "the other half and a total": ({"completion_tokens": 7, "total_tokens": 18}, (11, 7)),
    "no total": ({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": None}, (11, 7)),
    "null details": (
        {**USAGE, "prompt_tokens_details": {"cached_tokens": None}, "cost": None},
        (11, 7),
    ),
    "odd details": ({**USAGE, "completion_tokens_details": {"reasoning_tokens": "3"}}, (11, 7)),
    "details that are none": ({**USAGE, "prompt_tokens_details": []}, (11, 7)),
    "a float": ({**USAGE, "prompt_tokens": 11.0}, (11, 7)),
    "texts": ({"prompt_tokens": "11", "completion_tokens": "7"}, None),
    "a text": ("18 tokens", None),
    "a cost in words": ({**USAGE, "cost": "little"}, (11, 7)),
    "less than nothing": ({**USAGE, "completion_tokens": -1}, None),
    "a total too small": ({"prompt_tokens": 11, "total_tokens": 8}, None),
}


@pytest.mark.parametrize(("usage", "counts"), COUNTS.values(), ids=COUNTS)
async def test_a_usage_is_read_as_far_as_it_goes(usage: Any, counts: tuple[int, int]) -> None:
    trace, _ = await played(raw(completion({"content": "done"}, usage=usage)))
    assert (trace.ok, trace.last_reply) == (True, "done")
    [made] = trace.calls
    found = made.usage and (made.usage.prompt_tokens, made.usage.completion_tokens)
    assert found == counts


def test_details_of_a_usage_are_kept_where_they_are_counts() -> None:
    details = {"cached_tokens": 3, "audio_tokens": None}
    assert counted({**USAGE, "prompt_tokens_details": details, "cost": 0.5, "tier": None}) == {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 3},
        "cost": 0.5,
    }


# Calls

CALLS: dict[str, tuple[Json, str]] = {
    "an object": ({"arguments": {"a": "ü"}}, '{"a":"ü"}'),
    "a list": ({"arguments": [1]}, "[1]"),
    "null": ({"arguments": None}, "{}"),
    "missing": ({}, "{}"),
    "empty": ({"arguments": ""}, "{}"),
    "a text": ({"arguments": '{"a": 1'}, '{"a": 1'),
}


@pytest.mark.parametrize(("function", "arguments"), CALLS.values(), ids=CALLS)
async def test_arguments_become_a_text(function: Json, arguments: str) -> None:
    made = {"id": "call_7", "type": "function", "function": {"name": "look", **function}}
    trace, endpoint = await played(raw(completion({"tool_calls": [made]})), say("done"))
    assert (trace.ok, trace.num_turns, trace.num_branches) == (True, 2, 1)
    _, sent, result = endpoint.requests["plain"][1]["messages"]
    assert sent["tool_calls"] == [
        {**made, "function": {"name": "look", "arguments": arguments}},
    ]
    assert result["tool_call_id"] == "call_7"


@pytest.mark.parametrize("lacking", [{}, {"id": None, "type": None}, {"id": ""}])
async def test_a_call_without_id_and_type_gets_both(lacking: Json) -> None:
    calls = [{**lacking, "function": {"name": "look", "arguments": text}} for text in ("", "{}")]
    ids = []
    for _ in range(2):
        trace, endpoint = await played(raw(completion({"tool_calls": calls})), say("done"))
        assert trace.ok
        _, sent, *results = endpoint.requests["plain"][1]["messages"]
        assert [made["type"] for made in sent["tool_calls"]] == ["function", "function"]
        ids.append([made["id"] for made in sent["tool_calls"]])
        assert [result["tool_call_id"] for result in results] == ids[-1]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
    assert all(len(name) == 9 and name.isalnum() for name in ids[0])


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
UNREADABLE: dict[str, tuple[Any, str]] = {
    "no name": (
        completion({"tool_calls": [CALL, {**CALL, "function": {"arguments": "{}"}}]}),
        "choices[0].message.tool_calls[1].function.name is missing",
    ),
    "an empty name": (
        completion({"tool_calls": [{**CALL, "function": {"name": ""}}]}),
        "choices[0].message.tool_calls[0].function.name is empty",
    ),
    "no function": (
        completion({"tool_calls": [{"id": "a"}]}),
        "choices[0].message.tool_calls[0].function is missing",
    ),
    "a text": (
        completion({"tool_calls": ["look"]}),
        "choices[0].message.tool_calls[0] is a text",
    ),
    "no list": (
        completion({"tool_calls": CALL}),
        "choices[0].message.tool_calls is an object",
    ),
    "no message": (
        completion({}, choices=[{"finish_reason": "stop"}]),
        "choices[0].message is missing",
    ),
    "no choices": ({"id": "x"}, "choices is missing"),
    "no object": ([1], "the answer is no chat completion but a list"),
    "an unknown reason": (
        completion({"content": "done"}, "moonrise"),
        "choices[0].finish_reason 'moonrise' is none that is known",
    ),
    "no reason and no answer": (
        completion({"content": ""}, None),
        "choices[0].finish_reason is missing, and nothing came",
    ),
    "a number for a text": (completion({"content": 3}), "choices.0.message.content"),
}


async def test_what_can_not_be_mended_is_named() -> None:
    for name, end in (await ended({name: body for name, (body, _) in UNREADABLE.items()})).items():
        assert UNREADABLE[name][1] in end.error.message, name
        assert (end.error.type, end.error.status_code) == ("ProviderError", 502), name
        assert (end.verdict, end.asked) == ("transient", 3), name


async def test_a_frame_with_gaps_is_filled() -> None:
    body = {"choices": [{"message": {"content": [{"type": "text", "text": "do"}, "ne"]}}]}
    trace, _ = await played(raw(body))
    assert (trace.ok, trace.last_reply, trace.calls[0].finish_reason) == (True, "done", "stop")


# Reasons to finish

MEASURED = {
    "stop": "stop",
    "STOP": "stop",
    "eos": "stop",
    "length": "length",
    "MAX_TOKENS": "length",
    "model_context_window_exceeded": "length",
    "content_filter": None,
    "SAFETY": None,
    "refusal": None,
}


@pytest.mark.parametrize("reason", MEASURED)
async def test_what_the_model_or_the_prompt_did_is_measured(reason: str) -> None:
    trace, endpoint = await played(raw(completion({"content": "done"}, reason)))
    assert (trace.ok, trace.last_reply) == (True, "done")
    assert trace.calls[0].finish_reason == MEASURED[reason]
    assert trace.is_truncated == (MEASURED[reason] == "length")
    assert len(endpoint.requests["plain"]) == 1


DROPPED = {"code": 502, "message": "Provider disconnected"}
HALF = {"content": "done, or half of it"}
BROKEN: dict[str, tuple[Json, int]] = {
    "error": (completion(HALF, "error"), 502),
    "network_error": (completion(HALF, "network_error"), 502),
    "insufficient_system_resource": (completion(HALF, "insufficient_system_resource"), 502),
    "ABORT": (completion(HALF, "ABORT"), 502),
    "in the choice": (
        completion(
            HALF,
            choices=[{"message": HALF, "finish_reason": "stop", "error": {**DROPPED, "code": 504}}],
        ),
        504,
    ),
    "beside the choices": (completion(HALF, error=DROPPED), 502),
    "a lasting code": (completion(HALF, error={**DROPPED, "code": 401}), 502),
    "a passing code": (completion(HALF, error={**DROPPED, "code": 429}), 429),
    "a text": (completion(HALF, error="Provider disconnected"), 502),
}


async def test_an_answer_that_its_server_broke_off_is_tried_again() -> None:
    trace, endpoint = await played(raw(BROKEN["error"][0]), call(("look", "{}")), say("done"))
    assert (trace.ok, trace.num_turns, trace.last_reply) == (True, 2, "done")
    first, *others = trace.calls
    assert first.error is not None
    assert first.error.status_code == 502
    assert [made.error for made in others] == [None, None]
    assert endpoint.retry_counts["plain"] == ["0", "1", "0"]


async def test_an_answer_that_stays_broken_is_no_score() -> None:
    for name, end in (await ended({name: body for name, (body, _) in BROKEN.items()})).items():
        body, status = BROKEN[name]
        assert (end.trace.ok, end.trace.num_turns, end.trace.rewards) == (False, 0, {}), name
        assert end.error.status_code == status, name
        assert "the server broke off its answer" in end.error.message, name
        assert ("disconnected" in end.error.message) == ("disconnected" in str(body)), name
        assert (end.verdict, end.asked) == ("transient", 3), name


async def test_a_refusal_in_an_answer_of_status_200_is_that_refusal() -> None:
    codes = {"402": "permanent", "503": "transient", "model_not_found": "transient"}
    bodies = {code: {"error": {"code": code, "message": "no more"}} for code in codes}
    for code, end in (await ended(bodies)).items():
        assert end.verdict == codes[code]
        assert end.error.status_code == (int(code) if code.isdecimal() else 502)
        assert "no more" in end.error.message
        assert end.asked == (1 if end.verdict == "permanent" else 3)


def chunk(reason: str | None, delta: Json = HALF, error: Any = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return completion({}, choices=[{**choice, "error": error} if error else choice])


STREAMED = {
    "the reason": [chunk("error")],
    "in the choice": [chunk("error", error=DROPPED)],
    "beside the choices": [chunk(None), {**chunk("error", {}), "error": DROPPED}],
    "alone": [chunk(None), {"error": DROPPED}],
}


@pytest.mark.skipif(shutil.which("uv") is None, reason="the null harness needs uv")
async def test_a_stream_that_its_server_broke_off_is_no_score() -> None:
    for name, end in (
        await ended(STREAMED, harness=NullHarness(NullHarnessConfig(id="null")))
    ).items():
        assert (end.trace.ok, end.trace.rewards) == (False, {}), name
        failure = {"alone": "HarnessError"}.get(name, "ProviderError")
        assert (end.error.type, end.verdict) == (failure, "transient"), name


# Calls that lead nowhere

NOWHERE = {
    "no such tool": call(("look", "{}")),
    "no arguments": call(("look", '{"a": 1')),
    "two calls": call(("look", "{}"), ("listen", "[]")),
}


@pytest.mark.parametrize("name", NOWHERE)
async def test_calls_that_lead_nowhere_end_the_conversation(name: str) -> None:
    trace, endpoint = await played(NOWHERE[name])
    assert (trace.ok, trace.errors) == (True, [])
    assert (trace.stop_condition, trace.num_turns) == ("no_usable_tool_call", 3)
    assert len(endpoint.requests["plain"]) == 3


async def test_a_model_that_comes_to_its_senses_goes_on() -> None:
    trace, _ = await played(call(("look", "{}")), call(("look", "{}")), say("done"))
    assert (trace.ok, trace.stop_condition) == (True, "agent_completed")
    assert trace.last_reply == "done"


# The dialect


def test_it_is_registered_once() -> None:
    known = dialects.DIALECTS
    register()
    assert dialects.DIALECTS is known
    assert [type(dialect) for dialect in known].count(DirectChatDialect) == 1


async def test_an_interception_that_does_not_know_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server, "DIALECTS", dialects.DIALECTS[:-1])
        interception = InterceptionServer()
        await interception.start()
    try:
        agent = agent_for("http://127.0.0.1:9/v1")
        agent.interception = interception
        trace = await agent.run(task("plain"))
    finally:
        await interception.stop()
    [error] = trace.errors
    assert (error.type, trace.stop_condition) == ("InterceptionError", "interception_error")
    assert "import that first" in error.message
