"""The folders of a search: each is found under one path, and what cannot be searched is named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.removal import folders
from imagenet_prep.removal.folders import (
    Folder,
    SearchedFolders,
    hard_links_elsewhere,
    is_below,
)
from imagenet_prep.storage.folder import LocalStore
from tests.kit.layouts import write
from tests.kit.messages import says

Linked = Callable[[str, str], Path]


@contextlib.contextmanager
def raised(_: str) -> Iterator[None]:
    yield


@pytest.fixture
def found() -> SearchedFolders:
    return SearchedFolders(raised)


@pytest.fixture
def linked(tmp_path: Path) -> Linked:
    """Makes `place`, a link to `target`; both are relative to the test's folder."""

    def link(place: str, target: str) -> Path:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        (tmp_path / place).symlink_to(tmp_path / target)
        return tmp_path / place

    return link


def test_folder_has_one_path(found: SearchedFolders, tmp_path: Path, linked: Linked) -> None:
    write(tmp_path / "data/set/a.bin", b"a")
    link = linked("link", "data")
    first = [folder.where for folder in found.add(str(link))]
    again = [folder.where for folder in found.add(str(tmp_path / "data/set"))]

    assert first == [str(tmp_path / "data"), str(tmp_path / "data/set")]
    assert again == []
    assert sorted(found.by_place) == first


