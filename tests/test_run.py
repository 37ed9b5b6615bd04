"""Whole runs: the real command, engine, interception and HTTP; only the model is scripted."""

import itertools
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
    run,
    scripted,
    steady,
    student_requests,
    teacher_requests,
)
from verifiers.v1.gepa.record.journal import prompt_digest
from verifiers.v1.gepa.teacher.template import TEMPLATE
from verifiers.v1.utils.trace_store import read_episodes

Teacher = Callable[[Request], Any]


def test_a_better_prompt_is_found_and_everything_is_on_record(tmp_path: Path) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    assert done.candidates == ["Answer.", "Answer. GOOD v1"]
    assert done.prompt == b"Answer. GOOD v1"
    result = done.result
    assert (result["status"], result["finish_reason"]) == ("finished", "budget")
    assert (result["seed_val_mean"], result["best_val_mean"]) == (0.0, 1.0)
    assert (result["val_means"], result["parents"]) == ([0.0, 1.0], [None, 0])
    assert result["rollouts"] == {
        "budget": 12,
        "charged": 12,
        "attempted": 12,
        "failed": 0,
        "replayed": 0,
        "reused": 0,
        "uncharged": {},
    }
    assert result["proposals"] == {
        "tried": 1,
        "duplicate": 0,
        "unusable": 0,
        "failed": 0,
        "accepted": 1,
        "rejected": 0,
        "evaluated": 1,
        "effective": 1,
    }
    assert done.charged == len(student_requests(endpoint)) == 12

    stamps = [line["gepa"] for line in done.lines("traces.jsonl")]
    order = [(stamp["split"], stamp["candidate"], stamp["score"]) for stamp in stamps]
    seed, child = prompt_digest("Answer."), prompt_digest("Answer. GOOD v1")
    assert order == (
        [("val", seed, 0.0)] * 4
        + [("train", seed, 0.0)] * 2
        + [("train", child, 1.0)] * 2
        + [("val", child, 1.0)] * 4
    )
    splits = done.json("splits.json")
    assert {stamp["task"] for stamp in stamps[:4]} == {task["hash"] for task in splits["val"]}

    (exchange,) = done.lines("reflections.jsonl")
    assert (exchange["verdict"], exchange["candidate"]) == ("proposal", child)
    assert (exchange["parent"], exchange["attempts"]) == (seed, 1)
    assert exchange["prompt"] == teacher_requests(endpoint)[0].user
    assert result["tokens"]["teacher"] == {
        "input": exchange["usage"]["prompt_tokens"],
        "output": exchange["usage"]["completion_tokens"],
    }
    assert not list(done.folder.glob("*.bin"))


def test_the_hosts_reader_reads_the_journal(tmp_path: Path) -> None:
    from verifiers.v1.trace import Trace

    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    episodes = read_episodes(done.folder, Trace)
    assert [episode.traces[0].reward for episode in episodes] == [0.0] * 6 + [1.0] * 6
    assert episodes[0].group is not None
    assert episodes[0].group.id == f"optimize/val/{prompt_digest('Answer.')[:12]}"


