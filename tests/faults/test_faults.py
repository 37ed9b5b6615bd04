"""Faults in the middle of a run: none becomes a score, none loses what was paid for."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    TEN,
    Endpoint,
    Reply,
    Request,
    good_student,
    resumed,
    run,
    scripted,
    student_requests,
    teacher_requests,
)

NOW = {"Retry-After": "0"}

FAULTS: dict[str, Callable[[], Reply]] = {
    "429": lambda: Reply.error(429, "slow down", headers=NOW),
    "500": lambda: Reply.error(500, "oops", headers=NOW),
    "reset": lambda: Reply(drop=True),
    "hang": lambda: Reply(until=threading.Event()),
    "broken off": lambda: Reply("right", finish_reason="error"),
}


def failing(fault: Reply, on: Callable[[Request], bool], times: int) -> Callable[[Request], Any]:
    """`good_student`, but the first `times` requests for which `on` is true get the fault."""
    left = itertools.count(times, -1)

    def student(request: Request) -> Reply | str:
        if on(request) and next(left) > 0:
            return fault
        return good_student(request)

    return student


HASTE = ["--client.timeout.read", "0.3"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_childs_val_pass_changes_no_score(tmp_path: Path, name: str) -> None:
    def on(request: Request) -> bool:
        return "GOOD" in request.system and request.user == "question 6"

    # The harness calls three times per attempt: one whole attempt fails.
    with scripted(failing(FAULTS[name](), on, 3)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", *HASTE)
    with scripted() as endpoint:
        whole = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    for file in ("candidates.json", "run_log.json", "best_system_prompt.txt"):
        assert (done.folder / file).read_bytes() == (whole.folder / file).read_bytes()
    for key in ("val_means", "finish_reason", "proposals"):
        assert done.result[key] == whole.result[key]
    assert done.result["rollouts"]["failed"] == 1
    assert done.charged == done.result["rollouts"]["charged"] == 12


@pytest.mark.parametrize("name", FAULTS)
def test_a_seed_that_is_worth_1_is_recorded_as_1(tmp_path: Path, name: str) -> None:
    def on(request: Request) -> bool:
        return request.user == "question 5"

    flags = ["--initial-prompt", "GOOD", "--max-total-rollouts", "12", *HASTE]
    with scripted(failing(FAULTS[name](), on, 3)) as endpoint:
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 0
    assert done.result["seed_val_mean"] == 1.0
    assert done.result["rollouts"]["failed"] == 1


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_teacher_that_only_fails_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    with scripted(teacher=lambda _: Reply.error(status, "no such thing")) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "100")
    assert done.status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert str(status) in last
    assert "no such thing" in last
    assert endpoint.teacher_url in last
    assert (done.result["status"], done.result["finish_reason"]) == ("failed", "fault")
    assert done.charged == done.result["rollouts"]["charged"] == 6
    assert len(teacher_requests(endpoint)) == (3 if status == 500 else 1)


def test_a_teacher_that_recovers_loses_nothing(tmp_path: Path) -> None:
    replies = itertools.chain([Reply.error(503, "busy", headers=NOW)] * 2)

    def teacher(request: Request) -> Reply | str:
        return next(replies, "````\nAnswer. GOOD\n````")

    with scripted(teacher=teacher) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    (exchange,) = done.lines("reflections.jsonl")
    assert (exchange["attempts"], exchange["verdict"]) == (3, "proposal")


def test_a_teacher_call_that_hangs_times_out(tmp_path: Path) -> None:
    replies = iter([Reply(until=threading.Event())])

    def teacher(request: Request) -> Reply | str:
        return next(replies, "````\nAnswer. GOOD\n````")

    with scripted(teacher=teacher) as endpoint:
        flags = ["--max-total-rollouts", "12", "--reflection-timeout", "0.3"]
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 0
    assert done.lines("reflections.jsonl")[0]["attempts"] == 2


def test_an_episode_that_hangs_times_out_and_is_tried_again(tmp_path: Path) -> None:
    hang = failing(Reply(until=threading.Event()), lambda request: request.user == "question 6", 1)
    with scripted(hang) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", "--timeout.episode", "0.5")
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    (failed,) = [line["gepa"] for line in done.lines("traces.jsonl") if not line["gepa"]["charged"]]
    assert "exceeded its 0.5s deadline" in failed["cause"]


# Rewards


@pytest.mark.parametrize("kind", ["nan", "inf", "none", "raise"])
def test_a_reward_that_never_scores_stops_the_run_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    with scripted() as endpoint:
        flags = ["--taskset.task.broken", kind, "--max-total-rollouts", "20"]
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "1 of 4 val tasks could not be measured" in last
    assert {"nan": "is nan", "inf": "is inf", "none": "", "raise": "no such key"}[kind] in last
    # Found out by one task, at three attempts; none is charged.
    assert len(student_requests(endpoint)) == 3
    assert done.charged == 0
    assert done.result["rollouts"]["failed"] == 3
    for line in (done.folder / "traces.jsonl").read_bytes().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_a_judge_without_a_valid_key_stops_the_run_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint, Endpoint(lambda _: Reply.error(401, "bad judge key")) as judge:
        flags = ["--taskset.task.broken", "judge", "--taskset.task.judge-url", judge.url]
        done = run(endpoint, tmp_path, *flags, "--max-total-rollouts", "20")
    assert done.status == 2
    assert "bad judge key" in capsys.readouterr().err.splitlines()[-1]
    assert len(student_requests(endpoint)) == 1


@pytest.mark.parametrize("reply", [Reply(""), Reply(text=None), Reply(" \n\t")])
def test_an_empty_reply_is_a_low_score_and_the_run_goes_on(tmp_path: Path, reply: Reply) -> None:
    def student(request: Request) -> Reply | str:
        return "right" if "GOOD" in request.system else reply

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    assert (done.result["seed_val_mean"], done.result["best_val_mean"]) == (0.0, 1.0)
    assert done.result["rollouts"]["failed"] == 0


SCALES = {
    "-1 to 0": (["--taskset.task.low", "-1", "--taskset.task.high", "0"], -1.0, 0.0),
    "0 to 10": (["--taskset.task.low", "0", "--taskset.task.high", "10"], 0.0, 10.0),
    "0.95 to 1": (["--taskset.task.low", "0.95", "--taskset.task.high", "1"], 0.95, 1.0),
}


@pytest.mark.parametrize(("flags", "low", "high"), SCALES.values(), ids=SCALES)
def test_any_scale_of_rewards(tmp_path: Path, flags: list[str], low: float, high: float) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "20", *flags)
    assert done.result["seed_val_mean"] == pytest.approx(low)
    assert done.result["best_val_mean"] == pytest.approx(high)
    assert done.result["finish_reason"] == "budget"
    assert done.charged == 20


def test_a_refused_prompt_is_the_worst_score_on_any_scale(tmp_path: Path) -> None:
    """The content filter refuses what the child makes of some tasks: on a scale that ends at 0,
    counting that as 0 would make it the winner."""

    def student(request: Request) -> Reply | str:
        if "GOOD" in request.system:
            return Reply.error(400, "blocked by the content_filter")
        return "wrong"

    with scripted(student) as endpoint:
        flags = ["--taskset.task.low", "-1", "--taskset.task.high", "0"]
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", *flags)
    assert done.status == 0
    assert done.candidates == ["Answer."]
    assert done.result["proposals"]["rejected"] == 2


# Tasks that can't be measured


def broken(*questions: str) -> list[str]:
    return ["--taskset.task.broken", "raise", "--taskset.task.broken-on", *questions]


def test_a_val_task_that_fails_for_good_is_dropped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(
            endpoint, tmp_path, *broken("question 7"), "--max-total-rollouts", "24", base=TEN
        )
        assert done.status == 0
        assert "val task 7 was dropped, it could not be measured" in capsys.readouterr().err
        assert done.json("splits.json")["dropped"] == done.result["dropped"] == [7]
        assert done.result["val_means"] == [0.0, 1.0]
        # 9 + 2 + 2 + 9: the dropped task is no part of the child's val pass.
        assert done.charged == 22
        # A resume knows it from the record and asks for nothing that it had.
        sent = len(endpoint.requests)
        again = resumed(
            endpoint, done, *broken("question 7"), "--max-total-rollouts", "25", base=TEN
        )
        assert again.status == 0
        assert len(endpoint.requests) == sent
        assert again.result["dropped"] == [7]


def test_more_of_them_than_allowed_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*broken("question 7", "question 9"), "--max-total-rollouts", "30"]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *flags, base=TEN)
        assert done.status == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "2 of 10 val tasks could not be measured" in last
        assert "--max-dropped-fraction 0.1" in last
        allowed = run(endpoint, tmp_path, *flags, "--max-dropped-fraction", "0.2", base=TEN)
    assert allowed.status == 0
    assert allowed.result["dropped"] == [7, 9]


def only(question: str, system: str, endpoint_up: Callable[[Request], Any]) -> Callable[..., Any]:
    """The endpoint fails for good on one question with one kind of prompt."""

    def student(request: Request) -> Any:
        if request.user == question and system in request.system:
            return Reply.error(500, "broken", headers=NOW)
        return endpoint_up(request)

    return student


def test_a_task_lost_in_a_later_val_pass_counts_the_same_for_every_prompt(tmp_path: Path) -> None:
    """Right on that task is the seed prompt alone; without the task the child is far better."""

    def student(request: Request) -> str:
        if request.user == "question 7":
            return "right" if "GOOD" not in request.system else "wrong"
        return good_student(request)

    with scripted(only("question 7", "GOOD", student)) as endpoint:
        flags = ["--max-total-rollouts", "24", "--max-attempts", "1"]
        done = run(endpoint, tmp_path, *flags, base=TEN)
        assert done.status == 0
        assert done.result["val_means"] == pytest.approx([0.1, 1.0])
        assert any("val task 7 no longer counts" in text for text in done.result["warnings"])
        (decision,) = [d for d in done.lines("decisions.jsonl") if d["decision"] != "ended"]
        assert (decision["decision"], decision["occurrence"]) == ("given up", 0)
        assert done.charged == 23
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, "--max-total-rollouts", "26", base=TEN)
        assert again.result["val_means"] == pytest.approx([0.1, 1.0])
        assert len(endpoint.requests) == sent


@pytest.mark.parametrize(("system", "broken_for"), [("GOOD", "child"), ("Answer", "parent")])
def test_a_train_task_that_is_lost_decides_no_comparison(
    tmp_path: Path, system: str, broken_for: str
) -> None:
    """The child wins on the minibatch's other task, whoever lost this one."""
    with scripted(only("question 0", system, good_student)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "24", "--max-attempts", "1")
        assert done.status == 0
        assert done.result["best_val_mean"] == 1.0
        lost = [line for line in done.lines("decisions.jsonl") if line["decision"] == "given up"]
        assert lost
        assert any("train task 0 decided nothing" in text for text in done.result["warnings"])
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, "--max-total-rollouts", "24")
        assert again.result["val_means"] == done.result["val_means"]
        assert len(endpoint.requests) == sent


