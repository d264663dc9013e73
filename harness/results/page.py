"""One self-contained HTML page: the answer, the doubts, plots, tables, environment, command.

No network: plotly travels inside, compressed, and the browser inflates it. Whoever has no
JavaScript, or a browser without DecompressionStream, still reads every figure in the tables.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from harness.errors import FolderError
from harness.results import pieces, plots
from harness.results.folders import Shown, read_shown
from harness.results.pieces import mark, table
from harness.results.repeats import repeated
from harness.results.stats import stage_order
from harness.results.template import HEAD, SCRIPT, STYLE
from harness.results.wording import (
    CEILINGS,
    at_capacity,
    cautions,
    check_name,
    failures,
    figure_name,
    gpus,
    ms,
    number,
    pair,
    quantile,
    share,
)
from harness.slo import Slo, parse_slo

Row = Mapping[str, Any]

BOUND = {"memory": "memory", "saturation": "saturation", "slo": "SLO"}


def render_report(paths: Sequence[Path], out: Path) -> Path:
    """Write one page on the trials, searches or folders of repeats in `paths` to `out`; return `out`.

    Raises FolderError when a path is none of these, or `out` cannot be written.
    """
    shown = [read_shown(path) for path in paths]
    page = render_page(shown)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise FolderError(f"cannot write {out} ({error.strerror}): name another file with --out") from error
    return out


def render_page(shown: Sequence[Shown]) -> str:
    """The whole page as text."""
    sections = [_overview(shown)] if len(shown) > 1 else []
    sections += [_section(one) for one in shown]
    title = escape(f"ragload: {shown[0].name}")
    body = "\n".join(sections)
    engine = base64.b64encode(gzip.compress(_plotly(), mtime=0)).decode()
    return (
        f"<!doctype html>\n<html lang='en'><head><title>{title}</title>{HEAD}<style>{STYLE}</style></head>\n"
        f"<body><main>{body}</main>\n<script type='text/plain' id='engine'>{engine}</script>\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _plotly() -> bytes:
    return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


# ---------------------------------------------------------------- sections


def _overview(shown: Sequence[Shown]) -> str:
    rows = [row for one in shown for row in _overview_rows(one)]
    head = ["", "concurrent requests", "requests/s per GPU", "latency p50", "latency p99", "", "trial"]
    return f"<section><h1>Overview</h1>{table(head, rows)}</section>"


def _overview_rows(shown: Shown) -> list[list[str]]:
    name = escape(shown.name)
    if shown.found is not None:
        level: Row = at_capacity(shown.found) or {}
        state = [mark(shown.found), pieces.valid(shown.found["valid"])]
        return [[name, _bracket(shown.found), *_headline(level), *state]]
    return [
        [name, str(summary["concurrency"]), *_headline(summary), mark(summary), pieces.valid(summary["valid"])]
        for summary in shown.summaries
    ]


def _headline(row: Row) -> list[str]:
    latency = row.get("latency_ms")
    return [number(row.get("rps_per_gpu")), quantile(latency, "p50"), quantile(latency, "p99")]


def _section(shown: Shown) -> str:
    if shown.found is not None:
        return _search(shown, shown.found)
    return _trial(shown) if shown.kind == "trial" else _repeats(shown)


def _search(shown: Shown, found: Row) -> str:
    slo = parse_slo(found["slo"], attainment=found["attainment"]) if found.get("slo") else None
    drawn = [
        plots.throughput(found),
        plots.duration(found, "latency_ms", "Latency", slo),
        plots.duration(found, "ttft_ms", "Time to first token", slo),
    ]
    if any(level["stages_ms"] for level in found["levels"]):
        drawn += [plots.stages(found, "p50"), plots.stages(found, "p99")]
    if shown.curves:
        drawn.append(plots.distributions(found, shown.curves, slo, "concurrent"))
    parts = [_search_answer(found), _search_doubts(found), pieces.plots(drawn), _levels(found), _stage_levels(found)]
    return f"<section>{''.join(parts)}{pieces.setting(shown.environment, shown.command, found)}</section>"


def _search_answer(found: Row) -> str:
    level: Row = at_capacity(found) or {}
    asked = f"{found['slo']} for {share(found['attainment'])} of requests" if found.get("slo") else "no SLO"
    latency, ttft = level.get("latency_ms"), level.get("ttft_ms")
    at = f"at {level['users']} concurrent" if level else ""
    tiles = [
        ("Capacity", _bracket(found), "concurrent requests: last that passed – first that failed"),
        ("Latency p50 / p99", pair(latency), at),
        ("First token p50 / p99", pair(ttft), at),
        ("Requests/s per GPU", number(level.get("rps_per_gpu")), f"{at}, {gpus(found)}" if level else ""),
        ("What binds", BOUND.get(found["binding"] or "", "nothing yet"), f"{_ceilings(found)} concurrent"),
    ]
    return pieces.answer(found, bool(found["valid"]), _sentence(found), f"SLO: {asked}", tiles)


def _ceilings(found: Row) -> str:
    return ", ".join(f"{BOUND[name]} {number(found['ceilings'][key])}" for name, key in CEILINGS.items())


def _sentence(found: Row) -> str:
    last_pass, first_fail = found["capacity"]["last_pass"], found["capacity"]["first_fail"]
    if not last_pass:
        return "No load tried keeps the SLO"
    plural = "request" if last_pass == 1 else "requests"
    if first_fail is None:
        return f"At least {last_pass} concurrent {plural} keep the SLO"
    return f"{last_pass} concurrent {plural} keep the SLO, {first_fail} do not"


def _bracket(found: Row) -> str:
    last_pass, first_fail = found["capacity"]["last_pass"], found["capacity"]["first_fail"]
    return f"{last_pass} or more" if first_fail is None else f"{last_pass} – {first_fail}"


def _search_doubts(found: Row) -> str:
    items = [
        f"<li class='void'><b>INVALID</b> {escape(text)}: see that level's trial</li>"
        for text in found["invalid_because"]
    ]
    items += [f"<li>{escape(note)}</li>" for note in found["notes"]]
    items += [f"<li>{escape(text)}</li>" for text in cautions(found)]
    return pieces.doubt_list(items)


def _levels(found: Row) -> str:
    head = ["concurrent", "SLO", "met by", "trial", "requests/s per GPU", "tokens/s", "latency p50 / p99"]
    head += ["first token p50 / p99", "per token p50", "failures"]
    rows = [_level(level) for level in found["levels"]]
    return f"<h2>Levels {mark(found)}</h2>{table(head, rows)}{_reasons(found)}"


def _level(level: Row) -> list[str]:
    why = "" if level["valid"] else f"<br>{escape(', '.join(map(check_name, level['invalid_because'])))}"
    return [
        str(level["users"]),
        "<span class='good'>✓ pass</span>" if level["passed"] else "<span class='bad'>✗ fail</span>",
        share(level["attainment"]),
        pieces.valid(level["valid"]) + why,
        number(level["rps_per_gpu"]),
        number(level["output_tokens_per_s"]),
        pair(level["latency_ms"]),
        pair(level["ttft_ms"]),
        quantile(level["tpot_ms"], "p50"),
        str(level["failures"]),
    ]


def _reasons(found: Row) -> str:
    items = [
        f"<li>{level['users']} concurrent failed: {escape('; '.join(level['reasons']))}</li>"
        for level in found["levels"]
        if level["reasons"]
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _stage_levels(found: Row) -> str:
    names = stage_order({name: None for level in found["levels"] for name in level["stages_ms"] or {}})
    if not names:
        return ""
    rows = [
        [str(level["users"]), *(pair((level["stages_ms"] or {}).get(name)) for name in names)]
        for level in found["levels"]
    ]
    head = ["concurrent", *(f"{name.replace('_', ' ')} p50 / p99" for name in names)]
    return f"<h2>Stages {mark(found)}</h2>{table(head, rows)}"


def _trial(shown: Shown) -> str:
    (summary,) = shown.summaries
    drawn = [plots.over_time(summary, shown.dots), plots.distributions(summary, shown.curves, _slo(summary), "")]
    if summary["stages_ms"]:
        drawn.append(plots.stage_bars(summary))
    parts = [
        _trial_answer(summary),
        pieces.doubts(shown.summaries),
        pieces.plots(drawn),
        pieces.durations(summary),
        pieces.checks(summary),
    ]
    return f"<section>{''.join(parts)}{pieces.setting(shown.environment, shown.command, summary)}</section>"


def _slo(summary: Row) -> Slo | None:
    seen = summary["slo"]
    return parse_slo(seen["text"], attainment=seen["target"]) if seen else None


def _trial_answer(summary: Row) -> str:
    latency, ttft, slo = summary["latency_ms"], summary["ttft_ms"], summary["slo"]
    tiles = [
        ("Requests/s per GPU", number(summary["rps_per_gpu"]), gpus(summary)),
        ("Latency p50 / p99", pair(latency), f"of {latency['n']} requests in {summary['window_s']:.1f} s"),
        ("First token p50 / p99", pair(ttft), ""),
        ("Failures", str(summary["failures"]), failures(summary)),
        ("Tokens in / out", _tokens(summary), "mean of each prompt / answer"),
    ]
    if slo:
        met = "met" if slo["met"] else "not met"
        tiles.insert(0, ("SLO", met, f"{slo['text']}: {share(slo['attainment'])} of requests"))
    sentence = f"{number(summary['rps'])} requests/s at {summary['concurrency']} concurrent requests"
    return pieces.answer(summary, bool(summary["valid"]), sentence, summary["plan"]["scenario"], tiles)


def _tokens(summary: Row) -> str:
    return f"{number(summary['prompt_tokens']['mean'])} / {number(summary['output_tokens']['mean'])}"


def _repeats(shown: Shown) -> str:
    whole = repeated(shown.summaries)
    first, count = shown.summaries[0], len(shown.summaries)
    rows = []
    for name, row in whole["figures"].items():
        say = ms if name.endswith("_ms") else number
        rows.append([figure_name(name), *(say(row[key]) for key in ("mean", "sd", "min", "max"))])
    drawn = [plots.distributions(first, shown.curves, _slo(first), "run")]
    sentence = f"{count} runs at {first['concurrency']} concurrent requests"
    parts = [
        pieces.answer(
            first, bool(whole["valid"]), sentence, "mean ± standard deviation over runs", _repeat_tiles(whole)
        ),
        pieces.doubts(shown.summaries),
        pieces.plots(drawn),
        f"<h2>Over runs {mark(first)}</h2>{table(['', 'mean', '± sd', 'least', 'most'], rows)}",
    ]
    return f"<section>{''.join(parts)}{pieces.setting(shown.environment, shown.command, first)}</section>"


def _repeat_tiles(whole: Row) -> list[tuple[str, str, str]]:
    figures = whole["figures"]
    named = {"Requests/s per GPU": "rps_per_gpu", "Latency p50": "latency_p50_ms", "Latency p99": "latency_p99_ms"}
    tiles = []
    for title, key in named.items():
        say = ms if key.endswith("_ms") else number
        tiles.append((title, say(figures[key]["mean"]), f"± {say(figures[key]['sd'])}"))
    return tiles
