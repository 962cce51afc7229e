"""A set on a web server or in S3: fetched ahead, once a node, bounded, and proven."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import hashlib
import json
import os
import shutil
import signal
import threading
import time
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
from imagenet_prep.read import cache as cache_module
from imagenet_prep.read import make_dataset
from imagenet_prep.read.cache import HeldFile, NodeCache, only_one
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.order import Order
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command
from tests.kit.columns import make_column
from tests.kit.command import PATIENCE_S
from tests.kit.http_server import SeededFaults, Server, serve
from tests.kit.limits import Limits
from tests.kit.reading import NUM_TRAIN, TRAIN
from tests.kit.s3_server import BUCKET, S3Server, key_of
from tests.kit.system import System

pytestmark = pytest.mark.slow  # servers or processes in each test

SHARDS = [schema.shard_name("train", i, len(TRAIN)) for i in range(len(TRAIN))]


def files_of(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.fixture
def server(colours: Path) -> Iterator[Server]:
    with serve(files_of(colours), stall_s=0.2) as running:
        yield running


@pytest.fixture(autouse=True)
def closed_caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes caches at the end: their threads would go on asking a server that has gone."""
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
    """Returns what two windows of one shard each take at most, with their indexes."""
    sizes = sorted(p.stat().st_size for p in shards_in(root).values())
    return sum(sizes[-2:]) + sum(p.stat().st_size for p in (root / "index").glob("train-*"))


def read(feed: Feed, epoch: int = 0, start: int = 0) -> list[int]:
    """Returns the example numbers of an epoch, each proven by its picture's bytes being there."""
    numbers = []
    for batch in feed.batches(epoch, start):
        assert batch.mask.all()
        assert all(encoded[:2] == b"\xff\xd8" for encoded in batch.encoded)
        numbers += batch.numbers.tolist()
    return numbers


def wait_until(true: Callable[[], bool]) -> None:
    """Returns once something has become true; the test's time limit is the bound."""
    while not true():
        time.sleep(0.01)


def open_files() -> list[str]:
    """Returns the files that this process holds open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    return found


def shards_in(folder: Path) -> dict[str, Path]:
    """Returns the shards that are there; an index is none, nor is what is still in work."""
    return {
        path.name: path
        for path in folder.rglob("train-*")
        if path.parent.name != "index" and schema.WORK not in path.parts
    }


def test_a_remote_set_reads_as_the_local_one(colours: Path, server: Server, tmp_path: Path) -> None:
    local = Records(open_dataset(str(colours)), "train")
    remote = open_feed(server.url, tmp_path).records
    remote.follow([list(range(len(TRAIN)))])

    assert len(remote) == len(local)
    assert remote.manifest == local.manifest
    assert [remote.read(n) for n in range(NUM_TRAIN)] == [local.read(n) for n in range(NUM_TRAIN)]


def test_an_example_is_fetched_before_an_epoch_has_begun(
    colours: Path, server: Server, tmp_path: Path
) -> None:
    """It waited forever: only epochs began to fetch."""
    remote = open_feed(server.url, tmp_path).records

    assert remote.read(20) == Records(open_dataset(str(colours)), "train").read(20)
    assert list(shards_in(tmp_path)) == [SHARDS[2]]


def test_an_index_that_is_removed_as_it_is_opened_is_fetched_again(
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


def test_a_fork_while_a_shard_is_fetched_does_not_keep_its_lock(tmp_path: Path) -> None:
    """So did workers of a DataLoader, and waited for themselves."""
    copy = LocalStore(tmp_path)
    with only_one(copy, "some shard"):
        child = os.fork()
        if not child:
            signal.pause()
    try:
        with only_one(copy, "some shard", fcntl.LOCK_NB):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


HOLDS = """
import signal, sys
from pathlib import Path
from imagenet_prep.read.cache import only_one
from imagenet_prep.storage.folder import LocalStore
with only_one(LocalStore(Path(sys.argv[1])), sys.argv[2], purpose=sys.argv[3] or None):
    signal.pause()
