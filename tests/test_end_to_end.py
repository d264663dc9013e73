"""The whole path over HTTP and files: corpus, simulated engine, node, plain Locust, summary, search, report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import RAGLOAD, Ragload

from harness.results.read import read_trial

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
QUICK = ("--input-tokens", "700", "--output-tokens", "20")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, ragload: Ragload, node_url: str) -> tuple[Path, dict[str, Any]]:
    """One trial made by `ragload run`: its folder and what was printed."""
    folder = tmp_path_factory.mktemp("trial") / "t"
    command = ("run", "rag", "--host", node_url, "--users", 4, "--duration", 6, "--out", folder, *QUICK, "--json")
    done = ragload(*command)
    assert done.returncode in (0, 3), done.stderr
    return folder, json.loads(done.stdout)


def test_every_request_has_exactly_the_asked_tokens(trial: tuple[Path, dict[str, Any]]) -> None:
    """By the engine's own usage each prompt is 700 tokens, chat template included, and each answer 20."""
    _, summary = trial

    assert summary["requests"] > 10
    assert summary["failures"] == 0
    assert (summary["prompt_tokens"]["min"], summary["prompt_tokens"]["max"]) == (700, 700)
    assert (summary["output_tokens"]["min"], summary["output_tokens"]["max"]) == (20, 20)


def test_a_simulated_figure_says_so(trial: tuple[Path, dict[str, Any]], ragload: Ragload) -> None:
    """The summary of a simulated engine is flagged, with GPU and model, and its table says SIMULATED."""
    folder, summary = trial

    assert summary["simulated"] is True
    assert "SIMULATED" in ragload("summarize", folder).stdout


def test_summarize_gives_what_run_printed(trial: tuple[Path, dict[str, Any]], ragload: Ragload) -> None:
    """A summary made again from the files equals the one printed and the one in the folder."""
    folder, printed = trial
    again = json.loads(ragload("summarize", folder, "--json").stdout)
    kept = json.loads((folder / "summary.json").read_text())

    assert again == {key: value for key, value in printed.items() if key != "folder"}
    assert again == {key: value for key, value in kept.items() if key != "schema"}


def test_the_stages_of_a_request_sum_to_its_latency(trial: tuple[Path, dict[str, Any]]) -> None:
    """Node and engine stages together explain end-to-end latency within 5% at the median."""
    folder, _ = trial
    frame = read_trial(folder).samples
    latency = (frame.ended_at - frame.scheduled_at) / 1e6
    stages = np.nansum(np.stack(list(frame.stages_ms.values())), axis=0)

    assert 0.95 < float(np.median(stages / latency)) <= 1.01


def test_the_littles_law_residual_of_a_real_run_is_small(trial: tuple[Path, dict[str, Any]]) -> None:
    """N = X·R holds within 5% in the window of a real closed loop."""
    _, summary = trial

    assert abs(summary["littles_law_residual"]) < 0.05


def test_plain_locust_leaves_the_same_trial_folder(node_url: str, tmp_path: Path, ragload: Ragload) -> None:
    """`locust -f scenarios/rag.py --headless -t` is a trial whose folder `ragload summarize` reads."""
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "scenarios" / "rag.py"), "--host", node_url]
    options = ["--headless", "-u", "3", "-r", "3", "-t", "8s", "--trial", str(tmp_path / "t"), *QUICK]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    summary = json.loads((tmp_path / "t" / "summary.json").read_text())
    again = json.loads(ragload("summarize", tmp_path / "t", "--json").stdout)

    assert done.returncode == 0, done.stderr
    assert "Aggregated" in done.stdout + done.stderr  # Locust's own table is still there
    assert summary["requests"] > 0
    assert again == {key: value for key, value in summary.items() if key != "schema"}


def test_repeats_give_one_figure_with_its_spread(node_url: str, tmp_path: Path, ragload: Ragload) -> None:
    """`run --repeat 2` leaves two trials of different seeds under one folder."""
    command = ("run", "rag", "--host", node_url, "--users", 2, "--duration", 2, "--repeat", 2, *QUICK, "--json")
    done = ragload(*command, "--out", tmp_path / "runs")
    seeds = [json.loads((tmp_path / "runs" / name / "plan.json").read_text())["seed"] for name in ("1", "2")]

    assert done.returncode in (0, 3), done.stderr
    assert len(set(seeds)) == 2
    json.loads(done.stdout)


def test_a_search_brackets_the_capacity(node_url: str, tmp_path: Path, ragload: Ragload) -> None:
    """`ragload search` ends with a bracket of at most 5% or one user, its ceilings and its levels, and a report."""
    done = ragload(
        *("search", "rag", "--host", node_url, "--slo", "latency_p90_ms=600", "--attainment", "0.9"),
        *("--duration", 3, "--max-users", 32, "--out", tmp_path / "s", *QUICK, "--json"),
    )
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout)
    last_pass, first_fail = found["capacity"]["last_pass"], found["capacity"]["first_fail"]

    assert last_pass >= 1
    assert first_fail is None or first_fail - last_pass <= max(1, 0.05 * last_pass)
    assert set(found["ceilings"]) == {"kv_concurrency", "saturation", "slo"}
    assert found["binding"] in ("memory", "saturation", "slo", None)
    assert found["ceilings"]["kv_concurrency"] > 50
    page = ragload("report", tmp_path / "s", "--out", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "page.html").stat().st_size < 5_000_000


def test_a_polite_kill_stops_the_load_and_keeps_the_trial(node_url: str, tmp_path: Path) -> None:
    """SIGTERM to `ragload run` ends Locust too, and what was measured is in the folder."""
    command = [*RAGLOAD, "run", "rag", "--host", node_url, "--users", "2", "--duration", "60", *QUICK]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "t")], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "t" / "samples.arrows").exists() or (tmp_path / "t" / "samples.arrows").stat().st_size < 4000:
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=90)

    assert process.returncode == 130, said
    assert json.loads((tmp_path / "t" / "run.json").read_text())["finished"] is False
    assert len(read_trial(tmp_path / "t").samples) > 0


def test_chat_goes_through_without_retrieval(node_url: str, tmp_path: Path, ragload: Ragload) -> None:
    """The 50-in/150-out scenario reaches the engine without passages: short prompts, no search stage."""
    done = ragload("run", "chat", "--host", node_url, "--users", 2, "--duration", 2, "--out", tmp_path / "t", "--json")
    summary = json.loads(done.stdout)

    assert summary["failures"] == 0
    assert summary["prompt_tokens"]["max"] < 300
    assert summary["output_tokens"]["min"] == summary["output_tokens"]["max"] == 150
