"""Planning from a source to plans, on a source that is a list."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import (
    DataDamagedError,
    IncompleteError,
    JobLostError,
    SourceError,
    UsageError,
)
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList, Edition
from imagenet_prep.dataset.keys import KeyList, ListedFile
from imagenet_prep.dataset.member import Member, parse_members
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import planning
from imagenet_prep.preparation.planning import (
    Inventory,
    SharedPlan,
    remove_unpacked,
    take_inventory,
)
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.tasks import PLAN_FOLDER, UNPACKED, plan_name
from imagenet_prep.shards import plan
from imagenet_prep.sources import ilsvrc, parquet, recordio
from imagenet_prep.sources.source import IndexTask, Source, SourcePart
from imagenet_prep.storage.folder import LocalStore
from tests.kit import layouts, plan_model
from tests.kit.limits import Limits
from tests.kit.listed import CLASSES, WORKERS, ListSource, MixedListSource, excluding, selection
from tests.kit.messages import says
from tests.kit.receipts import plant_hashes

PARTS = (SourcePart("train.tar", 90, 1),)


def keys(store: LocalStore, split: plan.SplitPlan) -> list[str]:
    lists = (parse_members(store.read(plan_name(shard))) for shard in split.shard_names)
    return [member.key for member in itertools.chain.from_iterable(lists)]


def test_every_image_is_assigned_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    inventory = take_inventory(selection(), store, WORKERS, quiet=True)
    (split,) = inventory.plans

    assert (split.num_shards, split.num_per_class) == (2, (4, 3, 2))
    assert len(set(keys(store, split))) == 9
    assert split.source_bytes == 90
    assert inventory.taken == Counter({"train.tar": 9})


@pytest.mark.parametrize(
    ("asked", "many"), [("auto", "processes"), ("processes", "processes"), ("threads", "threads")]
)
def test_many_classes_are_listed_by_the_requested_workers(asked: str, many: str) -> None:
    classes = tuple(IndexTask(f"{index}", "train", "a.tar", index) for index in range(4000))
    combined = IndexTask("0 to 2999", "train", "a.tar", pieces=classes[:3000])

    def kind(*tasks: IndexTask) -> str:
        return planning.listing_workers(Workers(1, asked), tasks).kind

    assert (kind(*classes[1:]), kind(*classes)) == ("threads", many)
    assert (kind(combined, *classes[3001:]), kind(combined, *classes[3000:])) == ("threads", many)


def test_subset_has_the_requested_images(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    some = selection(classes=frozenset((0, 2)), per_class=3, any_counts=True)
    inventory = take_inventory(some, store, WORKERS, quiet=True)
    (split,) = inventory.plans

    assert split.num_per_class == (3, 0, 2)
    assert inventory.taken == Counter({"train.tar": 5})
    assert not any(key.startswith(CLASSES.wnids[1]) for key in keys(store, split))


def test_largest_holdout_leaves_one_image_per_class(tmp_path: Path) -> None:
    wanted = selection((2, 10, 1), holdout=10, any_counts=True)
    train, holdout = take_inventory(wanted, LocalStore(tmp_path), WORKERS, quiet=True).plans
    assert (train.num_per_class, holdout.num_per_class) == ((1, 1, 1), (1, 9, 0))


def test_holdout_is_taken_from_train_after_the_subset(tmp_path: Path) -> None:
    whole = selection(per_class=2, any_counts=True)
    (all_of_train,) = take_inventory(whole, LocalStore(tmp_path / "a"), WORKERS, quiet=True).plans
    store = LocalStore(tmp_path / "b")
    inventory = take_inventory(
        selection(per_class=2, any_counts=True, holdout=2), store, WORKERS, quiet=True
    )
    train, holdout = inventory.plans

    assert [(p.split, p.examples, p.num_shards) for p in inventory.plans] == [
        ("train", 4, 2),
        ("holdout", 2, 1),
    ]
    assert not set(keys(store, train)) & set(keys(store, holdout))
    assert sorted(keys(store, train) + keys(store, holdout)) == sorted(
        keys(LocalStore(tmp_path / "a"), all_of_train)
    )
    assert inventory.taken == Counter({"train.tar": 6})


def test_share_is_held_out_of_each_class(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    wanted = selection((4, 1, 4), holdout_percent=50.0)
    train, holdout = take_inventory(wanted, store, WORKERS, quiet=True).plans

    assert (train.num_per_class, holdout.num_per_class) == ((2, 1, 2), (2, 0, 2))
    names = [f"{CLASSES.wnids[0]}/{n}.JPEG" for n in range(4)]
    first = {*sorted(names, key=lambda key: plan_model.blake2b(0, "holdout", key))[:2]}
    assert {key for key in keys(store, holdout) if key.startswith(CLASSES.wnids[0])} == first


def test_every_class_must_keep_images_in_train(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=says("holdout-expected-most-since-train", "7", "6", "9 images")
    ):
        take_inventory(selection(holdout=7), LocalStore(tmp_path), WORKERS, quiet=True)


def test_validation_takes_at_most_half_of_classes(tmp_path: Path) -> None:
    wanted = selection((4, 1, 4), holdout_per_class=3)
    store = LocalStore(tmp_path / "a")
    inventory = take_inventory(wanted, store, WORKERS, quiet=True)
    train, validation = inventory.plans

    assert (train.split, train.num_per_class) == ("train", (2, 1, 2))
    assert (validation.split, validation.num_per_class) == ("validation", (2, 0, 2))
    assert len({*keys(store, train), *keys(store, validation)}) == 9
    assert inventory.taken == Counter({"train.tar": 9})
    assert wanted.is_subset
    one = take_inventory(selection((4, 1, 4), holdout_per_class=1), store, WORKERS, quiet=True)
    images = itertools.product((0, 2), range(4))
    assert {*keys(store, one.plans[1])} <= {f"{CLASSES.wnids[i]}/{n}.JPEG" for i, n in images}
    single = selection((1, 1, 1), holdout_per_class=3, any_counts=True)
    with pytest.raises(UsageError, match=says("no-class-more-one-image", "--holdout-per-class 3")):
        take_inventory(single, LocalStore(tmp_path / "b"), WORKERS, quiet=True)


def test_known_edition_is_named_without_allow_subset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Edition("ImageNet of three classes", 3, {"train": 8})
    monkeypatch.setattr(class_list, "_OTHERS", (known,))
    some = selection((4, 3, 1), per_class=2, any_counts=True)
    wanted = {"whole": selection((4, 3, 1)), "some": some, "other": selection()}
    found = {
        name: take_inventory(each, LocalStore(tmp_path / name), WORKERS, quiet=True).edition
        for name, each in wanted.items()
    }

    assert found == {"whole": known.name, "some": known.name, "other": ""}


def test_other_counts_need_allow_subset(tmp_path: Path) -> None:
    few = selection((4, 3, 1))
    with pytest.raises(SourceError, match="/in: incomplete: train has 8 images.*--allow-subset"):
        take_inventory(few, LocalStore(tmp_path / "a"), WORKERS, quiet=True)
    few = replace(few, any_counts=True)
    (split,) = take_inventory(few, LocalStore(tmp_path / "b"), WORKERS, quiet=True).plans
    assert split.examples == 8


def test_classes_without_an_image_are_refused(tmp_path: Path) -> None:
    empty = selection((9, 0, 0), classes=frozenset((1,)), any_counts=True)
    with pytest.raises(UsageError, match=says("no-images-selected-classes", "train")):
        take_inventory(empty, LocalStore(tmp_path), WORKERS, quiet=True)


@pytest.mark.parametrize(
    ("asked", "examples", "shards"),
    [(None, 1_281_167, 1024), (None, 1300, 2), (None, 1, 1), (7, 7, 7), (8, 7, None)],
)
def test_number_of_shards_follows_the_examples(
    asked: int | None, examples: int, shards: int | None
) -> None:
    wanted = selection(num_shards={"train": asked})
    if shards is None:
        with pytest.raises(
            UsageError, match=says("shards-expected-most-one-each", "train", "8", "7 shards")
        ):
            wanted.shards_of("train", examples)
    else:
        assert wanted.shards_of("train", examples) == shards


def test_unpacked_images_of_other_sources_are_removed(tmp_path: Path) -> None:
    ours = selection()
    for name in (ours.index_digest[:16], "f" * 16):
        (tmp_path / UNPACKED / name).mkdir(parents=True)
    remove_unpacked(LocalStore(tmp_path), keep=ours)
    assert [path.name for path in (tmp_path / UNPACKED).iterdir()] == [ours.index_digest[:16]]
    remove_unpacked(LocalStore(tmp_path))
    assert not (tmp_path / UNPACKED).exists()


def test_excluded_image_leaves_its_place_empty(tmp_path: Path) -> None:
    whole = LocalStore(tmp_path / "a")
    part = LocalStore(tmp_path / "b")
    (before,) = take_inventory(selection(num_shards={"train": 3}), whole, WORKERS, quiet=True).plans
    first = plan_name(before.shard_names[0])
    out, *left = parse_members(whole.read(first))
    # The required counts are those of the source.
    inventory = take_inventory(
        excluding(out.key, num_shards={"train": 3}), part, WORKERS, quiet=True
    )
    (after,) = inventory.plans

    assert parse_members(part.read(first)) == left
    for shard in before.shard_names[1:]:
        assert part.read(plan_name(shard)) == whole.read(plan_name(shard))
    assert after.num_shards == before.num_shards
    assert (before.examples, after.examples) == (9, 8)
    assert after.num_per_class[out.class_index] == before.num_per_class[out.class_index] - 1
    assert inventory.taken == Counter({"train.tar": 8})


def test_exclusion_comes_after_the_subset_and_the_holdout(tmp_path: Path) -> None:
    how: dict[str, Any] = {"per_class": 2, "any_counts": True, "holdout": 2}
    whole = LocalStore(tmp_path / "a")
    part = LocalStore(tmp_path / "b")
    before = take_inventory(selection(**how), whole, WORKERS, quiet=True).plans
    in_train, in_holdout = (keys(whole, split)[0] for split in before)
    after = take_inventory(excluding(in_train, in_holdout, **how), part, WORKERS, quiet=True).plans

    for old, new, key in zip(before, after, (in_train, in_holdout), strict=True):
        assert keys(part, new) == [each for each in keys(whole, old) if each != key]


def test_unknown_excluded_keys_are_refused(tmp_path: Path) -> None:
    known = f"{CLASSES.wnids[0]}/1.JPEG"
    classless = f"{CLASSES.wnids[1]}/1.JPEG"
    chosen = excluding(known, classless, "x/y.JPEG", classes=frozenset((0,)), any_counts=True)
    with pytest.raises(UsageError) as refused:
        take_inventory(chosen, LocalStore(tmp_path), WORKERS, quiet=True)
    assert says(
        "no-such-key-write-one", "list", "lines", "2, 3", "the images selected from /in"
    ).match(str(refused.value))


def test_ambiguous_excluded_key_is_refused(tmp_path: Path) -> None:
    class Both(ListSource):
        """Validation has images of the same names, as folders of classes may."""

    key = f"{CLASSES.wnids[0]}/1.JPEG"
    parts = (SourcePart("train.tar", 90, 1), SourcePart("validation.tar", 90, 1))
    how: dict[str, Any] = {"splits": ("train", "validation"), "num_shards": {}}
    chosen = excluding(key, source=Both(CLASSES, parts), **how)
    with pytest.raises(
        UsageError,
        match=says(
            "each-image-key-write-choose",
            "list",
            key,
            "train and validation",
            f"train:{key} or validation:{key}",
        ),
    ):
        take_inventory(chosen, LocalStore(tmp_path), WORKERS, quiet=True)


def test_earlier_plan_is_removed_before_the_next(tmp_path: Path) -> None:
    class Full(ListSource):
        def index(self, task: IndexTask) -> list[Member]:
            raise IncompleteError(f"no space is left for {task.name}")

    store = LocalStore(tmp_path)
    store.make_folder(PLAN_FOLDER)
    store.path(f"{PLAN_FOLDER}/train.run-0000").write_bytes(b"left by a full disk")
    with pytest.raises(IncompleteError, match="no space is left"):
        full = selection(source=Full(CLASSES, (SourcePart("train.tar", 90, 1),)))
        take_inventory(full, store, WORKERS, quiet=True)
    assert not store.names(PLAN_FOLDER)


def test_empty_shard_after_exclusion_is_refused(tmp_path: Path) -> None:
    every = [f"{CLASSES.wnids[0]}/{number}.JPEG" for number in range(4)]
    chosen = excluding(*every, classes=frozenset((0,)), any_counts=True)
    with pytest.raises(
        UsageError, match=says("exclude-leaves-no-image-request", "train-00000-of-00002, tr")
    ):
        take_inventory(chosen, LocalStore(tmp_path), WORKERS, quiet=True)


PIECES = {"train_1": 5, "train_2": 2}


def of_records(root: Path) -> Source:
    """Returns two files of records; the first is listed in several pieces."""
    for name, count in PIECES.items():
        rows = [(n % 2, f"{'ab'[n % 2]}/{name}_{n}.jpg", bytes(90)) for n in range(count)]
        layouts.write_recordio(root / f"{name}.rec", rows)
    return recordio.find(root, ["train"])


def of_parquet(root: Path) -> Source:
    """Returns two files of rows."""
    for number, (name, count) in enumerate(PIECES.items()):
        rows = [
            {"image": {"bytes": b"image", "path": f"{name}_{n}.jpg"}, "label": n % 2}
            for n in range(count)
        ]
        layouts.write_parquet(root / f"train-0000{number}-of-00002.parquet", rows, ["a", "b"])
    return parquet.find(root, ["train"])


def of_class_tars(root: Path) -> Source:
    """Returns a folder with a tar per class."""
    names = {f"n0000000{n}": [f"{n}_{i}.JPEG" for i in range(m)] for n, m in ((1, 5), (2, 2))}
    layouts.make_class_tars(names, root, whole=False)
    return ilsvrc.find_class_tars(root, ["train"])


@pytest.mark.parametrize(
    ("find", "parts"),
    [
        (of_records, {"train_1.rec": 5, "train_2.rec": 2}),
        pytest.param(
            of_parquet,
            {"train-00000-of-00002.parquet": 5, "train-00001-of-00002.parquet": 2},
            marks=pytest.mark.extras,
        ),
        (of_class_tars, {"winter21_whole": 7}),
    ],
)
@pytest.mark.parametrize("holdout", [0, 3])
def test_each_part_of_a_split_counts_its_images(
    find: Callable[[Path], Source],
    parts: dict[str, int],
    holdout: int,
    tmp_path: Path,
    limits: Limits,
) -> None:
    limits(recordio_piece_bytes=200)
    chosen = selection(
        source=find(tmp_path / "in"),
        any_counts=True,
        num_shards={"train": 1},
        classes=frozenset(range(2)),
        holdout=holdout,
    )
    taken = take_inventory(chosen, LocalStore(tmp_path / "out"), WORKERS, quiet=True).taken
    assert taken == Counter(parts)


def test_joint_list_gives_the_plan_of_separate_lists(tmp_path: Path) -> None:
    one = LocalStore(tmp_path / "a")
    other = LocalStore(tmp_path / "b")
    mixed = selection(source=MixedListSource(CLASSES, PARTS), holdout=3)
    found = take_inventory(mixed, one, WORKERS, quiet=True)

    assert found == take_inventory(selection(holdout=3), other, WORKERS, quiet=True)
    for name in found.shard_names:
        assert one.read(plan_name(name)) == other.read(plan_name(name))


class WithValidation(MixedListSource):
    """And one list of a validation split, with ILSVRC2012's names of images."""

    def index(self, task: IndexTask) -> list[Member]:
        if task.split == "train":
            return super().index(task)
        return [
            Member(f"ILSVRC2012_val_{i:08d}.JPEG", "v.tar", i * 7, 9 + i, i * 5 % 3)
            for i in range(1, 70)
        ]


