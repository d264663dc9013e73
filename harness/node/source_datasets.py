"""Documents and questions out of any data set the `datasets` library reads: hub ids and local files.

A recipe has a [documents] and a [questions] table, and for retrieval benchmarks a [judgements] table
that ties the two; each names a `dataset` (with `config`, `split`, `revision`) or `files`, and its
columns. Documents are known to questions by their `key` column. Runs no code out of a data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from harness.errors import CorpusError
from harness.node.chunk import Document, Part
from harness.node.columns import as_texts, check_columns, texts_at, value_at
from harness.node.models import hub_trouble
from harness.node.sources import Asked, Gold, Loaded, Slugs, Tick

_READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv"}
_NEEDED = {"documents": ("text",), "questions": ("question",), "judgements": ("question", "document")}
_OPTIONAL = {
    "documents": ("key", "title"),
    "questions": ("id", "reference", "gold", "evidence"),
    "judgements": ("score",),
}
_USE_A_FILE = 'download it elsewhere, and in a copy of the recipe replace `dataset` by `files = ["…"]`'


def load_datasets(settings: Mapping[str, Any], *, limit: int | None, tick: Tick) -> Loaded:
    """Documents (at most `limit`) and those questions whose gold documents are all among them. Raises CorpusError."""
    keys, documents = _documents(_Table(settings, "documents"), limit, tick)
    judged = _judgements(settings)
    questions, astray = [], 0
    for number, (row, columns) in enumerate(_Table(settings, "questions").rows()):
        asked = _question(row, columns, number, keys, judged)
        astray += asked is None
        questions += [asked] if asked else []
    warnings = (f"{astray} questions left out: nothing ties them to documents of this corpus",) if astray else ()
    return Loaded(documents=tuple(documents), questions=tuple(_distinct(questions)), warnings=warnings)


class _Table:
    """One table of a recipe: where rows come from and which columns matter."""

    def __init__(self, settings: Mapping[str, Any], name: str) -> None:
        self.where = f"[{name}] of recipe {settings.get('name', '?')}"
        table = settings.get(name)
        if not isinstance(table, Mapping):
            raise CorpusError(f"recipe {settings.get('name', '?')} has no [{name}]: see corpora/README.md")
        self._table = table
        self._base = Path(settings.get("folder", "."))
        self.columns: dict[str, str] = dict(table.get("columns", {}))
        allowed = (*_NEEDED[name], *_OPTIONAL[name])
        wrong = [column for column in self.columns if column not in allowed]
        lacking = [column for column in _NEEDED[name] if column not in self.columns]
        if wrong or lacking:
            fault = f"does not know '{wrong[0]}'" if wrong else f"lacks '{lacking[0]}'"
            raise CorpusError(f"columns of {self.where}: the map {fault}; it may have {', '.join(allowed)}")

    def rows(self) -> Iterator[tuple[dict[str, Any], Mapping[str, str]]]:
        """Rows with the column map, once the first row has been seen to fit it."""
        rows = iter(_open(self._table, self._base, self.where))
        while True:
            try:
                row = next(rows, None)
            except _load_faults() as error:
                raise _unreadable(self.where, error) from error
            if row is None:
                return
            if self.columns:
                check_columns(row, self.columns.values(), self.where)
            yield row, self.columns


def _documents(table: _Table, limit: int | None, tick: Tick) -> tuple[dict[str, str], list[Document]]:
    """Key → document id, and documents; of several with one key the first counts."""
    keys: dict[str, str] = {}
    slugs = Slugs()
    documents: list[Document] = []
    for key, title, text in islice(_fresh(_texts(table)), limit):
        keys[key] = slugs.new(title or key)
        documents.append(Document(id=keys[key], parts=(Part(title, text),)))
        tick(len(documents))
    if not documents:
        raise CorpusError(f"{table.where} yields no document: check its source and columns")
    return keys, documents


def _fresh(rows: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for key, title, text in rows:
        if key not in seen and text.strip():
            seen.add(key)
            yield key, title, text


def _texts(table: _Table) -> Iterator[tuple[str, str, str]]:
    """(key, title, text) of every document; a row of parallel lists (HotpotQA's `context`) holds several."""
    for row, columns in table.rows():
        text, title, key = (
            value_at(row, columns[name]) if name in columns else None for name in ("text", "title", "key")
        )
        if isinstance(title, list):
            several = zip_longest(as_texts(text), as_texts(title), as_texts(key), fillvalue="")
        else:
            several = zip_longest([" ".join(as_texts(text))], as_texts(title)[:1], as_texts(key)[:1], fillvalue="")
        for body, heading, name in several:
            yield name or heading or body, heading, body


def _judgements(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Question id → keys of its relevant documents; empty without a [judgements] table."""
    judged: dict[str, list[str]] = {}
    if "judgements" not in settings:
        return judged
    for row, columns in _Table(settings, "judgements").rows():
        if "score" not in columns or float(value_at(row, columns["score"]) or 0) > 0:
            key = str(value_at(row, columns["document"]))
            judged.setdefault(str(value_at(row, columns["question"])), []).append(key)
    return judged


def _question(
    row: Mapping[str, Any],
    columns: Mapping[str, str],
    number: int,
    keys: Mapping[str, str],
    judged: Mapping[str, Sequence[str]],
) -> Asked | None:
    """One question; None if a gold document is not in the corpus, or, where judgements exist, it has none."""
    name = "".join(texts_at(row, columns.get("id"))[:1]) or f"q{number}"
    text = " ".join(texts_at(row, columns["question"])).strip()
    wanted = judged.get(name, ()) if judged else texts_at(row, columns.get("gold"))
    evidence = texts_at(row, columns.get("evidence"))
    if not text or (judged and not wanted) or any(key not in keys for key in wanted):
        return None
    # One evidence for each gold document, or several texts that are evidence in any of them.
    pairs = zip(wanted, evidence, strict=True) if len(evidence) == len(wanted) else _crossed(wanted, evidence)
    gold = tuple(dict.fromkeys(Gold(keys[key], proof) for key, proof in pairs))
    reference = next(iter(texts_at(row, columns.get("reference"))), None)
    return Asked(id=name, question=text, reference=reference or None, gold=gold)


def _crossed(wanted: Sequence[str], evidence: Sequence[str]) -> list[tuple[str, str | None]]:
    return [(key, proof) for key in wanted for proof in (evidence or (None,))]


def _distinct(questions: Sequence[Asked]) -> list[Asked]:
    """Each id once, the first counts: some sets repeat rows."""
    return list({asked.id: asked for asked in reversed(questions)}.values())[::-1]


def _open(table: Mapping[str, Any], base: Path, where: str) -> Any:
    """An iterable of rows as dicts. Hub sets are downloaded and cached by `datasets`; files are read as they are."""
    # Imported here: it takes half a second, and other kinds of source do not need it.
    import datasets

    files, hub = table.get("files"), table.get("dataset")
    if (files is None) == (hub is None):
        raise CorpusError(f"{where} must name either `dataset` (a hub id) or `files`")
    try:
        if hub is not None:
            _check_hub(str(hub))
            options = {"name": table.get("config"), "revision": table.get("revision")}
            return datasets.load_dataset(hub, split=table.get("split", "train"), **options)
        paths = [_file(name, base, where) for name in as_texts(files)]
        reader, options = _reader(paths[0], where)
        return datasets.load_dataset(reader, data_files=paths, split="train", streaming=True, **options)
    except _load_faults() as error:
        raise _unreadable(str(hub or files), error) from error


def _file(name: str, base: Path, where: str) -> str:
    if name.startswith("hf://"):
        _check_hub(name)
        return name
    path = base / Path(name).expanduser()
    if not path.is_file():
        raise CorpusError(f"{where} names the file {path}, which does not exist: correct `files`")
    if path.stat().st_size == 0:
        raise CorpusError(f"{where} names the file {path}, which is empty: correct `files`")
    return str(path)


def _reader(path: str, where: str) -> tuple[str, dict[str, Any]]:
    suffixes = [suffix for suffix in Path(path).suffixes if suffix in _READERS]
    if not suffixes:
        raise CorpusError(f"{where} names {path}: give a file of {', '.join(_READERS)} (or packed as .gz)")
    return _READERS[suffixes[-1]], {"sep": "\t"} if suffixes[-1] == ".tsv" else {}


def _check_hub(name: str) -> None:
    """Fail in seconds where the hub cannot be reached: the library itself retries for half a minute."""
    reason = hub_trouble()
    if reason is not None:
        raise CorpusError(f"the hub of {name} cannot be reached ({reason}): {_USE_A_FILE}")


def _load_faults() -> tuple[type[Exception], ...]:
    """What `datasets` raises for sets that are absent, gated, unreachable, script-only, or not of their format."""
    import pyarrow as pa
    from datasets.exceptions import DatasetsError

    return (OSError, ValueError, RuntimeError, DatasetsError, pa.ArrowException)


def _unreadable(what: str, error: Exception) -> CorpusError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return CorpusError(f"cannot load {what} ({reason}): check the name, config, split and revision, or {_USE_A_FILE}")
