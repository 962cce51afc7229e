"""Datasets in a bucket: the same results as from a folder, and every fault is named."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import adopt
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import keep
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
)
from imagenet_prep.dataset import example, manifest, record_files, schema
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import rewrite
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.shard_files import Labelling
from imagenet_prep.storage import scratch
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store, open_store
from tests.kit.dataset import contents
from tests.kit.messages import says
from tests.kit.s3_server import S3Server, objects
from tests.kit.tfrecords import framed, picture, plain, write_dataset

pytestmark = pytest.mark.slow  # a server takes three seconds to start

FIRST = "train-00000-of-00002"
SECOND = "train-00001-of-00002"
VALIDATION = "validation-00000-of-00002"


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Two shards each of train and validation, with a manifest."""
    pictures = [picture(number, plain(number)) for number in range(8)]
    splits = {"train": [pictures[:3], pictures[3:]], "validation": [pictures[6:], pictures[:6]]}
    write_dataset(tmp_path / "in", splits, num_classes=8)
    return tmp_path / "in"


def put(folder: Path, address: str) -> BucketStore:
    """Puts the files of a folder into a bucket, as any program would."""
    store = BucketStore(address)
    for path in folder.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(folder)), path.read_bytes())
    return store


def strip(root: Path) -> Path:
    """Reduces a dataset to the form of other programs: only shards, in a folder per split."""
    for path in root.rglob("*"):
        if path.is_file() and (path.parent != root or "-of-" not in path.name):
            path.unlink()
    (root / "train").mkdir()
    for name in (FIRST, SECOND):
        (root / name).rename(root / "train" / name)
    return root


def made(store: Store, client: Any) -> dict[str, bytes]:
    """Returns the dataset in a store without its work folder."""
    if folder := store.as_folder:
        return contents(folder.root)
    found = objects(client, store.where())
    return {name: data for name, data in found.items() if not name.startswith(schema.WORK)}


def resize(source: Store, out: Store, *splits: str, **more: Any) -> dict[str, Any]:
    found = shard_files.find(source)
    options = {"policy": Policy(16, 85), "workers": Workers(1, "threads"), "quiet": True, **more}
    return rewrite.run(rewrite.ResizeJob(found, splits or tuple(found.splits), **options), out)


@pytest.mark.parametrize("into", ["folder", "bucket"])
def test_resize_from_a_bucket_equals_resize_from_folder(
    given: Path, prefix: str, s3: S3Server, tmp_path: Path, into: str
) -> None:
    scratch.remove_process_folder()  # with the files of earlier tests of this process
    expected = LocalStore(tmp_path / "expected")
    out = open_store(f"{prefix}/out")
    if into == "folder":
        out = LocalStore(tmp_path / "out")
    resize(LocalStore(given), expected)
    source = put(given, f"{prefix}/in")
    resize(source, out, workers=Workers(1, "threads" if into == "folder" else "processes"))

    assert made(out, s3.client()) == contents(expected.root)
    out.remove(SECOND)
    again = resize(source, out)
    assert again["written_examples"] == 5
    assert made(out, s3.client()) == contents(expected.root)
    assert not [path for path in scratch.process_folder().rglob("*") if path.is_file()]


def test_splits_are_added_and_replaced_in_a_bucket(given: Path, prefix: str, s3: S3Server) -> None:
    """A run for a second split that failed in its second shard resumes; --force starts again."""
    source = put(given, f"{prefix}/in")
    out = BucketStore(f"{prefix}/out")
    resize(source, out, "train")
    whole = source.read("validation-00001-of-00002")
    source.write("validation-00001-of-00002", whole[:-5] + b"?" + whole[-4:])
    with pytest.raises(DataDamagedError, match="validation-00001-of-00002: record 5"):
        resize(source, out, "validation")
    assert VALIDATION in out.list_folder()
    source.write("validation-00001-of-00002", whole)
    with pytest.raises(UsageError, match="short_side"):
        resize(source, out, "validation", policy=Policy(20, 85), force=False)
    resize(source, out, "train", "validation")
    before = made(out, s3.client())
    resize(source, out, "train", policy=Policy(20, 85), force=True)

    after = made(out, s3.client())
    there = manifest.loads(after[schema.MANIFEST], "")
    assert list(there.splits) == ["train", "validation"]
    assert after[VALIDATION] == before[VALIDATION]
    assert after[FIRST] != before[FIRST]


