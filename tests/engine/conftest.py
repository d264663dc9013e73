"""A simulated engine as a real server in a thread, and a client of the standard library."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from harness.engine.server import EngineOptions, create_app
from harness.engine.tokens import Tokens

ROOT = Path(__file__).parents[2]
TOKENIZER = Path(os.environ.get("RAGLOAD_TOKENIZER") or ROOT / ".cache/models/smollm2-135m-instruct")


class Client:
    """Requests to one engine; each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def open(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection.request(method, path, raw, {"Connection": "close", **(headers or {})})
        return connection.getresponse()

    def get(self, path: str) -> dict[str, Any]:
        with self.open("GET", path) as response:
            return json.loads(response.read())

    def post(self, path: str, body: object, status: int = 200) -> dict[str, Any]:
        with self.open("POST", path, body) as response:
            answer = json.loads(response.read())
        assert response.status == status, answer
        return answer

    def chat(self, text: str, **fields: object) -> dict[str, Any]:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Data events of a stream, which must end with [DONE]."""
        with self.open("POST", path, {**body, "stream": True}) as response:
            lines = response.read().decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def metrics(self) -> dict[str, float]:
        """Metric name → value, labels summed."""
        with self.open("GET", "/metrics") as response:
            lines = response.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found


Start = Callable[..., Client]


@pytest.fixture(scope="session")
def tokenizer() -> str:
    if not (TOKENIZER / "tokenizer.json").is_file():
        pytest.fail(f"no tokenizer at {TOKENIZER}: run `ragload models`, or name a folder in RAGLOAD_TOKENIZER")
    return str(TOKENIZER)


@pytest.fixture(scope="session")
def tokens(tokenizer: str) -> Tokens:
    return Tokens(tokenizer)


@pytest.fixture(scope="module")
def start(tokenizer: str) -> Iterator[Start]:
    """Start engines with `start(gpu=…, …)`, ten times faster than real unless told; they end with the module."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def begin(**options: Any) -> Client:
        listening = socket.create_server(("127.0.0.1", 0))
        app = create_app(EngineOptions(tokenizer=tokenizer, **{"time_scale": 0.1, **options}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread))
        client = Client(listening.getsockname()[1])
        with client.open("GET", "/health") as response:
            assert response.status == 200
        return client

    yield begin
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(timeout=10)
