"""The pixel comparison: duplicates and different images, and equal numbers of all vector code."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from imagenet_prep.codec import likeness
from imagenet_prep.matching import search
from tests.kit.codec import corpus
from tests.kit.lengths import examples

AS_IS = False
MIRRORED = True


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [Image.open(io.BytesIO(data)).convert("RGB") for data in corpus.photographs(6)]


def means(picture: Image.Image) -> np.ndarray:
    return likeness.means_of_pixels(np.asarray(picture.convert("L")))[None]


def is_one(one: Image.Image, other: Image.Image, mirrored: bool = AS_IS) -> bool:
    left = means(one)
    right = means(other)
    small = [search.row(each[0])["small"][None] for each in (left, right)]
    likely = search.likely(*small, mirrored)
    proven = search.proven(left[0], right[0], mirrored, min(*one.size, *other.size))
    assert likely[0] or not proven, "the first look lets through all that is proven"
    return proven


def test_variants_are_proven_and_different_images_are_not(pictures: list[Image.Image]) -> None:
    for number, picture in enumerate(pictures):
        width, height = picture.size
        cut = picture.crop((width // 25, height // 30, width - width // 40, height))
        assert is_one(picture, picture)
        assert is_one(picture, picture.resize((width // 2, height // 2)))
        assert is_one(picture, cut)
        assert is_one(cut, picture)
        assert is_one(picture, ImageOps.mirror(picture), MIRRORED)
        assert is_one(picture, ImageOps.autocontrast(picture, cutoff=1))
        darker, dark = (picture.point(lambda v, by=by: round(v * by)) for by in (0.65, 0.35))
        assert is_one(picture, darker)
        assert is_one(darker, picture)
        assert not is_one(picture, dark)
        assert not is_one(dark, picture)
        assert not is_one(picture, ImageOps.mirror(picture))
        assert not is_one(picture, ImageOps.flip(picture))
        middle = (width // 5, height // 5, width * 4 // 5, height * 4 // 5)
        assert not is_one(picture, picture.crop(middle))
        for other in pictures[:number]:
            assert not is_one(picture, other)


@pytest.mark.parametrize("share", [0.8, 0.9])
def test_crops_that_only_overlap_are_not_duplicates(
    pictures: list[Image.Image], share: float
) -> None:
    """Their common part is equal in its finest details, but neither frame is within the other."""
    for picture in pictures:
        width, height = picture.size
        for across, down in ((1, 0), (0, 1), (1, 1)):
            left, top = (
                round(side * (1 - share) * is_cut)
                for side, is_cut in ((width, across), (height, down))
            )
            one = picture.crop((0, 0, width - left, height - top))
            other = picture.crop((left, top, width, height))
            assert not is_one(one, other)
            assert not is_one(other, one)


def test_the_fit_locates_a_crop(pictures: list[Image.Image]) -> None:
    picture = pictures[0].resize((500, 400))
    crop = picture.crop((20, 0, 490, 380))

    (found,) = search.scores(means(picture), means(crop), AS_IS, likeness.SIXTEENTHS)

    # In half sides: the crop has 470 of 500 columns, and its centre is 5 columns to the right.
    assert found[:4] == pytest.approx([470 / 500, 5 / 250, 380 / 400, -10 / 200], abs=0.004)
    assert found[4:6] == pytest.approx([1, 0], abs=1)


def test_flat_images_are_never_duplicates() -> None:
    flat = np.full((1, 32, 32), 9, np.uint16)
    other = np.full((1, 32, 32), 200, np.uint16)
    for right in (flat, other):
        wide = [np.kron(each[0], np.full((2, 2), 16, np.uint16)) for each in (flat, right)]
        for side in (20, 200):
            assert not search.proven(*wide, AS_IS, side)
        found = search.scores(flat, right, AS_IS, 1)
        assert np.isfinite(found).all()
        assert not search.likely(flat, right, AS_IS)[0]


@pytest.mark.skipif(search.best() == search.PLAIN, reason="this processor has plain code alone")
@examples(60)
@given(
    seed=st.integers(0, 2**32),
    side=st.sampled_from([16, 32, 64]),
    noise=st.sampled_from([0, 1, 30, 4000]),
    shift=st.integers(-3, 3),
    mirrored=st.booleans(),
)
def test_vector_code_equals_plain_code(
    seed: int, side: int, noise: int, shift: int, mirrored: bool
) -> None:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 4080, (3, side // 4, side // 4))
    left = np.kron(coarse, np.ones((1, 4, 4), np.int64))
    right = np.roll(left, shift, axis=2) + rng.integers(-noise, noise + 1, left.shape)
    right = np.clip(right, 0, 4080)

    plain, vector = (search.scores(left, right, mirrored, 16, simd) for simd in (0, search.best()))

    assert plain.tobytes() == vector.tobytes()


# The result of `scores` for the same picture, and the position of each of its numbers.
SAME = (1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0)
SCALE_X, SHIFT_X, SCALE_Y, SHIFT_Y, GAIN, _, WHOLE, FINE = range(8)
# Each limit with a value just within it, and just beyond it. Correlations are squared.
PROVEN = [
    ({WHOLE: 0.9**2 + 1e-4}, {WHOLE: 0.9**2 - 1e-4}),
    ({FINE: 0.6**2 + 1e-4}, {FINE: 0.6**2 - 1e-4}),
    ({GAIN: 0.51}, {GAIN: 0.49}),
    ({GAIN: 1.79}, {GAIN: 1.81}),
    ({SCALE_X: 0.88}, {SCALE_X: 0.86}),
    ({SCALE_Y: 0.88}, {SCALE_Y: 0.86}),
    ({SCALE_X: 1 / 0.88}, {SCALE_X: 1 / 0.86}),
    ({SCALE_Y: 1 / 0.88}, {SCALE_Y: 1 / 0.86}),
    ({SHIFT_X: 0.059}, {SHIFT_X: 0.061}),
    ({SHIFT_Y: -0.059}, {SHIFT_Y: -0.061}),
    ({SCALE_X: 0.9, SHIFT_X: 0.159}, {SCALE_X: 0.9, SHIFT_X: 0.161}),
    ({SCALE_X: 1.1, SHIFT_X: 0.16}, {SCALE_X: 1.1, SHIFT_X: 0.17}),
    # Both axes are within the same picture: one frame is within the other.
    ({SCALE_X: 0.9, SCALE_Y: 0.9}, {SCALE_X: 0.9, SCALE_Y: 1.1}),
]
LIKELY = [
    ({WHOLE: 0.85**2 + 1e-4}, {WHOLE: 0.85**2 - 1e-4}),
    ({FINE: 0.45**2 + 1e-4}, {FINE: 0.45**2 - 1e-4}),
    ({SHIFT_X: 0.079}, {SHIFT_X: 0.081}),
    ({GAIN: 0.51}, {GAIN: 0.49}),
    ({SCALE_X: 0.88}, {SCALE_X: 0.86}),
]
TINY = [
    ({WHOLE: 0.9**2 + 1e-4}, {WHOLE: 0.9**2 - 1e-4}),
    ({FINE: 0.8**2 + 1e-4}, {FINE: 0.8**2 - 1e-4}),
]


@pytest.mark.parametrize(
    ("least_side", "within", "beyond"),
    [
        *((64, *pair) for pair in PROVEN),
        *((63, *pair) for pair in TINY),
        *((None, *pair) for pair in LIKELY),
    ],
)
def test_each_limit_separates_duplicates_from_other_pictures(
    monkeypatch: pytest.MonkeyPatch,
    least_side: int | None,
    within: dict[int, float],
    beyond: dict[int, float],
) -> None:
    side = likeness_side()
    for changed, expected in ((within, True), (beyond, False), ({FINE: math.nan}, False)):
        measured = np.array([SAME], np.float32)
        for position, value in changed.items():
            measured[0, position] = value
        monkeypatch.setattr(search, "scores", lambda *_, measured=measured: measured)
        if least_side is None:
            picture = np.zeros((1, search.SMALL, search.SMALL), np.uint8)
            found = bool(search.likely(picture, picture, False)[0])
        else:
            picture = np.zeros((side, side), np.uint16)
            found = search.proven(picture, picture, False, least_side)
        assert found is expected, changed


def likeness_side() -> int:
    """Returns the number of cells on each side of a picture's means."""
    return 2 * search.SMALL


