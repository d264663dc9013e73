"""Figures of trials whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import SloError
from harness.results.drift import trend_p_value
from harness.results.read import read_trial
from harness.results.stats import summarize
from harness.sample import Sample
from harness.slo import parse_slo


def summary_of(path: Path, samples: list[Sample], t0_ms: float, t1_ms: float, **changes: Any) -> dict[str, Any]:
    """The figures of `samples` in the window [t0_ms, t1_ms)."""
    users = changes.get("users", 1)
    run = synthetic.run_row(t0_ms, t1_ms, users=users) | changes.pop("run", {})
    return summarize(read_trial(synthetic.write_trial(path, samples, run=run, **changes))).to_dict()


def test_steady_trial_is_what_it_was_made_to_be(tmp_path: Path) -> None:
    """Four users with answers of one second make 4 requests/s, and every figure follows."""
    figures = summarize(read_trial(synthetic.steady_trial(tmp_path / "t", tokens=10))).to_dict()

    assert (figures["requests"], figures["failures"], figures["window_s"]) == (240, 0, 60.0)
    assert (figures["rps"], figures["output_tokens_per_s"], figures["concurrency_mean"]) == (4.0, 40.0, 4.0)
    assert figures["latency_ms"]["p99"] == 1000.0
    assert figures["ttft_ms"]["p50"] == 100.0
    assert figures["tpot_ms"]["p50"] == pytest.approx(100.0)
    assert figures["itl_ms"]["kind"] == "inter_token"
    assert figures["littles_law_residual"] == pytest.approx(0.0, abs=1e-9)
    assert figures["prompt_tokens"] == {"min": 1500, "max": 1500, "mean": 1500.0}
    assert figures["prefix_cache_hit_rate"] == 0.1
    assert list(figures["stages_ms"]) == ["wait", "embed", "search", "assemble", "engine_first_token", "decode"]
    assert figures["valid"] is True


def test_json_is_strict(tmp_path: Path) -> None:
    """A trial where everything failed has no NaN and no infinity in its figures."""
    samples = [synthetic.failed(seq, at_ms=100 * seq) for seq in range(20)]
    figures = summary_of(tmp_path / "t", samples, 0, 2000, slo="latency_p99_ms=10")

    assert figures["latency_ms"]["p99"] is None
    assert figures["failures_by_kind"] == {"http_status": 20}
    assert figures["errors"] == {"http_status": "a http_status"}
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_rates_count_events_and_percentiles_count_arrivals(tmp_path: Path) -> None:
    """A request that only ends in the window is in its rate, one that only starts there is in its percentiles."""
    samples = [synthetic.answer(0, at_ms=0, latency_ms=1500), synthetic.answer(1, at_ms=1200, latency_ms=5000)]
    figures = summary_of(tmp_path / "t", samples, 1000, 2000)

    assert (figures["completions"], figures["rps"]) == (1, 1.0)
    assert (figures["requests"], figures["latency_ms"]["p50"]) == (1, 5000.0)


def test_window_holds_its_opening_completion_and_not_its_closing_one(tmp_path: Path) -> None:
    """Back-to-back answers of one second in a window of three whole waves are three, not four."""
    samples = [synthetic.answer(seq, at_ms=1000 * seq) for seq in range(6)]

    assert summary_of(tmp_path / "t", samples, 1000, 4000)["completions"] == 3


def test_tokens_are_counted_when_they_came(tmp_path: Path) -> None:
    """An answer of 100 chunks, half of them in the window, gives it half of its tokens."""
    samples = [synthetic.answer(0, ttft_ms=0, latency_ms=990, tokens=100)]

    assert summary_of(tmp_path / "t", samples, 500, 1500)["output_tokens_per_s"] == pytest.approx(50)


def test_tokens_of_fat_chunks_are_spread(tmp_path: Path) -> None:
    """Chunks of several tokens share the server's count: first as told, the rest evenly; gaps are inter-chunk."""
    sample = synthetic.answer(0, ttft_ms=0, latency_ms=900, tokens=10, output_tokens=46, first_chunk_tokens=10)
    figures = summary_of(tmp_path / "t", [sample], 0, 450)

    assert figures["output_tokens_per_s"] * 0.45 == pytest.approx(10 + 4 * 4)
    assert figures["itl_ms"]["kind"] == "inter_chunk"
    assert figures["tpot_ms"]["p50"] == pytest.approx(900 / 36)


