"""Statements of sources about classes, labels and edition: a contradiction ends the run.

Each row of the tables is a source with the expected class of each image, or with the expected
message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import adopt
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.pipelines import prepare
from imagenet_prep.sources import detect, folder, labels
from imagenet_prep.sources.source import Packed, Source, StoredSource
from tests.kit import evaluation_datasets, foreign
from tests.kit.evaluation_datasets import image
from tests.kit.layouts import write, write_parquet, write_recordio
from tests.kit.messages import says
from tests.kit.miniature import Synset, make_devkit

OFFICIAL = labels.official_classes()
WNIDS = OFFICIAL.wnids
PUBLISHED = [WNIDS[index] for index in labels.published_labels()]
TEN = range(1, 11)

Make = Callable[[Path], object]
Classes = Mapping[str, str]  # the class of an image by its base name


class Row(NamedTuple):
    """A source with its classes by image, or with a regular expression for the message."""

    name: str
    make: Make
    expected: Classes | str
    splits: str = "train,validation"


def val(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def published_by_number(numbers: Iterable[int] = TEN) -> dict[int, str]:
    """Returns the published WNIDs of validation images by number."""
    return {number: PUBLISHED[number - 1] for number in numbers}


def rotated(numbers: Iterable[int] = TEN) -> dict[int, str]:
    """Returns the same WNIDs, each with the next image."""
    of = published_by_number(numbers)
    wnids = [*of.values()]
    return dict(zip(of, wnids[1:] + wnids[:1], strict=True))


def shifted(by: int, numbers: Iterable[int] = TEN) -> dict[int, str]:
    """Returns the classes that are `by` places behind the published ones."""
    return {n: WNIDS[(WNIDS.index(w) + by) % 1000] for n, w in published_by_number(numbers).items()}


def with_one_wrong(numbers: Sequence[int]) -> dict[int, str]:
    of = published_by_number(numbers)
    last = numbers[-1]
    return of | {last: next(wnid for wnid in of.values() if wnid != of[last])}


def named(of: Mapping[int, str]) -> Classes:
    return {val(number): wnid for number, wnid in of.items()}


def tree(paths: Iterable[str], **lists: str) -> Make:
    """Returns a function that writes images, and lists by the variable's name."""
    images = [*paths]

    def make(root: Path) -> None:
        for path in images:
            write(root / path, image(path))
        for name, text in lists.items():
            write(root / LISTS[name], text.encode())

    return make


LISTS = {
    "solution": folder.SOLUTION,
    "synsets": folder.SYNSET_LABELS,
    "mapping": folder.SYNSET_MAPPING,
    "export": "export.json",
}


def train(wnids: Iterable[str]) -> list[str]:
    return [f"train/{wnid}/{wnid}_1.JPEG" for wnid in sorted(set(wnids))]


def in_folders(of: Mapping[int, str], top: str = "val") -> list[str]:
    return [f"{top}/{wnid}/{val(number)}" for number, wnid in of.items()]


def flat(numbers: Iterable[int] = TEN, top: str = "val") -> list[str]:
    return [f"{top}/{val(number)}" for number in numbers]


def solution(of: Mapping[int, str]) -> str:
    rows = [f"{val(n).removesuffix('.JPEG')},{wnid} 1 1 9 9 \n" for n, wnid in of.items()]
    return "ImageId,PredictionString\n" + "".join(rows)


def synsets(wnids: Sequence[str]) -> str:
    return "".join(f"{wnid}\n" for wnid in wnids)


def mapping(wnids: Iterable[str]) -> str:
    return "".join(f"{wnid} words\n" for wnid in sorted(set(wnids)))


def disagree(first: str, second: str, number: int, sentence: str, other: str) -> str:
    """Returns a pattern for the message that names two places, an image and both of its classes."""
    stem = val(number).removesuffix(".JPEG")
    return rf"{first} and .*{second} disagree: image {stem} is class '{sentence}' in .*'{other}' in"


