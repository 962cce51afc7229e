"""The images of folders: their keys, labels and problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import detect, folder
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.sources.source import Source
from tests.kit.layouts import write
from tests.kit.trees import JPEG, made

N1 = "n01440764"
N2 = "n01443537"


def opened(root: Path, *splits: str, kind: str = "auto") -> Source:
    return detect.find(root, splits or ["train"], kind, encode=bytes, encoding="")[0]


def members(source: Source, split: str = "train") -> list[Member]:
    return [member for task in source.index_tasks(split) for member in source.index(task)]


KEYS = {
    # Keys of custom photographs include the folders below the class.
    "cat/1.jpg cat/2021/1.jpg dog/a/b/3.jpg dog/1.jpg": [
        ("cat/1.jpg", 0),
        ("cat/2021/1.jpg", 0),
        ("dog/1.jpg", 1),
        ("dog/a/b/3.jpg", 1),
    ],
    # ImageNet's file names are unique.
    f"{N1}/images/{N1}_1.JPEG {N2}/{N2}_1.JPEG": [
        (f"{N1}/{N1}_1.JPEG", 0),
        (f"{N2}/{N2}_1.JPEG", 1),
    ],
}


@pytest.mark.parametrize("files", KEYS)
def test_keys_of_images_in_folders(tmp_path: Path, files: str) -> None:
    root = made(tmp_path / "in", files)
    found = members(opened(root))
    assert [(member.key, member.class_index) for member in found] == KEYS[files]
    paths = sorted(member.archive for member in found)
    assert paths == sorted(f"in/{path}" for path in files.split())
    assert {(member.offset, member.size) for member in found} == {(0, len(JPEG))}


def test_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    root = made(tmp_path / "in", "cat/1.jpg dog/1.jpg")
    write(root / "dog/1.jpg", JPEG + b"dog")
    source = opened(root)
    found = {
        member.key: source.reader.read(member.archive, 0, member.size) for member in members(source)
    }
    assert found == {"cat/1.jpg": JPEG, "dog/1.jpg": JPEG + b"dog"}


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ("{train,val}/{cat,dog}/1.jpg", ["train", "val"]),
        ("train/images/{cat,dog}/1.jpg val/{cat,dog}/1.jpg", ["train/images", "val"]),
        (f"train/{{{N1},{N2}}}/1.JPEG val/ILSVRC2012_val_00000293.JPEG", ["train", "val"]),
    ],
)
def test_the_folders_of_splits_are_named(
    tmp_path: Path, files: str, folders: Sequence[str]
) -> None:
    root = made(tmp_path / "in", files)
    splits = ["train", "validation"]
    if "ILSVRC2012" in files:
        lines = "".join(f"{wnid} x\n" for wnid in official_classes().wnids)
        write(root / "LOC_synset_mapping.txt", lines.encode())
        for wnid in official_classes().wnids:
            write(root / f"train/{wnid}/1.JPEG", JPEG)
    source = opened(root, *splits)
    assert isinstance(source, folder.FolderSource)
    assert source.split_folders == [root / name for name in folders]


def test_empty_classes_are_named_without_other_problems(tmp_path: Path) -> None:
    root = made(tmp_path / "in", "cat/1.jpg empty/README dog/1.jpg more/x.txt")
    with pytest.raises((SourceError, UsageError)) as refused:
        members(opened(root))
    text = str(refused.value)
    assert str(root / "empty") in text
    assert str(root / "more") in text
    assert str(root / "cat") not in text


def test_unreadable_classes_are_not_called_empty(tmp_path: Path) -> None:
    """A class whose files cannot be read is named for this reason only."""
    root = made(tmp_path / "in", "cat/1.jpg dog/2.jpg empty/README")
    (root / "dog/2.jpg").unlink()
    (root / "dog/2.jpg").symlink_to("nowhere.jpg")
    with pytest.raises((SourceError, UsageError)) as refused:
        members(opened(root))
    text = str(refused.value)
    assert text.count(str(root / "dog")) == 1
    assert text.count(str(root / "empty")) == 1


@pytest.mark.parametrize(
    ("classes", "folders", "is_imagenet"),
    [
        (ClassList(("cat",), ("",)), ["a/cat"], False),
        (ClassList((N1, N2), ("", "")), [], True),
        (ClassList((N1, "cat"), ("", "")), [], False),
        (ClassList((N1, "cat"), ("", "")), ["a/train_blurred"], False),
        (ClassList((N1, N2), ("", "")), ["a/train_blurred"], True),
    ],
)
def test_imagenet_has_wnids_or_a_published_name(
    classes: ClassList, folders: list[str], is_imagenet: bool
) -> None:
    assert folder.is_imagenet(classes, folders) is is_imagenet
    assert folder.is_imagenet(official_classes(), [])


@pytest.mark.parametrize("split", [schema.TEST, schema.HOLDOUT])
def test_folders_have_no_test_split(tmp_path: Path, split: str) -> None:
    root = made(tmp_path / "in", "{train,val,test}/{cat,dog}/1.jpg")
    if split == schema.TEST:
        with pytest.raises(UsageError) as refused:
            opened(root, split)
        assert str(root) in str(refused.value)
    else:
        made(root, "holdout/{cat,dog}/7.jpg")
        assert [member.key for member in members(opened(root, split), split)] == [
            "cat/7.jpg",
            "dog/7.jpg",
        ]


def test_only_exports_have_a_holdout(tmp_path: Path) -> None:
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        write(tmp_path / name, b"")
    with pytest.raises(UsageError) as refused:
        opened(tmp_path, schema.HOLDOUT, kind=detect.MNIST)
    assert "--holdout" in str(refused.value)


def test_a_table_and_classes_are_ambiguous(tmp_path: Path) -> None:
    root = made(tmp_path / "in", "train/{cat,dog}/1.jpg")
    write(root / "train.csv", b"file,label\ntrain/cat/1.jpg,cat\ntrain/dog/1.jpg,dog\n")
    with pytest.raises(UsageError) as refused:
        opened(root)
    assert "folder" in str(refused.value)
    assert "table" in str(refused.value)
    assert members(opened(root, kind=detect.FOLDER))


def test_our_exports_are_known(tmp_path: Path) -> None:
    root = made(tmp_path / "in", "train/{cat,dog}/1.jpg")
    assert not opened(root).is_export
    write(root / schema.EXPORT, b"{}")
    assert opened(root).is_export


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ("{1,2,10}/1.jpg", ("10", "2")),
        ("{class_1,class_2,class_10}/1.jpg", ("class_10", "class_2")),
        ("{class_01,class_02,class_10}/1.jpg", ()),
        ("{cat,dog}/1.jpg", ()),
    ],
)
def test_classes_numbered_as_text_are_remarked(
    tmp_path: Path, files: str, names: tuple[str, ...]
) -> None:
    """The class index of `10` is lower than that of `2`, which surprises many users."""
    root = made(tmp_path / "in", files)
    line = detect.find(root, ["train"], "auto", encode=bytes, encoding="")[1]
    last = line.rpartition(";")[2]
    assert all(name in last for name in names)
    assert ("10" in last) is bool(names)


def test_folders_packed_on_windows_are_explained(tmp_path: Path) -> None:
    write(tmp_path / "in/train/cat\\1.jpg", JPEG)
    with pytest.raises(UsageError) as refused:
        opened(tmp_path / "in")
    assert "Windows" in str(refused.value)
    write(tmp_path / "other/train/1.jpg", JPEG)
    with pytest.raises(UsageError) as refused:
        opened(tmp_path / "other")
    assert "Windows" not in str(refused.value)
