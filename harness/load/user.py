"""The user a scenario derives from: one closed loop of questions over one connection.

A user asks, reads the answer to its end, and asks again at once. Every request becomes one sample in
the trial's file and one Locust `request` event, fired after the last byte, for Locust's own tables.

Knows the request's shape; how it travels is `client`'s affair, what it means `results`'.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from gevent import GreenletExit
from locust import User
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

from harness.errors import UsageError
from harness.load.client import Call, Connection, Timeouts, parse_target
from harness.load.options import tokens_option
from harness.load.questions import Question
from harness.load.session import deck_name, session
from harness.sample import Sample, latency_ms

PATH = "/v1/chat/completions"
RETRY_PAUSE_S = 1.0
"""A user whose request failed sooner than this waits for the rest of it: a target that refuses at once
would otherwise be asked, and the failures counted, thousands of times a second."""


class RequestFailed(Exception):  # noqa: N818 - what Locust's tables print
    """Stands in Locust's statistics for a failed sample."""


def stagger_s(index: int, users: int) -> float:
    """How long user `index` of `users` waits before its first request: started at once, a loop runs in waves."""
    return (index % users) / users * min(8.0, 0.02 * users + 0.5)


def spread_s(index: int, users: int, first_latency_s: float) -> float:
    """How long user `index` of `users` pauses once, after its first request: its place in the first latency.

    The stagger cannot know how long a request takes under load; the first request tells. Users spread
    over less than one latency stay bunched, ask in waves and queue behind each other: on an H200 at 128
    users that alone made TTFT p50 1.4 s, where users spread over a whole latency saw 0.34 s.
    """
    return (index % users) / users * first_latency_s


class RagUser(User):
    """One user of the closed loop. A scenario derives from it and asks in its tasks.

    input_tokens   prompt tokens asked of the node (--input-tokens overrides); None: as it comes
    output_tokens  tokens each answer is forced to (--output-tokens overrides); None: natural stops
    top_k          passages to retrieve; None: as many as the prompt takes
    questions      JSONL file beside the scenario (--questions overrides); None: the target's own
    model          model name to send; None: the target's only one
    headers        further request headers, say Authorization
    timeouts       limits of each phase of a request
    """

    abstract = True
    input_tokens: int | None = None
    output_tokens: int | None = None
    top_k: int | None = None
    questions: str | None = None
    model: str | None = None
    headers: Mapping[str, str] = {}
    timeouts = Timeouts()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        options = environment.parsed_options
        self._live = session.live
        self._number = self._live.enrol()
        self._deck = self._live.decks.get(deck_name(options, type(self)))
        self._connection = Connection(parse_target(self._live.plan.host), self.timeouts, dict(self.headers))
        self._settled = self._spread = False
        self.input_tokens = _first(tokens_option(options, "input_tokens"), self.input_tokens)
        self.output_tokens = _first(tokens_option(options, "output_tokens"), self.output_tokens)

    def next_question(self) -> Question:
        """A question nobody has asked in this trial, as long as there are any."""
        if self._deck is None:
            self._live.abort(UsageError("the target offers no questions: give --questions FILE (JSONL: id, question)"))
            raise StopUser
        return self._deck.next()

    def ask(
        self,
        question: Question | str,
        *,
        top_k: int | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        name: str | None = None,
    ) -> Sample:
        """Ask the node, which retrieves and generates; returns the sample, failed or not.

        What is given here goes before the command line, and that before the class.
        """
        wanted = {"top_k": _first(top_k, self.top_k), "input_tokens": _first(input_tokens, self.input_tokens)}
        rag = {key: value for key, value in wanted.items() if value is not None}
        return self._send(question, rag, output_tokens, name or self._name())

    def chat(
        self,
        question: Question | str | Sequence[Mapping[str, Any]],
        *,
        output_tokens: int | None = None,
        name: str | None = None,
    ) -> Sample:
        """Ask without retrieval: a text, or the messages of a conversation; returns the sample, failed or not."""
        return self._send(question, {"top_k": 0}, output_tokens, name or self._name())

    def on_stop(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _name(self) -> str:
        """Class and task: the function that called `ask` or `chat`."""
        return f"{type(self).__name__}.{sys._getframe(2).f_code.co_name}"

    def _send(self, question: Any, rag: Mapping[str, Any], output_tokens: int | None, name: str) -> Sample:
        self._settle()
        body = self._body(question, rag, _first(output_tokens, self.output_tokens))
        call = self._live.begin(self._number, name, question.id if isinstance(question, Question) else None)
        before = self._connection.reconnects
        try:
            self._connection.post(PATH, body, call)
        except GreenletExit:
            call.fail("censored", "still in flight when the run ended")
            raise
        finally:
            self._live.reconnects += self._connection.reconnects - before
            self._live.end(call)
        sample = self._tell(call)
        self._spread_out(sample)
        return sample

    def _settle(self) -> None:
        """Before the first request: wait one's turn and connect, so that no figure holds either."""
        if not self._settled:
            self._settled = True
            self._live.stopping.wait(stagger_s(self._number, self._live.rule.users))
            self._connect()
        if self._live.stopping.is_set() or self._state == LOCUST_STATE_STOPPING:
            raise StopUser

    def _spread_out(self, sample: Sample) -> None:
        """Once, after the first request: move to one's place in the cycle."""
        if not self._spread:
            self._spread = True
            latency_s = latency_ms(sample.scheduled_at, sample.ended_at) / 1e3
            self._live.stopping.wait(spread_s(self._number, self._live.rule.users, latency_s))

    def _connect(self) -> None:
        try:
            self._connection.open()
        except OSError:
            return  # the request itself will meet the same trouble and become a failed sample

    def _body(self, question: Any, rag: Mapping[str, Any], output_tokens: int | None) -> bytes:
        text = question.question if isinstance(question, Question) else question
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}] if isinstance(text, str) else list(text),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "temperature": 0,
            "rag": rag,
        }
        if self.model is not None:
            body["model"] = self.model
        if output_tokens is not None:
            body |= {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
        return msgspec.json.encode(body)

    def _tell(self, call: Call) -> Sample:
        """Tell Locust, whose listeners may fail without harm; after a quick failure, pause."""
        sample = call.sample()
        self.environment.events.request.fire(
            request_type="RAG",
            name=sample.name,
            response_time=latency_ms(sample.scheduled_at, sample.ended_at),
            response_length=call.answer.received_bytes,
            exception=None if sample.ok else RequestFailed(_short(sample)),
            context=self.context(),
        )
        if not sample.ok:
            elapsed_s = (time.monotonic_ns() - sample.scheduled_at) / 1e9
            self._live.stopping.wait(max(0.0, RETRY_PAUSE_S - elapsed_s))
        return sample


def _first(given: int | None, default: int | None) -> int | None:
    return default if given is None else given


def _short(sample: Sample) -> str:
    """The failure without what differs from request to request, so that Locust can group it."""
    return f"{sample.failure} {sample.status}" if sample.failure == "http_status" else str(sample.failure)
