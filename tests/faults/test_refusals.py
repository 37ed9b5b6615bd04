"""Runs against endpoints that refuse: one request, every request, or for a while."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    ROOT,
    Endpoint,
    Reply,
    Request,
    fenced,
    good_student,
    resumed,
    run,
    scripted,
    student_requests,
    teacher_requests,
)

ODD = '{"error": {"message": "something odd about this request"}}'
"""A refusal in words that no row knows."""

BUDGET = ["--max-total-rollouts", "12"]

TOO_LONG = {
    "vLLM": "The decoder prompt (length 10127) is longer than the maximum model length of 8192.",
    "llama.cpp": "request (33056 tokens) exceeds the available context size (32768 tokens)",
    "Bedrock": "Input is too long for requested model.",
    "Gemini": "The input token count (1250000) exceeds the maximum number of tokens allowed.",
    "SGLang": "The input (33056 tokens) is longer than the model's context length (32768 tokens).",
    "TGI": "Input validation error: `inputs` must have less than 8193 tokens. Given: 10127",
    "nobody": "something odd about this request",
}


def refused(status: int, message: str, **error: Any) -> Reply:
    return Reply(status=status, body={"error": {"message": message, **error}})


@pytest.mark.parametrize("message", TOO_LONG.values(), ids=TOO_LONG)
def test_a_task_that_one_candidate_is_refused_is_lost_for_that_candidate_alone(
    tmp_path: Path, message: str
) -> None:
    def student(request: Request) -> str | Reply:
        if "GOOD" in request.system and request.user == "question 5":
            return refused(400, message)
        return good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    assert done.status == 0
    assert done.result["val_means"] == [0.0, 0.75]
    assert done.result["dropped"] == []
    (line,) = [row for row in done.lines("traces.jsonl") if row["gepa"]["cause"]]
    stamp = line["gepa"]
    # The harness notices a full context window in some words, and ends the rollout in order.
    assert (stamp["verdict"], stamp.get("score", 0.0), stamp["charged"]) == ("measured", 0.0, True)
    assert message[:40] in stamp["cause"]


def test_an_endpoint_that_refuses_everything_stops_the_run_after_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(lambda _: refused(400, "'temperature' must be at most 1")) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET, "--sampling.temperature", "2")
        assert len(student_requests(endpoint)) == 3
    assert done.status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "400: " in last
    assert "lower --sampling.temperature" in last
    assert done.charged == 0
    assert {row["gepa"]["verdict"] for row in done.lines("traces.jsonl")} <= {"permanent"}


def test_a_first_task_that_is_refused_is_a_measurement_once_another_is_answered(
    tmp_path: Path,
) -> None:
    def student(request: Request) -> str | Reply:
        return refused(422, "odd") if request.user == "question 4" else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    assert done.status == 0
    assert done.result["dropped"] == []
    assert done.charged == 12
    lost = [row for row in done.lines("traces.jsonl") if row["gepa"]["cause"]]
    assert {row["gepa"]["verdict"] for row in lost} == {"measured"}


def test_an_endpoint_that_begins_to_refuse_everything_stops_the_run(tmp_path: Path) -> None:
    """The seed prompt was answered on val and is refused throughout on its minibatches: those
    rollouts are not measured, as a resume shows once the endpoint answers again."""
    seen: list[Request] = []
    mended = threading.Event()

    def student(request: Request) -> str | Reply:
        seen.append(request)
        fine = len(seen) <= 4 or mended.is_set()
        return good_student(request) if fine else refused(400, "odd")

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        assert done.status == 2
        assert "odd" in done.result["message"]
        assert len(seen) == 4 + 4  # two minibatches of 2
        assert done.charged == 4
        mended.set()
        again = resumed(endpoint, done, "--max-total-rollouts", "12")
    assert again.status == 0
    assert again.charged == 12
    assert again.result["val_means"] == [0.0, 1.0]


def test_a_resume_at_an_endpoint_that_refuses_everything_stops(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    with scripted(lambda _: refused(400, "odd")) as endpoint:
        again = resumed(endpoint, done, "--max-total-rollouts", "24")
    assert again.status == 2
    assert "odd" in again.result["message"]
    assert again.charged == 12


def test_a_run_that_a_refusal_stopped_goes_on_where_the_endpoint_is_mended(tmp_path: Path) -> None:
    broken = threading.Event()
    broken.set()

    def student(request: Request) -> str | Reply:
        return refused(400, "odd") if broken.is_set() else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
        assert done.status == 2
        broken.clear()
        again = resumed(endpoint, done, *BUDGET)
    assert again.status == 0
    assert again.charged == 12
    assert again.result["best_val_mean"] == 1.0


# The teacher


def test_three_refused_requests_of_the_teacher_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "'max_tokens' or 'max_completion_tokens' is too large: 32768. This model's maximum "
    message += "context length is 8192 tokens and your request has 1203 input tokens."
    flags = ["--max-total-rollouts", "40", "--reflection-sampling.max-tokens", "32768"]
    with scripted(teacher=lambda _: refused(400, message, type="BadRequestError")) as endpoint:
        done = run(endpoint, tmp_path, *flags, "--no-preflight")
        asked = len(teacher_requests(endpoint))
    assert done.status == 2
    assert "lower --reflection-sampling.max-tokens" in capsys.readouterr().err.splitlines()[-1]
    rows = done.lines("reflections.jsonl")
    assert len(rows) == asked
    assert len({row["key"] for row in rows}) == 3  # the same request may come twice
    assert [row["verdict"] for row in rows[:-1]] == ["no proposal"] * (asked - 1)
    assert rows[-1]["verdict"] == "failed"


def test_a_refused_request_of_the_teacher_is_no_proposal(tmp_path: Path) -> None:
    replies: list[Any] = [refused(400, "odd"), refused(400, "odd"), fenced("Answer. GOOD")]
    with scripted(teacher=lambda _: replies.pop(0)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "16", "--max-reflections", "3")
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    assert done.result["proposals"]["unusable"] == 2


BROKEN_REPLIES = (
    *("max_tokens", "MAX_TOKENS", "model_context_window_exceeded", "SAFETY", "sensitive"),
    *("network_error", "insufficient_system_resource", "error"),
)


@pytest.mark.parametrize("reason", BROKEN_REPLIES)
def test_a_reply_that_broke_off_is_no_proposal_and_the_run_goes_on(
    tmp_path: Path, reason: str
) -> None:
    """A draft in it does not become a prompt, in none of its attempts."""
    draft, whole = Reply(fenced("A draft."), finish_reason=reason), fenced("Answer. GOOD")
    lasting = reason in BROKEN_REPLIES[5:]
    replies: list[Any] = [draft] * (2 if lasting else 1) + [whole]
    flags = ["--max-total-rollouts", "14", "--max-reflections", "2", "--max-attempts", "2"]
    with scripted(teacher=lambda _: replies.pop(0)) as endpoint:
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 0
    assert done.candidates == ["Answer.", "Answer. GOOD"]
    first, second = done.lines("reflections.jsonl")
    assert (first["verdict"], first["attempts"]) == ("no proposal", 2 if lasting else 1)
    assert reason in first["reason"]
    assert second["verdict"] == "proposal"
    assert done.result["proposals"]["unusable"] == 1


WORDS = json.loads((ROOT / "tests/faults/provider_words.json").read_bytes())


@pytest.mark.parametrize("said", WORDS, ids=lambda said: said["who"])
def test_what_the_teachers_provider_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any]
) -> None:
    """The first request gets it, the second (an attempt at the same, or the next) is answered."""
    replies: list[Any] = [Reply(status=said["status"], body=said["body"]), fenced("Answer. GOOD")]
    started = time.monotonic()
    with scripted(teacher=lambda _: replies.pop(0)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "14", "--max-reflections", "2")
    rows = done.lines("reflections.jsonl")
    if said["teacher"] == "stops":
        assert done.status == 2
        assert said["says"] in capsys.readouterr().err.splitlines()[-1]
        assert len(replies) == 1
        assert time.monotonic() - started < 60
    elif said["teacher"] == "again":
        assert done.status == 0
        assert [(row["verdict"], row["attempts"]) for row in rows] == [("proposal", 2)]
    else:
        assert done.status == 0
        assert [row["verdict"] for row in rows] == ["no proposal", "proposal"]
        assert said["says"] in rows[0]["reason"]


@pytest.mark.parametrize("said", WORDS, ids=lambda said: said["who"])
@pytest.mark.parametrize("when", ["first", "later"])
def test_what_the_students_provider_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any], when: str
) -> None:
    """In the first rollout or in mid-run, on one task, till it was asked three times by a harness
    that tries again by itself."""
    task = "question 4" if when == "first" else "question 5"
    times: list[int] = []

    def student(request: Request) -> str | Reply:
        hit = request.user == task and (when == "first" or "GOOD" in request.system)
        if hit and (said["student"] != "again" or len(times) < 1):
            times.append(1)
            return Reply(status=said["status"], body=said["body"], headers={"Retry-After": "0"})
        return good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *BUDGET)
    if said["student"] == "stops":
        assert done.status == 2
        assert said["says"] in capsys.readouterr().err.splitlines()[-1]
        return
    assert done.status == 0
    lost = [row for row in done.lines("traces.jsonl") if row["gepa"]["cause"]]
    if said["student"] == "again":
        assert all(row["gepa"]["verdict"] == "transient" for row in lost)
        assert done.result["best_val_mean"] == 1.0
    else:
        assert {row["gepa"]["verdict"] for row in lost} == {"measured"}
        # The harness asks three times where it is told 429; the first rollout of a run is refused
        # once more than it counts, as nothing tells then what a refusal means.
        calls = 3 if said["status"] == 429 else 1
        assert len(lost) * calls <= len(times) <= len(lost) * calls + (when == "first")


JUDGED = [said for said in WORDS if said["status"] != 200]
"""The host keeps a judge's reason to finish to itself: what is wrong with a 200 is not seen."""


