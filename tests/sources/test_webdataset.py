"""WebDataset tars as a source: their samples, classes and keys, and refusals."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import random
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import detect, labels, webdataset
from imagenet_prep.sources.webdataset import WebDatasetSource
from imagenet_prep.storage.remote_path import RemotePath, Site
from tests.kit.http_server import serve
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.tfrecords import plain

JPEG = plain(0)
OFFICIAL = labels.official_classes()
Files = Sequence[tuple[str, bytes | str]]


def tar(files: Files, kind: int = tarfile.GNU_FORMAT) -> bytes:
    """Returns a tar of these files, in this order; a name may appear twice."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, content in files:
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def sample(name: str, label: object = None, about: Mapping[str, Any] | None = None) -> Files:
    """Returns the files of a sample in the order of webdataset's TarWriter."""
    files: list[tuple[str, bytes | str]] = []
    if label is not None:
        files.append((f"{name}.cls", str(label)))
    files.append((f"{name}.jpg", JPEG))
    if about is not None:
        files.append((f"{name}.json", json.dumps(about)))
    return files


def joined(samples: Iterable[Files]) -> Files:
    return [*itertools.chain.from_iterable(samples)]


def timm(name: str, label: int) -> Files:
    """Returns a sample of imagenet-1k-wds, as rwightman's tfds_to_wds.py writes it."""
    about = {"label": label, "width": 8, "height": 8, "filename": f"{name}.JPEG"}
    return sample(name, label, about)


def found(root: Path | RemotePath, *splits: str) -> WebDatasetSource:
    source, _ = detect.find(root, splits or ["train"], "auto", encode=bytes, encoding="")
    assert isinstance(source, WebDatasetSource)
    return source


def line(root: Path, *splits: str) -> str:
    return detect.find(root, splits or ["train"], "auto", encode=bytes, encoding="")[1]


def members(source: WebDatasetSource, split: str = "train") -> list[Member]:
    return [*itertools.chain.from_iterable(map(source.index, source.index_tasks(split)))]


def labelled(source: WebDatasetSource, split: str = "train") -> dict[str, int]:
    return {member.key: member.class_index for member in members(source, split)}


def wds(root: Path, *files: Files, name: str = "train-0000.tar") -> Path:
    write(root / name, tar(joined(files)))
    return root


def refused(root: Path, said: str | re.Pattern[str], *splits: str) -> None:
    with pytest.raises(SourceError, match=said):
        members(found(root, *splits), *splits)


def test_tars_of_timm_have_classes_of_ilsvrc2012(tmp_path: Path) -> None:
    train = [timm(f"{OFFICIAL.wnids[n]}_{n}", n) for n in (7, 0, 999)]
    wds(tmp_path, *train[:2], name="imagenet1k-train-0000.tar")
    wds(tmp_path, train[2], name="imagenet1k-train-0001.tar")
    names = [f"ILSVRC2012_val_{number:08d}" for number in (1, 49_999)]
    last = labels.published_labels()[49_998]
    validation = [timm(name, label) for name, label in zip(names, (65, last), strict=True)]
    wds(tmp_path, *validation, name="imagenet1k-validation-00.tar")

    source = found(tmp_path, "train", "validation")
    assert source.classes == OFFICIAL
    assert source.name == "imagenet2012"
    assert labelled(source) == {
        f"{OFFICIAL.wnids[n]}/{OFFICIAL.wnids[n]}_{n}.JPEG": n for n in (0, 7, 999)
    }
    assert labelled(source, "validation") == {
        "ILSVRC2012_val_00000001.JPEG": 65,
        "ILSVRC2012_val_00049999.JPEG": last,
    }
    in_folder = found(wds(tmp_path / "b", sample("train/n01443537/n01443537_4", 1)))
    assert labelled(in_folder) == {"n01443537/n01443537_4.jpg": 1}
    problems = source.count_problems("train", [3] + [0] * 999)
    assert problems[0] == "train has 3 images, expected 1,281,167"
    reader = source.images
    assert {reader.read(member) for member in members(source)} == {JPEG}


