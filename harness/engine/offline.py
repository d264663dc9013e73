"""Whole load tests in simulated time, as fast as the machine computes: what a client would have measured.

Around the timeline stands the front end: a request takes a few milliseconds in and out of it, and
one event loop writes all tokens one after the other. Knows no network between client and engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from harness.engine.scheduler import Request, Sequence
from harness.engine.timeline import Timeline

FRONT_IN_S = 2.5e-3
"""HTTP, template, tokenizer and the way to the scheduler."""
FRONT_OUT_S = 1.5e-3
"""From a step's end to the client, the first token's own writing apart."""
TOKEN_WRITE_S = 50e-6
"""Serial cost of each streamed token in the server's or the client's event loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """A request, who sends it and when (simulated s)."""

    at_s: float
    request: Request
    user: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A request as its client saw it; instants in simulated s."""

    send: Send
    first_token_s: float
    ended_s: float
    cached_tokens: int
    preemptions: int

    @property
    def ttft_s(self) -> float:
        """First token − sent."""
        return self.first_token_s - self.send.at_s

    @property
    def latency_s(self) -> float:
        """Last token − sent."""
        return self.ended_s - self.send.at_s

    @property
    def tpot_s(self) -> float:
        """(Last − first token) / (tokens − 1); the request must have had two."""
        return (self.ended_s - self.first_token_s) / (self.send.request.output_tokens - 1)


After = Callable[[Served], "Send | None"]


def no_more(_: Served) -> None:
    """An open loop: what is sent does not depend on what was answered."""


def simulate(timeline: Timeline, sends: Iterable[Send], after: After = no_more) -> Iterator[Served]:
    """Answers in order of completion, until nothing is under way.

    `sends` are the first requests, `after` gives the one that follows an answer: with it a closed loop, which
    ends when the consumer stops.
    """
    return iter(_Front(timeline, sends, after))


def closed_loop(timeline: Timeline, starts_s: Iterable[float], request: Callable[[int], Request]) -> Iterator[Served]:
    """One user for each of `starts_s`, who sends `request(user)` then and again at once after each answer.

    Never ends by itself: the consumer stops when its window is full.
    """
    sends = [Send(at_s=at_s, request=request(user), user=user) for user, at_s in enumerate(starts_s)]
    return simulate(
        timeline,
        sends,
        lambda served: Send(at_s=served.ended_s, request=request(served.send.user), user=served.send.user),
    )


class _Front:
    """The front end of one simulated run: from `Send` to `Served`."""

    def __init__(self, timeline: Timeline, sends: Iterable[Send], after: After) -> None:
        self._timeline = timeline
        self._after = after
        self._order = count()
        self._pending: list[tuple[float, int, Send]] = []
        self._under_way: dict[Sequence, tuple[Send, float | None]] = {}
        self._free_s = 0.0
        for send in sends:
            self._push(send)

    def _push(self, send: Send) -> None:
        heapq.heappush(self._pending, (send.at_s + FRONT_IN_S, next(self._order), send))

    def __iter__(self) -> Iterator[Served]:
        while (at_s := self._next_s()) is not None:
            while self._pending and self._pending[0][0] <= at_s:
                arrive_s, _, send = heapq.heappop(self._pending)
                self._under_way[self._timeline.submit(send.request, arrive_s)] = (send, None)
            for done in self._timeline.advance(at_s):
                yield from self._write(done.at_s, done.produced)

    def _next_s(self) -> float | None:
        event_s = self._timeline.next_event_s()
        if not self._pending:
            return event_s
        return self._pending[0][0] if event_s is None else min(event_s, self._pending[0][0])

    def _write(self, at_s: float, produced: list[Sequence]) -> Iterator[Served]:
        self._free_s = max(self._free_s, at_s)
        for sequence in produced:
            self._free_s += TOKEN_WRITE_S
            seen_s = self._free_s + FRONT_OUT_S
            send, first_s = self._under_way[sequence]
            if first_s is None:
                self._under_way[sequence] = (send, first_s := seen_s)
            if sequence.finished:
                del self._under_way[sequence]
                yield self._served(sequence, send, first_s, seen_s)

    def _served(self, sequence: Sequence, send: Send, first_s: float, ended_s: float) -> Served:
        served = Served(
            send=send,
            first_token_s=first_s,
            ended_s=ended_s,
            cached_tokens=sequence.cached_tokens or 0,
            preemptions=sequence.preemptions,
        )
        following = self._after(served)
        if following is not None:
            self._push(following)
        return served
