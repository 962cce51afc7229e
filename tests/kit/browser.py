"""A headless Chromium without a network, and axe, which checks the accessibility of pages.

The conftest of all tests has the fixtures: Playwright starts once in a process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

COLOURS = ("color-contrast", "link-in-text-block")  # axe's rules about them, except AAA's
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Returns the words that a line break cuts although they would fit into a line of their block.
# A cut after a hyphen, a slash or an underscore is not in the middle of a word.
_CUT_WORDS = """() => {
  const cut = [];
  const lines = (range) => new Set([...range.getClientRects()].map((r) => Math.round(r.bottom)));
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!parent.checkVisibility() || parent.closest("script, style, svg, pre")) continue;
    const block = parent.closest(".scroll, p, li, dd, dt, h1, h2, h3, div, figcaption, label");
    for (const match of node.data.matchAll(/[^\\s\\-\\/_|,;:=·]{2,}/g)) {
      const range = new Range();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      if (lines(range).size < 2) continue;
      const width = [...range.getClientRects()].reduce((sum, rect) => sum + rect.width, 0);
      if (width <= block.clientWidth) cut.push(match[0]);
    }
  }
  return cut;
}"""
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


class Complaints(list[str]):
    """Network requests, console messages and errors of a page."""


OpenPage = Callable[..., tuple[Any, Complaints]]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium; skips if there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[OpenPage]:
    """Opens a page as users do; returns it and its growing complaints.

    A file is opened offline and may only load itself, or addresses that start with `within`.
    """
    contexts = []

    def open_it(
        page: Path | str, width: int = 1200, within: str | None = None
    ) -> tuple[Any, Complaints]:
        offline = isinstance(page, Path)
        address = page.as_uri() if isinstance(page, Path) else page
        context = chromium.new_context(viewport={"width": width, "height": 900}, offline=offline)
        contexts.append(context)
        shown = context.new_page()
        complaints = Complaints()
        allowed = ("data:", within or address)
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on(
            "request",
            lambda request: (
                None if request.url.startswith(allowed) else complaints.append(request.url)
            ),
        )
        shown.goto(address)
        return shown, complaints

    yield open_it
    for context in contexts:
        context.close()


def cut_words(shown: Any) -> list[str]:
    """Returns the words of a page that a line break cuts, although a line has space for them."""
    found: list[str] = shown.evaluate(_CUT_WORDS)
    return found


def violations(shown: Any, *rules: str, within: str | None = None) -> list[str]:
    """Returns the violations of some of axe's rules, or of all that are on by default.

    Args:
      shown: the page.
      *rules: of axe; none: all that are on by default.
      within: a CSS selector of the checked part; None: the complete page.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found = axe.run(shown, context=within, options=options).response["violations"]
    lines = []
    for rule in found:
        lines += [
            f"{rule['id']}: {node['target']} {node.get('failureSummary')}" for node in rule["nodes"]
        ]
    return lines
