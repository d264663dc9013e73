"""Load tests in simulated time, against a real H200 with real vLLM."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import numpy as np
import pytest

from harness.engine.catalogue import gpu, model
from harness.engine.offline import FRONT_IN_S, Send, Served, closed_loop, simulate
from harness.engine.scheduler import Limits, Request
from harness.engine.timeline import Timeline, timeline_of

MEASURED = [
    json.loads(line) for line in Path(__file__).with_name("h200_llama8b_bf16.jsonl").read_text().splitlines() if line
]


def timeline(name: str = "h200") -> Timeline:
    return timeline_of(gpu(name), model("llama-3.1-8b"), Limits(enable_prefix_caching=False))


def request(prompt: int, output: int) -> Request:
    return Request(id="r", prompt_tokens=prompt, output_tokens=output, max_tokens=output)


def measure(row: dict) -> tuple[list[Served], float]:
    """The samples and the length (s) of the row's window: same ramp, same window rule."""
    users = row["c"]
    starts_s = [user / users * min(8, 0.02 * users + 0.5) for user in range(users)]
    finished, inside, opened_s = [0] * users, [], None
    for served in closed_loop(timeline(), starts_s, lambda _: request(row["isl"], row["osl"])):
        if opened_s is None:
            finished[served.send.user] += 1
            opened_s = served.ended_s if min(finished) >= 2 else None
            continue
        inside.append(served)
        if len(inside) >= 3 * users and served.ended_s - opened_s >= 12:
            break
    return inside, inside[-1].ended_s - (opened_s or 0.0)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['isl']}-{row['osl']}-c{row['c']}")
def test_a_real_h200_is_reproduced(row: dict) -> None:
    """Requests/s and median latency are within 4% of measured, TPOT within 4%."""
    inside, window_s = measure(row)
    tpot_ms = float(np.median([served.tpot_s for served in inside])) * 1e3

    assert len(inside) / window_s == pytest.approx(row["rps"], rel=0.04)
    assert float(np.median([served.latency_s for served in inside])) == pytest.approx(row["lat_p50"], rel=0.04)
    assert tpot_ms == pytest.approx(row["tpot_ms"], rel=0.04)


@pytest.mark.parametrize("row", [row for row in MEASURED if row["c"] < 24 or row["isl"] == 1500])
def test_first_tokens_of_a_real_h200(row: dict) -> None:
    """Median TTFT is within 10% of measured, the row 512/128 at 128 users apart."""
    inside, _ = measure(row)

    assert float(np.median([served.ttft_s for served in inside])) == pytest.approx(row["ttft_p50"], rel=0.10)


def test_littles_law() -> None:
    """In a steady closed loop, users = throughput × mean latency within 2%."""
    inside, window_s = measure({"isl": 512, "osl": 128, "c": 32})
    rate = len(inside) / window_s

    assert rate * float(np.mean([served.latency_s for served in inside])) == pytest.approx(32, rel=0.02)


def test_a_request_alone() -> None:
    """An idle engine starts at once: TTFT is front end plus one prefill step, and the prefill is as costly as known."""
    (served,) = simulate(timeline(), [Send(at_s=1.0, request=request(1500, 2))])

    assert served.ttft_s == pytest.approx(0.0414, rel=0.02)
    assert served.ended_s > served.first_token_s > 1.0 + FRONT_IN_S


def test_arriving_amid_a_step_misses_the_next() -> None:
    """A request that arrives while a step computes waits for it and the one behind it (asynchronous scheduling)."""
    late = 0.020
    first, second = sorted(
        simulate(
            timeline(), [Send(at_s=0.0, request=request(1500, 50)), Send(at_s=late, request=request(1500, 50), user=1)]
        ),
        key=lambda served: served.send.user,
    )
    alone_s = first.ttft_s

    assert second.ttft_s > (alone_s - late) + alone_s


def test_open_loop_overload_queues() -> None:
    """Beyond what the GPU can do, latency grows with every request."""
    sends = [Send(at_s=number / 20, request=request(1500, 100)) for number in range(400)]
    answers = sorted(simulate(timeline("a100-40gb"), sends), key=lambda served: served.send.at_s)

    assert len(answers) == 400
    assert answers[-1].latency_s > 2 * answers[0].latency_s


def test_a_tiny_cache_preempts() -> None:
    """A closed loop larger than the KV cache preempts, and still answers everybody."""
    small = timeline_of(
        gpu("rtx-4090"), model("llama-3.1-8b"), Limits(), gpu_memory_utilization=0.75, max_model_len=2048
    )
    answers = list(simulate(small, [Send(at_s=0.0, request=request(300, 500)) for _ in range(60)]))

    assert len(answers) == 60
    assert small.scheduler.counters.preemptions > 0
    assert sum(served.preemptions for served in answers) == small.scheduler.counters.preemptions


def test_ten_thousand_requests_take_seconds() -> None:
    """10,000 requests of 1500/100 at 64 users are simulated far faster than the 24 minutes they last."""
    began_s = time.perf_counter()
    answers = closed_loop(timeline("a100-40gb"), [0.0] * 64, lambda _: request(1500, 100))
    last = next(itertools.islice(answers, 9_999, None))

    assert last.ended_s > 20 * (time.perf_counter() - began_s)
