"""Bad input: each is one line that says what, where and what to do, with the exit code of the contract."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import Ragload

from harness.served import free_port

pytestmark = pytest.mark.slow


def refused(done: object, code: int, *words: str) -> None:
    """Assert a refusal: the exit code, one `error:` line, no traceback, and the words that must be in it."""
    lines = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]  # type: ignore[attr-defined]

    assert done.returncode == code, done.stderr  # type: ignore[attr-defined]
    assert "Traceback" not in done.stderr  # type: ignore[attr-defined]
    assert len(lines) == 1, done.stderr  # type: ignore[attr-defined]
    for word in words:
        assert word in lines[0]


def test_unknown_corpus(ragload: Ragload) -> None:
    """A corpus that is neither a recipe nor a folder is refused, with the nearest names."""
    refused(ragload("corpus", "build", "wikipedia-leeds"), 2, "wikipedia-leads")


def test_empty_folder(ragload: Ragload, tmp_path: Path) -> None:
    """A folder without a readable document is refused."""
    refused(ragload("corpus", "build", tmp_path, "--out", tmp_path / "out"), 2, str(tmp_path))


def test_missing_embedder(ragload: Ragload, tmp_path: Path) -> None:
    """A model folder that does not exist is refused."""
    (tmp_path / "a.md").write_text("# Title\n\nSome text to index.")
    done = ragload("corpus", "build", tmp_path, "--out", tmp_path / "out", "--embedder", "./no/such/model")
    refused(done, 2, "no/such/model")


def test_missing_tokenizer(ragload: Ragload) -> None:
    """An engine without a tokenizer does not start."""
    refused(ragload("engine", "--tokenizer", "./no/such/tokenizer", "--port", free_port()), 2, "no/such/tokenizer")


def test_unknown_gpu(ragload: Ragload) -> None:
    """A GPU that is not in the catalogue is refused, with the nearest names."""
    refused(ragload("engine", "--gpu", "a100-41gb", "--port", free_port()), 2, "a100-40gb")


def test_index_of_another_digest(ragload: Ragload, small_corpus: Path, engine_url: str, tmp_path: Path) -> None:
    """A node refuses an index that was built from other passages."""
    folder = tmp_path / "corpus"
    shutil.copytree(small_corpus, folder)
    manifest = json.loads((folder / "index.json").read_text())
    key = next(name for name in manifest if "digest" in name)
    (folder / "index.json").write_text(json.dumps(manifest | {key: "sha256:0"}))
    done = ragload("node", "--corpus", folder, "--engine", engine_url, "--port", free_port())
    refused(done, 2, "ragload corpus index")


def test_not_a_corpus(ragload: Ragload, engine_url: str, tmp_path: Path) -> None:
    """A node refuses a folder that is no corpus."""
    done = ragload("node", "--corpus", tmp_path / "none", "--engine", engine_url, "--port", free_port())
    refused(done, 2, "ragload corpus build")


def test_budget_too_small(ragload: Ragload, node_url: str, tmp_path: Path) -> None:
    """A budget that cannot hold the question fails every request with the node's reason, and voids the trial."""
    command = ("run", "rag", "--host", node_url, "--users", 1, "--duration", 2, "--input-tokens", 20)
    done = ragload(*command, "--warmup", 0, "--out", tmp_path / "t", "--json")
    summary = json.loads(done.stdout)

    assert done.returncode == 3
    assert summary["failures"] == summary["requests"] > 0
    assert summary["failures_by_kind"] == {"http_status": summary["failures"]}


def test_engine_down(ragload: Ragload, small_corpus: Path) -> None:
    """A node whose engine does not answer ends with code 4."""
    url = f"http://127.0.0.1:{free_port()}"
    command = ("node", "--corpus", small_corpus, "--engine", url, "--port", free_port(), "--engine-timeout", 2)
    refused(ragload(*command), 4, url)


@pytest.mark.parametrize("command", [("run", "--users", 1, "--duration", 1), ("search", "--slo", "latency_ms=1")])
def test_node_down(ragload: Ragload, tmp_path: Path, command: tuple[object, ...]) -> None:
    """A target that does not answer ends with code 4 before anything is started."""
    url = f"http://127.0.0.1:{free_port()}"
    done = ragload(command[0], "rag", "--host", url, *command[1:], "--out", tmp_path / "t")
    refused(done, 4, url)


@pytest.mark.parametrize("text", ["fast", "latency_p99=5", "latency_p99_ms=-5", ""])
def test_wrong_slo(ragload: Ragload, text: str) -> None:
    """An SLO that does not parse is refused with an example."""
    refused(ragload("search", "rag", "--host", "http://127.0.0.1:1", "--slo", text), 2, "latency_p99_ms=5000")


def test_unwritable_report_folder(ragload: Ragload, node_url: str, tmp_path: Path) -> None:
    """A trial folder that cannot be written is refused before the run."""
    (tmp_path / "file").touch()
    command = ("run", "rag", "--host", node_url, "--users", 1, "--duration", 1, "--out", tmp_path / "file" / "t")
    refused(ragload(*command), 2, str(tmp_path / "file"))


def test_missing_scenario(ragload: Ragload) -> None:
    """A scenario that does not exist is refused."""
    refused(ragload("run", "nope.py", "--host", "http://127.0.0.1:1", "--users", 1, "--duration", 1), 2, "nope.py")


@pytest.mark.parametrize("host", ["node:8080", "http://", "ftp://x"])
def test_wrong_host(ragload: Ragload, host: str) -> None:
    """A host that is no http URL is refused."""
    refused(ragload("run", "rag", "--host", host, "--users", 1, "--duration", 1), 2, host)


def test_not_a_trial(ragload: Ragload, tmp_path: Path) -> None:
    """Summarizing or reporting a folder that is no trial is refused."""
    refused(ragload("summarize", tmp_path), 2, str(tmp_path))
    refused(ragload("report", tmp_path), 2, str(tmp_path))


def test_newer_schema(ragload: Ragload, tmp_path: Path) -> None:
    """A trial written by a newer ragload is refused, not misread."""
    (tmp_path / "plan.json").write_text('{"schema": 99}')
    (tmp_path / "samples.arrows").touch()
    refused(ragload("summarize", tmp_path), 2, "upgrade")
