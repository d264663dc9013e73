"""Answers as vLLM's bytes: the SSE events of a stream, and the one JSON object without streaming.

What is equal in all events of a stream is put together once, so that an event costs one JSON string
and one join. Knows the wire format; no time, no connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from harness.engine.asked import Asked
from harness.engine.text import Answer

DONE = b"data: [DONE]\n\n"
_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class Wire:
    """The bytes of one answer. `cached_tokens` is None until the engine has looked."""

    def __init__(self, asked: Asked, answer: Answer, *, id: str, model: str) -> None:  # noqa: A002 (its name on the wire)
        self._asked = asked
        self._answer = answer
        self._frame = {"id": id, "created": int(time.time()), "model": model}
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        frame = _json({**self._frame, "object": kind})[:-1]
        self._open = b"data: " + frame + b',"choices":[{"index":0,'
        self._head = self._open + (b'"delta":{"content":' if asked.chat else b'"text":')
        self._tail = (b"}" if asked.chat else b"") + b',"logprobs":null,"finish_reason":'
        self._closing = b"data: " + frame + b',"choices":[],"usage":'
        self._prompt = len(asked.prompt_ids)

    def opening(self) -> bytes:
        """The event that names the role, without a token; nothing for plain completions."""
        if not self._asked.chat:
            return b""
        rest = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._open + rest + self._continuous(0)

    def events(self, start: int, end: int) -> bytes:
        """Events of tokens `start` to `end` − 1; one whose character is incomplete rides with the next."""
        return b"".join([self._event(index) for index in range(start, end)])

    def _event(self, index: int) -> bytes:
        text = self._answer.texts[index]
        if index + 1 == len(self._answer.texts):
            finish = _json(self._answer.finish_reason) + b',"stop_reason":' + _json(self._answer.stop_reason)
        elif text:
            finish = b"null"
        else:
            return b""
        return self._head + _json(text) + self._tail + finish + b"}]" + self._continuous(index + 1)

    def _continuous(self, tokens: int) -> bytes:
        if not self._asked.continuous_usage:
            return b"}\n\n"
        return b',"usage":' + _json(self._usage(tokens)) + b"}\n\n"

    def closing(self, cached_tokens: int) -> bytes:
        """The last events: usage if asked for, and the end mark."""
        if not self._asked.include_usage:
            return DONE
        return self._closing + _json(self._whole_usage(cached_tokens)) + b"}\n\n" + DONE

    def whole(self, cached_tokens: int) -> bytes:
        """The answer as one JSON object."""
        choice: dict[str, Any] = {"index": 0}
        if self._asked.chat:
            choice["message"] = {"role": "assistant", "content": self._answer.text, "tool_calls": []}
        else:
            choice["text"] = self._answer.text
        choice |= {"logprobs": None, "finish_reason": self._answer.finish_reason}
        choice["stop_reason"] = self._answer.stop_reason
        kind = "chat.completion" if self._asked.chat else "text_completion"
        usage = self._whole_usage(cached_tokens)
        return _json({**self._frame, "object": kind, "choices": [choice], "usage": usage})

    def _usage(self, tokens: int) -> dict[str, Any]:
        return {"prompt_tokens": self._prompt, "total_tokens": self._prompt + tokens, "completion_tokens": tokens}

    def _whole_usage(self, cached_tokens: int) -> dict[str, Any]:
        usage = self._usage(len(self._answer.ids))
        return {**usage, "prompt_tokens_details": {"cached_tokens": cached_tokens}}
