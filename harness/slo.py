"""Service level objectives: the text users type, parsed, and what one request must do to meet it.

An SLO is a set of limits. `latency_p99_ms=5000,ttft_p99_ms=1000` reads: at least 99% of the
window's arrivals end within 5 s, and at least 99% have their first token within 1 s. A limit
without a percentile (`latency_ms=5000`) is tested at the attainment target.

This module knows numbers and names; it does not know where they were measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import SloError

METRICS = ("latency", "ttft", "tpot")
_CLAUSE = re.compile(r"^(?P<metric>[a-z]+)(?:_p(?P<percentile>\d{1,2}(?:\.\d+)?))?_ms$")
_EXAMPLE = "latency_p99_ms=5000,ttft_p99_ms=1000"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One metric must stay at or under `limit_ms` for `percentile` percent of arrivals.

    `percentile` is None when the text named none: then the attainment target applies.
    """

    metric: str
    limit_ms: float
    percentile: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise SloError(f"SLO metric '{self.metric}' is unknown: use one of {', '.join(METRICS)}, as in {_EXAMPLE}")
        if not 0 < self.limit_ms < float("inf"):
            raise SloError(f"SLO limit of {self.metric} is {self.limit_ms:g} ms: give more than 0, as in {_EXAMPLE}")
        if self.percentile is not None and not 0 < self.percentile < 100:
            raise SloError(f"SLO percentile p{self.percentile:g} of {self.metric}: it must lie between 0 and 100")

    def __str__(self) -> str:
        rank = "" if self.percentile is None else f"_p{self.percentile:g}"
        return f"{self.metric}{rank}_ms={self.limit_ms:g}"


@dataclass(frozen=True, kw_only=True)
class Slo:
    """All limits, and the share of arrivals (0..1) that must meet all tail limits at once.

    Tail limits are those without a percentile or with one at or above the attainment target; a
    limit at a lower percentile (a median, say) is tested at its own percentile alone.
    """

    limits: tuple[Limit, ...]
    attainment: float = 0.99

    def __post_init__(self) -> None:
        if not self.limits:
            raise SloError(f"the SLO is empty: give at least one limit, as in {_EXAMPLE}")
        if not 0 < self.attainment < 1:
            raise SloError(f"attainment is {self.attainment:g}: give a share between 0 and 1, as in 0.99")

    @property
    def tail(self) -> tuple[Limit, ...]:
        """The limits that one request must meet together to count as attained."""
        target = 100 * self.attainment - 1e-9
        return tuple(lim for lim in self.limits if lim.percentile is None or lim.percentile >= target)

    def __str__(self) -> str:
        return ",".join(str(limit) for limit in self.limits)


def parse_slo(text: str, *, attainment: float = 0.99) -> Slo:
    """Read `metric[_pNN]_ms=LIMIT,…` (metrics: latency, ttft, tpot; limits in milliseconds).

    Raises SloError naming the part that does not parse.
    """
    limits = tuple(_parse_limit(part.strip()) for part in text.split(",") if part.strip())
    seen: set[tuple[str, float | None]] = set()
    for limit in limits:
        if (limit.metric, limit.percentile) in seen:
            raise SloError(f"SLO names {limit.metric} twice at the same percentile: keep one of them")
        seen.add((limit.metric, limit.percentile))
    return Slo(limits=limits, attainment=attainment)


def _parse_limit(part: str) -> Limit:
    name, equals, value = part.partition("=")
    match = _CLAUSE.match(name.strip().lower())
    if not equals or match is None:
        raise SloError(f"SLO part '{part}' does not parse: write metric_pNN_ms=LIMIT, as in {_EXAMPLE}")
    try:
        limit_ms = float(value)
    except ValueError:
        raise SloError(f"SLO part '{part}': '{value}' is no number of milliseconds, as in {_EXAMPLE}") from None
    percentile = match["percentile"]
    return Limit(
        metric=match["metric"], limit_ms=limit_ms, percentile=None if percentile is None else float(percentile)
    )
