"""Changes of `amend` that follow from keys only: places of new images, and refusals."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList, ListedFile, salted
from imagenet_prep.dataset.member import Incident, Member, Origin
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.preparation.additions import Additions, read_additions
from imagenet_prep.preparation.changes import (
    AmendWork,
    ChangeRequest,
    Relabels,
    ShardChange,
    changes_of,
    read_relabels,
)
from imagenet_prep.shards import plan
from imagenet_prep.shards.writer import StoredRecord, WrittenShard
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import exactly, says
from tests.kit.samples import add_tables, kept
from tests.kit.tfrecords import picture, plain, wnid, write_dataset


class _Work(AmendWork):
    """Work with given records, and with names instead of new images."""

    def __init__(self, samples: Sequence[Sample], seed: int = 0) -> None:
        self.__dict__.update(samples=samples, seed=seed, images=object())

    def _staying(self, change: ShardChange, left_out: object) -> Any:  # noqa: ARG002
        stay = (each for each in self.samples if each.key not in change.excluded)  # type: ignore[attr-defined]
        return (StoredRecord((b"", b"", b""), each) for each in stay)

    def _read(self, member: Member) -> tuple[Member, bytes]:
        return member, b""


def order(
    before: Sequence[str], *added: str, left_out: Sequence[str] = (), seed: int = 0
) -> list[str]:
    """Returns the keys of a shard after an amendment."""
    members = tuple(Member(key, "a", 0, 1, 0) for key in added)
    change = ShardChange(cast("Any", None), dict.fromkeys(left_out, ""), {}, members)
    work = _Work([kept(key) for key in before], seed)
    made = work._in_order(change, [])
    return [each.sample.key if isinstance(each, StoredRecord) else each[0].key for each in made]


def place(key: str, seed: int = 0) -> tuple[int, str]:
    return plan.keyed_hash(seed, "order", key), key


@pytest.mark.parametrize("seed", [0, 5])
def test_new_images_are_placed_by_the_plan(seed: int) -> None:
    by_seed = partial(place, seed=seed)
    keys = [f"n1/{number}" for number in range(40)]
    made = order(sorted(keys[:30], key=by_seed), *keys[30:], seed=seed)
    assert made == sorted(keys, key=by_seed)


def test_order_of_additions_does_not_matter() -> None:
    rng = random.Random(0)
    for _ in range(20):
        others = [f"n1/{rng.random()}" for _ in range(6)]
        new = [f"n2/{rng.random()}" for _ in range(3)]
        found = set()
        for steps in itertools.permutations(new):
            shard = others
            for key in steps:
                shard = order(shard, key)
            found.add(tuple(shard))
        assert found == {tuple(order(others, *new))}


def test_excluding_and_adding_commute_for_prepared_datasets() -> None:
    keys = sorted((f"n1/{number}" for number in range(20)), key=place)
    added = [f"n2/{number}" for number in range(5)]
    first = order(order(keys, *added), left_out=keys[3:9])
    assert first == order(order(keys, left_out=keys[3:9]), *added)
    assert first == order(keys, *added, left_out=keys[3:9])


def test_number_of_no_class_is_refused_among_numbers(tmp_path: Any) -> None:
    """A folder that is called by a number may be missing, or misspelt."""
    listed = tmp_path / "list"
    listed.write_bytes(b"key,class\na/1.jpg,1\n")
    with pytest.raises(UsageError, match=says("class-not-among-dataset-s")):
        read_relabels(str(listed), ClassList(("0", "10", "cat"), ("zero", "ten", "cat")))
    found = read_relabels(str(listed), ClassList(("ant", "bee"), ("ant", "bee")))
    assert found.class_of == {2: 1}


def test_class_is_found_by_name_before_its_index(tmp_path: Any) -> None:
    classes = ClassList(("0", "10", "2"), ("zero", "ten", "two"))
    listed = tmp_path / "list"
    listed.write_bytes(b'\xef\xbb\xbfkey,class\r\n"n1/a,b",2\r\n n1/c ,10\r\n\r\nn1/d,0\r\n')
    found = read_relabels(str(listed), classes)
    assert found.class_of == {2: 2, 3: 1, 5: 0}
    # A blank is part of a key, as it may be part of a file name.
    assert found.listed.keys == {"n1/a,b": 2, " n1/c ": 3, "n1/d": 5}
    # The digest only depends on the content of the list.
    other = tmp_path / "other"
    spreadsheets = {
        ",": 'key,class\nn1/d,0\n n1/c ,10\n"n1/a,b",2\n',
        ";": "key;class\nn1/d;0\n n1/c ;10\nn1/a,b;2\n",
        "\t": "key\tclass\r\nn1/d\t0\r\n n1/c \t10\r\nn1/a,b\t2\r\n",
    }
    for text in spreadsheets.values():
        other.write_text(text)
        assert read_relabels(str(other), classes).listed.sha256 == found.listed.sha256


def test_key_is_listed_only_once() -> None:
    once = KeyList("once", {"a": 1, "b": 2}, "")
    ChangeRequest(once, Relabels(KeyList("other", {"c": 2}, ""), {2: 0}))
    with pytest.raises(
        UsageError,
        match=says("first-line", "twice", "2 lines", says("key-already-earlier-line"), 7),
    ):
        ChangeRequest(KeyList("twice", {"a": 1}, "", (7, 9)))
    with pytest.raises(UsageError, match="other: 1 line with a key that is also in once"):
        ChangeRequest(once, Relabels(KeyList("other", {"b": 2}, ""), {2: 0}))


@pytest.mark.parametrize(
    ("line", "splits", "narrowing"),
    [
        ("a", None, ()),
        ("a", ("train",), ("train",)),
        ("train:a", ("train",), ()),
        ("validation:a", ("train",), ("train",)),
        ("validation:a", ("train", "validation"), ()),
    ],
)
def test_splits_are_recorded_if_they_narrow_lists(
    line: str, splits: tuple[str, ...] | None, narrowing: tuple[str, ...]
) -> None:
    """Otherwise, the same command without --splits would be refused."""
    request = ChangeRequest(KeyList("list", {line: 1}, ""), splits=splits)
    assert request.narrowing == narrowing


def test_images_that_keep_their_class_do_not_change(tmp_path: Path) -> None:
    images = [picture(number, plain(number)) for number in range(3)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=3)
    add_tables(tmp_path / "set")
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    first, second = (f"{wnid(number)}/{wnid(number)}_{number}.JPEG" for number in range(2))
    listed = KeyList("list", {first: 1, second: 2}, "")

    assert changes_of(ChangeRequest(None, Relabels(listed, {1: 0, 2: 1})), dataset, 0) == []
    [change] = changes_of(ChangeRequest(None, Relabels(listed, {1: 0, 2: 2})), dataset, 0)
    assert change.relabelled == {second: 2}


def test_key_in_train_and_validation_is_refused(tmp_path: Path) -> None:
    """Folders of classes may have files of the same names, and only one image may be meant."""
    images = [picture(number, plain(number)) for number in range(4)]
    splits = {"train": [images[:3]], "validation": [images[2:]]}
    write_dataset(tmp_path / "set", splits, num_classes=4)
    add_tables(tmp_path / "set")
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    in_train, in_both = (f"{wnid(n)}/{wnid(n)}_{n}.JPEG" for n in (1, 2))

    one, both = (KeyList("list", {key: 1}, "") for key in (in_train, in_both))
    [change] = changes_of(ChangeRequest(one), dataset, 0)
    assert (change.name, change.excluded) == ("train-00000-of-00001", {in_train: ""})
    # If the image of one split already has the class, this is no change there, but still ambiguous.
    for request in (
        ChangeRequest(both),
        *(ChangeRequest(None, Relabels(both, {1: n})) for n in (2, 3)),
    ):
        with pytest.raises(
            UsageError, match=f"list: {in_both}: train and validation each have an im"
        ):
            changes_of(request, dataset, 0)


@pytest.mark.parametrize("shards", [[[0, 1, 1]], [[0, 1], [2, 1]]])
def test_duplicate_key_in_a_split_is_refused(tmp_path: Path, shards: list[list[int]]) -> None:
    """The list does not say which of the two images is meant."""
    images = [[picture(number, plain(number)) for number in of_shard] for of_shard in shards]
    write_dataset(tmp_path / "set", {"train": images}, num_classes=4)
    add_tables(tmp_path / "set")
    dataset = open_dataset(LocalStore(tmp_path / "set"), check=False)
    once, twice = (KeyList("list", {f"{wnid(n)}/{wnid(n)}_{n}.JPEG": 1}, "") for n in (0, 1))

    assert len(changes_of(ChangeRequest(once), dataset, 0)) == 1
    for request in (ChangeRequest(twice), ChangeRequest(None, Relabels(twice, {1: 3}))):
        with pytest.raises(DataDamagedError, match="n00001001_1.JPEG"):
            changes_of(request, dataset, 0)


@pytest.mark.parametrize("reencoded", [False, True])
@pytest.mark.parametrize("splits", [("train",), ("validation",), ("train", "validation"), None])
def test_bytes_are_only_excluded_from_chosen_splits(
    tmp_path: Path, splits: tuple[str, ...] | None, *, reencoded: bool
) -> None:
    """A list may have the bytes of the stored image, or those of the original image."""
    images = [picture(number, plain(number)) for number in range(3)]
    both = ("train", "validation")
    write_dataset(tmp_path / "set", {name: [images] for name in both}, num_classes=3)
    add_tables(tmp_path / "set", reencoded=reencoded)
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    rows = next(dataset.rows(dataset.shards("train")))
    sample = next(row for row in rows if row.class_index == 1)
    for digest in {sample.sha256, sample.source_sha256}:
        file = ListedFile(len(images[1].encoded), "renamed.JPEG")
        listed = KeyList("list", {"renamed.JPEG": 1}, "", files={digest: file})
        changes = changes_of(ChangeRequest(listed, splits=splits), dataset, 0)

        found = {change.name.partition("-")[0]: {*change.excluded} for change in changes}
        assert found == {name: {sample.key} for name in splits or both}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"key,class\n\xff,1\n", says("not-utf-8-text-byte-save", "list", 10)),
        (b"key,class\n", says("no-key-after-header-list", "list")),
        (b"key\n", says("line-1-expected-header", 1, ..., "1 column")),
        (b"key,class\na,1,2\n", says("line-expected-two-fields-key", 2)),
        (b'key,class\n"a,1\n', exactly("list: line 2: ")),
        (
            b"key,class\na,2\n",
            says("first-line", "list", "1 line", says("class-not-among-dataset-s", 2)),
        ),
        (
            b"key,class\na,00\n",
            says("first-line", "list", "1 line", says("class-not-among-dataset-s", 2)),
        ),
    ],
)
def test_invalid_list_of_classes_is_refused(
    tmp_path: Path, data: bytes, complaint: re.Pattern[str]
) -> None:
    (tmp_path / "list").write_bytes(data)
    with pytest.raises(UsageError, match=complaint):
        read_relabels(str(tmp_path / "list"), ClassList(("a", "b"), ("one", "two")))


@pytest.mark.parametrize(
    "name",
    [
        "Flowers_&_Gärten",
        "Flowers & Gärten",
        "flowers_&_ga\u0308rten",
        "Flowers_&_Gärten ",
        "1",
    ],
)
def test_class_of_list_is_named_like_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "list").write_text(f"key,class\na,{name}\n")
    classes = ClassList(("n01440764", "Flowers_&_Gärten"), ("tench", "Flowers"))
    assert read_relabels(str(tmp_path / "list"), classes).class_of == {2: 1}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("tench", "n01440764"),
        ("n0144076", "n01440764"),
        ("nothing like it", None),
    ],
)
def test_unknown_class_of_list_gets_its_spelling(
    tmp_path: Path, name: str, right: str | None
) -> None:
    (tmp_path / "list").write_text(f"key,class\na,n01440764\nb,{name}\nc,{name}\n")
    classes = ClassList(("Flowers_&_Gärten", "n01440764"), ("Flowers", "tench, Tinca tinca"))
    with pytest.raises(UsageError, match=says("first-line", "list", "2 lines")) as refused:
        read_relabels(str(tmp_path / "list"), classes)
    message = str(refused.value)
    assert "line 3. The classes are Flowers_&_Gärten, n01440764." in message
    assert message.endswith(f" Did you mean {right}?" if right else "n01440764.")


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("val/a/1.JPEG", says("add-split-dataset-lacks", ..., "validation")),
        ("train/c/1", says("add-folders-not-classes-dataset", ..., "c")),
        ("1.JPEG", says("add-no-images-found-expected")),
        ("../other/train/a/1.JPEG", says("add-no-such-folder-expected")),
    ],
)
def test_additions_without_a_valid_class_are_refused(
    tmp_path: Path, path: str, complaint: str
) -> None:
    given = tmp_path / "given"
    file = Path(os.path.normpath(given / path))
    file.parent.mkdir(parents=True)
    file.write_bytes(plain(1))
    with pytest.raises(UsageError, match=complaint):
        read_additions(str(given), ClassList(("a", "b"), ("one", "two")), ["train"])


def additions(excluded: Sequence[Incident] = (), **keys: Sequence[str]) -> Additions:
    """Returns images of class 0 to add, by split."""
    members = {
        split: tuple(Member(key, f"{split}/{key}", 0, 1, 0) for key in of_split)
        for split, of_split in keys.items()
    }
    return Additions("more", cast("Any", None), members, {}, excluded=excluded)


@pytest.mark.parametrize(
    ("splits", "relabelled"),
    [(("train",), {"train"}), (("validation",), {"validation"}), (("train", "validation"), None)],
)
def test_new_images_are_relabelled_in_chosen_splits(
    splits: tuple[str, ...], relabelled: set[str] | None
) -> None:
    relabels = Relabels(KeyList("csv", {"a/1": 1}, ""), {1: 2})
    new = relabels.apply(additions(train=["a/1", "a/2"], validation=["a/1"]), splits)

    found = {
        split: [member.class_index for member in members] for split, members in new.members.items()
    }
    of_train = 2 if relabelled is None or "train" in relabelled else 0
    of_validation = 2 if relabelled is None or "validation" in relabelled else 0
    assert found == {"train": [of_train, 0], "validation": [of_validation]}


def test_contradictions_in_unchosen_splits_are_allowed() -> None:
    """The lists are ignored there."""
    listed = KeyList("list", {"validation:a": 1}, "")
    relabels = Relabels(KeyList("csv", {"validation:a": 1}, ""), {1: 0})
    assert ChangeRequest(listed, relabels, splits=("train",)).narrowing == ("train",)
    for splits in (("validation",), ("train", "validation"), None):
        with pytest.raises(UsageError, match="csv: 1 line with a key that is also in list"):
            ChangeRequest(listed, relabels, splits=splits)


def written(root: Path, shards: Sequence[Sequence[int]], split: str = "train") -> Any:
    """Returns a dataset with these numbers as images."""
    images = [[picture(number, plain(number)) for number in of_shard] for of_shard in shards]
    write_dataset(root, {split: images}, num_classes=9)
    add_tables(root)
    return open_dataset(LocalStore(root))


def test_lists_may_only_name_new_images(tmp_path: Path) -> None:
    dataset = written(tmp_path / "set", [range(3)])
    gone = Incident("a/gone", "a/gone", 0, 1, 0, "excluded", "listed", "", "train")
    add = additions([gone], train=["a/new"])
    relabel = Relabels(KeyList("csv", {"a/new": 1}, ""), {1: 2})
    request = ChangeRequest(KeyList("list", {"a/gone": 1}, ""), relabel, add)

    [change] = changes_of(request, dataset, 0)
    assert [member.key for member in change.added] == ["a/new"]
    other = replace(request, exclude=KeyList("list", {"a/other": 1}, ""))
    with pytest.raises(UsageError, match=says("no-such-key-write-one", "list")):
        changes_of(other, dataset, 0)


def test_new_image_that_resembles_a_line_is_named(tmp_path: Path) -> None:
    dataset = written(tmp_path / "set", [range(3)])
    listed = KeyList("list", {"a/ne\u0301w": 1}, "")
    request = ChangeRequest(listed, add=additions(train=["a/n\u00e9w"]))
    with pytest.raises(UsageError, match="did you mean"):
        changes_of(request, dataset, 0)


@pytest.mark.parametrize("seed", range(4))
def test_seed_decides_the_shard_of_a_new_image(tmp_path: Path, seed: int) -> None:
    dataset = written(tmp_path / "set", [[0], [1], [2], [3]])
    keys = [f"a/{number}" for number in range(12)]
    changes = changes_of(ChangeRequest(add=additions(train=keys)), dataset, seed)

    found = {member.key: change.name for change in changes for member in change.added}
    assert found == {
        key: f"train-0000{plan.keyed_hash(seed, 'add', key) % 4}-of-00004" for key in keys
    }


SALT = "ab" * 16


@pytest.mark.parametrize("request_salt", ["", "cd" * 16])
def test_lines_keep_the_salt_of_the_list(tmp_path: Path, request_salt: str) -> None:
    """An image that a list names as forgotten is forgotten here, too."""
    dataset = written(tmp_path / "set", [range(3)])
    rows = [*next(dataset.rows(dataset.shards("train")))]
    by_key, by_bytes, plain_row = rows
    digest = salted(SALT, by_key.key)
    files = {
        digest: ListedFile(9, digest, SALT),
        salted(SALT, by_bytes.sha256): ListedFile(9, "another digest", SALT),
    }
    lines = {digest: 1, "another digest": 2, plain_row.key: 3}
    request = ChangeRequest(KeyList("list", lines, "", files=files), salt=request_salt)
    request = replace(request, add=additions(train=["a/new"]))

    [change] = changes_of(request, dataset, 0)
    assert change.excluded == {by_key.key: SALT, by_bytes.key: SALT, plain_row.key: request_salt}


@pytest.mark.parametrize("kept_in", [frozenset(), frozenset({"train"}), frozenset({"validation"})])
def test_kept_copies_belong_to_the_source_split(tmp_path: Path, kept_in: frozenset[str]) -> None:
    """The images of a holdout are from train."""
    dataset = written(tmp_path / "set", [range(3)], "holdout")
    row = next(iter(next(dataset.rows(dataset.shards("holdout")))))
    files = {row.sha256: ListedFile(row.num_bytes, "a/former", kept_in=kept_in)}
    listed = KeyList("list", {"a/former": 1}, "", files=files, allows_unknown=True)

    changes = changes_of(ChangeRequest(listed), dataset, 0)
    assert [{*change.excluded} for change in changes] == ([] if "train" in kept_in else [{row.key}])


NUMBERS = (
    "examples",
    "num_bytes",
    "index_bytes",
    "samples_bytes",
    "source_bytes",
    "resized",
    "max_height",
    "max_width",
    "transform_s",
)


def test_receipt_of_a_changed_shard_has_all_lines(tmp_path: Path) -> None:
    """It lists no origins: the copied records have none, and some are no complete list."""
    dataset = written(tmp_path / "set", [range(3)])
    [shard] = dataset.manifest.splits["train"].shards
    key = next(iter(next(dataset.heads([shard]))))[1]
    bad = Incident("a/bad", "a/bad", 0, 1, 0, "quarantined", "truncated", "", "train")

    def write(name: str, records: Any) -> tuple[Any, Any]:
        assert len([*records]) == 2
        numbers = dict.fromkeys(NUMBERS, 1)
        origins = [Origin(0, "a/new", "a/new", 0, 1, 1, 1)]
        texts = dict.fromkeys(("sha256", "index_sha256", "samples_sha256"), "")
        made: Any = {"shard": name, "incidents": [bad], "origins": origins, **numbers, **texts}
        return WrittenShard(**made), ()

    work = AmendWork(dataset, 0, cast("Any", {"train": write}), None, {})
    content = work(ShardChange(shard, {key: ""}, {}, ())).content
    assert [line.key for line in content.incidents] == ["a/bad", key]
    assert content.origins == []
