"""A trial's life inside Locust: what is checked before, begun, stopped and written, and with which exit code.

Importing this module adds the options and listens to Locust's events; that is how `locust -f scenario.py`
becomes a trial without a wrapper. One test, from `test_start` to `test_stop`, is one trial: the web
interface can run several in one process.

Knows Locust; what a trial does while it runs is `live`'s affair.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.exception import StopTest
from locust.runners import LocalRunner

from harness.errors import RagloadError, UsageError
from harness.load.client import Target, parse_target
from harness.load.live import LiveTrial, say
from harness.load.options import add_options, make_plan, relative, text_option
from harness.load.questions import Question, Questions, read_questions
from harness.load.surroundings import client_facts
from harness.load.target import fetch_environment, fetch_questions
from harness.plan import Plan
from harness.trial import TrialFolder, make_folder, read_json, write_json

SUMMARY_LIMIT_S = 600
TARGET_DECK = "the target"


class Session:
    """The one trial under way in this process, if any."""

    def __init__(self) -> None:
        self._live: LiveTrial | None = None
        self._environment: Any = None
        self._quitting = False

    @property
    def live(self) -> LiveTrial:
        """The running trial. Raises UsageError outside a test."""
        if self._live is None:
            raise UsageError("no trial is running: start the scenario with locust -f or ragload run")
        return self._live

    # Locust's events, in the order they come.

    def on_init(self, environment: Any, runner: Any, **_: Any) -> None:
        """Refuse what cannot work before anything starts; without a web interface, end the process then."""
        self._environment = environment
        try:
            if not isinstance(runner, LocalRunner):
                raise UsageError("ragload measures from one process: run without --processes, --master and --worker")
            if environment.parsed_options.headless:
                self._check_before()
        except RagloadError as error:
            if not environment.parsed_options.worker:  # one line, not one of each process
                say(f"ragload: {error}")
            raise SystemExit(error.exit_code) from None

    def on_test_start(self, environment: Any, **_: Any) -> None:
        """Make the trial folder and begin to watch."""
        try:
            self._live = self._open_trial(environment)
        except RagloadError as error:
            environment.process_exit_code = error.exit_code
            raise StopTest(f"ragload: {error}") from None
        environment.stop_timeout = self._live.plan.grace_s
        self._live.start()
        say(f"ragload: trial {self._live.folder.path}")

    def on_spawning_complete(self, user_count: int, **_: Any) -> None:
        """All users exist; a number other than planned starts the window anew."""
        if self._live is not None:
            self._live.change_users(user_count)

    def on_user_error(self, exception: BaseException, **_: Any) -> None:
        """A scenario that raises measures nothing: end the trial."""
        if self._live is not None:
            name = type(exception).__name__
            self._live.abort(UsageError(f"the scenario raised {name}: {exception}; see the log, correct it, run again"))

    def on_quitting(self, **_: Any) -> None:
        """The process is asked to end. With a trial still running that is Ctrl-C or a signal."""
        live = self._live
        if live is None or live.finished:
            return
        if live.stopping.is_set():
            self._kill_users()
            return
        live.stop_reason = "interrupted"
        say(f"ragload: waiting up to {live.plan.grace_s:g} s for requests in flight; Ctrl-C again ends them now")
        gevent.signal_handler(signal.SIGINT, self._kill_users)

    def on_test_stopping(self, **_: Any) -> None:
        """No new requests; those in flight may finish within the grace."""
        if self._live is not None:
            self._live.stop()

    def on_test_stop(self, environment: Any, **_: Any) -> None:
        """All users are gone: write what is left, have it summarised, say where it is."""
        live = self._live
        if live is None or live.finished:
            return
        try:
            live.finish()
        except RagloadError as error:
            live.error = error
        if live.error is not None:
            environment.process_exit_code = live.error.exit_code
            say(f"ragload: {live.error}")
        _summarise(live.folder)
        say(
            f"ragload: trial {live.folder.path}\nragload: see it with: ragload report {live.folder.path}\n"
            "ragload: these figures are the window's; Locust's own tables hold the whole run, warm-up included"
        )

    def at_exit(self) -> None:
        """Should the process end without `test_stop`, lose nothing."""
        if self._live is not None:
            self._live.finish()

    # What the above is made of.

    def _check_before(self) -> None:
        environment = self._environment
        plan = _plan(environment, users=environment.parsed_options.num_users or 1)
        fetch_environment(parse_target(plan.host))
        trial = text_option(environment.parsed_options, "trial")
        if trial is None:
            make_folder(Path("reports"))
        else:
            TrialFolder(Path(trial)).create()

    def _open_trial(self, environment: Any) -> LiveTrial:
        plan = _plan(environment, users=environment.runner.target_user_count)
        target = parse_target(plan.host)
        told = fetch_environment(target)
        decks = _decks(environment, target, plan.seed)
        folder = self._new_folder(plan.scenario)
        plan = _as_told(plan, folder)
        write_json(folder.plan, plan.to_dict())
        write_json(folder.environment, {**told, "client": client_facts()})
        random.seed(plan.seed)  # Locust draws tasks from the global generator
        live = LiveTrial(folder, plan, target, self._end_test)
        live.decks.update(decks)
        return live

    def _new_folder(self, scenario: str) -> TrialFolder:
        """The asked folder, or a new one; in the web interface each further test gets a suffix."""
        asked = text_option(self._environment.parsed_options, "trial")
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        first = Path(asked) if asked else Path("reports") / f"{stamp}-{Path(scenario).stem}"
        if asked and self._environment.parsed_options.headless:
            return TrialFolder(first).create()
        path, number = first, 1
        while TrialFolder(path).samples.exists() or (path.exists() and not asked):
            number += 1
            path = first.with_name(f"{first.name}-{number}")
        return TrialFolder(path).create()

    def _end_test(self) -> None:
        """Stop the test, from whatever greenlet found that it should: a user must not wait for itself."""
        runner = self._environment.runner
        if self.live.answered:  # what is still in flight was sent after the window: nobody waits for it
            self._environment.stop_timeout = 0
        gevent.spawn(runner.quit if self._environment.parsed_options.headless else runner.stop)

    def _kill_users(self) -> None:
        self._environment.runner.user_greenlets.kill(block=False)


def _plan(environment: Any, *, users: int) -> Plan:
    classes = environment.user_classes
    host = environment.host or next((each.host for each in classes if each.host), None)
    if not host:
        raise UsageError("no target: give --host http://node:8000")
    scenario = relative(environment.parsed_locustfiles[0])
    return make_plan(environment.parsed_options, scenario=scenario, host=host, users=users, classes=classes)


def _as_told(plan: Plan, folder: TrialFolder) -> Plan:
    """The plan that `ragload run` left in the folder, with the lengths the scenario declares; else this one."""
    if not folder.plan.exists():
        return plan
    told = Plan.from_dict(read_json(folder.plan))
    return replace(told, input_tokens=plan.input_tokens, output_tokens=plan.output_tokens)


def question_file(options: Any, user_class: Any) -> Path | None:
    """The file a class's questions come from: --questions, else its own beside the scenario; None: the target's."""
    given = text_option(options, "questions")
    if given is not None:
        return Path(given)
    own = getattr(user_class, "questions", None)
    return None if own is None else Path(str(sys.modules[user_class.__module__].__file__)).parent / own


def deck_name(options: Any, user_class: Any) -> str:
    """The key of a class's questions among the trial's decks."""
    return str(question_file(options, user_class) or TARGET_DECK)


def _decks(environment: Any, target: Target, seed: int) -> dict[str, Questions]:
    """The questions of every user class; a target that offers none leaves its deck out."""
    found: dict[str, Questions] = {}
    for user_class in environment.user_classes:
        path = question_file(environment.parsed_options, user_class)
        read: Callable[[], list[Question]] = (lambda: fetch_questions(target)) if path is None else _reader(path)
        name = str(path or TARGET_DECK)
        if name not in found and (questions := read()):
            found[name] = Questions(questions, seed=seed, source=name)
    return found


def _reader(path: Path) -> Callable[[], list[Question]]:
    return lambda: read_questions(path)


def _summarise(folder: TrialFolder) -> None:
    """Make summary.json in a process of its own, since results and load share no imports. A failure is only said."""
    home = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "harness", "summarize", str(folder.path)]
    environment = {**os.environ, "PYTHONPATH": paths}
    try:
        ran = subprocess.run(  # noqa: S603 - our own command
            command, env=environment, capture_output=True, text=True, timeout=SUMMARY_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    else:
        words = (ran.stderr + ran.stdout).strip()
        trouble = words.rpartition("\n")[2] or f"exit code {ran.returncode}"
        if folder.summary.exists():
            say(words)
            return
    say(f"ragload: no summary ({trouble}); make it with: ragload summarize {folder.path}")


session = Session()


def listen(locust_events: Any) -> None:
    """Connect the session to Locust's events."""
    locust_events.init_command_line_parser.add_listener(add_options)
    locust_events.init.add_listener(session.on_init)
    locust_events.test_start.add_listener(session.on_test_start)
    locust_events.spawning_complete.add_listener(session.on_spawning_complete)
    locust_events.user_error.add_listener(session.on_user_error)
    locust_events.quitting.add_listener(session.on_quitting)
    locust_events.test_stopping.add_listener(session.on_test_stopping)
    locust_events.test_stop.add_listener(session.on_test_stop)
    atexit.register(session.at_exit)


listen(events)
