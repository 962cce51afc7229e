"""Datasets on a web server or in S3: fetched ahead, once per node, bounded and verified."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import itertools
import json
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    ManifestError,
    StoreError,
    UsageError,
)
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.read.cache import NodeCache
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.order import Order
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command
from tests.kit.command import PATIENCE_S, wait_until
from tests.kit.dataset import all_files
from tests.kit.http_server import SeededFaults, Server, serve
from tests.kit.limits import Limits
from tests.kit.messages import says, wording
from tests.kit.processes import open_below
from tests.kit.reading import NUM_TRAIN, TRAIN
from tests.kit.s3_server import BUCKET, S3Server, key_of
from tests.kit.system import System
from tests.kit.ticks import overwrite

pytestmark = pytest.mark.slow  # servers or processes in each test

SHARDS = [schema.shard_name("train", i, len(TRAIN)) for i in range(len(TRAIN))]


@pytest.fixture
def server(colours: Path) -> Iterator[Server]:
    with serve(all_files(colours), stall_s=0.2) as running:
        yield running


@pytest.fixture(autouse=True)
def closed_caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes caches at the end: their threads would continue to query a stopped server."""
    opened: weakref.WeakSet[NodeCache] = weakref.WeakSet()
    begin = NodeCache.__init__

    def open_cache(copy: NodeCache, *arguments: Any) -> None:
        begin(copy, *arguments)
        opened.add(copy)

    monkeypatch.setattr(NodeCache, "__init__", open_cache)
    yield
    for copy in opened:
        copy.close()


def open_feed(
    address: str, folder: Path, world: World | None = None, *, window: int = 2, **more: Any
) -> Feed:
    copy = NodeCache(open_dataset(address), folder, more.get("limit"))
    records = Records(open_dataset(address), "train", copy)
    order = Order(records.examples_per_shard, more.get("seed", 3), window)
    on_bad_record = "skip" if more.get("skip") else "raise"
    config = ReadConfig(address, "train", 4, seed=3, on_bad_record=on_bad_record, world=world)
    return Feed(records, order, config, range(len(records.wnids)))


def two_windows(root: Path) -> int:
    """Returns the size limit of two windows of one shard each, with their indexes."""
    sizes = sorted(p.stat().st_size for p in shards_in(root).values())
    return sum(sizes[-2:]) + sum(p.stat().st_size for p in (root / "index").glob("train-*"))


def read(feed: Feed, epoch: int = 0, start: int = 0) -> list[int]:
    """Returns the example numbers of an epoch; requires the image of each example."""
    numbers = []
    for batch in feed.batches(epoch, start):
        assert batch.mask.all()
        assert all(encoded[:2] == b"\xff\xd8" for encoded in batch.encoded)
        numbers += batch.numbers.tolist()
    return numbers


def shards_in(folder: Path) -> dict[str, Path]:
    """Returns the fetched shards by name, without indexes and temporary files."""
    return {
        path.name: path
        for path in folder.rglob("train-*")
        if path.parent.name != "index" and schema.WORK not in path.parts
    }


def test_remote_dataset_reads_as_the_local_one(
    colours: Path, server: Server, tmp_path: Path
) -> None:
    local = Records(open_dataset(str(colours)), "train")
    remote = open_feed(server.url, tmp_path).records
    remote.follow([list(range(len(TRAIN)))])

    assert len(remote) == len(local)
    assert remote.manifest == local.manifest
    assert [remote.read(n) for n in range(NUM_TRAIN)] == [local.read(n) for n in range(NUM_TRAIN)]


def test_example_is_fetched_before_an_epoch_starts(
    colours: Path, server: Server, tmp_path: Path
) -> None:
    """Only epochs started fetching, so this waited forever."""
    remote = open_feed(server.url, tmp_path).records

    assert remote.read(20) == Records(open_dataset(str(colours)), "train").read(20)
    assert list(shards_in(tmp_path)) == [SHARDS[2]]


