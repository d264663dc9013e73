"""Recipes: small TOML files that say where a corpus comes from, under which licence, and how it is cut.

    kind = "datasets"              wiki-leads, datasets or folder
    source, licence                shown wherever the corpus is
    chunk_tokens, overlap_tokens   how passages are cut unless the command line says otherwise
    [documents] [questions] …      what the kind needs (source_datasets)

Finds and reads them; loads nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.errors import CorpusError
from harness.node.chunk import check_sizes
from harness.node.sources import KINDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_CHUNK_TOKENS, DEFAULT_OVERLAP_TOKENS = 200, 40
"""With a title and two special tokens, 200 tokens stay below the 256 that all-MiniLM-L6-v2 reads."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `build_corpus` needs to know; `settings` is the rest of the file, for the source."""

    name: str
    kind: str
    source: str
    licence: str | None
    chunk_tokens: int
    overlap_tokens: int
    settings: Mapping[str, Any]


def recipes_folder() -> Path:
    """`corpora/` of the checkout, else the copy inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    return checkout / "corpora" if (checkout / "pyproject.toml").is_file() else package / "_corpora"


def recipe_names() -> list[str]:
    """Names of the recipes that come with ragload."""
    return sorted(path.stem for path in recipes_folder().glob("*.toml"))


def recipe(name: str) -> Recipe:
    """A recipe by name, by the path of a TOML file, or made up for a folder of files. Raises CorpusError."""
    path = Path(name).expanduser()
    if name in recipe_names():
        return _read(recipes_folder() / f"{name}.toml")
    if path.suffix == ".toml" and path.is_file():
        return _read(path)
    if path.is_dir():
        return _for_folder(path)
    if path.is_file():
        raise CorpusError(f"{name} is a file: name a folder of documents, or write a recipe (see corpora/README.md)")
    near = get_close_matches(name, recipe_names(), n=3, cutoff=0.4) or recipe_names()
    raise CorpusError(f"'{name}' is no recipe, folder or recipe file: try {', '.join(near)}, or name a folder")


def _for_folder(path: Path) -> Recipe:
    name = path.resolve().name or "folder"
    return _checked({"name": name, "kind": "folder", "source": f"folder {name}", "folder": path}, path)


def _read(path: Path) -> Recipe:
    try:
        row = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusError(f"recipe {path} cannot be read ({error}): correct it") from error
    # Files a recipe names lie beside it; a folder it names may be relative to it.
    beside = path.parent / row["folder"] if "folder" in row else path.parent
    return _checked({"name": path.stem} | row | {"folder": beside}, path)


def _checked(row: dict[str, Any], path: Path) -> Recipe:
    if row.get("kind") not in KINDS:
        raise CorpusError(f"recipe {path} is of kind {row.get('kind')!r}: set `kind` to one of {', '.join(KINDS)}")
    sizes = [row.get("chunk_tokens", DEFAULT_CHUNK_TOKENS), row.get("overlap_tokens", DEFAULT_OVERLAP_TOKENS)]
    if not all(isinstance(size, int) for size in sizes):
        raise CorpusError(f"recipe {path}: chunk_tokens and overlap_tokens are {sizes}, give whole numbers")
    check_sizes(*sizes)
    return Recipe(
        name=str(row["name"]),
        kind=row["kind"],
        source=str(row.get("source", path.name)),
        licence=row.get("licence"),
        chunk_tokens=sizes[0],
        overlap_tokens=sizes[1],
        settings=row,
    )
