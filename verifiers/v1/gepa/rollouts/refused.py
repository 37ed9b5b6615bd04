"""What a refusal (HTTP 400 and its kin) of a rollout means.

An endpoint that answers other requests with the same settings refuses this prompt on this task:
that is a measurement, the worst there is. One that refuses everything has a setting that it does
not take: that stops the run. What an endpoint answered tells which, so refusals are decided at the
end of their batch, and nothing of them is on record before.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

MOST = 3
"""Refusals in a row that nothing explains, before the run stops."""

Decision = Literal["this request", "every request", "unknown"]


class Answers:
    """What the endpoints of a run answered. `before` are the candidates that an earlier process of
    the run got answers to; with one endpoint, that tells who answered."""

    def __init__(self, endpoints: int, before: Iterable[str]) -> None:
        self._answered = set(before)
        """Candidates that were answered."""
        self._answering = {0} if self._answered and endpoints == 1 else set()
        """Endpoints that answered."""
        self._in_batch: set[int] = set()
        """Endpoints that answered in this batch."""
        self._refusals: Counter[int] = Counter()
        """By endpoint, those since it last answered that count against it."""

    def start_batch(self) -> None:
        """What is answered from now on belongs to another batch."""
        self._in_batch.clear()

    def answered(self, endpoint: int, candidate: str) -> None:
        """An endpoint answered a candidate's rollout."""
        self._answering.add(endpoint)
        self._in_batch.add(endpoint)
        self._answered.add(candidate)
        self._refusals[endpoint] = 0

    def decide(self, endpoint: int, refused: Sequence[str]) -> Decision:
        """What an endpoint's refusals of this batch are about, by the candidates that were refused.
        Nobody knows of an endpoint that never answered, and of one that refuses throughout what it
        answered before: it may have changed. Too many such refusals are about every request."""
        never = endpoint not in self._answering
        silent = endpoint not in self._in_batch
        changed = silent and all(candidate in self._answered for candidate in refused)
        if never or changed:
            self._refusals[endpoint] += len(refused)
        if self._refusals[endpoint] >= MOST:
            return "every request"
        return "unknown" if never or changed else "this request"
