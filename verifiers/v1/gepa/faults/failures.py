"""Whose fault a failed episode is.

A score is a measurement. verifiers reads a reward of 0 for an episode that the provider never
answered, so the number alone never tells a fault from a bad answer: `judge_episode` looks at what
the episode recorded and says *measured* (the model did this), *transient* (trying again may help)
or *permanent* (trying again can't), with the cause in words. `judge_error` does the same for an
exception of the teacher's client.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import httpx
import openai

from verifiers.v1.episode import Episode
from verifiers.v1.trace import Error, Trace
from verifiers.v1.utils.texts import as_text

Kind = Literal["measured", "transient", "permanent"]

THROTTLED = 429
TRANSIENT_STATUS = frozenset({408, 409, THROTTLED})
CONTEXT_STATUS = frozenset({400, 413})

QUOTA = re.compile(
    r"insufficient_quota|exceeded your (current )?quota|plan and billing|"
    r"billing[_ ]?(hard|not|limit)|payment required|insufficient (funds|balance|credits?)|"
    r"credit balance|out of credits",
    re.IGNORECASE,
)
TRY_LATER = re.compile(
    r"\b(re)?try (again )?in\b|retry-?_?(after|delay)|per minute|per second", re.I
)
"""Providers say with 429 both "too fast" and "no money left"; only the text tells. One that says
when to try again means "too fast", even where it advertises its billing page."""

DENIED = re.compile(r"Error code: (401|402|403)\b|insufficient_quota")
"""How the OpenAI SDK words a permanent refusal."""

CONTENT_FILTER = re.compile(
    r"content[_ ]?(filter|policy|management)|safety (system|filter|policy)|moderation",
    re.IGNORECASE,
)
CONTEXT_LENGTH = re.compile(
    r"context[_ ]length|context window|maximum context|prompt is too long|"
    r"request_too_large|entity too large|too many tokens|maximum number of tokens|"
    r"reduce the length of the messages|maximum prompt length",
    re.IGNORECASE,
)

HALF_PAIR = re.compile(
    r"malformed upstream response: .*(unexpected end of|lone leading surrogate in) hex escape"
)
"""How the host words that it can't read a reply with half of a surrogate pair. A reply that was cut
off on its way is worded otherwise."""


@dataclass(frozen=True)
class Verdict:
    """What an episode or a call was worth. `scored` is false for a measured failure that never
    reached the rewards (a prompt that the provider's content filter refused): it is as bad as
    anything measured, and never better than 0, which on some scales is the best score there is."""

    kind: Kind
    cause: str = ""
    status: int | None = None
    scored: bool = True


LARGEST_REWARD = 1e100
"""Beyond it a mean of rewards may not be finite any more; no reward means that."""

MEASURED = Verdict("measured")


class Fault(BaseException):
    """The run can't go on: a permanent fault, or one that outlived its retries. Not an
    `Exception`, because gepa catches those around a proposal and goes on without it."""


def judge_episode(episode: Episode) -> Verdict:
    """The verdict on a finished episode. Pure; never raises."""
    if not episode.traces:
        cause = _words(episode.errors) or "the episode ended without a trace"
        return Verdict("transient", cause)
    verdicts = [_judge_trace(trace) for trace in episode.traces]
    for verdict in verdicts:
        if verdict.kind != "measured":
            return verdict
    worst = min(verdicts, key=lambda verdict: (verdict.scored, not verdict.cause))
    if worst.scored and not episode.ok:
        return Verdict("transient", _words(episode.errors) or "the episode failed")
    return worst


def was_throttled(episode: Episode) -> bool:
    """Whether any of the episode's calls was refused for going too fast, even if it got through in
    the end."""
    return any(
        call.error is not None and call.error.status_code == THROTTLED
        for trace in episode.traces
        for call in trace.calls
    )


def _judge_trace(trace: Trace) -> Verdict:
    if not trace.ok:
        return _judge_recorded(trace.errors)
    if trace.stop_condition in ("setup_timeout", "finalize_timeout", "scoring_timeout"):
        stage = trace.stop_condition.removesuffix("_timeout")
        return Verdict("transient", f"the {stage} stage timed out")
    if any(call.error is None for call in trace.calls):
        return _judge_rewards(trace)
    stop = trace.stop_condition
    if stop == "agent_timeout":
        return Verdict("transient", "the rollout timed out before any model call was answered")
    if not trace.calls:
        return Verdict("transient", f"no model call was made (the rollout ended by {stop})")
    error = trace.calls[-1].error
    assert error is not None  # no call succeeded
    if not _is_overflow(error.status_code, error.message):
        return _judge_recorded([error])
    # A prompt longer than the context window leaves no error on the trace, only on its call.
    judged = _judge_rewards(trace)
    return replace(judged, cause=_one_line(error.message)) if judged is MEASURED else judged


def _judge_rewards(trace: Trace) -> Verdict:
    if not trace.rewards:
        return Verdict("transient", "no reward was recorded: the task defines none")
    for name, reward in trace.rewards.items():
        if reward is None:
            return Verdict("transient", f"the reward {name!r} is missing")
        if not math.isfinite(reward.value) or abs(reward.value) > LARGEST_REWARD:
            return Verdict("transient", f"the reward {name!r} is {reward.value}")
    return MEASURED


def _is_overflow(status: int | None, message: str) -> bool:
    return status in CONTEXT_STATUS and CONTEXT_LENGTH.search(message) is not None


def _judge_recorded(errors: Sequence[Error]) -> Verdict:
    if not errors:
        return Verdict("transient", "the rollout failed without a recorded error")
    error = errors[-1]
    if error.type != "ProviderError":
        # A judge inside a reward reaches us as the task's error; its key won't get any better.
        denied = error.type == "TaskError" and DENIED.search(error.message)
        return Verdict("permanent" if denied else "transient", _words([error]))
    return judge_status(error.status_code, error.message)


def judge_status(status: int | None, message: str) -> Verdict:
    """The verdict on a provider's refusal, by HTTP status and text."""
    cause = f"{status or 'error'}: {_one_line(message)}"
    if status in (400, THROTTLED) and QUOTA.search(message) and not TRY_LATER.search(message):
        return Verdict("permanent", cause, status)
    if _is_overflow(status, message):
        return Verdict("measured", cause, status, scored=False)
    if status == 400 and CONTENT_FILTER.search(message):
        return Verdict("measured", cause, status, scored=False)
    if HALF_PAIR.search(message):
        cause = "the reply holds half of a surrogate pair, which the host can't read"
        return Verdict("measured", cause, status, scored=False)
    if status is None or status in TRANSIENT_STATUS or status >= 500:
        return Verdict("transient", cause, status)
    return Verdict("permanent", cause, status)


def judge_error(error: Exception) -> Verdict:
    """The verdict on an exception of a model call made by us (the teacher's)."""
    if isinstance(error, openai.APIStatusError):
        return judge_status(error.status_code, str(error))
    if isinstance(error, openai.APIConnectionError | httpx.TransportError | OSError):
        cause = error.__cause__ or error
        return Verdict("transient", f"{type(cause).__name__}: {_one_line(str(cause))}")
    return Verdict("transient", f"{type(error).__name__}: {_one_line(str(error))}")


def _words(errors: Sequence[Error]) -> str:
    return f"{errors[-1].type}: {_one_line(errors[-1].message)}" if errors else ""


def _one_line(text: str, limit: int = 300) -> str:
    flat = " ".join(as_text(text).split()) or "no message"
    return flat if len(flat) <= limit else f"{flat[:limit]}..."
