"""The page in a real browser: no errors, search, keyboard, a narrow screen, accessibility."""

from __future__ import annotations

import dataclasses
import io
import itertools
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from imagenet_prep import report
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.member import Incident
from imagenet_prep.reporting import facts, sample
from imagenet_prep.storage.dataset_store import open_dataset
from tests.commands.report.conftest import SCREENSHOTS, Demo
from tests.kit import command
from tests.kit.browser import COLOURS, OVERFLOW, OpenPage, cut_words, violations
from tests.kit.pages import labels
from tests.kit.shared import made_once
from tests.kit.unplotted import without_plots

pytestmark = pytest.mark.browser

REPORT = "report.html"
WIDTHS = (390, 768, 1200)
EVIL = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>\"'&amp;é 数据"

_CLIP = "getComputedStyle(document.querySelector('[data-part=before]')).clipPath"
_FOCUS = """() => {
  const all = [...document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')]
    .filter((e) => e.checkVisibility());
  return [all.length, all.indexOf(document.activeElement)];
}"""


@pytest.fixture(scope="session")
def comparison(small: Demo, shared_cache: Path) -> Path:
    """A comparison of the small demo with itself at 64 pixels."""

    def make(folder: Path) -> None:
        shards = ("--train-shards", "3", "--validation-shards", "2", "--allow-subset")
        other = ("--out", folder / "64", "--short-side", "64")
        assert command.run("prepare", "--source", small.source, *other, *shards).code == 0
        page = ("--out", folder / REPORT)
        assert command.run("report", "--compare", small.out, folder / "64", *page).code == 0

    return made_once(shared_cache / "comparison", make) / REPORT


@pytest.fixture(scope="session")
def trained(small: Demo, training: Path, shared_cache: Path) -> Path:
    """The small demo's report with all its optional sections, such as figures of training."""

    def make(folder: Path) -> None:
        words = ("--training", training, "--out", folder / REPORT)
        assert command.run("report", small.out, *words).code == 0

    return made_once(shared_cache / "trained", make) / REPORT


@pytest.fixture(scope="session")
def damaged(small: Demo, shared_cache: Path) -> Path:
    """The report of a dataset that lacks a file; without plots, since other reports have them."""

    def make(folder: Path) -> None:
        shutil.copytree(small.out, folder / "set")
        (folder / "set" / "labels.txt").unlink()
        with pytest.MonkeyPatch.context() as patch:
            without_plots(patch)
            patch.setenv(schema.CACHE, str(folder / "of-another-user"))
            assert report.run([str(folder / "set"), "--out", str(folder / REPORT)]) == 0

    return made_once(shared_cache / "damaged-page", make) / REPORT


def test_page_works_with_keyboard_search_and_mouse(
    small: Demo, trained: Path, open_page: OpenPage
) -> None:
    shown, complaints = open_page(trained)

    assert shown.locator("h1").text_content() == small.out.name
    assert "Not read" in shown.locator(".verdict").text_content()
    assert shown.locator("figure svg").count() == 10
    assert shown.locator("#grid li:visible").count() >= 20
    hold_tab_reaches_everything_once(shown)
    broken = "[...document.images].filter((i) => i.src && !(i.complete && i.naturalWidth)).length"
    shown.wait_for_function(f"{broken} === 0")
    shown.locator("#lineage").scroll_into_view_if_needed()
    shown.emulate_media(color_scheme="dark")
    hold_search_finds_words_and_wnids(shown)
    hold_an_image_opens_by_keyboard(shown)
    hold_the_slider_follows_the_mouse(shown)
    assert complaints == []


def hold_tab_reaches_everything_once(shown: Any) -> None:
    count, _ = shown.evaluate(_FOCUS)
    visited = []
    for _ in range(count):
        shown.keyboard.press("Tab")
        visited.append(shown.evaluate(_FOCUS)[1])

    assert visited == list(range(count))


