"""Folders of a source: splits, classes, or refused by name; never silently ignored."""

from __future__ import annotations

import doctest
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import class_list, keys
from imagenet_prep.sources import detect, layout
from imagenet_prep.sources.labels import official_classes
from tests.kit.layouts import write
from tests.kit.messages import says, wording
from tests.kit.trees import JPEG, made

BOTH = ("train", "validation")
N1 = "n01440764"
N2 = "n01443537"


def read(root: Path, splits: Sequence[str]) -> tuple[dict[str, dict[str, int]], str]:
    """Returns the number of images by split and class, and the line that describes the source."""
    source, line = detect.find(root, splits, "auto", encode=bytes, encoding="")
    counts: dict[str, dict[str, int]] = {}
    for split in splits:
        for task in source.index_tasks(split):
            for member in source.index(task):
                of_split = counts.setdefault(split, {})
                name = source.classes.wnids[member.class_index]
                of_split[name] = of_split.get(name, 0) + 1
    return counts, line


PETS = {"cat": 1, "dog": 1}
SPELLINGS = [
    ("train", "val"),
    ("train", "validation"),
    ("train", "valid"),
    ("TRAIN", "VAL"),
    ("Train", "Validation"),
    ("Training", "Validation"),
    ("train", "dev"),
    ("train", "eval"),
    ("train_set", "val_set"),
    ("training_set", "validation_set"),
    ("TrainingSet", "ValidationSet"),
    ("trainset", "valset"),
    ("train_images", "val_images"),
    ("images_train", "images_val"),
    ("train-data", "valid-data"),
    ("train2017", "val2017"),
    ("seg_train", "seg_val"),
    ("MICCAI_BraTS_2019_Data_Training", "MICCAI_BraTS_2019_Data_Validation"),
    ("fold1 train", "fold1 val"),
]


@pytest.mark.parametrize(("train", "validation"), SPELLINGS, ids=lambda name: name)
def test_splits_in_any_spelling_have_the_same_labels(
    tmp_path: Path, train: str, validation: str
) -> None:
    root = made(tmp_path, f"{train.replace(' ', '~')}/{{cat,dog}}/1.jpg README.md labels.csv")
    if " " in train:
        (root / train.replace(" ", "~")).rename(root / train)
    for name in ("cat", "dog"):
        write(root / validation / name / "2.jpg", JPEG)
    assert read(root, BOTH)[0] == {"train": PETS, "validation": PETS}


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Training", "Testing"),
        ("Train", "Test"),
        ("train", "test"),
        ("seg_train", "seg_test"),
        ("training_set", "test_set"),
        ("TRAIN", "TEST"),
        ("seg_train/seg_train", "seg_test/seg_test"),
        ("train/images", "test/images"),
    ],
)
def test_split_is_validation_if_there_is_none(tmp_path: Path, train: str, test: str) -> None:
    root = made(tmp_path, f"{train}/{{cat,dog}}/1.jpg {test}/{{cat,dog}}/1.jpg")
    counts, line = read(root, BOTH)
    assert counts == {"train": PETS, "validation": PETS}
    assert says(
        "read-since-no-validation-folder", f"; {test.partition('/')[0]}", "validation"
    ).search(line)


def test_labelled_tests_are_validation_next_to_holdout(tmp_path: Path) -> None:
    root = made(tmp_path, "train/{cat,dog}/1.jpg holdout/{cat,dog}/2.jpg test/{cat,dog}/3.jpg")
    counts, _ = read(root, (*BOTH, "holdout"))
    assert counts == {"train": PETS, "validation": PETS, "holdout": PETS}


