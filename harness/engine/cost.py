"""How long one engine step takes on a GPU, and how many KV-cache blocks its memory holds.

A step's time is a roofline over the layers' weights (bandwidth for few tokens, arithmetic for many),
plus the output projection, attention of prefill, KV-cache bytes read by decode, and host time:

    step = max(W/B, 2·P·tokens/F) + max(H/B, 2·h·sampled/F) + 4·pairs·heads·dim·layers/F
           + KV bytes read/B + host per step + host per sequence·sequences + host of a prefill

B and F are the datasheet's bandwidth and dense bf16 rate times one efficiency each. The constants are
fitted on one H200 with vLLM 0.25.1 and Llama-3.1-8B in bf16; for another GPU they are an
extrapolation. Knows no scheduler, no clock; one GPU, bf16, no quantization, no speculative decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.engine.catalogue import BF16_BYTES, Gpu, Model
from harness.errors import UsageError

BLOCK_TOKENS = 16
COMPUTE_EFFICIENCY = 0.627
"""Of the dense datasheet rate: 0.785 of a measured 790 TFLOP/s on the H200, whose datasheet says 989."""
BANDWIDTH_EFFICIENCY = 0.845
"""Of the datasheet bandwidth, in decode."""
HOST_STEP_S = 1.0e-3
HOST_SEQUENCE_S = 8e-6
HOST_PREFILL_S = 1.0e-3
RESERVE_BYTES = 3 << 29
"""1.5 GiB for activations, CUDA graphs and what lies outside the allocator."""


@dataclass(slots=True)
class Work:
    """What one step computes.

    prefill_tokens  prompt tokens; `attention_pairs` are their (query, key) pairs, causal
    decodes         sequences that advance by one token; `kv_tokens` is the sum of their contexts
    sampled         sequences that get a new token out of this step
    sequences       all sequences in the step
    """

    prefill_tokens: int = 0
    attention_pairs: int = 0
    decodes: int = 0
    kv_tokens: int = 0
    sampled: int = 0
    sequences: int = 0


class Cost:
    """Step times of one model on one GPU."""

    def __init__(self, gpu: Gpu, model: Model) -> None:
        flop_s = gpu.bf16_flop_s * COMPUTE_EFFICIENCY
        bytes_s = gpu.bandwidth_bytes_s * BANDWIDTH_EFFICIENCY
        self._layers_read_s = model.layer_params * BF16_BYTES / bytes_s
        self._token_s = 2 * model.layer_params / flop_s
        self._head_read_s = model.head_params * BF16_BYTES / bytes_s
        self._sample_s = 2 * model.head_params / flop_s
        self._pair_s = 4 * model.heads * model.head_dim * model.layers / flop_s
        self._kv_token_s = model.kv_bytes_per_token / bytes_s

    def step_s(self, work: Work) -> float:
        """Duration of a step in s."""
        layers_s = max(self._layers_read_s, self._token_s * (work.prefill_tokens + work.decodes))
        head_s = max(self._head_read_s, self._sample_s * work.sampled)
        attention_s = self._pair_s * work.attention_pairs + self._kv_token_s * work.kv_tokens
        host_s = HOST_STEP_S + HOST_SEQUENCE_S * work.sequences + (HOST_PREFILL_S if work.prefill_tokens else 0.0)
        return layers_s + head_s + attention_s + host_s


def kv_blocks(gpu: Gpu, model: Model, *, gpu_memory_utilization: float, max_model_len: int) -> int:
    """Blocks of 16 tokens that fit beside the weights.

    Raises UsageError, with the arithmetic, when the weights do not fit or one request of
    `max_model_len` tokens would not.
    """
    usable = int(gpu.memory_bytes * gpu_memory_utilization)
    left = usable - model.weight_bytes - RESERVE_BYTES
    blocks = left // (model.kv_bytes_per_token * BLOCK_TOKENS)
    sums = (
        f"{_gib(gpu.memory_bytes)} × {gpu_memory_utilization:g} − {_gib(model.weight_bytes)} of weights "
        f"− {_gib(RESERVE_BYTES)} reserve = {_gib(left)}"
    )
    if left <= 0:
        raise UsageError(f"{model.name} does not fit on {gpu.name}: {sums}; take a larger GPU or a smaller model")
    if blocks * BLOCK_TOKENS < max_model_len:
        raise UsageError(
            f"the KV cache of {model.name} on {gpu.name} holds {blocks * BLOCK_TOKENS} tokens ({sums}), fewer than "
            f"max_model_len {max_model_len}: lower max_model_len or raise gpu_memory_utilization"
        )
    return blocks


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
