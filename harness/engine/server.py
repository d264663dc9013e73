"""The simulated engine as a server: vLLM's OpenAI API over HTTP, with the timing of a GPU that is not there.

Wires tokenizer, answers, scheduler, clock and metrics together. Durations come from the cost model; the
serial cost of writing tokens is not simulated but real, this process's own.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from harness.engine import asked as reading
from harness.engine import catalogue
from harness.engine.asked import Asked, RefusalError
from harness.engine.blocks import block_hashes
from harness.engine.chunks import Wire
from harness.engine.cost import BLOCK_TOKENS
from harness.engine.generation import Generation
from harness.engine.live import Live, Stream
from harness.engine.metrics import Metrics
from harness.engine.scheduler import Limits
from harness.engine.scheduler import Request as Work
from harness.engine.text import answer
from harness.engine.timeline import timeline_of
from harness.engine.tokens import Tokens
from harness.errors import UsageError

VERSION = "0.25.1"
"""The vLLM whose scheduling and speed are simulated."""
_Read = Callable[[Mapping[str, Any], Tokens, int, int], Asked]
_GRACE_S = 2
_BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What to simulate. `tokenizer` is a folder or a hub id; lengths are in tokens.

    time_scale  wall seconds per simulated second: 0.1 is ten times faster than real
    """

    tokenizer: str
    gpu: str = "a100-40gb"
    model: str = "llama-3.1-8b"
    served_model_name: str | None = None
    max_model_len: int = 8192
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    time_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "time_scale"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}: give a number above 0")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise UsageError(f"gpu_memory_utilization is {self.gpu_memory_utilization:g}: give a share up to 1")

    @property
    def served(self) -> str:
        """The model's name in the API."""
        return self.served_model_name or self.model


class Engine:
    """Everything one server holds. Raises UsageError for what cannot be simulated."""

    def __init__(self, options: EngineOptions) -> None:
        limits = Limits(
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            enable_prefix_caching=options.enable_prefix_caching,
        )
        timeline = timeline_of(
            catalogue.gpu(options.gpu),
            catalogue.model(options.model),
            limits,
            gpu_memory_utilization=options.gpu_memory_utilization,
            max_model_len=options.max_model_len,
        )
        self.options = options
        self.block_count = timeline.scheduler.blocks.total
        self.tokens = Tokens(options.tokenizer)
        self._created = int(time.time())
        config = self.cache_config()
        self.metrics = Metrics(timeline.scheduler, model=options.served, time_scale=options.time_scale, config=config)
        self.live = Live(timeline, self.metrics, options.time_scale)

    def cache_config(self) -> dict[str, Any]:
        """The KV cache as `vllm:cache_config_info` labels it."""
        return {
            "block_size": BLOCK_TOKENS,
            "cache_dtype": "auto",
            "enable_prefix_caching": self.options.enable_prefix_caching,
            "gpu_memory_utilization": self.options.gpu_memory_utilization,
            "num_gpu_blocks": self.block_count,
        }

    def version(self) -> dict[str, Any]:
        """The /version row: vLLM's key, and everything that makes this engine what it is."""
        options = self.options
        return {
            "version": VERSION,
            "simulated": True,
            "gpu": options.gpu,
            "model": options.model,
            "time_scale": options.time_scale,
            "dtype": "bf16",
            "max_model_len": options.max_model_len,
            "max_num_batched_tokens": options.max_num_batched_tokens,
            "max_num_seqs": options.max_num_seqs,
            "seed": options.seed,
            **self.cache_config(),
        }

    def models(self) -> dict[str, Any]:
        """The /v1/models rows."""
        row = {
            "id": self.options.served,
            "object": "model",
            "created": self._created,
            "owned_by": "ragload-simulated",
            "root": self.options.tokenizer,
            "parent": None,
            "max_model_len": self.options.max_model_len,
        }
        return {"object": "list", "data": [row]}

    def start(self, asked: Asked, name: str, received_s: float) -> tuple[Stream, Wire]:
        """Draw the answer and queue its computation."""
        drawn = answer(self.tokens, asked.text, asked.wanted)
        wire = Wire(asked, drawn, id=name, model=self.options.served)
        hashes = block_hashes([*asked.prompt_ids, *drawn.ids]) if self.options.enable_prefix_caching else ()
        work = Work(
            id=name,
            prompt_tokens=len(asked.prompt_ids),
            output_tokens=len(drawn.ids),
            max_tokens=asked.wanted.max_tokens,
            hashes=hashes,
        )
        return self.live.submit(work, received_s, drawn.finish_reason), wire

    def tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The /tokenize answer. Raises RefusalError."""
        if "messages" in body:
            ids = reading.chat_ids(body, reading.messages_of(body), self.tokens)
        elif isinstance(body.get("prompt"), str):
            ids = self.tokens.encode(body["prompt"], special=body.get("add_special_tokens") is not False)
        else:
            raise RefusalError("give a prompt (text) or messages", param="prompt")
        return {"count": len(ids), "max_model_len": self.options.max_model_len, "tokens": ids}

    def detokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The /detokenize answer. Raises RefusalError."""
        ids = body.get("tokens")
        if not isinstance(ids, list) or not all(type(token) is int for token in ids) or not self.tokens.known(ids):
            raise RefusalError("tokens must be a list of ids of the vocabulary", param="tokens")
        return {"prompt": self.tokens.decode(ids, skip_special=False)}


