"""Percentiles are observations, and the floors on sample counts are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results.percentiles import distribution, extent, percentile, requests_needed

numbers = st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=200)


@given(numbers, st.sampled_from([1, 10, 25, 50, 75, 90, 95, 99]))
def test_equals_numpys_inverted_cdf(values: list[float], percent: int) -> None:
    """A percentile is what NumPy's method inverted_cdf gives."""
    array = np.array(values)

    assert percentile(array, percent) == np.percentile(array, percent, method="inverted_cdf")


@given(numbers, st.floats(min_value=0.1, max_value=99.9))
def test_is_the_smallest_observation_that_covers(values: list[float], percent: float) -> None:
    """It is one of the values; at least `percent` % are at or below it; fewer are below it."""
    array = np.array(values)
    found = percentile(array, percent)
    need = percent / 100 * len(array)

    assert found in values
    assert (array <= found).sum() >= need - 1e-3
    assert (array < found).sum() < need + 1e-3


@given(numbers, st.integers(0, 50))
def test_failures_only_raise_percentiles(values: list[float], failures: int) -> None:
    """Adding failures (+inf) never lowers a percentile, and the p99 is a failure once over 1% failed."""
    array = np.array(values)
    worse = np.concatenate((array, np.full(failures, np.inf)))

    assert percentile(worse, 50) >= percentile(array, 50)
    assert (percentile(worse, 99) == np.inf) == (failures > len(worse) - np.ceil(0.99 * len(worse) - 1e-9))


def test_distribution_says_none_for_failures() -> None:
    """A percentile that falls on a failure is None, and the mean is over successes only."""
    row = distribution(np.array([1.0, 3.0, np.inf, np.nan]))

    assert row == {"p50": 3.0, "p90": None, "p95": None, "p99": None, "mean": 2.0, "n": 3}


def test_nothing_observed_is_none() -> None:
    """Without observations every figure is None, never 0."""
    assert distribution(np.array([np.nan]))["p50"] is None
    assert extent(np.array([np.nan])) == {"min": None, "max": None, "mean": None}


@pytest.mark.parametrize(
    ("percent", "needed"), [(99, [459, 662, 838, 1001]), (95, [90, 130, 165, 198])], ids=["p99", "p95"]
)
def test_requests_needed_match_the_published_table(percent: int, needed: list[int]) -> None:
    """The floors for 0 to 3 misses at 99% confidence are MLPerf's."""
    assert [requests_needed(percent, misses) for misses in range(4)] == needed


@given(st.integers(0, 300))
def test_each_miss_needs_more_requests(misses: int) -> None:
    """More misses always need more requests, and more than the plain share would."""
    assert requests_needed(99, misses + 1) > requests_needed(99, misses) > 100 * misses
