"""adopt completes an existing dataset without encoding images or replacing files."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.dataset import example, record_files, schema
from imagenet_prep.sources.labels import official_classes
from tests.kit import command, foreign
from tests.kit.dataset import SMALL_FILES, contents, everything
from tests.kit.foreign_datasets import NUM_SHARDS, ForeignDataset
from tests.kit.messages import says

IN_PLACE = ("slim", "slim-own-classes", "slim-from-0", "tpu-in-folders", "aws-from-1", "flowers")


LACKS = {
    "slim": {},
    "slim-own-classes": {},
    "slim-from-0": {},
    "tpu-in-folders": {
        **dict.fromkeys(
            (schema.TEXT, *schema.FLOAT_KEYS, schema.BBOX_LABEL),
            "absent",
        ),
    },
    "aws-from-1": {
        schema.BBOX_LABEL: "absent",
        schema.TEXT: "empty",
        schema.HEIGHT: "untrue",
        schema.WIDTH: "untrue",
    },
    "flowers": {
        **dict.fromkeys(
            (schema.SYNSET, *schema.FLOAT_KEYS, schema.BBOX_LABEL),
            "absent",
        ),
    },
}


NAMES: list[str] = []


for split, total in NUM_SHARDS.items():
    NAMES += [schema.shard_name(split, number, total) for number in range(total)]


# Runs a command while the disk cannot read a file of the source.
UNREADABLE = (
    "-c",
    """
import errno, os
from imagenet_prep.__main__ import main
from imagenet_prep.storage import local_file
def readinto(self, buffer):
    local_file.require_disk(self._path, OSError(errno.EIO, os.strerror(errno.EIO)))