def test_index_removed_during_opening_is_fetched_again(
    colours: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = open_feed(server.url, tmp_path).records
    opened = small_files.open_to_read
    removed: list[str] = []

    def open_to_read(path: Path) -> int:
        if path.parent.name == "index" and not removed:
            removed.append(path.name)
            path.unlink()
        return opened(path)

    monkeypatch.setattr(small_files, "open_to_read", open_to_read)
    assert remote.read(20) == Records(open_dataset(str(colours)), "train").read(20)
    assert removed == [SHARDS[2]]


def test_each_shard_is_fetched_once_for_all_ranks(server: Server, tmp_path: Path) -> None:
    feeds = [open_feed(server.url, tmp_path, World(rank, 3)) for rank in range(3)]
    found: dict[int, list[int]] = {}

    def run(rank: int) -> None:
        found[rank] = read(feeds[rank], 0) + read(feeds[rank], 1)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    steps = feeds[0].steps(0, 0)
    assert [len(found[rank]) for rank in range(3)] == [2 * 4 * steps.count] * 3
    for name in (*SHARDS, *map(schema.index_name, SHARDS)):
        assert len([r for r in server.reads(f"/{name}") if r.sent]) == 1, name


def test_second_run_fetches_no_shard_again(server: Server, tmp_path: Path) -> None:
    first = read(open_feed(server.url, tmp_path))
    server.requests.clear()

    assert read(open_feed(server.url, tmp_path)) == first
    assert not [r for r in server.requests if "train-" in r.path]


def test_bounded_cache_stays_within_its_limit(
    colours: Path, server: Server, tmp_path: Path
) -> None:
    limit = two_windows(colours)
    feed = open_feed(server.url, tmp_path, window=1, limit=limit)
    most = 0
    numbers = []
    for epoch in range(3):
        for batch in feed.batches(epoch, 0):
            numbers.append(batch.numbers.tolist())
            held = 0
            for path in shards_in(tmp_path).values():
                with contextlib.suppress(FileNotFoundError):  # removed a moment ago
                    held += path.stat().st_size
            most = max(most, held)
    unbounded = open_feed(server.url, tmp_path / "whole", window=1)
    expected = []
    for epoch in range(3):
        expected += [batch.numbers.tolist() for batch in unbounded.batches(epoch, 0)]

    assert most <= limit
    assert len(shards_in(tmp_path / feed.records.root.name)) < len(TRAIN)
    assert numbers == expected


def test_cache_smaller_than_two_windows_is_refused(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path, window=0, limit=1000)

    with pytest.raises(UsageError, match=r"shuffle_window"):
        read(feed)


@pytest.mark.parametrize("skip", [False, True])
def test_shards_needed_soon_are_not_removed(
    colours: Path, server: Server, tmp_path: Path, skip: bool
) -> None:
    limit = two_windows(colours)
    slow = open_feed(server.url, tmp_path, window=1, limit=limit, skip=skip)
    quick = open_feed(server.url, tmp_path, window=1, limit=limit, seed=4)
    batches = slow.batches(0, 0)
    numbers = next(batches).numbers.tolist()
    # Three steps are read ahead; the window of the last of them, and the next, are held.
    (reached,) = [
        number
        for number, window in enumerate(slow.order.windows(0))
        if slow.records.place(int(slow.order.epoch(0)[11]))[0] in window
    ]
    near = slow.order.windows(0)[reached : reached + 2]
    coming = [SHARDS[shard] for shard in itertools.chain.from_iterable(near)]
    wait_until(lambda: set(coming) <= set(shards_in(tmp_path)), "the next shards are fetched")
    for epoch in range(3):
        read(quick, epoch)
        assert set(coming) <= set(shards_in(tmp_path))
    server.requests.clear()

    for batch in batches:
        numbers += batch.numbers.tolist()
    assert numbers == slow.order.epoch(0)[: NUM_TRAIN // 4 * 4].tolist()
    assert not slow.skipped
    assert not any(server.reads(f"/{name}") for name in coming)


def test_released_shards_make_space(colours: Path, server: Server, tmp_path: Path) -> None:
    limit = two_windows(colours)
    first = open_feed(server.url, tmp_path, window=1, limit=limit)
    read(first)
    held = set(shards_in(tmp_path))
    first.close()
    second = open_feed(server.url, tmp_path, window=1, limit=limit, seed=4)
    for epoch in range(2):
        read(second, epoch)

    there = shards_in(tmp_path)
    assert sum(path.stat().st_size for path in there.values()) <= limit
    assert held != set(there)


def test_files_removed_by_hand_are_fetched_again(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path, window=0)
    batches = feed.batches(0, 0)
    next(batches)
    cache = feed.records.cache
    assert cache is not None
    # Open, not only present: a process that has just fetched a file is about to open it.
    wait_until(
        lambda: sum(file.done() for file in cache._files.values()) == len(SHARDS),
        "all shards are open",
    )
    for name in SHARDS:
        for file in (name, schema.index_name(name)):
            (feed.records.root / file).unlink()

    assert len(list(batches)) == NUM_TRAIN // 4 - 1
    assert len(read(feed, 1)) == NUM_TRAIN // 4 * 4


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT], ids=errno.errorcode.get)
def test_failing_disk_is_no_bad_record(
    server: Server, tmp_path: Path, system: System, skip: bool, code: int
) -> None:
    feed = open_feed(server.url, tmp_path, skip=skip)
    system.fails("pread", code)
    with pytest.raises(StoreError, match=says("cannot-read-2", "record", os.strerror(code))):
        read(feed)
    assert not feed.skipped


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.EMFILE, StoreError),
        (errno.EIO, StoreError),
        (errno.ENOLCK, StoreError),
        (errno.ENOSPC, IncompleteError),
    ],
    ids=str,
)
def test_system_error_while_fetching_is_no_bad_record(
    server: Server,
    tmp_path: Path,
    system: System,
    code: int,
    expected: type[Exception],
) -> None:
    feed = open_feed(server.url, tmp_path, skip=True)
    system.fails("flock", code)
    with pytest.raises(expected, match=f"cannot (fetch|lock) .*train-.*{os.strerror(code)}"):
        read(feed)
    assert not feed.skipped


