"""Files on a server are named, found and read like local files."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.storage.remote import ChangedError, Stat
from imagenet_prep.storage.remote_path import (
    ListingFolder,
    RemotePath,
    Site,
    locate,
    open_to_read,
)
from tests.kit.messages import says

DATA = bytes(range(200))


@pytest.fixture
def folder(tmp_path: Path) -> RemotePath:
    """A folder with one archive in its own subfolder; reading it needs no server."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "train.tar.gz").write_bytes(DATA)
    return RemotePath(Site(str(tmp_path)))


def test_remote_path_has_the_parts_of_a_path(folder: RemotePath) -> None:
    path = folder / "sets" / "train.tar.gz"
    here = Path(str(path))

    assert (path.name, path.suffix, str(path.parent)) == (here.name, here.suffix, str(here.parent))
    assert path.relative == "sets/train.tar.gz"
    assert path.parent == folder / "sets"
    assert path.parent.parent == folder.parent == folder


def test_files_and_folders_are_distinguished(folder: RemotePath) -> None:
    sets = folder / "sets"
    [file] = sets.iterdir()

    assert (sets.is_dir(), sets.is_file(), folder.is_file()) == (True, False, False)
    assert (file.is_dir(), file.is_file(), file.stat.size) == (False, True, 200)
    assert (folder / "absent").is_file() is (folder / "absent").is_dir() is False


def test_file_is_read_completely_and_in_parts(folder: RemotePath) -> None:
    path = folder / "sets" / "train.tar.gz"
    for file in (path, Path(str(path))):
        with open_to_read(file) as opened:
            assert opened.read() == DATA
    assert path.fetch(10, 20) == pickle.loads(pickle.dumps(path)).fetch(10, 20) == DATA[10:20]


def test_pickled_path_keeps_the_version_of_its_file(folder: RemotePath) -> None:
    """All workers read the file that the first process has found."""
    sets = folder / "sets"
    [listed] = sets.iterdir()
    known = sets / "train.tar.gz"
    inspected = RemotePath(folder.site, "sets/train.tar.gz")
    new = RemotePath(folder.site, "sets/train.tar.gz")
    assert inspected.stat.size == 200
    copies = [pickle.loads(pickle.dumps(path)) for path in (listed, known, inspected, new)]
    Path(str(new)).write_bytes(DATA[::-1] + b"more")

    for copy in copies[:3]:
        with pytest.raises(ChangedError):
            copy.fetch(0, 9)
    assert copies[3].fetch(0, 9) == DATA[:-10:-1]


def test_pickled_site_keeps_its_settings(tmp_path: Path) -> None:
    for writes, believed, hashes in itertools.product((False, True), repeat=3):
        site = Site("https://h/in", ListingFolder(str(tmp_path), writes, believed), hashes)
        assert pickle.loads(pickle.dumps(site)) == site


@pytest.mark.parametrize(
    ("stat", "said"),
    [
        (
            Stat(9, "tag", False),
            says(
                "server-copy-archives-disk-first",
                ...,
                says("cannot-send-parts-file-no"),
                "https://h/in",
            ),
        ),
        (Stat(9, "", True), says("sends-neither-etag-nor-date")),
    ],
)
def test_file_without_ranges_or_identity_is_refused(stat: Stat, said: str) -> None:
    site = Site("https://h/in")
    assert RemotePath(site, "x", Stat(9, "tag", True)).require_ranges().size == 9
    with pytest.raises(StoreError, match=said):
        RemotePath(site, "x", stat).require_ranges()


def test_address_with_an_archive_extension_is_a_file() -> None:
    assert locate("~/in", None, hashes=True) == Path.home() / "in"
    for text, name in (("https://h/in/", ""), ("https://h/in/a.zip", "a.zip")):
        found = locate(text, None, hashes=False)
        assert found == RemotePath(Site("https://h/in", None, False), name)
