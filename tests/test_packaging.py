"""What an installed package carries."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("folder", ["corpora", "scenarios"])
def test_the_wheel_names_every_recipe_and_scenario(folder: str) -> None:
    """Each recipe and scenario of the checkout is named among the wheel's files."""
    named = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    files = [path.name for path in (ROOT / folder).iterdir() if path.suffix in (".toml", ".py", ".jsonl")]

    assert [name for name in files if f'"{folder}/{name}" = "harness/_{folder}/{name}"' not in named] == []
