"""What a step costs does not grow with the steps before it: seen from inside a running search, at
each of its teacher calls."""

import gc
import itertools
from pathlib import Path

from tests.support import Request, fenced, good_student, run, scripted
from verifiers.v1.episode import Episode


def test_a_step_rewrites_no_growing_file_and_holds_no_episode_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    files: list[set[str]] = []
    held: list[int] = []
    numbers = itertools.count(1)

    def teacher(_: Request) -> str:
        files.append({file.name for file in (tmp_path / "run0").iterdir()})
        gc.collect()
        held.append(sum(isinstance(item, Episode) for item in gc.get_objects()))
        number = next(numbers)
        return fenced(f"Answer. {'GOOD ' * number}")

    def student(request: Request) -> str:
        # Better with each accepted prompt: question k is answered from the k-th on.
        number = int(request.user.removeprefix("question "))
        return good_student(request) if request.system.count("GOOD") > number % 4 else "wrong"

    gc.collect()
    before = sum(isinstance(item, Episode) for item in gc.get_objects())
    with scripted(student, teacher) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "60")
    assert done.status == 0
    steps = [line for line in done.json("run_log.json") if "new_program_idx" in line]
    assert len(steps) >= 2
    assert "candidates.json" in files[-1]
    assert not {"run_log.json", "candidate_tree.html"} & set().union(*files)
    assert max(held) == before


def test_a_val_pass_holds_no_more_episodes_than_are_in_flight(tmp_path: Path) -> None:
    in_flight, size, held = 2, 30, []

    def student(request: Request) -> str:
        if request.user == f"question {size - 1}":  # the last task of val
            gc.collect()
            held.append(sum(isinstance(item, Episode) for item in gc.get_objects()))
        return "right"

    gc.collect()
    before = sum(isinstance(item, Episode) for item in gc.get_objects())
    argv = ["--taskset.size", f"{size}", "--num-val", f"{size - 4}", "-c", f"{in_flight}"]
    with scripted(student) as endpoint:
        argv += ["--allow-small-budget", "--max-total-rollouts", f"{size}"]
        assert run(endpoint, tmp_path, *argv).status == 0
    assert held
    # One more may be on its way into the journal, and each is written as a copy.
    assert max(held) - before <= 2 * (in_flight + 1)
