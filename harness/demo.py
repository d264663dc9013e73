"""The whole job on one machine: corpus, engine, node, search, report.

With `simulated` the engine is a model of vLLM on a named GPU, and every figure says SIMULATED;
with `vllm-cpu` it is real vLLM with a real 135M model on this CPU, scaled down.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.node.build import build_corpus
from harness.node.embed import Embedder
from harness.node.index import build_index
from harness.node.models import embedder_path
from harness.plan import Plan
from harness.run import Limits, Watch, search
from harness.served import free_port, served
from harness.slo import Slo, parse_slo
from harness.trial import make_folder
from harness.vllm_cpu import START_TIMEOUT_S, vllm_command, vllm_environment


@dataclass(frozen=True, kw_only=True)
class Size:
    """What the demo asks of an engine: lengths, SLO, and how far and how long it searches."""

    input_tokens: int
    output_tokens: int
    slo: Slo
    limits: Limits
    duration_s: float


# p90 rather than p99: the fifty requests or so that a level of the demo has time for cannot carry a p99.
SIZES = {
    "simulated": Size(
        input_tokens=1500,
        output_tokens=100,
        slo=parse_slo("latency_p90_ms=3000,ttft_p90_ms=1000", attainment=0.9),
        limits=Limits(start_users=8, max_users=256),
        duration_s=15,
    ),
    "vllm-cpu": Size(
        input_tokens=256,
        output_tokens=16,
        slo=parse_slo("latency_p90_ms=4000", attainment=0.9),
        limits=Limits(start_users=2, max_users=32),
        duration_s=15,
    ),
}


def demo_corpus(folder: Path, *, told: Watch) -> Path:
    """`folder` if it is an indexed corpus, else build the recipe of its name there. Raises CorpusError."""
    if (folder / "index.json").exists():
        return folder
    told(f"building the corpus {folder.name}, once")
    build_corpus(folder.name, out=folder)
    build_index(folder, Embedder(embedder_path(None)))
    return folder


@contextmanager
def engine_and_node(engine: str, corpus: Path, logs: Path, *, input_tokens: int) -> Iterator[str]:
    """Start the engine and a node in front of it; yield the node's URL; stop both.

    Raises TargetError with the last line of the log that explains it.
    """
    make_folder(logs)
    engine_port, node_port = free_port(), free_port()
    engine_url, node_url = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{node_port}"
    ragload = [sys.executable, "-m", "harness"]
    if engine == "vllm-cpu":
        command, env = vllm_command(engine_port), vllm_environment()
    else:
        command, env = [*ragload, "engine", "--port", str(engine_port)], None
    node = [*ragload, "node", "--corpus", str(corpus), "--engine", engine_url, "--port", str(node_port)]
    with ExitStack() as stack:
        stack.enter_context(
            served(
                command, ready_url=f"{engine_url}/health", log=logs / "engine.log", timeout_s=START_TIMEOUT_S, env=env
            )
        )
        stack.enter_context(
            served(
                [*node, "--input-tokens", str(input_tokens)],
                ready_url=f"{node_url}/ready",
                log=logs / "node.log",
                timeout_s=120,
            )
        )
        yield node_url


def demo(engine: str, corpus: Path, scenario: Path, out: Path, *, watch: Watch, told: Watch) -> dict[str, Any]:
    """Find the capacity of a node over `corpus`, in `out`; return the search's result."""
    size = SIZES[engine]
    told(f"starting the engine ({engine}) and a node over {corpus.name}")
    with engine_and_node(engine, corpus, out / "logs", input_tokens=size.input_tokens) as url:
        plan = Plan(
            scenario=str(scenario),
            host=url,
            users=1,
            duration_s=size.duration_s,
            input_tokens=size.input_tokens,
            output_tokens=size.output_tokens,
            command=("ragload", "demo", "--engine", engine),
        )
        told(f"searching the highest load that keeps {size.slo}")
        return search(plan, size.slo, out, limits=size.limits, watch=watch, told=told)
