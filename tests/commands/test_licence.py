"""The licence of the images: recorded by prepare and resize, and shown by what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import amend, export, report, resize
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.pipelines import prepare
from tests.kit import layouts
from tests.kit.messages import says
from tests.kit.tfrecords import plain
from tests.kit.unplotted import without_plots

LICENCE = "CC-BY-4.0"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("licence") / "source"
    for number in range(6):
        layouts.write(root / "ab"[number % 2] / f"{number}.jpg", plain(number))
    return root


def prepared(source: Path, out: Path, *flags: str) -> Path:
    assert prepare.run(["--source", str(source), "--out", str(out), "--json", *flags]) == 0
    return out


@pytest.fixture(scope="module")
def licensed(source: Path) -> Path:
    return prepared(source, source.parent / "set", "--licence", LICENCE)


def content(dataset: Path, name: str = schema.MANIFEST) -> Any:
    return json.loads((dataset / name).read_bytes())


def test_licence_is_recorded_outside_the_root(source: Path, licensed: Path, tmp_path: Path) -> None:
    without = prepared(source, tmp_path / "set")

    assert content(licensed)["config"]["licence"] == LICENCE
    assert "licence" not in content(without)["config"]
    info = content(licensed, schema.TFDS_INFO)
    assert info.pop("redistributionInfo") == {"license": LICENCE}
    assert info == content(without, schema.TFDS_INFO)
    roots = [content(each)["splits"]["train"]["samples_root"] for each in (licensed, without)]
    assert roots[0] == roots[1]
    with pytest.raises(UsageError, match=says("here", "licence", "CC-BY-4.0", "MIT")):
        prepared(source, licensed, "--license", "MIT")


def test_later_datasets_keep_the_licence(licensed: Path, tmp_path: Path) -> None:
    smaller, own, amended = (tmp_path / name for name in ("smaller", "own", "amended"))
    words = ["-i", str(licensed), "-o"]
    assert resize.run([*words, str(smaller), "--json"]) == 0
    assert resize.run([*words, str(own), "--json", "--licence", "MIT"]) == 0
    (tmp_path / "keys").write_text("a/0.jpg\n")
    words = ["--exclude", str(tmp_path / "keys"), "--out", str(amended), "--json"]
    assert amend.run([str(smaller), *words]) == 0

    for dataset, licence in ((smaller, LICENCE), (own, "MIT"), (amended, LICENCE)):
        assert content(dataset, schema.TFDS_INFO)["redistributionInfo"] == {"license": licence}


def test_pages_and_exports_name_the_licence(
    licensed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    assert report.run([str(licensed), "--out", str(tmp_path / "page.html")]) == 0
    assert f"images: {LICENCE}</p>" in (tmp_path / "page.html").read_text("utf-8")
    words = [str(licensed), "--to", "folder", "--out", str(tmp_path / "folders")]
    assert export.run(words) == 0
    readme = (tmp_path / "folders" / "README.md").read_text("utf-8")
    assert says("images-exported-imagenet-prep-licence-images", LICENCE).search(readme)
    assert "README.md" in (tmp_path / "folders" / "SHA256SUMS").read_text()
    assert content(prepared(tmp_path / "folders", tmp_path / "again", "--splits", "train"))


@pytest.mark.parametrize(("about", "licence"), [({}, LICENCE), ({"license": "MIT"}, "MIT")])
def test_about_replaces_the_licence_in_croissant(
    licensed: Path, tmp_path: Path, about: dict[str, str], licence: str
) -> None:
    (tmp_path / "about.json").write_text(json.dumps(about))
    words = ["--to", "croissant", "--about", str(tmp_path / "about.json")]

    assert export.run([str(licensed), str(tmp_path / "made.json"), *words]) == 0
    assert content(tmp_path, "made.json")["license"] == licence


@pytest.mark.parametrize("text", ["two\nlines", " MIT", "x" * 501])
def test_licence_is_one_line(source: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=says("licence-expected-one-line-most")):
        prepared(source, tmp_path / "set", "--licence", text)
