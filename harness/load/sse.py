"""Server-sent events out of bytes, however the network cut them.

Works on bytes and never decodes them: what a field holds is the caller's affair. Follows the
event stream format of the HTML standard (section 9.2) except that `id` and `retry` are ignored,
since a load test never resumes a stream, and that a leading byte order mark is not looked for.

Knows nothing of HTTP, JSON or tokens.
"""

from __future__ import annotations

EVENT_LIMIT_BYTES = 8 << 20
"""A stream that sends more without closing an event is not SSE; memory stays bounded."""

Event = tuple[bytes, bytes]
"""(name, payload): name is b"" unless an `event` field named it; payload lines are joined by LF."""


class EventTooLargeError(ValueError):
    """More than EVENT_LIMIT_BYTES came without the blank line that ends an event."""


class Scanner:
    """Feed it reads in order; it returns the events each read completed.

    Line ends may be LF, CRLF or CR, mixed. An event the stream ends inside of is never returned,
    as the standard demands.
    """

    __slots__ = ("_after_cr", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False

    def feed(self, piece: bytes) -> list[Event]:
        """Events completed by `piece`, in order. Raises EventTooLargeError."""
        if self._after_cr or b"\r" in piece:
            piece = self._unify(piece)
        if self._rest:
            piece = self._rest + piece
        *blocks, self._rest = piece.split(b"\n\n")
        if len(self._rest) > EVENT_LIMIT_BYTES:
            raise EventTooLargeError(f"no event ended within {EVENT_LIMIT_BYTES} bytes")
        return [event for block in blocks if (event := _parse(block)) is not None]

    def _unify(self, piece: bytes) -> bytes:
        """The piece with LF line ends. A CR ends its line at once, so an LF that follows it, perhaps
        in the next read, belongs to it and is dropped."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parse(block: bytes) -> Event | None:
    """The event of one block of LF-separated lines; None if it carries no `data` field."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return b"", block[6:]
    name, payload = b"", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            payload.append(value)
        elif field == b"event":
            name = value
    return (name, b"\n".join(payload)) if payload else None
