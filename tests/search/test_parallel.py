"""Several proposals per iteration, and what else can be said about how the search goes."""

import threading
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    FOUR,
    LARGE,
    Endpoint,
    Reply,
    Request,
    fenced,
    good_student,
    resumed,
    run,
    scripted,
    steady,
    steady_teacher,
    student_requests,
    teacher_requests,
)


def moody_student(request: Request) -> str:
    """Right on questions of its own for every prompt."""
    return "right" if zlib.crc32((request.system + request.user).encode()) % 2 else "wrong"


def test_an_iteration_goes_out_in_one_batch_of_each_kind(tmp_path: Path) -> None:
    """Parents' minibatches, teacher calls, children's minibatches and val passes: each kind is in
    flight together. The endpoint answers none of a batch before it has all of it."""
    batches = [("parent", 6), ("parent", 8), ("teacher", 4), ("child", 8), ("child", 24)]
    whole = [threading.Event() for _ in batches]
    whole[0].set()  # the seed prompt's val pass, of which the first rollout goes alone
    order: list[str] = []

    def respond(request: Request) -> Any:
        kind = "child" if "GOOD" in request.system else "parent"
        order.append("teacher" if request.to_teacher else kind)
        ends = [sum(size for _, size in batches[: i + 1]) for i in range(len(batches))]
        batch = next(i for i, end in enumerate(ends) if len(order) <= end)
        if len(order) == ends[batch]:
            whole[batch].set()
        good = fenced(f"Answer. GOOD {len(order)}")
        return Reply(good if request.to_teacher else good_student(request), until=whole[batch])

    with Endpoint(respond) as endpoint:
        done = run(endpoint, tmp_path, *FOUR, "--max-total-rollouts", "46", base=LARGE)
    assert done.status == 0
    assert order == [kind for kind, size in batches for _ in range(size)]
    assert done.result["proposals"]["accepted"] == 4
    assert done.result["parents"] == [None, 0, 0, 0, 0]
    assert done.charged == 46


def test_the_same_run_whatever_the_concurrency(tmp_path: Path) -> None:
    runs = []
    for concurrency in ("128", "3"):
        with steady() as endpoint:
            args = [*FOUR, "-c", concurrency, "--max-total-rollouts", "200"]
            runs.append(run(endpoint, tmp_path, *args, base=LARGE))
    first, other = runs
    assert len(first.candidates) > 3
    names = ("candidates.json", "run_log.json", "reflections.jsonl", "proposals.jsonl")
    for name in names:
        assert (other.folder / name).read_bytes() == (first.folder / name).read_bytes()


@pytest.mark.parametrize("budget", range(12, 61, 3))
def test_the_budget_stays_a_hard_cap(tmp_path: Path, budget: int) -> None:
    with steady() as endpoint:
        done = run(endpoint, tmp_path, *FOUR, "--max-total-rollouts", str(budget))
    spent = len(student_requests(endpoint))
    assert spent == done.charged == done.result["rollouts"]["charged"] <= budget
    assert done.result["finish_reason"] == "budget"
    assert budget - spent < 4  # what is left pays for no proposal


def test_a_resume_draws_what_the_record_drew(tmp_path: Path) -> None:
    """The budget pays for fewer than four proposals; a larger one must not draw more there."""
    with steady() as endpoint:
        first = run(endpoint, tmp_path, *FOUR, "--max-total-rollouts", "20")
        assert {line["decision"] for line in first.lines("decisions.jsonl")} >= {"narrowed"}
        before = [line["gepa"] for line in first.lines("traces.jsonl")]
        proposals = first.lines("proposals.jsonl")
        again = resumed(endpoint, first, *FOUR, "--max-total-rollouts", "60")
    assert again.status == 0
    stamps = [line["gepa"] for line in again.lines("traces.jsonl")]
    assert stamps[: len(before)] == before
    assert again.result["rollouts"]["replayed"] == len(before)
    assert again.charged > len(before)
    lines = again.lines("proposals.jsonl")
    assert [line["number"] for line in lines] == [*range(again.result["proposals"]["tried"])]
    assert lines[: len(proposals)] == proposals


