"""What a run found, in one sentence that claims no more than was measured."""

from dataclasses import dataclass, field
from typing import Literal

from verifiers.v1.gepa.report.data import Result, RunData
from verifiers.v1.gepa.report.result import TESTED_BEFORE
from verifiers.v1.utils.statistics import is_worse

Kind = Literal["improved", "worse", "even", "untested", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """The sentence, and what it needs beside it."""

    kind: Kind
    word: str
    """The verdict in a word or two."""
    sentence: str
    partial: bool = False
    caveats: list[str] = field(default_factory=list)
    """Why it may say less than it seems to."""


def verdict(data: RunData) -> Verdict:
    """The verdict on a run, also on one that was cut short."""
    result = data.result
    if result is None:
        return Verdict("unknown", "No result yet", f"No verdict: {data.notes[-1]}.", True)
    caveats = [reason for reason in result.invalid_reasons if not reason.startswith("the run did")]
    kind, word, sentence = _finding(result)
    if result.partial:
        word = f"{word}, cut short" if kind != "untested" else "Cut short"
        caveats.insert(0, f"the run was cut short ({result.finish_reason}): {result.message}")
    return Verdict(kind, word, sentence, result.partial, caveats)


def _finding(result: Result) -> tuple[Kind, str, str]:
    if result.baseline_mean is not None and result.deployed_mean is not None:
        return _comparison(result)
    if result.fallback_reason == "no_candidate":
        return "even", "No better prompt found", "No proposal was accepted: the seed prompt stays."
    if result.fallback_reason:
        return (
            "even",
            "No better prompt found",
            "No prompt was better than the seed prompt when run afresh on val: the seed prompt "
            "stays.",
        )
    if result.statistics_reason:
        return "untested", "Not tested", f"Not tested: {result.statistics_reason}."
    if result.deployed_candidate is not None:
        how = "was chosen on fresh rollouts on val, but not compared on test"
        return "untested", "Not tested", f"Not tested: the prompt {how}."
    if len(result.val_means) < 2:
        return "untested", "Not tested", "Not tested: the search has accepted no prompt so far."
    seed, best = result.val_means[0], max(result.val_means)
    return (
        "untested",
        "Not tested",
        f"Not tested: in the search, val went from {seed:.4f} to {best:.4f}, which flatters, as it "
        "is the best of several prompts on the tasks that chose it.",
    )


def _comparison(result: Result) -> tuple[Kind, str, str]:
    """The verdict of a test, in the terms of `statistics.Comparison`."""
    assert result.baseline_mean is not None
    assert result.deployed_mean is not None
    delta = 100 * (result.deployed_mean - result.baseline_mean)
    tasks = len(result.test)
    fresh = "" if TESTED_BEFORE in result.invalid_reasons else " that nothing had read before"
    means = (
        f"on {tasks} test tasks{fresh}, the deployed prompt scores "
        f"{result.deployed_mean:.4f} and the seed prompt {result.baseline_mean:.4f}"
    )
    if result.ci95 is None:
        reason = result.statistics_reason or "not known"
        sentence = f"No verdict: {means}, {delta:+.1f} points, without an interval: {reason}."
        return "untested", "No verdict", sentence
    low, high = result.ci95
    points = f"{delta:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"
    if result.improved:
        return "improved", "Improved", f"Improved: {means}, {points}."
    if is_worse(result.ci95, result.p_value):
        return "worse", "Worse", f"Worse: {means}, {points}. Keep the seed prompt."
    return "even", "No gain shown", f"No gain shown: {means}, {points}, which chance may explain."
