"""What a run says that it spent is what its endpoint says, and a cap on it holds."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    Endpoint,
    Reply,
    Request,
    Run,
    fenced,
    good_student,
    good_teacher,
    resumed,
    run,
    scripted,
    turns,
)
from verifiers.v1.gepa.spend.money import list_price
from verifiers.v1.types import Usage

STUDENT = ["--price-in", "1", "--price-out", "10"]
PRICED = [*STUDENT, "--reflection-price-in", "2", "--reflection-price-out", "20"]

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "total_tokens": 1100,
    "prompt_tokens_details": {"cached_tokens": 600},
}


class Meter:
    """An endpoint's own account: tokens that it reported, by role."""

    def __init__(self, respond: Callable[[Request], Reply]) -> None:
        self.tokens: dict[str, dict[str, int]] = {}
        self._respond = respond
        self._lock = threading.Lock()
        self._count = 0

    def __call__(self, request: Request) -> Reply:
        reply = self._respond(request)
        if reply.status != 200 or reply.until is not None:
            return reply
        role = "teacher" if request.to_teacher else "student"
        role = "judges" if request.body["model"] == "judge" else role
        with self._lock:
            self._count += 1
            usage = {"prompt_tokens": 1000 + self._count, "completion_tokens": self._count}
            usage["total_tokens"] = sum(usage.values())
            tokens = self.tokens.setdefault(role, {"input": 0, "output": 0})
            tokens["input"] += usage["prompt_tokens"]
            tokens["output"] += usage["completion_tokens"]
        if isinstance(reply.body, dict):
            return replace(reply, body={**reply.body, "usage": usage})
        return replace(reply, usage=usage)


def test_tokens_are_the_endpoints_own_with_failures_and_after_a_kill(tmp_path: Path) -> None:
    turn, teach = turns(), good_teacher()
    killed = Run(0, tmp_path / "killed")
    at_the_kill: dict[str, dict[str, int]] = {}

    def respond(request: Request) -> Reply:
        if request.user == "ping":
            return Reply("pong")
        number = turn(request)
        if request.to_teacher:
            empty = {"object": "chat.completion", "choices": []}
            return Reply(body=empty) if number == 1 else Reply(teach(request))
        if request.user == "question 5" and number < 4:
            return Reply.error(500, "oops")
        if request.user == "question 6" and number < 3:
            return Reply.error(429, "slow down", headers={"Retry-After": "0"})
        if request.user == "question 7" and number == 1:
            return Reply(until=threading.Event())
        if "GOOD" in request.system and request.user == "question 6" and not at_the_kill:
            # What a process that is killed now leaves behind.
            at_the_kill.update({role: dict(tokens) for role, tokens in meter.tokens.items()})
            shutil.copytree(tmp_path / "run0", killed.folder)
        return Reply(good_student(request))

    # The reward of one val task raises, so it is paid for in vain: in each of two attempts the
    # host tries it twice.
    flags = ["--taskset.task.broken", "raise", "--taskset.task.broken-on", "question 4"]
    flags += ["--retries.max-retries", "1", "--max-attempts", "2", "--max-dropped-fraction", "0.3"]
    flags += ["--max-total-rollouts", "12", "-c", "1", "--client.timeout.read", "0.3"]
    meter = Meter(respond)
    with Endpoint(meter, models=()) as endpoint:
        done = run(endpoint, tmp_path, *flags)
        assert done.status == 0
        assert done.result["tokens"] == meter.tokens
        spent = [line["role"] for line in done.lines("decisions.jsonl") if "role" in line]
        assert spent == ["teacher", "student", "student", "teacher"]
        meter.tokens = at_the_kill
        again = resumed(endpoint, killed, *flags)
    assert again.status == 0
    assert 0 < again.result["rollouts"]["replayed"] < again.charged
    assert again.result["tokens"] == meter.tokens


def test_a_call_of_an_episode_that_is_cut_short_counts(tmp_path: Path) -> None:
    def respond(request: Request) -> Reply:
        if request.body["model"] != "judge":
            return Reply(good_student(request))
        if not interrupted.is_set():  # the student's call is paid for, its episode not over
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)
            return Reply(until=threading.Event())
        return Reply("1")

    interrupted = threading.Event()
    meter = Meter(lambda r: good_reply(r) if r.to_teacher else respond(r))
    with Endpoint(meter) as endpoint, Endpoint(meter) as judge:
        flags = ["--taskset.task.broken", "judge", "--taskset.task.judge-url", judge.url]
        flags += ["--max-total-rollouts", "12"]
        first = run(endpoint, tmp_path, *flags)
        assert first.status == 130
        assert first.result["tokens"] == meter.tokens
        again = resumed(endpoint, first, *flags)
    assert again.status == 0
    assert again.result["tokens"] == meter.tokens


def test_a_judge_that_reports_no_usage_has_no_known_cost(tmp_path: Path) -> None:
    flags = [*PRICED, "--judge-price-in", "1", "--judge-price-out", "1", "--allow-small-budget"]
    flags += ["--max-total-rollouts", "4", "--taskset.task.broken", "judge"]
    with fixed(USAGE) as endpoint, Endpoint(lambda _: Reply("1", usage={})) as judge:
        flags += ["--taskset.task.judge-url", judge.url]
        done = run(endpoint, tmp_path, *flags)
        first = done.result["cost"]
        again = resumed(endpoint, done, *flags)
    assert first["roles"]["student"]["usd"] == pytest.approx(4 * 0.002)
    assert first["reason"] == "judges: the endpoint reported no token usage for 4 calls"
    assert first["usd"] is None
    assert again.result["cost"] == first


