"""What the node's tests share: the real MiniLM, the real SmolLM2 tokenizer, a small corpus, a fake engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

HERE = Path(__file__).parent

TOPICS = {
    "Danube": "a river that rises in the Black Forest and flows through ten countries into the Black Sea",
    "Photosynthesis": "how plants and algae turn light, water and carbon dioxide into sugar and oxygen",
    "Binary search": "an algorithm that finds a value in a sorted list by halving the interval that may hold it",
    "Violin": "a wooden string instrument with four strings tuned in fifths and played with a bow",
    "Plate tectonics": "the theory that the outer shell of the Earth is made of plates which drift on the mantle",
    "Espresso": "coffee brewed by pressing nearly boiling water through finely ground beans",
    "Magna Carta": "a charter of rights sealed by King John of England at Runnymede in 1215",
    "Penicillin": "an antibiotic that Alexander Fleming found in a mould in 1928",
    "Sahara": "the largest hot desert on Earth, covering most of North Africa",
    "Chess": "a board game for two players with sixteen pieces each on sixty-four squares",
    "Black hole": "a region of spacetime from which not even light escapes",
    "Sourdough": "bread leavened by wild yeast and lactic acid bacteria of a starter dough",
}


@pytest.fixture(scope="session")
def tokenizer_folder() -> Path:
    """The prepared SmolLM2 folder."""
    from harness.node.models import smollm2_folder

    folder = smollm2_folder()
    assert (folder / "tokenizer.json").is_file(), f"{folder} is missing: run `ragload models` (or `make models`) first"
    return folder


@pytest.fixture(scope="session")
def embedder() -> Any:
    """The real all-MiniLM-L6-v2 on the CPU."""
    from harness.node.embed import Embedder
    from harness.node.models import embedder_path

    return Embedder(embedder_path(None), "cpu")


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory, embedder: Any) -> Path:
    """A corpus of a dozen topics with a flat index, six passages each; `Danube-0` and so on."""
    from harness.node.corpus import Passage, Question, write_corpus
    from harness.node.index import build_index

    folder = tmp_path_factory.mktemp("corpora") / "topics"
    passages = [
        Passage(
            id=f"{title}-{part}",
            doc_id=title,
            title=title,
            text=f"{title} is {what}. " * 3 + f"This is part {part} of what there is to say about it.",
            tokens=80,
        )
        for title, what in TOPICS.items()
        for part in range(6)
    ]
    questions = [
        Question(id=f"q-{title}", question=f"What is {title}?", reference=what, gold_ids=(f"{title}-0",), doc_id=title)
        for title, what in TOPICS.items()
    ]
    write_corpus(
        folder,
        name="topics",
        source="made up for tests",
        licence=None,
        passages=passages,
        questions=questions,
        documents=len(TOPICS),
        chunk_tokens=128,
        overlap_tokens=0,
        tokenizer="none",
    )
    build_index(folder, embedder, progress=False)
    return folder


class FakeEngine:
    """A running fake engine: its address, and the truth about what it received and sent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def log(self) -> list[dict[str, Any]]:
        """Every generation request so far, in order."""
        with urllib.request.urlopen(f"{self.url}/log") as reply:
            rows: list[dict[str, Any]] = json.load(reply)
        return rows

    def stop(self) -> None:
        """End the process by closing its standard input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def start_engine(tokenizer_folder: Path) -> Iterator[Callable[..., FakeEngine]]:
    """Start fake engines with `start_engine(setting=…)`; all end with the session."""
    running: list[FakeEngine] = []

    def start(**settings: Any) -> FakeEngine:
        command = [sys.executable, str(HERE / "fake_engine.py"), str(tokenizer_folder), json.dumps(settings)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(FakeEngine(process))
        return running[-1]

    yield start
    for engine in running:
        if engine.process.poll() is None:
            engine.stop()


@pytest.fixture(scope="session")
def fake_engine(start_engine: Callable[..., FakeEngine]) -> FakeEngine:
    """One well-behaved fake engine for all."""
    return start_engine()