def test_work_that_reads_a_bucket_can_be_pickled(given: Path, prefix: str, tmp_path: Path) -> None:
    source = put(given, f"{prefix}/in")
    found = shard_files.find(source)
    labelling = shard_files.known_labelling(found)
    assert isinstance(labelling, Labelling)
    out = LocalStore(tmp_path)
    write = WriteWork(out, keep, labelling.classes, label_offset=1, fail_on_bad_image=True)
    work = rewrite.RewriteWork(write, source, labelling, False, {}, {})
    sent, shard = pickle.loads(pickle.dumps((work, found.splits["train"][0])))
    content, outputs = sent(shard)

    with outputs[-1].temporary.open("rb") as stream:
        written = [example.decode(r.payload) for r in record_files.read_records(stream, "")]
    assert [image.encoded for image in written] == [plain(number) for number in range(3)]
    assert (content.source.members, sum(content.num_per_class.values())) == (3, 3)


def test_damage_in_a_bucket_is_named(given: Path, prefix: str) -> None:
    source = put(given, f"{prefix}/in")
    out = BucketStore(f"{prefix}/out")
    whole = source.read(FIRST)
    source.write(FIRST, whole[:100] + b"?" + whole[101:])
    with pytest.raises(DataDamagedError, match=says("record-byte-3", FIRST, "0", "0", "data CRC")):
        resize(source, out)
    records = list(record_files.read_records(io.BytesIO(whole), FIRST))
    source.write(FIRST, b"".join(framed(each.payload) for each in reversed(records)))
    with pytest.raises(DataDamagedError, match=says("sha256-expected", FIRST)):
        resize(source, out)
    options = {"splits": ("train", "validation"), "policy": Policy(16, 85), "quiet": True}
    options["workers"] = Workers(1, "threads")
    found = shard_files.find(source)
    source.write(FIRST, whole)
    with pytest.raises(IncompleteError, match=says("changed-since-run-began-address", FIRST)):
        rewrite.run(rewrite.ResizeJob(found, **options), out)
    found = shard_files.find(source)
    source.remove(FIRST)
    with pytest.raises(StoreError, match=rf"{FIRST}: the server answers 404"):
        rewrite.run(rewrite.ResizeJob(found, **options), out)
    with pytest.raises(UsageError, match=says("input-choose-different-folder-result")):
        rewrite.run(rewrite.ResizeJob(found, **options), BucketStore(f"{prefix}/in/"))
    assert schema.MANIFEST not in out.list_folder()


@pytest.mark.parametrize(
    ("way", "rewritten"), [("from", False), ("to", False), ("within", False), ("within", True)]
)
def test_adoption_with_buckets_equals_adoption_with_folders(
    given: Path, prefix: str, s3: S3Server, tmp_path: Path, way: str, rewritten: bool
) -> None:
    def run(folder: Path | str, out: Path | str) -> dict[str, Any]:
        flags = {"allow_subset": True, "rewrite": rewritten, "workers": 1, "json": True}
        summary, refusal = adopt.adopt(adopt.AdoptConfig(str(folder), out=str(out), **flags))
        assert refusal is None
        return {name: each for name, each in summary.items() if name != "folder"}

    source: Path | str = strip(given)
    expected = run(source, tmp_path / "expected")
    out = tmp_path / "out" if way == "from" else f"{prefix}/out"
    if way != "to":
        source = put(given, f"{prefix}/in").where()
    assert run(source, out) == expected

    store = open_store(str(out))
    assert made(store, s3.client()) == contents(tmp_path / "expected")
    if not rewritten and way == "within":
        # The remains of a run that was killed before its end are completed.
        store.remove(schema.MANIFEST)
        store.remove(FIRST)
        assert run(source, out) == expected
        assert made(store, s3.client()) == contents(tmp_path / "expected")


def test_inaccessible_dataset_is_explained(
    given: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(strip(given), f"{prefix}/in")

    def complaint(address: str) -> ImagenetPrepError:
        with pytest.raises(ImagenetPrepError) as caught:
            shard_files.find(open_store(address))
        return caught.value

    assert "nobody/in/: the server answers 404" in str(complaint("s3://nobody/in"))
    empty = complaint(f"{prefix}/empty")
    assert isinstance(empty, UsageError)
    assert says("no-tfrecord-shards-here-found", ..., "nothing").search(str(empty))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = complaint(f"{prefix}/in")
    assert says("server-answers", "403").search(str(refused))
    assert "AWS_" in str(refused)
