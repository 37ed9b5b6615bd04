"""What is nearly text, or no JSON at all: it is left out beforehand or mended, and stops no run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    BASE,
    Reply,
    Request,
    fenced,
    good_student,
    good_teacher,
    resumed,
    run,
    scripted,
    student_requests,
    teacher_requests,
    turns,
)

ODD = ["odd-v1", *BASE[1:], "--max-total-rollouts", "12"]

HALF = "half of a surrogate pair"


# Rows


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("prompt", f"its 'prompt' holds {HALF}"),
        ("messages", f"its 'prompt' holds {HALF}"),
        ("system prompt", f"its 'system_prompt' holds {HALF}"),
        ("gold", f"its 'gold' holds {HALF}"),
        ("key", f"its 'extra' holds {HALF}"),
        ("object", "its data has no JSON form: Unable to serialize unknown type"),
        ("circle", "its data has no JSON form: Circular reference"),
        ("deep", "its data has no JSON form: recursion limit exceeded"),
    ],
)
def test_a_task_that_can_not_be_stored_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, reason: str
) -> None:
    with scripted() as endpoint:
        assert run(endpoint, tmp_path, "--taskset.row", row, "--dry-run", base=ODD).status == 0
        assert f"task 2: {reason}" in capsys.readouterr().err
        done = run(endpoint, tmp_path, "--taskset.row", row, base=ODD)
        assert "question 2" not in {request.user for request in endpoint.requests}
    assert done.status == 0
    assert f"task 2: {reason}" in capsys.readouterr().err
    [left_out] = done.json("splits.json")["unfit"]
    assert left_out["idx"] == 2
    assert left_out["reason"].startswith(reason)
    assert any(f"task 2: {reason}" in warning for warning in done.result["warnings"])
    assert [task["idx"] for task in done.json("splits.json")["train"]] == [0, 1, 3, 4]
    assert done.charged == 12


def test_a_system_prompt_that_the_run_replaces_may_hold_anything(tmp_path: Path) -> None:
    flags = ["--taskset.row", "system prompt", "--initial-prompt", "Answer well."]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *flags, base=ODD)
    assert done.status == 0
    assert "unfit" not in done.json("splits.json")


def test_a_taskset_of_nothing_else_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--taskset.row", "gold", "--taskset.all", base=ODD)
        assert endpoint.requests == []
    assert done.status == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"9 that can't be stored, the first: task 0: its 'gold' holds {HALF}" in line


@pytest.mark.parametrize("workers", [[], ["--workers", "1"]], ids=["here", "worker"])
def test_numbers_of_numpy_in_a_row_are_numbers(tmp_path: Path, workers: list[str]) -> None:
    flags = ["--taskset.row", "numpy", "--reflection-columns", "extra", *workers]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, *flags, base=ODD)
    assert done.status == 0
    assert "unfit" not in done.json("splits.json")
    rows = [line["task"]["data"] for line in done.lines("traces.jsonl")]
    [extra, *_] = [row["extra"] for row in rows if row["idx"] == 2]
    assert extra == {"a": 0.5, "b": [3], "c": [0, 1]}


# What comes at run time


@pytest.mark.parametrize("workers", [[], ["--workers", "1"]], ids=["here", "worker"])
def test_a_reply_of_the_student_is_mended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: list[str]
) -> None:
    def student(request: Request) -> str:
        return "half" if request.user == "question 4" else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *workers, base=ODD)
    assert (done.status, done.charged, done.result["rollouts"]["failed"]) == (0, 12, 0)
    lines = [line for line in done.lines("traces.jsonl") if line["task"]["data"]["idx"] == 4]
    for trace in [line["traces"][0] for line in lines]:
        assert trace["root_reply"] == "half \ufffd"
        assert workers or trace["nodes"][-1]["message"]["content"] == "half \ufffd"
    assert lines
    err = capfd.readouterr().err
    assert err.count(HALF) == 1
    assert f"task 4: its rollout holds {HALF}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("half", [chr(0xD83D), chr(0xDE00)], ids=["high", "low"])
def test_a_reply_that_the_host_can_not_read_is_the_models(tmp_path: Path, half: str) -> None:
    def student(request: Request) -> str:
        return half if request.user == "question 4" else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, base=ODD)
    assert (done.status, done.charged, done.result["rollouts"]["failed"]) == (0, 12, 0)
    stamps = [
        line["gepa"] for line in done.lines("traces.jsonl") if line["task"]["data"]["idx"] == 4
    ]
    assert {stamp["verdict"] for stamp in stamps} == {"measured"}
    assert all(HALF in stamp["cause"] and "score" not in stamp for stamp in stamps)


@pytest.mark.parametrize("block", [True, False], ids=["in the block", "beside it"])
def test_a_reply_of_the_teacher_is_no_proposal_also_when_it_comes_from_the_record(
    tmp_path: Path, block: bool
) -> None:
    teach = good_teacher()
    first: list[Request] = []

    def teacher(request: Request) -> str:
        if not first:
            first.append(request)
            return fenced("Be \ud83d.") if block else f"\ud83d {fenced('Be kind.')}"
        return teach(request)

    with scripted(good_student, teacher) as endpoint:
        done = run(endpoint, tmp_path, base=[*ODD[:-1], "16"])
        line, *_ = done.lines("reflections.jsonl")
        assert line["verdict"] == "no proposal"
        assert line["reason"] == f"the reply holds {HALF}, which is no text"
        assert "\ufffd" in line["reply"]
        before = done.lines("proposals.jsonl")
        assert done.status == 0
        again = resumed(endpoint, done, base=[*ODD[:-1], "28"])
    assert (again.status, again.charged) == (0, 26)
    assert again.lines("proposals.jsonl")[: len(before)] == before


def test_the_words_of_an_error_are_recorded(tmp_path: Path) -> None:
    turn = turns()

    def student(request: Request) -> str:
        return "raise" if turn(request) == 1 else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, base=ODD)
    failed = [line for line in done.lines("traces.jsonl") if line["gepa"]["verdict"] != "measured"]
    assert done.status == 0
    assert failed[0]["traces"][0]["errors"][0]["message"].endswith("half \ufffd")
    assert failed[0]["gepa"]["cause"].endswith("half \ufffd")


STORED: dict[str, Any] = {
    "half": {"half \ufffd": ["half \ufffd", "\U0001f600"]},
    "float32": 0.5,
    "int64": 3,
    "bool": True,
    "scalar array": 2.5,
    "array": [[0, 1], [2, 3]],
    "long double": 1.5,
    "large array": "array([0., 0., 0., ..., 0., 0., 0.], shape=(5000,))",
    "nan": ["nan", "inf", "nan"],
    "set": ["a", "b", "c"],
    "dataclass": {"x": 1.0, "thing": "<odd_v1.Thing object>"},
    "path": "a/b",
    "date": "2020-01-02",
    "exception": "KeyError('k')",
    "object": "<odd_v1.Thing object>",
    "no repr": "<Sulk>",
    "enum": "red",
    "bytes": "[binary data, 1 bytes]",
    "keys": {"1": "a", "null": "b", "[1, 2]": "c"},
    "huge": "1180591620717411303424",
    "endless": "count(0)",
    "circle": [1, "[contains itself]"],
}


def noted(folder: Path, *flags: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The traces of a run whose reward notes all sorts of things, and what the teacher was sent."""
    with scripted() as endpoint:
        done = run(endpoint, folder, "--taskset.task.notes", *flags, base=ODD)
        sent = [request.user for request in teacher_requests(endpoint)]
    assert done.status == 0
    return [line["traces"][0] for line in done.lines("traces.jsonl")], sent


