"""The vector index of a corpus: built, saved with a manifest, refused when it does not fit.

    index.faiss   the vectors, in the order of the corpus's passages
    index.json    IndexManifest: what it was built from, and its recall against exact search

The metric is the inner product of normalised vectors (cosine). Knows vectors and row numbers; what
the rows say is the corpus's affair. FAISS: https://github.com/facebookresearch/faiss.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.errors import FolderError, IndexMismatchError, UsageError
from harness.node.corpus import Corpus, Passage, load_corpus
from harness.node.embed import Embedder, Vectors
from harness.trial import read_json, write_json

INDEX, MANIFEST = "index.faiss", "index.json"
KINDS = ("flat", "ivf", "hnsw")
RECALL_K = 5
RECALL_QUERIES = 500
GPU_TEMP_BYTES = 256 << 20
"""FAISS would take 1.5 GiB of scratch memory per resources object; the engine needs it more."""

_PROBE = "Which river flows through the old town?"
_PROBE_NUMBERS = 16
_PROBE_TOLERANCE = 0.01
_SLICE = 512


@dataclass(frozen=True, kw_only=True)
class IndexManifest:
    """What an index was built from and how.

    digest       content digest of the corpus
    model        name of the embedder; for people, since a path differs from machine to machine
    probe        the first numbers of the vector it gives a fixed question; this is what identifies it
    params       nlist and nprobe (ivf), m, ef_construction and ef_search (hnsw)
    recall_at_k  share of the exact top `k` that this index finds, mean over the corpus's questions
    sha256       of index.faiss
    """

    digest: str
    model: str
    probe: tuple[float, ...]
    dimension: int
    metric: str
    kind: str
    params: Mapping[str, int]
    vectors: int
    k: int
    recall_at_k: float
    sha256: str


class Index:
    """A loaded index. Search it from one thread only: on a GPU, FAISS is not thread-safe even for reads."""

    def __init__(self, loaded: Any, manifest: IndexManifest) -> None:
        self.manifest = manifest
        self.on_gpu = faiss.get_num_gpus() > 0 and manifest.kind != "hnsw"  # FAISS has no HNSW for GPUs
        self._resources: Any = None
        self._index = self._to_gpu(loaded) if self.on_gpu else loaded

    def search(self, vectors: Vectors, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and scores, shape (len(vectors), k), best first; row −1 where the index found fewer."""
        scores, rows = self._index.search(vectors, k)
        return rows, scores

    def _to_gpu(self, loaded: Any) -> Any:
        self._resources = faiss.StandardGpuResources()  # must live as long as the index
        self._resources.setTempMemory(GPU_TEMP_BYTES)
        return faiss.index_cpu_to_gpu(self._resources, 0, loaded)


def limit_search_threads() -> None:
    """One OpenMP thread for FAISS, called in the thread that searches, for which alone it holds.

    Searches are batched, so several requests share each call; a second thread takes a core away
    from the embedder, the event loop and the engine, and with 16 callers it halved the throughput of flat search.
    """
    faiss.omp_set_num_threads(1)


def build_index(
    corpus_folder: Path,
    embedder: Embedder,
    kind: str = "flat",
    params: Mapping[str, int] | None = None,
    progress: bool = True,
) -> IndexManifest:
    """Embed every passage and index it in the corpus's folder; a no-op if the very same index is there.

    Vectors of an index there of the same corpus and model are used again, so changing the kind is quick.
    Raises UsageError for an unknown kind or parameter, CorpusError, FolderError.
    """
    corpus = load_corpus(corpus_folder)
    chosen = _params(kind, params or {}, len(corpus.passages))
    there = _index_there(corpus_folder, embedder, corpus)
    if there is not None and (there[1].kind, dict(there[1].params)) == (kind, chosen):
        return there[1]
    with _progress(enabled=progress) as bar:
        vectors = _embedded(corpus, embedder, bar) if there is None else _vectors_of(there[0])
        index = _built(vectors, kind, chosen)
        recall = 1.0 if kind == "flat" else _recall(index, vectors, _queries(corpus, embedder, bar, vectors))
    sha256 = _save(index, corpus_folder / INDEX)
    manifest = IndexManifest(
        digest=corpus.manifest.digest,
        model=embedder.name,
        probe=_probe(embedder),
        dimension=embedder.dimension,
        metric="ip",
        kind=kind,
        params=chosen,
        vectors=len(vectors),
        k=RECALL_K,
        recall_at_k=recall,
        sha256=sha256,
    )
    write_json(corpus_folder / MANIFEST, asdict(manifest))
    return manifest


