"""One request, read and checked: what is asked, of which model, with which budget.

Answers bad input with an HTTPException whose text says what to change. Only what the node itself
uses is looked at; every other field is the engine's to judge. Knows no corpus and no engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
from fastapi import HTTPException

from harness.node.prompt import Prompt
from harness.node.tokens import Shape

BODY_LIMIT_BYTES = 1 << 20
QUESTION_LIMIT_CHARS = 32_768
TOP_K_LIMIT = 1000
TOP_K_NATURAL = 4
"""Passages of a prompt that has neither a budget nor a top_k."""

_RAG_FIELDS = ("top_k", "input_tokens", "return_contexts")
_RESHAPING = ("tools", "documents", "chat_template", "continue_final_message", "truncate_prompt_tokens", "suffix")
"""Fields that change the prompt's length behind the node's back."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a request without `rag` fields gets. `input_limit`: prompt tokens the engine can take, None if unknown."""

    input_tokens: int | None
    top_k: int | None
    system: str
    input_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One checked request.

    body          the OpenAI body without `rag`
    question      None: no retrieval, the body goes through as it came
    top_k         None: as many passages as the budget takes
    input_tokens  None: natural length
    """

    chat: bool
    body: Mapping[str, Any]
    shape: Shape
    question: str | None
    top_k: int | None
    input_tokens: int | None
    return_contexts: bool
    wants_rag: bool
    stream: bool

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def engine_body(self, prompt: Prompt | None, model: str) -> bytes:
        """The JSON for the engine: the body as it came, with the prompt in place of the question."""
        body = {**self.body, "model": model}
        if prompt is not None and self.chat:
            body["messages"] = self.shape.messages(prompt.text)
        elif prompt is not None:
            body["prompt"] = self.shape.plain(prompt.text)
        return msgspec.json.encode(body)


def refuse(status: int, message: str) -> NoReturn:
    """Raise the HTTPException that answers with this status and message."""
    raise HTTPException(status, message)


def read_object(raw: bytes) -> dict[str, Any]:
    """A request's JSON object. 400 if it is none."""
    try:
        row = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse(400, f"the body is not JSON ({error})")
    except RecursionError:
        refuse(400, "the body is nested too deep")
    if not isinstance(row, dict):
        refuse(400, "the body must be a JSON object")
    return row


def read_asked(raw: bytes, *, chat: bool, defaults: Defaults) -> Asked:
    """Check a completion request. 400: malformed; 422: a budget or top_k that cannot be."""
    body = read_object(raw)
    rag = body.pop("rag", None)
    options = _rag_options(rag)
    top_k = options.get("top_k")
    input_tokens = options.get("input_tokens")
    if not isinstance(body.get("stream") or False, bool):
        refuse(400, "stream must be true or false")
    if not isinstance(body.get("model") or "", str):
        refuse(400, "model must be a string")
    if top_k == 0:
        if input_tokens is not None:
            refuse(422, "rag.top_k 0 sends the prompt as it is, so rag.input_tokens cannot be kept: leave one out")
        question, shape = None, Shape(chat=chat, system="")
    else:
        question, shape = _question(body, chat=chat), _shape(body, defaults.system, chat=chat)
        top_k, input_tokens = top_k or defaults.top_k, input_tokens or defaults.input_tokens
        _check_budget(body, input_tokens, defaults.input_limit)
    return Asked(
        chat=chat,
        body=body,
        shape=shape,
        question=question,
        top_k=top_k,
        input_tokens=input_tokens,
        return_contexts=bool(options.get("return_contexts")),
        wants_rag=rag is not None,
        stream=bool(body.get("stream")),
    )


def check_question(text: object, field: str) -> str:
    """A question: text that is neither empty nor too long. 400 otherwise."""
    if not isinstance(text, str) or not text.strip():
        refuse(400, f"{field} holds no question: give a text that is not empty")
    if len(text) > QUESTION_LIMIT_CHARS:
        refuse(400, f"{field} has {len(text)} characters: a question may have up to {QUESTION_LIMIT_CHARS}")
    return text


def check_top_k(value: object, *, least: int, field: str = "rag.top_k") -> int | None:
    """An integer within the limits, or None. 400 for another type, 422 out of range."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(400, f"{field} must be an integer")
    if not least <= value <= TOP_K_LIMIT:
        refuse(422, f"{field} is {value}: give {least} to {TOP_K_LIMIT}")
    return value


def _rag_options(rag: object) -> dict[str, Any]:
    if rag is None:
        return {}
    if not isinstance(rag, dict):
        refuse(400, f"rag must be an object with {', '.join(_RAG_FIELDS)}")
    unknown = sorted(set(rag) - set(_RAG_FIELDS))
    if unknown:
        refuse(400, f"rag.{unknown[0]} is unknown: use {', '.join(_RAG_FIELDS)}")
    check_top_k(rag.get("top_k"), least=0)
    tokens = rag.get("input_tokens")
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool)):
        refuse(400, "rag.input_tokens must be an integer")
    if tokens is not None and tokens < 1:
        refuse(422, f"rag.input_tokens is {tokens}: give 1 or more")
    if not isinstance(rag.get("return_contexts", False), bool):
        refuse(400, "rag.return_contexts must be true or false")
    return rag


def _question(body: Mapping[str, Any], *, chat: bool) -> str:
    if not chat:
        if not isinstance(body.get("prompt"), str):
            refuse(400, "prompt must be one text, the question; for token ids or several prompts send rag.top_k 0")
        return check_question(body["prompt"], "prompt")
    asked = [message for message in _messages(body) if message.get("role") == "user"]
    if not asked:
        refuse(400, "messages holds no user message: its last one is the question")
    return check_question(_content(asked[-1]), "the last user message")


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        refuse(400, "messages is missing or empty: its last user message is the question")
    if not all(isinstance(message, dict) for message in messages):
        refuse(400, "messages must hold objects with role and content")
    return messages


def _content(message: Mapping[str, Any]) -> object:
    """A message's text; parts of type text are joined. 400 for images and the like."""
    content = message.get("content")
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        refuse(400, "messages may hold text only: this node retrieves by text")
    return "\n".join(map(str, texts))


def _system(body: Mapping[str, Any], default: str, *, chat: bool) -> str:
    """The client's own system message, if it sent one, else the node's."""
    own = [message for message in _messages(body) if message.get("role") == "system"] if chat else []
    content = _content(own[-1]) if own else default
    if not isinstance(content, str):
        refuse(400, "the system message must be a text")
    return content.strip()


def _check_budget(body: Mapping[str, Any], input_tokens: int | None, limit: int | None) -> None:
    if input_tokens is None:
        return
    if limit is not None and input_tokens > limit:
        refuse(422, f"input_tokens is {input_tokens}, the engine takes up to {limit}: ask for fewer")
    reshaping = [field for field in _RESHAPING if body.get(field)]
    if reshaping or body.get("add_generation_prompt") is False:
        field = reshaping[0] if reshaping else "add_generation_prompt"
        refuse(400, f"{field} changes the prompt's length, so input_tokens cannot be kept: leave it out")


def _shape(body: Mapping[str, Any], default_system: str, *, chat: bool) -> Shape:
    kwargs = body.get("chat_template_kwargs") or {}
    special = body.get("add_special_tokens")
    if not isinstance(kwargs, dict):
        refuse(400, "chat_template_kwargs must be an object")
    if chat and special:
        refuse(400, "add_special_tokens doubles the chat template's own: leave it out")
    return Shape(
        chat=chat,
        system=_system(body, default_system, chat=chat),
        template_kwargs=json.dumps(kwargs, sort_keys=True),
        special=special is not False,
    )