def test_validation_is_recognised_by_the_labels_of_ilsvrc2012(tmp_path: Path) -> None:
    wds(
        tmp_path,
        timm("ILSVRC2012_val_00000777", labels.published_labels()[776]),
        timm("ILSVRC2012_val_00000002", 970),
        name="v-val-0.tar",
    )
    assert found(tmp_path, "validation").classes == OFFICIAL


def test_one_ilsvrc2012_name_does_not_identify_ilsvrc2012(tmp_path: Path) -> None:
    wds(tmp_path, sample("n01440764_1", 0), sample("a", 0), sample("b", 1))
    source = found(tmp_path)
    assert source.classes.wnids == ("0", "1")


def test_labels_of_a_subset_take_the_sample_wnids(tmp_path: Path) -> None:
    """ImageNet-100 and ImageNet-22k: labels count the classes of the tars, not of ILSVRC2012."""
    wnids = ["n02869837", "n01749939", "n00004475"]
    by_name = [sample(f"{wnid}_1", label, {"label": label}) for label, wnid in enumerate(wnids)]
    by_field = [
        sample(f"{n}", n, {"label": n, "label_12k": -1, "class_name": wnid})
        for n, wnid in enumerate(wnids)
    ]
    write(tmp_path / "b" / "imagenet_synset_to_lemma.txt", b"n00004475\torganism, being\n")
    wds(tmp_path / "a", *by_name, name="x-train-00.tar")
    source = found(wds(tmp_path / "b", *by_field, name="x-train-00.tar"))
    assert source.classes.wnids == found(tmp_path / "a").classes.wnids == tuple(wnids)
    assert source.is_imagenet
    assert source.classes.words[1:] == (OFFICIAL.words[OFFICIAL.index[wnids[1]]], "organism, being")
    assert source.count_problems("train", [1, 1, 1]) == []


@pytest.mark.parametrize("edition", class_list.OF_TIMM)
def test_classes_of_an_edition_need_its_counts(tmp_path: Path, edition: class_list.Edition) -> None:
    ids = tuple(f"n{number:08d}" for number in range(edition.num_classes))
    source = found(wds(tmp_path, sample("a", 0)))
    source = dataclasses.replace(source, classes=ClassList(ids, ids))
    assert source.edition == edition
    problems = source.count_problems("train", [1] * edition.num_classes)
    assert f"expected {edition.examples['train']:,}" in problems[0]
    own = dataclasses.replace(source, classes=ClassList((*ids[1:], "cat"), ids))
    assert own.edition is None


def test_sorted_tars_starting_like_ilsvrc2012_are_not_ilsvrc2012(tmp_path: Path) -> None:
    """Imagenette: label 0 is tench as in ILSVRC2012, label 1 is not its goldfish."""
    wds(tmp_path, sample("n01440764_1", 0), name="train-00.tar")
    wds(tmp_path, sample("n02102040_1", 1), name="train-01.tar")
    wds(tmp_path, sample("ILSVRC2012_val_00000293", 0), name="val-00.tar")
    source = found(tmp_path, "train", "validation")
    assert source.classes.wnids == ("n01440764", "n02102040")
    assert labelled(source, "validation") == {"ILSVRC2012_val_00000293.jpg": 0}


def test_class_that_differs_in_middle_tar_is_refused(tmp_path: Path) -> None:
    for number, wnid in enumerate(("n01440764", "n02102040", "n01440764")):
        wds(tmp_path, sample(f"{wnid}_{number}", number % 2), name=f"train-{number:02d}.tar")
    (tmp_path / "train-02.tar").write_bytes(tar(sample("n01440764_2", 0)))
    refused(
        tmp_path, r"train-01\.tar.*label 1 is n01443537, but .* class n02102040\. .*labels\.txt"
    )


