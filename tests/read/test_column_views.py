"""Columns made from views of images: joined only to the same crop and mirroring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import (
    UsageError,
)
from imagenet_prep.core.world import World
from imagenet_prep.read import ColumnWriter
from tests.kit.columns import NAME, NATIVE, record_of, write
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, reader_of


def read(root: Path, split: str = "train", **more: Any) -> list[Any]:
    fields = ("number", "class_index", f"column:{NAME}")
    return list(reader_of(root, split, 8, "native", **{"fields": fields} | more))


def test_rows_of_a_crop_need_the_same_crop(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"fields": ("images",)})
    assert record_of(damaged).view == "evaluation crop, recipe resnet, 16 px"
    joined: dict[str, Any] = {"fields": ("images", f"column:{NAME}")}

    assert len(read(damaged, training=False, **joined)) == -(-NUM_TRAIN // 8)
    assert read(damaged)
    for other in (
        {},
        {"training": False, "recipe": "tutorial"},
        {"training": False, "antialias": False},
    ):
        with pytest.raises(
            UsageError, match=says("column-made-view-reader-s", "marks", "evaluation")
        ):
            read(damaged, **joined, **other)


def test_rows_that_hold_for_every_crop_are_joined(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"fields": ("images",)}, view="image")
    assert read(damaged, fields=("images", f"column:{NAME}"))


def test_mirrored_images_need_the_field_mirrored_for_columns(damaged: Path) -> None:
    options: dict[str, Any] = {"recipe": "mnist", "mirror": 0.5}
    write(damaged, reader=NATIVE | {"recipe": "mnist", "fields": ("images",)})
    joined = ("images", f"column:{NAME}")
    with pytest.raises(UsageError, match=says("column-made-images-not-mirrored")):
        read(damaged, fields=joined, **options)
    mirrored = [b["mirrored"] for b in read(damaged, fields=(*joined, "mirrored"), **options)]
    assert np.concatenate(mirrored).any()
    assert not np.concatenate(mirrored).all()


@pytest.mark.parametrize("recipe", ["adm", "mnist"])
def test_training_with_evaluation_crop_reads_columns_of_it(damaged: Path, recipe: str) -> None:
    """By default; an image that is not mirrored has the pixels of its row."""
    made = NATIVE | {"recipe": recipe, "fields": ("images",), "originals": False}
    with ColumnWriter(
        damaged, "train", NAME, (16, 16, 3), "uint8", batch_size=8, reader=made, world=World()
    ) as writer:
        for batch in writer:
            writer.write(batch["images"])
    assert record_of(damaged).view == f"evaluation crop, recipe {recipe}, 16 px"

    fields = ("images", "mirrored", f"column:{NAME}")
    seen = 0
    for images, mirrored, rows in (
        batch.values() for batch in read(damaged, fields=fields, recipe=recipe)
    ):
        assert np.array_equal(images[mirrored], rows[mirrored][:, :, ::-1])
        assert np.array_equal(images[~mirrored], rows[~mirrored])
        seen += len(images)
    assert seen == NUM_TRAIN // 8 * 8


def test_different_filter_is_refused_with_a_column(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"recipe": "mnist", "fields": ("images",)})
    fields = ("images", f"column:{NAME}")
    assert read(damaged, fields=fields, recipe="mnist", antialias=True)
    with pytest.raises(UsageError, match="recipe mnist, 16 px, not antialiased"):
        read(damaged, fields=fields, recipe="mnist", antialias=False)
    for antialias in (True, False):
        with pytest.raises(
            UsageError,
            match=says("recipe-produces-same-bytes-pillow", "'adm'", "antialias", "None"),
        ):
            read(damaged, fields=fields, recipe="adm", antialias=antialias)


def test_mirrored_field_equals_the_mirroring_of_images(scenes: Path) -> None:
    def pictures(**more: Any) -> Any:
        fields = ("images", "mirrored", "number")
        return list(reader_of(scenes, "train", 10, "native", fields=fields, **more))

    whole = {"recipe": "cifar10", "antialias": False}
    fields: dict[int, bool] = {}
    for batch in pictures(**whole):
        fields |= zip(batch["number"].tolist(), batch["mirrored"].tolist(), strict=True)
    reader = reader_of(scenes, "train", 10, "native", **whole)
    for encoded in reader.encoded_batches():
        for number, mirrored in zip(
            encoded.numbers.tolist(), encoded.views[0].mirrored.tolist(), strict=True
        ):
            assert fields[number] == mirrored
    assert set(fields.values()) == {True, False}
    assert not any(b["mirrored"].any() for b in pictures(training=False))


def test_column_made_from_classes_records_its_origin(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"fields": ("class_index",)})
    assert record_of(damaged).made_from == "image+class"
    fields = {"fields": (f"column:{NAME}",), "backend": "native"}
    with ColumnWriter(damaged, "train", "more", (3,), "int32", batch_size=8, reader=fields) as made:
        batch: Any
        for batch in made:
            made.write(batch[f"column:{NAME}"])
    assert made.column.made_from == "image+class"
    assert made.column.view == "image"


def test_column_made_from_a_column_has_its_crop(damaged: Path) -> None:
    write(damaged, view=None, reader=NATIVE)
    view = record_of(damaged).view
    fields = {**NATIVE, "fields": (f"column:{NAME}",)}
    with ColumnWriter(damaged, "train", "more", (3,), "int32", batch_size=8, reader=fields) as made:
        assert (made.column.view, made.column.made_from) == (view, "image")
    assert view == "evaluation crop, recipe resnet, 16 px"
