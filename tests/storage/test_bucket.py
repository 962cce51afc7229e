"""A store in S3: objects are verified, even if the server keeps no checksums."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import (
    DataDamagedError,
    IncompleteError,
    JobLostError,
    StoreError,
    UsageError,
)
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage import scratch
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import AbsentError, Access
from imagenet_prep.storage.s3 import CHECK_BY_READING, S3
from imagenet_prep.storage.store import Store
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.s3_proxy import Proxy, proxied
from tests.kit.s3_server import BUCKET, SECRET_KEY, S3Server, key_of, uploads
from tests.kit.system import System

pytestmark = pytest.mark.slow  # a server takes three seconds to start

Answer = dict[str, Any]

DATA = random.Random(0).randbytes(11 << 20)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(prefix: str, limits: Limits) -> Iterator[BucketStore]:
    """A separate prefix per test, written in the smallest parts that S3 accepts."""
    limits(upload_part_bytes=5 << 20)
    yield BucketStore(prefix)
    scratch.remove_process_folder()


@pytest.fixture(params=["folder", "bucket"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return LocalStore(tmp_path / "set")
    found: BucketStore = request.getfixturevalue("store")
    return found


def test_folder_of_parts_with_foreign_owner_is_refused(tmp_path: Path, system: System) -> None:
    """A different user may have made it below TMPDIR, or a link in its place."""
    system.keeps_temporary_files(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    ours = scratch.shared_folder("any").parent
    ours.symlink_to("elsewhere")
    refused = pytest.raises(StoreError, match=says("link-not-yours-remove-set", ours))

    with refused, BucketStore("s3://bucket/set").lock():
        pytest.fail("it was locked")
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_bucket_answers_like_a_folder(either: Store) -> None:
    assert either.list_folder() == []
    assert either.names("index") == []
    assert either.size("labels.txt") is None
    names = ["labels.txt", "index/train", *(f".work/a/{i}.json" for i in range(8))]
    for name in names:
        either.write(name, name.encode())

    assert either.read("labels.txt", most=10) == b"labels.txt"
    with pytest.raises(DataDamagedError, match=says("bytes-4", "labels.txt")):
        either.read("labels.txt", most=9)
    assert either.list_folder() == [".work", "index", "labels.txt"]
    assert either.names("") == ["labels.txt"]
    assert either.names("index") == ["train"]
    assert list(either.read_each(names)) == [name.encode() for name in names]
    assert either.sizes([*names, "absent"]) == {name: len(name) for name in names}
    assert either.sizes(["labels.txt", "absent"]) == {"labels.txt": 10}
    assert either.where("labels.txt") == f"{either.where()}/labels.txt"
    with either.open_file("index/train") as stream:
        assert stream.read() == b"index/train"
    assert "a" in either.list_folder(".work")
    assert {name: stat.size for name, stat in either.stats("").items()} == {"labels.txt": 10}
    either.remove("labels.txt")
    either.remove("labels.txt")
    assert either.size("labels.txt") is None
    either.write("labels.txt", b"")
    either.remove_tree(".work/a")
    either.remove_tree(".work/a")
    assert either.list_folder() in (["index", "labels.txt"], [".work", "index", "labels.txt"])
    assert either.names(".work/a") == []


def test_sizes_have_only_the_requested_names(either: Store) -> None:
    names = [f"index/train-{number}" for number in range(9)]
    for name in names:
        either.write(name, b"12")

    assert either.sizes(names[:6]) == dict.fromkeys(names[:6], 2)


def test_each_file_that_is_read_is_small(either: Store) -> None:
    for name in ("index/a", "index/b"):
        either.write(name, b"12345")

    assert [*either.read_each(["index/a", "index/b"], most=5)] == [b"12345"] * 2
    with pytest.raises(DataDamagedError, match="index/"):
        list(either.read_each(["index/a", "index/b"], most=4))


def test_marker_of_a_folder_is_no_file(store: BucketStore, s3: S3Server) -> None:
    """Some programs make an empty object for each folder."""
    s3.client().put_object(Bucket=BUCKET, Key=key_of(store.where("index/")), Body=b"")
    store.write("index/train", b"")
    assert store.list_folder("index") == ["train"]


OURS = [
    ".work/temporary/a",
    "columns/a/train-00000-of-00001.bin",
    "export.tar",
    "index/train-00000-of-00001",
    "quarantine.jsonl",
    "samples/train-00000-of-00001.csv",
    "train-00000-of-00001",
]
THEIRS = ["models/weights.bin", "train-00000-of-00001.old"]


@pytest.mark.parametrize("shared", [False, True])
def test_lock_removes_only_our_unfinished_uploads(
    store: BucketStore, s3: S3Server, shared: bool
) -> None:
    """Other processes of a shared run may use uploads; only the end of the run removes them."""
    client = s3.client()

    def start(names: list[str]) -> None:
        for name in names:
            client.create_multipart_upload(Bucket=BUCKET, Key=key_of(store.where(name)))

    def unfinished() -> list[str]:
        return sorted(key.partition("/")[2] for key in uploads(client, store.base))

    start([*OURS, *THEIRS])
    with store.lock(shared=shared):
        assert unfinished() == sorted([*OURS, *THEIRS] if shared else THEIRS)
        start(OURS[:1])
    assert unfinished() == THEIRS
    assert store.everything() == set()
    assert not store.local.root.exists()


def test_processes_of_a_run_share_its_lock(store: BucketStore) -> None:
    """The first one that ends removes the local folder."""
    second = BucketStore(store.base)
    with store.lock(shared=True), second.lock(shared=True):
        second.write("index/train", b"")
    assert store.everything() == {"index/train"}


def test_ranges_end_at_the_end_of_the_file(either: Store) -> None:
    either.write("index/train", b"0123456789")
    either.write("quarantine.jsonl", b"")

    assert either.read("index/train", 2, 3) == b"234"
    assert either.read("index/train", 8, 100) == b"89"
    assert [either.read("index/train", *part) for part in ((10, 5), (4, 0), (1 << 40, 1))] == [
        b""
    ] * 3
    assert either.read("quarantine.jsonl", 0, 100) == b""


def test_file_replaced_since_listing_is_named(either: Store) -> None:
    either.write("index/train", DATA)
    stat = either.stats("index")["train"]
    with either.open_file("index/train", stat) as stream:
        assert stream.read() == DATA
    either.write("index/train", DATA[::-1])

    with (
        pytest.raises(IncompleteError, match="index/train: it has changed"),
        either.open_file("index/train", stat) as stream,
    ):
        stream.read(1)
    with either.open_file("index/train") as stream:
        assert stream.read(10) == DATA[:-11:-1]


def changed_answers(
    patch: pytest.MonkeyPatch, change: Callable[[str, Answer], Answer]
) -> list[str]:
    """Passes S3's answers through `change`; returns a list that collects the operations."""
    asked = S3.call
    operations: list[str] = []

    def call(s3: S3, operation: str, name: str, **arguments: Any) -> Answer:
        operations.append(operation)
        return change(operation, asked(s3, operation, name, **arguments))

    patch.setattr(S3, "call", call)
    return operations