@pytest.mark.parametrize(
    ("files", "classes", "keys"),
    [
        (sample("a", 1), ("0", "1"), {"1/a.jpg": 1}),
        (sample("a", "1\n"), ("0", "1"), {"1/a.jpg": 1}),
        (sample("./x/a", 0), ("0",), {"0/x/a.jpg": 0}),
        (sample("train/0/a", 0), ("0",), {"0/train/0/a.jpg": 0}),
        (sample("0/b/a", 0), ("0",), {"0/b/a.jpg": 0}),
        (sample("a", None, {"label": 2}), ("0", "1", "2"), {"2/a.jpg": 2}),
        (sample("a", None, {"cls": "2"}), ("0", "1", "2"), {"2/a.jpg": 2}),
        (sample("a", None, {"class_index": 0}), ("0",), {"0/a.jpg": 0}),
        (sample("a", 0, {"class_name": "cat"}), ("cat",), {"cat/a.jpg": 0}),
        (sample("a", 0, {"filename": "p/B.JPEG"}), ("0",), {"0/p/B.JPEG": 0}),
        (sample("a", 0, {"filename": ""}), ("0",), {"0/a.jpg": 0}),
        (sample("a", 0, {"key": "other"}), ("0",), {"0/a.jpg": 0}),
        ([("a.CLS", "0"), ("a.JPEG", JPEG)], ("0",), {"0/a.JPEG": 0}),
        ([("a.jpg", JPEG), ("a.depth.png", b"1"), ("a.cls", "0")], ("0",), {"0/a.jpg": 0}),
        ([("a.webp", JPEG), ("a.cls", "0")], ("0",), {"0/a.webp": 0}),
        ([("a.png", JPEG), ("a.txt", "a cat"), ("a.cls", "0")], ("0",), {"0/a.png": 0}),
    ],
)
def test_sample_gives_label_class_and_key(
    tmp_path: Path, files: Files, classes: tuple[str, ...], keys: dict[str, int]
) -> None:
    source = found(wds(tmp_path, files))
    assert source.classes.wnids == classes
    assert labelled(source) == keys


def test_classes_are_called_by_numbers_if_nameless(tmp_path: Path) -> None:
    wds(tmp_path, sample("a", 0, {"class_name": "cat"}), sample("b", 2, {"class_name": "dog"}))
    assert found(tmp_path).classes.wnids == ("0", "1", "2")
    write(tmp_path / "classes.txt", "\ufeffcat\r\nbird of prey\r\ndog\r\n".encode())
    source = found(tmp_path)
    assert source.classes.wnids == ("cat", "bird_of_prey", "dog")
    assert labelled(source) == {"cat/a.jpg": 0, "dog/b.jpg": 2}


@pytest.mark.parametrize("name", webdataset.CLASS_LISTS)
def test_class_list_next_to_the_tars_is_read(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b"n00004475 organism, being\nn00005787,benthos\nn00006024\n")
    source = found(wds(tmp_path, sample("n00005787_3", 1)))
    assert source.classes.wnids == ("n00004475", "n00005787", "n00006024")
    assert source.classes.words == ("organism, being", "benthos", "n00006024")
    assert labelled(source) == {"n00005787/n00005787_3.jpg": 1}


def test_two_class_lists_are_refused(tmp_path: Path) -> None:
    wds(tmp_path, sample("a", 1))
    write(tmp_path / "labels.txt", b"cat\ndog\n")
    write(tmp_path / "synset.txt", b"dog\ncat\n")
    refused(tmp_path, r"class lists labels\.txt, synset\.txt\. Keep only the list")


