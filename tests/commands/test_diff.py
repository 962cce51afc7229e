"""`diff` compares two datasets image by image, and reads only their tables."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.example import ImageExample
from tests.kit import command
from tests.kit.columns import make_column
from tests.kit.dataset import all_files, everything
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.opened import opened
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

CLASSES = 5


def example(number: int, look: int | None = None, class_index: int | None = None) -> ImageExample:
    index = number % CLASSES if class_index is None else class_index
    one = picture(index, plain(number if look is None else look))
    return one._replace(filename=f"image_{number}.JPEG")


def written(
    root: Path, shards: list[list[ImageExample]], num_classes: int = CLASSES, **more: Any
) -> Path:
    splits = {"train": shards, "validation": [[example(900), example(901)]], **more}
    write_dataset(root, splits, num_classes=num_classes)
    add_tables(root)
    return root


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images of train in three shards; read-only."""
    images = [example(number) for number in range(30)]
    return written(tmp_path_factory.mktemp("one") / "set", [images[n::3] for n in range(3)])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset with five changed images, in two shards and a different order; read-only."""
    images = {number: example(number) for number in range(30)}
    del images[7]
    images[40] = example(40)
    images[3] = example(3, look=4)  # different size
    images[10] = example(10, look=10 + 35)  # same size
    del images[12]
    images[41] = example(41, class_index=2)
    order = sorted(images.values(), key=lambda image: image.filename)[::-1]
    return written(tmp_path_factory.mktemp("other") / "set", [order[:11], order[11:]])


def test_equal_images_are_equal_in_any_layout(one: Path, tmp_path: Path) -> None:
    images = [example(number) for number in range(30)][::-1]
    again = written(tmp_path / "again", [images[:4], images[4:]])
    shutil.rmtree(again / "samples")  # the roots are enough
    result = command.run("diff", one, again, "--exit-code")

    assert (result.code, result.complaints) == (0, "")
    assert (
        "train: equal according to the hashes in both manifests. To check the hashes, use --prove"
        in result.out
    )
    found = command.run("diff", one, again, "--json").json
    assert found["equal"] is found["same_classes"] is True
    assert found["proven"] is False
    assert [found[kind] for kind in KINDS] == [0] * 5


KINDS = ("only_in_a", "only_in_b", "other_label", "other_bytes", "other_size")


def test_differences_are_counted_named_and_listed(one: Path, other: Path, tmp_path: Path) -> None:
    before = everything(one), everything(other)
    out = tmp_path / "differences.csv"
    result = command.run("diff", one, other, "--json", "--out", out)

    found = result.json
    assert (result.code, result.complaints) == (0, "")
    assert [found[kind] for kind in KINDS] == [2, 2, 0, 2, 1]
    train = found["splits"]["train"]
    assert {kind: train[kind] for kind in KINDS} == {kind: found[kind] for kind in KINDS}
    assert train["first_keys"]["only_in_a"] == [key(12), key(7)]
    assert train["first_keys"]["other_size"] == [key(3)]
    assert found["splits"]["validation"]["equal"] is True
    assert (found["a"]["dataset"], found["a"]["examples"]) == (str(one), 32)
    rows = list(csv.DictReader(io.StringIO(out.read_bytes().decode(), newline="")))
    said = {row["key"]: row["difference"] for row in rows}
    assert said == {
        key(7): "only_in_a",
        key(12): "only_in_a",
        key(40): "only_in_b",
        f"{wnid(2)}/image_41.JPEG": "only_in_b",
        key(3): "other_bytes other_size",
        key(10): "other_bytes",
    }
    assert [row["key"] for row in rows] == sorted(said)
    (three,) = (row for row in rows if row["key"] == key(3))
    shard = other / three["shard_b"]
    assert schema.parse_shard_name(shard.name)
    result = command.run("show", shard, "--image", three["record_b"], "--out", tmp_path / "3.jpg")
    stored = (tmp_path / "3.jpg").read_bytes()
    assert hashlib.sha256(stored).hexdigest() == three["sha256_b"] != three["sha256_a"]
    assert (everything(one), everything(other)) == before


def key(number: int) -> str:
    return f"{wnid(number % CLASSES)}/image_{number}.JPEG"


def test_diff_opens_no_shard(one: Path, other: Path) -> None:
    with opened(one) as seen, opened(other) as seen_in_other:
        command.run("diff", one, other)

    assert "samples/train-00000-of-00003.csv" in seen
    assert [name for name in seen | seen_in_other if schema.parse_shard_name(name)] == []


def test_text_output_has_counts_and_first_keys(one: Path, other: Path) -> None:
    result = command.run("diff", one, other, "--exit-code")

    assert (result.code, result.err) == (1, "")
    assert f"A: {one}, 32 images\nB: {other}, 32 images\ntrain:\n" in result.out
    assert f"  only in A              2  {key(12)}, {key(7)}\n" in result.out
    assert "other label" not in result.out
    assert "validation: equal according to the hashes" in result.out


def test_labels_are_compared_by_class_ids(one: Path, tmp_path: Path) -> None:
    """If the class list differs, the same class has a different index."""
    other = tmp_path / "other"
    shutil.copytree(one, other)
    labels = "".join(f"{wnid(index)} thing\n" for index in range(CLASSES + 1)).encode()
    (other / schema.LABELS).write_bytes(labels)
    there = manifest.loads((other / schema.MANIFEST).read_bytes(), "")
    ids = "".join(f"{wnid(index)}\n" for index in range(CLASSES + 1)).encode()
    classes = replace(there.classes, count=CLASSES + 1, digest=hashlib.sha256(ids).hexdigest())
    file = manifest.DatasetFile(schema.LABELS, len(labels), hashlib.sha256(labels).hexdigest())
    splits = {
        name: replace(split, examples_per_class=[*split.examples_per_class, 0])
        for name, split in there.splits.items()
    }
    made = replace(there, classes=classes, files=[file], splits=splits)
    (other / schema.MANIFEST).write_bytes(made.dumps())
    result = command.run("diff", one, other, "--json", "--exit-code")

    assert result.code == 1
    assert (result.json["equal"], result.json["same_classes"]) == (False, False)
    assert [result.json[kind] for kind in KINDS] == [0] * 5
    differ = says("class-lists-differ-labels-compared")
    assert differ.search(command.run("diff", one, other).out)
    assert not differ.search(command.run("diff", one, one).out)
    relabelled = tmp_path / "relabelled"
    shutil.copytree(one, relabelled)
    edit(relabelled, lambda data: data.replace(b"image_0.JPEG,0,", b"image_0.JPEG,4,"))
    for a, b in ((one, relabelled), (relabelled, other)):
        found = command.run("diff", a, b, "--json").json
        assert [found[kind] for kind in KINDS] == [0, 0, 1, 0, 0]
        assert found["splits"]["train"]["first_keys"]["other_label"] == [key(0)]


def edit(root: Path, change: Callable[[bytes], bytes], number: int = 0) -> None:
    """Changes a table of train, and its entry in the manifest."""
    there = manifest.loads((root / schema.MANIFEST).read_bytes(), "")
    train = there.splits["train"]
    shard = train.shards[number]
    path = root / schema.samples_name(shard.name)
    data = change(path.read_bytes())
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    shards = [*train.shards]
    shards[number] = replace(shard, samples_bytes=len(data), samples_sha256=digest)
    train = replace(train, shards=shards, samples_root=digest)
    splits = {**there.splits, "train": train}
    (root / schema.MANIFEST).write_bytes(replace(there, splits=splits).dumps())


def test_split_missing_in_one_dataset_is_listed(one: Path, tmp_path: Path) -> None:
    images = [example(number) for number in range(30)]
    held = written(tmp_path / "held", [images], holdout=[[example(50), example(51)]])
    found = command.run("diff", one, held, "--json").json

    assert (found["equal"], found["only_in_b"]) == (False, 2)
    assert found["splits"]["train"]["equal"] is True
    assert found["splits"]["holdout"]["first_keys"]["only_in_b"] == [key(50), key(51)]


def test_tables_of_equal_shards_are_not_read(one: Path, tmp_path: Path) -> None:
    child = tmp_path / "child"
    shutil.copytree(one, child)
    edit(child, lambda data: data.replace(b"image_1.JPEG,1,", b"image_1.JPEG,3,"), number=1)
    parent = tmp_path / "parent"
    shutil.copytree(one, parent)
    for root in (parent, child):
        for number in (0, 2):
            (root / f"samples/train-{number:05}-of-00003.csv").unlink()
    found = command.run("diff", parent, child, "--json")

    assert (found.code, found.json["other_label"]) == (0, 1)


def test_datasets_on_a_web_server_are_compared(one: Path, other: Path) -> None:
    expected = command.run("diff", one, other, "--json").json
    with serve(all_files(other)) as server:
        found = command.run("diff", one, server.url, "--json")
        asked = {request.path for request in server.requests}

    assert found.code == 0, found
    assert found.json["splits"] == expected["splits"]
    assert not {path for path in asked if path.strip("/").startswith(("train", "index"))}


def test_invalid_datasets_are_refused(one: Path, tmp_path: Path) -> None:
    plain_set = tmp_path / "plain"
    write_dataset(plain_set, {"train": [[example(1)]]}, num_classes=CLASSES)
    (tmp_path / "empty").mkdir()
    for root, said in (
        (plain_set, says("no-tables-samples-list-images", plain_set)),
        (tmp_path / "empty", says("not-dataset-imagenet-prep-no-make", tmp_path / "empty")),
    ):
        result = command.run("diff", one, root)
        assert (result.code, result.out) == (2, ""), result
        assert said.search(result.err)
    out = tmp_path / "no" / "out.csv"
    result = command.run("diff", one, one, "--out", out)
    assert result.code == 1
    assert str(out) in result.err


def test_different_roots_of_equal_images_are_damage(one: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(one, root)
    edit(root, lambda data: data)
    result = command.run("diff", one, root)

    assert result.code == 3
    assert says("samples_root-differs-images-equal-one", ..., ..., "train").search(result.err)
    for words in (("diff", root, root, "--prove"), ("verify", root, "--level", "crc")):
        proven = command.run(*words)
        assert proven.code == 3, proven
        assert says("root-tables-samples-expected-manifest", "train").search(
            proven.out + proven.err
        )


def claim_root_of(root: Path, other: Path) -> None:
    """Writes the root of a different dataset's train into a manifest."""
    there, honest = (manifest.loads((r / schema.MANIFEST).read_bytes(), "") for r in (root, other))
    train = replace(there.splits["train"], samples_root=honest.splits["train"].samples_root)
    splits = {**there.splits, "train": train}
    (root / schema.MANIFEST).write_bytes(replace(there, splits=splits).dumps())


