"""Disagreements between lists of labels: their number, and the worst as images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.reporting import render
from imagenet_prep.reporting.render import APART, EQUAL, NONE, SHARED
from tests.kit.tfrecords import jpeg, picture


def test_images_without_a_common_label_come_first() -> None:
    said = {
        "the data set": {n: (n,) for n in range(6)},
        # An equal label, one more, none, and a different one; image 4 has no entry.
        "one": {0: (0,), 1: (1, 7), 2: (), 3: (8,), 5: (5,)},
        "two": {0: (0,), 1: (1,), 3: (8, 3), 5: (9,)},
    }
    image = picture(0, jpeg(np.full((20, 30, 3), 90.0)))

    def images_of(shown: Sequence[str], total: int) -> list[ImageExample | None]:
        assert total == len(keys)
        return [None if key == "k3" else image for key in shown]

    keys = [f"k{n}" for n in range(6)]
    found = render.find_disagreements(keys, said, [], lambda index: f"class {index}", images_of)

    assert found.pairs == {
        ("the data set", "one"): {EQUAL: 2, SHARED: 1, NONE: 1, APART: 1},
        ("the data set", "two"): {EQUAL: 2, SHARED: 1, APART: 1},
        ("one", "two"): {EQUAL: 1, SHARED: 2, APART: 1},
    }
    assert (found.images, found.differ) == (5, 4)
    assert [each.key for each in found.shown] == ["k5", "k3", "k2", "k1"]
    assert found.shown[2].labels == {"the data set": ["class 2"], "one": []}
    assert [each.picture is None for each in found.shown] == [False, True, False, False]


def test_a_page_shows_at_most_48_images() -> None:
    said = {"a": dict.fromkeys(range(200), (0,)), "b": dict.fromkeys(range(200), (1,))}
    keys = list(map(str, range(200)))
    found = render.find_disagreements(keys, said, [], str, lambda some, _: [None] * len(some))
    assert (found.differ, len(found.shown)) == (200, 48)
