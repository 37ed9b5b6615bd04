"""What the calls of a run used: read from episodes, from the lines of the record, and put on record
where it would be in neither.

An answered call has a usage, None where its endpoint reported none. One that failed is left out
unless a usage came with it: what a provider may charge for it, nobody tells.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from openai.types import CompletionUsage

from direct_chat.answers import counted
from verifiers.v1.episode import Episode
from verifiers.v1.gepa.record.journal import Journal
from verifiers.v1.gepa.spend.budget import Budget
from verifiers.v1.gepa.spend.money import Call
from verifiers.v1.trace import Trace
from verifiers.v1.types import Usage

Calls = list[Call]


def trace_calls(trace: Trace) -> Calls:
    """The answered calls of a trace."""
    calls: Calls = [("student", call.usage) for call in trace.calls if call.usage or not call.error]
    return [*calls, *(("judges", usage) for usage in trace.extra_usage), *_silent(trace.info)]


def episode_calls(episode: Episode) -> Calls:
    """The answered calls of an episode."""
    return [call for trace in episode.traces for call in trace_calls(trace)]


def recorded_calls(row: dict[str, Any]) -> Iterator[Call]:
    """The same of a line of `traces.jsonl`."""
    for trace in row["traces"]:
        for call in trace.get("calls", []):
            if call.get("usage") or not call.get("error"):
                yield "student", recorded_usage(call.get("usage"))
        for usage in trace.get("extra_usage", []):
            yield "judges", recorded_usage(usage)
        yield from _silent(trace.get("info", {}))


def _silent(info: Any) -> Calls:
    """The judges' calls whose usage was not reported: the host notes every exchange of a judge."""
    calls = info.get("judge_calls") if isinstance(info, dict) else None
    if not isinstance(calls, list):
        return []
    responses = [call.get("response") for call in calls if isinstance(call, dict)]
    silent = [r for r in responses if isinstance(r, dict) and r.get("usage") is None]
    return [("judges", None) for _ in silent]


def recorded_usage(usage: dict[str, Any] | None) -> Usage | None:
    """A usage as a line of the record has it."""
    return Usage.model_validate(usage) if usage else None


def reported_usage(answer: object) -> Usage | None:
    """What a chat completion, as it came, reports; None if that leaves a count open."""
    usage = counted(answer.get("usage")) if isinstance(answer, dict) else None
    return Usage.from_openai(CompletionUsage.model_validate(usage)) if usage else None


def note_calls(calls: Iterable[Call], journal: Journal, budget: Budget) -> None:
    """Record and count calls that belong to no episode and no teacher exchange of the record, as
    those of an episode that was cut short. Raises `Fault` where the disk refuses."""
    for role, usage in calls:
        reported = usage.model_dump(exclude_none=True) if usage else None
        journal.decision({"decision": "spent", "role": role, "usage": reported})
        budget.spending.count(role, usage)
