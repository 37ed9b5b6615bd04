"""Whose fault a failed episode is: every fault is made to happen at the endpoint."""

import asyncio
import threading
from typing import Any

import pytest

import verifiers.v1 as vf
from tests import support  # noqa: F401 - makes board-v1 importable
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import Verdict, judge_episode, judge_status
from verifiers.v1.gepa.rollouts.endpoints import Endpoints
from verifiers_gepa.endpoint import Endpoint, Reply

RATE_LIMIT = (
    "Rate limit reached on requests per min (RPM): Limit 3, Used 3. Please try again in 20s. You "
    "can increase your rate limit by adding a payment method at https://example.com/account/billing."
)
Q = "You exceeded your current quota, please check your plan and billing details."


def episode(reply: Reply | str, **agent: Any) -> vf.Episode:
    """One episode of board-v1 whose every model call gets `reply`."""

    async def play() -> vf.Episode:
        async with env.serving():
            task = next(iter(env.taskset))
            return await env.run_episode(task, Endpoints(config).contexts[0])

    with Endpoint(lambda _: reply) as endpoint:
        config = GEPAConfig(
            taskset={"id": "board-v1"},
            model="student",
            client={"base_url": endpoint.url, "timeout": {"read": 0.5}},
            local=True,
            agent=agent,
        )
        env = vf.load_environment(config)
        return asyncio.run(play())


FAULTS = {
    "401": (Reply.error(401, "bad key"), "permanent", "401"),
    "403": (Reply.error(403, "no"), "permanent", "403"),
    "404": (Reply.error(404, "no model"), "permanent", "404"),
    "quota": (Reply.error(429, Q, "insufficient_quota"), "permanent", "quota"),
    "invalid parameter": (Reply.error(400, "unknown parameter"), "refused", "400"),
    "429": (Reply.error(429, "slow down", headers={"Retry-After": "0"}), "transient", "429"),
    "500": (Reply.error(500, "oops", headers={"Retry-After": "0"}), "transient", "500"),
    "html": (Reply(body="<html>bad gateway</html>"), "transient", ""),
    "no choices": (
        Reply(body={"id": "x", "object": "chat.completion", "choices": []}),
        "transient",
        "",
    ),
    "cut body": (Reply("right", cut=20), "transient", ""),
    "dropped": (Reply(drop=True), "transient", ""),
    "hang": (Reply(until=threading.Event()), "transient", "504"),
}


@pytest.mark.parametrize(("reply", "kind", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_never_a_score(reply: Reply, kind: str, words: str) -> None:
    verdict = judge_episode(episode(reply))
    assert verdict.kind == kind
    assert words in verdict.cause
    assert verdict.cause


MEASURED = {
    "right": ("right", 1.0),
    "wrong": ("wrong", 0.0),
    "empty": ("", 0.0),
    "null": (Reply(text=None), 0.0),
    "blank": (" \n", 0.0),
    "cut at the token limit": (Reply("righ", finish_reason="length"), 0.0),
    "context length exceeded": (
        Reply.error(400, "This model's maximum context length is 10", "context_length_exceeded"),
        0.0,
    ),
}


@pytest.mark.parametrize(("reply", "score"), MEASURED.values(), ids=MEASURED)
def test_what_the_model_did_is_a_measurement(reply: Reply | str, score: float) -> None:
    played = episode(reply)
    verdict = judge_episode(played)
    assert (verdict.kind, verdict.scored) == ("measured", True)
    refused = isinstance(reply, Reply) and reply.status >= 400
    assert ("maximum context length" in verdict.cause) == refused
    assert bool(verdict.cause) == refused
    assert played.traces[0].reward == score


def test_a_refusal_by_the_content_filter_is_the_prompts_doing() -> None:
    verdict = judge_episode(episode(Reply.error(400, "blocked by content_filter policy")))
    assert (verdict.kind, verdict.scored) == ("measured", False)


def test_a_rollout_that_timed_out_before_any_answer_is_no_score() -> None:
    hanging = Reply(until=threading.Event())
    played = episode(hanging, timeout={"rollout": 0.2})
    assert played.ok
    verdict = judge_episode(played)
    assert verdict == Verdict(
        "transient", "the rollout timed out before any model call was answered"
    )


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (float("nan"), "the reward 'right' is nan"),
        (float("inf"), "the reward 'right' is inf"),
        (None, "the reward 'right' is missing"),
    ],
)
def test_a_reward_that_is_no_number_is_no_score(value: float | None, cause: str) -> None:
    played = episode("right")
    reward = played.traces[0].rewards["right"]
    assert reward is not None
    if value is None:
        played.traces[0].rewards["right"] = None
    else:
        reward.score = value
    assert judge_episode(played) == Verdict("transient", cause)


def test_no_reward_at_all_is_no_score() -> None:
    played = episode("right")
    played.traces[0].rewards.clear()
    assert judge_episode(played).kind == "transient"
    played.traces.clear()
    assert judge_episode(played) == Verdict("transient", "the episode ended without a trace")


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (408, "timeout", "transient"),
        (409, "conflict", "transient"),
        (429, "You exceeded your current quota, check your plan and billing.", "permanent"),
        (429, "You exceeded your current quota. Please retry in 7.2s.", "transient"),
        (429, RATE_LIMIT, "transient"),
        (429, "Your account is not active, billing not active", "permanent"),
        (402, "pay", "permanent"),
        (413, "prompt is too long: 9 tokens > 8 maximum", "measured"),
        (422, "unprocessable", "refused"),
        (503, "overloaded", "transient"),
        (None, "connection reset", "transient"),
    ],
)
def test_the_status_and_the_text_decide(status: int | None, message: str, kind: str) -> None:
    assert judge_status(status, message).kind == kind