def hold_search_finds_words_and_wnids(shown: Any) -> None:
    """It also says what the page does not show."""
    tiles = shown.locator("#grid li:visible")
    found = shown.locator("#found")
    every = tiles.count()

    shown.fill("#search", "DAISY")
    daisies = tiles.count()
    assert 0 < daisies < every
    assert {text.split()[-1] for text in tiles.all_text_contents()} == {"daisy"}
    assert found.text_content().startswith(f"{daisies} images here; 1 class with ")
    shown.fill("#search", "n11939491")
    assert tiles.count() == daisies
    shown.fill("#search", "no such thing")
    assert tiles.count() == 0
    assert found.text_content().startswith("0 images here; 0 classes")
    shown.fill("#search", "")
    assert tiles.count() == every


def hold_an_image_opens_by_keyboard(shown: Any) -> None:
    """The comparison and the close button work in the same way."""
    tile = shown.locator("button.tile:has(.pair)").first
    tile.focus()
    shown.keyboard.press("Enter")
    dialog = shown.locator("#dialog")

    assert dialog.is_visible()
    assert "PSNR" in dialog.text_content()
    assert "of-0000" in dialog.text_content()
    slider = shown.get_by_role("slider")
    before = int(slider.input_value())
    clip = shown.evaluate(_CLIP)
    slider.focus()
    for _ in range(10):
        shown.keyboard.press("ArrowRight")
    assert int(slider.input_value()) == before + 10
    assert shown.evaluate(_CLIP) != clip
    title = shown.locator("#dialog dl").text_content()
    shown.get_by_role("button", name="Next").press("Enter")
    assert shown.locator("#dialog dl").text_content() != title
    shown.get_by_role("button", name="Previous").press("Enter")
    assert shown.locator("#dialog dl").text_content() == title
    shown.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert tile.evaluate("(e) => e === document.activeElement")


def hold_the_slider_follows_the_mouse(shown: Any) -> None:
    shown.locator("button.tile:has(.pair)").first.click()
    box = shown.get_by_role("slider").bounding_box()
    middle = box["y"] + box["height"] / 2

    shown.mouse.click(box["x"] + 0.9 * box["width"], middle)
    right = shown.evaluate(_CLIP)
    shown.mouse.click(box["x"] + 0.1 * box["width"], middle)

    assert shown.evaluate(_CLIP) != right
    assert int(shown.get_by_role("slider").input_value()) < 20


@pytest.mark.parametrize("which", ["report", "comparison"])
def test_page_fits_all_widths_and_axe_finds_nothing(
    small: Demo,
    comparison: Path,
    trained: Path,
    tmp_path: Path,
    open_page: OpenPage,
    which: str,
) -> None:
    page = trained if which == "report" else comparison
    # This name has no character at which a browser may break a line.
    text = page.read_text("utf-8").replace(str(small.out), f"/data/{'imagenet' * 12}")
    (tmp_path / REPORT).write_text(text, "utf-8")
    shown, _ = open_page(tmp_path / REPORT)
    if which == "comparison":
        hold_tab_reaches_everything_once(shown)
    hold_axe_finds_nothing_wrong(shown)

    for summary in shown.locator("summary").all():
        summary.click()
    for width in (320, *WIDTHS):
        shown.set_viewport_size({"width": width, "height": 900})
        assert shown.evaluate(OVERFLOW) <= 0, width
    if which == "report":
        shown.locator("button.tile:has(.pair)").first.click()
        for width in (320, *WIDTHS):
            shown.set_viewport_size({"width": width, "height": 900})
            assert shown.evaluate(OVERFLOW) <= 0, width
            box = shown.locator("#dialog").bounding_box()
            assert box["x"] >= 0, width
            assert box["x"] + box["width"] <= width
        # Everything behind an open dialog was checked before, and cannot be reached.
        assert violations(shown, within="#dialog") == []
        shown.emulate_media(color_scheme="light")
        assert violations(shown, *COLOURS, within="#dialog") == []


@pytest.fixture(scope="session")
def duplicated(small: Demo, shared_cache: Path) -> Path:
    """The page of `duplicates` for the small demo's source, compared with its dataset."""

    def make(folder: Path) -> None:
        words = ("--source", small.source, "--against", small.out, "--out", folder)
        assert command.run("duplicates", *words).code == 3  # the source has damaged images

    return made_once(shared_cache / "duplicated", make) / "duplicates.html"


