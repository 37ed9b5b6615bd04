"""What is known of a rollout before it is run: from the record of a resumed run, or from the scores
that runs share."""

from collections import Counter

from verifiers.v1.gepa.record.replay import Key, Recorded, Replay
from verifiers.v1.gepa.rollouts.cache import EvaluationCache
from verifiers.v1.gepa.rollouts.measurements import Job, Keys, Measurement
from verifiers.v1.gepa.spend.budget import Budget


class Recall:
    """Hands out what is known, and counts it."""

    def __init__(
        self, keys: Keys, budget: Budget, replay: Replay, cache: EvaluationCache | None
    ) -> None:
        self._keys = keys
        self._budget = budget
        self._replay = replay
        self._cache = cache

    def measurement(self, job: Job) -> tuple[int, Measurement | None]:
        """How often the job was asked for before, and what is known of it."""
        key = self._keys.job(job)
        occurrence, recorded = self._replay.rollout(*key)
        if recorded is None:
            return occurrence, self._cached(key, occurrence)
        if not isinstance(recorded, Recorded):
            return occurrence, Measurement(None, "given up before", occurrence, live=False)
        self._budget.count_replayed(job.phase, recorded.calls)
        stamp, stored = recorded.stamp, recorded.stored
        kept = stored if job.keep else None
        name = stored.name
        measured = Measurement(stamp.score, stamp.cause, occurrence, name, kept, live=False)
        return occurrence, measured

    def _cached(self, key: Key, occurrence: int) -> Measurement | None:
        """What another run stored of this rollout, in a phase that is not charged."""
        if self._cache is None or key[0] == "optimize":
            return None
        score = self._cache.get(*key, occurrence)
        if score is None:
            return None
        self._budget.reused += 1
        return Measurement(score, "", occurrence, live=False)

    def rest(self) -> Counter[str]:
        """Count what the record holds of the phases after the search and nothing asked for. How
        many rollouts, by phase."""
        rest: Counter[str] = Counter()
        for recorded in self._replay.take_rest():
            rest[recorded.stamp.phase] += 1
            self._budget.count_replayed(recorded.stamp.phase, recorded.calls)
        return rest
