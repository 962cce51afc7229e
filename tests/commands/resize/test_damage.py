"""Damaged input gives the right exit code, and the shard, record and byte are named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.resize.conftest import BOTH
from tests.kit import command, foreign
from tests.kit.foreign_datasets import NUM_SHARDS, ForeignDataset
from tests.kit.messages import exactly, says

VERBS = ("resize", "adopt")


@pytest.fixture
def source(foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(foreign_dataset("slim").root, tmp_path / "in"))


def run(verb: str, source: Path, out: Path) -> command.Finished:
    if verb == "resize":
        return command.run("resize", "-i", source, "-o", out, *BOTH)
    return command.run("adopt", source, "--out", out, "--allow-subset")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image/classes/label": [1]}, says("keys-no-known-program-writes", "image/classes/label")),
        ({"image/class/label": None}, says("keys-missing-found", "image/class/label")),
        ({"image/encoded": None}, says("keys-missing-found", "image/encoded")),
        ({"image/class/label": [b"1"]}, exactly("image/class/label is not one integer")),
        ({"image/class/label": [1, 2]}, exactly("image/class/label is not one integer")),
        ({"image/filename": [b""]}, exactly("image/filename is empty")),
        ({"image/filename": [b"\xff.JPEG"]}, says("not-utf-8-2", "image/filename")),
        ({"image/object/bbox/xmin": [0.5] * 7}, says("bounding-box-lists-differ-length")),
    ],
    ids=str,
)
def test_records_of_unknown_writers_are_refused(
    verb: str,
    stored: list[foreign.Image],
    tmp_path: Path,
    change: dict[str, foreign.Value | None],
    sentence: re.Pattern[str],
) -> None:
    def odd(image: foreign.Image, label: int) -> dict[str, foreign.Value]:
        features = foreign.slim(image, label) | change
        return {key: values for key, values in features.items() if values is not None}

    foreign.write(tmp_path / "in", stored, odd, num_shards=NUM_SHARDS)
    result = run(verb, tmp_path / "in", tmp_path / "out")

    assert result.code == 3, result
    assert re.search(rf"\S+-of-0000\d: record \d+ at byte [\d,]+: .*{sentence.pattern}", result.err)
    assert "Traceback" not in result.err
