"""The conversation: model calls and tool calls in turn, on plain dicts.

The assistant's message goes back to the model as it came, so that the interception finds it
in its message graph again, whatever fields a provider adds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from direct_chat.answers import Json
from direct_chat.dialect import ROUTE
from direct_chat.transport import complete, post
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import MCPConnection, call_mcp

LOST_TURNS = 3
"""Turns in a row whose every call leads nowhere, until the conversation ends: a model that was told
twice what is wrong goes on like that for ever, and each turn is paid for."""


@dataclass(frozen=True)
class Endpoint:
    """Where one rollout's calls go; `gate_url` is asked before each tool call, if set."""

    base_url: str
    secret: str
    model: str
    gate_url: str | None = None


@dataclass(frozen=True)
class Tools:
    """The tools on offer: wire schemas, and the MCP server and tool behind each name."""

    schemas: list[Json]
    dispatch: dict[str, tuple[str, str]]
    servers: dict[str, MCPConnection]


NO_TOOLS = Tools([], {}, {})


async def converse(endpoint: Endpoint, messages: list[Json], tools: Tools) -> bool:
    """Extend `messages` until the model replies without tool calls or the gate stops it; true.
    False if it ended because the model's calls led nowhere, `LOST_TURNS` turns in a row."""
    url = f"{endpoint.base_url}{ROUTE}"
    lost = 0
    while True:
        request: Json = {"model": endpoint.model, "messages": messages}
        if tools.schemas:
            request["tools"] = tools.schemas
        completion = await complete(url, endpoint.secret, encode(request))
        message = completion["choices"][0]["message"]
        # Some providers answer with null fields that others reject in a request.
        messages.append({key: value for key, value in message.items() if value is not None})
        calls = message.get("tool_calls")
        if not calls:
            return True
        lost = 0 if any(leads_somewhere(call, tools) for call in calls) else lost + 1
        if lost == LOST_TURNS:
            return False
        for call in calls:
            result = await answer(endpoint, call, tools)
            if result is None:
                return True
            messages.append(bound_tool_message(result))


def leads_somewhere(call: Json, tools: Tools) -> bool:
    """Whether there is a tool of that name and the arguments can be handed to one."""
    arguments, error = parse_arguments(call["function"]["arguments"])
    known = call["function"]["name"] in tools.dispatch
    return known and error is None and isinstance(arguments, dict)


async def answer(endpoint: Endpoint, call: Json, tools: Tools) -> Json | None:
    """The tool message for `call`; None if the gate stopped the rollout."""
    function = call["function"]
    arguments, error = parse_arguments(function["arguments"])
    if endpoint.gate_url is not None:
        question = {
            "tool_call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"] if error else arguments,
        }
        decision = await post(endpoint.gate_url, endpoint.secret, to_json(question))
        if decision["action"] == "stop":
            return None
        if decision["action"] == "deny":
            denied: Json = decision["message"]
            return denied
    return {
        "role": "tool",
        "tool_call_id": call["id"],
        "content": error or await run_tool(function["name"], arguments, tools),
        "name": function["name"],
    }


def parse_arguments(text: str) -> tuple[Any, str | None]:
    """The call's arguments, or what is wrong with them in words for the model.

    Half of a surrogate pair parses but can't be sent on. It is the model's mistake too: left to
    the tool call, it would count as a fault of the tool server.
    """
    try:
        arguments = json.loads(text or "{}")
        to_json(arguments)
    except ValueError as e:
        return None, (
            f"error: invalid JSON in tool arguments ({e}); resend the call with valid JSON"
        )
    return arguments, None


async def run_tool(name: str, arguments: object, tools: Tools) -> str | list[Json]:
    """The tool's result, or the error that tells the model how to do better."""
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return f"error: tool arguments must be a JSON object, got {kind}; resend as an object"
    if name not in tools.dispatch:
        return f"error: unknown tool {name!r}"
    return await call_mcp(tools.servers, tools.dispatch, name, arguments)


def encode(request: Mapping[str, Any]) -> bytes:
    """The request as UTF-8 JSON.

    Raises ValueError naming the message that holds a lone surrogate: no endpoint can be
    sent one, and the character would not survive a replacement.
    """
    try:
        return to_json(request)
    except ValueError as e:
        for position, message in enumerate(request["messages"]):
            try:
                to_json(message)
            except ValueError:
                raise ValueError(
                    f"message {position} ({message['role']}) can't be sent, "
                    f"it is not valid Unicode text: {e}"
                ) from e
        raise
