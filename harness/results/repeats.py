"""Repeats of one plan as one row: each figure's mean and spread over whole runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

Row = Mapping[str, Any]

_FIGURES = ("rps", "rps_per_gpu", "output_tokens_per_s", "concurrency_mean", "prefix_cache_hit_rate")
_DISTRIBUTIONS = ("latency_ms", "ttft_ms", "tpot_ms", "itl_ms")


def repeated(summaries: Sequence[Row]) -> dict[str, Any]:
    """Repeats of one plan, JSON-ready: {repeat, valid, simulated, simulated_as, figures, trials}.

    figures   name → {mean, sd, min, max, n} over runs; sd is the sample standard deviation, None for
              one run. Percentiles are each run's own, so their mean is a mean of percentiles.
    """
    figures = {name: spread([summary[name] for summary in summaries]) for name in _FIGURES}
    for name in _DISTRIBUTIONS:
        for rank in ("p50", "p99"):
            figures[f"{name.removesuffix('_ms')}_{rank}_ms"] = spread([summary[name][rank] for summary in summaries])
    return {
        "repeat": len(summaries),
        "valid": all(summary["valid"] for summary in summaries),
        "simulated": any(summary["simulated"] for summary in summaries),
        "simulated_as": summaries[0]["simulated_as"],
        "figures": figures,
        "trials": [dict(summary) for summary in summaries],
    }


def spread(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """{mean, sd, min, max, n} of one figure over runs; all None as soon as a run lacks it."""
    seen = [value for value in values if value is not None]
    if not seen or len(seen) < len(values):
        return {"mean": None, "sd": None, "min": None, "max": None, "n": len(seen)}
    sd = stdev(seen) if len(seen) > 1 else None
    return {"mean": mean(seen), "sd": sd, "min": min(seen), "max": max(seen), "n": len(seen)}
