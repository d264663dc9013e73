"""Why a trial's figures may not be trusted: each doubt with its figure, its limit and a remedy.

A check is "void" (the figures do not mean what they say: the trial is INVALID) or "caution" (they
do, within a bound the reader must know). What was not measured cannot clear the trial: where a
check lacks its evidence it is a caution with value None. `find_checks` runs the doubts about load
and service here and those about the measurement in `harness.results.evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.results.doubt import Check, caution, void
from harness.results.drift import CHANGE_LIMIT
from harness.results.engine import counter_rise, fallen_counters
from harness.results.evidence import client_cpu, client_hub_delay, samples_whole, telemetry, window_full, window_known
from harness.results.percentiles import requests_needed
from harness.results.read import Trial

FIGURES = Mapping[str, Any]

LITTLE_LIMIT = 0.05
CONCURRENCY_LIMIT = 0.05
FAILURE_LIMIT = 0.01
LEAST_REQUESTS = 10
COLD_LIMIT, NATURAL_LIMIT, WARM_LIMIT = 0.01, 0.50, 0.50
LATENESS_MS, LATENESS_SHARE = 5.0, 0.01


def find_checks(trial: Trial, figures: FIGURES) -> list[Check]:
    """All checks of a trial, in the order a reader should look at them. `figures` are `stats.summarize`'s."""
    found = [
        window_known(trial),
        window_full(trial),
        samples_whole(trial),
        requests_least(figures),
        client_cpu(trial),
        client_hub_delay(trial),
        lateness(figures),
        littles_law(figures),
        concurrency(figures),
        failures(figures),
        broken_streams(figures),
        censored(figures),
        *token_counts(trial, figures),
        prefix_cache(trial, figures),
        drifting(figures),
        samples_enough(figures),
        preemptions(trial),
        server_restarted(trial),
        telemetry(trial),
        repeated_questions(figures),
        gpus_known(figures),
    ]
    return [check for check in found if check is not None]


def is_valid(checks: list[Check]) -> bool:
    """True when no failed check voids the trial."""
    return not any(check.severity == "void" and not check.ok for check in checks)


def lateness(figures: FIGURES) -> Check | None:
    """Requests must leave when scheduled: p99 lateness within 5 ms, or 1% of the median latency if more.

    Lateness is the client's own delay; it is inside every latency measured from `scheduled_at`.
    """
    p99, typical = figures["lateness_ms"]["p99"], figures["latency_ms"]["p50"]
    limit = max(LATENESS_MS, LATENESS_SHARE * (typical or 0.0))
    return void(
        "lateness_p99",
        value=p99,
        limit=limit,
        unit="ms",
        ok=p99 is None or p99 <= limit,
        remedy="the load machine sends late: give it more CPU or fewer users, or spread the load over processes",
    )


def littles_law(figures: FIGURES) -> Check:
    """Requests in flight must equal throughput × latency within 5% (`stats.littles_law_residual`)."""
    residual = figures["littles_law_residual"]
    return void(
        "littles_law",
        value=residual,
        limit=LITTLE_LIMIT,
        unit="share",
        ok=residual is not None and residual <= LITTLE_LIMIT,
        remedy="throughput and latency are not of one steady state: measure longer (--duration) or warm up longer",
    )


def concurrency(figures: FIGURES) -> Check:
    """The load given should be the load named: requests in flight, over time, within 5% of the users.

    Only a caution: a scenario with think time between requests is lower on purpose.
    """
    users, mean = figures["concurrency"], figures["concurrency_mean"]
    return caution(
        "concurrency_reached",
        value=mean,
        limit=users * (1 - CONCURRENCY_LIMIT),
        unit="in flight",
        ok=mean >= users * (1 - CONCURRENCY_LIMIT),
        at_least=True,
        remedy="fewer requests were in flight than users: quote the mean, or take the wait time out of the scenario",
    )