@pytest.mark.parametrize("budget", range(4, 25))
def test_the_budget_is_a_hard_cap_that_is_spent_on_whole_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: int
) -> None:
    with scripted() as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", str(budget), "--allow-small-budget")
    spent = len(student_requests(endpoint))
    assert done.status == 0
    assert spent == done.charged == done.result["rollouts"]["charged"] <= budget
    # The seed's val pass, then two minibatches of 2, then the child's val pass; from then on the
    # parent is perfect, so that no proposal is accepted any more.
    proposals = max(0, (budget - 12) // 4)
    assert spent == (4 if budget < 8 else 8 if budget < 12 else 12 + 4 * proposals)
    assert done.result["finish_reason"] == "budget"
    assert done.result["unvalidated"] == (["Answer. GOOD v1"] if 8 <= budget < 12 else [])
    assert done.result["best_val_mean"] == (1.0 if budget >= 12 else 0.0)
    logged = "proposal not validated: the budget did not pay for its val pass"
    assert (logged in capsys.readouterr().err) == (8 <= budget < 12)


def test_a_budget_below_the_seeds_val_pass_is_refused_and_nothing_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted() as endpoint:
        for budget in ("1", "2", "3"):
            small = run(endpoint, tmp_path, "--max-total-rollouts", budget, "--allow-small-budget")
            assert small.status == 2
            err = capsys.readouterr().err
            assert "can't pay for the seed prompt's val pass (4 rollouts)" in err
        tight = run(endpoint, tmp_path, "--max-total-rollouts", "11")
        assert "(12 rollouts: " in capsys.readouterr().err
    assert tight.status == 2
    assert endpoint.requests == []
    assert list(tmp_path.iterdir()) == []


NOISY = [*BASE[:4], "--num-train", "10", "--num-val", "10", "--num-test", "0"]
NOISY += ["--taskset.size", "20", "--max-total-rollouts", "150", "--phase", "optimize"]


def test_the_same_command_gives_the_same_run_whatever_the_concurrency(tmp_path: Path) -> None:
    runs = []
    for concurrency in ("128", "128", "1"):
        with steady() as endpoint:
            runs.append(run(endpoint, tmp_path, "-c", concurrency, base=NOISY))
    first, *others = runs
    assert len(first.candidates) > 2
    for other in others:
        for name in ("candidates.json", "run_log.json", "reflections.jsonl", "splits.json"):
            assert (other.folder / name).read_bytes() == (first.folder / name).read_bytes()
        assert other.result["val_means"] == first.result["val_means"]


def test_another_seed_searches_differently_on_the_same_split(tmp_path: Path) -> None:
    with steady() as endpoint:
        zero = run(endpoint, tmp_path, "--seed", "0", base=NOISY)
        one = run(endpoint, tmp_path, "--seed", "1", base=NOISY)
    assert zero.json("splits.json") == one.json("splits.json")
    assert zero.json("run_log.json") != one.json("run_log.json")


AWKWARD = {
    "line ends": "one\r\ntwo\rthree\n",
    "tabs and blanks": "  \tlead and trail\t  ",
    "emoji": "be kind \U0001f600 \u2028 \u0000 \ufeff é",
    "braces": "{question} {{x}} %s %(a)s $VAR ${VAR} \\n",
    "placeholders": "{current_prompt} {examples} <curr_param> <side_info> </current_prompt>",
    "fences": "Reply so:\n```json\n{}\n```\n~~~\n@file --flag",
    "flag": "--num-train",
    "file": "@ nothing.toml",
}


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
def test_the_text_is_the_text(tmp_path: Path, text: str) -> None:
    teacher: Teacher = lambda _: fenced(f"{text}\nGOOD")  # noqa: E731
    with scripted(teacher=teacher) as endpoint:
        done = run(endpoint, tmp_path, "--initial-prompt", text, "--max-total-rollouts", "12")
    better = f"{text}\nGOOD"
    assert done.status == 0
    assert done.candidates == [text, better]
    assert done.prompt == better.encode()
    received = [request.body["messages"][0] for request in student_requests(endpoint)]
    assert {message["role"] for message in received} == {"system"}
    assert {message["content"] for message in received} == {text, better}
    asked = teacher_requests(endpoint)[0].user
    before, _, rest = TEMPLATE.partition("{current_prompt}")
    after = rest.partition("{examples}")[0].replace("{tried}", "")
    assert asked.startswith(before + text + after)


def test_a_system_prompt_file_is_read_byte_by_byte(tmp_path: Path) -> None:
    text = "Answer é.\r\nKindly.\r"
    file = tmp_path / "prompt.txt"
    file.write_bytes(text.encode())
    runs = tmp_path / "runs"
    runs.mkdir()
    with scripted() as endpoint:
        flags = ["--taskset.system-prompt", str(file), "--max-total-rollouts", "12"]
        done = run(endpoint, runs, *flags)
    assert done.candidates[0] == text
    assert student_requests(endpoint)[0].system == text


def test_the_teacher_sees_train_tasks_only_and_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_API_KEY", "sk-very-secret")

    def student(request: Request) -> str:
        return f"{good_student(request)} sk-very-secret {tmp_path / 'run0'} {Path.home()}"

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "20", "--taskset.size", "8")
    asked = [request.user for request in teacher_requests(endpoint)]
    splits = done.json("splits.json")
    train = [f"question {task['idx']}\n" for task in splits["train"]]
    val = [f"question {task['idx']}\n" for task in splits["val"]]
    assert all(any(question in text for question in train) for text in asked)
    assert not any(question in text for question in val for text in asked)
    ids = [trace["id"] for line in done.lines("traces.jsonl") for trace in line["traces"]]
    private = ["sk-very-secret", str(tmp_path), str(Path.home()), "20 rollouts", *ids]
    assert not [word for word in private for text in asked if word in text]
    assert "[secret] [path]" in asked[0]
    assert "expected the word 'right'" in asked[0]


def test_gold_answers_reach_the_teacher_only_where_the_column_is_named(tmp_path: Path) -> None:
    with scripted() as endpoint:
        run(endpoint, tmp_path, "--max-total-rollouts", "12")
        run(endpoint, tmp_path, "--max-total-rollouts", "12", "--reflection-columns", "gold")
    without, with_gold = (request.user for request in teacher_requests(endpoint))
    assert "### gold" not in without
    assert "### gold\nright" in with_gold