READ = {
    # files: counts by split and class, and parts of the description
    "train/{cat,dog}/1.jpg valid/{cat,dog}/1.jpg test/{cat,dog}/{1,2}.jpg": (
        {"train": PETS, "validation": PETS},
        ["; test/ is not read: 4 images"],
    ),
    "train/{cat,dog}/1.jpg val/{cat,dog}/1.jpg test/{1,2}.jpg sample/cat/1.jpg a/b.csv": (
        {"train": PETS, "validation": PETS},
        ["; sample/ is not read: 1 image", "; test/ is not read: 2 images"],
    ),
    "train/{cat,dog}/1.jpg Train_old/cat/1.jpg val/{cat,dog}/1.jpg": (
        {"train": PETS, "validation": PETS},
        ["; Train_old/ is not read: 1 image"],
    ),
    "seg_train/{cat,dog}/1.jpg seg_test/{cat,dog}/1.jpg seg_pred/{1,2}.jpg": (
        {"train": PETS, "validation": PETS},
        ["; seg_test/ is read as validation", "; seg_pred/ is not read: 2 images"],
    ),
    "Training/{cat,dog}/1.jpg Test/{cat,dog}/1.jpg test-multiple_fruits/{1,2}.jpg": (
        {"train": PETS, "validation": PETS},
        ["; Test/ is read as validation", "; test-multiple_fruits/ is not read: 2 images"],
    ),
    "a_train/a_train/{cat,dog}/1.jpg a_test/a_test/1.jpg": (
        {"train": PETS},
        ["; a_test/ is not read: 1 image"],
    ),
    "chest/1.txt train/{cat,dog}/1.jpg val/{cat,dog}/1.jpg chest/train/{cat,dog}/1.jpg": (
        {"train": PETS, "validation": PETS},
        ["; chest/ is not read: 2 images"],
    ),
    "{cat,dog}/1.jpg": (
        {"train": PETS},
        [wording("no-train-val-folder-images")],
    ),
    "cat/1.jpg": ({"train": {"cat": 1}}, ["1 class (cat;"]),
    "cat/{1,2021/2}.jpg dog/IMG": ({"train": {"cat": 2, "dog": 1}}, []),
    "{cat,dog,test}/1.jpg": (
        {"train": {**PETS, "test": 1}},
        ["; test/ is a class, since it directly contains images"],
    ),
    "{bus,car,train}/1.jpg": ({"train": {"bus": 1, "car": 1, "train": 1}}, ["train/ is a class"]),
    "{freight_train,passenger_train}/1.jpg": (
        {"train": {"freight_train": 1, "passenger_train": 1}},
        [],
    ),
    "{train_station,test_tube,abbey}/1.jpg": (
        {"train": {"abbey": 1, "test_tube": 1, "train_station": 1}},
        [],
    ),
    "{class_0,class_1}/1.jpg": ({"train": {"class_0": 1, "class_1": 1}}, []),
    "train/{class_0,class_1}/1.jpg val/class_1/1.jpg": (
        {"train": {"class_0": 1, "class_1": 1}, "validation": {"class_1": 1}},
        [],
    ),
    "{0,1,2}/1.jpg": ({"train": {"0": 1, "1": 1, "2": 1}}, []),
    "train/cat/1.jpg val/cat/1.jpg": ({"train": {"cat": 1}, "validation": {"cat": 1}}, []),
    "train/Cat/1.jpg val/cat/1.jpg": ({"train": {"Cat": 1}, "validation": {"Cat": 1}}, []),
    "train/caf\xe9/1.jpg val/cafe\u0301/1.jpg": (
        {"train": {"caf\xe9": 1}, "validation": {"caf\xe9": 1}},
        [],
    ),
    "train/{a,A}/1.jpg val/{a,A}/1.jpg": (
        {"train": {"A": 1, "a": 1}, "validation": {"A": 1, "a": 1}},
        [],
    ),
    f"{{{N1},{N2}}}/images/1.JPEG": ({"train": {N1: 1, N2: 1}}, []),
    "cat/1.jpg dog/1.jpg @eaDir/cat/1.jpg cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg lost+found/1.jpg "
    "$RECYCLE.BIN/S-1-5/{$R,$I}1.jpg __MACOSX/cat/._1.jpg #recycle/1.jpg .Trashes/501/1.jpg": (
        {"train": PETS},
        [],
    ),
    "train/{cat,dog}/1.jpg train/@eaDir/1.jpg val/{cat,dog}/1.jpg val/#recycle/cat/1.jpg "
    "@Recycle/1.jpg": ({"train": PETS, "validation": PETS}, []),
}


@pytest.mark.parametrize("files", READ, ids=lambda files: files[:70])
def test_labels_follow_the_folders_of_the_user(tmp_path: Path, files: str) -> None:
    counts, described = READ[files]
    found, line = read(made(tmp_path / "in", files), [*counts])
    assert found == counts
    for part in described:
        assert part in line
    assert (bool(says("not-read").search(line))) == (
        bool(says("not-read").search("".join(described)))
    )


