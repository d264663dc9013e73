"""The questions of one trial: each asked once, in an order the seed fixes, until they run out.

Repeated questions meet a warm prefix cache and flatter the target, so running out is counted and
said aloud. Knows where questions come from as text; reaching the target is `target`'s affair.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UsageError

logger = logging.getLogger(__name__)


class Question(NamedTuple):
    """What one user asks once."""

    id: str
    question: str


class Questions:
    """A shuffled deck. Each pass through it has an order of its own; all follow from `seed`."""

    def __init__(self, questions: Sequence[Question], *, seed: int, source: str) -> None:
        if not questions:
            raise UsageError(f"{source} holds no question: give --questions FILE with one JSON object a line")
        self.offered, self.asked, self._source = len(questions), 0, source
        self._random = random.Random(seed)
        self._questions = list(questions)
        self._deck: list[Question] = []

    @property
    def repeated(self) -> int:
        """Questions asked once more than in the first pass."""
        return max(0, self.asked - self.offered)

    def next(self) -> Question:
        """The next question; warns once when the first has to repeat."""
        if not self._deck:
            if self.asked == self.offered:
                logger.warning("all %d questions of %s are asked: they repeat now", self.offered, self._source)
            self._deck = self._questions.copy()
            self._random.shuffle(self._deck)
        self.asked += 1
        return self._deck.pop()


def read_questions(path: Path) -> list[Question]:
    """Questions of a JSONL file: one object a line with `id` and `question`. Raises UsageError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read questions from {path} ({error}): name a JSONL file") from error
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [_parse_line(path, number, line) for number, line in rows]


def parse_questions(rows: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Questions out of decoded objects. Raises KeyError or TypeError on another shape."""
    return [Question(id=str(row["id"]), question=str(row["question"])) for row in rows]


def _parse_line(path: Path, number: int, line: str) -> Question:
    try:
        return parse_questions([json.loads(line)])[0]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{path} line {number} is no question ({error!r}): write {{"id": "q1", "question": "…"}}'
        ) from error
