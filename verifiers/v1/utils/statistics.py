"""Is the difference between two prompts more than noise?

Both prompts ran on the same tasks, so everything is paired by task: what varies between tasks drops
out of the difference. docs/statistics.md says in plain words what each number means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

FEWEST_TASKS = 5
"""With fewer tasks an interval would claim a precision that isn't there."""

RESAMPLES = 10_000
CONFIDENCE = 0.95

DIGITS = 12
"""Decimals to which scores are told apart: beyond them is the noise of adding in another order."""

SEED = 0
"""Of the resampling: the same scores always give the same figures."""


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
        """Whether the interval lies above 0, and chance alone would rarely give as much: with few
        tasks, or few that differ, the interval by itself says so too easily."""
        return self.ci95 is not None and self.ci95[0] > 0 and _is_rare(self.p_value)

    @property
    def worse(self) -> bool:
        """The same below 0."""
        return is_worse(self.ci95, self.p_value)


def is_worse(ci95: Sequence[float] | None, p_value: float | None) -> bool:
    """`Comparison.worse`, from its figures."""
    return ci95 is not None and ci95[1] < 0 and _is_rare(p_value)


def _is_rare(p_value: float | None) -> bool:
    return p_value is not None and p_value <= 1 - CONFIDENCE


def mean(values: Sequence[float]) -> float:
    """The mean, the same in whatever order. Raises `ZeroDivisionError` where there are none."""
    return math.fsum(values) / len(values)


def compare(baseline: Sequence[float], deployed: Sequence[float]) -> Comparison:
    """Compare per-task scores, paired by position. The interval is the percentile bootstrap of the
    mean difference with tasks resampled (Efron & Tibshirani 1993, ch. 13); the p-value that of the
    two-sided sign-flip test. Raises `ValueError` where the two differ
    in length or are empty."""
    if len(baseline) != len(deployed) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(deployed)} scores can't be paired")
    differences = np.round(np.subtract(deployed, baseline), DIGITS)
    ci95, p_value, reason = None, None, None
    if len(differences) < FEWEST_TASKS:
        reason = f"{len(differences)} tasks are too few for an interval (at least {FEWEST_TASKS})"
    else:
        p_value = permutation_p(differences)
        if np.ptp(differences) == 0:
            reason = "the difference is the same on every task, so there is nothing to resample"
        else:
            ci95 = bootstrap_interval(differences)
    return Comparison(
        baseline_mean=mean(baseline),
        deployed_mean=mean(deployed),
        delta=mean(differences.tolist()),
        ci95=ci95,
        p_value=p_value,
        reason=reason,
    )


def bootstrap_interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean."""
    result = stats.bootstrap(
        (np.asarray(differences, dtype=float),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    interval = result.confidence_interval
    return float(interval.low), float(interval.high)


def permutation_p(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided p-value of the sign-flip permutation test on the mean difference; exact where all
    sign patterns are fewer than the resamples."""
    values = np.asarray(differences, dtype=float)
    result = stats.permutation_test(
        (values,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        vectorized=True,
        rng=np.random.default_rng(SEED),
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
    runs: np.ndarray, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """95 % interval of the mean of `runs` (runs x tasks, differences): runs are resampled, and
    tasks (Davison & Hinkley 1997, section 3.8), of those one draw for all runs, because they share
    their tasks: many runs on one lucky task are no more evidence about tasks than one. None with
    fewer than `FEWEST_TASKS` tasks, or where nothing varies."""
    count, tasks = runs.shape
    if not count or tasks < FEWEST_TASKS or np.ptp(runs) == 0:
        return None
    rng = np.random.default_rng(SEED)
    means = np.empty(resamples)
    for number in range(resamples):
        drawn = runs[rng.integers(count, size=count)].mean(axis=0)
        means[number] = drawn[rng.integers(tasks, size=tasks)].mean()
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
