"""No more than so many fresh rollouts per prompt and task; further ones are those once more.

A search asks for the same prompt on the same task again and again: a good parent meets its
minibatches anew. With `reuse_rollouts` that costs nothing after so many times, at the price that
its score there stays what chance made of it.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from verifiers.v1.gepa.rollouts.measurements import Measurement


class Reuse:
    """Keeps the measured rollouts of each key, of which there are to be `limit`, and hands them out
    in turn. All goes by the order of the calls, so a resume reuses the same."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: defaultdict[Hashable, list[Measurement]] = defaultdict(list)
        self._turns: Counter[Hashable] = Counter()

    def fresh(self, keys: Sequence[Hashable]) -> list[bool]:
        """Which rollouts of a batch, one per key, are to be run: as many per key as are missing."""
        ahead: Counter[Hashable] = Counter()
        wanted = []
        for key in keys:
            wanted.append(len(self._kept.get(key, ())) + ahead[key] < self._limit)
            ahead[key] += wanted[-1]
        return wanted

    def keep(self, key: Hashable, measured: Measurement) -> None:
        """A fresh rollout of `key` was measured."""
        self._kept[key].append(measured)

    def take(self, key: Hashable) -> Measurement | None:
        """The next measured rollout of `key` in turn, None where there is none."""
        kept = self._kept.get(key)
        if not kept:
            return None
        self._turns[key] += 1
        return kept[(self._turns[key] - 1) % len(kept)]
