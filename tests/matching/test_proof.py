"""The proof: what is one picture, what is not, and equal numbers of all vector code."""

from __future__ import annotations

import io

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


def test_variants_are_proven_and_others_are_not(pictures: list[Image.Image]) -> None:
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
def test_crops_that_stick_out_on_opposite_sides_are_two_pictures(
    pictures: list[Image.Image], share: float
) -> None:
    """What they share is equal in its finest details, and neither frame is within the other."""
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


def test_the_fit_says_where_a_crop_lies(pictures: list[Image.Image]) -> None:
    picture = pictures[0].resize((500, 400))
    crop = picture.crop((20, 0, 490, 380))

    (found,) = search.scores(means(picture), means(crop), AS_IS, likeness.SIXTEENTHS)

    # Half sides: the crop has 470 of 500 columns, and its middle lies 5 to the right.
    assert found[:4] == pytest.approx([470 / 500, 5 / 250, 380 / 400, -10 / 200], abs=0.004)
    assert found[4:6] == pytest.approx([1, 0], abs=1)


def test_flat_pictures_prove_nothing() -> None:
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
def test_vector_code_makes_the_numbers_of_the_plain_code(
    seed: int, side: int, noise: int, shift: int, mirrored: bool
) -> None:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 4080, (3, side // 4, side // 4))
    left = np.kron(coarse, np.ones((1, 4, 4), np.int64))
    right = np.roll(left, shift, axis=2) + rng.integers(-noise, noise + 1, left.shape)
    right = np.clip(right, 0, 4080)

    plain, vector = (search.scores(left, right, mirrored, 16, simd) for simd in (0, search.best()))

    assert plain.tobytes() == vector.tobytes()
