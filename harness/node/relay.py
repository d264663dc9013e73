"""One completion request from its first byte to its last, as an ASGI response.

The stages run one after another; meanwhile a second task waits for the client to go, and whichever
ends first ends the other: a client that leaves cancels its generation. Knows HTTP; what the stages
do is the pipeline's and the engine's affair.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import aiohttp
from fastapi import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from harness.errors import BudgetError, TargetError, UsageError
from harness.node.asked import BODY_LIMIT_BYTES, Asked, Defaults, read_asked
from harness.node.generate import Engine, Progress, error_text, pieces, usage_of, whole
from harness.node.pipeline import Pipeline
from harness.node.prompt import Prompt
from harness.node.stages import Stages
from harness.node.telemetry import Telemetry

log = logging.getLogger("ragload.node")

UNAVAILABLE = "engine_unavailable"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What every request needs. `models` are the engine's, the first being the default."""

    engine: Engine
    pipeline: Pipeline
    telemetry: Telemetry
    defaults: Defaults
    models: list[str]


@dataclass(kw_only=True)
class Visit:
    """One request as it passes through; filled in as its parts become known."""

    request_id: str
    stages: Stages
    prompt: Prompt | None = None
    usage: Mapping[str, Any] | None = None
    outcome: str = "ok"


def problem(status: int, message: str, *, kind: str = "invalid_request_error", headers: Any = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    return JSONResponse(error_row(status, message, kind), status, headers=headers)


def error_row(status: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


async def read_body(receive: Receive) -> bytes:
    """The request's body. 413 above the limit; raises ConnectionError if the client goes meanwhile."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left before its request was complete")
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT_BYTES:
            raise HTTPException(413, f"the body is larger than {BODY_LIMIT_BYTES >> 20} MiB")
        if not message.get("more_body", False):
            return bytes(body)


class Completion(Response):
    """Answers one completion request. Started by the ASGI server, like any response."""

    def __init__(self, serving: Serving, visit: Visit, *, chat: bool) -> None:
        self._serving, self._visit, self._chat = serving, visit, chat
        self._started = False
        self._progress = Progress()
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telemetry, visit = self._serving.telemetry, self._visit
        telemetry.in_flight.inc()
        try:
            raw = await read_body(receive)
            await self._unless_client_leaves(raw, scope, receive, send)
        except HTTPException as error:
            visit.outcome = "refused"
            await self._refuse(error, scope, receive, send)
        except ConnectionError:
            visit.outcome = "gone"
        finally:
            telemetry.in_flight.dec()
            telemetry.ended(visit.outcome, visit.stages)

    async def _unless_client_leaves(self, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._answer(raw, scope, receive, send))
        left = asyncio.ensure_future(_client_left(receive))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._visit.outcome = "gone"
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.wait({work, left})
        if not work.cancelled():
            work.result()

    async def _answer(self, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = read_asked(raw, chat=self._chat, defaults=self._serving.defaults)
            model = await self._model(asked)
            if asked.question is not None:
                self._visit.prompt = await self._serving.pipeline.prompt(asked.question, asked, self._visit.stages)
            await self._generate(asked, asked.engine_body(self._visit.prompt, model), scope, receive, send)
        except BudgetError as error:
            raise HTTPException(422, str(error)) from error
        except UsageError as error:
            raise HTTPException(400, str(error)) from error
        except TargetError as error:
            await self._fail(str(error), scope, receive, send)

    async def _model(self, asked: Asked) -> str:
        """The model asked for, or the engine's first. 404 if the engine has no such model, even asked anew."""
        wanted, models = asked.body.get("model"), self._serving.models
        if not wanted:
            return models[0]
        if wanted not in models:
            models[:] = [row["id"] for row in await self._serving.engine.models()]
        if wanted not in models:
            raise HTTPException(404, f"model '{wanted}' is unknown: the engine has {', '.join(models)}")
        return str(wanted)

    async def _generate(self, asked: Asked, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        self._visit.stages.sent()
        async with self._serving.engine.generate(asked.path, body, self._visit.request_id) as response:
            await _check_status(response)
            if asked.stream:
                await self._stream(asked, response, send)
            else:
                await (await self._whole(asked, response))(scope, receive, send)

    async def _stream(self, asked: Asked, response: aiohttp.ClientResponse, send: Send) -> None:
        content_type = response.headers.get("content-type", "")
        if not content_type.startswith("text/event-stream"):
            raise TargetError(f"the engine was asked for a stream and sent {content_type or 'no content type'}")
        self._started = True
        await send(_head(200, {"content-type": content_type, **STREAM_HEADERS, **self._timing()}))
        progress = self._progress
        try:
            async for piece in pieces(response, progress):
                await send(_body(piece))
        finally:
            self._visit.stages.engine(progress.first_token_s, progress.last_token_s)
            self._count(progress.usage)
        self._visit.outcome = "failed" if progress.failed else "ok"
        await send(_body(self._rag_event(asked), more=False))

    async def _whole(self, asked: Asked, response: aiohttp.ClientResponse) -> Response:
        body = await whole(response)
        ended_s = perf_counter()
        self._visit.stages.engine(ended_s, None)
        self._count(usage_of(body))
        if asked.wants_rag:
            body = _with_rag(body, self._rag(asked))
        self._started = True
        return Response(body, 200, media_type="application/json", headers=self._timing())

    def _rag(self, asked: Asked) -> dict[str, Any]:
        """The `rag` object: stages, passages and token counts of this request."""
        visit = self._visit
        usage, prompt = visit.usage or {}, visit.prompt
        details = usage.get("prompt_tokens_details") or {}
        included = prompt.included if prompt is not None else ()
        row = {
            "stages_ms": visit.stages.ms(),
            "prompt_tokens": usage.get("prompt_tokens", prompt and prompt.prompt_tokens),
            "cached_tokens": details.get("cached_tokens"),
            "passage_ids": [passage.id for passage in included],
            "request_id": visit.request_id,
        }
        if asked.return_contexts:
            row["contexts"] = [{"id": item.id, "title": item.title, "text": item.text} for item in included]
        return row

    def _rag_event(self, asked: Asked) -> bytes:
        if not asked.wants_rag:
            return b""
        return b"event: rag\ndata: " + json.dumps(self._rag(asked)).encode() + b"\n\n"

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Keep the engine's usage, and say so if it counts the prompt otherwise than this node did."""
        self._visit.usage = usage
        prompt = self._visit.prompt
        mine, theirs = prompt and prompt.prompt_tokens, usage.get("prompt_tokens")
        if mine is not None and theirs is not None and mine != theirs:
            self._serving.telemetry.mismatch()
            log.warning("the engine counted %s prompt tokens, this node %s: is --tokenizer the engine's?", theirs, mine)

    def _timing(self) -> dict[str, str]:
        return {"server-timing": self._visit.stages.server_timing()}

    async def _refuse(self, error: HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        reply = problem(error.status_code, str(error.detail), kind=kind, headers=self._timing())
        await reply(scope, receive, send)

    async def _fail(self, message: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The engine failed: 503, or once the stream has begun an error event and no `[DONE]`."""
        self._visit.outcome = "failed"
        if self._started:
            gap = b"\n\n" if self._progress.inside_event else b""
            event = b"data: " + json.dumps(error_row(503, message, UNAVAILABLE)).encode() + b"\n\n"
            await send(_body(gap + event, more=False))
        else:
            await problem(503, message, kind=UNAVAILABLE, headers=self._timing())(scope, receive, send)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _check_status(response: aiohttp.ClientResponse) -> None:
    """The engine's 4xx is the client's to know; any other error is the engine's fault."""
    if response.status == 200:
        return
    message = await error_text(response)
    if 400 <= response.status < 500:
        raise HTTPException(response.status, f"the engine refused: {message}")
    raise TargetError(f"the engine answers {response.status}: {message}")


def _with_rag(body: bytes, rag: Mapping[str, Any]) -> bytes:
    try:
        row = json.loads(body)
    except ValueError as error:
        raise TargetError("the engine answered with something that is not JSON") from error
    if not isinstance(row, dict):
        raise TargetError("the engine answered with something that is no JSON object")
    return json.dumps({**row, "rag": rag}).encode()


def _head(status: int, headers: Mapping[str, str]) -> Message:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def _body(piece: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}
