"""The student's replicas: which one a rollout goes to.

A rollout takes the replica with the least in flight and stays on it, so that its turns meet the
same cache. One that fails transport is set aside for a while, then tried again.
"""

import logging
import time
from typing import Any

from verifiers.v1.clients import ModelContext
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.failures import Verdict

logger = logging.getLogger(__name__)

ASIDE_SECONDS = 15.0
"""How long a replica that failed is left alone; it doubles with every failure in a row."""

LONGEST_ASIDE = 240.0

TRANSPORT = frozenset({502, 503, 504})
"""Statuses that say that the replica itself is not there: its own, or the interception's for a
connection that was refused, dropped or timed out."""


class Endpoints:
    """The replicas and what became of the rollouts on each."""

    def __init__(self, config: GEPAConfig) -> None:
        sampling = config.sampling.unnamed()
        self.contexts = [
            ModelContext(client=client, model=config.student, sampling=sampling)
            for client in config.endpoints
        ]
        count = len(self.contexts)
        self.taken = [0] * count
        """Attempts that each replica got so far."""
        self.failed = [0] * count
        """Those of them that were not measured."""
        self._in_flight = [0] * count
        self._in_row = [0] * count
        self._aside_until = [0.0] * count

    @property
    def names(self) -> str:
        return ", ".join(context.client.base_url for context in self.contexts)

    def take(self) -> int:
        """The index of the replica for the next rollout; give it back with `free`. Where all are
        set aside, the one whose time is up first."""
        now = time.monotonic()
        waits = [max(0.0, until - now) for until in self._aside_until]
        load = list(zip(waits, self._in_flight, self.taken, strict=True))
        index = load.index(min(load))
        self._in_flight[index] += 1
        self.taken[index] += 1
        return index

    def free(self, index: int) -> None:
        self._in_flight[index] -= 1

    def report(self, index: int, verdict: Verdict) -> None:
        """What became of a rollout on a replica."""
        if verdict.kind == "measured":
            self._in_row[index] = 0
            return
        self.failed[index] += 1
        if verdict.status not in TRANSPORT or len(self.contexts) == 1:
            return
        aside = min(ASIDE_SECONDS * 2 ** self._in_row[index], LONGEST_ASIDE)
        if self._aside_until[index] <= time.monotonic():
            self._in_row[index] += 1
            self._aside_until[index] = time.monotonic() + aside
            url = self.contexts[index].client.base_url
            logger.warning("%s is set aside for %.0f s: %s", url, aside, verdict.cause)

    def counts(self) -> list[dict[str, Any]]:
        """Attempts and failures by replica, of this process."""
        return [
            {"url": context.client.base_url, "attempts": taken, "failed": failed}
            for context, taken, failed in zip(self.contexts, self.taken, self.failed, strict=True)
        ]
