"""Exported files and their descriptions, without a dataset on the disk."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import record_files
from imagenet_prep.exporting import formats
from imagenet_prep.exporting.examples import Example, ExportPart, Format, Written
from imagenet_prep.exporting.formats import (
    ImageFolderFormat,
    RecordIOFormat,
    Tfds,
    WebDatasetFormat,
    sample_key,
)
from tests.kit.messages import says

WNIDS = ("n00000001", "n00000002")


def examples(count: int, num_bytes: int) -> list[Example]:
    image = bytes(num_bytes)
    return [Example(n, f"n1/{n}.JPEG", 0, "n1", image, "", {}) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("num_bytes", [1, 512, 5000])
def test_tars_end_with_a_complete_record(count: int, num_bytes: int) -> None:
    """As POSIX requires and `tar` writes: blocks of 10,240 bytes."""
    part = ExportPart("train", 0, 1, range(count))
    pieces = WebDatasetFormat(()).pieces(part, examples(count, num_bytes))
    data = b"".join(piece.data for piece in pieces)
    assert len(data) % tarfile.RECORDSIZE == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getnames()) == 3 * count


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 8**6 - 1])
# A header has names of up to 100 bytes: longer ones are stored in another way.
@pytest.mark.parametrize(
    ("letter", "count"), [("x", 1), ("x", 92), ("x", 93), ("x", 94), ("ö", 46), ("ö", 47)]
)
def test_tars_equal_those_of_pythons_tarfile(letter: str, count: int, num_bytes: int) -> None:
    key = f"n1/{letter * count}.JPEG"
    example = examples(1, num_bytes)[0]._replace(key=key, rows={"a": np.arange(num_bytes % 99)})
    (sample, _) = WebDatasetFormat(()).pieces(ExportPart("train", 0, 1, range(1)), [example])
    files = io.BytesIO(sample.data)
    expected = io.BytesIO()
    with (
        tarfile.open(fileobj=files, format=tarfile.GNU_FORMAT) as tar,
        tarfile.open(fileobj=expected, mode="w", format=tarfile.GNU_FORMAT) as again,
    ):
        for found in tar:
            member = tarfile.TarInfo(found.name)
            member.size = found.size
            again.addfile(member, tar.extractfile(found))
        assert tar.getnames()[1:3] == [f"{sample_key(key)}.jpg", f"{sample_key(key)}.json"]
        assert tar.getmember(f"{sample_key(key)}.jpg").size == num_bytes

    assert expected.getvalue().startswith(sample.data)


def test_first_column_of_texts_gives_the_caption() -> None:
    rows = {"vector": np.zeros(3), "short": ["a cat", "cat"], "long": ["a cat on a sofa"]}
    example = examples(1, 5)[0]._replace(rows=rows)
    (sample, _) = WebDatasetFormat(()).pieces(ExportPart("train", 0, 1, range(1)), [example])
    with tarfile.open(fileobj=io.BytesIO(sample.data)) as tar:
        data = {name.rpartition("/")[2]: tar.extractfile(name) for name in tar.getnames()}
        texts = {name: file.read() for name, file in data.items() if file}
    assert texts["0.txt"] == b"a cat"
    assert json.loads(texts["0.short.json"]) == rows["short"]
    assert json.loads(texts["0.long.json"]) == rows["long"]


def test_tfds_counts_the_bytes_without_frames() -> None:
    export = Tfds("mine", "1.0.0", WNIDS)
    parts: dict[str, list[Written]] = {"train": [], "validation": []}
    expected = dict.fromkeys(parts, 0)
    for number, split in enumerate(("train", "train", "validation")):
        part = ExportPart(split, number, 2, range(3 + number))
        pieces = export.pieces(part, examples(3 + number, 100))
        data = b"".join(piece.data for piece in pieces)
        parts[split].append(Written(3 + number, len(data), 1))
        records = record_files.read_records(io.BytesIO(data), "the part")
        expected[split] += sum(len(record.payload) for record in records)
    info = json.loads(export.beside(parts)["dataset_info.json"])
    assert {split["name"]: int(split["numBytes"]) for split in info["splits"]} == expected


@pytest.mark.parametrize(
    ("official", "edition", "name"),
    [(True, "", "imagenet2012"), (True, "imagenet-blurred", "own"), (False, "", "own")],
)
def test_only_ilsvrc2012_has_the_name_of_tfds(official: bool, edition: str, name: str) -> None:
    """Otherwise, tfds.load would show images of another edition as those of imagenet2012."""
    dataset: Any = SimpleNamespace(
        manifest=SimpleNamespace(classes=SimpleNamespace(official=official), edition=edition),
        classes=SimpleNamespace(wnids=WNIDS),
        tfds_info={"name": "own", "version": "1.0.0"},
    )
    assert Tfds.of(dataset).name == name


def folder_format(*wnids: str, **more: Any) -> ImageFolderFormat:
    return ImageFolderFormat(wnids, "", **more)


@pytest.mark.parametrize(
    ("has_images", "moved"),
    [
        ([True, True, True], 0),
        ([True, True, False], 0),
        ([False, False, False], 0),
        ([True, False, True], 1),
        ([False, True, True], 2),
        ([False, True, False], 1),
    ],
)
def test_missing_classes_are_refused_if_others_move(has_images: list[bool], moved: int) -> None:
    """ImageFolder skips classes without images, so later ones get lower numbers."""
    made = folder_format("a", "b", "c")
    if moved:
        with pytest.raises(UsageError, match=f"of the {moved} classes"):
            made._refuse_missing_classes(np.array(has_images), "here")
    else:
        made._refuse_missing_classes(np.array(has_images), "here")


@pytest.mark.parametrize(
    ("wnids", "is_refused"),
    [
        (("a", "b"), False),
        (("b", "a"), True),
        (("Cat", "cat"), True),
        (("Blu\u0308te", "Bl\xfcte"), True),
        (("blute", "bl\xfcte"), False),
    ],
)
def test_folders_of_classes_differ_on_any_disk(wnids: tuple[str, ...], *, is_refused: bool) -> None:
    source: Any = SimpleNamespace(root="set")
    if is_refused:
        with pytest.raises(UsageError):
            folder_format(*wnids).settled(source, [])
    else:
        assert folder_format(*wnids).settled(source, []).numbered == {}


@pytest.mark.parametrize(
    ("keys", "new"),
    [
        (["a/x.jpg", "a/y.jpg", "b/x.jpg"], {}),
        (["a/x", "a/x.jpg"], {"a/x": "a/x~1.jpg"}),
        (["a/x.jpg", "a/X.jpg"], {"a/x.jpg": "a/x.jpg~1.jpg"}),
        (["a/x", "a/x.jpg", "a/x~1.jpg"], {"a/x": "a/x~2.jpg"}),
        (["a/x", "a/X", "a/x.jpg"], {"a/X": "a/X~1.jpg", "a/x": "a/x~2.jpg"}),
    ],
)
def test_new_names_replace_no_file(
    monkeypatch: pytest.MonkeyPatch, keys: list[str], new: dict[str, str]
) -> None:
    """Also on a disk that ignores case; they do not depend on the order of the records."""
    for order in itertools.permutations(keys):
        heads = [("ab".index(key[0]), key) for key in order]
        monkeypatch.setattr(formats, "_heads", lambda *_, heads=heads: iter(heads))
        made = folder_format("a", "b")
        files = [formats._file(made._path(*head)) for head in heads]
        hashes = np.array([formats._hash(file) for file in files], np.int64)
        records: Any = SimpleNamespace(split="train")
        found = made._renamed(records, np.ones(len(keys), bool), hashes)
        assert found == {("train", key): file for key, file in new.items()}


@pytest.mark.parametrize(
    ("key", "is_valid"),
    [
        ("a/x.jpg", True),
        ("a/b/x.jpg", True),
        ("a/.x.jpg", False),
        ("a/.b/x.jpg", False),
        ("a/../x.jpg", False),
        ("/x.jpg", False),
    ],
)
def test_only_files_that_loaders_find_are_written(key: str, *, is_valid: bool) -> None:
    assert formats._is_found(key) == is_valid


def test_folders_of_all_classes_are_made_once() -> None:
    made = folder_format("n1", "n2", allow_empty_class=True)
    names = [
        [
            piece.name
            for piece in made.pieces(ExportPart("train", number, 2, range(1)), examples(1, 5))
        ]
        for number in range(2)
    ]
    assert names == [["train/n1/", "train/n2/", "train/n1/0.JPEG"], ["train/n1/0.JPEG"]]


@pytest.mark.parametrize(
    ("split", "as_val", "top"),
    [
        ("train", True, "train"),
        ("train", False, "train"),
        ("holdout", True, "val"),
        ("holdout", False, "holdout"),
        ("validation", False, "val"),
        ("test", True, "test"),
    ],
)
def test_only_a_holdout_may_be_written_as_val(split: str, top: str, *, as_val: bool) -> None:
    made = folder_format("n1", holdout_as_val=as_val)
    [piece] = made.pieces(ExportPart(split, 0, 1, range(1)), examples(1, 5))
    assert piece.name.partition("/")[0] == top


@pytest.mark.parametrize(
    ("out", "folder"), [("a/b/train", "a/b"), ("train", "."), ("/train", "/"), ("a/train/", "a")]
)
def test_prefix_of_recordio_is_the_last_name(out: str, folder: str) -> None:
    assert RecordIOFormat("train").place(out) == (folder, "train.")
    assert RecordIOFormat().place(out) == (out, "")


@pytest.mark.parametrize("made", [folder_format("cat", "dog/pug"), RecordIOFormat("train")])
def test_class_of_two_folders_is_refused(made: Format) -> None:
    """ImageFolder would merge `dog/pug` and `dog/poodle`."""
    dataset = SimpleNamespace(classes=SimpleNamespace(wnids=("cat", "dog/pug")))
    source: Any = SimpleNamespace(root="set", dataset=dataset)
    wrong = says("readers-format-would-take-only", "set", "dog/pug")
    with pytest.raises(UsageError, match=wrong):
        made.settled(source, [])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("n1/a.JPEG", "n1/a"),
        ("n1/a.jpg", "n1/a%2Ejpg"),
        ("n1/a", "n1/a%"),
        ("n1/a.b.JPEG", "n1/a%2Eb%2EJPEG"),
        ("n1/a%2Ejpg", "n1/a%252Ejpg%"),
        ("n1/.JPEG", "n1/%2EJPEG"),
        ("__n1__/a.JPEG", "%5F_n1__/a"),
        ("_n1/a.JPEG", "_n1/a"),
    ],
)
def test_names_of_samples_have_no_dots(key: str, name: str) -> None:
    assert sample_key(key) == name


def test_list_of_tars_counts_the_images() -> None:
    parts = {"train": [Written(3, 9, 1), Written(2, 9, 1)], "validation": [Written(4, 9, 1)]}
    info = json.loads(WebDatasetFormat((("n1", "one"),)).beside(parts)["_info.json"])
    assert info["classes"] == [["n1", "one"]]
    assert {name: split["num_samples"] for name, split in info["splits"].items()} == {
        "train": 5,
        "validation": 4,
    }
    assert info["splits"]["train"]["shard_lengths"] == [3, 2]
    assert info["splits"]["train"]["filenames"] == ["train-000000.tar", "train-000001.tar"]


@pytest.mark.parametrize(
    ("line", "name"),
    [("n00000001 tench, fish", "tench"), ("n00000001", "n00000001"), ("n00000001 ", "n00000001")],
)
def test_class_list_of_dinov2_names_each_class(line: str, name: str) -> None:
    lists = ImageFolderFormat(("n00000001",), f"{line}\n").beside({})
    assert lists["labels.txt"] == f"n00000001,{name}\n".encode()
    assert ImageFolderFormat(("cat",), "cat cat\n").beside({}) == {}