@pytest.mark.parametrize("page", ["trained", "comparison", "duplicated", "damaged"])
@pytest.mark.parametrize("width", [390, pytest.param(1200, marks=pytest.mark.long)])
def test_no_line_break_cuts_a_word(
    request: pytest.FixtureRequest, open_page: OpenPage, page: str, width: int
) -> None:
    shown, _ = open_page(request.getfixturevalue(page), width)
    for summary in shown.locator("summary").all():
        summary.click()

    assert cut_words(shown) == []
    assert shown.evaluate(OVERFLOW) <= 0


def hold_axe_finds_nothing_wrong(shown: Any) -> None:
    """Ends in the dark scheme, which only changes colours."""
    assert violations(shown) == []
    shown.emulate_media(color_scheme="dark")
    assert violations(shown, *COLOURS) == []


def test_axe_finds_no_problem_for_damaged_dataset(damaged: Path, open_page: OpenPage) -> None:
    shown, _ = open_page(damaged)

    hold_axe_finds_nothing_wrong(shown)


def test_text_of_a_dataset_never_becomes_markup(
    small: Demo, unplotted: None, tmp_path: Path, open_page: OpenPage
) -> None:
    from imagenet_prep.reporting import page  # imports matplotlib, which few tests need

    known = facts.gather(open_dataset(str(small.out)), [EVIL])
    tiles = [
        dataclasses.replace(
            tile,
            record=tile.record._replace(shard=EVIL),
            image=tile.image._replace(text=EVIL, filename=EVIL, wnid=EVIL),
        )
        for tile in sample.draw(known, 0)[:3]
    ]
    known.classes = [(EVIL, EVIL) for _ in known.classes]
    known.replicas = [facts.ReplicaNote(EVIL, EVIL, EVIL)]
    line = Incident(EVIL, EVIL, 1, 1, 0, EVIL, EVIL, EVIL)
    incident = sample.ShownIncident(line, EVIL, EVIL, None)
    path = tmp_path / "evil.html"
    path.write_text(
        page.report(known, tiles, [incident], level="crc", seed=0, made_at=datetime.now(UTC)),
        "utf-8",
    )

    shown, complaints = open_page(path)
    shown.locator("button.tile").first.click()

    assert shown.evaluate("window.hit") is None
    assert shown.locator("#dialog h2").text_content() == EVIL
    assert shown.locator(".verdict li").text_content() == EVIL
    assert EVIL in shown.locator("#incidents").text_content()
    assert shown.locator("img[onerror]").count() == 0
    assert shown.locator("script").count() == 2
    assert complaints == []


@pytest.mark.long
def test_screenshots_are_written_for_inspection(
    demo: Demo, tmp_path: Path, open_page: OpenPage
) -> None:
    """Written to build/report; `make picture` copies the widest into the README."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    # The README's picture shows a user's folder, not a test's.
    path = tmp_path / REPORT
    content = (demo.out / REPORT).read_text("utf-8")
    path.write_text(content.replace(str(demo.out), "/data/demo"), "utf-8")
    shown, _ = open_page(path)
    # The picture contains facts and labels of the page: tests/contract/test_pictures.py.
    facts = PngInfo()
    for name in ("program", "libraries"):
        facts.add_text(name, shown.locator(f"dt:text-is('{name}') + dd").text_content())
    facts.add_text("labels", "\n".join(labels(content)))
    for width, scheme in itertools.product(WIDTHS, ("light", "dark")):
        shown.set_viewport_size({"width": width, "height": 1100})
        shown.emulate_media(color_scheme=scheme)
        picture = Image.open(io.BytesIO(shown.screenshot()))
        picture.save(SCREENSHOTS / f"report-{width}-{scheme}.png", pnginfo=facts)

        assert picture.size == (width, 1100)
        colours = picture.convert("L").resize((60, 60)).histogram()
        assert sum(1 for count in colours if count) > 10
