"""Fixtures of the load room: the scripted server as a process, and a Locust run against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Scripted:
    """A running scripted server: its address, and the truth about what it sent."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def log(self) -> list[dict]:
        with urllib.request.urlopen(f"{self.url}/log") as response:
            return json.loads(response.read())


@pytest.fixture
def scripted(tmp_path):
    """Start scripted servers with `scripted(script={…}, pages={…})`; they end with the test."""
    running = []

    def start(**settings) -> Scripted:
        path = tmp_path / f"settings-{len(running)}.json"
        path.write_text(json.dumps(settings))
        command = [sys.executable, str(HERE / "scripted.py"), str(path)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(server)
        return Scripted(int(server.stdout.readline()))

    yield start
    for server in running:
        server.stdin.close()
        server.wait(10)
        server.stdout.close()


@pytest.fixture
def locust(tmp_path):
    """Start `locust` headless on a scenario in an empty folder: `locust(scenario, *options)` is a Popen."""
    running = []

    def start(scenario: Path | str, *options: str, headless: bool = True) -> subprocess.Popen:
        command = [sys.executable, "-m", "locust", "-f", str(scenario), *(["--headless"] if headless else []), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        run = subprocess.Popen(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        running.append(run)
        return run

    yield start
    for run in running:
        if run.poll() is None:
            run.kill()
        run.wait(10)
        run.stdout.close()
