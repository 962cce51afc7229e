"""Exports are read by the programs of each format, and by prepare and adopt."""

from __future__ import annotations

import csv
import io
import itertools
import json
import socket
import sys
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from imagenet_prep import adopt, amend, export
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.exporting.formats import FOLDERS, ImageFolderFormat, sample_key
from imagenet_prep.pipelines import prepare
from imagenet_prep.sources.labels import official_classes
from tests.commands.export.conftest import roots, truth
from tests.kit import command, foreign, layouts
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

# Names of photographs that a format could lose.
NAMES = (
    "cats/a.b.jpg",
    "cats/a.jpg",
    "cats/a.JPEG",
    "cats/a b.jpg",
    "cats/2021/Ferien ä/a.jpg",
    "dogs/a.jpg",
    "dogs/100%.jpg",
    "dogs/CON.jpg",
    "dogs/'q\"uote.JPG",
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of photographs with such names, of two classes and one split; read-only."""
    source, out = (tmp_path_factory.mktemp("own") / name for name in ("source", "set"))
    for number, name in enumerate(NAMES):
        layouts.write(source / name, plain(number))
    words = ["--source", str(source), "--out", str(out), "--train-shards", "2", "--json"]
    assert prepare.run(words) == 0
    return out


def written(data: Path, out: Path, to: str, *flags: str) -> Path:
    assert export.run([str(data), "--to", to, "--out", str(out), *flags]) == 0
    return out


def image_folder(root: Path) -> list[tuple[str, int]]:
    """Returns path and label of each image, by the words of torchvision's documentation.

    Classes are the sorted names of folders; each class's images are walked in sorted order.
    """
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    found = []
    for label, name in enumerate(classes):
        files = sorted(path for path in (root / name).rglob("*") if path.is_file())
        found += [(str(path), label) for path in files]
    return found


@pytest.mark.parametrize("to", ["folder", "parquet", "recordio"])
def test_prepare_restores_the_dataset_from_an_export(
    prepared: Path, official: Path, photographs: Path, tmp_path: Path, to: str
) -> None:
    sets = {prepared: ("--keep-original", "--allow-subset"), photographs: ("--splits", "train")}
    if to == "folder":
        source = written(official, tmp_path / "official", to, "--allow-empty-class")
        words = ["--source", str(source), "--out", str(tmp_path / "again"), "--allow-subset"]
        assert prepare.run([*words, "--json"]) == 0
        assert roots(tmp_path / "again") == roots(official)
    for number, (data, flags) in enumerate(sets.items()):
        source = written(data, tmp_path / f"{to}-{number}", to)
        out = tmp_path / f"again-{number}"
        words = ["--source", str(source), "--out", str(out), "--json", *flags]
        assert prepare.run(words) == 0
        assert roots(out) == roots(data)


def test_adopt_restores_the_dataset_from_tfds(
    prepared: Path, official: Path, photographs: Path, tmp_path: Path
) -> None:
    for number, data in enumerate((official, prepared, photographs)):
        written(data, tmp_path / f"tfds-{number}", "tfds")
        (info,) = (tmp_path / f"tfds-{number}").rglob("dataset_info.json")
        out = tmp_path / f"again-{number}"
        words = [str(info.parent), "--rewrite", "--out", str(out), "--allow-subset", "--json"]
        assert adopt.run(words) == 0
        assert roots(out) == roots(data)


def test_order_of_folders_is_the_class_index(official: Path, tmp_path: Path) -> None:
    out = written(official, tmp_path / "out", "folder", "--allow-empty-class")

    for split, name in FOLDERS.items():
        if split == "holdout":
            continue
        found = {
            Path(path).name: (label, Path(path).read_bytes())
            for path, label in image_folder(out / name)
        }
        assert found == truth(official, split)


def test_labels_txt_has_the_form_of_dinov2(
    official: Path, photographs: Path, tmp_path: Path
) -> None:
    out = written(official, tmp_path / "out", "folder", "--allow-empty-class")
    rows = [*csv.reader((out / "labels.txt").read_text().splitlines())]

    assert rows[0] == ["n01440764", "tench"]
    assert rows[-1] == ["n15075141", "toilet tissue"]
    assert [wnid for wnid, _ in rows] == [*official_classes().wnids]
    # DINOv2 expects WNID_NUMBER.JPEG in train and ILSVRC2012_val_NUMBER.JPEG in validation.
    for top, name in {"train": "{}_{}.JPEG", "val": "ILSVRC2012_val_{1:08d}.JPEG"}.items():
        for path, label in image_folder(out / top):
            assert Path(path).name == name.format(
                rows[label][0], int(Path(path).stem.rpartition("_")[2])
            )
    # These classes are no WNIDs, so DINOv2 finds none of their images.
    assert not (written(photographs, tmp_path / "own", "folder") / "labels.txt").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [("", "n00000001,n00000001"), ('6" nail, spike', 'n00000001,"6"" nail"')],
)
def test_labels_txt_has_one_name_per_class(words: str, line: str) -> None:
    made = ImageFolderFormat(("n00000001",), f"n00000001 {words}\n").beside({})
    assert made[schema.LABELS] == f"{line}\n".encode()


def test_class_without_images_is_refused_with_consequences(official: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        export.run([str(official), "--to", "folder", "--out", str(tmp_path / "out")])
    said = str(refused.value)

    assert says("no-images-classes-imagefolder-would", ..., "994", "1,000").search(said)
    # Classes 0, 1 and 2 have images; 500, 998 and 999 would become 3, 4 and 5.
    assert says("no-images-classes-imagefolder-would", ..., ..., ..., ..., "6").search(said)
    assert says("no-images-classes-imagefolder-would", ..., ..., ..., ..., ..., "3").search(said)
    assert not (tmp_path / "out").exists()


def test_unsorted_class_list_is_refused(tmp_path: Path) -> None:
    """As for CIFAR-10: the labels follow the dataset's own list."""
    source = tmp_path / "tfds"
    out = tmp_path / "set"
    images = [foreign.Image("train", f"{w}.jpg", w, w, plain(n), 0, 0) for n, w in enumerate("ba")]
    for number, each in enumerate(images):
        record = foreign.frame(foreign.encode(foreign.tfds(each, number)))
        layouts.write(source / f"x-train.tfrecord-0000{number}-of-00002", record)
    (source / "label.labels.txt").write_text("b\na\n")
    words = [str(source), "--rewrite", "--out", str(out), "--allow-subset", "--json"]
    assert adopt.run(words) == 0

    with pytest.raises(
        UsageError,
        match=says("imagefolder-numbers-classes-order-their", ..., ..., ..., "b", "1", "0"),
    ):
        export.run([str(out), "--to", "folder", "--out", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cat/1.jpg", "cat/1.jpg"),
        ("Cat/1.jpg", "cat/2.jpg"),
        ("\xc9t\xe9/1.jpg", "e\u0301te\u0301/2.jpg"),
    ],
)
def test_class_names_that_differ_in_case_are_refused(tmp_path: Path, one: str, other: str) -> None:
    for number, path in enumerate(("a/a.jpg", "b/b.jpg", one, other)):
        layouts.write(tmp_path / "source" / path, plain(number))
    data = str(tmp_path / "set")
    assert prepare.run(["--source", str(tmp_path / "source"), "--out", data, "--json"]) == 0
    with pytest.raises(UsageError, match=says("classes-would-same-folder-disk")) as refused:
        export.run([data, "--to", "folder", "--out", str(tmp_path / "out"), "--split", "train"])

    names = (one.split("/")[0], other.split("/")[0])
    assert all(name in str(refused.value) for name in names)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("one", "other", "file"),
    [
        ("b/X.JPG", "b/x.jpg", "b/x.jpg~1.jpg"),
        ("b/a\u0308.jpg", "b/\xe4.jpg", "b/\xe4.jpg~1.jpg"),
        ("b/a\u0308/X.jpg", "b/\xc4/x.jpg", "b/\xc4/x.jpg~1.jpg"),
        ("b/STRASSE.jpg", "b/stra\xdfe.jpg", "b/stra\xdfe.jpg~1.jpg"),
    ],
)
def test_file_names_that_differ_in_case_get_numbers(
    tmp_path: Path, one: str, other: str, file: str
) -> None:
    names = {"a/a.jpg", "b/b.jpg", one}
    assert exported_folder(tmp_path, [*sorted(names), other]).keys() == names | {file}


