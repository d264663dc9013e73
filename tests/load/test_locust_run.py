"""Real Locust runs against the scripted server: what the trial folder holds afterwards."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pyarrow as pa

SCENARIOS = Path(__file__).parents[2] / "scenarios"
RAG = SCENARIOS / "rag.py"
QUESTIONS = [{"id": f"q{n}", "question": f"What is {n}?"} for n in range(500)]
PAGES = {
    "/v1/questions": {"corpus": "sha256:0", "questions": QUESTIONS},
    "/environment": {"node": {"ragload": "0"}, "engine": {"simulated": True}},
    "/metrics": 'vllm:num_requests_running{engine="0"} 3\nvllm:prompt_tokens_total 9\n',
}
SCRIPT = {"first_s": 0.05, "gap_s": 0.005, "tokens": 10, "rag": {"stages_ms": {"embed": 2.0}, "passage_ids": ["p1"]}}


def table(path: Path) -> list[dict]:
    return pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()


def trial(folder: Path) -> tuple[list[dict], dict]:
    return table(folder / "samples.arrows"), json.loads((folder / "run.json").read_text())


def wait_for(path: Path, *, size: int = 1, limit_s: float = 20.0) -> None:
    limit = time.monotonic() + limit_s
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < limit, f"{path} did not come"
        time.sleep(0.05)


def no_server() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_headless_run(scripted, locust, tmp_path):
    """A headless run with a duration ends by itself and leaves the whole trial in its folder."""
    server = scripted(script=SCRIPT, pages=PAGES)
    options = ["--host", server.url, "-u", "6", "-r", "6", "--duration", "2", "--trial", "t", "--output-tokens", "10"]
    run = locust(RAG, *options, "--seed", "7")
    said, _ = run.communicate(timeout=60)
    rows, account = trial(tmp_path / "t")
    plan = json.loads((tmp_path / "t" / "plan.json").read_text())
    environment = json.loads((tmp_path / "t" / "environment.json").read_text())

    assert run.returncode == 0, said
    assert len(rows) == len(server.log())
    assert sorted(row["seq"] for row in rows) == list(range(len(rows)))
    until = account["window"]["t1_ns"]
    sent_before = {(row["failure"], row["chunks"]) for row in rows if row["scheduled_at"] < until}
    assert sent_before == {(None, 10)}
    assert all(row["failure"] in (None, "censored") for row in rows)
    assert {row["name"] for row in rows} == {"Rag.question"}
    assert len({row["question_id"] for row in rows}) == len(rows)
    assert (rows[0]["stages_ms"], rows[0]["passage_ids"]) == ([("embed", 2.0)], ["p1"])
    assert (plan["users"], plan["duration_s"], plan["input_tokens"], plan["output_tokens"], plan["seed"]) == (
        6,
        2,
        1500,
        10,
        7,
    )
    assert environment["engine"] == {"simulated": True}
    assert {"host_cpu", "cores", "python", "locust", "git_commit"} <= set(environment["client"])
    assert (account["finished"], account["users"], account["window"]["rule"]) == (True, 6, "whole waves")
    window = account["window"]
    inside = sum(window["t0_ns"] <= row["ended_at"] < window["t1_ns"] for row in rows)
    assert inside % 6 == 0
    assert window["t1_ns"] - window["t0_ns"] >= 2e9
    assert account["origin_ns"] < account["spawned_ns"] < account["steady_ns"] == window["t0_ns"]
    assert account["counters"]["at_t1"] == {"vllm:num_requests_running": 3.0, "vllm:prompt_tokens_total": 9.0}
    assert account["questions"] == {"offered": 500, "asked": len(rows), "repeated": 0}
    answered = sum(row["failure"] is None for row in rows)
    assert re.search(rf"RAG +Rag.question +{answered} +0\(0.00%\)", said)
    assert "ragload report t" in said


def test_request_body(scripted, locust, tmp_path):
    """The body asks for exact lengths, no sampling and usage in each chunk, and carries the rag object."""
    server = scripted(script=SCRIPT, pages=PAGES)
    locust(RAG, "--host", server.url, "-u", "1", "-t", "1", "--input-tokens", "700").communicate(timeout=60)
    body = server.log()[0]["body"]

    assert body.pop("messages")[0]["content"].startswith("What is ")
    assert body == {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0,
        "rag": {"input_tokens": 700},
        "max_tokens": 100,
        "min_tokens": 100,
        "ignore_eos": True,
    }


def test_chat_scenario(scripted, locust, tmp_path):
    """The chat scenario asks its own prompts, without retrieval, for 150 tokens."""
    server = scripted(script=SCRIPT, pages={})
    locust(SCENARIOS / "chat.py", "--host", server.url, "-u", "2", "-r", "2", "-t", "2", "--trial", "t").communicate(
        timeout=60
    )
    rows, account = trial(tmp_path / "t")
    body = server.log()[0]["body"]

    assert (body["rag"], body["max_tokens"]) == ({"top_k": 0}, 150)
    assert {row["name"] for row in rows} == {"Chat.prompt"}
    assert rows[0]["question_id"].startswith("chat-")
    assert (account["window"]["rule"], account["questions"]["offered"]) == ("stopped", 100)


def test_interrupt_keeps_all_samples(scripted, locust, tmp_path):
    """Ctrl-C lets requests in flight finish and keeps every sample."""
    server = scripted(script=SCRIPT, pages=PAGES)
    run = locust(RAG, "--host", server.url, "-u", "4", "-r", "4", "--trial", "t", "--duration", "60")
    wait_for(tmp_path / "t" / "samples.arrows", size=10_000)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    rows, account = trial(tmp_path / "t")

    assert len(rows) == len(server.log())
    assert {row["failure"] for row in rows} == {None}
    assert (account["stop_reason"], account["finished"], account["window"]["rule"]) == ("interrupted", False, "stopped")
    assert "Traceback" not in said


def test_second_interrupt_censors(scripted, locust, tmp_path):
    """A second Ctrl-C ends the drain: what is in flight is kept as censored."""
    server = scripted(script={**SCRIPT, "stall_after": 3}, pages=PAGES)
    run = locust(RAG, "--host", server.url, "-u", "3", "-r", "3", "--trial", "t")
    wait_for(tmp_path / "t" / "series.arrows", size=5_000)
    run.send_signal(signal.SIGINT)
    time.sleep(1.0)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    rows, account = trial(tmp_path / "t")

    assert [(row["failure"], row["chunks"]) for row in rows] == [("censored", 3)] * 3
    assert account["window"] is None
    assert "Traceback" not in said


def test_grace_censors(scripted, locust, tmp_path):
    """What is in flight when the grace ends is recorded as censored."""
    server = scripted(script={**SCRIPT, "stall_after": 0}, pages=PAGES)
    run = locust(RAG, "--host", server.url, "-u", "2", "-r", "2", "-t", "2", "--grace", "1", "--trial", "t")
    run.communicate(timeout=60)
    rows, _ = trial(tmp_path / "t")

    assert [row["failure"] for row in rows] == ["censored"] * 2


def test_killed_process_loses_a_second(scripted, locust, tmp_path):
    """A killed process leaves a file whose whole batches can be read."""
    server = scripted(script=SCRIPT, pages=PAGES)
    run = locust(RAG, "--host", server.url, "-u", "4", "-r", "4", "--trial", "t")
    wait_for(tmp_path / "t" / "samples.arrows", size=20_000)
    run.kill()
    run.wait(10)
    asked = len(server.log())
    batches = list(pa.ipc.open_stream((tmp_path / "t" / "samples.arrows").read_bytes()))

    assert asked - sum(batch.num_rows for batch in batches) <= 4 * 12


def test_failures_are_samples(scripted, locust, tmp_path):
    """Refused answers become failed samples, in Locust's table too, without a storm of retries."""
    down = [[0.0, "HTTP/1.1 503 Down\r\nContent-Length: 2\r\n\r\n{}"]]
    server = scripted(script={"raw": down}, pages=PAGES)
    run = locust(RAG, "--host", server.url, "-u", "2", "-r", "2", "-t", "3", "--trial", "t")
    said, _ = run.communicate(timeout=60)
    rows, _ = trial(tmp_path / "t")

    assert {row["failure"] for row in rows} == {"http_status"}
    assert 2 <= len(rows) <= 8
    assert "http_status 503" in said


