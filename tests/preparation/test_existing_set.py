"""Checks of an existing dataset: problems, missing keys, and copies."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from imagenet_prep.codec.transform import keep
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import class_list, manifest, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import PreparedImage
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import existing_set
from imagenet_prep.preparation.existing_set import ExistingSet, check_existing_set, settle_labels
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.storage.folder import LocalStore
from tests.kit import faults, foreign
from tests.kit.foreign_datasets import few_images
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset

THREADS = Workers(1, "threads")
FIRST = "train-00000-of-00002"

Change = Callable[[foreign.Image, dict[str, foreign.Value]], Mapping[str, foreign.Value]]


def write(root: Path, change: Change = lambda _, features: features, **how: object) -> Path:
    """Writes the few images in three shards as slim would, with a change."""

    def writer(image: foreign.Image, label: int) -> Mapping[str, foreign.Value]:
        return change(image, foreign.slim(image, label))

    foreign.write(root, few_images(), writer, num_shards={"train": 2, "validation": 1}, **how)  # type: ignore[arg-type]
    return root


def check(root: Path) -> ExistingSet:
    found = shard_files.find(LocalStore(root))
    work = LocalStore(root.with_name("receipts"))
    return check_existing_set(found, work, THREADS, quiet=True)


def test_sound_dataset_has_no_problem(tmp_path: Path) -> None:
    seen = check(write(tmp_path / "set"))

    assert (seen.problems, seen.lacks, seen.not_rgb) == ([], {}, 0)
    assert (seen.examples, seen.labelling.offset) == (8, 1)
    assert seen.labelling.classes == official_classes()
    assert list(seen.shards) == ["train", "validation"]


def without(key: str) -> Change:
    return lambda _, features: {name: value for name, value in features.items() if name != key}


def with_value(key: str, value: foreign.Value, of: int = 8) -> Change:
    """Changes the value of a key in the first `of` images."""
    keys = [image.key for image in few_images()][:of]
    return lambda image, features: features | ({key: value} if image.key in keys else {})


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (without("image/class/text"), {"image/class/text": schema.ABSENT}),
        (with_value("image/class/text", [b""]), {"image/class/text": schema.EMPTY}),
        (with_value("image/height", [9000]), {"image/height": schema.WRONG}),
        (with_value("image/width", [1], of=1), {"image/width": schema.WRONG}),
        (with_value("image/channels", [1]), {"image/channels": schema.WRONG}),
    ],
)
def test_optional_keys_are_missing_without_a_problem(
    tmp_path: Path, change: Change, missing: dict[str, str]
) -> None:
    seen = check(write(tmp_path / "set", change))

    assert (seen.problems, seen.lacks) == ([], missing)


def test_worst_lack_of_a_key_is_reported(tmp_path: Path) -> None:
    def change(
        image: foreign.Image, features: dict[str, foreign.Value]
    ) -> Mapping[str, foreign.Value]:
        if image.split == "validation":
            return without("image/height")(image, features)
        return features | {"image/height": [9000]}

    seen = check(write(tmp_path / "set", change))

    assert seen.lacks == {"image/height": schema.ABSENT}
    assert seen.lack_counts == {"image/height": {schema.WRONG: 6, schema.ABSENT: 2}}


@pytest.mark.parametrize(
    ("change", "kind"),
    [(lambda _, features: features, schema.WRONG), (without("image/colorspace"), schema.ABSENT)],
)
def test_grey_image_is_counted_by_its_colour_space(
    tmp_path: Path, change: Change, kind: str
) -> None:
    stream = io.BytesIO()
    Image.new("L", (24, 24), 99).save(stream, "JPEG")
    size: dict[str, foreign.Value] = {"image/height": [24], "image/width": [24]}
    grey: dict[str, foreign.Value] = {"image/encoded": [stream.getvalue()], **size}
    first = few_images()[0].key

    def writer(
        image: foreign.Image, features: dict[str, foreign.Value]
    ) -> Mapping[str, foreign.Value]:
        return change(image, features | (grey if image.key == first else {}))

    seen = check(write(tmp_path / "set", writer))

    assert (seen.problems, seen.not_rgb) == ([], 1)
    assert seen.lacks == {"image/colorspace": kind}


def test_damaged_record_is_a_problem(tmp_path: Path) -> None:
    root = write(tmp_path / "set")
    faults.flip_bit(root / FIRST, (root / FIRST).stat().st_size - 2)
    (problem,) = check(root).problems

    assert problem.startswith(f"{FIRST}: record 2")
    assert "CRC" in problem


def test_bytes_that_are_no_jpeg_are_a_problem(tmp_path: Path) -> None:
    seen = check(write(tmp_path / "set", with_value("image/encoded", [b"GIF89a"], of=1)))

    assert [": record " in problem for problem in seen.problems] == [True]
    assert seen.examples == 8


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("image/object/bbox/label", [1] * 9, says("bounding-box-lists-differ-length")),
        ("image/class/text", [b"a", b"b"], "image/class/text"),
        ("image/class/text", [7], "image/class/text"),
    ],
)
def test_record_that_readers_refuse_is_a_problem(
    tmp_path: Path, key: str, value: foreign.Value, complaint: str
) -> None:
    """Its label, its key and its image are sound, but it is no valid example."""
    (problem,) = check(write(tmp_path / "set", with_value(key, value, of=1))).problems

    assert ": record " in problem
    assert re.search(complaint, problem)


def test_shard_with_too_many_problems_is_abandoned(tmp_path: Path, limits: Limits) -> None:
    limits(listed_problems=2)
    seen = check(write(tmp_path / "set", with_value("image/encoded", [b"GIF89a"])))

    given_up = [
        problem
        for problem in seen.problems
        if says("checking-stopped-after-problems-may", ..., "2").search(problem)
    ]
    assert len(given_up) == 3
    # Their complete bytes are unknown, so they are not compared.
    assert not any(says("same-bytes").search(problem) for problem in seen.problems)


def test_copied_shard_is_a_problem(tmp_path: Path) -> None:
    root = write(tmp_path / "set")
    shutil.copy(root / FIRST, root / "train-00001-of-00002")

    assert check(root).problems == [
        f"train-00001-of-00002: has the same bytes as {FIRST}",
    ]


def test_labels_that_contradict_the_others_end_the_check(tmp_path: Path) -> None:
    root = write(tmp_path / "set", with_value("image/class/label", [77], of=1))

    with pytest.raises(
        DataDamagedError, match=says("labels-not-match-others-labels", "1", "label 77")
    ):
        check(root)


def test_damage_ends_the_listing_of_labels(tmp_path: Path) -> None:
    root = write(tmp_path / "set", own_classes=True)
    faults.flip_bit(root / FIRST, (root / FIRST).stat().st_size - 2)
    found = shard_files.find(LocalStore(root))
    work = LocalStore(tmp_path / "receipts")

    with pytest.raises(
        DataDamagedError,
        match=says("download-damaged-shards-again", ..., re.compile(r"CRC(.|\n)*1 problem")),
    ):
        settle_labels(found, work, THREADS, quiet=True)


def test_known_class_list_precedes_classes_of_the_records(
    tmp_path: Path,
) -> None:
    wnids = tuple(sorted({image.wnid for image in few_images()}))
    known = ClassList(wnids, ("a", "b", "c"))
    found = shard_files.find(LocalStore(write(tmp_path / "set", own_classes=True)))
    work = LocalStore(tmp_path / "receipts")

    labelling = settle_labels(found, work, THREADS, known=known, quiet=True)
    assert labelling.classes == known


def test_different_number_of_images_is_reported(tmp_path: Path) -> None:
    seen = check(write(tmp_path / "set"))

    assert seen.edition == ""
    assert any("1,281,167" in problem for problem in seen.count_problems)
    # A test split is not one of ILSVRC2012, but an evaluation set.
    as_test = replace(seen, shards={schema.TEST: seen.shards["train"]})
    assert as_test.count_problems == []


def test_counts_of_a_known_edition_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = check(write(tmp_path / "set"))
    monkeypatch.setattr(class_list, "recognised", lambda *_: "imagenet21k_winter21")
    assert (seen.edition, seen.count_problems) == ("imagenet21k_winter21", [])


def test_validation_labels_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[dict[str, int]] = []

    def refuse(classes: ClassList, labels: dict[str, int], where: str, *_: object) -> None:
        noted.append(labels)
        raise DataDamagedError(f"{where}: shuffled")

    monkeypatch.setattr(existing_set, "check_validation", refuse)
    root = write(tmp_path / "set")

    assert check(root).problems == [f"{root}: shuffled"]
    # By the number in the file's name, the position of the class in the official list.
    assert noted == [{"ILSVRC2012_val_00000006": 5, "ILSVRC2012_val_00000007": 105}]


def test_killed_check_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "set")
    before = check(root)

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a shard is read again")

    monkeypatch.setattr(existing_set, "_check_shard", read)
    assert check(root).shards == before.shards


def test_identity_of_shards_is_names_sizes_and_times(tmp_path: Path) -> None:
    """Earlier versions stored this identity: the sources of a dataset are recognised by it."""
    [shard, *_] = shard_files.find(LocalStore(write(tmp_path / "set"))).splits["train"]
    noted = [[shard.name, shard.stat.size, shard.stat.validator]]

    assert existing_set.identity([shard]) == strict_json.digest(noted)


def test_refused_and_largest_images_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tallest image is not the widest, and neither is the last one of its shard."""
    refused = [image.data for image in few_images()[:3]]

    def keep_or_repair(data: bytes) -> PreparedImage:
        return keep(data)._replace(repair="odd_header" if data in refused else None)

    monkeypatch.setattr(existing_set, "keep", keep_or_repair)
    seen = check(write(tmp_path / "set"))

    assert seen.refused == 3
    sizes: dict[str, list[tuple[int, int]]] = {"train": [], "validation": []}
    for image in few_images():
        sizes[image.split].append((image.width, image.height))
    for split, shards in seen.shards.items():
        widths, heights = zip(*sizes[split], strict=True)
        found = max(s.max_width for s in shards), max(s.max_height for s in shards)
        assert found == (max(widths), max(heights))


