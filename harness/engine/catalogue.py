"""GPUs and models by name, from `catalogue.toml`, where each figure stands with its source and date.

Knows datasheets and model shapes; does not know what speed they give (harness.engine.cost).
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BF16_BYTES = 2
_FILE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU: dense bf16 rate with FP32 accumulation, memory bandwidth, memory as the driver reports it."""

    name: str
    title: str
    bf16_flop_s: float
    bandwidth_bytes_s: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """Shape of a dense decoder-only transformer in bf16; `params` counts tied embeddings once."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    params: int
    vocab: int
    max_context: int
    tied_embeddings: bool

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in GPU memory."""
        return self.params * BF16_BYTES

    @property
    def head_params(self) -> int:
        """Parameters of the output projection (hidden → vocabulary)."""
        return self.vocab * self.hidden

    @property
    def layer_params(self) -> int:
        """Parameters every token passes: all but the embedding table and the output projection."""
        return self.params - self.head_params * (1 if self.tied_embeddings else 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values one token keeps in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BF16_BYTES


def gpu(name: str) -> Gpu:
    """The GPU of that name. Raises UsageError with the nearest names."""
    row = _row("gpu", name)
    return Gpu(
        name=name,
        title=row["title"],
        bf16_flop_s=row["bf16_tflops"]["value"] * 1e12,
        bandwidth_bytes_s=row["bandwidth_gb_s"]["value"] * 1e9,
        memory_bytes=row["memory_mib"]["value"] << 20,
    )


def model(name: str) -> Model:
    """The model of that name. Raises UsageError with the nearest names."""
    row = _row("model", name)
    return Model(name=name, **{key: value for key, value in row.items() if key not in ("source", "date")})


def names(kind: str) -> list[str]:
    """All names of a kind, "gpu" or "model"."""
    return list(_catalogue()[kind])


def _row(kind: str, name: str) -> Mapping[str, Any]:
    rows: Mapping[str, Mapping[str, Any]] = _catalogue()[kind]
    if name in rows:
        return rows[name]
    near = difflib.get_close_matches(name.lower(), rows, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(rows)}"
    raise UsageError(f"{kind} '{name}' is not in the engine's catalogue: {advice}")


@lru_cache(maxsize=1)
def _catalogue() -> Mapping[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