def test_multipart_file_is_complete_and_verified(s3: S3Server, store: BucketStore) -> None:
    temporary = store.temporary()
    temporary.write_bytes(DATA)
    store.publish(temporary, "train-00000-of-00001", SHA256)

    file = DatasetFile("train-00000-of-00001", len(DATA), SHA256)
    assert not temporary.exists()
    assert store.problem(file) is None
    store.verify_published([file])
    key = key_of(store.where(file.name))
    head = s3.client().head_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")
    assert head["ChecksumType"] == "FULL_OBJECT"
    assert head["ChecksumCRC32C"] == store.stored(file.name).crc32c
    with store.open_file(file.name) as stream:
        assert stream.read() == DATA


@pytest.mark.parametrize("size", [10, 6 << 20])
@pytest.mark.parametrize("told", ["the same", "another", ""])
def test_object_is_checked_if_the_answer_is_inconclusive(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, told: str, size: int
) -> None:
    def change(operation: str, answer: Answer) -> Answer:
        if told != "the same" and operation.startswith(("put", "complete")):
            answer["ChecksumCRC32C"] = told
        return answer

    operations = changed_answers(monkeypatch, change)
    store.write("labels.txt", DATA[:size])

    assert operations.count("head_object") == (told != "the same")
    assert store.read("labels.txt") == DATA[:size]


