"""Requests of vLLM's OpenAI API, read and judged: a JSON body becomes an `Asked`, or a `RefusalError`.

What the simulated engine cannot do (several choices, log-probabilities, tools, guided decoding) is
refused, not ignored. Knows bodies and token counts; does not run anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.engine.text import Wanted
from harness.engine.tokens import Message, TemplateError, Tokens

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for /v1/completions."""
_NOT_SIMULATED = (
    *(
        "include_stop_str_in_output",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logit_bias",
        "echo",
        "suffix",
        "tools",
        "structured_outputs",
    ),
    *("stop_token_ids", "truncate_prompt_tokens", "chat_template", "continue_final_message", "prompt_embeds"),
)
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")


class RefusalError(Exception):
    """A request that is answered with an error object instead of an answer."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    @property
    def body(self) -> bytes:
        """vLLM's error object as JSON."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        row = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": row})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A generation request that can be served.

    prompt_ids  the whole prompt; `text` is what the answer is drawn from, the question last
    """

    chat: bool
    prompt_ids: list[int]
    text: str
    wanted: Wanted
    stream: bool
    include_usage: bool
    continuous_usage: bool


def body_of(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises RefusalError."""
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise RefusalError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusalError("the body is not a JSON object")
    return body


def request_id(given: str | None) -> str | None:
    """The caller's X-Request-Id if it is fit for an id, else None."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else None


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Raise a 404 RefusalError if another model is named; none named is fine."""
    name = body.get("model")
    if name not in (None, "", served):
        raise RefusalError(
            f"The model `{name}` does not exist; this engine serves `{served}`.", param="model", status=404
        )


def read_chat(body: Mapping[str, Any], tokens: Tokens, max_model_len: int, seed: int) -> Asked:
    """A /v1/chat/completions body. Raises RefusalError."""
    messages = messages_of(body)
    prompt_ids = chat_ids(body, messages, tokens)
    most = body.get("max_completion_tokens")
    asked = [message["content"] for message in messages if message["role"] == "user"]
    text = asked[-1] if asked else messages[-1]["content"]
    param = "max_tokens" if most is None else "max_completion_tokens"
    return _asked(body, prompt_ids, text, chat=True, param=param, limit=max_model_len, seed=seed)


def read_completion(body: Mapping[str, Any], tokens: Tokens, max_model_len: int, seed: int) -> Asked:
    """A /v1/completions body. Raises RefusalError."""
    prompt = _one_prompt(body.get("prompt"))
    if isinstance(prompt, str):
        special = body.get("add_special_tokens") is not False
        prompt_ids, text = tokens.encode(prompt, special=special), prompt
    else:
        if not tokens.known(prompt):
            raise RefusalError("prompt holds a token id that is out of vocabulary", param="prompt")
        prompt_ids, text = list(prompt), tokens.decode(prompt)
    return _asked(body, prompt_ids, text, chat=False, param="max_tokens", limit=max_model_len, seed=seed)


def messages_of(body: Mapping[str, Any]) -> list[Message]:
    """The messages with their content as text. Raises RefusalError."""
    rows = body.get("messages")
    if not isinstance(rows, list) or not rows:
        raise RefusalError("messages must be a non-empty list", param="messages")
    return [_message(row) for row in rows]


def chat_ids(body: Mapping[str, Any], messages: Sequence[Message], tokens: Tokens) -> list[int]:
    """Token ids of the rendered template, as the body asks for it. Raises RefusalError."""
    generation_prompt = body.get("add_generation_prompt") is not False
    kwargs = _object(body, "chat_template_kwargs")
    try:
        text = tokens.chat_text(messages, generation_prompt=generation_prompt, **kwargs)
    except TemplateError as error:
        raise RefusalError(str(error), param="messages") from error
    return tokens.encode(text, special=body.get("add_special_tokens") is True)


def _asked(
    body: Mapping[str, Any], prompt_ids: list[int], text: str, *, chat: bool, param: str, limit: int, seed: int
) -> Asked:
    _refuse_what_is_not_simulated(body)
    options = _object(body, "stream_options")
    stream = body.get("stream") is True
    if options and not stream:
        raise RefusalError("stream_options needs stream to be true", param="stream_options")
    include_usage = options.get("include_usage") is True
    return Asked(
        chat=chat,
        prompt_ids=prompt_ids,
        text=text,
        wanted=_wanted(body, len(prompt_ids), chat=chat, param=param, limit=limit, seed=seed),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
    )


def _wanted(body: Mapping[str, Any], prompt: int, *, chat: bool, param: str, limit: int, seed: int) -> Wanted:
    room = limit - prompt
    most = _whole(body, param, 1) or (room if chat else COMPLETION_TOKENS)
    least = _whole(body, "min_tokens", 0) or 0
    _check_length(prompt, most, limit, param)
    if least > most:
        raise RefusalError(f"min_tokens {least} is more than max_tokens {most}", param="min_tokens")
    given = _whole(body, "seed", None)
    return Wanted(
        max_tokens=most,
        min_tokens=least,
        ignore_eos=body.get("ignore_eos") is True,
        stop=_stop(body.get("stop")),
        seed=seed if given is None else given,
    )


def _check_length(prompt: int, most: int, limit: int, param: str) -> None:
    if prompt == 0:
        raise RefusalError("the prompt is empty", param="prompt")
    if prompt >= limit:
        raise RefusalError(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt} input "
            "tokens, and at least one is needed for the answer. Please shorten the prompt.",
            param="input_tokens",
        )
    if prompt + most > limit:
        raise RefusalError(
            f"This model's maximum context length is {limit} tokens. However, you asked for {most} output tokens and "
            f"your prompt contains {prompt} input tokens, {prompt + most} in all. Please shorten either.",
            param=param,
        )


def _refuse_what_is_not_simulated(body: Mapping[str, Any]) -> None:
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise RefusalError("only n=1 is simulated", param="n")
    for name in _NOT_SIMULATED:
        if body.get(name) not in (None, False, "", [], {}):
            raise RefusalError(f"{name} is not simulated: leave it out, or use a real engine", param=name)
    if _object(body, "response_format").get("type") not in (None, "text"):
        raise RefusalError("only response_format text is simulated: use a real engine", param="response_format")


def _message(row: object) -> Message:
    if not isinstance(row, dict) or not isinstance(row.get("role"), str):
        raise RefusalError("each message needs a role and a content", param="messages")
    return {"role": row["role"], "content": _content(row.get("content"))}


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise RefusalError("message content must be text or a list of text parts", param="messages")
    return "\n".join(map(str, texts))


def _one_prompt(prompt: object) -> str | list[int]:
    """The one prompt in any of the forms OpenAI allows. Raises RefusalError."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise RefusalError("prompt must be one string or one list of token ids", param="prompt")


def _stop(value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise RefusalError("stop must be a string or a list of non-empty strings", param="stop")
    return tuple(words)


def _whole(body: Mapping[str, Any], name: str, least: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise RefusalError(f"{name} must be a whole number{bound}, got {value!r}", param=name)
    return value


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusalError(f"{name} must be an object", param=name)
    return value
