"""The tokenizer: chat template, text ↔ ids, and which piece of text each token of an answer adds.

Loads a folder of the usual layout. A fast tokenizer without a class of its own is loaded without
PyTorch, which AutoTokenizer would import. Knows no prompts, no answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import ModelMissingError

Message = dict[str, str]

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes under which AutoTokenizer does nothing of its own."""


class TemplateError(ValueError):
    """The chat template does not take these messages; the message is the template's."""


class Tokens:
    """One tokenizer. `path` is a folder or a hub id; raises ModelMissingError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._tokenizer = _load(path)
        self._backend = self._tokenizer.backend_tokenizer
        self.eos_id: int | None = self._tokenizer.eos_token_id

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, those the tokenizer adds around a plain prompt too."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`."""
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special)
        return text

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool = True, **kwargs: Any) -> str:
        """The rendered chat template. Raises TemplateError."""
        import jinja2

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generation_prompt, **kwargs
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template does not take these messages: {error}") from error
        return text

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text as it is streamed; "" while a character is incomplete.

        Joined they are the answer's text; the last one also carries what was still held back.
        """
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        texts = [stream.step(self._backend, token) or "" for token in ids]
        joined, whole = "".join(texts), self.decode(ids)
        if texts and len(whole) > len(joined) and whole.startswith(joined):
            texts[-1] += whole[len(joined) :]
        return texts

    def known(self, ids: Sequence[int]) -> bool:
        """True if every id is in the vocabulary."""
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return all(0 <= token < size for token in ids)


def _load(path: str) -> Any:
    import transformers

    try:
        loader: Any = transformers.PreTrainedTokenizerFast if _is_generic(Path(path)) else transformers.AutoTokenizer
        tokenizer = loader.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelMissingError(
            f"tokenizer {path} cannot be loaded ({reason}): give a folder or hub id, or run `ragload models`"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelMissingError(f"tokenizer {path} has no tokenizer.json: give one that has")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _is_generic(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    if not config.is_file() or not (folder / "tokenizer.json").is_file():
        return False
    return json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") in _GENERIC
