"""The client of the engine: sends a prompt, passes the answer's bytes on, notes when tokens came.

The stream is not decoded: two regular expressions per read tell whether it bears a token and where
the last `usage` is, which is parsed once, at the end. Knows vLLM's OpenAI API; knows no retrieval.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic, perf_counter
from typing import Any

import aiohttp

from harness.errors import TargetError

CONNECT_TIMEOUT_S = 5.0
PLAIN_TIMEOUT_S = 10.0
"""For everything but generation, which may queue for as long as its client waits."""
KEEP_ALIVE_S = 3.0
"""Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection."""
EXCERPT_BYTES = 300
_ERROR_BYTES = 64 << 10
_REST_LIMIT_BYTES = 1 << 20
_POLL_S = 0.25

# Quotes inside JSON strings are escaped, so these never match generated text.
_TOKEN = re.compile(rb'"(?:content|reasoning|reasoning_content|text)":\s?"(?!")|"tool_calls":\s?\[\s?\{')
_USAGE = re.compile(rb'"usage":\s?\{')
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
_ERROR = re.compile(rb'(?:^|[\r\n])(?:event: ?error|data: ?\{"error":)')
_NETWORK_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class Progress:
    """What the bytes of one streamed answer have shown so far. Instants are of `perf_counter`, in s.

    done    `[DONE]` came
    failed  the engine put an error into the stream
    """

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.done = False
        self.failed = False
        self._rest = b""
        self._usage = b""

    def feed(self, piece: bytes, now_s: float) -> None:
        """Take one read. Only events it completes count, as they do for the client."""
        block = self._rest + piece if self._rest else piece
        end = _end_of_events(block)
        self._rest = block[end:] if len(block) - end < _REST_LIMIT_BYTES else b""
        events = block[:end]
        if not events:
            return
        if _TOKEN.search(events):
            self.last_token_s = now_s
            if self.first_token_s is None:
                self.first_token_s = now_s
        if _USAGE.search(events):
            self._usage = events
        self.done = self.done or _DONE.search(events) is not None
        self.failed = self.failed or _ERROR.search(events) is not None

    @property
    def inside_event(self) -> bool:
        """The bytes so far end inside an event."""
        return bool(self._rest)

    @property
    def usage(self) -> Mapping[str, Any]:
        """The last usage object; empty if none came."""
        for line in reversed(self._usage.splitlines()):
            if line.startswith(b"data:") and _USAGE.search(line):
                return usage_of(line[5:])
        return {}


def _end_of_events(block: bytes) -> int:
    """Length of the part that consists of whole events."""
    lf, crlf = block.rfind(b"\n\n"), block.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def usage_of(text: bytes) -> Mapping[str, Any]:
    """The `usage` object of an answer in JSON; empty if there is none."""
    try:
        row = json.loads(text)
    except ValueError:
        return {}
    usage = row.get("usage") if isinstance(row, dict) else None
    return usage if isinstance(usage, dict) else {}


class Engine:
    """One engine at `url` and a pool of connections to it. Make it inside a running event loop."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
        )
        self._plain_timeout = aiohttp.ClientTimeout(total=PLAIN_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)

    async def close(self) -> None:
        await self._session.close()

    async def wait_up(self, timeout_s: float) -> None:
        """Poll /health until it answers 200. Raises TargetError."""
        deadline = monotonic() + timeout_s
        while (reason := await self.trouble()) is not None:
            if monotonic() > deadline:
                raise TargetError(
                    f"engine at {self.url} did not answer ({reason}): start it with `ragload engine` or vLLM, or give "
                    "its URL with --engine"
                )
            await asyncio.sleep(_POLL_S)

    async def trouble(self) -> str | None:
        """Why the engine is not healthy; None if it is."""
        try:
            async with self._session.get(f"{self.url}/health", timeout=self._plain_timeout) as reply:
                return None if reply.status == 200 else f"/health answers {reply.status}"
        except _NETWORK_ERRORS as error:
            return _reason(error)

    async def get_text(self, path: str) -> str:
        """A GET's body. Raises TargetError unless the status is 200."""
        try:
            async with self._session.get(f"{self.url}{path}", timeout=self._plain_timeout) as reply:
                body = await reply.read()
        except _NETWORK_ERRORS as error:
            raise TargetError(f"engine at {self.url} did not answer {path} ({_reason(error)})") from error
        if reply.status != 200:
            raise TargetError(f"engine at {self.url} answers {reply.status} to {path}: {excerpt(body)}")
        return body.decode("utf-8", "replace")

    async def get_json(self, path: str) -> dict[str, Any]:
        """A GET's JSON object. Raises TargetError."""
        return self._object(path, await self.get_text(path))

    async def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A POST's JSON object. Raises TargetError."""
        try:
            async with self._session.post(f"{self.url}{path}", json=body, timeout=self._plain_timeout) as reply:
                answer = await reply.read()
        except _NETWORK_ERRORS as error:
            raise TargetError(f"engine at {self.url} did not answer {path} ({_reason(error)})") from error
        if reply.status != 200:
            raise TargetError(f"engine at {self.url} answers {reply.status} to {path}: {excerpt(answer)}")
        return self._object(path, answer.decode("utf-8", "replace"))

    async def models(self) -> list[dict[str, Any]]:
        """The rows of /v1/models, never empty. Raises TargetError."""
        rows = (await self.get_json("/v1/models")).get("data")
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "id" in row for row in rows):
            raise TargetError(f"engine at {self.url} lists no model at /v1/models: is it an OpenAI-compatible server?")
        return rows

    async def token_ids(self, body: Mapping[str, Any]) -> list[int]:
        """What the engine's /tokenize makes of a prompt. Raises TargetError."""
        row = await self.post_json("/tokenize", body)
        tokens = row.get("tokens")
        if not isinstance(tokens, list):
            raise TargetError(f"engine at {self.url} answers /tokenize without tokens")
        return tokens

    @asynccontextmanager
    async def generate(self, path: str, body: bytes, request_id: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a generation request; the response, once its head is here. Leaving early cancels it there.

        Raises TargetError if the engine does not answer.
        """
        response = await self._send(path, body, request_id)
        try:
            yield response
        finally:
            response.close()  # a no-op once the whole body is read

    async def _send(self, path: str, body: bytes, request_id: str) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        send = partial(self._session.post, f"{self.url}{path}", data=body, headers=headers)
        try:
            try:
                return await send()
            except aiohttp.ServerDisconnectedError:
                return await send()  # a pooled connection that the engine had closed meanwhile: take another
        except _NETWORK_ERRORS as error:
            raise TargetError(f"engine at {self.url} did not answer ({_reason(error)})") from error

    def _object(self, path: str, text: str) -> dict[str, Any]:
        try:
            row = json.loads(text)
        except ValueError as error:
            raise TargetError(f"engine at {self.url} answers {path} with no JSON: {text[:EXCERPT_BYTES]}") from error
        if not isinstance(row, dict):
            raise TargetError(f"engine at {self.url} answers {path} with no JSON object")
        return row


async def pieces(response: aiohttp.ClientResponse, progress: Progress) -> AsyncIterator[bytes]:
    """The body as it arrives, unchanged; `progress` is kept. Raises TargetError if it breaks off before `[DONE]`."""
    try:
        while piece := await response.content.readany():
            progress.feed(piece, perf_counter())
            yield piece
    except _NETWORK_ERRORS as error:
        if not progress.done:
            raise TargetError(f"the engine's stream broke off ({_reason(error)})") from error
    if not progress.done:
        raise TargetError("the engine's stream ended before the answer did")


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """The body, all of it. Raises TargetError if it breaks off."""
    try:
        return await response.read()
    except _NETWORK_ERRORS as error:
        raise TargetError(f"the engine's answer broke off ({_reason(error)})") from error


async def error_text(response: aiohttp.ClientResponse) -> str:
    """What an error response says: its OpenAI error message if it has one, else an excerpt."""
    try:
        body = await response.content.read(_ERROR_BYTES)
    except _NETWORK_ERRORS:
        return "(no message)"
    try:
        row = json.loads(body)
        message = row.get("error", row)
        return str(message["message"] if isinstance(message, dict) else message)
    except (ValueError, KeyError, AttributeError):
        return excerpt(body)


def excerpt(body: bytes) -> str:
    """The start of a body on one line."""
    return " ".join(body[:EXCERPT_BYTES].decode("utf-8", "replace").split()) or "(empty)"


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