BIG = (211, 0, 97)
BOTH = {"splits": ("train", "validation"), "num_shards": {"train": 5, "validation": 4}}
DEALT: dict[str, tuple[Selection, list[str]]] = {
    "holdout": (
        selection(BIG, holdout=37, num_shards={}, any_counts=True),
        ["cd673d0ba81e", "70c70b67d501"],
    ),
    "all but one of each class": (
        selection(BIG, holdout=sum(BIG) - 3, num_shards={"train": 1}, any_counts=True),
        ["4d2c19e45f56", "4012e8ba9c9b"],
    ),
    "per class": (
        selection(BIG, holdout_per_class=20, num_shards=BOTH["num_shards"], any_counts=True),
        ["db66f5499ba7", "8b605fd81489"],
    ),
    "both splits": (
        selection(source=WithValidation(CLASSES, PARTS, BIG), seed=-3, any_counts=True, **BOTH),
        ["aece31d65406", "70500059bad3"],
    ),
    "some of a list of all": (
        selection(
            source=MixedListSource(CLASSES, PARTS, BIG),
            classes=frozenset((0, 2)),
            per_class=90,
            holdout=50,
            num_shards={"train": 4},
            any_counts=True,
        ),
        ["a17ac5c58e53", "b5095f8392e4"],
    ),
    "excluded": (
        excluding(
            *(f"{CLASSES.wnids[i]}/{n}.JPEG" for i, n in ((0, 1), (2, 5))),
            source=ListSource(CLASSES, PARTS, BIG),
            holdout=9,
            num_shards={"train": 6},
            any_counts=True,
        ),
        ["a74bbdbe4f93", "1b8adad61057"],
    ),
}