CLASH = sample("a", 0)
REFUSED: dict[str, tuple[Files, str | re.Pattern[str]]] = {
    "no label": (sample("a"), r"train-0000\.tar: sample 'a' at byte 512: .* 'a\.jpg' and no label"),
    "no image": ([("a.cls", "1")], "'a' .*found no image and 1"),
    "dots in the name": (
        [("a.b.jpg", JPEG), ("a.b.cls", "0"), ("a.cls", "0")],
        "'a' .*found no image and 0.*no dots",
    ),
    "two images": ([*CLASH, ("a.png", JPEG)], r"found 'a\.jpg' and 'a\.png' and 0"),
    "a name twice": ([*CLASH, *sample("b", 0), *CLASH], r"sample 'a' at byte .*appears twice"),
    "adjacent twins": ([*CLASH, *CLASH], "'a' .*expected only one file cls"),
    "split sample": ([("a.jpg", JPEG), *sample("b", 0), ("a.cls", "0")], "no label"),
    "label too large": (sample("a", 10**7), "found 10000000, expected labels from 0"),
    "negative": (sample("a", -1), "found -1, expected labels"),
    "two labels": (sample("a", 0, {"label": 1}), r"'a\.jpg' and 0 and 1"),
    "list of labels": (sample("a", None, {"label": [1, 2]}), r"its label is '\[1, 2\]', expected"),
    "empty label": (sample("a", ""), r"its label is ''"),
    "true": (sample("a", None, {"label": True}), "its label is 'True'"),
    "no JSON": ([*CLASH, ("a.json", "{'a': 1}")], "json is not JSON"),
    "JSON of no number": ([*CLASH, ("a.json", '{"a": NaN}')], "json is not JSON: NaN"),
    "deep JSON": ([*CLASH, ("a.json", "[" * 5000 + "]" * 5000)], "json is not JSON"),
    "large JSON": ([*CLASH, ("a.json", b" " * (1 << 20) + b"{}")], r"a\.json' has 1,048,578 bytes"),
    "large label": ([("a.cls", b" " * 5000), ("a.jpg", JPEG)], r"a\.cls' has 5,000 bytes"),
    "bytes": ([("a.cls", b"\xff"), ("a.jpg", JPEG)], "expected a number"),
    "text": (sample("a", "cat"), "its label is 'cat', expected a number"),
    "text in JSON": (sample("a", 0, {"label": "cat"}), "its label is 'cat', expected a number"),
    "name and number": (
        joined([sample("a", 0, {"class_name": "cat"}), sample("b", 0, {"class_name": "dog"})]),
        r"'b\.jpg': label 0 is dog, but cat in an earlier sample",
    ),
    "key leads out": (
        sample("a", 0, {"filename": "a", "key": "../a", "number": 0, "wnid": "cat"}),
        r"'\.\./a' has a part",
    ),
    "name leads out": (sample("a", 0, {"filename": "x/.."}), says("name-part-empty", "x/..")),
    "name of control characters": (sample("a\n", 0), says("name-empty-contains-control-character")),
    "nothing": ([("README", "text")], "found no label"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_sample_in_a_tar_is_named(tmp_path: Path, name: str) -> None:
    files, said = REFUSED[name]
    wds(tmp_path, files)
    refused(tmp_path, said)


@pytest.mark.parametrize("label", [2, -1])
def test_label_beyond_the_list_is_refused(tmp_path: Path, label: int) -> None:
    wds(tmp_path, sample("a", label))
    write(tmp_path / "labels.txt", b"cat\ndog\n")
    refused(tmp_path, rf"train-0000\.tar: byte 1,\d+: 'a\.jpg': label {label}, expected 0 to 1")


@pytest.mark.parametrize(("label", "name"), [(1, "cat"), (0, "dog")])
def test_label_that_contradicts_the_list_is_refused(tmp_path: Path, label: int, name: str) -> None:
    wds(tmp_path, sample("a", label, {"class_name": name}))
    write(tmp_path / "labels.txt", b"cat\ndog\n")
    refused(tmp_path, rf"label {label} is .*, but the sample names the class {name}")


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_all_formats_and_names_are_read(tmp_path: Path, kind: int) -> None:
    long = "d" * 90 + "/" + "n" * 60
    path = tmp_path / "train.tar"
    path.write_bytes(tar(joined([sample(long, 0), sample("b", 0)]), kind))
    assert labelled(found(tmp_path)).keys() == {f"0/{long}.jpg", "0/b.jpg"}


def test_files_of_no_sample_are_ignored(tmp_path: Path) -> None:
    files: Files = [
        ("._a.jpg", b"mac"),
        ("__MACOSX/._a.jpg", b"mac"),
        ("__meta__/schema.json", "{}"),
        ("README", "text"),
        ("a.cls", "0"),
        ("._a.jpg", b"mac"),
        ("a.jpg", JPEG),
        ("a.txt", "a cat"),
        ("notes.json", '{"author": "me"}'),
    ]
    source = found(wds(tmp_path, files))
    (task,) = source.index_tasks("train")
    assert [member.key for member in source.index(task)] == ["0/a.jpg"]


@pytest.mark.parametrize(
    ("names", "split", "read"),
    [
        (["imagenet1k-train-0000.tar", "imagenet1k-validation-00.tar"], "validation", 1),
        (["imagenet_train-000000-train.tar", "imagenet_val-000000-val.tar"], "train", 1),
        (["train/000000.tar", "train/000001.tar", "val/000000.tar"], "train", 2),
        (["train/000000.tar", "val/000000.tar"], "validation", 1),
        (["000000.tar", "000001.tar"], "train", 2),
        (["data-00.tar", "data-01.tar"], "train", 2),
        (["train.tar", "valid.tar"], "validation", 1),
        (["train-0.tar", "holdout-0.tar", "test-0.tar"], "holdout", 1),
    ],
)
def test_splits_are_in_names_of_tars_or_folders(
    tmp_path: Path, names: Sequence[str], split: str, read: int
) -> None:
    for number, name in enumerate(names):
        wds(tmp_path, sample(f"{number}", 0), name=name)
    source = found(tmp_path, split)
    assert detect.recognised(tmp_path) == ["webdataset"]
    assert len(members(source, split)) == len(source.parts) == read
    others = len(names) - read
    assert (bool(says("not-read-2").search(line(tmp_path, split)))) == bool(others)


def test_missing_tars_are_named(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        wds(tmp_path, sample("a", number), name=f"train-{number:04d}.tar")
        wds(tmp_path, sample("a", number), name=f"val-{number:04d}.tar")
    source = found(tmp_path, "train")
    assert source.count_problems("train", [1, 1, 0, 1]) == ["train has no train-0002.tar"]
    wds(tmp_path, sample("a", 2), name="train-0002.tar")
    assert found(tmp_path, "train").count_problems("train", [1, 1, 1, 1]) == []


def test_split_without_tars_is_a_usage_error(tmp_path: Path) -> None:
    wds(tmp_path, sample("a", 0), name="train-00.tar")
    with pytest.raises(
        UsageError, match=says("source-no-tars-holds-choose", ..., "validation", "train-00.tar")
    ):
        found(tmp_path, "train", "validation")


@pytest.mark.parametrize("damage", ["truncated", "checksum", "link", "empty"])
def test_damaged_tar_is_named(tmp_path: Path, damage: str) -> None:
    path = wds(tmp_path, sample("a", 0), sample("b", 0)) / "train-0000.tar"
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: 512 * 4]
    elif damage == "checksum":
        data[600] ^= 1
        data[1030] ^= 1
    elif damage == "link":
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            info = tarfile.TarInfo("a.jpg")
            info.type = tarfile.SYMTYPE
            info.linkname = "/etc/passwd"
            archive.addfile(info)
        data = bytearray(buffer.getvalue())
    else:
        data = bytearray()
    path.write_bytes(data)
    refused(tmp_path, r"train-0000\.tar")


def info_of(**lengths: list[int]) -> bytes:
    splits = {
        split: {
            "name": split,
            "num_samples": sum(numbers),
            "filenames": [f"{split}-{number:04d}.tar" for number in range(len(numbers))],
            "shard_lengths": numbers,
        }
        for split, numbers in lengths.items()
    }
    other = {**splits["train"], "shard_lengths": [0], "alt_label": "label_12k"}
    splits = {"train_12k": other, **splits}
    return json.dumps({"name": "x", "splits": splits}).encode()


def test_list_of_tars_gives_the_image_counts(tmp_path: Path) -> None:
    wds(tmp_path, sample("a", 0))
    write(tmp_path / "_info.json", info_of(train=[1, 3]))
    source = found(tmp_path)
    assert source.count_problems("train", [1]) == ["train has 1 image, but _info.json says 4"]
    assert source.count_problems("train", [4]) == []


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{", b'{"splits": {"train": 1}}', b'{"splits": {"train": {"filenames": 1}}}'],
)
def test_damaged_list_of_tars_is_refused(tmp_path: Path, content: bytes) -> None:
    wds(tmp_path, sample("a", 0))
    write(tmp_path / "_info.json", content)
    refused(tmp_path, r"_info\.json: .*Get it again")


def test_class_of_the_list_is_unique(tmp_path: Path) -> None:
    wds(tmp_path, sample("a", 0))
    info = json.loads(info_of(train=[1]))
    info["classes"] = [["n1", "cat"], ["n2", "cat"]]
    write(tmp_path / "_info.json", json.dumps(info).encode())
    assert found(tmp_path).classes.wnids == ("n1", "n2")
    info["classes"] = [["n1", "cat"], ["n1", "dog"]]
    write(tmp_path / "_info.json", json.dumps(info).encode())
    refused(tmp_path, says("lists-class-twice-export-dataset", tmp_path / "_info.json"))


def test_tar_without_images_is_named(tmp_path: Path) -> None:
    wds(tmp_path, sample("a", 0))
    wds(tmp_path, [], name="train-0001.tar")
    refused(tmp_path, says("holds-no-sample-image-get", "train-0001.tar"))


@pytest.mark.parametrize("names", [["../a.tar"], ["train-0000.tar", "../a.tar"], ["/a.tar"]])
def test_list_of_tars_outside_is_refused(tmp_path: Path, names: list[str]) -> None:
    wds(tmp_path, sample("a", 0))
    info = json.loads(info_of(train=[1]))
    info["splits"]["train"] |= {"filenames": names, "shard_lengths": [1] * len(names)}
    write(tmp_path / "_info.json", json.dumps(info).encode())
    refused(tmp_path, says("names-tar-outside-folder-get", "_info.json").pattern)


def facts(source: WebDatasetSource, *splits: str) -> list[Any]:
    tasks = [*itertools.chain.from_iterable(map(source.index_tasks, splits))]
    listed = [*itertools.chain.from_iterable(map(source.index, tasks))]
    images = source.images
    images.will_need(listed)
    return [source.classes, tasks, listed, [images.read(member) for member in listed]]


def test_tars_on_a_server_equal_those_in_folder(tmp_path: Path) -> None:
    wds(tmp_path, timm("n01440764_1", 0), timm("n01443537_2", 1))
    wds(tmp_path, timm("ILSVRC2012_val_00000001", 65), name="validation-0000.tar")
    write(tmp_path / "_info.json", info_of(train=[2], validation=[1]))
    splits = ("train", "validation")
    local = facts(found(tmp_path, *splits), *splits)
    bucket = facts(found(RemotePath(Site(str(tmp_path))), *splits), *splits)
    with serve({path.name: path.read_bytes() for path in tmp_path.iterdir()}) as server:
        root = RemotePath(Site(server.url))
        assert detect.recognised(root) == ["webdataset"]
        web = facts(found(root, *splits), *splits)
    assert local == bucket == web
    assert local[0] == OFFICIAL


def test_list_of_tars_cannot_lead_off_the_server(tmp_path: Path) -> None:
    info = {"splits": {"train": {"filenames": ["../x-0000.tar"], "shard_lengths": [1]}}}
    with (
        serve({"_info.json": json.dumps(info).encode()}) as server,
        pytest.raises(SourceError, match=says("names-tar-outside-folder-get")),
    ):
        found(RemotePath(Site(server.url)))


@pytest.mark.parametrize(
    "images", ["cat/1.jpg dog/1.jpg", "train/cat/1.jpg train/dog/1.jpg", "val/1.jpg"]
)
def test_tar_next_to_class_folders_is_not_read(tmp_path: Path, images: str) -> None:
    """It often is the tar that was unpacked."""
    for path in images.split():
        write(tmp_path / path, JPEG)
    write(tmp_path / "train-2012.tar", tar([("cat/1.jpg", JPEG)]))
    assert detect.recognised(tmp_path) == ["folder", "webdataset"]


def random_files(rng: random.Random) -> Files:
    """Draws the files of a tar: samples of several kinds and other files."""
    files: list[tuple[str, bytes | str]] = []
    for number in range(rng.randint(1, 9)):
        folder = rng.choice(("", "", "a/", "a/b.c/", "./"))
        name = folder + rng.choice(("x", "n01440764_", "x y", "é", "-", "%2E", "x_y")) + str(number)
        own = [(f"{name}.{rng.choice(('jpg', 'JPEG', 'png', 'webp'))}", JPEG)]
        own.append((f"{name}.cls", f"{number}\n"))
        own += [
            (f"{name}.{kind}", "{}") for kind in ("json", "txt", "a.json") if rng.random() < 0.4
        ]
        rng.shuffle(own)
        for file in own:
            noise = rng.choice((".DS_Store", "._x.jpg", f"{folder}LICENSE", "__MACOSX/._y.jpg", ""))
            files += [(noise, "noise")] if noise else []
            files.append(file)
    return files


BASE_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def grouped(path: Path) -> list[dict[str, bytes]]:
    """Returns the files of each sample by extension, grouped like webdataset's tariterators."""
    groups: list[tuple[str, dict[str, bytes]]] = []
    with tarfile.open(path) as archive:
        for member in archive:
            match = BASE_AND_EXTENSION.match(member.name.removeprefix("./"))
            if match is None or member.name.startswith("__MACOSX"):
                continue
            if not groups or groups[-1][0] != match[1]:
                groups.append((match[1], {}))
            file = archive.extractfile(member)
            assert file is not None
            groups[-1][1][match[2].lower()] = file.read()
    return [files for _, files in groups]


@pytest.mark.parametrize("seed", range(40))
def test_samples_are_grouped_as_webdataset_groups_them(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    path = tmp_path / "train.tar"
    path.write_bytes(tar(random_files(rng), kind))
    expected = [int(files["cls"]) for files in grouped(path)]
    source = found(tmp_path)
    (task,) = source.index_tasks("train")
    by_offset = sorted(source.index(task), key=lambda member: member.offset)
    assert [member.class_index for member in by_offset] == expected
    assert {source.images.read(member) for member in by_offset} == {JPEG}


# webdataset leaves the closing of files to Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(8))
def test_samples_are_grouped_as_the_webdataset_package_does(tmp_path: Path, seed: int) -> None:
    package = pytest.importorskip("webdataset")
    path = tmp_path / "train.tar"
    # The package treats a file .NAME in a folder as a separate sample; here it is ignored.
    files = [file for file in random_files(random.Random(seed)) if "/." not in file[0][1:]]
    path.write_bytes(tar(files))
    read = [
        {name: data for name, data in files.items() if not name.startswith("__")}
        for files in package.WebDataset(str(path), shardshuffle=False)
    ]
    assert read == grouped(path)


def test_second_label_or_json_is_refused(tmp_path: Path) -> None:
    """The last one would win, although nothing says that it is right."""
    for number, kind in enumerate(("cls", "json")):
        content = "0" if kind == "cls" else "{}"
        files = [*sample("a", 0, {"label": 0}), (f"a.{kind}", content), *sample("b", 1)]
        refused(wds(tmp_path / str(number), files), says("bytes-expected-only-one-file"))


def info(root: Path, **splits: Mapping[str, Any]) -> Path:
    write(root / webdataset.INFO, json.dumps({"splits": splits}).encode())
    return root


def test_counts_of_other_labels_are_not_expected(tmp_path: Path) -> None:
    """A split of `_info.json` with alternative labels has only some samples of its tars."""
    wds(tmp_path, sample("a", 0), sample("b", 1))
    tars = ["train-0000.tar"]
    real = {"filenames": tars, "shard_lengths": [1], "alt_label": "real"}
    info(tmp_path, real=real, train={"filenames": tars, "shard_lengths": [2]})
    assert found(tmp_path).expected == {"train": 2}


def test_count_is_only_compared_if_nothing_else_differs(tmp_path: Path) -> None:
    """The same lack is not reported twice, and a known edition has its own counts."""
    train = [timm(f"{OFFICIAL.wnids[n]}_{n}", n) for n in (7, 0, 999)]
    info(wds(tmp_path, *train), train={"filenames": ["train-0000.tar"], "shard_lengths": [5]})
    problems = found(tmp_path).count_problems("train", [3] + [0] * 999)
    assert not any(webdataset.INFO in problem for problem in problems)
    own = wds(tmp_path / "own", sample("a", 0), sample("b", 1))
    info(own, train={"filenames": ["train-0000.tar"], "shard_lengths": [5]})
    assert found(own).count_problems("train", [1, 1]) == [
        f"train has 2 images, but {webdataset.INFO} says 5"
    ]


def test_only_keys_of_complete_exports_are_used(tmp_path: Path) -> None:
    """Samples of other programs may have a field `key` with a different meaning."""
    ours = {"filename": "1.jpg", "key": "dog/7.jpg", "number": 0, "wnid": "cat"}
    listed = ("labels.txt", b"cat\ndog\n")
    for number, about in enumerate((ours, {"key": "000001"})):
        root = wds(tmp_path / str(number), sample("a", 0, about), sample("b", 1))
        write(root / listed[0], listed[1])
    assert {*labelled(found(tmp_path / "0"))} == {"dog/7.jpg", "dog/b.jpg"}
    assert {*labelled(found(tmp_path / "1"))} == {"cat/a.jpg", "dog/b.jpg"}


@pytest.mark.parametrize(
    ("folder", "is_read"), [("__meta__", False), (".hidden", False), ("_meta", True), ("a", True)]
)
def test_folders_of_metadata_have_no_samples(tmp_path: Path, folder: str, *, is_read: bool) -> None:
    wds(tmp_path, sample(f"{folder}/a", 1), sample("b", 0))
    assert (1 in labelled(found(tmp_path)).values()) == is_read


@pytest.mark.parametrize(("most", "is_read"), [(2, False), (3, True)])
def test_number_of_classes_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, *, is_read: bool
) -> None:
    monkeypatch.setattr(webdataset, "MOST_CLASSES", most)
    wds(tmp_path, sample("a", 0), sample("b", 2))
    if is_read:
        assert found(tmp_path).classes.wnids == ("0", "1", "2")
    else:
        refused(tmp_path, says("found-expected-labels-0-most"))


@pytest.mark.parametrize(("name", "folder"), [("cat", "x/"), ("n01440764", "")])
def test_only_keys_of_imagenet_lose_their_folders(tmp_path: Path, name: str, folder: str) -> None:
    """The file names of ImageNet are unique."""
    wds(tmp_path, sample("a", 0, {"filename": f"{name}/x/1.jpg"}), sample("b", 1))
    write(tmp_path / "labels.txt", f"{name}\ndog\n".encode())
    assert f"{name}/{folder}1.jpg" in labelled(found(tmp_path))


def test_edition_of_timm_needs_wnids(tmp_path: Path) -> None:
    """A dataset of the user may have as many classes as an edition."""
    [edition, *_] = class_list.OF_TIMM
    wnids = [f"n{number:08d}" for number in range(edition.num_classes)]
    for name, names in (("wnids", wnids), ("own", [f"c{number}" for number in range(len(wnids))])):
        root = wds(tmp_path / name, sample("a", 0), sample("b", 1))
        write(root / "labels.txt", "".join(f"{each}\n" for each in names).encode())
    assert found(tmp_path / "wnids").edition == edition
    assert found(tmp_path / "own").edition is None
