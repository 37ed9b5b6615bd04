"""Whose fault a failed episode is.

A score is a measurement. verifiers reads a reward of 0 for an episode that the provider never
answered, so the number alone never tells a fault from a bad answer: `judge_episode` looks at what
the episode recorded and says *measured* (the model did this), *transient* (trying again may help),
*permanent* (trying again can't) or *refused* (it may be this request's fault or every request's:
`refused.py` decides), with the cause in words. `judge_error` does the same for an exception of the
teacher's client.
"""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Literal

import httpx
import openai

from verifiers.v1.episode import Episode
from verifiers.v1.gepa.faults.refusals import Refusal, read_refusal
from verifiers.v1.gepa.faults.signs import Meaning, meaning_of
from verifiers.v1.trace import Error, Trace
from verifiers.v1.utils.texts import as_text

Kind = Literal["measured", "transient", "permanent", "refused"]

THROTTLED = 429
TRANSIENT_STATUS = frozenset({408, 409, 425, THROTTLED})
DENIED_STATUS = frozenset({401, 402, 403})
REFUSED_STATUS = frozenset({400, 413, 422})
"""What one request may get for itself alone, unless its words say more."""

SDK_STATUS = re.compile(r"\bError code: (\d{3})\b")
"""How the OpenAI SDK begins the text of a refusal."""

KINDS: dict[Meaning, Kind] = {
    "too long": "measured",
    "filtered": "measured",
    "throttled": "transient",
    "throttled for long": "permanent",
    "no money": "permanent",
    "bad parameter": "refused",
    "bad key": "permanent",
    "no model": "permanent",
}

HALF_PAIR = re.compile(
    r"malformed upstream response: .*(unexpected end of|lone leading surrogate in) hex escape"
)
"""How the host words that it can't read a reply with half of a surrogate pair. A reply that was cut
off on its way is worded otherwise."""


@dataclass(frozen=True)
class Verdict:
    """What an episode or a call was worth."""

    kind: Kind
    cause: str = ""
    status: int | None = None
    scored: bool = True
    """False for a measured failure that never reached the rewards (a prompt that the provider's
    content filter refused): it is as bad as anything measured, and never better than 0, which on
    some scales is the best score there is."""
    meaning: str = ""
    """What the provider's words say (`signs.Meaning`), empty where they are not known."""
    parameter: str = ""
    """The parameter that the provider refused, empty where it named none."""
    wait: float | None = None
    """Seconds that the provider asks to wait, None where it does not say."""


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
        call.error is not None
        and call.error.status_code == THROTTLED
        and judge_status(THROTTLED, call.error.message).kind == "transient"
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
    verdict = _judge_recorded([error])
    if verdict.meaning != "too long":
        return verdict
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


def _judge_recorded(errors: Sequence[Error]) -> Verdict:
    if not errors:
        return Verdict("transient", "the rollout failed without a recorded error")
    error = errors[-1]
    if error.type == "ProviderError":
        return judge_status(error.status_code, error.message)
    judged = SDK_STATUS.search(error.message) if error.type == "TaskError" else None
    if judged is None:
        return Verdict("transient", _words([error]))
    # A judge inside a reward reaches us as the task's error. Its key won't get any better; what it
    # refuses about this rollout says nothing about the student.
    verdict = judge_status(int(judged[1]), error.message)
    hopeless = verdict.meaning or verdict.status in DENIED_STATUS
    kind: Kind = "permanent" if verdict.kind == "permanent" and hopeless else "transient"
    status = THROTTLED if verdict.meaning == "throttled" else None
    return Verdict(kind, _words([error]), status, wait=verdict.wait)


def judge_status(status: int | None, message: str) -> Verdict:
    """The verdict on a provider's refusal, by HTTP status and text."""
    return judge_refusal(read_refusal(status, message), message)


def judge_refusal(refusal: Refusal, message: str) -> Verdict:
    """The verdict on a refusal: by what its codes and words say, else by its status. One that asks
    to wait, however it advertises its billing page, is no used-up quota."""
    status, meaning = refusal.status, meaning_of(refusal)
    if HALF_PAIR.search(message):
        cause = "the reply holds half of a surrogate pair, which the host can't read"
        return Verdict("measured", cause, status, scored=False)
    if meaning is not None:
        kind = KINDS[meaning]
    elif status is None or status in TRANSIENT_STATUS or status >= 500:
        kind = "transient"
    elif status in REFUSED_STATUS:
        kind = "refused"
    else:
        kind = "permanent"
    return Verdict(
        kind,
        cause=f"{status or 'error'}: {_one_line(message)}",
        status=status,
        scored=kind != "measured",
        meaning=meaning or "",
        parameter=refusal.parameter,
        wait=refusal.wait,
    )


def judge_error(error: Exception) -> Verdict:
    """The verdict on an exception of a model call made by us (the teacher's)."""
    if isinstance(error, openai.APIStatusError):
        verdict = judge_status(error.status_code, str(error))
        asked = [verdict.wait, _retry_after(error.response.headers)]
        return replace(verdict, wait=max((s for s in asked if s is not None), default=None))
    if isinstance(error, openai.APIConnectionError | httpx.TransportError | OSError):
        cause = error.__cause__ or error
        return Verdict("transient", f"{type(cause).__name__}: {_one_line(str(cause))}")
    return Verdict("transient", f"{type(error).__name__}: {_one_line(str(error))}")


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds that the headers of an answer ask to wait."""
    asked = headers.get("retry-after", "")
    try:
        return float(headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        pass
    try:
        return float(asked)
    except ValueError:
        pass
    try:  # the header's other form, a date
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def within(verdict: Verdict, patience: float) -> Verdict:
    """`verdict`, as a permanent one where the provider throttles and asks to wait for longer than
    `patience` seconds."""
    waits = verdict.kind == "transient" and verdict.status == THROTTLED
    if not waits or verdict.wait is None or verdict.wait <= patience:
        return verdict
    cause = f"{verdict.cause} (it asks to wait {verdict.wait:.0f} seconds)"
    return replace(verdict, kind="permanent", cause=cause, meaning="throttled for long")


def _words(errors: Sequence[Error]) -> str:
    return f"{errors[-1].type}: {_one_line(errors[-1].message)}" if errors else ""


def _one_line(text: str, limit: int = 300) -> str:
    flat = " ".join(as_text(text).split()) or "no message"
    return flat if len(flat) <= limit else f"{flat[:limit]}..."
