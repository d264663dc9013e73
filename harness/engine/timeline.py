"""The engine in simulated time: steps follow each other without a gap, each as long as it costs.

Two steps are under way at any moment, one that computes and one already scheduled behind it, as with
vLLM's asynchronous scheduling: a request that arrives while a step computes misses the next one too.
Time is whatever the caller says it is: nobody sleeps here, and instants do not depend on how often or how late
`advance` is called. Knows no wall clock, no text.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as counting

from harness.engine.blocks import Blocks
from harness.engine.catalogue import Gpu, Model
from harness.engine.cost import Cost, kv_blocks
from harness.engine.scheduler import Limits, Request, Scheduler, Sequence, Step
from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Done:
    """A completed step: when (simulated s), how long it took, and the sequences that got a token by it."""

    at_s: float
    duration_s: float
    produced: list[Sequence]


class Timeline:
    """A scheduler and a cost model, moved through simulated time."""

    def __init__(self, scheduler: Scheduler, cost: Cost) -> None:
        self.scheduler = scheduler
        self.now_s = 0.0
        self._cost = cost
        self._arrivals: list[tuple[float, int, Sequence]] = []
        self._order = counting()
        self._computing: Step | None = None
        self._started_s = 0.0
        self._ends_s = 0.0
        self._behind: Step | None = None

    def submit(self, request: Request, arrive_s: float) -> Sequence:
        """A request that reaches the scheduler at `arrive_s`, or now if that is past."""
        sequence = Sequence(request=request, arrived_s=max(arrive_s, self.now_s))
        heapq.heappush(self._arrivals, (sequence.arrived_s, next(self._order), sequence))
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence, even one that has not arrived yet."""
        self.scheduler.abort(sequence)

    def next_event_s(self) -> float | None:
        """When something happens next: a step ends, or, while idle, a request arrives. None: nothing will."""
        if self._computing is not None:
            return self._ends_s
        return self._arrivals[0][0] if self._arrivals else None

    def advance(self, to_s: float) -> Iterator[Done]:
        """Let everything up to `to_s` happen; each completed step is yielded before the next one is."""
        while (at_s := self.next_event_s()) is not None and at_s <= to_s:
            self.now_s = at_s
            self._admit_arrivals()
            done = self._complete(self._computing) if self._computing is not None else None
            self._start()
            if done is not None:
                yield done
        self.now_s = max(self.now_s, to_s)

    def _admit_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            sequence = heapq.heappop(self._arrivals)[2]
            if not sequence.over:
                self.scheduler.add(sequence)

    def _complete(self, step: Step) -> Done:
        produced = self.scheduler.complete(step)
        self._computing = None
        for sequence in produced:
            if sequence.first_token_s is None:
                sequence.first_token_s = self.now_s
        return Done(self.now_s, self.now_s - self._started_s, produced)

    def _start(self) -> None:
        step = self._behind or self._schedule()
        self._behind = None
        if step is None:
            return
        self._computing = step
        self._started_s = self.now_s
        self._ends_s = self.now_s + self._cost.step_s(step.work)
        self._behind = self._schedule()

    def _schedule(self) -> Step | None:
        step = self.scheduler.schedule()
        if step is not None:
            for sequence in step.admitted:
                if sequence.scheduled_s is None:
                    sequence.scheduled_s = self.now_s
        return step


def timeline_of(
    gpu: Gpu,
    model: Model,
    limits: Limits,
    *,
    gpu_memory_utilization: float = 0.9,
    max_model_len: int = 8192,
) -> Timeline:
    """An idle engine at simulated time 0. Raises UsageError, with the arithmetic, if the model does not fit."""
    if max_model_len > model.max_context:
        raise UsageError(
            f"max_model_len {max_model_len} is more than the {model.max_context} of {model.name}: lower it"
        )
    count = kv_blocks(gpu, model, gpu_memory_utilization=gpu_memory_utilization, max_model_len=max_model_len)
    return Timeline(Scheduler(Blocks(count), limits), Cost(gpu, model))
