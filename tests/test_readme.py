"""README keeps step with the code: words, map, commands."""

from __future__ import annotations

import re
from pathlib import Path

from harness.__main__ import cli
from harness.sample import STAGES
from harness.slo import METRICS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = (
    *("scenario", "request", "sample", "trial", "level", "search", "closed loop", "open loop", "window"),
    *("scheduled_at, sent_at, first_token_at, ended_at", "lateness", "TTFT", "e2e latency", "TPOT", "ITL"),
    *("stage times", "SLO", "attainment", "goodput", "capacity", "three ceilings", "requests/s per GPU", "verdict"),
)


def section(title: str) -> str:
    """The text under one heading."""
    return README.split(f"## {title}\n", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]


def test_the_glossary_has_every_word_of_the_project() -> None:
    """Each word of the design has one row in the glossary, and no word has two."""
    rows = re.findall(r"^\| ([^|]+) \|", section("Glossary"), flags=re.MULTILINE)

    assert set(WORDS) <= set(rows)
    assert len(rows) == len(set(rows))


def test_the_glossary_names_every_stage_and_metric() -> None:
    """Stages of a sample and metrics of an SLO are explained."""
    text = section("Glossary").lower()

    assert [name for name in (*STAGES, *METRICS) if name not in text] == []


def test_the_map_names_every_module() -> None:
    """Every module of ours is on the map, under its room."""
    text = section("Map")
    rooms = {room: text.split(f"  {room}/", maxsplit=1)[1] for room in ("load", "node", "engine", "results")}
    missing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "harness").rglob("*.py")
        if path.stem != "__init__" and not re.search(rf"\b{path.stem}\b", rooms.get(path.parent.name, text))
    ]

    assert missing == []


def test_every_command_in_readme_exists() -> None:
    """`ragload X` in README is a command."""
    named = set(re.findall(r"ragload ([a-z][a-z-]+)\b", README)) - {"says"}

    assert {name for name in named if name not in cli.commands and name not in ("can",)} == set()


def test_every_file_readme_links_to_exists() -> None:
    """Relative links and pictures point to files in the repository."""
    links = re.findall(r"\]\(([^)#]+)\)", README)

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