def test_exported_keys_are_part_of_the_identity(tmp_path: Path) -> None:
    """After a change of the list, the records of the same file have different keys."""
    [shard, *_] = shard_files.find(LocalStore(write(tmp_path / "set"))).splits["train"]
    listed = [{}, {f"{shard.file}:0": "a/1"}, {f"{shard.file}:0": "a/2"}]
    assert len({existing_set.identity([shard._replace(keys=keys)]) for keys in listed}) == 3


@pytest.mark.parametrize("changed", ["offset", "classes"])
def test_shards_are_checked_again_for_new_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """The receipts of a check with a different meaning of the labels are not used."""
    root = write(tmp_path / "set")
    known = check(root).labelling
    wnids = known.classes.wnids
    other = {
        "offset": replace(known, offset=0),
        "classes": replace(known, classes=ClassList(wnids[::-1], known.classes.words)),
    }[changed]
    monkeypatch.setattr(existing_set, "settle_labels", lambda *_, **__: other)

    assert len(check(root).problems) == 8


def dataset(root: Path, *numbers: int) -> Path:
    """Writes a dataset of this program with one shard and its table of samples."""
    images = [picture(number, plain(number)) for number in numbers]
    write_dataset(root, {"validation": [images]}, num_classes=4)
    made = add_tables(root)
    counts = [numbers.count(number) for number in range(4)]
    splits = {
        name: replace(split, examples_per_class=counts) for name, split in made.splits.items()
    }
    (root / schema.MANIFEST).write_bytes(replace(made, splits=splits).dumps())
    return root


