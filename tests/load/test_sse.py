"""The scanner finds the same events however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load import sse
from harness.load.sse import EventTooLargeError, Scanner


def scan(*pieces: bytes) -> list[tuple[bytes, bytes]]:
    scanner = Scanner()
    return [event for piece in pieces for event in scanner.feed(piece)]


LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data:  c",
        b"event: rag",
        b"event:x",
        b": note",
        b"id: 1",
        b"retry: 5",
        b"",
        b"x",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=30).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 300), max_size=12))
def test_any_cut_gives_the_same_events(stream, cuts):
    """However a stream is cut into reads, the same events come out."""
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]

    assert scan(*pieces) == scan(stream)


@given(stream=STREAMS)
def test_byte_by_byte_equals_the_standard(stream):
    """The events are those of the standard's line-by-line algorithm."""
    assert scan(*(stream[i : i + 1] for i in range(len(stream)))) == by_the_standard(stream)


def by_the_standard(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The HTML standard's interpretation, line by line, over the whole stream."""
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events, name, payload = [], b"", []
    for line in text.split(b"\n")[:-1]:
        if not line:
            if payload:
                events.append((name, b"\n".join(payload)))
            name, payload = b"", []
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                payload.append(value)
            elif field == b"event":
                name = value
    return events


def test_several_events_in_one_read():
    """One read may hold several events, and the start of the next one waits."""
    assert scan(b"data: 1\n\ndata: 2\n\ndata: 3\n") == [(b"", b"1"), (b"", b"2")]


def test_named_event_with_lines():
    """An event keeps its name, and its data lines are joined by line feeds."""
    assert scan(b": hello\r\nevent: rag\r\ndata: {\r\ndata: }\r\n\r\n") == [(b"rag", b"{\n}")]


def test_unended_event_is_refused(monkeypatch):
    """A stream that never ends an event is an error before it fills the memory."""
    monkeypatch.setattr(sse, "EVENT_LIMIT_BYTES", 100)
    with pytest.raises(EventTooLargeError, match="100 bytes"):
        scan(b"x" * 60, b"x" * 60)
