"""Amended datasets: the lines of quarantine.jsonl, and the processing of new images."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.codec.planes import CodecUnavailableError
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.core.errors import (
    BadImageError,
    DataDamagedError,
    ManifestError,
    StoreError,
    UsageError,
)
from imagenet_prep.dataset import column, example, record_files, schema, tfds
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.manifest import ManifestSource, Producer
from imagenet_prep.dataset.member import Incident
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import amendment
from imagenet_prep.preparation.additions import Additions, read_additions
from imagenet_prep.preparation.amendment import AmendJob
from imagenet_prep.preparation.changes import ChangeRequest, Relabels, ShardChange
from imagenet_prep.shards import commit
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.codec import mutations
from tests.kit.messages import says
from tests.kit.photographs import photograph, tagged
from tests.kit.samples import add_tables, write_lines
from tests.kit.system import System
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

CLASSES = ClassList(tuple(map(wnid, range(3))), ("thing",) * 3)


def key(number: int, class_index: int | None = None) -> str:
    name = wnid(number if class_index is None else class_index)
    return f"{name}/{name}_{number}.JPEG"


def made(
    root: Path,
    incidents: list[Incident],
    codec: str = "planes-1",
    shards: Sequence[Sequence[int]] = (range(3),),
    split: str = "train",
    **config: Any,
) -> Dataset:
    """Commits a dataset with one image of each of three classes, and these incidents."""
    images = [[picture(number, plain(number)) for number in shard] for shard in shards]
    other = picture(0, plain(5))._replace(filename=f"{wnid(0)}_5.JPEG")
    write_dataset(root, {"train": [[other]]} | {split: images}, num_classes=3)
    producer = Producer("tests", "0", {"codec": codec})
    draft = replace(add_tables(root), config={"splits": ["train"], **config}, producer=producer)
    commit.publish(LocalStore(root), draft, incidents=incidents, classes=CLASSES)
    return open_dataset(LocalStore(root))


def job(dataset: Dataset, request: ChangeRequest = ChangeRequest()) -> AmendJob:  # noqa: B008
    return AmendJob(dataset, request, Workers(1, "threads"), quiet=True)


@pytest.mark.parametrize(("split", "other"), [("train", "validation"), ("validation", "train")])
def test_line_is_only_replaced_for_the_same_image(tmp_path: Path, split: str, other: str) -> None:
    """Only the line of a stored image that is excluded disappears, or gets its new class."""
    repaired = ("repaired", "png", "was a PNG")
    truncated = ("quarantined", "truncated", "ends early")
    older = [
        Incident(key(0), "a/0", 0, 9, 0, *repaired, split),
        Incident(key(0), "a/0", 0, 9, 0, *truncated, split),
        Incident(key(0), "b/0", 0, 9, 0, *repaired, other),
        Incident(key(1), "a/1", 0, 9, 1, *repaired, split),
        Incident(key(1), "a/1", 0, 9, 1, *truncated, split),
        Incident(key(1), "b/1", 0, 9, 1, *repaired, other),
        Incident("thing/0.JPEG", "c/0", 0, 9, 0, *repaired),
    ]
    dataset = made(tmp_path / "set", older, split=split)
    changes = ChangeRequest(
        KeyList("list", {key(0): 1}, ""), Relabels(KeyList("csv", {key(1): 1}, ""), {1: 2})
    )
    amendment.run(job(dataset, changes), LocalStore(tmp_path / "new"))

    new = open_dataset(LocalStore(tmp_path / "new"))
    found = [*dataset_store.incidents(new.store, new.manifest)]
    (excluded,) = (line for line in found if line.is_excluded)
    assert (excluded.key, excluded.split, len(excluded.sha256)) == (key(0), split, 64)
    kept = {line for line in found if not line.is_excluded}
    assert kept == {*older[1:3], replace(older[3], class_index=2), *older[4:]}


def test_image_excluded_by_0_1_0_keeps_key(tmp_path: Path) -> None:
    """Its line has neither split nor bytes, so a new image with this key is refused."""
    line = Incident(f"{wnid(0)}/odd.JPEG", "a/0", 0, 9, 0, "excluded", "listed", "on request")
    dataset = made(tmp_path / "set", [line])
    path = tmp_path / "add" / "train" / line.key
    path.parent.mkdir(parents=True)
    path.write_bytes(plain(7))
    add = read_additions(str(tmp_path / "add"), CLASSES, dataset.manifest.splits)
    with pytest.raises(UsageError, match=r"no new image.*odd\.JPEG.*--readmit"):
        amendment.run(job(dataset, ChangeRequest(add=add)), LocalStore(tmp_path / "new"))

    readmitted = replace(job(dataset, ChangeRequest(add=add)), readmit=True)
    amendment.run(readmitted, LocalStore(tmp_path / "new"))
    new = open_dataset(LocalStore(tmp_path / "new"))
    assert [*dataset_store.incidents(new.store, new.manifest)] == []


def test_lines_of_0_1_0_are_forgotten(tmp_path: Path) -> None:
    """They do not tell the split, so every line with the key is changed."""
    quarantined = ("quarantined", "truncated", "ends early")
    lines = [
        Incident("thing/0.JPEG", "a/0", 0, 9, 0, *quarantined, "train"),
        Incident("thing/0.JPEG", "b/0", 0, 8, 0, *quarantined),
        Incident("thing/1.JPEG", "b/1", 0, 9, 1, *quarantined),
    ]
    dataset = made(tmp_path / "set", lines)
    request = ChangeRequest(salt="ab" * 16, forgotten=frozenset({("train", "thing/0.JPEG")}))
    amendment.run(job(dataset, request), LocalStore(tmp_path / "new"))

    new = open_dataset(LocalStore(tmp_path / "new"))
    found = [*dataset_store.incidents(new.store, new.manifest)]
    assert [bool(line.salt) for line in found] == [True, True, False]
    assert "thing/0" not in (tmp_path / "new" / schema.QUARANTINE).read_text()


@pytest.mark.parametrize("short_side", [None, 18])
def test_changed_shards_must_fit_on_the_disk(
    tmp_path: Path, system: System, short_side: int | None
) -> None:
    """Excluded images need no space; new ones count if they are stored as they are."""
    dataset = made(tmp_path / "set", [], **({"short_side": short_side} if short_side else {}))
    image = plain(7) + bytes(1000)
    path = tmp_path / "add" / "train" / wnid(0) / "new.JPEG"
    path.parent.mkdir(parents=True)
    path.write_bytes(image)
    add = read_additions(str(tmp_path / "add"), CLASSES, dataset.manifest.splits)
    request = ChangeRequest(KeyList("list", {key(0): 1, key(1): 2}, ""), add=add)
    needed = len(plain(2)) + (0 if short_side else len(image))
    new = LocalStore(tmp_path / "new")

    system.has_free_bytes(needed - 1)
    with pytest.raises(StoreError, match=says("about-needed-only-free-free", new.root)):
        amendment.run(job(dataset, request), new)
    assert {path.name for path in (new.root / schema.WORK).iterdir()} <= {"lock"}
    system.has_free_bytes(needed)
    amendment.run(job(dataset, request), new)
    assert open_dataset(new).manifest.splits["train"].examples == 2


def test_only_folders_need_space_for_changed_shards(tmp_path: Path, system: System) -> None:
    dataset = made(tmp_path / "set", [])
    (shard,) = dataset.manifest.splits["train"].shards
    changes = [ShardChange(shard, {}, {key(0): 1}, ())]
    folder = LocalStore(tmp_path / "new")
    bucket: Any = SimpleNamespace(as_folder=None, local=folder)
    system.has_free_bytes(0)
    amend = job(dataset, ChangeRequest())
    amendment._require_space(amend, bucket, changes)
    with pytest.raises(StoreError, match=says("about-needed-only-free-free", folder.root)):
        amendment._require_space(amend, folder, changes)


def test_unchanged_and_finished_shards_need_no_space(tmp_path: Path, system: System) -> None:
    dataset = made(tmp_path / "set", [], shards=((0,), (1,), (2,)))
    first, second, _ = dataset.manifest.splits["train"].shards
    sound = (tmp_path / "set" / second.name).read_bytes()
    (tmp_path / "set" / second.name).write_bytes(sound[:-4] + b"lost")
    # Both have a new class, so they keep their sizes.
    classes = {1: 1, 2: 2}
    request = ChangeRequest(relabel=Relabels(KeyList("csv", {key(0): 1, key(1): 2}, ""), classes))
    new = LocalStore(tmp_path / "new")
    with pytest.raises(DataDamagedError):
        amendment.run(job(dataset, request), new)
    (tmp_path / "set" / second.name).write_bytes(sound)
    assert new.size(first.name) is not None

    system.has_free_bytes(len(plain(1)) - 1)
    with pytest.raises(StoreError, match=says("about-needed-only-free-free", new.root)):
        amendment.run(job(dataset, request), new)
    system.has_free_bytes(len(plain(1)))
    amendment.run(job(dataset, request), new)
    assert open_dataset(new).manifest.splits["train"].examples == 3


@pytest.mark.parametrize(
    ("config", "height"),
    [
        ({"short_side": 18}, 24),
        ({"short_side": 18, "stretch": False}, 24),
        ({"short_side": 18, "stretch": True}, 18),
        ({"short_side": None}, 48),
        ({"verb": "adopt", "splits": {"train": {"short_side": 18}}}, 48),
        ({"verb": "resize", "splits": {"train": {"short_side": 18}}}, 24),
    ],
)
def test_new_images_are_processed_as_the_split(
    tmp_path: Path, config: dict[str, Any], height: int
) -> None:
    image = job(made(tmp_path / "set", [], **config)).transform_of("train")(plain(3))

    assert (image.height, image.width) == (height, 18 if height < 48 else 36)


@pytest.mark.parametrize(("rule", "sides"), [("keep", (24, 18)), ("apply", (18, 24))])
def test_new_images_are_rotated_as_the_split(
    tmp_path: Path, rule: str, sides: tuple[int, int]
) -> None:
    dataset = made(tmp_path / "set", [], short_side=18, orientation=rule)
    image = job(dataset).transform_of("train")(tagged(plain(3), 6))
    assert (image.height, image.width) == sides


@pytest.mark.parametrize("kind", ["grey", "cmyk"])
@pytest.mark.parametrize(
    ("lacking", "accepted"),
    [(None, False), (schema.TEXT, False), (schema.COLORSPACE, True)],
)
def test_grey_images_are_only_added_to_such_datasets(
    tmp_path: Path, kind: str, lacking: str | None, accepted: bool
) -> None:
    dataset = made(tmp_path / "set", [], short_side=None)
    lacks = {lacking: schema.WRONG} if lacking else {}
    changed = replace(dataset.manifest, lacks=lacks)
    add = job(replace(dataset, data=changed.dumps())).transform_of("train")
    data = mutations.sources()[kind]
    if accepted:
        assert add(data).encoded == data
    else:
        with pytest.raises(BadImageError):
            add(data)


@pytest.mark.parametrize(
    "config",
    [
        {"short_side": 0},
        {"short_side": -1},
        {"short_side": True},
        {"quality": 0},
        {"quality": 101},
        {"check": "nothing"},
        {"orientation": "turn"},
        {"stretch": 1},
        {"verb": "write"},
        {"splits": 5},
        {"verb": "resize", "splits": ["train"]},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=says("config-not-imagenet-prep-get-dataset")):
        job(made(tmp_path / "set", [], **{"short_side": 18, **config})).transform_of("train")


def test_images_of_a_removed_codec_cannot_be_added(tmp_path: Path) -> None:
    dataset = made(tmp_path / "set", [], codec="planes-0", short_side=18)
    with pytest.raises(
        UsageError, match=says("images-encoded-codec-version-lacks", ..., "planes-0")
    ):
        job(dataset).transform_of("train")


def test_no_image_is_added_if_codec_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise CodecUnavailableError("no C compiler")

    dataset = made(tmp_path / "set", [], short_side=18)
    monkeypatch.setattr("imagenet_prep.codec.planes.require", missing)
    with pytest.raises(CodecUnavailableError, match="no C compiler"):
        job(dataset).transform_of("train")


def test_manifest_replaced_while_linking_shards_is_noticed(tmp_path: Path, system: System) -> None:
    """The shards are linked as this run has seen them, but to a manifest of a different dataset."""
    dataset = made(tmp_path / "set", [], shards=((0, 1), (2,)))
    other = replace(dataset.manifest, plan_digest="0" * 64).dumps()
    system.before("link", lambda: (tmp_path / "set" / schema.MANIFEST).write_bytes(other))
    excluding = ChangeRequest(KeyList("list", {key(0): 1}, ""))

    with pytest.raises(UsageError, match=says("dataset-replaced-while-amend-read", "set")):
        amendment.run(job(dataset, excluding), LocalStore(tmp_path / "new"))
    assert not (tmp_path / "new" / schema.MANIFEST).exists()


def test_parent_truncated_after_the_check_is_noticed(tmp_path: Path) -> None:
    """The other shards are compared with the manifest, not only with their state in this run."""
    dataset = made(tmp_path / "set", [], shards=((0, 1), (2,)))
    amendment.refuse(dataset, LocalStore(tmp_path / "new"))
    os.truncate(tmp_path / "set" / schema.shard_name("train", 1, 2), 9)
    excluding = ChangeRequest(KeyList("list", {key(0): 1}, ""))

    with pytest.raises(
        DataDamagedError, match=says("bytes-manifest-says-run-verify", "train-00001-of-00002", "9")
    ):
        amendment.run(job(dataset, excluding), LocalStore(tmp_path / "new"))
    assert not (tmp_path / "new" / schema.MANIFEST).exists()


def test_truncated_parent_is_refused_before_writing(tmp_path: Path) -> None:
    dataset = made(tmp_path / "set", [], shards=((0, 1), (2,)))
    amendment.refuse(dataset, LocalStore(tmp_path / "new"))
    os.truncate(tmp_path / "set" / schema.shard_name("train", 1, 2), 9)

    with pytest.raises(
        DataDamagedError,
        match=says("missing-different-size-manifest-nothing", ..., "1 file", "train-00001"),
    ):
        amendment.refuse(dataset, LocalStore(tmp_path / "new"))
    with pytest.raises(
        UsageError, match=says("inside-belongs-input-never-changes", "/set/new", "/set")
    ):
        amendment.refuse(dataset, LocalStore(tmp_path / "set" / "new"))
    assert not (tmp_path / "new").exists()


def test_rotated_image_is_not_counted_as_resized(tmp_path: Path) -> None:
    """Rotation swaps the sides; only different lengths mean that pixels were resampled."""
    sides = [((40, 30), (40, 30)), ((30, 40), (40, 30)), ((20, 15), (40, 30)), ((16, 43), (43, 43))]
    rows = [
        Sample(f"a/{n}", n % 2, 9, *stored, "0" * 64, "shrunk", "", 9, *source, "0" * 64)
        for n, (stored, source) in enumerate(sides)
    ]
    shards = write_lines(tmp_path, [[row.line for row in rows[:1]], [row.line for row in rows[1:]]])
    split = amendment._split_of(LocalStore(tmp_path), shards, 2)

    assert (split.resized, split.max_width, split.max_height) == (2, 40, 43)
    assert split.examples_per_class == [2, 2]


@pytest.mark.parametrize(
    ("config", "policy"),
    [
        ({"short_side": 18}, Policy(18)),
        ({"short_side": 18, "quality": 30}, Policy(18, 30)),
        ({"quality": 30}, Policy(None, 30)),
    ],
)
def test_new_images_get_the_quality_of_the_split(
    tmp_path: Path, config: dict[str, Any], policy: Policy
) -> None:
    dataset = made(tmp_path / "set", [], **config)
    cmyk = mutations.sources()["cmyk"]  # it is encoded again in any case
    assert job(dataset).transform_of("train")(cmyk) == transform(cmyk, policy)


@pytest.mark.parametrize(("check", "accepted"), [("header", True), ("decode", False)])
def test_new_images_are_checked_as_the_split(tmp_path: Path, check: str, *, accepted: bool) -> None:
    add = job(made(tmp_path / "set", [], short_side=64, check=check)).transform_of("train")
    data = photograph(24, 30, 0)
    damaged = data[:-60] + bytes(58) + data[-2:]
    assert add(data).encoded == data
    if accepted:
        assert add(damaged).encoded == damaged
    else:
        with pytest.raises(BadImageError):
            add(damaged)


def test_seed_is_that_of_the_first_config(tmp_path: Path) -> None:
    """A second amendment places new images as one amendment would."""
    dataset = made(tmp_path / "set", [], seed=7)
    excluding = ChangeRequest(KeyList("list", {key(0): 1}, ""))
    amendment.run(job(dataset, excluding), LocalStore(tmp_path / "new"))
    amended = open_dataset(LocalStore(tmp_path / "new"))
    without_seed = made(tmp_path / "other", [])

    assert [job(each).seed for each in (dataset, amended, without_seed)] == [7, 7, 0]


@pytest.mark.parametrize("offset", [0, 1])
def test_amended_dataset_keeps_facts_of_its_parent(tmp_path: Path, offset: int) -> None:
    """Labels count from the same number, TFDS has the same name, and the same keys are missing."""
    root = tmp_path / "set"
    images = [picture(number, plain(number), offset) for number in range(3)]
    write_dataset(root, {"train": [images]}, num_classes=3, label_offset=offset)
    lacks = {schema.COLORSPACE: schema.WRONG}
    producer = Producer("tests", "0", {"codec": "planes-1"})
    draft = replace(add_tables(root), config={"splits": ["train"]}, producer=producer, lacks=lacks)
    commit.publish(LocalStore(root), draft, incidents=[], classes=CLASSES, name="flowers")
    listed = Relabels(KeyList("csv", {key(1): 1}, ""), {1: 2})
    request = ChangeRequest(KeyList("list", {key(0): 1}, ""), listed)
    amendment.run(job(open_dataset(LocalStore(root)), request), LocalStore(tmp_path / "new"))

    new = open_dataset(LocalStore(tmp_path / "new"))
    assert (new.manifest.label_offset, new.manifest.lacks) == (offset, lacks)
    assert tfds.name_of(new.tfds_info) == "flowers"
    [rows] = new.heads(new.shards("train"))
    assert {name: index for index, name, _ in rows} == {key(1): 2, key(2): 2}
    shard = tmp_path / "new" / schema.shard_name("train", 0, 1)
    with open(shard, "rb") as file:
        records = [*record_files.read_records(file, shard.name)]
    labels = {each.stored_label for each in (example.decode(r.payload) for r in records)}
    assert labels == {2 + offset}


def added(root: Path, dataset: Dataset, *images: tuple[str, bytes]) -> Additions:
    """Writes images below a train folder; returns them as images to add."""
    for name, data in images:
        path = root / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return read_additions(str(root), CLASSES, dataset.manifest.splits)


def test_one_good_new_image_fills_an_emptied_shard(tmp_path: Path) -> None:
    dataset = made(tmp_path / "set", [])
    every = ChangeRequest(KeyList("list", {key(n): n + 1 for n in range(3)}, ""))
    bad = f"{wnid(0)}/bad.JPEG", plain(7)[:200]
    good = f"{wnid(0)}/good.JPEG", plain(8)
    only_bad = added(tmp_path / "bad", dataset, bad)
    with pytest.raises(UsageError, match=says("exclude-leaves-no-image-no")):
        _ = job(dataset, replace(every, add=only_bad)).changes
    both = added(tmp_path / "both", dataset, bad, good)
    [change] = job(dataset, replace(every, add=both)).changes
    assert len(change.added) == 2


def test_known_images_do_not_prevent_the_lists(tmp_path: Path) -> None:
    """Only a command that changes nothing at all is refused."""
    dataset = made(tmp_path / "set", [])
    add = added(tmp_path / "add", dataset, (key(1), plain(1)))
    with pytest.raises(UsageError, match=says("add-no-new-image-nothing")):
        amendment.run(job(dataset, ChangeRequest(add=add)), LocalStore(tmp_path / "new"))
    request = ChangeRequest(KeyList("list", {key(0): 1}, ""), add=add)
    done = amendment.run(job(dataset, request), LocalStore(tmp_path / "new"))
    assert (done["amended"]["excluded"], done["amended"]["added"]) == (1, 0)


def test_relabelling_of_a_chosen_split_may_change_nothing(tmp_path: Path) -> None:
    """All lines of the list may be for other splits."""
    dataset = made(tmp_path / "set", [])
    listed = Relabels(KeyList("csv", {key(0): 1}, ""), {1: 0})
    with pytest.raises(UsageError, match=says("every-image-lists-already-class")):
        amendment.run(job(dataset, ChangeRequest(None, listed)), LocalStore(tmp_path / "new"))
    request = ChangeRequest(None, listed, splits=("train",))
    done = amendment.run(job(dataset, request), LocalStore(tmp_path / "new"))
    assert done["amended"]["relabelled"] == 0


def test_images_excluded_from_a_folder_are_counted(tmp_path: Path) -> None:
    """The folder adds nothing but the line of the excluded image, and is a source all the same."""
    dataset = made(tmp_path / "set", [])
    new = f"{wnid(0)}/new.JPEG"
    add = added(tmp_path / "add", dataset, (new, plain(7)))
    request = ChangeRequest(KeyList("list", {new: 1, key(0): 2}, ""), add=add)
    done = amendment.run(job(dataset, request), LocalStore(tmp_path / "new"))

    amended = open_dataset(LocalStore(tmp_path / "new"))
    lines = [*dataset_store.incidents(amended.store, amended.manifest)]
    assert {line.key for line in lines} == {new, key(0)}
    assert [source.members for source in amended.manifest.sources] == [1]
    assert done["amended"]["excluded"] == 1


def test_preview_refuses_files_of_unknown_origin(tmp_path: Path) -> None:
    """A dry run reports the same as the run that follows."""
    dataset = made(tmp_path / "set", [])
    out = tmp_path / "new"
    out.mkdir()
    excluding = job(dataset, ChangeRequest(KeyList("list", {key(0): 1}, "")))
    assert amendment.preview(excluding, LocalStore(out))["amended"]["excluded"] == 1
    (out / schema.shard_name("train", 0, 9)).write_bytes(b"of a different program")
    with pytest.raises(UsageError, match=says("already-contains-run-not-write", out)):
        amendment.preview(excluding, LocalStore(out))


def test_dataset_without_tables_is_not_amended(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    with pytest.raises(UsageError, match=says("no-tables-samples-list-images")):
        amendment.refuse(dataset, LocalStore(tmp_path / "new"))


SALTS = [letter * 32 for letter in "abc"]


@pytest.mark.parametrize(
    ("of_parent", "of_finished", "of_unfinished", "expected"),
    [
        (SALTS[0], SALTS[1], SALTS[2], SALTS[0]),
        ("", SALTS[1], SALTS[2], SALTS[1]),
        ("", "", SALTS[2], SALTS[2]),
    ],
)
def test_salt_of_earlier_lines_is_used_again(
    tmp_path: Path, of_parent: str, of_finished: str, of_unfinished: str, expected: str
) -> None:
    """With a different salt, a repeated run would make a different dataset."""
    line = Incident("thing/0.JPEG", "a/0", 0, 9, 0, "quarantined", "truncated", "", "train")
    parent = made(tmp_path / "set", [line.forgotten(of_parent)] if of_parent else [line])
    out = LocalStore(tmp_path / "out")
    if of_finished:
        made(tmp_path / "out", [line.forgotten(of_finished)])
    out.write(f"{schema.WORK}/salt", json.dumps(of_unfinished).encode())

    assert amendment.salt_for(parent, out) == expected


def test_first_salt_is_random(tmp_path: Path) -> None:
    dataset = made(tmp_path / "set", [])
    salts = {amendment.salt_for(dataset, LocalStore(tmp_path / "new")) for _ in range(2)}
    assert len(salts) == 2
    assert {len(bytes.fromhex(salt)) for salt in salts} == {16}


def test_forgotten_images_leave_no_name_behind(tmp_path: Path) -> None:
    """Neither in a list of a source, nor in the salt of the run; both numbers are counted."""
    gone = "thing/0.JPEG"
    line = Incident(gone, "a/0", 0, 9, 0, "quarantined", "truncated", "ends early", "train")
    dataset = made(tmp_path / "set", [line])
    names = [f"train:{name}" for name in (key(0), key(1), gone)]
    sources = [ManifestSource("added/1/more", 9, None, 3, {}, names)]
    changed = replace(dataset.manifest, sources=sources)
    dataset = replace(dataset, data=changed.dumps())
    (tmp_path / "set" / schema.MANIFEST).write_bytes(changed.dumps())
    forgotten = frozenset({("train", gone)})
    listed = KeyList("list", {key(0): 1}, "")
    request = ChangeRequest(listed, salt="ab" * 16, forgotten=forgotten)
    amendment.run(job(dataset, request), LocalStore(tmp_path / "new"))

    new = open_dataset(LocalStore(tmp_path / "new")).manifest
    assert [source.images for source in new.sources] == [[f"train:{key(1)}"]]
    [step] = new.settings.amendments
    assert step.forget is not None
    assert step.forget.images == 2
    assert not (tmp_path / "new" / schema.WORK / "salt").exists()


class Bucket(LocalStore):
    """A store without a local folder."""

    as_folder = None  # type: ignore[assignment]


@pytest.mark.parametrize("is_bucket", [False, True])
def test_versions_stay_on_the_storage_of_the_dataset(tmp_path: Path, is_bucket: bool) -> None:
    dataset = made(tmp_path / "set", [])
    out: LocalStore = Bucket(tmp_path / "new")
    choice: object = "a local folder"
    if is_bucket:
        dataset = replace(dataset, store=Bucket(tmp_path / "set"))
        amendment.refuse(dataset, out)
        out = LocalStore(tmp_path / "new")
        choice = says("prefix-same-server")
    with pytest.raises(UsageError, match=says("out-result-must-same-storage", ..., ..., choice)):
        amendment.refuse(dataset, out)


@pytest.mark.parametrize("more", [0, 1])
def test_column_with_too_many_rows_is_not_carried(tmp_path: Path, more: int) -> None:
    """Its sha256 is that of column.json, so only the number of rows is wrong."""
    dataset = made(tmp_path / "set", [], shards=((0, 1), (2,)))
    texts = Column("words", column.TEXT, (), "made", column_version=2)
    by_split = {}
    for name, split in dataset.manifest.splits.items():
        rows = []
        for shard in split.shards:
            data = texts.empty_row * (shard.examples + more)
            path = tmp_path / "set" / column.file_name("words", shard.name, column.ENDINGS[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            sha256 = hashlib.sha256(data).hexdigest()
            given = (shard.name, shard.examples, len(data), sha256, shard.samples_sha256)
            rows.append(ColumnFile(*given))
        by_split[name] = rows
    texts = replace(texts, splits=by_split)
    (tmp_path / "set" / column.record_name("words")).write_bytes(texts.dumps())
    excluding = ChangeRequest(KeyList("list", {key(0): 1}, ""))
    if not more:
        amendment.run(job(dataset, excluding), LocalStore(tmp_path / "new"))
        return
    with pytest.raises(DataDamagedError, match=says("more-rows-column.json-says")):
        amendment.run(job(dataset, excluding), LocalStore(tmp_path / "new"))
