"""Pools of servers that give the same files different ETags or dates."""

from __future__ import annotations

import hashlib
import random

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.fetch import contents
from imagenet_prep.storage.http import WebFolder
from imagenet_prep.storage.remote import Access, ChangedError
from tests.kit.clock import Clock
from tests.kit.http_server import SeededFaults, Server, serve
from tests.kit.messages import says
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, S3Server

DATA = random.Random(0).randbytes(3_000_000)
FILE = DatasetFile("x", len(DATA), hashlib.sha256(DATA).hexdigest())
POOLS = ("ETag", "Last-Modified")


def open_here(server: Server) -> WebFolder:
    return WebFolder(server.url, Access(connections=2, timeout_s=5, ended=Clock()))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("ranges", [True, False])
def test_file_with_known_sha256_needs_no_single_server(pool: str, *, ranges: bool) -> None:
    with serve({"x": DATA}, pool=pool, ranges=ranges) as server:
        assert b"".join(contents(open_here(server), FILE, "")) == DATA
        folder = open_here(server)
        assert folder.read("x") == DATA
        assert folder.read("x", 1_000, 50) == DATA[1_000:1_050]
        with folder.open_file("x") as file:
            assert file.read() == DATA


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(3))
def test_broken_connections_to_pool_mix_no_bytes(pool: str, seed: int) -> None:
    plan = SeededFaults(seed, 3, rate=0.7, kinds=("cut", "reset", "503"))
    with serve({"x": DATA}, pool=pool, plan=plan) as server:
        assert b"".join(contents(open_here(server), FILE, "")) == DATA
        assert open_here(server).read("x") == DATA


@pytest.mark.extras
def test_object_is_read_from_any_server_of_pool(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxied(s3.url, seed=1, faults=0, rate=0.0) as proxy:
        for name, value in {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        store = BucketStore(f"s3://{BUCKET}/pool", Access(retries=2))
        store.write("x", DATA)
        (listed,) = store.stats("").values()
        proxy.is_pool = True
        with store.open_file("x") as file:
            assert file.read() == DATA
        assert store.read("x") == DATA
        assert b"".join(contents(store, FILE, "")) == DATA
        with (
            store.open_file("x", listed) as file,
            pytest.raises(ChangedError, match=says("changed-since-run-began-address")),
        ):
            file.read()


def test_changed_size_ends_the_run() -> None:
    with serve({"x": DATA}, pool="ETag") as server:
        remote = open_here(server)
        stat = remote.stat("x")
        server.files["/x"] = DATA + b"more"
        with pytest.raises(IncompleteError, match=says("changed-since-run-began-run")):
            b"".join(remote.chunks("x", stat, pinned=False))


def test_archive_is_not_read_from_several_servers() -> None:
    with serve({"x": DATA}, pool="ETag") as server:
        remote = open_here(server)
        with pytest.raises(ChangedError, match=says("changed-since-run-began-address")):
            b"".join(remote.chunks("x", remote.stat("x")))
        with pytest.raises(ChangedError), remote.open_file("x", remote.stat("x")) as file:
            file.read()


def test_range_is_right_from_a_server_without_ranges() -> None:
    with serve({"x": DATA}, ranges=False) as server:
        assert WebFolder(server.url).read("x", 1_000, 50) == DATA[1_000:1_050]


def test_changed_bytes_are_found_by_their_sha256() -> None:
    # `contents` leaves this to its callers; see `incoming`.
    with serve({"x": DATA[::-1]}, pool="ETag") as server:
        other = b"".join(contents(open_here(server), FILE, ""))
        assert hashlib.sha256(other).hexdigest() != FILE.sha256
        server.files["/x"] = DATA[:-1]
        with pytest.raises(
            DataDamagedError, match=says("bytes-expected", ..., "2,999,999", "3,000,000")
        ):
            b"".join(contents(open_here(server), FILE, ""))
