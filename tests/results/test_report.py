"""Reports show the figures, the doubts and SIMULATED, and the page needs no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import synthetic
from rich.console import Console

from harness.errors import FolderError
from harness.results.read import read_trial
from harness.results.repeats import repeated, spread
from harness.results.report import (
    answer_lines,
    corpora_table,
    render_report,
    show_folders,
    show_repeated,
    show_search,
    show_summary,
)
from harness.results.stats import summarize
from harness.trial import read_json

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def text_of(renderable: Any) -> str:
    """What a terminal 400 columns wide shows."""
    console = Console(width=400, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def bad_trial(path: Path) -> Path:
    """An INVALID, simulated trial: a busy client, failures, and an SLO that is missed."""
    samples = synthetic.closed_loop(4, 70, lambda seq, at_ms: 1000.0, fails=lambda seq: seq % 20 == 7)
    run = synthetic.run_row(2000, 62_000, users=4, client={"cpu_share_p50": 0.97, "hub_delay_ms_p99": 3.0})
    return synthetic.write_trial(
        path, samples, run=run, environment=synthetic.SIMULATED, users=4, slo="latency_p99_ms=2500"
    )


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated search of several levels."""
    return synthetic.write_search(tmp_path_factory.mktemp("results") / "rag-search")


def test_a_trial_in_the_terminal_leads_with_its_state(tmp_path: Path) -> None:
    """The first words are INVALID and SIMULATED, then each broken check with its remedy."""
    shown = text_of(show_summary(summarize(read_trial(bad_trial(tmp_path / "t"))).to_dict()))

    assert shown.startswith("INVALID  SIMULATED (a100-40gb, llama-3.1-8b)")
    assert "client CPU 0.97 cores (limit ≤ 0.9 cores): the load machine is the bottleneck" in shown
    assert "SLO latency_p99_ms=2500: not met" in shown


def test_a_real_valid_trial_says_valid_and_not_simulated(tmp_path: Path) -> None:
    """A real engine's steady trial is VALID and nowhere SIMULATED."""
    shown = text_of(show_summary(summarize(read_trial(synthetic.steady_trial(tmp_path / "t"))).to_dict()))

    assert shown.startswith("VALID  4 requests/s per GPU at 4 concurrent; latency p50 1.00 s, p99 1.00 s")
    assert "SIMULATED" not in shown


def test_every_table_of_a_simulated_trial_says_so(tmp_path: Path) -> None:
    """SIMULATED stands at the headline and at each of the two tables."""
    shown = text_of(show_summary(summarize(read_trial(bad_trial(tmp_path / "t"))).to_dict()))

    assert shown.count("SIMULATED (a100-40gb, llama-3.1-8b)") == 3


def test_the_answer_is_three_lines(search: Path) -> None:
    """Capacity bracket; p50 and p99; requests/s per GPU and validity: each line SIMULATED."""
    lines = answer_lines(read_json(search / "search.json"))

    assert len(lines) == 3
    assert all(line.startswith("SIMULATED (a100-40gb, llama-3.1-8b)  ") for line in lines)
    assert re.search(r"capacity: \d+ concurrent requests \(\d+ is too many\)", lines[0])
    assert re.search(r"latency p50 [\d.]+ s, p99 [\d.]+ s", lines[1])
    assert re.search(r"[\d.]+ requests/s per GPU \(1 GPU as the target says\); VALID$", lines[2])


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        ({"last_pass": 0, "first_fail": None}, "no load was tried"),
        ({"last_pass": 8, "first_fail": None}, "at least 8 concurrent"),
        ({"last_pass": 0, "first_fail": 1}, "below 1 concurrent"),
    ],
)
def test_an_answer_without_a_bracket_says_which_side_is_open(
    search: Path, capacity: dict[str, int | None], said: str
) -> None:
    """No level, no failure and no pass are each told as they are."""
    found = read_json(search / "search.json")
    levels = found["levels"] if capacity["last_pass"] or capacity["first_fail"] else []

    assert said in answer_lines(found | {"capacity": capacity, "levels": levels})[0]


def test_a_search_in_the_terminal_shows_every_level(search: Path) -> None:
    """Each level's users and verdict are in the table under the answer."""
    found = read_json(search / "search.json")
    shown = text_of(show_search(found))

    for level in found["levels"]:
        assert re.search(rf"^ {level['users']} +{'pass' if level['passed'] else 'FAIL'} ", shown, re.MULTILINE)


def test_repeats_are_mean_and_spread(tmp_path: Path) -> None:
    """Three runs of 1.00, 1.01 and 1.02 s are 1.01 s ± 10 ms; a figure one run lacks has no mean."""
    paths = [synthetic.steady_trial(tmp_path / str(i), latency_ms=1000.0 + 10 * i) for i in range(3)]
    summaries = [summarize(read_trial(path)).to_dict() for path in paths]
    row = repeated(summaries)

    assert row["figures"]["latency_p50_ms"]["mean"] == 1010.0
    assert row["figures"]["latency_p50_ms"]["sd"] == 10.0
    assert (row["repeat"], row["valid"]) == (3, True)
    assert "3 runs at 4 concurrent requests" in text_of(show_repeated(summaries))
    assert spread([1.0, None])["mean"] is None
    assert spread([1.0])["sd"] is None
    json.dumps(row, allow_nan=False)


