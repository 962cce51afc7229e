"""Which image a line of a list of keys means, and the parts of a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.keys import KeyList, ListedFile, Lookup
from tests.kit.limits import Limits

BOTH = ("train", "validation")
W = "n01440764"
CORRUPTED = "gaussian_noise/1/ILSVRC2012_val_00000001.JPEG"


def listed(*lines: str, **more: Any) -> KeyList:
    there = keys.parse_list("list", "".join(f"{line}\n" for line in lines).encode())
    return KeyList(there.path, there.keys, there.sha256, there.repeated, **more)


def test_plain_lines_name_images_of_any_split() -> None:
    there = listed("a", "train:b", "validation:b", "other:c")
    assert there.by_split == {
        None: {"a": 1, "other:c": 4},
        "train": {"b": 2},
        "validation": {"b": 3},
    }
    assert there.named_in("train") == {"a": 1, "b": 2, "other:c": 4}
    assert there.named_in("validation") == {"a": 1, "b": 3, "other:c": 4}
    assert there.named_in("test") == {"a": 1, "other:c": 4}
    assert listed("a", "b").by_split == {None: {"a": 1, "b": 2}}


def test_the_plain_line_of_two_counts() -> None:
    there = listed("train:a", "a", "a", "train:a")
    assert there.named_in("train") == {"a": 2}
    assert there.named_twice() == [3, 4, 1]
    assert listed("a", "train:b").named_twice() == []


@pytest.mark.parametrize(
    ("line", "split", "key"),
    [
        ("train:a", "train", "a"),
        ("test:a:b", "test", "a:b"),
        ("holdout:a", "holdout", "a"),
        ("train", None, "train"),
        ("train:", "train", ""),
        ("Train:a", None, "Train:a"),
        ("a", None, "a"),
        (":a", None, ":a"),
    ],
)
def test_a_split_may_precede_a_key(line: str, split: str | None, key: str) -> None:
    assert keys.split_and_key(line) == (split, key)
    if split:
        assert keys.with_split(split, key) == line


def looked_up(
    lines: tuple[str, ...], images: dict[str, list[str]], *chosen: str, **more: Any
) -> dict[str, list[int]]:
    """Returns the line that names each image; raises UsageError as `check` does."""
    lookup = Lookup(listed(*lines), images, chosen or tuple(images), **more)
    found = {split: lookup.lines(split, of_split) for split, of_split in images.items()}
    lookup.check("here", ((split, key) for split in images for key in images[split]))
    return found


@pytest.mark.parametrize(
    ("line_split", "split", "is_named"),
    [
        ("train", "train", True),
        ("holdout", "train", True),
        ("train", "holdout", True),
        ("validation", "train", False),
        ("train", "validation", False),
        ("holdout", "validation", False),
        ("test", "train", False),
    ],
)
def test_forgotten_key_belongs_to_its_split(line_split: str, split: str, is_named: bool) -> None:
    """Train and its holdout share one set of keys; other splits may have equal ones."""
    salt = "ab" * 16
    line = f"{line_split}:{keys.salted(salt, 'a')}"
    of = replace(listed(line), files={"0" * 64: ListedFile(1, line, salt)})
    splits = ("train", "holdout", "validation", "test")
    lookup = Lookup(of, splits, splits)

    assert lookup.salt_of(split, "a") == salt * is_named
    assert lookup.lines(split, ["b", "a"]) == [0, int(is_named)]
    assert (line in lookup.recognised) is is_named
    assert lookup.salt_of(split, "b") == ""


@pytest.mark.parametrize("new", ["holdout", "validation"])
def test_forgotten_key_may_have_the_new_split(new: str) -> None:
    """Images of train may become the holdout or the validation split."""
    salt = "ab" * 16
    line = f"{new}:{keys.salted(salt, 'a')}"
    of = replace(listed(line), files={"0" * 64: ListedFile(1, line, salt)})
    lookup = Lookup(of, ["train"], ["train"], {new: "train"})

    assert lookup.lines("train", ["b", "a"]) == [0, 1]
    assert lookup.salt_of("train", "a") == salt
    lookup.check("here", ())


def test_each_image_has_the_line_that_names_it() -> None:
    images = {"train": ["a", "b", "x"], "validation": ["c", "d"]}
    assert looked_up(("b", "validation:c", "train:a"), images) == {
        "train": [3, 1, 0],
        "validation": [2, 0],
    }


def test_lists_are_ignored_in_other_splits() -> None:
    images = {"train": ["a", "b"], "validation": ["b", "c"]}
    assert looked_up(("b", "validation:c"), images, "train") == {
        "train": [0, 1],
        "validation": [0, 0],
    }
    # Even a key that the other split lacks is no mistake.
    assert looked_up(("a", "validation:z"), images, "train")["train"] == [1, 0]


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (("a", "z"), 2),
        (("a", "train:z"), 2),
        (("validation:a",), 1),
        (("a", "test:a"), 2),
        (("other:a",), 1),
    ],
)
def test_lines_of_no_image_are_named(lines: tuple[str, ...], number: int) -> None:
    images = {"train": ["a", "b"], "validation": ["c"]}
    with pytest.raises(UsageError) as refused:
        looked_up(lines, images)
    text = str(refused.value)
    assert "here" in text
    assert f" {number}: " in text
    assert lines[-1] not in text.split("Write", 1)[0]


def test_lines_of_several_splits_are_ambiguous() -> None:
    images = {"train": ["a", "b"], "validation": ["a"]}
    assert looked_up(("b",), images)["train"] == [0, 1]
    with pytest.raises(UsageError) as refused:
        looked_up(("a",), images)
    assert "train:a" in str(refused.value)
    assert "validation:a" in str(refused.value)
    assert looked_up(("a",), images, "train") == {"train": [1, 0], "validation": [0]}
    assert looked_up(("train:a",), images) == {"train": [1, 0], "validation": [0]}


def test_unknown_lines_are_accepted_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = Lookup(listed("a", "z", allows_unknown=True), ["train"], ["train"])
    assert lookup.lines("train", ["a"]) == [1]
    lookup.check("here", ())
    said = "".join(capsys.readouterr())
    assert "1 line " in said
    assert "here" in said


def test_known_lines_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = Lookup(listed("a", allows_unknown=True), ["train"], ["train"])
    assert lookup.lines("train", ["a"]) == [1]
    lookup.check("here", ())
    assert "".join(capsys.readouterr()) == ""


def test_images_recognised_by_their_bytes_are_known() -> None:
    lookup = Lookup(listed("a", "z"), ["train"], ["train"])
    lookup.lines("train", ["a"])
    lookup.recognised.add("z")
    lookup.check("here", ())


def test_additional_names_of_splits_are_read() -> None:
    """A list for a dataset with a holdout names images that the source has in train."""
    images = {"train": ["a", "b"]}
    names = {"holdout": "train"}
    assert looked_up(("holdout:a",), images, split_of=names) == {"train": [1, 0]}
    assert looked_up(("holdout:a", "train:b"), images, split_of=names) == {"train": [1, 2]}
    with pytest.raises(UsageError):
        looked_up(("holdout:z",), images, split_of=names)
    with pytest.raises(UsageError):
        looked_up(("holdout:a",), images)


def test_listed_images_are_counted_once_per_split() -> None:
    there = listed("a", "train:b", "train:c", "validation:b")
    assert Lookup(there, BOTH, BOTH).num_images == 4
    assert Lookup(there, BOTH, ("train",)).num_images == 3
    assert Lookup(there, BOTH, ("validation",)).num_images == 2
    assert Lookup(listed("a", "b"), BOTH, BOTH).num_images == 2


@pytest.mark.parametrize(
    ("path", "class_id", "below"),
    [
        ("a/b.jpg", "cat", "a/b.jpg"),
        ("/x/cat/b.jpg", "cat", "b.jpg"),
        ("/x/y/b.jpg", "cat", "b.jpg"),
        ("x/cat/b.jpg", "cat", "b.jpg"),
        ("x/b.jpg", W, "b.jpg"),
        ("b.jpg", "cat", "b.jpg"),
        ("cat", "cat", "cat"),
        (CORRUPTED, W, CORRUPTED),
    ],
)
def test_paths_below_a_class(path: str, class_id: str, below: str) -> None:
    assert keys.below_class(path, class_id) == below


@pytest.mark.parametrize(
    ("key", "name", "in_cat"),
    [
        ("cat/a/b.jpg", "a/b.jpg", "a/b.jpg"),
        ("dog/b.jpg", "b.jpg", "dog/b.jpg"),
        (f"{W}/b.jpg", "b.jpg", "b.jpg"),
        ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000001.JPEG", None),
        (CORRUPTED, CORRUPTED, None),
    ],
)
def test_names_of_keys(key: str, name: str, in_cat: str | None) -> None:
    assert keys.name_of(key) == name
    if in_cat is not None:
        assert keys.name_in(key, "cat") == in_cat


@pytest.mark.parametrize(
    ("split", "name", "key"),
    [
        ("train", "a.jpg", "cat/a.jpg"),
        ("validation", "a.jpg", "cat/a.jpg"),
        ("validation", "ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000001.JPEG"),
        ("train", "ILSVRC2012_val_00000001.JPEG", "cat/ILSVRC2012_val_00000001.JPEG"),
        ("test", CORRUPTED, CORRUPTED),
        ("train", CORRUPTED, f"cat/{CORRUPTED}"),
    ],
)
def test_keys_have_a_class_but_for_validation(split: str, name: str, key: str) -> None:
    assert keys.key_of(split, "cat", name) == key


@pytest.mark.parametrize(
    ("name", "wnid", "without"),
    [
        (f"ILSVRC2012_val_00000001_{W}.JPEG", W, "ILSVRC2012_val_00000001.JPEG"),
        (f"{W}_36.JPEG", W, f"{W}_36.JPEG"),
        ("a_36.JPEG", None, "a_36.JPEG"),
        (f"x{W}_36.JPEG", None, f"x{W}_36.JPEG"),
    ],
)
def test_wnids_in_file_names(name: str, wnid: str | None, without: str) -> None:
    assert keys.wnid_in(name) == wnid
    assert keys.without_wnid(name) == without


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("ILSVRC2012_val_00000007.JPEG", 7),
        ("a/ILSVRC2012_val_00050000.JPEG", 50_000),
        ("ILSVRC2012_val_7.JPEG", None),
        ("n01440764_10026.JPEG", None),
    ],
)
def test_numbers_of_validation_images(path: str, number: int | None) -> None:
    assert keys.validation_number(path) == number
    if number:
        assert keys.validation_stem(number) in path


@pytest.mark.parametrize(
    ("key", "split", "class_id", "name", "is_derived"),
    [
        ("cat/a.jpg", "train", "cat", "a.jpg", True),
        ("cat/a.jpg", "train", "dog", "a.jpg", False),
        ("cat/b.jpg", "train", "cat", "a.jpg", False),
        (f"{W}/{W}_1.JPEG", "train", W, f"{W}_1.JPEG", True),
        # Readers take the class of ImageNet's files from their names.
        (f"cat/{W}_1.JPEG", "train", "cat", f"{W}_1.JPEG", False),
        (f"cat/x/{W}_1.JPEG", "train", "cat", f"x/{W}_1.JPEG", False),
        ("cat/" + "a" * 255, "train", "cat", "a" * 255, True),
        (
            "cat/" + "a" * (256),
            "train",
            "cat",
            "a" * (256),
            False,
        ),
    ],
)
def test_keys_that_every_reader_derives(
    key: str, split: str, class_id: str, name: str, is_derived: bool
) -> None:
    assert keys.is_derived(key, split, class_id, name) is is_derived


def test_keys_of_exports_are_checked() -> None:
    assert keys.parse(b'{"train":{"a":"b"}}', "here") == {"train": {"a": "b"}}
    for data in (b"", b"[]", b'{"train":5}', b'{"train":{"a":5}}'):
        with pytest.raises(DataDamagedError) as refused:
            keys.parse(data, "here")
        assert "here" in str(refused.value)


NFC, NFD = "\xc4pfel/1.jpg", "A\u0308pfel/1.jpg"
_NO_HINT = "no such key in here. Write"


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (
            (NFC,),
            f"Line 1: did you mean {NFD!a}, which differs only in its Unicode form (NFD)? Write",
        ),
        (("b/1.jpg", f"train:{NFC}"), f"Line 2: did you mean {f'train:{NFD}'!a}, which differs"),
        ((f"holdout:{NFC}",), f"Line 1: did you mean {f'holdout:{NFD}'!a}, which differs"),
        ((f"test:{NFC}",), _NO_HINT),
        (("b/2.jpg",), "Line 1: did you mean 'b/2.jpg ', which has a blank at its end? Write"),
        (("b/1.jpg ",), "Line 1: did you mean 'b/1.jpg', which has no blank at its end? Write"),
        (
            ("b/2.jpg", NFC, "z"),
            "which has a blank at its end? 2 of these lines look the same as a key. Write",
        ),
        (("c/1.jpg",), _NO_HINT),
        (("\xe4pfel/1.jpg",), _NO_HINT),
        (("b/1.jpeg",), _NO_HINT),
    ],
)
def test_key_that_looks_the_same_is_named(lines: tuple[str, ...], hint: str) -> None:
    """Keys are never accepted in a different form, so that no other image is excluded."""
    images = {"train": [NFD, "b/1.jpg", "b/2.jpg ", "c/1.jpg ", " c/1.jpg"]}
    with pytest.raises(UsageError) as refused:
        looked_up(lines, images, split_of={"holdout": "train"})
    assert hint in str(refused.value)


@pytest.mark.parametrize(("line", "key"), [(NFC, NFD), ("b/1.jpg ", "b/1.jpg")])
def test_accepted_key_that_looks_the_same_is_named(
    capsys: pytest.CaptureFixture[str], line: str, key: str
) -> None:
    lookup = Lookup(listed("z", line, allows_unknown=True), ["train"], ["train"])
    lookup.lines("train", [key])
    lookup.check("here", [("train", key)])
    assert f"(--allow-unknown). Line 2: did you mean {key!a}, which" in capsys.readouterr().err


def test_keys_are_only_read_again_for_odd_lines() -> None:
    def refused() -> Iterator[tuple[str, str]]:
        raise AssertionError
        yield

    for line in ("a/1.jpg", "train:a/1.jpg"):
        lookup = Lookup(listed(line, allows_unknown=True), ["train"], ["train"])
        lookup.check("here", refused())


SALTS = ["ab" * 16, "cd" * 16]


@pytest.mark.parametrize("split", BOTH)
@pytest.mark.parametrize("kept_in", [frozenset(), frozenset({"train"}), frozenset(BOTH)])
@pytest.mark.parametrize("salt", ["", *SALTS])
def test_listed_files_are_found_unless_copies_were_kept(
    split: str, kept_in: frozenset[str], salt: str
) -> None:
    """Forgotten images are found by salted digests of their hashes or keys, with any salt."""
    file = ListedFile(9, "line", salt, kept_in)
    other = ListedFile(9, "other", SALTS[0])
    name = "a" * 64
    listed_name = keys.salted(salt, name) if salt else name
    there = listed("line", files={listed_name: file, "b" * 64: other})

    assert there.find(split, "a/key", name) == (None if split in kept_in else file)
    assert there.find(split, "a/key") is None


def test_lines_of_several_salts_are_found() -> None:
    images = [f"a/{number}" for number in range(3)]
    lines = [keys.salted(salt, key) for salt, key in zip(SALTS, images, strict=False)]
    files = {line: ListedFile(9, line, salt) for line, salt in zip(lines, SALTS, strict=True)}
    lookup = Lookup(listed(*lines, "a/2", files=files), ["train"], ["train"])
    assert lookup.lines("train", images) == [1, 2, 3]
    lookup.check("here", ())


@pytest.mark.parametrize(("key", "salt"), [("a/key", ""), ("a/key", SALTS[0]), ("a/line", "")])
def test_forgotten_images_are_not_printed(
    capsys: pytest.CaptureFixture[str], key: str, salt: str
) -> None:
    """Only images under a different key are printed, which the user may want to keep."""
    file = ListedFile(9, "a/line", salt)
    lookup = Lookup(listed("a/line", files={"0" * 64: file}), ["train"], ["train"])
    lookup.recognise("train", key, file)
    lookup.check("here", ())
    assert (key in capsys.readouterr().err) == (key == "a/key" and not salt)


def test_first_odd_line_is_the_example() -> None:
    images = {"train": [NFD, "b/2.jpg "]}
    for lines in ((NFC, "b/2.jpg"), ("b/2.jpg", NFC)):
        meant = NFD if lines[0] == NFC else "b/2.jpg "
        with pytest.raises(UsageError) as refused:
            looked_up(lines, images)
        assert f"Line 1: did you mean {meant!a}" in str(refused.value)


def test_longest_keys_and_lists_are_accepted(tmp_path: Path, limits: Limits) -> None:
    longest = "a" * keys.MOST_KEY_BYTES
    assert keys.problem(longest) is None
    assert keys.problem(f"{longest}a") is not None
    limits(key_list_bytes=10)
    path = tmp_path / "list"
    path.write_bytes(b"123456789\n")
    assert keys.read_list(path).keys == {"123456789": 1}
    path.write_bytes(b"1234567890\n")
    with pytest.raises(UsageError):
        keys.read_list(path)
