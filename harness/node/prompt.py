"""A prompt of exactly the asked number of tokens: system text, passages, question.

The question is never cut; passages are, at the end of the last one. Cutting works on token starts:
count the whole, step back as many tokens as are too many, count again, correct. Where a tokenizer
merges across the cut so that no cut gives the exact number, a few neutral marks fill the gap.

`fitting` is a generator that yields texts to count and is sent a `Counted` for each, so that one
algorithm serves a tokenizer on this machine (`assemble`) and the engine's /tokenize (`assemble_remote`).
Does not know where passages come from, or who counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.errors import BudgetError
from harness.node.corpus import Passage
from harness.node.tokens import Counted, LocalFrame, RemoteFrame

SYSTEM_PROMPT = (
    "Answer the question from the numbered passages, in one or two sentences. "
    "If the passages do not hold the answer, say so."
)
_PARTING = "\n\n"
_LEAD = "Question: "
_FILLERS = (" .", " ,", "\n-", " and")
_STEPS = 8
_BACK = 16

Result = TypeVar("Result")
Counting = Generator[str, Counted, Result]


@dataclass(frozen=True, kw_only=True)
class Included:
    """A passage as it stands in a prompt: `text` is what is left of it after the cut."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The user's text, what it includes, and its tokens with the frame; None if nobody counted."""

    text: str
    included: tuple[Included, ...]
    prompt_tokens: int | None

    @property
    def passage_ids(self) -> tuple[str, ...]:
        return tuple(passage.id for passage in self.included)


class Draft:
    """Passages and question as one text, with a movable end of the passages.

    `body` is all passages in full; `text(cut)` the user's text with only its first `cut` characters.
    """

    def __init__(self, question: str, passages: Sequence[Passage]) -> None:
        self._question = f"{_LEAD}{question.strip()}"
        self._passages = passages
        self._spans: list[tuple[int, int]] = []  # of each passage's text in the body
        blocks: list[str] = []
        length = 0
        for number, passage in enumerate(passages, start=1):
            head = f"[{number}] {passage.title}\n" if passage.title else f"[{number}] "
            text = passage.text.strip()
            self._spans.append((length + len(head), length + len(head) + len(text)))
            blocks.append(f"{head}{text}\n\n")
            length += len(blocks[-1])
        self.body = "".join(blocks).rstrip()

    def text(self, cut: int, filler: str = "") -> str:
        """The user's text with the body cut after `cut` characters and `filler` in place of the rest."""
        kept = self.body[:cut].rstrip()  # white space would merge with the parting, and fillers with neither
        head = (kept + filler).lstrip()  # chat templates may strip the ends
        if not head:
            return self._question
        # Without any passage text, a blank line would already be one token more than a single filler.
        return f"{head}{_PARTING if kept else ' '}{self._question}"

    def included(self, cut: int) -> tuple[Included, ...]:
        """Passages of which at least one character is left before the cut."""
        kept = [
            Included(id=passage.id, title=passage.title, text=self.body[start : min(cut, end)].rstrip())
            for passage, (start, end) in zip(self._passages, self._spans, strict=True)
        ]
        return tuple(passage for passage in kept if passage.text)

    def prompt(self, cut: int, tokens: int | None, filler: str = "") -> Prompt:
        return Prompt(text=self.text(cut, filler), included=self.included(cut), prompt_tokens=tokens)


def natural(question: str, passages: Sequence[Passage]) -> Prompt:
    """All passages in full, uncounted."""
    draft = Draft(question, passages)
    return draft.prompt(len(draft.body), None)


def assemble(question: str, passages: Sequence[Passage], budget_tokens: int, frame: LocalFrame) -> Prompt:
    """A prompt of exactly `budget_tokens`, frame included, counted on this machine.

    Raises BudgetError when frame and question alone are more, or all passages together are less.
    """
    return checked(assemble_or_short(question, passages, budget_tokens, frame), budget_tokens)


def assemble_or_short(question: str, passages: Sequence[Passage], budget_tokens: int, frame: LocalFrame) -> Prompt:
    """As `assemble`, but passages that do not fill the budget come back whole, with fewer tokens."""
    steps = fitting(Draft(question, passages), budget_tokens)
    try:
        text = next(steps)
        while True:
            text = steps.send(frame.count(text))
    except StopIteration as end:
        prompt: Prompt = end.value
        return prompt


