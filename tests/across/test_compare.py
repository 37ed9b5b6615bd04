"""Two runs side by side: equal however they came to their end, or different from a step on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Forks
from tests.support import (
    Reply,
    Request,
    Run,
    command_env,
    copy,
    placed,
    resumed,
    run,
    scripted,
    steady,
    steady_student,
    steady_teacher,
)
from verifiers.v1.cli.gepa_compare import main
from verifiers.v1.gepa.across.recorded import read_steps
from verifiers.v1.gepa.record.journal import prompt_digest

pytestmark = pytest.mark.xdist_group("processes")

FULL = ["board-v1", "--local", "-m", "student", "--num-train", "6", "--num-val", "6"]
FULL += ["--num-test", "6", "--taskset.size", "18", "--max-total-rollouts", "60", "-c", "3"]
"""A search and the phases after it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing cut short."""
    with steady() as endpoint:
        done = run(endpoint, tmp_path_factory.mktemp("whole"), base=FULL)
    assert done.result["deployed_candidate"]
    return done


def compared(a: Run, b: Run, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of the command."""
    capsys.readouterr()
    status = main([str(a.folder), str(b.folder), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forks")
    with scripted() as nowhere, Forks(folder, command_env(nowhere)) as started:
        yield started


def test_a_run_that_was_killed_and_resumed_equals_the_one_that_was_not(
    whole: Run, tmp_path: Path, forks: Forks, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = Run(0, tmp_path / "killed")
    with steady() as endpoint:
        flags = [*FULL, *placed(endpoint, tmp_path, "killed")]
        forks.start(*flags).kill_at(endpoint, 30)
        # What it has done up to there is the same.
        status, found = compared(whole, killed, capsys)
        assert (status, found["equal"]) == (1, False)
        assert found["first_difference"]["b"] in ("the record ends", "not on record")
        # Another number in flight: rollouts finish in another order.
        assert forks.start(*flags, "--resume", "-c", "1").wait() == 0
    status, found = compared(whole, killed, capsys)
    assert found["first_difference"] is None
    assert (status, found["equal"], found["prompt_diff"]) == (0, True, "")
    assert found["config"].pop("max_concurrent") == [3, 1]
    assert all("base_url" in name for name in found["config"])  # two endpoints of the tests
    assert found["figures"]["rollouts.charged"] == [whole.charged, whole.charged]
    assert main([str(whole.folder), str(killed.folder)]) == 0
    assert capsys.readouterr().out.endswith("equal: the same search, step by step\n")


def test_a_run_equals_itself_and_its_resume(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = compared(whole, whole, capsys)
    assert (status, found["config"]) == (0, {})
    again = copy(whole, "again")
    with steady() as endpoint:
        again = resumed(endpoint, again, base=FULL)
        assert endpoint.requests == []
    assert compared(whole, again, capsys)[0] == 0


def test_two_seeds_part_at_their_first_minibatch(
    whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with steady() as endpoint:
        other = run(endpoint, tmp_path, "--seed", "1", base=FULL)
    status, found = compared(whole, other, capsys)
    assert (status, found["config"]["seed"]) == (1, [0, 1])
    first, second = (one.lines("proposals.jsonl")[0]["minibatch"] for one in (whole, other))
    assert first != second
    assert found["first_difference"] == {
        "step": "iteration 1, minibatch of the seed prompt",
        "a": f"tasks {', '.join(map(str, first))}",
        "b": f"tasks {', '.join(map(str, second))}",
    }
    assert found["figures"]["seed_val_mean"] == [
        one.result["seed_val_mean"] for one in (whole, other)
    ]
    assert whole.prompt != other.prompt
    added = [line for line in found["prompt_diff"].splitlines() if line.startswith("+")]
    assert [f"+{line}" for line in other.prompt.decode().split("\n")] == added[1:]
    assert main([str(whole.folder), str(other.folder)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("different from iteration 1, minibatch of the seed prompt: tasks ")


def test_runs_part_where_one_rollout_scored_otherwise(
    whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted = next(one for one in whole.lines("proposals.jsonl") if one["candidate"] == 1)
    prompt, indices = (
        accepted["text"],
        {t["hash"]: t["idx"] for t in whole.json("splits.json")["val"]},
    )
    stamps = [line["gepa"] for line in whole.lines("traces.jsonl")]
    idx = min(
        indices[stamp["task"]]
        for stamp in stamps
        if stamp["candidate"] == prompt_digest(prompt)
        and stamp["split"] == "val"
        and stamp["score"]
    )

    def moody(request: Request) -> str:
        wrong = request.system == prompt and request.user == f"question {idx}"
        return "neither" if wrong else steady_student(request)

    with scripted(moody, steady_teacher) as endpoint:
        other = run(endpoint, tmp_path, base=FULL)
    status, found = compared(whole, other, capsys)
    difference = found["first_difference"]
    assert (status, difference["a"], difference["b"]) == (1, "1", "0")
    assert difference["step"].startswith(f"iteration {accepted['iteration']},")
    assert difference["step"].endswith(f", val pass of prompt 1, task {idx}")


def test_what_is_no_run_directory_is_an_error(
    whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(whole.folder), str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gepa-compare: {tmp_path} holds no run: ")
    broken = copy(whole, "broken")
    with (broken.folder / "traces.jsonl").open("ab") as file:
        file.write(b"no json\n")
    assert main([str(whole.folder), str(broken.folder)]) == 2
    count = len(whole.lines("traces.jsonl")) + 1
    assert f"traces.jsonl, line {count} is broken" in capsys.readouterr().err
    assert main([str(whole.folder)]) == 2
    (copy(whole, "odd").folder / "identity.json").write_text("5")
    assert main([str(whole.folder), str(whole.folder.with_name("odd"))]) == 2
    assert "identity.json is broken: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("runs", [["one"], ["one", "two", "three"]])
def test_two_runs_are_compared_and_no_other_number(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(runs) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "gepa-compare: name two run directories, as in `gepa-compare RUN_A RUN_B`\n",
    )


def test_a_teacher_call_that_failed_is_no_step(tmp_path: Path) -> None:
    """Also where another one of its iteration was answered."""
    two = ["--proposals-per-iteration", "2", "--max-total-rollouts", "40"]
    with steady() as endpoint:
        first = run(endpoint, tmp_path, *two).lines("reflections.jsonl")[0]["prompt"]

    def teacher(request: Request) -> str | Reply:
        return Reply.error(401, "no key") if request.user == first else steady_teacher(request)

    with scripted(steady_student, teacher) as endpoint:
        failed = run(endpoint, tmp_path, *two)
    assert failed.status == 2
    exchanges = failed.lines("reflections.jsonl")
    assert [exchange["verdict"] for exchange in exchanges] == ["failed", "proposal"]
    decisions = [row["decision"] for row in failed.lines("proposals.jsonl")]
    assert decisions == ["no proposal", "unvalidated"]
    (step,) = read_steps(failed.folder).steps
    assert step.request == exchanges[1]["key"]
    assert step.proposal is not None
    assert step.proposal.decision == "unvalidated"


def test_no_secret_is_shown(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    other = copy(whole, "secret")
    file = other.folder / "configs/resolved/gepa.json"
    config = json.loads(file.read_bytes())
    config["client"]["headers"] = {"X-Api-Key": "hunter2"}
    config["client"]["base_url"] = "http://me:hunter2@host/v1"
    judge = {"id": "rubric", "headers": {"Authorization": "hunter2"}}
    config["taskset"]["task"]["judges"] = [judge]
    file.write_text(json.dumps(config))
    status, found = compared(whole, other, capsys)
    assert status == 0
    assert found["config"]["client.headers.X-Api-Key"] == [None, "[secret]"]
    assert found["config"]["client.base_url"][1] == "http://[secret]@host/v1"
    judges = [{"id": "rubric", "headers": {"Authorization": "[secret]"}}]
    assert found["config"]["taskset.task.judges"] == [[], judges]