def failures(figures: FIGURES) -> Check:
    """At most 1% of arrivals may fail. More, and the survivors' speed is not the service's.

    A service that refuses requests answers the rest faster, so its throughput and latency flatter it;
    a search may still call such a level failed, since failures cannot have made it look worse.
    """
    share = figures["failures"] / figures["requests"] if figures["requests"] else None
    kinds = ", ".join(f"{count} {kind}" for kind, count in figures["failures_by_kind"].items())
    return void(
        "failures",
        value=share,
        limit=FAILURE_LIMIT,
        unit="share",
        ok=share is not None and share <= FAILURE_LIMIT,
        remedy=f"{kinds}: see the target's log, or lower the load" if kinds else "no request arrived: measure longer",
    )


def broken_streams(figures: FIGURES) -> Check:
    """Answers that began and broke are the target's or a proxy's fault, and deserve a look even when few."""
    kinds = figures["failures_by_kind"]
    broken = sum(kinds.get(kind, 0) for kind in ("truncated", "stream_error", "protocol", "empty"))
    return caution(
        "broken_streams",
        value=broken,
        limit=0,
        unit="requests",
        ok=broken == 0,
        remedy="answers broke off after they began: look for the cause in the target's log or a proxy's timeout",
    )


def censored(figures: FIGURES) -> Check:
    """Requests cut off when the drain's grace ran out: how long they take is unknown, so they count as +inf."""
    count = figures["failures_by_kind"].get("censored", 0)
    return caution(
        "censored",
        value=count,
        limit=0,
        unit="requests",
        ok=count == 0,
        remedy="requests were still running when the drain ended: give them a longer --grace",
    )


def token_counts(trial: Trial, figures: FIGURES) -> list[Check]:
    """Prompt and answer lengths, by the server's count, must be there and exactly those asked for."""
    frame = trial.samples
    good = frame.ok & trial.window.holds(frame.scheduled_at)
    asked = {"prompt_tokens": trial.plan.input_tokens, "output_tokens": trial.plan.output_tokens}
    found = [_counted(trial, figures, int((np.isnan(frame.prompt_tokens) | np.isnan(frame.output_tokens))[good].sum()))]
    for name, tokens in asked.items():
        if tokens is not None:
            column = getattr(frame, name)[good]
            found.append(_exact(name, int(((column != tokens) & ~np.isnan(column)).sum()), tokens, figures[name]))
    return found


def _counted(trial: Trial, figures: FIGURES, missing: int) -> Check:
    exact = trial.plan.input_tokens is not None or trial.plan.output_tokens is not None
    return (void if exact else caution)(
        "token_counts_known",
        value=missing,
        limit=0,
        unit="answers",
        ok=missing == 0,
        remedy="the target sent no usage with these answers: have it honour stream_options.include_usage",
    )


def _exact(name: str, wrong: int, tokens: int, seen: FIGURES) -> Check:
    observed = "" if seen["min"] is None else f" (seen {seen['min']:g} to {seen['max']:g})"
    return void(
        f"{name}_exact",
        value=wrong,
        limit=0,
        unit="answers",
        ok=wrong == 0,
        remedy=f"{tokens} {name.replace('_', ' ')} were asked{observed}: check the node's token budget, ignore_eos "
        "and the model's longest length",
    )


def prefix_cache(trial: Trial, figures: FIGURES) -> Check | None:
    """The prefix cache must be as declared: cold ≤ 1% hits, warm ≥ 50%; natural never voids, > 50% is noted."""
    mode, rate = trial.plan.cache_mode, figures["prefix_cache_hit_rate"]
    limit = {"cold": COLD_LIMIT, "natural": NATURAL_LIMIT, "warm": WARM_LIMIT}[mode]
    if rate is None and mode == "natural":
        return None
    remedy = {
        "cold": "declared cold, but prompts were in the cache: use distinct questions, or turn prefix caching off",
        "natural": "over half of the prompt tokens came from the cache: does real traffic repeat itself as much? If an "
        "earlier trial asked the same questions, take another --seed or restart the engine",
        "warm": "declared warm, but most prompts were not in the cache: warm up longer, or with fewer questions",
    }[mode]
    ok = rate is not None and (rate >= limit if mode == "warm" else rate <= limit)
    if rate is None:
        remedy = f"the target tells neither cache counters nor cached tokens, so '{mode}' cannot be verified"
    make = caution if mode == "natural" or rate is None else void
    return make(
        f"prefix_cache_{mode}", value=rate, limit=limit, unit="share", ok=ok, remedy=remedy, at_least=mode == "warm"
    )


