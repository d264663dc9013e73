"""The command line: parse, call, print. Measures and decides nothing.

Exit codes: 0 good; 1 the verdict says no; 2 wrong use; 3 invalid or inconclusive; 4 the target failed.
With --json one JSON document goes to stdout and every word to stderr.

Commands import what they need when they run: a load machine has no torch, and `--help` is quick.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.console import say, show, show_json, watching
from harness.errors import RagloadError
from harness.serving import COMMANDS, FOLDER, need_serving

if TYPE_CHECKING:
    from harness.plan import Plan

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; words go to stderr.")
_OUT = click.option(
    "--out", type=FOLDER, default=None, help="Folder for the result (default: reports/<time>-<scenario>)."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ragload")
def cli() -> None:
    """Find how many concurrent RAG requests a serving node takes, at what latency, on how many GPUs.

    Without a GPU, try:  ragload demo
    """


for command in COMMANDS:
    cli.add_command(command)


def _load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: list[Option] = [
        click.argument("scenario"),
        click.option("--host", required=True, help="The node (or OpenAI-compatible server) under test."),
        click.option("--input-tokens", type=click.IntRange(min=1), help="Prompt tokens (default: the scenario's)."),
        click.option("--output-tokens", type=click.IntRange(min=1), help="Answer tokens (default: the scenario's)."),
        click.option("--warmup", "warmup_s", type=click.FloatRange(min=0), help="Seconds (default: until steady)."),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--gpus", type=click.IntRange(min=1), help="GPUs to divide by (default: what the target says)."),
        click.option(
            "--cache-mode",
            type=click.Choice(["natural", "cold", "warm"]),
            default="natural",
            show_default=True,
            help="What the prefix cache is declared to be; checked against the engine's counters.",
        ),
        click.option(
            "--attainment", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.99, show_default=True
        ),
        _OUT,
        _JSON,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _plan(scenario: str, *, host: str, users: int, duration_s: float, slo: str | None, **options: Any) -> Plan:
    from harness.plan import Plan
    from harness.run import scenario_path
    from harness.served import check_url

    return Plan(
        scenario=str(scenario_path(scenario)),
        host=check_url(host),
        users=users,
        duration_s=duration_s,
        slo=slo,
        command=("ragload", *sys.argv[1:]),
        **options,
    )


@cli.command()
@_load_options
@click.option("--users", type=click.IntRange(min=1), required=True, help="Concurrent users of the closed loop.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    help="Measured seconds, at least.",
)
@click.option("--slo", help='Limits to judge by, as in "latency_p99_ms=5000,ttft_p99_ms=1000".')
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Run N times, with new seeds.")
def run(scenario: str, out: Path | None, as_json: bool, repeat: int, **options: Any) -> None:
    """Run one trial of SCENARIO, or N, and sum it up.

    Example:  ragload run rag --host http://127.0.0.1:8080 --users 8 --duration 30
    """
    from harness.results.report import repeated, show_repeated, show_summary
    from harness.run import new_folder, run_repeated, run_trial
    from harness.slo import parse_slo

    if options["slo"] is not None:
        parse_slo(options["slo"], attainment=options["attainment"])
    plan = _plan(scenario, **options)
    folder = out or new_folder(Path(plan.scenario))
    with watching() as watch:
        if repeat == 1:
            summaries = [run_trial(plan, folder, watch=watch)]
        else:
            summaries = run_repeated(plan, folder, repeat, watch=watch)
    if as_json:
        show_json({"folder": str(folder), **(summaries[0] if repeat == 1 else repeated(summaries))})
    else:
        show(show_summary(summaries[0]) if repeat == 1 else show_repeated(summaries))
    say(f"see it with: ragload report {folder}")
    _exit_by([summary["valid"] for summary in summaries], [summary.get("slo") for summary in summaries])


@cli.command()
@click.argument("trial", type=FOLDER)
@_JSON
def summarize(trial: Path, as_json: bool) -> None:
    """Sum up TRIAL again from its samples.

    Example:  ragload summarize reports/20261201T101500Z-rag --json
    """
    from harness.results.report import show_summary
    from harness.run import summarize_folder

    summary = summarize_folder(trial)
    if as_json:
        show_json(summary)
    else:
        show(show_summary(summary))
    _exit_by([summary["valid"]], [summary.get("slo")])


@cli.command()
@_load_options
@click.option("--slo", required=True, help='Limits, as in "latency_p99_ms=5000,ttft_p99_ms=1000".')
@click.option("--start-users", type=click.IntRange(min=1), default=1, show_default=True, help="First load tried.")
@click.option("--max-users", type=click.IntRange(min=1), default=256, show_default=True, help="Highest load tried.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Measured seconds a level, at least.",
)
def search(scenario: str, out: Path | None, as_json: bool, start_users: int, max_users: int, **options: Any) -> None:
    """Find the highest load that keeps the SLO.

    Closed loop; doubles the load of SCENARIO, then bisects; the answer is a bracket.

    Example:  ragload search rag --host http://127.0.0.1:8080 --slo "latency_p99_ms=5000,ttft_p99_ms=1000"
    """
    from harness import run as trials
    from harness.results.report import show_search
    from harness.slo import parse_slo

    slo = parse_slo(options["slo"], attainment=options["attainment"])
    plan = _plan(scenario, users=start_users, **options)
    folder = out or trials.new_folder(Path(plan.scenario), suffix="-search")
    limits = trials.Limits(start_users=start_users, max_users=max_users)
    with watching() as watch:
        found = trials.search(plan, slo, folder, limits=limits, watch=watch, told=say)
    if as_json:
        show_json({"folder": str(folder), **found})
    else:
        show(show_search(found))
    say(f"see it with: ragload report {folder}")
    _exit_by_search(found)


@cli.command()
@click.argument("trials", nargs=-1, required=True, type=FOLDER)
@click.option("--out", type=FOLDER, help="The page (default: report.html in the first folder).")
def report(trials: tuple[Path, ...], out: Path | None) -> None:
    """Print a table and write one HTML page.

    TRIALS are trial folders, folders of repeats, or searches; the page opens offline.

    Example:  ragload report reports/20261201T101500Z-rag-search
    """
    from harness.results.report import render_report, show_folders

    show(show_folders(list(trials)))
    page = render_report(list(trials), out or trials[0] / "report.html")
    say(f"report: {page}")


@cli.command()
@click.option(
    "--engine", "engine_kind", type=click.Choice(["simulated", "vllm-cpu"]), default="simulated", show_default=True
)
@click.option("--corpus", "folder", type=FOLDER, default=Path("corpora/built/wikipedia-leads"), show_default=True)
@click.option("--scenario", default="rag", show_default=True)
@_OUT
def demo(engine_kind: str, folder: Path, scenario: str, out: Path | None) -> None:
    """The whole job here, without a GPU.

    Corpus, engine, node, search, report.
    """
    need_serving()
    from harness import demo as whole
    from harness.results.report import answer_lines, render_report
    from harness.run import new_folder, scenario_path

    path = scenario_path(scenario)
    ready = whole.demo_corpus(folder, told=say)
    place = out or new_folder(path, suffix="-demo")
    with watching() as watch:
        found = whole.demo(engine_kind, ready, path, place, watch=watch, told=say)
    page = render_report([place], place / "report.html")
    for line in answer_lines(found):
        click.echo(line)
    click.echo(f"report: {page}")


# ---------------------------------------------------------------- printing and leaving


def main() -> None:
    """Entry point: runs the command and turns our errors into one line and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cli.main(prog_name="ragload", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RagloadError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        say("stopped; what was measured so far is kept")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


def _interrupt(*_: object) -> None:
    """A polite kill ends like Ctrl-C: what was started is stopped, what was measured is kept."""
    raise KeyboardInterrupt


def _exit_by(valid: list[bool], slos: list[dict[str, Any] | None]) -> None:
    if not all(valid):
        sys.exit(3)
    if any(slo is not None and not slo["met"] for slo in slos):
        sys.exit(1)


def _exit_by_search(found: dict[str, Any]) -> None:
    if not found["valid"]:
        sys.exit(3)
    if not found["capacity"]["last_pass"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
