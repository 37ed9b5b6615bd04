"""What goes wrong for several proposals of one batch counts once, and decides nothing."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    BASE,
    FOUR,
    LARGE,
    Reply,
    Request,
    fenced,
    good_student,
    resumed,
    run,
    scripted,
)

BROKEN = Reply.error(500, "broken")
ONCE = ["--max-attempts", "1", "--max-dropped-fraction", "0.5"]


def test_a_val_task_that_all_proposals_lose_counts_once(tmp_path: Path) -> None:
    """Two of four val tasks can't be measured with any of four proposals: half of val, not all."""

    def student(request: Request) -> Any:
        lost = request.user in ("question 4", "question 5") and "GOOD" in request.system
        return BROKEN if lost else good_student(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *FOUR, *ONCE, "--max-total-rollouts", "40")
    assert done.status == 0
    lost = [w for w in done.result["warnings"] if "no longer counts" in w]
    assert [warning.split()[2] for warning in lost] == ["4", "5"]
    assert done.result["val_means"] == [0.0, 0.5, 0.5, 0.5, 0.5]


def test_one_outage_that_hits_a_whole_batch_of_minibatches_is_one(tmp_path: Path) -> None:
    """Three in a row stop the run, of two minibatches each."""

    def student(request: Request) -> Any:
        return BROKEN if int(request.user[-1]) < 4 else "wrong"  # all train tasks

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *FOUR, *ONCE, "--max-total-rollouts", "40")
    assert done.status == 2
    assert "nothing could be measured of 3 minibatches in a row" in done.result["message"]
    # Minibatches that two proposals of an iteration share run once.
    assert done.result["rollouts"]["failed"] == 18
    assert "given up" in [line["decision"] for line in done.lines("decisions.jsonl")]


def test_a_task_that_the_parent_lost_is_no_reason(tmp_path: Path) -> None:
    """The proposal is not run there either; that is not what it is rejected for."""

    def student(request: Request) -> Any:
        lost = request.user == "question 1" and request.system == "Answer."
        return BROKEN if lost else "wrong"

    with scripted(student, lambda r: fenced(f"Answer {len(r.user)}.")) as endpoint:
        done = run(endpoint, tmp_path, *FOUR, *ONCE, "--max-total-rollouts", "24")
    lines = [line for line in done.lines("proposals.jsonl") if 1 in line["minibatch"]]
    assert {line["reason"] for line in lines if line["text"]} == {
        "its minibatch sum is 0, its parent's 0"
    }
    assert all(line["scores_before"][line["minibatch"].index(1)] is None for line in lines)


@pytest.mark.parametrize(
    ("budget", "proposals", "kept"), [(26, 1, 1), (50, 2, 1), (70, 8, 2), (77, 4, 4), (23, 8, 8)]
)
def test_the_budget_buys_what_the_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: int, proposals: int, kept: int
) -> None:
    """Where every proposal wins its minibatch, so many are accepted."""
    args = ["--proposals-per-iteration", str(proposals), "--accepted-per-iteration", str(kept)]
    args += ["--acceptance", "improvement_or_equal", "--max-total-rollouts", str(budget)]
    numbers = itertools.count()
    with scripted(lambda _: "wrong", lambda _: fenced(f"text {next(numbers)}")) as endpoint:
        done = run(endpoint, tmp_path, *args, base=LARGE)
    said = re.search(r"accepted proposals, if all win\s+│\s+(\d+)", capsys.readouterr().err)
    assert said is not None
    assert done.result["proposals"]["accepted"] == int(said[1]) > 0


def test_a_search_that_goes_on_in_the_middle_of_an_iteration_is_not_over(tmp_path: Path) -> None:
    """It had ended where the budget did not pay for a val pass, and all phases after it too."""
    phases = [*BASE[: BASE.index("--phase")], "--allow-small-budget"]
    with scripted() as endpoint:
        first = run(endpoint, tmp_path, "--max-total-rollouts", "10", base=phases)
        assert first.result["unvalidated"] == ["Answer. GOOD v1"]
        more = ["--max-total-rollouts", "12"]
        again = resumed(endpoint, first, *more, "--phase", "optimize", base=phases)
        assert (again.status, again.result["finish_reason"]) == (0, "budget")
        assert again.result["deployed_candidate"] is None
        whole = resumed(endpoint, first, *more, base=phases)
    assert whole.prompt == b"Answer. GOOD v1"
    decisions = [line["decision"] for line in whole.lines("decisions.jsonl")]
    assert decisions.index("continued") > decisions.index("ended")