def exported_folder(tmp_path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Prepares images with these names and exports them; returns the files by name."""
    for number, name in enumerate(names):
        layouts.write(tmp_path / "source" / name, plain(number))
    data = str(tmp_path / "set")
    assert prepare.run(["--source", str(tmp_path / "source"), "--out", data, "--json"]) == 0
    out = written(Path(data), tmp_path / "out", "folder") / "train"
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*")}


def test_unknown_endings_get_the_ending_of_jpeg(tmp_path: Path) -> None:
    names = ["a/a.jpg", "b/animation.gif", "b/c/telephone.HEIC", "b/odd", "b/b.JPEG"]
    found = exported_folder(tmp_path, names)
    assert found == {
        name: plain(number)
        for number, name in enumerate(
            ["a/a.jpg", "b/animation.gif.jpg", "b/c/telephone.HEIC.jpg", "b/odd.jpg", "b/b.JPEG"]
        )
    }


def test_exported_names_are_unique(tmp_path: Path) -> None:
    names = ["a/p.jpg", "a/p.gif", "a/p.gif.jpg", "a/p.gif~1.jpg", "a/P.gif", "b/p.gif", "b/p"]
    found = exported_folder(tmp_path, names)
    assert len(found) == len(names)
    for number, name in enumerate(names):
        (file,) = [file for file, data in found.items() if data == plain(number)]
        assert file.startswith(name)
        assert file == name or not name.endswith(".jpg")
    assert found.keys() >= {"a/P.gif~2.jpg", "a/p.gif~3.jpg", "b/p.gif.jpg"}


def test_names_collide_only_within_a_split(tmp_path: Path) -> None:
    names = [*map("/".join, itertools.product(("train", "val"), ("a/p.gif", "a/P.gif")))]
    names += ["train/a/q.gif", "val/a/q.jpg"]
    for number, name in enumerate(names):
        layouts.write(tmp_path / "source" / name, plain(number))
    data = tmp_path / "set"
    assert prepare.run(["--source", str(tmp_path / "source"), "--out", str(data), "--json"]) == 0
    out = written(data, tmp_path / "out", "folder")
    found = {str(path.relative_to(out)) for path in out.rglob("*.gif*")}
    numbered = {f"{split}/a/p.gif~1.jpg" for split in ("train", "val")}
    assert found == numbered | {"train/a/P.gif.jpg", "val/a/P.gif.jpg", "train/a/q.gif.jpg"}


@pytest.mark.parametrize("hidden", [".b.JPEG", "@eaDir/b.JPEG"])
def test_hidden_names_are_refused(tmp_path: Path, hidden: str) -> None:
    examples = [
        ImageExample(plain(n), 8, 8, name, n + 1, class_id, "thing")
        for n, (class_id, name) in enumerate(((wnid(0), "a.JPEG"), (wnid(1), hidden)))
    ]
    write_dataset(tmp_path / "set", {"train": [examples]}, num_classes=2)
    add_tables(tmp_path / "set")
    with pytest.raises(UsageError, match=says("keys-not-valid-file-names", ..., "1", hidden)):
        export.run([str(tmp_path / "set"), "--to", "folder", "--out", str(tmp_path / "out")])


def test_split_without_last_classes_has_correct_labels(tmp_path: Path) -> None:
    names = [*map("/".join, itertools.product("abc", ("0.jpg", "1.jpg"))), "d/1.jpg"]
    for number, name in enumerate(names):
        layouts.write(tmp_path / "source" / name, plain(number))
    how = ["--source", str(tmp_path / "source"), "--holdout", "10%", "--json"]
    assert prepare.run([*how, "--out", str(tmp_path / "set")]) == 0
    out = written(tmp_path / "set", tmp_path / "out", "folder")
    assert sorted(path.name for path in (out / "holdout").iterdir()) == ["a", "b", "c"]


def test_holdout_may_be_the_folder_val(tmp_path: Path) -> None:
    names = [*map("/".join, itertools.product("abc", ("0.jpg", "1.jpg"))), "a/b/c.jpg"]
    for number, name in enumerate(names):
        layouts.write(tmp_path / "source" / name, plain(number))
    how = ["--source", str(tmp_path / "source"), "--holdout", "40%", "--json"]
    assert prepare.run([*how, "--out", str(tmp_path / "set")]) == 0
    moved = tmp_path / "moved.csv"
    moved.write_text("key,class\na/b/c.jpg,b\na/0.jpg,b\na/1.jpg,b\n")
    words = [str(tmp_path / "set"), "--relabel", str(moved), "--out", str(tmp_path / "amended")]
    assert amend.run(words) == 0
    flags = ("--holdout-as-val", "--allow-empty-class")
    out = written(tmp_path / "amended", tmp_path / "out", "folder", *flags)

    assert not (out / "holdout").exists()
    source = ["--source", str(out), "--out", str(tmp_path / "again"), "--json", "--allow-subset"]
    assert prepare.run(source) == 0
    expected = roots(tmp_path / "amended")
    assert set(expected) == {"train", "holdout"}
    assert roots(tmp_path / "again") == {
        "train": expected["train"],
        "validation": expected["holdout"],
    }
    with pytest.raises(UsageError, match=says("different-export-one-started-different")):
        written(tmp_path / "amended", out, "folder", "--allow-empty-class")


def test_val_is_only_free_without_validation(prepared: Path, tmp_path: Path) -> None:
    words = [str(prepared), "--to", "folder", "--out", str(tmp_path / "out"), "--holdout-as-val"]
    with pytest.raises(UsageError, match=says("holdout-as-val-no-exported-split-holdout")):
        export.run(words)

    all_splits = tmp_path / "all"
    splits = {name: [[picture(1, plain(1))]] for name in ("train", "validation", "holdout")}
    write_dataset(all_splits, splits, num_classes=2)
    add_tables(all_splits)
    for chosen in ([], ["--split", "validation,holdout"]):
        with pytest.raises(UsageError, match=says("holdout-as-val-val-folder-split-validation")):
            export.run([str(all_splits), *words[1:], *chosen])


def test_difficult_names_stay_different_files(photographs: Path, tmp_path: Path) -> None:
    out = written(photographs, tmp_path / "out", "folder")

    found = {str(path.relative_to(out / "train")) for path in (out / "train").rglob("*.*")}
    assert found == set(NAMES)


def test_tar_keys_are_unique_and_have_no_dots() -> None:
    names = [
        *NAMES,
        "cats/a",
        "cats/a%",
        "cats/a.jpg.JPEG",
        "cats/.JPEG",
        "cats/a%2Ejpg",
        "cats/a%25",
        "__cats__/a.JPEG",
        "%5F_cats__/a.JPEG",
        "a.JPEG",
        "a/a.JPEG",
    ]
    made = [sample_key(name) for name in names]

    assert sample_key("n01440764/n01440764_10026.JPEG") == "n01440764/n01440764_10026"
    assert len({*made}) == len(made)
    for key in made:
        assert "." not in key.rpartition("/")[2]
        assert key.rpartition("/")[2]
        assert not key.startswith("__")


# webdataset does not close its files; Python does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("reader", ["tarfile", "webdataset"])
def test_tars_have_all_images_with_their_classes(
    official: Path, photographs: Path, tmp_path: Path, reader: str
) -> None:
    wds = pytest.importorskip("webdataset") if reader == "webdataset" else None
    for data in (official, photographs):
        out = written(data, tmp_path / data.parent.name, "webdataset")
        index = json.loads((out / "_info.json").read_bytes())["splits"]
        for split, of_split in index.items():
            tars = [out / name for name in of_split["filenames"]]
            samples = [list(_samples(tar, wds)) for tar in tars]
            assert [len(each) for each in samples] == of_split["shard_lengths"]
            flat = [*itertools.chain.from_iterable(samples)]
            assert len(flat) == of_split["num_samples"]
            found = {}
            for number, sample in enumerate(flat):
                said = json.loads(sample["json"])
                assert said["number"] == number
                assert said["wnid"] == _wnids(data)[int(sample["cls"])]
                found[said["filename"]] = int(sample["cls"]), sample["jpg"]
            assert found == truth(data, split)


def _samples(tar: Path, wds: Any) -> Iterator[dict[str, bytes]]:
    if wds is not None:
        yield from wds.WebDataset(str(tar), shardshuffle=False)
        return
    with tarfile.open(tar) as opened:
        groups: dict[str, dict[str, bytes]] = {}
        for member in opened:
            key, _, ending = member.name.rpartition(".")
            groups.setdefault(key, {})[ending] = opened.extractfile(member).read()
    yield from groups.values()


def _wnids(data: Path) -> list[str]:
    return [line.split(" ")[0] for line in (data / "labels.txt").read_text().splitlines()]


def test_parquet_has_the_columns_of_the_hub(official: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    out = written(official, tmp_path / "out", "parquet")
    for split in ("train", "validation"):
        files = sorted((out / "data").glob(f"{split}-*.parquet"))
        rows = []
        for path in files:
            rows += pq.read_table(path).to_pylist()
        found = {row["image"]["path"]: (row["label"], row["image"]["bytes"]) for row in rows}
        folders = {"train": lambda name: f"{name[:9]}/{name}", "validation": str}
        images = truth(official, split).items()
        assert found == {folders[split](name): image for name, image in images}
        metadata = json.loads(pq.read_schema(files[0]).metadata[b"huggingface"])
        features = metadata["info"]["features"]
        assert features["image"] == {"_type": "Image"}
        assert features["label"] == {"_type": "ClassLabel", "names": [*official_classes().wnids]}


@pytest.fixture(scope="module")
def tfds(tf: ModuleType) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = "TensorFlow Datasets is not installed"
        return pytest.importorskip("tensorflow_datasets", reason=reason)


@pytest.mark.tf
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["load", "builder_from_directory"])
def test_tfds_opens_export_by_name_and_by_folder(
    tfds: Any, official: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = written(official, tmp_path / "out", "tfds")

    def refuse(*address: object) -> None:
        pytest.fail(f"tried the network: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    decoders = {"image": tfds.decode.SkipDecoding()}
    for split in ("train", "validation"):
        if how == "load":
            opened, info = tfds.load(
                "imagenet2012", data_dir=out, split=split, decoders=decoders, with_info=True
            )
            images = tfds.load("imagenet2012", data_dir=out, split=split, as_supervised=True)
            shapes = {image.shape for image, _ in images.as_numpy_iterator()}
        else:
            builder = tfds.builder_from_directory(str(out / "imagenet2012" / "5.1.0"))
            opened = builder.as_dataset(split=split, decoders=decoders)
            info = builder.info
            images = builder.as_dataset(split=split)
            shapes = {row["image"].shape for row in images.as_numpy_iterator()}
        found = {
            row["file_name"].decode(): (int(row["label"]), row["image"])
            for row in opened.as_numpy_iterator()
        }
        expected = truth(official, split)
        assert found == expected
        assert info.features["label"].names == [*official_classes().wnids]
        assert info.splits[split].num_examples == len(expected)
        sides = {Image.open(io.BytesIO(data)).size for _, data in expected.values()}
        assert shapes == {(height, width, 3) for width, height in sides}


@pytest.mark.tf
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tfds_opens_custom_dataset_under_its_name(
    tfds: Any, photographs: Path, tmp_path: Path
) -> None:
    written(photographs, tmp_path / "out", "tfds")

    (info,) = (tmp_path / "out").rglob("dataset_info.json")
    name = json.loads((photographs / "dataset_info.json").read_bytes())["name"]
    builder = tfds.builder_from_directory(str(info.parent))
    assert builder.info.name == name
    assert builder.info.features["label"].names == ["cats", "dogs"]
    assert builder.info.splits["train"].num_examples == len(NAMES)


_IMAGE_FOLDER = """
import hashlib, json, sys
from pathlib import Path
from torchvision.datasets import ImageFolder
found = ImageFolder(sys.argv[1], allow_empty=True)
print(json.dumps([found.classes, [
    [Path(path).name, label, hashlib.sha256(Path(path).read_bytes()).hexdigest()]
    for path, label in found.samples
]]))
"""


def test_torchvision_finds_the_labels(official: Path, tmp_path: Path) -> None:
    from hashlib import sha256

    python = Path(sys.prefix) / "loaders" / "bin" / "python"
    if not python.exists():
        pytest.skip("torchvision is not installed; make test-long installs it into .venv/loaders")
    out = written(official, tmp_path / "out", "folder", "--allow-empty-class")
    for split in ("train", "val"):
        words = ("-c", _IMAGE_FOLDER, str(out / split))
        with command.started(program=words, python=python) as running:
            classes, samples = running.finish().json
        expected = truth(official, "validation" if split == "val" else split)
        assert classes == [*official_classes().wnids]
        assert sorted(samples) == sorted(
            [name, label, sha256(data).hexdigest()] for name, (label, data) in expected.items()
        )