PUB = "ILSVRC2012's published labels"
TRUE = published_by_number()
ALL = train(TRUE.values())
VALIDATION = [
    Row("right folders", tree(ALL + in_folders(TRUE)), named(TRUE)),
    Row(
        "right folders and list", tree(ALL + in_folders(TRUE), solution=solution(TRUE)), named(TRUE)
    ),
    Row(
        "wrong folders, right list",
        tree(ALL + in_folders(rotated()), solution=solution(TRUE)),
        disagree("/val", folder.SOLUTION, 1, rotated()[1], TRUE[1]),
    ),
    Row(
        "right folders, wrong list",
        tree(ALL + in_folders(TRUE), solution=solution(rotated())),
        disagree("/val", folder.SOLUTION, 1, TRUE[1], rotated()[1]),
    ),
    Row(
        "wrong folders, right synsets",
        tree(ALL + in_folders(rotated()), synsets=synsets(PUBLISHED)),
        disagree("/val", folder.SYNSET_LABELS, 1, rotated()[1], TRUE[1]),
    ),
    Row(
        "wrong folders, no list",
        tree(ALL + in_folders(rotated())),
        disagree("/val", PUB, 1, rotated()[1], TRUE[1]),
    ),
    *(
        Row(
            f"folders {by} classes off",
            tree(train(shifted(by).values()) + in_folders(shifted(by))),
            disagree("/val", PUB, 1, shifted(by)[1], TRUE[1]),
        )
        for by in (1, -1, 489)
    ),
    *(
        Row(
            f"one of {len(numbers)} images is in a wrong folder",
            tree(train(PUBLISHED[:30]) + in_folders(with_one_wrong(numbers))),
            disagree("/val", PUB, numbers[-1], with_one_wrong(numbers)[numbers[-1]], r"n\d+"),
        )
        for numbers in (range(1, 3), range(3, 30), range(49_950, 50_001))
    ),
    Row(
        "validation alone, wrong folders",
        tree(in_folders(shifted(1))),
        disagree("/val", PUB, 1, shifted(1)[1], TRUE[1]),
        "validation",
    ),
    Row("flat, no list", tree(ALL + flat()), named(TRUE)),
    Row(
        "flat, the last images",
        tree(ALL + flat([7, 49_999, 50_000])),
        named(published_by_number([7, 49_999, 50_000])),
    ),
    Row("flat, right list", tree(ALL + flat(), solution=solution(TRUE)), named(TRUE)),
    Row("flat, right synsets", tree(ALL + flat(), synsets=synsets(PUBLISHED)), named(TRUE)),
    Row(
        "flat, wrong list",
        tree(ALL + flat(), solution=solution(rotated())),
        disagree(folder.SOLUTION, PUB, 1, rotated()[1], TRUE[1]),
    ),
    Row(
        "flat, synsets in another order",
        tree(ALL + flat(), synsets=synsets(sorted(PUBLISHED))),
        disagree(folder.SYNSET_LABELS, PUB, 1, "n01440764", TRUE[1]),
    ),
    Row(
        "flat, two lists that disagree",
        tree(ALL + flat(), synsets=synsets(PUBLISHED), solution=solution(rotated())),
        disagree(folder.SYNSET_LABELS, folder.SOLUTION, 1, TRUE[1], rotated()[1]),
    ),
    Row(
        "flat, other names", tree([*ALL, "val/a.jpg"]), "its labels are missing. Put ILSVRC2012_dev"
    ),
    Row(
        "flat, other classes",
        tree(["train/cat/a.jpg", "train/dog/a.jpg", *flat()]),
        "its labels are missing. Put ILSVRC2012_devkit",
    ),
    Row(
        "face-blurred, flat",
        tree([p.replace("train/", "train_blurred/") for p in ALL] + flat(top="val_blurred")),
        named(TRUE),
    ),
    Row(
        "face-blurred, wrong folders",
        tree(
            [p.replace("train/", "train_blurred/") for p in ALL]
            + in_folders(rotated(), "val_blurred")
        ),
        disagree("/val_blurred", PUB, 1, rotated()[1], TRUE[1]),
    ),
    Row("validation images for training", tree(in_folders(TRUE, "train")), named(TRUE), "train"),
    Row(
        "validation images for training, wrong folders",
        tree(in_folders(rotated(), "train")),
        rf"{PUB} disagree: image n\d+/ILSVRC2012_val_",
        "train",
    ),
    Row(
        "a list of ten classes, right folders",
        tree(ALL + in_folders(TRUE), mapping=mapping(TRUE.values())),
        named(TRUE),
    ),
    Row(
        "a list of ten classes, wrong folders",
        tree(ALL + in_folders(rotated()), mapping=mapping(TRUE.values())),
        disagree("/val", PUB, 1, rotated()[1], TRUE[1]),
    ),
    Row(
        "a list of classes, and other images with these names",
        tree(
            [*train(WNIDS[:2]), *in_folders({1: WNIDS[0], 2: WNIDS[1]})], mapping=mapping(WNIDS[:2])
        ),
        {val(1): WNIDS[0], val(2): WNIDS[1]},
    ),
    Row(
        "an export with labels that amend has changed",
        tree(ALL + in_folders(rotated()), export="{}"),
        named(rotated()),
    ),
    *(
        Row(
            f"{top}{first:0{width}d} with {what}",
            tree(
                [
                    *more,
                    *(f"{top}{n:0{width}d}/{val(n - first + 1)}" for n in range(first, first + 3)),
                ]
            ),
            r"its folders are numbers .* directly into val/.* your own classes: give",
            splits,
        )
        for top, first, width, more, what, splits in (
            ("val/", 1, 0, ALL, "train", "train,validation"),
            ("val/", 0, 0, [], "nothing", "validation"),
            ("val/", 1, 4, ALL, "train", "train,validation"),
            ("", 1, 0, [], "nothing", "train"),
        )
    ),
]


