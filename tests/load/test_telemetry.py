"""Hub delays: percentiles out of a histogram of fixed size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
from harness.load import RagUser
from harness.load.telemetry import Delays
delays = Delays()
print(delays.percentile_ms(50))
for n in range(100):
    delays.add(n + 0.05)
print(delays.percentile_ms(50), delays.percentile_ms(99), delays.percentile_ms(100))
delays.add(5000.0)
print(delays.percentile_ms(100))
delays.clear()
print(delays.percentile_ms(99))
"""


def test_delays():
    """Percentiles are exact to 0.1 ms, the longest is kept as it was, and none without a delay."""
    command = [sys.executable, "-c", CODE]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]).stdout

    assert said.split("\n") == ["None", "49.1 98.1 99.05", "5000.0", "None", ""]
