"""Append-only Arrow files of a running trial: samples and telemetry.

Each file is an Arrow IPC stream. A flush turns the rows gathered since the last one into one record
batch, serialised in memory and appended whole. A write that fails is taken back (the file is cut to
its last whole batch) and its rows stay queued, so a full disk is an error and never a hole.

Memory holds only what the last flush has not written. Knows columns; not what they mean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.errors import FolderError
from harness.sample import Sample
from harness.trial import SCHEMA

_INT, _TEXT = pa.int64(), pa.string()
_METADATA = {b"schema": str(SCHEMA).encode()}

SAMPLE_SCHEMA = pa.schema(
    {
        "seq": _INT,
        "user": _INT,
        "name": _TEXT,
        "scheduled_at": _INT,
        "sent_at": _INT,
        "ended_at": _INT,
        "first_token_at": _INT,
        "failure": _TEXT,
        "status": _INT,
        "error": _TEXT,
        "request_id": _TEXT,
        "question_id": _TEXT,
        "finish_reason": _TEXT,
        "prompt_tokens": _INT,
        "output_tokens": _INT,
        "cached_tokens": _INT,
        "first_chunk_tokens": _INT,
        "chunks": _INT,
        "gaps_ns": pa.list_(_INT),
        "stages_ms": pa.map_(_TEXT, pa.float64()),
        "passage_ids": pa.list_(_TEXT),
    },
    metadata=_METADATA,
)
"""Columns of samples.arrows: the fields of `harness.sample.Sample`, in their order."""

SERIES_SCHEMA = pa.schema(
    {"t_ns": _INT, "source": _TEXT, "name": _TEXT, "value": pa.float64()},
    metadata=_METADATA,
)
"""Columns of series.arrows. `source` is load, engine or node; `t_ns` the load side's monotonic clock."""

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowLog:
    """One Arrow IPC stream on disk, appended to a record batch at a time.

    Opening it writes the schema. `append` only queues; `flush` writes, and raises FolderError when
    it cannot, with the queue kept for the next try.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._queue: list[tuple[Any, ...]] = []
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise FolderError(f"cannot create {path} ({error.strerror}): name a new folder you may write to") from error
        self._size = 0
        self._batch([[]] * len(schema))  # Arrow's first conversion loads what it needs: now, not while users wait
        self._append_bytes(schema.serialize())

    @property
    def queued(self) -> int:
        """Rows not on disk yet."""
        return len(self._queue)

    def append(self, row: tuple[Any, ...]) -> None:
        """Queue one row: values in the schema's order."""
        self._queue.append(row)

    def flush(self) -> None:
        """Write the queued rows as one batch. Raises FolderError; the rows then stay queued."""
        if not self._queue:
            return
        rows = self._queue
        self._append_bytes(self._batch(list(zip(*rows, strict=True))).serialize())
        self._queue = self._queue[len(rows) :]

    def close(self) -> None:
        """Write what is queued and the end mark, and force it all to the disk. Raises FolderError."""
        try:
            self.flush()
            self._append_bytes(_END_OF_STREAM)
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritten(error) from error
        finally:
            os.close(self._file)

    def _batch(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        arrays = [pa.array(column, kind) for column, kind in zip(columns, self.schema.types, strict=True)]
        return pa.record_batch(arrays, schema=self.schema)

    def _append_bytes(self, message: Any) -> None:
        """Append all of one IPC message, or nothing of it."""
        view, written = memoryview(message).cast("B"), 0
        try:
            while written < len(view):
                written += os.write(self._file, view[written:])
        except OSError as error:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise self._unwritten(error) from error
        self._size += written

    def _unwritten(self, error: OSError) -> FolderError:
        return FolderError(
            f"cannot write {self.path} ({error.strerror}), {self.queued} rows wait in memory: free the disk now"
        )


class SampleLog(ArrowLog):
    """samples.arrows: one row a request, failures included."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SAMPLE_SCHEMA)

    def record(self, sample: Sample) -> None:
        """Queue one sample."""
        self.append(tuple(_column(getattr(sample, name)) for name in SAMPLE_SCHEMA.names))


class SeriesLog(ArrowLog):
    """series.arrows: telemetry in long form."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SERIES_SCHEMA)

    def record(self, t_ns: int, source: str, values: Mapping[str, float]) -> None:
        """Queue one row for each name → value, all read at `t_ns`."""
        for name, value in values.items():
            self.append((t_ns, source, name, float(value)))


def _column(value: Any) -> Any:
    """The value as Arrow takes it: a mapping as pairs."""
    return list(value.items()) if isinstance(value, Mapping) else value