UNUSABLE = {
    "unfenced": "Answer. GOOD",
    "empty": "",
    "null": Reply(text=None),
    "refusal": "I'm sorry, I can't do that.",
    "cut off": Reply(text=fenced("Answer. GOOD"), finish_reason="length"),
    "not closed": "````\nAnswer. GOOD",
    "the parent again": fenced("Answer."),
    "the parent again with blanks": fenced("Answer. \n\n"),
    "empty block": "````\n````",
}


@pytest.mark.parametrize("reply", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_reply_costs_no_child_and_is_on_record(
    tmp_path: Path, reply: Reply | str
) -> None:
    good = fenced("Answer. GOOD")
    replies = itertools.chain([reply], itertools.repeat(good))
    with scripted(teacher=lambda _: next(replies)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "14")
    assert done.status == 0
    first, second = done.lines("reflections.jsonl")
    assert first["verdict"] == "no proposal"
    assert first["reason"]
    assert second["verdict"] == "proposal"
    counts = done.result["proposals"]
    assert counts["unusable"] + counts["duplicate"] == 1
    # Seed 4, the parent's minibatch 2 without a child, then a whole proposal 2 + 2 + 4.
    assert done.charged == 14
    assert done.prompt == b"Answer. GOOD"


def test_ten_unusable_replies_in_a_row_end_the_run_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(teacher=lambda _: "no") as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "100")
    assert done.status == 0
    assert done.result["finish_reason"] == "unusable_replies"
    assert len(teacher_requests(endpoint)) == 10
    assert done.charged == 4 + 10 * 2
    assert "--reflection-model" in capsys.readouterr().err.splitlines()[-1]


def test_only_the_teachers_own_sampling_is_sent_to_it(tmp_path: Path) -> None:
    with scripted() as endpoint:
        run(endpoint, tmp_path, "--max-total-rollouts", "12", "--sampling.temperature", "0.5")
        flags = ["--reflection-sampling.max-tokens", "99", "--reflection-sampling.top-k", "3"]
        run(
            endpoint,
            tmp_path,
            "--max-total-rollouts",
            "12",
            *flags,
            "--reflection-model",
            "teacher",
        )
    plain, tuned = (request.body for request in teacher_requests(endpoint))
    assert set(plain) == {"model", "messages"}
    assert plain["model"] == "student"
    assert set(tuned) == {"model", "messages", "max_tokens", "top_k"}
    assert (tuned["model"], tuned["max_tokens"]) == ("teacher", 99)
    assert student_requests(endpoint)[0].body["temperature"] == 0.5


def test_a_permanent_fault_of_the_student_stops_the_run_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = Reply.error(401, "bad key")
    with scripted(student=lambda _: denied) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12", "-c", "1")
    assert done.status == 2
    assert len(endpoint.requests) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "401" in last
    assert "bad key" in last
    assert endpoint.url in last
    result = done.result
    assert (result["status"], result["partial"]) == ("failed", True)
    assert result["rollouts"]["charged"] == done.charged == 0
    assert done.prompt == b"Answer."


def test_a_fault_that_passes_is_tried_again_and_never_scored(tmp_path: Path) -> None:
    failures = iter([Reply.error(500, "oops")] * 3)

    def student(request: Request) -> Reply | str:
        return next(failures, good_student(request))

    with scripted(student) as endpoint:
        flags = ["--initial-prompt", "GOOD", "--max-total-rollouts", "12", "-c", "1"]
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 0
    # One rollout's three calls (the harness tries twice again) failed, the next attempt did not.
    assert done.result["seed_val_mean"] == 1.0
    failed = [line["gepa"] for line in done.lines("traces.jsonl") if not line["gepa"]["charged"]]
    assert [(stamp["verdict"], stamp["attempt"]) for stamp in failed] == [("transient", 1)]
    assert "score" not in failed[0]
    assert done.result["rollouts"]["failed"] == 1
    assert done.charged == done.result["rollouts"]["charged"]


@pytest.mark.parametrize(("status", "calls"), [(401, 1), (404, 1)])
def test_a_permanent_fault_of_the_teacher_stops_the_run_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, calls: int
) -> None:
    with scripted(teacher=lambda _: Reply.error(status, "no such thing")) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 2
    assert len(teacher_requests(endpoint)) == calls
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{status}" in last
    assert endpoint.teacher_url in last
    assert done.result["status"] == "failed"
    assert done.charged == 6
    (exchange,) = done.lines("reflections.jsonl")
    assert f"{status}" in exchange["reason"]


def test_several_endpoints_share_the_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted() as one, scripted() as two:
        monkeypatch.setenv("TASK_ENDPOINTS", f"{one.url},{two.url}")
        monkeypatch.setenv("REFLECTION_MODEL_BASE_URL", one.teacher_url)
        from verifiers.v1.cli.gepa import main

        where = ["-o", str(tmp_path), "--run.name", "run"]
        assert main([*BASE, "--max-total-rollouts", "12", *where]) == 0
        assert len(student_requests(one)) == len(student_requests(two)) == 6