@pytest.mark.parametrize("case", DEALT)
def test_plan_equals_that_of_version_0_1_0(case: str, tmp_path: Path) -> None:
    wanted, expected = DEALT[case]
    store = LocalStore(tmp_path)
    found = take_inventory(wanted, store, WORKERS, quiet=True)

    assert [split.digest[:12] for split in found.plans] == expected
    names = {plan.file_name(name) for name in found.shard_names}
    names |= {f"excluded-{split}.jsonl" for split in found.excluded}
    assert set(store.names(PLAN_FOLDER)) == names
    folders = sorted(path.name for path in store.path(".work").iterdir() if path.is_dir())
    assert [name.partition("-")[0] for name in folders] == ["index", "plan", "temporary"]
    assert not list(store.path(".work/temporary").iterdir())


def test_list_may_be_larger_than_small_files(tmp_path: Path) -> None:
    limits = []

    class Recorded(LocalStore):
        def read_each(self, names: Iterable[str], most: int = 0) -> Iterator[bytes]:
            names = [*names]
            if any(name.endswith(".entries") for name in names):
                limits.append(most)
            return super().read_each(names, most)

    take_inventory(selection(), Recorded(tmp_path), WORKERS, quiet=True)
    assert limits == [plan.MOST_BYTES]


def test_validation_image_in_two_classes_is_refused(tmp_path: Path) -> None:
    class Repeated(ListSource):
        """Its classes share a validation image."""

        def index(self, task: IndexTask) -> list[Member]:
            first, *others = super().index(task)
            return [first._replace(key="ILSVRC2012_val_00000001.JPEG"), *others]

    with pytest.raises(SourceError, match=says("image-two-classes", ..., "_00000001.JPEG'")):
        wanted = selection(source=Repeated(CLASSES, PARTS))
        take_inventory(wanted, LocalStore(tmp_path), WORKERS, quiet=True)


