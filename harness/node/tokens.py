"""Counting a prompt's tokens as the engine will: with its tokenizer here, or by asking it.

A `Frame` is a prompt around the user's text: system text, chat template, generation prompt. With a
local tokenizer the template is rendered once around a placeholder; counting is then one encode of
`before + text + after`. Without one, the engine's /tokenize counts, a round trip each time.

Knows templates and tokens; does not know passages or budgets (harness.node.prompt).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import transformers

from harness.errors import ModelMissingError, UsageError

Message = dict[str, str]
Tokenize = Callable[[dict[str, Any]], Awaitable[int]]
"""Asks the engine's /tokenize; returns `count`."""

_PLACE = "RAGLOAD-USER-TEXT"
_WORD = re.compile(r"\s?[A-Za-z]{1,5}|\s?[^\sA-Za-z]|\s+")
_FRAMES = 64


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Tokens of a whole prompt, and where in the user's text they start (character offsets).

    One offset per token, in order: a character of several tokens, such as an emoji, is there as often.
    """

    tokens: int
    starts: Callable[[], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What surrounds the user's text: `chat` with a template, or a plain completion.

    template_kwargs  JSON text of the request's `chat_template_kwargs`
    special          whether a plain prompt gets the tokenizer's special tokens (vLLM's default: yes)
    """

    chat: bool
    system: str
    template_kwargs: str = "{}"
    special: bool = True

    def messages(self, text: str) -> list[Message]:
        """The chat messages; without a system text, the user's alone."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": text}]

    def plain(self, text: str) -> str:
        """The prompt of a plain completion."""
        return f"{self.system}\n\n{text}\nAnswer:" if self.system else f"{text}\nAnswer:"

    def tokenize_body(self, text: str) -> dict[str, Any]:
        """The body of vLLM's /tokenize that counts this prompt."""
        if not self.chat:
            return {"prompt": self.plain(text), "add_special_tokens": self.special}
        extra = {} if self.template_kwargs == "{}" else {"chat_template_kwargs": json.loads(self.template_kwargs)}
        return {"messages": self.messages(text), "add_generation_prompt": True, **extra}


class LocalFrame:
    """Counts with the tokenizer on this machine."""

    def __init__(self, backend: Any, before: str, after: str, *, special: bool) -> None:
        self._backend, self._before, self._after, self._special = backend, before, after, special

    def count(self, text: str) -> Counted:
        """Tokens of the prompt around `text`. Safe to call from several threads; lets others run meanwhile."""
        # A batch of one: unlike `encode`, it lets go of the interpreter while it works.
        encoding = self._encode(text)
        return Counted(tokens=len(encoding), starts=lambda: self._starts(encoding, len(text)))

    def ids(self, text: str) -> list[int]:
        """Token ids of the prompt around `text`."""
        ids: list[int] = self._encode(text).ids
        return ids

    def _encode(self, text: str) -> Any:
        prompt = f"{self._before}{text}{self._after}"
        return self._backend.encode_batch([prompt], add_special_tokens=self._special)[0]

    def _starts(self, encoding: Any, length: int) -> list[int]:
        first = len(self._before)
        return [start - first for start, _ in encoding.offsets if first < start < first + length]


class RemoteFrame:
    """Counts by asking the engine; where tokens start is guessed, and the count corrects the guess."""

    def __init__(self, shape: Shape, tokenize: Tokenize) -> None:
        self._shape, self._tokenize = shape, tokenize

    async def count(self, text: str) -> Counted:
        """Tokens of the prompt around `text`. Raises TargetError if the engine does not say."""
        tokens = await self._tokenize(self._shape.tokenize_body(text))
        return Counted(tokens=tokens, starts=lambda: [match.start() for match in _WORD.finditer(text)][1:])


class LocalTokenizer:
    """The engine's tokenizer, loaded here. Raises ModelMissingError if there is none under that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise ModelMissingError(
                f"tokenizer {name} cannot be loaded ({str(error).strip().splitlines()[0][:200]}): "
                "give the folder or hub id of the engine's tokenizer"
            ) from error
        if not getattr(self._tokenizer, "is_fast", False):
            raise ModelMissingError(f"tokenizer {name} has no tokenizer.json, which counting here needs")
        self._backend: Any = self._tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._chat = lru_cache(maxsize=_FRAMES)(self._chat_frame)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def frame(self, shape: Shape) -> LocalFrame:
        """The frame of a shape. Raises UsageError if the chat template does not take it."""
        if shape.chat:
            # Some templates print the date: a frame is good for a day.
            return self._chat(shape, datetime.date.today())
        before, after = shape.plain(_PLACE).split(_PLACE)
        return LocalFrame(self._backend, before, after, special=shape.special)

    def _chat_frame(self, shape: Shape, day: datetime.date) -> LocalFrame:
        if not self.has_chat_template:
            raise UsageError(f"the model of {self.name} has no chat template: use /v1/completions")
        before, *after = self._render(shape).split(_PLACE)
        if len(after) != 1:
            raise UsageError(f"the chat template of {self.name} repeats or drops the user's text: use /v1/completions")
        return LocalFrame(self._backend, before, after[0], special=False)

    def _render(self, shape: Shape) -> str:
        kwargs: Mapping[str, Any] = json.loads(shape.template_kwargs)
        try:
            text: str = self._tokenizer.apply_chat_template(
                shape.messages(_PLACE), tokenize=False, add_generation_prompt=True, **kwargs
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise UsageError(f"the chat template of {self.name} refuses this request ({error})") from error
        return text
