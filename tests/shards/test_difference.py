"""The difference of two datasets if their class lists have a different order."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.dataset import manifest, schema
from imagenet_prep.shards.difference import common_tables, differences, splits_that_differ
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

CLASSES = 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset with two images of each of five classes."""
    shards = [
        [
            picture(index, plain(number))._replace(filename=f"{number}.JPEG")
            for index, number in enumerate(range(first, first + CLASSES))
        ]
        for first in (0, CLASSES)
    ]
    write_dataset(tmp_path / "set", {"train": shards}, num_classes=CLASSES)
    add_tables(tmp_path / "set")
    return tmp_path / "set"


def permuted(root: Path, order: list[int]) -> Path:
    """Returns a copy with the lines of labels.txt in a different order."""
    other = Path(shutil.copytree(root, root.parent / "other"))
    ids = [wnid(index) for index in order]
    labels = "".join(f"{name} thing\n" for name in ids).encode()
    (other / schema.LABELS).write_bytes(labels)
    there = manifest.loads((other / schema.MANIFEST).read_bytes(), "")
    digest = hashlib.sha256("".join(f"{name}\n" for name in ids).encode()).hexdigest()
    file = manifest.DatasetFile(schema.LABELS, len(labels), hashlib.sha256(labels).hexdigest())
    made = replace(there, classes=replace(there.classes, digest=digest), files=[file])
    (other / schema.MANIFEST).write_bytes(made.dumps())
    return other


def opened(*roots: Path) -> tuple[Dataset, ...]:
    return tuple(open_dataset(LocalStore(each)) for each in roots)


def test_equal_tables_with_permuted_classes_differ_in_labels(root: Path) -> None:
    a, b = opened(root, permuted(root, [0, 3, 2, 1, 4]))

    assert splits_that_differ(a, a) == []
    assert len(common_tables(a, a, "train")) == 2
    assert splits_that_differ(a, b) == ["train"]
    assert common_tables(a, b, "train") == frozenset()
    found = list(differences(a, b, ["train"]))
    assert {each.key for each in found} == {f"{wnid(n % 5)}/{n}.JPEG" for n in (1, 3, 6, 8)}
    assert {*itertools.chain(*(each.kinds for each in found))} == {"other_label"}
