"""The one retry policy, for rollouts and teacher calls alike.

Only what may pass is tried again (`failures.Verdict.kind == "transient"`), after an exponential
pause with jitter, or after what the provider asked for where it said so.
"""

import logging
from collections import Counter
from typing import Protocol

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from verifiers.v1.gepa.failures import Verdict

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds. The pause doubles from the first to the longest."""

LONGEST_RETRY_AFTER = 300.0
"""Seconds. A provider that asks for more is retried after this long all the same."""


class Attempt(Protocol):
    """The outcome of one attempt."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def retry_after(self) -> float | None:
        """Seconds that the provider asked to wait, if it did."""


def retry_policy(attempts: int, what: str) -> AsyncRetrying:
    """Runs a coroutine function that returns an `Attempt` up to `attempts` times and returns the
    last outcome, whatever it was. `what` names the operation in the log."""

    def log(state: RetryCallState) -> None:
        cause = _outcome(state).verdict.cause
        _seen[cause] += 1
        logger.log(
            logging.WARNING if _is_round(_seen[cause]) else logging.DEBUG,
            "%s failed (attempt %d of %d; this cause %d times so far), trying again in %.1f s: %s",
            what,
            state.attempt_number,
            attempts,
            _seen[cause],
            state.upcoming_sleep,
            cause,
        )

    return AsyncRetrying(
        stop=stop_after_attempt(attempts),
        wait=_pause,
        retry=retry_if_result(lambda attempt: attempt.verdict.kind == "transient"),
        before_sleep=log,
        retry_error_callback=_outcome,
    )


_seen: Counter[str] = Counter()
"""How often each cause was seen: an outage shows as a few lines, not one per rollout."""


def _is_round(count: int) -> bool:
    """1, 2, 5, 10, 20, 50, ..."""
    return str(count).rstrip("0") in ("1", "2", "5")


_backoff = wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE) + wait_random(0, FIRST_PAUSE)


def _pause(state: RetryCallState) -> float:
    asked = _outcome(state).retry_after or 0.0
    return max(_backoff(state), min(asked, LONGEST_RETRY_AFTER))


def _outcome(state: RetryCallState) -> Attempt:
    assert state.outcome is not None  # tenacity asks only about finished attempts
    outcome: Attempt = state.outcome.result()
    return outcome