def load_index(folder: Path, embedder: Embedder, corpus: Corpus) -> Index:
    """The corpus's index, on the GPU if FAISS sees one.

    Raises IndexMismatchError when it is missing, broken, or of other passages or another model.
    """
    manifest = _read_manifest(folder)
    _check_fits(folder, manifest, embedder, corpus)
    return Index(_read_faiss(folder, manifest), manifest)


def document_text(passage: Passage) -> str:
    """What is embedded of a passage: its title and its text."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def _again(folder: Path) -> str:
    return f"build it again with `ragload corpus index {folder}`"


def _read_manifest(folder: Path) -> IndexManifest:
    try:
        row = read_json(folder / MANIFEST)
    except FolderError as error:
        raise IndexMismatchError(f"no usable index in {folder} ({error}): {_again(folder)}") from error
    missing = [field.name for field in fields(IndexManifest) if field.name not in row]
    if missing:
        raise IndexMismatchError(f"{folder / MANIFEST} lacks {', '.join(missing)}: {_again(folder)}")
    known = {field.name: row[field.name] for field in fields(IndexManifest)}
    return IndexManifest(**known | {"probe": tuple(row["probe"])})


def _check_fits(folder: Path, manifest: IndexManifest, embedder: Embedder, corpus: Corpus) -> None:
    problem = None
    if manifest.digest != corpus.manifest.digest:
        problem = (
            f"was built from other passages ({manifest.digest[:19]}…, the corpus is {corpus.manifest.digest[:19]}…)"
        )
    elif manifest.vectors != len(corpus.passages):
        problem = f"has {manifest.vectors} vectors for {len(corpus.passages)} passages"
    elif manifest.dimension != embedder.dimension:
        problem = f"has {manifest.dimension} dimensions ({manifest.model}), {embedder.name} has {embedder.dimension}"
    elif not np.allclose(manifest.probe, _probe(embedder), atol=_PROBE_TOLERANCE):
        problem = f"was built by another model ({manifest.model}, the node has {embedder.name})"
    if problem:
        raise IndexMismatchError(f"the index in {folder} {problem}: {_again(folder)}")


def _read_faiss(folder: Path, manifest: IndexManifest) -> Any:
    path = folder / INDEX
    if not path.is_file():
        raise IndexMismatchError(f"{path} is missing: {_again(folder)}")
    if _sha256(path) != manifest.sha256:
        raise IndexMismatchError(f"{path} is damaged or of another build than its {MANIFEST}: {_again(folder)}")
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise IndexMismatchError(
            f"{path} cannot be read by this FAISS {faiss.__version__}: {_again(folder)}"
        ) from error


def _index_there(folder: Path, embedder: Embedder, corpus: Corpus) -> tuple[Any, IndexManifest] | None:
    """The index on disk with its manifest, if it is sound and fits; else None."""
    try:
        manifest = _read_manifest(folder)
        _check_fits(folder, manifest, embedder, corpus)
        return _read_faiss(folder, manifest), manifest
    except IndexMismatchError:
        return None


def _probe(embedder: Embedder) -> tuple[float, ...]:
    vector = embedder.encode_query([_PROBE])[0, :_PROBE_NUMBERS]
    return tuple(round(float(number), 5) for number in vector)


def _params(kind: str, asked: Mapping[str, int], vectors: int) -> dict[str, int]:
    """The kind's parameters with defaults filled in. Raises UsageError."""
    lists = max(1, min(int(4 * vectors**0.5), vectors // 39))  # FAISS wants 39 training vectors a list
    defaults: dict[str, dict[str, int]] = {
        "flat": {},
        "ivf": {"nlist": lists, "nprobe": max(1, min(32, lists // 4))},
        "hnsw": {"m": 32, "ef_construction": 200, "ef_search": 128},
    }
    if kind not in defaults:
        raise UsageError(f"index kind '{kind}' is unknown: use one of {', '.join(KINDS)}")
    odd = set(asked) - set(defaults[kind])
    if odd:
        known = ", ".join(defaults[kind]) or "none"
        raise UsageError(f"index kind '{kind}' has no parameter {sorted(odd)[0]}: it has {known}")
    if any(value < 1 for value in asked.values()):
        raise UsageError(f"index parameters are {dict(asked)}: give 1 or more each")
    return defaults[kind] | dict(asked)


def _built(vectors: Vectors, kind: str, params: Mapping[str, int]) -> Any:
    dimension = vectors.shape[1]
    index: Any
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimension, params["m"], faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = params["ef_construction"], params["ef_search"]
    elif kind == "ivf":
        quantizer = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFFlat(quantizer, dimension, min(params["nlist"], len(vectors)), faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # small corpora are fine; recall says how well it went
        index.train(vectors)
        index.nprobe = params["nprobe"]
    else:
        index = faiss.IndexFlatIP(dimension)
    index.add(vectors)
    return index


def _vectors_of(index: Any) -> Vectors:
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()
    vectors: Vectors = index.reconstruct_n(0, index.ntotal)
    return vectors


def _embedded(corpus: Corpus, embedder: Embedder, bar: Progress) -> Vectors:
    """One vector per passage, in the corpus's order. Encoded by length, since padding costs time."""
    texts = [document_text(passage) for passage in corpus.passages]
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    vectors = np.empty((len(texts), embedder.dimension), dtype=np.float32)
    task = bar.add_task("embedding passages", total=len(texts))
    for start in range(0, len(order), _SLICE):
        rows = order[start : start + _SLICE]
        vectors[rows] = embedder.encode_document([texts[row] for row in rows])
        bar.advance(task, len(rows))
    return vectors


def _queries(corpus: Corpus, embedder: Embedder, bar: Progress, vectors: Vectors) -> Vectors:
    """Vectors to measure recall with: the corpus's questions, evenly sampled; without any, its passages."""
    questions = _spread([question.question for question in corpus.questions])
    if not questions:
        return vectors[_spread(range(len(vectors)))]
    task = bar.add_task("measuring recall", total=len(questions))
    asked = embedder.encode_query(questions)
    bar.advance(task, len(questions))
    return asked


def _spread(rows: Sequence[Any]) -> list[Any]:
    step = max(1, -(-len(rows) // RECALL_QUERIES))
    return list(rows[::step])


def _recall(index: Any, vectors: Vectors, queries: Vectors) -> float:
    exact = faiss.IndexFlatIP(vectors.shape[1])
    exact.add(vectors)
    k = min(RECALL_K, len(vectors))
    wanted, found = exact.search(queries, k)[1], index.search(queries, k)[1]
    hits = sum(len(set(want) & set(got)) for want, got in zip(wanted.tolist(), found.tolist(), strict=True))
    return hits / (k * len(queries))


def _save(index: Any, path: Path) -> str:
    """Write the index, whole or not at all; return its sha256. Raises FolderError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        faiss.write_index(index, str(draft))
        sha256 = _sha256(draft)
        draft.replace(path)
    except (OSError, RuntimeError) as error:
        draft.unlink(missing_ok=True)
        raise FolderError(f"cannot write {path}: free the disk or make the folder writable") from error
    return sha256


def _sha256(path: Path) -> str:
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return state.hexdigest()


def _progress(*, enabled: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not enabled, transient=True)
