"""Which targets take load, and what is said of those that do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.errors import TargetError, UsageError
from harness.served import check_target, check_url, free_port


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """A server that sends `reply` to whoever connects, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found", "401 Unauthorized", "405 Method Not Allowed"])
def test_any_http_answer_means_alive(status: str) -> None:
    """A foreign server that knows no /ready is a target."""
    with answering(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()) as url:
        check_target(url)


def test_a_node_that_is_not_ready_is_refused() -> None:
    """A /ready of 503 is the target's own word that it cannot take load; its reason is passed on."""
    reply = b"HTTP/1.1 503 No\r\nContent-Length: 14\r\nConnection: close\r\n\r\nengine is gone"
    with answering(reply) as url, pytest.raises(TargetError, match="engine is gone"):
        check_target(url)


def test_what_is_not_http_is_refused() -> None:
    """A port on which something else answers is a target error in one line."""
    with answering(b"garbage\r\n\r\n") as url, pytest.raises(TargetError, match="not HTTP"):
        check_target(url)


def test_a_closed_port_is_refused() -> None:
    """Nobody there: the error names the URL and what to start."""
    with pytest.raises(TargetError, match="start the node"):
        check_target(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize("url", ["node:8080", "http://", "ftp://x", "http://x:99999", "http://x:port"])
def test_what_is_no_url_is_wrong_use(url: str) -> None:
    """A host that is no http URL is refused before anything is asked."""
    with pytest.raises(UsageError, match="is no URL"):
        check_url(url)
