"""One streaming HTTP/1.1 connection, and one request over it whose outcome is always a `Sample`.

Plain blocking sockets: under Locust gevent has patched them, so a wait yields to the other users.
The clock is read straight after `recv` returns, before anything is parsed.

A request is sent once, whatever happens. A connection kept from an earlier answer is looked at before
it is used again: one the target has closed meanwhile is replaced, and counted, before anything is sent.

Knows HTTP only through `Answer`, and neither Locust nor what is asked.
"""

from __future__ import annotations

import select
import socket
import ssl
from dataclasses import dataclass
from time import monotonic_ns
from urllib.parse import urlsplit

from harness.errors import UsageError
from harness.load.answer import Answer
from harness.sample import Sample

READ_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Longest each phase of a request may take, in seconds; the failure names the phase.

    `first_token_s` and `whole_s` count from the sending, `between_tokens_s` from the last token.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    between_tokens_s: float = 120.0
    whole_s: float = 900.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go: `http://host:port/prefix`, taken apart."""

    url: str
    host: str
    port: int
    prefix: str
    tls: bool


def parse_target(url: str) -> Target:
    """Read a base URL. A trailing `/v1` is dropped, since paths name it. Raises UsageError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the host '{url}' does not parse ({error}): write it as http://node:8000") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"the host '{url}' is no address: write it as http://node:8000")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(url=url.rstrip("/"), host=parts.hostname, port=port or (443 if tls else 80), prefix=prefix, tls=tls)


class Call:
    """One request on its way: what a `Sample` says besides the answer."""

    def __init__(self, *, seq: int, user: int, name: str, question_id: str | None = None) -> None:
        self.seq, self.user, self.name, self.question_id = seq, user, name, question_id
        self.scheduled_at = monotonic_ns()
        self.sent_at: int | None = None
        self.failed_at: int | None = None
        self.answer = Answer()

    def fail(self, failure: str, error: str) -> None:
        """End this request as a failure, now."""
        self.answer.fail(failure, error)
        self.failed_at = monotonic_ns()

    def sample(self) -> Sample:
        """The frozen record: a failure ends when it failed, a success at its last token."""
        answer = self.answer
        ended_at = answer.last_token_at if answer.failure is None else self.failed_at
        return Sample(
            seq=self.seq,
            user=self.user,
            name=self.name,
            scheduled_at=self.scheduled_at,
            sent_at=self.scheduled_at if self.sent_at is None else self.sent_at,
            ended_at=monotonic_ns() if ended_at is None else ended_at,
            first_token_at=answer.first_token_at,
            failure=answer.failure,
            status=answer.status,
            error=answer.error,
            request_id=answer.request_id,
            question_id=self.question_id,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            first_chunk_tokens=answer.first_chunk_tokens,
            chunks=answer.chunks,
            gaps_ns=tuple(answer.gaps_ns),
            stages_ms=answer.stages_ms,
            passage_ids=() if answer.rag is None else tuple(answer.rag.passage_ids),
        )


class Connection:
    """One user's connection to the target, opened when needed and kept while the target keeps it."""

    def __init__(self, target: Target, timeouts: Timeouts | None = None, headers: dict[str, str] | None = None) -> None:
        self.target = target
        self.timeouts = timeouts or Timeouts()
        self.reconnects = 0
        self._socket: socket.socket | None = None
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        host = f"[{target.host}]" if ":" in target.host else target.host
        self._fixed = (
            f"Host: {host}:{target.port}\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n{extra}"
        )
        limits = self.timeouts
        self._first_ns, self._between_ns, self._whole_ns = (
            round(seconds * 1e9) for seconds in (limits.first_token_s, limits.between_tokens_s, limits.whole_s)
        )

    def post(self, path: str, body: bytes, call: Call) -> None:
        """Send `body` to `path` and read the answer into `call`. Failures end up there too, never as exceptions."""
        head = f"POST {self.target.prefix}{path} HTTP/1.1\r\n{self._fixed}Content-Length: {len(body)}\r\n\r\n"
        request = head.encode("latin-1") + body
        self._drop_if_closed()
        self._attempt(request, call)
        call.answer.judge()
        if call.answer.failure is not None and call.failed_at is None:
            call.failed_at = monotonic_ns()

    def open(self) -> None:
        """Connect now, so that no request pays for it. Raises OSError; a later `post` tries again."""
        if self._socket is None:
            self._socket = _connect(self.target, self.timeouts.connect_s)

    def close(self) -> None:
        """Drop the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _drop_if_closed(self) -> None:
        """Let go of a kept connection on which something waits before anything was asked: its end."""
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.reconnects += 1
            self.close()

    def _attempt(self, request: bytes, call: Call) -> None:
        try:
            connection = self._try_open(call)
            if connection is not None:
                self._converse(connection, request, call)
        finally:  # also when the greenlet is killed: half an answer must not be read by the next request
            if not call.answer.reusable:
                self.close()

    def _try_open(self, call: Call) -> socket.socket | None:
        try:
            self.open()
        except TimeoutError:
            call.answer.fail("timeout", f"connect: no connection within {self.timeouts.connect_s:g} s")
        except OSError as error:
            call.answer.fail("refused", error.strerror or str(error))
        return self._socket

    def _converse(self, connection: socket.socket, request: bytes, call: Call) -> None:
        answer, now = call.answer, monotonic_ns()
        if call.sent_at is None:
            call.sent_at = now
        try:
            connection.settimeout(self.timeouts.first_token_s)
            connection.sendall(request)
            while not answer.over and answer.failure is None:
                connection.settimeout(self._remaining_s(call, now))
                received = connection.recv(READ_BYTES)
                now = monotonic_ns()
                if not received:
                    answer.close()
                    break
                answer.feed(received, now)
        except TimeoutError:
            if not answer.complete:
                answer.fail("timeout", self._overdue(call))
        except OSError as error:
            answer.break_off(error.strerror or str(error))

    def _remaining_s(self, call: Call, now: int) -> float:
        """Seconds until the nearest limit. Raises TimeoutError when one has passed."""
        sent_at, last_token_at = call.sent_at or now, call.answer.last_token_at
        limit = sent_at + self._first_ns if last_token_at is None else last_token_at + self._between_ns
        remaining = min(limit, sent_at + self._whole_ns) - now
        if remaining <= 0:
            raise TimeoutError
        return remaining / 1e9

    def _overdue(self, call: Call) -> str:
        limits, now = self.timeouts, monotonic_ns()
        if now - (call.sent_at or now) >= self._whole_ns:
            return f"whole: not over within {limits.whole_s:g} s"
        if call.answer.last_token_at is None:
            return f"first token: none within {limits.first_token_s:g} s"
        return f"between tokens: none for {limits.between_tokens_s:g} s after {call.answer.chunks} chunks"


def _connect(target: Target, timeout_s: float) -> socket.socket:
    """A connected socket without Nagle's delay, TLS included. Raises OSError (ssl.SSLError is one)."""
    raw = socket.create_connection((target.host, target.port), timeout=timeout_s)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not target.tls:
            return raw
        return ssl.create_default_context().wrap_socket(raw, server_hostname=target.host)
    except OSError:
        raw.close()
        raise