def test_max_reflections_is_no_more_than_said(tmp_path: Path) -> None:
    with steady() as endpoint:
        args = [*FOUR, "--max-reflections", "6", "--max-total-rollouts", "300"]
        done = run(endpoint, tmp_path, *args, base=LARGE)
    assert len(teacher_requests(endpoint)) == 6
    assert done.result["finish_reason"] == "max_reflections"


@pytest.mark.parametrize("parents", [1, 2, 4])
def test_parents_share_the_proposals_of_an_iteration(tmp_path: Path, parents: int) -> None:
    with scripted(moody_student, steady_teacher) as endpoint:
        args = [*FOUR, "--parents-per-iteration", str(parents), "--max-total-rollouts", "400"]
        args += ["--seed", "1"]  # one that finds several good prompts early
        done = run(endpoint, tmp_path, *args, base=LARGE)
    iterations: dict[int, list[int]] = {}
    for line in done.lines("proposals.jsonl"):
        iterations.setdefault(line["iteration"], []).extend(line["parents"])
    whole = [drawn for drawn in iterations.values() if len(drawn) == 4]
    assert len(whole) > 2
    for drawn in whole:
        groups = [drawn[i : i + 4 // parents] for i in range(0, 4, 4 // parents)]
        assert all(len(set(group)) == 1 for group in groups)
    assert max(len(set(drawn)) for drawn in whole) > (1 if parents > 1 else 0)


def test_an_iteration_draws_each_minibatch_once_per_epoch(tmp_path: Path) -> None:
    with steady() as endpoint:
        args = [*FOUR, "--max-total-rollouts", "100"]
        done = run(endpoint, tmp_path, *args, base=LARGE)
    drawn = [line["minibatch"] for line in done.lines("proposals.jsonl")]
    epoch = [idx for minibatch in drawn[:6] for idx in minibatch]
    assert sorted(epoch) == sorted(task["idx"] for task in done.json("splits.json")["train"])


def test_only_the_largest_gains_are_accepted(tmp_path: Path) -> None:
    with steady() as endpoint:
        args = [*FOUR, "--accepted-per-iteration", "1", "--max-total-rollouts", "200"]
        done = run(endpoint, tmp_path, *args, base=LARGE)
    lines = done.lines("proposals.jsonl")
    dropped = [line for line in lines if "not the largest gain of" in line["reason"]]
    assert dropped
    for line in dropped:
        assert line["decision"] == "rejected"
        (kept,) = (
            other
            for other in lines
            if other["iteration"] == line["iteration"] and other["decision"] == "accepted"
        )
        gains = [sum(one["scores_after"]) - sum(one["scores_before"]) for one in (kept, line)]
        assert gains[0] >= gains[1] > 0


def test_every_proposal_is_on_record_with_what_became_of_it(tmp_path: Path) -> None:
    with steady() as endpoint:
        done = run(endpoint, tmp_path, *FOUR, "--max-total-rollouts", "200", base=LARGE)
    lines = done.lines("proposals.jsonl")
    counts = Counter(line["decision"] for line in lines)
    proposals = done.result["proposals"]
    assert counts["accepted"] == proposals["accepted"] == len(done.candidates) - 1
    assert counts["rejected"] == proposals["rejected"]
    assert counts["no proposal"] == proposals["duplicate"] + proposals["unusable"]
    assert len(lines) == proposals["tried"]
    # Everything but the seed prompt's val pass was charged for some proposal, a parent's minibatch
    # once for each pair that shares it.
    assert 6 + sum(line["rollouts"] for line in lines) == done.charged
    for line in lines:
        if line["decision"] == "accepted":
            assert done.candidates[line["candidate"]] == line["text"]
            assert done.result["val_means"][line["candidate"]] == line["val_mean"]
            assert done.result["parents"][line["candidate"]] == line["parents"][0]
            assert sum(line["scores_after"]) > sum(line["scores_before"])
    exchanges = done.lines("reflections.jsonl")
    assert [line["teacher_tokens"]["input"] for line in lines] == [
        exchange["usage"]["prompt_tokens"] for exchange in exchanges
    ]


CONFLICTS = {
    "--proposals-per-iteration 4 --parents-per-iteration 3": "--parents-per-iteration 3 does not",
    "--accepted-per-iteration 4": "--accepted-per-iteration 4 is more than",
    "--merge": "--merge combines texts of several kinds",
    "--objectives reward": "--objectives has no effect on --frontier-type instance",
    "--stop-val-early": "--stop-val-early needs to know the best score",
}


@pytest.mark.parametrize("flags", CONFLICTS)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str
) -> None:
    with steady() as endpoint:
        refused = run(endpoint, tmp_path, "--max-total-rollouts", "60", *flags.split())
    assert refused.status == 2
    assert CONFLICTS[flags] in capsys.readouterr().err
    assert endpoint.requests == []


def test_the_current_best_is_the_parent(tmp_path: Path) -> None:
    with steady() as endpoint:
        args = ["--candidate-selection", "current_best", "--max-total-rollouts", "200"]
        args += ["--proposals-per-iteration", "1"]
        done = run(endpoint, tmp_path, *args, base=LARGE)
    means = [done.result["val_means"][0]]
    for line in done.lines("proposals.jsonl"):
        assert line["parents"] == [means.index(max(means))]
        if line["decision"] == "accepted":
            means.append(line["val_mean"])
    assert len(means) > 3


def test_a_proposal_that_equals_its_parent_is_accepted_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    with scripted(lambda _: "wrong") as endpoint:
        strict = run(endpoint, tmp_path, "--max-total-rollouts", "24")
        equal = run(
            endpoint, tmp_path, "--max-total-rollouts", "24", "--acceptance", "improvement_or_equal"
        )
    assert strict.result["proposals"]["accepted"] == 0
    assert equal.result["proposals"]["rejected"] == 0
    assert equal.result["proposals"]["accepted"] == 2


def test_a_proposal_that_can_not_win_any_more_stops(tmp_path: Path) -> None:
    """With a best score known, a proposal that is wrong on the first half of its minibatch, where
    its parent was right on all but one, runs no further; the search finds the same."""

    def student(request: Request) -> str:
        return "right" if "GOOD" in request.system or "BAD" not in request.system else "wrong"

    def teacher(_: Request) -> str:
        numbers.append(len(numbers))
        return fenced(f"Answer. BAD {len(numbers)}")

    numbers: list[int] = []
    args = ["--reflection-minibatch-size", "4", "--max-total-rollouts", "20"]
    spent = []
    for best in ([], ["--perfect-score", "2"]):
        numbers.clear()
        with scripted(student, teacher) as endpoint:
            done = run(endpoint, tmp_path, *args, *best)
        line = done.lines("proposals.jsonl")[0]
        assert line["decision"] == "rejected"
        spent.append((line["scores_after"], line["rollouts"]))
    # 4 of the parent; 2 x 2 could still equal its 4, which does not win.
    assert spent == [([0.0] * 4, 8), ([0.0, 0.0, None, None], 6)]


def test_a_val_pass_that_can_not_reach_its_parents_mean_stops(tmp_path: Path) -> None:
    """Better on train, hopeless on val: half of the val pass shows it."""

    def student(request: Request) -> str:
        train = request.user in questions["train"]
        if request.user == questions["hard"]:
            return "wrong"
        return "right" if ("TRAIN" in request.system) == train else "wrong"

    questions: dict[str, Any] = {"train": set(), "hard": ""}
    with steady() as endpoint:
        split = run(endpoint, tmp_path, "--max-total-rollouts", "12").json("splits.json")
    questions["train"] = {f"question {task['idx']}" for task in split["train"]}
    questions["hard"] = f"question {split['val'][-1]['idx']}"
    texts = iter(range(100))
    with scripted(student, lambda _: fenced(f"TRAIN {next(texts)}")) as endpoint:
        args = ["--max-total-rollouts", "30", "--perfect-score", "1", "--stop-val-early"]
        done = run(endpoint, tmp_path, *args)
    line = done.lines("proposals.jsonl")[0]
    assert line["decision"] == "rejected"
    assert line["reason"] == (
        "stopped in its val pass: it could reach a mean of 0.5000, its parent's is 0.7500"
    )
    assert line["rollouts"] == 2 + 2 + 2
    assert done.candidates == ["Answer."]


OBJECTIVES = ["--frontier-type", "objective", "--objectives", "words"]


def talkative(request: Request) -> str:
    """Never right, and as many words as the prompt has stars."""
    return "wrong " * max(1, request.system.count("*"))


def test_the_frontier_can_be_made_of_metrics(tmp_path: Path) -> None:
    """Of prompts that all score 0, the one with the most words is the only parent."""
    texts = iter(range(1, 100))

    def teacher(_: Request) -> str:
        number = next(texts)
        return fenced(f"Answer {number}. {'*' * (4 if number == 2 else 1)}")

    with scripted(talkative, teacher) as endpoint:
        args = [*OBJECTIVES, "--acceptance", "improvement_or_equal", "--max-total-rollouts", "52"]
        done = run(endpoint, tmp_path, *args)
    parents = [line["parents"] for line in done.lines("proposals.jsonl")]
    assert done.result["val_means"] == [0.0] * 7
    assert parents[2:] == [[2]] * 4


def test_the_frontier_of_a_search_that_has_drawn_a_minibatch_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def student(request: Request) -> Any:
        seen.append(request.user)
        return Reply.error(401, "no such key") if len(seen) > 4 + 1 else "wrong"

    seen: list[str] = []
    args = ["--max-total-rollouts", "20", "--reflection-minibatch-size", "4", "-c", "1"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, *args)
        assert (done.status, done.lines("reflections.jsonl")) == (2, [])
        sent = len(endpoint.requests)
        assert resumed(endpoint, done, *args, "--frontier-type", "hybrid").status == 2
        assert len(endpoint.requests) == sent
    last = 'frontier_type: "instance" in the record, "hybrid" now'
    assert last in capsys.readouterr().err


def test_an_objective_that_no_trace_has_is_named_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with steady() as endpoint:
        args = ["--frontier-type", "hybrid", "--objectives", "word", "--max-total-rollouts", "52"]
        done = run(endpoint, tmp_path, *args)
        assert done.status == 2
        assert len(student_requests(endpoint)) == 4
        assert "--objectives word: no trace of the seed prompt's val pass has it; there are: " in (
            err := capsys.readouterr().err
        )
        assert "right, words" in err
        again = resumed(endpoint, done, *args, "--objectives", "words")
        assert again.status == 0
        assert len(student_requests(endpoint)) == again.charged == 52
        # From the first minibatch on it is part of what was found.
        assert resumed(endpoint, done, *args, "--objectives", "right").status == 2
    assert 'objectives: 1 of 1 entries, the first at position 0: "words" in the record' in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("frontier", ["objective", "hybrid", "cartesian"])
def test_a_val_task_that_is_lost_counts_the_same_for_everyone(
    tmp_path: Path, frontier: str
) -> None:
    def student(request: Request) -> Any:
        if request.user == "question 5" and "*" in request.system:
            return Reply.error(500, "broken")
        return "wrong" if request.user == "question 6" else "right right"

    with scripted(student, lambda r: fenced(f"Answer *{len(r.user)}.")) as endpoint:
        args = ["--frontier-type", frontier, "--max-dropped-fraction", "0.5", "--max-attempts", "1"]
        args += ["--acceptance", "improvement_or_equal", "--max-total-rollouts", "12"]
        done = run(endpoint, tmp_path, *args)
        assert resumed(endpoint, done, *args, "--max-total-rollouts", "24").status == 0
    assert "val task 5 no longer counts, it could not be measured" in done.result["warnings"][-1]
    assert done.result["val_means"] == [0.0] * len(done.candidates)
    assert done.result["proposals"]["accepted"] > 0
