"""What a report shows of single episodes: the test tasks on which the two prompts differ, with what
each of them did there, and what failed."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.v1.episode import WireEpisode
from verifiers.v1.gepa.report.data import BROKEN, Rollout, RunData, TestTask, read_line
from verifiers.v1.gepa.report.views import Shown, Views, cut
from verifiers.v1.gepa.teacher.records import trace_record

TRACE_CHARS = 6_000
"""Characters of one part of a trace: its conversation, its feedback, ..."""

PAIRS = 6
"""Test tasks that are shown with their traces, of those that got better and of those that got
worse."""

Places = Mapping[tuple[str, str], Sequence[Rollout]]
"""Measured rollouts on test, by the candidate's digest and the task."""


@dataclass(frozen=True)
class Side:
    """What one prompt did on a test task."""

    score: float
    parts: list[tuple[str, Shown]]
    """Title and text of each part of its trace."""
    note: str = ""
    """Why there is no trace, or not all of it."""


@dataclass(frozen=True)
class Pair:
    """A test task with both prompts' traces."""

    name: str
    input: Shown
    baseline: Side
    deployed: Side

    @property
    def delta(self) -> float:
        return self.deployed.score - self.baseline.score


def by_difference(data: RunData) -> list[TestTask]:
    """The test tasks with both prompts' scores, from the largest gain to the largest loss."""
    tasks = data.result.test if data.result else []
    return sorted(tasks, key=lambda task: (task.baseline - task.deployed, task.idx))


def differing_pairs(views: Views) -> tuple[list[Pair], list[Pair]]:
    """Where the deployed prompt is better than the seed prompt and where it is worse, from the
    largest difference on."""
    tasks = by_difference(views.data)
    better = [task for task in tasks if task.deployed > task.baseline][:PAIRS]
    worse = [task for task in reversed(tasks) if task.deployed < task.baseline][:PAIRS]
    wanted = {task.hash for task in [*better, *worse]}
    places: dict[tuple[str, str], list[Rollout]] = defaultdict(list)
    for rollout in views.data.rollouts:
        if rollout.phase == "test" and rollout.task in wanted and rollout.verdict == "measured":
            places[rollout.candidate, rollout.task].append(rollout)
    return (
        [_pair(views, task, places) for task in better],
        [_pair(views, task, places) for task in worse],
    )


def _pair(views: Views, task: TestTask, places: Places) -> Pair:
    digests = dict(enumerate(views.data.digests))
    seed, deployed = digests.get(0, ""), digests.get(views.deployed, "")
    opening, baseline = _side(views.data, task.baseline, places.get((seed, task.hash), []))
    other, after = _side(views.data, task.deployed, places.get((deployed, task.hash), []))
    name = views.task_name(task.hash)
    return Pair(name, cut(opening or other, TRACE_CHARS), baseline, after)


def _side(data: RunData, score: float, rollouts: Sequence[Rollout]) -> tuple[str, Side]:
    """The task's input, and what the first of the rollouts shows."""
    if not rollouts:
        note = "Its trace is not in this run directory: the score was taken from another run."
        return "", Side(score, [], note)
    try:
        episode = WireEpisode.model_validate(read_line(data, rollouts[0]))
    except (OSError, *BROKEN) as error:
        return "", Side(score, [], f"Its trace can't be read: {error}")
    opening, parts = "", []
    for trace in episode.traces:
        record = trace_record(trace, score)
        opening = opening or str(record.pop("Task input", ""))
        record.pop("Score", None)
        parts += [(title, cut(_as_text(value), TRACE_CHARS)) for title, value in record.items()]
    several = f"The first of {len(rollouts)} rollouts." if len(rollouts) > 1 else ""
    return opening, Side(score, parts, several)


def failures(data: RunData) -> list[tuple[str, str, str, int]]:
    """What failed, how, why, and how often, the most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for rollout in data.rollouts:
        if rollout.verdict != "measured":
            counts[f"rollout ({rollout.phase})", rollout.verdict, rollout.cause] += 1
    for exchange in data.exchanges:
        if exchange.verdict != "proposal":
            counts["teacher", exchange.verdict, exchange.reason or exchange.cause] += 1
    for decision in data.decisions:
        if decision.get("decision") in ("dropped", "given up"):
            what = "val task" if decision["decision"] == "dropped" else "rollout"
            counts[what, decision["decision"], str(decision.get("cause", ""))] += 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(*what, count) for what, count in ranked]


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_as_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "\n\n".join(map(_as_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