def test_corpora_are_a_table() -> None:
    """Rows become columns by their keys; without rows the table says how to get one."""
    assert "wikipedia-leads" in text_of(corpora_table([{"name": "wikipedia-leads", "built": True}]))
    assert "corpus build" in text_of(corpora_table([]))


class Loads(HTMLParser):
    """Collects what a page would fetch: every src and href, and the URLs of its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes that make a browser fetch."""
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def test_the_page_stands_alone(search: Path, tmp_path: Path) -> None:
    """One file under 5 MB that fetches nothing."""
    page = render_report([search], tmp_path / "out" / "report.html")
    text = page.read_text(encoding="utf-8")
    loads = Loads()
    loads.feed(text)

    assert page.stat().st_size < 5_000_000
    assert loads.found == []
    assert re.findall(r"""(?:src|href)\s*=\s*["']?http|url\(|@import""", text) == []


def test_the_page_holds_the_figures_without_script(search: Path, tmp_path: Path) -> None:
    """Bracket, percentiles, command and every level's figures are in the page's own text."""
    found = read_json(search / "search.json")
    text = render_report([search], tmp_path / "r.html").read_text(encoding="utf-8")
    text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    last_pass, first_fail = found["capacity"].values()

    assert f"{last_pass} concurrent requests keep the SLO, {first_fail} do not" in text
    assert f"<dd>{last_pass} – {first_fail}</dd>" in text
    assert "ragload search rag --host http://node:8080 --slo latency_p99_ms=2500,ttft_p99_ms=400" in text
    for level in found["levels"]:
        assert f"<tr><td>{level['users']}</td>" in text
    assert text.count("SIMULATED") == 9  # the badge, five tiles, three tables
    assert "VALID</span>" in text


def test_every_plot_says_simulated_and_is_strict_json(search: Path, tmp_path: Path) -> None:
    """Each plot of a simulated search has SIMULATED in its title and is JSON without NaN."""
    text = render_report([search], tmp_path / "r.html").read_text(encoding="utf-8")
    figures = [json.loads(found) for found in re.findall(r"<script type='application/json'>(.*?)</script>", text)]
    titles = [figure["layout"]["title"]["text"] for figure in figures]

    assert len(figures) == 6
    assert all("SIMULATED" in title for title in titles)


def test_an_invalid_trials_page_says_why(tmp_path: Path) -> None:
    """The page of an INVALID trial names what voids it and the remedy before the plots."""
    text = render_report([bad_trial(tmp_path / "t")], tmp_path / "r.html").read_text(encoding="utf-8")
    before = text[: text.index("class='plot'")]

    assert "INVALID</span>" in before
    assert "the load machine is the bottleneck" in before
    assert re.search(r"\d+ http_status: see the target", before)


def test_foreign_text_is_escaped(tmp_path: Path) -> None:
    """What a target says of itself cannot become markup."""
    hostile = {"engine": {"model": "<script>alert(1)</script>", "version": "</script>"}}
    path = synthetic.steady_trial(tmp_path / "t", environment=hostile)
    text = render_report([path], tmp_path / "r.html").read_text(encoding="utf-8")

    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_trials_repeats_and_searches_share_a_page(search: Path, tmp_path: Path) -> None:
    """Several folders get an overview first, then a section each; the terminal shows each too."""
    for name in ("1", "2"):
        synthetic.steady_trial(tmp_path / "five" / name)
    paths = [search, tmp_path / "five", bad_trial(tmp_path / "bad")]
    text = render_report(paths, tmp_path / "r.html").read_text(encoding="utf-8")

    assert text.index("<h1>Overview</h1>") < text.index("keep the SLO,")
    assert "2 runs at 4 concurrent requests" in text
    assert all(name in text_of(show_folders(paths)) for name in ("rag-search", "five", "bad"))


@pytest.mark.parametrize("made", [None, "empty", "search"])
def test_what_is_no_trial_is_refused(tmp_path: Path, made: str | None) -> None:
    """A missing folder, an empty one, and a search.json of something else are FolderErrors."""
    path = tmp_path / "x"
    if made is not None:
        path.mkdir()
    if made == "search":
        (path / "search.json").write_text('{"schema": 1}')

    with pytest.raises(FolderError):
        render_report([path], tmp_path / "r.html")


def test_an_unwritable_page_is_refused(tmp_path: Path) -> None:
    """A page whose folder is a file is a FolderError that says to name another."""
    (tmp_path / "file").touch()

    with pytest.raises(FolderError, match="--out"):
        render_report([synthetic.steady_trial(tmp_path / "t")], tmp_path / "file" / "r.html")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; `make browser` gets one")
def test_a_browser_draws_every_plot(search: Path, tmp_path: Path) -> None:
    """Chromium, cut off from the network, inflates plotly and draws all six plots."""
    page = render_report([search], tmp_path / "r.html")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=8000", "--dump-dom"]
    ran = subprocess.run(
        [str(CHROMIUM), *options, *offline, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )

    assert ran.stdout.count('class="plot-container') == 6
    assert "could not be drawn" not in re.sub(r"<script.*?</script>", "", ran.stdout, flags=re.DOTALL)
