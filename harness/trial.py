"""The trial folder: which file is which, and how to write one so that a crash loses nothing.

    plan.json         what was asked (harness.plan.Plan)
    environment.json  what it ran against and from
    run.json          what happened: the window, the drain, the load side's own state
    samples.arrows    one row a request, an Arrow IPC stream that can be read up to its last whole batch
    series.arrows     telemetry: (t_ns, source, name, value), the same format
    summary.json      made from the above, can always be made again
    report.html       likewise
    locust.log        what Locust said

Knows names and versions; does not know what the figures mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import FolderError

SCHEMA = 1
"""Version 1 (2026-12): first."""


@dataclass(frozen=True)
class TrialFolder:
    """Paths of one trial. Nothing is created until `create` is called."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def run(self) -> Path:
        return self.path / "run.json"

    @property
    def samples(self) -> Path:
        return self.path / "samples.arrows"

    @property
    def series(self) -> Path:
        return self.path / "series.arrows"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        return self.path / "locust.log"

    def create(self) -> TrialFolder:
        """Make the folder; refuse one that already holds samples, so that nothing measured is lost."""
        if self.samples.exists():
            raise FolderError(f"{self.path} already holds a trial: name another folder, or move this one away")
        make_folder(self.path)
        return self


def make_folder(path: Path) -> None:
    """Create `path` and prove it can be written to. Raises FolderError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FolderError(f"cannot write to {path} ({error.strerror}): name a folder you may write to") from error


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` at the end of the block, or leaves nothing: draft, fsync, rename.

    Raises FolderError when it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise FolderError(f"cannot write {path} ({error.strerror}): free the disk or name another folder") from error
    finally:
        with suppress(OSError):  # on a file system that takes no writes there is no draft either
            draft.unlink(missing_ok=True)


def write_json(path: Path, row: Mapping[str, Any]) -> None:
    """Write `row` with its schema version, whole or not at all. Raises FolderError."""
    text = json.dumps({"schema": SCHEMA, **row}, indent=2, allow_nan=False) + "\n"
    with written_whole(path) as file:
        file.write(text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote. Raises FolderError if absent, broken, or of a newer schema."""
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FolderError(f"cannot read {path} ({error.strerror}): is this a trial folder?") from error
    except ValueError as error:
        raise FolderError(f"{path} is not JSON ({error}): restore it from where the trial was made") from error
    if not isinstance(row, dict):
        raise FolderError(f"{path} holds no JSON object: restore it from where the trial was made")
    check_schema(path, row.get("schema"))
    return row


def check_schema(path: Path, version: object) -> None:
    """Refuse a file of a schema newer than this program's. Raises FolderError."""
    if not isinstance(version, int) or version < 1:
        raise FolderError(f"{path} names no schema version: it was not written by ragload")
    if version > SCHEMA:
        raise FolderError(f"{path} has schema {version}, this ragload reads up to {SCHEMA}: upgrade ragload to read it")
