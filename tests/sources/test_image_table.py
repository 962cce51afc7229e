"""Tables of labels as a source: the tables that are found, their content, and refusals."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.spelling import as_seen
from imagenet_prep.sources import detect, image_table, labels
from imagenet_prep.sources.image_table import ImageTable
from tests.kit.layouts import write
from tests.kit.messages import exactly, says
from tests.kit.tfrecords import plain

JPEG = plain(0)
Labels = dict[tuple[str, str], str]


def make(root: Path, images: str, tables: Mapping[str, str | bytes]) -> Path:
    """Writes images with these paths, separated by blanks, and tables."""
    for path in images.split():
        write(root / path, JPEG)
    for name, text in tables.items():
        write(root / name, text.encode() if isinstance(text, str) else text)
    return root


def find(root: Path, *splits: str) -> ImageTable:
    source, _ = detect.find(root, splits or ["train"], "table", encode=bytes, encoding="")
    assert isinstance(source, ImageTable)
    return source


def read(root: Path, *splits: str) -> Labels:
    """Returns the class of each image, by split and key."""
    source = find(root, *splits)
    found: Labels = {}
    for split in splits or ["train"]:
        for task in source.index_tasks(split):
            for member in source.index(task):
                assert source.images.read(member) == JPEG
                found[split, member.key] = source.classes.wnids[member.class_index]
    return found


def of_train(**classes: str) -> Labels:
    return {("train", f"{name}/{file}.jpg"): name for file, name in classes.items()}


BREEDS = "id,breed\nx,dingo\ny,pug\n"
# Images, tables, and the class of each image by split and key.
READ: dict[str, tuple[str, dict[str, str | bytes], Labels]] = {
    "dog-breed-identification": (
        "train/x.jpg train/y.jpg test/z.jpg",
        {"labels.csv": BREEDS, "sample_submission.csv": "id,dingo,pug\nz,0,1\n"},
        of_train(x="dingo", y="pug"),
    ),
    "cassava": (
        "train_images/x.jpg train_images/y.jpg test_images/z.jpg",
        {"train.csv": "image_id,label\nx.jpg,0\ny.jpg,3\n"},
        of_train(x="0", y="3"),
    ),
    "plant pathology 2021": (
        "train_images/x.jpg",
        {"train.csv": "image,labels\nx.jpg,scab frog_eye\n"},
        {("train", "scab_frog_eye/x.jpg"): "scab_frog_eye"},
    ),
    "next to the images": ("x.jpg y.jpg", {"labels.csv": BREEDS}, of_train(x="dingo", y="pug")),
    "in the folder of images": (
        "images/x.jpg images/y.jpg",
        {"images/metadata.csv": "file_name,label\nx.jpg,dingo\ny.jpg,pug\n"},
        of_train(x="dingo", y="pug"),
    ),
    "imagefolder with splits": (
        "train/x.jpg validation/x.jpg test/x.jpg",
        {
            "train/metadata.csv": "file_name,label\nx.jpg,dingo\n",
            "validation/metadata.csv": "file_name,label\nx.jpg,pug\n",
            "test/metadata.csv": "file_name,label\nx.jpg,pug\n",
        },
        of_train(x="dingo") | {("validation", "pug/x.jpg"): "pug"},
    ),
    "imagefolder, one table": (
        "train/x.jpg val/y.jpg",
        {
            "metadata.csv": "file_name,label\ntrain/x.jpg,1\n\nval/y.jpg,0\n",
        },
        of_train(x="1") | {("validation", "0/y.jpg"): "0"},
    ),
    "images of both splits, named without folders": (
        "train/x.jpg val/y.jpg",
        {"labels.csv": BREEDS},
        of_train(x="dingo") | {("validation", "pug/y.jpg"): "pug"},
    ),
    "the same names in both splits": (
        "train/x.jpg val/x.jpg",
        {"train.csv": "id,label\nx,dingo\n", "val_labels.csv": "id,label\nx,pug\n"},
        of_train(x="dingo") | {("validation", "pug/x.jpg"): "pug"},
    ),
    "column of splits": (
        "images/x.jpg images/y.jpg images/z.jpg",
        {"labels.csv": "filename;class;Split\nx.jpg;dingo;train\ny.jpg;pug;valid\nz.jpg;;test\n"},
        of_train(x="dingo") | {("validation", "pug/y.jpg"): "pug"},
    ),
    "labels of test images": (
        "train/x.jpg test/y.jpg",
        {"labels.csv": BREEDS},
        of_train(x="dingo"),
    ),
    "nested folders": (
        "images/a/x.jpg images/b/x.jpg",
        {"labels.csv": "path,label\nimages/a/x.jpg,dingo\nb/x.jpg,dingo\n"},
        {("train", "dingo/a/x.jpg"): "dingo", ("train", "dingo/b/x.jpg"): "dingo"},
    ),
    "several folders": (
        "part1/x.jpg part2/x.jpg",
        {"labels.csv": "path,label\npart1/x.jpg,dingo\npart2/x.jpg,pug\n"},
        {("train", "dingo/part1/x.jpg"): "dingo", ("train", "pug/part2/x.jpg"): "pug"},
    ),
    "mark, quotes, CRLF, spaces": (
        "images/x.jpg images/y.jpg",
        {
            "labels.csv": '\ufeff"File Name",Label\r\n./images\\x.jpg," big, dog "\r\n'
            'y.jpg,"a ""b"""\r\n\r\n'
        },
        {("train", "big,_dog/x.jpg"): "big,_dog", ("train", 'a_"b"/y.jpg'): 'a_"b"'},
    ),
    "tabs": ("images/x.jpg", {"labels.tsv": "image\tclass\nx.jpg\tdingo\n"}, of_train(x="dingo")),
    "more columns": (
        "images/x.jpg",
        {"labels.csv": "id,file_name,width,label\n7,x.jpg,3,dingo\n"},
        of_train(x="dingo"),
    ),
    "the same name in a folder without a table": (
        "images/x.jpg data/x.jpg",
        {"images/labels.csv": "id,label\nx,dingo\n"},
        of_train(x="dingo"),
    ),
    "dots in names": (
        "images/x.1.jpg images/x.2.jpg",
        {"labels.csv": "id,label\nx.1,dingo\nx.2,pug\n"},
        of_train(**{"x.1": "dingo", "x.2": "pug"}),
    ),
    "an image without extension": (
        "images/x",
        {"labels.csv": "id,label\nx,dingo\n"},
        {("train", "dingo/x"): "dingo"},
    ),
    "numbers": (
        "images/x.jpg images/y.jpg",
        {"labels.csv": "id,label\nx,10\ny,9\n"},
        of_train(x="10", y="9"),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_images_have_the_classes_of_the_table(tmp_path: Path, name: str) -> None:
    images, tables, expected = READ[name]
    root = make(tmp_path, images, tables)
    assert detect.recognised(root)[0] == ("folder" if name == "several folders" else "table")
    assert read(root, *sorted({split for split, _ in expected})) == expected


def test_classes_are_sorted_as_names_or_as_numbers(tmp_path: Path) -> None:
    text = "id,label\nx,10\ny,9\nz,b\n"
    assert find(
        make(tmp_path / "a", "i/x.jpg i/y.jpg i/z.jpg", {"labels.csv": text})
    ).classes.wnids == ("10", "9", "b")
    text = "id,label\nx,10\ny,9\n"
    assert find(make(tmp_path / "b", "i/x.jpg i/y.jpg", {"labels.csv": text})).classes.wnids == (
        "9",
        "10",
    )
    text = "id,label\nx,n01443537\n"
    assert (
        find(make(tmp_path / "c", "i/x.jpg", {"labels.csv": text})).classes
        == labels.official_classes()
    )


def test_classes_do_not_depend_on_the_chosen_splits(tmp_path: Path) -> None:
    images, tables, _ = READ["imagefolder with splits"]
    root = make(tmp_path, images, tables)
    assert find(root, "train").classes == find(root, "validation").classes


TWO = "images/x.jpg images/y.jpg"
REFUSED: dict[str, tuple[str, dict[str, str | bytes], str]] = {
    "no label": (
        TWO,
        {"labels.csv": "id,label\nx,\ny,a\n"},
        r"labels\.csv: line 2: the column label is empty, expected the class of the image\.",
    ),
    "no image": (
        TWO,
        {"labels.csv": "id,label\nx,a\n\ny,b\nz,a\n"},
        "line 5: expected one image 'z' that no other line lists, found none",
    ),
    "no line": (TWO, {"labels.csv": "id,label\nx,a\n"}, r"images/y\.jpg: has no line in labels"),
    "no name": (
        TWO,
        {"labels.csv": "id,label\n,a\nx,a\ny,a\n"},
        r"line 2: the column id is empty, expected an image\.",
    ),
    "two labels": (
        TWO,
        {"labels.csv": "id,label\nx,a\ny,b\nx.jpg,b\n"},
        r"line 4: expected .* 'x\.jpg' .* found images/x\.jpg\.",
    ),
    "twice the same": (
        TWO,
        {"labels.csv": "id,label\nx,a\ny,b\nx,a\n"},
        "line 4: expected one image 'x' that no other line lists",
    ),
    "several images": (
        "images/a/x.jpg images/b/x.jpg",
        {"labels.csv": "id,label\nx,a\n"},
        r"'x' .* found images/a/x\.jpg, images/b/x\.jpg\.",
    ),
    "two extensions": (
        "images/x.jpg images/x.png",
        {"labels.csv": "id,label\nx,a\n"},
        r"'x' .* found images/x\.jpg, images/x\.png",
    ),
    "unknown split": (
        TWO,
        {"labels.csv": "id,label,split\nx,a,fold1\ny,a,train\n"},
        "line 2: the column split has 'fold1', expected train, val or test",
    ),
    "a comma too many": (
        TWO,
        {"labels.csv": "id,label\nx,a,b\ny,a\n"},
        r"line 2: has 3 fields, expected 2",
    ),
    "a line too short": (
        TWO,
        {"labels.csv": "id,label\nx\ny,a\n"},
        "line 2: has 1 field, expected 2",
    ),
    "above the source": (
        TWO,
        {"labels.csv": "id,label\n../x,a\nx,a\ny,a\n"},
        r"'\.\./x' .* found none",
    ),
    "no UTF-8": (TWO, {"labels.csv": b"id,label\nx,\xe4\ny,a\n"}, "is not UTF-8"),
    "a huge field": (TWO, {"labels.csv": f"id,label\nx,{'a' * 200_000}\n"}, "line 2: field larger"),
    "names that become one": (TWO, {"labels.csv": "id,label\nx,a b\ny,a_b\n"}, "not unique"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_table_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    images, tables, said = REFUSED[name]
    with pytest.raises(SourceError, match=said):
        read(make(tmp_path, images, tables))


@pytest.mark.parametrize("other", ["metadata.csv", "train.csv", "images/metadata.csv"])
def test_image_in_two_tables_is_refused(tmp_path: Path, other: str) -> None:
    text = "id,label\nx,a\ny,b\n"
    with pytest.raises(SourceError, match=says("expected-one-image-no-other", "line 2", "'x'")):
        read(make(tmp_path, TWO, {"labels.csv": text, other: text}))


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    root = make(tmp_path, TWO, {"labels.csv": "id,label\na,1\nb,2\nx,\n"})
    with pytest.raises(SourceError) as caught:
        read(root)
    *problems, last = str(caught.value).splitlines()
    assert len([line for line in problems if "labels.csv: line " in line]) == 3
    assert last.endswith("3 problems. Fix them and run the same command again.")


USAGE: dict[str, tuple[str, dict[str, str], re.Pattern[str]]] = {
    "two classes": (
        TWO,
        {"labels.csv": "id,label,breed\n"},
        says("columns-expected-one-names-image", ..., "id, label, breed"),
    ),
    "no class": (
        TWO,
        {"labels.csv": "id,a,b\n"},
        says("columns-expected-one-names-image", ..., "id, a, b"),
    ),
    "no file": (
        TWO,
        {"labels.csv": "a,label\n"},
        says("columns-expected-one-names-image", ..., "a, label"),
    ),
    "no header": (
        TWO,
        {"labels.csv": "x.jpg,cat\n"},
        says("columns-expected-one-names-image", ..., "x.jpg, cat"),
    ),
    "empty": (TWO, {"labels.csv": ""}, says("columns-expected-one-names-image")),
    "no validation": (
        TWO,
        {"labels.csv": "id,label\nx,a\ny,a\n"},
        exactly("no image of validation"),
    ),
}


@pytest.mark.parametrize("name", USAGE)
def test_ambiguous_or_unknown_tables_are_usage_errors(tmp_path: Path, name: str) -> None:
    images, tables, said = USAGE[name]
    with pytest.raises(UsageError, match=said):
        find(make(tmp_path, images, tables), "train", "validation")


def test_class_folders_and_a_table_are_ambiguous(tmp_path: Path) -> None:
    table = {"labels.csv": "id,label\nx,dingo\ny,pug\n"}
    root = make(tmp_path, "images_001/x.jpg images_002/y.jpg", table)
    assert detect.recognised(root) == ["folder", "table"]
    with pytest.raises(
        UsageError, match=says("source-holds-class-folders-table", ..., "folder", "table")
    ):
        detect.find(root, ["train"], "auto", encode=bytes, encoding="")
    source, _ = detect.find(root, ["train"], "table", encode=bytes, encoding="")
    assert source.classes.wnids == ("dingo", "pug")


def test_unrelated_table_next_to_class_folders_is_ignored(tmp_path: Path) -> None:
    root = make(tmp_path, "cat/1.jpg dog/1.jpg", {"metadata.csv": "name,width\na,1\n"})
    assert detect.recognised(root) == ["folder"]


@pytest.mark.parametrize("text", ["id,label\nx,a\n", "password\n"])
def test_table_outside_the_source_is_not_read(tmp_path: Path, text: str) -> None:
    root = make(tmp_path / "s", "images/x.jpg", {"../secret.csv": text})
    (root / "labels.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(SourceError, match=says("link-leads-out-source")) as caught:
        read(root)
    assert "password" not in str(caught.value)


def test_long_header_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find(make(tmp_path, TWO, {"labels.csv": "x" * 50_000 + "\n"}))
    assert len(str(caught.value)) < 600


def test_images_of_folders_without_a_line_are_counted(tmp_path: Path) -> None:
    images, tables, _ = READ["dog-breed-identification"]
    source = find(make(tmp_path, images, tables))
    assert dict(source.parts[0].ignored) == {"test/": 1, ".csv": 1}
    assert [part.name for part in source.parts] == [tmp_path.name, "labels.csv"]
    assert source.parts[0].images == 2


def test_only_listed_names_are_tables(tmp_path: Path) -> None:
    tables = (
        "labels.csv",
        "metadata.csv",
        "train.csv",
        "val_labels.csv",
        "Train-Labels.CSV",
        "validation.tsv",
        "train_metadata.csv",
        "training.csv",
    )
    others = (
        "test.csv",
        "labels.txt",
        "sample_submission.csv",
        ".labels.csv",
        "labels2.csv",
        "my_labels.csv",
        "train_data.csv",
        "labels.csv.bak",
        "metadata.jsonl",
    )
    root = make(tmp_path, "", dict.fromkeys((*tables, *others), ""))
    assert {table.path.name for table in image_table.locate(root)} == {*tables}


NFC, NFD = "Bl\xfcte", "Blu\u0308te"
# Images, table, and the class of each image by path; or what the message says.
FORMS: dict[str, tuple[list[str], str, dict[str, str] | list[str]]] = {
    "NFD file": ([f"i/{NFD}.jpg"], f"{NFC}.jpg,a\n", {f"i/{NFD}.jpg": "a"}),
    "NFC file": ([f"i/{NFC}.jpg"], f"{NFD}.jpg,a\n", {f"i/{NFC}.jpg": "a"}),
    "without extension": ([f"i/{NFD}.jpg"], f"{NFC},a\n", {f"i/{NFD}.jpg": "a"}),
    "folder": ([f"{NFD}/x.jpg"], f"{NFC}/x.jpg,a\n", {f"{NFD}/x.jpg": "a"}),
    "backslash": ([f"{NFD}/{NFD}.jpg"], f".\\{NFC}\\{NFC},a\n", {f"{NFD}/{NFD}.jpg": "a"}),
    "blanks": (
        ["i/x.jpg ", "i/ y.jpg", "j /z.jpg"],
        "x.jpg,a\n y.jpg,b\nj/z,c\n",
        {"i/x.jpg ": "a", "i/ y.jpg": "b", "j /z.jpg": "c"},
    ),
    "both files, both lines": (
        [f"i/{NFC}.jpg", f"i/{NFD}.jpg"],
        f"{NFC},a\n{NFD},b\n",
        {f"i/{NFC}.jpg": "a", f"i/{NFD}.jpg": "b"},
    ),
    "the exact name of two": (
        [f"i/{NFC}.jpg", f"test/{NFD}.jpg"],
        f"{NFC},a\n",
        {f"i/{NFC}.jpg": "a"},
    ),
    "both files, one line": (
        [f"i/{NFC}.jpg", f"i/{NFD}.jpg"],
        f"{NFC},a\n",
        [f"i/{NFD}.jpg: has no line in labels.csv, unlike {f'i/{NFC}.jpg'!a}, which differs only"],
    ),
    "neither is exact": (
        [f"i/{NFC}{NFC}.jpg", f"i/{NFD}{NFD}.jpg"],
        f"{NFC}{NFD},a\n",
        [f"found i/{NFD}{NFD}.jpg, {f'i/{NFC}{NFC}.jpg'!a}, which differs only in its Unicode"],
    ),
    "both lines, one file": (
        [f"i/{NFD}.jpg"],
        f"{NFC},a\n{NFD},a\n",
        [f"line 3: expected one image {NFD!r} that no other line lists, found i/{NFD}.jpg."],
    ),
    "only case differs": ([f"i/{NFD}.jpg"], "BL\xdcTE,a\n", ["found none."]),
}


@pytest.mark.parametrize("name", FORMS)
def test_names_that_look_the_same_are_found(tmp_path: Path, name: str) -> None:
    images, text, expected = FORMS[name]
    for image in images:
        write(tmp_path / image, JPEG)
    write(tmp_path / "labels.csv", f"id,label\n{text}".encode())
    if isinstance(expected, list):
        with pytest.raises(SourceError) as refused:
            read(tmp_path)
        assert [said for said in expected if said not in str(refused.value)] == []
        return
    _, rows, _ = image_table.labelled(tmp_path, tmp_path)
    assert {file.path: row.class_name for file, row in rows.items()} == expected
    assert len(read(tmp_path)) == len(expected)


_LETTERS = "abe\xe4\xe9\u1ec7\uac01\u212b\u0301\u0323 ._-"
_NAMES = st.lists(
    st.text(_LETTERS, min_size=1, max_size=5).filter(str.strip),
    min_size=1,
    max_size=6,
    unique_by=as_seen,
)


@given(_NAMES, st.sampled_from(["NFC", "NFD"]), st.sampled_from(["NFC", "NFD"]))
def test_table_may_have_either_form(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], files: str, lines: str
) -> None:
    root = tmp_path_factory.mktemp("forms")
    text = "id,label\n"
    expected: dict[str, str] = {}
    for number, name in enumerate(names):
        file = f"i/x{unicodedata.normalize(files, name)}.jpg"  # type: ignore[arg-type]
        write(root / file, JPEG)
        text += f"x{unicodedata.normalize(lines, name)}.jpg,{number}\n"  # type: ignore[arg-type]
        expected[file] = str(number)
    write(root / "labels.csv", text.encode())
    _, rows, _ = image_table.labelled(root, root)
    assert {file.path: row.class_name for file, row in rows.items()} == expected
