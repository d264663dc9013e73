"""Run trials: plain Locust in a process of its own, then the summary of what it left.

A search is trials at the loads that `harness.results.levels` asks for. This module joins the
rooms by their files and command lines; it measures nothing itself.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness.console import say
from harness.errors import FolderError, InvalidTrialError, TargetError, UsageError
from harness.plan import Plan
from harness.results.levels import Level, conclude, judge, next_users
from harness.results.read import read_trial
from harness.results.stats import summarize
from harness.served import check_target, check_url, last_line
from harness.slo import Slo
from harness.trial import TrialFolder, make_folder, read_json, write_json

Watch = Callable[[str], None]
"""Called about five times a second with a line that says where the run is."""


def scenario_path(name: str) -> Path:
    """The scenario file: a path, or the name of one that comes with ragload (`rag`, `chat`)."""
    given = Path(name)
    if given.is_file():
        return given
    here = Path(__file__).resolve().parent
    for folder in (here.parent / "scenarios", here / "_scenarios"):
        bundled = folder / f"{given.name.removesuffix('.py')}.py"
        if bundled.is_file() and (given.parent == Path() or given.parent.name == "scenarios"):
            return bundled
    raise UsageError(f"scenario {name} does not exist: give a Locust file, or 'rag' or 'chat'")


def new_folder(scenario: Path, *, suffix: str = "") -> Path:
    """A fresh folder under reports/ named by time (UTC) and scenario."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    base = Path("reports") / f"{stamp}-{scenario.stem}{suffix}"
    return next(path for path in _numbered(base) if not path.exists())


def _numbered(base: Path) -> Iterator[Path]:
    yield base
    number = 2
    while True:
        yield base.with_name(f"{base.name}-{number}")
        number += 1


def run_trial(plan: Plan, out: Path, *, watch: Watch | None = None) -> dict[str, Any]:
    """Run one trial and return its summary (also in `out/summary.json`).

    Raises TargetError when the target is down, FolderError when `out` cannot be used; Ctrl-C stops
    Locust, keeps what was measured, and raises KeyboardInterrupt again.
    """
    check_target(plan.host)
    folder = TrialFolder(out).create()
    write_json(folder.plan, plan.to_dict())
    with folder.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 (our own command line)
            _locust_command(plan, folder), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    try:
        _wait(process, plan, watch)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if process.returncode not in (0, 1):  # Locust ends with 1 when requests failed: those are samples
        _raise_from_log(process.returncode, folder.log)
    return _summary(folder)


def _wait(process: subprocess.Popen[bytes], plan: Plan, watch: Watch | None) -> None:
    start = time.monotonic()
    while process.poll() is None:
        if watch is not None:
            watch(f"{plan.users} users, {time.monotonic() - start:.0f} s")
        time.sleep(0.2)


def _locust_command(plan: Plan, folder: TrialFolder) -> list[str]:
    options = {
        "--trial": folder.path,
        "--warmup": plan.warmup_s,
        "--duration": plan.duration_s,
        "--input-tokens": plan.input_tokens,
        "--output-tokens": plan.output_tokens,
        "--seed": plan.seed,
        "--grace": plan.grace_s,
        "--gpus": plan.gpus,
        "--cache-mode": plan.cache_mode,
    }
    named = [str(part) for name, value in options.items() if value is not None for part in (name, value)]
    load = ["--headless", "--users", str(plan.users), "--spawn-rate", str(plan.users), "--host", plan.host]
    return [sys.executable, "-m", "locust", "-f", plan.scenario, *load, "--only-summary", *named]


def _raise_from_log(code: int, log: Path) -> None:
    line = last_line(log).removeprefix("ragload: ")
    if code < 0:
        raise InvalidTrialError(f"Locust was killed by signal {-code}; what it measured is kept in {log.parent}")
    kind = {2: UsageError, 4: TargetError}.get(code, InvalidTrialError)
    raise kind(f"{line} (Locust ended with {code}; see {log})")


