"""From a source to plans, on a source that is a list."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, SourceError, UsageError
from imagenet_prep.dataset import editions
from imagenet_prep.dataset.editions import Edition
from imagenet_prep.dataset.member import Member, dump_member, parse_members
from imagenet_prep.engine import Stage, Workers
from imagenet_prep.preparation import inventory as inventories
from imagenet_prep.preparation import planning
from imagenet_prep.preparation.dealing import divide
from imagenet_prep.preparation.inventory import remove_unpacked, take_inventory
from imagenet_prep.preparation.planning import Census, ClassKey, Planning
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.preparation.tasks import PLAN_FOLDER, UNPACKED, plan_name
from imagenet_prep.shards import plan
from imagenet_prep.sources import class_tars, parquet, recordio
from imagenet_prep.sources.source import IndexTask, Part, Source
from imagenet_prep.storage.folder import LocalStore
from tests.kit import layouts
from tests.kit.limits import Limits
from tests.kit.listed import CLASSES, WORKERS, Listed, Mixed, excluding, selection


def keys(store: LocalStore, split: plan.SplitPlan) -> list[str]:
    lists = (parse_members(store.read(plan_name(shard))) for shard in split.shard_names)
    return [member.key for members in lists for member in members]


def test_every_image_is_dealt_out_once(tmp_path: Path) -> None:
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
def test_many_classes_are_listed_by_the_workers_that_were_asked_for(asked: str, many: str) -> None:
    def kind(num_tasks: int) -> str:
        return inventories.listing_workers(Workers(1, asked), num_tasks).kind

    assert (kind(3999), kind(4000)) == ("threads", many)


def test_a_subset_is_what_was_asked_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    some = selection(classes=frozenset((0, 2)), per_class=3, any_counts=True)
    inventory = take_inventory(some, store, WORKERS, quiet=True)
    (split,) = inventory.plans

    assert split.num_per_class == (3, 0, 2)
    assert inventory.taken == Counter({"train.tar": 5})
    assert not any(key.startswith(CLASSES.wnids[1]) for key in keys(store, split))


def test_a_holdout_is_taken_out_of_train_after_the_subset(tmp_path: Path) -> None:
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


def test_a_share_is_held_out_of_each_class(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    wanted = selection((4, 1, 4), holdout_percent=50.0)
    train, holdout = take_inventory(wanted, store, WORKERS, quiet=True).plans

    assert (train.num_per_class, holdout.num_per_class) == ((2, 1, 2), (2, 0, 2))
    names = (f"{CLASSES.wnids[0]}/{n}.JPEG" for n in range(4))
    of_class = [Member(name, "", 0, 1, 0) for name in names]
    first = {member.key for member in sorted(of_class, key=lambda m: plan.rank(m, 0))[:2]}
    assert {key for key in keys(store, holdout) if key.startswith(CLASSES.wnids[0])} == first


def test_something_of_each_class_must_be_left_in_train(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="--holdout 7: expected at most 6, since train has 9 images"
    ):
        take_inventory(selection(holdout=7), LocalStore(tmp_path), WORKERS, quiet=True)


def test_validation_is_taken_out_of_each_class_at_most_half_of_it(tmp_path: Path) -> None:
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
    assert {*keys(store, one.plans[1])} <= {
        *(f"{CLASSES.wnids[i]}/{n}.JPEG" for i in (0, 2) for n in range(4))
    }
    single = selection((1, 1, 1), holdout_per_class=3, any_counts=True)
    with pytest.raises(UsageError, match="--holdout-per-class 3: no class has more than one image"):
        take_inventory(single, LocalStore(tmp_path / "b"), WORKERS, quiet=True)


def test_a_known_edition_is_named_and_needs_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Edition("ImageNet of three classes", 3, {"train": 8})
    monkeypatch.setattr(editions, "_OTHERS", (known,))
    some = selection((4, 3, 1), per_class=2, any_counts=True)
    wanted = {"whole": selection((4, 3, 1)), "some": some, "other": selection()}
    found = {
        name: take_inventory(each, LocalStore(tmp_path / name), WORKERS, quiet=True).edition
        for name, each in wanted.items()
    }

    assert found == {"whole": known.name, "some": known.name, "other": ""}


def test_other_counts_need_a_word(tmp_path: Path) -> None:
    few = selection((4, 3, 1))
    with pytest.raises(SourceError, match="/in: incomplete: train has 8 images.*--allow-subset"):
        take_inventory(few, LocalStore(tmp_path / "a"), WORKERS, quiet=True)
    few = replace(few, any_counts=True)
    (split,) = take_inventory(few, LocalStore(tmp_path / "b"), WORKERS, quiet=True).plans
    assert split.examples == 8


def test_classes_without_an_image_are_refused(tmp_path: Path) -> None:
    empty = selection((9, 0, 0), classes=frozenset((1,)), any_counts=True)
    with pytest.raises(UsageError, match="train: has no images of the selected classes"):
        take_inventory(empty, LocalStore(tmp_path), WORKERS, quiet=True)


@pytest.mark.parametrize(
    ("asked", "examples", "shards"),
    [(None, 1_281_167, 1024), (None, 1300, 2), (None, 1, 1), (7, 7, 7), (8, 7, None)],
)
def test_the_number_of_shards(asked: int | None, examples: int, shards: int | None) -> None:
    wanted = selection(num_shards={"train": asked})
    if shards is None:
        with pytest.raises(UsageError, match="--train-shards 8: expected at most 7 shards"):
            wanted.shards_of("train", examples)
    else:
        assert wanted.shards_of("train", examples) == shards


def test_what_another_source_unpacked_is_removed_and_our_own_at_the_end(tmp_path: Path) -> None:
    ours = selection()
    for name in (ours.index_digest[:16], "f" * 16):
        (tmp_path / UNPACKED / name).mkdir(parents=True)
    remove_unpacked(LocalStore(tmp_path), keep=ours)
    assert [path.name for path in (tmp_path / UNPACKED).iterdir()] == [ours.index_digest[:16]]
    remove_unpacked(LocalStore(tmp_path))
    assert not (tmp_path / UNPACKED).exists()


def test_an_excluded_image_leaves_its_place_empty(tmp_path: Path) -> None:
    whole = LocalStore(tmp_path / "a")
    part = LocalStore(tmp_path / "b")
    (before,) = take_inventory(selection(num_shards={"train": 3}), whole, WORKERS, quiet=True).plans
    first = plan_name(before.shard_names[0])
    out, *left = parse_members(whole.read(first))
    # The counts that are demanded are the source's.
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


def test_keys_that_no_image_has_are_not_excluded_in_silence(tmp_path: Path) -> None:
    known = f"{CLASSES.wnids[0]}/1.JPEG"
    classless = f"{CLASSES.wnids[1]}/1.JPEG"
    chosen = excluding(known, classless, "x/y.JPEG", classes=frozenset((0,)), any_counts=True)
    with pytest.raises(UsageError) as refused:
        take_inventory(chosen, LocalStore(tmp_path), WORKERS, quiet=True)
    assert str(refused.value).startswith(
        "list: lines 2, 3: no such key in the images selected from /in. "
    )


def test_a_key_of_two_splits_is_not_excluded(tmp_path: Path) -> None:
    class Both(Listed):
        """Validation holds images of the same names, as folders of classes may."""

    key = f"{CLASSES.wnids[0]}/1.JPEG"
    parts = (Part("train.tar", 90, 1), Part("validation.tar", 90, 1))
    how: dict[str, Any] = {"splits": ("train", "validation"), "num_shards": {}}
    chosen = excluding(key, source=Both(CLASSES, parts), **how)
    with pytest.raises(
        UsageError,
        match=f"^list: {key}: train and validation each have an image with this key. "
        f"Write train:{key} or validation:{key}, or choose one split with --splits",
    ):
        take_inventory(chosen, LocalStore(tmp_path), WORKERS, quiet=True)


def test_the_plan_of_an_earlier_run_takes_no_space_of_the_next(tmp_path: Path) -> None:
    class Full(Listed):
        def index(self, task: IndexTask) -> list[Member]:
            raise IncompleteError(f"no space is left for {task.name}")

    store = LocalStore(tmp_path)
    store.make_folder(PLAN_FOLDER)
    store.path(f"{PLAN_FOLDER}/train.run-0000").write_bytes(b"left by a full disk")
    with pytest.raises(IncompleteError, match="no space is left"):
        full = selection(source=Full(CLASSES, (Part("train.tar", 90, 1),)))
        take_inventory(full, store, WORKERS, quiet=True)
    assert not store.names(PLAN_FOLDER)


def test_no_shard_may_be_left_empty(tmp_path: Path) -> None:
    every = [f"{CLASSES.wnids[0]}/{number}.JPEG" for number in range(4)]
    chosen = excluding(*every, classes=frozenset((0,)), any_counts=True)
    with pytest.raises(UsageError, match="--exclude leaves no image in train-00000-of-00002, tr"):
        take_inventory(chosen, LocalStore(tmp_path), WORKERS, quiet=True)


PIECES = {"train_1": 5, "train_2": 2}


def of_records(root: Path) -> Source:
    """Returns two files of records, the first of which is listed in several pieces."""
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
    """Returns a folder of a tar for each class."""
    names = {f"n0000000{n}": [f"{n}_{i}.JPEG" for i in range(m)] for n, m in ((1, 5), (2, 2))}
    layouts.make_class_tars(names, root, whole=False)
    return class_tars.find(root, ["train"])


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
def test_each_part_of_a_split_is_said_to_hold_its_own_images(
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


def test_a_list_of_all_classes_gives_the_plan_of_a_list_each_and_is_never_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    sizes: list[int] = []

    def parsed(lines: bytes) -> list[Member]:
        sizes.append(len(lines))
        return parse_members(lines)

    limits(parsed_plan_bytes=50)
    monkeypatch.setattr(planning, "parse_members", parsed)
    parts = (Part("train.tar", 90, 1),)
    one = LocalStore(tmp_path / "a")
    other = LocalStore(tmp_path / "b")
    mixed = selection(source=Mixed(CLASSES, parts), holdout=3)
    found = take_inventory(mixed, one, WORKERS, quiet=True)
    # A class has 172 bytes at most, and the list has 387.
    # The largest class has 163 bytes, and the list 366.
    assert max(sizes) == 163
    expected = take_inventory(selection(holdout=3), other, WORKERS, quiet=True)

    assert found == expected
    assert sorted(path.name for path in one.path(PLAN_FOLDER).iterdir()) == sorted(
        f"{name}.jsonl" for split in found.plans for name in split.shard_names
    )


class WithValidation(Mixed):
    """And one list of a validation split, whose images have ILSVRC2012's names."""

    def index(self, task: IndexTask) -> list[Member]:
        if task.split == "train":
            return super().index(task)
        return [
            Member(f"ILSVRC2012_val_{i:08d}.JPEG", "v.tar", i * 7, 9 + i, i * 5 % 3)
            for i in range(1, 70)
        ]


