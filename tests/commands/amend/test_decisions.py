"""Earlier decisions stay: amend --add does not add excluded and held-out images.

A model decides which images each command of a random chain must store, skip, count and list.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit import command, layouts
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.photographs import photograph
from tests.kit.s3_server import S3Server, objects

CLASSES = ("cat", "dog")
SIDES = (40, 50)


def image(number: int) -> bytes:
    """Returns a unique photograph for each number."""
    return photograph(*SIDES, number)


def done(*words: object, code: int = 0, **how: Any) -> command.Finished:
    result = command.run(*words, **how)
    assert result.code == code, result
    return result


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]


def stored(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Returns the rows of the tables by split and key, read by Python's CSV reader."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted((out / "samples").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                found[path.name.partition("-")[0], row["key"]] = row
    return found


def members(out: Path) -> int:
    """Returns the number of images that a dataset's sources provided."""
    manifest = json.loads((out / "dataset.json").read_text())
    return sum(source["members"] for source in manifest["sources"])


def assert_all_accounted_for(out: Path) -> None:
    """Checks that each image of each source is stored, quarantined or excluded."""
    found = [line["action"] for line in lines(out)]
    bad = found.count("quarantined")
    assert members(out) == len(stored(out)) + bad + found.count("excluded")
    manifest = json.loads((out / "dataset.json").read_text())
    assert sum(manifest["quarantined"].values()) == bad


def assert_counted(out: Path, excluded: int) -> None:
    """Checks that all commands give the number of excluded images in quarantine.jsonl."""
    assert sum(line["action"].endswith("excluded") for line in lines(out)) == excluded
    assert done("show", out, "--json").json["excluded"] == excluded
    assert done("verify", out, "--level", "decode", "--json").json["excluded"] == excluded


def photographs(folder: Path, numbers: Iterable[int]) -> Path:
    """Writes photographs by turns into the class folders; the key of number 3 is dog/3.jpg."""
    for number in numbers:
        write(folder / CLASSES[number % 2] / f"{number}.jpg", image(number))
    return folder


@pytest.fixture
def excluded(tmp_path: Path) -> Path:
    """A dataset after the exclusion of photographs 2 and 5."""
    done("prepare", photographs(tmp_path / "photos", range(8)), tmp_path / "set")
    write(tmp_path / "asked", b"cat/2.jpg\ndog/5.jpg\n")
    out = tmp_path / "excluded"
    done("amend", tmp_path / "set", "--exclude", tmp_path / "asked", "--out", out)
    return out


COPIES = {
    "its key": "cat/2.jpg",
    "a different name": "cat/renamed.jpg",
    "a different class": "dog/2.jpg",
    "a subfolder": "cat/2026/2.jpg",
    "no ending": "dog/copy",
}


