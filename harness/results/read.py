"""Read a trial folder into columns: what was asked, where, what happened, every sample.

Reads what a crash left, too: whole record batches of a cut file, a run without its `run.json`, a
target that never said what it is. What was pieced together is marked as such (`Trial.truncated`,
`Window.derived`), so that the checks can doubt it. Opens no socket; judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.errors import FolderError
from harness.plan import Plan
from harness.trial import TrialFolder, check_schema, read_json

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_TEXTS = ("failure", "error", "name", "question_id")
_COUNTS = ("status", "prompt_tokens", "output_tokens", "cached_tokens", "first_chunk_tokens")
_INSTANTS = ("scheduled_at", "sent_at", "first_token_at", "ended_at")
_COLUMNS = ("seq", "user", *_INSTANTS, *_TEXTS, *_COUNTS, "chunks", "gaps_ns", "stages_ms")
_SERIES = ("t_ns", "source", "name", "value")
_WARM_REQUESTS = 3


@dataclass(frozen=True, kw_only=True)
class Texts:
    """A column of n texts: each distinct one once, and n codes into them; −1 is a missing text."""

    values: tuple[str, ...]
    codes: Ints

    def where(self, text: str) -> Mask:
        """Mask (n,) of the rows that hold `text`."""
        code = self.values.index(text) if text in self.values else -2
        return np.asarray(self.codes == code, dtype=np.bool_)

    def counts(self, rows: Mask) -> dict[str, int]:
        """How often each text occurs in `rows` (n,), most frequent first; missing ones are not counted."""
        codes = self.codes[rows]
        tally = np.bincount(codes[codes >= 0], minlength=len(self.values))
        order = np.argsort(-tally, kind="stable")
        return {self.values[code]: int(tally[code]) for code in order if tally[code]}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Samples as columns of n entries, in the order they were recorded.

    Instants are float64 ns since `base_ns` (the first scheduled request; whole numbers up to 2⁵³ are
    exact, so 104 days fit). Missing numbers are NaN. Row i's gaps between token-bearing chunks are
    `gaps_ns[gap_offsets[i]:gap_offsets[i + 1]]`. A stage that a row lacks is NaN in `stages_ms`.
    """

    base_ns: int
    seq: Ints
    user: Ints
    scheduled_at: Floats
    sent_at: Floats
    first_token_at: Floats
    ended_at: Floats
    failure: Texts
    error: Texts
    name: Texts
    question_id: Texts
    status: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    first_chunk_tokens: Floats
    chunks: Ints
    gaps_ns: Ints
    gap_offsets: Ints
    stages_ms: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def ok(self) -> Mask:
        """Mask (n,) of the requests whose whole answer arrived."""
        return np.asarray(self.failure.codes < 0, dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Telemetry as m points: instants in ns since the frame's `base_ns`, who said it, what, how much."""

    t: Floats
    source: Texts
    name: Texts
    value: Floats

    def of(self, source: str, name: str) -> tuple[Floats, Floats]:
        """Instants and values of one measured thing, in order of time."""
        rows = self.source.where(source) & self.name.where(name)
        order = np.argsort(self.t[rows], kind="stable")
        return self.t[rows][order], self.value[rows][order]


@dataclass(frozen=True, kw_only=True)
class Window:
    """[t0, t1) in ns since the frame's `base_ns`, and the rule that closed it.

    `derived` means the run did not say it and it was found from the samples afterwards.
    """

    t0: float
    t1: float
    rule: str
    derived: bool = False

    @property
    def seconds(self) -> float:
        return (self.t1 - self.t0) / 1e9

    def holds(self, instants: Floats) -> Mask:
        """Mask of the instants in [t0, t1): t0 is itself a completion and belongs, t1's does not."""
        return np.asarray((instants >= self.t0) & (instants < self.t1), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Everything a trial folder holds. `run` is None after a crash; `environment` is {} if never asked.

    `truncated` is True when the samples' file ends inside a record batch: what came after is lost.
    """

    path: Path
    plan: Plan
    environment: Mapping[str, Any]
    run: Mapping[str, Any] | None
    samples: Frame
    series: Series
    window: Window
    truncated: bool = False


def read_trial(path: Path) -> Trial:
    """Read the trial in folder `path`.

    Raises FolderError when the folder is missing, holds no plan or no samples, or is of a newer schema.
    """
    folder = TrialFolder(path)
    if not path.is_dir():
        raise FolderError(f"{path} is no folder: name a trial folder, as `ragload run` prints it")
    plan = Plan.from_dict(read_json(folder.plan))
    run = read_json(folder.run) if folder.run.exists() else None
    table, truncated = _read_stream(folder.samples, _COLUMNS)
    if table is None or table.num_rows == 0:
        raise FolderError(f"{path} holds no samples: the run ended before its first answer; see {folder.log.name}")
    frame = _frame(table)
    series, _ = _read_stream(folder.series, _SERIES)
    return Trial(
        path=path,
        plan=plan,
        environment=read_json(folder.environment) if folder.environment.exists() else {},
        run=run,
        samples=frame,
        series=_series(series, frame.base_ns),
        window=_window(run, frame),
        truncated=truncated,
    )


def _read_stream(path: Path, columns: tuple[str, ...]) -> tuple[Any, bool]:
    """The named columns of an Arrow IPC stream as a table (None without a schema), and whether it was cut."""
    if not path.exists():
        return None, False
    try:
        stream = pa.ipc.open_stream(pa.memory_map(str(path)))
    except (pa.ArrowInvalid, OSError):
        return None, True
    schema = stream.schema
    _check_stream(path, schema, columns)
    batches, truncated = _whole_batches(stream, columns)
    kept = pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema=kept), truncated


def _check_stream(path: Path, schema: Any, columns: tuple[str, ...]) -> None:
    version = (schema.metadata or {}).get(b"schema", b"")
    check_schema(path, int(version) if version.isdigit() else None)
    lacking = [name for name in columns if name not in schema.names]
    if lacking:
        raise FolderError(f"{path} lacks the columns {', '.join(lacking)}: it was not written by ragload")


def _whole_batches(stream: Any, columns: tuple[str, ...]) -> tuple[list[Any], bool]:
    batches: list[Any] = []
    try:
        for batch in stream:
            batches.append(batch.select(list(columns)))  # noqa: PERF401 (keeps what came before a cut)
    except (pa.ArrowInvalid, OSError):  # the file ends inside a batch: a crash or a full disk
        return batches, True
    return batches, False


def _frame(table: Any) -> Frame:
    base_ns = int(_ints(table["scheduled_at"]).min())
    gaps = _one(table["gaps_ns"])
    offsets = np.asarray(gaps.offsets, dtype=np.int64)
    columns: dict[str, Any] = {name: _instants(table[name], base_ns) for name in _INSTANTS}
    columns |= {name: _texts(table[name]) for name in _TEXTS}
    columns |= {name: _floats(table[name]) for name in _COUNTS}
    return Frame(
        base_ns=base_ns,
        seq=_ints(table["seq"]),
        user=_ints(table["user"]),
        chunks=_ints(table["chunks"]),
        gaps_ns=np.asarray(gaps.values, dtype=np.int64)[offsets[0] : offsets[-1]],
        gap_offsets=offsets - offsets[0],
        stages_ms=_stages(_one(table["stages_ms"])),
        **columns,
    )


def _one(column: Any) -> Any:
    """A chunked column as one contiguous array."""
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _ints(column: Any) -> Ints:
    return np.asarray(_one(column).fill_null(0), dtype=np.int64)


def _floats(column: Any) -> Floats:
    return np.asarray(_one(column).cast(pa.float64()).fill_null(float("nan")), dtype=np.float64)


def _instants(column: Any, base_ns: int) -> Floats:
    """Subtracted as int64 first, so that no nanosecond is lost however long the machine has been up."""
    values = _one(column)
    since = np.asarray(values.fill_null(base_ns), dtype=np.int64) - base_ns
    return np.where(np.asarray(values.is_null()), np.nan, since.astype(np.float64))


def _texts(column: Any) -> Texts:
    encoded = _one(column).cast(pa.string()).dictionary_encode()
    codes = np.asarray(encoded.indices.cast(pa.int64()).fill_null(-1), dtype=np.int64)
    return Texts(values=tuple(encoded.dictionary.to_pylist()), codes=codes)


def _stages(maps: Any) -> dict[str, Floats]:
    """A map column (n,) as one array (n,) a stage, NaN where a row lacks it."""
    offsets = np.asarray(maps.offsets, dtype=np.int64)
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
    used = slice(int(offsets[0]), int(offsets[-1]))
    keys = maps.keys[used].dictionary_encode()
    codes = np.asarray(keys.indices)
    values = np.asarray(maps.items[used].cast(pa.float64()).fill_null(float("nan")), dtype=np.float64)
    columns = {}
    for code, stage in enumerate(keys.dictionary.to_pylist()):
        column = np.full(len(maps), np.nan)
        column[rows[codes == code]] = values[codes == code]
        columns[stage] = column
    return columns


def _series(table: Any, base_ns: int) -> Series:
    if table is None or table.num_rows == 0:
        none = Texts(values=(), codes=np.empty(0, dtype=np.int64))
        return Series(t=np.empty(0), source=none, name=none, value=np.empty(0))
    return Series(
        t=_instants(table["t_ns"], base_ns),
        source=_texts(table["source"]),
        name=_texts(table["name"]),
        value=_floats(table["value"]),
    )


def _window(run: Mapping[str, Any] | None, frame: Frame) -> Window:
    told = run.get("window") if run else None
    if told:
        return Window(
            t0=float(told["t0_ns"] - frame.base_ns),
            t1=float(told["t1_ns"] - frame.base_ns),
            rule=str(told.get("rule", "")),
        )
    t0, t1 = _warm(frame), float(frame.ended_at.max())
    if t0 is None or t0 >= t1:
        return Window(
            t0=0.0, t1=max(t1, 1.0), rule="all there is: a user finished fewer than three requests", derived=True
        )
    return Window(t0=t0, t1=t1, rule="from three finished requests a user to the last completion", derived=True)


def _warm(frame: Frame) -> float | None:
    """When the last of the users had finished three requests; None if one of them never did."""
    order = np.lexsort((frame.ended_at, frame.user))
    users, starts, counts = np.unique(frame.user[order], return_index=True, return_counts=True)
    if len(users) == 0 or counts.min() < _WARM_REQUESTS:
        return None
    return float(frame.ended_at[order][starts + _WARM_REQUESTS - 1].max())
