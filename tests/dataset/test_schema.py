"""Names of shards and other files of a dataset, and constants that other programs rely on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.schema import ShardName


@given(
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12),
    st.integers(1, 99_999).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
)
def test_parsing_inverts_naming(split: str, place: tuple[int, int]) -> None:
    expected = ShardName(split, *place)

    assert schema.parse_shard_name(schema.shard_name(*expected)) == expected


def test_names_are_zero_based_and_five_digits_wide() -> None:
    assert schema.shard_name("train", 17, 1024) == "train-00017-of-01024"
    assert schema.shard_name("validation", 0, 128) == "validation-00000-of-00128"
    assert schema.index_name("train-00017-of-01024") == "index/train-00017-of-01024"


@pytest.mark.parametrize(
    "name",
    [
        "dataset.json",
        "train-0017-of-01024",
        "train-00017-of-01024.tmp",
        "train-00017-of-01024\n",
        "index/train-00017-of-01024",
        "Train-00017-of-01024",
        "-00017-of-01024",
        "",
    ],
    ids=repr,
)
def test_other_names_are_no_shards(name: str) -> None:
    assert schema.parse_shard_name(name) is None


def test_constants_that_others_rely_on() -> None:
    """MLPerf's reference programs and the devkit's readme have these numbers, too."""
    assert schema.DEFAULT_NUM_SHARDS == {"train": 1024, "validation": 128}
    assert schema.OFFICIAL_NUM_CLASSES == 1000
    assert schema.OFFICIAL_NUM_EXAMPLES == {"train": 1_281_167, "validation": 50_000}
    assert schema.OFFICIAL_CLASS_RANGE == {"train": (732, 1300), "validation": (50, 50)}
    assert schema.DEFAULT_LABEL_OFFSET == 1
    assert schema.NO_CLASS == -1
    assert schema.SPLITS == ("train", "validation", "holdout", "test")
    assert [*schema.LEVELS] == ["manifest", "crc", "decode"]


NAMES = {
    # name: split, shard, whether a manifest may list it as a small file
    "train-00017-of-01024": ("train", "train-00017-of-01024", False),
    "test-00000-of-00001": ("test", "test-00000-of-00001", False),
    "index/train-00017-of-01024": ("train", "train-00017-of-01024", False),
    "samples/train-00017-of-01024.csv": ("train", "train-00017-of-01024", False),
    "train-00017-of-01024.csv": ("train", "train-00017-of-01024", False),
    "train-0017-of-1024": ("", "train-0017-of-1024", False),
    "xtrain-00017-of-01024": ("xtrain", "xtrain-00017-of-01024", False),
    "valid.txt": ("", "valid.txt", False),
    "holdout": ("", "holdout", False),
    "labels.txt": ("", "labels.txt", True),
    "a/labels.txt": ("", "labels.txt", False),
    "dataset.json": ("", "dataset.json", False),
    "dataset.json.sig": ("", "dataset.json.sig", False),
    "placement.json": ("", "placement.json", False),
    "columns": ("", "columns", False),
    "index": ("", "index", False),
    "samples": ("", "samples", False),
    ".hidden": ("", ".hidden", False),
    "": ("", "", False),
    "x" * 255: ("", "x" * 255, True),
    "x" * 256: ("", "x" * 256, False),
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name[:40]}{len(name)}")
def test_names_tell_the_kind_of_file(name: str) -> None:
    split, shard, is_small = NAMES[name]
    assert schema.split_of(name) == split
    assert schema.shard_of(name) == shard
    assert schema.is_small_file(name) is is_small


@pytest.mark.parametrize("name", ["train", "train.csv", "valid", "validation-x", "holdout-1"])
def test_names_that_readers_take_for_shards(name: str) -> None:
    assert schema.looks_like_shard(name)
    assert not schema.looks_like_shard(f"x{name}")


@pytest.mark.parametrize(
    ("number", "total", "is_sound"),
    [
        (0, 1, True),
        (99_998, 99_999, True),
        (1, 1, False),
        (-1, 1, False),
        (0, 0, False),
        (0, 100_000, False),
    ],
)
def test_shards_have_numbers_below_their_total(number: int, total: int, is_sound: bool) -> None:
    if is_sound:
        name = schema.shard_name("train", number, total)
        assert schema.parse_shard_name(name) == ShardName("train", number, total)
    else:
        with pytest.raises(ValueError, match="shard"):
            schema.shard_name("train", number, total)


def test_files_next_to_a_shard() -> None:
    assert schema.beside("a") == ("index/a", "samples/a.csv")
    assert schema.signature_name("a") == "a.sig"


@pytest.mark.parametrize(
    ("name", "is_sound"),
    [
        ("a", True),
        ("a/b.c", True),
        ("", False),
        ("/a", False),
        ("a/", False),
        ("a//b", False),
        (".", False),
        ("a/./b", False),
        ("..", False),
        ("a/../b", False),
        ("...", True),
        ("a\\b", False),
        ("./a", False),
        ("../x", False),
        ("a\x1b[2J", False),
        ("index/train-00000-of-00001", True),
        (".work/x/receipts/t.json", True),
        ("a\nb", False),
        ("a\ud800", False),
        ("x" * 255, True),
        ("x" * 256, False),
        ("é" * 127, True),
        ("é" * 128, False),
        ("a/" + "x" * 255, True),
    ],
    ids=lambda value: f"{ascii(value)[:40]}{len(str(value))}",
)
def test_relative_names_stay_in_their_folder(name: str, is_sound: bool) -> None:
    if is_sound:
        assert schema.require_relative_name(name) == name
    else:
        with pytest.raises(ValueError, match="name"):
            schema.require_relative_name(name)
