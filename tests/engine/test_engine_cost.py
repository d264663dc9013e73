"""The catalogue and the cost model, against figures known from elsewhere."""

from __future__ import annotations

import pytest

from harness.engine import catalogue
from harness.engine.cost import Cost, Work, kv_blocks
from harness.errors import UsageError

H200, LLAMA = catalogue.gpu("h200"), catalogue.model("llama-3.1-8b")


def test_every_entry_loads() -> None:
    """Every GPU and model of the catalogue has all its figures."""
    assert {"a100-40gb", "a100-80gb", "h100", "h200", "rtx-4090", "l40s", "l4", "a10g"} <= set(catalogue.names("gpu"))
    for name in catalogue.names("gpu"):
        assert catalogue.gpu(name).bandwidth_bytes_s > 1e11
    for name in catalogue.names("model"):
        assert catalogue.model(name).layer_params > 0


def test_every_gpu_figure_has_a_source() -> None:
    """No GPU figure stands in the catalogue without source and date."""
    for row in catalogue._catalogue()["gpu"].values():
        for figure in ("bf16_tflops", "bandwidth_gb_s", "memory_mib"):
            assert set(row[figure]) == {"value", "source", "date"}


@pytest.mark.parametrize(("kind", "name", "near"), [("gpu", "a100-41gb", "a100-40gb"), ("model", "llama3-8b", "llama")])
def test_unknown_names(kind: str, name: str, near: str) -> None:
    """An unknown name is refused with the nearest known ones."""
    with pytest.raises(UsageError, match=near):
        getattr(catalogue, kind)(name)


@pytest.mark.parametrize(
    ("model", "kib"), [("llama-3.1-8b", 128), ("mistral-7b", 128), ("qwen2.5-7b", 56), ("llama-2-7b", 512)]
)
def test_kv_bytes(model: str, kib: int) -> None:
    """A token's keys and values take what grouped-query attention leaves of them."""
    assert catalogue.model(model).kv_bytes_per_token == kib << 10


def test_kv_capacity_of_a_real_h200() -> None:
    """The KV cache is within 2% of the 931,472 tokens a real vLLM at its 0.92 of memory reported on an H200."""
    blocks = kv_blocks(H200, LLAMA, gpu_memory_utilization=0.92, max_model_len=8192)

    assert blocks * 16 == pytest.approx(931_472, rel=0.02)


def test_weights_that_do_not_fit() -> None:
    """A model larger than the memory is refused with the arithmetic."""
    with pytest.raises(UsageError, match=r"llama-3.1-8b does not fit on l4: 22.49 GiB × 0.7 − 14.96 GiB"):
        kv_blocks(catalogue.gpu("l4"), LLAMA, gpu_memory_utilization=0.7, max_model_len=1024)


def test_cache_shorter_than_a_request() -> None:
    """A cache that cannot hold one request of the longest length is refused."""
    with pytest.raises(UsageError, match="fewer than max_model_len 65536"):
        kv_blocks(catalogue.gpu("rtx-4090"), LLAMA, gpu_memory_utilization=0.9, max_model_len=65536)


def test_decode_reads_the_weights() -> None:
    """One decoding sequence on an H200 takes what was measured, 4.7 ms a token, within 2%."""
    step_s = Cost(H200, LLAMA).step_s(Work(decodes=1, kv_tokens=550, sampled=1, sequences=1))

    assert step_s * 1e3 == pytest.approx(4.707, rel=0.02)


def test_more_work_costs_more() -> None:
    """Each kind of work makes a step longer."""
    cost = Cost(H200, LLAMA)
    some = {"prefill_tokens": 2000, "attention_pairs": 10**6, "decodes": 20, "kv_tokens": 10**4, "sampled": 21}
    base = cost.step_s(Work(**some, sequences=21))

    for name in ("prefill_tokens", "attention_pairs", "kv_tokens", "decodes"):
        assert cost.step_s(Work(**{**some, name: some[name] * 2}, sequences=21)) > base
    assert cost.step_s(Work(**some, sequences=42)) > base
