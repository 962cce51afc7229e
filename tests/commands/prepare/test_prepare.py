"""`prepare`: what lies on the disk afterwards, held against the miniature's truth."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from tests.kit import command
from tests.kit.dataset import SETTINGS, SMALL_FILES, Reference, records, shard_names, split_records
from tests.kit.miniature import Miniature

SPLITS = ("train", "validation")
NUM_SHARDS = {"train": 8, "validation": 3}


def quarantine(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_bytes().splitlines()]


def manifest(out: Path) -> dict:
    return json.loads((out / "dataset.json").read_bytes())


def test_prepare_ends_with_zero_and_a_summary_for_people(mini: Miniature, tmp_path: Path) -> None:
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
    assert lines[4].startswith(f"this run: {sum(kept.values())} images in ")
    assert lines[5].startswith("subset: ")
    assert lines[6].startswith(f"manifest: {out}/dataset.json (")


def test_json_is_one_document_on_stdout_and_nothing_on_stderr(
    mini: Miniature, tmp_path: Path
) -> None:
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


def test_the_folder_holds_exactly_the_files_of_the_design(reference: Reference) -> None:
    shards = {
        f"{split}-{index:05d}-of-{count:05d}"
        for split, count in NUM_SHARDS.items()
        for index in range(count)
    }

    top = {path.name for path in reference.out.iterdir()}
    assert top == SMALL_FILES | shards | {"index", "samples", ".work"}
    assert {path.name for path in (reference.out / "index").iterdir()} == shards
    tables = {path.name for path in (reference.out / "samples").iterdir()}
    assert tables == {f"{name}.csv" for name in shards}
    assert {name for name in top if name.startswith(("train", "valid"))} == shards


def test_no_temporary_file_is_left(reference: Reference) -> None:
    names = [path.name for path in (reference.out / ".work").rglob("*")]

    assert [name for name in names if re.fullmatch(r"[0-9a-f]{32}", name)] == []


def test_labels_are_the_devkits_classes_in_the_order_of_wnids(
    mini: Miniature, reference: Reference
) -> None:
    expected = "".join(f"{wnid} {words}\n" for wnid, words in sorted(mini.classes))

    assert (reference.out / "labels.txt").read_text() == expected


def test_quarantine_lists_every_image_that_was_left_out_or_repaired(
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


def test_quarantine_leads_to_the_source_bytes(mini: Miniature, reference: Reference) -> None:
    truth = {image.key: image for image in mini.images}
    for line in quarantine(reference.out):
        with (mini.root / line["archive"]).open("rb") as archive:
            archive.seek(line["offset"])
            data = archive.read(line["size"])

        image = truth[line["key"]]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (image.num_bytes, image.sha256)


@pytest.mark.parametrize("split", SPLITS)
def test_every_image_is_in_one_record_with_its_class(
    mini: Miniature, reference: Reference, split: str
) -> None:
    words = dict(mini.classes)
    expected = {
        key.rpartition("/")[2]: (image.class_index + 1, image.wnid, words[image.wnid])
        for key, image in mini.of(split).items()
        if image.fate != "quarantined"
    }
    found = split_records(reference.out, split)

    assert {r.filename: (r.stored_label, r.wnid, r.text) for r in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("split", SPLITS)
def test_every_stored_image_is_an_rgb_jpeg_of_the_size_asked_for(
    mini: Miniature, reference: Reference, split: str
) -> None:
    truth = {key.rpartition("/")[2]: image for key, image in mini.of(split).items()}
    for record in split_records(reference.out, split):
        source = truth[record.filename]
        with Image.open(io.BytesIO(record.encoded)) as image:
            image.load()

        short = min(source.width, source.height)
        scale = min(1.0, 64 / short)
        assert (image.format, image.mode) == ("JPEG", "RGB")
        assert image.size == (record.width, record.height)
        assert image.size == (round(source.width * scale), round(source.height * scale))


def test_shards_of_a_split_differ_by_one_image_at_most(
    mini: Miniature, reference: Reference
) -> None:
    bad = Counter(image.split for image in mini.images if image.fate == "quarantined")
    for split in SPLITS:
        counts = [len(records(path)) for path in sorted(reference.out.glob(f"{split}-*"))]

        # Images are dealt before they are decoded, so a bad one is missing from its shard.
        assert max(counts) - min(counts) <= 1 + bad[split]


def test_index_lines_are_the_offsets_and_sizes_of_the_records(reference: Reference) -> None:
    for name in shard_names(reference.contents):
        data = reference.contents[name]
        lines = []
        offset = 0
        while offset < len(data):
            size = int.from_bytes(data[offset : offset + 8], "little") + 16
            lines.append(f"{offset} {size}\n")
            offset += size

        assert reference.contents[f"index/{name}"].decode() == "".join(lines)


@pytest.mark.parametrize("split", SPLITS)
def test_manifest_counts_every_class_as_it_is(
    mini: Miniature, reference: Reference, split: str
) -> None:
    images = mini.of(split).values()
    counts = Counter(i.class_index for i in images if i.fate != "quarantined")
    there = manifest(reference.out)["splits"][split]

    assert there["examples_per_class"] == [counts[i] for i in range(len(mini.classes))]
    assert there["examples"] == sum(counts.values())
    assert [shard["name"] for shard in there["shards"]] == sorted(
        path.name for path in reference.out.glob(f"{split}-*")
    )


def test_manifest_has_the_digest_and_size_of_every_file(reference: Reference) -> None:
    there = manifest(reference.out)
    stated = {file["name"]: (file["num_bytes"], file["sha256"]) for file in there["files"]}
    for split in there["splits"].values():
        for shard in split["shards"]:
            stated[shard["name"]] = (shard["num_bytes"], shard["sha256"])
            for what, ending in (("index", ""), ("samples", ".csv")):
                name = f"{what}/{shard['name']}{ending}"
                stated[name] = (shard[f"{what}_bytes"], shard[f"{what}_sha256"])

    assert stated == {
        name: (len(data), hashlib.sha256(data).hexdigest())
        for name, data in reference.contents.items()
        if name != "dataset.json"
    }


def test_manifest_counts_bad_images_by_reason(mini: Miniature, reference: Reference) -> None:
    there = manifest(reference.out)
    for fate in ("repaired", "quarantined"):
        kinds = Counter(image.kind for image in mini.images if image.fate == fate)
        for kind, reason in (("grey", "gray"), ("exif_rotated", "orientation")):
            if kind in kinds:
                kinds[reason] = kinds.pop(kind)

        assert there[fate] == kinds


def test_manifest_has_the_md5_of_the_archives(mini: Miniature, reference: Reference) -> None:
    expected = {
        path.name: (path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest())
        for path in mini.root.glob("*.tar")
    }
    sources = manifest(reference.out)["sources"]

    assert {s["name"]: (s["num_bytes"], s["md5"]) for s in sources} == expected
    assert {s["name"]: s["members"] for s in sources} == {
        "ILSVRC2012_img_train.tar": len(mini.of("train")),
        "ILSVRC2012_img_val.tar": len(mini.of("validation")),
    }


def test_manifest_says_that_this_is_a_subset(reference: Reference) -> None:
    assert manifest(reference.out)["subset"] is True
    assert manifest(reference.out)["classes"]["official"] is False


def test_nothing_outside_the_work_folder_tells_of_time_host_or_path(reference: Reference) -> None:
    host = Path("/etc/hostname").read_text().strip() if Path("/etc/hostname").exists() else ""
    for name in SMALL_FILES:
        text = reference.contents[name].decode()

        assert str(reference.out) not in text
        assert str(reference.source) not in text
        assert not host or host not in text
        assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text), name


def test_keep_original_passes_sound_jpegs_through_byte_for_byte(
    mini: Miniature, tmp_path: Path
) -> None:
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


def test_only_one_split_is_made_where_only_one_is_asked_for(
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


def test_a_run_away_from_a_terminal_prints_no_bar(mini: Miniature, tmp_path: Path) -> None:
    result = command.run("prepare", "--source", mini.root, "--out", tmp_path / "out", *SETTINGS)

    assert result.code == 0
    assert "\r" not in result.out + result.err
    assert "%|" not in result.out + result.err
