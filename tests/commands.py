"""How tests call the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

RAGLOAD = [sys.executable, "-m", "harness"]
Ragload = Callable[..., "subprocess.CompletedProcess[str]"]
