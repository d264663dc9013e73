"""What is read out of a response's bytes."""

from __future__ import annotations

import pytest

from harness.load.answer import Answer, read_server_timing

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def answer(*payloads: str, head: bytes = HEAD) -> Answer:
    """The answer whose events carry `payloads`, one read each, 10 ns apart, then the connection's end."""
    found = Answer()
    found.feed(head, 0)
    for index, payload in enumerate(payloads, 1):
        found.feed(f"data: {payload}\n\n".encode(), 10 * index)
    found.close()
    found.judge()
    return found


def delta(fields: str, more: str = "") -> str:
    return f'{{"choices": [{{"index": 0, "delta": {fields}}}]{more}}}'


@pytest.mark.parametrize(
    "fields",
    ['{"role": "assistant"}', '{"role": "assistant", "content": ""}', '{"content": null}', '{"tool_calls": []}', "{}"],
)
def test_chunk_without_token(fields):
    """A role-only, empty or null chunk is no token, so it is not the first one."""
    found = answer(delta(fields), delta('{"content": "a"}'), "[DONE]")

    assert (found.first_token_at, found.chunks) == (20, 1)


@pytest.mark.parametrize(
    "fields",
    [
        '{"content": " "}',
        '{"reasoning": "hm"}',
        '{"reasoning_content": "hm"}',
        '{"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}',
    ],
)
def test_chunk_with_token(fields):
    """Content, reasoning and tool-call deltas all bear tokens."""
    assert answer(delta(fields), "[DONE]").first_token_at == 10


def test_completions_text():
    """The completions API's `text` bears tokens too."""
    assert answer('{"choices": [{"text": "a"}]}', '{"choices": [{"text": ""}]}', "[DONE]").chunks == 1


def test_continuous_usage():
    """Tokens of the first chunk and of the answer come from the server's own count."""
    chunks = (
        delta('{"content": "abc"}', f', "usage": {{"prompt_tokens": 9, "completion_tokens": {n}}}') for n in (3, 5)
    )
    found = answer(*chunks, "[DONE]")

    assert (found.first_chunk_tokens, found.output_tokens, found.prompt_tokens, found.chunks) == (3, 5, 9, 2)


def test_token_without_text():
    """A chunk without text bears a token when the running usage grew with it, and none when it did not."""
    counted = [f', "usage": {{"completion_tokens": {tokens}}}' for tokens in (0, 1, 1, 2)]
    texts = ("", "", "", "b")
    chunks = [delta(f'{{"content": "{text}"}}', more) for text, more in zip(texts, counted, strict=True)]

    assert (answer(*chunks, "[DONE]").first_token_at, answer(*chunks, "[DONE]").gaps_ns) == (20, [20])


def test_usage_at_the_end_is_no_token():
    """A finishing chunk that carries the whole usage, and no text, bears no token."""
    last = '{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'

    assert answer(delta('{"content": "a"}'), last, "[DONE]").chunks == 1


def test_no_usage():
    """Without `usage` token counts are missing, not guessed from chunks."""
    found = answer(delta('{"content": "a"}'), "[DONE]")

    assert (found.output_tokens, found.prompt_tokens, found.first_chunk_tokens) == (None, None, None)


def test_last_token_is_not_done():
    """The answer ends at its last token; what follows is not part of its latency."""
    found = answer(delta('{"content": "a"}'), delta('{"content": "b"}'), delta("{}"), "[DONE]")

    assert (found.last_token_at, found.gaps_ns) == (20, [10])


@pytest.mark.parametrize(
    "payload", ['{"error": {"message": "x"}}', '{"object": "error", "message": "x"}', '{"error": "boom"}']
)
def test_error_after_tokens(payload):
    """An error object in the stream makes the request a failure, also after tokens and before [DONE]."""
    found = answer(delta('{"content": "a"}'), payload, "[DONE]")

    assert (found.failure, found.chunks) == ("stream_error", 1)


def test_null_error_is_none():
    """A chunk that says `"error": null` says that there is none."""
    assert answer(delta('{"content": "a"}', ', "error": null'), "[DONE]").failure is None


def test_broken_finish_reason():
    """An answer the engine broke off is a failure although it says [DONE]."""
    payload = '{"choices": [{"delta": {"content": "a"}, "finish_reason": "abort"}]}'

    assert answer(payload, "[DONE]").failure == "stream_error"


def test_interim_response():
    """A 100 Continue before the answer is not the answer."""
    assert answer(delta('{"content": "a"}'), "[DONE]", head=b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD).failure is None


def test_stages_of_the_event_go_before_the_header():
    """The closing event's stage times override the header's, unknown ones stay out."""
    found = Answer()
    found.feed(HEAD.replace(b"Connection", b"Server-Timing: wait;dur=1, embed;dur=2\r\nConnection"), 0)
    found.feed(b'event: rag\ndata: {"stages_ms": {"embed": 3.5, "queue": null}, "contexts": [{"id": "p"}]}\n\n', 1)

    assert found.stages_ms == {"wait": 1.0, "embed": 3.5}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("wait;dur=1.2, embed;dur=3.4;desc=x", {"wait": 1.2, "embed": 3.4}),
        ('a;desc="x, y;dur=9";dur=0.5', {"a": 0.5}),
        ("miss, cache;desc=hit", {}),
        ('db;dur="7"', {"db": 7.0}),
        ("", {}),
    ],
)
def test_server_timing(header, expected):
    """Server-Timing gives the durations it states, and nothing for metrics without one."""
    assert read_server_timing(header) == expected
