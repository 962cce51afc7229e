"""Division of the members of a class among splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import UsageError
from imagenet_prep.preparation.planning import divide
from tests.kit.listed import selection
from tests.kit.messages import says

SHARES = st.floats(0.1, 99.9, allow_nan=False)


def held(used: list[int], **how: float) -> list[int]:
    train, out = divide(selection(num_shards={}, **how), "train", used).shares
    counts = zip(train.num_per_class, out.num_per_class, strict=True)
    assert [a + b for a, b in counts] == used
    return [*out.num_per_class]


def test_undivided_split_keeps_all_images() -> None:
    share = divide(selection(), "train", [3, 2, 1]).kept
    assert (share.split, share.num_per_class, share.num_shards) == ("train", [3, 2, 1], 2)
    other = divide(selection(holdout=1, num_shards={}), "validation", [3, 2, 1])
    assert [each.split for each in other.shares] == ["validation"]


def test_selection_that_moves_or_excludes_is_a_subset() -> None:
    assert not selection().is_subset
    moved = selection(holdout=2), selection(holdout_percent=5.0), selection(holdout_per_class=1)
    assert all(wanted.is_subset for wanted in (*moved, selection(any_counts=True)))


def test_percentage_is_taken_from_each_class() -> None:
    assert held([35, 31, 31, 1], holdout_percent=10.0) == [4, 3, 3, 0]
    assert held([1000, 20, 2, 1, 0], holdout_percent=10.0) == [100, 2, 1, 0, 0]
    assert held([2, 5], holdout_percent=99.0) == [1, 4]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), SHARES, SHARES)
def test_every_divisible_class_is_held_out_in_part(
    used: list[int], percent: float, more: float
) -> None:
    if max(used) < 2:
        with pytest.raises(UsageError, match=says("no-class-more-one-image")):
            held(used, holdout_percent=percent)
        return
    out = held(used, holdout_percent=percent)
    assert all((0 < taken < count) == (count > 1) for taken, count in zip(out, used, strict=True))
    smaller, larger = (held(used, holdout_percent=f(percent, more)) for f in (min, max))
    assert all(a <= b for a, b in zip(smaller, larger, strict=True))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.data())
def test_number_is_divided_in_proportion_to_the_classes(
    used: list[int], data: st.DataObject
) -> None:
    most = sum(max(0, count - 1) for count in used)
    number = data.draw(st.integers(1, most + 1))
    if number > most:
        with pytest.raises(UsageError, match=says("holdout-expected-most-since-train", ..., most)):
            held(used, holdout=number)
        return
    out = held(used, holdout=number)
    assert sum(out) == number
    assert all(taken < max(count, 1) for taken, count in zip(out, used, strict=True))
    two = [index for index, count in enumerate(used) if count > 1]
    assert sum(out[index] > 0 for index in two) == min(number, len(two))
    if number < most:
        more = held(used, holdout=number + 1)
        assert all(a <= b for a, b in zip(out, more, strict=True))


def test_equal_classes_give_equal_numbers() -> None:
    assert held([5000] * 10, holdout=10_000) == [1000] * 10
    assert held([1000, 500, 100], holdout=16) == [10, 5, 1]


def test_next_image_comes_from_the_largest_ratio() -> None:
    """The method of Huntington and Hill; that of Webster or d'Hondt would give [3, 3] or [5, 1]."""
    assert held([10, 7], holdout=6) == [4, 2]