def numbered(numbers: Iterable[int], each: int = 1, width: int = 0, top: str = "") -> list[str]:
    places = itertools.product(numbers, range(each))
    return [f"{top}{n:0{width}d}/{n}-{i}.jpg" for n, i in places]


def own(paths: Iterable[str]) -> Classes:
    return {path.rpartition("/")[2]: path.split("/")[-2] for path in paths}


OWN = ["cat/1.jpg", "cat/2.jpg", "dog/3.jpg"]
NAMES = (
    "imagenet-a",
    "imagenet-r",
    "imagenet-o",
    "imagenet-c",
    "imagenet-sketch",
    "sketch",
    "imagenetv2",
    "imagenetv2-top-images",
    "imagenet-r-mine",
    "train_blurred",
    "val_blurred",
    "imagenet21k_train",
    "winter21_whole",
    "fall11_whole",
)
FEW = [f"{wnid}/{i}.jpg" for wnid, i in itertools.product(WNIDS[:3], range(2))]
EDITIONS = [
    *(
        Row(
            name, tree(numbered(numbers, each, width)), own(numbered(numbers, each, width)), "train"
        )
        for name, numbers, each, width in (
            ("600 numbers", range(600), 1, 0),
            ("1,000 numbers", range(1000), 1, 0),
            ("1,000 numbers, two images each", range(1000), 2, 0),
            ("1,000 numbers from 1", range(1, 1001), 1, 0),
            ("500 numbers with leading zeros", range(500), 1, 4),
            ("999 numbers with ten images", range(999), 10, 0),
        )
    ),
    Row("ImageNetV2", tree(numbered(range(1000), 10)), {"7-3.jpg": WNIDS[7]}, "test"),
    *(
        Row(f"own classes in {name}", tree(f"{name}/{path}" for path in OWN), own(OWN), "train")
        for name in NAMES
    ),
    *(
        Row(
            f"few WNIDs in {name}",
            tree(f"{name}/{path}" for path in FEW),
            r"incomplete: .*--allow-subset to .*your own classes: .*--source-kind folder",
            "test",
        )
        for name in ("imagenet-a", "imagenet-r", "imagenet-o", "imagenet-sketch", "imagenetv2")
    ),
    *(
        Row(
            f"few WNIDs in {name}",
            tree(f"{name}/{path}" for path in FEW),
            rf"--allow-subset to .*If these are your own images: rename the folder {name}\.",
            "train",
        )
        for name in ("train_blurred", "imagenet21k_train")
    ),
    Row(
        "ImageNet-C",
        lambda root: put(root, evaluation_datasets.corrupted([("fog", 2)], range(2), each=1).files),
        {val(labels.published_labels().index(1) + 1): WNIDS[1]},
        "test",
    ),
    Row(
        "ImageNet-C in wrong folders",
        tree(f"fog/3/{path}" for path in in_folders(rotated(), "")),
        rf"{PUB} disagree: image fog/3/ILSVRC2012_val_00000001",
        "test",
    ),
]


