"""One trial while it runs: its folder, its requests in flight, its window, and what is left at the end.

Users tell it when a request begins and ends; greenlets judge the window ten times a second and
flush the files twice a second. Whatever happens, `finish` puts every request into the samples:
those still in flight as censored.

Knows nothing of Locust: `session` tells it when to start and stop.
"""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from time import monotonic_ns
from typing import Any

import gevent
from gevent.event import Event

from harness.errors import RagloadError
from harness.load.client import Call, Target
from harness.load.questions import Questions
from harness.load.recorder import SampleLog, SeriesLog
from harness.load.surroundings import cores
from harness.load.telemetry import Telemetry
from harness.load.window import WindowRule
from harness.plan import Plan
from harness.trial import TrialFolder, write_json

logger = logging.getLogger(__name__)

TICK_S = 0.1
FLUSH_S = 0.5


class LiveTrial:
    """The state of the running trial.

    decks      the questions by where they come from
    error      what made the trial stop before its time, if anything of ours did
    stopping   set once no new request may begin
    on_close   called once: when the window has closed and all that was sent in it is answered, or the
               grace for that has run out, or an error ends the trial
    """

    def __init__(self, folder: TrialFolder, plan: Plan, target: Target, on_close: Callable[[], None]) -> None:
        self.folder, self.plan, self.target = folder, plan, target
        self.on_close = on_close
        self.decks: dict[str, Questions] = {}
        self.error: RagloadError | None = None
        self.stop_reason = "stopped"
        self.stopping = Event()
        self.finished = False
        self.reconnects = 0
        self.rule = self._new_rule(plan.users)
        self._samples, self._series = SampleLog(folder.samples), SeriesLog(folder.series)
        self._telemetry = Telemetry(self._series, target, self._gauges)
        self._origin_ns, self._started_unix_s = monotonic_ns(), time.time()
        self._in_flight: dict[int, Call] = {}
        self._begun: set[int] = set()
        self._enrolled = self._asked = self._completed = self._failed = 0
        self._counters: dict[str, Mapping[str, float]] = {"at_t0": {}, "at_t1": {}}
        self._client: Mapping[str, float | None] | None = None
        self._opened = self._closed = False
        self._waves_seen = 0
        self._keepers: list[Any] = []

    def start(self) -> None:
        """Begin to watch: telemetry, window, flushes."""
        self._telemetry.start()
        self._keepers = [gevent.spawn(self._watch_window), gevent.spawn(self._keep_flushing)]

    # What users call.

    def enrol(self) -> int:
        """A number for a new user: 0, 1, 2, …"""
        self._enrolled += 1
        return self._enrolled - 1

    def begin(self, user: int, name: str, question_id: str | None) -> Call:
        """A request is about to be sent."""
        call = Call(seq=self._asked, user=user, name=name, question_id=question_id)
        self._asked += 1
        self._in_flight[call.seq] = call
        self._begun.add(user)
        if len(self._begun) >= self.rule.users:
            self.rule.all_running(call.scheduled_at)
        return call

    def end(self, call: Call) -> None:
        """The request is over, however: its sample goes into the file, once."""
        if self._in_flight.pop(call.seq, None) is None:
            return
        sample = call.sample()
        self._samples.record(sample)
        self._completed += 1
        self._failed += not sample.ok
        if sample.failure != "censored":
            self.rule.completed(call.user, sample.ended_at)

    # What the session calls.

    def change_users(self, users: int) -> None:
        """The load changed: the window starts again, with a warm-up of its own."""
        if users != self.rule.users and users > 0 and not self._closed:
            self.rule, self._begun = self._new_rule(users), set()
            self._opened, self._waves_seen = False, 0

    def abort(self, error: RagloadError) -> None:
        """End the trial for a fault that is not the target's."""
        if self.error is None:
            self.error, self.stop_reason = error, str(error)
            self.on_close()

    def stop(self) -> None:
        """No new requests from now on; an open window closes by what has been seen."""
        if self.stopping.is_set():
            return
        now = monotonic_ns()
        self.rule.stop(now, min((call.scheduled_at for call in self._in_flight.values()), default=now))
        self.stopping.set()
        if self.rule.window is not None and not self._closed:
            self._on_closed(self._counters["at_t1"] or self._telemetry.scrape())

    def finish(self) -> None:
        """Close the files and write run.json. Raises FolderError if something could not be written."""
        if self.finished:
            return
        self.finished = True
        self.stop()
        self._telemetry.stop()
        gevent.killall(self._keepers)
        for call in list(self._in_flight.values()):
            call.fail("censored", "still in flight when the run ended")
            self.end(call)
        try:
            self._samples.close()
            self._series.close()
        finally:
            write_json(self.folder.run, self._account())

    def _new_rule(self, users: int) -> WindowRule:
        return WindowRule(users=users, duration_s=self.plan.duration_s, warmup_s=self.plan.warmup_s)

    def _keep_flushing(self) -> None:
        while self.error is None:
            gevent.sleep(FLUSH_S)
            try:
                self._samples.flush()
                self._series.flush()
            except RagloadError as error:
                self.abort(error)

    def _watch_window(self) -> None:
        while not self._closed:
            gevent.sleep(TICK_S)
            self._judge_window()
        if self.stopping.is_set() or self.rule.window is None:
            return
        give_up_ns = monotonic_ns() + round(self.plan.grace_s * 1e9)
        while not self.answered and monotonic_ns() < give_up_ns and not self.stopping.is_set():
            gevent.sleep(TICK_S)
        self.on_close()

    @property
    def answered(self) -> bool:
        """The window has closed, and every request sent before its end is over: the rest may be cut."""
        window = self.rule.window
        return window is not None and all(call.scheduled_at >= window.t1_ns for call in self._in_flight.values())

    def _judge_window(self) -> None:
        self.rule.advance(monotonic_ns())
        if self.rule.t0_ns is not None and not self._opened:
            self._opened = True
            self._telemetry.clear()
            self._counters["at_t0"] = self._telemetry.scrape()
            logger.info("the window is open: every user has finished its warm-up")
        if len(self.rule.wave_ends_ns) > self._waves_seen:
            self._waves_seen = len(self.rule.wave_ends_ns)
            self._counters["at_t1"] = self._telemetry.counters
        if self.rule.window is not None and not self._closed:
            self.stop_reason = f"window closed: {self.rule.window.rule}"
            self._on_closed(self._telemetry.scrape())

    def _on_closed(self, counters: Mapping[str, float]) -> None:
        self._closed = True
        self._counters["at_t1"] = counters
        self._client = self._telemetry.client()

    def _gauges(self) -> dict[str, float]:
        return {
            "in_flight": len(self._in_flight),
            "users": len(self._begun),
            "completed": self._completed,
            "failed": self._failed,
            "reconnects": self.reconnects,
        }

    def _account(self) -> dict[str, Any]:
        """run.json, without its schema version."""
        rule, window, decks = self.rule, self.rule.window, self.decks.values()
        cut_short = self.plan.duration_s is not None and window is not None and window.rule == "stopped"
        return {
            "started_unix_s": self._started_unix_s,
            "origin_ns": self._origin_ns,
            "steady_ns": rule.steady_ns,
            "window": None if window is None else {"t0_ns": window.t0_ns, "t1_ns": window.t1_ns, "rule": window.rule},
            "ended_ns": monotonic_ns(),
            "users": rule.users,
            "spawned_ns": rule.spawned_ns,
            "finished": self.error is None and window is not None and not cut_short,
            "stop_reason": self.stop_reason,
            "client": {
                **(self._client or self._telemetry.client()),
                "reconnects": self.reconnects,
                "cores": cores(),
                "python": platform.python_version(),
                "locust": version("locust"),
            },
            "counters": self._counters,
            "questions": {
                "offered": sum(deck.offered for deck in decks),
                "asked": sum(deck.asked for deck in decks),
                "repeated": sum(deck.repeated for deck in decks),
            },
        }


def say(text: str) -> None:
    """Words for the person at the terminal: standard error, since standard output is for machines."""
    print(text, file=sys.stderr, flush=True)
