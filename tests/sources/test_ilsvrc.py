"""The archives of ILSVRC2012 as a source: members, labels and counts."""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
import random
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ILSVRC2012, ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import ilsvrc, labels, published
from imagenet_prep.storage.archive import ArchiveReader
from tests.kit.layouts import tar, write
from tests.kit.messages import says
from tests.kit.miniature import (
    Miniature,
    edit_train_tar,
    miniature_for_tests,
    rewrite_tar,
)

TRAIN, VALIDATION = ilsvrc.ARCHIVES["train"], ilsvrc.ARCHIVES["validation"]
Pair = tuple[tarfile.TarInfo, bytes]


@pytest.fixture(scope="module")
def mini(shared_cache: Path) -> Miniature:
    return miniature_for_tests(shared_cache, num_train=20, size=(32, 24), num_classes=4)


def indexed(folder: Path, split: str) -> list[Member]:
    source = ilsvrc.find(folder, [split])
    return [*itertools.chain.from_iterable(map(source.index, source.index_tasks(split)))]


def renamed(info: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    info = copy.copy(info)
    info.name = name
    return info


@pytest.fixture
def edited(mini: Miniature, tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that copies the miniature with one edited archive."""

    def make(archive: str, edit: Callable[..., Iterable[Pair]], *, inner: bool = False) -> Path:
        for name in (TRAIN, VALIDATION, labels.DEVKIT_NAME):
            if name != archive:
                (tmp_path / name).symlink_to(mini.root / name)
        rewrite = edit_train_tar if inner else rewrite_tar
        rewrite(mini.root / archive, tmp_path / archive, edit)
        return tmp_path

    return make


@pytest.mark.parametrize("split", schema.SOURCE_SPLITS)
def test_members_equal_the_truth_of_the_miniature(mini: Miniature, split: str) -> None:
    members = indexed(mini.root, split)
    truth = mini.of(split)
    reader = ArchiveReader({name: mini.root / name for name in (TRAIN, VALIDATION)})

    assert {m.key: (m.class_index, m.size) for m in members} == {
        key: (image.class_index, image.num_bytes) for key, image in truth.items()
    }
    for member in members:
        data = reader.read(member.archive, member.offset, member.size)
        assert hashlib.sha256(data).hexdigest() == truth[member.key].sha256


@pytest.mark.parametrize("split", schema.SOURCE_SPLITS)
def test_members_are_sorted_by_key_not_tar_order(mini: Miniature, split: str) -> None:
    keys = [member.key for member in indexed(mini.root, split)]

    assert keys == sorted(keys)
    assert keys != list(mini.of(split))


def test_filename_is_the_base_name_of_the_key(mini: Miniature) -> None:
    for member in indexed(mini.root, "train"):
        wnid, name = member.key.split("/")
        assert (member.filename, name.startswith(f"{wnid}_")) == (name, True)


def test_one_task_per_class_and_one_for_validation(mini: Miniature) -> None:
    source = ilsvrc.find(mini.root, schema.SOURCE_SPLITS)
    train = source.index_tasks("train")
    validation = source.index_tasks("validation")

    assert [task.class_index for task in train] == list(range(len(mini.classes)))
    assert [task.name for task in train] == [f"train-{wnid}" for wnid, _ in mini.classes]
    assert [task.name for task in validation] == ["validation"]
    assert len({task.name for task in [*train, *validation]}) == 5


def test_outer_tar_is_listed_once_and_pickled(
    mini: Miniature, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ilsvrc.find(mini.root, ["train"])
    tasks = source.index_tasks("train")
    monkeypatch.delattr(ilsvrc, "inner_tars")

    assert source.index_tasks("train") == tasks
    assert pickle.loads(pickle.dumps(source)).index_tasks("train") == tasks


def test_missing_folder_is_refused_with_expected_contents(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says("source-no-such-folder-put", ..., TRAIN)):
        ilsvrc.find(tmp_path / "nowhere", ["train"])


def test_missing_archives_are_named_with_those_found(tmp_path: Path) -> None:
    (tmp_path / "ILSVRC2012_img_train.tar.part").touch()
    (tmp_path / "notes.txt").touch()

    with pytest.raises(
        UsageError,
        match=says(
            "source-not-found-get-archives",
            ...,
            f"{TRAIN} and {VALIDATION}",
            "; found ILSVRC2012_img_train.tar.part, notes.txt",
        ),
    ):
        ilsvrc.find(tmp_path, schema.SOURCE_SPLITS)


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not found; found nothing"):
        ilsvrc.find(tmp_path, ["train"])


def test_validation_without_devkit_has_the_published_labels(
    mini: Miniature, tmp_path: Path
) -> None:
    (tmp_path / VALIDATION).symlink_to(mini.root / VALIDATION)
    published = labels.published_labels()

    assert ilsvrc.find(tmp_path, ["validation"]).classes.official
    assert [m.class_index for m in indexed(tmp_path, "validation")] == [*published[:16]]


def test_train_does_not_need_the_devkit(mini: Miniature, tmp_path: Path) -> None:
    (tmp_path / TRAIN).symlink_to(mini.root / TRAIN)
    members = indexed(tmp_path, "train")
    official = labels.official_classes()

    # The miniature's classes are official ones, so now they have their official index.
    assert ilsvrc.find(tmp_path, ["train"]).classes.official
    assert {m.class_index for m in members} == {official.index[w] for w, _ in mini.classes}


def test_archive_with_folders_gives_the_same_keys(
    mini: Miniature, edited: Callable[..., Path]
) -> None:
    folder = edited(VALIDATION, lambda i, d: [(renamed(i, f"./val/{i.name}"), d)])

    assert [m.key for m in indexed(folder, "validation")] == sorted(mini.of("validation"))


@pytest.mark.parametrize("place", [0, 1])
def test_name_and_folder_of_an_image_must_agree(
    mini: Miniature, tmp_path: Path, place: int
) -> None:
    """A tar of class folders: neither the folder nor the name decides alone."""
    wnids = [wnid for wnid, _ in mini.classes[:2]]
    files = {f"{wnid}/{wnid}_1.JPEG": b"\xff\xd8" for wnid in wnids}
    write(tmp_path / TRAIN, tar(files))
    assert [member.key for member in indexed(tmp_path, "train")] == sorted(files)

    moved = f"{wnids[place]}/{wnids[1 - place]}_2.JPEG"
    write(tmp_path / TRAIN, tar({**files, moved: b"\xff\xd8"}))
    with pytest.raises(
        SourceError,
        match=says("class-name-one-them-wrong", moved, wnids[place], "starts", wnids[1 - place]),
    ):
        indexed(tmp_path, "train")


def synset_labels(folder: Path, mini: Miniature, indices: Iterable[int]) -> None:
    """Writes the archive of validation images, and a list of labels instead of the devkit."""
    (folder / VALIDATION).symlink_to(mini.root / VALIDATION)
    wnids = labels.official_classes().wnids
    lines = (f"{wnids[index]}\n" for index in indices)
    (folder / ilsvrc.SYNSET_LABELS).write_text("".join(lines))


def test_label_list_must_match_the_published_labels(mini: Miniature, tmp_path: Path) -> None:
    numbers = labels.published_labels()
    synset_labels(tmp_path, mini, numbers)
    assert ilsvrc.find(tmp_path, ["validation"]).classes.official

    (tmp_path / VALIDATION).unlink()
    synset_labels(tmp_path, mini, [*numbers[1:], numbers[0]])
    with pytest.raises(SourceError, match=re.escape(labels.PUBLISHED)):
        ilsvrc.find(tmp_path, ["validation"])


def test_only_official_classes_have_published_hashes(mini: Miniature, tmp_path: Path) -> None:
    (tmp_path / TRAIN).symlink_to(mini.root / TRAIN)
    (official,) = ilsvrc.find(tmp_path, ["train"]).parts
    assert official.md5 == published.TRAIN.md5
    (own,) = ilsvrc.find(mini.root, ["train"]).parts
    assert own.md5 is None


@pytest.mark.parametrize("separator", [",", ";"])
def test_label_list_is_read_with_either_separator(tmp_path: Path, separator: str) -> None:
    rows = [("ImageId", "PredictionString"), ("a", "n01440764 1 2 3 4"), ("b", "n01443537 5 6 7 8")]
    text = "".join(f"{separator.join(row)}\r\n" for row in rows)
    (tmp_path / ilsvrc.SOLUTION).write_text(text)
    [(_, wnids)] = ilsvrc.find_label_lists([tmp_path])
    assert wnids == {"a": "n01440764", "b": "n01443537"}


def test_duplicate_key_is_named_with_both_offsets(edited: Callable[..., Path]) -> None:
    folder = edited(TRAIN, lambda info, data: [(info, data), (info, data)], inner=True)

    with pytest.raises(
        SourceError,
        match=says("appears-twice-remove-one", ..., re.compile(r"n\d{8}/n"), "at bytes"),
    ):
        indexed(folder, "train")


def test_same_name_in_two_folders_is_a_duplicate(edited: Callable[..., Path]) -> None:
    folder = edited(VALIDATION, lambda i, d: [(i, d), (renamed(i, f"again/{i.name}"), d)])

    with pytest.raises(SourceError, match=says("appears-twice-remove-one")):
        indexed(folder, "validation")


def test_duplicate_class_is_named(mini: Miniature, edited: Callable[..., Path]) -> None:
    first = mini.classes[0][0]
    folder = edited(TRAIN, lambda i, d: [(i, d)] * (2 if i.name == f"{first}.tar" else 1))

    with pytest.raises(SourceError, match=says("holds-twice-download-again", TRAIN, first)):
        indexed(folder, "train")


def test_class_without_images_is_named(mini: Miniature, edited: Callable[..., Path]) -> None:
    second = mini.classes[1][0]
    folder = edited(
        TRAIN, lambda i, d: [] if i.name.startswith(f"{second}_") else [(i, d)], inner=True
    )

    with pytest.raises(SourceError, match=says("byte-holds-no-image-archive", ..., ..., second)):
        indexed(folder, "train")


def test_validation_archive_without_images_is_refused(edited: Callable[..., Path]) -> None:
    with pytest.raises(
        SourceError, match=says("byte-holds-no-image-archive", ..., ..., "validation")
    ):
        indexed(edited(VALIDATION, lambda *_: []), "validation")


def test_member_named_after_a_different_class_is_refused(
    mini: Miniature, edited: Callable[..., Path]
) -> None:
    first, second = (wnid for wnid, _ in mini.classes[:2])
    folder = edited(
        TRAIN, lambda i, d: [(renamed(i, i.name.replace(first, second)), d)], inner=True
    )

    with pytest.raises(
        SourceError,
        match=says("class-name-one-them-wrong", ".JPEG'", first, "starts", second),
    ):
        indexed(folder, "train")


def test_class_outside_the_list_is_named(mini: Miniature, edited: Callable[..., Path]) -> None:
    first = f"{mini.classes[0][0]}.tar"
    folder = edited(
        TRAIN, lambda i, d: [(renamed(i, "n99999999.tar") if i.name == first else i, d)]
    )

    with pytest.raises(
        SourceError, match=says("byte-class-not-class-list", ..., ..., "'n99999999'", "4 cl")
    ):
        indexed(folder, "train")


@pytest.mark.parametrize("name", ["readme.txt", "n02123045", "n02123045.tar.gz", "tar/x"], ids=str)
def test_train_member_that_is_no_class_is_named(edited: Callable[..., Path], name: str) -> None:
    folder = edited(TRAIN, lambda i, d: [(renamed(i, name), d)])

    with pytest.raises(
        SourceError, match=says("byte-member-expected-wnid-tar", ..., "512", f"'{name}'")
    ):
        indexed(folder, "train")


def test_validation_archive_is_not_accepted_as_train(mini: Miniature, tmp_path: Path) -> None:
    (tmp_path / TRAIN).symlink_to(mini.root / VALIDATION)

    with pytest.raises(SourceError, match=says("expected-wnid-tar-images-wnid")):
        indexed(tmp_path, "train")


@pytest.mark.parametrize("number", [0, 17, 99_999_999])
def test_validation_image_without_label_is_named(edited: Callable[..., Path], number: int) -> None:
    name = f"ILSVRC2012_val_{number:08d}.JPEG"
    folder = edited(VALIDATION, lambda i, d: [(renamed(i, name), d)])

    with pytest.raises(
        SourceError, match=says("devkit-labels-images-1-archive", f"'{name}'", "16")
    ):
        indexed(folder, "validation")


@pytest.mark.parametrize(
    "name",
    [
        "ILSVRC2012_val_1.JPEG",
        "ILSVRC2012_test_00000001.JPEG",
        "readme.txt",
        "ILSVRC2012_val_00000001",
    ],
    ids=str,
)
def test_validation_member_with_unexpected_name_is_named(
    edited: Callable[..., Path], name: str
) -> None:
    folder = edited(VALIDATION, lambda i, d: [(renamed(i, name), d)])

    with pytest.raises(
        SourceError, match=says("expected-name-ilsvrc2012_val-8-digits", f"'{name}'")
    ):
        indexed(folder, "validation")


@pytest.mark.parametrize("archive", [TRAIN, VALIDATION])
def test_truncated_archive_is_refused(mini: Miniature, tmp_path: Path, archive: str) -> None:
    for name in (TRAIN, VALIDATION, labels.DEVKIT_NAME):
        data = (mini.root / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2] if name == archive else data)

    with pytest.raises(SourceError, match=rf"{archive}.*truncated"):
        indexed(tmp_path, "train" if archive == TRAIN else "validation")


@pytest.fixture(scope="module")
def official() -> ClassList:
    return labels.official_classes()


@pytest.fixture
def train_counts() -> list[int]:
    """1000 counts with the sum and the range of the real ones."""
    rng = random.Random(0)
    counts = [1300] * 895 + [rng.randint(732, 1299) for _ in range(104)] + [732]
    missing = schema.OFFICIAL_NUM_EXAMPLES["train"] - sum(counts)
    for place in range(895, 999):
        step = max(732 - counts[place], min(1300 - counts[place], missing))
        counts[place] += step
        missing -= step
    rng.shuffle(counts)
    assert (sum(counts), min(counts), max(counts)) == (1_281_167, 732, 1300)
    return counts


def test_official_counts_have_no_problem(official: ClassList, train_counts: list[int]) -> None:
    assert ILSVRC2012.problems("train", official, train_counts) == []
    assert ILSVRC2012.problems("validation", official, [50] * 1000) == []


def test_one_missing_train_image_is_a_problem(official: ClassList, train_counts: list[int]) -> None:
    train_counts[train_counts.index(1300)] -= 1

    assert ILSVRC2012.problems("train", official, train_counts) == [
        "train has 1,281,166 images, expected 1,281,167"
    ]


def test_moved_validation_image_is_a_problem(official: ClassList) -> None:
    counts = [50] * 1000
    counts[3] -= 1
    counts[7] += 1

    odd = f"{official.wnids[3]} with 49, {official.wnids[7]} with 51"
    assert ILSVRC2012.problems("validation", official, counts) == [
        f"validation has {odd}, expected 50 images per class"
    ]


def test_class_beyond_the_official_range_is_a_problem(
    official: ClassList, train_counts: list[int]
) -> None:
    low = train_counts.index(732)
    high = train_counts.index(1300)
    train_counts[low] -= 1
    train_counts[high] += 1

    (problem,) = ILSVRC2012.problems("train", official, train_counts)
    assert problem.endswith(", expected 732 to 1300 images per class")
    assert {f"{official.wnids[low]} with 731", f"{official.wnids[high]} with 1,301"} == set(
        problem.removeprefix("train has ").split(", ")[:2]
    )


def test_missing_classes_are_counted_and_first_ones_named(
    official: ClassList, train_counts: list[int]
) -> None:
    counts = [0] * 10 + train_counts[10:]

    problems = ILSVRC2012.problems("train", official, counts)
    assert problems[1:] == [
        f"train has no images of {', '.join(official.wnids[:5])} and 5 more",
    ]


def test_different_class_list_is_a_problem() -> None:
    classes = ClassList(("n00000001",), ("one",))

    assert ILSVRC2012.problems("train", classes, [5]) == [
        "the class list has 1 class and differs from ILSVRC2012's"
    ]


def test_counts_of_the_miniature_are_right(mini: Miniature) -> None:
    found = Counter(member.class_index for member in indexed(mini.root, "train"))

    assert found == Counter(image.class_index for image in mini.of("train").values())


@pytest.mark.parametrize("folder", ["", "test/"])
def test_images_share_one_unlabelled_class(tmp_path: Path, folder: str) -> None:
    name = ilsvrc.ARCHIVES["test"]
    with tarfile.open(tmp_path / name, "w") as archive:
        archive.addfile(tarfile.TarInfo(f"{folder}ILSVRC2012_test_00000002.JPEG"))
    source = ilsvrc.find(tmp_path, ["test"])

    (task,) = source.index_tasks("test")
    (member,) = source.index(task)
    assert member.key == "unlabelled/ILSVRC2012_test_00000002.JPEG"
    assert source.count_problems("test", [1]) == ["test has 1 image, expected 100,000"]
    assert source.count_problems("test", [100_000]) == []
    with pytest.raises(UsageError, match=r"ILSVRC2012_img_train\.tar not found"):
        ilsvrc.find(tmp_path, ["train", "test"])
    (tmp_path / TRAIN).touch()
    with pytest.raises(UsageError, match=says("splits-test-images-no-labels")):
        ilsvrc.find(tmp_path, ["train", "test"])


def test_image_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    for second in ("n01440764", "n01443537"):
        text = f"ImageId,PredictionString\na,n01440764 1 2 3 4\na,{second} 1 2 3 4\n"
        (tmp_path / ilsvrc.SOLUTION).write_text(text)
        with pytest.raises(
            SourceError, match=says("entry-expected-one-entry-per", ilsvrc.SOLUTION, 2, "'a'")
        ):
            [*ilsvrc.find_label_lists([tmp_path])]
