"""Indexes over a small corpus with the real MiniLM: built, saved, found again, refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import CorpusError, IndexMismatchError, UsageError
from harness.node.corpus import load_corpus
from harness.node.index import build_index, load_index


@pytest.fixture
def folder(topics: Path, tmp_path: Path) -> Path:
    """A copy of the indexed corpus that a test may spoil."""
    return Path(shutil.copytree(topics, tmp_path / "topics"))


class Counting:
    """The real embedder, counting the documents it is asked for."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder
        self.documents = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def encode_document(self, texts: list[str]) -> Any:
        self.documents += len(texts)
        return self._embedder.encode_document(texts)


class Turned:
    """Another model of the same dimension: the real embedder's numbers in another order."""

    def __init__(self, embedder: Any) -> None:
        self.name, self.dimension = "turned", embedder.dimension
        self.encode_query = lambda texts: np.ascontiguousarray(embedder.encode_query(texts)[:, ::-1])


def test_an_exact_title_finds_its_passage(topics: Path, embedder: Any) -> None:
    """A question with a passage's exact title finds a passage of that title first, for every title."""
    corpus = load_corpus(topics)
    index = load_index(topics, embedder, corpus)
    rows, scores = index.search(embedder.encode_query([item.question for item in corpus.questions]), 6)

    assert [corpus.passages[row].doc_id for row in rows[:, 0]] == [item.doc_id for item in corpus.questions]
    assert (np.diff(scores, axis=1) <= 1e-6).all()
    gold = [
        set(item.gold_ids) <= {corpus.passages[row].id for row in found}
        for item, found in zip(corpus.questions, rows, strict=True)
    ]
    assert all(gold)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_approximate_index_tells_its_recall(folder: Path, embedder: Any, kind: str) -> None:
    """The manifest's recall@5 equals the overlap with exact search on the corpus's questions, counted here."""
    corpus = load_corpus(folder)
    exact = load_index(folder, embedder, corpus)
    manifest = build_index(folder, embedder, kind, progress=False)
    other = load_index(folder, embedder, corpus)
    asked = embedder.encode_query([item.question for item in corpus.questions])
    pairs = zip(exact.search(asked, 5)[0].tolist(), other.search(asked, 5)[0].tolist(), strict=True)
    overlap = np.mean([len(set(want) & set(got)) / 5 for want, got in pairs])

    assert (manifest.kind, manifest.vectors, manifest.k) == (kind, len(corpus.passages), 5)
    assert manifest.recall_at_k == pytest.approx(overlap)


def test_the_same_index_is_not_built_twice(folder: Path, embedder: Any) -> None:
    """Building what is there already embeds nothing and touches no file."""
    counting = Counting(embedder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    build_index(folder, counting, progress=False)

    assert counting.documents == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_another_kind_keeps_the_vectors(folder: Path, embedder: Any) -> None:
    """Changing the kind there and back embeds no passage again, and the flat index is the same file."""
    counting = Counting(embedder)
    before = (folder / "index.faiss").read_bytes()
    for kind in ("hnsw", "ivf", "flat"):
        build_index(folder, counting, kind, progress=False)

    assert counting.documents == 0
    assert (folder / "index.faiss").read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value"), [("digest", "sha256:0"), ("dimension", 768), ("vectors", 3), ("sha256", "0")]
)
def test_a_manifest_of_something_else_is_refused(folder: Path, embedder: Any, field: str, value: Any) -> None:
    """An index whose manifest names another digest, dimension, number of vectors or file is refused with the remedy."""
    row = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(row | {field: value}))

    with pytest.raises(IndexMismatchError, match=f"ragload corpus index {folder}"):
        load_index(folder, embedder, load_corpus(folder))


def test_an_index_of_another_model_is_refused(folder: Path, embedder: Any) -> None:
    """A model of the same dimension that gives other vectors is recognised as another."""
    with pytest.raises(IndexMismatchError, match="another model"):
        load_index(folder, Turned(embedder), load_corpus(folder))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_broken_index_is_refused(folder: Path, embedder: Any, name: str, damage: str) -> None:
    """A missing, truncated or empty file of the index is refused with the command that rebuilds it."""
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if damage != "missing":
        (folder / name).write_bytes(content[: len(content) // 2] if damage == "cut" else b"")

    with pytest.raises(IndexMismatchError, match=f"ragload corpus index {folder}"):
        load_index(folder, embedder, load_corpus(folder))


def test_a_broken_index_is_rebuilt(folder: Path, embedder: Any) -> None:
    """Building over a truncated index makes it whole again."""
    before = (folder / "index.faiss").read_bytes()
    (folder / "index.faiss").write_bytes(before[:100])
    build_index(folder, embedder, progress=False)

    assert load_index(folder, embedder, load_corpus(folder)).manifest.vectors == 72


@pytest.mark.parametrize(("kind", "params"), [("annoy", {}), ("flat", {"nlist": 4}), ("ivf", {"nprobe": 0})])
def test_a_wrong_kind_or_parameter_is_wrong_use(folder: Path, embedder: Any, kind: str, params: Any) -> None:
    """Unknown kinds, foreign parameters and zeros are refused."""
    with pytest.raises(UsageError):
        build_index(folder, embedder, kind, params, progress=False)


def test_no_corpus_no_index(tmp_path: Path, embedder: Any) -> None:
    """A folder that is no corpus cannot be indexed."""
    with pytest.raises(CorpusError):
        build_index(tmp_path / "none", embedder, progress=False)
