"""A finished dataset is compared with its source by images, and only if files have changed."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import amend, export, resize
from imagenet_prep.core.errors import DataDamagedError, SourceError, UsageError
from imagenet_prep.dataset import manifest
from imagenet_prep.pipelines import prepare
from imagenet_prep.preparation import same_source, writing
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import evaluation_datasets, foreign, layouts
from tests.kit.dataset import contents, stamps
from tests.kit.foreign_datasets import few_images
from tests.kit.messages import says
from tests.kit.miniature import Miniature
from tests.kit.opened import opened
from tests.kit.photographs import photograph


def image(seed: int) -> bytes:
    return photograph(24, 30, seed)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for number, name in enumerate(("cat/0", "cat/1", "cat/2", "dog/0", "dog/1", "dog/2")):
        path = root / "train" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(number))
    return root


def made(source: Path, out: Path, **more: Any) -> Any:
    config = PrepareConfig(
        source=str(source), out=str(out), splits=("train",), workers=1, json=True, **more
    )
    return prepare.prepare(config)


def damaged(data: bytes) -> bytes:
    """Returns a JPEG of the same size without its last rows."""
    return data[:-60] + bytes(58) + data[-2:]


def labels(out: Path) -> dict[str, int]:
    there = open_dataset(str(out))
    rows = itertools.chain.from_iterable(there.rows(there.shards("train")))
    return {row.key: row.class_index for row in rows}


def moved(source: Path) -> None:
    (source / "train/cat/2.jpg").rename(source / "train/dog/9.jpg")


def relabelled(source: Path) -> None:
    a, b = (source / f"train/{name}/2.jpg" for name in ("cat", "dog"))
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)


def replaced(source: Path) -> None:
    path = source / "train/cat/2.jpg"
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[15] = 7  # the JFIF header's density of pixels
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def grown(source: Path) -> None:
    (source / "train/cat/7.jpg").write_bytes(image(70))


def shrunk(source: Path) -> None:
    (source / "train/cat/1.jpg").unlink()
    (source / "train/dog/1.jpg").unlink()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (moved, r"train: 1 image removed \(cat/2.jpg\); train: 1 image added \(dog/9.jpg\)\."),
        (replaced, r"train: 1 image with changed bytes \(cat/2.jpg\)\."),
        (grown, r"train: 1 image added \(cat/7.jpg\)\."),
        (shrunk, r"train: 2 images removed \(cat/1.jpg, dog/1.jpg\)\."),
    ],
)
@pytest.mark.parametrize("noted", [True, False])
def test_changes_of_the_source_are_named(
    source: Path, tmp_path: Path, change: Callable[[Path], None], sentence: str, *, noted: bool
) -> None:
    made(source, tmp_path / "out", train_shards=2)
    if not noted:
        shutil.rmtree(tmp_path / "out/.work")
    before = (tmp_path / "out/dataset.json").read_bytes()
    change(source)
    for _ in range(2):
        with pytest.raises(UsageError, match=sentence):
            made(source, tmp_path / "out", train_shards=2)
    assert (tmp_path / "out/dataset.json").read_bytes() == before


def test_touched_or_copied_source_is_compared_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "train/cat/bad.jpg").write_bytes(image(8)[:200])
    made(source, tmp_path / "out", train_shards=2)
    listed = []
    real = same_source.take_inventory

    def counted(*args: Any, **more: Any) -> Any:
        listed.append(args)
        return real(*args, **more)

    monkeypatch.setattr(same_source, "take_inventory", counted)
    made(source, tmp_path / "out", train_shards=2)
    assert listed == []
    os.utime(source / "train/cat/1.jpg")
    shutil.copytree(source, tmp_path / "elsewhere")
    for place, number in ((source, 1), (source, 1), (tmp_path / "elsewhere", 2)):
        assert made(place, tmp_path / "out", train_shards=2)["splits"]["train"]["examples"] == 6
        assert len(listed) == number
    shutil.rmtree(tmp_path / "out/.work")
    for _ in range(2):
        made(source, tmp_path / "out", train_shards=2)
        assert len(listed) == 3


def test_only_touched_files_are_read_again(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out")
    os.utime(source / "train/cat/1.jpg")
    with opened(source) as seen:
        made(source, tmp_path / "out")

    assert {name for name in seen if name.endswith(".jpg")} == {"train/cat/1.jpg"}


@pytest.mark.parametrize("lost", ["samples", "quarantine.jsonl"])
def test_lost_files_are_restored_if_records_are_missing(
    source: Path, tmp_path: Path, lost: str
) -> None:
    made(source, tmp_path / "out", train_shards=2)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "out" / lost).rename(tmp_path / "lost")
    shutil.rmtree(tmp_path / "out/.work")
    made(source, tmp_path / "out", train_shards=2)
    assert {path: path.read_bytes() for path in before if ".work" not in path.parts} == {
        path: data for path, data in before.items() if ".work" not in path.parts
    }


def test_fixed_bad_image_in_source_is_named(source: Path, tmp_path: Path) -> None:
    path = source / "train/cat/0.jpg"
    good = path.read_bytes()
    path.write_bytes(damaged(good))
    made(source, tmp_path / "out")
    path.write_bytes(good)
    with pytest.raises(UsageError, match=r"1 image with changed bytes \(cat/0.jpg\)"):
        made(source, tmp_path / "out")


def test_check_header_never_compares_bytes(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out", check="header")
    replaced(source)
    made(source, tmp_path / "out", check="header")


@pytest.mark.parametrize("change", [replaced, relabelled])
def test_shards_of_changed_files_are_made_again(
    source: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (source / "train/dog/bad.jpg").write_bytes(image(8)[:200])
    shutil.copytree(source, tmp_path / "other")
    change(tmp_path / "other")
    made(source, tmp_path / "fresh", train_shards=3)
    # Two sources of equal names and sizes, one after the other and back.
    for place in (source, tmp_path / "other", source):
        with pytest.raises(DataDamagedError, match=says("bad-images-more-max-bad-last", ..., "0")):
            made(place, tmp_path / "out", train_shards=3, max_bad=0)
    made(source, tmp_path / "out", train_shards=3)
    manifests = [(tmp_path / name / "dataset.json").read_bytes() for name in ("fresh", "out")]
    assert manifests[0] == manifests[1]


def test_file_that_vanishes_between_listings_is_noticed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*_: Any, **__: Any) -> None:
        (source / "train/cat/1.jpg").unlink()

    monkeypatch.setattr(same_source, "require_same_source", vanish)
    with pytest.raises(
        SourceError, match=says("changed-images-source-excluded-planned", ..., "6", ..., ..., "5")
    ):
        made(source, tmp_path / "out")
    assert not (tmp_path / "out/dataset.json").exists()


@pytest.mark.parametrize("name", ["ILSVRC2012_img_train.tar", "n01440764.tar"])
def test_archive_changed_after_listing_is_refused(
    miniature: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = tmp_path / "archives"
    if name.startswith("n"):
        layouts.make_class_tars(
            {"n01440764": ["a.JPEG"], "n01443537": ["b.JPEG"]}, root, whole=False
        )
    else:
        shutil.copytree(miniature.root, root)
    (path,) = root.rglob(name)

    def change(*_: Any, **__: Any) -> None:
        time = path.stat().st_mtime_ns
        data = bytearray(path.read_bytes())
        data[data.index(b"\xff\xda") + 20] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(time, time))

    def run(out: str) -> Any:
        splits = ("train",)
        config = PrepareConfig(
            str(root), str(tmp_path / out), splits=splits, workers=1, json=True, allow_subset=True
        )
        return prepare.prepare(config)

    def link(*_: Any, **__: Any) -> None:
        (tmp_path / "link").hardlink_to(path)

    with monkeypatch.context() as patched:
        patched.setattr(same_source, "require_same_source", change)
        with pytest.raises(SourceError, match=says("changed-while-read-not-change", name)):
            run("out")
        assert not (tmp_path / "out/dataset.json").exists()
        patched.setattr(same_source, "require_same_source", link)
        run("out")
    run("fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"])
def test_archive_of_equal_size_is_identified_by_md5(
    miniature: Miniature, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "archives"
    shutil.copytree(miniature.root, root)

    def run() -> Any:
        return prepare.prepare(
            PrepareConfig(str(root), str(tmp_path / "out"), workers=1, json=True, allow_subset=True)
        )

    run()
    os.utime(root / name)
    run()
    data = bytearray((root / name).read_bytes())
    place = data.index(b"\xff\xda") + 40
    data[place] ^= 1
    (root / name).write_bytes(data)
    with pytest.raises(UsageError, match=says("had-md5", name)):
        run()


def test_resize_recognises_its_input_by_the_images(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "set")
    (tmp_path / "labels.csv").write_text("key,class\ncat/0.jpg,dog\n")
    argv = ["set", "--relabel", "labels.csv", "--out", "other", "--json"]
    amend.run([word if "-" in word else str(tmp_path / word) for word in argv])

    def resized(of: str, **more: Any) -> Any:
        return resize.resize(
            resize.ResizeConfig(
                input_dir=str(tmp_path / of),
                output_dir=str(tmp_path / "small"),
                short_side=16,
                workers=1,
                json=True,
                **more,
            )
        )

    resized("set")
    shutil.copytree(tmp_path / "set", tmp_path / "copy")
    resized("copy")
    with pytest.raises(UsageError, match=r"1 image with a different class or size \(cat/0.jpg\)"):
        resized("other")
    shutil.rmtree(tmp_path / "small/.work")
    with pytest.raises(
        UsageError, match=r"or size \(cat/0.jpg\)\. .*replace the dataset with --force"
    ):
        resized("other")
    assert labels(tmp_path / "small")["cat/0.jpg"] == 0
    resized("other", force=True)
    assert labels(tmp_path / "small")["cat/0.jpg"] == 1
    before = stamps(tmp_path / "small")
    resized("other", force=True)
    assert stamps(tmp_path / "small") == before


def test_foreign_shards_are_identified_by_their_md5(tmp_path: Path) -> None:
    root = tmp_path / "in"
    foreign.write(root, few_images(), foreign.slim, num_shards={"train": 2, "validation": 1})
    config = resize.ResizeConfig(
        input_dir=str(root),
        output_dir=str(tmp_path / "out"),
        splits=("train", "validation"),
        short_side=16,
        workers=1,
        json=True,
    )
    resize.resize(config)
    first = min(root.glob("train-*"))
    os.utime(first)
    resize.resize(config)
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    with pytest.raises(UsageError, match=says("had-md5", first.name)):
        resize.resize(config)


def test_shards_without_a_known_md5_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "in"
    out = tmp_path / "out"
    foreign.write(root, few_images(), foreign.slim, num_shards={"train": 1, "validation": 1})
    resized(root, out)
    path = out / "dataset.json"
    there = manifest.loads(path.read_bytes(), str(path))
    sources = [replace(source, md5=None) for source in there.sources]
    path.write_bytes(replace(there, sources=sources).dumps())
    os.utime(next(root.glob("train-*")))
    with pytest.raises(UsageError, match=says("had-md5", "train-00000-of-00001")):
        resized(root, out)


@pytest.mark.parametrize("lost", [-1, 1])
def test_lost_or_duplicate_image_is_noticed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    commit = writing.commit

    def lossy(job: Any, inventory: Any, output: Any, written: Sequence[Any], plans: Any) -> None:
        [shard] = [each for each in written if isinstance(each, WrittenShard)]
        others = [each for each in written if each is not shard]
        shard = replace(shard, examples=shard.examples - lost)
        commit(job, inventory, output, [*others, shard], plans)

    monkeypatch.setattr(writing, "commit", lossy)
    with pytest.raises(
        SourceError,
        match=says("changed-images-source-excluded-planned", ..., "6", ..., "6", 6 - lost),
    ):
        made(source, tmp_path / "out")
    assert not (tmp_path / "out" / "dataset.json").exists()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_removed_bad_image_of_the_source_is_named(
    source: Path, tmp_path: Path, num_shards: int
) -> None:
    """The message is the same for any number of shards; other images only move with several."""
    (source / "train/cat/bad.jpg").write_bytes(damaged(image(8)))
    (source / "train/cat/kept.jpg").write_bytes(damaged(image(9)))
    made(source, tmp_path / "out", train_shards=num_shards)
    (source / "train/cat/bad.jpg").unlink()
    with pytest.raises(UsageError, match=r"1 quarantined image removed \(cat/bad.jpg\)\."):
        made(source, tmp_path / "out", train_shards=num_shards)


WNIDS = ("n01440764", "n01443537")


def kaggle(root: Path, *, words: str = "a fish", box: int = 4) -> Path:
    """Writes a source with a list of words and a box for each image; all forms have one size."""
    for number in range(4):
        wnid = WNIDS[number % 2]
        for place, data in (
            ("Data", image(number)),
            ("Annotations", layouts.voc_xml(30, 24, [(box, 2, 20, 20)], wnid)),
        ):
            suffix = "JPEG" if place == "Data" else "xml"
            path = root / place / "CLS-LOC/train" / wnid / f"{wnid}_{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
    lines = [f"{WNIDS[0]} {words}", f"{WNIDS[1]} another"]
    (root / "LOC_synset_mapping.txt").write_text("\n".join(lines))
    return root


CHANGES = [
    ({"box": 3}, says("bounding-boxes-paths-images-changed")),
    ({"words": "a bird"}, says("classes-different-names-words-positions")),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES)
def test_changed_boxes_or_words_change_the_source(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    root = kaggle(tmp_path / "source")
    out = tmp_path / "out"
    made(root, out, allow_subset=True)
    for path in root.rglob("*"):
        os.utime(path)
    shutil.copytree(root, tmp_path / "copy")
    for place in (tmp_path / "copy", root):
        made(place, out, allow_subset=True)  # compared and equal

    kaggle(root, **change)
    for _ in range(2):
        with pytest.raises(
            UsageError, match=says("source-changed-since-dataset-made", ..., sentence)
        ):
            made(root, out, allow_subset=True)
    kaggle(root)
    made(root, out, allow_subset=True)


def test_other_differences_are_no_changed_boxes(tmp_path: Path) -> None:
    root = kaggle(tmp_path / "source")
    out = tmp_path / "out"
    made(root, out, allow_subset=True)
    next(root.glob("Data/**/*_3.JPEG")).unlink()
    with pytest.raises(UsageError, match=says("source-changed-since-dataset-made")) as refused:
        made(root, out, allow_subset=True)
    assert f"{WNIDS[1]}_3.JPEG" in str(refused.value)
    assert not says("bounding-boxes-paths-images-changed").search(str(refused.value))


def resized(of: Path, out: Path, *splits: str, **more: Any) -> Any:
    config = resize.ResizeConfig(
        input_dir=str(of),
        output_dir=str(out),
        splits=splits or ("train",),
        short_side=16,
        workers=1,
        json=True,
        **more,
    )
    return resize.resize(config)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"box": 3}, "train-00000-of-00001: had md5"), CHANGES[1]],
)
def test_resize_notices_changed_boxes_and_words(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    first = tmp_path / "first"
    out = tmp_path / "out"
    made(kaggle(tmp_path / "source"), first, allow_subset=True)
    resized(first, out)
    second = tmp_path / "second"
    again = tmp_path / "again"
    made(kaggle(tmp_path / "changed", **change), second, allow_subset=True)
    made(tmp_path / "source", again, allow_subset=True, orientation="keep")  # no tag, so no change
    resized(again, out)
    with pytest.raises(UsageError, match=says("source-changed-since-dataset-made", ..., sentence)):
        resized(second, out)
    resized(second, out, force=True)
    resized(second, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


def test_changed_class_list_of_tfds_is_noticed(source: Path, tmp_path: Path) -> None:
    """Only this list defines the meaning of a label; the shards have numbers."""
    made(source, tmp_path / "set")
    root = tmp_path / "tfds"
    out = tmp_path / "out"
    assert export.run([str(tmp_path / "set"), "--to", "tfds", "--out", str(root), "--json"]) == 0
    (labels,) = root.rglob("label.labels.txt")
    resized(labels.parent, out)
    os.utime(labels)
    before = stamps(out)
    resized(labels.parent, out)
    assert stamps(out) == before
    labels.write_text(labels.read_text().replace("cat", "cow"))
    with pytest.raises(UsageError, match=says("classes-different-names-words-positions")):
        resized(labels.parent, out)


@pytest.mark.parametrize(("name", "indices"), [("Banana", (950,)), ("Alarm clock", (409, 531))])
def test_changed_mapping_of_objectnet_is_noticed(
    tmp_path: Path, name: str, indices: tuple[int, ...]
) -> None:
    """A different class of the images, or only a different second answer."""
    root = evaluation_datasets.put(
        evaluation_datasets.objectnet().files, tmp_path, "objectnet", "folder"
    )
    out = tmp_path / "out"
    mapping = "mappings/objectnet_to_imagenet_1k.json"

    def run(place: Path, out: Path) -> None:
        config = PrepareConfig(
            source=str(place), out=str(out), workers=1, json=True, allow_subset=True
        )
        prepare.prepare(config)

    run(root, out)
    resized(out, tmp_path / "small", "test")
    (path,) = root.rglob(mapping)
    for file in root.rglob("*"):
        os.utime(file)
    run(root, out)
    content = json.loads(path.read_bytes())
    content[name] = "; ".join(official_classes().words[index] for index in indices)
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=says("source-changed-since-dataset-made")):
        run(root, out)
    run(root, tmp_path / "other")
    with pytest.raises(UsageError, match=says("source-changed-since-dataset-made")):
        resized(tmp_path / "other", tmp_path / "small", "test")


def run(root: Path, out: Path, *splits: str) -> Any:
    config = PrepareConfig(
        source=str(root),
        out=str(out),
        splits=splits or ("train",),
        workers=1,
        json=True,
        allow_subset=True,
    )
    return prepare.prepare(config)


def test_devkit_next_to_archives_is_not_compared(
    miniature: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(miniature.root, tmp_path / "archives")
    run(root, tmp_path / "out", "train", "validation")
    (devkit,) = root.glob("*devkit*")
    os.utime(devkit)

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the source is listed")

    with monkeypatch.context() as patched:
        patched.setattr(same_source, "take_inventory", fail)
        run(root, tmp_path / "out", "train", "validation")
        os.utime(root / "ILSVRC2012_img_train.tar")
        with pytest.raises(AssertionError, match="the source is listed"):
            run(root, tmp_path / "out", "train", "validation")


def parquet(root: Path) -> Path:
    rows = [layouts.parquet_row(number % 2, number, image(number)) for number in range(4)]
    path = root / "train-00000-of-00001.parquet"
    layouts.write_parquet(path, rows, names=["cat", "dog"], packed_by="none")
    return path


def recordio(root: Path) -> Path:
    rows = [(number % 2, f"{'cd'[number % 2]}/{number}.jpg", image(number)) for number in range(4)]
    layouts.write_recordio(root / "train.rec", rows)
    return root / "train.rec"


def webdataset(root: Path) -> Path:
    files = {}
    for number in range(4):
        files[f"{number}.jpg"] = image(number)
        files[f"{number}.cls"] = str(number % 2).encode()
    layouts.write(root / "train-0000.tar", layouts.tar(files))
    return root / "train-0000.tar"


def cifar10(root: Path) -> Path:
    layouts.make_cifar10(root, num=4)
    path = root / "cifar-10-python.tar.gz"
    folder = root / "cifar-10-batches-py"
    files = {f"{folder.name}/{each.name}": each.read_bytes() for each in folder.iterdir()}
    layouts.write_tgz(path, files)
    shutil.rmtree(folder)
    return path


def mnist(root: Path) -> Path:
    layouts.make_mnist(root, num=20)
    return root / "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    "make",
    [pytest.param(parquet, marks=pytest.mark.extras), recordio, webdataset, cifar10, mnist],
)
def test_packed_file_is_identified_by_its_md5(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    root = tmp_path / "source"
    out = tmp_path / "out"
    root.mkdir()
    path = make(root)
    run(root, out)
    os.utime(path)
    run(root, out)

    data = bytearray(path.read_bytes())
    # The time in a gzip header, or the density of pixels of an image.
    data[4 if path.suffix == ".gz" else data.rfind(b"JFIF") + 11] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=says("had-md5", path.name)):
        run(root, out)


def test_images_in_class_tars_are_all_compared(tmp_path: Path) -> None:
    root = tmp_path / "source"
    out = tmp_path / "out"
    classes = {"n01440764": ["a.JPEG", "b.JPEG"], "n01443537": ["c.JPEG"]}
    layouts.make_class_tars(classes, root, whole=False)
    run(root, out)
    path = root / "winter21_whole" / "n01440764.tar"
    os.utime(path)
    run(root, out)

    data = bytearray(path.read_bytes())
    data[data.find(b"JFIF") + 11] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"train: 1 image with changed bytes \(n01440764/a.JPEG\)"):
        run(root, out)


def test_images_of_a_cifar10_folder_are_all_compared(tmp_path: Path) -> None:
    root = tmp_path / "source"
    out = tmp_path / "out"
    layouts.make_cifar10(root, num=1)
    path = root / "cifar-10-batches-py" / "data_batch_2"
    batch = pickle.loads(path.read_bytes(), encoding="bytes")

    def paint(grey: int) -> None:
        batch[b"data"][:] = grey
        path.write_bytes(pickle.dumps(batch, protocol=2))

    paint(100)
    run(root, out)
    paint(100)
    run(root, out)
    paint(101)  # the encoded image has the same size
    with pytest.raises(UsageError, match=r"train: 1 image with changed bytes \(airplane/"):
        run(root, out)


def test_folder_without_tables_is_compared_by_its_size(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made(source, out)
    before = (out / "dataset.json").read_bytes()
    shutil.rmtree(out / "samples")
    replaced(source)
    made(source, out)
    assert (out / "dataset.json").read_bytes() != before
