"""Doubts about the measurement itself: window, files, the load machine, telemetry.

The doubts about load and service are `harness.results.checks`.
"""

from __future__ import annotations

import numpy as np

from harness.results.doubt import Check, caution, void
from harness.results.read import Trial

CPU_LIMIT = 0.9
HUB_CAUTION_MS, HUB_VOID_MS = 10.0, 50.0
GAP_S, GAP_FACTOR = 5.0, 3.0
_CLOSED_EARLY = ("stop", "cap", "early")


def window_known(trial: Trial) -> Check:
    """The run itself must have said what its window was.

    After a crash the window is pieced together from the samples, and nothing is known of the load
    machine's state: the figures are shown, but they prove nothing.
    """
    cause = "the run left no run.json (it crashed)" if trial.run is None else "the run ended before its window opened"
    return void(
        "window_known",
        value=0 if trial.window.derived else 1,
        limit=1,
        unit="windows",
        ok=not trial.window.derived,
        at_least=True,
        remedy=f"{cause}; the figures are {trial.window.rule}: run it again, and see locust.log",
    )


def window_full(trial: Trial) -> Check | None:
    """The window should last as long as asked and close by its rule, not because somebody stopped it."""
    asked = trial.plan.duration_s
    if asked is None or trial.window.derived:
        return None
    early = any(word in trial.window.rule for word in _CLOSED_EARLY)
    return caution(
        "window_full",
        value=trial.window.seconds,
        limit=asked,
        unit="s",
        ok=trial.window.seconds >= asked * (1 - 1e-6) and not early,
        at_least=True,
        remedy=f"the window closed by '{trial.window.rule}': let it run on, or ask for a shorter --duration",
    )


def samples_whole(trial: Trial) -> Check:
    """A samples file that ends inside a record batch has lost what came after."""
    return void(
        "samples_whole",
        value=int(trial.truncated),
        limit=0,
        unit="cuts",
        ok=not trial.truncated,
        remedy="the samples' file is cut (a crash or a full disk): free the disk and run it again",
    )


def client_cpu(trial: Trial) -> Check:
    """The load process may use at most 90% of its core at the median of the window's seconds.

    gevent runs on one core: near its end, requests queue inside the client and its delay is measured
    as the target's. Locust itself warns at the same figure.
    """
    share = _client(trial, "cpu_share_p50")
    return (caution if share is None else void)(
        "client_cpu",
        value=share,
        limit=CPU_LIMIT,
        unit="cores",
        ok=share is not None and share <= CPU_LIMIT,
        remedy="not measured: the load machine's share of the latency is unknown"
        if share is None
        else "the load machine is the bottleneck: use a faster one, fewer users, or several Locust processes",
    )


def client_hub_delay(trial: Trial) -> Check:
    """How late the client's event loop wakes, p99: over 10 ms is a caution, over 50 ms voids.

    A stamp is taken when the loop gets to it, so this delay enters every stamp, the first token's
    above all. 10 ms is the order of one token of an 8B model on a data-centre GPU: gaps between
    tokens blur, request latencies of a second do not (1%). At 50 ms TTFT itself, tens to hundreds of
    ms when the target is not queueing, is mostly the client's.
    """
    delay = _client(trial, "hub_delay_ms_p99")
    voids = delay is not None and delay > HUB_VOID_MS
    return (void if voids else caution)(
        "client_hub_delay_p99",
        value=delay,
        limit=HUB_VOID_MS if voids else HUB_CAUTION_MS,
        unit="ms",
        ok=delay is not None and delay <= HUB_CAUTION_MS,
        remedy="not measured: how exact the client's clock stamps are is unknown"
        if delay is None
        else "the client's event loop wakes late, and so do its stamps: fewer users a process, no other work beside it",
    )


def _client(trial: Trial, key: str) -> float | None:
    value = ((trial.run or {}).get("client") or {}).get(key)
    return None if value is None else float(value)


def telemetry(trial: Trial) -> Check:
    """No source of telemetry may fall silent within the window for long: 5 s, or three of its own intervals."""
    source, gap, limit = _widest_gap(trial)
    return caution(
        "telemetry_gaps",
        value=gap,
        limit=limit,
        unit="s",
        ok=gap is not None and gap <= limit,
        remedy="no telemetry was recorded in the window"
        if gap is None
        else f"telemetry of the {source} fell silent: its plots have a hole there; was it overloaded?",
    )


def _widest_gap(trial: Trial) -> tuple[str, float | None, float]:
    """(source, its longest silence in s, its limit in s) of the source that exceeds its limit most."""
    found: list[tuple[str, float, float]] = []
    for source in trial.series.source.values:
        rows = trial.series.source.where(source) & trial.window.holds(trial.series.t)
        times = np.unique(trial.series.t[rows])
        edges = np.concatenate(([trial.window.t0], times, [trial.window.t1])) / 1e9
        usual = float(np.median(np.diff(times))) / 1e9 if len(times) > 1 else 0.0
        found.append((source, float(np.diff(edges).max()), max(GAP_S, GAP_FACTOR * usual)))
    if not found or not trial.window.holds(trial.series.t).any():
        return "", None, GAP_S
    return max(found, key=lambda row: row[1] / row[2])
