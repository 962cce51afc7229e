"""A file that arrives on a disk that fails: nothing gets its name that the disk does not hold."""

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
from tests.kit.system import System

PARTS = [bytes([number]) * 1000 for number in range(10)]
WHOLE = b"".join(PARTS)
FILE = DatasetFile("train-00000-of-00001", len(WHOLE), hashlib.sha256(WHOLE).hexdigest())
GROWING = ".work/incoming/train-00000-of-00001"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


class BrokenOffError(Exception):
    """What sends the file is gone."""


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
def test_no_file_is_published_that_a_sync_in_the_background_could_not_write(
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
    # Each part begins a sync, and waits for the one before.
    monkeypatch.setattr(Future, "done", lambda _: True)

    with pytest.raises(kind, match="cannot write"):
        arrive(store, PARTS)
    assert all_files(store.root) == {}


def test_no_file_is_published_whose_last_sync_fails(store: LocalStore, system: System) -> None:
    store.make_folder(".work/incoming")
    system.fails("fsync", errno.EIO)

    with pytest.raises(StoreError, match="cannot write .*Input/output error"):
        arrive(store, PARTS)
    assert all_files(store.root) == {}


def test_a_file_is_synced_by_the_descriptor_that_wrote_it(
    store: LocalStore, system: System
) -> None:
    store.make_folder(".work/incoming")
    synced = []

    def fsync(sync: Callable[[int], None], descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            with open(f"/proc/self/fdinfo/{descriptor}") as info:
                # Whoever has written has a position at the end of the file.
                synced.append(int(info.readline().split()[1]))
        sync(descriptor)

    system.instead("fsync", fsync)
    arrive(store, PARTS)

    assert synced == [len(WHOLE)]
    assert store.read(FILE.name) == WHOLE


def test_a_longer_beginning_that_is_not_gone_on_with_leaves_no_tail(store: LocalStore) -> None:
    longer = DatasetFile("longer", 20_000, "")
    with pytest.raises(BrokenOffError):
        arrive(store, [WHOLE, WHOLE[:-1]], longer)
    arrive(store, PARTS)

    assert all_files(store.root) == {FILE.name: WHOLE}


def test_what_broke_off_is_gone_on_with_where_the_disk_holds_it(store: LocalStore) -> None:
    with pytest.raises(BrokenOffError):
        arrive(store, PARTS[:4])
    assert all_files(store.root) == {GROWING: WHOLE[:4000]}
    arrive(store, PARTS[4:], start=4000)

    assert all_files(store.root) == {FILE.name: WHOLE}


def test_a_beginning_that_the_disk_could_not_write_is_not_gone_on_with(
    store: LocalStore, system: System
) -> None:
    store.make_folder(".work/incoming")
    system.fails("fsync", errno.EIO)

    with pytest.raises(StoreError, match="Input/output error"):
        arrive(store, PARTS[:4])
    assert all_files(store.root) == {}


def test_another_file_leaves_nothing_behind(store: LocalStore) -> None:
    with pytest.raises(Exception, match="sha256 .* arrived"):
        arrive(store, [WHOLE[:-1] + b"x"])
    assert all_files(store.root) == {}


def test_an_error_of_the_disk_is_not_hidden_where_nothing_can_be_removed_either(
    store: LocalStore, system: System
) -> None:
    store.make_folder(".work/incoming")
    system.fails("fsync", errno.EIO)
    system.fails("unlink", errno.EROFS)

    with (
        pytest.raises(StoreError, match="Input/output error"),
        fetch.incoming(store, FILE, GROWING, FILE.name, "", reserved=True) as arriving,
    ):
        arriving.append(WHOLE)
