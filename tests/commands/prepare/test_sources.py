"""All layouts of the same images give the same shards, byte for byte."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.sources import boxes, labels
from imagenet_prep.testing.miniature import TRAIN_ARCHIVE, VALIDATION_ARCHIVE
from tests.kit import command, layouts
from tests.kit.dataset import (
    SETTINGS,
    Reference,
    contents,
    split_records,
)
from tests.kit.messages import says
from tests.kit.miniature import Miniature, rewrite_tar

OFFICIAL = labels.official_classes()


def shards(out: Path) -> dict[str, bytes]:
    """Returns shards and their indexes."""
    return {name: data for name, data in contents(out).items() if is_shard(name)}


def is_shard(name: str) -> bool:
    return name.rpartition("/")[2].startswith(("train", "valid"))


def prepare(source: Path, out: Path, *more: str) -> command.Finished:
    return command.run("prepare", "--source", source, "--out", out, *SETTINGS, *more)


def prepared(source: Path, out: Path, *more: str) -> dict[str, bytes]:
    result = prepare(source, out, *more)
    assert result.code == 0, result
    return shards(out)


def test_imagenet21k_tar_and_folder_give_same_shards(tmp_path: Path) -> None:
    classes = {
        wnid: [f"{wnid}_{number}.JPEG" for number in range(count)]
        for wnid, count in (("n00015388", 5), ("n01440764", 1), ("n02084071", 6))
    }
    outs = []
    for whole in (True, False):
        root = layouts.make_class_tars(classes, tmp_path / f"in-{whole}", whole=whole)
        (root / "words.txt").write_text("n00015388\tanimal, fauna\nn02084071\tdog\n")
        refused = prepare(root, tmp_path / "refused", "--splits", "train,validation")
        assert (refused.code, "--holdout-per-class" in refused.err) == (2, True)
        outs.append(tmp_path / f"out-{whole}")
        result = prepare(root, outs[-1], "--allow-subset", "--holdout-per-class", "2")
        assert result.code == 0, result
    found = contents(outs[0])

    assert shards(outs[0]) == shards(outs[1])
    assert found["labels.txt"].decode().splitlines() == [
        "n00015388 animal, fauna",
        "n01440764 tench, Tinca tinca",
        "n02084071 dog",
    ]
    counts = {
        split: Counter(record.wnid for record in split_records(outs[0], split))
        for split in ("train", "validation")
    }
    assert counts["validation"] == {"n00015388": 2, "n02084071": 2}
    assert counts["train"] + counts["validation"] == {w: len(n) for w, n in classes.items()}
    assert json.loads(found["dataset.json"])["subset"] is True
    assert command.run("verify", outs[0]).code == 0


@pytest.fixture(scope="session")
def official(mini: Miniature, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The shards with the published class list and labels, from archives without a devkit."""
    root = tmp_path_factory.mktemp("official")
    names = layouts.published_names(mini)

    def rename(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        info.name = names[info.name]
        return [(info, data)]

    rewrite_tar(mini.root / VALIDATION_ARCHIVE, root / VALIDATION_ARCHIVE, rename)
    (root / TRAIN_ARCHIVE).symlink_to(mini.root / TRAIN_ARCHIVE)
    out = root / "out"
    result = prepare(root, out)
    assert result.code == 0, result
    return shards(out)


def test_recordio_gives_the_archives_shards(
    reference: Reference, mini: Miniature, tmp_path: Path
) -> None:
    root = layouts.make_recordio(mini, tmp_path / "in")

    assert prepared(root, tmp_path / "out") == shards(reference.out)


def test_parquet_gives_the_archives_shards(
    reference: Reference, mini: Miniature, tmp_path: Path
) -> None:
    wnids = [wnid for wnid, _ in mini.classes]
    root = layouts.make_parquet(mini, tmp_path / "in", wnids, wnids)

    assert prepared(root, tmp_path / "out") == shards(reference.out)


def test_kaggle_and_parquet_give_the_official_shards(
    official: dict[str, bytes], mini: Miniature, tmp_path: Path
) -> None:
    all_classes = tuple(zip(OFFICIAL.wnids, OFFICIAL.words, strict=True))
    kaggle = layouts.make_kaggle(mini, tmp_path / "kaggle", all_classes)
    parquet = layouts.make_parquet(mini, tmp_path / "hf", OFFICIAL.wnids, OFFICIAL.words)

    assert prepared(kaggle, tmp_path / "out1") == official
    assert prepared(parquet, tmp_path / "out2") == official


def test_archives_and_kaggle_folders_give_same_boxes(
    mini: Miniature, source: Path, tmp_path: Path
) -> None:
    layouts.make_box_archives(mini, source)
    kaggle = layouts.make_kaggle(mini, tmp_path / "kaggle", mini.classes)
    layouts.make_kaggle_boxes(mini, kaggle)
    out = tmp_path / "out"

    assert prepared(source, out) == prepared(kaggle, tmp_path / "kaggle-out")
    validation = split_records(out, "validation")
    assert all(len(record.boxes.xmin) in (1, 2) for record in validation)
    boxed = [record for record in split_records(out, "train") if record.boxes.xmin]
    assert 0.3 < len(boxed) / len(split_records(out, "train")) < 0.7
    assert {round(record.boxes.xmax[0], 6) for record in boxed} == {90 / 160}
    assert {round(record.boxes.ymax[0], 6) for record in boxed} == {round(80 / 120, 6)}
    manifest = json.loads((out / "dataset.json").read_text())
    assert manifest["config"]["boxes"] is True
    assert [s["name"] for s in manifest["sources"]][2:] == [
        "ILSVRC2012_bbox_train_v2.tar.gz",
        "ILSVRC2012_bbox_val_v3.tgz",
    ]
    assert all(len(source["md5"]) == 32 for source in manifest["sources"])
    assert command.run("verify", out, "--level", "decode").code == 0


def test_boxes_of_validation_in_class_folders_are_found(
    mini: Miniature, source: Path, tmp_path: Path
) -> None:
    """All of these folders write into one list of boxes; none may replace the boxes of others."""
    layouts.make_box_archives(mini, source)
    kaggle = layouts.make_kaggle(mini, tmp_path / "kaggle", mini.classes)
    layouts.make_kaggle_boxes(mini, kaggle)
    folder = kaggle / "ILSVRC" / boxes.KAGGLE / "val"
    for image in mini.images:
        if image.split == "validation":
            name = f"{Path(image.key).stem}.xml"
            (folder / image.wnid).mkdir(exist_ok=True)
            (folder / name).rename(folder / image.wnid / name)

    assert prepared(kaggle, tmp_path / "sorted") == prepared(source, tmp_path / "flat")
    validation = split_records(tmp_path / "sorted", "validation")
    assert all(record.boxes.xmin for record in validation)


def test_no_boxes_flag_skips_boxes(
    reference: Reference, mini: Miniature, source: Path, tmp_path: Path
) -> None:
    layouts.make_box_archives(mini, source)
    out = tmp_path / "out"

    assert prepared(source, out, "--no-boxes") == shards(reference.out)
    # The same folder with boxes would be a different dataset.
    result = prepare(source, out)
    assert result.code == 2
    assert says("here", "boxes", "False", "True").search(result.err)


def test_non_images_are_skipped_and_links_need_flag(
    reference: Reference, mini: Miniature, tmp_path: Path
) -> None:
    root = layouts.make_folder(mini, tmp_path / "in", truth="devkit")
    wnid = mini.classes[0][0]
    for name in ("README", "train/.DS_Store", f"train/{wnid}/Thumbs.db", "val/.hidden.JPEG"):
        layouts.write(root / name, b"no image")
    (root / "train" / ".cache").mkdir()
    image = next((root / "train" / wnid).glob("*.JPEG"))
    image.rename(tmp_path / "elsewhere.JPEG")
    image.symlink_to(tmp_path / "elsewhere.JPEG")
    shutil.move(root / "train", tmp_path / "elsewhere")
    (root / "train").symlink_to(tmp_path / "elsewhere")

    refused = prepare(root, tmp_path / "refused")
    assert (refused.code, "--follow-links" in refused.err) == (3, True)
    assert prepared(root, tmp_path / "out", "--follow-links") == shards(reference.out)


def test_class_folders_become_a_custom_dataset(mini: Miniature, tmp_path: Path) -> None:
    root = tmp_path / "in"
    data = [data for split, _, data in layouts.images(mini) if split == "train"][:12]
    for number, image in enumerate(data):
        split = "train" if number < 9 else "valid"
        name = ("golden retriever", "cat", "Zebra")[number % 3]
        layouts.write(root / split / name / f"{number}.jpg", image)
    out = tmp_path / "out"
    result = command.run("prepare", "--source", root, "--out", out)

    assert result.code == 0, result
    assert "3 classes (Zebra, cat, golden_retriever; not ILSVRC2012's)" in result.err
    assert (out / "labels.txt").read_text().splitlines() == [
        "Zebra Zebra",
        "cat cat",
        "golden_retriever golden retriever",
    ]
    manifest = json.loads((out / "dataset.json").read_text())
    assert (manifest["classes"]["official"], manifest["subset"]) == (False, False)
    assert [(s["name"], s["md5"]) for s in manifest["sources"]] == [
        ("train", None),
        ("valid", None),
    ]
    assert sum(s["members"] for s in manifest["sources"]) == 12
    assert json.loads((out / "dataset_info.json").read_text())["name"] == "images_prep"
    labels_of = {r.filename: r.stored_label for r in split_records(out, "train")}
    assert {labels_of.get("0.jpg"), labels_of.get("3.jpg")} <= {3, None}
    assert command.run("verify", out, "--level", "decode").code == 0


def test_cifar10_keeps_labels_and_nearly_its_pixels(tmp_path: Path) -> None:
    root = layouts.make_cifar10(tmp_path / "in")
    out = tmp_path / "out"
    refused = command.run("prepare", "--source", root, "--out", out)
    assert refused.code == 3
    assert says("expected-images-per-class", ..., ..., "5,000").search(refused.err)
    result = command.run("prepare", "--source", root, "--out", out, "--allow-subset")

    assert result.code == 0, result
    assert [line.split()[0] for line in (out / "labels.txt").read_text().splitlines()] == list(
        layouts.CIFAR_NAMES
    )
    batches = [layouts.cifar_batch(20, seed) for seed in range(6)]
    seen = 0
    for split, names in (("train", batches[:5]), ("validation", batches[5:])):
        for record in split_records(out, split):
            batch = names[int(record.filename.split("_")[2]) - 1] if split == "train" else names[0]
            row = int(record.filename.split("_")[3 if split == "train" else 2])
            assert record.stored_label - 1 == batch["labels"][row]
            truth = batch["data"][row].reshape(3, 32, 32).transpose(1, 2, 0).astype(float)
            pixels = np.asarray(Image.open(io.BytesIO(record.encoded)))
            psnr = 10 * np.log10(255**2 / np.mean((pixels - truth) ** 2))
            assert psnr > 48
            seen += 1
    assert seen == 120
    manifest = json.loads((out / "dataset.json").read_text())
    assert manifest["config"]["encoded_from_pixels"] == "JPEG 4:4:4 at quality 100"
    assert manifest["repaired"] == manifest["quarantined"] == {}
    assert json.loads((out / "dataset_info.json").read_text())["name"] == "cifar10_prep_subset"
    assert not (out / ".work" / "unpacked").exists()


def test_cifar10_archive_gives_the_shards_of_its_folder(tmp_path: Path) -> None:
    import tarfile

    root = layouts.make_cifar10(tmp_path / "in")
    packed = tmp_path / "packed" / "cifar-10-python.tar.gz"
    packed.parent.mkdir()
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(root / "cifar-10-batches-py", "cifar-10-batches-py")

    expected = prepared(root, tmp_path / "out")
    assert prepared(packed.parent, tmp_path / "out2") == expected
    # The archive itself can also be the source.
    assert prepared(packed, tmp_path / "out3") == expected
    other = command.run("prepare", "--source", packed, "--out", tmp_path / "out4")
    assert other.code == 3


@pytest.fixture
def parquet(mini: Miniature, tmp_path: Path) -> Path:
    wnids = [wnid for wnid, _ in mini.classes]
    return layouts.make_parquet(mini, tmp_path / "hf", wnids, wnids)


def test_unpacked_images_are_removed_after_the_run(parquet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = prepared(parquet, out)
    assert not (out / ".work" / "unpacked").exists()
    again = prepare(parquet, out)
    assert (again.code, again.complaints) == (0, "")
    assert says("run-nothing-left").search(again.out)
    assert not (out / ".work" / "unpacked").exists()
    (out / "train-00003-of-00008").unlink()

    assert prepared(parquet, out) == first
    assert not (out / ".work" / "unpacked").exists()
