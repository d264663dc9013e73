"""A small vLLM that invents its answers, as a process: `python fake_engine.py TOKENIZER_FOLDER [SETTINGS_JSON]`.

Counts prompts with the real tokenizer. A request's `script` field says how to misbehave:

    status      answer with this status and an error object
    gap_s       pause before each token
    cut_after   drop the connection after this many tokens
    no_done     end the stream without [DONE]
    error_after put an error object into the stream after this many tokens
    garbage     answer 200 with bytes that are neither JSON nor SSE
    pieces      write the stream in pieces of this many bytes

Settings: `tokenize` false for an engine without /tokenize, `model`, `root`, `max_model_len`, `swap` to
count one token too many. `GET /log` tells what it received and sent. Prints its port; ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

from aiohttp import web
from tokenizers import Tokenizer

FOLDER = Path(sys.argv[1])
SETTINGS = {"tokenize": True, "model": "fake", "root": str(FOLDER), "max_model_len": 8192, "swap": False} | json.loads(
    sys.argv[2] if len(sys.argv) > 2 else "{}"
)
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
LOG: list[dict] = []


def prompt_ids(body: dict) -> list[int]:
    if "messages" in body:
        turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in body["messages"]]
        text = "".join(turns) + "<|im_start|>assistant\n"
        if body["messages"][0]["role"] != "system":
            text = (
                "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                + text
            )
    else:
        text = body["prompt"]
    return TOKENIZER.encode(text, add_special_tokens=False).ids + [0] * SETTINGS["swap"]


def usage(body: dict, tokens: int) -> dict:
    prompt = len(prompt_ids(body))
    details = {"cached_tokens": 16}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": details,
    }


def event(row: dict) -> bytes:
    return b"data: " + json.dumps(row, separators=(",", ":")).encode() + b"\n\n"


def chunk(chat: bool, text: str | None, finish: str | None = None) -> bytes:
    content = {"delta": {"content": text} if text is not None else {"role": "assistant", "content": ""}}
    choice = {"index": 0, **(content if chat else {"text": text or ""}), "finish_reason": finish}
    return event({"id": "x", "object": "chunk", "choices": [choice]})


async def generate(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    chat = request.path.startswith("/v1/chat")
    seen = {"path": request.path, "body": body, "id": request.headers.get("x-request-id"), "sent": "", "ended": None}
    LOG.append(seen)
    script = body.get("script") or {}
    if "status" in script:
        error = {"error": {"message": "scripted", "type": "scripted", "code": script["status"]}}
        return web.json_response(error, status=script["status"])
    if script.get("garbage"):
        return web.Response(body=b"\x00\xff<html>", content_type="text/event-stream")
    tokens = body.get("max_tokens") or 4
    try:
        if body.get("stream"):
            return await stream(request, body, chat, tokens, script, seen)
        await asyncio.sleep(script.get("gap_s", 0) * tokens)
        message = {"message": {"role": "assistant", "content": "w " * tokens}} if chat else {"text": "w " * tokens}
        seen["ended"] = "whole"
        choice = {"index": 0, **message, "finish_reason": "length"}
        return web.json_response({"id": "x", "choices": [choice], "usage": usage(body, tokens)})
    except (asyncio.CancelledError, ConnectionError):
        seen["ended"] = "cancelled"
        raise


async def stream(
    request: web.Request, body: dict, chat: bool, tokens: int, script: dict, seen: dict
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)

    async def write(text: bytes) -> None:
        seen["sent"] += text.decode()
        step = script.get("pieces") or len(text)
        for start in range(0, len(text), step):
            await response.write(text[start : start + step])

    if chat:
        await write(chunk(chat, None))
    for number in range(tokens):
        if script.get("cut_after") == number:
            request.transport.abort()
            return response
        if script.get("error_after") == number:
            await write(event({"error": {"message": "scripted", "type": "x", "code": 500}}) + b"data: [DONE]\n\n")
            return response
        if script.get("gap_s"):
            await asyncio.sleep(script["gap_s"])
        await write(chunk(chat, 'a "word"\n', "length" if number == tokens - 1 else None))
    if (body.get("stream_options") or {}).get("include_usage"):
        await write(event({"id": "x", "choices": [], "usage": usage(body, tokens)}))
    if not script.get("no_done"):
        await write(b"data: [DONE]\n\n")
    seen["ended"] = "whole"
    return response


async def tokenize(request: web.Request) -> web.Response:
    if not SETTINGS["tokenize"]:
        return web.json_response({"detail": "Not Found"}, status=404)
    ids = prompt_ids(await request.json())
    return web.json_response({"count": len(ids), "max_model_len": SETTINGS["max_model_len"], "tokens": ids})


def fixed(row: dict) -> object:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(row)

    return answer


async def log(_: web.Request) -> web.Response:
    return web.json_response(LOG)


async def metrics(_: web.Request) -> web.Response:
    return web.Response(text="# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n")


async def main() -> None:
    app = web.Application(client_max_size=8 << 20)
    model = {"id": SETTINGS["model"], "root": SETTINGS["root"], "max_model_len": SETTINGS["max_model_len"]}
    app.router.add_post("/v1/chat/completions", generate)
    app.router.add_post("/v1/completions", generate)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/v1/models", fixed({"object": "list", "data": [model]}))
    app.router.add_get("/version", fixed({"version": "0.0.fake", "simulated": True, "gpu": "none"}))
    app.router.add_get("/health", fixed({}))
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/log", log)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(gone.set)), daemon=True).start()
    await gone.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
