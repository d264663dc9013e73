"""The results we stand behind come out of the samples published with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.results.read import read_trial
from harness.results.stats import summarize

PUBLISHED = Path(__file__).resolve().parents[1] / "reports" / "published"
TRIALS = sorted(path.parent for path in PUBLISHED.rglob("samples.arrows"))


@pytest.mark.parametrize("trial", TRIALS, ids=[str(path.relative_to(PUBLISHED)) for path in TRIALS])
def test_a_published_summary_is_what_its_samples_say(trial: Path) -> None:
    """Summing up a published trial again gives its published figures, and it is VALID and not simulated."""
    kept = json.loads((trial / "summary.json").read_text(encoding="utf-8"))
    again = summarize(read_trial(trial)).to_dict()

    assert {key: value for key, value in kept.items() if key != "schema"} == json.loads(json.dumps(again))
    assert (again["valid"], again["simulated"]) == (True, False)


def test_the_readme_of_the_h200_says_what_its_search_found() -> None:
    """Bracket, throughput and the comparison with other clients in the text are those of the files."""
    folder = PUBLISHED / "h200-llama-8b-shape"
    text = (folder / "README.md").read_text(encoding="utf-8")
    found = json.loads((folder / "search" / "search.json").read_text(encoding="utf-8"))
    ours = json.loads((folder / "run-128" / "summary.json").read_text(encoding="utf-8"))["rps"]
    rates = [
        json.loads((folder / f"independent-128-{when}.json").read_text(encoding="utf-8"))["rps"]
        for when in ("before", "after")
    ]

    assert found["capacity"] == {"last_pass": 40, "first_fail": 42}
    assert all(f"| {level['users']} | {level['rps']:.1f} |" in text for level in found["levels"])
    assert f"{ours:.2f}" in text
    assert all(f"{rate:.2f}" in text for rate in rates)
    assert abs(ours / (sum(rates) / len(rates)) - 1) < 0.03
