"""Pieces of the HTML page: badges, tiles, tables, doubts, plots' places. Text in, escaped HTML out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from harness.results.wording import (
    check_limit,
    check_name,
    failed_checks,
    figure,
    ms,
    quantile,
    simulated,
)

Row = Mapping[str, Any]

_DURATIONS = {"latency_ms": "latency", "ttft_ms": "time to first token", "tpot_ms": "time per output token"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls sideways on a narrow screen; cells are HTML already."""
    cells = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def mark(row: Row) -> str:
    """The SIMULATED badge of figures of a simulated engine, else nothing."""
    said = simulated(row)
    return f"<span class='badge simulated'>{escape(said)}</span>" if said else ""


def valid(is_valid: bool) -> str:
    """The VALID or INVALID badge."""
    return "<span class='badge valid'>VALID</span>" if is_valid else "<span class='badge invalid'>INVALID</span>"


def answer(row: Row, is_valid: bool, sentence: str, under: str, tiles: Sequence[tuple[str, str, str]]) -> str:
    """The head of a section: badges, the answer in one sentence, tiles of (name, figure, what it is at)."""
    said = "<small>SIMULATED</small>" if row["simulated"] else ""
    drawn = "".join(
        f"<div class='tile'><dt>{escape(name)}{said}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>"
        for name, value, note in tiles
    )
    badges = f"<p class='badges'>{valid(is_valid)}{mark(row)}</p>"
    return f"{badges}<h1>{escape(sentence)}</h1><p class='under'>{escape(under)}</p><dl class='tiles'>{drawn}</dl>"


def doubts(summaries: Sequence[Row]) -> str:
    """The failed checks of one trial, or of several runs, those that void a trial first, each with its remedy."""
    several = len(summaries) > 1
    items = [
        _doubt(check, f"run {run}: " if several else "")
        for run, summary in enumerate(summaries, start=1)
        for check in failed_checks(summary)
    ]
    return doubt_list(items)


def doubt_list(items: Sequence[str]) -> str:
    """The list of what a reader must know, under its heading; nothing when there is nothing."""
    return f"<h2>What to know before relying on it</h2><ul class='doubts'>{''.join(items)}</ul>" if items else ""


def _doubt(check: Row, whose: str) -> str:
    kind, word = ("void", "<b>INVALID</b> ") if check["severity"] == "void" else ("", "")
    seen = f"{figure(check['value'], check['unit'])}, limit {check_limit(check)}"
    name, remedy = escape(check_name(check["name"])), escape(check["remedy"])
    return f"<li class='{kind}'>{word}{whose}<b>{name}</b> {escape(seen)}: {remedy}</li>"


def checks(summary: Row) -> str:
    """All checks of a trial, in a fold."""
    rows = [
        [
            escape(check_name(check["name"])),
            "✓" if check["ok"] else "✗",
            figure(check["value"], check["unit"]),
            check_limit(check),
            check["severity"],
        ]
        for check in summary["checks"]
    ]
    body = table(["check", "", "figure", "limit", "if broken"], rows)
    return f"<details><summary>All {len(rows)} validity checks</summary>{body}</details>"


def durations(summary: Row) -> str:
    """Latency, first token, per token, gaps and stages of one trial."""
    gaps = "gap between tokens" if summary["itl_ms"]["kind"] == "inter_token" else "gap between chunks"
    named = {title: summary[key] for key, title in _DURATIONS.items()} | {gaps: summary["itl_ms"]}
    named |= {f"stage: {name.replace('_', ' ')}": row for name, row in summary["stages_ms"].items()}
    rows = [
        [escape(name), *(quantile(row, rank) for rank in ("p50", "p90", "p99")), ms(row["mean"]), f"{row['n']:,}"]
        for name, row in named.items()
    ]
    return f"<h2>Durations {mark(summary)}</h2>{table(['', 'p50', 'p90', 'p99', 'mean', 'n'], rows)}"


def plots(figures: Sequence[Row]) -> str:
    """Places of the plots; the page's script fills them in."""
    places = "".join(
        f"<div class='plot'><script type='application/json'>{_in_script(figure)}</script></div>" for figure in figures
    )
    return f"<div class='plots'>{places}</div>"


def _in_script(figure: Row) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def setting(environment: Row, command: Sequence[str], row: Row) -> str:
    """What was measured, from where, and the command that does it again."""
    rows = [[escape(name), escape(text)] for name, text in _flat(environment)]
    said = (
        f"<div class='setting'>{table(['', ''], rows)}</div>"
        if rows
        else "<p>The target told nothing about itself.</p>"
    )
    again = f"<h2>Command</h2><pre>{escape(shlex.join(command))}</pre>" if command else ""
    return f"{again}<h2>Environment {mark(row)}</h2>{said}"


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested facts as (dotted name, text) rows, without what is None."""
    if isinstance(value, Mapping):
        return [
            pair for key, part in value.items() if key != "schema" for pair in _flat(part, f"{name}.{key}".strip("."))
        ]
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        return [pair for index, part in enumerate(value) for pair in _flat(part, f"{name}.{index}")]
    return [] if value is None or value == [] else [(name, str(value))]
