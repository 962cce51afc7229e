"""All labels, WNIDs, keys, boxes and sizes are correct for datasets of all known writers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.dataset import example, schema
from imagenet_prep.sources.labels import official_classes
from tests.commands.resize.conftest import BOTH, Resized
from tests.kit import command, foreign
from tests.kit.dataset import SMALL_FILES, contents, records, shard_names, split_records
from tests.kit.foreign_datasets import LAYOUTS, NUM_SHARDS, ForeignDataset


def expected_size(width: int, height: int, short_side: int) -> tuple[int, int]:
    factor = min(1.0, short_side / min(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))


def classes_of(layout: str, images: list[foreign.Image]) -> list[str]:
    if layout == "flowers":
        names = {image.wnid: "_".join(image.words.partition(",")[0].split()) for image in images}
        return [names[wnid] for wnid in sorted(names)]
    if LAYOUTS[layout][1].get("own_classes"):
        return sorted({image.wnid for image in images})
    return list(official_classes().wnids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_records_of_known_writers_are_correct(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path, layout: str
) -> None:
    source = foreign_dataset(layout)
    out = tmp_path / "out"
    result = command.run("resize", "-i", source.root, "-o", out, *BOTH)
    proven = command.run("verify", out, "--level", "decode")

    assert result.code == 0, result
    assert proven.code == 0, proven
    placed = itertools.chain.from_iterable(source.placed.values())
    images = [*itertools.chain.from_iterable(placed)]
    classes = classes_of(layout, images)
    words = dict(zip(official_classes().wnids, official_classes().words, strict=True))
    for split, shards in source.placed.items():
        for number, shard in enumerate(shards):
            found = records(out / f"{split}-{number:05d}-of-{len(shards):05d}")
            assert [record.filename for record in found] == [image.filename for image in shard]
            for record, image in zip(found, shard, strict=True):
                assert_is(record, image, layout, classes, words)


def assert_is(
    record: example.ImageExample,
    image: foreign.Image,
    layout: str,
    classes: list[str],
    words: dict[str, str],
) -> None:
    flower = "_".join(image.words.partition(",")[0].split())
    name = flower if layout == "flowers" else image.wnid
    text = image.words.partition(",")[0] if layout == "flowers" else words[image.wnid]
    assert (record.wnid, record.text) == (name, text)
    assert record.stored_label == classes.index(name) + 1
    source = foreign.aws(image, 0)["image/encoded"][0] if layout == "aws-from-1" else image.data
    (width, height), mode = foreign.look(source)
    size = expected_size(width, height, 64)
    assert foreign.look(record.encoded) == (size, "RGB")
    assert (record.width, record.height) == size
    boxes = image.boxes if layout.startswith("slim") else []
    sides = (record.boxes.xmin, record.boxes.ymin, record.boxes.xmax, record.boxes.ymax)
    assert list(zip(*sides, strict=True)) == boxes
    if mode == "RGB" and min(width, height) <= 64:
        assert record.encoded == source, "what needs no shrinking passes byte for byte"


@pytest.mark.tf
def test_tensorflow_reads_all_keys(tf: Any, resized: Resized) -> None:
    from imagenet_prep.dataset import schema

    path = resized.out / "train-00000-of-00006"
    payloads = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]

    assert len(payloads) == len(resized.source.placed["train"][0])
    for payload, image in zip(payloads, resized.source.placed["train"][0], strict=True):
        features = tf.train.Example.FromString(payload).features.feature
        assert set(features) == set(schema.ALL_KEYS)
        assert features["image/filename"].bytes_list.value[0].decode() == image.filename
        labels = features["image/object/bbox/label"].int64_list.value
        assert list(labels) == [features["image/class/label"].int64_list.value[0]] * len(
            image.boxes
        )
        pixels = tf.io.decode_jpeg(features["image/encoded"].bytes_list.value[0]).shape
        assert tuple(pixels) == (
            features["image/height"].int64_list.value[0],
            features["image/width"].int64_list.value[0],
            3,
        )


def test_result_is_a_complete_dataset(resized: Resized) -> None:
    manifest = json.loads(resized.contents["dataset.json"])
    shards: set[str] = set()
    for split, total in NUM_SHARDS.items():
        shards |= {f"{split}-{number:05d}-of-{total:05d}" for number in range(total)}

    assert shard_names(resized.contents) == shards
    beside = {*itertools.chain.from_iterable(map(schema.beside, shards))}
    assert set(resized.contents) == shards | beside | SMALL_FILES
    assert list(manifest["splits"]) == ["train", "validation"]
    assert [source["name"] for source in manifest["sources"]] == sorted(shards)
    assert all(len(source["md5"]) == 32 for source in manifest["sources"])
    placed = itertools.chain.from_iterable(resized.source.placed.values())
    assert sum(s["members"] for s in manifest["sources"]) == sum(map(len, placed))
    assert "lacks" not in manifest
    assert manifest["subset"] is True


def test_wrongly_stored_images_are_repaired_and_listed(resized: Resized) -> None:
    lines = [json.loads(line) for line in resized.contents["quarantine.jsonl"].splitlines()]

    assert {line["action"] for line in lines} == {"repaired"}
    line_of = {line["reason"]: line for line in lines}
    assert line_of.keys() == {"gray", "orientation"}
    line = line_of["gray"]
    data = (resized.source.root / line["archive"]).read_bytes()
    image = data[line["offset"] :][: line["size"]]
    assert foreign.look(image)[1] == "L"


def test_dataset_of_this_program_is_read_by_manifest(
    resized: Resized, tmp_path: Path, foreign_dataset: Callable[[str], ForeignDataset]
) -> None:
    first = tmp_path / "own"
    second = tmp_path / "again"
    own = foreign_dataset("slim-own-classes")
    command.run("resize", "-i", own.root, "-o", first, *BOTH)
    result = command.run("resize", "-i", first, "-o", second, "-s", "train", "-r", "1000")

    assert result.code == 0, result
    for path in sorted(first.glob("train-*")):
        assert records(second / path.name) == records(path)
    assert (second / "labels.txt").read_bytes() == (first / "labels.txt").read_bytes()


def test_stretch_makes_squares_of_all_images(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    source = foreign_dataset("slim")
    out = tmp_path / "out"
    result = command.run("resize", "-i", source.root, "-o", out, "-R", "-r", "72")
    proven = command.run("verify", out, "--level", "decode")

    assert result.code == 0, result
    assert proven.code == 0, proven
    found = split_records(out, "train")
    assert len(found) == sum(map(len, source.placed["train"]))
    assert {(record.width, record.height) for record in found} == {(72, 72)}


def test_input_is_never_changed(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    from tests.kit.dataset import everything

    source = foreign_dataset("aws-from-1").root
    before = everything(source)
    result = command.run("resize", "-i", source, "-o", tmp_path / "out", "-r", "64")

    assert result.code == 0, result
    assert everything(source) == before


def test_images_equal_those_of_prepare(mini: object, resized: Resized, tmp_path: Path) -> None:
    """They share the codec: at the same quality the images are the same bytes."""
    flags = ("--train-shards", "4", "--validation-shards", "2", "--allow-subset")
    prepared = tmp_path / "prepared"
    again = tmp_path / "again"
    made = command.run(
        "prepare", "--source", mini.root, "--out", prepared, "--short-side", "64", *flags
    )
    result = command.run(
        *("resize", "-i", resized.source.root, "-o", again, *BOTH, "--quality", "90")
    )

    assert made.code == 0, made
    assert result.code == 0, result
    ours = {record.filename: record.encoded for record in split_records(again, "train")}
    theirs = {record.filename: record.encoded for record in split_records(prepared, "train")}
    same = [name for name in ours if ours[name] == theirs[name]]
    # The foreign writer stored PNG and CMYK images as JPEG.
    assert len(same) >= len(ours) - 2
    assert ours.keys() == theirs.keys()


def test_contents_do_not_depend_on_the_location(resized: Resized, unusual_tmp_path: Path) -> None:
    import shutil

    shutil.copytree(resized.source.root, unusual_tmp_path / "in")
    result = command.run("resize", "-i", "in", "-o", "out", *BOTH, cwd=unusual_tmp_path)

    assert result.code == 0, result
    assert contents(unusual_tmp_path / "out") == resized.contents


def test_a_bad_image_is_left_out_and_listed(stored: list[foreign.Image], tmp_path: Path) -> None:
    victim = next(image for image in stored if image.split == "train")

    def cut_short(image: foreign.Image, label: int) -> dict[str, foreign.Value]:
        data = image.data[: len(image.data) // 2] if image is victim else image.data
        return foreign.slim(image._replace(data=data), label)

    foreign.write(tmp_path / "in", stored, cut_short, num_shards=NUM_SHARDS)
    places = ("-i", tmp_path / "in", "-o", tmp_path / "out", *BOTH)
    failed = command.run("resize", *places, "--on-bad-image", "fail")
    limited = command.run("resize", *places, "--max-bad", "0")
    result = command.run("resize", *places)
    after = command.run("resize", *places, "--max-bad", "0")

    for refused in (failed, limited, after):
        assert refused.code == 3, refused
    assert victim.key in failed.err
    assert result.code == 0, result
    made = contents(tmp_path / "out")
    assert victim.key.encode() in made["quarantine.jsonl"]
    assert command.run("verify", tmp_path / "out", "--level", "decode").code == 0
