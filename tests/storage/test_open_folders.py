"""Folders that a store keeps open: replaced ones, planted links, copies, threads and limits."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import schema
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from tests.kit.dataset import all_files
from tests.kit.messages import says
from tests.kit.processes import open_below
from tests.kit.system import System

LINK = says("file-folder-above-link-wrong")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


@pytest.fixture
def user_files(tmp_path: Path) -> Path:
    """A folder with files of the user, which nothing may change."""
    (tmp_path / "home/a").mkdir(parents=True)
    (tmp_path / "home/key").write_bytes(b"secret")
    (tmp_path / "home/a/key").write_bytes(b"secret")
    return tmp_path / "home"


def test_replaced_folder_is_opened_again(store: LocalStore) -> None:
    """A store keeps its folders open; a run may remove or rename one and make it again."""
    store.write(".work/a/one", b"1")
    store.path(".work/a").rename(store.path(".work/b"))
    store.write(".work/a/two", b"2")
    assert all_files(store.root) == {".work/a/two": b"2", ".work/b/one": b"1"}
    assert store.names(".work/a") == ["two"]
    assert store.size(".work/a/one") is None

    shutil.rmtree(store.path(schema.WORK))
    assert store.size(".work/a/two") is None
    store.write(".work/a/three", b"3")
    assert all_files(store.root) == {".work/a/three": b"3"}


@pytest.mark.parametrize("planted", [".work", ".work/a"])
def test_link_in_place_of_open_folder_is_refused(
    store: LocalStore, user_files: Path, planted: str
) -> None:
    store.write(".work/a/key", b"ours")
    before = all_files(user_files)
    store.path(planted).rename(store.root / "moved")
    store.path(planted).symlink_to(user_files / planted.partition("/")[2])
    asked: list[Callable[[], object]] = [
        lambda: store.write(".work/a/key", b"theirs"),
        lambda: store.read(".work/a/key"),
        lambda: store.size(".work/a/key"),
        lambda: store.names(".work/a"),
        lambda: store.remove(".work/a/key"),
        lambda: store.open(".work/a/key", os.O_WRONLY | os.O_TRUNC),
        store.temporary,
    ]
    for ask in asked[: 6 if planted == ".work/a" else 7]:
        with pytest.raises(StoreError, match=LINK):
            ask()

    assert all_files(user_files) == before


def test_folder_of_new_owner_is_not_written_to(store: LocalStore) -> None:
    """Reading a folder of a different user must not allow to write to it later."""
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    store.write(".work/a/key", b"")
    os.chown(store.path(schema.WORK), 12345, -1)
    other = LocalStore(store.root)

    assert other.read(".work/a/key") == b""
    with pytest.raises(StoreError, match=says("belongs-different-user-uid-files-2")):
        other.make_folder(".work/a")


def open_folders(store: LocalStore) -> list[str]:
    """Returns the folders of a store that this process has open."""
    return [os.path.relpath(path, store.root) for path in open_below(store.root)]


def test_open_folders_are_few_and_closed_later(store: LocalStore) -> None:
    for number in range(50):
        store.write(f".work/folder-{number}/a", b"")
    kept = open_folders(store)
    assert 1 < len(kept) <= 16
    assert ".work/folder-49" in kept

    other = LocalStore(store.root)
    other.write(".work/other/a", b"")
    copy = pickle.loads(pickle.dumps(other))
    del other
    assert len(open_folders(store)) == len(kept)
    copy.write(".work/other/b", b"")
    assert store.names(".work/other") == ["a", "b"]
    del copy
    store.remove_tree(schema.WORK)
    # A folder that NFS has removed may share its inode number with a new one.
    assert not any(name.startswith(schema.WORK) for name in open_folders(store))


def test_threads_list_an_open_folder_together(store: LocalStore) -> None:
    """Listings that shared a descriptor shared its position, and each missed names."""
    names = [f"{number:04d}" for number in range(2000)]
    store.make_folder(".work/many")
    for name in names:
        store.path(f".work/many/{name}").touch()
    with ThreadPoolExecutor(8) as pool:
        for listed in pool.map(store.names, [".work/many"] * 40):
            assert listed == names


def test_temporary_write_is_not_synced(store: LocalStore, system: System) -> None:
    store.make_folder(TEMPORARY)
    store.make_folder("index")
    synced = system.noted("fsync", below=store.root)
    store.write("index/a", b"1", durable=False)
    assert synced == []
    store.settle()
    assert synced == ["fsync ..", "fsync .", "fsync index"]