def good_reply(request: Request) -> Reply:
    return Reply(fenced("Answer. GOOD"))


def fixed(usage: dict[str, Any]) -> Endpoint:
    """An endpoint where every call has the same usage."""
    teach = good_teacher()
    return scripted(
        lambda request: Reply(good_student(request), usage=usage),
        lambda request: Reply(teach(request), usage=usage),
    )


LISTED = ["-m", "openai/gpt-4.1-mini", "--reflection-model", "gpt-4.1-mini"]
"""0.4 dollars per million input tokens, 0.1 of cached ones, 1.6 of output: 0.00038 a call."""

COSTS: dict[str, tuple[list[str], dict[str, Any], float | None, float | None]] = {
    "told": (PRICED, USAGE, 12 * 0.002, 0.004),
    "one told": (STUDENT, USAGE, 12 * 0.002, None),
    "none told": ([], USAGE, None, None),
    "listed": (LISTED, USAGE, 12 * 0.00038, 0.00038),
    "reported": ([], {**USAGE, "cost": 0.5}, 12 * 0.5, 0.5),
    "reported as free": ([], {**USAGE, "cost": 0}, 0, 0),
    "listed and reported as free": (LISTED, {**USAGE, "cost": 0}, 12 * 0.00038, 0.00038),
    "reported below nothing": ([], {**USAGE, "cost": -0.5}, None, None),
    "told and reported": (PRICED, {**USAGE, "cost": 0.5}, 12 * 0.002, 0.004),
    "free": ([f.replace("10", "0").replace("1", "0") for f in STUDENT], USAGE, 0, None),
    "no usage": (PRICED, {}, None, None),
}
"""Flags, usage of each call, and what 12 calls of the student and one of the teacher cost."""


@pytest.mark.parametrize("name", COSTS)
def test_what_has_no_price_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    flags, usage, student, teacher = COSTS[name]
    with fixed(usage) as endpoint:
        flags = [*flags, "--max-total-rollouts", "12", "--no-preflight"]
        done = run(endpoint, tmp_path, *flags)
    cost = done.result["cost"]
    assert cost["roles"]["student"]["usd"] == (
        student if student is None else pytest.approx(student)
    )
    assert cost["roles"]["teacher"]["usd"] == (
        teacher if teacher is None else pytest.approx(teacher)
    )
    if student is None or teacher is None:
        assert cost["usd"] is None
        shown = f"cost: unknown ({cost['reason']})"
    else:
        assert cost["usd"] == pytest.approx(student + teacher)
        shown = f"cost: ${cost['usd']:.4f}"
    assert shown in capsys.readouterr().err


def test_a_list_price_holds_the_fee_of_each_request() -> None:
    price = list_price("sonar", "https://api.perplexity.ai")
    assert price is not None
    # A dollar per million tokens, and 12 per thousand requests.
    assert float(price.usd(Usage(prompt_tokens=1000, completion_tokens=100))) == pytest.approx(
        0.0011 + 0.012
    )


# A cap


def test_a_cap_that_the_third_iteration_reaches_ends_the_search_there(tmp_path: Path) -> None:
    # 0.002 for a rollout, 0.004 for a teacher call: 0.008 for the seed prompt, then 0.020 for an
    # accepted proposal and 0.012 for each that is not.
    with fixed(USAGE) as endpoint:
        flags = [*PRICED, "--max-cost", "0.045", "--max-total-rollouts", "100"]
        done = run(endpoint, tmp_path, *flags)
        assert done.status == 0
        assert done.result["finish_reason"] == "max_cost"
        assert done.result["proposals"]["tried"] == 3
        assert done.result["cost"]["usd"] == pytest.approx(0.008 + 0.020 + 2 * 0.012)
        again = resumed(endpoint, done, *PRICED, "--max-cost", "0.06")
    assert again.result["finish_reason"] == "max_cost"
    assert again.result["proposals"]["tried"] == 4


def test_a_cap_needs_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fixed({}) as endpoint:
        flags = ["--max-cost", "1", "--max-total-rollouts", "12", "--reflection-model", "teacher"]
        done = run(endpoint, tmp_path, *flags, *STUDENT)
        assert (done.status, endpoint.requests) == (2, [])
        assert capsys.readouterr().err.splitlines()[-1] == (
            "gepa: --max-cost 1: the teacher's model 'teacher': no price is known, give "
            "--reflection-price-in and --reflection-price-out (US dollars per million tokens)"
        )
        done = run(endpoint, tmp_path, *flags, "--price-in", "1")
        assert (done.status, endpoint.requests) == (2, [])
        assert "--price-in and --price-out go together" in capsys.readouterr().err
        # Prices are known, but the endpoint does not say what it charges for.
        done = run(endpoint, tmp_path, *flags, *PRICED)
        assert (done.status, done.charged) == (2, 4)
        last = capsys.readouterr().err.splitlines()[-1]
        assert "--max-cost can't be kept: student: the endpoint reported no token usage" in last
