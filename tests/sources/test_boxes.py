"""Bounding boxes: annotations of ILSVRC2012 and Kaggle, refused if they are invalid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset.member import Boxes
from imagenet_prep.sources import boxes
from imagenet_prep.sources.boxes import AnnotatedBoxes, BoxTask
from tests.kit.layouts import voc_xml, write, write_tgz
from tests.kit.limits import Limits
from tests.kit.messages import exactly, says

WNID = "n01440764"
STEM = f"{WNID}_10"


def read_one(tmp_path: Path, xml: bytes, name: str = f"{WNID}/{STEM}.xml") -> AnnotatedBoxes:
    path = tmp_path / boxes.ARCHIVES["train"]
    write_tgz(path, {name: xml})
    return boxes.read(BoxTask("train", "train", path))


def only(found: AnnotatedBoxes) -> Boxes:
    return boxes.parse(bytes(found.lines[WNID]), "here")[STEM]


def test_boxes_are_relative_to_the_annotated_size(tmp_path: Path) -> None:
    found = read_one(tmp_path, voc_xml(200, 100, [(20, 30, 100, 50), (0, 0, 200, 100)], WNID))

    assert only(found) == Boxes((0.1, 0.0), (0.5, 1.0), (0.3, 0.0), (0.5, 1.0))
    assert (found.images, found.boxes, found.dropped) == (1, 2, 0)


def test_boxes_outside_the_image_are_clipped_or_dropped(tmp_path: Path) -> None:
    corners = [(-10, 50, 250, 200), (200, 0, 300, 50), (10, 10, 10, 20), (150, 75, 50, 25)]
    found = read_one(tmp_path, voc_xml(200, 100, corners, WNID))

    # The second is outside, the third has no width, the fourth has its corners swapped.
    assert only(found) == Boxes((0.0, 0.25), (1.0, 0.75), (0.5, 0.25), (1.0, 0.75))
    assert (found.boxes, found.dropped) == (2, 2)


def test_annotation_without_objects_has_no_boxes(tmp_path: Path) -> None:
    found = read_one(tmp_path, voc_xml(200, 100, [], WNID))

    assert only(found) == Boxes((), (), (), ())


@pytest.mark.parametrize(
    "name", [f"Annotation/{WNID}/{STEM}.xml", f"./{WNID}/{STEM}.xml", f"{STEM}.xml"]
)
def test_folders_in_the_archive_are_ignored(tmp_path: Path, name: str) -> None:
    assert only(read_one(tmp_path, voc_xml(2, 2, [(0, 0, 1, 1)], WNID), name)).xmax == (0.5,)


def test_packed_tars_in_the_archive_are_read(tmp_path: Path) -> None:
    inner = tmp_path / "inner.tar.gz"
    write_tgz(inner, {f"Annotation/{WNID}/{STEM}.xml": voc_xml(2, 2, [(0, 0, 1, 1)], WNID)})
    outer = tmp_path / boxes.ARCHIVES["train"]
    write_tgz(outer, {f"{WNID}.tar.gz": inner.read_bytes(), "readme.txt": b"hello"})

    assert only(boxes.read(BoxTask("train", "train", outer))).xmax == (0.5,)


def packed_in(name: str, data: bytes, depth: int, folder: Path) -> bytes:
    """Returns a file in nested packed tars."""
    for number in range(depth):
        write_tgz(folder / f"{number}.tar.gz", {name: data})
        name = "n.tar.gz"
        data = (folder / f"{number}.tar.gz").read_bytes()
    return data


@pytest.mark.parametrize(
    ("depth", "most", "complaint"),
    [
        (2, 1 << 20, None),
        (3, 1 << 20, says("nested-too-deeply-2")),
        (2, 10, exactly("n.tar.gz has ")),
    ],
)
def test_large_or_deeply_nested_packed_tars_are_refused(
    tmp_path: Path, limits: Limits, depth: int, most: int, complaint: re.Pattern[str] | None
) -> None:
    limits(boxes_inner_bytes=most)
    outer = tmp_path / boxes.ARCHIVES["train"]
    xml = voc_xml(2, 2, [(0, 0, 1, 1)], WNID)
    outer.write_bytes(packed_in(f"{WNID}/{STEM}.xml", xml, depth, tmp_path))
    if complaint:
        with pytest.raises(SourceError, match=complaint):
            boxes.read(BoxTask("train", "train", outer))
    else:
        assert only(boxes.read(BoxTask("train", "train", outer))).xmax == (0.5,)


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">]>'
    b"<annotation>&b;</annotation>"
)
NOT_VOC = says("not-pascal-voc-annotation", f"{STEM}.xml", ..., "--no-boxes")
NOT_FINITE = says(
    "not-pascal-voc-annotation", f"{STEM}.xml", says("size-coordinate-not-finite"), "--no-boxes"
)
DOCTYPE = says("document-type-declaration-doctype", f"{STEM}.xml", "--no-boxes")
FILE = b'<!DOCTYPE b [<!ENTITY f SYSTEM "file:///etc/passwd">]><annotation>&f;</annotation>'


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (BOMB, DOCTYPE),
        (FILE, DOCTYPE),
        (BOMB.decode().encode("utf-16"), NOT_VOC),
        (b'<?xml version="1.0" encoding="cp037"?><annotation/>', NOT_VOC),
        (b"<annotation>" * 50_000, NOT_VOC),
        (
            b"<annotation>" + b" " * 2_000_000 + b"</annotation>",
            says("more-bytes-2", f"{STEM}.xml", 1 << 20, "--no-boxes"),
        ),
        (b"", NOT_VOC),
        (b"\xff\xfe\x00", NOT_VOC),
        (b"<annotation/>", NOT_VOC),
        (voc_xml(0, 100, [], WNID), says("image-size-x", f"{STEM}.xml", 0, 100, "--no-boxes")),
        (voc_xml(100, 0, [], WNID), says("image-size-x", f"{STEM}.xml", 100, 0, "--no-boxes")),
        (voc_xml(-1, 9, [], WNID), says("image-size-x", f"{STEM}.xml", -1, 9, "--no-boxes")),
        (voc_xml(10, 10, [], WNID).replace(b">10<", b">nan<"), NOT_FINITE),
        (voc_xml(10, 10, [], WNID).replace(b">10<", b">inf<"), NOT_FINITE),
        (voc_xml(10, 10, [(1, 2, 3, 4)], WNID).replace(b">3<", b">nan<"), NOT_FINITE),
        (voc_xml(10, 10, [(1, 2, 3, 4)], WNID).replace(b">3<", b"><"), NOT_VOC),
    ],
    ids=range(16),
)
def test_invalid_annotation_is_refused_with_its_name(
    tmp_path: Path, xml: bytes, message: re.Pattern[str]
) -> None:
    with pytest.raises(SourceError, match=message):
        read_one(tmp_path, xml)


def test_annotation_with_an_unexpected_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=says("not-named-like-image", "cat.xml", "train")):
        read_one(tmp_path, voc_xml(2, 2, [], WNID), "cat.xml")


@pytest.mark.parametrize("keep", [0, 10, 0.5, -4])
def test_truncated_archive_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / boxes.ARCHIVES["validation"]
    files = {
        f"val/ILSVRC2012_val_{n:08d}.xml": voc_xml(9, 9, [(n, 0, 9, 9)], WNID) for n in range(9)
    }
    write_tgz(path, files)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(SourceError, match=r"ILSVRC2012_bbox_val_v3"):
        boxes.read(BoxTask("validation", "validation", path))


def test_two_annotations_of_one_image_are_refused(tmp_path: Path) -> None:
    path = tmp_path / boxes.ARCHIVES["train"]
    xml = voc_xml(2, 2, [], WNID)
    write_tgz(path, {f"a/{STEM}.xml": xml, f"b/{STEM}.xml": xml})
    found = boxes.read(BoxTask("train", "train", path))
    with pytest.raises(SourceError, match=says("xml-appears-twice", ..., STEM)):
        boxes.parse(bytes(found.lines[WNID]), "here")


def test_kaggle_folders_are_one_task_per_class(tmp_path: Path) -> None:
    folder = tmp_path / "ILSVRC" / "Annotations" / "CLS-LOC"
    (tmp_path / "ILSVRC" / "Data" / "CLS-LOC").mkdir(parents=True)
    xml = voc_xml(2, 2, [(0, 0, 1, 1)], WNID)
    write(folder / "train" / WNID / f"{STEM}.xml", xml)
    other = xml.replace(WNID.encode(), b"n01443537")
    write(folder / "train" / "n01443537" / "n01443537_2.xml", other)
    write(folder / "val" / "ILSVRC2012_val_00000001.xml", xml)
    # The list of validation is read whatever else is there.
    (folder / "val" / WNID).mkdir()
    found = boxes.find(tmp_path, ["train", "validation"], official=True)

    assert found is not None
    assert [task.name for task in found.tasks] == [
        f"train-{WNID}",
        "train-n01443537",
        "validation",
    ]
    assert [len(boxes.read(task).lines) for task in found.tasks] == [1, 1, 1]
    assert [part.name for part in found.parts.values()] == [
        "Annotations/CLS-LOC/train",
        "Annotations/CLS-LOC/val",
    ]


def test_annotation_in_a_wrong_class_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "n01443537" / f"{STEM}.xml", voc_xml(2, 2, [], WNID))
    with pytest.raises(SourceError, match=says("wrong-class-folder", ..., "n01443537")):
        boxes.read(BoxTask("train-n01443537", "train", tmp_path / "n01443537"))


def test_source_without_annotations_has_no_boxes(tmp_path: Path) -> None:
    assert boxes.find(tmp_path, ["train"], official=True) is None


@pytest.mark.parametrize(
    ("split", "stem", "wnid"),
    [
        ("train", "n01440764_1", "n01443537"),
        ("validation", "ILSVRC2012_val_00000001", "n01440764"),
        ("validation", "ILSVRC2012_val_00000002", "n01751748"),
    ],
)
def test_boxes_of_a_different_class_are_refused(
    split: str, stem: str, wnid: str, tmp_path: Path
) -> None:
    true = ("n01751748", "n09193705", "n02105855", "n04263257", "n03125729")
    right = {f"ILSVRC2012_val_{number:08d}": of_true for number, of_true in enumerate(true, 1)}
    if split == "train":
        right = {"n01440764_1": "n01440764", "n01440764_2": "n01440764"}
    task = boxes.BoxTask(split, split, tmp_path / "n01440764")
    for name, of_image in right.items():
        write(task.path / f"{name}.xml", voc_xml(9, 9, [(1, 1, 5, 5)], of_image))
    assert boxes.read(task).images == len(right)

    # For many dogs, ILSVRC2012 has words instead of WNIDs. They are ignored here.
    write(task.path / f"{stem}.xml", voc_xml(9, 9, [(1, 1, 5, 5)], "Scottish_deerhound"))
    assert boxes.read(task).images == len(right)
    write(task.path / f"{stem}.xml", voc_xml(9, 9, [(1, 1, 5, 5)], wnid))
    with pytest.raises(
        SourceError,
        match=says("disagree-first-second-differ", ..., ..., "image", stem, "class", f"'{wnid}'"),
    ):
        boxes.read(task)
