"""Files that arrive on a failing disk: only a file that the disk has stored is published."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage import fetch
from imagenet_prep.storage.folder import LocalStore
from tests.kit.dataset import all_files
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.system import System

PARTS = [bytes([number]) * 1000 for number in range(10)]
WHOLE = b"".join(PARTS)
FILE = DatasetFile("train-00000-of-00001", len(WHOLE), hashlib.sha256(WHOLE).hexdigest())
GROWING = ".work/incoming/train-00000-of-00001"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


class BrokenOffError(Exception):
    """The sender is gone."""


def arrive(store: LocalStore, parts: list[bytes], file: DatasetFile = FILE, start: int = 0) -> None:
    with fetch.incoming(
        store, file, GROWING, file.name, "Get it again.", start=start, kept=(BrokenOffError,)
    ) as arriving:
        for part in parts:
            arriving.append(part)
        if start + len(b"".join(parts)) < file.num_bytes:
            raise BrokenOffError


@pytest.mark.parametrize("failed", range(len(PARTS)))
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, StoreError), (errno.EDQUOT, IncompleteError)]
)
def test_file_with_a_failed_background_sync_is_unpublished(
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    failed: int,
    code: int,
    kind: type[Exception],
    limits: Limits,
    system: System,
) -> None:
    limits(unsynced_bytes=1000)
    system.fails("fdatasync", code, after=failed, times=1)
    # Each part starts a sync, and waits for the one before.
    monkeypatch.setattr(Future, "done", lambda _: True)

    with pytest.raises(kind, match="cannot write"):
        arrive(store, PARTS)
    assert all_files(store.root) == {}


def test_file_with_a_failed_last_sync_is_unpublished(store: LocalStore, system: System) -> None:
    store.make_folder(".work/incoming")
    system.fails("fsync", errno.EIO)

    with pytest.raises(StoreError, match="cannot write .*Input/output error"):
        arrive(store, PARTS)
    assert all_files(store.root) == {}


def test_file_is_synced_by_the_descriptor_that_wrote(store: LocalStore, system: System) -> None:
    store.make_folder(".work/incoming")
    synced = []

    def fsync(sync: Callable[[int], None], descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            with open(f"/proc/self/fdinfo/{descriptor}") as info:
                # The descriptor that wrote has its position at the end of the file.
                synced.append(int(info.readline().split()[1]))
        sync(descriptor)

    system.instead("fsync", fsync)
    arrive(store, PARTS)

    assert synced == [len(WHOLE)]
    assert store.read(FILE.name) == WHOLE


def test_replaced_longer_beginning_leaves_no_tail(store: LocalStore) -> None:
    longer = DatasetFile("longer", 20_000, "")
    with pytest.raises(BrokenOffError):
        arrive(store, [WHOLE, WHOLE[:-1]], longer)
    arrive(store, PARTS)

    assert all_files(store.root) == {FILE.name: WHOLE}


def test_interrupted_file_is_continued_if_it_is_synced(store: LocalStore) -> None:
    with pytest.raises(BrokenOffError):
        arrive(store, PARTS[:4])
    assert all_files(store.root) == {GROWING: WHOLE[:4000]}
    arrive(store, PARTS[4:], start=4000)

    assert all_files(store.root) == {FILE.name: WHOLE}


def test_beginning_with_a_failed_sync_is_not_continued(store: LocalStore, system: System) -> None:
    store.make_folder(".work/incoming")
    system.fails("fsync", errno.EIO)

    with pytest.raises(StoreError, match="Input/output error"):
        arrive(store, PARTS[:4])
    assert all_files(store.root) == {}


def test_file_with_a_wrong_hash_leaves_no_files(store: LocalStore) -> None:
    with pytest.raises(Exception, match=says("sha256-arrived-expected")):
        arrive(store, [WHOLE[:-1] + b"x"])
    assert all_files(store.root) == {}


def test_failed_cleanup_does_not_hide_the_disk_error(store: LocalStore, system: System) -> None:
    store.make_folder(".work/incoming")
    system.fails("fsync", errno.EIO)
    system.fails("unlink", errno.EROFS)

    with (
        pytest.raises(StoreError, match="Input/output error"),
        fetch.incoming(store, FILE, GROWING, FILE.name, "", reserved=True) as arriving,
    ):
        arriving.append(WHOLE)
