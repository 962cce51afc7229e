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


@pytest.mark.parametrize(("index", "num_shards"), [(-1, 4), (4, 4), (0, 0), (0, 100_000)], ids=str)
def test_an_index_outside_its_shards_is_refused(index: int, num_shards: int) -> None:
    with pytest.raises(ValueError, match="at most 99,999 shards"):
        schema.shard_name("train", index, num_shards)


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


@pytest.mark.parametrize(
    "name", ["train-00000-of-00001", "index/train-00000-of-00001", ".work/x/receipts/t.json", "é"]
)
def test_a_name_inside_its_folder_is_taken_as_it_is(name: str) -> None:
    assert schema.require_relative_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        "a/",
        "a\x1b[2J",
        "a\nb",
        "a\\b",
        "a" * 256,
        "é" * 128,
        chr(0xD800),
    ],
    ids=repr,
)
def test_a_name_that_leads_outside_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the name"):
        schema.require_relative_name(name)
