"""Why a run that finished did not improve the prompt, and what to do about it.

A function of what `result.json` holds and of nothing else, so that the same can be said of a run of
any age. docs/why-not-better.md explains every code.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from verifiers.v1.gepa.record.files import PROPOSALS_FILE, REFLECTIONS_FILE, TRACES_FILE
from verifiers.v1.utils.statistics import is_worse

FEW_PROPOSALS = 3
"""A search that evaluated fewer proposals than this has hardly begun."""

RAISE = "put `--resume` behind the same command, with"


class Hint(TypedDict):
    """One reason, for a program and for a person."""

    code: str
    text: str
    """What happened, and what to do."""


def hints(result: Mapping[str, Any]) -> list[Hint]:
    """The reasons that `result` (the object of `result.json`) gives, the most telling first. Empty
    for a run that improved the prompt, and for one that was cut short."""
    if result["status"] != "finished" or result["improved"]:
        return []
    found = [*_of_the_search(result), *_of_the_phases(result)]
    return [Hint(code=code, text=text) for code, text in found]


def _of_the_search(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    reason, proposals = result["finish_reason"], result["proposals"]
    evaluated, charged = proposals["evaluated"], result["rollouts"]["charged"]
    accepted, unvalidated = proposals["accepted"], len(result["unvalidated"])
    echoes, unusable = proposals["duplicate"], proposals["unusable"]
    # A larger budget would buy more of the same.
    teacher_fails = evaluated < FEW_PROPOSALS and echoes + unusable > evaluated
    if reason == "perfect" and not accepted:
        yield (
            "seed_perfect",
            "The seed prompt already has the score of --perfect-score on val: these tasks leave "
            "nothing to gain. Select harder ones, or leave the prompt as it is.",
        )
    elif reason == "one_score":
        yield (
            "one_score",
            f"Every rollout of the search scored {result['seed_val_mean']:g}, whatever the prompt. "
            "If that is the best score there is, the seed prompt needs no other: select harder "
            "tasks. If not, the reward does not tell a good answer from a bad one: read a few in "
            f"{TRACES_FILE}, and give part of the score for part of the answer.",
        )
    elif evaluated >= FEW_PROPOSALS and not proposals["effective"]:
        yield (
            "no_effect",
            f"None of {evaluated} proposals changed the score of any task: the model does not do "
            "what the prompt says, or the reward does not look at what it changes. Compare "
            f"two prompts' answers to one task in {TRACES_FILE}; then take another model, or "
            "reward what the prompt asks for.",
        )
    elif reason == "teacher_echoes" or (teacher_fails and echoes >= unusable):
        yield (
            "teacher_echoes",
            f"The teacher handed back a prompt that had already been tried, {echoes} times. Start "
            "another run with a stronger --reflection-model or a higher "
            "--reflection-sampling.temperature, and see in the feedback that it reads in "
            f"{REFLECTIONS_FILE} whether there is anything to learn from.",
        )
    elif reason == "unusable_replies" or teacher_fails:
        yield (
            "unusable_replies",
            f"{unusable} replies of the teacher held no prompt that can be used. Read why in "
            f"{REFLECTIONS_FILE}; start another run with a larger "
            "--reflection-sampling.max-tokens (cut off), another --reflection-model (no fenced "
            "block), or a larger --max-prompt-chars or no --protect (refused by those).",
        )
    elif reason == "no_progress":
        yield (
            "no_progress",
            "Iterations went by without a rollout, as no minibatch led to a proposal. With "
            "--perfect-score, every minibatch was perfect: select harder tasks.",
        )
    elif evaluated < FEW_PROPOSALS and reason == "budget":
        yield (
            "small_budget",
            f"The budget of {result['rollouts']['budget']} rollouts paid for {_count(evaluated)}, "
            f"which is too few to learn from: {RAISE} a larger --max-total-rollouts; the table at "
            "the start of the log says what each proposal costs.",
        )
    elif evaluated < FEW_PROPOSALS and reason != "perfect":
        yield (
            "early_stop",
            f"The search ended after {_count(evaluated)} and {charged} rollouts "
            f"({result['message']}): {RAISE} that limit raised or left out.",
        )
    elif not accepted and not unvalidated:
        yield (
            "all_rejected",
            f"None of {evaluated} proposals was accepted: they did not beat their parent on the "
            "minibatch, or by less than another of their iteration, or were stopped in their val "
            f"pass ({PROPOSALS_FILE} says which). See in {REFLECTIONS_FILE} whether the feedback "
            "tells the teacher what was wrong; then try a stronger --reflection-model, a larger "
            "budget or a larger --reflection-minibatch-size.",
        )
    if unvalidated:
        yield (
            "unvalidated",
            f"{_count(unvalidated)} beat the parent when the budget no longer paid for a val "
            f"pass: {RAISE} a larger --max-total-rollouts.",
        )


def _of_the_phases(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    proposals, tasks = result["proposals"], result["num_test"]
    if result["fallback_reason"] == "no_improvement":
        yield (
            "not_validated",
            f"{_count(proposals['accepted'])} scored better on the way, but none did when run "
            "afresh on val: what looked better was luck. Score more often or on more tasks: "
            "--rollouts-per-task, --num-val.",
        )
    elif not result["deployed_candidate"]:
        return
    elif not tasks:
        yield (
            "no_test",
            "Another prompt is deployed, but no task was held out to show that it is better: "
            "start another run with --num-test.",
        )
    elif result["baseline_mean"] is None:
        return
    elif result["ci95"] is None:
        yield (
            "no_interval",
            f"There is no interval on test: {result['statistics_reason']}. Start another run with "
            "more test tasks (--num-test).",
        )
    elif is_worse(result["ci95"], result["p_value"]):
        yield (
            "worse",
            "The deployed prompt is worse than the seed prompt on test: keep the seed prompt. It "
            "won on val by luck, or val is unlike test: take more val tasks (--num-val), and "
            "shuffle all of them (-s).",
        )
    else:
        yield (
            "within_chance",
            f"The difference of {result['delta_pp']:+.1f} points on {tasks} test tasks is not more "
            "than chance explains. More of them (--num-test) or more rollouts of each "
            "(--test-rollouts) narrow the interval, in a run of their own.",
        )


def _count(proposals: int) -> str:
    return f"{proposals} proposal{'' if proposals == 1 else 's'}"
