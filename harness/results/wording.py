"""Figures in words: units, missing values, the answer of a search in three lines. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

MISSING = "–"
CEILINGS = {"memory": "kv_concurrency", "saturation": "saturation", "slo": "slo"}


def ms(value: float | None) -> str:
    """A duration in ms, in the unit a reader thinks in."""
    if value is None:
        return MISSING
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def pair(distribution: Row | None) -> str:
    """p50 / p99, the unit once when they share it."""
    low, high = quantile(distribution, "p50"), quantile(distribution, "p99")
    plain, _, unit = low.rpartition(" ")
    return f"{plain} / {high}" if unit and high.endswith(f" {unit}") else f"{low} / {high}"


def binding(found: Row) -> str:
    """Which ceiling binds, and where it lies."""
    at = {name: number(found["ceilings"][key]) for name, key in CEILINGS.items()}
    return {
        "memory": f"memory binds: the KV cache holds {at['memory']} requests",
        "saturation": f"saturation binds: above {at['saturation']} concurrent, throughput no longer rises",
        "slo": "the SLO binds",
    }.get(found["binding"] or "", "no ceiling was reached")


def quantile(distribution: Row | None, name: str) -> str:
    """One percentile of a distribution; "failed" where it falls on a request that never ended well."""
    if not distribution or not distribution.get("n"):
        return MISSING
    return "failed" if distribution.get(name) is None else ms(distribution[name])


def number(value: float | None) -> str:
    """A figure to three digits or more, thousands apart."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return MISSING if value is None else f"{100 * value:.3g}%"


def figure(value: float | None, unit: str) -> str:
    """A check's value or limit with its unit."""
    if value is None:
        return MISSING
    return share(value) if unit == "share" else f"{number(value)} {unit}"


def extent(row: Row | None) -> str:
    """Token counts: one figure when all are alike, else least to most and the mean."""
    if not row or row.get("min") is None:
        return MISSING
    if row["min"] == row["max"]:
        return f"{row['min']:,} each"
    return f"{row['min']:,} to {row['max']:,}, mean {row['mean']:,.1f}"


def simulated(row: Row) -> str:
    """ "SIMULATED (GPU, model)" for figures of a simulated engine, else ""."""
    if not row.get("simulated"):
        return ""
    known = row.get("simulated_as") or {}
    parts = [str(known[key]) for key in ("gpu", "model") if known.get(key)]
    if known.get("time_scale") not in (None, 1, 1.0):
        parts.append(f"time × {known['time_scale']:g}")
    return f"SIMULATED ({', '.join(parts)})" if parts else "SIMULATED"


def gpus(row: Row) -> str:
    """How many GPUs the figures are divided by, and who says so."""
    count = row.get("gpus")
    if count is None:
        return MISSING
    source = {"given": "as given", "target": "as the target says", "assumed": "assumed"}.get(row["gpus_source"], "")
    return f"{count} GPU{'' if count == 1 else 's'} {source}"


def figure_name(name: str) -> str:
    """A figure's JSON name for people."""
    known = {"rps": "requests/s", "rps_per_gpu": "requests/s per GPU", "output_tokens_per_s": "output tokens/s"}
    return known.get(name, name.removesuffix("_ms").replace("_", " ").replace("ttft", "first token"))


def check_name(name: str) -> str:
    """A check's name for people."""
    return name.replace("_", " ").replace("littles law", "Little's law").replace("cpu", "CPU").replace("gpus", "GPUs")


def check_limit(check: Row) -> str:
    """The limit and on which side of it the value must lie."""
    if check["limit"] is None:
        return MISSING
    return f"{'≥' if check['at_least'] else '≤'} {figure(check['limit'], check['unit'])}"


def failed_checks(summary: Row) -> list[Row]:
    """Checks that are not ok, those that void the trial first."""
    bad = [check for check in summary["checks"] if not check["ok"]]
    return sorted(bad, key=lambda check: check["severity"] != "void")


def failures(row: Row) -> str:
    """Failed requests by kind, or "none"."""
    kinds = row.get("failures_by_kind") or {}
    if not row.get("failures"):
        return "none"
    return f"{row['failures']} of {row['requests']} ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})"


def capacity(found: Row) -> str:
    """The bracket in words."""
    last_pass, first_fail = found["capacity"]["last_pass"], found["capacity"]["first_fail"]
    if not found["levels"]:
        return "no load was tried"
    if first_fail is None:
        return f"at least {last_pass} concurrent requests (no load tried failed)"
    if last_pass == 0:
        return f"below {first_fail} concurrent requests (the lowest load tried failed)"
    return f"{last_pass} concurrent requests ({first_fail} is too many)"


def at_capacity(found: Row) -> Row | None:
    """The level of the last pass; when none passed, of the first fail; None without levels."""
    wanted = found["capacity"]["last_pass"] or found["capacity"]["first_fail"]
    return next((level for level in found["levels"] if level["users"] == wanted), None)


def cautions(found: Row) -> list[str]:
    """What the levels that make the bracket ask to keep in mind, each once, with the loads it concerns."""
    seen: dict[str, list[str]] = {}
    for level in found["levels"]:
        if level["users"] in found["capacity"].values():
            for check in level["cautions"]:
                seen.setdefault(f"{check_name(check['name'])}: {check['remedy']}", []).append(str(level["users"]))
    return [f"at {' and '.join(users)} concurrent, {text}" for text, users in seen.items()]


def search_state(found: Row) -> str:
    """VALID, or INVALID and what voids the levels that make the bracket."""
    return "VALID" if found["valid"] else f"INVALID ({'; '.join(found['invalid_because']) or 'no level'})"


def answer_lines(found: Row) -> list[str]:
    """The answer of a search in three lines: capacity bracket; p50 and p99; requests/s per GPU. Each says SIMULATED."""
    level, said = at_capacity(found), simulated(found)
    mark = f"{said}  " if said else ""
    first = f"{mark}capacity: {capacity(found)}; {binding(found)}"
    if level is None:
        return [first, f"{mark}latency: {MISSING}", f"{mark}throughput: {MISSING}; {search_state(found)}"]
    latency, ttft = level["latency_ms"], level["ttft_ms"]
    return [
        first,
        f"{mark}at {level['users']}: latency p50 {quantile(latency, 'p50')}, p99 {quantile(latency, 'p99')}; "
        f"first token p50 {quantile(ttft, 'p50')}, p99 {quantile(ttft, 'p99')}",
        f"{mark}{number(level['rps_per_gpu'])} requests/s per GPU ({gpus(found)}); {search_state(found)}",
    ]