def test_dropped_reader_leaves_neither_threads_nor_open_files(
    server: Server, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    feed = open_feed(server.url, tmp_path)
    batches = feed.batches(0, 0)
    next(batches)
    assert open_below(tmp_path)

    del batches, feed
    gc.collect()
    wait_until(lambda: set(threading.enumerate()) <= before, "the threads end")
    assert open_below(tmp_path) == []


def test_closed_reader_can_be_read_again(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path)
    first = read(feed)
    feed.close()
    assert open_below(tmp_path) == []

    assert read(feed) == first


def test_closed_cache_does_not_retry(server: Server, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    records = Records(open_dataset(server.url), "train", copy)
    server.plan = lambda *_: "503"
    answered = len(server.requests)
    records.follow([list(range(len(TRAIN)))])
    wait_until(lambda: len(server.requests) > answered, "a request")

    copy.close()
    del copy, records
    gc.collect()
    # The pauses between 20 retries would last ten minutes.
    wait_until(lambda: set(threading.enumerate()) <= before, "the threads end")


def test_resumed_epoch_only_fetches_the_remaining_shards(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path, window=1)
    whole = read(feed)
    fresh = open_feed(server.url, tmp_path / "other", window=1)
    first_window = feed.order.windows(0)[0][0]
    start = TRAIN[first_window]
    server.requests.clear()

    assert (
        read(fresh, 0, start)
        == feed.order.epoch(0)[start:].tolist()[: len(whole) // 4 * 4][
            : (NUM_TRAIN - start) // 4 * 4
        ]
    )
    assert not server.reads(f"/{SHARDS[first_window]}")


def test_temporary_server_faults_are_retried(
    server: Server, tmp_path: Path, limits: Limits
) -> None:
    limits(cache_wait_s=0.5)
    feed = open_feed(server.url, tmp_path)
    server.plan = SeededFaults(7, 12, kinds=("cut", "503", "reset", "short", "429"))

    assert len(read(feed)) == NUM_TRAIN // 4 * 4
    assert {r.fault for r in server.requests} > {""}


@pytest.mark.parametrize("name", [SHARDS[2], schema.index_name(SHARDS[2])])
@pytest.mark.parametrize("skip", [False, True])
def test_damaged_source_file_is_neither_kept_nor_skipped(
    server: Server, tmp_path: Path, name: str, skip: bool
) -> None:
    data = bytearray(server.files[f"/{name}"])
    data[len(data) // 2] ^= 1
    server.files[f"/{name}"] = bytes(data)
    feed = open_feed(server.url, tmp_path, skip=skip)

    with pytest.raises(DataDamagedError, match=says("sha256-arrived-expected", name)):
        read(feed)
    assert not (feed.records.root / name).exists()


def test_file_missing_at_the_source_is_named(server: Server, tmp_path: Path) -> None:
    del server.files[f"/{SHARDS[1]}"]

    with pytest.raises(ImagenetPrepError, match=SHARDS[1]):
        read(open_feed(server.url, tmp_path))


def test_missing_manifest_is_named(tmp_path: Path) -> None:
    with (
        serve({"labels.txt": b""}) as empty,
        pytest.raises(ImagenetPrepError, match="dataset.json"),
    ):
        NodeCache(open_dataset(empty.url), tmp_path, None)


def test_leftovers_of_a_killed_fetch_are_overwritten(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path)
    left = feed.records.root / schema.WORK / "temporary"
    left.mkdir(parents=True, exist_ok=True)
    for name in SHARDS:
        (left / name).write_bytes(b"left" * (1 << 18))

    read(feed)
    for name in SHARDS:
        there = (feed.records.root / name).read_bytes()
        assert hashlib.sha256(there).digest() == hashlib.sha256(server.files[f"/{name}"]).digest()


def test_closing_ends_a_wait(server: Server, tmp_path: Path) -> None:
    server.plan = lambda _number, path, _first, _last: "stall" if "train-" in path else ""
    server.stall_s = 2 * PATIENCE_S
    feed = open_feed(server.url, tmp_path)
    raised: list[Exception] = []

    def run() -> None:
        try:
            read(feed)
        except IncompleteError as error:
            raised.append(error)

    reader = threading.Thread(target=run)
    reader.start()
    wait_until(
        lambda: bool([r for r in server.requests if "train-" in r.path]), "a request for a shard"
    )
    feed.records.close()
    reader.join(PATIENCE_S)

    assert not reader.is_alive()
    (error,) = raised
    name = str(error).partition(":")[0]
    assert str(error) == wording("not-fetched-because-reader-closed", name)


READS = """
import sys
from imagenet_prep.read import cache, make_dataset
reader = make_dataset(sys.argv[1], "train", 2, 16, backend=sys.argv[2], cache_dir=sys.argv[3],
                      training=False)
if sys.argv[4] == "find":
    reader.find("of no image")
for number, batch in enumerate(reader):
    print(number, flush=True)
    if number and sys.argv[4] == "end":
        break
    if number and sys.argv[4] == "error":
        raise RuntimeError("of the script")
"""


@pytest.mark.parametrize(
    ("backend", "how", "code"),
    [
        ("native", "end", 0),
        ("native", "error", 1),
        ("native", "interrupt", -signal.SIGINT),
        ("native", "find", -signal.SIGINT),
        pytest.param("tfdata", "end", 0, marks=[pytest.mark.tf, pytest.mark.long]),
        pytest.param(
            "tfdata", "interrupt", -signal.SIGINT, marks=[pytest.mark.tf, pytest.mark.long]
        ),
    ],
)
def test_script_ends_while_a_server_is_silent(
    server: Server, tmp_path: Path, backend: str, how: str, code: int
) -> None:
    """The server only sends the first shard, or for `find` the first table of samples."""
    stalled = threading.Event()

    def plan(_number: int, path: str, _first: int, _last: int) -> str:
        is_late = path.rpartition("/")[2][:11] in ("train-00001", "train-00002", "train-00003")
        if not is_late or (how == "find") != path.startswith("/samples/"):
            return ""
        stalled.set()
        return "stall"

    server.plan = plan
    server.stall_s = 2 * PATIENCE_S
    arguments = (server.url, backend, tmp_path / "cache", how)
    with command.started(*arguments, program=("-c", READS)) as running:
        wait_until(lambda: running.ended or stalled.is_set(), "the server stalls")
        if code < 0:
            running.send(signal.SIGINT)
        finished = running.finish(PATIENCE_S / 10)

    assert finished.code == code, finished


def test_s3_is_read_like_any_server(
    colours: Path, tmp_path: Path, s3: S3Server, prefix: str
) -> None:
    client = s3.client()
    for name, data in all_files(colours).items():
        client.put_object(Bucket=BUCKET, Key=key_of(f"{prefix}/{name}"), Body=data)

    assert len(read(open_feed(prefix, tmp_path / "cache"))) == NUM_TRAIN // 4 * 4
    assert set(shards_in(tmp_path / "cache")) == set(SHARDS)


def test_server_cannot_name_a_file_outside_the_cache(server: Server, tmp_path: Path) -> None:
    """The server signs its own manifest, and sends any bytes under any name."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_bytes(b"export PATH")
    content = json.loads(server.files["/dataset.json"])
    del content["digest"]
    content["splits"]["train"]["shards"][0]["name"] = "../../.bashrc"
    whole = {**content, "digest": strict_json.digest(content)}
    text = json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False)
    server.files["/dataset.json"] = text.encode() + b"\n"

    with pytest.raises(
        ManifestError, match=says("split-shard-expected", "train", "'../../.bashrc'")
    ):
        NodeCache(open_dataset(server.url), home / "cache", None)
    assert all_files(home) == {".bashrc": b"export PATH"}


@pytest.mark.parametrize("planted", [".work/locks", ".work/temporary", ".work", "index"])
def test_links_in_the_cache_are_not_followed(server: Server, tmp_path: Path, planted: str) -> None:
    folder = tmp_path / "cache"
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_bytes(b"secret")
    copy = NodeCache(open_dataset(server.url), folder, None)
    shutil.rmtree(copy.root / schema.WORK)
    shutil.rmtree(copy.root / schema.INDEX)
    (copy.root / planted).parent.mkdir(exist_ok=True)
    (copy.root / planted).symlink_to(home)
    records = Records(open_dataset(server.url), "train", copy)
    records.follow([list(range(len(TRAIN)))])

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        records.read(0)
    copy.close()
    assert all_files(home) == {"key": b"secret"}


def test_planted_link_to_a_temporary_file_is_refused(server: Server, tmp_path: Path) -> None:
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    (tmp_path / "key").write_bytes(b"secret")
    (copy.root / ".work" / "temporary" / SHARDS[0]).symlink_to(tmp_path / "key")
    records = Records(open_dataset(server.url), "train", copy)
    records.follow([list(range(len(TRAIN)))])

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        records.read(0)
    copy.close()
    assert (tmp_path / "key").read_bytes() == b"secret"


def first_shard(server: Server, folder: Path) -> bytes:
    """Returns the first shard of the cache, after its first example was read."""
    copy = NodeCache(open_dataset(server.url), folder, None)
    records = Records(open_dataset(server.url), "train", copy)
    records.follow([[0]])
    records.read(0)
    copy.close()
    return (copy.root / SHARDS[0]).read_bytes()


def plant(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("change", [plant, overwrite])
def test_planted_files_in_the_cache_are_not_trusted(
    server: Server, tmp_path: Path, change: Callable[[Path, bytes], None]
) -> None:
    """Only sizes were compared: a reader trained on the data of a different user."""
    right = server.files[f"/{SHARDS[0]}"]
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    (copy.root / SHARDS[0]).write_bytes(bytes(len(right)))
    assert first_shard(server, tmp_path / "cache") == right

    change(copy.root / SHARDS[0], bytes(len(right)))
    assert first_shard(server, tmp_path / "cache") == right


def test_cached_file_is_hashed_once_and_then_recorded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_shard(server, tmp_path)
    (root,) = tmp_path.iterdir()
    hashed: list[str] = []

    def digest(file: Any, name: str) -> Any:
        hashed.append(Path(file.name).name if isinstance(file.name, str) else "file")
        return hashlib_digest(file, name)

    hashlib_digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", digest)
    first_shard(server, tmp_path)
    assert hashed == []

    (root / ".work" / "proven.jsonl").unlink()
    del server.requests[:]
    first_shard(server, tmp_path)
    assert len(hashed) == 2  # index and shard
    (root / ".work" / "proven.jsonl").chmod(0o666)
    first_shard(server, tmp_path)
    assert len(hashed) == 4
    assert server.reads(f"/{SHARDS[0]}") == []


@pytest.mark.root
@pytest.mark.parametrize("name", ["", "index", ".work"])
def test_cache_of_a_different_user_is_refused(server: Server, tmp_path: Path, name: str) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    copy = NodeCache(open_dataset(server.url), tmp_path, None)
    os.chown(copy.root / name, 12345, -1)
    with pytest.raises(StoreError, match=r"belongs to a different user \((UID|number) 12345\)"):
        NodeCache(open_dataset(server.url), tmp_path, None)


@pytest.mark.root
def test_file_of_a_different_user_is_fetched_again(server: Server, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    right = first_shard(server, tmp_path)
    (root,) = tmp_path.iterdir()
    os.chown(root / SHARDS[0], 12345, -1)
    assert first_shard(server, tmp_path) == right
    assert (root / SHARDS[0]).stat().st_uid == os.geteuid()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757], ids=oct)
def test_cache_is_writable_only_by_its_owner(server: Server, tmp_path: Path, mode: int) -> None:
    copy = NodeCache(open_dataset(server.url), tmp_path, None)
    for path in (copy.root, copy.root / "index", copy.root / ".work"):
        path.chmod(mode)
    NodeCache(open_dataset(server.url), tmp_path, None)
    assert all(p.stat().st_mode & 0o022 == 0 for p in (copy.root, *copy.root.rglob("*")))


def test_link_in_place_of_the_cache_is_refused(server: Server, tmp_path: Path) -> None:
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    home = tmp_path / "home"
    home.mkdir()
    shutil.rmtree(copy.root)
    copy.root.symlink_to(home)
    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    assert list(home.iterdir()) == []


def test_endless_manifest_is_not_read(server: Server, tmp_path: Path) -> None:
    server.files["/dataset.json"] = Endless(server.files["/dataset.json"])
    with pytest.raises(DataDamagedError, match="has more than 67,108,864 bytes"):
        NodeCache(open_dataset(server.url), tmp_path / "cache", None)


def test_endless_class_list_is_not_fetched(server: Server, tmp_path: Path) -> None:
    content = json.loads(server.files["/dataset.json"])
    del content["digest"]
    next(f for f in content["files"] if f["name"] == "labels.txt")["num_bytes"] = 10**12
    whole = {**content, "digest": strict_json.digest(content)}
    text = json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False)
    server.files["/dataset.json"] = text.encode() + b"\n"
    with pytest.raises(DataDamagedError, match=says("missing-differs", "labels")):
        NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    assert server.reads("/labels.txt") == []


class Endless(bytes):
    """Bytes that claim to be a terabyte."""

    def __len__(self) -> int:
        return 10**12
