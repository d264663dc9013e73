"""Exact percentiles, the distributions reports show, and how many samples a percentile needs.

A percentile here is always one of the observations (nearest rank), never a blend of two, and a
failed request is an observation of +inf. In a distribution +inf and "nothing observed" are both
None: JSON knows neither infinity nor NaN. Knows numbers only, not what they measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHOWN = (50.0, 90.0, 95.0, 99.0)
CONFIDENCE = 0.99
_MOST_REQUESTS = 10_000_000


def rank(percentile: float, n: int) -> int:
    """The nearest rank, 1-based: ⌈percentile / 100 × n⌉, at least 1, free of floating-point slips."""
    return max(1, ceil(Fraction(percentile).limit_denominator(10**6) * n / 100))


def percentile(values: Floats, percent: float) -> float | None:
    """The smallest observation that at least `percent` % of all are at or below; +inf counts.

    `values` (n,) without NaN; None if n is 0. The same as numpy.percentile's `inverted_cdf`.
    """
    return percentiles(values, (percent,))[0]


def percentiles(values: Floats, percents: Sequence[float]) -> list[float | None]:
    """`percentile` at several ranks with one partial sort."""
    if len(values) == 0:
        return [None] * len(percents)
    at = [rank(percent, len(values)) - 1 for percent in percents]
    placed = np.partition(values, sorted(set(at)))
    return [float(placed[index]) for index in at]


def distribution(values: Floats) -> dict[str, float | int | None]:
    """{p50, p90, p95, p99, mean, n} of `values` (n,): NaN left out, +inf in the percentiles, out of the mean.

    A percentile that falls on a failure is None, as is everything when nothing was observed.
    """
    seen = values[~np.isnan(values)]
    finite = seen[np.isfinite(seen)]
    ranks = [finite_or_none(value) for value in percentiles(seen, SHOWN)]
    row: dict[str, float | int | None] = {f"p{percent:g}": value for percent, value in zip(SHOWN, ranks, strict=True)}
    return row | {"mean": float(finite.mean()) if len(finite) else None, "n": len(seen)}


def extent(values: Floats) -> dict[str, float | None]:
    """{min, max, mean} of the counts in `values` that are there; each None when none is."""
    seen = values[np.isfinite(values)]
    if len(seen) == 0:
        return {"min": None, "max": None, "mean": None}
    return {"min": int(seen.min()), "max": int(seen.max()), "mean": float(seen.mean())}


def finite_or_none(value: float | None) -> float | None:
    """The number, or None for what JSON cannot say."""
    return None if value is None or not np.isfinite(value) else float(value)


def requests_needed(percent: float, misses: int, *, confidence: float = CONFIDENCE) -> int:
    """Fewest requests that show, with `misses` of them over a limit, that `percent` % stay under it.

    The smallest n with P(X ≤ misses) ≤ 1 − confidence for X ~ Binomial(n, 1 − percent/100): were the
    true share any worse, so few misses would be that unlikely. For p99 at 99% confidence: 459, 662,
    838, 1001 with 0, 1, 2, 3 misses (MLPerf's early-stopping table).
    """
    low, high = misses, max(2 * misses, 1)
    while _log_cdf(misses, high, 1 - percent / 100) > log(1 - confidence) and high < _MOST_REQUESTS:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _log_cdf(misses, middle, 1 - percent / 100) > log(1 - confidence):
            low = middle
        else:
            high = middle
    return high


def _log_cdf(k: int, n: int, q: float) -> float:
    """log P(X ≤ k) for X ~ Binomial(n, q), summed exactly term by term in logarithms."""
    if k >= n:
        return 0.0
    i = np.arange(1, k + 1)
    steps = np.log((n - i + 1) / i) + log(q) - np.log1p(-q)
    terms = n * np.log1p(-q) + np.concatenate(([0.0], np.cumsum(steps)))
    top = terms.max()
    return float(top + np.log(np.exp(terms - top).sum()))
