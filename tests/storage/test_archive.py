"""Reading of ranges from local archives."""

from __future__ import annotations

import errno
import gc
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, SourceError, StoreError
from imagenet_prep.storage import local_file
from imagenet_prep.storage.archive import ArchiveReader
from tests.kit.messages import says
from tests.kit.processes import open_below
from tests.kit.system import System


@pytest.fixture
def reader(tmp_path: Path) -> ArchiveReader:
    (tmp_path / "some.tar").write_bytes(bytes(range(256)))
    return ArchiveReader({"some.tar": tmp_path / "some.tar", "gone.tar": tmp_path / "gone.tar"})


def test_reader_returns_exactly_the_requested_bytes(reader: ArchiveReader) -> None:
    assert reader.size("some.tar") == 256
    assert reader.read("some.tar", 3, 4) == b"\3\4\5\6"
    assert reader.read("some.tar", 256, 0) == b""


def test_reader_with_open_archives_can_be_pickled(reader: ArchiveReader) -> None:
    reader.read("some.tar", 0, 1)
    copy = pickle.loads(pickle.dumps(reader))

    assert copy.read("some.tar", 254, 2) == b"\xfe\xff"
    assert reader.read("some.tar", 254, 2) == b"\xfe\xff"


def test_short_read_is_a_truncated_archive(reader: ArchiveReader, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=says("ends-byte-expected-least-archive", "some.tar", "256", "300")
    ):
        reader.read("some.tar", 200, 100)


def test_partial_reads_are_continued(reader: ArchiveReader, system: System) -> None:
    system.instead("pread", lambda pread, fd, size, offset: pread(fd, min(size, 7), offset))

    assert reader.read("some.tar", 10, 100) == bytes(range(10, 110))


def test_failing_disk_is_named(reader: ArchiveReader, system: System) -> None:
    system.fails("pread", errno.EIO)

    with pytest.raises(
        StoreError, match=says("cannot-read", "some.tar", "4 bytes at byte 3:", "Input/")
    ):
        reader.read("some.tar", 3, 4)


def test_unreadable_archive_is_named(reader: ArchiveReader, system: System) -> None:
    system.fails("pread", errno.EACCES)

    # The archive may be sound, so this is no error of the source.
    with pytest.raises(
        StoreError, match=says("cannot-read", "some.tar", "4 bytes at byte 3:", "Perm")
    ):
        reader.read("some.tar", 3, 4)


def test_archive_that_cannot_be_opened_is_named(reader: ArchiveReader) -> None:
    with pytest.raises(ImagenetPrepError, match=says("cannot-opened", "gone.tar", "No such file")):
        reader.read("gone.tar", 0, 1)
    # A list of images below .work may name any file.
    with pytest.raises(DataDamagedError, match=says("names-not-archive-source", "'../some.tar'")):
        reader.read("../some.tar", 0, 1)


def test_announcing_reads_never_fails(reader: ArchiveReader, system: System) -> None:
    ranges = [("some.tar", *each) for each in ((250, 1000), (0, 10), (10**9, 5), (0, 0))]
    reader.will_need(ranges)
    system.fails("posix_fadvise", errno.EINVAL)
    reader.will_need(ranges)

    assert reader.read("some.tar", 0, 2) == b"\0\1"


def test_ranges_are_announced_in_the_order_on_disk(reader: ArchiveReader, system: System) -> None:
    told: list[tuple[int, int]] = []
    system.instead("posix_fadvise", lambda _, __, offset, size, ___: told.append((offset, size)))
    reader.will_need([("some.tar", 7, 1), ("some.tar", 2, 3), ("some.tar", 0, 1)])

    assert told == [(0, 1), (2, 3), (7, 1)]


def test_many_threads_share_one_descriptor(reader: ArchiveReader, tmp_path: Path) -> None:
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(reader.read("some.tar", 1, 2)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [b"\1\2"] * 8
    assert len(open_below(tmp_path)) == 1


def _ten(folder: Path) -> ArchiveReader:
    for number in range(10):
        (folder / f"{number}.tar").write_bytes(bytes([number]) * 9)
    return ArchiveReader({f"{number}.tar": folder / f"{number}.tar" for number in range(10)})


def test_archive_beyond_the_limit_is_opened_per_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_file, "allow_open_files", lambda _: 0)
    with _ten(tmp_path) as reader:
        for number in [*range(10)] * 2:
            reader.will_need([(f"{number}.tar", 0, 9)])
            assert reader.read(f"{number}.tar", 7, 2) == bytes([number]) * 2
            assert open_below(tmp_path) == []


_TWO_READERS = """
import os, pathlib, resource, sys
from imagenet_prep.storage.archive import ArchiveReader
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
path = pathlib.Path(sys.argv[1])
readers = [ArchiveReader({str(number): path for number in range(80)}) for _ in range(2)]
for reader in readers:
    for number in range(80):
        assert reader.read(str(number), 7, 2) == b"ab"
with open(path):
    print(len(os.listdir("/proc/self/fd")))
"""


def test_readers_share_the_limit_of_open_files(tmp_path: Path) -> None:
    (tmp_path / "some.tar").write_bytes(b"0123456ab")
    done = subprocess.run(
        [sys.executable, "-c", _TWO_READERS, str(tmp_path / "some.tar")],
        capture_output=True,
        text=True,
    )

    assert not done.returncode, done.stderr
    assert 45 < int(done.stdout) < 60


def test_open_archive_is_opened_only_once(tmp_path: Path, system: System) -> None:
    opened: list[str] = []
    system.instead("open", lambda real, path, flags: opened.append(path.name) or real(path, flags))
    with _ten(tmp_path) as reader:
        for number in [3, 5, 3, 5]:
            reader.will_need([(f"{number}.tar", 0, 9)])
            reader.read(f"{number}.tar", 0, 9)

    assert opened == ["3.tar", "5.tar"]


def test_unreferenced_reader_closes_its_archives(tmp_path: Path) -> None:
    reader = _ten(tmp_path)
    reader.read("3.tar", 0, 1)
    assert len(open_below(tmp_path)) == 1

    del reader
    gc.collect()
    assert open_below(tmp_path) == []
