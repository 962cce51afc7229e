"""Opening a dataset: each file is compared with the manifest before it is used."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    ManifestError,
    UsageError,
)
from imagenet_prep.dataset import schema, tfds
from imagenet_prep.dataset.column import Placement
from imagenet_prep.dataset.manifest import DatasetFile, Manifest, ManifestSource
from imagenet_prep.dataset.member import QUARANTINED, Incident
from imagenet_prep.storage import dataset_store, ledger
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import SourceLocation
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset


def list_file(root: Path, name: str, data: bytes) -> None:
    """Writes a file, and lists it in the manifest."""
    (root / name).write_bytes(data)
    there = Dataset.at(LocalStore(root)).manifest
    file = DatasetFile(name, len(data), hashlib.sha256(data).hexdigest())
    others = [other for other in there.files if other.name != name]
    change(root, dataclasses.replace(there, files=[*others, file]))


def change(root: Path, manifest: Manifest) -> None:
    (root / schema.MANIFEST).write_bytes(manifest.dumps())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of 3 + 2 images in two shards, and of one image."""
    folder = tmp_path / "set"
    shards = [[picture(n, plain(n)) for n in numbers] for numbers in ((0, 1, 2), (3, 4))]
    write_dataset(folder, {"train": shards, "validation": [[picture(5, plain(5))]]}, num_classes=6)
    add_tables(folder)
    there = Dataset.at(LocalStore(folder)).manifest
    of_split = {name: split.shards for name, split in there.splits.items()}
    list_file(folder, schema.TFDS_INFO, tfds.dataset_info(tfds.IMAGENET, of_split, there.subset))
    return folder


def of(root: Path) -> Dataset:
    return Dataset.at(LocalStore(root))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_sound_datasets_open(root: Path) -> None:
    dataset = open_dataset(str(root))
    assert dataset.contradictions() == []
    assert dataset.missing_files() == []
    assert dataset.where == str(root)
    assert [shard.examples for shard in dataset.shards("train")] == [3, 2]
    assert dataset.shards("test") == []
    assert [
        [row.class_index for row in rows] for rows in dataset.rows(dataset.shards("train"))
    ] == [
        [0, 1, 2],
        [3, 4],
    ]
    heads = [[*rows] for rows in dataset.heads(dataset.shards("train"))]
    assert [len(rows) for rows in heads] == [3, 2]


@pytest.mark.parametrize("name", [schema.LABELS, schema.TFDS_INFO])
@pytest.mark.parametrize("fault", ["missing", "bit", "longer"])
def test_small_files_match_their_sha256(root: Path, name: str, fault: str) -> None:
    """The same size is not enough."""
    path = root / name
    if fault == "missing":
        path.unlink()
    elif fault == "bit":
        flip(path, 9)
    else:
        path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ManifestError) as refused:
        of(root).small_file(name)
    assert str(path) in str(refused.value)


def test_unlisted_small_files_are_refused(root: Path) -> None:
    (root / "notes").write_text("x")
    with pytest.raises(ManifestError):
        of(root).small_file("notes")


def of_other_shards(root: Path) -> bytes:
    splits = of(root).manifest.splits
    shards = {name: split.shards for name, split in splits.items()}
    shards["train"] = [dataclasses.replace(shards["train"][0], examples=4), shards["train"][1]]
    return tfds.dataset_info(tfds.IMAGENET, shards, subset=True)


@pytest.mark.parametrize("content", [None, b"{}", b"[]", b"?"])
def test_dataset_info_lists_the_shards_of_the_manifest(root: Path, content: bytes | None) -> None:
    list_file(root, schema.TFDS_INFO, of_other_shards(root) if content is None else content)
    with pytest.raises(ManifestError) as refused:
        _ = of(root).tfds_info
    assert schema.TFDS_INFO in str(refused.value)
    assert len(of(root).contradictions()) == 1


def test_datasets_without_dataset_info_have_no_contradiction(root: Path) -> None:
    there = of(root).manifest
    files = [file for file in there.files if file.name != schema.TFDS_INFO]
    change(root, dataclasses.replace(there, files=files))
    assert of(root).contradictions() == []


def test_class_lists_are_compared_with_the_manifest(root: Path) -> None:
    lines = (root / schema.LABELS).read_bytes().splitlines(keepends=True)
    list_file(root, schema.LABELS, b"".join(lines[::-1]))
    assert len(of(root).contradictions()) == 1
    with pytest.raises(ManifestError):
        open_dataset(str(root))
    assert open_dataset(str(root), check=False).labels.wnids