def test_unreachable_target(locust, tmp_path):
    """A target that is not there ends the run at once with one line and exit code 4."""
    url = no_server()
    run = locust(RAG, "--host", url, "-u", "1", "--trial", "t")
    said, _ = run.communicate(timeout=30)
    lines = [line for line in said.splitlines() if "/INFO/" not in line]

    assert run.returncode == 4
    assert lines == [f"ragload: cannot reach {url} (Connection refused): start the target or correct --host"]


def test_used_folder(scripted, locust, tmp_path):
    """A folder that holds a trial is not written to; exit code 2."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "samples.arrows").write_text("precious")
    run = locust(RAG, "--host", scripted(pages=PAGES).url, "-u", "1", "--trial", "t")
    said, _ = run.communicate(timeout=30)

    assert (run.returncode, (tmp_path / "t" / "samples.arrows").read_text()) == (2, "precious")
    assert "already holds a trial" in said


def test_unwritable_folder(scripted, locust, tmp_path):
    """A trial folder that cannot be made ends the run with one line and exit code 2."""
    (tmp_path / "file").write_text("")
    run = locust(RAG, "--host", scripted(pages=PAGES).url, "-u", "1", "--trial", "file/t")
    said, _ = run.communicate(timeout=30)

    assert run.returncode == 2
    assert "ragload: cannot write to file/t" in said
    assert "Traceback" not in said


def test_several_processes_are_refused(scripted, locust):
    """Measuring from several processes is refused with the reason."""
    run = locust(RAG, "--host", scripted(pages=PAGES).url, "-u", "1", "--processes", "2")
    said, _ = run.communicate(timeout=60)

    assert run.returncode == 2
    assert said.count("ragload measures from one process") == 1


def test_no_questions_anywhere(scripted, locust):
    """A scenario without questions stops with the remedy and exit code 2."""
    run = locust(RAG, "--host", scripted(pages={}).url, "-u", "2", "-r", "2")
    said, _ = run.communicate(timeout=60)

    assert run.returncode == 2
    assert said.count("give --questions FILE") >= 1


def test_scenario_that_raises(scripted, locust, tmp_path):
    """A scenario with a fault of its own stops the trial instead of running for ever."""
    (tmp_path / "bad.py").write_text(RAG.read_text().replace("self.ask(", "self.aks("))
    run = locust(tmp_path / "bad.py", "--host", scripted(pages=PAGES).url, "-u", "1", "--duration", "5")
    said, _ = run.communicate(timeout=60)

    assert run.returncode == 2
    assert "the scenario raised AttributeError" in said


def test_web_interface_runs_two_tests(scripted, locust, tmp_path):
    """Each test started in the web interface is a trial with a folder of its own."""
    server = scripted(script=SCRIPT, pages=PAGES)
    web = no_server()
    run = locust(
        RAG, "--host", server.url, "--web-host", "127.0.0.1", "--web-port", web.rpartition(":")[2], headless=False
    )
    form = urllib.parse.urlencode({"user_count": 2, "spawn_rate": 2, "host": server.url, "duration": "1"}).encode()
    for number in (1, 2):
        press(f"{web}/swarm", form)
        limit = time.monotonic() + 30
        while len(list(tmp_path.glob("reports/*/run.json"))) < number:
            assert time.monotonic() < limit
            time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    accounts = [json.loads(path.read_text()) for path in tmp_path.glob("reports/*/run.json")]

    assert [(account["finished"], account["window"]["rule"]) for account in accounts] == [(True, "whole waves")] * 2


def press(url: str, form: bytes, limit_s: float = 20.0) -> None:
    """Send the web form, once the interface is up."""
    limit = time.monotonic() + limit_s
    address = urllib.parse.urlsplit(url)
    with socket.socket() as probe:
        while probe.connect_ex((address.hostname, address.port)) != 0:
            assert time.monotonic() < limit
            time.sleep(0.1)
    urllib.request.urlopen(url, form).close()
