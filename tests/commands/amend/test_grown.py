"""A folder that has grown: the command that `prepare` advises adds the new images."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from imagenet_prep import verbs
from imagenet_prep.core.errors import UsageError
from tests.kit import command, layouts
from tests.kit.amended import rows
from tests.kit.messages import says
from tests.kit.photographs import photograph

CLASSES = ("cat", "dog")


def write_photographs(root: Path, splits: tuple[str, ...], numbers: range) -> None:
    """Writes one photograph of each class and number to each split."""
    for place, split in enumerate(splits):
        for number in numbers:
            for class_number, name in enumerate(CLASSES):
                seed = 1000 * place + 10 * number + class_number
                layouts.write(root / split / name / f"{number}.jpg", photograph(20, 30, seed))


@pytest.mark.parametrize(
    ("splits", "unread"),
    [
        (("Training", "Validation", "Testing"), "Testing/"),
        (("train", "val", "sample"), "sample/"),
        (("train", "test"), ""),  # `test` becomes validation
    ],
)
def test_advised_command_adds_the_images_of_all_splits(
    tmp_path: Path, splits: tuple[str, ...], unread: str
) -> None:
    root = tmp_path / "my photos"
    write_photographs(root, splits, range(3))
    verbs.prepare(root, tmp_path / "set")
    write_photographs(root, splits, range(3, 5))
    refused = command.run("prepare", root, tmp_path / "set", cwd=tmp_path)
    assert refused.code == 2
    advised = re.search(r"imagenet-prep (amend .* --add .* --out NEW)", refused.err)
    assert advised, refused

    result = command.run(*shlex.split(advised[1]), "--json", cwd=tmp_path)

    assert result.code == 0, result
    verbs.prepare(root, tmp_path / "whole")
    for split in ("train", "validation"):
        assert {*rows(tmp_path / "NEW", split)} == {*rows(tmp_path / "whole", split)}
    ignored = result.json["amended"]["add"]["ignored"]
    assert ignored == ({unread: 10} if unread else {})


@pytest.mark.parametrize("folder", ["pictures", "pictures/cat", ""])
def test_grown_table_is_refused_with_its_own_way(tmp_path: Path, folder: str) -> None:
    lines = ["file,class"]
    for number in range(4):
        layouts.write(tmp_path / "in" / folder / f"{number}.jpg", photograph(20, 30, number))
        lines.append(f"{number}.jpg,{CLASSES[number % 2]}")
    (tmp_path / "in/labels.csv").write_text("\n".join(lines))
    verbs.prepare(tmp_path / "in", tmp_path / "set")

    with pytest.raises(UsageError, match=says("table-labels-not-read", ..., "labels.csv")):
        verbs.amend(tmp_path / "set", tmp_path / "new", add=tmp_path / "in")


def test_image_in_a_different_class_needs_relabel(tmp_path: Path) -> None:
    write_photographs(tmp_path / "in", ("",), range(3))
    verbs.prepare(tmp_path / "in", tmp_path / "set")
    (tmp_path / "in/cat/1.jpg").rename(tmp_path / "in/dog/moved.jpg")
    with pytest.raises(UsageError, match=says("images-only-moved-different-class")):
        verbs.prepare(tmp_path / "in", tmp_path / "set")