"""


@pytest.mark.parametrize(
    ("name", "purpose", "said"),
    [
        ("train-00001-of-00005", "fetches train-00001-of-00005", "fetches train-00001-of-00005"),
        ("room", "frees space in the cache", "frees space in the cache"),
        ("columns/latents", "", "uses columns/latents"),
    ],
)
def test_a_long_wait_for_a_stopped_process_names_it_once(
    tmp_path: Path,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    purpose: str,
    said: str,
) -> None:
    monkeypatch.setattr(cache_module, "_reported", set())
    limits(lock_report_s=0.01)
    copy = LocalStore(tmp_path)
    got = threading.Event()
    lock_file = tmp_path / schema.WORK / "locks" / name.replace("/", "-")

    def lock() -> None:
        with only_one(copy, name):
            got.set()

    program = ("-c", HOLDS, str(tmp_path), name, purpose)
    with command.started(program=program) as holder:
        command.wait_until(lambda: lock_file.exists() and lock_file.read_text(), "the lock")
        holder.send(signal.SIGSTOP)
        waiting = [threading.Thread(target=lock, daemon=True) for _ in range(3)]
        for thread in waiting:
            thread.start()
        command.wait_until(lambda: caplog.messages, "a message")
        assert not got.is_set()
        holder.kill()
    for thread in waiting:
        thread.join(PATIENCE_S)

    assert got.is_set()
    expected = f"waiting for pid {holder.pid} on {os.uname().nodename}, which {said}. "
    told = [message for message in caplog.messages if message.startswith(expected)]
    assert len(told) == 1
    assert "kill -CONT" in told[0]


def test_a_short_wait_for_a_lock_is_not_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    system: System,
) -> None:
    """The timer ends with the wait, so it cannot read a file that is closed."""
    monkeypatch.setattr(cache_module, "_reported", set())
    copy = LocalStore(tmp_path)
    order = []
    with only_one(copy, "some shard"):

        def release(real: Callable[..., Any], file: int, operation: int) -> Any:
            order.append(operation)
            if operation == fcntl.LOCK_EX:
                return None  # as if the other process had just released it
            return real(file, operation)

        system.instead("flock", release)
        with only_one(copy, "some shard"):
            pass

    assert order[:2] == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert caplog.messages == []


def test_a_full_disk_does_not_end_a_lock(tmp_path: Path, system: System) -> None:
    system.fails("pwrite", errno.ENOSPC)
    with only_one(LocalStore(tmp_path), "some shard"):
        pass


def test_a_fork_does_not_keep_the_locks_of_shards_that_are_let_go(tmp_path: Path) -> None:
    """Workers of a DataLoader did, and the cache of their node outgrew its limit."""
    path = tmp_path / "shard"
    path.touch()
    held = HeldFile(path, fcntl.LOCK_SH)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        descriptor = held.descriptor
        del held
        os.write(tell, b"%d" % descriptor)
        signal.pause()
    try:
        assert os.read(told, 9) == b"-1"
        with pytest.raises(BlockingIOError):  # as long as this process reads it
            HeldFile(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        del held
        HeldFile(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)


def test_each_shard_is_fetched_once_for_all_ranks_and_epochs(
    server: Server, tmp_path: Path
) -> None:
    feeds = [open_feed(server.url, tmp_path, World(rank, 3)) for rank in range(3)]
    found: dict[int, list[int]] = {}

    def run(rank: int) -> None:
        found[rank] = [n for epoch in range(2) for n in read(feeds[rank], epoch)]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    steps = feeds[0].steps(0)
    assert [len(found[rank]) for rank in range(3)] == [2 * 4 * steps.count] * 3
    for name in (*SHARDS, *map(schema.index_name, SHARDS)):
        assert len([r for r in server.reads(f"/{name}") if r.sent]) == 1, name


def test_a_second_run_fetches_no_shard_again(server: Server, tmp_path: Path) -> None:
    first = read(open_feed(server.url, tmp_path))
    server.requests.clear()

    assert read(open_feed(server.url, tmp_path)) == first
    assert not [r for r in server.requests if "train-" in r.path]


def test_a_bounded_cache_never_holds_more_and_reads_the_same(
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
    expected = open_feed(server.url, tmp_path / "whole", window=1)

    assert most <= limit
    assert len(shards_in(tmp_path / feed.records.root.name)) < len(TRAIN)
    assert numbers == [b.numbers.tolist() for e in range(3) for b in expected.batches(e, 0)]


def test_a_cache_smaller_than_two_windows_is_refused(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path, window=0, limit=1000)

    with pytest.raises(UsageError, match=r"shuffle_window"):
        read(feed)


@pytest.mark.parametrize("skip", [False, True])
def test_what_one_rank_is_about_to_read_no_other_removes(
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
    coming = [SHARDS[shard] for window in near for shard in window]
    wait_until(lambda: set(coming) <= set(shards_in(tmp_path)))
    for epoch in range(3):
        read(quick, epoch)
        assert set(coming) <= set(shards_in(tmp_path))
    server.requests.clear()

    numbers += [n for batch in batches for n in batch.numbers.tolist()]
    assert numbers == slow.order.epoch(0)[: NUM_TRAIN // 4 * 4].tolist()
    assert not slow.skipped
    assert not [r for name in coming for r in server.reads(f"/{name}")]


def test_what_its_reader_lets_go_makes_room(colours: Path, server: Server, tmp_path: Path) -> None:
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
    # Open, not only there: who has just fetched one is about to open it.
    wait_until(lambda: sum(file.done() for file in cache._files.values()) == len(SHARDS))
    for name in SHARDS:
        for file in (name, schema.index_name(name)):
            (feed.records.root / file).unlink()

    assert len(list(batches)) == NUM_TRAIN // 4 - 1
    assert len(read(feed, 1)) == NUM_TRAIN // 4 * 4


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT], ids=errno.errorcode.get)
def test_a_disk_that_fails_is_no_bad_record(
    server: Server, tmp_path: Path, system: System, skip: bool, code: int
) -> None:
    feed = open_feed(server.url, tmp_path, skip=skip)
    system.fails("pread", code)
    with pytest.raises(StoreError, match=f"record .*cannot be read: {os.strerror(code)}"):
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
def test_what_the_system_refuses_while_fetching_is_no_bad_record(
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


def test_a_reader_that_is_dropped_leaves_neither_threads_nor_files(
    server: Server, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    feed = open_feed(server.url, tmp_path)
    batches = feed.batches(0, 0)
    next(batches)
    assert any(path.startswith(str(tmp_path)) for path in open_files())

    del batches, feed
    gc.collect()
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert not any(path.startswith(str(tmp_path)) for path in open_files())


def test_a_closed_reader_may_go_on(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path)
    first = read(feed)
    feed.close()
    assert not any(path.startswith(str(tmp_path)) for path in open_files())

    assert read(feed) == first


def test_a_closed_cache_does_not_retry(server: Server, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    records = Records(open_dataset(server.url), "train", copy)
    server.plan = lambda *_: "503"
    answered = len(server.requests)
    records.follow([list(range(len(TRAIN)))])
    wait_until(lambda: len(server.requests) > answered)

    copy.close()
    del copy, records
    gc.collect()
    # The pauses between 20 retries would last ten minutes.
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_going_on_in_mid_epoch_fetches_only_what_is_left(server: Server, tmp_path: Path) -> None:
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


def test_passing_faults_are_waited_for(server: Server, tmp_path: Path, limits: Limits) -> None:
    limits(cache_wait_s=0.5)
    feed = open_feed(server.url, tmp_path)
    server.plan = SeededFaults(7, 12, kinds=("cut", "503", "reset", "short", "429"))

    assert len(read(feed)) == NUM_TRAIN // 4 * 4
    assert {r.fault for r in server.requests} > {""}


@pytest.mark.parametrize("name", [SHARDS[2], schema.index_name(SHARDS[2])])
@pytest.mark.parametrize("skip", [False, True])
def test_a_damaged_file_at_the_source_is_named_and_never_kept_nor_skipped(
    server: Server, tmp_path: Path, name: str, skip: bool
) -> None:
    data = bytearray(server.files[f"/{name}"])
    data[len(data) // 2] ^= 1
    server.files[f"/{name}"] = bytes(data)
    feed = open_feed(server.url, tmp_path, skip=skip)

    with pytest.raises(
        DataDamagedError, match=f"{name}: sha256 .* arrived, expected .*Check the source"
    ):
        read(feed)
    assert not (feed.records.root / name).exists()


def test_a_file_missing_at_the_source_is_named(server: Server, tmp_path: Path) -> None:
    del server.files[f"/{SHARDS[1]}"]

    with pytest.raises(ImagenetPrepError, match=SHARDS[1]):
        read(open_feed(server.url, tmp_path))


def test_no_manifest_is_explained(tmp_path: Path) -> None:
    with (
        serve({"labels.txt": b""}) as empty,
        pytest.raises(ImagenetPrepError, match="dataset.json"),
    ):
        NodeCache(open_dataset(empty.url), tmp_path, None)


def test_what_a_killed_fetch_left_is_written_over(server: Server, tmp_path: Path) -> None:
    feed = open_feed(server.url, tmp_path)
    left = feed.records.root / schema.WORK / "temporary"
    left.mkdir(parents=True, exist_ok=True)
    for name in SHARDS:
        (left / name).write_bytes(os.urandom(1 << 20))

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
    wait_until(lambda: bool([r for r in server.requests if "train-" in r.path]))
    feed.records.close()
    reader.join(PATIENCE_S)

    assert not reader.is_alive()
    assert [str(error).partition(": ")[2] for error in raised] == [
        "not fetched, because the reader was closed"
    ]


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
def test_a_script_ends_while_a_server_is_silent(
    server: Server, tmp_path: Path, backend: str, how: str, code: int
) -> None:
    """Of the shards, or for `find` of the tables of samples, only the first one comes."""
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
        wait_until(lambda: running.ended or stalled.is_set())
        if code < 0:
            running.send(signal.SIGINT)
        finished = running.finish(PATIENCE_S / 10)

    assert finished.code == code, finished


def test_s3_is_read_like_any_server(
    colours: Path, tmp_path: Path, s3: S3Server, prefix: str
) -> None:
    client = s3.client()
    for name, data in files_of(colours).items():
        client.put_object(Bucket=BUCKET, Key=key_of(f"{prefix}/{name}"), Body=data)

    assert len(read(open_feed(prefix, tmp_path / "cache"))) == NUM_TRAIN // 4 * 4
    assert set(shards_in(tmp_path / "cache")) == set(SHARDS)


def test_a_server_cannot_name_a_file_outside_the_cache(server: Server, tmp_path: Path) -> None:
    """It signs its manifest itself, and sends what it likes under any name."""
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
        ManifestError, match=r"the split train has a shard '\.\./\.\./\.bashrc', expected"
    ):
        NodeCache(open_dataset(server.url), home / "cache", None)
    assert files_of(home) == {".bashrc": b"export PATH"}


@pytest.mark.parametrize("planted", [".work/locks", ".work/temporary", ".work", "index"])
def test_no_link_in_the_cache_is_followed(server: Server, tmp_path: Path, planted: str) -> None:
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

    with pytest.raises(StoreError, match="is a link or of the wrong kind"):
        records.read(0)
    copy.close()
    assert files_of(home) == {"key": b"secret"}


def test_a_planted_beginning_of_a_file_is_not_written_through(
    server: Server, tmp_path: Path
) -> None:
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    (tmp_path / "key").write_bytes(b"secret")
    (copy.root / ".work" / "temporary" / SHARDS[0]).symlink_to(tmp_path / "key")
    records = Records(open_dataset(server.url), "train", copy)
    records.follow([list(range(len(TRAIN)))])

    with pytest.raises(StoreError, match="is a link or of the wrong kind"):
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


def overwrite(path: Path, data: bytes) -> None:
    """Leaves size, inode and mtime as they were, which a user may do."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [plant, overwrite])
