"""The site in a real browser: search, a narrow screen, both colour schemes, accessibility."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.browser import COLOURS, OVERFLOW, OpenPage, violations

pytestmark = [pytest.mark.browser, pytest.mark.long]

SEARCH = "search.html?q=make_dataset"
PAGES = ("index.html", "prepare.html", "api.html", SEARCH)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of the site on a web server, with a slash at its end."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def darken(shown: Any) -> None:
    """Shows a page in the dark scheme without a slow change of its colours."""
    shown.add_style_tag(content="* { transition: none !important }")
    shown.emulate_media(color_scheme="dark")


@pytest.mark.parametrize("width", [390, 1200, 1600])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_problem_and_pages_fit(
    address: str, open_page: OpenPage, page: str, width: int
) -> None:
    shown, complaints = open_page(address + page, width, within=address)
    if page == SEARCH:
        shown.locator("#search-results li").first.wait_for()

    assert violations(shown) == []
    assert shown.evaluate(OVERFLOW) <= 0
    # The dark scheme only changes colours.
    darken(shown)
    assert violations(shown, *COLOURS) == []
    assert complaints == []


def test_search_box_finds_function_by_name(address: str, open_page: OpenPage) -> None:
    shown, complaints = open_page(address + "train.html", within=address)
    shown.get_by_role("searchbox").or_(shown.get_by_label("Search")).first.fill("make_dataset")
    shown.keyboard.press("Enter")
    first = shown.locator("#search-results li a").first
    first.wait_for()

    assert "make_dataset" in first.text_content()
    first.click()
    shown.wait_for_url("**/api.html*#imagenet_prep.read.make_dataset")
    entry = shown.locator("[id='imagenet_prep.read.make_dataset']")
    assert entry.is_visible()
    assert "batch_size" in entry.text_content()
    # The target of a link is highlighted.
    assert violations(shown, *COLOURS) == []
    darken(shown)
    assert violations(shown, *COLOURS) == []
    assert complaints == []


def test_site_can_be_searched_from_a_folder(site: Path, open_page: OpenPage) -> None:
    shown, complaints = open_page(site / "index.html", within=site.as_uri())
    shown.get_by_role("link", name="Prepare a dataset").first.click()
    shown.wait_for_url("**/prepare.html")
    assert complaints == []

    shown.goto((site / "search.html").as_uri() + "?q=make_dataset")
    first = shown.locator("#search-results li a").first
    first.wait_for()
    assert "make_dataset" in first.text_content()


def test_a_button_switches_between_light_and_dark(address: str, open_page: OpenPage) -> None:
    shown, _ = open_page(address + "index.html", within=address)
    background = "getComputedStyle(document.body).backgroundColor"
    before = shown.evaluate(background)
    button = shown.get_by_role("button", name="Toggle Light / Dark / Auto color theme").last
    seen = set()
    for _ in range(3):
        button.click()
        seen.add(shown.evaluate(background))

    assert len(seen) == 2
    assert before in seen
