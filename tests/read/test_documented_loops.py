"""Loops over readers in the documents, run unchanged: each must give the right accuracy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.read import World, make_dataset
from tests.kit.command import REPOSITORY
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION
from tests.kit.tfrecords import numbers_of

GREY = 128
# The class of one image of validation.
CONSTANT = NUM_TRAIN + 3
LOOPS = {"README.md": "top1 = right / seen", "docs/reading.md": "right = seen = 0"}


def block_with(page: str, text: str) -> str:
    """Returns the only block of Python of a page that contains `text`."""
    content = (REPOSITORY / page).read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", content, re.DOTALL | re.MULTILINE)
    (found,) = (block for block in blocks if text in block)
    return str(found)


def words_of(page: str) -> str:
    return " ".join((REPOSITORY / page).read_text("utf-8").split())


def constant(images: Any) -> Any:
    return np.full(len(images), CONSTANT)


def by_colour(images: Any) -> Any:
    """Predicts the class of an image of one colour; see `tests.kit.tfrecords.plain`."""
    mean = np.array([123.675, 116.28, 103.53])
    std = np.array([58.395, 57.12, 57.375])
    pixels = np.rint(images * std + mean).clip(0, 255).astype(np.uint8)
    # The grey of padding is the colour of no class.
    is_named = [not (image == GREY).all() for image in pixels]
    predicted = np.zeros(len(images), int)
    predicted[is_named] = numbers_of(pixels[is_named])
    return predicted


@pytest.mark.parametrize(
    ("predict", "expected"),
    [
        (constant, 1 / NUM_VALIDATION),
        (lambda images: np.zeros(len(images)), 0.0),
        (by_colour, 1.0),
    ],
    ids=["constant", "class 0", "right"],
)
@pytest.mark.parametrize("page", LOOPS)
def test_top1_of_a_page_is_exact(colours: Path, page: str, predict: Any, expected: float) -> None:
    steps: list[int] = []

    def opened(data_dir: str, split: str, batch_size: int) -> Any:
        assert (data_dir, batch_size) == ("/data/imagenet-480", 256)
        return make_dataset(colours, split, 8, 16, world=World())

    code = block_with(page, LOOPS[page])
    code = code.replace("from imagenet_prep.read import make_dataset", "").replace("(90)", "(2)")
    scope: dict[str, Any] = {
        "make_dataset": opened,
        "step": lambda images, _: steps.append(len(images)),
        "save": lambda state: steps.append(state["epoch"]),
        "predict": predict,
    }
    exec(code, scope)

    assert scope["right"] / scope["seen"] == pytest.approx(expected)
    assert scope["seen"] == NUM_VALIDATION
    if page == "README.md":
        assert scope["top1"] == pytest.approx(expected)
        assert steps == [*[8] * (NUM_TRAIN // 8), 1, *[8] * (NUM_TRAIN // 8), 2]


def test_look_at_a_batch_begins_the_epoch(colours: Path) -> None:
    """As the pages say; a look at a batch of a second reader changes nothing."""
    train = make_dataset(colours, "train", 8, 16, world=World())
    next(iter(make_dataset(colours, "train", 8, 16, world=World())))
    next(iter(train))
    assert (train.epoch, sum(1 for _ in train)) == (0, len(train) - 1)
    assert (train.epoch, sum(1 for _ in train)) == (1, len(train))
    for page in ("docs/pytorch.md", "docs/reading.md"):
        assert "begins an epoch" in words_of(page)


def test_epochs_drop_different_examples_as_the_readme_says(colours: Path) -> None:
    train = make_dataset(colours, "train", 7, 16, world=World(), fields=("number",))
    epochs = []
    for _ in range(3):
        epochs.append({int(number) for batch in train for number in batch["number"]})
        assert len(epochs[-1]) == len(train) * 7 == NUM_TRAIN - train.dropped_per_epoch
    dropped = [{*range(NUM_TRAIN)} - epoch for epoch in epochs]
    assert len({frozenset(numbers) for numbers in dropped}) > 1
    assert "except those that do not fill the last step" in words_of("README.md")


def test_documented_sums_over_ranks_equal_one_process(colours: Path) -> None:
    code = block_with("docs/reading.md", LOOPS["docs/reading.md"])
    right = seen = 0
    for rank in range(3):
        reader = make_dataset(colours, "validation", 4, 16, world=World(rank, 3))
        scope: dict[str, Any] = {
            "make_dataset": lambda *_, reader=reader, **__: reader,
            "predict": by_colour,
        }
        exec(code, scope)
        right += scope["right"]
        seen += scope["seen"]

    assert (right, seen) == (NUM_VALIDATION, NUM_VALIDATION)
