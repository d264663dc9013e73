"""What the target tells about itself, by GET: environment, questions, counters.

Works against our node, a bare OpenAI-compatible engine, or a service that offers none of it: what is
not offered is None or empty, and only a target that cannot be reached at all is an error.

Knows URLs and shapes; not when or why they are read.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import ssl
from collections.abc import Iterator
from typing import Any

from harness.errors import TargetError
from harness.load.client import Target
from harness.load.questions import Question, parse_questions

COUNTER_PREFIXES = {"vllm:": "engine", "ragload_": "node"}
"""Metrics worth keeping, by the start of their name, and the `source` they are filed under."""

_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_METRIC = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf))")


def get(target: Target, path: str, *, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Status and body of one GET on a connection of its own. Raises TargetError if there is no answer."""
    connection = _open(target, timeout_s)
    try:
        connection.request("GET", target.prefix + path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()
    except TimeoutError as error:
        raise TargetError(f"no answer from {target.url}{path} within {timeout_s:g} s: is the target up?") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or repr(error)
        raise TargetError(f"cannot reach {target.url} ({reason}): start the target or correct --host") from error
    finally:
        connection.close()


def _open(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    if not target.tls:
        return http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(target.host, target.port, timeout=timeout_s, context=context)


def get_json(target: Target, path: str) -> dict[str, Any] | None:
    """The JSON object at `path`, or None if the target offers none there. Raises TargetError if unreachable."""
    status, body = get(target, path)
    if status != 200:
        return None
    try:
        row = json.loads(body)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def fetch_environment(target: Target) -> dict[str, Any]:
    """The node's own account, or what a bare engine's `/version` and `/v1/models` say. Raises TargetError.

    Its `engine` gets `cache_config`, the labels by which vLLM tells the size of its KV cache, if any.
    """
    told = get_json(target, "/environment") or _engine_account(target)
    engine, cache = told.get("engine"), fetch_cache_config(target)
    if isinstance(engine, dict) and cache is not None:
        engine.setdefault("cache_config", cache)
    return told


def fetch_cache_config(target: Target) -> dict[str, str] | None:
    """Labels of `vllm:cache_config_info` in `/metrics` (the first engine's), None if there is none."""
    status, body = get(target, "/metrics")
    found = _CACHE_CONFIG.search(body.decode("utf-8", "replace")) if status == 200 else None
    return None if found is None else dict(_LABEL.findall(found[1]))


def _engine_account(target: Target) -> dict[str, Any]:
    version, models = get_json(target, "/version") or {}, get_json(target, "/v1/models") or {}
    model: dict[str, Any] = next(iter(models.get("data") or [{}]), {})
    engine = {"url": target.url, "version": version.get("version"), "model": model.get("id")}
    engine["max_model_len"] = model.get("max_model_len")
    return {"engine": {**engine, **version, "simulated": version.get("simulated") is True}}


def fetch_questions(target: Target) -> list[Question]:
    """The questions the node's corpus comes with; empty if the target offers none. Raises TargetError."""
    rows = (get_json(target, "/v1/questions") or {}).get("questions", [])
    try:
        return parse_questions(rows)
    except (KeyError, TypeError) as error:
        raise TargetError(
            f"{target.url}/v1/questions is of another shape ({error!r}): give --questions FILE"
        ) from error


def fetch_counters(target: Target, *, timeout_s: float = 5.0) -> dict[str, float] | None:
    """Counters and gauges of `/metrics`, summed over their labels; None if not offered. Raises TargetError."""
    status, body = get(target, "/metrics", timeout_s=timeout_s)
    return read_counters(body.decode("utf-8", "replace")) if status == 200 else None


def read_counters(text: str) -> dict[str, float]:
    """Name → value out of Prometheus text, labels summed, buckets and foreign names left out."""
    found: dict[str, float] = {}
    for name, value in _lines(text):
        if name.startswith(tuple(COUNTER_PREFIXES)) and not name.endswith(("_bucket", "_created")):
            found[name] = found.get(name, 0.0) + value
    return found


def source_of(name: str) -> str:
    """Which part of the target a metric belongs to: engine or node."""
    return next(source for prefix, source in COUNTER_PREFIXES.items() if name.startswith(prefix))


def _lines(text: str) -> Iterator[tuple[str, float]]:
    """(metric name, value) of each line that has a finite one."""
    for line in text.splitlines():
        match = _METRIC.match(line)
        if match is not None and math.isfinite(value := float(match[2])):
            yield match[1], value
