"""The timeline on the wall clock: what is due is done, and whoever waits for a token is woken.

Instants are computed in simulated time and only then waited for, so a late wake-up delays one token
and shifts nothing after it. An event loop's timers are good to a millisecond; a token may come half
a millisecond early or late. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from harness.engine.metrics import Metrics
from harness.engine.offline import FRONT_IN_S, FRONT_OUT_S
from harness.engine.scheduler import Request, Sequence
from harness.engine.timeline import Timeline

_TIMER_S = 0.5e-3
"""What is due within half of a timer's grain is done now."""


class Stream:
    """A request under way, as its connection sees it."""

    def __init__(self, sequence: Sequence, finish_reason: str) -> None:
        self.sequence = sequence
        self.finish_reason = finish_reason
        self.gone = False
        self._waits_for = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def tokens(self) -> int:
        """Tokens that are out."""
        return self.sequence.outputs

    async def wait(self, tokens: int) -> int:
        """Wait until there are `tokens` tokens, or the client is gone; how many are out then."""
        if self.tokens < tokens and not self.gone:
            self._waits_for = tokens
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.tokens

    def wake(self) -> None:
        """Let the waiting connection look again, if there is what it waits for."""
        ready = self.gone or self.tokens >= self._waits_for
        if ready and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Live:
    """Runs a timeline in the running event loop, `time_scale` wall seconds to a simulated one."""

    def __init__(self, timeline: Timeline, metrics: Metrics, time_scale: float) -> None:
        self._timeline = timeline
        self._metrics = metrics
        self._time_scale = time_scale
        self._origin_s = monotonic()
        self._streams: dict[Sequence, Stream] = {}
        self._timer: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        """Simulated time."""
        return (monotonic() - self._origin_s) / self._time_scale

    def submit(self, request: Request, received_s: float, finish_reason: str) -> Stream:
        """Start a request whose first byte came at `received_s` (simulated)."""
        stream = Stream(self._timeline.submit(request, received_s + FRONT_IN_S), finish_reason)
        self._streams[stream.sequence] = stream
        self._arm()
        return stream

    def abort(self, stream: Stream) -> None:
        """The client is gone: free what its request holds. Nothing happens if it is complete."""
        if self._streams.pop(stream.sequence, None) is None:
            return
        self._timeline.abort(stream.sequence)
        self._metrics.aborted()
        stream.gone = True
        stream.wake()

    def close(self) -> None:
        """Stop; whoever still waits is let go."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams.values()):
            self.abort(stream)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._timeline.next_event_s()
        if due_s is not None:
            wait_s = (due_s + FRONT_OUT_S - self.now_s()) * self._time_scale
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        to_s = self.now_s() + _TIMER_S / self._time_scale - FRONT_OUT_S
        for done in self._timeline.advance(to_s):
            for sequence in done.produced:
                self._deliver(sequence, done.at_s)
        self._arm()

    def _deliver(self, sequence: Sequence, at_s: float) -> None:
        stream = self._streams[sequence]
        self._metrics.token(sequence, at_s)
        if sequence.finished:
            del self._streams[sequence]
            self._metrics.finished(sequence, stream.finish_reason)
        stream.wake()
