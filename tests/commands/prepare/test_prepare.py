"""Compares the files of `prepare` with the images of the miniature."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

from tests.kit import command
from tests.kit.dataset import SETTINGS, SMALL_FILES, Reference, split_records
from tests.kit.messages import says
from tests.kit.miniature import Miniature

SPLITS = ("train", "validation")


NUM_SHARDS = {"train": 8, "validation": 3}


def quarantine(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_bytes().splitlines()]


def manifest(out: Path) -> dict:
    return json.loads((out / "dataset.json").read_bytes())


def test_prepare_prints_a_summary(mini: Miniature, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = command.run("prepare", "--source", mini.root, "--out", out, *SETTINGS)

    fates = Counter(image.fate for image in mini.images)
    kept = {
        split: sum(i.fate != "quarantined" for i in mini.of(split).values()) for split in SPLITS
    }
    lines = result.out.splitlines()
    assert (result.code, result.complaints) == (0, "")
    assert lines[0].startswith(f"train: {kept['train']} examples in 8 shards, ")
    assert lines[1].startswith(f"validation: {kept['validation']} examples in 3 shards, ")
    assert lines[2].startswith(f"repaired: {fates['repaired']} (")
    assert lines[3].startswith(f"quarantined: {fates['quarantined']} (")
    assert says("run-s-images-s-out", f"{sum(kept.values())} images").match(lines[4])
    assert lines[5].startswith("subset: ")
    assert lines[6].startswith(f"manifest: {out}/dataset.json (")


def test_json_output_is_one_document_without_stderr(mini: Miniature, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = command.run("prepare", "--source", mini.root, "--out", out, *SETTINGS, "--json")

    assert (result.code, result.complaints) == (0, "")
    summary = result.json
    there = manifest(out)
    assert summary["manifest"] == f"{out}/dataset.json"
    assert summary["digest"] == there["digest"]
    for split in SPLITS:
        assert summary["splits"][split]["examples"] == there["splits"][split]["examples"]
        assert summary["splits"][split]["shards"] == NUM_SHARDS[split]
    assert summary["quarantined"] == there["quarantined"]
    assert summary["repaired"] == there["repaired"]


def test_quarantine_lists_all_bad_and_repaired_images(
    mini: Miniature, reference: Reference
) -> None:
    expected = {i.key: i.fate for i in mini.images if i.fate != "kept"}
    lines = quarantine(reference.out)

    assert {line["key"]: line["action"] for line in lines} == expected
    assert len(lines) == len(expected)
    reason_of = {"grey": "gray", "exif_rotated": "orientation"}
    kinds = {image.key: image.kind for image in mini.images}
    for line in lines:
        kind = kinds[line["key"]]
        assert line["reason"] == reason_of.get(kind, kind)


def test_dataset_contains_no_time_host_or_path(reference: Reference) -> None:
    host = Path("/etc/hostname").read_text().strip() if Path("/etc/hostname").exists() else ""
    for name in SMALL_FILES:
        text = reference.contents[name].decode()

        assert str(reference.out) not in text
        assert str(reference.source) not in text
        assert not host or host not in text
        assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text), name


def test_keep_original_stores_valid_jpegs_unchanged(mini: Miniature, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shards = ("--train-shards", "8", "--validation-shards", "3")
    arguments = ("--source", mini.root, "--out", out, *shards, "--allow-subset")
    result = command.run("prepare", *arguments, "--keep-original")

    assert result.code == 0, result
    for split in SPLITS:
        truth = {key.rpartition("/")[2]: image for key, image in mini.of(split).items()}
        for record in split_records(out, split):
            image = truth[record.filename]
            sha256 = hashlib.sha256(record.encoded).hexdigest()
            is_kept = image.fate == "kept" or image.kind == "exif_rotated"
            assert (sha256 == image.sha256) == is_kept, image
            assert (record.width, record.height) == (image.width, image.height)
    assert manifest(out)["config"]["short_side"] is None
    assert all(split["resized"] == 0 for split in manifest(out)["splits"].values())


def test_only_requested_split_is_made(
    mini: Miniature, tmp_path: Path, reference: Reference
) -> None:
    out = tmp_path / "out"
    arguments = ("--source", mini.root, "--out", out, "--short-side", "64", "--allow-subset")
    flags = ("--splits", "validation", "--validation-shards", "3")
    result = command.run("prepare", *arguments, *flags)

    assert result.code == 0, result
    names = {path.name for path in out.iterdir() if path.name.startswith(("train", "valid"))}
    assert names == {f"validation-{i:05d}-of-00003" for i in range(3)}
    for name in names:
        assert (out / name).read_bytes() == reference.contents[name]
