"""One answer on its connection: waits for tokens, writes their bytes, and gives up when the client does.

A response of its own instead of a generator in a StreamingResponse: one task less per request, one
await less per token. Knows ASGI; neither the answer's content nor when a token is due.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from harness.engine.chunks import Wire
from harness.engine.live import Live, Stream


class Generation(Response):
    """An answer under way. The request is aborted in the engine when its client goes away."""

    def __init__(self, live: Live, stream: Stream, wire: Wire, *, streamed: bool) -> None:
        self._live = live
        self._streamed = streamed
        self._stream = stream
        self._wire = wire
        self.status_code = 200
        self.background = None
        kind = "text/event-stream; charset=utf-8" if streamed else "application/json"
        self.raw_headers = [(b"content-type", kind.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            await (self._send_stream(send) if self._streamed else self._send_whole(send))
        finally:
            watch.cancel()
            self._live.abort(self._stream)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._live.abort(self._stream)

    async def _send_stream(self, send: Send) -> None:
        stream, wire = self._stream, self._wire
        total, sent = stream.sequence.request.output_tokens, 0
        # As vLLM does: headers at once, the role together with the first token.
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        head = wire.opening()
        while sent < total:
            ready = await stream.wait(sent + 1)
            if stream.gone:
                return
            body = head + wire.events(sent, ready)
            head, sent = b"", ready
            if sent == total:
                body += wire.closing(stream.sequence.cached_tokens or 0)
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": sent < total})

    async def _send_whole(self, send: Send) -> None:
        await self._stream.wait(self._stream.sequence.request.output_tokens)
        if self._stream.gone:
            return
        body = self._wire.whole(self._stream.sequence.cached_tokens or 0)
        headers = [*self.raw_headers, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
