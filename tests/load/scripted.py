"""A small real server with a known truth, run as a process of its own: `python scripted.py [SETTINGS.json]`.

A POST's body may carry a `script` saying how to answer; without one the settings' `script` applies:

    first_s, gap_s     delay before the first token and between chunks with tokens
    tokens, per_chunk  how many tokens, and how many of them in each chunk
    reasoning          this many of the first chunks carry `reasoning` instead of `content`
    role, empty        send a role-only chunk at once / an empty chunk before each token chunk
    usage              "continuous", "final" or null
    rag                object of the closing `rag` event, or null
    done, finish       whether `[DONE]` is sent / the finish reason, or null for none
    glue               chunks joined into one write
    line_end           of the events
    framing            "chunked", "length" or "close"
    cut_after          close the socket after this many token chunks;  "reset" instead with `reset`
    stall_after        fall silent after this many token chunks (0: after the response head)
    error_after        send an error object after this many token chunks
    headers            lines added to the response head
    raw                pieces [delay_s, text] written as they are, instead of everything above
    then               "keep" or "close" the connection afterwards

`GET /log` tells the truth: per request the arrival and, per token chunk, the monotonic instant (ns)
just before its write. Other GETs answer from the settings' `pages`. Prints its port; ends when its
standard input does, so that it never outlives the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from pathlib import Path
from time import monotonic_ns

PLAIN = {
    "first_s": 0.02,
    "gap_s": 0.005,
    "tokens": 5,
    "per_chunk": 1,
    "reasoning": 0,
    "role": True,
    "empty": False,
    "usage": "continuous",
    "rag": None,
    "done": True,
    "finish": "stop",
    "glue": 1,
    "line_end": "\n",
    "framing": "chunked",
    "cut_after": None,
    "reset": False,
    "stall_after": None,
    "error_after": None,
    "headers": "",
    "raw": None,
    "then": "keep",
}
LOG: list[dict] = []
SETTINGS: dict = {}


def chunk(script: dict, delta: dict, tokens: int, **more) -> str:
    body = {"id": "cmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **more}]}
    if script["usage"] == "continuous":
        body["usage"] = usage(tokens)
    return event(script, json.dumps(body))


def usage(tokens: int) -> dict:
    return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}


def event(script: dict, payload: str, name: str = "") -> str:
    end = script["line_end"]
    return (f"event: {name}{end}" if name else "") + f"data: {payload}{end}{end}"


class BreakError(Exception):
    """The script ends the connection here."""


class Reply:
    """Writes one scripted answer, noting when each token left."""

    def __init__(self, writer: asyncio.StreamWriter, script: dict, log: dict) -> None:
        self.writer, self.script, self.log = writer, script, log

    def write(self, text: str) -> None:
        encoded = text.encode("utf-8", "surrogateescape")
        if self.script["framing"] == "chunked":
            encoded = b"%x\r\n%b\r\n" % (len(encoded), encoded)
        self.writer.write(encoded)

    async def run(self) -> None:
        script = self.script
        framing = {"chunked": "Transfer-Encoding: chunked\r\n", "close": "Connection: close\r\n"}
        if script["framing"] == "length":
            return await self.whole()
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        self.writer.write((head + framing[script["framing"]] + script["headers"] + "\r\n").encode())
        if script["role"]:
            self.write(chunk(script, {"role": "assistant", "content": ""}, 0))
        await self.tokens()
        self.write(self.closing())
        if script["framing"] == "chunked":
            self.writer.write(b"0\r\n\r\n")
        return None

    async def tokens(self) -> None:
        script = self.script
        sent, due, glued = 0, monotonic_ns() + script["first_s"] * 1e9, ""
        count = -(-script["tokens"] // script["per_chunk"])
        for index in range(count):
            await self.interrupt(index)
            await asyncio.sleep(max(0.0, (due - monotonic_ns()) / 1e9))
            due += script["gap_s"] * 1e9
            size = min(script["per_chunk"], script["tokens"] - sent)
            sent += size
            key = "reasoning" if index < script["reasoning"] else "content"
            if script["empty"]:
                glued += chunk(script, {"content": ""}, sent - size)
            glued += chunk(script, {key: "word " * size}, sent)
            if (index + 1) % script["glue"] == 0 or index + 1 == count:
                self.log["tokens"].append(monotonic_ns())
                self.write(glued)
                glued = ""
        await self.interrupt(count)

    async def interrupt(self, index: int) -> None:
        script = self.script
        if script["stall_after"] == index:
            await self.writer.drain()
            await asyncio.sleep(600)
        if script["error_after"] == index:
            self.write(event(script, json.dumps({"error": {"message": "engine died", "type": "x", "code": 500}})))
            raise BreakError
        if script["cut_after"] == index:
            if script["reset"]:
                linger = struct.pack("ii", 1, 0)
                self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            raise BreakError

    def closing(self) -> str:
        script, text = self.script, ""
        if script["finish"]:
            text += chunk(script, {"content": ""}, script["tokens"], finish_reason=script["finish"])
        if script["usage"]:
            text += event(script, json.dumps({"choices": [], "usage": usage(script["tokens"])}))
        if script["done"]:
            text += event(script, "[DONE]")
        if script["rag"] is not None:
            text += event(script, json.dumps(script["rag"]), "rag")
        return text

    async def whole(self) -> None:
        script = self.script
        text = "".join(chunk(script, {"content": "word "}, index + 1) for index in range(script["tokens"]))
        encoded = (text + self.closing()).encode()
        await asyncio.sleep(script["first_s"])
        self.log["tokens"].append(monotonic_ns())
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(encoded) + encoded)


async def answer(writer: asyncio.StreamWriter, body: dict) -> str:
    """Answer one POST as scripted; "keep" or "close"."""
    log = {"received": monotonic_ns(), "tokens": [], "body": body}
    LOG.append(log)
    script = PLAIN | SETTINGS.get("script", {}) | body.get("script", {})
    if script["raw"] is None:
        await Reply(writer, script, log).run()
    else:
        for delay_s, text in script["raw"]:
            await asyncio.sleep(delay_s)
            writer.write(text.encode("latin-1"))
    await writer.drain()
    return "close" if script["framing"] == "close" else script["then"]


def page(path: str) -> bytes:
    pages = {"/log": LOG, **SETTINGS.get("pages", {})}
    if path not in pages:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    content = pages[path]
    encoded = (content if isinstance(content, str) else json.dumps(content)).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(encoded) + encoded


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, BreakError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split("\r\n")[0].split(" ")
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if method == "GET":
                writer.write(page(path))
            elif await answer(writer, json.loads(body)) == "close":
                break
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # answers that stall on purpose need no farewell


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SETTINGS.update(json.loads(Path(sys.argv[1]).read_text()))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
