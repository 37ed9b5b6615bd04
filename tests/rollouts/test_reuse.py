"""Nothing is paid twice: rollouts of the search that are taken once more."""

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support import (
    Endpoint,
    Reply,
    Request,
    Run,
    fenced,
    run,
    scripted,
    student_requests,
    teacher_requests,
    turns,
)

SMALL = ["board-v1", "--local", "-m", "student", "--num-train", "2", "--num-val", "2"]
SMALL += ["--num-test", "0", "--reflection-minibatch-size", "2", "--phase", "optimize"]
SMALL += ["--proposals-per-iteration", "1"]
"""Every minibatch is the whole of train. The seed's val pass is 2 rollouts, a proposal 4."""


def world() -> Endpoint:
    """A student that is always wrong and says how often it was asked, so that every proposal is
    rejected and the seed prompt is the parent of all."""
    turn, numbers = turns(), itertools.count(1)
    return scripted(lambda r: f"try {turn(r)}", lambda _: fenced(f"Other {next(numbers)}"))


def search(endpoint: Endpoint, folder: Path, *args: str) -> Run:
    return run(endpoint, folder, *args, base=SMALL)


def shown(endpoint: Endpoint) -> list[set[str]]:
    """The replies of the student that each teacher request shows."""
    return [set(re.findall(r"try \d+", r.user)) for r in teacher_requests(endpoint)]


def test_a_prompt_runs_so_often_on_a_task_and_then_its_rollouts_return_in_turn(
    tmp_path: Path,
) -> None:
    with world() as endpoint:
        done = search(endpoint, tmp_path, "--reuse-rollouts", "2", "--max-total-rollouts", "14")
    rollouts, proposals = done.result["rollouts"], done.result["proposals"]
    # 2 for val, then twice 2 for the parent, and 2 for each of four children.
    assert (rollouts["charged"], rollouts["attempted"], rollouts["reused"]) == (14, 14, 4)
    assert (proposals["tried"], proposals["rejected"]) == (4, 4)
    asked = Counter((r.system, r.user) for r in student_requests(endpoint))
    assert max(asked.values()) == 2
    assert shown(endpoint) == [{"try 1"}, {"try 2"}, {"try 1"}, {"try 2"}]
    assert done.result["finish_reason"] == "budget"


def test_without_it_every_rollout_is_fresh(tmp_path: Path) -> None:
    with world() as endpoint:
        done = search(endpoint, tmp_path, "--max-total-rollouts", "14")
    assert done.result["rollouts"]["reused"] == 0
    assert shown(endpoint) == [{"try 1"}, {"try 2"}, {"try 3"}]


def test_a_resume_reuses_the_same(tmp_path: Path) -> None:
    flags = ["--reuse-rollouts", "2", "--max-total-rollouts"]
    with world() as endpoint:
        whole = search(endpoint, tmp_path, *flags, "14")
        expected = [r.user for r in teacher_requests(endpoint)]
    with world() as endpoint:
        first = search(endpoint, tmp_path, *flags, "12")
        again = ["--run.name", first.folder.name, "--resume"]
        assert search(endpoint, tmp_path, *flags, "14", *again).status == 0
        assert [r.user for r in teacher_requests(endpoint)] == expected
        assert len(student_requests(endpoint)) == 14
    resumed = Run(0, first.folder)
    assert resumed.result["rollouts"] == {**whole.result["rollouts"], "replayed": 12}
    for name in ("candidates.json", "run_log.json"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_what_was_not_measured_is_not_reused(tmp_path: Path) -> None:
    turn, numbers = turns(), itertools.count(1)

    def student(request: Request) -> Reply | str:
        number = turn(request)
        down = request.system == "Answer." and request.user.endswith("0") and number <= 3
        # The host's client asks three times.
        return Reply.error(500, "", headers={"Retry-After": "0"}) if down else f"try {number}"

    with scripted(student, lambda _: fenced(f"Other {next(numbers)}")) as endpoint:
        flags = ["--reuse-rollouts", "1", "--max-total-rollouts", "9", "--max-attempts", "1"]
        done = search(endpoint, tmp_path, *flags)
    # The first proposal lacks a rollout of the parent's and of the child's; the next runs it.
    assert shown(endpoint) == [{"try 1"}, {"try 1", "try 4"}, {"try 1", "try 4"}]
    assert (done.result["rollouts"]["charged"], done.result["rollouts"]["reused"]) == (9, 3)
    lines = [line for line in done.lines("traces.jsonl") if line["gepa"]["split"] == "train"]
    assert [line["gepa"]["verdict"] for line in lines].count("transient") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no-save-results"], "--reuse-rollouts takes them from the run's record"),
        (["--rollouts-per-task", "3"], "--reuse-rollouts 2 leaves too few to average"),
    ],
)
def test_what_it_cannot_go_with_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    with world() as endpoint:
        assert search(endpoint, tmp_path, "--reuse-rollouts", "2", *flags).status == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
        assert endpoint.requests == []
