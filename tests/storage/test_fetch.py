"""Fetching of byte ranges: retries, positions in the file, and the hash."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage.fetch import Hasher, IncomingFile, contents, fetch
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import Access, RemoteFolder, RetryBudget, Stat, TransientError
from tests.kit.clock import Clock
from tests.kit.messages import says
from tests.kit.system import System

DATA = random.Random(0).randbytes(300_000)


class Unreliable(RemoteFolder):
    """A remote file that breaks off after `step` bytes, as long as `failures` lasts."""

    remedy = ""

    def __init__(self, failures: int, step: int) -> None:
        super().__init__("fake://", Access(retries=3, ended=Clock()))
        self.failures = failures
        self.step = step
        self.read_bytes = 0

    def stat_once(self, name: str) -> Stat:  # noqa: ARG002
        return Stat(len(DATA), "", True)

    def stats_once(self, folder: str) -> dict[str, Stat]:
        raise NotImplementedError

    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:  # noqa: ARG002
        if self.failures:
            self.failures -= 1
            self.read_bytes += min(size, self.step)
            yield DATA[offset : offset + min(size, self.step)]
            raise TransientError("broken off")
        self.read_bytes += size
        yield DATA[offset : offset + size]


@pytest.mark.parametrize(("start", "stop"), [(0, 300_000), (1, 2), (100_000, 299_999)])
def test_range_is_written_at_its_position_and_continued(
    tmp_path: Path, start: int, stop: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(len(DATA)))
    remote = Unreliable(3, 7_000)
    fetch(remote, "x", remote.stat("x"), start, stop, path, RetryBudget("x", 3, Clock()))

    assert path.read_bytes() == bytes(start) + DATA[start:stop] + bytes(len(DATA) - stop)
    assert remote.read_bytes == stop - start


def test_read_without_ranges_starts_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(len(DATA)))
    remote = Unreliable(2, 1_000)
    stat = remote.stat("x")._replace(ranges=False)
    fetch(remote, "x", stat, 0, len(DATA), path, RetryBudget("x", 3, Clock()))

    assert path.read_bytes() == DATA
    assert remote.read_bytes == len(DATA) + 2_000


class Uneven(Unreliable):
    """Sends different chunks at each attempt, as TCP does: 101 bytes each, then longer ones."""

    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:  # noqa: ARG002
        self.read_bytes += size
        assert self.read_bytes < 10 * len(DATA), "it never ends"
        if self.failures:
            self.failures -= 1
            for start in range(offset, offset + self.step, 101):
                yield DATA[start : start + 101]
            raise TransientError("broken off")
        # One ends within the known bytes, one straddles their end, two are new.
        for start, stop in itertools.pairwise((0, 40, 1_500, 4_500, size)):
            yield DATA[offset + start : offset + stop]


@pytest.mark.parametrize("failures", [1, 2])
def test_known_bytes_are_skipped_in_any_chunks(failures: int) -> None:
    remote = Uneven(failures, 1_000)
    stat = remote.stat("x")._replace(ranges=False)

    assert b"".join(remote.chunks("x", stat)) == DATA


def test_range_is_synced_before_fetch_returns(tmp_path: Path, system: System) -> None:
    """Its receipt is written next: after a crash, a receipt must not describe missing bytes."""
    path = tmp_path / "file"
    path.write_bytes(bytes(len(DATA)))
    remote = Unreliable(0, 0)
    synced = []
    system.instead("fdatasync", lambda *_: synced.append(path.read_bytes()))
    fetch(remote, "x", remote.stat("x"), 0, 1_000, path, RetryBudget("x", 0, Clock()))
    assert synced == [DATA[:1_000] + bytes(len(DATA) - 1_000)]

    system.fails("fdatasync", errno.EIO)
    with pytest.raises(StoreError, match="cannot write .*Input/output error"):
        fetch(remote, "x", remote.stat("x"), 0, 1_000, path, RetryBudget("x", 0, Clock()))


class ShortWrites(io.FileIO):
    """A file that takes at most three bytes at a time, as the system may."""

    def write(self, data: Any, /) -> int:
        return super().write(memoryview(data)[:3])


def test_short_writes_lose_no_bytes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor(1) as syncer, ShortWrites(path, "w+") as file:
        arriving = IncomingFile(path, file, syncer, 0)
        for part in (DATA[:10], DATA[10:11], DATA[11:1000]):
            arriving.append(part)
        arriving.sync()

    assert path.read_bytes() == DATA[:1000]
    assert arriving.sha256 == hashlib.sha256(DATA[:1000]).hexdigest()


def test_hash_accepts_ranges_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(len(DATA)))
    hasher = Hasher(path, finished=False)
    with path.open("r+b") as file:
        for start in (200_000, 0, 100_000):
            file.seek(start)
            file.write(DATA[start : start + 100_000])
            file.flush()
            hasher.finished(start, 100_000)

    assert hasher.hexdigest() == hashlib.md5(DATA).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_hash_of_a_finished_file_needs_no_ranges(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA[:size])

    assert Hasher(path).hexdigest() == hashlib.md5(DATA[:size]).hexdigest()


def test_file_that_shrinks_during_hashing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    hasher = Hasher(path, finished=False)
    os.truncate(path, 10)
    hasher.finished(0, len(DATA))

    with pytest.raises(StoreError, match=r"file: it ends at byte 10"):
        hasher.hexdigest()


def test_local_folder_is_fetched_like_a_server(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)
    remote = LocalStore(tmp_path)
    path = tmp_path / "file"
    path.touch()
    fetch(remote, "source", remote.stat("source"), 0, 300_000, path, RetryBudget("x", 0, Clock()))

    assert path.read_bytes() == DATA


def test_remote_file_of_unexpected_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a part of the file, or fill the memory."""
    (tmp_path / "x").write_bytes(DATA)
    remote = LocalStore(tmp_path)
    right = DatasetFile("x", len(DATA), "")
    assert b"".join(contents(remote, right, "")) == DATA

    monkeypatch.setattr(type(remote), "chunks", None)
    for size in (len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(
            DataDamagedError, match=says("bytes-expected-3", "x", "300,000", f"{size:,}", "Get it")
        ):
            next(contents(remote, DatasetFile("x", size, ""), "Get it again."))
