"""Archives on a server: ranges ahead of their reader, one pass, stored listings."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.storage import archive as archive_module
from imagenet_prep.storage import remote_path
from imagenet_prep.storage.archive import Range, Reads, RemoteArchives, open_archives
from imagenet_prep.storage.remote import Access, RemoteFolder, Stat, TransientError, changed
from imagenet_prep.storage.remote_path import ArchiveListing, Entry, ListingFolder, RemotePath, Site
from tests.kit.command import PATIENCE_S
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.system import System

DATA = random.Random(5).randbytes(900_000)
KIB = 1 << 10


class Fake(RemoteFolder):
    """A server of one file, which records requests and fails on request.

    Attributes:
      asked: (offset, size) of each request.
      most: requests that were answered at the same time.
      together: requests are answered as soon as this number has arrived.
      faults: outcomes of the next requests.
    """

    remedy = ""

    def __init__(self) -> None:
        super().__init__("fake://", Access())
        self.data = DATA
        self.asked: list[tuple[int, int]] = []
        self.most = self._now = 0
        self.together = 0
        self.faults: list[Callable[[bytes], Iterator[bytes]]] = []
        self._news = threading.Condition()

    def where(self, name: str = "") -> str:
        return f"fake://{name}"

    def stat_once(self, name: str) -> Stat:  # noqa: ARG002
        return Stat(len(self.data), hashlib.md5(self.data).hexdigest(), True)

    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        with self._news:
            self.asked.append((offset, size))
            self._now += 1
            self.most = max(self.most, self._now)
            self._news.notify_all()
            arrived = self._news.wait_for(lambda: len(self.asked) >= self.together, PATIENCE_S)
            fault = self.faults.pop(0) if self.faults else None
        assert arrived
        try:
            if stat != self.stat_once(name):
                changed(self.where(name))
            data = self.data[offset : offset + size]
            yield from fault(data) if fault else [data]
        finally:
            with self._news:
                self._now -= 1

    def stats_once(self, folder: str) -> dict[str, Stat]:  # noqa: ARG002
        return {"a": self.stat_once("a")}


def cut(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    raise TransientError("cut")


def slow_down(_: bytes) -> Iterator[bytes]:
    raise TransientError("the server answers 503 SlowDown")
    yield b""


def refuse(_: bytes) -> Iterator[bytes]:
    raise StoreError("fake://a: the server answers 403: not allowed.")
    yield b""


def too_much(data: bytes) -> Iterator[bytes]:
    yield data + b"more"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The server of every site of the test."""
    server = Fake()
    monkeypatch.setattr(remote_path, "open_readable", lambda *_, **__: server)
    return server


def archives(lists: ListingFolder | None = None) -> RemoteArchives:
    found = open_archives({"a": RemotePath(Site("fake://", lists), "a")})
    assert isinstance(found, RemoteArchives)
    return found


def far_apart(number: int, size: int = KIB) -> list[Range]:
    """Returns ranges too far apart to be merged, in a different order than in the file."""
    step = size + archive_module.NEAR_BYTES + 1
    ranges = [("a", start, size) for start in range(0, len(DATA) - size, step)][:number]
    assert len(ranges) == number
    random.Random(1).shuffle(ranges)
    return ranges


def read_all(reader: RemoteArchives, ranges: list[Range]) -> None:
    reader.will_need(ranges)
    for archive, offset, size in ranges:
        assert reader.read(archive, offset, size) == DATA[offset : offset + size]


def test_requests_are_in_flight_before_the_first_read(fake: Fake) -> None:
    fake.together = 12
    ranges = far_apart(12)
    read_all(archives(), ranges)

    assert Counter(fake.asked) == Counter((offset, size) for _, offset, size in ranges)
    assert fake.most == 12


def test_neighbouring_ranges_are_merged_into_few_requests(fake: Fake) -> None:
    rng = random.Random(2)
    starts = sorted(rng.sample(range(len(DATA) - 4000), 200))
    ranges = [("a", start, rng.randrange(4000)) for start in starts]
    rng.shuffle(ranges)
    ranges.append(ranges[0])  # twice
    read_all(archives(), ranges)

    assert len(fake.asked) < 10


def test_requests_are_bounded_in_number_and_bytes(fake: Fake, limits: Limits) -> None:
    ranges = far_apart(12)
    limits(requests_in_flight=3)
    read_all(archives(), ranges)
    assert fake.most <= 3

    limits(bytes_in_flight=2 * KIB)
    reader = archives()
    fake.asked.clear()
    reader.will_need(ranges)
    assert len(fake.asked) <= 2
    for number, (archive, offset, size) in enumerate(ranges, start=1):
        reader.read(archive, offset, size)
        assert len(fake.asked) <= number + 2