def test_equal_keys_in_two_lists_are_refused(tmp_path: Path) -> None:
    class Twice(MixedListSource):
        """Two archives with the same images."""

        def index_tasks(self, split: str) -> list[IndexTask]:
            return [IndexTask(name, split, name) for name in ("b.tar", "a.tar")]

        def index(self, task: IndexTask) -> list[Member]:
            members = super().index(IndexTask("train", "train", "train.tar"))
            return [member._replace(archive=task.name) for member in members]

    wanted = selection(source=Twice(CLASSES, PARTS), any_counts=True)
    with pytest.raises(SourceError) as refused:
        take_inventory(wanted, LocalStore(tmp_path), WORKERS, quiet=True)
    assert str(refused.value) == (
        "/in: 'n00000001/0.JPEG' appears twice, in a.tar and in b.tar. Remove one."
    )


def lists_of(wanted: Selection, store: LocalStore) -> tuple[Path, Path]:
    """Makes the lists of a selection; returns one list, and its entries."""
    take_inventory(wanted, store, WORKERS, quiet=True)
    folder = store.path(index_stage(wanted, store).folder) / "members"
    task = wanted.index_tasks()[0].name
    return folder / f"{task}.jsonl", folder / f"{task}.entries"


@pytest.mark.parametrize("ending", ["jsonl", "entries"])
def test_list_that_changed_is_made_again(tmp_path: Path, ending: str) -> None:
    """After a loss of power, a list that was not synced may have its size, but not its bytes."""
    wanted = selection(source=ListSource(CLASSES, PARTS))
    store = LocalStore(tmp_path)
    (lost,) = (path for path in lists_of(wanted, store) if path.name.endswith(ending))
    expected = lost.read_bytes()
    lost.write_bytes(bytes(len(expected)))
    take_inventory(wanted, store, WORKERS, quiet=True)

    assert lost.read_bytes() == expected


