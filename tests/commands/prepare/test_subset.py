"""Dry runs describe the output, and subsets write a part of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents, shard_names, split_records
from tests.kit.messages import says
from tests.kit.miniature import Miniature

SPLITS = ("train", "validation")


PLAIN = ("--short-side", "64", "--train-shards", "2", "--validation-shards", "2")


def manifest(out: Path) -> dict:
    return json.loads((out / "dataset.json").read_bytes())


@pytest.mark.parametrize("more", [(), ("--keep-original",)], ids=["resized", "original"])
def test_estimate_of_dry_run_is_nearly_exact(
    mini: Miniature, tmp_path: Path, more: tuple[str, ...]
) -> None:
    places = ("--source", mini.root, "--out", tmp_path / "out")
    foreseen = command.run("prepare", *places, *SETTINGS, *more, "--dry-run", "--json")
    assert (foreseen.code, foreseen.complaints) == (0, "")
    assert not (tmp_path / "out").exists()
    done = command.run("prepare", *places, *SETTINGS, *more, "--json")
    assert done.code == 0, done

    actual = sum(split["bytes"] for split in done.json["splits"].values())
    assert actual / 1.5 < foreseen.json["estimated_bytes"] < actual * 1.5
    for split in SPLITS:
        assert foreseen.json["splits"][split]["examples"] == len(mini.of(split))
        assert foreseen.json["splits"][split]["shards"] == done.json["splits"][split]["shards"]


def test_dry_run_reports_the_errors_of_the_run(
    reference: Reference, source: Path, tmp_path: Path
) -> None:
    (source / "ILSVRC2012_img_train.tar").write_bytes(b"no tar" * 1000)
    places = ("--source", source, "--out", tmp_path / "out")
    result = command.run("prepare", *places, *SETTINGS, "--dry-run")

    assert (result.code, result.out) == (3, "")
    assert says("not-tar-header-checksum-wrong").search(result.err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limit", [1, 3])
def test_subset_per_class_takes_at_most_that_number(
    mini: Miniature, tmp_path: Path, limit: int
) -> None:
    out = tmp_path / "out"
    places = ("--source", mini.root, "--out", out)
    result = command.run("prepare", *places, *PLAIN, "--subset-per-class", str(limit))

    assert result.code == 0, result
    for split in SPLITS:
        there = Counter(r.stored_label - 1 for r in split_records(out, split))
        bad = sum(
            line["action"] == "quarantined" and ("val" in line["key"]) == (split == "validation")
            for line in map(json.loads, (out / "quarantine.jsonl").read_bytes().splitlines())
        )
        assert all(count <= limit for count in there.values())
        assert sum(there.values()) == limit * len(mini.classes) - bad
    assert manifest(out)["subset"] is True


@pytest.mark.parametrize("chosen", ["3", "1,4", "6"])
def test_labels_do_not_shift_in_subset_of_classes(
    mini: Miniature, tmp_path: Path, chosen: str
) -> None:
    out = tmp_path / "out"
    wnids = [wnid for wnid, _ in mini.classes]
    if "," in chosen:
        indices = [int(text) for text in chosen.split(",")]
        value = ",".join(wnids[index] for index in indices)
    else:
        indices = list(range(int(chosen)))
        value = chosen
    places = ("--source", mini.root, "--out", out)
    result = command.run("prepare", *places, *PLAIN, "--subset-classes", value)

    assert result.code == 0, result
    truth = {i.key.rpartition("/")[2]: i for i in mini.images}
    for split in SPLITS:
        found = split_records(out, split)
        expected = {
            key.rpartition("/")[2]
            for key, image in mini.of(split).items()
            if image.class_index in indices and image.fate != "quarantined"
        }
        assert {r.filename for r in found} == expected
        assert all(r.stored_label == truth[r.filename].class_index + 1 for r in found)
        counts = manifest(out)["splits"][split]["examples_per_class"]
        assert [index for index, count in enumerate(counts) if count] == indices
    assert manifest(out)["subset"] is True
    assert manifest(out)["classes"]["count"] == len(mini.classes)
    assert len((out / "labels.txt").read_text().splitlines()) == len(mini.classes)
    assert command.run("verify", out, "--level", "decode").code == 0


def test_label_offset_zero_stores_class_indices(mini: Miniature, tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = ("--source", mini.root, "--out", out)
    result = command.run("prepare", *places, *SETTINGS, "--label-offset", "0")

    assert result.code == 0, result
    truth = {i.key.rpartition("/")[2]: i for i in mini.images}
    for split in SPLITS:
        for record in split_records(out, split):
            assert record.stored_label == truth[record.filename].class_index
    assert manifest(out)["label_offset"] == 0
    assert command.run("verify", out, "--level", "decode").code == 0


def test_check_header_skips_md5_and_records_this(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = ("--source", reference.source, "--out", out)
    result = command.run("prepare", *places, *SETTINGS, "--check", "header")

    assert result.code == 0, result
    assert [source["md5"] for source in manifest(out)["sources"]] == [None, None]
    assert manifest(out)["config"]["check"] == "header"
    there = contents(out)
    for name in shard_names(there):
        assert there[name] == reference.contents[name]
