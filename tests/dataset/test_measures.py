"""What tables of samples tell of images: each is counted once, at its bin."""

from __future__ import annotations

import pytest

from imagenet_prep.dataset import samples
from tests.kit.limits import Limits
from tests.kit.samples import kept


def test_histograms_count_each_image_once_at_its_bin(limits: Limits) -> None:
    limits(measures_at_once=2)
    sides = [(256, 512), (512, 256), (256, 256)]
    rows = [
        kept("n/1", number % 2)._replace(
            height=height,
            width=width,
            num_bytes=1000,
            source_height=1024,
            source_width=2048,
            source_bytes=2000,
        )
        for number, (height, width) in enumerate(sides)
    ]
    found = samples.of(iter(rows))

    assert found.histograms == {
        "short_side": {64: 3},
        "source_short_side": {80: 3},
        "aspect": {-8: 1, 0: 1, 8: 1},
        "source_aspect": {8: 3},
        "bytes": {79: 3},
        "source_bytes": {87: 3},
    }
    assert found.sums["bytes"] == 3000
    assert found.classes == {0, 1}


def test_no_images_have_no_measures() -> None:
    assert samples.of([]) == samples.Measured()


@pytest.mark.parametrize("bin_number", [-9, 0, 64, 79])
def test_a_value_falls_between_the_edges_of_its_bin(bin_number: int) -> None:
    below = samples.lower_edge(bin_number)
    above = samples.lower_edge(bin_number + 1)

    assert above / below == pytest.approx(2 ** (1 / samples.BINS_PER_OCTAVE))
    assert samples.lower_edge(79) <= 1000 < samples.lower_edge(80)