def test_what_lies_in_the_cache_is_not_believed(
    server: Server, tmp_path: Path, change: Callable[[Path, bytes], None]
) -> None:
    """Only sizes were compared: a reader trained on what another user had put there."""
    right = server.files[f"/{SHARDS[0]}"]
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    (copy.root / SHARDS[0]).write_bytes(bytes(len(right)))
    assert first_shard(server, tmp_path / "cache") == right

    change(copy.root / SHARDS[0], bytes(len(right)))
    assert first_shard(server, tmp_path / "cache") == right


def test_a_file_is_read_once_to_prove_it_and_then_the_note_counts(
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
def test_a_cache_of_another_user_is_refused(server: Server, tmp_path: Path, name: str) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    copy = NodeCache(open_dataset(server.url), tmp_path, None)
    os.chown(copy.root / name, 12345, -1)
    with pytest.raises(StoreError, match=r"belongs to a different user \((UID|number) 12345\)"):
        NodeCache(open_dataset(server.url), tmp_path, None)


@pytest.mark.root
def test_a_file_of_another_user_is_fetched_again(server: Server, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    right = first_shard(server, tmp_path)
    (root,) = tmp_path.iterdir()
    os.chown(root / SHARDS[0], 12345, -1)
    assert first_shard(server, tmp_path) == right
    assert (root / SHARDS[0]).stat().st_uid == os.geteuid()


def test_nobody_else_can_write_into_a_cache(server: Server, tmp_path: Path) -> None:
    copy = NodeCache(open_dataset(server.url), tmp_path, None)
    for path in (copy.root, copy.root / "index", copy.root / ".work"):
        path.chmod(0o777)
    NodeCache(open_dataset(server.url), tmp_path, None)
    assert all(p.stat().st_mode & 0o022 == 0 for p in (copy.root, *copy.root.rglob("*")))


def test_a_link_in_place_of_the_cache_is_refused(server: Server, tmp_path: Path) -> None:
    copy = NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    home = tmp_path / "home"
    home.mkdir()
    shutil.rmtree(copy.root)
    copy.root.symlink_to(home)
    with pytest.raises(StoreError, match="is a link or of the wrong kind"):
        NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    assert list(home.iterdir()) == []


def test_a_manifest_without_end_is_not_read(server: Server, tmp_path: Path) -> None:
    server.files["/dataset.json"] = Endless(server.files["/dataset.json"])
    with pytest.raises(DataDamagedError, match="has more than 67,108,864 bytes"):
        NodeCache(open_dataset(server.url), tmp_path / "cache", None)


def test_a_class_list_without_end_is_not_fetched(server: Server, tmp_path: Path) -> None:
    content = json.loads(server.files["/dataset.json"])
    del content["digest"]
    next(f for f in content["files"] if f["name"] == "labels.txt")["num_bytes"] = 10**12
    whole = {**content, "digest": strict_json.digest(content)}
    text = json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False)
    server.files["/dataset.json"] = text.encode() + b"\n"
    with pytest.raises(DataDamagedError, match=r"labels.txt: missing, or differs"):
        NodeCache(open_dataset(server.url), tmp_path / "cache", None)
    assert server.reads("/labels.txt") == []


class Endless(bytes):
    """Bytes that claim to be a terabyte."""

    def __len__(self) -> int:
        return 10**12


@pytest.fixture
def with_column(colours: Path, tmp_path: Path) -> Path:
    """The dataset with a column of 8 kB per record, so that its files are larger than shards."""
    root = Path(shutil.copytree(colours, tmp_path / "with-column"))
    make_column(root, shape=(2048,))
    return root


COLUMN = "column:latents"


def rows_of(address: str, **options: Any) -> dict[int, tuple[int, bytes]]:
    """Returns the class and the row of each example of an epoch, by its number."""
    options = {"batch_size": 4, "seed": 3, "shuffle_window": 1, "backend": "native", **options}
    options.setdefault("fields", ("class_index", "number", COLUMN))
    with contextlib.closing(make_dataset(address, "train", **options)) as reader:
        return {
            int(number): (int(index), row.tobytes())
            for batch in reader
            for number, index, row in zip(
                batch["number"], batch["class_index"], batch[COLUMN], strict=True
            )
        }


@pytest.mark.parametrize("images", [True, False])
def test_columns_are_fetched_with_the_shards_that_are_read(
    with_column: Path, tmp_path: Path, images: bool
) -> None:
    fields = ("class_index", "number", COLUMN, *(["images"] if images else []))
    expected = rows_of(str(with_column), fields=fields)
    with serve(files_of(with_column)) as running:
        found = rows_of(running.url, fields=fields, cache_dir=tmp_path / "cache")
        assert found == expected
        for name in SHARDS:
            assert len(running.reads(f"/columns/latents/{name}.npy")) == 1
            # Without a field that needs them, no record is fetched.
            assert bool(running.reads(f"/{name}")) == images
        running.requests.clear()
        assert rows_of(running.url, fields=fields, cache_dir=tmp_path / "cache") == expected
        assert not [
            each for name in SHARDS for each in running.reads(f"/columns/latents/{name}.npy")
        ]


def test_the_limit_of_the_cache_counts_columns(with_column: Path, tmp_path: Path) -> None:
    files = [*(with_column / "columns/latents").glob("train-*.npy")]
    sizes = sorted(path.stat().st_size for path in files)
    limit = sum(sizes[-2:])
    too_little = sum(sizes[:2]) - 1
    with serve(files_of(with_column)) as running:
        for seed in range(3):
            rows_of(running.url, cache_dir=tmp_path / "cache", cache_gb=limit / 1e9, seed=seed)
            there = [*(tmp_path / "cache").rglob("columns/latents/*.npy")]
            assert 0 < sum(path.stat().st_size for path in there) <= limit
        with pytest.raises(UsageError, match="the cache is limited to"):
            rows_of(running.url, cache_dir=tmp_path / "cache", cache_gb=too_little / 1e9)
        # Another reader's column makes room for shards.
        rows_of(
            running.url,
            cache_dir=tmp_path / "cache",
            cache_gb=2 * limit / 1e9,
            fields=("images", "class_index", "number", COLUMN),
        )


def test_a_damaged_row_is_never_read_through_the_cache(with_column: Path, tmp_path: Path) -> None:
    name = f"columns/latents/{SHARDS[0]}.npy"
    files = files_of(with_column)
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    with (
        serve(files) as running,
        pytest.raises(DataDamagedError, match=f"{name}.*sha256"),
    ):
        rows_of(running.url, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("said", [b"{}", b"[" * 100_000, b'{"name":"../../x"}'])
def test_a_hostile_column_on_a_server_is_damage(
    with_column: Path, tmp_path: Path, said: bytes
) -> None:
    files = {**files_of(with_column), "columns/latents/column.json": said}
    with serve(files) as running, pytest.raises(DataDamagedError, match=r"column\.json: damaged"):
        rows_of(running.url, cache_dir=tmp_path / "cache")