REFUSED = {
    # files: parts of the message
    "train/{1,2}.jpg": "train: holds images and no class folders",
    "train/{1,2}.jpg val/{cat,dog}/1.jpg": "train: holds images and no class folders",
    "{train,test}/{1,2}.jpg": "train: holds images and no class folders",
    "{train,test1}/{1,2}.jpg": "train: holds images and no class folders",
    "{train,val}/{1,2}.jpg": "train: holds images and no class folders",
    "{train/train,test/test}/{1,2}.jpg": "train/train: holds images and no class folders",
    "{seg_train,seg_test}/{1,2}.jpg": "seg_train: holds images and no class folders",
    "train/README val/README": "train: holds no images and no class folders",
    "train/{cat,dog}/1.jpg test/1.jpg": "no folder for validation; | Found: test/, train/.",
    "train/{cat,dog}/1.jpg": "no folder for validation; expected one of val/ | Found: train/.",
    "test/{cat,dog}/1.jpg": "are not classes: test/. | such as test/cat/ and no images. ",
    "{a/abbey,b/beach}/1.jpg": "are not classes: a/, b/. | such as a/abbey/ and no images.",
    "a/airfield/1.jpg a/arena/{hockey,rodeo}/1.jpg b/bakery/shop/1.jpg": "are not classes: a/, b/.",
    "airfield/1.jpg arena/{hockey,rodeo}/1.jpg": "classes: arena/. | hockey/ and no images.",
    "train/{a/abbey,b/beach}/1.jpg val/a/abbey/1.jpg": "train: these folders | : a/, b/.",
    "{A,B}/{cat,dog}/1.jpg": ": A/, B/. | have the same names (cat, dog)",
    "{fold1,fold2,fold3}/{cat,dog}/1.jpg": ": fold1/, fold2/, fold3/. | the same names (cat, dog)",
    "{cat,dog}/2021/1.jpg": ": cat/, dog/. | have the same names (2021)",
    "{bottle,cable}/{train/good,test/bad}/1.jpg": ": bottle/, cable/. | (test, train)",
    "cat/1.jpg dog/{2020,2021}/1.jpg": ": dog/. | directly into its folder",
    "data/{train,val}/{cat,dog}/1.jpg README": ": data/. | {root}/data.",
    "data/data/{train,test}/cat/1.jpg": ": data/. | {root}/data/data.",
    "images/{train,val}/cat/1.jpg labels/1.txt": ": images/. | {root}/images.",
    "photos/{cat,dog}/1.jpg": ": photos/. | {root}/photos.",
    "v1/train/cat/1.jpg v2/train/cat/1.jpg": ": v1/, v2/. | {root}/v1 or {root}/v2.",
    "images/{1,2}.jpg labels.csv": "labels.csv: has the columns text; expected one that names",
    "{images,masks}/{1,2}.jpg": "holds images/, masks/, but no class folders",
    "train/{images/1.jpg,labels/1.txt} valid/{images/1.jpg,labels/1.txt}": "train: holds images/, ",
    "images/{1,2}.jpg annotations/trimaps/1.jpg": "holds images/, but no class folders",
    "{1,2}.jpg": "holds images and no class folders",
    "asl_alphabet_train/asl_alphabet_train/{A,B}/1.jpg asl_alphabet_test/asl_alphabet_test/1.jpg": (
        "no folder for validation; | Found: asl_alphabet_test/, asl_alphabet_train/."
    ),
    "{train.X1,train.X2,val.X}/cat/1.jpg": "holds train.X1 and train.X2. Keep only one of",
    "{train_cats,train_dogs,test_cats,test_dogs}/1.jpg": "train_cats: holds images and no class",
    "{rps,rps-test-set,rps-validation}/{rock,paper}/1.jpg": "no folder for train; | Found: rps/",
    "{horses,validation-horses}/{a,b}/1.jpg": ": horses/, validation-horses/. | same names (a, b)",
    "{Cat,Dog}/1.jpg pets/{Cat,Dog}/1.jpg": ": pets/. | Use one of them as source: {root}/pets",
    "{train,Train}/cat/1.jpg val/cat/1.jpg": "holds Train and train. Keep only one of",
    "train/cat/1.jpg {val,valid}/cat/1.jpg": "holds val and valid. Keep only one of",
    "train/cat/1.jpg {test_a,test_b,test}/cat/1.jpg test1/cat/1.jpg": (
        "holds test and test1 and test_a and test_b. Keep only one of"
    ),
    "notes.txt empty/notes.txt": "supported layouts: | holds empty/, notes.txt, which matches no",
}


