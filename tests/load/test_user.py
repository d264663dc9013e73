"""How users of the closed loop are spread over it."""

from __future__ import annotations

import subprocess
import sys

SPREAD = """
from harness.load.user import spread_s, stagger_s
places = [spread_s(index, 4, 8.0) for index in range(4)]
staggers = [stagger_s(index, 128) for index in range(128)]
print(places, len(set(staggers)), max(staggers) < 8, stagger_s(0, 1))
"""


def test_users_are_spread_over_one_whole_latency():
    """After its first request each user has a place of its own in the cycle, evenly over one latency."""
    out = subprocess.run([sys.executable, "-c", SPREAD], capture_output=True, text=True, check=True).stdout

    assert out.strip() == "[0.0, 2.0, 4.0, 6.0] 128 True 0.0"