def test_range_larger_than_all_bounds_is_read(fake: Fake, limits: Limits) -> None:
    limits(bytes_in_flight=10)
    read_all(archives(), [("a", 500_000, 7000), ("a", 0, 3), ("a", 8, 0), ("a", 0, 800_000)])


def test_range_that_was_not_announced_is_read(fake: Fake) -> None:
    reader = archives()
    reader.will_need([("a", 0, 10)])

    assert reader.read("a", 77, 5) == DATA[77:82]
    assert reader.size("a") == len(DATA)


def test_each_thread_reads_its_own_ranges_ahead(fake: Fake) -> None:
    reader = archives()
    errors: list[BaseException] = []

    def work(ranges: list[Range]) -> None:
        try:
            for _ in range(5):
                read_all(reader, ranges)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(far_apart(12, n * KIB),)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("fault", [cut, slow_down])
def test_temporary_fault_is_retried_from_its_position(fake: Fake, fault: Any) -> None:
    fake.faults = [fault]
    read_all(archives(), [("a", 1000, 600)])

    assert fake.asked == [(1000, 600), (1300, 300) if fault is cut else (1000, 600)]


@pytest.mark.parametrize(
    ("fault", "said"),
    [(refuse, "403"), (too_much, says("server-sent-bytes-use-different", ..., "604"))],
)
def test_permanent_fault_ends_the_run(fake: Fake, fault: Any, said: str) -> None:
    fake.faults = [fault]
    with pytest.raises(StoreError, match=said):
        read_all(archives(), [("a", 1000, 600)])
    assert len(fake.asked) == 1