@pytest.mark.parametrize("files", REFUSED, ids=lambda files: files[:70])
def test_folders_that_are_no_classes_are_named(tmp_path: Path, files: str) -> None:
    root = made(tmp_path / "in", files)
    splits = BOTH if layout.named_splits(root).folders else ["train"]
    with pytest.raises(UsageError) as refused:
        read(root, splits)
    last = str(refused.value).splitlines()[-1]
    for part in REFUSED[files].split(" | "):
        assert part.format(root=root) in (str(refused.value) if part.endswith(":") else last)


def test_flat_train_gives_no_classes_to_validation(tmp_path: Path) -> None:
    root = made(tmp_path, "train/1.jpg val/{cat,dog}/1.jpg")
    with pytest.raises(UsageError, match=says("holds-no-class-folders", "train", "images and")):
        read(root, ["validation"])


def test_linked_splits_and_a_circular_link_are_read(tmp_path: Path) -> None:
    root = made(tmp_path / "in", "all/{t,v}/{cat,dog}/1.jpg")
    (root / "Training").symlink_to("all/t")
    (root / "Validation").symlink_to("all/v")
    (root / "all" / "again").symlink_to("../all")
    counts, line = read(root, BOTH)
    assert counts == {"train": PETS, "validation": PETS}
    assert "all/ is not read: 4 images" in line


def test_images_directly_next_to_the_splits_are_counted(tmp_path: Path) -> None:
    root = made(tmp_path, "{train,val}/cat/1.jpg {a,b}.jpg README.md .x.jpg")
    source, _ = detect.find(root, BOTH, "auto", encode=bytes, encoding="")
    assert [dict(part.ignored) for part in source.parts] == [{".jpg": 2}, {}]


def test_folder_next_to_splits_may_have_any_name(tmp_path: Path) -> None:
    root = made(tmp_path, "{train,val}/{cat,dog}/1.jpg")
    write(root / os.fsdecode(b"\xe9t\xe9") / "1.jpg", JPEG)
    counts, line = read(root, BOTH)
    assert counts == {"train": PETS, "validation": PETS}
    assert says("not-read", ..., "1 image").search(line)
    line.encode()


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("imagenet21k_train", "train"),
        ("val_blurred", "validation"),
        ("testing-images", "test"),
        ("train_test_split", None),
        ("trainer", None),
        ("attest", None),
        ("", None),
    ],
)
def test_split_word_must_be_a_complete_word(name: str, split: str | None) -> None:
    assert layout.split_in_name(name) == split


@pytest.mark.parametrize(
    ("name", "edition"),
    [
        ("ImageNet-A", "imagenet-a"),
        ("imagenet-r.tar", "imagenet-r"),
        ("imagenetv2-top-images-format-val", "imagenetv2-top-images"),
        ("sketch", "imagenet-sketch"),
        ("imagenet-augmented", None),
        ("imagenet-r2", None),
        ("sketches", None),
    ],
)
def test_edition_name_must_be_a_complete_word(name: str, edition: str | None) -> None:
    called = layout.edition_called(name)
    assert (called.name if called else None) == edition


def examples(heading: str) -> list[list[str]]:
    """Returns the rows of the table of `layout` with this second column."""
    tables = [table.splitlines() for table in str(layout.__doc__).split("\n\n")]
    rows = [[re.split(r"\s{2,}", line.strip()) for line in lines] for lines in tables]
    (table,) = (table for table in rows if heading in table[0])
    return table[1:]


def folders_of(names: str) -> list[str]:
    return [] if names == "-" else names.split("+")


