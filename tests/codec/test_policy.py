"""The size of stored images under a policy."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.codec.policy import Policy

sides = st.integers(1, 65_535)


def expected(height: int, width: int, short_side: int) -> tuple[int, int]:
    scale = min(Fraction(1), Fraction(short_side, min(height, width)))
    return tuple(max(1, round(side * scale)) for side in (height, width))


@given(sides, sides, st.integers(1, 5000))
def test_sides_are_scaled_exactly_and_rounded(height: int, width: int, short_side: int) -> None:
    found = Policy(short_side).resized(height, width)

    assert found == expected(height, width, short_side)
    assert all(type(side) is int for side in found)


@given(sides, sides, st.integers(1, 5000))
def test_short_side_is_exact_and_never_enlarged(height: int, width: int, short_side: int) -> None:
    found = Policy(short_side).resized(height, width)

    assert min(found) == min(height, width, short_side)
    assert found[0] <= height
    assert found[1] <= width
    assert (found[0] <= found[1]) == (height <= width) or found[0] == found[1]


@pytest.mark.parametrize("short", [533, 552, 556, 586])
def test_short_side_stays_480_despite_float32_rounding(short: int) -> None:
    assert min(Policy(480).resized(short, 800)) == 480
    assert min(Policy(480).resized(800, short)) == 480


def test_every_short_side_of_imagenet_becomes_480() -> None:
    wrong = [
        short
        for short in range(480, 6431)
        if Policy(480).resized(short, short + 1) != expected(short, short + 1, 480)
        or min(Policy(480).resized(short, short + 1)) != 480
    ]

    assert wrong == []


@pytest.mark.parametrize("short_side", [479, 480, 481, 5000])
def test_image_that_fits_keeps_its_size(short_side: int) -> None:
    assert Policy(short_side).resized(375, 500) == (375, 500)
    assert Policy(short_side).resized(short_side, 10_000) == (short_side, 10_000)


@given(sides, sides)
def test_policy_without_a_short_side_keeps_sizes(height: int, width: int) -> None:
    assert Policy(None).resized(height, width) == (height, width)


def test_default_policy_is_documented_one() -> None:
    assert Policy() == Policy(short_side=480, quality=90, check="decode", max_pixels=64_000_000)


def test_only_kept_originals_with_trusted_headers_are_copied() -> None:
    assert Policy(short_side=None, check="header").only_copies
    assert not Policy(short_side=None, check="decode").only_copies
    assert not Policy(short_side=256, check="header").only_copies
