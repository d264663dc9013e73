"""A user's own folder: Markdown, text, HTML and PDF files, read into documents of one part a heading.

Markdown becomes HTML first, so that both are read one way. Files that cannot be read or hold no text
are left out with a warning. Questions come from `questions.jsonl` in the folder if there is one, else
from titles and headings. Looks into no hidden file or folder and follows no link to a folder.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, XMLParsedAsHTMLWarning
from bs4.element import NavigableString, Tag

from harness.errors import CorpusError
from harness.node.chunk import Document, Part
from harness.node.sources import Asked, Gold, Loaded, Slugs, Tick

QUESTIONS = "questions.jsonl"
_HEADING = "\x1e"
_TIGHT_BLOCKS = ("li", "tr", "br", "dt", "dd")
_LOOSE_BLOCKS = (
    *("p", "div", "section", "article", "main", "aside", "header", "footer", "form", "figure", "figcaption", "hr"),
    *("ul", "ol", "dl", "table", "blockquote", "pre"),
)
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_NOT_TEXT = ("script", "style", "noscript", "template", "svg", "nav", "head")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


class _UnreadableError(Exception):
    """Why a file is left out."""


def load_folder(folder: Path, *, limit: int | None, tick: Tick) -> Loaded:
    """At most `limit` files as documents, by path. Raises CorpusError if none yields text."""
    paths = _files(folder)
    slugs = Slugs()
    documents: dict[str, Document] = {}
    left_out: list[str] = []
    for path in paths[:limit]:
        name = path.relative_to(folder).as_posix()
        try:
            parts = _READ[path.suffix.lower()](path)
        except (OSError, _UnreadableError) as error:
            left_out.append(f"{name} left out: {getattr(error, 'strerror', None) or error}")
            continue
        documents[name] = Document(id=slugs.new(name), parts=parts)
        tick(len(documents))
    if not documents:
        raise CorpusError(f"{folder} has {len(left_out)} files and no text in any: {'; '.join(left_out[:3])}")
    asked = _given_questions(folder, documents) if (folder / QUESTIONS).is_file() else _made_questions(documents)
    return Loaded(documents=tuple(documents.values()), questions=tuple(asked), warnings=tuple(left_out))


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CorpusError(f"{folder} is not a folder: name a folder of {', '.join(_READ)} files")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _READ and path.is_file())
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not paths:
        raise CorpusError(f"{folder} holds no {', '.join(_READ)} file: put some in, or name another folder")
    return paths


def _read_markdown(path: Path) -> tuple[Part, ...]:
    from markdown_it import MarkdownIt

    text = _FRONT_MATTER.sub("", _utf8(path), count=1)
    return _parts(path, BeautifulSoup(MarkdownIt("commonmark").enable("table").render(text), "html.parser"))


def _read_html(path: Path) -> tuple[Part, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)  # XHTML is read as HTML on purpose
        soup = BeautifulSoup(path.read_bytes(), "html.parser")
    return _parts(path, soup)


def _read_text(path: Path) -> tuple[Part, ...]:
    return _filled([Part(_title_of(path), _utf8(path).strip())])


def _read_pdf(path: Path) -> tuple[Part, ...]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    # A damaged PDF breaks the reader in many places; all of these mean the file, not us.
    faults = (PyPdfError, DependencyError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it narrates what we say in one line
    try:
        reader = PdfReader(path)
        title = str((reader.metadata and reader.metadata.title) or "").strip() or _title_of(path)
        text = "\n\n".join(page.extract_text().strip() for page in reader.pages)
    except faults as error:
        raise _UnreadableError(f"not a readable PDF ({str(error) or type(error).__name__})") from error
    if not text.strip():
        raise _UnreadableError("no text in the PDF (scanned pages need OCR first)")
    return (Part(title, text.strip()),)


_READ: Mapping[str, Callable[[Path], tuple[Part, ...]]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": _read_text,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}


def _utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _UnreadableError("not UTF-8 text") from error


def _title_of(path: Path) -> str:
    return re.sub(r"[-_\s]+", " ", path.stem).strip() or path.name


def _filled(parts: Sequence[Part]) -> tuple[Part, ...]:
    kept = tuple(part for part in parts if part.text)
    if not kept:
        raise _UnreadableError("no text in it")
    return kept


def _parts(path: Path, soup: BeautifulSoup) -> tuple[Part, ...]:
    """One part a heading, titled `file title: heading`; what comes before any is titled by the file alone.

    The file's title is its <title>, else its first h1, else its name.
    """
    top = soup.title or soup.h1
    title = _line(top.get_text(" ")) if top else ""
    title = title or _title_of(path)
    found = [Part(title, "")]
    for block in _text_of(soup).split(f"{_HEADING}{_HEADING}"):
        heading, _, text = block.rpartition(_HEADING)
        full = title if heading in ("", title) else f"{title}: {heading}"
        found.append(Part(full, _tidy(text)))
    return _filled(found)


def _text_of(soup: BeautifulSoup) -> str:
    """Visible text, white space as a browser shows it; each heading as two marks, the heading, one mark."""
    for tag in soup.find_all(_NOT_TEXT):
        tag.decompose()
    for string in list(soup.find_all(string=True)):
        if type(string) is not NavigableString:  # comments, doctypes, CDATA
            string.extract()
        elif string.find_parent("pre") is None:
            string.replace_with(re.sub(r"\s+", " ", string))
    for tag in soup.find_all((*_HEADINGS, *_TIGHT_BLOCKS, *_LOOSE_BLOCKS)):
        _set_apart(tag)
    return str(soup.get_text())


def _set_apart(tag: Tag) -> None:
    if tag.name in _HEADINGS:
        tag.replace_with(f"{_HEADING}{_HEADING}{_line(tag.get_text(' '))}{_HEADING}")
    elif tag.name in _TIGHT_BLOCKS:
        tag.insert_before("\n")
    else:
        tag.insert_before("\n\n")
        tag.insert_after("\n\n")


def _line(text: str) -> str:
    return " ".join(text.split())


def _tidy(text: str) -> str:
    """White space at line ends, a lone space at line starts (between table cells) and blank lines in a row go."""
    text = re.sub(r"[ \t]+(?=\n)|(?<=\n) (?! )", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _made_questions(documents: Mapping[str, Document]) -> Iterator[Asked]:
    """One for each heading that its file has once; one for the whole of a file without headings."""
    for document in documents.values():
        title = document.parts[0].title.split(": ", maxsplit=1)[0] if len(document.parts) > 1 else None
        times = Counter(part.title for part in document.parts)
        for number, part in enumerate(document.parts):
            if times[part.title] == 1:
                yield Asked(
                    id=f"q-{document.id}-{number}",
                    question=_about(title or part.title, part.title),
                    gold=(Gold(document.id, title=part.title),),
                )


def _about(title: str, part_title: str) -> str:
    heading = part_title.removeprefix(f"{title}: ")
    return f"What is {title} about?" if heading == title else f"What does {title} say about {heading}?"


def _given_questions(folder: Path, documents: Mapping[str, Document]) -> list[Asked]:
    path = folder / QUESTIONS
    lines = enumerate(_questions_text(path).splitlines(), 1)
    return [_given_question(f"{path} line {number}", number, line, documents) for number, line in lines if line.strip()]


def _questions_text(path: Path) -> str:
    try:
        return _utf8(path)
    except (OSError, _UnreadableError) as error:
        raise CorpusError(f"cannot read {path} ({error}): save it as UTF-8") from error


def _given_question(where: str, number: int, line: str, documents: Mapping[str, Document]) -> Asked:
    try:
        row = json.loads(line)
        text, gold = str(row["question"]).strip(), row.get("gold") or []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f'{where} is no question ({error!r}): write {{"question": "…"}}') from error
    names = [gold] if isinstance(gold, str) else list(gold)
    return Asked(
        id=str(row.get("id") or f"q{number}"),
        question=text,
        reference=row.get("reference"),
        gold=tuple(Gold(_named(where, name, documents).id) for name in names),
    )


def _named(where: str, name: Any, documents: Mapping[str, Document]) -> Document:
    if name in documents:
        return documents[name]
    near = get_close_matches(str(name), documents, n=1)
    hint = f"did you mean {near[0]}?" if near else "give its path within the folder"
    raise CorpusError(f"{where} names the gold file {name}, which is not in the corpus: {hint}")
