"""Same bytes for any workers; a run may end at any time; foreign files are never replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.resize.conftest import BOTH, Resized
from tests.kit import command, foreign
from tests.kit.dataset import contents
from tests.kit.foreign_datasets import ForeignDataset


def test_module_can_be_run_as_a_program(resized: Resized, tmp_path: Path) -> None:
    words = ("-i", resized.source.root, "-o", tmp_path / "out", *BOTH)
    result = command.run(*words, program=("-m", "imagenet_prep.resize"))

    assert result.code == 0, result
    assert contents(tmp_path / "out") == resized.contents


def test_different_input_is_refused_like_different_settings(
    resized: Resized, foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    result = command.run("resize", "-i", foreign_dataset("slim-own-classes").root, "-o", out, *BOTH)

    assert result.code == 2
    assert "source" in result.err
    assert contents(out) == resized.contents


def test_classes_of_two_datasets_are_not_mixed(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = ("resize", "-i", foreign_dataset("slim").root, "-o", out, "-s", "train", "-r", "64")
    second = (
        "resize",
        "-i",
        foreign_dataset("flowers").root,
        "-o",
        out,
        "-s",
        "validation",
        "-r",
        "64",
    )
    assert command.run(*first).code == 0
    before = contents(out)
    result = command.run(*second)

    assert result.code == 2
    assert "classes" in result.err
    assert contents(out) == before


def write_lacking(root: Path, stored: list[foreign.Image], *, below: bool) -> int:
    """Writes TFRecords of which validation lacks a class; returns the number of classes."""
    gone = min(image.wnid for image in stored)
    some = [i for i in stored if i.split == "train" or i.wnid != gone]
    wnids = sorted({image.wnid for image in stored})

    def labelled(image: foreign.Image, _: int) -> dict[str, foreign.Value]:
        return foreign.slim(image, wnids.index(image.wnid) + 1)

    num_shards = {"train": 3, "validation": 2}
    foreign.write(root, some, labelled, num_shards=num_shards, below=below)
    return len(wnids)


def test_second_call_uses_class_list_of_the_first(
    stored: list[foreign.Image], tmp_path: Path
) -> None:
    """Validation may lack a class; its labels still follow train's list."""
    source = tmp_path / "in"
    out = tmp_path / "out"
    num_classes = write_lacking(source, stored, below=True)
    for split in ("train", "validation"):
        places = ("-i", source / split, "-o", out, "-s", split)
        result = command.run("resize", *places, "-r", "64")
        assert result.code == 0, result

    assert command.run("verify", out, "--level", "decode").code == 0
    assert len((out / "labels.txt").read_text().splitlines()) == num_classes


def test_split_that_lacks_a_class_has_all_classes(
    stored: list[foreign.Image], tmp_path: Path
) -> None:
    """Two sizes in two folders have the same labels, in whichever order they are made."""
    source = tmp_path / "in"
    num_classes = write_lacking(source, stored, below=False)
    for out, split in (("small", "validation"), ("large", "train"), ("small", "train")):
        words = ("-i", source, "-o", tmp_path / out, "-s", split, "-r", "64")
        result = command.run("resize", *words)
        assert result.code == 0, result
        classes = (tmp_path / out / "labels.txt").read_text().splitlines()
        assert len(classes) == num_classes
    assert command.run("verify", tmp_path / "small", "--level", "decode").code == 0


@pytest.mark.parametrize("other", ["prepare", "stranger"])
def test_output_of_other_programs_is_never_changed(
    resized: Resized, tmp_path: Path, other: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if other == "prepare":
        manifest = json.loads(resized.contents["dataset.json"])
        (out / ".work").mkdir()
        begun = {"config": {"splits": ["train"]}, "libraries": manifest["producer"]["libraries"]}
        (out / ".work" / "run.json").write_text(json.dumps(begun))
    else:
        (out / "train-00000-of-00006").write_bytes(b"precious")
    before = contents(out)
    for flags in ((), ("--force",)):
        result = command.run("resize", "-i", resized.source.root, "-o", out, *BOTH, *flags)
        assert result.code == 2, result
    assert contents(out) == before


def test_prepare_refuses_to_write_into_resized_dataset(
    resized: Resized, mini: object, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    arguments = ("--source", mini.root, "--out", out, "--allow-subset")
    finished = command.run("prepare", *arguments)
    (out / "dataset.json").unlink()
    unfinished = command.run("prepare", *arguments)

    for result in (finished, unfinished):
        assert result.code == 2, result
        assert "Traceback" not in result.err
