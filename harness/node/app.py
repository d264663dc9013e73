"""The node's HTTP interface: OpenAI's completions over a corpus, and what a load test wants to know.

    POST /v1/chat/completions, /v1/completions, /v1/retrieve
    GET  /health /ready /metrics /environment /v1/models /v1/questions

Maps paths to work; the work is in relay.py (completions) and pipeline.py (retrieval).
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as HttpError
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.errors import TargetError
from harness.node.asked import check_question, check_top_k, read_object, refuse
from harness.node.corpus import Corpus
from harness.node.generate import Engine
from harness.node.relay import UNAVAILABLE, Completion, Serving, Visit, problem, read_body
from harness.node.stages import Stages
from harness.node.telemetry import engine_environment

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_VISIT = "ragload.visit"
_OWN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A started node: what serves, what it serves, and how it describes itself."""

    serving: Serving
    corpus: Corpus
    environment: Mapping[str, Any]
    started_s: float = field(default_factory=monotonic)

    async def close(self) -> None:
        """Close connections to the engine and end the threads."""
        await self.serving.engine.close()
        await asyncio.to_thread(self.serving.pipeline.close)


class Stamped:
    """ASGI layer that notes when a request arrived and puts `X-Request-Id` on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(request_id=_request_id(scope), stages=Stages(perf_counter()))
        scope[_VISIT] = visit

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (b"x-request-id", visit.request_id.encode())
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, stamped)


def create_app(node: Node) -> FastAPI:
    """The application over a started node (harness.node.server.start)."""
    app = FastAPI(title="ragload node", docs_url=None, redoc_url=None)
    app.add_middleware(Stamped)
    app.add_exception_handler(HttpError, _http_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    app.add_exception_handler(TargetError, _engine_problem)
    _add_completions(app, node)
    _add_retrieval(app, node)
    _add_state(app, node)
    return app


def _add_completions(app: FastAPI, node: Node) -> None:
    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return Completion(node.serving, request.scope[_VISIT], chat=True)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return Completion(node.serving, request.scope[_VISIT], chat=False)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse(await node.serving.engine.get_json("/v1/models"))


def _add_retrieval(app: FastAPI, node: Node) -> None:
    @app.post("/v1/retrieve")
    async def retrieve(request: Request) -> Response:
        body = read_object(await read_body(request.receive))
        query = check_question(body.get("query"), "query")
        top_k = check_top_k(body.get("top_k"), least=1, field="top_k")
        stages = request.scope[_VISIT].stages
        found = await node.serving.pipeline.retrieve(query, top_k or node.serving.defaults.top_k or 4, stages)
        rows = [
            {"id": hit.passage.id, "title": hit.passage.title, "text": hit.passage.text, "score": hit.score}
            for hit in found
        ]
        headers = {"server-timing": stages.server_timing()}
        return JSONResponse({"passages": rows, "stages_ms": stages.ms()}, headers=headers)

    @app.get("/v1/questions")
    async def questions(limit: int | None = None) -> Response:
        if limit is not None and limit < 1:
            refuse(422, f"limit is {limit}: give 1 or more")
        rows = [{"id": item.id, "question": item.question} for item in node.corpus.questions[:limit]]
        return JSONResponse({"corpus": node.corpus.manifest.digest, "questions": rows})


def _add_state(app: FastAPI, node: Node) -> None:
    engine = node.serving.engine

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        trouble = await engine.trouble()
        if trouble is not None:
            return JSONResponse({"status": "not ready", "reason": f"engine at {engine.url}: {trouble}"}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        try:
            engine_text = await engine.get_text("/metrics")
        except TargetError:
            engine_text = None
        return Response(node.serving.telemetry.text(engine_text), media_type=METRICS_TYPE)

    @app.get("/environment")
    async def environment() -> Response:
        model = (await engine.models())[0]
        own = {**node.environment["node"], "uptime_s": round(monotonic() - node.started_s, 3)}
        told = engine_environment(engine.url, await _version(engine), model)
        return JSONResponse({**node.environment, "node": own, "engine": told})


async def _version(engine: Engine) -> dict[str, Any]:
    """What the engine says of itself; nothing if it is not one that has /version."""
    try:
        return await engine.get_json("/version")
    except TargetError:
        return {}


def _request_id(scope: Scope) -> str:
    """The client's own id if it is a plain one, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _OWN_ID.fullmatch(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return uuid.uuid4().hex


async def _http_problem(request: Request, error: Exception) -> Response:
    answer = cast("HttpError", error)
    kind = "not_found_error" if answer.status_code == 404 else "invalid_request_error"
    detail = f"there is no {request.url.path} here" if answer.detail == "Not Found" else str(answer.detail)
    return problem(answer.status_code, detail, kind=kind, headers=answer.headers)


async def _validation_problem(request: Request, error: Exception) -> Response:
    first = cast("RequestValidationError", error).errors()[0]
    return problem(422, f"{request.url.path}: {'.'.join(map(str, first['loc']))}: {first['msg']}")


async def _engine_problem(_: Request, error: Exception) -> Response:
    return problem(503, str(error), kind=UNAVAILABLE)