def test_parts_open_only_on_request(root: Path) -> None:
    (root / schema.PLACEMENT).write_bytes(Placement(1, 2, 1).dumps(of(root).manifest.digest))
    with pytest.raises(UsageError) as refused:
        open_dataset(str(root))
    assert str(root) in str(refused.value)
    part = open_dataset(str(root), parts=True)
    assert part.placement == Placement(1, 2, 1)
    assert [shard.examples for shard in part.shards("train")] == [3, 2]
    assert [shard.examples for shard in of(root).shards("validation")] == [1]


def test_the_new_manifest_is_preferred(root: Path) -> None:
    """A killed run leaves the replaced manifest next to the new one."""
    there = of(root).manifest
    store = LocalStore(root)
    (root / schema.WORK).mkdir()
    (root / schema.REPLACED).write_bytes(dataclasses.replace(there, subset=False).dumps())
    for names, subset in (
        ([schema.MANIFEST, schema.REPLACED], True),
        ([schema.MANIFEST], True),
        ([schema.REPLACED], False),
    ):
        found = dataset_store.committed_dataset(store, names)
        assert found is not None
        assert found.manifest.subset is subset
    assert dataset_store.committed_dataset(store, [schema.LABELS]) is None


@pytest.mark.parametrize("name", [schema.MANIFEST, schema.REPLACED])
def test_manifests_removed_meanwhile_mean_a_busy_run(root: Path, name: str) -> None:
    (root / schema.MANIFEST).unlink()
    with pytest.raises(BusyError):
        dataset_store.committed_dataset(LocalStore(root), [name])


@pytest.mark.parametrize("name", [schema.MANIFEST, *schema.BESIDE])
def test_pipes_in_a_dataset_are_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    os.mkfifo(root / name)
    with pytest.raises(ImagenetPrepError) as refused:
        dataset_store.require_file(LocalStore(root))
    assert str(root / name) in str(refused.value)
    with pytest.raises(ImagenetPrepError):
        open_dataset(str(root))


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ((), UsageError),
        ((f"{schema.WORK}/run.json",), IncompleteError),
        ((f"{schema.WORK}/x", schema.TRAINING_LOG), UsageError),
        ((schema.TRAINING_LOG,), UsageError),
    ],
)
def test_folders_without_a_manifest_are_unfinished_or_foreign(
    tmp_path: Path, files: tuple[str, ...], error: type[ImagenetPrepError]
) -> None:
    root = tmp_path / "set"
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    with pytest.raises(error) as refused:
        open_dataset(str(root))
    assert type(refused.value) is error
    assert str(root) in str(refused.value)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        open_dataset(str(tmp_path / "none"))
    assert "adopt" not in str(refused.value)


TABLE = schema.samples_name("train-00000-of-00002")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def without_a_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def with_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))


def with_another_digit(path: Path) -> None:
    data = path.read_bytes()
    place = len(data) - 3
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


@pytest.mark.parametrize("spoil", [cut, without_a_line, with_a_line, with_another_digit])
@pytest.mark.parametrize("ahead", [0, 1 << 20])
def test_tables_match_the_manifest(
    root: Path, limits: Limits, spoil: Callable[[Path], None], ahead: int
) -> None:
    limits(table_ahead_bytes=ahead)
    path = root / TABLE
    assert len(tables(root)) == 5
    spoil(path)
    with pytest.raises(DataDamagedError) as refused:
        tables(root)
    assert str(path) in str(refused.value)


def tables(root: Path) -> list[int]:
    dataset = of(root)
    shards = dataset.shards("train")
    return [row.class_index for rows in dataset.rows(shards) for row in rows]


def test_other_tables_are_read_after_a_damaged_one(root: Path) -> None:
    cut(root / TABLE)
    dataset = of(root)
    read = []
    for rows in dataset.rows(dataset.shards("train")):
        try:
            read.append(len([*rows]))
        except DataDamagedError:
            read.append(-1)
    assert read == [-1, 2]


def test_tables_are_searched_only_if_they_are_sound(root: Path) -> None:
    shard = of(root).shards("train")[0]
    store = LocalStore(root)
    key = next(dataset_store.sample_rows(store, shard)).key.encode()
    assert dataset_store.table_mentions(store, shard, [b"no such key", key])
    assert not dataset_store.table_mentions(store, shard, [b"no such key"])
    sound = (root / TABLE).read_bytes()
    (root / TABLE).write_bytes(sound + b"x")
    assert dataset_store.table_mentions(store, shard, [b"no such key"])
    (root / TABLE).write_bytes(sound)
    flip(root / TABLE, 5)
    assert dataset_store.table_mentions(store, shard, [b"no such key"])
    (root / TABLE).unlink()
    assert dataset_store.table_mentions(store, shard, [b"no such key"])


def test_large_tables_are_not_searched(root: Path, limits: Limits) -> None:
    shard = of(root).shards("train")[0]
    limits(table_ahead_bytes=shard.samples_bytes - 2)
    assert dataset_store.table_mentions(LocalStore(root), shard, [b"no such key"])
    limits(table_ahead_bytes=shard.samples_bytes)
    assert not dataset_store.table_mentions(LocalStore(root), shard, [b"no such key"])