def create_app(options: EngineOptions) -> FastAPI:
    """The ASGI application. Raises UsageError for an unknown GPU or model, or one that does not fit."""
    engine = Engine(options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        engine.live.close()

    app = FastAPI(title="ragload simulated engine", version=VERSION, lifespan=lifespan)
    _add_generation(app, engine)
    _add_tokens(app, engine)
    _add_state(app, engine)

    @app.exception_handler(RefusalError)
    async def refuse(_: Request, refusal: RefusalError) -> Response:
        return Response(refusal.body, refusal.status, media_type="application/json")

    @app.exception_handler(HTTPException)
    async def no_such(_: Request, error: HTTPException) -> Response:
        refusal = RefusalError(str(error.detail), status=error.status_code)
        return Response(refusal.body, refusal.status, media_type="application/json")

    return app


def _add_generation(app: FastAPI, engine: Engine) -> None:
    options = engine.options

    async def generate(request: Request, read: _Read, prefix: str) -> Response:
        received_s = engine.live.now_s()
        body = reading.body_of(await request.body())
        reading.check_model(body, options.served)
        asked = read(body, engine.tokens, options.max_model_len, options.seed)
        name = reading.request_id(request.headers.get("x-request-id")) or uuid.uuid4().hex
        stream, wire = engine.start(asked, f"{prefix}-{name}", received_s)
        return Generation(engine.live, stream, wire, streamed=asked.stream)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await generate(request, reading.read_chat, "chatcmpl")

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await generate(request, reading.read_completion, "cmpl")


def _add_tokens(app: FastAPI, engine: Engine) -> None:
    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = reading.body_of(await request.body())
        reading.check_model(body, engine.options.served)
        return _json(engine.tokenize(body))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = reading.body_of(await request.body())
        reading.check_model(body, engine.options.served)
        return _json(engine.detokenize(body))


def _add_state(app: FastAPI, engine: Engine) -> None:
    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.get("/version")
    async def version() -> Response:
        return _json(engine.version())

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(engine.models())

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _json(row: object) -> Response:
    return Response(msgspec.json.encode(row), media_type="application/json")


def serve(options: EngineOptions, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until interrupted. Raises UsageError for what cannot be simulated or a port that is taken."""
    app = create_app(options)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    with _listen(host, port) as listening:
        port = listening.getsockname()[1]
        print(f"simulated {options.model} on {options.gpu}: http://{host}:{port}", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` puts words of its own into strerror; the number stays the system's.
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        raise UsageError(f"cannot listen on {host}:{port} ({reason}): free the port or give another") from error
