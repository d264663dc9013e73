"""The rooms know each other by HTTP and by files only, and imports run one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "harness"
WORDS = {"errors", "slo", "plan", "sample", "trial"}
ROOMS = {"load", "node", "engine", "results"}
HEAVY = ("torch", "faiss", "transformers", "aiohttp", "httpx")


def modules() -> dict[str, Path]:
    """Dotted name (without `harness.`) of every module, and its file."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if "__pycache__" not in path.parts
    }


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Names (without `harness.`) of our modules that a file imports; TYPE_CHECKING blocks left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return {name.removeprefix("harness.") for name in found if name.startswith("harness.")} & set(modules())


def room_of(module: str) -> str:
    """The room of a module: a word, one of the rooms, or "top" for what joins them."""
    first = module.split(".", maxsplit=1)[0]
    if first in WORDS:
        return "words"
    return first if first in ROOMS else "top"


@pytest.mark.parametrize("module", sorted(modules()))
def test_no_module_looks_over_a_wall(module: str) -> None:
    """A room imports only itself and the words; words import only words."""
    room = room_of(module)
    if room == "top":
        return
    allowed = {"words", room}

    assert {other for other in imports(modules()[module]) if room_of(other) not in allowed} == set()


def test_imports_have_no_cycle() -> None:
    """No chain of top-level imports leads from a module back to itself."""
    edges = {name: imports(path, top_level_only=True) for name, path in modules().items()}
    settled: set[str] = set()
    while ready := {name for name, needs in edges.items() if name not in settled and needs <= settled}:
        settled |= ready

    assert set(edges) - settled == set()


@pytest.mark.parametrize("module", ["harness.load", "harness.__main__", "harness.results.report", "harness.run"])
def test_a_load_machine_needs_no_torch(module: str) -> None:
    """Importing what a load machine runs pulls in no torch, FAISS, transformers or asyncio HTTP client."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip().splitlines()[-1] == "[]"


def test_words_import_only_the_standard_library_and_numpy() -> None:
    """A word module imports nothing that has to be installed but NumPy."""
    allowed = set(sys.stdlib_module_names) | {"numpy", "harness"}
    for word in WORDS:
        tree = ast.parse((PACKAGE / f"{word}.py").read_text(encoding="utf-8"))
        roots = {
            name.split(".", maxsplit=1)[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }

        assert roots - allowed == set()


def test_no_module_is_two_ideas() -> None:
    """No module of ours is longer than 400 lines."""
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}

    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}
