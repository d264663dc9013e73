"""Where documents and questions come from: the words all sources share, and the choice between them.

A recipe (recipes.py) names a kind: `wiki-leads` (source_wiki), `datasets` (source_datasets) or
`folder` (source_folder). Each loads into the same `Loaded`; gold is said in documents here, and
becomes passages once they are cut (build.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.errors import CorpusError
from harness.node.chunk import Document

KINDS = ("wiki-leads", "datasets", "folder")
_LONGEST_SLUG = 80

Tick = Callable[[int], None]
"""Told the number of documents each time some more are loaded."""


class Gold(NamedTuple):
    """Where an answer is: a document, if known only its passages that hold a text or bear a title."""

    doc_id: str
    evidence: str | None = None
    title: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question before its document is cut."""

    id: str
    question: str
    reference: str | None = None
    gold: tuple[Gold, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a source yields; `warnings` are one line each, about what was left out and why."""

    documents: tuple[Document, ...]
    questions: tuple[Asked, ...]
    warnings: tuple[str, ...] = ()


@dataclass
class Slugs:
    """Ids out of titles or paths: readable, unique, and the same again for the same sequence."""

    taken: set[str] = field(default_factory=set)

    def new(self, name: str) -> str:
        """`On Liberty` → `on-liberty`; the second of that name → `on-liberty-2`."""
        stem = slug(name)
        taken, number = stem, 1
        while taken in self.taken:
            number += 1
            taken = f"{stem}-{number}"
        self.taken.add(taken)
        return taken


def slug(name: str) -> str:
    """Lower-case letters and digits of any script, joined by hyphens, at most 80 characters; `untitled` if none."""
    letters = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\W_]+", "-", letters)[:_LONGEST_SLUG].strip("-") or "untitled"


def load_source(settings: Mapping[str, Any], *, limit: int | None, tick: Tick) -> Loaded:
    """Load what a recipe's settings describe, at most `limit` documents. Raises CorpusError."""
    # Imported here: a folder of notes needs no `datasets`, and a data set no PDF reader.
    kind = settings.get("kind")
    if kind == "wiki-leads":
        from harness.node.source_wiki import load_wiki_leads

        return load_wiki_leads(limit=limit, tick=tick)
    if kind == "datasets":
        from harness.node.source_datasets import load_datasets

        return load_datasets(settings, limit=limit, tick=tick)
    if kind == "folder":
        from harness.node.source_folder import load_folder

        return load_folder(settings["folder"], limit=limit, tick=tick)
    raise CorpusError(f"recipe {settings.get('name')} is of kind '{kind}': use one of {', '.join(KINDS)}")
