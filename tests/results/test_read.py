"""What is read from a trial folder, whole or damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic

from harness.errors import FolderError
from harness.results.read import read_trial
from harness.trial import TrialFolder


def test_every_column_comes_back(tmp_path: Path) -> None:
    """Instants, counts, texts, gaps and stages are those that were written, missing ones NaN or −1."""
    samples = [synthetic.answer(0, at_ms=0, tokens=3), synthetic.failed(1, at_ms=10, after_ms=5)]
    frame = read_trial(synthetic.write_trial(tmp_path / "t", samples, run=None)).samples

    assert frame.base_ns == synthetic.ORIGIN
    assert frame.scheduled_at.tolist() == [0, 10e6]
    assert frame.ended_at.tolist() == [1e9, 15e6]
    assert np.isnan(frame.first_token_at).tolist() == [False, True]
    assert frame.gaps_ns.tolist() == list(samples[0].gaps_ns)
    assert frame.gap_offsets.tolist() == [0, 2, 2]
    assert frame.ok.tolist() == [True, False]
    assert frame.failure.counts(np.array([True, True])) == {"http_status": 1}
    assert frame.error.values == ("a http_status",)
    assert frame.stages_ms["embed"][0] == 5.0
    assert np.isnan(frame.stages_ms["embed"][1])


def test_instants_are_exact_after_a_year_of_uptime(tmp_path: Path) -> None:
    """An odd nanosecond on a clock beyond 2⁵³ survives, since it is subtracted before it becomes a float."""
    year = 365 * 86_400_000_000_000
    first = synthetic.answer(0, scheduled_at=year, ended_at=year + 1)
    frame = read_trial(synthetic.write_trial(tmp_path / "t", [first], run=None)).samples

    assert frame.ended_at.tolist() == [1.0]


def test_cut_stream_keeps_whole_batches(tmp_path: Path) -> None:
    """A samples file cut inside its last batch yields the batches before it and is marked truncated."""
    path = synthetic.steady_trial(tmp_path / "t")
    file = TrialFolder(path).samples
    whole = len(read_trial(path).samples)
    file.write_bytes(file.read_bytes()[:-400])
    trial = read_trial(path)

    assert trial.truncated is True
    assert 0 < len(trial.samples) < whole
    assert len(trial.samples) % 100 == 0


def test_stream_without_end_mark_is_whole(tmp_path: Path) -> None:
    """A stream that ends after a whole batch, as a killed process leaves it, loses nothing."""
    path = synthetic.steady_trial(tmp_path / "t")
    file = TrialFolder(path).samples
    whole = len(read_trial(path).samples)
    file.write_bytes(file.read_bytes()[:-8])

    assert len(read_trial(path).samples) == whole


def test_crash_derives_the_window(tmp_path: Path) -> None:
    """Without run.json the window runs from each user's third finished request to the last completion."""
    samples = [synthetic.answer(seq, at_ms=1000 * (seq // 2), user=seq % 2) for seq in range(10)]
    window = read_trial(synthetic.write_trial(tmp_path / "t", samples, run=None)).window

    assert (window.t0, window.t1, window.derived) == (3e9, 5e9, True)


def test_crash_before_three_requests_a_user_takes_all(tmp_path: Path) -> None:
    """When no steady state was reached the derived window is everything there is."""
    window = read_trial(synthetic.write_trial(tmp_path / "t", [synthetic.answer(0)], run=None)).window

    assert (window.t0, window.t1, window.derived) == (0, 1e9, True)


def test_missing_environment_and_series_are_empty(tmp_path: Path) -> None:
    """A target that said nothing leaves an empty environment and no telemetry, not an error."""
    run = synthetic.run_row(0, 1000)
    trial = read_trial(
        synthetic.write_trial(tmp_path / "t", [synthetic.answer(0)], run=run, environment=None, series=[])
    )

    assert trial.environment == {}
    assert len(trial.series.t) == 0


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    """A folder that is not there is a FolderError naming it."""
    with pytest.raises(FolderError, match="nowhere is no folder"):
        read_trial(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xff\xff\xff\x10"])
def test_folder_without_samples_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """No samples file, an empty one, or one cut inside its schema is a FolderError."""
    path = synthetic.steady_trial(tmp_path / "t")
    file = TrialFolder(path).samples
    file.unlink()
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(FolderError, match="holds no samples"):
        read_trial(path)


def test_newer_schema_is_refused(tmp_path: Path) -> None:
    """A plan of a later schema is a FolderError that says to upgrade."""
    path = synthetic.steady_trial(tmp_path / "t")
    plan = TrialFolder(path).plan
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"schema": 99}))

    with pytest.raises(FolderError, match="upgrade ragload"):
        read_trial(path)


def test_newer_samples_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A samples stream of a later schema is refused too."""
    newer = synthetic.SAMPLE_SCHEMA.with_metadata({b"schema": b"2"})
    monkeypatch.setattr(synthetic, "SAMPLE_SCHEMA", newer)

    with pytest.raises(FolderError, match="schema 2"):
        read_trial(synthetic.steady_trial(tmp_path / "t"))


def test_a_fresh_process_reads_a_trial(tmp_path: Path) -> None:
    """Reading needs no module that only a test would have imported."""
    path = synthetic.steady_trial(tmp_path / "t")
    code = (
        "import sys; from pathlib import Path; from harness.results.read import read_trial; "
        "from harness.results.stats import summarize; "
        "print(summarize(read_trial(Path(sys.argv[1]))).figures['requests'])"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "240"
