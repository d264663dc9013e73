"""What a folder named on the command line is, and what a report shows of it.

A folder is a trial (`plan.json`), a search (`search.json`: the command, what `levels.conclude`
found, and the levels' folders by name), or repeats: a folder of trial folders. A trial's figures are
computed anew from its samples; a search's are those it decided by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import FolderError
from harness.results.percentiles import rank
from harness.results.read import Trial, read_trial
from harness.results.stats import latencies_ms, summarize
from harness.trial import read_json

SEARCH = "search.json"
_CURVE_POINTS = 200
_SCATTER_POINTS = 2000


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A distribution to draw: `share` of the arrivals had a latency of at most `latency_ms`, (k,) each."""

    label: str
    latency_ms: list[float]
    share: list[float]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a report shows of one folder.

    kind         "trial", "search" or "repeats"
    summaries    of the trial, of each repeat; empty for a search
    found        what a search found, else None
    trials       the trials read, for their plots: one, or those of the levels or repeats whose folder is there
    """

    kind: str
    name: str
    environment: Mapping[str, Any]
    command: Sequence[str]
    summaries: Sequence[Mapping[str, Any]] = ()
    found: Mapping[str, Any] | None = None
    curves: Sequence[Curve] = ()
    dots: Mapping[str, list[float | None]] = field(default_factory=dict)


def read_shown(path: Path) -> Shown:
    """Read a trial, search or folder of repeats. Raises FolderError when it is none of them."""
    if (path / SEARCH).exists():
        return _search(path)
    if (path / "plan.json").exists():
        return _trials(path, [path], "trial")
    repeats = sorted((plan.parent for plan in path.glob("*/plan.json")), key=_by_number)
    if not repeats:
        raise FolderError(f"{path} is no trial, search or folder of trials: name one that `ragload` made")
    return _trials(path, repeats, "repeats")


def _by_number(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdigit() else 0, path.name)


def read_search(path: Path) -> dict[str, Any]:
    """What the search in folder `path` found. Raises FolderError when it is not there or is no search."""
    found = read_json(path / SEARCH)
    lacking = [key for key in ("capacity", "levels", "ceilings", "binding", "valid") if key not in found]
    if lacking:
        raise FolderError(f"{path / SEARCH} lacks {', '.join(lacking)}: it was not written by `ragload search`")
    return found


def _search(path: Path) -> Shown:
    found = read_search(path)
    folders = {level["users"]: path / level["folder"] for level in found["levels"] if level.get("folder")}
    trials = {users: read_trial(folder) for users, folder in folders.items() if folder.is_dir()}
    first = next(iter(trials.values()), None)
    return Shown(
        kind="search",
        name=path.name,
        environment=first.environment if first else {},
        command=found.get("command") or (first.plan.command if first else ()),
        found=found,
        curves=[curve(trial, str(users)) for users, trial in trials.items()],
    )


def _trials(path: Path, folders: Sequence[Path], kind: str) -> Shown:
    trials = [read_trial(folder) for folder in folders]
    return Shown(
        kind=kind,
        name=path.resolve().name,
        environment=trials[0].environment,
        command=trials[0].plan.command,
        summaries=[summarize(trial).to_dict() for trial in trials],
        curves=[curve(trial, trial.path.name if kind == "repeats" else "all requests") for trial in trials],
        dots=dots(trials[0]) if kind == "trial" else {},
    )


def curve(trial: Trial, label: str) -> Curve:
    """The latency distribution of the window's arrivals at up to 200 ranks; failures never reach it."""
    rows = trial.window.holds(trial.samples.scheduled_at)
    values = np.sort(latencies_ms(trial.samples)[rows])
    if len(values) == 0:
        return Curve(label=label, latency_ms=[], share=[])
    percents = np.unique([rank(percent, len(values)) for percent in np.linspace(0.5, 100, _CURVE_POINTS)])
    finite = percents[np.isfinite(values[percents - 1])]
    return Curve(label=label, latency_ms=_plain(values[finite - 1]), share=_plain(finite / len(values)))


def dots(trial: Trial) -> dict[str, list[float | None]]:
    """Up to 2,000 requests, evenly picked: s since the window opened, latency in ms (None: failed), and failures' s."""
    frame = trial.samples
    picked = np.unique(np.linspace(0, len(frame) - 1, min(len(frame), _SCATTER_POINTS)).astype(np.int64))
    when = (frame.scheduled_at[picked] - trial.window.t0) / 1e9
    latency = latencies_ms(frame)[picked]
    ok = np.isfinite(latency)
    return {
        "at_s": [*_plain(when[ok])],
        "latency_ms": [*_plain(latency[ok])],
        "failed_at_s": [*_plain(when[~ok])],
        "window_s": [0.0, trial.window.seconds],
    }


def _plain(values: NDArray[Any]) -> list[float]:
    """Numbers to five digits: what a plot can show, in few bytes."""
    return [float(f"{value:.5g}") for value in values]
