"""What importing the load room does, and does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

FORBIDDEN = ("torch", "faiss", "transformers", "aiohttp", "httpx", "harness.node", "harness.engine", "harness.results")


def fresh(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def test_nothing_heavy_is_imported():
    """A process that imports what a scenario imports has no model library, no asyncio client, no other room."""
    code = f"""
from harness.load import RagUser, task
import sys
print([name for name in {FORBIDDEN!r} if name in sys.modules])"""

    assert fresh(code) == "[]"


def test_locust_patches_first():
    """Importing a scenario's names patches the standard library before harness code uses it."""
    code = """
import warnings
warnings.simplefilter("error")
from harness.load import RagUser
from gevent import monkey
print(monkey.is_module_patched("socket"), monkey.is_module_patched("ssl"))"""

    assert fresh(code) == "True True"


def test_pure_parts_patch_nothing():
    """Importing a pure part of the room leaves the standard library alone."""
    code = """
import harness.load.sse, harness.load.window, harness.load.client, sys
print("locust" in sys.modules)"""

    assert fresh(code) == "False"
