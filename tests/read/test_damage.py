"""Damaged datasets: errors name the record, or it is masked, counted and listed.

A reader never gives a wrong label, and never hangs.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.read import Reader, make_dataset
from tests.kit import faults
from tests.kit.columns import make_column
from tests.kit.hostile import images
from tests.kit.messages import says
from tests.kit.reading import (
    NUM_TRAIN,
    NUM_VALIDATION,
    SHARD,
    TRAIN,
    flip,
    offsets,
    on_backends,
)
from tests.kit.tfrecords import numbers_of, picture, plain, wnid, write_dataset

# The examples of that shard follow those of the first one.
FIRST = TRAIN[0]


def reader_of(root: Path, backend: str, split: str = "train", **more: Any) -> Reader:
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "world": World()}
    return make_dataset(root, split, 5, 16, backend=backend, **settings | more)


def shown(batches: list[dict[str, Any]]) -> list[int]:
    """Returns the examples without a mask; their labels must match their colours."""
    numbers = []
    for batch in batches:
        found = numbers_of(batch["images"][batch["mask"]])
        assert batch["class_index"][batch["mask"]].tolist() == found
        assert (batch["class_index"][~batch["mask"]] == -1).all()
        numbers += found
    return numbers


# The damaged part of a record: its length, the CRC of the length, the payload, or the CRC at its
# end.
FLIPS = {"length": 0, "length's CRC": 9, "payload": 200, "CRC": -1}


@on_backends(["place"], ["payload"], FLIPS)
def test_flipped_bit_is_named_with_record_and_offset(
    damaged: Path, backend: str, place: str
) -> None:
    record = 4
    where = record + 1 if FLIPS[place] < 0 else record
    flip(where, FLIPS[place])(damaged)
    reader = reader_of(damaged, backend)

    with pytest.raises(DataDamagedError) as error:
        for _ in reader:
            pass
    expected = f"{SHARD}: record {record} at byte {offsets(damaged)[record]:,}"
    assert expected in str(error.value)
    assert says("list-damage-imagenet-prep-verify", damaged).search(str(error.value))


@on_backends(["place", "world"], [("payload", 1)], itertools.product(FLIPS, [1, 3]))
def test_skipped_records_are_masked_counted_and_listed(
    damaged: Path, backend: str, place: str, world: int
) -> None:
    for record in (2, 5):
        flip(record + 1 if FLIPS[place] < 0 else record, FLIPS[place])(damaged)
    readers = [
        reader_of(damaged, backend, world=World(rank, world), on_bad_record="skip")
        for rank in range(world)
    ]
    for _ in range(2):
        by_rank = [list(reader) for reader in readers]
        batches = [*itertools.chain.from_iterable(by_rank)]
        numbers = shown(batches)
        read = len(by_rank[0]) * world * 5

        assert {*map(len, by_rank)} == {NUM_TRAIN // (world * 5)}
        assert len(set(numbers)) == len(numbers)
        assert {FIRST + 2, FIRST + 5}.isdisjoint(numbers)
        if read == NUM_TRAIN:
            masked = sum(int((~batch["mask"]).sum()) for batch in batches)
            assert masked == 2
            assert set(numbers) == set(range(NUM_TRAIN)) - {FIRST + 2, FIRST + 5}
    listed = [*itertools.chain.from_iterable(reader.skipped for reader in readers)]
    named = {int(re.search(r"record (\d+)", line)[1]) for line in listed}  # type: ignore[index]
    assert named == {2, 5}
    assert all(SHARD in line for line in listed)


def test_evaluation_that_skips_counts_all_others(damaged: Path, backend: str) -> None:
    shard = "validation-00001-of-00003"
    faults.flip_bit(damaged / shard, offsets(damaged, shard)[3] + 100)
    numbers: list[int] = []
    for rank in range(3):
        reader = reader_of(
            damaged, backend, "validation", world=World(rank, 3), on_bad_record="skip"
        )
        batches = list(reader)
        assert len(batches) == 2
        numbers += shown(batches)

    everything = range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)
    assert sorted(numbers) == [n for n in everything if n != NUM_TRAIN + 7 + 3]


def not_a_picture(number: int) -> bytes:
    """Returns data that looks like a JPEG, but does not decode."""
    data = plain(number)
    bits = data.index(b"\xff\xc0") + 4
    return data[:bits] + b"\3" + data[bits + 1 :]


def half_a_picture(number: int) -> bytes:
    """Returns a JPEG with a complete header and no scan."""
    data = plain(number)
    return data[: data.index(b"\xff\xda") + 4]


def written(root: Path, bad: dict[int, Callable[[int], bytes]]) -> Path:
    """Writes a sound dataset in which some images, with right CRCs, do not decode."""
    shards = []
    number = 0
    for count in TRAIN:
        examples: list[ImageExample] = []
        for n in range(number, number + count):
            good = picture(n, plain(n))
            examples.append(good._replace(encoded=bad[n](n)) if n in bad else good)
        shards.append(examples)
        number += count
    write_dataset(root, {"train": shards}, num_classes=number)
    return root


@pytest.mark.parametrize("how", [not_a_picture, half_a_picture])
def test_image_that_does_not_decode_is_named(
    tmp_path: Path, backend: str, how: Callable[[int], bytes]
) -> None:
    root = written(tmp_path / "set", {FIRST + 3: how})
    reader = reader_of(root, backend)

    with pytest.raises(DataDamagedError) as error:
        for _ in reader:
            pass
    assert says("record-byte", SHARD, "3", f"{offsets(root)[3]:,}").search(str(error.value))
    assert says("not-decode").search(str(error.value))


def png_of_many_pixels(_: int) -> bytes:
    """Other decoders would decode all of it: 65,500 x 65,500 pixels."""
    return images.png_that_claims()


def picture_of_other_sides(number: int) -> bytes:
    """A JPEG that is larger than its record says; some recipes would decode all of it."""
    return images.jpeg_that_claims(8000, 8000 - number)


@pytest.mark.parametrize("how", [png_of_many_pixels, picture_of_other_sides])
def test_image_that_contradicts_its_record_is_not_decoded(
    tmp_path: Path, how: Callable[[int], bytes]
) -> None:
    reader = reader_of(written(tmp_path / "set", {FIRST + 3: how}), "native")

    with pytest.raises(DataDamagedError, match="is not a JPEG|its record says"):
        list(reader.encoded_batches())


@on_backends(
    ["how", "training"],
    [(not_a_picture, True), (half_a_picture, False)],
    itertools.product([not_a_picture, half_a_picture], [True, False]),
)
def test_only_images_that_do_not_decode_are_masked(
    tmp_path: Path, backend: str, how: Callable[[int], bytes], training: bool
) -> None:
    bad = {FIRST + 3, FIRST + 4, 30, 49}
    root = written(tmp_path / "set", dict.fromkeys(bad, how))
    reader = reader_of(root, backend, on_bad_record="skip", training=training)
    for _ in range(2):
        batches = list(reader)

        assert len(batches) == NUM_TRAIN // 5
        assert sorted(shown(batches)) == [n for n in range(NUM_TRAIN) if n not in bad]
    assert len(reader.skipped) == 4
    assert reader.epoch == 2


def junk_between_segments(number: int) -> bytes:
    """Pillow and TensorFlow decode it; DALI finds no marker."""
    data = plain(number)
    tables = data.index(b"\xff\xdb")
    return data[:tables] + b"\1\2\3" + data[tables:]


@pytest.mark.dali
def test_image_that_only_one_backend_refuses_is_skipped(
    tmp_path: Path,
) -> None:
    bad = {FIRST + 3, 49}
    root = written(tmp_path / "set", dict.fromkeys(bad, junk_between_segments))
    with pytest.raises(DataDamagedError) as error:
        for _ in reader_of(root, "dali"):
            pass
    assert says("record-byte-3", SHARD, "3", f"{offsets(root)[3]:,}", "backend 'dali'").search(
        str(error.value)
    )
    assert "nvImageCodec failure" in str(error.value)
    assert "backend='native'" in str(error.value)

    reader = reader_of(root, "dali", on_bad_record="skip")
    for _ in range(2):
        assert sorted(shown(list(reader))) == [n for n in range(NUM_TRAIN) if n not in bad]
    assert len(reader.skipped) == 2
    assert sorted(shown(list(reader_of(root, "native")))) == list(range(NUM_TRAIN))


def test_images_moved_over_black_are_not_damaged(tmp_path: Path) -> None:
    """Next to a damaged one they were masked: their views extend beyond the image."""
    root = written(tmp_path / "set", {FIRST + 3: not_a_picture})
    reader = reader_of(root, "native", recipe="cifar10", on_bad_record="skip")

    assert sum(int(batch["mask"].sum()) for batch in reader) == NUM_TRAIN - 1
    (said,) = reader.skipped
    assert says("record-byte", SHARD, "3").search(said)


def test_missing_shard_is_named_before_reading(damaged: Path, backend: str) -> None:
    (damaged / SHARD).unlink()

    with pytest.raises(DataDamagedError, match=f"{SHARD} is missing"):
        reader_of(damaged, backend)
    assert len(list(reader_of(damaged, backend, "validation"))) == 5


def test_truncated_shard_is_named_before_reading(damaged: Path, backend: str) -> None:
    size = (damaged / SHARD).stat().st_size
    faults.cut(damaged / SHARD, size - 1)

    with pytest.raises(
        DataDamagedError, match=says("bytes-instead", SHARD, f"{size - 1:,}", f"{size:,}")
    ):
        reader_of(damaged, backend)


@pytest.mark.parametrize("skip", [False, True])
def test_shard_truncated_during_reading_is_damage(damaged: Path, backend: str, skip: bool) -> None:
    reader = reader_of(damaged, backend, on_bad_record="skip" if skip else "raise")
    faults.cut(damaged / SHARD, offsets(damaged)[4] + 20)
    if skip:
        batches = list(reader)
        assert len(batches) == 10
        lost = range(FIRST + 4, FIRST + TRAIN[1])
        assert sorted(shown(batches)) == [n for n in range(NUM_TRAIN) if n not in lost]
        assert len(reader.skipped) == len(lost)
    else:
        with pytest.raises(DataDamagedError, match=says("record-byte", SHARD)):
            list(reader)


def wrong_line(index: Path) -> None:
    lines = index.read_text().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    index.write_text("".join(lines))


def missing_line(index: Path) -> None:
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines[:-1]))


def other_offset(index: Path) -> None:
    text = index.read_text()
    lines = text.splitlines(keepends=True)
    offset, size = lines[3].split()
    lines[3] = f"{int(offset) + 1} {size}\n"
    assert len("".join(lines)) == len(text)
    index.write_text("".join(lines))


def letters(index: Path) -> None:
    index.write_text("x" * len(index.read_text()))


@on_backends(
    ["damage", "skip"],
    [(letters, True)],
    itertools.product([wrong_line, missing_line, other_offset, letters], [False, True]),
)
def test_contradicting_index_is_named_and_never_skipped(
    damaged: Path, backend: str, damage: Callable[[Path], None], skip: bool
) -> None:
    # Without its index, records of a shard cannot be identified, so none can be skipped.
    damage(damaged / schema.index_name(SHARD))

    with pytest.raises(DataDamagedError, match=schema.index_name(SHARD)):
        list(reader_of(damaged, backend, on_bad_record="skip" if skip else "raise"))


def test_index_of_a_different_shard_is_named(damaged: Path, backend: str) -> None:
    other = schema.index_name("train-00002-of-00005")
    shutil.copy(damaged / other, damaged / schema.index_name(SHARD))

    with pytest.raises(DataDamagedError, match=schema.index_name(SHARD)):
        list(reader_of(damaged, backend))


def test_swapped_shards_keep_labels_with_their_images(tmp_path: Path, backend: str) -> None:
    # Sizes are equal and CRCs are right, so only label and synset could reveal the swap. They do
    # not contradict each other, so every image still has its own label.
    root = tmp_path / "set"
    shards = [[picture(n, plain(0)) for n in (2, 1)], [picture(n, plain(0)) for n in (3, 4)]]
    write_dataset(root, {"train": shards}, num_classes=5)
    names = [schema.shard_name("train", n, 2) for n in range(2)]
    (root / names[0]).rename(root / "aside")
    (root / names[1]).rename(root / names[0])
    (root / "aside").rename(root / names[1])
    reader = reader_of(root, backend, training=False)
    labels: list[int] = []
    for batch in reader:
        labels += batch["class_index"][batch["mask"]].tolist()

    assert labels == [3, 4, 2, 1]


LABELS: dict[str, Callable[[ImageExample], ImageExample]] = {
    "below the class list": lambda one: one._replace(stored_label=0),
    "negative": lambda one: one._replace(stored_label=-3),
    "above the class list": lambda one: one._replace(stored_label=51),
    "of another class": lambda one: one._replace(stored_label=one.stored_label + 1),
    "synset of another class": lambda one: one._replace(wnid=wnid(2)),
    "unknown synset": lambda one: one._replace(wnid="n99999999"),
}


@on_backends(["kind"], ["of another class"], LABELS)
def test_impossible_label_is_damage_despite_its_crc(
    tmp_path: Path, backend: str, kind: str
) -> None:
    examples = [picture(n, plain(n)) for n in range(10, 20)]
    examples[6] = LABELS[kind](examples[6])
    root = tmp_path / "set"
    write_dataset(root, {"train": [examples]}, num_classes=50)
    name = schema.shard_name("train", 0, 1)

    with pytest.raises(
        DataDamagedError, match=says("label-not-class-synset", on=f"{name}: record 6 at byte")
    ):
        list(reader_of(root, backend))
    reader = reader_of(root, backend, on_bad_record="skip")
    assert sorted(shown(list(reader))) == [n for n in range(10, 20) if n != 16]
    assert len(reader.skipped) == 1


@pytest.mark.parametrize("wrong", [{"height": 500}, {"width": 500}], ids=["height", "width"])
def test_wrong_size_in_a_record_is_damage(
    tmp_path: Path, backend: str, wrong: dict[str, int]
) -> None:
    # Crops are drawn from the record's height and width, which may be stale in records of other
    # writers.
    examples = [picture(n, plain(n)) for n in range(10)]
    examples[4] = examples[4]._replace(**wrong)
    root = tmp_path / "set"
    write_dataset(root, {"train": [examples]}, num_classes=10)

    with pytest.raises(DataDamagedError, match=says("record-byte", ..., "4")):
        list(reader_of(root, backend, training=False))
    reader = reader_of(root, backend, training=False, on_bad_record="skip")
    assert shown(list(reader)) == [n for n in range(10) if n != 4]


def test_dataset_without_a_manifest_needs_adopt(damaged: Path) -> None:
    (damaged / schema.MANIFEST).unlink()
    shutil.rmtree(damaged / schema.WORK, ignore_errors=True)

    with pytest.raises(
        UsageError, match=says("not-dataset-imagenet-prep-no-make", ..., ..., str(damaged))
    ):
        make_dataset(damaged, "train", 4)


def test_edited_manifest_is_refused(damaged: Path) -> None:
    path = damaged / schema.MANIFEST
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"label_offset": 0}))

    with pytest.raises(DataDamagedError, match="digest"):
        make_dataset(damaged, "train", 4)


@pytest.mark.parametrize("change", ["shorter", "swapped"])
def test_class_list_that_contradicts_the_manifest_is_damage(
    damaged: Path, backend: str, change: str
) -> None:
    path = damaged / schema.LABELS
    lines = path.read_text().splitlines(keepends=True)
    lines = lines[:-1] if change == "shorter" else [lines[1], lines[0], *lines[2:]]
    path.write_text("".join(lines))

    with pytest.raises(DataDamagedError, match=schema.LABELS):
        list(reader_of(damaged, backend))


@pytest.mark.parametrize(
    "choice",
    [
        {"split": "tests"},
        {"backend": "torch"},
        {"dtype": "int8"},
        {"framework": "mxnet"},
        {"recipe": "vgg"},
        {"layout": "CHWN"},
        {"device": "tpu"},
        {"on_bad_record": "ignore"},
    ],
    ids=str,
)
def test_unknown_choice_is_refused_with_the_known_ones(
    colours: Path, choice: dict[str, str]
) -> None:
    arguments: dict[str, Any] = {"split": "train", "batch_size": 4} | choice
    with pytest.raises(UsageError, match=says("expected-one", next(iter(choice)))):
        make_dataset(colours, **arguments)


def test_missing_split_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)

    with pytest.raises(UsageError, match=says("no-split-dataset", "'validation'", "train")):
        make_dataset(tmp_path / "set", "validation", 4)


def test_more_ranks_than_a_step_fills_are_refused(colours: Path) -> None:
    with pytest.raises(UsageError, match=says("not-enough-one-step-batch")):
        make_dataset(colours, "train", 8, world=World(0, 7))


@pytest.mark.parametrize(
    "choice",
    [
        {"backend": "tfdata", "dtype": "float16"},
        {"backend": "tfdata", "framework": "dlpack"},
        {"backend": "tfdata", "device": "gpu"},
        {"backend": "dali", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_unsupported_backend_option_is_refused_at_once(
    request: pytest.FixtureRequest, colours: Path, choice: dict[str, str]
) -> None:
    request.getfixturevalue({"tfdata": "tf", "dali": "dali"}[choice["backend"]])

    with pytest.raises(UsageError, match="does not support"):
        make_dataset(colours, "train", 4, **choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "size"), [(0, 16), (-1, 16), (4, 0), (4, -5)])
def test_invalid_sizes_are_usage_errors(colours: Path, backend: str, batch: int, size: int) -> None:
    with pytest.raises(UsageError):
        make_dataset(colours, "train", batch, size, backend=backend)


@on_backends(
    ["state"],
    [{"examples_read": 51}],
    [{}, {"epoch": -1}, {"examples_read": 51}, {"examples_read": -1}, {"epoch": "one"}],
)
def test_invalid_state_is_refused(colours: Path, backend: str, state: dict[str, Any]) -> None:
    reader = reader_of(colours, backend)
    whole = reader.state() | state if state else {}

    with pytest.raises(UsageError):
        reader.restore(whole)
    assert len(list(reader)) == 10


def test_masked_image_is_grey_and_finite(damaged: Path, backend: str) -> None:
    flip(2, 200)(damaged)
    reader = reader_of(damaged, backend, dtype="float32", on_bad_record="skip")
    batches = list(reader)

    assert all(np.isfinite(batch["images"]).all() for batch in batches)
    (masked,) = [b["images"][~b["mask"]][0] for b in batches if not b["mask"].all()]
    assert np.ptp(masked, axis=(0, 1)).max() < 0.02


def test_column_truncated_while_open_is_damage(colours: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(colours, tmp_path / "set"))
    make_column(root, "latents")
    fields = ("number", "column:latents")
    settings: dict[str, Any] = {"framework": "numpy", "world": World(), "fields": fields}
    reader = make_dataset(root, "train", NUM_TRAIN, 16, backend="native", **settings)
    next(iter(reader))
    for path in (root / column.folder_name("latents")).glob("train-*"):
        os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataDamagedError, match=says("ends-before-row-truncated-after")):
        next(iter(reader))
