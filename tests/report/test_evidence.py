"""What stands in a result is what was measured, however often and with whatever settings a run is
gone on with; and runs that measured different things are not taken together."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.support import (
    FULL,
    Reply,
    Request,
    Run,
    command_env,
    good_student,
    mostly_good,
    placed,
    resumed,
    run,
    scripted,
    teacher_requests,
    turns,
)
from verifiers.v1.gepa.faults.failures import Verdict
from verifiers.v1.gepa.faults.retries import Troubles, retry_policy

BUDGET = ["--max-total-rollouts", "12"]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("budget", ["12", "14"])
def test_a_smaller_budget_than_a_killed_batch_needs(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, budget: str
) -> None:
    """Killed 2 rollouts into the child's val pass: 6 + 4 + 2 are on record, 6 were to be."""
    with (
        scripted(mostly_good) as endpoint,
        Forks(tmp_path_factory.mktemp("forks"), command_env(endpoint)) as forks,
    ):
        flags = [*placed(endpoint, tmp_path, "killed"), "-c", "1"]
        forks.start(*FULL, *flags).kill_at(endpoint, 6 + 2 + 1 + 2 + 3)
        killed = Run(0, tmp_path / "killed")
        charged = killed.charged
        assert 10 < charged < 14
        small = ["--max-total-rollouts", budget, "--allow-small-budget"]
        done = resumed(endpoint, killed, *small, base=FULL[:-2])
        assert done.status == 0
        assert done.result["finish_reason"] == "budget"
        assert done.result["rollouts"]["charged"] == done.charged == charged
        assert done.result["val_means"] == [pytest.approx(1 / 6)]
        assert done.prompt == b"Answer."
        whole = resumed(endpoint, done, base=FULL)
        assert whole.result["rollouts"]["charged"] == whole.charged == 20
        assert whole.result["deployed_candidate"] == 1


def test_a_search_that_ran_out_of_time_is_validated_and_tested(tmp_path: Path) -> None:
    with scripted(mostly_good) as endpoint:
        flags = ["--max-reflections", "1"]
        done = run(endpoint, tmp_path, *flags, "--phase", "optimize", base=FULL)
        assert done.result["finish_reason"] == "max_reflections"
        for phase in ("validate", "test"):
            done = resumed(endpoint, done, "--phase", phase, base=FULL)
            assert done.status == 0
            assert done.result["finish_reason"] == "max_reflections"
            assert done.charged == 16
        assert done.result["valid_for_aggregation"]
        # Without a phase it goes on: the stop was lifted, so that nothing ends it but the budget.
        on = resumed(endpoint, done, base=FULL)
        assert (on.result["finish_reason"], on.charged) == ("budget", 20)


@pytest.mark.parametrize("phase", ["optimize", "validate", "test"])
def test_a_phase_that_is_on_record_stays_in_the_result(tmp_path: Path, phase: str) -> None:
    with scripted(mostly_good) as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
        before, sent = done.result, len(endpoint.requests)
        again = resumed(endpoint, done, "--phase", phase, base=FULL)
        assert (again.status, len(endpoint.requests)) == (0, sent)
    for key in ("test", "delta_pp", "ci95", "validated_means", "valid_for_aggregation", "status"):
        assert again.result[key] == before[key]


@pytest.mark.parametrize("flag", ["--test-rollouts", "--validation-rollouts", "--num-finalists"])
def test_what_is_evaluated_does_not_change_on_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with scripted(mostly_good) as endpoint:
        done = run(endpoint, tmp_path, base=FULL)
        sent = len(endpoint.requests)
        assert resumed(endpoint, done, flag, "2", base=FULL).status == 2
        assert len(endpoint.requests) == sent
    assert flag.removeprefix("--").replace("-", "_") in capsys.readouterr().err


def test_going_on_after_a_look_at_test_is_said(tmp_path: Path) -> None:
    """The second proposal is better still, and so deployed and tested in the first one's place."""

    def student(request: Request) -> str:
        easy = request.user[-1] in "0124678"
        return "right" if "v2" in request.system or ("v1" in request.system and easy) else "wrong"

    flags = ["--reflection-minibatch-size", "4"]
    with scripted(student) as endpoint:
        base = [*FULL[:-2], *flags, "--max-total-rollouts", "20"]
        first = run(endpoint, tmp_path, base=base)
        assert first.result["valid_for_aggregation"]
        assert first.result["deployed_candidate"] == 1
        more = [*FULL[:-2], *flags, "--max-total-rollouts", "60"]
        again = resumed(endpoint, first, base=more)
    assert again.result["deployed_candidate"] != 1
    assert "the test tasks were run before" in again.result["invalid_reasons"][0]
    assert not again.result["valid_for_aggregation"]
    paid = Counter(line["gepa"]["phase"] for line in again.lines("traces.jsonl"))
    assert again.result["rollouts"]["uncharged"]["test"] == paid["test"] == 24


