"""A student's answers of status 200 that are odd, in a run."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import Reply, Request, good_student, run, scripted, student_requests


def test_calls_that_lead_nowhere_are_a_low_score(tmp_path: Path) -> None:
    def student(request: Request) -> Reply | str:
        good = "GOOD" in request.system
        return "right" if good else Reply(None, tool_calls=[("look", {"word": "right"})])

    with scripted(student) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    assert (done.result["seed_val_mean"], done.result["best_val_mean"]) == (0.0, 1.0)
    assert done.result["rollouts"]["failed"] == 0
    lost = [line["traces"][0] for line in done.lines("traces.jsonl")][:4]
    assert [trace["stop_condition"] for trace in lost] == ["no_usable_tool_call"] * 4
    asked = [r for r in student_requests(endpoint) if "GOOD" not in r.system]
    assert len(asked) == 3 * len({(r.system, r.user) for r in asked})


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "SAFETY", "refusal", "eos"])
def test_a_reason_in_other_words_is_measured(tmp_path: Path, reason: str) -> None:
    with scripted(lambda r: Reply(good_student(r), finish_reason=reason)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    assert done.result["rollouts"]["failed"] == 0


@pytest.mark.parametrize("usage", [{"total_tokens": 9}, {"prompt_tokens": None}])
def test_a_usage_with_a_count_left_open_is_none(tmp_path: Path, usage: Any) -> None:
    with scripted(lambda r: Reply(good_student(r), usage=usage)) as endpoint:
        done = run(endpoint, tmp_path, "--max-total-rollouts", "12")
    assert done.status == 0
    assert done.result["best_val_mean"] == 1.0
    calls = [call for line in done.lines("traces.jsonl") for call in line["traces"][0]["calls"]]
    assert [call.get("usage") for call in calls] == [None] * 12


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply("right", finish_reason="network_error"), "finish_reason 'network_error'"),
        (Reply("right", finish_reason="moonrise"), "'moonrise' is none that is known"),
        (Reply(None, tool_calls=[("", {})]), "tool_calls[0].function.name is empty"),
    ],
)
def test_a_server_that_only_breaks_off_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: Reply, words: str
) -> None:
    with scripted(lambda _: reply) as endpoint:
        flags = ["--max-total-rollouts", "12", "--max-attempts", "1"]
        done = run(endpoint, tmp_path, *flags)
    assert done.status == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert done.charged == 0
