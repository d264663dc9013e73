"""What a trial's environment and counters say of the target: its engine, GPUs, memory, restarts.

Reads what the target told the load side (`environment.json`, the counters in `run.json`). A target
that said nothing leaves None, never a guess, except the one assumed GPU, which is marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.results.read import Trial

Floats = NDArray[np.float64]
_COUNTS = ("_total", "_count", "_sum", "_bucket")


def _engine(trial: Trial) -> Mapping[str, Any]:
    row = trial.environment.get("engine")
    return row if isinstance(row, Mapping) else {}


def simulated_as(trial: Trial) -> dict[str, Any] | None:
    """{gpu, model, time_scale} that the engine simulates, or None for a real one."""
    engine = _engine(trial)
    if not engine.get("simulated"):
        return None
    return {key: engine.get(key) for key in ("gpu", "model", "time_scale")}


def engine_of(trial: Trial) -> dict[str, Any]:
    """{model, version, gpu} as the target named them, each None if it did not."""
    engine = _engine(trial)
    gpus = trial.environment.get("gpus") or []
    named = [gpu["name"] for gpu in gpus if isinstance(gpu, Mapping) and "name" in gpu]
    gpu = engine.get("gpu") or (named[0] if named else None)
    return {"model": engine.get("model"), "version": engine.get("version"), "gpu": gpu}


def gpus_of(trial: Trial) -> tuple[int, str]:
    """GPUs to divide by, and who says so: the plan ("given"), the target ("target"), nobody ("assumed": 1).

    A simulated engine is as many GPUs as it says it simulates, one if it says none.
    """
    if trial.plan.gpus is not None:
        return trial.plan.gpus, "given"
    if simulated_as(trial) is not None:
        return int(_engine(trial).get("gpus") or 1), "target"
    gpus = trial.environment.get("gpus")
    if isinstance(gpus, list) and gpus:
        return len(gpus), "target"
    return 1, "assumed"


def kv_concurrency(trial: Trial, prompt_tokens: Floats, output_tokens: Floats) -> float | None:
    """Requests whose KV cache fits in GPU memory at once: blocks × block size / (input + output tokens).

    Lengths are the plan's, else the means observed in `prompt_tokens`, `output_tokens` (n,). None when
    the engine did not tell its cache. Prompts that share a prefix share memory, so more may fit.
    """
    blocks, size = _cache_config(trial)
    prompt = trial.plan.input_tokens or _mean(prompt_tokens)
    output = trial.plan.output_tokens or _mean(output_tokens)
    if not blocks or not size or prompt is None or output is None:
        return None
    return blocks * size / (prompt + output)


def _mean(values: Floats) -> float | None:
    seen = values[~np.isnan(values)]
    return float(seen.mean()) if len(seen) else None


def _cache_config(trial: Trial) -> tuple[int | None, int | None]:
    engine = _engine(trial)
    told = engine.get("cache_config")
    config = told if isinstance(told, Mapping) else engine
    return _whole(config.get("num_gpu_blocks")), _whole(config.get("block_size"))


def prefix_caching_off(trial: Trial) -> bool:
    """True when the engine says that it keeps no prefix cache."""
    told = _engine(trial).get("cache_config")
    return isinstance(told, Mapping) and str(told.get("enable_prefix_caching")).lower() == "false"


def _whole(value: object) -> int | None:
    """The whole number in a JSON number or a metric's label; labels say "None" for what is not set."""
    text = str(value).strip()
    return int(text) if text.isdigit() else None


def counters(trial: Trial) -> tuple[dict[str, float], dict[str, float]]:
    """The engine's counters and gauges when the window opened and when it closed; {} if never scraped."""
    told = (trial.run or {}).get("counters") or {}
    return dict(told.get("at_t0") or {}), dict(told.get("at_t1") or {})


def counter_rise(trial: Trial, name: str) -> float | None:
    """How much the counter `name` rose over the window; None if it was not scraped at both ends.

    Prometheus clients name counters with or without `_total`: both are looked for.
    """
    before, after = counters(trial)
    for key in (f"{name}_total", name):
        if key in before and key in after:
            return float(after[key] - before[key])
    return None


def fallen_counters(trial: Trial) -> list[str]:
    """Counters that fell during the window: the process that counts was started anew.

    Looks at both ends of the window and at every scrape between: a counter that fell may since have
    risen above where it began.
    """
    before, after = counters(trial)
    ends = {name for name in before if name.endswith(_COUNTS) and name in after and after[name] < before[name]}
    names = [name for name in trial.series.name.values if name.endswith(_COUNTS)]
    return sorted(ends | {name for name in names if _falls(trial, name)})


def _falls(trial: Trial, name: str) -> bool:
    instants, values = trial.series.of("engine", name)
    inside = values[trial.window.holds(instants)]
    return bool(np.any(np.diff(inside) < 0))
