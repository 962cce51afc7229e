"""The rules by which folders are splits or classes, each with the trees that need it.

A mistake in one of these rules reads the wrong images without an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.sources import layout
from tests.kit.layouts import write
from tests.kit.trees import JPEG, made

N1 = "n01440764"
N2 = "n01443537"


class Read(NamedTuple):
    """The folders of train and validation, and the number of unread images by folder."""

    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    unread: Mapping[str, int] = MappingProxyType({})


def found(root: Path) -> Read:
    splits = layout.split_folders(root)
    folders = {
        split: tuple(os.path.relpath(splits.base / name, root) for name in names)
        for split, names in splits.folders.items()
    }
    train = folders.get("train", ())
    return Read(train, folders.get("validation", ()), dict(layout.unread(splits)))


SPLITS = {
    "train/{cat,dog}/1.jpg": Read(("train",)),
    # The content folder of a split.
    "train/images/{cat,dog}/1.jpg": Read(("train/images",)),
    "train/train/{cat,dog}/1.jpg": Read(("train/train",)),
    "train/training/{cat,dog}/1.jpg": Read(("train/training",)),
    "train/images/images/{cat,dog}/1.jpg": Read(("train/images/images",)),
    # A different split below train.
    "train/test/{cat,dog}/1.jpg": Read(("train",)),
    "train/val/{cat,dog}/1.jpg": Read(("train",)),
    # A class, since its name is no other word for images.
    "train/cat/1.jpg": Read(("train",)),
    "train/birds/{cat,dog}/1.jpg": Read(("train",)),
    "seg_train/seg_train/cat/1.jpg seg_val/seg_val/cat/1.jpg": Read(
        ("seg_train/seg_train",), ("seg_val/seg_val",)
    ),
    # Loose images next to the only subfolder would be lost.
    "train/train/{cat,dog}/1.jpg train/{8,9}.jpg": Read(("train",)),
    "train/images/{cat,dog}/1.jpg train/9.jpg": Read(("train",)),
    # Several subfolders.
    "train/{images,masks}/{cat,dog}/1.jpg": Read(("train",)),
    # An empty subfolder has no content.
    "train/images/README": Read(("train",)),
    "train/images/1.jpg": Read(("train/images",)),
    # Preferred names, in any case.
    "{dataset_train,train}/cat/1.jpg": Read(("train",), (), {"dataset_train/": 1}),
    "{train_set,TRAIN}/cat/1.jpg": Read(("TRAIN",), (), {"train_set/": 1}),
    "train/cat/1.jpg {val,valset}/cat/1.jpg": Read(("train",), ("val",), {"valset/": 1}),
    "{imagenet21k_train,imagenet21k_val}/cat/1.jpg": Read(
        ("imagenet21k_train",), ("imagenet21k_val",)
    ),
    "{train_blurred,val_blurred}/cat/1.jpg": Read(("train_blurred",), ("val_blurred",)),
    "{train,valid}/cat/1.jpg": Read(("train",), ("valid",)),
    # Without a preferred name, all folders of a split.
    "{train1,train2}/cat/1.jpg": Read(("train1", "train2")),
    # Other words belong to all splits of a group.
    "{seg_train,seg_val}/cat/1.jpg": Read(("seg_train",), ("seg_val",)),
    "{seg_train,val}/cat/1.jpg": Read((), ("val",), {"seg_train/": 1}),
    # Test is used for validation only if it has classes of train, and nothing else is validation.
    "{train,test}/cat/1.jpg": Read(("train",), ("test",)),
    "train/cat/1.jpg test/dog/1.jpg": Read(("train",), (), {"test/": 1}),
    "train/cat/1.jpg test/{cat,dog}/1.jpg": Read(("train",), ("test",)),
    "train/cat/1.jpg test/1.jpg": Read(("train",), (), {"test/": 1}),
    "{train,val,test}/cat/1.jpg": Read(("train",), ("val",), {"test/": 1}),
    "{train,holdout,test}/cat/1.jpg": Read(("train",), ("test",)),
    # Folders without splits: all are classes.
    "{cat,dog}/1.jpg": Read((".",)),
    "cat/2021/1.jpg": Read((".",)),
    "{train,bus}/1.jpg": Read((".",)),
    # Train has classes, so it is no class.
    "train/cat/1.jpg bus/1.jpg": Read(("train",), (), {"bus/": 1}),
    "train/1.jpg train/cat/1.jpg bus/1.jpg": Read(("train",), (), {"bus/": 1}),
    # Two splits are no classes.
    "{train,val,bus}/1.jpg": Read(("train",), ("val",), {"bus/": 1}),
    # Neutral names are no classes.
    "{train,images}/1.jpg": Read(("train",), (), {"images/": 1}),
    # Unread images are counted, without other and hidden files.
    "train/cat/1.jpg more/{a/1,a/2,3}.jpg more/x.txt notes/x.txt 7.jpg": Read(
        ("train",), (), {"more/": 3, ".jpg": 1}
    ),
    "train/cat/1.jpg more/{.a/1,3}.jpg": Read(("train",), (), {"more/": 1}),
}


@pytest.mark.parametrize("files", SPLITS)
def test_splits_are_found_by_these_rules(tmp_path: Path, files: str) -> None:
    assert found(made(tmp_path / "in", files)) == SPLITS[files]


def test_folders_without_images_have_no_splits(tmp_path: Path) -> None:
    for files in ("{a,b}/README", "README", "a/b/README"):
        root = made(tmp_path / files[:1], files)
        assert found(root) == Read()
        assert not layout.has_only_classes(root)
    assert found(tmp_path / "none") == Read()


@pytest.mark.parametrize(
    ("files", "is_classes"),
    [
        ("{cat,dog}/1.jpg", True),
        ("train/cat/1.jpg", False),
        ("{train,bus}/1.jpg", True),
        ("README", False),
    ],
)
def test_a_source_of_classes_has_no_splits(tmp_path: Path, files: str, is_classes: bool) -> None:
    assert layout.has_only_classes(made(tmp_path / "in", files)) is is_classes


@pytest.mark.parametrize("place", ["", "ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC"])
def test_kaggles_folders_are_found_from_each_level(tmp_path: Path, place: str) -> None:
    base = tmp_path / "in/ILSVRC"
    made(base / "Data/CLS-LOC", f"{{train,val}}/{N1}/1.jpg")
    splits = layout.split_folders(tmp_path / "in" / place)
    assert splits.base.resolve() == base.resolve()
    assert splits.folders == {
        "train": ["Data/CLS-LOC/train"],
        "validation": ["Data/CLS-LOC/val"],
    }
    assert [path.resolve() for path in splits.beside] == [base.resolve(), base.parent.resolve()]
    assert [path.name for path in splits.places] == ["train", "val"]


KNOWN = ClassList(("cat", "dog"), ("", ""))
CLASSES: dict[str, tuple[ClassList | None, list[str] | None]] = {
    "{cat,dog}/1.jpg": (None, ["cat", "dog"]),
    "cat/1.jpg empty/README": (None, ["cat", "empty"]),
    # A class in the list needs no images directly in its folder.
    "cat/2021/1.jpg dog/1.jpg": (KNOWN, ["cat", "dog"]),
    "cat/2021/1.jpg dog/2.jpg": (None, None),
    "emu/2021/1.jpg dog/1.jpg": (KNOWN, None),
    # Neither does a WNID.
    f"{N1}/images/1.jpg {N2}/1.jpg": (None, [N1, N2]),
    f"{N1}/1.jpg images/1.jpg": (None, ["images", N1]),
    # Names such as `images` are classes only next to other names.
    "{images,masks}/1.jpg": (None, None),
    "{images,masks,cat}/1.jpg": (None, ["cat", "images", "masks"]),
    "images/1.jpg masks/README": (None, None),
    "cat/1.jpg": (None, ["cat"]),
    "1.jpg": (None, None),
    "README": (None, None),
    # Hidden folders are no classes, and contain no images of one.
    "cat/1.jpg .hidden/1.jpg": (None, ["cat"]),
    "cat/1.jpg empty/.hidden/1.jpg": (None, ["cat", "empty"]),
    "cat/1.jpg deep/a/1.jpg": (None, None),
}


@pytest.mark.parametrize("files", CLASSES)
def test_classes_are_found_by_these_rules(tmp_path: Path, files: str) -> None:
    known, names = CLASSES[files]
    root = made(tmp_path / "in", files)
    if names is None:
        with pytest.raises(UsageError) as refused:
            layout.class_folders(root, known)
        assert str(root) in str(refused.value)
    else:
        assert layout.class_folders(root, known) == names


def test_classes_of_our_exports_can_have_subfolders(tmp_path: Path) -> None:
    root = made(tmp_path / "out/train", "cat/2021/1.jpg dog/1.jpg")
    with pytest.raises(UsageError):
        layout.class_folders(root)
    write(tmp_path / "out" / schema.EXPORT, b"{}")
    assert layout.class_folders(root) == ["cat", "dog"]


@pytest.mark.parametrize(
    ("files", "sources"),
    [
        ("data/{train,val}/cat/1.jpg", ["data"]),
        ("data/data/{train,val}/cat/1.jpg", ["data/data"]),
        ("data/{cat,dog}/1.jpg", ["data"]),
        ("data/more/{cat,dog}/1.jpg", ["data/more"]),
        ("data/more/cat/1.jpg", ["data/more"]),
        ("x/data/{a,b}/more/1.jpg", ["x/data"]),
        ("{a,b,c,d}/more/cat/1.jpg", ["a/more", "b/more", "c/more"]),
    ],
)
def test_refusals_name_the_folders_to_use(tmp_path: Path, files: str, sources: list[str]) -> None:
    root = made(tmp_path / "in", files)
    with pytest.raises(UsageError) as refused:
        layout.class_folders(root)
    text = str(refused.value)
    for name in sources:
        assert f"{root / name} " in text or f"{root / name}." in text
    assert f"{root}/d" not in text.replace(f"{root}/data", "")


@pytest.mark.parametrize(
    ("files", "wnids"),
    [
        (f"{N1}_1.JPEG {N2}_7.JPEG {N1}_2.JPEG", {N1, N2}),
        (f"{N1}_1.JPEG other.JPEG", set()),
        (f"{N1}_1.JPEG README.txt", {N1}),
        (f"{N1}_1.JPEG {N2}/1.JPEG", set()),
        ("README.txt", set()),
    ],
)
def test_wnids_are_read_from_all_names_or_none(tmp_path: Path, files: str, wnids: set[str]) -> None:
    assert layout.wnids_in_names(made(tmp_path / "in", files)) == wnids


@pytest.mark.parametrize(
    ("files", "below", "has"),
    [
        ("1.jpg", False, True),
        ("a/1.jpg", False, False),
        ("a/1.jpg", True, True),
        (".a/1.jpg", True, False),
        ("README", True, False),
        ("IMG", False, True),
    ],
)
def test_images_are_searched_below_on_request(
    tmp_path: Path, files: str, below: bool, has: bool
) -> None:
    root = made(tmp_path / "in", files)
    assert layout.has_image(root, below=below) is has
    assert layout.has_image(root, below=below, by_content=False) is (has and files != "IMG")


@pytest.mark.parametrize(
    ("name", "is_shard"),
    [
        ("train-00000-of-00128", True),
        ("a.tfrecord", True),
        ("a.tfrec", True),
        ("a.tfrecords-00001", True),
        ("a.tfrecord.gz", False),
        ("train-0000-of-0128", False),
    ],
)
def test_shards_are_recognised_by_name(tmp_path: Path, name: str, is_shard: bool) -> None:
    root = made(tmp_path / "in", f"{name} x/train-00000-of-00001")
    assert layout.has_shards(root) is is_shard


def test_images_are_not_searched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MOST_LOOKED_AT", 3)
    for number in range(3):
        write(tmp_path / f"a/{number}.txt", b"text")
    write(tmp_path / "a/b/1.jpg", JPEG)
    assert not layout.has_image(tmp_path / "a", below=True)
    (tmp_path / "a/0.txt").unlink()
    assert layout.has_image(tmp_path / "a", below=True)


WORDS = {
    "train": "train training",
    "validation": ("val valid validation validate dev devel development eval evaluation"),
    "holdout": "holdout",
    "test": "test testing",
}
NEUTRAL = (
    "set s data dataset datas image images imageset img imgs photo photos picture pictures pic "
    "pics file files folder folders split splits sub subset jpg jpeg png class classes category "
    "categories mask masks label labels annotation annotations"
)


@pytest.mark.parametrize("split", WORDS)
def test_each_word_for_a_split(split: str) -> None:
    for word in WORDS[split].split():
        for name in (word, word.upper(), f"{word}2017", f"my_{word}"):
            assert layout.split_in_name(name) == split
        assert layout.split_in_name(f"x{word}") is None
        assert layout.split_in_name(f"{word}x") is None


@pytest.mark.parametrize("word", NEUTRAL.split())
def test_each_word_that_names_no_class(tmp_path: Path, word: str) -> None:
    """Such a folder is the content of a split; it can also be joined to the word of the split."""
    root = made(tmp_path / "in", f"train/{word}/cat/1.jpg")
    assert found(root).train == (f"train/{word}",)
    for name in (f"train_{word}", f"{word}train", f"train{word}"):
        assert layout.split_in_name(name) == "train"
    root = made(tmp_path / "alone", f"{word}/1.jpg")
    with pytest.raises(UsageError):
        layout.class_folders(root)


@pytest.mark.parametrize("part", ["part", "parts", "chunk", "a", "X"])
def test_each_word_for_a_part_of_a_split(tmp_path: Path, part: str) -> None:
    root = made(tmp_path / "in", f"{{train_{part}1,val}}/cat/1.jpg")
    assert found(root) == Read((f"train_{part}1",), ("val",))


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("train", "train train_blurred imagenet21k_train"),
        ("validation", "val validation valid val_blurred imagenet21k_val"),
        ("holdout", "holdout"),
    ],
)
def test_each_preferred_name(tmp_path: Path, split: str, names: str) -> None:
    """A preferred name wins over a name that only contains the word."""
    other = {"train": "trainset", "validation": "valset", "holdout": "holdoutset"}[split]
    for name in names.split():
        root = made(tmp_path / name, f"{{{name},{other}}}/cat/1.jpg")
        assert layout.named_splits(root).folders[split] == [name]