def test_strays_are_files_of_other_shards(tmp_path: Path) -> None:
    known = ["train-00000-of-00002", "train-00001-of-00002"]
    strays = ["train-00000-of-00003", "validation-00000-of-00001", "train-x.tfrecord"]
    for name in [*known, *strays, "test-00000-of-00001", "README"]:
        (tmp_path / name).write_text("x")
    beside = [name for shard in [known[0], strays[0]] for name in schema.beside(shard)]
    for name in beside:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    store = LocalStore(tmp_path)
    found = {*dataset_store.stray_files(store, known)}
    assert found >= {*schema.beside(strays[0]), strays[0], strays[1]}
    assert found.isdisjoint({*known, *schema.beside(known[0]), "README", "test-00000-of-00001"})
    assert "test-00000-of-00001" in dataset_store.stray_files(store, ["test-00000-of-00002"])
    # An index or table has no reader that takes it for its own.
    for name in schema.beside("test-00000-of-00001"):
        (tmp_path / name).write_text("x")
        assert name in dataset_store.stray_files(store, known)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("IMG_1.JPG", True),
        ("a.jpeg", True),
        ("photos.Tar", True),
        ("hub.PARQUET", True),
        ("notes.txt", False),
        (".hidden.jpg", False),
        ("photos/", True),
        ("columns/", False),
        (".git/", False),
    ],
)
def test_new_dataset_is_not_mixed_with_images(tmp_path: Path, name: str, is_refused: bool) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(b"x")
    store = LocalStore(tmp_path)
    assert dataset_store.unrelated_names(store) == [name.rstrip("/")] * is_refused
    if is_refused:
        with pytest.raises(UsageError, match=says("contains-no-dataset-choose-empty", tmp_path)):
            dataset_store.refuse_unrelated(store)
    dataset_store.refuse_unrelated(store, str(tmp_path / name))


def test_only_the_source_may_be_in_the_folder(tmp_path: Path) -> None:
    for name in ("photos", "other"):
        (tmp_path / name).mkdir()
    store = LocalStore(tmp_path)
    with pytest.raises(
        UsageError, match=says("contains-no-dataset-choose-empty", tmp_path, "other")
    ):
        dataset_store.refuse_unrelated(store, str(tmp_path / "photos"))
    (tmp_path / "other").rmdir()
    dataset_store.refuse_unrelated(store, str(tmp_path / "photos/train"))


@pytest.mark.parametrize(("num_classes", "is_sound"), [(3, True), (2, False)])
def test_classes_of_tables_are_in_the_class_list(
    root: Path, num_classes: int, *, is_sound: bool
) -> None:
    shard = of(root).shards("train")[0]
    for read in (dataset_store.sample_heads, dataset_store.sample_rows):
        rows = read(LocalStore(root), shard, num_classes)
        if is_sound:
            assert len([*rows]) == 3
        else:
            with pytest.raises(DataDamagedError):
                list(rows)


def test_outputs_among_images_of_the_source_are_refused(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "in"
    sources = [ManifestSource("photos", 9, None, 6)]
    change(root, dataclasses.replace(of(root).manifest, sources=sources))
    ledger.note_source(of(root).manifest.digest, SourceLocation(str(place), {}))
    for out in (root / "new", place / "photos", place / "photos/new"):
        with pytest.raises(UsageError, match=says("inside-belongs-input-never-changes", out)):
            dataset_store.refuse_inside(str(out), of(root))
    for other in (place / "new", tmp_path / "new", "s3://bucket/photos"):
        dataset_store.refuse_inside(str(other), of(root))


def incident(key: str) -> Incident:
    return Incident(key, "a.tar", 0, 9, 0, QUARANTINED, "truncated", "detail", "train")


def test_quarantine_lists_match_the_manifest(root: Path) -> None:
    store = LocalStore(root)
    assert [*dataset_store.incidents(store, of(root).manifest)] == []
    lines = [incident("a"), incident("b")]
    list_file(root, schema.QUARANTINE, b"".join(row.line for row in lines))
    there = of(root).manifest
    assert [*dataset_store.incidents(store, there)] == lines
    assert dataset_store.num_excluded(store, there) == 0

    (root / schema.QUARANTINE).write_bytes(lines[0].line)
    assert [*dataset_store.incidents(store)] == lines[:1]
    with pytest.raises(ManifestError) as refused:
        [*dataset_store.incidents(store, there)]
    assert str(root / schema.QUARANTINE) in str(refused.value)
    (root / schema.QUARANTINE).unlink()
    with pytest.raises(ManifestError):
        [*dataset_store.incidents(store, there)]
