"""What the teacher's endpoint answers with status 200: nearly right, or a failure all the same."""

import asyncio
from typing import Any

import pytest

from tests.support import Endpoint, Reply, fenced
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.teacher.client import Answer, Teacher
from verifiers.v1.types import Usage

TEXT = fenced("Answer. GOOD")
COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DROPPED = {"code": 502, "message": "Provider disconnected"}


def body(finish: Any = "stop", usage: Any = COUNTS, choice: Any = None, **fields: Any) -> Any:
    message = {"role": "assistant", "content": TEXT}
    choices = [{"index": 0, "message": message, "finish_reason": finish, **(choice or {})}]
    return {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage, **fields}


def asked(body: Any) -> Answer:
    """What one question to an endpoint with this answer brings."""

    async def ask(url: str) -> Answer:
        client = {"type": "eval", "base_url": url}
        taskset: Any = {"id": "board-v1"}
        config = GEPAConfig(taskset=taskset, reflection_client=client)
        teacher = Teacher(config)
        try:
            return await teacher.ask_once("Better?")
        finally:
            await teacher.aclose()

    with Endpoint(lambda _: Reply(body=body)) as endpoint:
        return asyncio.run(ask(endpoint.teacher_url))


@pytest.mark.parametrize("reason", ["stop", "MAX_TOKENS", "moonrise", None])
def test_an_answer_keeps_the_reason_that_its_server_gave(reason: str | None) -> None:
    answer = asked(body(reason))
    assert (answer.verdict.kind, answer.text, answer.finish_reason) == ("measured", TEXT, reason)
    assert answer.usage == Usage(prompt_tokens=3, completion_tokens=2)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (dict.fromkeys(COUNTS), None),
        ({}, None),
        ({"total_tokens": 5}, None),
        ({"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 5}, (3, 2)),
        ({**COUNTS, "completion_tokens_details": {"reasoning_tokens": None}}, (3, 2)),
    ],
)
def test_a_usage_is_read_as_far_as_it_goes(usage: Any, counts: tuple[int, int] | None) -> None:
    answer = asked(body(usage=usage))
    found = answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    assert (answer.text, found) == (TEXT, counts)


BROKEN = {
    "the reason": (body("error", choice={"error": DROPPED}), "502", "Provider disconnected"),
    "in the choice": (body(choice={"error": DROPPED}), "502", "Provider disconnected"),
    "beside the choices": (body(error={**DROPPED, "code": 401}), "502", "Provider disconnected"),
    "throttled": (body("error", error={"code": 429, "message": "slow down"}), "429", "slow down"),
    "aborted": (body("abort"), "502", "'abort'"),
    "no name": (
        body(choice={"message": {"tool_calls": [{"function": {}}]}}),
        "502",
        "choices[0].message.tool_calls[0].function.name is missing",
    ),
}


@pytest.mark.parametrize(("answer", "status", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_may_pass_and_its_text_is_no_reply(
    answer: Any, status: str, words: str
) -> None:
    got = asked(answer)
    assert (got.verdict.kind, got.verdict.status, got.text) == ("transient", int(status), None)
    assert words in got.verdict.cause
    assert got.usage == Usage(prompt_tokens=3, completion_tokens=2)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [(402, "pay", "permanent"), (None, "no credits", "permanent"), (None, "gone", "transient")],
)
def test_a_refusal_of_status_200_is_that_refusal(code: int | None, message: str, kind: str) -> None:
    assert asked({"error": {"code": code, "message": message}}).verdict.kind == kind


@pytest.mark.parametrize("answer", ["<html>gateway</html>", {"id": "x", "choices": None}])
def test_what_is_no_completion_may_pass(answer: Any) -> None:
    got = asked(answer)
    assert (got.verdict.kind, got.text) == ("transient", None)
    assert got.verdict.cause