@pytest.mark.parametrize("gone", ["removed", "completed"])
def test_missing_upload_is_restarted_unless_its_object_exists(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """A different run removed the upload, or the answer that it is complete was lost."""
    asked = S3.call
    operations: list[str] = []

    def call(s3: S3, operation: str, name: str, **arguments: Any) -> dict[str, Any]:
        is_first = operation == "complete_multipart_upload" and operation not in operations
        operations.append(operation)
        if is_first and gone == "removed":
            asked(s3, "abort_multipart_upload", name, UploadId=arguments["UploadId"])
        answer: dict[str, Any] = asked(s3, operation, name, **arguments)
        if is_first:
            raise AbsentError("NoSuchUpload")
        return answer

    monkeypatch.setattr(S3, "call", call)
    store.write("labels.txt", DATA)

    assert operations.count("create_multipart_upload") == (2 if gone == "removed" else 1)
    assert store.read("labels.txt") == DATA


def test_bytes_changed_by_the_disk_become_no_object(s3: S3Server, store: BucketStore) -> None:
    temporary = store.temporary()
    temporary.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(DataDamagedError, match=says("disk-returned-different-bytes-written")):
        store.publish(temporary, "train-00000-of-00001", SHA256)

    assert store.size("train-00000-of-00001") is None
    assert uploads(s3.client(), store.base) == []
    assert not temporary.exists()


@pytest.mark.parametrize("size", [1000, len(DATA)])
def test_failed_last_check_makes_no_object(s3: S3Server, store: BucketStore, size: int) -> None:
    def check() -> None:
        raise JobLostError("another run has begun")

    temporary = store.temporary()
    temporary.write_bytes(DATA[:size])
    with pytest.raises(JobLostError):
        store.publish(temporary, "train-00000-of-00001", None, check)

    assert store.size("train-00000-of-00001") is None
    assert uploads(s3.client(), store.base) == []


def test_first_writer_of_a_name_wins(store: BucketStore) -> None:
    assert store.write_if_absent(".work/run.json", b"mine") == b"mine"
    assert store.write_if_absent(".work/run.json", b"other") == b"mine"
    assert store.read(".work/run.json") == b"mine"


def test_claimed_name_cannot_be_claimed_again(store: BucketStore) -> None:
    assert store.try_create(".work/claims/a")
    assert not store.try_create(".work/claims/a")
    assert store.try_create(".work/claims/b")


def test_missing_or_foreign_object_is_not_confirmed(store: BucketStore) -> None:
    store.write("labels.txt", b"some")
    wrong = [DatasetFile("labels.txt", 4, "0" * 64), DatasetFile("absent", 1, "0" * 64)]
    with pytest.raises(IncompleteError) as caught:
        store.verify_published(wrong)

    assert says("changed-during-run-different-program", ..., "2 objects").search(str(caught.value))
    assert "absent: missing" in str(caught.value)
    with pytest.raises(AbsentError):
        store.read("absent")


def test_only_own_uploads_are_aborted(store: BucketStore, s3: S3Server) -> None:
    client = s3.client()
    for name in ("ours", "of-another-run"):
        client.create_multipart_upload(Bucket=BUCKET, Key=key_of(f"{store.base}/{name}"))
    store.abort_uploads("ours".__eq__)
    assert uploads(client, store.base) == [key_of(f"{store.base}/of-another-run")]


@pytest.mark.parametrize(
    ("answer", "checksum"),
    [
        ({"ChecksumCRC32C": "yZRlqg=="}, "yZRlqg=="),
        ({"ChecksumCRC32C": "yZRlqg==-2"}, None),
        ({}, None),
    ],
)
def test_checksum_of_the_parts_is_ignored(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, checksum: str | None
) -> None:
    head = {"Metadata": {}, "ContentLength": 9, "ETag": "1"}
    monkeypatch.setattr(S3, "head", lambda *_, **__: head | answer)
    assert BucketStore("s3://bucket/set").stored("x").crc32c == checksum


def test_pickled_store_contains_no_credential(store: BucketStore) -> None:
    store.write("labels.txt", b"some")
    pickled = pickle.dumps(store)

    assert SECRET_KEY.encode() not in pickled
    assert pickle.loads(pickled).read("labels.txt") == b"some"


@pytest.mark.extras
@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "\x1b[2J", "a\\b"], ids=ascii)
def test_outside_names_are_refused_before_any_request(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: System
) -> None:
    pytest.importorskip("boto3")
    system.keeps_temporary_files(tmp_path / "tmp" / "in")
    (tmp_path / "tmp" / "in").mkdir(parents=True)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = BucketStore("s3://bucket/prefix", Access(retries=0))  # this server does not exist
    asked: list[Callable[[], object]] = [
        lambda: store.size(name),
        lambda: store.sizes([name]),
        lambda: store.names(name),
        lambda: store.read(name),
        lambda: store.write(name, b"theirs"),
        lambda: store.write_if_absent(name, b"theirs"),
        lambda: store.open_file(name).__enter__(),
        lambda: store.remove(name),
        lambda: store.remove_tree(name),
    ]
    for ask in asked:
        with pytest.raises(
            DataDamagedError, match=says("nothing-read-written-name-comes", "the name")
        ):
            ask()
    scratch.remove_process_folder()

    assert list((tmp_path / "tmp").rglob("*")) == [tmp_path / "tmp" / "in"]


