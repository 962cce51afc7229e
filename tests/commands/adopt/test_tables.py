"""`adopt` adds tables of samples to datasets without them, and changes no image."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from imagenet_prep.dataset import manifest
from tests.kit import command
from tests.kit.dataset import Reference, contents
from tests.kit.messages import says


@pytest.fixture
def old(reference: Reference, tmp_path: Path) -> Path:
    """A dataset of an earlier version, without tables."""
    out = tmp_path / "old"
    shutil.copytree(reference.out, out)
    shutil.rmtree(out / "samples")
    there = manifest.loads((out / "dataset.json").read_bytes(), "old")
    nothing = {"samples_bytes": 0, "samples_sha256": ""}
    splits = {
        name: dataclasses.replace(
            split,
            samples_root="",
            shards=[dataclasses.replace(shard, **nothing) for shard in split.shards],
        )
        for name, split in there.splits.items()
    }
    (out / "dataset.json").write_bytes(dataclasses.replace(there, splits=splits).dumps())
    return out


def test_verify_accepts_dataset_without_tables_and_says_so(old: Path) -> None:
    for level in ("manifest", "crc", "decode"):
        result = command.run("verify", old, "--level", level)
        assert result.code == 0, result
        assert says("no-tables-samples-images-verified").search(result.out)


def test_adopt_only_adds_tables(reference: Reference, old: Path) -> None:
    before = contents(old)
    result = command.run("adopt", old)
    assert result.code == 0, result
    assert says("tables-samples-added").search(result.out)

    after = contents(old)
    assert {name for name in after if before.get(name) != after[name]} == {
        "dataset.json",
        *(name for name in reference.contents if name.startswith("samples/")),
    }
    assert command.run("verify", old, "--level", "decode").code == 0
    made, original = (
        manifest.loads(data, "set")
        for data in (after["dataset.json"], reference.contents["dataset.json"])
    )
    for name, split in made.splits.items():
        assert split.samples_root == original.splits[name].samples_root
    assert made.config == original.config

    again = command.run("adopt", old)
    assert again.code == 0, again
    assert says("nothing").search(again.out)
    assert contents(old) == after