def test_bind_mount_is_no_second_folder(
    found: SearchedFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its advice could be to delete one of the two paths of the only copy."""
    write(tmp_path / "data/set/a.bin", b"a")
    write(tmp_path / "mount/a.bin", b"a")
    identity = folders._identity

    def mounted(folder: Folder) -> object:
        is_second = folder.where == str(tmp_path / "mount")
        return identity(Folder(LocalStore(tmp_path / "data/set"), {}) if is_second else folder)

    monkeypatch.setattr(folders, "_identity", mounted)
    list(found.add(str(tmp_path / "data")))
    assert list(found.add(str(tmp_path / "mount"))) == []
    assert str(tmp_path / "mount") not in found.by_place


def test_later_place_adds_only_new_folders(found: SearchedFolders, tmp_path: Path) -> None:
    write(tmp_path / "data/set/a.bin", b"a")
    inner = [*found.add(str(tmp_path / "data/set"))]
    outer = [*found.add(str(tmp_path / "data"))]
    assert [folder.where for folder in inner] == [str(tmp_path / "data/set")]
    assert [folder.where for folder in outer] == [str(tmp_path / "data")]


@pytest.mark.parametrize(
    ("target", "places", "is_named"),
    [
        ("elsewhere", ["data"], True),
        ("elsewhere", ["data", "elsewhere"], False),
        ("elsewhere/deep", ["data", "elsewhere"], False),
        ("elsewhere", ["elsewhere", "data"], False),
        ("elsewhere", ["data", "elsewhere/deep"], True),
        ("data-2", ["data"], True),
        ("data/other", ["data"], False),
        ("data/sub", ["data"], False),
        (".", ["data"], True),
    ],
)
def test_links_out_of_all_places_are_named(
    found: SearchedFolders,
    tmp_path: Path,
    linked: Linked,
    target: str,
    places: list[str],
    is_named: bool,
) -> None:
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    link = linked("data/sub/link", target)
    for place in places:
        list(found.add(str(tmp_path / place)))

    sentences = list(found.links_out())

    assert len(sentences) == is_named
    wrong = says("link-not-searched-name-folder", link, (tmp_path / target).resolve())
    assert all(map(wrong.search, sentences))


def test_broken_link_is_not_named(found: SearchedFolders, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/lost").symlink_to(tmp_path / "gone")
    list(found.add(str(tmp_path / "data")))
    assert list(found.links_out()) == []


def test_missing_place_is_refused(found: SearchedFolders, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says("search-no-such-folder")):
        list(found.add(str(tmp_path / "gone")))


@pytest.mark.parametrize(
    ("name", "in_folder", "in_dataset"),
    [
        ("run.json", True, False),
        ("adopt.json", True, False),
        ("temporary/a", True, True),
        ("incoming/a/b", True, True),
        ("parts-0123/made/train/a.jpg", True, True),
        ("index-0123/members/a.jsonl", True, False),
        ("export", True, False),
        ("plan/a", True, False),
        ("hashes-0123/receipts/a", False, False),
        ("proven.jsonl", False, False),
        ("lock", False, False),
        ("locks/a", False, False),
        ("temporary", False, False),
        ("parts-0123/made", False, False),
    ],
)
def test_unfinished_work_is_found(
    found: SearchedFolders, tmp_path: Path, name: str, in_folder: bool, in_dataset: bool
) -> None:
    """A name without a file in it is an empty folder, unless its own name is that of a file."""
    for place in ("plain", "dataset"):
        path = tmp_path / place / ".work" / name
        if name in ("temporary", "parts-0123/made"):
            path.mkdir(parents=True)
        else:
            write(path, b"x")
    write(tmp_path / "dataset/dataset.json", b"{}")
    by_name = {Path(folder.where).name: folder for folder in found.add(str(tmp_path))}

    top = f".work/{name.partition('/')[0]}"
    assert by_name["plain"].unfinished() == [top] * in_folder
    assert by_name["dataset"].unfinished() == [top] * in_dataset
    hashes = ["hashes-0123"] * name.startswith("hashes-")
    assert by_name["plain"].hashes() == hashes


def test_odd_names_of_files_are_searched(found: SearchedFolders, tmp_path: Path) -> None:
    names = {"a\\b", "..c", "d:e", "\n", " ", "f\\..\\g"}
    for name in names:
        write(tmp_path / "data" / name / name, name.encode())
    folders_of = list(found.add(str(tmp_path / "data")))
    contents = {folder.store.read(name) for folder in folders_of for name in folder.files}
    assert contents == {name.encode() for name in names}


def test_parts_of_a_dataset_are_no_folders(found: SearchedFolders, tmp_path: Path) -> None:
    for name in (".work/a", "columns/a", "samples/a", "more/a", "train/a"):
        write(tmp_path / "set" / name, b"")
        write(tmp_path / "plain" / name, b"")
    write(tmp_path / "set/dataset.json", b"{}")
    list(found.add(str(tmp_path)))
    places = {str(Path(place).relative_to(tmp_path)) for place in found.by_place}
    plain = {"plain", "plain/columns", "plain/samples", "plain/more", "plain/train"}
    assert places == {".", "set", "set/more", "set/train"} | plain


def test_hard_links_elsewhere_are_counted(tmp_path: Path, linked: Linked) -> None:
    """A folder that has two paths, as by a bind mount, has one link."""
    first = tmp_path / "a/x.bin"
    write(first, b"x")
    same = linked("second-path", "a") / "x.bin"
    assert list(hard_links_elsewhere([first, same, tmp_path / "gone"])) == []

    os.link(first, tmp_path / "a/y.bin")
    (problem,) = hard_links_elsewhere([first, same])
    assert says("folders-not-searched-name-folders", ..., "1 hard link").search(problem)
    assert problem.startswith(f"{same}: ")
    assert list(hard_links_elsewhere([first, tmp_path / "a/y.bin"])) == []

    os.link(first, tmp_path / "z.bin")
    (problem,) = hard_links_elsewhere([first])
    assert says("folders-not-searched-name-folders", ..., "2 hard links").search(problem)


@pytest.mark.parametrize(
    ("place", "other", "expected"),
    [
        ("/a/b", "/a", True),
        ("/a", "/a/", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("s3://b/x/y", "s3://b/x", True),
        ("s3://b/xy", "s3://b/x", False),
    ],
)
def test_places_below_others_are_known(place: str, other: str, expected: bool) -> None:
    assert is_below(place, other) is expected