def test_prove_computes_roots_instead_of_trusting_them(one: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(one, root)
    edit(root, lambda data: data.replace(b"image_0.JPEG,0,", b"image_0.JPEG,4,"))
    claim_root_of(root, one)
    result = command.run("diff", one, root, "--exit-code")
    assert (result.code, result.complaints) == (0, "")
    assert (
        "train: equal according to the hashes in both manifests. To check the hashes, use --prove"
        in result.out
    )

    result = command.run("diff", one, root, "--prove")
    assert (result.code, result.out) == (3, "")
    assert says("root-tables-samples-expected-manifest", f"{root}: train").search(result.err)


def test_prove_reads_all_tables(one: Path, other: Path, tmp_path: Path) -> None:
    result = command.run("diff", one, one, "--prove")
    assert (result.code, result.complaints) == (0, "")
    assert "train: equal: the same images, with the same labels and bytes\n" in result.out
    found = command.run("diff", one, other, "--prove", "--json").json
    assert (found["proven"], found["only_in_a"]) == (True, 2)
    gone = tmp_path / "gone"
    shutil.copytree(one, gone)
    (gone / "samples/validation-00000-of-00001.csv").unlink()
    assert command.run("diff", gone, other, "--prove").code != 0


def test_tables_that_were_not_compared_are_counted(one: Path, tmp_path: Path) -> None:
    child = tmp_path / "child"
    shutil.copytree(one, child)
    edit(child, lambda data: data.replace(b"image_1.JPEG,1,", b"image_1.JPEG,3,"), number=1)
    result = command.run("diff", one, child)
    assert says("equal-according-both-manifests-samples", "2 tables").search(result.out)
    assert command.run("diff", one, child, "--json").json["splits"]["train"]["trusted_tables"] == 2


def test_different_columns_are_named(one: Path, tmp_path: Path) -> None:
    a, b = (Path(shutil.copytree(one, tmp_path / name)) for name in "ab")
    for name in ("same", "rows", "settings", "one"):
        make_column(a, name)
    make_column(b, "same")
    make_column(b, "rows", seed=1)
    make_column(b, "settings", about="by another network")
    found = command.run("diff", a, b, "--json", "--exit-code")
    assert found.code == 1, found
    assert not found.json["equal"]
    assert {*found.json["columns"]} == {"rows", "settings", "one"}
    text = command.run("diff", a, b)
    assert text.code == 0
    assert "column one: only in A\n" in text.out
    assert "column settings: different about\n" in text.out
    assert re.search(r"column rows: different rows for equal records in 4 files; ", text.out)

    shutil.rmtree(a / "columns")
    shutil.copytree(b / "columns", a / "columns")
    assert command.run("diff", a, b, "--exit-code").code == 0
    (a / "columns/same/column.json").write_text("{}")
    refused = command.run("diff", a, b)
    assert refused.code == 3
    assert "same/column.json: damaged" in refused.err