def put(root: Path, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        write(root / path, data)


def parquet(**files: tuple[Sequence[str], Sequence[int]]) -> Make:
    """Returns a function that writes Parquet files: names of classes and labels by file name.

    Image `i` of a file is named after its true class, so that a swapped label is noticed.
    """

    def make(root: Path) -> None:
        totals = [name.partition("_")[0] for name in files]
        for name, (names, of_rows) in files.items():
            split, _, number = name.partition("_")
            rows = [
                {
                    "image": {
                        "bytes": image(f"{name}{i}"),
                        "path": f"{name}-{i}.jpg",
                    },
                    "label": label,
                }
                for i, label in enumerate(of_rows)
            ]
            file = f"{split}-{int(number or 0):05d}-of-{totals.count(split):05d}.parquet"
            write_parquet(root / "data" / file, rows, names)

    return make


def rows(paths: Sequence[str | None], labels_of: Sequence[int], names: Sequence[str]) -> Make:
    """Returns a function that writes one Parquet file of train, with paths."""

    def make(root: Path) -> None:
        made = [
            {"image": {"bytes": image(f"{i}"), "path": path}, "label": label}
            for i, (path, label) in enumerate(zip(paths, labels_of, strict=True))
        ]
        write_parquet(root / "data" / "train-00000-of-00001.parquet", made, names)

    return make


WORDS = list(OFFICIAL.words)
FIRST_WORDS = [words.split(",")[0] for words in WORDS]
BIRD = [*WORDS[:134], "crane_bird", *WORDS[135:]]
SWAPPED = [WORDS[1], WORDS[0], *WORDS[2:]]
TWO = ("cat", "dog")
DIFFER = r"data/train-0.*parquet and .*data/validation-0.*parquet disagree: label"
CLASS_LISTS = [
    Row(
        "Parquet, the same names",
        parquet(train=(TWO, [0, 1]), validation=(TWO, [0, 1])),
        {"train-0.jpg": "cat", "validation-0.jpg": "cat", "validation-1.jpg": "dog"},
    ),
    Row(
        "Parquet, names in another order",
        parquet(train=(TWO, [0, 1]), validation=(("dog", "cat"), [0, 1])),
        {"train-0.jpg": "cat", "train-1.jpg": "dog"}
        | {"validation-0.jpg": "dog", "validation-1.jpg": "cat"},
    ),
    Row(
        "Parquet, the third file in another order",
        parquet(
            train_0=(("a", "b", "c"), [0, 1]),
            train_1=(("a", "b", "c"), [2]),
            train_2=(("c", "a", "b"), [0, 1, 2]),
            validation=(("b", "c", "a"), [0, 1, 2]),
        ),
        {"train_0-0.jpg": "a", "train_0-1.jpg": "b", "train_1-0.jpg": "c"}
        | {"train_2-0.jpg": "c", "train_2-1.jpg": "a", "train_2-2.jpg": "b"}
        | {"validation-0.jpg": "b", "validation-1.jpg": "c", "validation-2.jpg": "a"},
    ),
    Row(
        "Parquet, a longer list",
        parquet(train=(TWO, [0]), validation=((*TWO, "eel"), [0, 2])),
        DIFFER + r" 2 is no class in the first and class 'eel' in the second; 1 of 3 differ",
    ),
    Row(
        "Parquet, a shorter list",
        parquet(train=((*TWO, "eel"), [0]), validation=(TWO, [0, 1])),
        DIFFER + r" 2 is class 'eel' in the first and no class",
    ),
    Row(
        "Parquet, other names",
        parquet(train=(TWO, [0]), validation=(("cat", "eel"), [0, 1])),
        DIFFER + r" 1 is class 'dog' in the first and class 'eel'",
    ),
    Row(
        "Parquet, one file without names",
        parquet(train=(TWO, [0, 1]), validation=((), [1])),
        {"validation-0.jpg": "dog"},
    ),
    *(
        Row(
            f"Parquet, {what}",
            parquet(train=(names, [0, 134, 517, 999]), validation=(names, [134])),
            {"train-0.jpg": WNIDS[0], "train-1.jpg": WNIDS[134], "train-2.jpg": WNIDS[517]}
            | {"train-3.jpg": WNIDS[999], "validation-0.jpg": WNIDS[134]},
        )
        for what, names in (
            ("ILSVRC2012's words", WORDS),
            ("ILSVRC2012's first words", FIRST_WORDS),
            (
                "ILSVRC2012's first words with underscores",
                [w.replace(" ", "_") for w in FIRST_WORDS],
            ),
            ("a crane with another name", BIRD),
        )
    ),
    Row(
        "Parquet, two of ILSVRC2012's words are swapped",
        parquet(train=(SWAPPED, [0, 134, 517])),
        {
            "train-0.jpg": "_".join(WORDS[1].split()),
            "train-1.jpg": "crane",
            "train-2.jpg": "crane_2",
        },
        "train",
    ),
    Row(
        "Parquet, equal names",
        parquet(train=(("cat", "crane", "crane"), [0, 1, 2])),
        {"train-0.jpg": "cat", "train-1.jpg": "crane", "train-2.jpg": "crane_2"},
        "train",
    ),
    Row(
        "Parquet, equal names in two orders",
        parquet(
            train=(("cat", "crane", "crane"), [0]), validation=(("crane", "cat", "crane"), [0])
        ),
        DIFFER,
    ),
    Row(
        "Parquet, validation images with wrong labels",
        rows([val(1), val(2)], [1, 0], sorted(PUBLISHED[:2])),
        rf"{PUB} disagree: image n\d+/ILSVRC2012_val_",
        "train",
    ),
    Row(
        "Parquet, validation images with right labels",
        rows([val(1), val(2)], [0, 1], sorted(PUBLISHED[:2])),
        named(published_by_number([1, 2])),
        "train",
    ),
]


def recordio(paths: Sequence[tuple[int, str]], synset: str | None = None) -> Make:
    """Returns a function that writes train.rec and train.lst of (label, path), and synset.txt."""

    def make(root: Path) -> None:
        records = [(label, path, image(path)) for label, path in paths]
        write_recordio(root / "train.rec", records)
        if synset is not None:
            write(root / "synset.txt", synset.encode())

    return make


ZOO = [(0, "cat/1.jpg"), (1, "dog/2.jpg"), (2, "eel/3.jpg"), (0, "cat/4.jpg")]
OF_ZOO = {"1.jpg": "cat", "2.jpg": "dog", "3.jpg": "eel", "4.jpg": "cat"}
CLASSES_OF_RECORDS = [
    Row("RecordIO, no synset.txt", recordio(ZOO), OF_ZOO, "train"),
    Row("RecordIO, the same synset.txt", recordio(ZOO, "cat\ndog\neel\n"), OF_ZOO, "train"),
    Row("RecordIO, case differs", recordio(ZOO, "Cat\nDog\nEel\n"), {"2.jpg": "Dog"}, "train"),
    *(
        Row(
            f"RecordIO, synset.txt {text.split()}",
            recordio(ZOO, text),
            rf"synset\.txt and .*train\.lst disagree: label {label} is class '{name}' .*Remove",
            "train",
        )
        for text, label, name in (
            ("eel\ndog\ncat\n", 0, "eel"),
            ("cat\neel\ndog\n", 1, "eel"),
            ("cat\ndog\neagle\n", 2, "eagle"),
            ("cow\nhen\npig\n", 0, "cow"),
        )
    ),
    Row(
        "RecordIO, a shorter synset.txt",
        recordio(ZOO, "cat\ndog\n"),
        r"label 2, expected 0 to 1|disagree",
        "train",
    ),
    Row(
        "RecordIO, folders are numbers",
        recordio([(0, "0/1.jpg"), (1, "1/2.jpg")], "cat\ndog\n"),
        {"1.jpg": "cat", "2.jpg": "dog"},
        "train",
    ),
    Row(
        "RecordIO, no folders",
        recordio([(0, "1.jpg"), (1, "2.jpg")], "cat\ndog\n"),
        {"1.jpg": "cat", "2.jpg": "dog"},
        "train",
    ),
    Row(
        "RecordIO, one folder for all classes",
        recordio([(0, "images/1.jpg"), (1, "images/2.jpg")], "cat\ndog\n"),
        {"1.jpg": "cat", "2.jpg": "dog"},
        "train",
    ),
    Row(
        "RecordIO, folders that are parts of the dataset",
        recordio([(0, "part1/1.jpg"), (1, "part1/2.jpg"), (2, "part2/3.jpg")], "cat\ndog\neel\n"),
        {"1.jpg": "cat", "2.jpg": "dog", "3.jpg": "eel"},
        "train",
    ),
    Row(
        "RecordIO, ILSVRC2012's words as synset.txt",
        recordio([(0, "a.jpg"), (517, "b.jpg")], "".join(f"{words}\n" for words in WORDS)),
        {"a.jpg": WNIDS[0], "b.jpg": WNIDS[517]},
        "train",
    ),
    Row(
        "RecordIO, validation images in wrong classes",
        recordio([(i, f"{w}/{val(n)}") for i, (n, w) in enumerate(rotated().items())]),
        rf"{PUB} disagree: image ",
        "train",
    ),
]
TABLE = [*VALIDATION, *EDITIONS, *CLASS_LISTS, *CLASSES_OF_RECORDS]


def test_table_has_sixty_rows_with_unique_names() -> None:
    assert len(TABLE) >= 60
    assert len({row.name for row in TABLE}) == len(TABLE)


def classes_of(source: Source) -> dict[str, str]:
    """Returns the class of each image by its base name, as a run would store it."""
    found: dict[str, str] = {}
    splits = dict.fromkeys(task.split for task in source.tasks)
    for task in itertools.chain.from_iterable(map(source.index_tasks, splits)):
        members: Iterable[Any] = ()
        if isinstance(source, Packed):
            members = source.images(task)
        elif isinstance(source, StoredSource):
            members = source.index(task)
        for member in members:
            found[member.key.rpartition("/")[2]] = source.classes.wnids[member.class_index]
    return found


MANY = ("1,000 numbers, two images each", "999 numbers with ten images")  # they have many files
ROWS = [(row, [pytest.mark.long] if row.name in MANY else []) for row in TABLE]


@pytest.mark.parametrize("row", [pytest.param(r, id=r.name, marks=marks) for r, marks in ROWS])
def test_statements_agree_or_the_run_ends(
    row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    row.make(source)
    if any(row.name.endswith(name) for name in NAMES):
        (source,) = source.iterdir()  # the folder with the name of an edition is the source
    command = ["--source", str(source), "--out", str(tmp_path / "out"), "--dry-run"]
    command += ["--splits", row.splits] if row.splits != "train,validation" else []
    if isinstance(row.expected, str):
        with pytest.raises(ImagenetPrepError) as caught:
            is_subset = "allow-subset" not in row.expected
            prepare.run([*command, *["--allow-subset"] * is_subset])
        assert re.search(row.expected, str(caught.value))
        assert caught.value.exit_code == (2 if "missing" in row.expected else 3)
        return

    assert prepare.run([*command, "--allow-subset"]) == 0
    shown = capsys.readouterr().out
    assert "edition: " in shown
    splits = row.splits.split(",")
    found, _ = detect.find(source, splits, "auto", encode=lambda _: b"", encoding="")
    of_image = classes_of(found)
    assert {name: of_image.get(name) for name in row.expected} == row.expected


def test_devkit_and_contradicting_mapping_are_both_named(tmp_path: Path) -> None:
    paths = [*train(WNIDS[:2]), *in_folders({1: WNIDS[0]})]
    tree(paths, mapping=mapping(WNIDS[:2]))(tmp_path)
    leaves = [Synset(i + 1, wnid, "words") for i, wnid in enumerate((WNIDS[0], WNIDS[2]))]
    make_devkit(tmp_path / labels.DEVKIT_NAME, leaves, [], [1])

    expected = rf"{labels.DEVKIT_NAME} and .*{folder.SYNSET_MAPPING} disagree: label 1 is class "
    with pytest.raises(ImagenetPrepError, match=expected) as caught:
        folder.find(tmp_path, ["train", "validation"])
    assert caught.value.exit_code == 3


def test_dry_run_shows_the_statements_and_the_conclusion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree(ALL + in_folders(TRUE), solution=solution(TRUE))(tmp_path / "in")
    command = ["--source", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--allow-subset"]
    assert prepare.run([*command, "--dry-run"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert "classes: 10 class folders from train/, the same as val/" in shown
    assert f"labels: 10 images from LOC_val_solution.csv, the same as {PUB}" in shown
    assert "edition: ILSVRC2012" in shown
    assert [line[:45] for line in shown if line.startswith("counts of validation")] == [
        "counts of validation: validation has 10 image"
    ]


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return evaluation_datasets.image("records")


def records(folder_of: Path, writer: foreign.Writer, of: Mapping[str, str], jpeg: bytes) -> None:
    """Writes TFRecords as a foreign program does: the class of each image by its base name."""
    stored = [foreign.Image("train", f"{c}/{n}", c, c, jpeg, 8, 8) for n, c in of.items()]
    offset = 0 if writer is foreign.tfds else 1
    foreign.write(
        folder_of, stored, writer, num_shards={"train": 1}, own_classes=True, offset=offset
    )


@pytest.mark.parametrize("allowed", [[], ["--allow-subset"]])
def test_records_with_user_classes_are_not_ilsvrc2012(
    allowed: list[str], jpeg: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records(tmp_path / "set", foreign.flowers, {"1.jpg": "cat", "2.jpg": "dog"}, jpeg)

    assert adopt.run([str(tmp_path / "set"), "--json", *allowed]) == 0
    assert "counts" not in capsys.readouterr().out


def test_records_with_wnids_are_a_part_of_ilsvrc2012(jpeg: bytes, tmp_path: Path) -> None:
    names = {f"{wnid}_1.JPEG": wnid for wnid in WNIDS[:2]}
    records(tmp_path / "set", foreign.tpu, names, jpeg)

    with pytest.raises(ImagenetPrepError, match=says("incomplete-ilsvrc2012-get-missing-images")):
        adopt.run([str(tmp_path / "set")])


def test_label_list_that_contradicts_the_records_is_named(jpeg: bytes, tmp_path: Path) -> None:
    names = {f"{wnid}_1.JPEG": wnid for wnid in WNIDS[:2]}
    records(tmp_path / "set", foreign.tfds, names, jpeg)
    write(tmp_path / "set" / "label.labels.txt", f"{WNIDS[1]}\n{WNIDS[0]}\n".encode())

    message = r"label\.labels\.txt and train-00000-of-00001: record \d at byte \d+ disagree: label"
    with pytest.raises(ImagenetPrepError, match=message) as caught:
        adopt.run([str(tmp_path / "set"), "--allow-subset", "--dry-run"])
    assert caught.value.exit_code == 3
