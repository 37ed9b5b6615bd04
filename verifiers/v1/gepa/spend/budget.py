"""The rollout budget, a hard cap.

A rollout is charged when it is measured in the optimize phase. A batch reserves all that it may
charge before its first request, so however many rollouts are in flight, `charged` never exceeds
`total`; what fails gives its reservation back.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from verifiers.v1.gepa.spend.money import Call, Spending


class SearchStopped(BaseException):
    """The search ends here, in order, with what is known; `reason` is the run's finish reason. Not
    an `Exception`, because gepa catches those around a proposal and goes on without it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BudgetExhausted(SearchStopped):
    """What the search would do next does not fit into what is left."""

    def __init__(self, wanted: int, left: int) -> None:
        super().__init__("budget", f"the next step takes {wanted} rollouts, and {left} are left")


@dataclass
class Batch:
    """The rollouts that were last asked for together."""

    phase: str = "optimize"
    total: int = 0
    done: int = 0
    """Those that are on record, or given up."""

    def ended(self, _: object) -> None:
        """One more is."""
        self.done += 1


@dataclass
class Budget:
    """Counts of a run, in rollouts."""

    total: int
    charged: int = 0
    """Measured in the optimize phase."""
    attempted: int = 0
    """Episodes started, retries included."""
    failed: int = 0
    """Episodes that ended without a measurement."""
    replayed: int = 0
    """Measured by an earlier process of this run and taken from its record; they are charged and
    attempted as well."""
    reused: int = 0
    """Measured by other runs and taken from the evaluation cache, or by this search and taken once
    more; neither charged nor attempted."""
    uncharged: dict[str, int] = field(default_factory=dict)
    """Measured in the other phases, by phase."""
    spending: Spending = field(default_factory=Spending)
    """Tokens and money, failed calls included."""
    batch: Batch = field(default_factory=Batch)
    _reserved: int = 0

    @property
    def left(self) -> int:
        return self.total - self.charged - self._reserved

    @property
    def total_tokens(self) -> int:
        return sum(sum(counts.values()) for counts in self.spending.tokens.values())

    def reserve(self, rollouts: int) -> None:
        """Set `rollouts` aside. Raises `BudgetExhausted` where they don't fit."""
        if rollouts > self.left:
            raise BudgetExhausted(rollouts, self.left)
        self._reserved += rollouts

    def charge(self) -> None:
        """One reserved rollout was measured."""
        self._reserved -= 1
        self.charged += 1

    def release(self, rollouts: int) -> None:
        """Give back reserved rollouts that were not measured."""
        self._reserved -= rollouts

    def count(self, phase: str, measured: bool, calls: Iterable[Call]) -> None:
        """One episode of a phase ended, with these answered calls."""
        self.spending.count_all(calls)
        if not measured:
            self.failed += 1
        elif phase == "optimize":
            self.charge()
        else:
            self.uncharged[phase] = self.uncharged.get(phase, 0) + 1

    def count_replayed(self, phase: str, calls: Iterable[Call]) -> None:
        """One measured rollout was taken from the record."""
        self.replayed += 1
        self.attempted += 1
        self.count(phase, True, calls)