def test_shards_are_checked_again_for_new_tables(tmp_path: Path) -> None:
    """The keys of a dataset are those of its tables, which its manifest describes."""
    root = dataset(tmp_path / "set", 0, 1)
    before = check(root).tables
    made = manifest.loads((root / schema.MANIFEST).read_bytes(), "set")
    (root / schema.MANIFEST).write_bytes(replace(made, plan_digest="0" * 64).dumps())
    assert check(root).tables != before


@pytest.mark.parametrize("has_tables", [True, False])
def test_only_keys_of_records_get_numbers(tmp_path: Path, *, has_tables: bool) -> None:
    """Keys in tables are final; with `has_tables` unset, the keys are made again."""
    found = shard_files.find(LocalStore(dataset(tmp_path / "set", 0, 1, 1)), check=False)
    work = LocalStore(tmp_path / "receipts")
    seen = check_existing_set(found, work, THREADS, has_tables=has_tables, quiet=True)

    assert seen.problems == []
    [shard] = seen.all_shards
    table = schema.samples_name(shard.shard)
    new = seen.renamed.get(table, {})
    assert bool(new) == (not has_tables)
    data, sha256 = existing_set.renamed_keys(work, f"{seen.tables}/{table}", new)
    assert (shard.samples_bytes, shard.samples_sha256) == (len(data), sha256)


def test_labels_of_own_datasets_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels that `amend` changed may differ from the published ones."""

    def refuse(*_: object) -> None:
        raise DataDamagedError("shuffled")

    monkeypatch.setattr(existing_set, "check_validation", refuse)
    assert check(dataset(tmp_path / "set", 0, 1)).problems == []


@pytest.mark.parametrize(("writer", "reported"), [(foreign.flowers, False), (foreign.slim, True)])
def test_counts_are_only_compared_for_wnids(
    tmp_path: Path, writer: foreign.Writer, *, reported: bool
) -> None:
    """Each difference is reported once, although both splits have it."""
    root = tmp_path / "set"
    shards = {"train": 2, "validation": 1}
    foreign.write(root, few_images(), writer, num_shards=shards, own_classes=True)
    problems = check(root).count_problems

    assert bool(problems) == reported
    assert len({*problems}) == len(problems)
