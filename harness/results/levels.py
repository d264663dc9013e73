"""The decisions of a search: did this level pass, which load next, what was found.

Pure: levels in, decisions out. A level is one trial of a closed loop; a search doubles the load
until a level fails, then bisects until the bracket [last pass, first fail] is narrow. Knows neither
how a trial is run nor where it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from harness.errors import UsageError
from harness.slo import Slo

TOLERANCE = 0.05
SATURATION_SLACK = 0.03
SATURATION_SPREAD = 1.25
_EXCUSED = frozenset({"failures"})
_SHOWN = (
    "requests",
    "failures",
    "window_s",
    "concurrency_mean",
    "rps",
    "rps_per_gpu",
    "output_tokens_per_s",
    "latency_ms",
    "ttft_ms",
    "tpot_ms",
    "stages_ms",
    "prefix_cache_hit_rate",
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a level kept the SLO, and each limit it broke, in words with both figures."""

    passed: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Level:
    """One load tried: its users, its trial's summary, the verdict, and the folder's name if it has one."""

    users: int
    summary: Mapping[str, Any]
    verdict: Verdict
    folder: str | None = None

    @property
    def passed(self) -> bool:
        return self.verdict.passed


def judge(summary: Mapping[str, Any], slo: Slo) -> Verdict:
    """Did a trial keep `slo`? Each limit at its own percentile, the tail limits together at the target.

    Reads what `stats.attainment` put into the summary. Raises UsageError when the summary was made
    for another SLO. A failed request misses; a trial without arrivals passes nothing.
    """
    seen = summary.get("slo")
    if seen is None or seen["text"] != str(slo) or seen["target"] != slo.attainment:
        raise UsageError(f"this summary was not judged by {slo}: summarize the trial with that SLO first")
    reasons = [_broken(limit) for limit in seen["limits"] if not limit["met"]]
    share = seen["attainment"]
    if share is None:
        reasons = ["no request arrived in the window"]
    elif share < slo.attainment:
        reasons.append(f"{_percent(share)} of requests met the tail limits together, {_percent(slo.attainment)} must")
    return Verdict(passed=not reasons, reasons=tuple(reasons))


def _broken(limit: Mapping[str, Any]) -> str:
    name = f"{limit['metric']} p{limit['percentile']:g}"
    if limit["value_ms"] is None:
        return f"{name} is a failed request, {limit['limit_ms']:,.0f} ms allowed"
    return f"{name} {limit['value_ms']:,.0f} ms, {limit['limit_ms']:,.0f} ms allowed"


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def bracket(levels: Sequence[Level]) -> tuple[int, int | None]:
    """(last pass, first fail): the lowest load that failed, or None, and the highest that passed under it, or 0.

    Loads above the first failure do not count, even if one passed: a capacity one must not run just
    under is none.
    """
    first_fail = min((level.users for level in levels if not level.passed), default=None)
    passed = [level.users for level in levels if level.passed and (first_fail is None or level.users < first_fail)]
    return max(passed, default=0), first_fail


def next_users(levels: Sequence[Level], max_users: int, *, start: int = 1, tolerance: float = TOLERANCE) -> int | None:
    """The load to try next, or None when the search is over.

    Doubles from `start` to `max_users` while levels pass; then halves the bracket until it is at most
    `tolerance` of the last pass, or one user, wide.
    """
    if not levels:
        return min(start, max_users)
    last_pass, first_fail = bracket(levels)
    if first_fail is None:
        return min(2 * last_pass, max_users) if last_pass < max_users else None
    if first_fail - last_pass <= max(1.0, tolerance * last_pass):
        return None
    return (last_pass + first_fail) // 2


def is_trusted(level: Level) -> bool:
    """True when no failed check voids the level, leaving out failed requests.

    Those are part of the verdict already: they can only have made the level pass less easily.
    """
    if level.summary.get("valid", True):
        return True
    return {check["name"] for check in voided(level.summary)} <= _EXCUSED


