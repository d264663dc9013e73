"""Questions: each once, in a seeded order, and said aloud when they repeat."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.load.questions import Question, Questions, read_questions

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / ".cache" / "models" / "smollm2-135m-instruct" / "tokenizer.json"
SOME = [Question(id=f"q{n}", question=f"What is {n}?") for n in range(20)]


def test_each_is_asked_once():
    """Until they run out, no question is asked twice, and the order is not the file's."""
    deck = Questions(SOME, seed=1, source="x")
    asked = [deck.next() for _ in SOME]

    assert sorted(asked) == sorted(SOME)
    assert asked != SOME
    assert deck.repeated == 0


def test_seed_fixes_the_order():
    """The same seed gives the same order, another seed another one."""
    orders = [[Questions(SOME, seed=seed, source="x").next() for _ in range(1)] for seed in range(8)]
    first, again = (Questions(SOME, seed=5, source="x") for _ in range(2))

    assert [first.next() for _ in range(45)] == [again.next() for _ in range(45)]
    assert len({order[0] for order in orders}) > 1


def test_repeats_are_counted_and_said(caplog):
    """Running out is warned of once, and every further question counts as repeated."""
    deck = Questions(SOME, seed=1, source="the file")
    with caplog.at_level(logging.WARNING):
        for _ in range(65):
            deck.next()

    assert (deck.offered, deck.asked, deck.repeated) == (20, 65, 45)
    assert [record.getMessage() for record in caplog.records] == [
        "all 20 questions of the file are asked: they repeat now"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "line 1"), ('{"id": 1, "question": "a"}\n\n{"id": 2}', "line 3"), ("[]", "line 1")],
)
def test_bad_line_is_named(tmp_path, content, message):
    """A line that holds no question is refused by its number."""
    (tmp_path / "q.jsonl").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_questions(tmp_path / "q.jsonl")


def test_no_questions():
    """An empty source is refused before anything runs."""
    with pytest.raises(UsageError, match="no question"):
        Questions([], seed=0, source="q.jsonl")


def test_chat_prompts_are_distinct():
    """The chat scenario has 100 different prompts."""
    prompts = read_questions(ROOT / "scenarios" / "chat_prompts.jsonl")

    assert (len(prompts), len({prompt.id for prompt in prompts}), len({prompt.question for prompt in prompts})) == (
        100,
    ) * 3


@pytest.mark.skipif(not SMOLLM2.exists(), reason="the tokenizer is made by `ragload models`")
def test_chat_prompts_are_short():
    """The chat prompts have about 50 tokens on average, from short questions to short texts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SMOLLM2))
    lines = (ROOT / "scenarios" / "chat_prompts.jsonl").read_text().splitlines()
    counts = [len(tokenizer.encode(json.loads(line)["question"]).ids) for line in lines]

    assert 45 <= sum(counts) / len(counts) <= 55
    assert min(counts) <= 20
    assert max(counts) >= 90
