"""`duplicates` finds planted pictures in datasets and sources; bad input is named."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from imagenet_prep import duplicates
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.matching import pictures, search
from imagenet_prep.storage.bucket import BucketStore
from tests.kit import command
from tests.kit.codec import corpus
from tests.kit.dataset import all_files, everything, receipts
from tests.kit.faults import flip_bit
from tests.kit.limits import Limits
from tests.kit.messages import says, wording
from tests.kit.s3_server import S3Server

WNIDS = ("n00000001", "n00000002", "n00000003")


# The planted images: split, class, name, the photograph and its variant.
PLANTED = {
    "bytes": ("val", 1, "bytes.jpg"),
    "pixels": ("train", 0, "pixels.jpg"),
    "crop": ("val", 2, "crop.jpg"),
    "mirror": ("train", 1, "mirror.jpg"),
    "grey": ("train", 2, "grey.png"),
}


def jpeg(picture: Image.Image, quality: int = 92) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def variants() -> dict[str, bytes]:
    """Returns photographs, and one variant of each of the first five."""
    found = {}
    for number, data in enumerate(corpus.photographs(9)):
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        picture.thumbnail((240, 240))
        found[f"photo{number}"] = jpeg(picture)
    first = [Image.open(io.BytesIO(found[f"photo{number}"])) for number in range(5)]
    width, height = first[2].size
    grey = io.BytesIO()
    first[4].convert("L").save(grey, "PNG")
    plain = found["photo1"]
    return found | {
        "bytes": found["photo0"],
        "pixels": plain[:2] + b"\xff\xfe\x00\x07hello" + plain[2:],
        "crop": jpeg(first[2].crop((width // 30, 3, width - 4, height - height // 30)), 80),
        "mirror": jpeg(ImageOps.mirror(first[3]).resize((180, 130)), 70),
        "grey": grey.getvalue(),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of classes with planted pictures, and two pictures without detail; read-only."""
    root = tmp_path_factory.mktemp("duplicates") / "source"
    files = variants()
    places = {name: ("train", number % 3, f"{name}.jpg") for number, name in enumerate(files)}
    places |= PLANTED
    places["photo8"] = ("val", 0, "photo8.jpg")  # so that each class has a validation image
    for name, (split, index, file) in places.items():
        path = root / split / WNIDS[index] / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    for number, shade in enumerate((9, 200)):
        flat = Image.new("RGB", (90, 80), (shade, shade, shade))
        (root / "train" / WNIDS[number] / f"flat{number}.jpg").write_bytes(jpeg(flat))
    return root


@pytest.fixture(scope="module")
def prepared(source: Path) -> Path:
    """The source as a dataset of several shards; read-only except for `.work`."""
    out = source.parent / "set"
    result = command.run(
        "prepare",
        "--source",
        source,
        "--out",
        out,
        "--train-shards",
        "4",
        "--validation-shards",
        "2",
        "--check",
        "header",
        "--short-side",
        "480",
    )
    assert result.code == 0, result
    return out


@pytest.fixture
def copied(prepared: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(prepared, tmp_path / "copied"))


def rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((out / "pairs.csv").read_text())))


