"""Compares tables of samples and roots of `prepare` with the images of the miniature."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command
from tests.kit.dataset import Reference, records, shard_names
from tests.kit.miniature import Miniature

TOOL = Path(__file__).parents[2] / "oracles" / "samples_root.py"


def tool(out: Path) -> subprocess.CompletedProcess[str]:
    """Runs the program of 40 lines that uses nothing of the product."""
    python = [sys.executable, "-I", str(TOOL), str(out)]
    return subprocess.run(python, capture_output=True, text=True, check=False)


def rows(out: Path, shard: str) -> list[dict[str, str]]:
    with open(out / "samples" / f"{shard}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def roots(out: Path) -> dict[str, str]:
    splits = json.loads((out / "dataset.json").read_bytes())["splits"]
    return {name: split["samples_root"] for name, split in splits.items()}


def test_table_lines_describe_record_and_source(reference: Reference, mini: Miniature) -> None:
    truth = {image.key: image for image in mini.images}
    for shard in shard_names(reference.contents):
        for row, record in zip(
            rows(reference.out, shard), records(reference.out / shard), strict=True
        ):
            source = truth.pop(row["key"])
            assert row["key"].endswith(record.filename)
            assert row["class_index"] == str(source.class_index)
            assert (row["width"], row["height"]) == (str(record.width), str(record.height))
            assert row["bytes"] == str(len(record.encoded))
            assert row["sha256"] == hashlib.sha256(record.encoded).hexdigest()
            assert row["source_sha256"] == source.sha256
            assert row["source_bytes"] == str(source.num_bytes)
            assert (
                (row["action"] == "repaired") == (source.fate == "repaired") == bool(row["reason"])
            )
            if row["action"] == "kept":
                assert row["sha256"] == source.sha256
    assert {image.fate for image in truth.values()} == {"quarantined"}


def test_independent_program_computes_the_same_roots(reference: Reference) -> None:
    found = tool(reference.out)
    assert (found.returncode, found.stderr) == (0, "")
    assert dict(map(str.split, found.stdout.splitlines())) == roots(reference.out)


@pytest.mark.parametrize("column", ["key", "class_index", "sha256"])
def test_independent_program_finds_changed_keys_labels_and_digests(
    reference: Reference, tmp_path: Path, column: str
) -> None:
    for name in ("samples", "dataset.json"):
        copy: Any = shutil.copytree if name == "samples" else shutil.copy
        copy(reference.out / name, tmp_path / name)
    for path in sorted(tmp_path.glob("samples/*.csv"))[:3]:
        sound = path.read_bytes()
        _, *lines = sound.splitlines(keepends=True)
        place = ["key", "class_index", "sha256"].index(column)
        for line in lines[:2]:
            value = line.split(b",")[(0, 1, 5)[place]]
            other = b"9" + value[1:] if value[:1] != b"9" else b"8" + value[1:]
            path.write_bytes(sound.replace(line, line.replace(value, other, 1)))
            assert tool(tmp_path).returncode == 1
        path.write_bytes(sound)
    assert tool(tmp_path).returncode == 0


def test_resized_dataset_has_tables(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "out"
    how = ("-i", reference.out, "-o", out, "--splits", "train,validation")
    made = command.run("resize", *how, "--keep-original")
    assert made.code == 0, made
    assert roots(out) == roots(reference.out)
    assert tool(out).returncode == 0
