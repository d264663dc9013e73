from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.errors import CorpusError, ModelMissingError
from harness.node.chunk import LEAST_CHUNK_TOKENS, Document, Part, cut, cut_text, load_tokenizer
from harness.node.models import embedder_path

MINILM = load_tokenizer(embedder_path(None))
SENTENCES = "The river is long. It flows to the sea. Boats go up and down all day. Nobody counts them. "
texts = st.lists(
    st.one_of(
        st.sampled_from(
            ["river", "long.", "Boats,", "a", "\n\n", "unbelievably-hyphenated-thing", "漢字。", "🙂", "naïve"]
        ),
        st.text(max_size=20),
    ),
    max_size=150,
).map(" ".join)
sizes = st.integers(LEAST_CHUNK_TOKENS, 60).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size // 2)))


def of_bytes() -> Tokenizer:
    """A tokenizer with one token a byte: a rare character has several tokens and no seam inside."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


BYTES = of_bytes()
tokenizers = st.sampled_from([MINILM, BYTES])


def length(text: str, tokenizer: Tokenizer = MINILM) -> int:
    """Tokens of a text on its own."""
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def pieces(text: str, tokenizer: Tokenizer, size: int, overlap: int) -> list[str]:
    return [piece for piece, _ in cut_text(text, tokenizer, chunk_tokens=size, overlap_tokens=overlap)]


def places(text: str, parts: list[str]) -> list[tuple[int, int]]:
    """Where each piece lies in the text; none may begin before the one in front of it."""
    found: list[tuple[int, int]] = []
    start = -1
    for part in parts:
        start = text.index(part, start + 1)
        found.append((start, start + len(part)))
    return found


@settings(deadline=None, max_examples=150)
@given(text=texts, size=sizes, tokenizer=tokenizers)
def test_no_piece_is_longer_than_asked(text: str, size: tuple[int, int], tokenizer: Tokenizer) -> None:
    """Every piece, tokenized on its own, has the stated length, and that is at most the size asked for."""
    cuts = list(cut_text(text, tokenizer, chunk_tokens=size[0], overlap_tokens=size[1]))

    assert [tokens for _, tokens in cuts] == [length(piece, tokenizer) for piece, _ in cuts]
    assert [tokens for _, tokens in cuts if tokens > size[0]] == []


@settings(deadline=None, max_examples=150)
@given(text=texts, size=sizes, tokenizer=tokenizers)
def test_without_overlap_nothing_is_lost_or_said_twice(text: str, size: tuple[int, int], tokenizer: Tokenizer) -> None:
    """Pieces without overlap, joined, are the text but for white space."""
    joined = "".join(pieces(text, tokenizer, size[0], 0))

    assert re.sub(r"\s", "", joined) == (re.sub(r"\s", "", text) if length(text.strip(), tokenizer) else "")


@settings(deadline=None, max_examples=150)
@given(words=st.lists(st.sampled_from(["river", "boat", "sea", "long", "day."]), min_size=1, max_size=300), size=sizes)
def test_neighbours_share_exactly_the_overlap(words: list[str], size: tuple[int, int]) -> None:
    """Neighbours have the asked overlap in common, one token less where it would begin at a word's full stop."""
    text = " ".join(words)
    whole = MINILM.encode(text, add_special_tokens=False).ids
    cuts = [MINILM.encode(piece, add_special_tokens=False).ids for piece in pieces(text, MINILM, *size)]
    shared = sum(map(len, cuts)) - len(whole)

    assert (len(cuts) - 1) * max(0, size[1] - 1) <= shared <= (len(cuts) - 1) * size[1]


@settings(deadline=None, max_examples=100)
@given(text=texts, size=sizes, tokenizer=tokenizers)
def test_pieces_are_slices_that_leave_no_gap(text: str, size: tuple[int, int], tokenizer: Tokenizer) -> None:
    """Each piece is found in the text as it is, in order."""
    found = places(text, pieces(text, tokenizer, *size))

    assert found == sorted(found)


def test_a_piece_ends_at_a_sentence_end() -> None:
    """With a sentence end in its last fifth, a piece ends there."""
    cuts = pieces(SENTENCES * 20, MINILM, 50, 10)

    assert {piece[-1] for piece in cuts} == {"."}


def test_a_piece_without_sentence_end_ends_between_words() -> None:
    """Words of several tokens are not cut in two."""
    text = " ".join(["unbelievably", "antidisestablishmentarianism"] * 100)
    cuts = pieces(text, MINILM, 32, 8)

    assert {word for piece in cuts for word in piece.split()} == {"unbelievably", "antidisestablishmentarianism"}


def test_a_word_longer_than_a_piece_is_cut() -> None:
    """One word without end neither loops nor is lost."""
    word = "".join(f"{number:04}" for number in range(500))
    cuts = pieces(word, BYTES, 64, 16)

    assert [place[0] for place in places(word, cuts)] == list(range(0, len(word) - 16, 48))


def test_passages_carry_stable_ids_and_the_title_beside() -> None:
    """Ids count through all parts of a document; the title is kept out of the text."""
    document = Document(id="guide", parts=(Part("Guide", "Hello there."), Part("Guide: Use", "Press the button.")))
    passages = cut(document, MINILM, chunk_tokens=32, overlap_tokens=4)

    assert [(p.id, p.doc_id, p.title, p.text) for p in passages] == [
        ("guide#0", "guide", "Guide", "Hello there."),
        ("guide#1", "guide", "Guide: Use", "Press the button."),
    ]


def test_a_document_of_white_space_has_no_passage() -> None:
    """Nothing to find, nothing to cut."""
    assert cut(Document(id="d", parts=(Part("t", " \n\t "),)), MINILM, chunk_tokens=32, overlap_tokens=4) == []


@pytest.mark.parametrize(("size", "overlap"), [(5, 0), (100, 51), (100, -1)])
def test_sizes_that_cannot_be_cut_to_are_refused(size: int, overlap: int) -> None:
    """Too small a chunk, or an overlap past half of it, is a CorpusError that names the range."""
    with pytest.raises(CorpusError, match="give "):
        cut(Document(id="d", parts=(Part("t", "x"),)), MINILM, chunk_tokens=size, overlap_tokens=overlap)


def test_a_folder_without_tokenizer_is_a_missing_model(tmp_path: object) -> None:
    """The error names the folder and what to give instead."""
    with pytest.raises(ModelMissingError, match="give a model folder or a hub id"):
        load_tokenizer(str(tmp_path))
