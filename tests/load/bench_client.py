"""CPU a client spends per SSE chunk: ours against Locust's FastHttpUser client with readline and json.loads.

Not a test: `python tests/load/bench_client.py [users] [rounds]`. Each client runs alone, in a process
of its own, against the same server, which writes ready-made bytes. Prints microseconds and their ratio.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

TOKENS, GAP_S = 100, 0.03
CLIENTS = ("ours", "fasthttp")


def chunks() -> list[bytes]:
    """One answer of vLLM's shape with continuous usage, one event per HTTP chunk."""
    texts = []
    for index in range(TOKENS):
        body = {
            "id": "chatcmpl-3f2a9be0c5d14a1f8f0f3d1d5a0d2a55",
            "object": "chat.completion.chunk",
            "created": 1764550000,
            "model": "meta-llama/Llama-3.1-8B-Instruct",
            "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}],
            "usage": {"prompt_tokens": 1500, "total_tokens": 1501 + index, "completion_tokens": 1 + index},
        }
        texts.append(f"data: {json.dumps(body)}\n\n".encode())
    texts[-1] += b"data: [DONE]\n\n"
    return [b"%x\r\n%b\r\n" % (len(text), text) for text in texts]


class Server(asyncio.Protocol):
    """Answers any complete request with the ready-made chunks, one every GAP_S."""

    ready = chunks()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, received: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        asyncio.get_running_loop().call_later(GAP_S, self.step, 0)

    def step(self, index: int) -> None:
        if index == TOKENS:
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(self.ready[index])
        asyncio.get_running_loop().call_later(GAP_S, self.step, index + 1)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


BODY = json.dumps({"messages": [{"role": "user", "content": "q " * 50}], "stream": True}).encode()


def run_ours(url: str, rounds: int) -> int:
    from harness.load.client import Call, Connection, parse_target

    connection, seen = Connection(parse_target(url)), 0
    for _ in range(rounds):
        call = Call(seq=0, user=0, name="bench")
        connection.post("/v1/chat/completions", BODY, call)
        sample = call.sample()
        assert sample.ok, sample
        seen += sample.chunks
    return seen


def run_fasthttp(url: str, rounds: int) -> int:
    from locust.contrib.fasthttp import FastHttpSession
    from locust.env import Environment

    environment = Environment()
    session, seen = FastHttpSession(url, environment.events.request, None), 0
    for _ in range(rounds):
        stamps = []
        response = session.post("/v1/chat/completions", data=BODY, stream=True)
        while line := response.stream.readline(b"\n"):
            now = time.monotonic_ns()
            if line.startswith(b"data: {"):
                if json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    stamps.append(now)
            elif line.startswith(b"data: [DONE]"):
                break
        response.stream.read()
        seen += len(stamps)
    return seen


def measure(client: str, url: str, users: int, rounds: int) -> None:
    import locust  # noqa: F401, I001 - patches the standard library first
    import gevent

    run = {"ours": run_ours, "fasthttp": run_fasthttp}[client]
    run(url, 1)  # imports and first-use costs, outside the figure
    cpu, wall = time.process_time(), time.monotonic()
    # Staggered, so that the event loop wakes for few chunks at a time, as it does for real answers.
    users_running = [gevent.spawn_later(index * GAP_S / users, run, url, rounds) for index in range(users)]
    gevent.joinall(users_running, raise_error=True)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    seen = sum(each.value for each in users_running)
    print(json.dumps({"client": client, "us": cpu / seen * 1e6, "chunks_per_s": seen / wall, "cpu": cpu / wall}))


def main(users: int, rounds: int) -> None:
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        url, found = f"http://127.0.0.1:{int(server.stdout.readline())}", {}
        for client in CLIENTS:
            command = [sys.executable, __file__, "measure", client, url, str(users), str(rounds)]
            found[client] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(
                "{client:>9}: {us:6.1f} us CPU a chunk at {chunks_per_s:,.0f} chunks/s, {cpu:.0%} of a core".format(
                    **found[client]
                )
            )
        print(f"    ratio: {found['fasthttp']['us'] / found['ours']['us']:.2f}")
    finally:
        server.stdin.close()
        server.wait(10)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve())
    elif sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main(*(int(argument) for argument in [*sys.argv[1:], "64", "3"][:2]))
