"""Rewritten datasets, in this process: kept bytes, added splits, and smaller images."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import DataDamagedError, ManifestError, UsageError
from imagenet_prep.dataset import class_list, example, manifest, record_files, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.member import Incident
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import rewrite
from imagenet_prep.shards import commit
from imagenet_prep.sources import shard_files
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.dataset import contents, stamps
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset


def grey(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (40, 30), number * 20).save(stream, "JPEG")
    return stream.getvalue()


def given(root: Path, *train: ImageExample) -> Path:
    """Writes a dataset of one shard of train, and one of validation with two RGB images."""
    validation = [picture(number, plain(number)) for number in (0, 1)]
    write_dataset(root, {"train": [train], "validation": [validation]}, num_classes=3)
    return root


def job(root: Path, *splits: str, **more: Any) -> rewrite.ResizeJob:
    found = shard_files.find(LocalStore(root))
    options = {"policy": None, "workers": Workers(1, "threads"), "quiet": True, **more}
    return rewrite.ResizeJob(found, splits or tuple(found.splits), **options)


def load(root: Path) -> Manifest:
    return manifest.loads((root / schema.MANIFEST).read_bytes(), str(root))


def images(root: Path, split: str = "train") -> list[ImageExample]:
    path = root / schema.shard_name(split, 0, 1)
    with path.open("rb") as stream:
        return [example.decode(r.payload) for r in record_files.read_records(stream, path.name)]


def test_originals_keep_bytes_and_declare_grey_images(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(2, grey(2)), picture(0, plain(0)))
    rewrite.run(job(root, "validation"), LocalStore(tmp_path / "out"))
    assert load(tmp_path / "out").lacks == {}
    rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))

    made = load(tmp_path / "out")
    assert [image.encoded for image in images(tmp_path / "out")] == [grey(2), plain(0)]
    assert made.lacks == {schema.COLORSPACE: schema.WRONG}
    assert made.producer.libraries == {}
    assert [source.members for source in made.sources] == [2, 2]


def test_bad_original_is_excluded_or_ends_the_run(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.new("RGB", (40, 30)).save(png, "PNG")
    root = given(tmp_path / "in", picture(0, plain(0)), picture(1, png.getvalue()))
    with pytest.raises(DataDamagedError, match="unknown_format"):
        rewrite.run(job(root, allowed_bad_images=0), LocalStore(tmp_path / "strict"))
    rewrite.run(job(root), LocalStore(tmp_path / "out"))

    made = load(tmp_path / "out")
    assert made.quarantined == {"unknown_format": 1}
    assert made.splits["train"].examples_per_class == [1, 0, 0]
    assert made.lacks == {}


def test_duplicate_keys_in_a_shard_are_named_first(tmp_path: Path) -> None:
    root = given(tmp_path / "in", *(picture(number, plain(number)) for number in (0, 1, 0)))
    for path in (*root.glob("*.json"), *root.glob("labels.txt")):
        path.unlink()
    name = schema.shard_name("train", 0, 1)
    said = f"record 0 of {name} and record 2 of {name}.*adopt"
    with pytest.raises(DataDamagedError, match=said):
        rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))
    assert not [*(tmp_path / "out").glob("train-*")]


def test_second_run_of_resize_finds_nothing_to_do(tmp_path: Path) -> None:
    root = given(tmp_path / "in", *(picture(number, plain(number)) for number in (2, 0)))
    small = job(root, "train", policy=Policy(16, 85))
    summary = rewrite.run(small, LocalStore(tmp_path / "out"))
    before = stamps(tmp_path / "out")
    again = rewrite.run(small, LocalStore(tmp_path / "out"))

    assert {min(image.height, image.width) for image in images(tmp_path / "out")} == {16}
    assert (summary["written_examples"], again["written_examples"]) == (2, 0)
    assert again["left_in_input"] == ["validation"]
    assert stamps(tmp_path / "out") == before


def test_input_is_refused_as_the_output(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(0, plain(0)))
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(UsageError, match=says("input-choose-different-folder-result")):
        rewrite.run(job(root), LocalStore(tmp_path / "link"))


def test_classes_of_a_different_dataset_are_not_added(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(0, plain(0)))
    rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))
    validation = [picture(number, plain(number)) for number in (0, 1)]
    write_dataset(tmp_path / "other", {"validation": [validation]}, num_classes=2)
    before = stamps(tmp_path / "out")
    with pytest.raises(
        UsageError,
        match=says("differ-dataset-choose-different-folder", ..., "2 classes", "3 classes"),
    ):
        rewrite.run(job(tmp_path / "other"), LocalStore(tmp_path / "out"))
    assert stamps(tmp_path / "out") == before


def test_as_many_different_classes_are_not_added(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(0, plain(0)))
    rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))
    validation = [picture(n, plain(n))._replace(wnid=wnid(n + 3)) for n in range(3)]
    write_dataset(tmp_path / "other", {"validation": [validation]}, num_classes=3)
    labels = "".join(f"{wnid(number)} thing\n" for number in (3, 4, 5))
    (tmp_path / "other" / schema.LABELS).write_text(labels)
    (tmp_path / "other" / schema.MANIFEST).unlink()
    before = stamps(tmp_path / "out")

    with pytest.raises(UsageError, match=says("differ-dataset-choose-different-folder")):
        rewrite.run(job(tmp_path / "other"), LocalStore(tmp_path / "out"))
    assert stamps(tmp_path / "out") == before


def test_classes_without_wnids_are_refused_if_required(tmp_path: Path) -> None:
    names = ("cat", "dog", "eel")
    train = (picture(n, plain(n))._replace(wnid=name) for n, name in enumerate(names))
    root = given(tmp_path / "in", *train)
    # Validation has other classes.
    for path in (root / schema.LABELS, root / schema.MANIFEST, *root.glob("validation-*")):
        path.unlink()

    with pytest.raises(
        UsageError, match=says("classes-not-wnids-intended-remove", ..., "cat, dog, eel")
    ):
        rewrite.run(job(root, "train", wnids_only=True), LocalStore(tmp_path / "out"))


def key(number: int) -> str:
    return f"{wnid(number)}/{wnid(number)}_{number}.JPEG"


OF_TRAIN = [
    Incident(key(2), "train/2.png", 0, 9, 1, "repaired", "png", "was a PNG"),
    Incident(key(7), "ILSVRC2012_img_train.tar", 0, 9, 2, "quarantined", "empty", "zero bytes"),
]
OF_VALIDATION = [
    Incident(
        key(8),
        "ILSVRC2012_img_val.tar",
        0,
        9,
        2,
        "quarantined",
        "truncated",
        "ends early",
        "validation",
    ),
    Incident(
        key(9),
        "validation-00000-of-00001",
        0,
        9,
        2,
        "excluded",
        "listed",
        "on request",
        "validation",
        "a" * 64,
    ),
]
# A line of version 0.1.0, which does not contain the split.
OF_ONE = Incident("thing/image_6.JPEG", "images.tar", 0, 9, 2, "quarantined", "corrupt", "bad code")


def prepared(root: Path, incidents: Sequence[Incident]) -> Path:
    """Writes the dataset of `given` with these lines in its quarantine.jsonl."""
    given(root, picture(0, plain(0)), picture(2, plain(2)))
    classes = ClassList(tuple(map(wnid, range(3))), ("thing",) * 3)
    commit.publish(LocalStore(root), add_tables(root), incidents=incidents, classes=classes)
    return root


def lines(root: Path) -> dict[str, str]:
    """Returns the action of each line of quarantine.jsonl, by the number in its key."""
    found = [json.loads(line) for line in (root / schema.QUARANTINE).read_text().splitlines()]
    actions = {
        line["key"].rpartition("_")[2].removesuffix(".JPEG"): line["action"] for line in found
    }
    assert len(actions) == len(found)
    return actions


def test_quarantine_lines_of_the_input_follow_their_split(tmp_path: Path) -> None:
    """A run per split, as in the tutorial. A line of unknown split is listed once.

    Excluded images are listed in every case, since an image may return in a different split.
    """
    root = prepared(tmp_path / "in", [*OF_TRAIN, *OF_VALIDATION, OF_ONE])
    store = LocalStore(tmp_path / "out")
    rewrite.run(job(root, "train"), store)
    train = {"2": "input_repaired", "7": "input_quarantined", "6": "input_quarantined"}
    train["9"] = "input_excluded"
    assert lines(store.root) == train
    assert load(store.root).repaired == {"png": 1}
    assert load(store.root).quarantined == {"corrupt": 1, "empty": 1}

    rewrite.run(job(root, "validation"), store)
    assert lines(store.root) == train | {"8": "input_quarantined"}
    assert load(store.root).repaired == {"png": 1}
    assert load(store.root).quarantined == {"corrupt": 1, "empty": 1, "truncated": 1}

    before = contents(store.root)
    rewrite.run(job(root), store)
    assert contents(store.root) == before
    together = LocalStore(tmp_path / "together")
    rewrite.run(job(root), together)
    assert contents(together.root)[schema.QUARANTINE] == before[schema.QUARANTINE]


def test_quarantine_lines_of_earlier_inputs_are_kept(tmp_path: Path) -> None:
    root = prepared(tmp_path / "in", [*OF_TRAIN, *OF_VALIDATION, OF_ONE])
    rewrite.run(job(root), LocalStore(tmp_path / "once"))
    rewrite.run(job(tmp_path / "once", "validation"), LocalStore(tmp_path / "twice"))
    kept = {"6": "input_quarantined", "8": "input_quarantined", "9": "input_excluded"}

    assert lines(tmp_path / "twice") == kept


def test_replaced_split_loses_lines_of_its_input(tmp_path: Path) -> None:
    old = prepared(tmp_path / "old", [*OF_TRAIN, *OF_VALIDATION])
    out = LocalStore(tmp_path / "out")
    rewrite.run(job(old), out)
    newer = replace(OF_TRAIN[1], reason="truncated")
    new = prepared(tmp_path / "new", [newer, OF_VALIDATION[0]])
    rewrite.run(job(new, "train", policy=Policy(16, 85), force=True), out)

    of_validation = {"8": "input_quarantined", "9": "input_excluded"}
    assert lines(out.root) == {"7": "input_quarantined"} | of_validation
    assert load(out.root).repaired == {}
    assert load(out.root).quarantined == {"truncated": 2}


def test_newer_quarantine_line_replaces_that_of_the_input(tmp_path: Path) -> None:
    root = prepared(tmp_path / "in", OF_TRAIN)
    excluded = job(root, "train", exclude=KeyList("list", {key(2): 1}, ""))
    rewrite.run(excluded, LocalStore(tmp_path / "out"))

    assert lines(tmp_path / "out") == {"2": "excluded", "7": "input_quarantined"}
    assert load(tmp_path / "out").repaired == {}


def test_damaged_quarantine_list_is_named_before_writing(tmp_path: Path) -> None:
    root = prepared(tmp_path / "in", OF_TRAIN)
    (root / schema.QUARANTINE).write_bytes(b"{}\n")
    for verb in (rewrite.preview, rewrite.run):
        with pytest.raises(ManifestError, match=schema.QUARANTINE):
            verb(job(root), LocalStore(tmp_path / "out"))
        assert not [*(tmp_path / "out").glob("train-*")]


@pytest.mark.parametrize("excludes", [False, True])
def test_editions_are_subsets_if_images_are_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excludes: bool
) -> None:
    """Images and quarantined images together are those of the edition."""
    known = class_list.Edition("known", 3, {"test": 3})
    monkeypatch.setattr(class_list, "_OTHERS", (known,))
    root = tmp_path / "in"
    write_dataset(root, {"test": [[picture(0, plain(0)), picture(1, plain(1))]]}, num_classes=3)
    draft = replace(add_tables(root), edition="known", subset=False)
    classes = ClassList(tuple(map(wnid, range(3))), ("thing",) * 3)
    commit.publish(LocalStore(root), draft, incidents=[OF_ONE], classes=classes)
    exclude = KeyList("list", {key(1): 1}, "") if excludes else None
    rewrite.run(job(root, "test", exclude=exclude), LocalStore(tmp_path / "out"))

    made = open_dataset(LocalStore(tmp_path / "out")).manifest
    assert made.quarantined["corrupt"] == 1
    assert (made.edition, made.subset) == ("known", excludes)
