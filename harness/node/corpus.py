"""A built corpus: passages, questions and one digest of their content, as a folder of three files.

    manifest.json      what it is, how it was cut, and the digest
    passages.parquet   id, doc_id, title, text, tokens
    questions.parquet  id, question, reference, gold_ids, doc_id

An index lives beside them (harness.node.index) and names the digest it was built for. Knows nothing
of where documents come from (sources.py), how they are cut (chunk.py), or of embeddings.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import CorpusError, FolderError
from harness.trial import make_folder, read_json, write_json, written_whole

MANIFEST, PASSAGES, QUESTIONS = "manifest.json", "passages.parquet", "questions.parquet"
_DIGEST_KEY = b"ragload.digest"
_PASSAGE_COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("tokens", pa.int32()),
    ]
)
_QUESTION_COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("reference", pa.string()),
        ("gold_ids", pa.list_(pa.string())),
        ("doc_id", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A piece of one document: what is embedded, found and put into prompts.

    text    an exact slice of the document, without its title
    tokens  length of `text` in tokens of the manifest's tokenizer, special tokens left out
    """

    id: str
    doc_id: str
    title: str
    text: str
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Something to ask, with what is known of the right answer.

    reference  the expected answer; None if the source has none
    gold_ids   ids of passages that hold the answer; empty if the source does not say
    doc_id     the one document it was made from; None if several or unknown
    """

    id: str
    question: str
    reference: str | None
    gold_ids: tuple[str, ...]
    doc_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a corpus is and how it was made; `digest` names its content, the rest describes it."""

    name: str
    source: str
    licence: str | None
    digest: str
    documents: int
    passages: int
    questions: int
    chunk_tokens: int
    overlap_tokens: int
    tokenizer: str


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A manifest with its passages and questions, in the order of the files (an index counts on it)."""

    manifest: Manifest
    passages: Sequence[Passage]
    questions: Sequence[Question]


def digest_of(passages: Iterable[Passage], questions: Iterable[Question]) -> str:
    """`sha256:` and 64 hex digits over what is found and asked; order and token counts do not matter."""
    rows = [_row_digest("passage", p.id, p.doc_id, p.title, p.text) for p in passages]
    rows += [_row_digest("question", q.id, q.question, q.reference, q.doc_id, *sorted(q.gold_ids)) for q in questions]
    return "sha256:" + hashlib.sha256(b"".join(sorted(rows))).hexdigest()


def write_corpus(
    folder: Path,
    *,
    name: str,
    source: str,
    licence: str | None,
    passages: Sequence[Passage],
    questions: Sequence[Question],
    documents: int,
    chunk_tokens: int,
    overlap_tokens: int,
    tokenizer: str,
) -> Corpus:
    """Write a corpus into `folder`, the manifest last, and return it.

    Nothing is written if the folder already holds the very same corpus. With the same content but
    another description, rows keep the order they have on disk, so that an index beside them stays true.
    Raises CorpusError if ids repeat, gold ids point nowhere, there is no passage, or the folder holds
    something else; FolderError if it cannot be written.
    """
    _check_rows(passages, questions)
    manifest = Manifest(
        name=name,
        source=source,
        licence=licence,
        digest=digest_of(passages, questions),
        documents=documents,
        passages=len(passages),
        questions=len(questions),
        chunk_tokens=chunk_tokens,
        overlap_tokens=overlap_tokens,
        tokenizer=tokenizer,
    )
    before = _corpus_there(folder)
    if before is not None and before.manifest == manifest:
        return before
    if before is not None and before.manifest.digest == manifest.digest:
        passages = _in_order_of(before.passages, passages)
        questions = _in_order_of(before.questions, questions)
    make_folder(folder)
    _write_table(folder / PASSAGES, _PASSAGE_COLUMNS, passages, manifest.digest)
    _write_table(folder / QUESTIONS, _QUESTION_COLUMNS, questions, manifest.digest)
    write_json(folder / MANIFEST, asdict(manifest))
    return Corpus(manifest=manifest, passages=tuple(passages), questions=tuple(questions))


def load_corpus(folder: Path, *, verify: bool = False) -> Corpus:
    """Read a corpus. The three files must belong together; `verify` also computes the digest anew.

    Raises CorpusError for a missing folder, a folder that is no corpus, or files that disagree.
    """
    manifest = read_manifest(folder)
    corpus = Corpus(
        manifest=manifest,
        passages=tuple(Passage(**row) for row in _read_rows(folder / PASSAGES, _PASSAGE_COLUMNS, manifest)),
        questions=tuple(
            Question(**row | {"gold_ids": tuple(row["gold_ids"])})
            for row in _read_rows(folder / QUESTIONS, _QUESTION_COLUMNS, manifest)
        ),
    )
    found = (len(corpus.passages), len(corpus.questions))
    if found != (manifest.passages, manifest.questions):
        raise CorpusError(
            f"{folder} holds {found[0]} passages and {found[1]} questions, its manifest says {manifest.passages} and "
            f"{manifest.questions}: build the corpus again"
        )
    if verify and digest_of(corpus.passages, corpus.questions) != manifest.digest:
        raise CorpusError(f"{folder} is not what its manifest's digest says: build the corpus again")
    return corpus


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, without reading the passages. Raises CorpusError."""
    if not folder.is_dir():
        raise CorpusError(f"corpus folder {folder} does not exist: build it with `ragload corpus build NAME`")
    if not (folder / MANIFEST).is_file():
        raise CorpusError(f"{folder} is not a corpus (no {MANIFEST}): build one with `ragload corpus build NAME`")
    try:
        row = read_json(folder / MANIFEST)
    except FolderError as error:
        raise CorpusError(str(error)) from error
    missing = [field.name for field in fields(Manifest) if field.name not in row]
    if missing:
        raise CorpusError(f"{folder / MANIFEST} lacks {', '.join(missing)}: build the corpus again")
    return Manifest(**{field.name: row[field.name] for field in fields(Manifest)})