@pytest.mark.parametrize(("least_side", "side", "divisor"), [(63, 32, 64), (64, 64, 16)])
def test_cells_of_tiny_pictures_are_merged(
    monkeypatch: pytest.MonkeyPatch, least_side: int, side: int, divisor: int
) -> None:
    means = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    compared: list[tuple[Any, ...]] = []

    def note(*given: Any) -> Any:
        compared.append(given)
        return np.array([SAME], np.float32)

    monkeypatch.setattr(search, "scores", note)
    search.proven(means, 2 * means, True, least_side)

    ((left, right, mirrored, units),) = compared
    assert (left.shape, right.shape, mirrored, units) == (
        (1, side, side),
        (1, side, side),
        True,
        divisor,
    )
    assert np.array_equal(right, 2 * left)
    if side == 32:
        assert left[0, 0, 1] == means[:2, 2:4].sum()


@pytest.mark.parametrize(
    ("strong", "rough", "share", "expected"),
    [
        (128, 820, 1, True),
        (127, 820, 1, False),
        (128, 819, 1, False),
        (96, 615, 0.75, True),
        (95, 615, 0.75, False),
        (96, 614, 0.75, False),
    ],
)
def test_a_picture_without_detail_is_not_judged(
    strong: int, rough: int, share: float, expected: bool
) -> None:
    rows = np.zeros(1, search.ROW)
    rows["strong"] = strong
    rows["rough"] = rough

    assert search.judged(rows, share).tolist() == [expected]