@pytest.mark.parametrize("name", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("between", ["", "relabel", "resize", "amend"])
def test_excluded_image_is_not_added_under_any_name(
    excluded: Path, tmp_path: Path, name: str, between: str
) -> None:
    given = excluded
    if between == "relabel":
        write(tmp_path / "csv", b"key,class\ndog/7.jpg,cat\n")
        done("amend", given, "--relabel", tmp_path / "csv", "--out", tmp_path / "between")
    elif between == "resize":
        done("resize", "-i", given, "-o", tmp_path / "between", "-r", "24")
    elif between == "amend":
        new = photographs(tmp_path / "more", [10])
        done("amend", given, "--add", new, "--out", tmp_path / "between")
    if between:
        given = tmp_path / "between"
    add = photographs(tmp_path / "add", [21])
    write(add / name, image(2))
    before = len(stored(given))

    result = done("amend", given, "--add", add, "--out", tmp_path / "new", "--json").json["amended"]

    assert (result["added"], result["add"]["excluded"], result["add"]["new"]) == (1, 1, 1)
    assert len(stored(tmp_path / "new")) == before + 1
    digest = hashlib.sha256(image(2)).hexdigest()
    rows = stored(tmp_path / "new").values()
    assert digest not in {row["sha256"] for row in rows} | {row["source_sha256"] for row in rows}
    assert_counted(tmp_path / "new", 2)
    shown = done("amend", given, "--add", add, "--out", tmp_path / "new").out
    assert says("not-added-because-earlier-step", name).search(shown)


def test_excluded_key_is_not_added_with_different_bytes(excluded: Path, tmp_path: Path) -> None:
    write(tmp_path / "add/cat/2.jpg", image(30))
    refused = done("amend", excluded, "--add", tmp_path / "add", "--out", tmp_path / "new", code=2)
    assert says("add-no-new-image-nothing").search(refused.err)
    assert says("not-added-because-earlier-step", "cat/2.jpg").search(refused.err)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_resized", [False, True])
def test_readmitted_image_loses_its_quarantine_line(
    excluded: Path, tmp_path: Path, is_resized: bool
) -> None:
    given = excluded
    if is_resized:
        given = tmp_path / "small"
        done("resize", "-i", excluded, "-o", given, "--keep-original")
    write(tmp_path / "add/dog/other-name.jpg", image(2))
    done("amend", given, "--add", tmp_path / "add", "--readmit", "--out", tmp_path / "new")

    assert ("train", "dog/other-name.jpg") in stored(tmp_path / "new")
    assert [line["key"] for line in lines(tmp_path / "new")] == ["dog/5.jpg"]
    assert_counted(tmp_path / "new", 1)
    if is_resized:
        # The shards that resize has read contain no excluded image.
        assert members(tmp_path / "new") == len(stored(tmp_path / "new"))
    else:
        assert_all_accounted_for(tmp_path / "new")


def test_readmitted_images_are_named_and_keep_their_split(tmp_path: Path) -> None:
    """The same bytes as before: also for an image that was in the holdout."""
    photos = photographs(tmp_path / "photos", range(12))
    flags = ("--holdout", "30%", "--short-side", "24")
    done("prepare", photos, tmp_path / "set", *flags)
    listed = sorted(images_of(tmp_path / "set", split)[0] for split in ("train", "holdout"))
    write(tmp_path / "asked", "".join(f"{key}\n" for key in listed).encode())
    done("amend", tmp_path / "set", "--exclude", tmp_path / "asked", "--out", tmp_path / "without")
    words = ("amend", tmp_path / "without", "--add", photos, "--readmit", "--out", tmp_path / "new")
    shown = done(*words).out

    assert says("added-again-earlier-step-excluded", "2 images", ", ".join(listed)).search(shown)
    assert stored(tmp_path / "new") == stored(tmp_path / "set")


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_edited_photograph_is_refused_in_each_split(tmp_path: Path, split: str) -> None:
    photos = photographs(tmp_path / "photos", range(8))
    done("prepare", photos, tmp_path / "set", "--holdout", "30%")
    edited = images_of(tmp_path / "set", split)[0]
    write(photos / edited, image(90))
    words = ("amend", tmp_path / "set", "--add", photos, "--out", tmp_path / "new")
    assert says("add-key-dataset-different-bytes", ..., edited).search(done(*words, code=2).err)

    # The way that the message names: a folder with only this photograph.
    write(tmp_path / "edited" / edited, image(90))
    write(tmp_path / "asked", f"{edited}\n".encode())
    without = tmp_path / "without"
    done("amend", tmp_path / "set", "--exclude", tmp_path / "asked", "--out", without)
    done("amend", without, "--add", tmp_path / "edited", "--readmit", "--out", tmp_path / "new")
    assert stored(tmp_path / "new").keys() == stored(tmp_path / "set").keys()
    assert edited in images_of(tmp_path / "new", split)
    assert_all_accounted_for(tmp_path / "new")


def images_of(out: Path, split: str) -> list[str]:
    return sorted(key for of, key in stored(out) if of == split)


@pytest.mark.parametrize("flag", ["--exclude", "--relabel"])
def test_standing_list_may_be_empty(excluded: Path, tmp_path: Path, flag: str) -> None:
    asked = tmp_path / "empty"
    write(asked, b"key,class\n" if flag == "--relabel" else b"")
    new = tmp_path / "new"
    refused = done("amend", excluded, flag, asked, "--out", new, code=2)
    assert "--allow-unknown" in refused.err
    done("amend", excluded, flag, asked, "--allow-unknown", "--out", new)
    assert stored(new) == stored(excluded)
    assert_counted(new, 2)


def test_prepare_accepts_an_empty_standing_list(tmp_path: Path) -> None:
    source = photographs(tmp_path / "photos", [0, 1])
    plain = tmp_path / "plain"
    empty = tmp_path / "empty"
    write(empty, b"")
    done("prepare", source, plain)
    # No image was excluded from this dataset.
    for number, listed in enumerate((empty, plain / "quarantine.jsonl")):
        new = tmp_path / f"new-{number}"
        done("prepare", source, new, "--exclude", listed, "--allow-unknown")
        assert stored(new) == stored(plain)


def test_standing_list_is_applied_with_allow_unknown(excluded: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    new = tmp_path / "new"
    refused = done("amend", excluded, "--exclude", asked, "--out", new, code=2)
    assert says("no-such-key-write-one", ..., "lines", "1, 2").search(refused.err)
    assert "--allow-unknown" in refused.err

    result = done("amend", excluded, "--exclude", asked, "--allow-unknown", "--out", new)
    assert says("key-no-image-allow-unknown", "asked", "2 lines").search(result.err)
    assert says("excluded-relabelled-added-shards-changed", "0 images", 0, 0, 0, "1").search(
        result.out
    )
    assert stored(new) == stored(excluded)
    assert_counted(new, 2)

    # If a listed photograph comes later, it is not stored, but listed as excluded.
    write(asked, b"cat/2.jpg\ndog/5.jpg\ndog/11.jpg\ncat/0.jpg\n")
    grown = photographs(tmp_path / "photos", [10, 11])
    flags = ("--exclude", asked, "--allow-unknown", "--add", grown)
    found = done("amend", new, *flags, "--out", tmp_path / "newer", "--json")
    assert found.json["amended"]["add"] == {
        "new": 1,
        "known": 6,
        "held_out": 0,
        "excluded": 3,
        "forgotten": 0,
        "refused": ["cat/2.jpg", "dog/5.jpg"],
        "num_refused": 2,
        "readmitted": 0,
        "readmitted_keys": [],
        "relabelled": 0,
        "relabelled_keys": [],
        "copies": {},
        "num_copies": 0,
        "ignored": {},
        "stored": 1,
        "quarantined": 0,
    }
    assert {key for _, key in stored(tmp_path / "newer")} == {
        "dog/1.jpg",
        "dog/3.jpg",
        "cat/4.jpg",
        "cat/6.jpg",
        "dog/7.jpg",
        "cat/10.jpg",
    }
    assert_counted(tmp_path / "newer", 4)
    assert_all_accounted_for(tmp_path / "newer")
    write(tmp_path / "add/cat/renamed.jpg", image(11))
    again = ("amend", tmp_path / "newer", "--add", tmp_path / "add", "--out", tmp_path / "none")
    assert "cat/renamed.jpg. To add" in done(*again, code=2).err


@pytest.mark.parametrize("verb", ["prepare", "resize", "export"])
def test_all_verbs_apply_a_standing_list(tmp_path: Path, verb: str) -> None:
    photos = photographs(tmp_path / "photos", range(6))
    done("prepare", photos, tmp_path / "set")
    asked = tmp_path / "asked"
    write(asked, b"cat/2.jpg\nnobody/1.jpg\n")
    words = {
        "prepare": ("prepare", photos, tmp_path / "out"),
        "resize": ("resize", "-i", tmp_path / "set", "-o", tmp_path / "out"),
        "export": ("export", tmp_path / "set", tmp_path / "out", "--to", "folder"),
    }[verb]
    refused = done(*words, "--exclude", asked, code=2)
    assert says("no-such-key-write-one", ..., "line", "2").search(refused.err)
    result = done(*words, "--exclude", asked, "--allow-unknown")
    assert says("key-no-image-allow-unknown", "asked", "1 line").search(result.err)
    if verb == "export":
        assert len([*(tmp_path / "out").rglob("*.jpg")]) == 5
    else:
        assert len(stored(tmp_path / "out")) == 5
        assert_counted(tmp_path / "out", 1)


@pytest.mark.parametrize("flags", [("--holdout", "30%"), ("--holdout-per-class", "3")])
def test_grown_folder_adds_images_and_keeps_the_holdout(
    tmp_path: Path, flags: tuple[str, str]
) -> None:
    photos = photographs(tmp_path / "photos", range(20))
    write(photos / "cat/bad.jpg", image(50)[:300])
    write(photos / "notes.txt", b"mine")
    done("prepare", photos, tmp_path / "set", *flags)
    before = stored(tmp_path / "set")
    photographs(photos, range(20, 30))
    write(photos / "dog/film.mov", b"\0" * 50)
    held_out = next(key for split, key in before if split != "train")
    write(photos / "cat/copy.jpg", (photos / held_out).read_bytes())

    refused = done("prepare", photos, tmp_path / "set", *flags, code=2)
    command_line = f"imagenet-prep amend {tmp_path}/set --add {photos} --out NEW"
    assert command_line in refused.err
    assert "removed" not in refused.err

    words = ("amend", tmp_path / "set", "--add", photos, "--out", tmp_path / "new")
    preview = done(*words, "--dry-run", "--json").json["amended"]["add"]
    counts = done(*words, "--json").json["amended"]["add"]
    num_held_out = sum(split != "train" for split, _ in before)
    assert counts == preview | {"stored": 10, "quarantined": 0}
    assert counts["ignored"] == {".txt": 1, ".mov": 1}
    assert done("show", tmp_path / "new", "--json").json["ignored"] == counts["ignored"]
    assert (counts["new"], counts["held_out"]) == (10, num_held_out + 1)
    assert (
        counts["known"] == 20 - num_held_out + 1
    )  # the photograph that is still bad is known, too
    after = stored(tmp_path / "new")
    splits = ",".join({split for split, _ in before})
    assert {image for image in after if image[0] != "train"} == {
        image for image in before if image[0] != "train"
    }
    new = {key for _, key in after} - {key for _, key in before}
    assert new == {f"{CLASSES[n % 2]}/{n}.jpg" for n in range(20, 30)}
    assert_all_accounted_for(tmp_path / "new")

    # The same is true for datasets made from this one.
    done(
        "resize", "-i", tmp_path / "new", "-o", tmp_path / "small", "-s", splits, "--keep-original"
    )
    for given in ("new", "small"):
        words = ("amend", tmp_path / given, "--add", photos, "--out", tmp_path / "no")
        assert says("add-no-new-image-nothing").search(done(*words, code=2).err)
        counts = done(*words, "--dry-run", "--json").json["amended"]["add"]
        assert (counts["new"], counts["held_out"]) == (0, num_held_out + 1)
    assert not (tmp_path / "no").exists()


def test_added_copies_of_stored_images_are_named(tmp_path: Path) -> None:
    """A photograph that was moved to a different class folder would have two labels."""
    photos = photographs(tmp_path / "photos", range(4))
    done("prepare", photos, tmp_path / "set")
    (photos / "cat/0.jpg").rename(photos / "dog/moved.jpg")
    photographs(photos, range(4, 6))
    words = ("amend", tmp_path / "set", "--add", photos, "--out", tmp_path / "new")
    counts = done(*words, "--dry-run", "--json").json["amended"]["add"]
    assert counts["new"] == 3
    assert counts["copies"] == {"dog/moved.jpg": "cat/0.jpg"}
    named = says("added-already-stored-under-different", "dog/moved.jpg (as cat/0.jpg)")
    assert named.search(done(*words).out)


def test_skipped_files_of_added_folder_are_reported(tmp_path: Path) -> None:
    photos = photographs(tmp_path / "photos", range(4))
    write(photos / "cat/bad.jpg", image(50)[:300])
    done("prepare", photos, tmp_path / "set")
    add = photographs(tmp_path / "photos2/train", [10, 11])
    write(add / "cat/bad.jpg", image(50)[:400])
    write(add / "cat/raw.CR2", b"II*\0" + bytes(99))
    result = done("amend", tmp_path / "set", "--add", add.parent, "--out", tmp_path / "new")

    assert says("excluded-relabelled-added-shards-changed", ..., "0", "2").search(result.out)
    assert "3 new images (2 stored, 1 quarantined), 0 known" in result.out
    assert says("ignored-folder", "1 file: 1 .cr2").search(result.out)
    # Both images are bad, and they are different images.
    assert [(line["key"], line["size"]) for line in lines(tmp_path / "new")] == [
        *(("cat/bad.jpg", size) for size in (300, 400))
    ]
    assert_all_accounted_for(tmp_path / "new")
    assert "from: added-1/photos2: " in done("show", tmp_path / "new").out
    for key, source in (("cat/10.jpg", "added-1/photos2"), ("cat/2.jpg", "photos")):
        shown = done("show", tmp_path / "new", "--key", key)
        digest = hashlib.sha256(image(int(Path(key).stem))).hexdigest()
        assert shown.out.endswith(f"  kept from {source}, sha256 {digest}\n")
        row = done("show", tmp_path / "new", "--key", key, "--json").json
        assert (row["source"], row["source_sha256"], row["action"]) == (source, digest, "kept")
    described = tmp_path / "croissant.json"
    done("export", tmp_path / "new", "--to", "croissant", "--out", described)
    names = [
        each["prov:label"] for each in json.loads(described.read_text())["prov:wasDerivedFrom"]
    ]
    assert names == ["photos", "added-1/photos2"]
    done("amend", tmp_path / "new", "--add", photographs(add, [20]), "--out", tmp_path / "newer")
    sources = json.loads((tmp_path / "newer/dataset.json").read_text())["sources"]
    assert [source["name"] for source in sources] == ["photos", "added-1/photos2", "added-2/train"]
    for key, source in (("cat/10.jpg", "added-1/photos2"), ("cat/20.jpg", "added-2/train")):
        assert done("show", tmp_path / "newer", "--key", key, "--json").json["source"] == source


def test_readable_photograph_loses_its_quarantine_line(tmp_path: Path) -> None:
    """As for HEIC after the installation of its extra: key and size are those of the line."""
    photos = photographs(tmp_path / "photos", range(4))
    good = image(60)
    write(photos / "cat/late.jpg", good[:300] + bytes(len(good) - 300))
    done("prepare", photos, tmp_path / "set")
    assert [line["key"] for line in lines(tmp_path / "set")] == ["cat/late.jpg"]
    write(photos / "cat/late.jpg", good)
    done("amend", tmp_path / "set", "--add", photos, "--out", tmp_path / "new")

    assert lines(tmp_path / "new") == []
    assert ("train", "cat/late.jpg") in stored(tmp_path / "new")
    assert_all_accounted_for(tmp_path / "new")


def test_excluded_quarantined_photograph_has_one_line(tmp_path: Path) -> None:
    photos = photographs(tmp_path / "photos", range(4))
    write(photos / "cat/bad.jpg", image(50)[:300])
    done("prepare", photos, tmp_path / "set")
    write(tmp_path / "asked", b"cat/bad.jpg\n")
    words = ("amend", tmp_path / "set", "--add", photos, "--exclude", tmp_path / "asked")
    done(*words, "--out", tmp_path / "new")

    assert [line["action"] for line in lines(tmp_path / "new")] == ["excluded"]
    assert_all_accounted_for(tmp_path / "new")


@pytest.mark.parametrize("has_bytes", [False, True])
def test_list_for_one_split_keeps_other_splits(tmp_path: Path, has_bytes: bool) -> None:
    for split in ("train", "val"):
        photographs(tmp_path / "photos" / split, range(4))
        photographs(tmp_path / "more" / split, [10, 11])
    done("prepare", tmp_path / "photos", tmp_path / "set")
    write(tmp_path / "asked", b"cat/0.jpg\ncat/10.jpg\n")
    if has_bytes:
        photographs(tmp_path / "listed", [0, 1, 10])
        done("prepare", tmp_path / "listed", tmp_path / "other", "--exclude", tmp_path / "asked")
        (tmp_path / "other/quarantine.jsonl").rename(tmp_path / "asked")
    words = ("amend", tmp_path / "set", "--add", tmp_path / "more", "--exclude", tmp_path / "asked")
    done(*words, "--splits", "train", "--out", tmp_path / "new")

    keys = {"cat/2.jpg", "dog/1.jpg", "dog/3.jpg", "dog/11.jpg"}
    found = stored(tmp_path / "new")
    assert {key for split, key in found if split == "train"} == keys
    every = keys | {"cat/0.jpg", "cat/10.jpg"}
    assert {key for split, key in found if split == "validation"} == every
    assert_counted(tmp_path / "new", 2)


def test_shard_with_only_bad_images_is_refused(tmp_path: Path) -> None:
    done("prepare", photographs(tmp_path / "photos", range(4)), tmp_path / "set")
    write(tmp_path / "every", b"cat/0.jpg\ndog/1.jpg\ncat/2.jpg\ndog/3.jpg\n")
    write(tmp_path / "add/cat/bad.jpg", image(50)[:300])
    flags = ("--exclude", tmp_path / "every", "--add", tmp_path / "add", "--out", tmp_path / "new")
    refused = done("amend", tmp_path / "set", *flags, code=2)
    assert says("exclude-leaves-no-image-no", "train-00000-of-00001").search(refused.err)
    assert not (tmp_path / "new").exists()
    write(tmp_path / "add/cat/good.jpg", image(51))
    done("amend", tmp_path / "set", *flags)
    assert_all_accounted_for(tmp_path / "new")


@pytest.mark.parametrize("kind", ["folder", "parquet", "recordio", "cifar10"])
def test_prepare_records_the_bytes_of_excluded_images(tmp_path: Path, kind: str) -> None:
    """Then amend and the next prepare can refuse these photographs under any name."""
    if kind == "cifar10":
        source = layouts.make_cifar10(tmp_path / "source")
    else:
        source = photographs(tmp_path / "source", range(6))
    if kind in ("parquet", "recordio"):
        done("prepare", source, tmp_path / "first")
        source = tmp_path / "exported"
        done("export", tmp_path / "first", source, "--to", kind)
    flags = ("--allow-subset", "--splits", "train")
    done("prepare", source, tmp_path / "whole", *flags)
    (_, key), row = min(stored(tmp_path / "whole").items())
    write(tmp_path / "asked", key.encode() + b"\n")
    done("prepare", source, tmp_path / "set", *flags, "--exclude", tmp_path / "asked")

    (line,) = lines(tmp_path / "set")
    assert (line["key"], line["split"]) == (key, "train")
    assert (line["source_sha256"], line["size"]) == (row["source_sha256"], int(row["source_bytes"]))
    assert "sha256" not in line
    if kind != "folder":
        return
    (source / key).rename(source / "dog/renamed.jpg")
    listed = tmp_path / "set/quarantine.jsonl"
    done("prepare", source, tmp_path / "again", *flags, "--exclude", listed)
    assert len(stored(tmp_path / "again")) == 5
    (found,) = lines(tmp_path / "again")
    assert found["key"] == "dog/renamed.jpg"
    assert found["source_sha256"] == line["source_sha256"]
    # The list of amend also contains the stored image.
    done("prepare", source, tmp_path / "all", *flags)
    for verb, flags in (("amend", ("--data-dir", "--out")), ("resize", ("-i", "-o"))):
        out = tmp_path / verb
        done(verb, flags[0], tmp_path / "all", "--exclude", listed, flags[1], out)
        assert {key for _, key in stored(tmp_path / "all")} - {key for _, key in stored(out)} == {
            "dog/renamed.jpg"
        }
        assert_counted(out, 1)


def test_list_of_amend_has_source_and_stored_bytes(tmp_path: Path) -> None:
    """Images are downscaled here, so both have different bytes."""
    photos = photographs(tmp_path / "photos", range(4))
    done("prepare", photos, tmp_path / "set", "--short-side", "24")
    write(tmp_path / "asked", b"cat/2.jpg\n")
    done("amend", tmp_path / "set", "--exclude", tmp_path / "asked", "--out", tmp_path / "new")
    listed = tmp_path / "new/quarantine.jsonl"
    exported = tmp_path / "exported"
    done("export", tmp_path / "set", exported, "--to", "folder", "--split", "train")
    for number, source in enumerate((photos, next(exported.rglob("cat")).parent)):
        (source / "cat/2.jpg").rename(source / "dog/renamed.jpg")
        out = tmp_path / f"out{number}"
        done("prepare", source, out, "--exclude", listed)
        assert {key for _, key in stored(out)} == {"cat/0.jpg", "dog/1.jpg", "dog/3.jpg"}
    # A list that only has the bytes of a stored image, under a name that the dataset lacks.
    listed = tmp_path / "out1/quarantine.jsonl"
    done("amend", tmp_path / "set", "--exclude", listed, "--out", tmp_path / "last")
    assert ("train", "cat/2.jpg") not in stored(tmp_path / "last")
    assert len(stored(tmp_path / "last")) == 3


@pytest.mark.slow  # a server takes three seconds to start
def test_decisions_apply_in_a_bucket(
    excluded: Path, s3: S3Server, prefix: str, tmp_path: Path
) -> None:
    env = s3.environment
    done("replicate", excluded, "--to", f"{prefix}/set", env=env)
    add = photographs(tmp_path / "add", [2, 21])
    words = ("amend", f"{prefix}/set", "--add", add, "--out", f"{prefix}/new", "--json")
    found = done(*words, env=env).json
    assert (found["amended"]["add"]["excluded"], found["excluded"]) == (1, 2)
    local = done("amend", excluded, "--add", add, "--out", tmp_path / "new", "--json").json
    assert found["digest"] == local["digest"]
    assert found["amended"] == local["amended"]
    names = objects(s3.client(), f"{prefix}/new")
    assert names["quarantine.jsonl"] == (tmp_path / "new/quarantine.jsonl").read_bytes()


class Model(NamedTuple):
    """The expected result of a chain: the number of each photograph, by split and key."""

    stored: dict[tuple[str, str], int]
    excluded: dict[tuple[str, str], int]

    def add(self, files: dict[str, int], *, readmit: bool) -> dict[str, int]:
        """Adds the new files; returns the counts that the command must print."""
        counts = dict.fromkeys(("new", "known", "held_out", "excluded", "readmitted"), 0)
        held_out = {key: n for (split, key), n in self.stored.items() if split == "holdout"}
        kept = {*self.stored.values()}
        for key, number in files.items():
            former = {
                split
                for (split, name), excluded in self.excluded.items()
                if key == name or (number == excluded and number not in kept)
            }
            if self.stored.get(("train", key)) == number:
                counts["known"] += 1
            elif former and not readmit:
                counts["excluded"] += 1
            elif key in held_out or number in held_out.values():
                counts["held_out"] += 1
            else:
                counts["new"] += 1
                counts["readmitted"] += bool(former)
                self.stored[min(former, default="train"), key] = number
        for (split, key), number in [*self.excluded.items()]:
            is_given = key in files or (number in files.values() and number not in kept)
            if readmit and is_given:
                del self.excluded[split, key]
        return counts


@pytest.mark.parametrize("seed", range(4))
def test_chains_of_decisions_match_the_model(tmp_path: Path, seed: int) -> None:
    chain(tmp_path, random.Random(seed), 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_long_chains_of_decisions_match_the_model(tmp_path: Path, seed: int) -> None:
    chain(tmp_path, random.Random(seed), 9)


def chain(folder: Path, rng: random.Random, steps: int) -> None:
    """Runs random commands on a dataset, and compares each result with the model."""
    files = {f"{CLASSES[n % 2]}/{n}.jpg": n for n in range(12)}
    photos = folder / "photos"
    for key, number in files.items():
        write(photos / key, image(number))
    done("prepare", photos, folder / "0", "--holdout", "20%", "--train-shards", "2")
    model = Model({}, {})
    for split, key in stored(folder / "0"):
        model.stored[split, key] = files[key]
    given = folder / "0"
    is_resized = False
    new = 100
    for step in range(1, steps + 1):
        out = folder / str(step)
        listed = folder / f"list{step}"
        verb = rng.choice(["exclude", "add", "add", "grow", "readmit", "relabel", "resize"])
        of_train = sorted(key for split, key in model.stored if split == "train")
        if verb == "exclude":
            # Both copies of an image may stay.
            of_holdout = sorted(key for split, key in model.stored if split == "holdout")
            images = [("train", key) for key in rng.sample(of_train[2:], rng.randint(1, 2))]
            images += [("holdout", key) for key in of_holdout[1:2]]
            write(listed, "".join(f"{key}\n" for _, key in images).encode())
            done("amend", given, "--exclude", listed, "--out", out)
            for name in images:
                model.excluded[name] = model.stored.pop(name)
        elif verb == "relabel":
            key = rng.choice(of_train)
            write(listed, f"key,class\n{key},{rng.randrange(2)}\n".encode())
            done("amend", given, "--relabel", listed, "--allow-unknown", "--out", out)
        elif verb == "resize":
            done("resize", "-i", given, "-o", out, "--keep-original", "-s", "train,holdout")
            is_resized = True
        else:
            added = dict(files) if verb == "grow" else {}
            for _ in range(3):
                new += 1
                number = rng.choice([new, new, *model.excluded.values(), *range(12)])
                added[f"{rng.choice(CLASSES)}/new{new}.jpg"] = number
            source = add_folder(folder / f"add{step}", added)
            before = Model(dict(model.stored), dict(model.excluded))
            readmit = verb == "readmit"
            counts = model.add(added, readmit=readmit)
            words = ["amend", given, "--add", source, "--out", out, "--json"]
            if not counts["new"]:
                done(*words, *["--readmit"] * readmit, code=2)
                assert before == model
                continue
            result = done(*words, *["--readmit"] * readmit).json["amended"]
            assert {name: result["add"][name] for name in counts} == counts
            files |= {
                key: number
                for key, number in added.items()
                if model.stored.keys() & {("train", key), ("holdout", key)}
            }
        assert_is(out, model)
        if not is_resized:
            assert_all_accounted_for(out)
        given = out
    assert_counted(given, len(model.excluded))


def add_folder(folder: Path, files: dict[str, int]) -> Path:
    for key, number in files.items():
        write(folder / key, image(number))
    return folder


def assert_is(out: Path, model: Model) -> None:
    rows = stored(out)
    digests = {name: hashlib.sha256(image_of(name, model)).hexdigest() for name in model.stored}
    assert {name: row["sha256"] for name, row in rows.items()} == digests
    excluded = [line for line in lines(out) if line["action"].endswith("excluded")]
    found = {(line["split"], line["key"]): line["source_sha256"] for line in excluded}
    assert len(found) == len(excluded)
    assert found == {
        name: hashlib.sha256(image(number)).hexdigest() for name, number in model.excluded.items()
    }


def image_of(name: tuple[str, str], model: Model) -> bytes:
    return image(model.stored[name])


def test_list_identifies_images_by_split(tmp_path: Path) -> None:
    """An image with this key in a different split stays, for both kinds of lists."""
    photos = tmp_path / "photos"
    for number, path in enumerate(("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/1.jpg")):
        write(photos / path, image(number))
    write(photos / "val/cat/3.jpg", image(3))
    write(photos / "train/cat/4.jpg", image(4))
    done("prepare", photos, tmp_path / "set")
    write(tmp_path / "asked", b"train:cat/1.jpg\n")
    done("amend", tmp_path / "set", "--exclude", tmp_path / "asked", "--out", tmp_path / "one")
    listed = tmp_path / "one/quarantine.jsonl"
    done("amend", tmp_path / "set", "--exclude", listed, "--out", tmp_path / "two")
    done("prepare", photos, tmp_path / "three", "--exclude", listed)
    for name in ("one", "two", "three"):
        assert {*stored(tmp_path / name)} == {
            ("train", "dog/2.jpg"),
            ("train", "cat/4.jpg"),
            ("validation", "cat/1.jpg"),
            ("validation", "cat/3.jpg"),
        }
    # An image of validation with this key is a different image.
    write(tmp_path / "add/val/cat/5.jpg", image(0))
    write(tmp_path / "add/val/cat/6.jpg", image(6))
    done("amend", tmp_path / "one", "--add", tmp_path / "add", "--out", tmp_path / "four")
    assert {key for _, key in {*stored(tmp_path / "four")} - {*stored(tmp_path / "one")}} == {
        "cat/6.jpg"
    }
