"""Views without pixels: crops, mirroring and colours, and their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.read.augment import Views, central_views, random_views
from imagenet_prep.read.recipes import RECIPES
from tests.kit.lengths import examples


def drawn(
    recipe: str, numbers: Any, *, epoch: int = 0, seed: int = 1, colour: bool = True
) -> Views:
    sides = np.full(len(numbers), 32)
    return random_views(RECIPES[recipe], sides, sides, numbers, seed, epoch, colour=colour)


def changed(matrix: Any, pixels: Any) -> Any:
    """Applies a matrix of `Views.colours` to [N, 3] pixels, unclipped."""
    return pixels @ matrix[:, :3].T + matrix[:, 3:6] @ pixels.mean(0) + matrix[:, 6]


def test_colours_depend_only_on_seed_epoch_and_example() -> None:
    numbers = np.arange(50)
    shown = drawn("tutorial", numbers)
    assert shown.colours is not None
    some = drawn("tutorial", numbers[[7, 3]]).colours

    assert np.array_equal(some, shown.colours[[7, 3]])
    for other in ({"epoch": 1}, {"seed": 2}):
        colours = drawn("tutorial", numbers, **other).colours
        assert np.all(np.abs(colours - shown.colours).max((1, 2)) > 1e-4)
    # Crops are the same in a run without colours.
    assert drawn("tutorial", numbers, colour=False).colours is None
    assert np.array_equal(drawn("tutorial", numbers, colour=False).boxes, shown.boxes)


def test_colour_matrix_equals_the_documented_sequence_of_steps() -> None:
    colours = drawn("tutorial", np.arange(2000)).colours
    assert colours is not None
    yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    pixels = np.random.default_rng(0).uniform(0, 255, (40, 3))
    figures = []
    for matrix in colours.astype(np.float64):
        # The parameters of each step are derived from the effect of the complete matrix on chosen
        # pixels.
        brightness = matrix[:, 6]
        assert np.ptp(brightness) < 1e-6
        contrast = np.ptp(changed(matrix, np.array([[0.0] * 3, [100.0] * 3]))[:, 0]) / 100
        turned = yiq @ (matrix[:, :3] / contrast) @ np.linalg.inv(yiq)
        saturation = np.hypot(turned[1, 1], turned[2, 1])
        hue = np.arctan2(turned[2, 1], turned[1, 1])
        figures.append((brightness[0], hue / np.pi, saturation, contrast))

        cosine = saturation * np.cos(hue)
        sine = saturation * np.sin(hue)
        rotation = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
        step = (pixels + brightness[0]) @ (np.linalg.inv(yiq) @ rotation @ yiq).T
        expected = (step - step.mean(0)) * contrast + step.mean(0)
        np.testing.assert_allclose(changed(matrix, pixels), expected, atol=1e-2)

    # The tutorial's brightness, hue, saturation and contrast.
    least = np.min(figures, axis=0)
    most = np.max(figures, axis=0)
    np.testing.assert_allclose(least, [-0.3, -0.13, 0.6, 0.6], atol=2e-3)
    np.testing.assert_allclose(most, [0.3, 0.13, 1.4, 1.4], atol=2e-3)


def test_padding_offsets_are_uniformly_distributed() -> None:
    views = drawn("cifar10", np.arange(9000), colour=False)

    assert np.all(views.boxes[:, 2:] == 32)
    for side in (0, 1):
        places, counts = np.unique(views.boxes[:, side], return_counts=True)
        assert places.tolist() == list(range(-4, 5))
        assert counts.min() > 850
    assert 0.45 < views.mirrored.mean() < 0.55


def test_digits_are_neither_moved_nor_mirrored() -> None:
    views = drawn("mnist", np.arange(100), colour=False)
    sides = np.full(100, 32)

    assert not views.mirrored.any()
    central = central_views(RECIPES["mnist"], sides, sides, (28, 28))
    assert np.array_equal(views.boxes, central.boxes)


@pytest.mark.parametrize("name", ["resnet", "timm", "torchvision-v2", "mae"])
def test_very_long_images_show_their_middle(name: str) -> None:
    """No drawn crop fits into them, so every epoch shows the largest allowed one."""
    recipe = RECIPES[name]
    numbers = np.arange(60)
    heights = np.array([10, 1000, 300] * 20)
    widths = np.array([1000, 10, 300] * 20)
    low, high = recipe.aspect
    wide, tall = round(10 * high), round(10 / low)
    shown = [random_views(recipe, heights, widths, numbers, 1, epoch).boxes for epoch in (0, 1)]

    for boxes in shown:
        assert np.unique(boxes[::3], axis=0).tolist() == [[0, (1001 - wide) // 2, 10, wide]]
        assert np.unique(boxes[1::3], axis=0).tolist() == [[(1001 - tall) // 2, 0, tall, 10]]
    # The crops of other images in the batch stay random.
    places = np.concatenate([boxes[2::3] for boxes in shown])
    assert len(np.unique(places, axis=0)) > 30


@given(
    st.sampled_from(["resnet", "tutorial", "timm", "torchvision-v2", "mae"]),
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=20),
    st.integers(0, 99),
)
@examples(100)
def test_crops_are_within_their_images(name: str, sides: list[tuple[int, int]], seed: int) -> None:
    heights, widths = np.array(sides).T
    recipe = RECIPES[name]
    top, left, tall, wide = random_views(
        recipe, heights, widths, np.arange(len(sides)), seed, 0
    ).boxes.T

    assert np.all((top >= 0) & (left >= 0) & (tall >= 1) & (wide >= 1))
    assert np.all((top + tall <= heights) & (left + wide <= widths))
    most = recipe.area[1]
    # Rounding moves each side by at most half a pixel. Long images have smaller crops.
    assert np.all(tall * wide <= most * heights * widths + (tall + wide) / 2 + 1)
