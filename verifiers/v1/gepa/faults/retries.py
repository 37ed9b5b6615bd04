"""The one retry policy, for rollouts and teacher calls alike.

Only what may pass is tried again (`failures.Verdict.kind == "transient"`), after an exponential
pause with jitter, or after what the provider asked for where it said so. Being told to slow down is
no failed attempt: it is waited out, for as long as the run's `throttle_patience`.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_exponential, wait_random

from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import THROTTLED, Verdict

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds. The pause doubles from the first to the longest."""

LONGEST_RETRY_AFTER = 300.0
"""Seconds. A provider that asks for more is asked again after this long all the same."""


@dataclass
class Troubles:
    """What went wrong with one kind of operation, by cause."""

    seen: Counter[str] = field(default_factory=Counter)
    """Failed attempts that another one might mend, also the last where it was given up."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Operations that wait for their next attempt."""


class Attempt(Protocol):
    """The outcome of one attempt."""

    @property
    def verdict(self) -> Verdict: ...


class Retries:
    """The retry policy of one kind of operation in a run, with what went wrong so far."""

    def __init__(self, config: GEPAConfig) -> None:
        self.troubles = Troubles()
        self.patience = config.throttle_patience
        self._attempts = config.max_attempts

    def policy(self, what: str) -> AsyncRetrying:
        """`retry_policy` for one operation."""
        return retry_policy(self._attempts, self.patience, what, self.troubles)


def retry_policy(attempts: int, patience: float, what: str, troubles: Troubles) -> AsyncRetrying:
    """Runs a coroutine function that returns an `Attempt` until it succeeds, `attempts` of them
    failed, or it waited `patience` seconds because it was throttled; returns the last outcome,
    whatever it was. `what` names the operation in the log; `troubles` counts what was seen, so that
    an outage shows as a few lines and not as one per rollout."""
    failed = 0
    waited = 0.0

    def spent(state: RetryCallState) -> bool:
        nonlocal failed
        if _outcome(state).verdict.status == THROTTLED:
            return waited >= patience
        failed += 1
        return failed >= attempts

    def count(state: RetryCallState) -> None:
        troubles.seen[_outcome(state).verdict.cause] += 1

    def log(state: RetryCallState) -> None:
        nonlocal waited
        verdict = _outcome(state).verdict
        if verdict.status == THROTTLED:
            waited += state.upcoming_sleep
        cause = verdict.cause
        seen = troubles.seen[cause]
        troubles.waiting[cause] += 1
        logger.log(
            logging.WARNING if _is_round(seen) else logging.DEBUG,
            "%s failed, for the %d. time in this run; trying again in %.1f s: %s",
            what,
            seen,
            state.upcoming_sleep,
            cause,
        )

    def go_on(state: RetryCallState) -> None:
        if state.outcome is not None:
            troubles.waiting[_outcome(state).verdict.cause] -= 1

    return AsyncRetrying(
        before=go_on,
        after=count,
        stop=spent,
        wait=_pause,
        retry=retry_if_result(lambda attempt: attempt.verdict.kind == "transient"),
        before_sleep=log,
        retry_error_callback=_outcome,
    )


_backoff = wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE) + wait_random(0, FIRST_PAUSE)


def _is_round(count: int) -> bool:
    """1, 2, 5, 10, 20, 50, ..."""
    return str(count).rstrip("0") in ("1", "2", "5")


def _pause(state: RetryCallState) -> float:
    asked = _outcome(state).verdict.wait or 0.0
    return max(_backoff(state), min(asked, LONGEST_RETRY_AFTER))


def _outcome(state: RetryCallState) -> Attempt:
    assert state.outcome is not None  # tenacity asks only about finished attempts
    outcome: Attempt = state.outcome.result()
    return outcome