def test_what_a_reward_notes_is_stored_and_shown_as_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, sent = noted(tmp_path)
    said = [line for line in capsys.readouterr().err.splitlines() if HALF in line]
    tasks = {trace["task"]["data"]["idx"] for trace in traces}
    assert len(said) == len(set(said)) == len(tasks)
    assert len(traces) == 12
    feedback = dict(traces[0]["info"]["feedback"])
    assert "[nested too deep]" in json.dumps(feedback.pop("nest"))
    assert feedback == STORED
    assert traces[0]["metrics"] == {"half \ufffd": 1.0, "own": 0.5, "thing": None}
    assert noted(tmp_path, "--no-save-results")[1] == sent  # live
    spread, again = noted(tmp_path, "--workers", "2", "--max-attempts", "1")
    assert again == sent
    assert spread[0]["info"] == traces[0]["info"]
    assert spread[0]["metrics"] == traces[0]["metrics"]


def test_a_reward_of_numpy_counts_as_its_number(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, base=ODD)
    scores = {line["gepa"]["score"] for line in done.lines("traces.jsonl")}
    assert {round(score, 6) for score in scores} == {0.2, 0.7}
    assert round(done.result["best_val_mean"], 6) == 0.7


# A verdict that is another one now


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_what_stopped_a_run_is_asked_again_by_a_resume(tmp_path: Path, role: str) -> None:
    refused = Reply.error(404, "no such model")

    def student(request: Request) -> Reply | str:
        return refused if request.user == "question 5" else good_student(request)

    def teacher(_: Request) -> Reply:
        return refused

    roles: dict[str, Callable[[], Any]] = {
        "student": lambda: scripted(student),
        "teacher": lambda: scripted(good_student, teacher),
    }
    with roles[role]() as endpoint:
        done = run(endpoint, tmp_path, "-c", "1", base=ODD)
    assert done.status == 2
    charged = done.charged
    if role == "student":
        kinds = [line["gepa"]["verdict"] for line in done.lines("traces.jsonl")]
        assert kinds.count("permanent") == 1
    else:
        assert [line["verdict"] for line in done.lines("reflections.jsonl")] == ["failed"]
    with scripted() as endpoint:
        again = resumed(endpoint, done, base=ODD)
        assert len(student_requests(endpoint)) == 12 - charged
    assert (again.status, again.charged) == (0, 12)
    assert again.result["rollouts"]["replayed"] == charged