def found(out: Path) -> set[tuple[str, ...]]:
    """Returns for each group the kept name, the other names and their kind."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows(out):
        groups.setdefault(row["group"], []).append(row)
    return {
        tuple(itertools.chain.from_iterable(map(described, group))) for group in groups.values()
    }


def described(row: dict[str, str]) -> list[str]:
    """Returns the file name of a row, and the kind of a duplicate."""
    name = row["key"].split("/")[-1]
    return [name, row["kind"]] if row["kept"] == "no" else [name]


EXPECTED = {
    ("bytes.jpg", "photo0.jpg", "same bytes"),
    ("pixels.jpg", "photo1.jpg", "same pixels"),
    ("crop.jpg", "photo2.jpg", "nearly the same"),
    ("photo3.jpg", "mirror.jpg", "nearly the same"),
    ("photo4.jpg", "grey.png", "nearly the same"),
}


def test_source_can_be_searched_before_prepare(source: Path, tmp_path: Path) -> None:
    before = everything(source)
    out = tmp_path / "out"

    result = command.run("duplicates", "--source", source, "--out", out)

    assert result.code == 0, result
    assert found(out) == EXPECTED
    assert (out / "exclude-train.txt").read_text().split() == [
        f"train:{WNIDS[0]}/photo0.jpg",
        f"train:{WNIDS[1]}/mirror.jpg",
        f"train:{WNIDS[1]}/photo1.jpg",
        f"train:{WNIDS[2]}/grey.png",
        f"train:{WNIDS[2]}/photo2.jpg",
    ]
    assert (out / "exclude-validation.txt").read_text() == ""
    assert "with too little detail, compared only by pixels: 2" in result.out
    assert everything(source) == before


def test_dataset_gets_counts_lists_and_a_page(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    result = command.run("duplicates", prepared, "--out", out, "--json")

    assert result.code == 0, result
    said = json.loads(result.out)
    assert found(out) == EXPECTED
    assert said["groups"] == 5
    assert said["cross"] == 2
    assert said["other_label"] == 4  # all but the crop
    assert said["not_judged"] == 2
    assert said["also_elsewhere"] == {"train": 2, "validation": 2}
    assert said["excluded"] == {"train": 5, "validation": 0}
    assert {"kept": "validation", "split": "train", "kind": "same bytes"}.items() <= said["pairs"][
        -2
    ].items()
    assert {row["distance"] for row in rows(out) if row["kind"] != "nearly the same"} == {"0"}
    assert all(int(row["distance"]) <= 75 for row in rows(out))
    page = (out / "duplicates.html").read_text()
    assert page.count("<img ") == 10
    assert page.index("bytes.jpg") < page.index("crop.jpg"), "other labels come first"


def test_page_is_skipped_if_jinja2_is_missing(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in ("reporting.render",):
        monkeypatch.delitem(sys.modules, f"imagenet_prep.{module}", raising=False)
    monkeypatch.delattr("imagenet_prep.reporting.render", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)

    assert duplicates.run([str(prepared), "--out", str(tmp_path)]) == 0

    said = capsys.readouterr()
    assert says("not-written-jinja2-not-installed", "duplicates.html").search(said.err)
    assert says("pip-install-imagenet-prep", "report").search(said.err)
    assert "duplicates.html" not in said.out
    assert "pairs.csv" in said.out
    assert not (tmp_path / "duplicates.html").exists()


def test_prepare_accepts_the_exclusion_lists(source: Path, prepared: Path, tmp_path: Path) -> None:
    assert command.run("duplicates", prepared, "--out", tmp_path / "out").code == 0
    clean = tmp_path / "clean"
    result = command.run(
        "prepare",
        "--source",
        source,
        "--out",
        clean,
        "--check",
        "header",
        "--exclude",
        tmp_path / "out" / "exclude-train.txt",
    )
    assert result.code == 0, result

    again = command.run(
        "duplicates", clean, "--out", tmp_path / "again", "--fail-on", "cross", "--json"
    )

    assert again.code == 0, again
    assert json.loads(again.out)["groups"] == 0


def test_cross_split_duplicate_fails_if_requested(prepared: Path, tmp_path: Path) -> None:
    result = command.run("duplicates", prepared, "--out", tmp_path / "out", "--fail-on", "cross")
    assert result.code == 3
    assert says("groups-more-one-split-dataset-2", 2).search(result.err)
    assert (tmp_path / "out" / "pairs.csv").exists()


def test_duplicates_across_two_datasets_are_found(
    source: Path, prepared: Path, tmp_path: Path
) -> None:
    """The other dataset has different sizes and shards. Only pairs across both are reported."""
    other = tmp_path / "other"
    small = command.run(
        "prepare",
        "--source",
        source,
        "--out",
        other,
        "--short-side",
        "100",
        "--train-shards",
        "1",
        "--validation-shards",
        "1",
    )
    assert small.code == 0, small

    result = command.run(
        "duplicates",
        prepared,
        "--against",
        f"{other}:validation",
        "--out",
        tmp_path / "out",
        "--json",
        "--fail-on",
        "cross",
    )

    assert result.code == 3
    said = json.loads(result.out)
    assert {row["split"] for row in rows(tmp_path / "out")} == {
        "train",
        "validation",
        "against:validation",
    }
    kept = [row for row in rows(tmp_path / "out") if row["kept"] == "yes"]
    assert {row["split"] for row in kept} == {"against:validation"}
    assert said["excluded"] == {"train": 2, "validation": 3}
    names = {row["key"].split("/")[-1] for row in rows(tmp_path / "out")}
    assert names == {"photo8.jpg", "bytes.jpg", "photo0.jpg", "crop.jpg", "photo2.jpg"}


def pan(root: Path, rng: np.random.Generator, *, splits: bool) -> None:
    """Writes the frames of a slow pan, some of them repeated, and a few other images."""
    photograph = Image.open(io.BytesIO(corpus.photographs(2)[1])).convert("RGB")
    wide = photograph.resize((600, 260))
    frames = [wide.crop((x, 10, x + 240, 250)) for x in range(0, 240, 4)]
    folders = ("train", "val") if splits else ("train",)
    for number, frame in enumerate(frames):
        folder = folders[int(rng.integers(len(folders)))]
        path = root / folder / f"c{rng.integers(3)}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(frame))
        if rng.random() < 0.2:
            folder = folders[int(rng.integers(len(folders)))]
            again = root / folder / f"c{rng.integers(3)}" / f"{number:03d}-again.jpg"
            again.parent.mkdir(parents=True, exist_ok=True)
            again.write_bytes(path.read_bytes())
    for number in range(3):
        for folder in folders:
            noise = Image.fromarray(rng.integers(0, 255, (60, 60, 3), np.uint8))
            path = root / folder / f"c{number}" / f"noise-{folder}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(noise))


def frame_of(key: str) -> int:
    return int(key.rpartition("/")[2][:3])


@pytest.mark.parametrize("splits", [False, True])
def test_pan_keeps_frames_from_all_parts(splits: bool, tmp_path: Path) -> None:
    """The first and last frames differ; a chain of similar frames must not become one group."""
    pan(tmp_path / "source", np.random.default_rng(3), splits=splits)
    outs = []
    for shards, workers in (("1", "1"), ("5", "2")):
        dataset = tmp_path / f"set-{shards}"
        names = "train,validation" if splits else "train"
        flags = ("--train-shards", shards, "--check", "header", "--splits", names)
        made = command.run("prepare", tmp_path / "source", dataset, *flags)
        assert made.code == 0, made
        words = ("--out", tmp_path / f"found-{shards}", "--workers", workers)
        assert command.run("duplicates", dataset, *words).code == 0
        files = all_files(tmp_path / f"found-{shards}")
        wanted = ("pairs.csv", "exclude-train.txt", "exclude-validation.txt")
        outs.append([files.get(name) for name in wanted])
    assert outs[0] == outs[1], "the same for other shards and workers"

    of_image = {f"{row['split']}:{row['key']}": row for row in rows(tmp_path / "found-1")}
    assert len(of_image) == len(rows(tmp_path / "found-1")), "an image is in one group"
    kept = {image for image, row in of_image.items() if row["kept"] == "yes"}
    excluded = of_image.keys() - kept
    assert len(excluded) > 20
    for image in excluded:
        row = of_image[image]
        assert row["proven_against"] in kept
        shift = abs(frame_of(row["key"]) - frame_of(row["proven_against"]))
        assert shift <= 4, "frames that are 20 px apart differ"
        assert int(row["distance"]) <= 75
        assert of_image[row["proven_against"]]["group"] == row["group"]
    # Kept frames are from all parts of the pan.
    stay = {*range(60)} - {frame_of(of_image[image]["key"]) for image in excluded}
    stay |= {frame_of(of_image[image]["key"]) for image in kept}
    assert np.diff([0, *sorted(stay), 59]).max() <= 4
    crossing = [row for row in of_image.values() if row["elsewhere"]]
    assert bool(crossing) == splits
    for row in crossing:
        assert row["elsewhere"].partition(":")[0] != row["split"]
        assert abs(frame_of(row["key"]) - frame_of(row["elsewhere"])) <= 4

    # Without the excluded images, no duplicate is left.
    lists = [tmp_path / f"found-1/exclude-{split}.txt" for split in ("train", "validation")]
    both = tmp_path / "both"
    both.write_text("".join(path.read_text() for path in lists if path.exists()))
    clean = tmp_path / "clean"
    amended = command.run("amend", tmp_path / "set-1", "--exclude", both, "--out", clean)
    assert amended.code == 0, amended
    again = command.run("duplicates", clean, "--out", tmp_path / "again", "--json")
    assert json.loads(again.out)["groups"] == 0


@pytest.mark.parametrize(("seed", "against"), [(0, False), (1, False), (2, True)])
def test_page_text_and_json_agree(
    seed: int, against: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(seed)
    pan(tmp_path / "source", rng, splits=True)
    out = tmp_path / "out"
    words = ["--source", str(tmp_path / "source"), "--out", str(out)]
    if against:
        dataset = tmp_path / "set"
        made = command.run("prepare", tmp_path / "source", dataset, "--allow-subset")
        assert made.code == 0, made
        words += ["--against", f"{dataset}:validation"]

    assert duplicates.run([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert duplicates.run(words) == 0
    text = capsys.readouterr().out
    page = (out / "duplicates.html").read_text()
    failed = command.run("duplicates", *words, "--fail-on", "cross")

    lines = dict(re.findall("^(.+): ([0-9,]+)$", text, re.MULTILINE))
    cards = dict(re.findall("<dt>(.+?)</dt><dd>(.+?)</dd>", page))
    assert cards == lines
    every = rows(out)
    groups: dict[str, list[dict[str, str]]] = {}
    for row in every:
        groups.setdefault(row["group"], []).append(row)
    crossing = [of for of in groups.values() if any(row["elsewhere"] for row in of)]
    labels = [{row["class_index"] for row in of} for of in groups.values()]
    elsewhere = Counter(row["split"] for row in every if row["elsewhere"])
    excluded = Counter(row["split"] for row in every if row["kept"] == "no")
    expected = {
        "images": said["images"],
        "groups of duplicates": len(groups),
        wording("groups-more-one-split-dataset"): len(crossing),
        wording("groups-more-one-label"): sum(len(each) > 1 for each in labels),
        wording("images-too-little-detail-compared"): said["not_judged"],
    }
    for split, number in elsewhere.items():
        expected[wording("images-duplicate-different-split-dataset", split)] = number
    for split in ("train", "validation"):
        expected[f"images of {split} to exclude"] = excluded[split]
        listed = (out / f"exclude-{split}.txt").read_text().splitlines()
        keys = [row["key"] for row in every if (row["split"], row["kept"]) == (split, "no")]
        assert listed == sorted(f"{split}:{key}" for key in keys)
    assert {name: int(number.replace(",", "")) for name, number in lines.items()} == expected
    assert said["groups"] == len(groups)
    assert said["cross"] == len(crossing)
    assert said["also_elsewhere"] == elsewhere
    assert said["excluded"] == {split: excluded[split] for split in ("train", "validation")}
    assert said["other_label"] == expected[wording("groups-more-one-label")]
    assert sum(pair["pairs"] for pair in said["pairs"]) == excluded.total()
    table = [re.split("  +", line.strip()) for line in text.splitlines()[: len(said["pairs"]) + 1]]
    assert table[0] == re.findall('<th scope="col"[^>]*>(.+?)</th>', page)
    assert table[1:] == [list(map(str, pair.values())) for pair in said["pairs"]]
    assert table[1:] == [
        re.findall("<td[^>]*>(.+?)</td>", line) for line in page.split("<tr>") if "<td" in line
    ]
    assert failed.code == 3
    sentence = f"{wording('groups-more-one-split-dataset')}: {len(crossing)}"
    assert says("groups-more-one-split-dataset-2", len(crossing)).search(failed.err)
    assert f"G{sentence[1:]}<" in page


def test_result_does_not_depend_on_workers(prepared: Path, tmp_path: Path) -> None:
    outs = []
    for number, flags in enumerate(
        (["--workers", "1"], ["--workers", "2", "--worker-kind", "processes"])
    ):
        shutil.rmtree(prepared / pictures.FOLDER, ignore_errors=True)
        out = tmp_path / str(number)
        assert command.run("duplicates", prepared, "--out", out, *flags).code == 0
        files = all_files(out)
        seen = files.keys() - {"duplicates.html", ".work/lock"}
        outs.append({name: files[name] for name in seen})
    assert outs[0] == outs[1]


def test_second_run_hashes_only_new_shards(copied: Path, tmp_path: Path) -> None:
    assert command.run("duplicates", copied, "--out", tmp_path / "one").code == 0
    kept = sorted((copied / pictures.FOLDER).glob("*.rows"))
    assert len(kept) == 6
    assert sum(path.stat().st_size for path in kept) == 16 * search.ROW.itemsize
    before = {path: path.stat().st_mtime_ns for path in kept}
    kept[0].unlink()

    assert command.run("duplicates", copied, "--out", tmp_path / "two").code == 0

    after = {path: path.stat().st_mtime_ns for path in kept}
    assert after[kept[0]] != before[kept[0]]
    assert {p: after[p] for p in kept[1:]} == {p: before[p] for p in kept[1:]}
    assert (tmp_path / "one/pairs.csv").read_bytes() == (tmp_path / "two/pairs.csv").read_bytes()


def test_planted_hash_rows_only_hide_their_images(copied: Path, tmp_path: Path) -> None:
    """Rows are numbers. No pair is reported unless its images confirm it."""
    assert command.run("duplicates", copied, "--out", tmp_path / "one").code == 0
    for path in (copied / pictures.FOLDER).glob("*.rows"):
        path.write_bytes(bytes([255]) * path.stat().st_size)

    result = command.run("duplicates", copied, "--out", tmp_path / "two")

    assert result.code == 0, result
    assert found(tmp_path / "two") <= EXPECTED


def test_too_many_rows_are_refused_unread(copied: Path, tmp_path: Path) -> None:
    """A sparse file has gigabytes of rows, but uses no space."""
    assert command.run("duplicates", copied, "--out", tmp_path / "one").code == 0
    receipt = receipts(copied, "hashes")[0]
    content = json.loads(receipt.read_text())
    content["outputs"][0]["num_bytes"] = 6 << 30
    receipt.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")))
    os.truncate(copied / content["outputs"][0]["name"], 6 << 30)

    result = command.run("duplicates", copied, "--out", tmp_path / "two")

    assert result.code == 3, result
    assert says("bytes-too-many-images-remove", ..., 6_442_450_944).search(result.err)


def look_alikes(root: Path, num: int) -> Path:
    """A folder of images that share a coarse picture, each with its own noise."""
    rng = np.random.default_rng(1)
    coarse = Image.fromarray(rng.integers(0, 255, (20, 20), np.uint8)).resize((64, 64))
    for number in range(num):
        noisy = np.asarray(coarse) * 0.6 + 50 + rng.normal(0, 25, (64, 64))
        path = root / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(Image.fromarray(noisy.clip(0, 255).astype(np.uint8))))
    return root


@pytest.mark.parametrize("workers", ["1", "3"])
def test_similar_images_have_bounded_comparisons(
    workers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limits: Limits,
) -> None:
    proofs = []
    monkeypatch.setattr(search, "proven", lambda *each: proofs.append(each))
    limits(proof_budget=3, proof_cost=1, proofs_at_once=4)
    words = ["--source", str(look_alikes(tmp_path / "source", 40)), "--splits", "train", "--json"]

    assert duplicates.run([*words, "--out", str(tmp_path / "out"), "--workers", workers]) == 0

    assert len(proofs) < 40 * 4 < 40 * 39 / 2
    crowded = json.loads(capsys.readouterr().out)["crowded"]
    assert crowded > 30
    page = (tmp_path / "out" / "duplicates.html").read_text()
    name = wording("images-not-fully-compared-because")
    assert f"<dt>{name}</dt><dd>{crowded}</dd>" in page


def test_number_of_incomplete_comparisons_is_reported(
    tmp_path: Path, limits: Limits, capsys: pytest.CaptureFixture[str]
) -> None:
    limits(proof_budget=1)
    source = look_alikes(tmp_path / "source", 2)
    words = ["--source", str(source), "--splits", "train", "--out", str(tmp_path / "out")]
    assert duplicates.run([*words, "--workers", "1"]) == 0
    assert "images not fully compared, because too many are similar: 2" in capsys.readouterr().out


def test_all_copies_of_a_picture_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limits: Limits,
) -> None:
    proofs = []
    proven = search.proven
    monkeypatch.setattr(search, "proven", lambda *each: proofs.append(each) or proven(*each))
    limits(proof_budget=1, proof_cost=1, proofs_at_once=16)
    picture = Image.open(io.BytesIO(corpus.photographs(1)[0])).convert("RGB")
    for number in range(60):
        path = tmp_path / "source" / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        copy = picture.resize((160 - number % 7, 120 - number // 7))
        path.write_bytes(jpeg(copy, 60 + number % 30))
    words = ["--source", str(tmp_path / "source"), "--splits", "train", "--json"]

    assert duplicates.run([*words, "--out", str(tmp_path / "out"), "--workers", "1"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert (said["groups"], said["excluded"], said["crowded"]) == (1, {"train": 59}, 0)
    assert len(proofs) < 60 * 59 / 4


@pytest.mark.parametrize("hashed", [False, True])
def test_damaged_record_is_named_and_others_are_compared(
    copied: Path, tmp_path: Path, hashed: bool
) -> None:
    """The damage may be older or newer than the hash; no hash of it is stored."""
    shard = copied / "train-00001-of-00004"
    if hashed:
        assert command.run("duplicates", copied, "--out", tmp_path / "out").code == 0
    else:
        shutil.rmtree(copied / pictures.FOLDER, ignore_errors=True)
    flip_bit(shard, 200)

    for _ in range(2):
        result = command.run("duplicates", copied, "--out", tmp_path / "out")
        assert result.code == 3
        assert says("record-byte", shard, 0, 0).search(result.out)
        assert "with too little detail, compared only by pixels: 2" in result.out
        assert says("listed-above-unreadable-images-compared", "1 problem").search(result.err)
        assert len(found(tmp_path / "out")) >= 3
    assert len(receipts(copied, "hashes")) == 5 + hashed


def test_dataset_without_tables_is_referred_to_adopt(copied: Path, tmp_path: Path) -> None:
    path = copied / schema.MANIFEST
    whole = manifest.loads(path.read_bytes(), "it")
    splits = {
        name: replace(
            split,
            samples_root="",
            shards=[replace(s, samples_bytes=0, samples_sha256="") for s in split.shards],
        )
        for name, split in whole.splits.items()
    }
    path.write_bytes(replace(whole, splits=splits).dumps())

    result = command.run("duplicates", copied, "--out", tmp_path / "out")

    assert result.code == 2, result
    assert says("no-tables-samples-list-images", ..., copied).search(result.err)


def test_hashes_of_read_only_dataset_are_in_result(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / schema.WORK)
    (copied / schema.WORK).symlink_to(
        tmp_path
    )  # a link planted in the dataset: nothing is written there

    result = command.run("duplicates", copied, "--out", tmp_path / "out")

    assert result.code == 0, result
    assert len(list((tmp_path / "out" / pictures.FOLDER).glob("*.rows"))) == 6
    assert found(tmp_path / "out") == EXPECTED


def test_dataset_in_a_bucket_has_the_same_pairs(
    prepared: Path, tmp_path: Path, prefix: str, s3: S3Server
) -> None:
    bucket = BucketStore(prefix)
    for path in prepared.rglob("*"):
        if path.is_file() and schema.WORK not in path.parts:
            bucket.write(str(path.relative_to(prepared)), path.read_bytes())
    assert command.run("duplicates", prepared, "--out", tmp_path / "folder").code == 0

    for name in ("one", "two"):  # hashes are kept in the bucket
        result = command.run("duplicates", prefix, "--out", tmp_path / name, env=s3.environment)
        assert result.code == 0, result

    same = (tmp_path / "folder" / "pairs.csv").read_bytes()
    assert (tmp_path / "one" / "pairs.csv").read_bytes() == same
    assert (tmp_path / "two" / "pairs.csv").read_bytes() == same
    kept = [name for name in bucket.names(pictures.FOLDER) if name.endswith(".rows")]
    assert len(kept) == 6


def test_shard_damaged_after_hashing_is_reported(prepared: Path, tmp_path: Path) -> None:
    """The kept hashes find pairs, but their images can no longer be compared."""
    damaged = Path(shutil.copytree(prepared, tmp_path / "set"))
    assert command.run("duplicates", damaged, "--out", tmp_path / "before").code == 0
    for shard in damaged.glob("train-*"):
        shard.write_bytes(bytes(shard.stat().st_size))

    result = command.run("duplicates", damaged, "--out", tmp_path / "out")

    assert result.code == 3
    assert "train-00000" in result.out
    assert says("listed-above-unreadable-images-compared").search(result.err)


def test_misspelt_split_of_the_other_dataset_is_named(copied: Path, tmp_path: Path) -> None:
    words = ("duplicates", copied, "--against", f"{copied}:validatoin", "--out", tmp_path / "out")
    result = command.run(*words)
    assert result.code == 2
    assert says("against-not-split-expected-set", ..., "'validatoin'").search(result.err)


def test_no_pair_is_found_if_images_are_invalid(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "source" / name).mkdir(parents=True)
        (tmp_path / "source" / name / "1.jpg").write_bytes(b"no image")

    result = command.run(
        "duplicates",
        "--source",
        tmp_path / "source",
        "--splits",
        "train",
        "--out",
        tmp_path / "out",
    )

    assert result.code == 3
    assert "cats/1.jpg" in result.out
    # A source has no table of samples, and verify does not read sources.
    assert says("images-source-cannot-decoded-not", "2 problems").search(result.err)
    assert rows(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), says("expected-dataset-source-not-both")),
        (("set", "--source", "source"), says("expected-dataset-source-not-both")),
        (("nowhere",), says("no-such-folder-2", "nowhere")),
        (("set", "--against", "set:holdout"), says("no-split-only", "set", "'holdout'")),
        (("--source", "nowhere"), says("source-no-such-folder", "nowhere")),
        (("set", "--splits", "holdout"), says("no-split-only", "set", "'holdout'")),
        (
            ("--source", "source", "--splits", "holdout"),
            says("source-source-only-splits", ..., "train and validation"),
        ),
    ],
)
def test_invalid_datasets_and_sources_are_refused(
    words: tuple[str, ...], said: re.Pattern[str], prepared: Path, tmp_path: Path
) -> None:
    result = command.run("duplicates", *words, "--out", tmp_path / "out", cwd=prepared.parent)
    assert result.code == 2
    assert said.search(result.err)
    assert not (tmp_path / "out" / "pairs.csv").exists()
