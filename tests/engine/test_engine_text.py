"""Answers: drawn from the prompt, exact in length, the same for the same seed, exact when streamed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.text import Answer, Wanted, answer
from harness.engine.tokens import Tokens
from harness.errors import ModelMissingError

PROMPT = """[1] Rhine
The Rhine rises in the Alps. It reaches the sea in Rotterdam, a port of the Netherlands.

[2] Danube
The Danube rises in the Black Forest. It flows through Vienna and Budapest. Its delta lies in Romania.

Question: In which forest does the Danube rise?"""
LONG = Wanted(max_tokens=60, ignore_eos=True)


def test_the_nearest_sentence_comes_first(tokens: Tokens) -> None:
    """An answer begins with the sentence that shares most words with the question, and ends with it."""
    given_answer = answer(tokens, PROMPT, Wanted(max_tokens=100))

    assert given_answer.text == "The Danube rises in the Black Forest."
    assert given_answer.finish_reason == "stop"
    assert given_answer.ids[-1] == tokens.eos_id


def test_ignore_eos_gives_max_tokens(tokens: Tokens) -> None:
    """With ignore_eos an answer has exactly max_tokens tokens, none of them EOS."""
    long = answer(tokens, PROMPT, replace(LONG, max_tokens=333))

    assert len(long.ids) == 333
    assert tokens.eos_id not in long.ids
    assert long.finish_reason == "length"


@pytest.mark.parametrize("least", [0, 1, 20, 40, 99, 100])
def test_min_tokens(tokens: Tokens, least: int) -> None:
    """An answer ends by itself only after min_tokens, and never after max_tokens."""
    found = answer(tokens, PROMPT, Wanted(max_tokens=100, min_tokens=least))

    assert least <= len(found.ids) - (found.finish_reason == "stop") <= 100
    assert found.text.endswith(".") or found.finish_reason == "length"


def test_the_seed_decides(tokens: Tokens) -> None:
    """Seed and prompt decide the answer; another seed orders what follows the first sentence otherwise."""
    assert answer(tokens, PROMPT, LONG) == answer(tokens, PROMPT, LONG)
    others = {answer(tokens, PROMPT, replace(LONG, seed=seed)).text for seed in range(6)}
    assert len(others) > 1
    assert all(text.startswith("The Danube rises in the Black Forest.") for text in others)


def test_only_what_the_prompt_says(tokens: Tokens) -> None:
    """Every word of a long answer stands in the prompt."""
    text = answer(tokens, PROMPT, replace(LONG, max_tokens=200)).text

    assert set(text.rsplit(" ", 1)[0].replace(".", "").split()) <= set(PROMPT.replace(".", "").split())


def test_stop_string_before_min_tokens(tokens: Tokens) -> None:
    """A stop string completed within min_tokens does not stop, and never cuts the answer below them."""
    found = answer(tokens, PROMPT, Wanted(max_tokens=40, min_tokens=20, stop=("e",)))

    assert len(found.ids) > 20
    assert "e" in "".join(found.texts[:20])
    assert "e" not in "".join(found.texts[20:])


def test_stop_string(tokens: Tokens) -> None:
    """A stop string ends the answer before it, is named as the reason, and its tokens are counted."""
    whole = answer(tokens, PROMPT, Wanted(max_tokens=100))
    cut = answer(tokens, PROMPT, Wanted(max_tokens=100, stop=("zebra", "Black For")))

    assert cut.text == "The Danube rises in the "
    assert (cut.finish_reason, cut.stop_reason) == ("stop", "Black For")
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert len(cut.texts) == len(cut.ids)


def test_half_a_character_is_held_back(tokens: Tokens) -> None:
    """Tokens that hold part of a character add nothing until it is complete."""
    ids = tokens.encode("a 😀 b")
    texts = tokens.token_texts(ids)

    assert "".join(texts) == "a 😀 b"
    assert "" in texts
    assert not any("\ufffd" in text for text in texts)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.integers(1, 80), st.booleans(), st.integers(0, 3))
def test_any_prompt_has_an_answer(tokens: Tokens, prompt: str, most: int, ignore_eos: bool, seed: int) -> None:
    """Whatever the prompt, lengths are kept and the streamed pieces join to the text of the tokens."""
    found: Answer = answer(tokens, prompt, Wanted(max_tokens=most, ignore_eos=ignore_eos, seed=seed))

    assert len(found.texts) == len(found.ids)
    assert found.text == tokens.decode(found.ids)
    assert len(found.ids) == most if ignore_eos else 1 <= len(found.ids) <= most


def test_missing_tokenizer() -> None:
    """A tokenizer folder that is not there is named in the refusal."""
    with pytest.raises(ModelMissingError, match=r"no/such/tokenizer"):
        Tokens("./no/such/tokenizer")
