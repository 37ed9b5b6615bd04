"""A resume is the same program run again, whatever made the first run special."""

import itertools
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import (
    BASE,
    Reply,
    Request,
    Run,
    fenced,
    good_student,
    resumed,
    run,
    scripted,
    turns,
)
from verifiers.v1.cli.gepa import main
from verifiers.v1.gepa.record.replay import Replay

FILES = ("candidates.json", "run_log.json", "best_system_prompt.txt")


def unsteady() -> Callable[[Request], str]:
    """A student whose replies to the same request differ."""
    turn = turns()

    def student(request: Request) -> str:
        number = turn(request)
        good = "GOOD" in request.system or number % 3 == 0
        return "right" if good else f"wrong {number}"

    return student


def always(reply: str) -> Callable[[Request], str]:
    return lambda _: reply


def test_a_minibatch_that_repeats_a_task_replays(tmp_path: Path) -> None:
    """gepa fills an epoch up by repeating tasks: 3 train tasks in minibatches of 2."""
    base = ["board-v1", "--local", "-m", "student", "--num-train", "3", "--num-val", "4"]
    base += ["--num-test", "0", "--reflection-minibatch-size", "2", "--phase", "optimize"]
    numbers = itertools.count(1)
    teacher = lambda _: fenced(f"Answer {next(numbers)}.")  # noqa: E731
    with scripted(unsteady(), teacher) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "40", base=base)
        before = {name: (done.folder / name).read_bytes() for name in FILES}
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, "--max-total-rollouts", "40", base=base)
        assert again.status == 0
        assert len(endpoint.requests) == sent
    assert {name: (done.folder / name).read_bytes() for name in FILES} == before
    occurrences = [line["gepa"]["occurrence"] for line in done.lines("traces.jsonl")]
    assert max(occurrences) >= 2


STOPPED = {
    "stop_file": [],
    "max_tokens": ["--max-tokens", "70"],
    "max_reflections": ["--max-reflections", "2"],
    "patience": ["--patience", "1"],
    "perfect": ["--perfect-score", "1"],
}


@pytest.mark.parametrize("reason", STOPPED)
def test_a_run_that_a_condition_ended_is_the_same_when_resumed(tmp_path: Path, reason: str) -> None:
    def student(request: Request) -> str:
        if reason == "stop_file" and "GOOD" in request.system:
            (tmp_path / "run0/gepa.stop").touch()
        return good_student(request)

    flags = ["--max-total-rollouts", "60", *STOPPED[reason]]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *flags)
        before, first = {n: (done.folder / n).read_bytes() for n in FILES}, done.result
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, *flags)
        assert len(endpoint.requests) == sent
    assert first["finish_reason"] == reason
    assert {name: (done.folder / name).read_bytes() for name in FILES} == before
    for key in ("finish_reason", "val_means", "proposals", "tokens", "best_val_mean"):
        assert again.result[key] == first[key]


def test_lower_limits_take_nothing_back(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "24")
        sent = len(endpoint.requests)
        for flags in (["--max-total-rollouts", "12"], ["--max-reflections", "1"]):
            again = resumed(endpoint, done, "--max-total-rollouts", "24", *flags)
            assert again.status == 0
            assert again.result["rollouts"]["charged"] == done.charged == 24
            assert again.prompt == b"Answer. GOOD v1"
        assert len(endpoint.requests) == sent


def test_a_refused_first_task_scores_the_same_live_and_resumed(tmp_path: Path) -> None:
    """On a scale from -1 to 0 the content filter refuses the first val task."""

    def student(request: Request) -> Reply | str:
        if request.user == "question 4":
            return Reply.error(400, "blocked by the content_filter")
        return "right" if request.user == "question 5" else "wrong"

    scale = ["--taskset.task.low", "-1", "--taskset.task.high", "0"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", *scale)
        first = done.result["seed_val_mean"]
        again = resumed(endpoint, done, "--max-total-rollouts", "16", *scale)
    assert first == again.result["seed_val_mean"] == -0.75


def test_what_the_environment_hides_does_not_part_a_resume_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "expected")
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        assert "[secret] the word" in done.lines("reflections.jsonl")[0]["prompt"]
        monkeypatch.delenv("DB_PASSWORD")
        assert resumed(endpoint, done, "--max-total-rollouts", "16").status == 0


