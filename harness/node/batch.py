"""Dynamic micro-batches: whatever arrived while the owner thread was busy is its next batch.

FAISS on a GPU is not thread-safe even for reads, and an embedder answers 32 questions almost as fast
as one; so each has one owner thread. Nothing ever waits for a batch to fill: an idle owner
starts at once with a single item. Knows nothing of what the items are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_LIMIT = 32
"""Above this an embedder's time per item hardly falls any more, while everyone in the batch waits for all."""


@dataclass(frozen=True, kw_only=True)
class Done(Generic[Result]):
    """One item's result. `wait_s` until its batch started; `work_s` is what the whole batch took."""

    result: Result
    wait_s: float
    work_s: float


@dataclass(frozen=True, kw_only=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    since_s: float
    future: asyncio.Future[Done[Result]]


@dataclass(frozen=True, kw_only=True)
class _Ran(Generic[Result]):
    results: Sequence[Result]
    started_s: float
    ended_s: float


class Batcher(Generic[Item, Result]):
    """Runs `work` on batches of items in one thread of its own. Use it from one event loop.

    work    takes a batch, returns one result per item in the same order
    before  runs once in the owner thread, ahead of everything
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        name: str,
        limit: int = BATCH_LIMIT,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._work = work
        self._limit = limit
        self._owner = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=before)
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._busy = False

    async def submit(self, item: Item) -> Done[Result]:
        """The item's result, once its batch has run. An error of `work` reaches everyone in the batch."""
        future: asyncio.Future[Done[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item=item, since_s=perf_counter(), future=future))
        if not self._busy:
            self._start()
        return await future

    def close(self) -> None:
        """Let the batch in progress end, then end the thread."""
        self._owner.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        batch: list[_Waiting[Item, Result]] = []
        while self._waiting and len(batch) < self._limit:
            waiting = self._waiting.popleft()
            if not waiting.future.done():  # its client has not gone meanwhile
                batch.append(waiting)
        self._busy = bool(batch)
        if batch:
            running = asyncio.wrap_future(self._owner.submit(self._run, [waiting.item for waiting in batch]))
            running.add_done_callback(lambda ran: self._finish(batch, ran))

    def _run(self, items: Sequence[Item]) -> _Ran[Result]:
        started_s = perf_counter()
        results = self._work(items)
        return _Ran(results=results, started_s=started_s, ended_s=perf_counter())

    def _finish(self, batch: Sequence[_Waiting[Item, Result]], running: asyncio.Future[_Ran[Result]]) -> None:
        self._start()  # first of all, so that the owner does not idle
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        for place, waiting in enumerate(batch):
            if waiting.future.done():
                continue
            if error is not None:
                waiting.future.set_exception(error)
            else:
                waiting.future.set_result(_done(running.result(), place, waiting.since_s))


def _done(ran: _Ran[Result], place: int, since_s: float) -> Done[Result]:
    return Done(result=ran.results[place], wait_s=ran.started_s - since_s, work_s=ran.ended_s - ran.started_s)