@pytest.mark.parametrize("source", [ListSource, MixedListSource])
def test_list_with_a_changed_class_is_damaged(source: type[ListSource], tmp_path: Path) -> None:
    """The image would be written with the label of this class."""
    wanted = selection(source=source(CLASSES, PARTS))
    store = LocalStore(tmp_path)
    lines, _ = lists_of(wanted, store)
    data = lines.read_bytes()
    assert data.count(b",0]\n") == 4
    lines.write_bytes(data.replace(b",0]\n", b",2]\n", 1))
    plant_hashes(store, index_stage(wanted, store).folder)

    with pytest.raises(DataDamagedError, match=says("lists-image-different-class")):
        take_inventory(wanted, store, WORKERS, quiet=True)


@pytest.mark.parametrize("source", [ListSource, MixedListSource])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"line_bytes": 9}, says("list-not-match-entries")),
        ({"class_index": 1 << 31}, "of a different class|of an unknown class"),
        ({"class_index": 3}, "of a different class|of an unknown class"),
    ],
)
def test_changed_entries_are_damaged(
    source: type[ListSource], changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    wanted = selection(source=source(CLASSES, PARTS))
    store = LocalStore(tmp_path)
    _, entries = lists_of(wanted, store)
    rows = np.fromfile(entries, plan.ENTRY)
    for name, value in changes.items():
        rows[name][1] = value
    rows.tofile(entries)
    plant_hashes(store, index_stage(wanted, store).folder)

    with pytest.raises(DataDamagedError, match=message):
        take_inventory(wanted, store, WORKERS, quiet=True)


def test_lists_that_differ_from_their_receipts_are_damaged(tmp_path: Path) -> None:
    wanted = selection(source=MixedListSource(CLASSES, PARTS))
    store = LocalStore(tmp_path)
    lines, entries = lists_of(wanted, store)
    lines.write_bytes(lines.read_bytes().replace(b",0]\n", b",2]\n", 1))
    rows = np.fromfile(entries, plan.ENTRY)
    rows["class_index"][np.flatnonzero(rows["class_index"] == 0)[0]] = 2
    rows.tofile(entries)
    plant_hashes(store, index_stage(wanted, store).folder)

    with pytest.raises(DataDamagedError, match=says("numbers-images-class-differ-receipt")):
        take_inventory(wanted, store, WORKERS, quiet=True)


def test_files_above_four_gigabytes_are_planned(tmp_path: Path) -> None:
    class Large(ListSource):
        def index(self, task: IndexTask) -> list[Member]:
            return [member._replace(size=1 << 33) for member in super().index(task)]

    wanted = selection(source=Large(CLASSES, PARTS))
    store = LocalStore(tmp_path)
    (split,) = take_inventory(wanted, store, WORKERS, quiet=True).plans
    for name in split.shard_names:
        members = parse_members(store.read(plan_name(name)))
        assert {member.size for member in members} == {1 << 33}


def shared_plan(wanted: Selection, store: LocalStore) -> tuple[SharedPlan, Inventory]:
    """Makes a plan as a worker of a cluster does."""
    stage = index_stage(wanted, store)
    tasks = wanted.index_tasks()
    listed = [stage.publish(task, stage.make(task)).content for task in tasks]
    steps = SharedPlan.of(wanted, store, None)
    assert steps.stored() is None, "the plan is complete before its record"
    return steps, steps.make(tasks, listed, stage.folder)


def test_excluded_images_are_stored_with_a_shared_plan(tmp_path: Path) -> None:
    """Two of the four images of the class are held out, so three are in both splits."""
    keys = [f"{CLASSES.wnids[0]}/{number}.JPEG" for number in (1, 2, 3)]
    wanted = excluding(*keys, holdout_percent=40.0, any_counts=True)
    store = LocalStore(tmp_path)
    steps, made = shared_plan(wanted, store)

    assert {*made.excluded} == {"train", "holdout"}
    assert steps.stored() == made
    excluded = [*itertools.chain.from_iterable(m for _, m in made.excluded_members(store))]
    assert sorted(member.key for member in excluded) == keys


def test_plan_record_leads_to_no_other_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    steps, made = shared_plan(selection(), store)
    note = f"{made.folder}/plan.json"
    store.write(note, store.read(note).replace(made.folder.encode(), b"../elsewhere"))
    assert steps.stored() == made


def test_incomplete_shared_plan_is_made_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    steps, made = shared_plan(selection(), store)
    other = SharedPlan.of(selection(seed=1), store, None)
    assert other.planner.folder != made.folder
    store.remove(plan_name(made.shard_names[0], made.folder))
    assert steps.stored() is None


@pytest.mark.parametrize(
    "change", [{"any_counts": True}, {"seed": 1}, {"per_class": 2}, {"splits": ("validation",)}]
)
def test_different_selections_have_different_shared_plans(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """A run without --allow-subset would otherwise take a plan whose counts were not checked."""
    store = LocalStore(tmp_path)
    folders = {
        SharedPlan.of(selection(**more), store, None).planner.folder for more in ({}, change)
    }
    assert len(folders) == 2


def test_job_without_its_lease_completes_no_plan(tmp_path: Path, limits: Limits) -> None:
    calls = []

    def check() -> None:
        calls.append(store.names(folder))
        if len(calls) == 3:
            raise JobLostError("taken over")

    limits(plan_files_at_once=1)
    wanted = selection()
    store = LocalStore(tmp_path)
    stage = index_stage(wanted, store)
    tasks = wanted.index_tasks()
    listed = [stage.publish(task, stage.make(task)).content for task in tasks]
    steps = SharedPlan.of(wanted, store, None)
    folder = steps.planner.folder
    with pytest.raises(JobLostError):
        steps.make(tasks, listed, stage.folder, check)
    first = "train-00000-of-00002.jsonl"
    second = "train-00001-of-00002.jsonl"
    assert calls == [[], [first], [first, second]]
    assert steps.stored() is None


def test_image_is_excluded_by_bytes_under_any_name(tmp_path: Path) -> None:
    """The line with its former name then names an image, although no key is equal."""
    wnid = CLASSES.wnids[0]
    task = IndexTask("train", "train", "train.tar")
    members = tuple(Member(f"{wnid}/{n}.JPEG", "train.tar", 512 * n, 10, 0) for n in range(4))
    source = plan_model.RandomSource(CLASSES, PARTS, lists=((task, members),))
    data = plan_model.image_of(members[2])
    line = f"{wnid}/former name.JPEG"
    files = {hashlib.sha256(data).hexdigest(): ListedFile(10, line)}
    excluded = KeyList("list", {line: 1}, "its digest", files=files)
    wanted = selection(source=source, excluded=excluded)
    store = LocalStore(tmp_path)
    inventory = take_inventory(wanted, store, WORKERS, quiet=True)

    assert [*inventory.excluded_members(store)] == [("train", [members[2]])]
    assert inventory.examples == 3


@pytest.mark.parametrize("is_export", [False, True])
def test_labels_except_amended_ones_match_the_published(is_export: bool, tmp_path: Path) -> None:
    wnids = ("n01440764", "n01751748")  # the first validation image is in the second class
    task = IndexTask("validation", "validation", "validation.tar")
    member = Member("ILSVRC2012_val_00000001.JPEG", "validation.tar", 512, 10, 0)
    parts = (SourcePart("validation.tar", 90, 1),)
    source = plan_model.RandomSource(
        ClassList(wnids, wnids), parts, lists=((task, (member,)),), is_export=is_export
    )
    wanted = selection(
        source=source, splits=("validation",), num_shards={}, classes=frozenset({0, 1})
    )
    store = LocalStore(tmp_path)
    if is_export:
        assert take_inventory(wanted, store, WORKERS, quiet=True).examples == 1
        return
    with pytest.raises(SourceError, match="n01751748"):
        take_inventory(wanted, store, WORKERS, quiet=True)


def test_lists_of_a_different_seed_are_not_reused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "same")
    for number, more in enumerate([{}, {"seed": 5}, {"seed": 5, "holdout": 2}]):
        wanted = selection(any_counts=True, **more)
        found = take_inventory(wanted, store, WORKERS, quiet=True)
        new = LocalStore(tmp_path / str(number))
        assert found == take_inventory(wanted, new, WORKERS, quiet=True)