local_file.ReadableFile.readinto = readinto
main()
""",
)


@pytest.fixture
def copy(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> Callable[[str], ForeignDataset]:
    """Returns a copy of a dataset that the test may change."""

    def make(layout: str) -> ForeignDataset:
        source = foreign_dataset(layout)
        root = Path(shutil.copytree(source.root, tmp_path / "set"))
        return ForeignDataset(root, source.placed)

    return make


def adopt(root: Path, *flags: str | Path) -> command.Finished:
    return command.run("adopt", root, "--allow-subset", *flags)


def payloads(root: Path) -> dict[str, bytes]:
    """Returns the bytes of all shards, in order, under the names they should have."""
    folders = (root, root / "train", root / "validation")
    paths = sorted(itertools.chain.from_iterable(folder.glob("*-of-*") for folder in folders))
    assert len(paths) == len(NAMES)
    return {name: path.read_bytes() for name, path in zip(NAMES, paths, strict=True)}


@pytest.mark.parametrize("layout", IN_PLACE)
def test_adopt_makes_a_dataset_in_place(copy: Callable[[str], ForeignDataset], layout: str) -> None:
    source = copy(layout)
    before = payloads(source.root)
    result = adopt(source.root)
    proven = command.run("verify", source.root, "--level", "decode")

    assert result.code == 0, result
    assert proven.code == 0, proven
    made = contents(source.root)
    assert {name: made[name] for name in NAMES} == before
    beside = {*itertools.chain.from_iterable(map(schema.beside, NAMES))}
    assert set(made) == {*NAMES, *beside} | SMALL_FILES
    folders = sorted(path.name for path in source.root.iterdir() if path.is_dir())
    assert folders == [".work", "index", "samples"]
    manifest = json.loads(made["dataset.json"])
    grey = {} if layout == "aws-from-1" else {schema.COLORSPACE: "untrue"}
    assert manifest.get("lacks", {}) == LACKS[layout] | grey
    assert manifest["label_offset"] == (0 if layout == "slim-from-0" else 1)
    assert manifest["classes"]["official"] is (layout not in ("slim-own-classes", "flowers"))
    for name, index in ((n, made[f"index/{n}"].decode()) for n in NAMES):
        lines = [tuple(map(int, line.split())) for line in index.splitlines()]
        stream = io.BytesIO(made[name])
        assert lines == [
            (r.offset, len(r.payload) + record_files.FRAMING_BYTES)
            for r in record_files.read_records(stream, name)
        ]


@pytest.mark.parametrize("layout", [*IN_PLACE, "tfds"])
def test_rewritten_records_are_correct_and_images_unchanged(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path, layout: str
) -> None:
    source = foreign_dataset(layout)
    out = tmp_path / "out"
    before = everything(source.root)
    result = adopt(source.root, "--rewrite", "--out", out)
    proven = command.run("verify", out, "--level", "decode")

    assert result.code == 0, result
    assert proven.code == 0, proven
    assert everything(source.root) == before
    words = dict(zip(official_classes().wnids, official_classes().words, strict=True))
    wnids = [line.split()[0] for line in (out / "labels.txt").read_text().splitlines()]
    for split, shards in source.placed.items():
        for number, shard in enumerate(shards):
            found = whole_records(out / f"{split}-{number:05d}-of-{len(shards):05d}")
            for record, image in zip(found, shard, strict=True):
                data = foreign.aws(image, 0)["image/encoded"][0] if "aws" in layout else image.data
                assert record.encoded == data
                assert (record.width, record.height) == foreign.look(data)[0]
                assert record.filename == image.filename
                assert wnids[record.stored_label - 1] == record.wnid
                if layout != "flowers":
                    assert (record.wnid, record.text) == (image.wnid, words[image.wnid])
                boxes = image.boxes if layout.startswith("slim") else []
                assert list(record.boxes.xmax) == [box[2] for box in boxes]
    lacks = json.loads((out / "dataset.json").read_text()).get("lacks", {})
    assert lacks == ({} if "aws" in layout else {schema.COLORSPACE: "untrue"})


def whole_records(path: Path) -> list[example.ImageExample]:
    with path.open("rb") as stream:
        return [example.decode(r.payload) for r in record_files.read_records(stream, path.name)]


def test_linked_shards_use_no_space_and_keep_source(
    foreign_dataset: Callable[[str], ForeignDataset],
    copy: Callable[[str], ForeignDataset],
    tmp_path: Path,
) -> None:
    source = copy("aws-from-1").root
    out = tmp_path / "out"
    before = contents(source)
    result = adopt(source, "--out", out)

    assert result.code == 0, result
    assert contents(source) == before
    assert not (source / ".work").exists()
    for number in range(6):
        old = source / f"train-{number + 1:05d}-of-00006"
        new = out / NAMES[number]
        assert old.samefile(new)
    assert command.run("verify", out, "--level", "decode").code == 0
    assert adopt(source, "--out", out).code == 0


@pytest.mark.parametrize("layout", ["slim", "tpu-in-folders", "aws-from-1", "tfds"])
def test_dry_run_changes_nothing_and_lists_findings(
    copy: Callable[[str], ForeignDataset], layout: str
) -> None:
    source = copy(layout).root
    before = everything(source)
    result = adopt(source, "--dry-run")

    assert everything(source) == before
    assert says("nothing-changed").search(result.out)
    sentences = {
        "slim": ["labels: 1 ... 1000", "train has 118 images, expected 1,281,167"],
        "tpu-in-folders": [
            "train: shards are in train/; readers expect them one folder up",
            "image/class/text: absent in 149 of 149 records",
            "train/train-00000-of-00006 would be renamed to train-00000-of-00006",
        ],
        "aws-from-1": [
            "train: file numbers start at 1, not 0; last: train-00006-of-00006",
            "image/height: untrue in 146 of 149 records: the records store the size before",
            "image/class/text: empty in 149",
            "train-00001-of-00006 would be renamed to train-00000-of-00006",
        ],
        "tfds": ["labels: 0 ... 999"],
    }[layout]
    for sentence in sentences:
        assert sentence in result.out
    assert bool(says("files-named-tensorflow-datasets").search(result.out)) == (layout == "tfds")
    assert result.code == (2 if layout == "tfds" else 0)
    assert "--rewrite" in result.err if layout == "tfds" else result.err == ""


def test_counts_are_compared_with_the_official_ones(copy: Callable[[str], ForeignDataset]) -> None:
    source = copy("slim").root
    before = contents(source)
    result = command.run("adopt", source)

    assert result.code == 3
    assert says("expected-images-per-class", "train", "118 images", "1,281,167").search(result.err)
    assert "--allow-subset" in result.err
    assert contents(source) == before


def test_image_that_is_no_jpeg_is_refused(stored: list[foreign.Image], tmp_path: Path) -> None:
    def odd(image: foreign.Image, label: int) -> dict[str, foreign.Value]:
        return foreign.slim(image._replace(data=b"\x89PNG\r\n\x1a\n" + image.data), label)

    foreign.write(tmp_path / "in", stored, odd, num_shards={"validation": 1})
    result = adopt(tmp_path / "in")

    assert result.code == 3
    assert says("record-byte-3", "validation-00000-of-00001", "0", "0", "unknown_format").search(
        result.err
    )


@pytest.mark.parametrize("keeps_notes", [True, False])
def test_lost_files_are_restored_but_lost_shards_refused(
    copy: Callable[[str], ForeignDataset], keeps_notes: bool
) -> None:
    source = copy("aws-from-1").root
    assert adopt(source).code == 0
    before = contents(source)
    if not keeps_notes:
        shutil.rmtree(source / ".work")
    index, table = (sorted((source / folder).iterdir())[1] for folder in ("index", "samples"))
    small = [source / name for name in before if "-of-" not in name and name != "dataset.json"]
    assert len(small) == 5
    for path in (index, table, *small):
        path.unlink()
    result = adopt(source)
    assert result.code == 0, result
    assert "7 lost files restored" in result.out
    assert contents(source) == before

    for path in (index, table, *small):
        path.write_bytes(before[str(path.relative_to(source))][:-1])
    assert adopt(source).code == 0
    assert contents(source) == before

    shard = min(source.glob("train-*"))
    for cut in (True, False):
        shard.write_bytes(before[shard.name][:-1]) if cut else shard.unlink()
        index.unlink(missing_ok=True)
        result = adopt(source)
        assert result.code == 3, result
        assert says("missing-different-size-manifest-copy", ..., ..., shard.name).search(result.err)
    shard.write_bytes(before[shard.name])
    assert adopt(source).code == 0
    assert contents(source) == before


def test_changed_class_list_of_equal_size_is_refused(
    copy: Callable[[str], ForeignDataset],
) -> None:
    source = copy("slim").root
    assert adopt(source).code == 0
    labels = source / schema.LABELS
    first, second, *rest = labels.read_text().splitlines(keepends=True)
    labels.write_text("".join([second, first, *rest]))
    before = contents(source)
    result = adopt(source)

    assert result.code == 3, result
    assert says("missing-differs", labels, schema.MANIFEST).search(result.err)
    assert contents(source) == before


def test_invalid_flags_are_refused(tmp_path: Path) -> None:
    for flags in (("--rewrite",), ("--workers", "-1"), ("--out", tmp_path), ("--no-such",)):
        result = command.run("adopt", tmp_path, *flags)
        assert (result.code, result.out) == (2, ""), flags


def test_read_error_is_not_remembered_as_damage(
    copy: Callable[[str], ForeignDataset],
) -> None:
    source = copy("slim").root
    failed = command.run("adopt", source, "--allow-subset", program=UNREADABLE)
    result = adopt(source)

    assert failed.code == 1, failed
    assert says("cannot-read-3", ..., "Input/output error", "Check the disk").search(failed.err)
    assert result.code == 0, result
