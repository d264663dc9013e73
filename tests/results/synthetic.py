"""Trials with a known truth, written the way the load side writes them: a closed loop on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.plan import Plan
from harness.results.levels import Level, conclude, judge, next_users
from harness.results.read import read_trial
from harness.results.stats import summarize
from harness.sample import Sample
from harness.slo import parse_slo
from harness.trial import TrialFolder, write_json

MS = 1_000_000
ORIGIN = 5_000_000_000_000_000  # about 58 days of uptime, so that a lost nanosecond would show

_TYPES: dict[str, Any] = {
    "gaps_ns": pa.list_(pa.int64()),
    "stages_ms": pa.map_(pa.string(), pa.float64()),
    "passage_ids": pa.list_(pa.string()),
    **{name: pa.string() for name in ("name", "failure", "error", "request_id", "question_id", "finish_reason")},
}
SAMPLE_SCHEMA = pa.schema(
    [(field.name, _TYPES.get(field.name, pa.int64())) for field in fields(Sample)], metadata={b"schema": b"1"}
)
SERIES_SCHEMA = pa.schema(
    [("t_ns", pa.int64()), ("source", pa.string()), ("name", pa.string()), ("value", pa.float64())],
    metadata={b"schema": b"1"},
)
STAGES = {"wait": 1.0, "embed": 5.0, "search": 2.0, "assemble": 1.0, "engine_first_token": 91.0}


def answer(
    seq: int,
    *,
    at_ms: float = 0.0,
    latency_ms: float = 1000.0,
    ttft_ms: float = 100.0,
    tokens: int = 10,
    user: int = 0,
    **changes: Any,
) -> Sample:
    """A whole answer of `tokens` chunks, evenly spaced from its first token to its end."""
    start = ORIGIN + round(at_ms * MS)
    first, end = start + round(ttft_ms * MS), start + round(latency_ms * MS)
    edges = np.linspace(first, end, tokens).astype(np.int64) if tokens > 1 else np.array([first])
    row: dict[str, Any] = {
        "seq": seq,
        "user": user,
        "name": "rag",
        "scheduled_at": start,
        "sent_at": start,
        "first_token_at": first,
        "ended_at": int(edges[-1]),
        "prompt_tokens": 1500,
        "output_tokens": tokens,
        "cached_tokens": 150,
        "first_chunk_tokens": 1,
        "chunks": tokens,
        "gaps_ns": tuple(int(gap) for gap in np.diff(edges)),
        "stages_ms": STAGES | {"decode": latency_ms - ttft_ms},
        "status": 200,
        "finish_reason": "length",
        "question_id": f"q{seq}",
    }
    return Sample(**row | changes)


def failed(seq: int, kind: str = "http_status", *, at_ms: float = 0.0, after_ms: float = 50.0, user: int = 0) -> Sample:
    """A request that failed `after_ms` after it was sent."""
    start = ORIGIN + round(at_ms * MS)
    end = start + round(after_ms * MS)
    return Sample(
        seq=seq, user=user, name="rag", scheduled_at=start, sent_at=start, ended_at=end, failure=kind, error=f"a {kind}"
    )


def closed_loop(
    users: int,
    seconds: float,
    latency: Callable[[int, float], float],
    *,
    tokens: int = 10,
    fails: Callable[[int], bool] = lambda seq: False,
) -> list[Sample]:
    """`users` users, each asking again as soon as answered; `latency(seq, at_ms)` is the truth, in ms."""
    free = [(1000.0 * user / users, user) for user in range(users)]  # staggered start over a second
    samples: list[Sample] = []
    while free:
        at_ms, user = free.pop(0)
        if at_ms > 1000 * seconds:
            continue
        seq, took = len(samples), latency(len(samples), at_ms)
        if fails(seq):
            samples.append(failed(seq, at_ms=at_ms, after_ms=took, user=user))
        else:
            samples.append(answer(seq, at_ms=at_ms, latency_ms=took, ttft_ms=took / 10, tokens=tokens, user=user))
        free.append((at_ms + took, user))
        free.sort()
    return samples


def write_samples(path: Path, samples: Sequence[Sample], *, a_batch: int = 100) -> None:
    """The samples as an Arrow stream of several record batches."""
    rows = [{field.name: _cell(getattr(sample, field.name)) for field in fields(Sample)} for sample in samples]
    with path.open("wb") as file, pa.ipc.new_stream(file, SAMPLE_SCHEMA) as stream:
        for start in range(0, len(rows), a_batch):
            stream.write_batch(pa.RecordBatch.from_pylist(rows[start : start + a_batch], schema=SAMPLE_SCHEMA))


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(value) if isinstance(value, tuple) else value


def write_series(path: Path, points: Sequence[tuple[float, str, str, float]]) -> None:
    """Telemetry points (at_ms, source, name, value)."""
    rows = [
        {"t_ns": ORIGIN + round(at_ms * MS), "source": source, "name": name, "value": value}
        for at_ms, source, name, value in points
    ]
    with path.open("wb") as file, pa.ipc.new_stream(file, SERIES_SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=SERIES_SCHEMA))


def run_row(t0_ms: float, t1_ms: float, *, users: int = 1, rule: str = "whole waves", **changes: Any) -> dict[str, Any]:
    """A run.json of a load machine that had nothing to do, and an engine with a tenth of its prompts cached."""
    row: dict[str, Any] = {
        "started_unix_s": 1_796_083_200.0,
        "origin_ns": ORIGIN,
        "steady_ns": ORIGIN + round(t0_ms * MS),
        "window": {"t0_ns": ORIGIN + round(t0_ms * MS), "t1_ns": ORIGIN + round(t1_ms * MS), "rule": rule},
        "ended_ns": ORIGIN + round(t1_ms * MS) + 1000 * MS,
        "users": users,
        "spawned_ns": ORIGIN,
        "finished": True,
        "stop_reason": "window closed",
        "client": {
            "cpu_share_p50": 0.2,
            "cpu_share_max": 0.3,
            "hub_delay_ms_p50": 0.3,
            "hub_delay_ms_p99": 1.5,
            "hub_delay_ms_max": 4.0,
            "cores": 2,
            "python": "3.11",
            "locust": "2.47",
        },
        "counters": {
            "at_t0": {
                "vllm:prefix_cache_queries_total": 1000.0,
                "vllm:prefix_cache_hits_total": 100.0,
                "vllm:num_preemptions_total": 0.0,
            },
            "at_t1": {
                "vllm:prefix_cache_queries_total": 3000.0,
                "vllm:prefix_cache_hits_total": 300.0,
                "vllm:num_preemptions_total": 0.0,
            },
        },
        "questions": {"offered": 5000, "asked": 100, "repeated": 0},
    }
    return row | changes


SIMULATED = {
    "node": {"ragload": "0.1.0", "host_cpu": "a CPU", "cores": 2, "embedder": "all-MiniLM-L6-v2", "uptime_s": 12.0},
    "corpus": {"name": "wikipedia-leads", "digest": "sha256:0123", "passages": 10033},
    "engine": {
        "url": "http://127.0.0.1:8000",
        "version": "0.25.1",
        "model": "llama-3.1-8b",
        "simulated": True,
        "gpu": "a100-40gb",
        "time_scale": 1.0,
        "cache_config": {"block_size": "16", "num_gpu_blocks": "9062"},
    },
    "gpus": [],
}
REAL = {
    "engine": {"version": "0.25.1", "model": "llama-8b-shape", "simulated": False},
    "gpus": [{"name": "NVIDIA H200", "memory_bytes": 150_754_820_096, "driver": "580.1"}],
}


def write_trial(
    path: Path,
    samples: Sequence[Sample],
    *,
    run: Mapping[str, Any] | None,
    environment: Mapping[str, Any] | None = REAL,
    series: Sequence[tuple[float, str, str, float]] | None = None,
    **plan: Any,
) -> Path:
    """A whole trial folder; `run` or `environment` None leaves that file out."""
    path.mkdir(parents=True)
    folder = TrialFolder(path)
    chosen: dict[str, Any] = {"scenario": "scenarios/rag.py", "host": "http://node:8080", "users": 1} | plan
    write_json(folder.plan, Plan(**chosen).to_dict())
    write_samples(folder.samples, samples)
    if run is not None:
        write_json(folder.run, run)
        points = series
        if points is None:
            window = run.get("window") or {"t0_ns": ORIGIN, "t1_ns": ORIGIN + 1000 * MS}
            t0_ms, t1_ms = ((window[key] - ORIGIN) / MS for key in ("t0_ns", "t1_ns"))
            points = [(at_ms, "load", "in_flight", 1.0) for at_ms in np.arange(t0_ms, t1_ms, 1000.0)]
        if points:
            write_series(folder.series, points)
    if environment is not None:
        write_json(folder.environment, environment)
    return path


def steady_trial(
    path: Path, *, users: int = 4, seconds: float = 60.0, latency_ms: float = 1000.0, **changes: Any
) -> Path:
    """A closed loop of constant latency, its window whole waves of it: every check but the sample count is fine."""
    samples = closed_loop(users, seconds + 5, lambda seq, at_ms: latency_ms, tokens=changes.pop("tokens", 10))
    run = run_row(2 * latency_ms, 2 * latency_ms + 1000 * seconds, users=users)
    return write_trial(path, samples, **{"run": run, "users": users, **changes})


def write_many(path: Path, count: int) -> Path:
    """`count` answers of three chunks, a millisecond apart, of latencies 1,001 to 3,000 ms in turn; made as columns."""
    at = np.arange(count, dtype=np.int64) * MS + ORIGIN
    took = (1001 + np.arange(count, dtype=np.int64) % 2000) * MS
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * 2)
    first = at + 100 * MS
    columns: dict[str, Any] = {
        "seq": np.arange(count),
        "user": np.arange(count) % 64,
        "scheduled_at": at,
        "sent_at": at,
        "first_token_at": first,
        "ended_at": at + took,
        "prompt_tokens": np.full(count, 1500),
        "output_tokens": np.full(count, 3),
        "first_chunk_tokens": np.ones(count, dtype=np.int64),
        "chunks": np.full(count, 3),
        "gaps_ns": pa.ListArray.from_arrays(offsets, pa.array(np.repeat((at + took - first) // 2, 2))),
        "stages_ms": pa.MapArray.from_arrays(
            offsets, pa.array(["embed", "search"] * count), pa.array(np.tile([5.0, 2.0], count))
        ),
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in SAMPLE_SCHEMA
    ]
    write_trial(path, [answer(0)], run=run_row(0, count), users=64)
    with (path / "samples.arrows").open("wb") as file, pa.ipc.new_stream(file, SAMPLE_SCHEMA) as stream:
        stream.write_table(pa.Table.from_arrays(arrays, schema=SAMPLE_SCHEMA), max_chunksize=10_000)
    return path


def served_in_batches(users: int) -> float:
    """Latency in ms of a pretend GPU at a load: flat at first, then a queue, as a saturating server has it."""
    return max(500.0 + 12.0 * users, 45.0 * users)


def write_search(
    path: Path, *, slo: str = "latency_p99_ms=2500,ttft_p99_ms=400", seconds: float = 20.0, most: int = 256
) -> Path:
    """A search over pretend trials, decided by the product's own rules and written as the command writes it."""
    limits = parse_slo(slo)
    levels: list[Level] = []
    while users := next_users(levels, most):
        folder = path / f"level-{users:04d}"
        random = np.random.default_rng(users)
        base = served_in_batches(users)
        samples = closed_loop(
            users,
            2 * base / 1000 + seconds + 8,
            lambda seq, at_ms, base=base, random=random: base * random.gamma(200, 1 / 200),
        )
        run = run_row(2500.0 + base, 2500.0 + base + 1000 * seconds, users=users)
        asked = {"input_tokens": 1500, "output_tokens": 10, "duration_s": seconds}
        command = ("ragload", "search", "rag", "--host", "http://node:8080", "--slo", slo)
        write_trial(
            folder,
            samples,
            run=run,
            environment=SIMULATED,
            users=users,
            slo=slo,
            command=command,
            cache_mode="natural",
            **asked,
        )
        summary = summarize(read_trial(folder)).to_dict()
        levels.append(Level(users=users, summary=summary, verdict=judge(summary, limits), folder=folder.name))
    found = conclude(levels, levels[-1].summary["kv_concurrency"])
    write_json(path / "search.json", {"host": "http://node:8080", "command": list(command), **found})
    return path
