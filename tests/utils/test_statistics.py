"""The figures agree with values worked out by other means."""

import itertools

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from verifiers.v1.utils.statistics import (
    bootstrap_interval,
    compare,
    hierarchical_interval,
    holm,
    permutation_p,
)


def test_means_and_difference() -> None:
    made = compare([0.0, 0.5, 1.0, 0.0, 0.5], [1.0, 0.5, 1.0, 0.5, 1.0])
    assert (made.baseline_mean, made.deployed_mean) == (pytest.approx(0.4), pytest.approx(0.8))
    assert made.delta == pytest.approx(0.4)


def test_the_permutation_p_is_that_of_all_sign_patterns() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.5, 0.1, -0.2, 0.3]
    observed = abs(sum(differences))
    patterns = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(p, differences, strict=True))) for p in patterns]
    exact = sum(value >= observed - 1e-12 for value in sums) / len(sums)
    assert permutation_p(differences) == pytest.approx(exact)


def test_the_bootstrap_is_scipys_percentile_bootstrap() -> None:
    differences = np.random.default_rng(1).normal(0.2, 0.5, 40)
    low, high = bootstrap_interval(differences)
    result = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=10_000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (low, high) == (result.low, result.high)
    # And that is near the closed form of the mean's normal interval.
    half = 1.96 * differences.std() / np.sqrt(40)
    assert low == pytest.approx(differences.mean() - half, abs=0.02)
    assert high == pytest.approx(differences.mean() + half, abs=0.02)


def test_it_is_the_same_every_time() -> None:
    baseline = np.random.default_rng(2).random(30)
    deployed = np.random.default_rng(3).random(30)
    assert compare(list(baseline), list(deployed)) == compare(list(baseline), list(deployed))


@pytest.mark.parametrize("count", [1, 4])
def test_too_few_tasks_have_no_interval(count: int) -> None:
    made = compare([0.0] * count, [1.0] * count)
    assert (made.ci95, made.p_value, made.improved) == (None, None, False)
    assert made.reason == f"{count} tasks are too few for an interval (at least 5)"


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_equal_differences_have_no_interval(value: float) -> None:
    made = compare([0.0] * 6, [value] * 6)
    assert (made.ci95, made.improved) == (None, False)
    assert (
        made.reason == "the difference is the same on every task, so there is nothing to resample"
    )
    # 2 of the 64 sign patterns are as extreme; with no difference at all, every one is.
    assert made.p_value == pytest.approx(2 / 64 if value else 1.0)


def test_improved_means_that_the_interval_lies_above_0() -> None:
    baseline = [0.0] * 20
    clear = compare(baseline, [1.0] * 15 + [0.0] * 5)
    assert clear.ci95 is not None
    assert clear.ci95[0] > 0
    assert clear.improved
    unclear = compare(baseline, [1.0] * 2 + [-1.0] * 2 + [0.0] * 16)
    assert unclear.ci95 is not None
    assert unclear.ci95[0] < 0 < unclear.ci95[1]
    assert not unclear.improved
    worse = compare([1.0] * 15 + [0.0] * 5, baseline)
    assert worse.ci95 is not None
    assert worse.ci95[1] < 0
    assert not worse.improved
    assert (clear.worse, unclear.worse, worse.worse) == (False, False, True)


def test_scores_that_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 and 1 scores"):
        compare([0.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="0 and 0 scores"):
        compare([], [])


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_holm_agrees_with_statsmodels(count: int) -> None:
    p_values = np.random.default_rng(count).random(count) ** 3
    assert holm(list(p_values)) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_the_hierarchical_interval_of_one_run_is_the_plain_bootstraps() -> None:
    differences = np.random.default_rng(4).normal(0.2, 0.5, 40)
    made = hierarchical_interval(differences[np.newaxis])
    assert made is not None
    assert made == pytest.approx(bootstrap_interval(differences), abs=0.01)


def test_runs_that_differ_widen_the_hierarchical_interval() -> None:
    rng = np.random.default_rng(5)
    alike = np.array([rng.normal(0.3, 0.1, 50) for _ in range(4)])
    apart = np.array([rng.normal(mean, 0.1, 50) for mean in (0.0, 0.2, 0.4, 0.6)])
    narrow, wide = hierarchical_interval(alike), hierarchical_interval(apart)
    assert narrow is not None
    assert wide is not None
    assert wide[1] - wide[0] > 5 * (narrow[1] - narrow[0])
    # The closed form of the spread of 4 means drawn from these 4.
    expected = np.std(apart.mean(axis=1)) / np.sqrt(4)
    assert (wide[1] - wide[0]) / (2 * 1.96) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("runs", [1, 5, 20])
def test_the_same_tasks_many_times_are_no_more_evidence(runs: int) -> None:
    differences = np.array([1.0] * 6 + [-1.0] * 3 + [0.0] * 3)
    made = hierarchical_interval(np.tile(differences, (runs, 1)))
    assert made == pytest.approx(bootstrap_interval(differences), abs=0.05)


def test_no_hierarchical_interval_where_nothing_varies() -> None:
    assert hierarchical_interval(np.zeros((2, 10))) is None
    assert hierarchical_interval(np.array([[0.0, 1.0, 0.5]])) is None
    assert hierarchical_interval(np.zeros((0, 0))) is None


@pytest.mark.parametrize(
    ("wins", "tasks", "p_value"), [(4, 5, 0.125), (5, 5, 0.0625), (4, 20, 0.125), (4, 50, 0.125)]
)
def test_a_few_wins_are_no_improvement(wins: int, tasks: int, p_value: float) -> None:
    """The interval lies above or at 0, but so few wins happen by chance."""
    gains = [0.8 + 0.01 * number for number in range(wins)] + [0.0] * (tasks - wins)
    made = compare([0.0] * tasks, gains)
    assert made.p_value == pytest.approx(p_value, abs=0.02)
    assert not made.improved


def test_the_noise_of_adding_in_another_order_is_no_difference() -> None:
    made = compare([0.1 + 0.2 + 0.3] * 9 + [0.6], [0.3 + 0.2 + 0.1] * 9 + [0.6])
    assert (made.delta, made.ci95, made.improved) == (0.0, None, False)
    made = compare([0.1 * number for number in range(10)], [0.1 * n + 0.1 for n in range(10)])
    assert (made.delta, made.ci95) == (0.1, None)