@pytest.mark.parametrize(("files", "train", "validation", "why"), examples("train"))
def test_documented_table_of_splits_is_true(
    tmp_path: Path, files: str, train: str, validation: str, why: str
) -> None:
    root = made(tmp_path / "in", files)
    found = layout.split_folders(root)
    folders = {
        split: [os.path.relpath(found.base / name, root) for name in found.folders.get(split, [])]
        for split in BOTH
    }
    assert folders == {"train": folders_of(train), "validation": folders_of(validation)}
    assert why


@pytest.mark.parametrize(("files", "classes", "why"), examples("classes"))
def test_documented_table_of_classes_is_true(
    tmp_path: Path, files: str, classes: str, why: str
) -> None:
    root = made(tmp_path / "in", files)
    if classes == "refused":
        with pytest.raises(UsageError):
            layout.class_folders(root)
    else:
        assert layout.class_folders(root) == folders_of(classes)
    assert why


@pytest.mark.parametrize("module", [layout, keys], ids=lambda module: module.__name__)
def test_docstring_examples_are_true(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)


def test_imagenet_o_keeps_its_name_with_other_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folders are named after the nearest class, which may be those of ImageNet-A."""
    digest = hashlib.sha256(f"{N1}\n{N2}\n".encode()).hexdigest()
    editions = [
        replace(edition, digest=digest) if edition is class_list.IMAGENET_A else edition
        for edition in class_list.EVALUATION
    ]
    monkeypatch.setattr(class_list, "EVALUATION", tuple(editions))

    for name, expected in (("imagenet-o", "imagenet-o"), ("images", "imagenet-a")):
        found = layout.edition_of([name], [N1, N2], f"{name}/{N1}/fox.jpg")
        assert found is not None
        assert found.name == expected


def test_answers_are_sorted_by_class_index() -> None:
    """Only objects with several classes have answers besides their label."""
    wnids = official_classes().wnids
    objects = {"clock": [531, 409], "pen": [418], "knob": []}
    made = layout.Layout(class_list.OBJECTNET, objects=objects)
    assert made.answers == {wnids[531]: [wnids[409], wnids[531]]}


def mapping(
    folders: dict[str, str], words: dict[str, str], numbers: dict[str, int] | None = None
) -> dict[str, bytes]:
    """Returns ObjectNet's mapping files; a list of words that only has `unknown` as line 0."""
    files = {layout.OBJECTNET_FOLDERS: folders, layout.OBJECTS: words}
    if numbers is not None:
        files[layout.NUMBERS] = numbers  # type: ignore[assignment]
    made = {name: json.dumps(content).encode() for name, content in files.items()}
    return made | ({layout.WORDS: b"unknown\n"} if numbers is not None else {})


@pytest.mark.parametrize(
    ("files", "is_sound"),
    [
        (mapping({str(n): "X" for n in range(1000)}, {}), True),
        (mapping({str(n): "X" for n in range(1001)}, {}), False),
        (mapping({"x": "X"}, {"Y": ";" * 1000}), True),
        (mapping({"x": "X"}, {"Y": ";" * 1001}), False),
        (mapping({"x": "X"}, {"X": "unknown"}, {"999": 0}), True),
        (mapping({"x": "X"}, {"X": "unknown"}, {"1000": 0}), False),
        (mapping({"x": "X"}, {"X": "unknown"}, {"-1": 0}), False),
        (mapping({"x": "X", "y": "Y"}, {"X": "unknown"}, {"5": 0}), True),
        (mapping({"x": "X", "y": "Y"}, {"X": "unknown", "Y": "unknown"}, {"5": 0}), False),
    ],
)
def test_mapping_of_objects_has_bounds(files: dict[str, bytes], *, is_sound: bool) -> None:
    if is_sound:
        assert "x" in layout._objects(files, "here") or len(layout._objects(files, "here")) == 1000
    else:
        with pytest.raises(SourceError, match=says("objectnet-s-mapping-cannot-read", "here")):
            layout._objects(files, "here")


@pytest.mark.parametrize(
    ("files", "is_advised"), [("train-00000-of-00001", True), ("1.jpg train-00000-of-00001", False)]
)
def test_shards_are_advised_if_there_are_no_images(
    tmp_path: Path, files: str, *, is_advised: bool
) -> None:
    error = layout.without_classes(made(tmp_path / "in", files))
    assert (says("holds-tfrecord-files-other-verbs").search(str(error)) is not None) == is_advised
