"""Prompts of an exact length, with the real SmolLM2 tokenizer, over hostile text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from harness.errors import BudgetError, ModelMissingError, UsageError
from harness.node.corpus import Passage
from harness.node.models import embedder_path
from harness.node.prompt import SYSTEM_PROMPT, Prompt, assemble, assemble_remote, checked, natural, within_chars
from harness.node.tokens import LocalTokenizer, RemoteFrame, Shape

CODE = "def f(x):\n\treturn {k: v**2 for k, v in x.items() if v >= 10}  # 1,234,567.89\n"
ODD = st.sampled_from(
    [
        "😀👩‍👩‍👧",
        "北京大学",
        "naïve Größe",
        "\n\n\n",
        "\t\t",
        "   ",
        CODE,
        "12345678901234567890",
        "ﷺ",
        "é",
        "<|im_end|>",
        "a" * 40,
        "\u200b",
        " .",
        "…",
    ]
)
WORDS = st.sampled_from(
    ["the", "river", "quantum", "of", "Freiburg", "antidisestablishmentarianism", "1848", "is", "a"]
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=200),
    st.lists(st.one_of(WORDS, ODD), max_size=80).map(" ".join),
    st.lists(ODD, max_size=30).map("".join),
)
QUESTION = TEXT.filter(lambda text: bool(text.strip())).map(lambda text: text[:300])
MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> LocalTokenizer:
    return LocalTokenizer(str(tokenizer_folder))


@pytest.fixture(scope="module")
def truth(tokenizer_folder: Path) -> Any:
    """The tokenizer as transformers uses it, to count by another way than the code under test."""
    return AutoTokenizer.from_pretrained(tokenizer_folder)


def passages(texts: Sequence[str]) -> list[Passage]:
    return [
        Passage(id=f"p{number}", doc_id="d", title=text[:12].strip(), text=text, tokens=1)
        for number, text in enumerate(texts)
    ]


def engine_count(truth: Any, shape: Shape, prompt: Prompt) -> int:
    """What an engine counts for the messages or the text that would be sent."""
    if shape.chat:
        rendered = truth.apply_chat_template(shape.messages(prompt.text), tokenize=False, add_generation_prompt=True)
        return len(truth(rendered, add_special_tokens=False)["input_ids"])
    return len(truth(shape.plain(prompt.text), add_special_tokens=True)["input_ids"])


def check_error(error: BudgetError) -> None:
    """A refusal must be for a budget that cannot be met, not because no cut was found."""
    assert "no cut of the passages" not in str(error)


@MANY
@given(question=QUESTION, texts=st.lists(TEXT, max_size=12), budget=st.integers(1, 900), chat=st.booleans())
def test_a_prompt_is_exact_or_refused(
    tokenizer: LocalTokenizer, truth: Any, question: str, texts: list[str], budget: int, chat: bool
) -> None:
    """Any question and passages give exactly the budget as the engine counts, question whole, or a BudgetError."""
    shape = Shape(chat=chat, system=SYSTEM_PROMPT)
    try:
        prompt = assemble(question, passages(texts), budget, tokenizer.frame(shape))
    except BudgetError as error:
        check_error(error)
        return

    assert prompt.prompt_tokens == budget == engine_count(truth, shape, prompt)
    assert prompt.text.endswith(f"Question: {question.strip()}")


@MANY
@given(question=QUESTION, texts=st.lists(TEXT, min_size=1, max_size=12), share=st.floats(0, 1), chat=st.booleans())
def test_every_budget_between_question_and_whole_is_met(
    tokenizer: LocalTokenizer, truth: Any, question: str, texts: list[str], share: float, chat: bool
) -> None:
    """Between the bare question and the uncut prompt no budget is refused, whatever the tokenizer merges."""
    shape = Shape(chat=chat, system=SYSTEM_PROMPT)
    frame = tokenizer.frame(shape)
    least = frame.count(natural(question, []).text).tokens
    most = frame.count(natural(question, passages(texts)).text).tokens
    budget = least + round(share * max(0, most - least))
    if budget > most:  # nothing but white space was added
        return
    prompt = assemble(question, passages(texts), budget, frame)

    assert prompt.prompt_tokens == budget == engine_count(truth, shape, prompt)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(question=QUESTION, texts=st.lists(TEXT, min_size=3, max_size=12), budget=st.integers(60, 600))
def test_the_engine_can_do_the_counting(
    tokenizer: LocalTokenizer, truth: Any, question: str, texts: list[str], budget: int
) -> None:
    """Without a tokenizer here, exact prompts are reached by asking the engine for counts."""
    shape = Shape(chat=True, system=SYSTEM_PROMPT)
    local = tokenizer.frame(shape)
    asked: list[str] = []

    async def tokenize(body: dict[str, Any]) -> int:
        asked.append(body["messages"][-1]["content"])
        return local.count(asked[-1]).tokens

    try:
        prompt = checked(
            asyncio.run(assemble_remote(question, passages(texts), budget, RemoteFrame(shape, tokenize))), budget
        )
    except BudgetError as error:
        check_error(error)
        return

    assert engine_count(truth, shape, prompt) == budget


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(question=QUESTION, texts=st.lists(TEXT, min_size=3, max_size=12), budget=st.integers(60, 600))
def test_another_family_of_tokenizers_is_exact_too(question: str, texts: list[str], budget: int) -> None:
    """WordPiece, which lower-cases, drops white space and knows no emoji, is met as exactly as byte-level BPE."""
    frame = word_pieces().frame(Shape(chat=False, system=SYSTEM_PROMPT))
    try:
        prompt = assemble(question, passages(texts), budget, frame)
    except BudgetError as error:
        check_error(error)
        return

    assert frame.count(prompt.text).tokens == budget


@lru_cache
def word_pieces() -> LocalTokenizer:
    """The tokenizer of the embedder, a BERT."""
    return LocalTokenizer(embedder_path(None))


def test_few_counts_do_for_ordinary_text(tokenizer: LocalTokenizer) -> None:
    """Ordinary prose takes two or three counts a prompt on average with a tokenizer here, and under eight by asking."""
    prose = "The Danube is a river in Europe. It rises in the Black Forest, and 2,850 kilometres later it ends. " * 8
    shape = Shape(chat=True, system=SYSTEM_PROMPT)
    local = tokenizer.frame(shape)
    counts = {"here": 0, "asked": 0}

    class Counting:
        def count(self, text: str) -> Any:
            counts["here"] += 1
            return local.count(text)

    async def tokenize(body: dict[str, Any]) -> int:
        counts["asked"] += 1
        return local.count(body["messages"][-1]["content"]).tokens

    found = passages([prose[start:] for start in range(0, 200, 20)])
    budgets = range(900, 1500, 30)
    for budget in budgets:
        assemble("Where does it rise?", found, budget, Counting())  # type: ignore[arg-type]
        asyncio.run(assemble_remote("Where does it rise?", found, budget, RemoteFrame(shape, tokenize)))

    assert counts["here"] / len(budgets) <= 3
    assert counts["asked"] / len(budgets) <= 8


def test_passages_are_cut_at_the_end_only(tokenizer: LocalTokenizer) -> None:
    """All included passages but the last are whole and in order; the last is a prefix; the rest is left out."""
    texts = [f"Passage {number} says that " + "water is wet and rivers flow. " * 6 for number in range(8)]
    prompt = assemble("Is water wet?", passages(texts), 300, tokenizer.frame(Shape(chat=True, system=SYSTEM_PROMPT)))
    *whole, last = prompt.included

    assert prompt.passage_ids == tuple(f"p{number}" for number in range(len(prompt.included)))
    assert 1 < len(prompt.included) < 8
    assert [item.text for item in whole] == [text.strip() for text in texts[: len(whole)]]
    assert texts[len(whole)].startswith(last.text)
    assert last.text in prompt.text


def test_a_budget_below_the_question_names_the_least(tokenizer: LocalTokenizer) -> None:
    """The refusal of a budget that cannot hold the question says how many tokens would do, and that many do."""
    frame = tokenizer.frame(Shape(chat=True, system=SYSTEM_PROMPT))
    least = frame.count(natural("Why?", []).text).tokens
    with pytest.raises(BudgetError, match=f"ask for {least} input tokens or more"):
        assemble("Why?", passages(["text " * 50]), least - 1, frame)

    assert assemble("Why?", passages(["text " * 50]), least, frame).included == ()


def test_too_few_passages_are_said_to_be_too_few(tokenizer: LocalTokenizer) -> None:
    """Passages that cannot fill the budget are a BudgetError that counts them."""
    with pytest.raises(BudgetError, match="all 2 passages"):
        assemble("Why?", passages(["short", "also"]), 1500, tokenizer.frame(Shape(chat=True, system="")))


def test_no_system_text_leaves_the_template_its_own(tokenizer: LocalTokenizer, truth: Any) -> None:
    """Without a system text only the user's message is sent, and counting includes what the template adds."""
    shape = Shape(chat=True, system="")
    prompt = assemble("Why?", passages(["text " * 90]), 80, tokenizer.frame(shape))

    assert [message["role"] for message in shape.messages(prompt.text)] == ["user"]
    assert engine_count(truth, shape, prompt) == 80


def test_enough_passages_are_taken_and_no_more() -> None:
    """Passages are taken until they hold the characters, counting the one that gets there."""
    found = passages(["x" * 88] * 5)  # and 12 characters of title each

    assert [len(within_chars(found, chars)) for chars in (1, 100, 101, 500, 9999)] == [1, 1, 2, 5, 5]


def test_a_missing_tokenizer_says_what_to_give(tmp_path: Path) -> None:
    """A folder without a tokenizer is refused with its name."""
    with pytest.raises(ModelMissingError, match=str(tmp_path)):
        LocalTokenizer(str(tmp_path))


def test_a_template_that_refuses_is_wrong_use(tokenizer: LocalTokenizer) -> None:
    """Template arguments that collide with the node's own are a UsageError, not a crash."""
    with pytest.raises(UsageError, match="chat template"):
        tokenizer.frame(Shape(chat=True, system="", template_kwargs='{"tokenize": true}'))