async def assemble_remote(question: str, passages: Sequence[Passage], budget_tokens: int, frame: RemoteFrame) -> Prompt:
    """As `assemble_or_short`, counted by the engine."""
    steps = fitting(Draft(question, passages), budget_tokens)
    try:
        text = next(steps)
        while True:
            text = steps.send(await frame.count(text))
    except StopIteration as end:
        prompt: Prompt = end.value
        return prompt


def checked(prompt: Prompt, budget_tokens: int) -> Prompt:
    """The prompt, if it fills the budget. Raises BudgetError that says by how much it does not."""
    if prompt.prompt_tokens != budget_tokens:
        raise BudgetError(
            f"the prompt has only {prompt.prompt_tokens} of {budget_tokens} tokens with all {len(prompt.included)} "
            "passages: lower input_tokens, raise top_k (or leave it out), or take a larger corpus"
        )
    return prompt


def fitting(draft: Draft, budget_tokens: int) -> Counting[Prompt]:
    """Find the cut that gives `budget_tokens`; return the whole, shorter prompt if there is none.

    Yields texts to be counted. Raises BudgetError when frame and question alone exceed the budget.
    """
    whole = len(draft.body)
    counted = yield draft.text(whole)
    if counted.tokens <= budget_tokens:
        return draft.prompt(whole, counted.tokens)
    cuts = [0, *(start for start in counted.starts() if start < whole), whole]
    exact, low = yield from _search(draft, cuts, counted.tokens, budget_tokens)
    if exact is not None:
        return draft.prompt(exact, budget_tokens)
    return (yield from _fill(draft, cuts[: low + 1], budget_tokens))


def _check_frame(tokens: int, budget_tokens: int) -> None:
    if tokens > budget_tokens:
        raise BudgetError(
            f"question and frame alone take {tokens} tokens, the budget is {budget_tokens}: "
            f"ask for {tokens} input tokens or more"
        )


def _search(draft: Draft, cuts: Sequence[int], tokens: int, budget_tokens: int) -> Counting[tuple[int | None, int]]:
    """The exact cut; or None and the last place in `cuts` known to be too short, next to one too long.

    Steps by the error, which nearly always lands within two; after `_STEPS` it halves, so it always ends.
    """
    low, high = 0, len(cuts) - 1
    place = high - (tokens - budget_tokens)
    for step in range(high + 1):
        place = (low + high) // 2 if step >= _STEPS else place
        place = min(max(place, low + 1), high - 1)
        if place <= low:
            break
        counted = yield draft.text(cuts[place])
        if counted.tokens == budget_tokens:
            return cuts[place], place
        # Several tokens may start at one character; all of them are settled at once.
        if counted.tokens < budget_tokens:
            low = bisect_right(cuts, cuts[place]) - 1
        else:
            high = bisect_left(cuts, cuts[place])
        place += budget_tokens - counted.tokens
    if low == 0:
        bare = yield draft.text(0)
        _check_frame(bare.tokens, budget_tokens)
        return (0 if bare.tokens == budget_tokens else None), 0
    return None, low


def _fill(draft: Draft, cuts: Sequence[int], budget_tokens: int) -> Counting[Prompt]:
    """Cut at one of the last of `cuts`, each too short, and make up the difference with filler marks."""
    for cut in list(reversed(cuts))[:_BACK]:
        counted = yield draft.text(cut)
        missing = budget_tokens - counted.tokens
        for filler in _FILLERS if missing > 0 else ():
            filled = yield from _repeat(draft, cut, filler, missing, budget_tokens)
            if filled is not None:
                return filled
    raise BudgetError(
        f"no cut of the passages gives exactly {budget_tokens} tokens with this tokenizer: "
        "ask for one input token more or less"
    )


def _repeat(draft: Draft, cut: int, filler: str, times: int, budget_tokens: int) -> Counting[Prompt | None]:
    """`filler` as often as it takes, corrected once if it does not count one token each."""
    for _ in range(2):
        if times < 1:
            return None
        counted = yield draft.text(cut, filler * times)
        if counted.tokens == budget_tokens:
            return draft.prompt(cut, budget_tokens, filler * times)
        times += budget_tokens - counted.tokens
    return None


def within_chars(passages: Sequence[Passage], chars: float) -> Sequence[Passage]:
    """The first passages that together have at least `chars` characters; all, if they have fewer."""
    total = 0
    for count, passage in enumerate(passages, start=1):
        total += len(passage.title) + len(passage.text)
        if total >= chars:
            return passages[:count]
    return passages
