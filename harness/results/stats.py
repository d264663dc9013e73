"""A trial's figures: every number of a report, computed from the samples through one definition each.

Percentiles and attainment are over the *arrivals* of the window (scheduled in [t0, t1)), wherever
they end; rates are over *events* in the window (completions, tokens). Definitions of the per-request
metrics are `harness.sample`'s. What is missing is None. Judges nothing but the SLO: doubts are
`harness.results.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import sample
from harness.results.checks import find_checks, is_valid
from harness.results.drift import drift
from harness.results.engine import (
    counter_rise,
    engine_of,
    gpus_of,
    kv_concurrency,
    prefix_caching_off,
    simulated_as,
)
from harness.results.percentiles import distribution, extent, finite_or_none, percentile
from harness.results.read import Frame, Mask, Trial, Window
from harness.slo import Limit, Slo, parse_slo

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A trial's figures by name, ready for JSON; `to_dict` gives them. See README for each name's meaning."""

    figures: Mapping[str, Any]

    @property
    def valid(self) -> bool:
        """True when no check voids the trial."""
        return bool(self.figures["valid"])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping of its own, strict: no NaN, no infinity."""
        return dict(self.figures)


def summarize(trial: Trial, *, slo: Slo | None = None) -> Summary:
    """All figures of `trial`, its validity checks included.

    slo   judged instead of the plan's own, if given

    Raises SloError when the plan's SLO does not parse.
    """
    figures = _identity(trial) | _counts(trial) | _rates(trial) | _latencies(trial) | _tokens(trial)
    limits = slo or (parse_slo(trial.plan.slo, attainment=trial.plan.attainment) if trial.plan.slo else None)
    figures["slo"] = None if limits is None else attainment(trial, limits)
    checks = find_checks(trial, figures)
    return Summary(
        figures={"valid": is_valid(checks), "checks": [check.to_dict() for check in checks]} | figures,
    )


# ---------------------------------------------------------------- per-request metrics as columns


def latencies_ms(frame: Frame) -> Floats:
    """End-to-end latency (n,) in ms; a failed request is +inf."""
    return np.where(frame.ok, sample.latency_ms(frame.scheduled_at, frame.ended_at), np.inf)


def ttfts_ms(frame: Frame, *, since: str = "scheduled_at") -> Floats:
    """Time to first token (n,) in ms since `scheduled_at`, or since `sent_at`; a failed request is +inf."""
    return np.where(frame.ok, sample.ttft_ms(getattr(frame, since), frame.first_token_at), np.inf)


def first_tokens(frame: Frame) -> Floats:
    """Tokens of each first chunk (n,): as the server said, else the answer's mean tokens a chunk."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = frame.output_tokens / frame.chunks
    return np.where(np.isnan(frame.first_chunk_tokens), mean, frame.first_chunk_tokens)


def tpots_ms(frame: Frame) -> Floats:
    """Time per output token (n,) in ms; +inf for a failure, NaN where an answer has one chunk or no count."""
    first = first_tokens(frame)
    several = frame.output_tokens - first > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = sample.tpot_ms(frame.first_token_at, frame.ended_at, frame.output_tokens, first)
    return np.where(frame.ok, np.where(several, tpot, np.nan), np.inf)


def gaps_ms(frame: Frame, rows: Mask) -> Floats:
    """All gaps between token-bearing chunks of `rows` (n,), flat, in ms."""
    return frame.gaps_ns[np.repeat(rows, np.diff(frame.gap_offsets))] / 1e6


_METRICS = {"latency": latencies_ms, "ttft": ttfts_ms, "tpot": tpots_ms}


# ---------------------------------------------------------------- groups of figures


def _identity(trial: Trial) -> dict[str, Any]:
    simulated = simulated_as(trial)
    return {
        "simulated": simulated is not None,
        "simulated_as": simulated,
        "plan": trial.plan.to_dict(),
        "engine": engine_of(trial),
        "window": {"rule": trial.window.rule, "derived": trial.window.derived},
        "window_s": trial.window.seconds,
        "truncated": trial.truncated,
    }


def _counts(trial: Trial) -> dict[str, Any]:
    frame, arrived = trial.samples, trial.window.holds(trial.samples.scheduled_at)
    failed = arrived & ~frame.ok
    by_kind = frame.failure.counts(arrived)
    return {
        "requests": int(arrived.sum()),
        "failures": int(failed.sum()),
        "failures_by_kind": by_kind,
        "errors": {kind: _commonest_error(frame, failed & frame.failure.where(kind)) for kind in by_kind},
        "questions": (trial.run or {}).get("questions"),
    }


