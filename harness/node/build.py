"""From a recipe to a corpus folder: load, cut, tie questions to passages, write. Also lists and shows.

The one place where sources, chunks and the corpus folder meet. Shows progress on stderr; prints nothing.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.errors import CorpusError
from harness.node.chunk import Document, check_sizes, cut, load_tokenizer
from harness.node.corpus import MANIFEST, Corpus, Passage, Question, load_corpus, read_manifest, write_corpus
from harness.node.models import MINILM, embedder_path
from harness.node.recipes import Recipe, recipe, recipe_names
from harness.node.sources import Asked, Loaded, load_source

logger = logging.getLogger(__name__)

BUILT = Path("corpora") / "built"
_MOST_WARNINGS = 10


def build_corpus(
    name_or_path: str,
    *,
    out: Path | None = None,
    chunk_tokens: int | None = None,
    overlap_tokens: int | None = None,
    limit: int | None = None,
    tokenizer: str | None = None,
    progress: bool = True,
) -> tuple[Corpus, Path]:
    """Build a recipe or a folder into `out` (default: corpora/built/<name>); return corpus and folder.

    chunk_tokens, overlap_tokens  instead of the recipe's
    limit      at most so many documents; questions whose gold lies outside are left out
    tokenizer  folder or hub id of an embedder whose tokenizer counts (default: all-MiniLM-L6-v2)

    Building again what is already there writes nothing, so that an index beside it stays.
    Raises CorpusError, ModelMissingError, FolderError.
    """
    chosen = recipe(name_or_path)
    size, overlap = _sizes(chosen, chunk_tokens, overlap_tokens)
    pieces = load_tokenizer(embedder_path(tokenizer))
    with _progress(progress) as bars:
        loaded = _load(chosen, limit, bars)
        _warn(loaded)
        documents = bars.track(loaded.documents, description="cutting passages")
        passages = [
            p for document in documents for p in cut(document, pieces, chunk_tokens=size, overlap_tokens=overlap)
        ]
    folder = out or BUILT / chosen.name
    corpus = write_corpus(
        folder,
        name=chosen.name,
        source=chosen.source,
        licence=chosen.licence,
        passages=passages,
        questions=tie(loaded.questions, passages),
        documents=len(_with_text(loaded.documents, passages)),
        chunk_tokens=size,
        overlap_tokens=overlap,
        tokenizer=tokenizer or MINILM,
    )
    return corpus, folder


def tie(asked: Iterable[Asked], passages: Sequence[Passage]) -> list[Question]:
    """Questions with gold passages instead of gold documents, in an order settled by their ids but not sorted.

    Of a gold document, those passages are gold that hold the evidence or bear the title, if any do; else all.
    The order makes any first N questions a fair sample of a source that is sorted by topic.
    """
    by_document: dict[str, list[Passage]] = {}
    for passage in passages:
        by_document.setdefault(passage.doc_id, []).append(passage)
    questions = [_tied(one, by_document) for one in asked]
    return sorted(questions, key=lambda question: hashlib.sha256(question.id.encode()).digest())


def list_corpora(built: Path = BUILT) -> list[dict[str, Any]]:
    """One row for each recipe and each folder under `built`: JSON-ready, counts None for a recipe.

    Keys: name, state (`recipe`, `built` or `broken`), folder, source, licence, documents, passages, questions, digest.
    """
    recipes = [_recipe_row(recipe(name)) for name in recipe_names()]
    folders = sorted(path.parent for path in built.glob(f"*/{MANIFEST}"))
    return recipes + [_built_row(folder) for folder in folders]


def show_corpus(folder: Path, *, examples: int = 5) -> dict[str, Any]:
    """What a built corpus holds: manifest, tokens a passage, and some passages and questions. JSON-ready."""
    corpus = load_corpus(folder)
    tokens = np.percentile([passage.tokens for passage in corpus.passages], [0, 10, 50, 90, 100], method="nearest")
    return {
        "folder": str(folder),
        "manifest": asdict(corpus.manifest),
        "tokens_per_passage": dict(zip(("min", "p10", "p50", "p90", "max"), tokens.astype(int).tolist(), strict=True)),
        "passages": [asdict(passage) for passage in _spread(corpus.passages, examples)],
        "questions": [asdict(question) for question in corpus.questions[:examples]],
    }


def _sizes(chosen: Recipe, chunk_tokens: int | None, overlap_tokens: int | None) -> tuple[int, int]:
    """Asked sizes; an overlap not asked for shrinks with the chunk."""
    size = chunk_tokens or chosen.chunk_tokens
    overlap = min(chosen.overlap_tokens, size // 4) if overlap_tokens is None else overlap_tokens
    check_sizes(size, overlap)
    return size, overlap


def _load(chosen: Recipe, limit: int | None, bars: Progress) -> Loaded:
    bar = bars.add_task(f"loading {chosen.name}", total=limit)
    loaded = load_source(chosen.settings, limit=limit, tick=lambda done: bars.update(bar, completed=done))
    bars.update(bar, total=len(loaded.documents), completed=len(loaded.documents))
    return loaded


def _warn(loaded: Loaded) -> None:
    for line in loaded.warnings[:_MOST_WARNINGS]:
        logger.warning("%s", line)
    more = len(loaded.warnings) - _MOST_WARNINGS
    if more > 0:
        logger.warning("and %d more", more)
    if not loaded.questions:
        logger.warning("the corpus has no question: a trial on it needs --questions FILE")


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bars:
        yield bars


def _tied(asked: Asked, by_document: Mapping[str, Sequence[Passage]]) -> Question:
    documents = list(dict.fromkeys(gold.doc_id for gold in asked.gold))
    gold_ids = [passage.id for doc_id in documents for passage in _gold_of(asked, doc_id, by_document.get(doc_id, ()))]
    return Question(
        id=asked.id,
        question=asked.question,
        reference=asked.reference,
        gold_ids=tuple(gold_ids),
        doc_id=documents[0] if len(documents) == 1 else None,
    )


def _gold_of(asked: Asked, doc_id: str, passages: Sequence[Passage]) -> Sequence[Passage]:
    marks = [gold for gold in asked.gold if gold.doc_id == doc_id]
    told = [passage for passage in passages if any(_marked(passage, mark.evidence, mark.title) for mark in marks)]
    return told or passages


def _marked(passage: Passage, evidence: str | None, title: str | None) -> bool:
    return (evidence is None or evidence in passage.text) and (title is None or title == passage.title)


def _with_text(documents: Sequence[Document], passages: Sequence[Passage]) -> set[str]:
    """Ids of documents that yielded at least one passage."""
    return {document.id for document in documents} & {passage.doc_id for passage in passages}


def _recipe_row(chosen: Recipe) -> dict[str, Any]:
    counts = dict.fromkeys(("folder", "documents", "passages", "questions", "digest"))
    return {"name": chosen.name, "state": "recipe", "source": chosen.source, "licence": chosen.licence} | counts


def _built_row(folder: Path) -> dict[str, Any]:
    keys = ("name", "source", "licence", "documents", "passages", "questions", "digest")
    try:
        manifest = asdict(read_manifest(folder))
    except CorpusError:
        return dict.fromkeys(keys) | {"name": folder.name, "state": "broken", "folder": str(folder)}
    return {key: manifest[key] for key in keys} | {"state": "built", "folder": str(folder)}


def _spread(passages: Sequence[Passage], count: int) -> Sequence[Passage]:
    """`count` passages at even steps through the corpus."""
    return passages[:: max(1, len(passages) // count)][:count]
