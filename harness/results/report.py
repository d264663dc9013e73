"""Reports for a terminal: one trial, repeats, a search, folders, corpora. Answer first, doubts next.

`render_report` (in `page`) writes the same as one HTML page. Every renderable is for rich; none
prints. Figures come as the dictionaries that `summarize` and `conclude` make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.results.folders import Shown, read_shown
from harness.results.page import render_report
from harness.results.repeats import repeated
from harness.results.wording import (
    CEILINGS,
    answer_lines,
    cautions,
    check_limit,
    check_name,
    extent,
    failed_checks,
    failures,
    figure,
    figure_name,
    gpus,
    ms,
    number,
    quantile,
    share,
    simulated,
)

__all__ = [
    "answer_lines",
    "corpora_table",
    "render_report",
    "repeated",
    "show_folders",
    "show_repeated",
    "show_search",
    "show_summary",
]

Row = Mapping[str, Any]

_DISTRIBUTIONS = {
    "latency_ms": "latency",
    "ttft_ms": "first token",
    "tpot_ms": "per output token",
    "itl_ms": "between chunks",
}


# ---------------------------------------------------------------- one trial


def show_summary(summary: Row) -> RenderableType:
    """One trial: its headline, what may be wrong with it, its figures."""
    return Group(_headline(summary), *_doubts(summary), _figures(summary), _durations(summary))


def _headline(summary: Row) -> Text:
    text = _state(bool(summary["valid"]))
    text.append(f"  {simulated(summary)}" if summary["simulated"] else "", style="bold yellow")
    latency = summary["latency_ms"]
    text.append(
        f"  {number(summary['rps_per_gpu'])} requests/s per GPU at {summary['concurrency']} concurrent; "
        f"latency p50 {quantile(latency, 'p50')}, p99 {quantile(latency, 'p99')}",
        style="bold",
    )
    slo = summary.get("slo")
    if slo:
        text.append(f"\nSLO {slo['text']}: ")
        text.append("met" if slo["met"] else "not met", style="green" if slo["met"] else "bold red")
        text.append(f" ({share(slo['attainment'])} of requests within all limits, {share(slo['target'])} asked)")
    return text


def _state(valid: bool) -> Text:
    return Text("VALID", style="bold green") if valid else Text("INVALID", style="bold red reverse")


def _doubts(summary: Row) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for check in failed_checks(summary):
        voids = check["severity"] == "void"
        line = Text("  ✗ " if voids else "  ! ", style="bold red" if voids else "yellow")
        line.append(check_name(check["name"]), style="bold")
        line.append(f" {figure(check['value'], check['unit'])} (limit {check_limit(check)}): {check['remedy']}")
        lines.append(line)
    return lines


def _table(title: str, row: Row, *columns: str) -> Table:
    """A plain table; its title says SIMULATED when its figures are."""
    said = simulated(row)
    table = Table(title=f"{title}  {said}" if said else title, title_justify="left", title_style="bold", box=None)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _figures(summary: Row) -> Table:
    table = _table("\nload and throughput", summary, "", "")
    cache = share(summary["prefix_cache_hit_rate"])
    rows = {
        "requests in the window": f"{summary['requests']} in {summary['window_s']:.1f} s",
        "failures": failures(summary),
        "concurrency": f"{summary['concurrency']} users, {number(summary['concurrency_mean'])} in flight on average",
        "requests/s": number(summary["rps"]),
        "requests/s per GPU": f"{number(summary['rps_per_gpu'])} ({gpus(summary)})",
        "output tokens/s": number(summary["output_tokens_per_s"]),
        "prompt tokens": extent(summary["prompt_tokens"]),
        "output tokens": extent(summary["output_tokens"]),
        "prefix cache hits": f"{cache} ({summary['prefix_cache_source']})" if summary["prefix_cache_source"] else cache,
        "fits in KV cache": f"{number(summary['kv_concurrency'])} requests at once",
        "Little's law residual": share(summary["littles_law_residual"]),
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _durations(summary: Row) -> Table:
    table = _table("\ndurations", summary, "", "p50", "p90", "p99", "mean", "n")
    named = {title: summary[key] for key, title in _DISTRIBUTIONS.items()}
    if summary["itl_ms"]["kind"] == "inter_token":
        named["between tokens"] = named.pop("between chunks")
    named |= {f"  stage {name}": row for name, row in summary["stages_ms"].items()}
    for title, row in named.items():
        ranks = [quantile(row, rank) for rank in ("p50", "p90", "p99")]
        table.add_row(title, *ranks, ms(row["mean"]), f"{row['n']:,}")
    return table


# ---------------------------------------------------------------- repeats


def show_repeated(summaries: Sequence[Row]) -> RenderableType:
    """Repeats of one plan: each figure's mean ± standard deviation over runs, then the runs' doubts."""
    whole = repeated(summaries)
    head = _state(whole["valid"])
    head.append(f"  {simulated(whole)}" if whole["simulated"] else "", style="bold yellow")
    head.append(f"  {len(summaries)} runs at {summaries[0]['concurrency']} concurrent requests", style="bold")
    table = _table("\nmean over runs", whole, "", "mean", "± sd", "least", "most")
    for name, row in whole["figures"].items():
        say = ms if name.endswith("_ms") else number
        table.add_row(figure_name(name), *(say(row[key]) for key in ("mean", "sd", "min", "max")))
    doubts: list[RenderableType] = []
    for index, summary in enumerate(summaries, start=1):
        lines = _doubts(summary)
        doubts += [Text(f"run {index}:"), *lines] if lines else []
    return Group(head, table, *doubts)


# ---------------------------------------------------------------- a search


def show_search(found: Row) -> RenderableType:
    """A search: the answer in three lines, what to know about it, the ceilings, its levels."""
    answer = Text("\n".join(answer_lines(found)), style="bold")
    notes = [Text(f"  ! {note}", style="yellow") for note in [*found["notes"], *cautions(found)]]
    return Group(answer, *notes, _ceilings(found), _levels(found))


def _ceilings(found: Row) -> Text:
    parts = [f"{title} {number(found['ceilings'][key])}" for title, key in CEILINGS.items()]
    return Text(f"ceilings, in concurrent requests: {', '.join(parts)}. SLO: {found['slo']}")


def _levels(found: Row) -> Table:
    table = _table(
        "\nlevels",
        found,
        "users",
        "SLO",
        "met by",
        "req/s/GPU",
        "p50",
        "p99",
        "TTFT p50",
        "TTFT p99",
        "failed",
        "trial",
    )
    for level in found["levels"]:
        table.add_row(*_level(level))
    return table


def _level(level: Row) -> list[str | Text]:
    latency, ttft = level["latency_ms"], level["ttft_ms"]
    return [
        str(level["users"]),
        Text("pass", style="green") if level["passed"] else Text("FAIL", style="bold red"),
        share(level["attainment"]),
        number(level["rps_per_gpu"]),
        *(quantile(row, rank) for row in (latency, ttft) for rank in ("p50", "p99")),
        str(level["failures"]),
        Text("VALID", style="green") if level["valid"] else Text(f"INVALID: {', '.join(level['invalid_because'])}"),
    ]


# ---------------------------------------------------------------- folders and corpora


def show_folders(paths: Sequence[Path]) -> RenderableType:
    """Each folder as what it is. Raises FolderError for one that is no trial, search or folder of trials."""
    shown = [read_shown(path) for path in paths]
    parts: list[RenderableType] = []
    for one in shown:
        parts += [Text(f"\n{one.name}", style="bold underline"), _show(one)]
    return Group(*parts)


def _show(shown: Shown) -> RenderableType:
    if shown.found is not None:
        return show_search(shown.found)
    return show_summary(shown.summaries[0]) if len(shown.summaries) == 1 else show_repeated(shown.summaries)


def corpora_table(rows: Sequence[Row]) -> RenderableType:
    """Corpora as the node room lists them, one a row: what fits a terminal; the rest is in its JSON."""
    if not rows:
        return Text("no corpora: build one with `ragload corpus build wikipedia-leads`")
    table = Table("name", "state", "folder", box=None)
    for column in ("documents", "passages", "questions"):
        table.add_column(column, justify="right")
    for row in rows:
        words = [str(row.get(key) or "") for key in ("name", "state", "folder")]
        counts = [f"{row[key]:,}" if row.get(key) is not None else "" for key in ("documents", "passages", "questions")]
        table.add_row(*words, *counts)
    return table
