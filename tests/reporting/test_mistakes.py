"""Mistakes of a network: the most confident ones, and the most frequent pairs of classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.predictions import Prediction
from imagenet_prep.reporting import render
from tests.kit.tfrecords import jpeg, picture


def said(key: str, label: int, taken_for: int, share: float) -> Prediction:
    return Prediction(key, label, (taken_for, 99), (share, 1 - share))


def test_the_most_confident_mistakes_come_first() -> None:
    predictions = [
        said("right", 0, 0, 0.99),
        said("a", 0, 1, 0.5),
        said("b", 0, 1, 0.9),
        said("c", 1, 2, 0.7),
        said("gone", 1, 0, 0.6),
        *(said(f"sure-{n}", 2, 2, 1.0) for n in range(5)),
    ]
    image = picture(0, jpeg(np.full((20, 30, 3), 90.0)))
    asked = []

    def images_of(keys: Sequence[str], total: int) -> Iterator[ImageExample | None]:
        assert total == len(predictions)
        for key in keys:
            asked.append(key)
            yield None if key == "gone" else image

    counts = render.PredictionCounts(predictions)
    found = render.find_mistakes(counts, lambda index: f"class {index}", images_of)

    assert (found.images, found.wrong) == (10, 4)
    assert [each.key for each in found.surest] == ["b", "c", "gone", "a"] == asked
    assert found.surest[0][1:4] == ("class 0", "class 1", 0.9)
    assert [each.picture is None for each in found.surest] == [False, False, True, False]
    assert str(found.surest[0].picture).startswith("data:image/webp;base64,")
    assert found.pairs == [
        ("class 0", "class 1", 2, 2 / 3),
        ("class 1", "class 0", 1, 0.5),
        ("class 1", "class 2", 1, 0.5),
    ]


def test_a_page_shows_at_most_48_mistakes() -> None:
    predictions = (said(f"{n}", n % 200, n % 200 + 1, n / 10_000) for n in range(10_000))
    counts = render.PredictionCounts(predictions)
    found = render.find_mistakes(counts, str, lambda keys, _: [None] * len(keys))

    assert (len(found.surest), len(found.pairs)) == (48, 30)
    assert found.surest[0].key == "9999"
    assert found.pairs[0] == ("0", "1", 50, 1.0)