@pytest.mark.parametrize("said", JUDGED, ids=lambda said: said["who"])
def test_what_a_judges_provider_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any]
) -> None:
    """About one val task: it stops the run, passes, or leaves the task without a measurement."""
    again = threading.Event()

    def judge(_: Request) -> str | Reply:
        if said["student"] == "again" and again.is_set():
            return "1"
        again.set()
        return Reply(status=said["status"], body=said["body"], headers={"Retry-After": "0"})

    with scripted() as endpoint, Endpoint(judge) as judges:
        flags = ["--taskset.task.broken", "judge", "--taskset.task.judge-url", judges.url]
        flags += ["--taskset.task.broken-on", "question 5", "--max-dropped-fraction", "0.5"]
        flags += ["--max-attempts", "2" if said["student"] == "again" else "1"]
        done = run(endpoint, tmp_path, *BUDGET, *flags)
    if said["student"] == "stops":
        assert done.status == 2
        # The SDK quotes the answer in Python's form.
        assert said["says"].split()[0] in capsys.readouterr().err.splitlines()[-1]
    else:
        assert done.status == 0
        assert done.result["dropped"] == ([] if said["student"] == "again" else [5])


ROLES = [("teacher", said) for said in WORDS] + [("student", said) for said in WORDS[::3]]
"""The student is asked by the same code; only where it has several replicas."""


@pytest.mark.parametrize(
    ("role", "said"), ROLES, ids=lambda it: it if it in ("student", "teacher") else it["who"]
)
def test_what_a_provider_says_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any], role: str
) -> None:
    """To the question of the preflight: what stops a run stops it before the first rollout, what
    is about a request is no reason not to begin."""
    times: list[int] = []

    def answer(request: Request) -> str | Reply:
        if "ping" not in request.user:
            return good_student(request) if not request.to_teacher else fenced("Answer. GOOD")
        times.append(1)
        if said["student"] == "again" and len(times) > 1:
            return "pong"
        return Reply(status=said["status"], body=said["body"], headers={"Retry-After": "0"})

    with Endpoint(answer, models=()) as endpoint:  # what it serves, only a completion tells
        urls = ["--task-endpoints", endpoint.url, endpoint.url] if role == "student" else []
        done = run(endpoint, tmp_path, *BUDGET, *urls)
        sent = [request for request in student_requests(endpoint) if request.user != "ping"]
    assert times
    if said["student"] == "stops":
        assert done.status == 2
        assert not sent
        assert said["says"] in capsys.readouterr().err.splitlines()[-1]
    else:
        assert done.status == 0
        assert done.result["best_val_mean"] == 1.0