def test_one_token_has_no_tpot(tmp_path: Path) -> None:
    """An answer of one token has no time per output token: None, not 0."""
    figures = summary_of(tmp_path / "t", [synthetic.answer(0, tokens=1, latency_ms=100)], 0, 1000)

    assert figures["tpot_ms"]["p50"] is None
    assert figures["tpot_ms"]["n"] == 0


def test_both_ttfts_are_kept(tmp_path: Path) -> None:
    """TTFT counts from when a request was due, service TTFT from when it was sent; lateness lies between."""
    sample = synthetic.answer(0, ttft_ms=100, sent_at=synthetic.ORIGIN + 30 * synthetic.MS)
    figures = summary_of(tmp_path / "t", [sample], 0, 1000)

    assert (figures["ttft_ms"]["p50"], figures["service_ttft_ms"]["p50"]) == (100.0, 70.0)
    assert figures["lateness_ms"]["p99"] == 30.0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(users=st.integers(1, 20), base=st.floats(50, 800), seed=st.integers(0, 1000))
def test_littles_law_holds_on_closed_loops(
    tmp_path_factory: pytest.TempPathFactory, users: int, base: float, seed: int
) -> None:
    """In a closed loop with random latencies, N = X·R to within a few percent over 100 latencies or more."""
    random = np.random.default_rng(seed)
    samples = synthetic.closed_loop(users, 90, lambda seq, at_ms: base * random.uniform(0.5, 1.5))
    figures = summary_of(tmp_path_factory.mktemp("loop") / "t", samples, 4000, 84_000, users=users)

    assert figures["littles_law_residual"] < 0.05
    assert figures["concurrency_mean"] == pytest.approx(users)


def test_slo_counts_failures_as_misses(tmp_path: Path) -> None:
    """Of 100 arrivals one is slow and one failed: 98% attain, and the p99 limit breaks."""
    samples = [synthetic.answer(seq, at_ms=10 * seq) for seq in range(98)]
    samples += [synthetic.answer(98, at_ms=985, latency_ms=3000), synthetic.failed(99, at_ms=990)]
    slo = summary_of(tmp_path / "t", samples, 0, 1000, slo="latency_p99_ms=2000")["slo"]

    assert (slo["attainment"], slo["missed"], slo["goodput_rps"], slo["met"]) == (0.98, 2, 98.0, False)
    assert slo["limits"][0]["value_ms"] == 3000.0


def test_tail_limits_are_met_together(tmp_path: Path) -> None:
    """Two limits each kept by 99% are kept together by 98% when different requests miss them."""
    samples = [synthetic.answer(seq, at_ms=5 * seq) for seq in range(198)]
    samples += [synthetic.answer(198, at_ms=991, latency_ms=3000), synthetic.answer(199, at_ms=992, ttft_ms=900)]
    samples += [synthetic.answer(200, at_ms=993, latency_ms=3000), synthetic.answer(201, at_ms=994, ttft_ms=900)]
    slo = summary_of(tmp_path / "t", samples, 0, 1000, slo="latency_p99_ms=2000,ttft_p99_ms=500")["slo"]

    assert [limit["met"] for limit in slo["limits"]] == [True, True]
    assert slo["met"] is False


def test_a_median_limit_is_tested_at_the_median_only(tmp_path: Path) -> None:
    """A p50 limit that 40% of requests break is met, and does not enter the attainment."""
    samples = [synthetic.answer(seq, at_ms=5 * seq, latency_ms=3000 if seq < 40 else 1000) for seq in range(100)]
    slo = summary_of(tmp_path / "t", samples, 0, 1000, slo="latency_p50_ms=2000,latency_p99_ms=4000")["slo"]

    assert (slo["met"], slo["attainment"]) == (True, 1.0)


def test_another_slo_can_be_asked_of_a_trial(tmp_path: Path) -> None:
    """`summarize` judges by the SLO given in place of the plan's."""
    trial = read_trial(synthetic.steady_trial(tmp_path / "t", slo="latency_p99_ms=2000"))

    assert summarize(trial, slo=parse_slo("latency_p99_ms=900")).to_dict()["slo"]["met"] is False


