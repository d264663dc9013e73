"""What the node tells of itself: Prometheus metrics, and the environment a trial is filed with.

Counts and describes; decides nothing.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import faiss
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from harness.node.corpus import Corpus
from harness.node.embed import Embedder
from harness.node.index import Index
from harness.node.stages import Stages

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


class Telemetry:
    """The node's own metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.in_flight = Gauge("ragload_node_in_flight", "Requests being answered", registry=self._registry)
        self._engine_up = Gauge("ragload_node_engine_up", "1 if the engine gave its metrics", registry=self._registry)
        self._requests = Counter(
            "ragload_node_requests", "Requests by how they ended", ["outcome"], registry=self._registry
        )
        self._stages = Histogram(
            "ragload_node_stage_seconds", "Time per stage", ["stage"], buckets=_BUCKETS_S, registry=self._registry
        )
        self._mismatches = Counter(
            "ragload_node_token_mismatch", "Prompts the engine counted otherwise than the node", registry=self._registry
        )

    def ended(self, outcome: str, stages: Stages) -> None:
        """One request is over: `ok`, `refused` (4xx), `failed` (engine) or `gone` (client)."""
        self._requests.labels(outcome).inc()
        for stage, ms in stages.ms().items():
            self._stages.labels(stage).observe(ms / 1e3)

    def mismatch(self) -> None:
        """The engine's `usage` and the node's count differ."""
        self._mismatches.inc()

    def text(self, engine_text: str | None) -> bytes:
        """Prometheus text: the node's metrics, then the engine's as they came, if it gave any."""
        self._engine_up.set(0 if engine_text is None else 1)
        own = generate_latest(self._registry)
        return own if engine_text is None else own + engine_text.replace("# EOF\n", "").encode()


def node_environment(corpus: Corpus, embedder: Embedder, index: Index, tokenizer: str) -> dict[str, Any]:
    """The parts of /environment that do not change while the node runs."""
    return {
        "node": {
            "ragload": _version("ragload"),
            "python": platform.python_version(),
            "host_cpu": _host_cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "embedder": embedder.name,
            "embedder_device": embedder.device,
            "sentence_transformers": _version("sentence-transformers"),
            "torch": _version("torch"),
            "faiss": faiss.__version__,
            "index": {**asdict(index.manifest), "on_gpu": index.on_gpu},
            "tokenizer": Path(tokenizer).name if Path(tokenizer).is_dir() else tokenizer,
        },
        "corpus": asdict(corpus.manifest),
        "gpus": gpus(),
    }


def engine_environment(url: str, version_row: dict[str, Any], model_row: dict[str, Any]) -> dict[str, Any]:
    """The engine's part: everything its /version says, and the first row of /v1/models."""
    return {
        "url": url,
        "model": model_row.get("id"),
        "max_model_len": model_row.get("max_model_len"),
        "simulated": False,
        **version_row,
    }


def gpus() -> list[dict[str, Any]]:
    """Name, memory and driver of every NVIDIA GPU of this host; empty without the driver or its bindings."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, number) for number in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, number: int) -> dict[str, Any]:
    device = nvml.nvmlDeviceGetHandleByIndex(number)
    return {
        "name": nvml.nvmlDeviceGetName(device),
        "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(device).total,
        "driver": nvml.nvmlSystemGetDriverVersion(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _host_cpu() -> str:
    """The processor's name: Linux says it in /proc/cpuinfo, elsewhere `platform` may."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
