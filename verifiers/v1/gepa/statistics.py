"""Is the difference between two prompts more than noise?

Both prompts ran on the same tasks, so everything is paired by task: what varies between tasks drops
out of the difference. docs/statistics.md says in plain words what each number means.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

FEWEST_TASKS = 5
"""With fewer tasks an interval would claim a precision that isn't there."""

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Comparison:
    """Two prompts on the same tasks; all scores in the taskset's own unit."""

    baseline_mean: float
    deployed_mean: float
    delta: float
    """`deployed_mean - baseline_mean`."""
    ci95: tuple[float, float] | None
    """Bootstrap interval of `delta`."""
    p_value: float | None
    """Of the paired permutation test: how often chance alone would give a difference as large."""
    reason: str | None
    """Why there is no interval."""

    @property
    def improved(self) -> bool:
        """Whether the interval lies above 0."""
        return self.ci95 is not None and self.ci95[0] > 0


def compare(baseline: Sequence[float], deployed: Sequence[float], seed: int = 0) -> Comparison:
    """Compare per-task scores, paired by position. The interval is the percentile bootstrap of the
    mean difference with tasks resampled (Efron & Tibshirani 1993, ch. 13); the p-value that of the
    two-sided sign-flip test. Deterministic given `seed`. Raises `ValueError` where the two differ
    in length or are empty."""
    if len(baseline) != len(deployed) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(deployed)} scores can't be paired")
    differences = np.subtract(deployed, baseline)
    ci95, p_value, reason = None, None, None
    if len(differences) < FEWEST_TASKS:
        reason = f"{len(differences)} tasks are too few for an interval (at least {FEWEST_TASKS})"
    else:
        p_value = permutation_p(differences, seed)
        if np.ptp(differences) == 0:
            reason = "the difference is the same on every task, so there is nothing to resample"
        else:
            ci95 = bootstrap_interval(differences, seed)
    return Comparison(
        baseline_mean=float(np.mean(baseline)),
        deployed_mean=float(np.mean(deployed)),
        delta=float(np.mean(differences)),
        ci95=ci95,
        p_value=p_value,
        reason=reason,
    )


def bootstrap_interval(
    differences: Sequence[float] | np.ndarray, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean."""
    result = stats.bootstrap(
        (np.asarray(differences, dtype=float),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = result.confidence_interval
    return float(interval.low), float(interval.high)


def permutation_p(differences: Sequence[float] | np.ndarray, seed: int = 0) -> float:
    """Two-sided p-value of the sign-flip permutation test on the mean difference; exact where all
    sign patterns are fewer than the resamples."""
    values = np.asarray(differences, dtype=float)
    result = stats.permutation_test(
        (values,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979), in the order given."""
    count = len(p_values)
    adjusted = [0.0] * count
    highest = 0.0
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def hierarchical_interval(
    runs: Sequence[Sequence[float]], resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of the mean over runs of their mean task difference: runs are resampled first,
    then the tasks within each (Davison & Hinkley 1997, section 3.8). None where no run has
    `FEWEST_TASKS` tasks or nothing varies."""
    arrays = [np.asarray(run, dtype=float) for run in runs]
    if not arrays or min(map(len, arrays)) < FEWEST_TASKS:
        return None
    if np.ptp(np.concatenate(arrays)) == 0:
        return None
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for number in range(resamples):
        drawn = [arrays[run] for run in rng.integers(len(arrays), size=len(arrays))]
        resampled = [run[rng.integers(len(run), size=len(run))].mean() for run in drawn]
        means[number] = np.mean(resampled)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
