"""Servers that end-to-end tests share: one small real corpus, one simulated engine, one node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import RAGLOAD, Ragload

from harness.served import free_port, served


@pytest.fixture(scope="session")
def ragload() -> Ragload:
    """Run the command line in a process of its own; its exit code is the test's to judge."""

    def call(*words: object, timeout_s: float = 240, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [*RAGLOAD, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd)

    return call


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory, ragload: Ragload) -> Path:
    """600 real Wikipedia leads, chunked, embedded by the real MiniLM and indexed by FAISS."""
    folder = tmp_path_factory.mktemp("corpora") / "wikipedia-small"
    built = ragload("corpus", "build", "wikipedia-leads", "--limit", 600, "--out", folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A simulated A100 with Llama-3.1-8B's shape, four times as fast as real."""
    port, log = free_port(), tmp_path_factory.mktemp("engine") / "engine.log"
    url = f"http://127.0.0.1:{port}"
    command = [*RAGLOAD, "engine", "--port", str(port), "--time-scale", "0.25"]
    with served(command, ready_url=f"{url}/health", log=log, timeout_s=60):
        yield url


@pytest.fixture(scope="session")
def node_url(tmp_path_factory: pytest.TempPathFactory, small_corpus: Path, engine_url: str) -> Iterator[str]:
    """A node over the small corpus in front of the simulated engine."""
    port, log = free_port(), tmp_path_factory.mktemp("node") / "node.log"
    url = f"http://127.0.0.1:{port}"
    command = [*RAGLOAD, "node", "--corpus", str(small_corpus), "--engine", engine_url, "--port", str(port)]
    with served(command, ready_url=f"{url}/ready", log=log, timeout_s=120):
        yield url
