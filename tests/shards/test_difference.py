"""The difference of two datasets if their class lists have a different order."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.shards import difference
from imagenet_prep.shards.difference import common_tables, differences, splits_that_differ
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says
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


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_key_in_two_tables_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Keys are searched in the common tables after each `most` of them."""
    monkeypatch.setattr(difference, "_MOST_KEYS", most)
    image = picture(0, plain(0))._replace(filename="0.JPEG")
    others = [picture(0, plain(n))._replace(filename=f"{n}.JPEG") for n in range(1, 5)]
    repeated = [*others[1:], image]
    for name, second in (("a", others[:1]), ("b", repeated)):
        write_dataset(tmp_path / name, {"train": [[image], second]}, num_classes=1)
        made = add_tables(tmp_path / name)
        train = made.splits["train"]
        counted = replace(train, examples_per_class=[train.examples])
        claim = replace(made, splits={"train": counted}).dumps()
        (tmp_path / name / schema.MANIFEST).write_bytes(claim)
    a, b = opened(tmp_path / "a", tmp_path / "b")
    assert len(common_tables(a, b, "train")) == 1
    with pytest.raises(DataDamagedError, match=says("line-same-key-different-line")):
        list(differences(a, b, ["train"]))
