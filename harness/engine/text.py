"""The simulated model's answers: sentences of the prompt itself, so that quality can be measured too.

The first sentence is the one that shares most words with the question; further ones follow in an
order drawn from the seed and the prompt, again and again until there are enough tokens. The same seed
and prompt always give the same answer. An answer ends by itself at the end of a sentence, once
`min_tokens` are out, as a model does with EOS. Knows nothing the prompt does not say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.engine.tokens import Tokens

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_MARKER = re.compile(r"^(?:\[\d+\]|\d+[.)]|[-*#]+)\s*")
_LONGEST_WORDS = 60
_FALLBACK = "There is nothing to answer from."
_COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be by did do does for from had has have how in is it of on or question answer that the "
        "their this to was were what when where which who whom whose why will with"
    )
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is asked of an answer; lengths in tokens, an EOS included in `max_tokens`."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Token ids and what each adds to the text ("" adds nothing); how it ends, in vLLM's words."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    finish_reason: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


def answer(tokens: Tokens, prompt: str, wanted: Wanted) -> Answer:
    """The answer to `prompt`, whose last paragraph is the question; `wanted.max_tokens` ≥ 1."""
    ids: list[int] = []
    ends_by_itself = not wanted.ignore_eos and tokens.eos_id is not None
    for number, sentence in enumerate(_sentences_for(prompt, wanted.seed)):
        ids += tokens.encode(f" {sentence}" if number else sentence)
        if len(ids) >= wanted.max_tokens or (ends_by_itself and len(ids) >= wanted.min_tokens):
            break
    if len(ids) < wanted.max_tokens and tokens.eos_id is not None:
        ids.append(tokens.eos_id)
        return _until_stop(ids, tokens.token_texts(ids), "stop", wanted)
    ids = ids[: wanted.max_tokens]
    return _until_stop(ids, tokens.token_texts(ids), "length", wanted)


def _until_stop(ids: list[int], texts: list[str], finish_reason: str, wanted: Wanted) -> Answer:
    """Cut at the first stop string that is completed after `min_tokens`; the string itself is left out."""
    text, length = "", 0
    for number, piece in enumerate(texts if wanted.stop else (), start=1):
        text += piece
        if number <= wanted.min_tokens:
            length = len(text)
            continue
        found = _first(text, wanted.stop, length)
        if found is not None:
            return _cut(ids[:number], texts[:number], *found)
        length = len(text)
    return Answer(ids=tuple(ids), texts=tuple(texts), finish_reason=finish_reason)


def _first(text: str, stop: Sequence[str], seen: int) -> tuple[int, str] | None:
    """Where a stop string begins that was not yet complete in the first `seen` characters."""
    found = [(at, word) for word in stop if (at := text.find(word, max(0, seen - len(word) + 1))) >= 0]
    return min(found) if found else None


def _cut(ids: list[int], texts: list[str], at: int, word: str) -> Answer:
    kept: list[str] = []
    for piece in texts:
        kept.append(piece[: max(0, at)])
        at -= len(piece)
    return Answer(ids=tuple(ids), texts=tuple(kept), finish_reason="stop", stop_reason=word)


def _sentences_for(prompt: str, seed: int) -> Iterator[str]:
    """Endless: the sentence nearest to the question, then all others in a drawn order, over and over."""
    body, question = _split(prompt)
    sentences = _sentences(body) or _sentences(question) or [_FALLBACK]
    best = _nearest(question, sentences)
    yield sentences[best]
    order = [number for number in range(len(sentences)) if number != best] or [best]
    drawn = random.Random(f"{seed}:{prompt}")
    while True:
        drawn.shuffle(order)
        for number in order:
            yield sentences[number]


def _split(prompt: str) -> tuple[str, str]:
    """What may hold the answer, and the question: the prompt's last paragraph."""
    body, _, question = prompt.rstrip().rpartition("\n\n")
    return body, question


def _sentences(text: str) -> list[str]:
    """Sentences of at least two words; a text without stops is cut into runs of words."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(text):
        words = _MARKER.sub("", piece.strip()).split()
        if len(words) <= _LONGEST_WORDS:
            runs = [words]
        else:
            runs = [words[start : start + _LONGEST_WORDS // 2] for start in range(0, len(words), _LONGEST_WORDS // 2)]
        found += [" ".join(run) for run in runs if len(run) > 1]
    return found


def _nearest(question: str, sentences: Sequence[str]) -> int:
    """Index of the sentence that shares most words with the question, common words aside; the first of equals."""
    asked = _words(question)
    shared = [len(asked & _words(sentence)) for sentence in sentences]
    return shared.index(max(shared))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower())) - _COMMON