def _row_digest(*values: str | None) -> bytes:
    """Lengths go in front, so that no two different rows read the same; None differs from empty."""
    state = hashlib.sha256()
    for value in values:
        content = b"" if value is None else value.encode("utf-8", "surrogatepass")
        state.update(f"{-1 if value is None else len(content)}:".encode() + content)
    return state.digest()


def _check_rows(passages: Sequence[Passage], questions: Sequence[Question]) -> None:
    if not passages:
        raise CorpusError("no document yields a passage: give a source that holds text")
    _check_unique("passage", [passage.id for passage in passages])
    _check_unique("question", [question.id for question in questions])
    known = {passage.id for passage in passages}
    for question in questions:
        astray = [gold for gold in question.gold_ids if gold not in known]
        if astray:
            raise CorpusError(f"question {question.id} names the gold passage {astray[0]}, which is not in the corpus")


def _check_unique(what: str, ids: Sequence[str]) -> None:
    if len(set(ids)) != len(ids):
        worst, times = Counter(ids).most_common(1)[0]
        raise CorpusError(f"{times} {what}s share the id {worst}: give every {what} an id of its own")


def _corpus_there(folder: Path) -> Corpus | None:
    """The corpus that `folder` already holds; None if there is none yet or a broken one. Refuses foreign folders."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise CorpusError(f"{folder} is a file: name a folder for the corpus")
    ours = any((folder / name).exists() for name in (PASSAGES, QUESTIONS))
    if not ours and any(folder.iterdir()):
        raise CorpusError(f"{folder} holds files that are no corpus: name a new or empty folder")
    try:
        return load_corpus(folder, verify=True)
    except CorpusError:
        return None


def _in_order_of(before: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
    by_id = {row.id: row for row in rows}
    return [by_id[row.id] for row in before]


def _write_table(path: Path, schema: pa.Schema, rows: Sequence[Passage] | Sequence[Question], digest: str) -> None:
    """Write rows as Parquet, whole or not at all; the digest inside ties the file to its manifest."""
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema.with_metadata({_DIGEST_KEY: digest.encode()}))
    with written_whole(path) as file:
        pq.write_table(table, file, compression="zstd")


def _read_rows(path: Path, schema: pa.Schema, manifest: Manifest) -> list[dict[str, Any]]:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(f"cannot read {path} ({str(error).splitlines()[0]}): build the corpus again") from error
    absent = [name for name in schema.names if name not in table.column_names]
    if absent:
        raise CorpusError(f"{path} lacks the columns {', '.join(absent)}: build the corpus again")
    if (table.schema.metadata or {}).get(_DIGEST_KEY) != manifest.digest.encode():
        raise CorpusError(f"{path} and its {MANIFEST} come from different builds: build the corpus again")
    rows: list[dict[str, Any]] = table.select(schema.names).to_pylist()
    return rows
