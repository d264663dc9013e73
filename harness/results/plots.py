"""Plots of a report, as plotly figures in plain dictionaries. Colours are names; the page knows their values.

A colour is written `var(--name)`: the page's script puts in the value for light or dark. Lines that
must be told apart differ in dash or marker too, for eyes and printers that see no colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from harness.results.folders import Curve
from harness.results.stats import stage_order
from harness.slo import Slo

Row = Mapping[str, Any]
Figure = dict[str, Any]

BLUE, ORANGE, GREEN, MUTED = "var(--blue)", "var(--orange)", "var(--green)", "var(--muted)"
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down", "pentagon")
_COLOURS = ("blue", "orange", "green", "purple", "yellow", "sky", "ink", "muted", "red")
_RAMP_STEPS = 6
_DASHES = ("solid", "dash", "dot")


def figure(title: str, row: Row, traces: list[Figure], *, x: Figure, y: Figure, **layout: Any) -> Figure:
    """A plotly figure; its title says SIMULATED when the figures of `row` are."""
    text = f"<b>SIMULATED</b>  {title}" if row["simulated"] else title
    heading = {"text": text, "x": 0.02, "xref": "container", "font": {"size": 15}}
    return {"data": traces, "layout": {"title": heading, "xaxis": x, "yaxis": y} | layout}


# ---------------------------------------------------------------- over the levels of a search


def throughput(found: Row) -> Figure:
    """Requests/s per GPU over concurrency, the bracket shaded, saturation and memory marked."""
    levels = found["levels"]
    passed = [level for level in levels if level["passed"]]
    broken = [level for level in levels if not level["passed"]]
    traces = [
        _line("", [level["users"] for level in levels], [level["rps_per_gpu"] for level in levels], MUTED)
        | {"mode": "lines", "showlegend": False, "hoverinfo": "skip"},
        _dots("keeps the SLO", passed, "rps_per_gpu", BLUE, "circle"),
        _dots("breaks it", broken, "rps_per_gpu", ORANGE, "x"),
    ]
    ceilings = found["ceilings"]
    marks = [("saturation", ceilings["saturation"], "dot"), ("KV cache full", ceilings["kv_concurrency"], "dash")]
    most = max((level["users"] for level in levels), default=1)
    vertical = [_vertical(text, at, dash) for text, at, dash in marks if at is not None and at <= 2 * most]
    shapes, notes = _marks(found, vertical)
    return figure(
        "Throughput",
        found,
        traces,
        x=_users_axis(levels),
        y={"title": {"text": "requests/s per GPU"}, "rangemode": "tozero"},
        shapes=shapes,
        annotations=notes,
    )


def duration(found: Row, key: str, title: str, slo: Slo | None) -> Figure:
    """p50 and p99 of one metric (`latency_ms`, `ttft_ms`) over concurrency, with the SLO's limits on it."""
    levels = found["levels"]
    users = [level["users"] for level in levels]
    traces = [
        _line(rank, users, [_seconds(level[key].get(rank)) for level in levels], colour) | {"line": {"dash": dash}}
        for rank, colour, dash in (("p50", BLUE, "solid"), ("p99", ORANGE, "solid"))
    ]
    for trace, symbol in zip(traces, ("circle", "square"), strict=True):
        trace["line"]["color"] = trace["marker"]["color"]
        trace["marker"]["symbol"] = symbol
    shapes, notes = _marks(found, [])
    for limit in slo.limits if slo else ():
        if f"{limit.metric}_ms" == key:
            shape, note = _limit(str(limit), limit.limit_ms / 1000)
            shapes.append(shape)
            notes.append(note)
    y = {"title": {"text": "seconds"}, "rangemode": "tozero"}
    return figure(title, found, traces, x=_users_axis(levels), y=y, shapes=shapes, annotations=notes)


def stages(found: Row, rank: str) -> Figure:
    """One percentile of every stage over concurrency, on a logarithmic axis: which stage grows."""
    levels = found["levels"]
    names = stage_order({name: None for level in levels for name in level["stages_ms"] or {}})
    users = [level["users"] for level in levels]
    traces = []
    for index, name in enumerate(names):
        values = [(level["stages_ms"] or {}).get(name, {}).get(rank) for level in levels]
        colour = f"var(--{_COLOURS[index % len(_COLOURS)]})"
        trace = _line(name.replace("_", " "), users, [value or None for value in values], colour)
        trace["marker"]["symbol"] = _MARKERS[index % len(_MARKERS)]
        traces.append(trace)
    y = {"title": {"text": "milliseconds"}, "type": "log", "dtick": 1, "minor": {"showgrid": False}}
    return figure(f"Stages, {rank}", found, traces, x=_users_axis(levels), y=y)


