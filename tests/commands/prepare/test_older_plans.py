"""A finished dataset has only its own files, even if earlier runs left files in its folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagenet_prep import verify
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.pipelines.prepare import prepare
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.storage.dataset_store import shard_files
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import open_store
from tests.kit.dataset import all_files
from tests.kit.messages import says
from tests.kit.tfrecords import plain

LOCAL = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images per shard of train and holdout, two per shard of validation and test."""
    for split, size in ((schema.TRAIN, 4), (schema.VALIDATION, 2)):
        num_shards = schema.DEFAULT_NUM_SHARDS[split]
        monkeypatch.setitem(schema.OFFICIAL_NUM_EXAMPLES, split, size * num_shards)


def source(root: Path, num: int, first: int = 0, split: str = "train") -> Path:
    """Makes a folder of `num` images in two classes."""
    for number in range(first, first + num):
        path = root / split / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(plain(number))
    return root


def shrink(root: Path, keep: int) -> None:
    """Removes all images of a source except those with the `keep` lowest numbers of each split."""
    for path in root.rglob("*.jpg"):
        if int(path.stem) >= keep:
            path.unlink()


def run(source: Path, out: Path | str, *beam: str, **flags: object) -> dict[str, object]:
    flags = {"splits": ("train",), "workers": 1, **flags}
    config = PrepareConfig(source=str(source), out=str(out), json=True, beam_args=beam, **flags)
    return prepare(config)


def kill(out: Path, *lost: str) -> None:
    """Changes a folder to the state of a run that is killed before it writes these files."""
    for name in (schema.MANIFEST, *lost):
        (out / name).unlink()


def is_sound(out: Path | str) -> bool:
    return verify.verify(verify.VerifyConfig(dataset=str(out), json=True))["problems"] == []


@pytest.mark.parametrize("num", [3, 4, 5, 9, 13])
@pytest.mark.parametrize("holdout", ["0", "50%"])
@pytest.mark.parametrize(
    "lost",
    [
        (),
        ("train-00000-of-00002", "index/train-00000-of-00002"),
        ("samples/train-00001-of-00002.csv",),
    ],
)
def test_run_replaces_unfinished_shards_if_source_changed(
    tmp_path: Path, num: int, holdout: str, lost: Sequence[str]
) -> None:
    out = tmp_path / "out"
    images = source(tmp_path / "source", 8 if holdout == "0" else 16)
    run(images, out, holdout=holdout)
    kill(out, *lost)
    shrink(images, num)
    source(images, max(0, num - 8), first=100)
    run(images, out, holdout=holdout)
    run(images, tmp_path / "fresh", holdout=holdout)

    assert is_sound(out)
    assert shard_files(LocalStore(out)) == shard_files(LocalStore(tmp_path / "fresh"))


def test_unfinished_files_are_replaced_if_source_differs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source(tmp_path / "first", 12), out)
    kill(out)
    second = source(tmp_path / "second", 6, first=50)
    run(second, out)
    assert is_sound(out)
    assert all("of-00002" in name for name in shard_files(LocalStore(out)))


def test_files_of_larger_splits_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    images = source(source(tmp_path / "source", 9), 5, split="val")
    run(images, out, splits=("train", "validation"))
    kill(out, "validation-00001-of-00003")
    shrink(images, 4)
    run(images, out, splits=("train", "validation"))
    assert is_sound(out)


@pytest.mark.parametrize(
    "stranger",
    [
        "train-00003-of-00005",
        "index/train-00003-of-00005",
        "samples/train-00003-of-00005.csv",
        "samples/notes.txt",
        "index/validation-00000-of-00001",
    ],
)
def test_file_without_receipt_is_refused_before_work_starts(tmp_path: Path, stranger: str) -> None:
    images = source(tmp_path / "source", 8)
    out = tmp_path / "out"
    run(images, out)
    kill(out)
    (out / stranger).write_bytes(b"precious")
    (out / "train-00001-of-00002").unlink()
    before = shard_files(LocalStore(out))
    for more in ({}, {"dry_run": True}):
        with pytest.raises(UsageError, match=says("already-contains-run-not-write", ..., stranger)):
            run(images, out, **more)
    assert shard_files(LocalStore(out)) == before

    (out / stranger).unlink()
    run(images, out)
    assert is_sound(out)


def test_receipt_is_invalid_for_a_different_size(tmp_path: Path) -> None:
    """The user has replaced a shard of the killed run by one of a different program."""
    images = source(tmp_path / "source", 8)
    out = tmp_path / "out"
    run(images, out)
    kill(out)
    (out / "train-00001-of-00002").write_bytes(b"precious")
    shrink(images, 3)
    with pytest.raises(
        UsageError,
        match=says("already-contains-run-not-write", ..., "train-00001-of-00002", "prepare"),
    ):
        run(images, out)
    assert (out / "train-00000-of-00002").exists()
    assert (out / "train-00001-of-00002").read_bytes() == b"precious"


def test_planted_receipt_removes_no_other_file(tmp_path: Path) -> None:
    images = source(tmp_path / "source", 8)
    out = tmp_path / "out"
    run(images, out)
    kill(out)
    (out / "notes.md").write_text("mine")
    (receipt,) = out.glob(".work/write-*/receipts/train-00001-of-00002.json")
    content = json.loads(receipt.read_bytes())
    content["outputs"] += [{"name": "notes.md", "num_bytes": 4}]
    receipt.write_text(json.dumps(content))
    (receipt.parent / "train-00000-of-00002.json").write_text("[")
    shrink(images, 3)
    with pytest.raises(
        UsageError,
        match=says("already-contains-run-not-write", ..., "index/train-00000-of-00002, samples/"),
    ):
        run(images, out)

    for name in shard_files(LocalStore(out)):
        if "train-00000-of-00002" in name:
            (out / name).unlink()
    run(images, out)
    assert is_sound(out)
    assert (out / "notes.md").read_text() == "mine"


def test_unknown_file_in_finished_dataset_is_named(tmp_path: Path) -> None:
    images = source(tmp_path / "source", 8)
    out = tmp_path / "out"
    run(images, out)
    shutil.copy(out / "train-00000-of-00002", out / "train-00000-of-00003")
    before = all_files(out)
    with pytest.raises(
        UsageError, match=says("already-contains-run-not-write", ..., "train-00000-of-00003")
    ):
        run(images, out)
    assert all_files(out) == before


@pytest.mark.slow
def test_bucket_has_only_files_of_the_last_plan(tmp_path: Path, prefix: str) -> None:
    images = source(tmp_path / "source", 8)
    store = open_store(prefix)
    run(images, prefix)
    store.remove(schema.MANIFEST, "train-00000-of-00002")
    shrink(images, 3)
    run(images, prefix)
    assert is_sound(prefix)
    assert all("of-00001" in name for name in shard_files(store))

    store.remove(schema.MANIFEST)
    store.write("train-00003-of-00005", b"precious")
    with pytest.raises(
        UsageError, match=says("already-contains-run-not-write", ..., "train-00003-of-00005")
    ):
        run(images, prefix)
    assert store.read("train-00003-of-00005") == b"precious"


@pytest.mark.beam
def test_cluster_keeps_only_files_of_the_last_plan(tmp_path: Path) -> None:
    images = source(tmp_path / "source", 8)
    out = tmp_path / "out"
    run(images, out, LOCAL)
    kill(out, "train-00000-of-00002")
    shrink(images, 3)
    run(images, out, LOCAL)
    assert is_sound(out)
    assert all("of-00001" in name for name in shard_files(LocalStore(out)))
