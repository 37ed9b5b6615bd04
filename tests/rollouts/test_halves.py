"""Faults around an early stop: a batch that runs in two halves is resumed like a whole one."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support import BASE, Reply, Request, fenced, good_student, resumed, run, scripted, steady

HALVES = [*BASE[:4], "--num-train", "4", "--num-val", "8", "--num-test", "0", "--phase", "optimize"]
HALVES += ["--taskset.size", "12", "--reflection-minibatch-size", "4", "--max-attempts", "1"]
HALVES += ["--proposals-per-iteration", "1", "--perfect-score", "1", "--max-total-rollouts", "40"]


@pytest.fixture
def questions(tmp_path: Path) -> dict[str, list[str]]:
    """The questions of train and val, in their order."""
    with steady() as endpoint:
        split = run(endpoint, tmp_path, base=HALVES).json("splits.json")
    return {name: [f"question {task['idx']}" for task in split[name]] for name in ("train", "val")}


@pytest.mark.parametrize("early", [[], ["--stop-val-early"]], ids=["whole", "halves"])
def test_an_outage_in_the_first_half_of_a_val_pass(
    tmp_path: Path, questions: dict[str, list[str]], early: list[str]
) -> None:
    """Nothing is given up, so the resume asks again for what is missing."""
    ill = True

    def student(request: Request) -> Any:
        if ill and "GOOD" in request.system and request.user in questions["val"][:2]:
            return Reply.error(500, "overloaded")
        return good_student(request)

    with scripted(student, lambda _: fenced("Answer. GOOD v1")) as endpoint:
        done = run(endpoint, tmp_path, *early, base=HALVES)
        assert done.status == 2
        assert "2 of 8 val tasks could not be measured" in done.result["message"]
        ill = False
        again = resumed(endpoint, done, *early, base=HALVES)
    assert again.status == 0
    assert again.result["val_means"] == [0.0, 1.0]
    assert again.lines("decisions.jsonl")[:-1] == []  # but for the end of the search


def test_a_stop_after_the_first_half_of_a_minibatch(
    tmp_path: Path, questions: dict[str, list[str]]
) -> None:
    """What the first half lacks is given up before the second starts, and stays so."""
    seen: list[str] = []

    def student(request: Request) -> Any:
        if "GOOD" in request.system and request.user in questions["train"]:
            seen.append(request.user)
            if request.user == seen[0]:
                return Reply.error(500, "broken")
            if len(set(seen)) == 4 and not healed:
                return Reply.error(401, "no such key")
        return good_student(request)

    healed = False
    with scripted(student, lambda _: fenced("Answer. GOOD v1")) as endpoint:
        done = run(endpoint, tmp_path, "-c", "1", base=HALVES)
        assert done.status == 2
        healed = True
        asked = len(seen)
        again = resumed(endpoint, done, "-c", "1", base=HALVES)
    assert again.status == 0
    assert len(seen) == asked + 1  # the one that had no valid key
    assert again.result["val_means"] == [0.0, 1.0]
    assert [line["decision"] for line in again.lines("decisions.jsonl")] == ["given up", "ended"]


def test_a_refusal_in_a_val_pass_that_stops(
    tmp_path: Path, questions: dict[str, list[str]]
) -> None:
    """A rollout that the model's filter refused is measured, not given up: the record holds it."""

    def student(request: Request) -> Any:
        if request.user in questions["train"]:
            return "right" if "TRAIN" in request.system else "wrong"
        if "TRAIN" in request.system and request.user == questions["val"][1]:
            return Reply.error(400, "triggering content management policy", "content_filter")
        hard = request.user in questions["val"][-2:] or "TRAIN" in request.system
        return "wrong" if hard else "right"

    numbers = itertools.count()
    with scripted(student, lambda _: fenced(f"TRAIN {next(numbers)}")) as endpoint:
        done = run(endpoint, tmp_path, "--stop-val-early", base=HALVES)
        first = done.lines("proposals.jsonl")[0]
        again = resumed(
            endpoint, done, "--stop-val-early", "--max-total-rollouts", "60", base=HALVES
        )
    assert first["reason"].startswith("stopped in its val pass")
    assert again.status == 0
    assert again.lines("proposals.jsonl")[0] == first
    assert again.result["rollouts"]["charged"] == again.charged
    assert "given up" not in {line["decision"] for line in again.lines("decisions.jsonl")}
