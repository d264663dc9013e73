"""What goes on around the requests, once a second: the load process itself, and the target's counters.

The load side is measured because a busy client measures itself: its CPU share of one core, and how
late the gevent hub wakes a greenlet that asked to sleep. The hub's own timers are good to about a
millisecond, so a median delay under 1 ms means an idle client.

Knows how to read these; writes them to the series it is given and judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

import gevent

from harness.errors import TargetError
from harness.load.client import Target
from harness.load.recorder import SeriesLog
from harness.load.target import fetch_counters, source_of

PERIOD_S = 1.0
PROBE_S = 0.02
_BUCKETS_PER_MS, _BUCKETS = 10, 10_000


class Delays:
    """A histogram of delays with 0.1 ms buckets up to 1 s: its size does not grow with the run."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)
        self._total, self._longest_ms = 0, 0.0

    def add(self, delay_ms: float) -> None:
        self._counts[min(_BUCKETS, int(max(0.0, delay_ms) * _BUCKETS_PER_MS))] += 1
        self._total += 1
        self._longest_ms = max(self._longest_ms, delay_ms)

    def percentile_ms(self, percent: float) -> float | None:
        """Upper edge of the bucket that holds the percentile, in ms, or the longest if that is less; None if empty."""
        rank, seen = percent / 100 * self._total, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                edge_ms = self._longest_ms if bucket == _BUCKETS else (bucket + 1) / _BUCKETS_PER_MS
                return min(edge_ms, self._longest_ms)
        return None


class Telemetry:
    """Samples once a second until killed. `gauges` tells the load side's own counts at that moment."""

    def __init__(self, series: SeriesLog, target: Target, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._series, self._target, self._gauges = series, target, gauges
        self._offered = True
        self.counters: dict[str, float] = {}
        self._delays, self._second = Delays(), Delays()
        self._cpu_shares: list[float] = []
        self._greenlets: list[Any] = []

    def start(self) -> None:
        """Begin to sample, in greenlets of its own."""
        self._greenlets = [
            gevent.spawn(self._probe_hub),
            gevent.spawn(self._watch_self),
            gevent.spawn(self._watch_target),
        ]

    def stop(self) -> None:
        """End the greenlets; what was read stays."""
        gevent.killall(self._greenlets)

    def clear(self) -> None:
        """Forget the load side's figures so far: the window opens."""
        self._delays.clear()
        self._cpu_shares.clear()

    def client(self) -> dict[str, float | None]:
        """The load side since `clear`: CPU shares of one core (0..1 and up), hub delays in ms."""
        shares = sorted(self._cpu_shares)
        return {
            "cpu_share_p50": shares[len(shares) // 2] if shares else None,
            "cpu_share_max": shares[-1] if shares else None,
            "hub_delay_ms_p50": self._delays.percentile_ms(50),
            "hub_delay_ms_p99": self._delays.percentile_ms(99),
            "hub_delay_ms_max": self._delays.percentile_ms(100),
        }

    def scrape(self) -> dict[str, float]:
        """The target's counters now, also into the series; {} if it offers none or did not answer."""
        if not self._offered:
            return {}
        try:
            counters = fetch_counters(self._target)
        except TargetError:
            return {}  # a gap in the series, which is what the reader is to see
        if counters is None:
            self._offered = False
            return {}
        self.counters, now = counters, monotonic_ns()
        for name, value in counters.items():
            self._series.record(now, source_of(name), {name: value})
        return counters

    def _probe_hub(self) -> None:
        while True:
            asleep = time.perf_counter()
            gevent.sleep(PROBE_S)
            delay_ms = (time.perf_counter() - asleep - PROBE_S) * 1e3
            self._delays.add(delay_ms)
            self._second.add(delay_ms)

    def _watch_self(self) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        while True:
            gevent.sleep(PERIOD_S)
            cpu_now, wall_now = time.process_time(), time.perf_counter()
            share = (cpu_now - cpu) / (wall_now - wall)
            cpu, wall = cpu_now, wall_now
            self._cpu_shares.append(share)
            self._series.record(monotonic_ns(), "load", {"cpu_share": share, **self._hub_second(), **self._gauges()})

    def _hub_second(self) -> dict[str, float]:
        found = {
            "hub_delay_ms_p50": self._second.percentile_ms(50),
            "hub_delay_ms_max": self._second.percentile_ms(100),
        }
        self._second.clear()
        return {name: value for name, value in found.items() if value is not None}

    def _watch_target(self) -> None:
        while self._offered:
            self.scrape()
            gevent.sleep(PERIOD_S)
