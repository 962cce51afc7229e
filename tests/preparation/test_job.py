"""The job of `prepare`, made from a command line before anything is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.codec.planes import CodecUnavailableError
from imagenet_prep.core.errors import UsageError
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.sources.source import StoredSource
from tests.kit import layouts
from tests.kit.http_server import serve
from tests.kit.installed import Installed
from tests.kit.layouts import make_class_tars
from tests.kit.messages import says
from tests.kit.miniature import Miniature
from tests.kit.tfrecords import plain


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat", "dog")):
        path = tmp_path / "source" / "train" / name / "0.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(plain(number))
    return tmp_path / "source"


def job(source: Path | str, **more: Any) -> PrepareJob:
    more = {"out": str(Path(source).parent / "out"), "splits": ("train",), "workers": 1} | more
    return PrepareJob.of(PrepareConfig(source=str(source), **more))


@pytest.mark.parametrize("codec", ["planes", "portable"])
def test_machine_without_the_codec_is_refused_first(
    source: Path, installed: Installed, codec: str
) -> None:
    installed.no_planes()

    with pytest.raises(CodecUnavailableError, match="no compiler"):
        job(source, codec=codec)
    assert not (source.parent / "out").exists()


def test_rehash_only_affects_listings_of_a_server(source: Path) -> None:
    """Those of a folder are compared with its files."""
    assert job(source, rehash=True).selection == job(source).selection


@pytest.mark.parametrize(("check", "hashed"), [("decode", True), ("header", False)])
def test_archives_on_a_server_are_hashed_while_listing(
    miniature: Miniature, tmp_path: Path, check: str, *, hashed: bool
) -> None:
    files = {path.name: path.read_bytes() for path in miniature.root.glob("ILSVRC2012*")}
    keep = {"keep_original": True, "check": check, "out": str(tmp_path / "out")}
    with serve(files) as server:
        source = job(server.url, splits=("validation",), **keep).selection.source
        (task,) = source.index_tasks("validation")
        assert isinstance(source, StoredSource)
        assert list(source.index(task))
        md5 = hashlib.md5(files[task.part]).hexdigest()
        assert source.known_md5(task) == (md5 if hashed else None)


def test_only_a_local_source_has_a_stored_location(source: Path, tmp_path: Path) -> None:
    assert (origin := job(source).wanted.origin) is not None
    assert origin.root == str(source)
    make_class_tars({"n00000001": ["n00000001_1.JPEG"]}, tmp_path, whole=True)
    with serve({"fall11_whole.tar": (tmp_path / "fall11_whole.tar").read_bytes()}) as server:
        remote = job(f"{server.url}/fall11_whole.tar", out=str(tmp_path / "out"))
        assert remote.wanted.origin is None


@pytest.mark.parametrize(
    ("classes", "asked", "chosen"),
    [
        (("3", "7", "9"), ("7",), ("7",)),
        (("3", "7", "9"), ("2",), ("3", "7")),
        (("3", "7", "9"), ("7", "9"), ("7", "9")),
        (("3", "7", "9"), ("5",), ("3", "7", "9")),
        (("0", "1", "2"), ("0",), ("0",)),
        (("0", "1", "2"), ("2",), ("2",)),
        (("01", "1", "a"), ("01",), ("01",)),
        (("a", "b", "c"), ("2",), ("a", "b")),
        (("a", "b", "c"), ("0", "2"), ("a", "c")),
        (("a", "b", "c"), (), ("a", "b", "c")),
    ],
)
def test_name_of_a_class_precedes_class_numbers(
    tmp_path: Path, classes: tuple[str, ...], asked: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    for number, name in enumerate(classes):
        layouts.write(tmp_path / "source" / name / "0.jpg", plain(number))
    selection = job(tmp_path / "source", subset_classes=asked).selection
    names = selection.source.classes.wnids
    assert tuple(names[index] for index in sorted(selection.classes)) == chosen


@pytest.mark.parametrize("asked", ["0", "00"])
def test_empty_selection_of_classes_is_refused(source: Path, asked: str) -> None:
    with pytest.raises(UsageError, match=says("subset-classes-expected-least-1-class", asked)):
        job(source, subset_classes=(asked,))
