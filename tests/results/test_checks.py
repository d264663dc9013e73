"""Every doubt: one trial it clears, one it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic

from harness.results.read import read_trial
from harness.results.stats import summarize
from harness.trial import TrialFolder


def check_of(path: Path, name: str) -> dict[str, Any]:
    """The check `name` of the trial in `path`."""
    (found,) = [check for check in summarize(read_trial(path)).to_dict()["checks"] if check["name"] == name]
    return found


def steady(path: Path, **changes: Any) -> Path:
    """A steady trial with other facts in its run.json (`run`), its plan, or its environment."""
    run = synthetic.run_row(2000, 62_000, users=4) | changes.pop("run", {})
    return synthetic.steady_trial(path, run=run, **changes)


def counters(**after: float) -> dict[str, Any]:
    """Counters of a run: all 100 when the window opened, `after` when it closed."""
    at_t0 = {f"vllm:{name}": 100.0 for name in after}
    return {"counters": {"at_t0": at_t0, "at_t1": {f"vllm:{name}": value for name, value in after.items()}}}


def restarted_between_the_ends() -> list[tuple[float, str, str, float]]:
    """A counter that falls inside the window and ends above where it began."""
    values = [*range(100, 900, 100), 12, *range(1000, 3000, 100)]
    return [(1000.0 * second, "engine", "vllm:generation_tokens_total", value) for second, value in enumerate(values)]


GOOD_AND_BAD: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("client_cpu", "void", {}, {"run": {"client": {"cpu_share_p50": 0.95, "hub_delay_ms_p99": 1.0}}}),
    ("client_cpu", "caution", {}, {"run": {"client": {}}}),
    ("client_hub_delay_p99", "caution", {}, {"run": {"client": {"cpu_share_p50": 0.1, "hub_delay_ms_p99": 11.0}}}),
    ("client_hub_delay_p99", "void", {}, {"run": {"client": {"cpu_share_p50": 0.1, "hub_delay_ms_p99": 51.0}}}),
    ("prompt_tokens_exact", "void", {"input_tokens": 1500}, {"input_tokens": 1499}),
    ("output_tokens_exact", "void", {"output_tokens": 10}, {"output_tokens": 100}),
    (
        "prefix_cache_cold",
        "void",
        {"cache_mode": "cold", "run": counters(prefix_cache_queries_total=1100, prefix_cache_hits_total=100)},
        {"cache_mode": "cold", "run": counters(prefix_cache_queries_total=1100, prefix_cache_hits_total=120)},
    ),
    (
        "prefix_cache_warm",
        "void",
        {"cache_mode": "warm", "run": counters(prefix_cache_queries_total=1100, prefix_cache_hits_total=700)},
        {"cache_mode": "warm", "run": counters(prefix_cache_queries_total=1100, prefix_cache_hits_total=500)},
    ),
    (
        "prefix_cache_natural",
        "caution",
        {},
        {"run": counters(prefix_cache_queries_total=1100, prefix_cache_hits_total=700)},
    ),
    ("preemptions", "caution", {}, {"run": counters(num_preemptions_total=101)}),
    ("server_restarted", "void", {}, {"run": counters(generation_tokens_total=3)}),
    ("server_restarted", "void", {}, {"series": restarted_between_the_ends()}),
    ("requests", "void", {}, {"run": synthetic.run_row(2000, 3000, users=4)}),
    ("repeated_questions", "caution", {}, {"run": {"questions": {"offered": 9, "asked": 20, "repeated": 11}}}),
    ("gpus_known", "caution", {}, {"environment": None}),
    ("telemetry_gaps", "caution", {}, {"series": [(2000 + 1000 * s, "engine", "x", 1.0) for s in range(20)]}),
    ("telemetry_gaps", "caution", {}, {"series": []}),
    ("window_full", "caution", {"duration_s": 60.0}, {"duration_s": 90.0}),
    ("concurrency_reached", "caution", {}, {"run": {"users": 5}}),
]


@pytest.mark.parametrize(("name", "severity", "good", "bad"), GOOD_AND_BAD, ids=[row[0] for row in GOOD_AND_BAD])
def test_check_clears_the_good_and_names_the_bad(
    tmp_path: Path, name: str, severity: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """Each check holds on a good trial, and on a bad one fails with its severity and a remedy."""
    fine, broken = check_of(steady(tmp_path / "good", **good), name), check_of(steady(tmp_path / "bad", **bad), name)

    assert (fine["ok"], fine["remedy"]) == (True, None)
    assert (broken["ok"], broken["severity"]) == (False, severity)
    assert broken["remedy"]


@pytest.mark.parametrize(("severity", "is_valid"), [("void", False), ("caution", True)])
def test_only_void_checks_make_a_trial_invalid(tmp_path: Path, severity: str, is_valid: bool) -> None:
    """A caution leaves the trial VALID, a void check does not."""
    delay = {"caution": 20.0, "void": 60.0}[severity]
    path = steady(tmp_path / "t", run={"client": {"cpu_share_p50": 0.1, "hub_delay_ms_p99": delay}})

    assert summarize(read_trial(path)).valid is is_valid


def test_undeclared_cache_without_counters_is_not_doubted(tmp_path: Path) -> None:
    """A natural cache that nobody counts is no doubt; a cold one that nobody counts is a caution."""
    samples = [synthetic.answer(seq, at_ms=10 * seq, cached_tokens=None) for seq in range(10)]
    run = synthetic.run_row(0, 1000, counters={"at_t0": {}, "at_t1": {}})
    natural = synthetic.write_trial(tmp_path / "a", samples, run=run)
    cold = synthetic.write_trial(tmp_path / "b", samples, run=run, cache_mode="cold")

    assert [c for c in summarize(read_trial(natural)).to_dict()["checks"] if c["name"].startswith("prefix")] == []
    assert (check_of(cold, "prefix_cache_cold")["severity"], check_of(cold, "prefix_cache_cold")["ok"]) == (
        "caution",
        False,
    )


@pytest.mark.parametrize(("late_ms", "ok"), [(4, True), (9, True), (11, False)])
def test_lateness_may_be_a_hundredth_of_the_latency(tmp_path: Path, late_ms: int, ok: bool) -> None:
    """Requests of one second may leave 10 ms late at p99, not more."""
    samples = [
        synthetic.answer(seq, at_ms=10 * seq, sent_at=synthetic.ORIGIN + (10 * seq + late_ms) * synthetic.MS)
        for seq in range(50)
    ]
    path = synthetic.write_trial(tmp_path / "t", samples, run=synthetic.run_row(0, 1000))

    assert check_of(path, "lateness_p99")["ok"] is ok


def test_a_window_that_cuts_a_wave_breaks_littles_law(tmp_path: Path) -> None:
    """Eight users in one wave of two seconds, seen for five: throughput and latency do not multiply to eight."""
    samples = [synthetic.answer(seq, at_ms=2000 * (seq // 8), latency_ms=2000, user=seq % 8) for seq in range(40)]
    path = synthetic.write_trial(tmp_path / "t", samples, run=synthetic.run_row(1000, 3500, users=8), users=8)

    assert check_of(path, "littles_law")["ok"] is False


@pytest.mark.parametrize(("every", "ok"), [(200, True), (50, False)])
def test_one_failure_in_a_hundred_is_the_limit(tmp_path: Path, every: int, ok: bool) -> None:
    """Half a percent of failures does not void a trial, two percent do, and the kinds are named."""
    samples = synthetic.closed_loop(4, 130, lambda seq, at_ms: 1000.0, fails=lambda seq: seq % every == every - 1)
    path = synthetic.write_trial(tmp_path / "t", samples, run=synthetic.run_row(2000, 122_000, users=4), users=4)
    check = check_of(path, "failures")

    assert check["ok"] is ok
    assert ok or "http_status" in check["remedy"]


@pytest.mark.parametrize(("kind", "name"), [("truncated", "broken_streams"), ("censored", "censored")])
def test_broken_and_censored_requests_are_noted(tmp_path: Path, kind: str, name: str) -> None:
    """A stream that broke and a request the drain cut off are each a caution of their own."""
    samples = [synthetic.answer(0), synthetic.failed(1, kind, at_ms=10)]
    path = synthetic.write_trial(tmp_path / "t", samples, run=synthetic.run_row(0, 1000))

    assert (check_of(path, name)["ok"], check_of(path, name)["severity"]) == (False, "caution")
    assert check_of(steady(tmp_path / "good"), name)["ok"] is True


def test_missing_usage_voids_an_exact_claim(tmp_path: Path) -> None:
    """Answers without token counts void a trial that asked exact lengths, and caution one that did not."""
    samples = [synthetic.answer(0, output_tokens=None, first_chunk_tokens=None)]
    exact = synthetic.write_trial(tmp_path / "a", samples, run=synthetic.run_row(0, 1000), output_tokens=10)
    loose = synthetic.write_trial(tmp_path / "b", samples, run=synthetic.run_row(0, 1000))

    assert check_of(exact, "token_counts_known")["severity"] == "void"
    assert check_of(loose, "token_counts_known")["severity"] == "caution"
    assert check_of(loose, "token_counts_known")["ok"] is False


def drifting_trial(path: Path, growth: float, *, noise: float = 0.05, seconds: int = 60) -> Path:
    """Eight users whose latency of 500 ms grows by `growth` over the trial."""
    random = np.random.default_rng(7)
    samples = synthetic.closed_loop(
        8, seconds + 5, lambda seq, at_ms: 500 * (1 + growth * at_ms / 60_000) * random.normal(1, noise)
    )
    return synthetic.write_trial(path, samples, run=synthetic.run_row(2000, 1000 * seconds, users=8), users=8)


@pytest.mark.parametrize(("growth", "ok"), [(0.0, True), (0.1, True), (0.5, False), (-0.4, False)])
def test_drift_needs_a_trend_that_matters(tmp_path: Path, growth: float, ok: bool) -> None:
    """Latency that grows or falls by far over 10% voids; growth of a few percent and noise do not."""
    assert check_of(drifting_trial(tmp_path / "t", growth), "drift")["ok"] is ok


def test_noise_without_trend_is_no_drift(tmp_path: Path) -> None:
    """Halves that differ through noise alone do not void: the blocks show no trend."""
    assert check_of(drifting_trial(tmp_path / "t", 0.0, noise=0.4), "drift")["ok"] is True


def test_too_short_for_drift_is_a_caution(tmp_path: Path) -> None:
    """A window of under five latencies cannot show a trend, and says so."""
    samples = [synthetic.answer(seq, at_ms=100 * seq, latency_ms=1000) for seq in range(30)]
    path = synthetic.write_trial(tmp_path / "t", samples, run=synthetic.run_row(0, 3000))

    assert (check_of(path, "drift")["severity"], check_of(path, "drift")["value"]) == ("caution", None)


@pytest.mark.parametrize(("requests", "slow", "needed"), [(459, 0, 459), (458, 0, 459), (700, 1, 662), (700, 2, 838)])
def test_enough_samples_for_the_p99_claimed(tmp_path: Path, requests: int, slow: int, needed: int) -> None:
    """A p99 needs 459 arrivals at 99% confidence, 662 with one miss, 838 with two."""
    samples = [
        synthetic.answer(seq, at_ms=seq, latency_ms=3000 if seq < slow else 1000, tokens=2) for seq in range(requests)
    ]
    run = synthetic.run_row(0, 1000)
    check = check_of(
        synthetic.write_trial(tmp_path / "t", samples, run=run, slo="latency_p99_ms=2000"), "samples_for_p99"
    )

    assert (check["value"], check["limit"], check["ok"]) == (requests, needed, requests >= needed)


def test_a_crash_voids_and_is_told(tmp_path: Path) -> None:
    """Without run.json the figures are shown and the trial is INVALID, with the reason."""
    path = synthetic.steady_trial(tmp_path / "t", run=None)

    assert check_of(path, "window_known")["ok"] is False
    assert "crashed" in check_of(path, "window_known")["remedy"]
    assert summarize(read_trial(path)).valid is False


def test_a_run_stopped_in_its_warm_up_voids(tmp_path: Path) -> None:
    """A run.json without a window leaves the trial INVALID too."""
    path = steady(tmp_path / "t", run={"window": None})

    assert "before its window opened" in check_of(path, "window_known")["remedy"]


def test_a_cut_samples_file_voids(tmp_path: Path) -> None:
    """A samples file that lost its end voids the trial."""
    path = steady(tmp_path / "t")
    file = TrialFolder(path).samples
    file.write_bytes(file.read_bytes()[:-400])

    assert check_of(path, "samples_whole")["ok"] is False


def test_a_capped_window_is_told(tmp_path: Path) -> None:
    """A window closed by its cap is a caution, however long it lasted."""
    path = steady(
        tmp_path / "t", run={"window": synthetic.run_row(2000, 62_000, rule="capped")["window"]}, duration_s=30.0
    )

    assert check_of(path, "window_full")["ok"] is False
