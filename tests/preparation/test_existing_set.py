"""The check of an existing set: what is a problem, what is only missing, and what is a copy."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from PIL import Image

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import existing_set
from imagenet_prep.preparation.existing_set import ExistingSet, check_existing_set, settle_labels
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.storage.folder import LocalStore
from tests.kit import faults, foreign
from tests.kit.foreign_sets import few_images
from tests.kit.limits import Limits

THREADS = Workers(1, "threads")
FIRST = "train-00000-of-00002"

Change = Callable[[foreign.Image, dict[str, foreign.Value]], Mapping[str, foreign.Value]]


def write(root: Path, change: Change = lambda _, features: features, **how: object) -> Path:
    """Writes the few images in three shards as slim would, but for `change`."""

    def writer(image: foreign.Image, label: int) -> Mapping[str, foreign.Value]:
        return change(image, foreign.slim(image, label))

    foreign.write(root, few_images(), writer, num_shards={"train": 2, "validation": 1}, **how)  # type: ignore[arg-type]
    return root


def check(root: Path) -> ExistingSet:
    found = shard_files.find(LocalStore(root))
    work = LocalStore(root.with_name("receipts"))
    return check_existing_set(found, work, THREADS, quiet=True)


def test_a_sound_set_has_no_problem_and_lacks_nothing(tmp_path: Path) -> None:
    seen = check(write(tmp_path / "set"))

    assert (seen.problems, seen.lacks, seen.not_rgb) == ([], {}, 0)
    assert (seen.examples, seen.labelling.offset) == (8, 1)
    assert seen.labelling.classes == official_classes()
    assert list(seen.shards) == ["train", "validation"]


def without(key: str) -> Change:
    return lambda _, features: {name: value for name, value in features.items() if name != key}


def with_value(key: str, value: foreign.Value, of: int = 8) -> Change:
    """Changes what the first `of` images have for a key."""
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
def test_what_readers_can_do_without_is_missing_and_no_problem(
    tmp_path: Path, change: Change, missing: dict[str, str]
) -> None:
    seen = check(write(tmp_path / "set", change))

    assert (seen.problems, seen.lacks) == ([], missing)


def test_of_what_records_lack_the_worst_counts(tmp_path: Path) -> None:
    def change(
        image: foreign.Image, features: dict[str, foreign.Value]
    ) -> Mapping[str, foreign.Value]:
        if image.split == "validation":
            return without("image/height")(image, features)
        return features | {"image/height": [9000]}

    seen = check(write(tmp_path / "set", change))

    assert seen.lacks == {"image/height": schema.ABSENT}
    assert seen.lack_counts == {"image/height": {schema.WRONG: 6, schema.ABSENT: 2}}


def test_a_grey_image_is_counted_and_its_colour_space_is_wrong(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("L", (24, 24), 99).save(stream, "JPEG")
    size: dict[str, foreign.Value] = {"image/height": [24], "image/width": [24]}
    grey: dict[str, foreign.Value] = {"image/encoded": [stream.getvalue()], **size}
    first = few_images()[0].key
    seen = check(write(tmp_path / "set", lambda image, f: f | (grey if image.key == first else {})))

    assert (seen.problems, seen.not_rgb) == ([], 1)
    assert seen.lacks == {"image/colorspace": schema.WRONG}


def test_a_damaged_record_is_a_problem_and_its_shard_has_no_digest(tmp_path: Path) -> None:
    root = write(tmp_path / "set")
    faults.flip_bit(root / FIRST, (root / FIRST).stat().st_size - 2)
    (problem,) = check(root).problems

    assert problem.startswith(f"{FIRST}: record 2")
    assert "CRC" in problem


def test_bytes_that_are_no_jpeg_are_a_problem_of_their_record(tmp_path: Path) -> None:
    seen = check(write(tmp_path / "set", with_value("image/encoded", [b"GIF89a"], of=1)))

    assert [": record " in problem for problem in seen.problems] == [True]
    assert seen.examples == 8


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("image/object/bbox/label", [1] * 9, "the bounding box lists differ in length"),
        ("image/class/text", [b"a", b"b"], "image/class/text"),
        ("image/class/text", [7], "image/class/text"),
    ],
)
def test_a_record_that_readers_refuse_is_a_problem(
    tmp_path: Path, key: str, value: foreign.Value, complaint: str
) -> None:
    """Its label, its key and its image are sound, and it is no example all the same."""
    (problem,) = check(write(tmp_path / "set", with_value(key, value, of=1))).problems

    assert ": record " in problem
    assert complaint in problem


def test_a_shard_with_too_many_problems_is_given_up_and_says_so(
    tmp_path: Path, limits: Limits
) -> None:
    limits(listed_problems=2)
    seen = check(write(tmp_path / "set", with_value("image/encoded", [b"GIF89a"])))

    given_up = [
        problem for problem in seen.problems if "checking stopped after 2 problems" in problem
    ]
    assert len(given_up) == 3


def test_a_shard_that_was_copied_over_another_is_a_problem(tmp_path: Path) -> None:
    root = write(tmp_path / "set")
    shutil.copy(root / FIRST, root / "train-00001-of-00002")

    assert check(root).problems == [
        f"train-00001-of-00002: has the same bytes as {FIRST}",
    ]


def test_labels_that_contradict_the_others_end_the_check(tmp_path: Path) -> None:
    root = write(tmp_path / "set", with_value("image/class/label", [77], of=1))

    with pytest.raises(
        DataDamagedError, match="labels that do not match the others \\(1\\): .* label 77"
    ):
        check(root)


def test_damage_ends_the_listing_of_labels_and_is_counted(tmp_path: Path) -> None:
    root = write(tmp_path / "set", own_classes=True)
    faults.flip_bit(root / FIRST, (root / FIRST).stat().st_size - 2)
    found = shard_files.find(LocalStore(root))
    work = LocalStore(tmp_path / "receipts")

    with pytest.raises(
        DataDamagedError, match=r"CRC(.|\n)*1 problem. Download the damaged shards again"
    ):
        settle_labels(found, ("train",), work, THREADS, quiet=True)


def test_a_class_list_that_is_known_comes_before_the_classes_of_the_records(
    tmp_path: Path,
) -> None:
    wnids = tuple(sorted({image.wnid for image in few_images()}))
    known = ClassList(wnids, ("a", "b", "c"))
    found = shard_files.find(LocalStore(write(tmp_path / "set", own_classes=True)))
    work = LocalStore(tmp_path / "receipts")

    labelling = settle_labels(found, ("train",), work, THREADS, known=known, quiet=True)
    assert labelling.classes == known


def test_a_set_of_another_number_of_images_says_how_it_differs(tmp_path: Path) -> None:
    seen = check(write(tmp_path / "set"))

    assert seen.edition == ""
    assert any("1,281,167" in problem for problem in seen.count_problems)


def test_validation_labels_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[dict[str, int]] = []

    def refuse(classes: ClassList, labels: dict[str, int], where: str, *_: object) -> None:
        noted.append(labels)
        raise DataDamagedError(f"{where}: shuffled")

    monkeypatch.setattr(existing_set, "check_validation", refuse)
    root = write(tmp_path / "set")

    assert check(root).problems == [f"{root}: shuffled"]
    # By the number in the file's name, the class's place in the official list.
    assert noted == [{"ILSVRC2012_val_00000006": 5, "ILSVRC2012_val_00000007": 105}]


def test_a_check_that_was_killed_reads_only_what_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "set")
    before = check(root)

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a shard is read again")

    monkeypatch.setattr(existing_set, "_check_shard", read)
    assert check(root).shards == before.shards


def test_the_identity_of_shards_is_their_names_sizes_and_times(tmp_path: Path) -> None:
    """Earlier versions have noted it: the sources of a dataset are recognised by it."""
    [shard, *_] = shard_files.find(LocalStore(write(tmp_path / "set"))).splits["train"]
    noted = [[shard.name, shard.stat.size, shard.stat.validator]]

    assert existing_set.identity([shard]) == strict_json.digest(noted)
