"""Words to the person, documents to the machine: stderr and stdout of every command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

Watch = Callable[[str], None]
PIPE_COLUMNS = 160


def say(text: str) -> None:
    """One line of words, on stderr."""
    click.echo(text, err=True)


def show(renderable: Any) -> None:
    """A table or text of rich, on stdout; in a file or pipe as wide as its lines are."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(renderable)


def show_json(row: Mapping[str, Any]) -> None:
    """One JSON document, on stdout."""
    click.echo(json.dumps(row, indent=2, allow_nan=False))


@contextmanager
def watching() -> Iterator[Watch]:
    """A line on stderr that follows what runs; silent where stderr is no terminal."""
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(text)