def test_broken_slo_in_a_plan_is_told(tmp_path: Path) -> None:
    """A plan whose SLO does not parse raises SloError."""
    with pytest.raises(SloError):
        summarize(read_trial(synthetic.steady_trial(tmp_path / "t", slo="fast")))


@pytest.mark.parametrize(
    ("environment", "gpus", "expected"),
    [
        (synthetic.REAL, 4, (4, "given")),
        (synthetic.REAL | {"gpus": [{"name": "a"}, {"name": "b"}]}, None, (2, "target")),
        (synthetic.SIMULATED, None, (1, "target")),
        ({}, None, (1, "assumed")),
    ],
)
def test_gpus_are_divided_by_and_their_source_is_told(
    tmp_path: Path, environment: dict[str, Any], gpus: int | None, expected: tuple[int, str]
) -> None:
    """GPUs come from the plan, else the target, else one is assumed; requests/s per GPU divides by them."""
    path = synthetic.steady_trial(tmp_path / "t", environment=environment, gpus=gpus)
    figures = summarize(read_trial(path)).to_dict()

    assert (figures["gpus"], figures["gpus_source"]) == expected
    assert figures["rps_per_gpu"] == 4.0 / expected[0]


def test_kv_concurrency_is_blocks_over_tokens(tmp_path: Path) -> None:
    """9,062 blocks of 16 tokens hold 90.6 requests of 1,500 + 100 tokens."""
    path = synthetic.steady_trial(tmp_path / "t", environment=synthetic.SIMULATED, input_tokens=1500, output_tokens=100)

    assert summarize(read_trial(path)).to_dict()["kv_concurrency"] == 9062 * 16 / 1600


def test_simulated_says_what_it_simulates(tmp_path: Path) -> None:
    """A simulated engine's trial is flagged with GPU, model and time scale; a real one's is not."""
    fake = summarize(read_trial(synthetic.steady_trial(tmp_path / "a", environment=synthetic.SIMULATED))).to_dict()
    real = summarize(read_trial(synthetic.steady_trial(tmp_path / "b"))).to_dict()

    assert fake["simulated_as"] == {"gpu": "a100-40gb", "model": "llama-3.1-8b", "time_scale": 1.0}
    assert (real["simulated"], real["simulated_as"]) == (False, None)


def test_cache_hits_fall_back_on_usage(tmp_path: Path) -> None:
    """Without engine counters the hit rate is cached over prompt tokens of the answers; without both it is None."""
    bare = {"counters": {"at_t0": {}, "at_t1": {}}}
    known = summary_of(tmp_path / "a", [synthetic.answer(0, cached_tokens=300)], 0, 1000, run=bare)
    unknown = summary_of(tmp_path / "b", [synthetic.answer(0, cached_tokens=None)], 0, 1000, run=bare)

    assert (known["prefix_cache_hit_rate"], known["prefix_cache_source"]) == (0.2, "usage")
    assert unknown["prefix_cache_hit_rate"] is None


@pytest.mark.parametrize(("values", "p_value"), [([1, 2, 3, 4, 5], 2 / 120), ([1, 1, 1, 1, 1], 1.0)])
def test_trend_p_value_is_exact(values: list[float], p_value: float) -> None:
    """Five blocks in order have two of 120 orders as sorted; equal blocks have no trend."""
    assert trend_p_value(np.array(values, dtype=float)) == pytest.approx(p_value)


def test_a_window_without_requests_is_invalid(tmp_path: Path) -> None:
    """Where nothing arrived or ended there are no percentiles, the rate is 0 and the trial is INVALID."""
    figures = summary_of(tmp_path / "t", [synthetic.answer(0)], 5000, 6000, slo="latency_p99_ms=10")

    assert (figures["requests"], figures["rps"], figures["latency_ms"]["p50"]) == (0, 0.0, None)
    assert (figures["littles_law_residual"], figures["valid"]) == (None, False)
    assert (figures["slo"]["attainment"], figures["slo"]["met"]) == (None, False)


def test_a_million_samples_are_columns(tmp_path: Path) -> None:
    """A million requests are read and summarized as columns, without an object a row."""
    path = synthetic.write_many(tmp_path / "t", 1_000_000)
    trial = read_trial(path)
    figures = summarize(trial).to_dict()

    assert trial.samples.gaps_ns.shape == (2_000_000,)
    assert figures["requests"] == 1_000_000
    assert figures["latency_ms"]["p99"] == 2980.0
