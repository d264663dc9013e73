"""The window rule: which stretch of a closed loop's run is measured.

A closed loop started afresh is not in its steady state, and even there its users may answer in
waves: a window that cuts a wave counts up to one wave too many or too few. So the window

- opens at a completion, once every user is running and has finished three requests (or a fixed
  warm-up has passed since all were running);
- closes at a completion too: the first one at or after the asked duration at which the completions
  in [t0, t1) are a whole multiple of the users;
- failing that, closes `duration + max(duration, 60 s)` after it opened ("capped"), or at the stop
  ("stopped"; then at the last whole multiple before which all that was sent has been answered, or at
  the last one, or at the stop itself).

The loop must go on after t1 until all that was sent before t1 is answered: in a loop that drains, the
last requests of the window would be answered under a falling load.

Events lie in the window when t0 <= event < t1: the completion that opens it counts, the one that
closes it does not. A completion is a request's end, success or failure, at its `ended_at`.

Pure: it is told instants (ns, one monotonic clock) and never reads a clock. Answers are reported a
little after their last token, and not in order of it, so completions are held `LAG_NS` and judged
sorted; what a report later counts from the file is then what was counted here.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

LAG_NS = 250_000_000
LEAST_FINISHED = 3
"""Requests each user must have finished before the loop counts as steady: one to learn its place in the
cycle (`user.spread_s`), one while others still pause and the load is not full, one under full load. With
two, a window at 256 users on an H200 opened while latency still rose (mean 9.2 s, median 11.1 s)."""
CAP_LEAST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Window:
    """[t0_ns, t1_ns), and the rule that closed it."""

    t0_ns: int
    t1_ns: int
    rule: str


class WindowRule:
    """Feed it what happens; read off `t0_ns`, `steady_ns` and, once closed, `window`."""

    def __init__(self, *, users: int, duration_s: float | None = None, warmup_s: float | None = None) -> None:
        self.users = users
        self._duration_ns = None if duration_s is None else round(duration_s * 1e9)
        self._warmup_ns = None if warmup_s is None else round(warmup_s * 1e9)
        self._cap_ns = None if duration_s is None else round((duration_s + max(duration_s, CAP_LEAST_S)) * 1e9)
        self.spawned_ns: int | None = None
        self.steady_ns: int | None = None
        self.t0_ns: int | None = None
        self.window: Window | None = None
        self.wave_ends_ns: list[int] = []
        self._inside = 0
        self._finished: Counter[int] = Counter()
        self._steady_users = 0
        self._held: list[tuple[int, int]] = []

    def all_running(self, now_ns: int) -> None:
        """Every user has begun its first request."""
        if self.spawned_ns is None:
            self.spawned_ns = now_ns

    def completed(self, user: int, ended_ns: int) -> None:
        """User number `user` finished a request."""
        heapq.heappush(self._held, (ended_ns, user))

    def advance(self, now_ns: int) -> None:
        """Judge all completions older than the lag."""
        self._judge_until(now_ns - LAG_NS)
        self._cap(now_ns - LAG_NS)

    def stop(self, now_ns: int, answered_ns: int | None = None) -> None:
        """The run is being stopped: close an open window by what has been seen until now.

        answered_ns   everything sent before this instant has been answered (default: `now_ns`)
        """
        self._judge_until(now_ns - 1)
        if self.window is None and self.t0_ns is not None and now_ns > self.t0_ns:
            limit_ns = now_ns if answered_ns is None else answered_ns
            settled = [end_ns for end_ns in self.wave_ends_ns if end_ns <= limit_ns]
            self._close((settled or self.wave_ends_ns or [now_ns])[-1], "stopped")

    def _judge_until(self, limit_ns: int) -> None:
        while self._held and self._held[0][0] <= limit_ns and self.window is None:
            ended_ns, user = heapq.heappop(self._held)
            self._judge(user, ended_ns)
        if self.window is not None:
            self._held.clear()

    def _judge(self, user: int, ended_ns: int) -> None:
        self._count_warm(user, ended_ns)
        if self.t0_ns is None:
            if self._warm(ended_ns):
                self.t0_ns, self._inside = ended_ns, 1
            return
        self._cap(ended_ns)
        if self._inside % self.users == 0 and ended_ns > self.t0_ns:
            self._on_wave(ended_ns)
        self._inside += 1

    def _on_wave(self, ended_ns: int) -> None:
        self.wave_ends_ns.append(ended_ns)
        if self._duration_ns is not None and self.t0_ns is not None and ended_ns >= self.t0_ns + self._duration_ns:
            self._close(ended_ns, "whole waves")

    def _count_warm(self, user: int, ended_ns: int) -> None:
        if self.steady_ns is not None:
            return
        self._finished[user] += 1
        self._steady_users += self._finished[user] == LEAST_FINISHED
        if self._steady_users >= self.users and self.spawned_ns is not None:
            self.steady_ns = ended_ns

    def _warm(self, ended_ns: int) -> bool:
        if self._warmup_ns is None:
            return self.steady_ns is not None
        return self.spawned_ns is not None and ended_ns >= self.spawned_ns + self._warmup_ns

    def _cap(self, now_ns: int) -> None:
        if self.t0_ns is not None and self._cap_ns is not None and now_ns > self.t0_ns + self._cap_ns:
            self._close(self.t0_ns + self._cap_ns, "capped")

    def _close(self, t1_ns: int, rule: str) -> None:
        if self.window is None and self.t0_ns is not None:
            self.window = Window(t0_ns=self.t0_ns, t1_ns=t1_ns, rule=rule)
