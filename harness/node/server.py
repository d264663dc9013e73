"""Start a node: corpus, embedder, index, engine and tokenizer, in the order in which mistakes are cheapest.

Every reason not to start is one of our errors, raised before a port is opened. Knows how the parts
are put together; what they do is theirs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from harness.errors import ModelMissingError, TargetError, UsageError
from harness.node.app import Node, create_app
from harness.node.asked import TOP_K_LIMIT, Defaults
from harness.node.corpus import load_corpus
from harness.node.embed import Embedder
from harness.node.generate import Engine
from harness.node.index import load_index
from harness.node.models import embedder_path, tokenizer_path
from harness.node.pipeline import Pipeline
from harness.node.prompt import SYSTEM_PROMPT
from harness.node.relay import Serving
from harness.node.telemetry import Telemetry, node_environment
from harness.node.tokens import LocalTokenizer, Shape

log = logging.getLogger("ragload.node")

ENGINE_TIMEOUT_S = 30.0
_SHUTDOWN_S = 5
_PROBES = (
    "What is the capital of France?",
    "[1] Größe\nNaïve 北京 – 1,234.5 €  😀\n\n\tdef f(x):\n\t\treturn x ** 2\n\nQuestion: Why?",
)
"""Texts on which the tokenizer here and the engine's must agree, token by token."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """How a node is started.

    corpus         folder made by `ragload corpus build`, with its index
    engine         URL of the engine
    port           0: any free one
    input_tokens   prompt tokens unless a request says otherwise; None: natural length
    top_k          passages unless a request says otherwise; None: as many as the budget takes
    embedder       folder or hub id; None: all-MiniLM-L6-v2
    device         of the embedder; None: a GPU if PyTorch sees one
    tokenizer      the engine's, as folder or hub id; None: found from the engine
    """

    corpus: Path
    engine: str
    host: str = "127.0.0.1"
    port: int = 8080
    input_tokens: int | None = 1500
    top_k: int | None = None
    embedder: str | None = None
    device: str | None = None
    tokenizer: str | None = None
    system_prompt: str = SYSTEM_PROMPT
    engine_timeout_s: float = ENGINE_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.input_tokens is not None and self.input_tokens < 1:
            raise UsageError(f"input_tokens is {self.input_tokens}: give 1 or more")
        if self.top_k is not None and not 1 <= self.top_k <= TOP_K_LIMIT:
            raise UsageError(f"top_k is {self.top_k}: give 1 to {TOP_K_LIMIT}")


async def start(options: NodeOptions) -> Node:
    """A node ready to serve, in the running event loop.

    Raises CorpusError, ModelMissingError, IndexMismatchError, UsageError or TargetError.
    """
    corpus = load_corpus(options.corpus)
    embedder = Embedder(embedder_path(options.embedder), options.device)
    index = load_index(options.corpus, embedder, corpus)
    engine = Engine(options.engine)
    try:
        log.info("waiting for the engine at %s", engine.url)
        await engine.wait_up(options.engine_timeout_s)
        models = await engine.models()
        tokenizer = await choose_tokenizer(engine, models[0], options.tokenizer)
        limit = _input_limit(models[0], options.input_tokens)
    except BaseException:
        await engine.close()
        raise

    async def tokenize(body: dict[str, Any]) -> int:
        return len(await engine.token_ids(body))

    counted_by = "the engine" if tokenizer is None else tokenizer.name
    return Node(
        serving=Serving(
            engine=engine,
            pipeline=Pipeline(corpus, embedder, index, tokenizer, tokenize),
            telemetry=Telemetry(),
            defaults=Defaults(
                input_tokens=options.input_tokens,
                top_k=options.top_k,
                system=options.system_prompt.strip(),
                input_limit=limit,
            ),
            models=[row["id"] for row in models],
        ),
        corpus=corpus,
        environment=node_environment(corpus, embedder, index, counted_by),
    )


def serve(options: NodeOptions) -> None:
    """Serve until stopped. Raises what `start` raises, and UsageError if the port is taken."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    with _bound(options.host, options.port) as listener:
        _run(_serve(options, listener))


def _run(work: Any) -> None:
    """Run in uvloop, which halves the cost of a streamed chunk, where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _serve(options: NodeOptions, listener: socket.socket) -> None:
    node = await start(options)
    config = uvicorn.Config(
        create_app(node), log_level="warning", access_log=False, timeout_graceful_shutdown=_SHUTDOWN_S
    )
    host, port = listener.getsockname()[:2]
    greeting = f"node over {node.corpus.manifest.name}: http://{host}:{port}"
    try:
        await _Server(config, greeting).serve(sockets=[listener])
    finally:
        await node.close()


class _Server(uvicorn.Server):
    """Says where it is once it can be reached there."""

    def __init__(self, config: uvicorn.Config, greeting: str) -> None:
        super().__init__(config)
        self._greeting = greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        log.info(self._greeting)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that holds the port; nothing is accepted until the server listens on it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port} ({error.strerror}): name another --port or --listen"
        ) from error
    return listener


async def choose_tokenizer(engine: Engine, model: dict[str, Any], named: str | None) -> LocalTokenizer | None:
    """The tokenizer named, else the one the engine was started with if it loads here; None: ask the engine.

    Raises ModelMissingError or UsageError for a named one that does not load, or is not the engine's.
    """
    if named is not None:
        tokenizer = await asyncio.to_thread(LocalTokenizer, tokenizer_path(named))
        difference = await _difference(engine, model["id"], tokenizer)
        if difference is not None:
            raise UsageError(f"tokenizer {named} is not the engine's ({difference}): name the one it was started with")
        return tokenizer
    try:
        tokenizer = await asyncio.to_thread(LocalTokenizer, str(model.get("root") or model["id"]))
    except ModelMissingError as error:
        difference = str(error)
    else:
        difference = await _difference(engine, model["id"], tokenizer)
        if difference is None:
            return tokenizer
    log.warning(
        "prompts are counted by the engine, which is slower: %s; name its tokenizer with --tokenizer", difference
    )
    await engine.token_ids({"model": model["id"], "prompt": _PROBES[0]})  # or it cannot be done at all
    return None


async def _difference(engine: Engine, model: str, tokenizer: LocalTokenizer) -> str | None:
    """Where the tokenizer's tokens differ from the engine's; None if they agree, or the engine has no /tokenize."""
    shapes = [Shape(chat=False, system="")]
    if tokenizer.has_chat_template:
        shapes.append(Shape(chat=True, system=SYSTEM_PROMPT))
    for shape in shapes:
        for probe in _PROBES:
            try:
                theirs = await engine.token_ids({"model": model, **shape.tokenize_body(probe)})
            except TargetError as error:
                log.warning("the tokenizer is not verified: %s", error)
                return None
            mine = tokenizer.frame(shape).ids(probe)
            if mine != theirs:
                kind = "a chat" if shape.chat else "a text"
                return f"{kind} of {len(mine)} tokens here has {len(theirs)} there, or other ones"
    return None


def _input_limit(model: dict[str, Any], input_tokens: int | None) -> int | None:
    """Prompt tokens the engine takes, at least one output token left. Raises UsageError if the default is above."""
    longest = model.get("max_model_len")
    if not isinstance(longest, int):
        return None
    if input_tokens is not None and input_tokens >= longest:
        raise UsageError(
            f"input_tokens is {input_tokens}, the engine's max_model_len {longest}: lower one or raise the other"
        )
    return longest - 1