def _commonest_error(frame: Frame, rows: Mask) -> str | None:
    return next(iter(frame.error.counts(rows)), None)


def _rates(trial: Trial) -> dict[str, Any]:
    frame, window = trial.samples, trial.window
    completed = int((frame.ok & window.holds(frame.ended_at)).sum())
    gpus, source = gpus_of(trial)
    rps = completed / window.seconds
    return {
        "concurrency": users_of(trial),
        "concurrency_mean": in_flight_mean(frame, window),
        "completions": completed,
        "rps": rps,
        "rps_per_gpu": rps / gpus,
        "gpus": gpus,
        "gpus_source": source,
        "output_tokens_per_s": tokens_in(frame, window) / window.seconds,
        "littles_law_residual": littles_law_residual(frame, window),
        "drift": drift(frame.scheduled_at, latencies_ms(frame), window.t0, window.t1),
    }


def users_of(trial: Trial) -> int:
    """Concurrent users in the window: as the run counted them (the web UI can change the plan's), else the plan's."""
    return int((trial.run or {}).get("users") or trial.plan.users)


def _latencies(trial: Trial) -> dict[str, Any]:
    frame, arrived = trial.samples, trial.window.holds(trial.samples.scheduled_at)
    good = arrived & frame.ok
    lateness = sample.lateness_ms(frame.scheduled_at, frame.sent_at)
    kind = "inter_chunk" if _chunks_hold_several(frame, good) else "inter_token"
    return {
        "latency_ms": distribution(latencies_ms(frame)[arrived]),
        "ttft_ms": distribution(ttfts_ms(frame)[arrived]),
        "service_ttft_ms": distribution(ttfts_ms(frame, since="sent_at")[arrived]),
        "tpot_ms": distribution(tpots_ms(frame)[arrived]),
        "itl_ms": {"kind": kind, **distribution(gaps_ms(frame, good))},
        "stages_ms": {name: distribution(frame.stages_ms[name][good]) for name in stage_order(frame.stages_ms)},
        "lateness_ms": distribution(lateness[arrived]),
    }


def _chunks_hold_several(frame: Frame, rows: Mask) -> bool:
    """True when the answers have more tokens than token-bearing chunks (or nobody counted them)."""
    tokens = frame.output_tokens[rows]
    return bool(np.isnan(tokens).any() or tokens.sum() > frame.chunks[rows].sum())


def stage_order(names: Mapping[str, Any]) -> list[str]:
    """Stage names in the order a request passes them; those of foreign services last."""
    known = [*sample.STAGES[:4], "engine_first_token", *sample.STAGES[4:]]
    return [name for name in known if name in names] + sorted(set(names) - set(known))


def _tokens(trial: Trial) -> dict[str, Any]:
    frame = trial.samples
    good = trial.window.holds(frame.scheduled_at) & frame.ok
    hit_rate, source = _hit_rate(trial, good)
    return {
        "prompt_tokens": extent(frame.prompt_tokens[good]),
        "output_tokens": extent(frame.output_tokens[good]),
        "prefix_cache_hit_rate": hit_rate,
        "prefix_cache_source": source,
        "kv_concurrency": kv_concurrency(trial, frame.prompt_tokens[good], frame.output_tokens[good]),
    }


# ---------------------------------------------------------------- single figures


def in_flight_mean(frame: Frame, window: Window) -> float:
    """Requests in flight, averaged over the window's time; all requests count, failed or not."""
    inside = np.minimum(frame.ended_at, window.t1) - np.maximum(frame.scheduled_at, window.t0)
    return float(np.clip(inside, 0, None).sum() / (window.t1 - window.t0))


def littles_law_residual(frame: Frame, window: Window) -> float | None:
    """|N − X·R| / N, or None when nothing arrived or nothing was in flight.

    N   requests in flight, averaged over the window's time (`in_flight_mean`)
    X   departures a second: requests that ended in the window, failed ones too
    R   mean time, scheduled to ended, of the requests that *arrived* in it: those the percentiles show
    In a closed loop that neither speeds up nor slows down the three agree. They part when the window
    is short against the latency, cuts through a wave of requests, or the service drifts: then the
    throughput and the latency shown do not describe one steady state.
    """
    arrived = window.holds(frame.scheduled_at)
    n = in_flight_mean(frame, window)
    if not arrived.any() or n <= 0:
        return None
    x = window.holds(frame.ended_at).sum() / window.seconds
    r = (sample.latency_ms(frame.scheduled_at, frame.ended_at)[arrived]).mean() / 1e3
    return float(abs(n - x * r) / n)


