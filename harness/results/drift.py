"""Did the service change while it was measured? One plain, robust rule, and why it is this one.

The window is cut into up to ten blocks of equal time; each block is its median latency. Latency
drifts when both hold:

  1. the blocks show a trend: Kendall's S, the count of later-above-earlier pairs less the reverse, is
     farther from 0 than chance allows in 95 of 100 steady windows (exact null distribution), and
  2. it matters: the medians of the two halves differ by more than 10%.

A slope fitted to single requests would call nearly any window drifting: requests that wait in one
queue are alike, so n requests are far fewer than n independent facts. Block medians at least one
median latency long forget most of that, ignore outliers and failures, and assume no distribution.
Under five blocks no order is surprising enough, and the rule says that it cannot tell.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CHANGE_LIMIT = 0.10
SIGNIFICANCE = 0.05
MOST_BLOCKS = 10
FEWEST_BLOCKS = 5


def drift(arrived_at: Floats, latency_ms: Floats, t0: float, t1: float) -> dict[str, Any]:
    """{blocks, first_half_ms, second_half_ms, change, p_value, significant} of the window [t0, t1) in ns.

    `arrived_at` (n,) in ns and `latency_ms` (n,), +inf for failures, which are left out. `change` is
    the second half's median over the first's, less 1. `significant` is None when too few blocks hold
    requests to tell.
    """
    rows = (arrived_at >= t0) & (arrived_at < t1) & np.isfinite(latency_ms)
    when, latency = (arrived_at[rows] - t0) / (t1 - t0), latency_ms[rows]
    first, second = _median(latency[when < 0.5]), _median(latency[when >= 0.5])
    medians = _block_medians(when, latency, (t1 - t0) / 1e6)
    p_value = trend_p_value(medians) if len(medians) >= FEWEST_BLOCKS else None
    return {
        "blocks": len(medians),
        "first_half_ms": first,
        "second_half_ms": second,
        "change": second / first - 1 if first and second is not None else None,
        "p_value": p_value,
        "significant": None if p_value is None else p_value < SIGNIFICANCE,
    }


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def _block_medians(when: Floats, latency: Floats, window_ms: float) -> Floats:
    """Medians of the blocks that hold requests; no block is shorter than the median latency."""
    if len(latency) == 0:
        return np.empty(0)
    longest = max(float(np.median(latency)), 1e-6)
    blocks = int(np.clip(window_ms / longest, 1, MOST_BLOCKS))
    block = np.minimum((when * blocks).astype(np.int64), blocks - 1)
    return np.array([np.median(latency[block == index]) for index in range(blocks) if (block == index).any()])


def trend_p_value(values: Floats) -> float:
    """Two-sided chance of an order at least as sorted as that of `values` (k,), k up to some 20, if all are alike.

    Exact: of the k! orders, count those with each number of inversions.
    """
    k = len(values)
    later, earlier = np.triu_indices(k, 1)[::-1]
    s = int(np.sign(values[later] - values[earlier]).sum())
    inversions = np.array([1])
    for size in range(2, k + 1):
        inversions = np.convolve(inversions, np.ones(size, dtype=np.int64))
    pairs = k * (k - 1) // 2
    scores = pairs - 2 * np.arange(pairs + 1)
    return float(inversions[np.abs(scores) >= abs(s)].sum() / factorial(k))