def test_an_outage_stops_the_run_which_then_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down = only("question 5", "GOOD", good_student)

    def student(request: Request) -> Any:
        if "GOOD" in request.system and request.user in {"question 4", "question 6"}:
            return Reply.error(503, "down", headers=NOW)
        return down(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 2
    assert "3 of 4 val tasks could not be measured" in capsys.readouterr().err.splitlines()[-1]
    assert done.charged == 9
    with scripted() as endpoint:
        again = resumed(endpoint, done, "--max-total-rollouts", "12")
        assert len(endpoint.requests) == 3
    assert again.status == 0
    assert again.result["val_means"] == [0.0, 1.0]


# Throttling


def test_an_endpoint_that_throttles_gives_the_same_scores(tmp_path: Path) -> None:
    """5 requests a second, the others get 429 with Retry-After."""
    lock, window = threading.Lock(), [0.0, 0.0]

    def allowed() -> bool:
        with lock:
            now = time.monotonic()
            if now - window[0] >= 1:
                window[:] = [now, 0]
            window[1] += 1
            return window[1] <= 5

    def student(request: Request) -> Reply | str:
        if allowed():
            return good_student(request)
        return Reply.error(429, "slow down", headers={"Retry-After": "0.2"})

    flags = ["--max-total-rollouts", "24", "--max-attempts", "6"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *flags, base=TEN)
    with scripted() as endpoint:
        whole = run(endpoint, tmp_path, *flags, base=TEN)
    assert done.status == 0
    assert done.result["val_means"] == whole.result["val_means"] == [0.0, 1.0]
    assert done.candidates == whole.candidates
    assert done.charged == whole.charged
    assert any("the endpoint throttled" in text for text in done.result["warnings"])