BIG = (211, 0, 97)
PARTS = (Part("train.tar", 90, 1),)
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
            source=Mixed(CLASSES, PARTS, BIG),
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
            source=Listed(CLASSES, PARTS, BIG),
            holdout=9,
            num_shards={"train": 6},
            any_counts=True,
        ),
        ["a74bbdbe4f93", "1b8adad61057"],
    ),
}


def as_processes_get_it(name: str, digest: str, store: Any, work: Any, *more: Any) -> Any:
    return Stage(name, digest, store, pickle.loads(pickle.dumps(work)), *more)


@pytest.mark.parametrize("cut", ["whole", "in pieces", "by the engine"])
@pytest.mark.parametrize("case", DEALT)
def test_the_plan_is_the_one_it_always_was_however_it_is_cut(
    case: str, cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    if cut != "whole":
        limits(sorted_run_entries=23)
    if cut == "by the engine":
        limits(listed_in_one_process=0)
        monkeypatch.setattr(inventories.engine, "Stage", as_processes_get_it)
    wanted, expected = DEALT[case]
    store = LocalStore(tmp_path)
    found = take_inventory(wanted, store, WORKERS, quiet=True)

    assert [split.digest[:12] for split in found.plans] == expected
    assert set(store.names(PLAN_FOLDER)) == {
        plan.file_name(name) for split in found.plans for name in split.shard_names
    }
    folders = sorted(path.name for path in store.path(".work").iterdir() if path.is_dir())
    assert [name.partition("-")[0] for name in folders] == ["index", "plan", "temporary"]


class _Killed(LocalStore):
    """A folder in which receipts stay, as they do if a run is killed."""

    def remove_tree(self, name: str) -> None:
        if name == PLAN_FOLDER:
            super().remove_tree(name)


def test_receipts_for_the_plan_of_a_killed_run_are_not_used(tmp_path: Path, limits: Limits) -> None:
    limits(listed_in_one_process=0)
    first = take_inventory(selection(), _Killed(tmp_path), WORKERS, quiet=True)

    assert take_inventory(selection(), LocalStore(tmp_path), WORKERS, quiet=True) == first


def test_the_list_of_a_class_may_have_more_than_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "list"
    with path.open("wb") as file:
        file.truncate(regular_file.MOST_BYTES + 1)
    lists = inventories._Lists({0: [path]}, [])
    assert [(index, len(lines)) for index, lines in lists.lines(0, 1)] == [(0, path.stat().st_size)]


def test_a_list_below_work_with_an_image_of_another_class_is_damaged(tmp_path: Path) -> None:
    """It would be written with the label of this class."""
    steps = Planning(selection(), None, LocalStore(tmp_path), "plan")
    key = ClassKey("train", 1)
    lines = [Member(f"n/{n}.JPEG", "a.tar", n, 9, 1) for n in range(3)]

    def dumped(*members: Member) -> bytes:
        return b"".join(dump_member(member) for member in members)

    used = [0, 3, 0]
    census = Census("", {"train": used}, {}, {"train": divide(selection(), "train", used)})
    assert steps.deal(key, dumped(*lines), census)
    for index in (0, 2):
        other = dumped(*lines[:2], lines[2]._replace(class_index=index))
        with pytest.raises(DataDamagedError, match="it lists an image of a different class"):
            steps.deal(key, other, census)