def test_replaced_archive_is_refused_by_all_reader_copies(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_bytes(DATA)
    reader = open_archives({"a": RemotePath(Site(str(tmp_path)), "a")})
    assert reader.size("a") == len(DATA)
    reader.will_need([("a", 0, 10)])
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.read("a", 3, 4) == DATA[3:7]

    (tmp_path / "a").write_bytes(DATA[1:])
    for each in (reader, copy):
        with pytest.raises(IncompleteError, match=says("changed-since-run-began-run", "a")):
            each.read("a", 5, 5)


def halves(reader: Reads) -> list[Entry]:
    """A lister for DATA: reads two distant headers."""
    return [(reader.read("a", at, 16).hex(), at + 16, 9) for at in (32_990, 700_000)]


EXPECTED = [(DATA[at : at + 16].hex(), at + 16, 9) for at in (32_990, 700_000)]
MD5 = hashlib.md5(DATA).hexdigest()


def test_one_pass_gives_files_and_md5(fake: Fake, limits: Limits) -> None:
    limits(request_bytes=33_000)  # a header is on both sides
    reader = archives()

    assert reader.known_md5("a") is None
    assert reader.files_of("a", 0, len(DATA), halves, is_whole=bool) == EXPECTED
    assert reader.known_md5("a") == MD5
    pieces = [(at, min(33_000, len(DATA) - at)) for at in range(0, len(DATA), 33_000)]
    assert sorted(fake.asked) == pieces


def test_only_headers_are_read_if_contents_are_skipped(fake: Fake) -> None:
    reader = archives()

    assert reader.files_of("a", 0, len(DATA), halves, header_bytes=16, is_whole=bool) == EXPECTED
    assert fake.asked == [(32_990, 16), (700_000, 16)]
    assert reader.md5("a") == MD5


def test_md5_is_computed_only_if_it_is_checked(fake: Fake) -> None:
    path = RemotePath(Site("fake://", hashes=False), "a")
    reader = RemoteArchives({"a": path})
    reader.files_of("a", 0, len(DATA), halves, is_whole=bool)

    assert reader.known_md5("a") is None


def test_listing_is_stored_for_the_next_dataset(fake: Fake, tmp_path: Path) -> None:
    lists = ListingFolder(str(tmp_path))
    first = archives(lists)
    first.files_of("a", 0, len(DATA), halves, header_bytes=16, is_whole=bool)
    first.files_of("a", 10, 800_000, halves, is_whole=bool)
    assert first.md5("a") == MD5
    fake.asked.clear()

    second = archives(lists)
    assert second.files_of("a", 0, len(DATA), halves, header_bytes=16, is_whole=bool) == EXPECTED
    assert second.files_of("a", 10, 800_000, halves, is_whole=bool) == EXPECTED
    assert second.known_md5("a") == second.md5("a") == MD5
    # the positions come from the listing
    assert sorted(fake.asked) == [(32_990, 16), (700_000, 16)]

    assert archives(ListingFolder(str(tmp_path), believed=False)).md5("a") == MD5
    assert fake.asked != []


def test_dry_run_stores_no_listing(fake: Fake, tmp_path: Path) -> None:
    archives(ListingFolder(str(tmp_path / "lists"), writes=False)).files_of(
        "a", 0, 800_000, halves, is_whole=bool
    )

    assert not (tmp_path / "lists").exists()


def test_listing_that_cannot_be_stored_is_no_error(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reader = archives(ListingFolder(str(tmp_path / "file" / "lists")))

    assert reader.files_of("a", 0, len(DATA), halves, is_whole=bool) == EXPECTED


def test_listing_is_not_written_through_a_planted_link(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / remote_path.LISTS_FOLDER).symlink_to("elsewhere")
    reader = archives(ListingFolder(str(tmp_path / remote_path.LISTS_FOLDER)))

    assert reader.files_of("a", 0, len(DATA), halves, is_whole=bool) == EXPECTED
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_listing_is_not_written_to_folders_of_others(
    fake: Fake, tmp_path: Path, system: System
) -> None:
    lists = ListingFolder(str(tmp_path / "lists"))
    (tmp_path / "lists").mkdir()
    system.instead("geteuid", lambda real: real() + 1)
    assert archives(lists).files_of("a", 0, len(DATA), halves, is_whole=bool) == EXPECTED
    assert list((tmp_path / "lists").iterdir()) == []


STAT = Stat(100, '"etag"', True)
FILES = [("x", 0, 10), ("y", 10, 90)]


def damaged(**changes: object) -> bytes:
    content = {"archive": "s3://b/a", "validator": '"etag"', "num_bytes": 100, "md5": MD5}
    return remote_path.strict_json.dumps({**content, "files": FILES, **changes})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b"{}",
        damaged(archive="s3://b/other"),
        damaged(validator='"other"'),
        damaged(num_bytes=101),
        damaged(files=[["x", 0]]),
        damaged(files=[["x", 0, 101]]),
        damaged(files=[["x", -1, 5]]),
        damaged(files=[["x", 10, -5]]),
        damaged(files=[["x", 0, 10], ["y", 9, 5]]),
        damaged(files=[["x", 0, 2**70]]),
        damaged(files=[[7, 0, 10]]),
        damaged(md5=5),
    ],
)
def test_listing_of_a_different_archive_is_ignored(tmp_path: Path, content: bytes) -> None:
    lists = ListingFolder(str(tmp_path))
    lists.keep("s3://b/a", STAT, 0, 100, ArchiveListing(FILES, MD5))
    (path,) = (p for p in tmp_path.rglob("*.json"))
    assert lists.find("s3://b/a", STAT, 0, 100) == ArchiveListing(FILES, MD5)

    path.write_bytes(content)
    assert lists.find("s3://b/a", STAT, 0, 100) is None


def test_listing_writable_by_other_users_is_ignored(tmp_path: Path) -> None:
    lists = ListingFolder(str(tmp_path))
    lists.keep("s3://b/a", STAT, 0, 100, ArchiveListing(FILES, "none"))
    (path,) = (p for p in tmp_path.rglob("*.json"))
    assert lists.find("s3://b/a", STAT, 0, 100) == ArchiveListing(FILES, "")

    path.chmod(0o666)
    assert lists.find("s3://b/a", STAT, 0, 100) is None
    path.chmod(0o644)
    aside = path.rename(tmp_path / "aside")
    path.symlink_to(aside)
    assert lists.find("s3://b/a", STAT, 0, 100) is None
    path.unlink()
    os.mkfifo(path)
    assert lists.find("s3://b/a", STAT, 0, 100) is None


@pytest.mark.parametrize(
    ("out", "lists"),
    [
        ("s3://bucket/sets/imagenet-480", "s3://bucket/sets/imagenet-prep-lists"),
        ("s3://bucket/imagenet-480/", "s3://bucket/imagenet-prep-lists"),
        ("s3://bucket", None),
        ("/data/sets/imagenet-480", "/data/sets/imagenet-prep-lists"),
    ],
)
def test_listings_are_stored_next_to_the_dataset(out: str, lists: str | None) -> None:
    assert remote_path.lists_folder(out) == lists
