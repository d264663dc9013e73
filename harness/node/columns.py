"""Column paths: how a recipe says which value of a row it means.

`answers.text` steps into a struct, or into every element of a list of structs, so that both shapes
in which nested data comes give the same. Knows rows as plain mappings and lists; opens no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.errors import CorpusError


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None below a missing value. Raises KeyError with the name that is not there."""
    value: Any = row
    for step in path.split("."):
        value = _step(value, step)
    return value


def texts_at(row: Mapping[str, Any], path: str | None) -> list[str]:
    """The value at `path` as texts: one for a scalar, one for each element of a list, none for None or no path."""
    return [] if path is None else as_texts(value_at(row, path))


def as_texts(value: Any) -> list[str]:
    """Scalars become text; lists of lists (the sentences of several paragraphs) are joined one level down."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [" ".join(text.strip() for text in as_texts(each)) for each in value]
    return [str(value)]


def check_columns(row: Mapping[str, Any], paths: Iterable[str], where: str) -> None:
    """Raises CorpusError naming the column that a first row lacks, and those it has."""
    for path in paths:
        if not _has(row, path):
            have = ", ".join(_names(row))
            raise CorpusError(f"{where} has no column '{path}' (it has {have}): correct the column map")


def _has(row: Mapping[str, Any], path: str) -> bool:
    try:
        value_at(row, path)
    except KeyError:
        return False
    return True


def _step(value: Any, step: str) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return value[step]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_step(each, step) for each in value]
    raise KeyError(step)


def _names(row: Mapping[str, Any]) -> list[str]:
    """Column names, nested ones as dotted paths."""
    names: list[str] = []
    for name, value in row.items():
        inner = value[0] if isinstance(value, list) and value else value
        names += [f"{name}.{below}" for below in _names(inner)] if isinstance(inner, Mapping) else [name]
    return names