def _summary(folder: TrialFolder) -> dict[str, Any]:
    """The summary that the load side had made when its test stopped; made here if it could not."""
    if not folder.summary.exists():
        return summarize_folder(folder.path)
    kept = read_json(folder.summary)
    return {key: value for key, value in kept.items() if key != "schema"}


def summarize_folder(path: Path) -> dict[str, Any]:
    """Summarize a trial folder and keep that as its `summary.json`, if it can be written. Raises FolderError."""
    summary = summarize(read_trial(path)).to_dict()
    try:
        write_json(TrialFolder(path).summary, summary)
    except FolderError as error:
        say(f"summary not kept: {error}")
    return summary


def run_repeated(plan: Plan, out: Path, repeat: int, *, watch: Watch | None = None) -> list[dict[str, Any]]:
    """Run the same plan `repeat` times with seeds seed, seed+1, …, into `out/1`, `out/2`, …"""
    if out.exists() and any(out.iterdir()):
        raise FolderError(f"{out} is not empty: name another folder, or move this one away")
    make_folder(out)
    return [
        run_trial(replace(plan, seed=plan.seed + index), out / str(index + 1), watch=watch) for index in range(repeat)
    ]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a search may go: the first and the highest load, and how narrow the bracket must get."""

    start_users: int = 1
    max_users: int = 256
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        if not 1 <= self.start_users <= self.max_users:
            raise UsageError(f"start users {self.start_users} must lie between 1 and max users {self.max_users}")


def search(
    plan: Plan, slo: Slo, out: Path, *, limits: Limits, watch: Watch | None = None, told: Watch | None = None
) -> dict[str, Any]:
    """Bracket the capacity of `plan.host` under `slo`: double, then bisect, one trial a level.

    Each level is a trial folder `out/level-NNNN`; `out/search.json` is written after every level, so
    that a crash keeps what was found. `told` gets one line for each finished level. The result is
    `conclude`'s, with `valid` false when a level that decides the bracket is INVALID.
    """
    check_url(plan.host)
    make_folder(out)
    levels: list[Level] = []
    kv_concurrency: float | None = None
    while users := next_users(levels, limits.max_users, start=limits.start_users, tolerance=limits.tolerance):
        folder = out / f"level-{users:04d}"
        level_plan = replace(plan, users=users, seed=plan.seed + users, slo=str(slo), attainment=slo.attainment)
        summary = run_trial(level_plan, folder, watch=watch)
        kv_concurrency = summary.get("kv_concurrency") or kv_concurrency
        levels.append(Level(users=users, summary=summary, verdict=judge(summary, slo), folder=folder.name))
        _save(out, plan, slo, levels, kv_concurrency, finished=False)
        if told is not None:
            told(_level_line(levels[-1]))
    return _save(out, plan, slo, levels, kv_concurrency, finished=True)


def _save(
    out: Path, plan: Plan, slo: Slo, levels: list[Level], kv_concurrency: float | None, *, finished: bool
) -> dict[str, Any]:
    found = conclude(levels, kv_concurrency)
    if not finished:
        note = "the search was not finished: the bracket is as wide as it was when it stopped"
        found |= {"valid": False, "notes": [note, *found["notes"]]}
    row = {"scenario": plan.scenario, "host": plan.host, "command": list(plan.command), "finished": finished, **found}
    write_json(out / "search.json", {**row, "slo": str(slo), "attainment": slo.attainment})
    return row


def _level_line(level: Level) -> str:
    figures = level.summary
    p99 = figures["latency_ms"]["p99"]
    latency = "p99 above all limits" if p99 is None else f"p99 {p99 / 1000:.2f} s"
    word = "pass" if level.passed else f"fail ({'; '.join(level.verdict.reasons)})"
    doubt = "" if figures["valid"] else ", INVALID"
    return (
        f"{level.users:5d} users: {figures['rps']:.2f} req/s, {latency}, {figures['requests']} requests: {word}{doubt}"
    )