def test_a_repeat_that_is_lost_is_not_asked_for_again(tmp_path: Path) -> None:
    """Of two rollouts of a task one is lost: the other is its score, now and on a resume."""
    turn = turns()

    def student(request: Request) -> Reply | str:
        first = turn(request) <= 3  # the harness asks three times
        if first and request.user in ("question 5", "question 12"):
            return Reply.error(500, "broken", headers={"Retry-After": "0"})
        return mostly_good(request)

    flags = ["--max-attempts", "1", "--rollouts-per-task", "2", "--test-rollouts", "2", "-c", "1"]
    base = [*FULL[:-2], *flags, "--max-total-rollouts", "40"]
    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, base=base)
        sent = len(endpoint.requests)
        again = resumed(endpoint, done, base=base)
        assert (done.status, again.status, len(endpoint.requests)) == (0, 0, sent)
    for key in ("val_means", "validated_means", "test", "delta_pp", "dropped", "lost"):
        assert again.result[key] == done.result[key]
    assert {line["decision"] for line in done.lines("decisions.jsonl")} == {"given up", "ended"}


def test_json_says_failed_where_the_result_cannot_be_written(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def student(request: Request) -> str:
        (tmp_path / "run0/best_system_prompt.txt").mkdir(exist_ok=True)
        return mostly_good(request)

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--json", base=FULL)
    saved = json.loads(capfdbinary.readouterr().out.splitlines()[-1])
    assert done.status == 2
    assert (saved["status"], saved["finish_reason"]) == ("failed", "fault")
    assert "could not be written" in saved["message"]


# The cache


@pytest.mark.parametrize("score", ["NaN", "1e999", "true", '"1"', "null"])
def test_a_broken_entry_of_the_cache_is_no_score(tmp_path: Path, score: str) -> None:
    cache = ["--evaluation-cache", str(tmp_path / "cache")]
    runs = tmp_path / "runs"
    runs.mkdir()
    with scripted(mostly_good) as endpoint:
        first = run(endpoint, runs, *cache, base=FULL)
        for entry in (tmp_path / "cache").rglob("*.json"):
            entry.write_text(f'{{"score": {score}}}')
        second = run(endpoint, runs, *cache, "--seed", "1", base=FULL)
    assert second.status == 0
    assert second.result["rollouts"]["reused"] == 0
    assert second.result["test"] == first.result["test"]


def test_a_cache_that_is_a_file_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    runs = tmp_path / "runs"
    runs.mkdir()
    with scripted() as endpoint:
        refused = run(endpoint, runs, "--evaluation-cache", str(tmp_path / "file"), base=FULL)
        assert (refused.status, endpoint.requests) == (2, [])
    assert "--evaluation-cache" in last_line(capsys)


# Cells


@pytest.mark.parametrize(
    "flags",
    [
        ["--initial-prompt", "Reply."],
        ["--reflection-model", "other"],
        ["--max-total-rollouts", "24"],
        ["--test-rollouts", "2"],
        ["--agent.max-turns", "3"],
    ],
    ids=lambda flags: flags[0],
)
def test_runs_that_differ_in_more_than_the_seed_are_another_cell(
    tmp_path: Path, flags: list[str]
) -> None:
    base = [*FULL[:-2], *([] if "rollouts" in flags[0] and "total" in flags[0] else FULL[-2:])]
    with scripted(mostly_good) as endpoint:
        cells = [
            run(endpoint, tmp_path, "--phase", "optimize", *more, base=base_of).result["cell"]
            for base_of, more in ((FULL, []), (FULL, ["--seed", "1"]), (base, flags))
        ]
    assert cells[0] == cells[1] != cells[2]


def test_the_teacher_is_the_student_where_none_is_named(tmp_path: Path) -> None:
    with scripted(good_student) as endpoint:
        run(endpoint, tmp_path, *BUDGET, "--agent.model", "mine")
        assert {request.body["model"] for request in endpoint.requests} == {"mine"}
        assert teacher_requests(endpoint)


# Waiting


@dataclass(frozen=True)
class Throttled:
    verdict: Verdict
    retry_after: float | None = 0.001


async def test_only_waiting_counts_as_waiting() -> None:
    """An attempt that took longer than the patience before it was throttled is tried again."""
    left = [Verdict("transient", "429", 429), Verdict("measured")]

    async def attempt() -> Throttled:
        await asyncio.sleep(0.02)
        return Throttled(left.pop(0))

    outcome: Throttled = await retry_policy(1, 0.01, "a rollout", Troubles())(attempt)
    assert outcome.verdict.kind == "measured"


async def test_the_attempt_after_which_it_was_given_up_counts_among_the_causes() -> None:
    async def attempt() -> Throttled:
        return Throttled(Verdict("transient", "oops"))

    troubles = Troubles()
    await retry_policy(1, 0.01, "a rollout", troubles)(attempt)
    assert (troubles.seen["oops"], troubles.waiting["oops"]) == (1, 0)
