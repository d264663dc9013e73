"""The embedder with the real MiniLM, and the micro-batcher with plain functions."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from harness.errors import ModelMissingError, UsageError
from harness.node.batch import Batcher
from harness.node.embed import Embedder


def test_vectors_are_unit_float32_rows(embedder: Any) -> None:
    """Every vector is a float32 row of length 1 and of the model's dimension."""
    vectors = embedder.encode_query(["What is a violin?", "", "数学"])

    assert (vectors.shape, vectors.dtype) == ((3, 384), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


def test_a_batch_changes_no_vector(embedder: Any) -> None:
    """A text has the same vector alone and among longer ones, up to rounding."""
    texts = ["short", "a much longer text about rivers and mountains " * 8]

    assert embedder.encode_document(texts)[0] == pytest.approx(embedder.encode_document(texts[:1])[0], abs=1e-5)


def test_a_missing_model_says_what_to_give(tmp_path: Any) -> None:
    """A folder without a model is refused with its name."""
    with pytest.raises(ModelMissingError, match=str(tmp_path)):
        Embedder(str(tmp_path))


@pytest.mark.parametrize("device", ["nonsense", "cuda"])
def test_a_missing_device_is_wrong_use(device: str) -> None:
    """A device that is unknown or not there is refused before the model is loaded."""
    import torch

    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(UsageError, match=device):
        Embedder("never looked for", device)


def test_what_arrives_meanwhile_is_the_next_batch() -> None:
    """An idle owner starts at once with one item; all that comes while it works shares the next batch."""
    batches: list[int] = []
    release = threading.Event()

    def work(items: Any) -> list[int]:
        batches.append(len(items))
        release.wait(5)
        return [item * 2 for item in items]

    async def ask() -> list[int]:
        batcher: Batcher[int, int] = Batcher(work, name="test", limit=32)
        asked = [asyncio.ensure_future(batcher.submit(number)) for number in range(41)]
        await asyncio.sleep(0.05)
        release.set()
        results = [done.result for done in await asyncio.gather(*asked)]
        batcher.close()
        return results

    assert asyncio.run(ask()) == [number * 2 for number in range(41)]
    assert batches == [1, 32, 8]


def test_a_batch_reports_its_wait_and_its_work() -> None:
    """Waiting for the batch before and the work of its own batch are told apart."""

    def work(items: Any) -> list[int]:
        time.sleep(0.05)
        return list(items)

    async def ask() -> Any:
        batcher: Batcher[int, int] = Batcher(work, name="test")
        both = await asyncio.gather(batcher.submit(1), batcher.submit(2))
        batcher.close()
        return both

    first, second = asyncio.run(ask())

    assert first.work_s >= 0.05
    assert second.wait_s >= first.work_s > first.wait_s


def test_an_error_reaches_all_of_its_batch_and_no_other() -> None:
    """A batch that fails fails for its own items; the next one works."""

    def work(items: Any) -> list[float]:
        return [1 / item for item in items]

    async def ask() -> Any:
        batcher: Batcher[int, float] = Batcher(work, name="test")
        failed = await asyncio.gather(batcher.submit(0), return_exceptions=True)
        fine = await batcher.submit(2)
        batcher.close()
        return failed[0], fine.result

    failed, fine = asyncio.run(ask())

    assert (type(failed), fine) == (ZeroDivisionError, 0.5)


def test_who_left_is_not_worked_for() -> None:
    """An item whose requester was cancelled while it waited is not computed."""
    seen: list[int] = []
    release = threading.Event()

    def work(items: Any) -> list[int]:
        seen.extend(items)
        release.wait(5)
        return list(items)

    async def ask() -> None:
        batcher: Batcher[int, int] = Batcher(work, name="test")
        asked = [asyncio.ensure_future(batcher.submit(number)) for number in range(3)]
        await asyncio.sleep(0.05)
        asked[1].cancel()
        release.set()
        await asyncio.gather(*asked, return_exceptions=True)
        batcher.close()

    asyncio.run(ask())

    assert seen == [0, 2]
