"""Documents cut into passages by tokens: a size, an overlap, and cuts where a reader would make them.

Every passage is an exact slice of its document, trimmed of white space. Knows a tokenizer and its
offsets; does not know where documents come from or what becomes of passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from harness.errors import CorpusError, ModelMissingError
from harness.node.corpus import Passage

LEAST_CHUNK_TOKENS = 16
"""Below this a passage holds no thought, and one rare character may need more tokens."""

_INSIDE_WORD, _WORD, _SENTENCE = range(3)
_SENTENCE_END = re.compile(r"""(?:[.!?…]["'”’»)\]]*\s+|[。！？]["”’」』]?\s*|\n\s*\n\s*)\Z""")
_LOOK_BACK = 16


class Part(NamedTuple):
    """A stretch of a document under one title; no passage crosses from one part into the next."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """Something to cut: an article (one part), or a file (a part for each heading)."""

    id: str
    parts: tuple[Part, ...]


def load_tokenizer(name: str) -> Tokenizer:
    """The fast tokenizer of a model folder or hub id, without truncation or padding. Raises ModelMissingError."""
    # sentence-transformers models of several modules keep theirs one level down.
    files = [Path(name) / "tokenizer.json", Path(name) / "0_Transformer" / "tokenizer.json"]
    found = next((file for file in files if file.is_file()), None)
    tokenizer = _from_transformers(name) if found is None else Tokenizer.from_file(str(found))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def cut(document: Document, tokenizer: Tokenizer, *, chunk_tokens: int, overlap_tokens: int) -> list[Passage]:
    """Passages of a document, ids `<doc_id>#<n>` from 0 on; empty if it holds no text.

    A passage has at most `chunk_tokens` tokens, counted on its own text without special tokens, and
    begins with at most `overlap_tokens` tokens of the one before it (a word less where a word would be
    split). It ends at a sentence end, else a word end, if its last fifth has one.
    """
    check_sizes(chunk_tokens, overlap_tokens)
    passages: list[Passage] = []
    for title, text in document.parts:
        for piece, tokens in cut_text(text, tokenizer, chunk_tokens=chunk_tokens, overlap_tokens=overlap_tokens):
            number = len(passages)
            passages.append(
                Passage(id=f"{document.id}#{number}", doc_id=document.id, title=title, text=piece, tokens=tokens)
            )
    return passages


def check_sizes(chunk_tokens: int, overlap_tokens: int) -> None:
    """Raises CorpusError for sizes that cannot be cut to."""
    if chunk_tokens < LEAST_CHUNK_TOKENS:
        raise CorpusError(f"a chunk of {chunk_tokens} tokens is too small: give {LEAST_CHUNK_TOKENS} or more")
    if not 0 <= overlap_tokens <= chunk_tokens // 2:
        raise CorpusError(
            f"an overlap of {overlap_tokens} tokens does not fit chunks of {chunk_tokens}: "
            f"give 0 to {chunk_tokens // 2} (half a chunk)"
        )


def cut_text(text: str, tokenizer: Tokenizer, *, chunk_tokens: int, overlap_tokens: int) -> Iterator[tuple[str, int]]:
    """Slices of `text` in order, each with its own length in tokens; see `cut` for the rules."""
    text = text.strip()
    seams = _Seams(text, tokenizer)
    start = 0
    while start < seams.last:
        end, tokens = _end_and_tokens(seams, tokenizer, start, chunk_tokens, overlap_tokens)
        yield seams.slice(start, end), tokens
        start = end if end == seams.last else seams.overlapping_start(start, end, overlap_tokens)


class _Seams:
    """Places where a text may be cut, by token index: those where one token's characters end before the next's.

    Several tokens may share a character (byte-level tokenizers on rare signs); there is no seam between them.
    """

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        self._text = text
        self._starts = [start for start, _ in offsets]
        self._ends = [end for _, end in offsets]
        self.last = len(offsets)

    def slice(self, start: int, end: int) -> str:
        """The text between two seams, trimmed."""
        return self._text[self._character(start) : self._character(end)].strip()

    def end(self, start: int, *, tokens: int, least: int) -> int:
        """The best seam that leaves at most `tokens` tokens and more than `least`; the next one at all if none does."""
        stop = start + tokens
        if stop >= self.last:
            return self.last
        fifth = max(start + least + 1, stop - tokens // 5)
        good = [seam for seam in range(fifth, stop + 1) if self._is_seam(seam)]
        if good:
            return max(good, key=lambda seam: (self._kind(seam), seam))
        earlier = (seam for seam in range(stop, start, -1) if self._is_seam(seam))
        later = (seam for seam in range(stop + 1, self.last) if self._is_seam(seam))
        return next(earlier, None) or next(later, self.last)

    def overlapping_start(self, start: int, end: int, overlap: int) -> int:
        """Where the next passage begins: `overlap` tokens before `end`, or at the next word if within half of that."""
        first = max(start + 1, end - overlap)
        seams = [seam for seam in range(first, end) if self._is_seam(seam)]
        words = [seam for seam in seams if seam <= end - overlap // 2 and self._kind(seam) != _INSIDE_WORD]
        return next(iter(words or seams), end)

    def _character(self, seam: int) -> int:
        if seam == 0:
            return 0
        return self._starts[seam] if seam < self.last else len(self._text)

    def _is_seam(self, seam: int) -> bool:
        return self._starts[seam] >= self._ends[seam - 1] and self._starts[seam] > self._starts[seam - 1]

    def _kind(self, seam: int) -> int:
        place = self._character(seam)
        while self._text[place].isspace() and place < len(self._text) - 1:  # some tokens begin with their space
            place += 1
        if _SENTENCE_END.search(self._text, max(0, place - _LOOK_BACK), place):
            return _SENTENCE
        return _WORD if self._text[place - 1].isspace() else _INSIDE_WORD


def _end_and_tokens(
    seams: _Seams, tokenizer: Tokenizer, start: int, chunk_tokens: int, overlap_tokens: int
) -> tuple[int, int]:
    """Where the passage from `start` ends, and its tokens. A slice can be longer alone than in its text: then less."""
    room = chunk_tokens
    while True:
        end = seams.end(start, tokens=room, least=min(overlap_tokens, room - 1))
        tokens = len(tokenizer.encode(seams.slice(start, end), add_special_tokens=False).ids)
        if tokens <= chunk_tokens or room == 1:
            return end, tokens
        room = max(1, min(room, end - start) - (tokens - chunk_tokens))


def _from_transformers(name: str) -> Tokenizer:
    # Imported here: it takes seconds, and the default tokenizer needs only its file.
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelMissingError(f"no tokenizer at {name} ({reason}): give a model folder or a hub id") from error
    backend = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelMissingError(f"{name} has no fast tokenizer, which tells offsets: name another embedder")
    return backend
