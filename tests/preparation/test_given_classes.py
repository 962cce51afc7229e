"""`--classes-of`: a source with the class list of a dataset, some of whose classes it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import verbs
from imagenet_prep.core.errors import SourceError, UsageError
from tests.kit import command
from tests.kit.dataset import split_records
from tests.kit.layouts import make_cifar10, write
from tests.kit.messages import says
from tests.kit.photographs import photograph

CLASSES = ("Fuchs", "Hund", "Kätzchen klein")
IDS = ("Fuchs", "Hund", "Kätzchen_klein")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("known")
    for number, name in enumerate(CLASSES):
        write(root / "photographs" / name / "a.jpg", photograph(24, 20, number))
    verbs.prepare(root / "photographs", root / "set")
    return root / "set"


def in_folders(root: Path, *names: str) -> Path:
    """Makes a folder with one photograph in each class folder."""
    for number, name in enumerate(names):
        write(root / name / "new.jpg", photograph(24, 20, 10 + number))
    return root


def in_table(root: Path, *names: str) -> Path:
    """Makes a folder of photographs with a table of labels."""
    lines = ["file,label"]
    for number, name in enumerate(names):
        write(root / f"images/{number}.jpg", photograph(24, 20, 10 + number))
        lines.append(f"{number}.jpg,{name}")
    write(root / "labels.csv", "\n".join(lines).encode())
    return root


LAYOUTS = pytest.mark.parametrize("make", [in_folders, in_table])


@LAYOUTS
@pytest.mark.parametrize(
    ("names", "labels"),
    [(("Hund",), [1]), (("Kätzchen klein", "fuchs"), [0, 2]), (CLASSES, [0, 1, 2])],
)
def test_images_have_the_labels_of_the_dataset(
    dataset: Path, tmp_path: Path, make: Any, names: tuple[str, ...], labels: list[int]
) -> None:
    verbs.prepare(make(tmp_path / "in", *names), tmp_path / "out", classes_of=dataset)
    records = split_records(tmp_path / "out", "train")
    assert sorted(record.stored_label - 1 for record in records) == labels
    assert {record.wnid for record in records} == {IDS[label] for label in labels}
    assert (tmp_path / "out/labels.txt").read_bytes() == (dataset / "labels.txt").read_bytes()


@LAYOUTS
def test_class_outside_the_list_is_refused(dataset: Path, tmp_path: Path, make: Any) -> None:
    source = make(tmp_path / "in", "Hund", "Hundd")
    with pytest.raises(SourceError, match="Did you mean Hund"):
        verbs.prepare(source, tmp_path / "out", classes_of=dataset)
    assert not (tmp_path / "out").exists()


def test_source_with_a_class_list_is_refused(dataset: Path, tmp_path: Path) -> None:
    source = make_cifar10(tmp_path / "in")
    with pytest.raises(
        UsageError, match=says("classes-of-source-kind-whose-class", ..., "cifar10")
    ):
        verbs.prepare(source, tmp_path / "out", classes_of=dataset, allow_subset=True)


def test_next_run_needs_the_same_class_list(dataset: Path, tmp_path: Path) -> None:
    source = in_folders(tmp_path / "in", "Hund")
    first = verbs.prepare(source, tmp_path / "out", classes_of=dataset)
    second = verbs.prepare(source, tmp_path / "out", classes_of=dataset)
    assert second["manifest"] == first["manifest"]
    with pytest.raises(UsageError, match=says("classes-different-names-words-positions")):
        verbs.prepare(source, tmp_path / "out")


def test_dry_run_names_the_flag(dataset: Path, tmp_path: Path) -> None:
    """The classes are not those of the folders."""
    source = in_folders(tmp_path / "in", "Hund")
    done = command.run(
        "prepare", str(source), str(tmp_path / "out"), "--classes-of", str(dataset), "--dry-run"
    )
    assert "3 classes (Fuchs, Hund, Kätzchen_klein; not ILSVRC2012's) from --classes-of" in done.err
