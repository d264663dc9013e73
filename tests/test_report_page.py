"""The report as a person sees it, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import Ragload

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def searched(node_url: str, tmp_path_factory: pytest.TempPathFactory, ragload: Ragload) -> tuple[Path, dict[str, Any]]:
    """The report page of one small search, and the search's result."""
    import json

    folder = tmp_path_factory.mktemp("report") / "s"
    done = ragload(
        *("search", "rag", "--host", node_url, "--slo", "latency_p90_ms=600", "--attainment", "0.9", "--json"),
        *("--duration", 3, "--max-users", 8, "--input-tokens", 700, "--output-tokens", 20, "--out", folder),
    )
    page = folder / "report.html"
    assert ragload("report", folder, "--out", page).returncode == 0
    return page, json.loads(done.stdout)


@pytest.fixture(scope="module")
def browser_page(searched: tuple[Path, dict[str, Any]]) -> Iterator[tuple[Page, list[str]]]:
    """The page opened in headless Chromium, with every console error and every request that left the file."""
    from playwright.sync_api import sync_playwright

    troubles: list[str] = []
    with sync_playwright() as play:
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda sent: troubles.append(sent.url) if sent.url.startswith("http") else None)
        page.goto(searched[0].as_uri())
        page.wait_for_selector(".js-plotly-plot", timeout=20_000)
        yield page, troubles
        browser.close()


def test_the_page_opens_offline_and_without_errors(browser_page: tuple[Page, list[str]]) -> None:
    """Plots are drawn, nothing is fetched, and the console stays clean."""
    page, troubles = browser_page

    assert page.locator(".js-plotly-plot").count() >= 3
    assert troubles == []


def test_the_answer_is_on_the_page(browser_page: tuple[Page, list[str]], searched: tuple[Path, dict[str, Any]]) -> None:
    """The capacity of the search, the word SIMULATED and each level stand on the page."""
    text = browser_page[0].inner_text("body")
    found = searched[1]

    assert "SIMULATED" in text
    assert str(found["capacity"]["last_pass"]) in text
    assert [level["rps"] for level in found["levels"] if f"{level['rps']:.3g}" not in text] == []


@pytest.mark.parametrize("width", [360, 1920])
def test_the_page_fits_the_screen(browser_page: tuple[Page, list[str]], width: int) -> None:
    """On a phone and on a wide screen the page does not scroll sideways."""
    page = browser_page[0]
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(300)

    assert page.evaluate("document.documentElement.scrollWidth") <= width