def drifting(figures: FIGURES) -> Check:
    """Latency must not trend over the window by more than 10% (the rule and its reasons: `results.drift`)."""
    seen = figures["drift"]
    change, significant = seen["change"], seen["significant"]
    if significant is None:
        return caution(
            "drift",
            value=None,
            limit=CHANGE_LIMIT,
            unit="share",
            ok=False,
            remedy="the window is under five latencies long, too short to see a trend: measure longer",
        )
    return void(
        "drift",
        value=change,
        limit=CHANGE_LIMIT,
        unit="share",
        ok=not (significant and abs(change) > CHANGE_LIMIT),
        remedy="latency trends within the window: warm up longer, or find what changes the service",
    )


def requests_least(figures: FIGURES) -> Check:
    """Below ten requests there is no distribution to speak of, whatever percentile is asked."""
    count = figures["requests"]
    return void(
        "requests",
        value=count,
        limit=LEAST_REQUESTS,
        unit="requests",
        ok=count >= LEAST_REQUESTS,
        remedy=f"only {count} requests arrived in the window: measure longer",
        at_least=True,
    )


def samples_enough(figures: FIGURES) -> Check:
    """Enough arrivals to carry the highest percentile claimed, at 99% confidence (exact binomial).

    Without an SLO the claim is "p99 is at most the largest value seen": 459 arrivals. With an SLO that
    was met, it is that the share within the limits is no worse than its target; each miss costs more.
    """
    percent, misses = 99.0, 0
    slo = figures["slo"]
    if slo is not None:
        percent = max([100 * slo["target"], *(limit["percentile"] for limit in slo["limits"])])
        misses = slo["missed"] if slo["met"] else 0
    needed = requests_needed(percent, misses)
    return caution(
        f"samples_for_p{percent:g}",
        value=figures["requests"],
        limit=needed,
        unit="requests",
        ok=figures["requests"] >= needed,
        at_least=True,
        remedy=f"p{percent:g} is indicative only: measure longer, until {needed} requests arrived",
    )


def preemptions(trial: Trial) -> Check | None:
    """The engine ran out of KV cache and threw requests out to begin them again."""
    count = counter_rise(trial, "vllm:num_preemptions")
    if count is None:
        return None
    return caution(
        "preemptions",
        value=count,
        limit=0,
        unit="requests",
        ok=count <= 0,
        remedy="KV cache ran out: fewer concurrent requests, more GPU memory, or a smaller max length",
    )


def server_restarted(trial: Trial) -> Check | None:
    """A counter that went backwards means a process that began anew while it was measured."""
    if trial.run is None:
        return None
    fallen = fallen_counters(trial)
    return void(
        "server_restarted",
        value=len(fallen),
        limit=0,
        unit="counters",
        ok=not fallen,
        remedy=f"{fallen[0] if fallen else 'a counter'} fell during the window: the engine restarted; see its log",
    )


def repeated_questions(figures: FIGURES) -> Check | None:
    """Questions asked more than once meet warm caches, in the engine and in the node."""
    told = figures["questions"]
    if not told or not told.get("asked"):
        return None
    share = told.get("repeated", 0) / told["asked"]
    return caution(
        "repeated_questions",
        value=share,
        limit=0.0,
        unit="share",
        ok=share == 0,
        remedy=f"{told.get('offered')} questions, {told['asked']} requests: offer more, or declare --cache-mode warm",
    )


def gpus_known(figures: FIGURES) -> Check:
    """Requests/s per GPU needs a number of GPUs that somebody stated."""
    return caution(
        "gpus_known",
        value=figures["gpus"],
        limit=None,
        unit="GPUs",
        ok=figures["gpus_source"] != "assumed",
        remedy="nobody said how many GPUs serve, one is assumed: give --gpus N",
    )
