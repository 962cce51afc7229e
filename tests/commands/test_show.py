"""`show` prints one shard without other files, and images of a dataset."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.keys import read_list
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.read import catalogue
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.store import Store
from tests.kit import amended, columns, command, foreign, layouts
from tests.kit.dataset import Reference, records
from tests.kit.faults import cut
from tests.kit.foreign_datasets import ForeignDataset, foreign_dataset, mini, stored
from tests.kit.messages import says, wording
from tests.kit.photographs import photograph
from tests.kit.tfrecords import picture, plain, write_dataset

__all__ = ["foreign_dataset", "mini", "stored"]


NAME = "train-00003-of-00008"


def test_each_record_has_a_row_with_label(reference: Reference) -> None:
    result = command.run("show", reference.out / NAME)

    images = records(reference.out / NAME)
    rows = result.out.splitlines()
    assert (result.code, result.complaints) == (0, "")
    assert len(rows) == len(images)
    for number, (row, image) in enumerate(zip(rows, images, strict=True)):
        assert row.split()[0] == str(number)
        assert f" {image.stored_label} {image.wnid} " in row
        assert f"{image.width}x{image.height}" in row
        assert image.filename in row
        assert row.endswith(image.text)


def test_dataset_with_a_training_log_is_shown(prepared: Path) -> None:
    """A run may write its log into the folder of its dataset."""
    before = command.run("show", prepared)
    (prepared / "train.jsonl").write_text("{}\n")
    result = command.run("show", prepared)
    assert (result.code, result.out) == (0, before.out), result


def test_json_has_one_object_per_line(reference: Reference) -> None:
    result = command.run("show", reference.out / NAME, "--json", "--limit", "4")

    images = records(reference.out / NAME)[:4]
    offsets = reference.contents[f"index/{NAME}"].decode().splitlines()[:4]
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert (result.code, result.complaints) == (0, "")
    assert [f"{row['offset']} {row['size']}" for row in rows] == offsets
    for number, (row, image) in enumerate(zip(rows, images, strict=True)):
        assert row["record"] == number
        assert row["encoded_bytes"] == len(image.encoded)
        assert {key: row[key] for key in ("filename", "stored_label", "wnid", "text")} == {
            "filename": image.filename,
            "stored_label": image.stored_label,
            "wnid": image.wnid,
            "text": image.text,
        }


@pytest.mark.parametrize(
    "flags",
    [
        ("--keys",),
        ("--class", "1"),
        ("--image-file", "photo.jpg"),
        ("--key", "cat/1.jpg", "--splits", "train"),
    ],
)
def test_flags_of_datasets_are_refused_for_runs(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "train.jsonl").touch()
    result = command.run("show", tmp_path, *flags)

    assert result.code == 2
    assert says("training-run-expected-step-key", tmp_path).search(result.err), result


@pytest.mark.parametrize("number", [0, 7, -1], ids=["first", "middle", "last"])
def test_image_is_written_with_its_stored_bytes(
    reference: Reference, tmp_path: Path, number: int
) -> None:
    images = records(reference.out / NAME)
    number %= len(images)
    out = tmp_path / "image.jpg"
    result = command.run("show", reference.out / NAME, "--image", str(number), "--out", out)

    assert (result.code, result.complaints) == (0, "")
    assert out.read_bytes() == images[number].encoded
    assert out.read_bytes().startswith(b"\xff\xd8\xff")
    assert f"{images[number].width}x{images[number].height}" in result.out


@pytest.mark.parametrize("number", ["9999", "-1"])
def test_missing_record_is_refused_with_valid_numbers(
    reference: Reference, tmp_path: Path, number: str
) -> None:
    last = len(records(reference.out / NAME)) - 1
    out = tmp_path / "image.jpg"
    result = command.run("show", reference.out / NAME, "--image", number, "--out", out)

    assert (result.code, result.out) == (2, "")
    assert number in result.err
    assert f"0 to {last}" in result.err
    assert not out.exists()


@pytest.mark.parametrize(
    "flags", [("--image", "1"), ("--out", "x.jpg"), ("--image", "one", "--out", "x.jpg")]
)
def test_incomplete_request_is_refused(
    reference: Reference, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    result = command.run("show", reference.out / NAME, *flags, cwd=tmp_path)

    assert (result.code, result.out) == (2, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["missing", "a folder"])
def test_path_that_cannot_be_opened_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "train-00000-of-00001"
    if what == "a folder":
        path.mkdir()
    result = command.run("show", path)

    assert (result.code, result.out) == (2, "")
    assert str(path) in result.err


def test_unwritable_output_is_named(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "no" / "folder.jpg"
    result = command.run("show", reference.out / NAME, "--image", "0", "--out", out)

    assert (result.code, result.out) == (1, "")
    assert str(out) in result.err


def test_show_ends_quietly_if_its_pipe_closes(prepared: Path) -> None:
    """As with `show | head -1`, for more output than a pipe can hold."""
    shard = prepared / NAME
    shard.write_bytes(shard.read_bytes() * 60)
    process = subprocess.Popen(
        [sys.executable, *command.PROGRAM, "show", str(shard), "--json"],
        cwd="/",
        env=command.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert json.loads(first)["record"] == 0
    assert (process.wait(command.PATIENCE_S), err) == (141, b"")


@pytest.mark.parametrize("name", ["", "/dataset.json"])
def test_dataset_is_summarised(reference: Reference, name: str) -> None:
    result = command.run("show", f"{reference.out}{name}")

    manifest = json.loads(reference.contents["dataset.json"])
    split = manifest["splits"]["train"]
    assert (result.code, result.complaints) == (0, "")
    lines = dict(line.split(": ", 1) for line in result.out.splitlines())
    assert lines["train"].startswith(f"{split['examples']} examples in 8 shards, ")
    assert lines["classes"] == "8, custom"
    first_class = reference.contents["labels.txt"].decode().split(" ")[0]
    label = wording("class-index-0-stored-label", first_class, 1)
    others = wording("tfds-tf.data-dali-return", 1)
    said = wording("labels-our-readers-return-0", label, f"{others}: subtract 1")
    assert f"labels: {lines['labels']}" == said
    assert lines["made by"].startswith("imagenet-prep ")
    assert "quality 90" in lines["settings"]
    assert lines["manifest"] == f"{reference.out}/dataset.json ({manifest['digest'][:16]})"
    assert "subset" in lines, "counts are not ILSVRC2012's, as whose archives these came"
    first = manifest["sources"][0]
    assert f"from: {first['name']}: " in result.out


def test_dataset_is_summarised_as_json(reference: Reference) -> None:
    result = command.run("show", "--json", "--data-dir", reference.out)

    manifest = json.loads(reference.contents["dataset.json"])
    shown = json.loads(result.out)
    assert (shown["digest"], shown["subset"]) == (manifest["digest"], True)
    assert shown["label_offset"] == 1
    assert reference.contents["labels.txt"].decode().startswith(f"{shown['first_class']} ")
    assert shown["splits"]["train"]["examples"] == manifest["splits"]["train"]["examples"]


def test_flags_for_a_shard_are_refused_for_datasets(reference: Reference, tmp_path: Path) -> None:
    for flags in (("--limit", "3"), ("--image", "1", "--out", tmp_path / "1.jpg")):
        result = command.run("show", reference.out, *flags)
        assert (result.code, result.out) == (2, "")
        assert f"{reference.out} is a dataset" in result.err


def keys_of(out: Path, split: str) -> list[str]:
    """Returns the keys of a split, in the order of its records."""
    pictures = [*itertools.chain.from_iterable(map(records, sorted(out.glob(f"{split}-*"))))]
    if split == "validation":
        return [image.filename for image in pictures]
    return [f"{image.wnid}/{image.filename}" for image in pictures]


def test_keys_are_printed_as_a_list_for_verbs(reference: Reference, tmp_path: Path) -> None:
    whole = command.run("show", reference.out, "--keys")
    train = command.run("show", reference.out, "--keys", "--splits", "train", "--limit", "7")
    as_json = command.run("show", reference.out, "--keys", "--json", "--splits", "validation")

    expected = {split: keys_of(reference.out, split) for split in ("train", "validation")}
    assert (whole.code, whole.complaints) == (0, "")
    assert whole.out.splitlines() == expected["train"] + expected["validation"]
    assert train.out.splitlines() == expected["train"][:7]
    (tmp_path / "keys").write_text(train.out)
    assert len(read_list(tmp_path / "keys").keys) == 7
    rows = [json.loads(line) for line in as_json.out.splitlines()]
    assert [row["key"] for row in rows] == expected["validation"]
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert {row["split"] for row in rows} == {"validation"}
    wnids = [line.split()[0] for line in (reference.out / "labels.txt").read_text().splitlines()]
    assert [row["wnid"] for row in rows] == [wnids[row["class_index"]] for row in rows]


@pytest.mark.parametrize("form", ["CLASS/NAME", "NAME"])
def test_one_image_is_shown_and_written(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    shard = reference.out / NAME
    image = records(shard)[3]
    key = f"{image.wnid}/{image.filename}" if form == "CLASS/NAME" else image.filename
    out = tmp_path / "image.jpg"
    result = command.run("show", reference.out, "--key", key, "--out", out)
    as_json = command.run("show", reference.out, "--key", key, "--json")

    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    assert result.out.split()[:4] == [NAME, "3", str(image.stored_label), image.wnid]
    assert out.read_bytes() == image.encoded
    row = json.loads(as_json.out)
    assert (row["key"], row["shard"], row["record"]) == (
        f"{image.wnid}/{image.filename}",
        NAME,
        3,
    )
    assert (row["split"], row["encoded_bytes"]) == ("train", len(image.encoded))


def test_class_is_shown_by_name_and_index(reference: Reference) -> None:
    wnids = [line.split()[0] for line in (reference.out / "labels.txt").read_text().splitlines()]
    by_name = command.run("show", reference.out, "--class", wnids[2], "--limit", "20")
    by_index = command.run("show", reference.out, "--class", "2", "--limit", "20")
    keys = command.run("show", reference.out, "--class", "2", "--keys", "--splits", "train")

    rows = by_name.out.splitlines()
    assert (by_name.code, by_name.err, by_index.out) == (0, "", by_name.out)
    assert 0 < len(rows) <= 20
    assert {row.split()[3] for row in rows} == {wnids[2]}
    expected = [key for key in keys_of(reference.out, "train") if key.startswith(wnids[2])]
    assert keys.out.splitlines() == expected
    assert [row.split()[7] for row in rows[: len(expected)]] == [
        key.partition("/")[2] for key in expected
    ][:20]


def test_lines_of_lists_show_their_image(tmp_path: Path) -> None:
    """Lists and messages name equal keys as SPLIT:KEY."""
    images = {}
    for number, (split, folder) in enumerate({"train": "train", "validation": "val"}.items()):
        images[split] = photograph(20, 30, number)
        layouts.write(tmp_path / "in" / folder / "cats/1.jpg", images[split])
    words = (tmp_path / "in", tmp_path / "set", "--keep-original")
    assert command.run("prepare", *words).code == 0
    for split, image in images.items():
        out = tmp_path / f"{split}.jpg"
        key = f"{split}:cats/1.jpg"
        shown = command.run("show", tmp_path / "set", "--key", key, "--out", out)
        assert (shown.code, out.read_bytes()) == (0, image)
    for key in ("test:cats/1.jpg", "train:cats/2.jpg"):
        shown = command.run("show", tmp_path / "set", "--key", key)
        assert says("no-image-key-keys-class", ..., key).search(shown.err)


def test_key_that_is_not_stored_gets_its_reason(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        layouts.write(tmp_path / "in/cats" / f"{name}.jpg", photograph(20, 30, int(name)))
    layouts.write(tmp_path / "in/cats/empty.jpg", b"")
    (tmp_path / "list").write_text("cats/2.jpg\n")
    words = "--source", tmp_path / "in", "--exclude", tmp_path / "list", "--out", tmp_path / "set"
    assert command.run("prepare", *words).code == 0
    for key, why in (("cats/2.jpg", "excluded"), ("cats/empty.jpg", "quarantined")):
        shown = command.run("show", tmp_path / "set", "--key", key)
        assert shown.code == 2
        assert says("not-stored", ..., key, why).search(shown.err)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--key", "absent"), says("no-image-key-keys-class", ..., "absent")),
        (
            ("--class", "n0"),
            says("not-class-list-0", "imagenet-prep: n0"),
        ),
        (
            ("--keys", "--splits", "holdout"),
            says("no-split-splits", ..., "holdout", "train, validation"),
        ),
        (("--splits", "train"), says("splits-needs-keys-key-class")),
        (("--keys", "--key", "a"), says("cannot-combined", "--keys", "--key")),
        (("--key", "a", "--class", "1"), says("cannot-combined", "--key", "--class")),
        (("--keys", "--out", "x.jpg"), says("out-needs-image-key-select")),
    ],
)
def test_absent_keys_classes_and_splits_are_refused(
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    said: re.Pattern[str],
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    result = command.run("show", reference.out, *flags, cwd=tmp_path)

    assert (result.code, result.out) == (2, "")
    assert said.search(result.err)


def test_dataset_without_names_is_explained(prepared: Path) -> None:
    nameless = open_dataset(str(prepared))
    object.__setattr__(nameless.manifest, "lacks", {"image/filename": "absent"})
    with pytest.raises(UsageError, match=says("records-no-file-names-images")):
        catalogue.Catalogue(nameless, ("train",))


def test_tables_are_read_once_for_many_keys(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def heads(store: Store, shard: Shard, *more: Any, **how: Any) -> Any:
        read.append(shard.name)
        return tables_heads(store, shard, *more, **how)

    tables_heads = dataset_store.sample_heads
    monkeypatch.setattr(dataset_store, "sample_heads", heads)
    there = catalogue.Catalogue(open_dataset(str(prepared)), ("train", "validation"))
    every = {entry.key: entry for entry in there.entries()}
    read.clear()

    found = there.find(every.keys() | {"nowhere.JPEG"})

    assert found == {key: [entry] for key, entry in every.items()}
    assert sorted(read) == sorted({*read})


def test_names_with_quotes_and_commas_are_found(tmp_path: Path) -> None:
    """Tables are CSV, in which such names are quoted."""
    names = ['"', 'a "quoted" name', 'comma, and "quote"', "'single'", "ü", "plain"]
    for seed, name in enumerate(names):
        layouts.write(tmp_path / f"in/cats/{name}.jpg", photograph(20, 30, seed))
    words = "--source", tmp_path / "in", "--out", tmp_path / "set"
    assert command.run("prepare", *words).code == 0
    there = catalogue.Catalogue(open_dataset(str(tmp_path / "set")), ("train",))
    every = {entry.key: [entry] for entry in there.entries()}
    assert every.keys() == {f"cats/{name}.jpg" for name in names}

    assert there.find(every) == every
    for key, entries in every.items():
        below = key.removeprefix("cats/")
        # Few keys are first searched in the bytes of a table.
        assert there.find([key]) == {key: entries}
        assert there.find([below]) == {below: entries}
        assert there.like(key.upper()) == key
        assert there.like(f"{key} ") == key


def test_image_file_is_found_by_either_hash(reference: Reference, tmp_path: Path) -> None:
    image = records(reference.out / NAME)[4]
    stored = tmp_path / "stored.jpg"
    stored.write_bytes(image.encoded)
    result = command.run("show", reference.out, "--image-file", stored, "--json")

    (row,) = map(json.loads, result.out.splitlines())
    assert (result.code, row["shard"], row["record"], row["is_stored"]) == (0, NAME, 4, True)
    assert row["key"].endswith(image.filename)
    said = command.run("show", reference.out, "--image-file", stored).out
    assert said == f"{NAME}      4 {image.wnid} {row['key']}  byte for byte\n"
    with tarfile.open(reference.source / "ILSVRC2012_img_val.tar") as tar:
        (member,) = itertools.islice((each for each in tar if each.isfile()), 1)
        source = tar.extractfile(member).read()
    (tmp_path / "source.jpg").write_bytes(source)
    result = command.run("show", reference.out, "--image-file", tmp_path / "source.jpg")
    assert result.code == 0, result
    assert result.out.startswith("validation-000")
    assert member.name.rpartition("/")[2] in result.out
    assert says("equal-source-stored-x").search(result.out) or says("byte-byte").search(result.out)


def test_image_file_outside_the_dataset_gives_code_1(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "other.jpg"
    path.write_bytes(b"other")
    result = command.run("show", reference.out, "--image-file", path)
    assert (result.code, result.err) == (1, "")
    assert result.out.startswith(f"{path} (sha256 ")
    assert says("sha256-not", path, ..., reference.out).search(result.out)
    result = command.run("show", reference.out, "--image-file", tmp_path / "absent.jpg")
    assert (result.code, result.out) == (2, "")
    assert says("cannot-read-2", "absent.jpg", "No such file").search(result.err)


@pytest.mark.parametrize("layout", ["slim", "tpu-in-folders", "aws-from-1", "flowers", "tfds"])
def test_foreign_shard_is_shown_with_correct_sizes(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path, layout: str
) -> None:
    """`adopt` keeps the bytes of a shard, so `show` prints the same before and after it."""
    there = foreign_dataset(layout)
    shard = min(there.root.rglob("*train*-of-*"))
    number = len(there.placed["train"][0]) - 1
    image = there.placed["train"][0][-1]
    out = tmp_path / "image.jpg"
    listed = command.run("show", shard, "--json")
    written = command.run("show", shard, "--image", str(number), "--out", out)

    assert (listed.code, listed.err, written.code, written.err) == (0, "", 0, "")
    *_, row = map(json.loads, listed.out.splitlines())
    width, height = foreign.look(out.read_bytes())[0]
    # AWS's program has resized the image, and its record has the earlier size.
    assert (out.read_bytes() == image.data) == (layout != "aws-from-1")
    assert (row["record"], row["width"], row["height"]) == (number, width, height)
    assert row["filename"] == image.filename
    assert f"{width}x{height}" in written.out


def test_columns_of_dataset_and_record_are_shown(reference: Reference, tmp_path: Path) -> None:
    root = Path(shutil.copytree(reference.out, tmp_path / "set"))
    columns.make_column(root, "latents", shape=(3, 4))
    columns.make_column(root, "half")
    (root / "columns/half/column.json").unlink()
    shown = command.run("show", root)
    assert shown.code == 0, shown
    assert "column half: not complete\n" in shown.out
    assert "column latents: float32 [3, 4] of " in shown.out
    assert command.run("show", root, "--json").json["columns"]["latents"]["shape"] == [3, 4]

    (shard, *_) = open_dataset(str(root)).shards("train")
    rows = np.load(root / f"columns/latents/{shard.name}.npy")
    key = [*amended.rows(root, shard.name)][2]
    found = command.run("show", root, "--key", key, "--json")
    assert found.code == 0, found
    of = found.json["columns"]
    assert of == {
        "latents": {"dtype": "float32", "shape": [3, 4], "first": rows[2].ravel()[:8].tolist()}
    }
    text = command.run("show", root, "--key", key)
    assert f"  latents: float32 [3, 4]: {rows[2, 0, 0]:.6g}, " in text.out
    assert text.out.endswith(", ...\n")

    # A truncated file, and a record with a false claim.
    cut(root / f"columns/latents/{shard.name}.npy", 200)
    refused = command.run("show", root, "--key", key)
    assert refused.code == 3
    assert says("missing-wrong-size-2", f"latents/{shard.name}.npy").search(refused.err)
    (root / "columns/latents/column.json").write_text('{"shape":[99999999999]}')
    for flags in ([], ["--key", key]):
        refused = command.run("show", root, *flags)
        assert refused.code == 3, refused
        assert "latents/column.json: damaged" in refused.err


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize("end", ["", "/"])
def test_bucket_without_a_dataset_is_named(prefix: str, s3: Any, end: str) -> None:
    bucket = "/".join(prefix.split("/")[:3])
    result = command.run("show", bucket + end, env=s3.environment)
    assert result.code == 2, result
    assert says("not-dataset-imagenet-prep-no-make").search(result.err)


def test_key_without_tables_has_no_source(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)
    (key,) = command.run("show", tmp_path / "set", "--keys").out.splitlines()
    shown = command.run("show", tmp_path / "set", "--key", key, "--json")
    assert (shown.code, shown.json["key"], "source" in shown.json) == (0, key, False)
    assert open_catalogue(tmp_path / "set", key) is None


def open_catalogue(root: Path, key: str) -> Any:
    """Returns the line of an image in its table of samples."""
    found = catalogue.Catalogue(open_dataset(str(root)), ("train",))
    (entry,) = (entry for entry in found.entries() if entry.key == key)
    return found.sample(entry)