def test_a_run_moved_elsewhere_goes_on(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    moved = tmp_path / "elsewhere/run0"
    moved.parent.mkdir()
    done.folder.rename(moved)
    with scripted(teacher=lambda _: fenced("Answer. GOOD too")) as endpoint:
        again = resumed(endpoint, Run(0, moved), "--max-total-rollouts", "16")
        assert again.status == 0
    assert again.charged == 16


def test_an_endpoint_that_moved_is_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `verifiers_gepa.simulated`, whose port is another every time."""
    saved = str(tmp_path / "run/configs/resolved/gepa.json")
    commands = {
        "GOOD": [*BASE, "-o", str(tmp_path), "--run.name", "run", "--max-total-rollouts", "12"],
        "GOOD too": ["@", saved, "--resume", "--max-total-rollouts", "16"],
    }
    for text, command in commands.items():
        with scripted(teacher=always(fenced(f"Answer. {text}"))) as endpoint:
            monkeypatch.setenv("TASK_ENDPOINTS", endpoint.url)
            monkeypatch.setenv("REFLECTION_MODEL_BASE_URL", endpoint.teacher_url)
            assert main(command) == 0
    assert Run(0, tmp_path / "run").charged == 16


@pytest.mark.parametrize("flags", [["--agent.timeout.rollout", "9"], ["--difficulty", "9"]])
def test_whatever_an_env_measures_with_is_part_of_the_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    base = ["moody-v1", *BASE[1:]]
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", base=base)
        refused = resumed(endpoint, done, "--max-total-rollouts", "16", *flags, base=base)
    assert refused.status == 2
    name = flags[0].removeprefix("--")
    assert f"  {name}: " in capsys.readouterr().err


# Set-up and tear-down


def test_an_env_that_fails_on_entering_is_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        base = ["moody-v1", *BASE[1:], "--fails", "start"]
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", base=base)
        assert endpoint.requests == []
    assert done.status == 2
    assert "no such database" in capsys.readouterr().err.splitlines()[-1]
    assert done.result["status"] == "failed"


def test_an_env_that_fails_on_leaving_costs_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        base = ["moody-v1", *BASE[1:], "--fails", "stop"]
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", base=base)
    assert done.status == 0
    assert "the database is gone" in capsys.readouterr().err
    assert done.result["best_val_mean"] == 1.0


def test_a_reader_that_left_does_not_undo_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with scripted() as endpoint:
            done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
        monkeypatch.undo()
    assert done.status == 0
    assert done.result["status"] == "finished"


def test_a_budget_for_the_seed_prompt_alone_leaves_its_files(tmp_path: Path) -> None:
    with scripted() as endpoint:
        flags = ["--max-total-rollouts", "4", "--allow-small-budget"]
        done = run(endpoint, tmp_path, *flags)
    assert done.candidates == ["Answer."]
    assert done.result["val_means"] == [0.0]


# The teacher


ODD_BODIES = {
    "no choices": {"id": "x", "choices": None},
    "empty choices": {"id": "x", "choices": []},
    "no message": {"id": "x", "choices": [{"index": 0, "finish_reason": "stop"}]},
}


def completion(**changes: object) -> Reply:
    message = {"role": "assistant", "content": fenced("Answer. GOOD"), **changes}
    usage = message.pop("usage", None)
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Reply(body={"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})


@pytest.mark.parametrize(
    "reply",
    [
        completion(usage={"prompt_tokens": None, "completion_tokens": None}),
        completion(usage={"completion_tokens": 3}),
        completion(content=[{"type": "text", "text": fenced("Answer. GOOD")}]),
    ],
    ids=["null usage", "half a usage", "parts"],
)
def test_odd_but_usable_replies_of_a_teacher(tmp_path: Path, reply: Reply) -> None:
    with scripted(teacher=lambda _: reply) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    assert done.prompt == b"Answer. GOOD"


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES)
def test_a_teacher_without_a_reply_is_on_record_and_charged_nothing_more(
    tmp_path: Path, body: dict[str, object]
) -> None:
    replies = itertools.chain([Reply(body=body)], itertools.repeat(fenced("Answer. GOOD")))
    with scripted(teacher=lambda _: next(replies)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "14")
    assert done.status == 0
    assert done.prompt == b"Answer. GOOD"
    assert sum(done.result["proposals"][key] for key in ("tried", "failed")) in (1, 2)


def test_a_bad_train_task_alone_in_its_minibatch_brings_no_proposal(tmp_path: Path) -> None:
    def student(request: Request) -> Reply | str:
        if request.user == "question 0":
            return Reply.error(500, "broken", headers={"Retry-After": "0"})
        return good_student(request)

    flags = ["--reflection-minibatch-size", "1", "--max-attempts", "1"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "30", *flags)
        assert done.status == 0
        assert done.result["best_val_mean"] == 1.0
        assert any("train task 0 decided nothing" in text for text in done.result["warnings"])
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, "--max-total-rollouts", "30", *flags)
        assert again.status == 0
        assert len(endpoint.requests) == sent


# Throttling


def test_being_told_to_slow_down_is_no_failed_attempt(tmp_path: Path) -> None:
    """9 refusals in a row are three whole attempts: more than `max_attempts` allows failures."""
    slow = itertools.repeat(Reply.error(429, "slow down", headers={"Retry-After": "0"}), 9)

    def student(request: Request) -> Reply | str:
        return next(slow, good_student(request))

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", "--max-attempts", "1")
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    assert done.result["rollouts"]["failed"] == 3


def test_an_endpoint_that_never_stops_throttling_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Reply.error(429, "slow down", headers={"Retry-After": "0"})
    with scripted(lambda _: slow) as endpoint:
        flags = ["--max-total-rollouts", "12", "--throttle-patience", "0"]
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 2
    assert "slow down" in capsys.readouterr().err.splitlines()[-1]


def test_one_timeout_set_leaves_the_others_at_their_defaults(tmp_path: Path) -> None:
    from verifiers.v1.gepa.command.sources import parse_config

    config, _ = parse_config(["board-v1", "--timeout.finalize", "5"])
    assert (config.timeout.episode, config.timeout.finalize) == (1800.0, 5.0)
    config, _ = parse_config(["board-v1", "--timeout.episode", "None"])
    assert config.timeout.episode is None
    saved = tmp_path / "eval.json"
    saved.write_text('{"num_rollouts": 1, "env": {"timeout": {"episode": null, "finalize": null}}}')
    config, _ = parse_config(["board-v1", "@", str(saved)])
    assert config.timeout.episode == 1800.0


def test_teacher_exchanges_stay_in_the_file_until_they_are_asked_for(tmp_path: Path) -> None:
    rows = [
        {"key": f"k{n % 20}", "verdict": "proposal", "reply": f"{n} {'x' * 500_000}"}
        for n in range(40)
    ]
    (tmp_path / "reflections.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracemalloc.start()
    try:
        replay = Replay.load(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000  # the file has 20 MB
    assert [replay.exchange("k3"), replay.exchange("k3")] == [rows[3], rows[23]]
    assert replay.exchange("k3") is None
