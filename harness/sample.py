"""One request's frozen record, and the one definition of each per-request metric.

All instants are nanoseconds of the recording process's monotonic clock; they are never compared
with another process's. The metric functions take scalars or NumPy arrays alike, so that a report
over a million samples and a test over one use the same formula. What is missing is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Instant = TypeVar("Instant", float, NDArray[np.float64])

FAILURES = {
    "refused": "no connection to the target",
    "http_status": "the target answered with an error status",
    "stream_error": "an error object came inside the stream",
    "truncated": "the stream ended before the answer did",
    "timeout": "a phase of the request took longer than its limit",
    "protocol": "bytes that are not HTTP, not SSE or not JSON",
    "empty": "a complete stream without a single token",
    "censored": "still in flight when the run ended",
}
"""Kinds of failure and what each means. A failed request counts as +inf in percentiles."""

STAGES = ("wait", "embed", "search", "assemble", "queue", "prefill", "decode")
"""Stage names of our own node, in the order a request passes them; foreign services may add others."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What became of one request, failures included.

    scheduled_at    when it should have been sent (closed loop: when it was), ns
    sent_at         first byte handed to the socket, ns
    first_token_at  first chunk with content or reasoning, ns; None without one
    ended_at        last chunk with a token, not `[DONE]`, ns; for a failure: when it failed
    failure         None for success, else a key of FAILURES
    prompt_tokens, output_tokens, cached_tokens   by the server's `usage`; None if it sent none
    first_chunk_tokens   tokens in the first token-bearing chunk, by continuous usage; None if unknown
    chunks          token-bearing chunks
    gaps_ns         gaps between consecutive token-bearing chunks, ns (chunks − 1 of them)
    stages_ms       stage name → duration, from the `rag` event or Server-Timing
    """

    seq: int
    user: int
    name: str
    scheduled_at: int
    sent_at: int
    ended_at: int
    first_token_at: int | None = None
    failure: str | None = None
    status: int | None = None
    error: str | None = None
    request_id: str | None = None
    question_id: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_chunk_tokens: int | None = None
    chunks: int = 0
    gaps_ns: tuple[int, ...] = ()
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    passage_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.failure is not None and self.failure not in FAILURES:
            raise ValueError(f"failure kind '{self.failure}' is not one of {', '.join(FAILURES)}")

    @property
    def ok(self) -> bool:
        """True when the whole answer arrived."""
        return self.failure is None


def latency_ms(scheduled_at: Instant, ended_at: Instant) -> Instant:
    """End-to-end latency in ms: ended_at − scheduled_at, last token included, `[DONE]` not."""
    return (ended_at - scheduled_at) / 1e6


def ttft_ms(scheduled_at: Instant, first_token_at: Instant) -> Instant:
    """Time to first token in ms: first_token_at − scheduled_at. From `sent_at` it is the service TTFT."""
    return (first_token_at - scheduled_at) / 1e6


def tpot_ms(first_token_at: Instant, ended_at: Instant, output_tokens: Instant, first_tokens: Instant) -> Instant:
    """Time per output token in ms: (ended_at − first_token_at) / (tokens − tokens of the first chunk).

    Division by zero (an answer of one token, or one chunk) is the caller's to mask: TPOT is None there.
    """
    return (ended_at - first_token_at) / 1e6 / (output_tokens - first_tokens)


def lateness_ms(scheduled_at: Instant, sent_at: Instant) -> Instant:
    """How late a request left, in ms: sent_at − scheduled_at. The client's fault, never the target's."""
    return (sent_at - scheduled_at) / 1e6
