"""Servers that a command of ours starts, waits for and stops: engine, node, vLLM.

Also the one preflight question every command asks a target before it loads it. Knows processes
and URLs; does not know what the servers do.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import TargetError, UsageError

_POLL_S = 0.2
_ROUTINE = ("ragload: trial ", "ragload: see it with", "ragload: these figures")


def free_port() -> int:
    """A TCP port of loopback that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_url(url: str) -> str:
    """The URL without a trailing slash. Raises UsageError unless it is http(s)://host[:port]…"""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"host '{url}' is no URL: write it as http://HOST:PORT")
    return url.rstrip("/")


def check_target(url: str) -> None:
    """Ask whether a target can take load. Any HTTP answer will do, but a /ready that says 503.

    Raises TargetError that says what answered what, and what to start.
    """
    base = check_url(url)
    status, text = _get(f"{base}/ready")
    if status == 503:
        raise TargetError(f"{base}/ready answers 503: {text}; see the target's log")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 (http(s), checked by `check_url`)
            return int(reply.status), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(300).decode(errors="replace").strip()
    except HTTPException as error:
        raise TargetError(f"what answers at {url} is not HTTP ({error!r}): is the port right?") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise TargetError(f"nothing answers at {url} ({reason}): start the node first (`ragload node`)") from error


@contextmanager
def served(
    command: Sequence[str], *, ready_url: str, log: Path, timeout_s: float, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for the length of a `with` block: start, wait until `ready_url` answers 200, stop.

    Its output goes to `log`. Raises TargetError with the log's last line if it ends or never gets ready.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (our own command lines)
            list(command), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env
        )
    try:
        _wait_ready(process, ready_url, log, timeout_s)
        yield process
    finally:
        _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise TargetError(f"the server for {url} ended with {process.returncode}: {last_line(log)}")
        try:
            if _get(url)[0] == 200:
                return
        except TargetError:
            pass  # not listening yet
        time.sleep(_POLL_S)
    raise TargetError(f"{url} was not ready after {timeout_s:.0f} s: {last_line(log)}; see {log}")


def last_line(log: Path) -> str:
    """The last line of a log in which ragload says something, else its last line, or a note that it is empty."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("ragload: ", "error: ")) and not line.startswith(_ROUTINE)]
    return (ours or lines or ["(its log is empty)"])[-1]


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
