"""Text to vectors with sentence-transformers.

Knows one loaded model; does not know corpora, indexes or requests. Not for several threads at once:
tokenizers of transformers have raised "Already borrowed" under concurrent use, so one owner thread
encodes (harness.node.batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers.utils.logging import disable_progress_bar

from harness.errors import ModelMissingError, UsageError

Vectors = NDArray[np.float32]

_BATCH = 32


class Embedder:
    """A sentence-transformers model. Vectors are float32 rows of length 1, so inner product is cosine.

    `name` is for people: the hub id, or the last two parts of the folder. HF_HUB_OFFLINE is respected.
    Raises ModelMissingError if the model cannot be loaded, UsageError for a device that is not there.
    """

    def __init__(self, model_path: str, device: str | None = None) -> None:
        _check_device(device)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            model: Any = SentenceTransformer(model_path, device=device)
        except (OSError, ValueError) as error:
            raise ModelMissingError(
                f"embedder {model_path} cannot be loaded ({_first_line(error)}): give a sentence-transformers folder, "
                "or a hub id on a machine that reaches the hub"
            ) from error
        self._model = model
        folder = Path(model_path)
        self.name = "/".join(folder.parts[-2:]) if folder.is_dir() else model_path
        self.device = str(model.device)
        self.dimension = self.encode_query(["any text"]).shape[1]
        self.max_tokens: int | None = model.max_seq_length

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        """Shape (len(texts), dimension), with the model's query prompt if it has one."""
        return self._encoded(self._model.encode_query, texts)

    def encode_document(self, texts: Sequence[str]) -> Vectors:
        """Shape (len(texts), dimension), with the model's document prompt if it has one."""
        return self._encoded(self._model.encode_document, texts)

    def _encoded(self, encode: Any, texts: Sequence[str]) -> Vectors:
        vectors = encode(
            list(texts), batch_size=_BATCH, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _check_device(device: str | None) -> None:
    if device is None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UsageError(f"device '{device}' is unknown to PyTorch: use cpu, cuda or cuda:N") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device '{device}' asked for, but PyTorch sees no GPU here: use cpu, or leave it out")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
