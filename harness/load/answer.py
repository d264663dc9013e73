"""The bytes of one HTTP response, read as the answer to one request.

`Answer` is fed reads, each with the instant it arrived, and keeps what a `Sample` needs: when
tokens came, how many, what the server counted, how it ended. llhttp splits the HTTP message,
`sse.Scanner` the events, msgspec the JSON, and only the fields named below are ever decoded.

A chunk bears a token when its text, reasoning or tool call is not empty, or when the server's running
usage grew with it (a token may have no text of its own: half a character, a special token). The
role-only first chunk, empty chunks and usage-only chunks do not count, or TTFT would be the time to a
header.

Knows no sockets and no clock: it can be driven by a test with any bytes at any instants.
"""

from __future__ import annotations

import re
from typing import Any

import httptools
import msgspec

from harness.load.sse import EventTooLargeError, Scanner

EXCERPT_BYTES = 300
"""How much of an unexpected body is kept to explain a failure."""

BROKEN_FINISHES = ("abort", "error")
"""Finish reasons by which engines say that the answer broke off for a fault of theirs."""


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()
    message: str | None = None


class RagEvent(msgspec.Struct, gc=False):
    """The closing `rag` event of our node; contexts, if any, stay undecoded."""

    stages_ms: dict[str, float | None] = {}
    passage_ids: list[str] = []
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    request_id: str | None = None


_NO_ERROR = (b"", b"null")
_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_rag = msgspec.json.Decoder(RagEvent).decode

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TIMING = re.compile(r"([^\s;,=]+)[^,]*?;\s*dur\s*=\s*([0-9]*\.?[0-9]+)", re.IGNORECASE)


def read_server_timing(header: str) -> dict[str, float]:
    """Stage → milliseconds from one Server-Timing header (W3C). Metrics without a duration are left out."""
    plain = _QUOTED.sub(lambda quoted: quoted[1] if "," not in quoted[1] and ";" not in quoted[1] else "", header)
    return {name: float(duration) for name, duration in _TIMING.findall(plain)}