def tokens_in(frame: Frame, window: Window) -> float:
    """Output tokens that came in the window, of answers that arrived whole, whenever those began or ended.

    The server's count of an answer is spread over its chunks: the first has `first_tokens`, the
    others share the rest evenly. Only answers that cross an edge of the window need a closer look.
    """
    tokens = np.where(frame.ok, np.nan_to_num(frame.output_tokens), 0.0)
    inside = (frame.first_token_at >= window.t0) & (frame.ended_at < window.t1)
    overlaps = (frame.first_token_at < window.t1) & (frame.ended_at >= window.t0)
    crossing = np.flatnonzero(overlaps & ~inside & (tokens > 0))
    first = first_tokens(frame)
    edges = [_tokens_of(frame, window, int(row), float(first[row])) for row in crossing]
    return float(tokens[inside].sum() + sum(edges))


def _tokens_of(frame: Frame, window: Window, row: int, first: float) -> float:
    gaps = frame.gaps_ns[frame.gap_offsets[row] : frame.gap_offsets[row + 1]]
    instants = frame.first_token_at[row] + np.concatenate(([0], np.cumsum(gaps)))
    later = (frame.output_tokens[row] - first) / len(gaps) if len(gaps) else 0.0
    weights = np.full(len(instants), later)
    weights[0] = first if len(gaps) else frame.output_tokens[row]
    return float(weights[window.holds(instants)].sum())


def _hit_rate(trial: Trial, good: Mask) -> tuple[float | None, str | None]:
    """Prefix-cache hits / queries in tokens: 0 if switched off, else by the engine's counters, else by usage."""
    if prefix_caching_off(trial):
        return 0.0, "switched off"
    queries = counter_rise(trial, "vllm:prefix_cache_queries")
    hits = counter_rise(trial, "vllm:prefix_cache_hits")
    if queries is not None and hits is not None and queries > 0 and hits >= 0:
        return hits / queries, "engine counters"
    cached, asked = trial.samples.cached_tokens[good], trial.samples.prompt_tokens[good]
    known = ~np.isnan(cached) & ~np.isnan(asked)
    if not known.any() or asked[known].sum() <= 0:
        return None, None
    return float(cached[known].sum() / asked[known].sum()), "usage"


def attainment(trial: Trial, slo: Slo) -> dict[str, Any]:
    """How the window's arrivals stand to `slo`.

    attainment   share of arrivals that met all tail limits at once; a failure misses
    goodput_rps  those, per second of the window
    met          attainment is at its target and every limit holds at its own percentile
    limits       each limit with the value observed at its percentile (None: a failure, or no arrivals)
    """
    frame, arrived = trial.samples, trial.window.holds(trial.samples.scheduled_at)
    total = int(arrived.sum())
    attained = arrived & frame.ok
    for limit in slo.tail:
        values = _METRICS[limit.metric](frame)
        attained &= np.isnan(values) | (values <= limit.limit_ms)
    share = float(attained.sum() / total) if total else None
    limits = [_limit(frame, arrived, limit, slo) for limit in slo.limits]
    return {
        "text": str(slo),
        "target": slo.attainment,
        "attainment": share,
        "missed": total - int(attained.sum()),
        "goodput_rps": float(attained.sum() / trial.window.seconds),
        "limits": limits,
        "met": share is not None and share >= slo.attainment and all(row["met"] for row in limits),
    }


def _limit(frame: Frame, arrived: Mask, limit: Limit, slo: Slo) -> dict[str, Any]:
    percent = limit.percentile if limit.percentile is not None else 100 * slo.attainment
    values = _METRICS[limit.metric](frame)[arrived]
    observed = percentile(values[~np.isnan(values)], percent)
    return {
        "metric": limit.metric,
        "percentile": percent,
        "limit_ms": limit.limit_ms,
        "value_ms": finite_or_none(observed),
        "met": observed is not None and observed <= limit.limit_ms,
    }
