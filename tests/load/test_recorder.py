"""What is on the disk after whatever happened to the process or the disk."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from harness.errors import FolderError
from harness.load.recorder import SAMPLE_SCHEMA, SampleLog, SeriesLog
from harness.sample import Sample

SAMPLE = Sample(
    seq=1,
    user=2,
    name="Rag.question",
    scheduled_at=10,
    sent_at=11,
    ended_at=99,
    first_token_at=50,
    chunks=3,
    gaps_ns=(20, 29),
    stages_ms={"embed": 1.5},
    passage_ids=("p1", "p2"),
)


def batches(content: bytes) -> list[pa.RecordBatch]:
    """Whole batches of a stream that may end anywhere."""
    found = []
    try:
        for batch in pa.ipc.open_stream(content):
            found.append(batch)  # noqa: PERF402 - those before the break are wanted
    except (pa.ArrowInvalid, OSError, EOFError):
        pass
    return found


def test_columns_are_the_samples_fields():
    """samples.arrows has the fields of Sample, in their order, and names its schema version."""
    assert SAMPLE_SCHEMA.names == [field.name for field in fields(Sample)]
    assert SAMPLE_SCHEMA.metadata == {b"schema": b"1"}


def test_round_trip(tmp_path):
    """A recorded sample reads back as it was, missing values as null."""
    log = SampleLog(tmp_path / "samples.arrows")
    log.record(SAMPLE)
    log.close()
    (row,) = pa.ipc.open_stream((tmp_path / "samples.arrows").read_bytes()).read_all().to_pylist()

    assert row["stages_ms"] == [("embed", 1.5)]
    assert (row["gaps_ns"], row["passage_ids"], row["failure"], row["output_tokens"]) == (
        [20, 29],
        ["p1", "p2"],
        None,
        None,
    )
    assert (row["seq"], row["name"], row["first_token_at"], row["chunks"]) == (1, "Rag.question", 50, 3)


def test_series_round_trip(tmp_path):
    """Telemetry is kept in long form, one row a value."""
    log = SeriesLog(tmp_path / "series.arrows")
    log.record(5, "load", {"cpu_share": 0.5, "users": 8})
    log.close()
    table = pa.ipc.open_stream((tmp_path / "series.arrows").read_bytes()).read_all()

    assert table.to_pylist() == [
        {"t_ns": 5, "source": "load", "name": "cpu_share", "value": 0.5},
        {"t_ns": 5, "source": "load", "name": "users", "value": 8.0},
    ]


def test_truncation_at_any_byte(tmp_path):
    """A file cut at any byte still yields every batch that is whole before the cut."""
    path = tmp_path / "samples.arrows"
    log, ends = SampleLog(path), []
    start = path.stat().st_size
    for _ in range(4):
        log.record(SAMPLE)
        log.flush()
        ends.append(path.stat().st_size)
    log.close()
    content = path.read_bytes()
    found = [len(batches(content[:size])) for size in range(start, len(content) + 1)]

    assert found == [sum(end <= size for end in ends) for size in range(start, len(content) + 1)]


def test_existing_file_is_kept(tmp_path):
    """A log never writes over an existing file."""
    (tmp_path / "samples.arrows").write_text("precious")
    with pytest.raises(FolderError, match="new folder"):
        SampleLog(tmp_path / "samples.arrows")

    assert (tmp_path / "samples.arrows").read_text() == "precious"


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness.errors import FolderError
from harness.load.recorder import SeriesLog

log = SeriesLog(Path(sys.argv[1]))
log.record(1, "load", {"a": 1.0})
log.flush()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (Path(sys.argv[1]).stat().st_size + 100, hard))
log.record(2, "load", {"b": 2.0})
try:
    log.flush()
except FolderError as error:
    print(error)
print(log.queued)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.close()
"""


def test_full_disk(tmp_path):
    """A disk that fills within a batch is an error; once there is room, nothing is missing."""
    path, root = tmp_path / "series.arrows", Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(path), str(root)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    table = pa.ipc.open_stream(path.read_bytes()).read_all()

    assert "File too large" in said[0]
    assert "1 rows wait in memory" in said[0]
    assert said[1] == "1"
    assert table["value"].to_pylist() == [1.0, 2.0]