def test_empty_folder_object_is_removed_with_its_folder(store: BucketStore, s3: S3Server) -> None:
    s3.client().put_object(Bucket=BUCKET, Key=key_of(store.where(".work/a/")), Body=b"")
    store.write(".work/a/b", b"")
    store.remove_tree(".work")

    assert store.everything() == set()


def test_copy_of_object_without_sha256_is_verified(store: BucketStore, s3: S3Server) -> None:
    """A different program uploaded it, so the object is read and its copy gets a sha256."""
    there = BucketStore(f"{store.base}-there")
    file = DatasetFile("index/a", 3, _sha256(b"one"))
    key = key_of(f"{there.base}/index/a")
    s3.client().put_object(Bucket=BUCKET, Key=key, Body=b"one")
    problem = there.problem(file)
    assert problem is not None
    assert says("server-stored-no-sha256-metadata", "index/a").search(problem)
    store.adopt_files(there, [file])
    store.verify_published([file])
    assert store.read("index/a") == b"one"

    store.remove("index/a")
    s3.client().put_object(Bucket=BUCKET, Key=key, Body=b"two")
    with pytest.raises(DataDamagedError, match="index/a"):
        store.adopt_files(there, [file])
    assert "index/a" not in store.everything()


def test_server_copies_objects_of_a_different_prefix(
    store: BucketStore,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    limits: Limits,
) -> None:
    """Nothing is downloaded, except for objects larger than one copy request allows."""

    there = BucketStore(f"{store.base}-there")
    files = [
        DatasetFile("train-00000-of-00001", len(DATA), SHA256),
        DatasetFile("index/a", 3, _sha256(b"one")),
    ]
    for file, data in zip(files, (DATA, b"one"), strict=True):
        there.put(file, lambda data=data: io.BytesIO(data))  # type: ignore[misc]
    with monkeypatch.context() as patch:
        patch.setattr(BucketStore, "open_file", None)
        patch.setattr(BucketStore, "chunks", None)
        for _ in range(2):
            store.adopt_files(there, files)
    store.verify_published(files)
    assert store.read("index/a") == b"one"

    # A different object under the name is replaced; one that has changed at its source is not
    # copied.
    store.write("index/a", b"two")
    limits(copied_at_once_bytes=1 << 20)
    store.remove("train-00000-of-00001")
    store.adopt_files(there, files)
    store.verify_published(files)
    there.write("index/a", b"two")
    with pytest.raises(DataDamagedError, match=says("stored-sha256-expected", "index/a")):
        store.adopt_files(there, files)
    assert store.read("index/a") == b"one"
    for kinds in ((store, LocalStore(tmp_path)), (LocalStore(tmp_path), store)):
        with pytest.raises(UsageError, match="imagenet-prep"):
            kinds[0].adopt_files(kinds[1], files)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def forgetful(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A server that stores no checksums of objects."""
    with proxied(s3.url, seed=0, faults=0, rate=0.0) as standing:
        standing.keeps_checksums = False
        monkeypatch.setenv("AWS_ENDPOINT_URL", standing.url)
        yield standing


@pytest.mark.parametrize("size", [10, len(DATA)])
def test_server_without_checksums_is_refused_at_once(
    forgetful: Proxy, store: BucketStore, size: int
) -> None:
    """Each request gets the same answer, so retries would send the object in vain."""
    with pytest.raises(StoreError) as caught:
        store.write("labels.txt", DATA[:size])

    said = str(caught.value)
    assert said.count("labels.txt") == 1
    assert says("server-stored-no-crc32c-s3").search(said)
    assert f"set {CHECK_BY_READING}=1" in said
    assert len({each.partition("?")[0] for each in forgetful.puts}) == 1
    assert len(forgetful.puts) <= 3, "the object was sent again"


def test_repeated_wrong_checksum_ends_the_run(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers combine the checksums of the parts of an object in their own way."""
    operations = changed_answers(
        monkeypatch, lambda _, answer: {**answer, "ChecksumCRC32C": "AAAAAA=="}
    )
    with pytest.raises(StoreError, match=r"CRC32C is AAAAAA==.*" + CHECK_BY_READING):
        store.write("labels.txt", DATA[:10])
    assert operations.count("put_object") == 2


@pytest.mark.parametrize("lacking", ["checksums", "metadata"])
def test_missing_server_feature_is_found_first(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def change(_: str, answer: Answer) -> Answer:
        if lacking == "checksums":
            answer.pop("ChecksumCRC32C", None)
        return {**answer, "Metadata": {}} if lacking == "metadata" else answer

    operations = changed_answers(monkeypatch, change)
    with pytest.raises(StoreError, match=CHECK_BY_READING), store.lock():
        pytest.fail("the run began")

    assert operations.count("put_object") == 1


@pytest.mark.parametrize("size", [10, len(DATA)])
def test_objects_are_read_back_from_servers_without_checksums(
    forgetful: Proxy,
    store: BucketStore,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    s3: S3Server,
) -> None:
    monkeypatch.setenv(CHECK_BY_READING, "1")
    reads = BucketStore(store.base)
    data = DATA[:size]
    file = DatasetFile("labels.txt", size, _sha256(DATA[:size]))
    assert reads.write_if_absent(".work/run.json", b"mine") == b"mine"
    reads.write(file.name, data)
    asked: list[str] = []
    read = S3.read
    monkeypatch.setattr(S3, "read", lambda *words: asked.append(words[1]) or read(*words))
    reads.verify_published([file])
    assert asked == [], "it was read back before"

    damaged = data[:-1] + bytes([data[-1] ^ 1])
    s3.client().put_object(
        Bucket=BUCKET,
        Key=key_of(store.where(file.name)),
        Body=damaged,
        Metadata={"sha256": file.sha256},
    )
    problem = BucketStore(store.base).problem(file)
    assert problem is not None
    assert problem == f"labels.txt: sha256 {_sha256(damaged)}, expected {file.sha256}"
    reads.write(file.name, data)
    assert BucketStore(store.base).problem(file) is None
    there = BucketStore(f"{store.base}-copy")
    there.adopt_files(reads, [file])
    there.verify_published([file])
    assert forgetful.puts
