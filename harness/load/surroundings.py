"""Facts about the machine the load comes from, for environment.json. The host's name is not one of them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


def client_facts() -> dict[str, Any]:
    """CPU, cores this process may use, and versions; what cannot be told is None."""
    return {
        "host_cpu": _cpu_model(),
        "cores": cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "locust": _version("locust"),
        "gevent": _version("gevent"),
        "ragload": _version("ragload"),
        "git_commit": _commit(),
    }


def cores() -> int | None:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or None)


def _commit() -> str | None:
    """The checkout's commit, `-dirty` when files differ from it; None outside a checkout or without git."""
    if not (_PACKAGE.parent / ".git").exists():
        return None
    command = ["git", "-C", str(_PACKAGE.parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - fixed words
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() or None
