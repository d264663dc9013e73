"""Prometheus text under vLLM's metric names, plus `ragload_simulated 1`.

Durations are those of the wall clock: simulated ones times the time scale. Counts are kept in plain
lists, since an observation per token in a client library's histogram costs more than the token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from harness.engine.offline import FRONT_IN_S
from harness.engine.scheduler import Scheduler
from harness.engine.scheduler import Sequence as Running

LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REASONS = ("stop", "length", "abort", "error")
_LABELS = ("engine", "model_name")


class Histogram:
    """Counts of durations (s) by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), as Prometheus wants them."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))

    @property
    def sum(self) -> float:
        return self._sum


class Metrics:
    """What the engine counts of its requests; gauges are read from the scheduler when asked for."""

    def __init__(self, scheduler: Scheduler, *, model: str, time_scale: float, config: Mapping[str, object]) -> None:
        self._scheduler = scheduler
        self._values = ["0", model]
        self._time_scale = time_scale
        self._config = {key: str(value) for key, value in config.items()}
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished = dict.fromkeys(REASONS, 0)
        self._ttft, self._itl = Histogram(TTFT_S), Histogram(ITL_S)
        self._e2e, self._queue = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self._prefill, self._decode = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def token(self, sequence: Running, at_s: float) -> None:
        """A sequence got a token at `at_s` (simulated)."""
        self._generation_tokens += 1
        if sequence.last_token_s is None:
            self._prompt_tokens += sequence.request.prompt_tokens
            self._ttft.observe((at_s - sequence.arrived_s + FRONT_IN_S) * self._time_scale)
        else:
            self._itl.observe((at_s - sequence.last_token_s) * self._time_scale)
        sequence.last_token_s = at_s

    def finished(self, sequence: Running, reason: str) -> None:
        """A sequence has all of its tokens."""
        self._finished[reason] += 1
        arrived, scheduled = sequence.arrived_s, sequence.scheduled_s
        first, last = sequence.first_token_s, sequence.last_token_s
        if scheduled is None or first is None or last is None:
            return
        self._e2e.observe((last - arrived + FRONT_IN_S) * self._time_scale)
        self._queue.observe((scheduled - arrived) * self._time_scale)
        self._prefill.observe((first - scheduled) * self._time_scale)
        self._decode.observe((last - first) * self._time_scale)

    def aborted(self) -> None:
        """A client went away before its answer was complete."""
        self._finished["abort"] += 1

    def collect(self) -> Iterator[Metric]:
        """All families, in vLLM's names; called by the registry."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        scheduler = self._scheduler
        for name, text, value in (
            ("num_requests_running", "Requests in execution.", float(scheduler.running)),
            ("num_requests_waiting", "Requests waiting for execution.", float(scheduler.waiting)),
            ("kv_cache_usage_perc", "Share of KV-cache blocks in use, 1 is all.", scheduler.blocks.usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        labels = {"engine": "0", **self._config}
        config = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's configuration.", labels=list(labels))
        config.add_metric(list(labels.values()), 1.0)
        yield config
        yield GaugeMetricFamily("ragload_simulated", "1: timing is simulated, no GPU is used.", value=1.0)

    def _counters(self) -> Iterator[Metric]:
        counters = self._scheduler.counters
        for name, text, value in (
            ("num_preemptions", "Sequences that lost their KV cache and were computed again.", counters.preemptions),
            ("prompt_tokens", "Prompt tokens of requests that got a first token.", self._prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counters.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counters.prefix_hits),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric(self._values, float(value))
            yield counter
        success = CounterMetricFamily("vllm:request_success", "Requests ended.", labels=(*_LABELS, "finished_reason"))
        for reason, count in self._finished.items():
            success.add_metric([*self._values, reason], float(count))
        yield success

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", self._ttft),
            ("inter_token_latency_seconds", "Between consecutive tokens of a request.", self._itl),
            ("e2e_request_latency_seconds", "From arrival to the last token.", self._e2e),
            ("request_queue_time_seconds", "From arrival to the first scheduling.", self._queue),
            ("request_prefill_time_seconds", "From the first scheduling to the first token.", self._prefill),
            ("request_decode_time_seconds", "From the first to the last token.", self._decode),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            family.add_metric(self._values, histogram.buckets(), histogram.sum)
            yield family
