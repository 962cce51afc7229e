"""A small dataset whose files must stay unchanged in the formats of other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagenet_prep import export
from imagenet_prep.pipelines import prepare
from imagenet_prep.read.records import Records
from imagenet_prep.sources.labels import official_classes, published_labels
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import layouts
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.tfrecords import plain

FLAGS = ("--keep-original", "--allow-subset", "--train-shards=3", "--validation-shards=2")


@pytest.fixture(scope="session")
def small(shared_cache: Path) -> Miniature:
    """40 + 16 images without odd files: --keep-original changes none."""
    return miniature_for_tests(
        shared_cache, num_train=40, num_validation=16, size=(64, 48), odd_files=False
    )


@pytest.fixture(scope="session")
def prepared(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small` as a dataset; read-only."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare.run(["--source", str(small.root), "--out", str(out), *FLAGS, "--json"]) == 0
    return out


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with ILSVRC2012's class list and a few images of six classes; read-only.

    Train has two images of each class; validation has one of each except the first.
    """
    source, out = (tmp_path_factory.mktemp("official") / name for name in ("source", "set"))
    wnids = official_classes().wnids
    for number, index in enumerate((0, 1, 2, 500, 998, 999)):
        for place in (number, number + 6):
            name = f"{wnids[index]}_{place}.JPEG"
            layouts.write(source / "train" / wnids[index] / name, plain(place))
        if index:
            name = f"ILSVRC2012_val_{published_labels().index(index) + 1:08d}.JPEG"
            layouts.write(source / "val" / wnids[index] / name, plain(number + 12))
    assert prepare.run(["--source", str(source), "--out", str(out), *FLAGS, "--json"]) == 0
    return out


def exported(data: Path, prefix: Path, split: str = "train", *flags: str) -> Path:
    """Exports a split of a dataset as RecordIO; returns the file of records."""
    words = [str(data), "--to", "recordio", "--split", split, "--out", str(prefix), *flags]
    assert export.run(words) == 0
    return prefix.with_name(f"{prefix.name}.rec")


def roots(data: Path) -> dict[str, str]:
    """Returns the root of the samples of each split of a dataset."""
    splits = json.loads((data / "dataset.json").read_bytes())["splits"]
    return {name: split["samples_root"] for name, split in splits.items()}


def truth(data: Path, split: str) -> dict[str, tuple[int, bytes]]:
    """Returns class index and image of each example of a split, by the name of its file."""
    records = Records(open_dataset(str(data)), split)
    images = map(records.read, range(len(records)))
    offset = records.manifest.label_offset
    return {each.filename: (each.stored_label - offset, bytes(each.encoded)) for each in images}