class Answer:
    """What has come so far. `failure` is None or a key of `harness.sample.FAILURES`.

    over        the HTTP message is complete: nothing more to read
    complete    the answer itself is: `[DONE]` or a finish reason came
    reusable    the connection may carry another request
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.over = False
        self.reusable = False
        self.done = False
        self.finish_reason: str | None = None
        self.failure: str | None = None
        self.error: str | None = None
        self.first_token_at: int | None = None
        self.last_token_at: int | None = None
        self.first_chunk_tokens: int | None = None
        self.chunks = 0
        self.gaps_ns: list[int] = []
        self.usage: _Usage | None = None
        self.header_id: str | None = None
        self.chunk_id: str | None = None
        self.rag: RagEvent | None = None
        self.received_bytes = 0
        self._stages_ms: dict[str, float] = {}
        self._now = 0
        self._events = 0
        self._framed = False
        self._streams = False
        self._body = b""
        self._scan = Scanner().feed
        self._parser: Any = httptools.HttpResponseParser(self)

    @property
    def complete(self) -> bool:
        return self.done or self.finish_reason is not None

    def feed(self, received: bytes, now: int) -> None:
        """Take one read that arrived at `now` (ns). A fault in the bytes ends up in `failure`."""
        self._now = now
        self.received_bytes += len(received)
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.over:
                self.fail("protocol", f"not HTTP: {error}")

    def close(self) -> None:
        """The connection ended. It may be how the body ends, or an answer cut short."""
        if self.status is not None and not self._framed:
            self.over, self.reusable = True, False
        else:
            self.break_off("connection closed")

    def break_off(self, reason: str) -> None:
        """The connection broke. After a complete answer that is no loss."""
        self.reusable = False
        if self.received_bytes == 0:
            self.fail("truncated", f"{reason} before any response byte")
        elif not self.over and not self.complete:
            self.fail("truncated", f"{reason} after {self.chunks} chunks with tokens")

    def fail(self, failure: str, error: str) -> None:
        """Note the first failure; later ones are its consequences."""
        if self.failure is None:
            self.failure, self.error = failure, error

    def judge(self) -> None:
        """Once nothing more comes: decide whether this was an answer."""
        if self.status is not None and not self._streams:
            self.failure, self.error = "http_status", f"{self.status} {self._excerpt()}".strip()
        elif self.failure is None and not self.complete:
            self._judge_incomplete()
        elif self.failure is None and self.finish_reason in BROKEN_FINISHES:
            self.fail("stream_error", f"finish reason '{self.finish_reason}'")
        elif self.failure is None and self.chunks == 0:
            self.fail("empty", "the stream is complete and holds no token")

    def _judge_incomplete(self) -> None:
        if self._events == 0 and self._body:
            self.fail("protocol", f"not a stream of events: {self._excerpt()}")
        else:
            self.fail("truncated", f"the stream ended before [DONE], after {self.chunks} chunks with tokens")

    def _excerpt(self) -> str:
        return " ".join(self._body[:EXCERPT_BYTES].decode("utf-8", "replace").split())

    @property
    def stages_ms(self) -> dict[str, float]:
        """Stage durations: the Server-Timing header's, overridden by the `rag` event's."""
        told = {} if self.rag is None else self.rag.stages_ms
        return self._stages_ms | {name: value for name, value in told.items() if value is not None}

    @property
    def request_id(self) -> str | None:
        return self.header_id or (self.rag and self.rag.request_id) or self.chunk_id

    @property
    def prompt_tokens(self) -> int | None:
        if self.usage is not None and self.usage.prompt_tokens is not None:
            return self.usage.prompt_tokens
        return None if self.rag is None else self.rag.prompt_tokens

    @property
    def output_tokens(self) -> int | None:
        return None if self.usage is None else self.usage.completion_tokens

    @property
    def cached_tokens(self) -> int | None:
        details = None if self.usage is None else self.usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return None if self.rag is None else self.rag.cached_tokens

    # Called by llhttp, in the order of the message.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"server-timing":
            self._stages_ms.update(read_server_timing(value.decode("latin-1")))
        elif name == b"x-request-id":
            self.header_id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = int(self._parser.get_status_code())
        self.status, self._streams = status, 200 <= status < 300

    def on_body(self, piece: bytes) -> None:
        if len(self._body) < EXCERPT_BYTES:
            self._body += piece[:EXCERPT_BYTES]
        if not self._streams:
            return
        try:
            for name, payload in self._scan(piece):
                self._events += 1
                self._on_event(name, payload)
        except EventTooLargeError as error:
            self.fail("protocol", str(error))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.fail(
                "protocol", f"bad JSON in the stream ({error}): {payload[:EXCERPT_BYTES].decode('utf-8', 'replace')}"
            )

    def on_message_complete(self) -> None:
        if self.status is not None and self.status < 200:  # an interim response: the real one follows
            self.status, self._framed = None, False
            return
        self.over = True
        self.reusable = self._parser.should_keep_alive()

    def _on_event(self, name: bytes, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.done = True
        elif name == b"rag":
            self.rag = _read_rag(payload)
        elif name == b"error":
            self.fail("stream_error", payload[:EXCERPT_BYTES].decode("utf-8", "replace"))
        elif name in (b"", b"message"):
            self._on_chunk(_read_chunk(payload), payload)

    def _on_chunk(self, chunk: _Chunk, payload: bytes) -> None:
        before = self.output_tokens
        if chunk.usage is not None:
            self.usage = chunk.usage
        grown = before is not None and (self.output_tokens or 0) > before
        if self.chunk_id is None:
            self.chunk_id = chunk.id
        if bytes(chunk.error) not in _NO_ERROR or (chunk.choices is None and chunk.message is not None):
            self.fail("stream_error", payload[:EXCERPT_BYTES].decode("utf-8", "replace"))
        choices = chunk.choices
        if choices:
            if choices[0].finish_reason is not None:
                self.finish_reason = choices[0].finish_reason
            if grown or _bears_token(choices[0]):
                self._on_token()

    def _on_token(self) -> None:
        if self.last_token_at is None:
            self.first_token_at = self._now
            self.first_chunk_tokens = self.output_tokens
        else:
            self.gaps_ns.append(self._now - self.last_token_at)
        self.chunks += 1
        self.last_token_at = self._now


def _bears_token(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
