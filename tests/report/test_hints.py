"""A run that finds nothing better says why, in its finish reason and in its hints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    BASE,
    Endpoint,
    Request,
    Run,
    fenced,
    good_student,
    resumed,
    run,
    scripted,
    student_requests,
)
from verifiers.v1.gepa.report.hints import hints

ALL = [*BASE[: BASE.index("--phase")], "--max-total-rollouts", "100"]
"""The search and the phases after it."""


def perfect(_: Request) -> str:
    return "right"


def deaf(request: Request) -> str:
    """Right on half of the questions, whatever the prompt."""
    return "right" if int(request.user[-1]) % 2 else "wrong"


def fragile(request: Request) -> str:
    """As `deaf`, but the first proposal makes it wrong everywhere."""
    return "wrong" if "v1" in request.system.split() else deaf(request)


def echo(request: Request) -> str:
    prompt = request.user.partition("<current_prompt>\n")[2].partition("\n</current_prompt>")[0]
    return fenced(prompt)


CAUSES: dict[str, tuple[Callable[[], Endpoint], list[str], str, str, int]] = {
    # Endpoint, flags, finish reason, hint, rollouts: the seed's val pass is 4, a proposal 4.
    "seed perfect": (
        lambda: scripted(perfect),
        ["--perfect-score=1"],
        "perfect",
        "seed_perfect",
        4,
    ),
    "seed as good as can be": (lambda: scripted(perfect), [], "one_score", "one_score", 84),
    "student ignores the prompt": (lambda: scripted(deaf), [], "no_effect", "no_effect", 84),
    "teacher echoes": (
        lambda: scripted(good_student, echo),
        [],
        "teacher_echoes",
        "teacher_echoes",
        24,
    ),
    "teacher echoes till the budget is spent": (
        lambda: scripted(good_student, echo),
        ["--max-total-rollouts", "12"],
        "budget",
        "teacher_echoes",
        10,
    ),
    "teacher writes no prompt": (
        lambda: scripted(good_student, lambda _: "I would change nothing."),
        ["--max-total-rollouts", "12"],
        "budget",
        "unusable_replies",
        10,
    ),
    "budget too small": (
        lambda: scripted(deaf),
        ["--max-total-rollouts", "12"],
        "budget",
        "small_budget",
        12,
    ),
}


@pytest.mark.parametrize(
    ("endpoint", "flags", "reason", "code", "charged"), CAUSES.values(), ids=CAUSES
)
def test_every_cause_of_no_improvement_has_a_reason_and_a_hint(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    endpoint: Callable[[], Endpoint],
    flags: list[str],
    reason: str,
    code: str,
    charged: int,
) -> None:
    with endpoint() as started:
        done = run(started, tmp_path, *flags, base=ALL)
    assert (done.status, done.prompt) == (0, b"Answer.")
    result = done.result
    assert (result["improved"], result["finish_reason"]) == (False, reason)
    assert result["rollouts"]["charged"] == charged
    (hint,) = result["hints"]
    assert hint["code"] == code
    # The last line is the status; what to do comes just before.
    lines = capsys.readouterr().err.splitlines()
    assert any(line.endswith(f"hint ({code}): {hint['text']}") for line in lines[-6:])


def test_one_proposal_that_changes_a_score_is_an_effect(tmp_path: Path) -> None:
    with scripted(fragile) as endpoint:
        done = run(endpoint, tmp_path, base=ALL)
    assert done.result["finish_reason"] == "budget"
    counts = done.result["proposals"]
    assert (counts["evaluated"], counts["effective"]) == (24, 1)
    assert [hint["code"] for hint in done.result["hints"]] == ["all_rejected"]


def test_patience_can_make_it_wait_longer_for_an_effect(tmp_path: Path) -> None:
    with scripted(deaf) as endpoint:
        done = run(endpoint, tmp_path, "--patience", "22", base=ALL)
        assert done.result["finish_reason"] == "no_effect"
        assert done.result["proposals"]["evaluated"] == 22
        # The record has the same end, whatever the budget.
        before = len(student_requests(endpoint))
        more = ["--patience", "22", "--max-total-rollouts", "200"]
        again = resumed(endpoint, done, *more, base=ALL)
        assert len(student_requests(endpoint)) == before
    assert (again.status, again.result["finish_reason"]) == (0, "no_effect")


def test_an_improvement_needs_no_hint(tmp_path: Path) -> None:
    tests = ["--num-test", "12", "--taskset.size", "20", "--max-total-rollouts", "12"]
    with scripted(lambda r: "right" if "GOOD" in r.system else deaf(r)) as endpoint:
        done = run(endpoint, tmp_path, *tests, base=ALL)
    assert done.result["improved"]
    assert done.result["hints"] == []


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that deployed another prompt than the seed's, which is right everywhere."""
    with scripted() as endpoint:
        done: Run = run(endpoint, tmp_path_factory.mktemp("run"), base=ALL)
    assert done.result["deployed_candidate"] == 1
    return done.result


TESTED = {"num_test": 9, "baseline_mean": 0.5, "deployed_mean": 0.5, "delta_pp": 0.0}

CHANGES: dict[str, dict[str, Any]] = {
    "no_test": {},
    "no_interval": {**TESTED, "ci95": None, "statistics_reason": "too few"},
    "within_chance": {**TESTED, "ci95": [-3.0, 4.0], "p_value": 0.8},
    "within_chance without a p-value": {**TESTED, "ci95": [-9.0, -4.0], "p_value": None},
    "worse": {**TESTED, "ci95": [-9.0, -4.0], "p_value": 0.01},
    "not_validated": {"fallback_reason": "no_improvement", "deployed_candidate": 0},
    "unvalidated": {"unvalidated": ["GOOD"], "deployed_candidate": 0},
    "early_stop": {"finish_reason": "max_tokens", "message": "7 tokens", "deployed_candidate": 0},
    "no_progress": {"finish_reason": "no_progress", "deployed_candidate": 0},
    "unusable_replies": {"finish_reason": "unusable_replies", "deployed_candidate": 0},
}


@pytest.mark.parametrize("code", CHANGES)
def test_the_hints_for_what_the_phases_find(result: dict[str, Any], code: str) -> None:
    changed = {**result, **CHANGES[code]}
    if code == "early_stop":
        changed["proposals"] = {**result["proposals"], "evaluated": 1}
    assert [hint["code"] for hint in hints(changed)] == [code.split()[0]]
    assert hints({**changed, "status": "interrupted"}) == []
    assert hints({**changed, "improved": True}) == []
