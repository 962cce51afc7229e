"""TensorFlow Datasets opens our datasets without our code and without a network."""

from __future__ import annotations

import json
import socket
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from imagenet_prep.dataset import manifest
from tests.kit import blocks
from tests.kit.dataset import split_records
from tests.kit.miniature import Miniature

pytestmark = [
    pytest.mark.tf,
    # These come from its dependencies (etils, importlib_resources, ...), not from our calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def tfds(tf: ModuleType) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip(
            "tensorflow_datasets", reason="TensorFlow Datasets is not installed"
        )
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*address: object) -> None:
            pytest.fail(f"tried the network: {address}")

        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield found


@pytest.fixture(scope="module")
def builder(tfds: Any, prepared: Path) -> Any:
    return tfds.builder_from_directory(str(prepared))


@pytest.fixture(scope="module")
def committed(prepared: Path) -> manifest.Manifest:
    return manifest.loads((prepared / "dataset.json").read_bytes(), "dataset.json")


def test_tfds_splits_match_the_manifest(builder: Any, committed: manifest.Manifest) -> None:
    splits = builder.info.splits

    assert set(splits) == set(SPLITS)
    for name, split in committed.splits.items():
        assert splits[name].num_examples == split.examples
        assert splits[name].num_bytes == split.num_bytes
        assert list(splits[name].shard_lengths) == [shard.examples for shard in split.shards]
        assert [Path(f).name for f in splits[name].filepaths] == [s.name for s in split.shards]


@pytest.mark.parametrize("split", SPLITS)
def test_tfds_returns_all_examples_with_labels_and_pixels(
    tf: ModuleType, builder: Any, small: Miniature, split: str
) -> None:
    truth = small.of(split)
    found = []
    for record in builder.as_dataset(split=split).as_numpy_iterator():
        image = record["image"]
        name = image["filename"].decode()
        key = name if split == "validation" else f"{name.split('_')[0]}/{name}"
        found.append(key)
        assert image["class"]["label"] == truth[key].class_index + 1
        assert image["class"]["synset"].decode() == truth[key].wnid
        assert image["class"]["text"].decode() == dict(small.classes)[truth[key].wnid]
        assert image["encoded"].shape == (image["height"], image["width"], 3)
        assert image["encoded"].dtype.name == "uint8"
        for side in ("xmin", "xmax", "ymin", "ymax", "label"):
            assert image["object"]["bbox"][side].shape == (0,)

    assert sorted(found) == sorted(k for k, i in truth.items() if i.fate != "quarantined")


def test_documented_tfds_code_gets_labels_from_0(
    tfds: Any, prepared: Path, small: Miniature
) -> None:
    """The code of docs/trainers.md, with variables for its last example."""
    numbers = {"/data/imagenet-480": str(prepared), 'label"].names[0]': 'label"].names'}
    numbers["for example in builder"] = "for last, example in enumerate(builder"
    numbers['split="train"):'] = 'split="train")):'
    numbers['builder.info.features["image"]'] = 'names = builder.info.features["image"]'
    names = blocks.run("trainers.md: TensorFlow Datasets", numbers, tfds=tfds)

    record = list(split_records(prepared, "train"))[names["last"]]
    key = f"{record.wnid}/{record.filename}"
    assert int(names["class_index"]) == small.of("train")[key].class_index
    assert names["image"].shape == (record.height, record.width, 3)
    assert names["names"][0] == "background"


@pytest.mark.parametrize("offset", [1, 0])
def test_tfds_label_names_match_stored_labels(
    request: pytest.FixtureRequest, tfds: Any, offset: int
) -> None:
    out = request.getfixturevalue("prepared" if offset else "from_0")
    label = tfds.builder_from_directory(str(out)).info.features["image"]["class"]["label"]
    wnids = [line.split(" ")[0] for line in (out / "labels.txt").read_text().splitlines()]

    assert type(label).__name__ == "ClassLabel"
    assert label.names == [*["background"] * offset, *wnids]
    assert label.str2int(wnids[0]) == offset


def test_dataset_name_is_unused_in_tfds(
    tfds: Any, prepared: Path, committed: manifest.Manifest, tmp_path: Path
) -> None:
    name = json.loads((prepared / "dataset_info.json").read_text())["name"]
    theirs = tfds.list_builders(with_community_datasets=False)
    (tmp_path / name).mkdir()
    (tmp_path / name / "1.0.0").symlink_to(prepared)
    found, info = tfds.load(name, split="validation", data_dir=tmp_path, with_info=True)

    assert "imagenet2012_subset" in theirs
    assert [each for each in theirs if each.endswith(("_prep", "_prep_subset"))] == []
    assert info.name == name == "imagenet2012_prep_subset"
    assert found.cardinality() == committed.splits["validation"].examples
    # If a folder has the name of a TFDS dataset, it is opened if the version is given.
    (tmp_path / "imagenet2012").mkdir()
    (tmp_path / "imagenet2012" / "1.0.0").symlink_to(prepared)
    assert tfds.builder("imagenet2012:1.0.0", data_dir=tmp_path).info.splits.keys() == {*SPLITS}


def test_tfds_reads_part_of_a_split(builder: Any, committed: manifest.Manifest) -> None:
    total = committed.splits["train"].examples
    half = builder.as_dataset(split="train[:50%]")

    assert len(list(half)) == round(total / 2)


def test_tfds_decodes_pixels_like_tensorflow(tf: ModuleType, builder: Any, prepared: Path) -> None:
    features = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
    names = sorted(str(path) for path in prepared.glob("validation-*"))
    expected = [
        tf.io.decode_jpeg(tf.io.parse_single_example(p, features)["image/encoded"])
        .numpy()
        .tobytes()
        for p in tf.data.TFRecordDataset(names)
    ]
    found = [
        r["image"]["encoded"].tobytes()
        for r in builder.as_dataset(split="validation").as_numpy_iterator()
    ]

    assert sorted(found) == sorted(expected)


def test_tfds_files_are_stable_text(prepared: Path) -> None:
    for name in ("features.json", "dataset_info.json"):
        data = (prepared / name).read_bytes()
        assert json.dumps(json.loads(data), indent=1, sort_keys=True).encode() + b"\n" == data
