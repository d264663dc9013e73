"""The command line: parse, call, print. Measures and decides nothing.

Exit codes: 0 good; 1 the verdict says no; 2 wrong use; 3 invalid or inconclusive; 4 the target failed.
With --json one JSON document goes to stdout and every word to stderr.

Commands import what they need when they run: a load machine has no torch, and `--help` is quick.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import RagloadError, UsageError

if TYPE_CHECKING:
    from harness.plan import Plan

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
Watch = Callable[[str], None]

FOLDER = click.Path(file_okay=True, path_type=Path)
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


# ---------------------------------------------------------------- the serving side


@cli.command()
def models() -> None:
    """Prepare the models that come as Python packages (SmolLM2-135M), once per machine."""
    from harness.node.models import embedder_path, prepare_smollm2

    _say(f"generator: {prepare_smollm2()}")
    _say(f"embedder:  {embedder_path(None)}")


@cli.group()
def corpus() -> None:
    """Build and look at corpora: documents, passages, questions, index."""


@corpus.command("build")
@click.argument("name_or_path")
@click.option("--out", type=FOLDER, default=None, help="Corpus folder (default: corpora/built/NAME).")
@click.option("--chunk-tokens", type=click.IntRange(min=1), help="Tokens per passage.")
@click.option("--overlap-tokens", type=click.IntRange(min=0), help="Tokens shared by neighbouring passages.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N documents.")
@click.option("--embedder", help="sentence-transformers folder or hub id (default: all-MiniLM-L6-v2).")
@click.option("--index", "kind", type=click.Choice(["flat", "ivf", "hnsw", "none"]), default="flat", show_default=True)
@_JSON
def corpus_build(
    name_or_path: str,
    out: Path | None,
    chunk_tokens: int | None,
    overlap_tokens: int | None,
    limit: int | None,
    embedder: str | None,
    kind: str,
    as_json: bool,
) -> None:
    """Build a corpus from a recipe NAME or your own folder PATH (Markdown, text, HTML, PDF), and index it.

    Example:  ragload corpus build ./handbook --out corpora/built/handbook
    """
    _need_serving()
    from harness.node.build import build_corpus

    built, folder = build_corpus(
        name_or_path,
        out=out,
        chunk_tokens=chunk_tokens,
        overlap_tokens=overlap_tokens,
        limit=limit,
        tokenizer=embedder,
    )
    if kind != "none":
        _index(folder, embedder, kind)
    counts = built.manifest
    _say(f"{folder}: {counts.documents} documents, {counts.passages} passages, {counts.questions} questions")
    if as_json:
        _print_json({"folder": str(folder), **_fields(counts)})


@corpus.command("index")
@click.argument("folder", type=FOLDER)
@click.option("--embedder", help="sentence-transformers folder or hub id (default: all-MiniLM-L6-v2).")
@click.option("--kind", type=click.Choice(["flat", "ivf", "hnsw"]), default="flat", show_default=True)
def corpus_index(folder: Path, embedder: str | None, kind: str) -> None:
    """Index a built corpus again, with another embedder or kind of index."""
    _need_serving()
    _index(folder, embedder, kind)


def _index(folder: Path, embedder: str | None, kind: str) -> None:
    from harness.node.embed import Embedder
    from harness.node.index import build_index
    from harness.node.models import embedder_path

    manifest = build_index(folder, Embedder(embedder_path(embedder)), kind=kind)
    _say(f"index: {manifest.kind}, {manifest.vectors} vectors, recall@{manifest.k} {manifest.recall_at_k:.3f} of flat")


@corpus.command("list")
@_JSON
def corpus_list(as_json: bool) -> None:
    """Recipes that can be built, and corpora that are."""
    from harness.node.build import list_corpora

    rows = list_corpora()
    if as_json:
        _print_json({"corpora": rows})
        return
    from harness.results.report import corpora_table

    _print(corpora_table(rows))


@corpus.command("show")
@click.argument("folder", type=FOLDER)
@_JSON
def corpus_show(folder: Path, as_json: bool) -> None:
    """What a built corpus holds, with a few passages and questions."""
    from harness.node.build import show_corpus

    shown = show_corpus(folder)
    _print_json(shown)
    assert as_json in (True, False)


@cli.command()
@click.option("--gpu", default="a100-40gb", show_default=True, help="GPU whose timing is simulated.")
@click.option("--model", default="llama-3.1-8b", show_default=True, help="Model whose timing is simulated.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--time-scale", type=float, default=1.0, show_default=True, help="Wall seconds per simulated second.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--tokenizer", help="Tokenizer folder or hub id (default: SmolLM2's).")
@click.option("--max-model-len", type=click.IntRange(min=1), default=8192, show_default=True)
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1), default=8192, show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True)
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True)
def engine(port: int, listen: str, tokenizer: str | None, prefix_caching: bool, **options: Any) -> None:
    """Serve a simulated vLLM: its API and metrics, timed by a cost model of a named GPU and model.

    Example:  ragload engine --gpu a100-40gb --model llama-3.1-8b --port 8000
    """
    _need_serving()
    from harness.engine.server import EngineOptions, serve
    from harness.node.models import tokenizer_path

    chosen = EngineOptions(tokenizer=tokenizer_path(tokenizer), enable_prefix_caching=prefix_caching, **options)
    _say(f"simulated {chosen.model} on {chosen.gpu}: http://{listen}:{port}")
    serve(chosen, host=listen, port=port)


@cli.command()
@click.option("--corpus", "folder", type=FOLDER, required=True, help="A folder made by `ragload corpus build`.")
@click.option("--engine", "engine_url", required=True, help="URL of vLLM, or of `ragload engine`.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--input-tokens",
    type=click.IntRange(min=0),
    default=1500,
    show_default=True,
    help="Prompt tokens; 0: as they come.",
)
@click.option(
    "--top-k", type=click.IntRange(1, 1000), help="Passages per prompt (default: as many as the budget takes)."
)
@click.option("--embedder", help="sentence-transformers folder or hub id (default: all-MiniLM-L6-v2).")
@click.option("--device", help="Where the embedder runs: cpu, cuda, … (default: a GPU if there is one).")
@click.option("--tokenizer", help="The engine's tokenizer, if it cannot be found from the engine.")
def node(folder: Path, engine_url: str, input_tokens: int, **options: Any) -> None:
    """Serve a RAG node: retrieve, assemble a prompt of an exact length, stream the engine's answer.

    Example:  ragload node --corpus corpora/built/wikipedia-leads --engine http://127.0.0.1:8000 --port 8080
    """
    _need_serving()
    from harness.node.server import NodeOptions, serve
    from harness.served import check_url

    listen = options.pop("listen")
    serve(
        NodeOptions(
            corpus=folder, engine=check_url(engine_url), host=listen, input_tokens=input_tokens or None, **options
        )
    )


@cli.command("vllm-cpu")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
def vllm_cpu(port: int) -> None:
    """Serve the real SmolLM2-135M with real vLLM on this CPU (set up by `make vllm-cpu`)."""
    import os

    from harness.vllm_cpu import vllm_command, vllm_environment

    command = vllm_command(port)
    os.execve(command[0], command, vllm_environment())  # noqa: S606 (our own command line)


# ---------------------------------------------------------------- the load side


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
    """Run one trial (or N) of SCENARIO and print its summary.

    Example:  ragload run rag --host http://127.0.0.1:8080 --users 8 --duration 30
    """
    from harness.results.report import repeated, show_repeated, show_summary
    from harness.run import new_folder, run_repeated, run_trial
    from harness.slo import parse_slo

    if options["slo"] is not None:
        parse_slo(options["slo"], attainment=options["attainment"])
    plan = _plan(scenario, **options)
    folder = out or new_folder(Path(plan.scenario))
    with _watching() as watch:
        if repeat == 1:
            summaries = [run_trial(plan, folder, watch=watch)]
        else:
            summaries = run_repeated(plan, folder, repeat, watch=watch)
    if as_json:
        _print_json({"folder": str(folder), **(summaries[0] if repeat == 1 else repeated(summaries))})
    else:
        _print(show_summary(summaries[0]) if repeat == 1 else show_repeated(summaries))
    _say(f"trial folder: {folder}")
    _exit_by([summary["valid"] for summary in summaries], [summary.get("slo") for summary in summaries])


@cli.command()
@click.argument("trial", type=FOLDER)
@_JSON
def summarize(trial: Path, as_json: bool) -> None:
    """Make TRIAL's summary.json again from its samples, and print it.

    Example:  ragload summarize reports/20261201T101500Z-rag --json
    """
    from harness.results.report import show_summary
    from harness.run import summarize_folder

    summary = summarize_folder(trial)
    if as_json:
        _print_json(summary)
    else:
        _print(show_summary(summary))
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
    """Find the capacity: the highest closed-loop load of SCENARIO that keeps the SLO, as a bracket.

    Example:  ragload search rag --host http://127.0.0.1:8080 --slo "latency_p99_ms=5000,ttft_p99_ms=1000"
    """
    from harness import run as trials
    from harness.results.report import show_search
    from harness.slo import parse_slo

    slo = parse_slo(options["slo"], attainment=options["attainment"])
    plan = _plan(scenario, users=start_users, **options)
    folder = out or trials.new_folder(Path(plan.scenario), suffix="-search")
    limits = trials.Limits(start_users=start_users, max_users=max_users)
    with _watching() as watch:
        found = trials.search(plan, slo, folder, limits=limits, watch=watch, told=_say)
    if as_json:
        _print_json({"folder": str(folder), **found})
    else:
        _print(show_search(found))
    _say(f"search folder: {folder}")
    _exit_by_search(found)


@cli.command()
@click.argument("trials", nargs=-1, required=True, type=FOLDER)
@click.option("--out", type=FOLDER, help="The page (default: report.html in the first folder).")
def report(trials: tuple[Path, ...], out: Path | None) -> None:
    """Print a table of TRIALs or searches and write one self-contained HTML page.

    Example:  ragload report reports/20261201T101500Z-rag-search
    """
    from harness.results.report import render_report, show_folders

    _print(show_folders(list(trials)))
    page = render_report(list(trials), out or trials[0] / "report.html")
    _say(f"report: {page}")


@cli.command()
@click.option(
    "--engine", "engine_kind", type=click.Choice(["simulated", "vllm-cpu"]), default="simulated", show_default=True
)
@click.option("--corpus", "folder", type=FOLDER, default=Path("corpora/built/wikipedia-leads"), show_default=True)
@click.option("--scenario", default="rag", show_default=True)
@_OUT
def demo(engine_kind: str, folder: Path, scenario: str, out: Path | None) -> None:
    """The whole job on this machine, no GPU needed: corpus, engine, node, search, report."""
    _need_serving()
    from harness import demo as whole
    from harness.results.report import answer_lines, render_report
    from harness.run import new_folder, scenario_path

    path = scenario_path(scenario)
    ready = whole.demo_corpus(folder, told=_say)
    place = out or new_folder(path, suffix="-demo")
    with _watching() as watch:
        found = whole.demo(engine_kind, ready, path, place, watch=watch, told=_say)
    page = render_report([place], place / "report.html")
    for line in answer_lines(found):
        click.echo(line)
    click.echo(f"report: {page}")


# ---------------------------------------------------------------- printing and leaving


def main() -> None:
    """Entry point: runs the command and turns our errors into one line and an exit code."""
    try:
        cli.main(prog_name="ragload", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RagloadError as error:
        _say(f"error: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _say("stopped; what was measured so far is kept")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


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


@contextmanager
def _watching() -> Iterator[Watch]:
    """A line on stderr that follows the run; silent where stderr is no terminal."""
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(text)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _print(renderable: Any) -> None:
    from rich.console import Console

    Console().print(renderable)


def _print_json(row: dict[str, Any]) -> None:
    click.echo(json.dumps(row, indent=2, allow_nan=False))


def _fields(row: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(row)


def _need_serving() -> None:
    """Raise UsageError unless what serves (retrieval, node, engine) is installed."""
    needed = ("sentence_transformers", "faiss", "fastapi", "aiohttp")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not installed: `pip install 'ragload[node]'`, with faiss-gpu: [node-gpu]"
        )


if __name__ == "__main__":
    main()