def distributions(row: Row, curves: Sequence[Curve], slo: Slo | None, what: str) -> Figure:
    """Share of requests answered within a time, one step line a level: long tails and failures show at the top."""
    drawn = [curve for curve in curves if curve.latency_ms]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": curve.label,
            "x": [value / 1000 for value in curve.latency_ms],
            "y": [100 * value for value in curve.share],
            "line": {"shape": "hv", "color": _ramp(index, len(drawn)), "width": 2, "dash": _DASHES[index % 3]},
        }
        for index, curve in enumerate(drawn)
    ]
    limits = [limit for limit in slo.limits if limit.metric == "latency"] if slo else []
    drawn_limits = [_vertical(str(limit), limit.limit_ms / 1000, "dash", logarithmic=False) for limit in limits]
    return figure(
        "Latency distribution",
        row,
        traces,
        x={"title": {"text": "latency, seconds"}, "rangemode": "tozero"},
        y={"title": {"text": "% of requests answered within"}, "range": [0, 101]},
        shapes=[shape for shape, _ in drawn_limits],
        annotations=[note for _, note in drawn_limits],
        legend={"title": {"text": what}},
        showlegend=len(traces) > 1,
    )


# ---------------------------------------------------------------- of one trial


def over_time(summary: Row, dots: Mapping[str, list[Any]]) -> Figure:
    """Each request's latency when it was sent; the window is the shaded stretch, failures are at the bottom."""
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "answered",
            "x": dots["at_s"],
            "y": [value / 1000 for value in dots["latency_ms"]],
            "marker": {"color": BLUE, "size": 4, "opacity": 0.6},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "failed",
            "x": dots["failed_at_s"],
            "y": [0] * len(dots["failed_at_s"]),
            "marker": {"color": ORANGE, "size": 8, "symbol": "x"},
        },
    ]
    start, end = dots["window_s"]
    return figure(
        "Latency over time",
        summary,
        traces,
        x={"title": {"text": "seconds since the window opened"}},
        y={"title": {"text": "latency, seconds"}, "rangemode": "tozero"},
        shapes=[_band(start, end)],
        annotations=[_note("measured window", start, 1, xanchor="left")],
    )


def stage_bars(summary: Row) -> Figure:
    """p50 and p99 of every stage of one trial, on a logarithmic axis."""
    rows = summary["stages_ms"]
    names = [name.replace("_", " ") for name in rows]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": rank,
            "y": names,
            "x": [row[rank] or None for row in rows.values()],
            "marker": {"color": colour},
        }
        for rank, colour in (("p50", BLUE), ("p99", ORANGE))
    ]
    x = {"title": {"text": "milliseconds"}, "type": "log", "dtick": 1}
    return figure("Stages", summary, traces, x=x, y={"autorange": "reversed", "automargin": True})


# ---------------------------------------------------------------- pieces


def _line(name: str, x: Sequence[float], y: Sequence[float | None], colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour},
        "marker": {"color": colour, "size": 8},
    }


def _dots(name: str, levels: Sequence[Row], key: str, colour: str, symbol: str) -> Figure:
    users, values = [level["users"] for level in levels], [level[key] for level in levels]
    marker = {"color": colour, "size": 10, "symbol": symbol}
    return _line(name, users, values, colour) | {"mode": "markers", "marker": marker}


def _seconds(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _ramp(index: int, count: int) -> str:
    return f"var(--ramp{round(index * (_RAMP_STEPS - 1) / max(count - 1, 1))})"


def _users_axis(levels: Sequence[Row]) -> Figure:
    """Logarithmic, with ticks at loads that were tried and stand apart enough to be read."""
    ticks: list[int] = []
    for level in levels:
        if not ticks or level["users"] >= 1.6 * ticks[-1]:
            ticks.append(level["users"])
    return {
        "title": {"text": "concurrent requests"},
        "type": "log",
        "tickvals": ticks,
        "tickangle": 0,
        "ticktext": list(map(str, ticks)),
    }


def _marks(found: Row, vertical: Sequence[tuple[Figure, Figure]]) -> tuple[list[Figure], list[Figure]]:
    """Shapes and notes: the capacity bracket as a band, and `vertical` lines."""
    shapes, notes = [shape for shape, _ in vertical], [note for _, note in vertical]
    last_pass, first_fail = found["capacity"]["last_pass"], found["capacity"]["first_fail"]
    if last_pass and first_fail:
        shapes.append(_band(last_pass, first_fail))
        notes.append(_note(f"capacity {last_pass}–{first_fail}", log10(last_pass), 1, xanchor="right"))
    return shapes, notes


def _band(start: float, end: float) -> Figure:
    shape = {"type": "rect", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1, "layer": "below"}
    return shape | {"fillcolor": GREEN, "opacity": 0.15, "line": {"width": 0}}


def _vertical(text: str, at: float, dash: str, *, logarithmic: bool = True) -> tuple[Figure, Figure]:
    """A vertical line and its name; on a logarithmic axis plotly wants shapes as they are and notes as exponents."""
    line = {"color": MUTED, "dash": dash, "width": 1.5}
    shape = {"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}
    return shape, _note(text, log10(at) if logarithmic else at, 0, xanchor="left", yanchor="bottom")


def _limit(text: str, at: float) -> tuple[Figure, Figure]:
    line = {"color": MUTED, "dash": "dash", "width": 1.5}
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}
    note = _note(f"SLO {text}", 0, at, xanchor="left", yanchor="bottom") | {"xref": "paper", "yref": "y"}
    return shape, note


def _note(text: str, x: float, y: float, *, xanchor: str, yanchor: str = "top") -> Figure:
    note = {"text": text, "x": x, "y": y, "yref": "paper", "xanchor": xanchor, "yanchor": yanchor}
    return note | {"showarrow": False, "bgcolor": "var(--paper)", "font": {"size": 12, "color": MUTED}}
