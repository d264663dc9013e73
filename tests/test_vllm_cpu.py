"""The real thing without a GPU: vLLM, SmolLM2-135M, MiniLM, FAISS and Wikipedia text in one trial."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commands import Ragload

from harness.demo import engine_and_node

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
INPUT_TOKENS, OUTPUT_TOKENS = 256, 16


@pytest.fixture(scope="module")
def vllm_node(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node in front of real vLLM on this CPU."""
    logs = tmp_path_factory.mktemp("vllm")
    with engine_and_node("vllm-cpu", small_corpus, logs, input_tokens=INPUT_TOKENS) as url:
        yield url


@pytest.fixture(scope="module")
def trial(vllm_node: str, tmp_path_factory: pytest.TempPathFactory, ragload: Ragload) -> tuple[Path, dict[str, Any]]:
    """One trial of four users against it."""
    folder = tmp_path_factory.mktemp("vllm-trial") / "t"
    done = ragload(
        *("run", "rag", "--host", vllm_node, "--users", 4, "--duration", 20, "--out", folder, "--json"),
        *("--input-tokens", INPUT_TOKENS, "--output-tokens", OUTPUT_TOKENS),
        timeout_s=600,
    )
    assert done.returncode in (0, 3), done.stderr
    return folder, json.loads(done.stdout)


def test_every_request_has_exactly_the_asked_tokens(trial: tuple[Path, dict[str, Any]]) -> None:
    """By real vLLM's usage every prompt and every answer is as long as asked."""
    _, summary = trial

    assert summary["requests"] > 0
    assert summary["failures"] == 0
    assert (summary["prompt_tokens"]["min"], summary["prompt_tokens"]["max"]) == (INPUT_TOKENS, INPUT_TOKENS)
    assert (summary["output_tokens"]["min"], summary["output_tokens"]["max"]) == (OUTPUT_TOKENS, OUTPUT_TOKENS)


def test_nothing_about_it_is_simulated(trial: tuple[Path, dict[str, Any]]) -> None:
    """Real vLLM is not flagged as simulated, and its version is recorded."""
    folder, summary = trial
    environment = json.loads((folder / "environment.json").read_text())

    assert summary["simulated"] is False
    assert environment["engine"]["version"]
    assert "MiniLM" in json.dumps(environment["node"]) or "minilm" in json.dumps(environment["node"])


def test_engine_counters_and_stages_are_there(trial: tuple[Path, dict[str, Any]]) -> None:
    """Prefix-cache hits, KV capacity and every stage of the node come out of a real run."""
    folder, summary = trial
    with pa.ipc.open_stream(folder / "samples.arrows") as stream:
        samples = stream.read_all().to_pydict()

    assert summary["prefix_cache_hit_rate"] is not None
    assert summary["kv_concurrency"] > 1
    assert {"wait", "embed", "search", "assemble"} <= set(summary["stages_ms"])
    answered = [ids for ids, failure in zip(samples["passage_ids"], samples["failure"], strict=True) if failure is None]
    assert answered
    assert min(map(len, answered)) > 0
