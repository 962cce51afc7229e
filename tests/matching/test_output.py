"""The files of a search belong to one complete run: this one, or the previous one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from imagenet_prep.core.errors import BusyError, IncompleteError
from imagenet_prep.matching import find
from imagenet_prep.matching.find import Group, GroupImage
from imagenet_prep.storage.folder import LocalStore
from tests.kit.dataset import all_files
from tests.kit.system import System

GROUPS: list[Group] = [
    [
        GroupImage(0, "train", "a/1.jpg", 0, "a", kept=True),
        GroupImage(1, "train", "a/2.jpg", 0, "a", kept=False),
    ]
]


def seen(out: Path) -> dict[str, bytes]:
    """Returns the visible files."""
    return {name: data for name, data in all_files(out).items() if ".work" not in name}


@pytest.fixture
def out(tmp_path: Path) -> LocalStore:
    """Contains the files of a run over two splits."""
    out = LocalStore(tmp_path / "found")
    find.publish(out, GROUPS, {"train": ["a/2.jpg"], "validation": ["b/3.jpg"]}, "page")
    (out.root / "mine.txt").write_bytes(b"mine")
    return out


def test_files_of_previously_searched_splits_are_removed(out: LocalStore) -> None:
    assert seen(out.root).keys() == {
        "pairs.csv",
        "exclude-train.txt",
        "exclude-validation.txt",
        "duplicates.html",
        "mine.txt",
    }

    find.publish(out, [], {"train": []}, None)
    lines = ",".join(find.HEADER).encode() + b"\r\n"
    assert seen(out.root) == {"pairs.csv": lines, "exclude-train.txt": b"", "mine.txt": b"mine"}


def test_a_full_disk_keeps_the_previous_files(
    out: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_files(out.root)
    with monkeypatch.context() as patched:
        System(patched).fails("fsync", errno.ENOSPC)
        with pytest.raises(IncompleteError):
            find.publish(out, [], {"train": []}, None)

    assert seen(out.root) == {n: data for n, data in before.items() if ".work" not in n}
    assert not out.names(".work/temporary")


def test_interrupted_run_has_no_list_of_pairs(
    out: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of pairs would belong to different lists of excluded images."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "it was killed here")

    monkeypatch.setattr(LocalStore, "publish", fail)
    with pytest.raises(OSError, match="killed"):
        find.publish(out, GROUPS, {"train": []}, "page")
    assert seen(out.root).keys() == {"mine.txt"}


def test_list_of_pairs_is_published_last(out: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = LocalStore.publish
    published: list[str] = []

    def note(store: LocalStore, temporary: Path, name: str) -> None:
        published.append(name)
        publish(store, temporary, name)

    monkeypatch.setattr(LocalStore, "publish", note)
    find.publish(out, GROUPS, {"train": [], "holdout": []}, "page")
    assert published[-1] == "pairs.csv"
    assert len(published) == 4


def test_page_may_name_undecodable_paths(out: LocalStore) -> None:
    """The name of a folder on Linux may be no text."""
    find.publish(out, GROUPS, {}, "page of a\udcff")
    assert seen(out.root)["duplicates.html"] == b"page of a?"


def test_a_locked_folder_is_not_written(out: LocalStore) -> None:
    before = seen(out.root)
    with LocalStore(out.root).lock(), pytest.raises(BusyError):
        find.publish(out, [], {"train": []}, None)

    assert seen(out.root) == before