def voided(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The failed checks that make a trial INVALID."""
    return [check for check in summary.get("checks", ()) if check["severity"] == "void" and not check["ok"]]


def saturation(levels: Sequence[Level]) -> int | None:
    """The smallest load whose throughput is within 3% of the best seen, or None if it may still rise.

    None too when no load 1.25 times as high was tried: next to it, 3% more could be growth in
    proportion. Levels whose own measurement is void (a busy load machine also flattens) are left out.
    """
    trusted = sorted((level for level in levels if is_trusted(level)), key=lambda level: level.users)
    if not trusted:
        return None
    best = max(level.summary["rps"] for level in trusted)
    if best <= 0:
        return None
    first = next(level.users for level in trusted if level.summary["rps"] >= best * (1 - SATURATION_SLACK))
    return first if trusted[-1].users >= SATURATION_SPREAD * first else None


def conclude(levels: Sequence[Level], kv_concurrency: float | None) -> dict[str, Any]:
    """What a search found, JSON-ready.

    capacity  {last_pass, first_fail}; first_fail None: no load tried failed
    ceilings  {kv_concurrency, saturation, slo}, each in concurrent requests or None if not seen
    binding   the smallest ceiling reached: "memory", "saturation" or "slo" (in this order when equal), or None
    valid     the levels that make the bracket are VALID; `invalid_because` names what voids them
    notes     what a reader must know before believing the bracket
    levels    one row a level, by load
    """
    ordered = sorted(levels, key=lambda level: level.users)
    last_pass, first_fail = bracket(ordered)
    ceilings = {
        "kv_concurrency": kv_concurrency,
        "saturation": saturation(ordered),
        "slo": last_pass if first_fail is not None else None,
    }
    deciding = [level for level in ordered if level.users in (last_pass, first_fail)]
    doubts = [reason for level in deciding if not is_trusted(level) for reason in _doubts(level)]
    first: Mapping[str, Any] = ordered[0].summary if ordered else {}
    slo = first.get("slo") or {}
    return {
        "valid": bool(deciding) and not doubts,
        "invalid_because": doubts,
        "capacity": {"last_pass": last_pass, "first_fail": first_fail},
        "binding": _binding(ceilings, highest=ordered[-1].users if ordered else 0),
        "ceilings": ceilings,
        "slo": slo.get("text"),
        "attainment": slo.get("target"),
        **{key: first.get(key) for key in ("simulated", "simulated_as", "engine", "gpus", "gpus_source")},
        "notes": _notes(ordered, last_pass, first_fail),
        "levels": [_row(level) for level in ordered],
    }


def _binding(ceilings: Mapping[str, float | None], *, highest: int) -> str | None:
    """The smallest ceiling at or below the highest load tried: one further up has not been seen to bind."""
    named = {"memory": ceilings["kv_concurrency"], "saturation": ceilings["saturation"], "slo": ceilings["slo"]}
    seen = {name: floor(value) for name, value in named.items() if value is not None and value <= highest}
    return min(seen, key=lambda name: seen[name]) if seen else None


def _doubts(level: Level) -> list[str]:
    names = [check["name"] for check in voided(level.summary) if check["name"] not in _EXCUSED]
    return [f"{level.users} users: {name}" for name in names]


def _notes(levels: Sequence[Level], last_pass: int, first_fail: int | None) -> list[str]:
    notes = []
    if first_fail is None and levels:
        notes.append(f"no load tried failed: the capacity is {last_pass} or more; raise --max-users to find its end")
    if first_fail is not None and last_pass == 0:
        notes.append("even the lowest load tried failed: the SLO is out of reach of this target")
    above = [level.users for level in levels if first_fail is not None and level.passed and level.users > first_fail]
    if above:
        notes.append(
            f"{', '.join(map(str, above))} users passed although {first_fail} failed: the edge is noisy; "
            "measure longer at the bracket before relying on it"
        )
    return notes


def _row(level: Level) -> dict[str, Any]:
    slo = level.summary.get("slo") or {}
    return {
        "users": level.users,
        "passed": level.passed,
        "reasons": list(level.verdict.reasons),
        "valid": level.summary.get("valid"),
        "invalid_because": [check["name"] for check in voided(level.summary)],
        "cautions": [
            {"name": check["name"], "remedy": check["remedy"]}
            for check in level.summary.get("checks", ())
            if check["severity"] == "caution" and not check["ok"]
        ],
        "attainment": slo.get("attainment"),
        "goodput_rps": slo.get("goodput_rps"),
        "folder": level.folder,
        **{key: level.summary.get(key) for key in _SHOWN},
    }
