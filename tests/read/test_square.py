"""recipe="adm": batches are the crops that Pillow makes, or the recipe is refused."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.read import Reader, backend, make_dataset
from imagenet_prep.read.augment import boxes_in
from tests.kit.codec.square import pillows
from tests.kit.dataset import split_records
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, ODD
from tests.kit.tfrecords import jpeg, picture, write_dataset

SIDE = 24


def open_square(root: Path, split: str = "train", **more: Any) -> Reader:
    settings: dict[str, Any] = {"recipe": "adm", "world": World()}
    return make_dataset(root, split, 4, SIDE, **settings | more)


def by_number(reader: Reader) -> dict[int, Any]:
    images: dict[int, Any] = {}
    for batch in reader:
        is_example = batch["number"] >= 0
        numbers = batch["number"][is_example].tolist()
        images |= zip(numbers, batch["images"][is_example], strict=True)
    return images


def prepared(root: Path, change: Callable[[Manifest], Manifest]) -> Path:
    """Writes a dataset of four images with a changed manifest."""
    pictures = [picture(number, jpeg(scene_pixels(number))) for number in range(4)]
    manifest = write_dataset(root, {"train": [pictures]}, num_classes=4)
    (root / schema.MANIFEST).write_bytes(change(manifest).dumps())
    return root


def scene_pixels(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)


def changed(*, resized: int = 0, repaired: int = 0, short_side: int | None = None) -> Any:
    def change(manifest: Manifest) -> Manifest:
        split = dataclasses.replace(manifest.splits["train"], resized=resized)
        return dataclasses.replace(
            manifest,
            config={"short_side": short_side, "splits": ["train"]},
            splits={"train": split},
            repaired={"grey": repaired} if repaired else {},
        )

    return change


@pytest.mark.parametrize("hidden", [False, True], ids=["planes", "pillow"])
def test_batches_are_pillows_bytes_with_mirroring(
    installed: Installed, scenes: Path, hidden: bool
) -> None:
    if hidden:
        installed.no_planes()
    encoded = [record.encoded for record in split_records(scenes, "train")]
    reader = open_square(scenes, fields=("images", "number"), num_threads=2)
    other = open_square(scenes, fields=("images", "number"), world=World(1, 2), layout="NCHW")
    mirrored = []
    for epoch in range(2):
        found = by_number(reader)
        of_rank = by_number(other)
        assert len(found) == NUM_TRAIN // 4 * 4
        for number, image in found.items():
            expected = pillows(encoded[number], SIDE)
            is_mirrored = not np.array_equal(image, expected)
            assert np.array_equal(image, expected[:, ::-1] if is_mirrored else expected)
            mirrored.append((epoch, number, is_mirrored))
        for number in of_rank.keys() & found.keys():
            assert np.array_equal(of_rank[number].transpose(1, 2, 0), found[number])
    share = np.mean([is_mirrored for *_, is_mirrored in mirrored])
    assert 0.3 < share < 0.7
    sides = [{n: m for e, n, m in mirrored if e == epoch} for epoch in range(2)]
    assert any(sides[0][number] != sides[1][number] for number in sides[0].keys() & sides[1].keys())


def test_evaluation_never_mirrors_and_odd_files_use_pillow(tmp_path: Path) -> None:
    odd = list(ODD.values())
    pictures = [picture(number, data) for number, data in enumerate(odd)]
    write_dataset(tmp_path / "set", {"validation": [pictures]}, num_classes=len(odd))
    found = by_number(open_square(tmp_path / "set", "validation", fields=("images", "number")))

    assert len(found) == len(odd)
    for number, image in found.items():
        assert np.array_equal(image, pillows(odd[number], SIDE)), list(ODD)[number]


def test_pillow_never_enlarges_beyond_the_memory(tmp_path: Path) -> None:
    """A file of 10 kB with repeated chroma would be enlarged to 400 million pixels."""
    data = jpeg(np.full((30_000, 1, 3), (20, 90, 200), np.uint8))
    write_dataset(tmp_path / "set", {"validation": [[picture(0, data)]]}, num_classes=1)
    reader = make_dataset(tmp_path / "set", "validation", 1, 2_000, recipe="adm", world=World())
    (batch,) = reader

    assert np.ptp(batch["images"].reshape(-1, 3), axis=0).max() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "tfdata"),
        ("backend", "dali"),
        ("device", "gpu"),
        ("dtype", "float32"),
        ("dtype", "float16"),
        ("dtype", "bfloat16"),
        ("views", 2),
        ("colour", True),
        ("antialias", True),
        ("antialias", False),
    ],
)
def test_option_that_changes_bytes_is_refused(
    monkeypatch: pytest.MonkeyPatch, scenes: Path, name: str, value: Any
) -> None:
    monkeypatch.setattr("imagenet_prep.read.backend.lacking", lambda _: [])
    with pytest.raises(
        UsageError,
        match=says("recipe-produces-same-bytes-pillow", "'adm'", name, ..., f"{value!r}"),
    ):
        open_square(scenes, **{name: value})


def test_square_beyond_the_codec_limit_is_refused(scenes: Path) -> None:
    with pytest.raises(
        UsageError, match=says("recipe-image_size-expected-most", ..., "8193", "8192")
    ):
        make_dataset(scenes, "train", 4, 8193, recipe="adm", world=World())


def test_changed_images_are_counted_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend.say_once.cache_clear()
    root = prepared(tmp_path / "set", changed(resized=1, repaired=2, short_side=SIDE + 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            open_square(root)
        open_square(root, fields=("class_index",))

    (record,) = caplog.records
    assert says("prepare-downscaled-repaired-dataset", ..., "1", "4 images", "train").search(
        record.message
    )
    assert says(
        "prepare-downscaled-repaired-dataset", ..., ..., ..., ..., "2 images", "grey"
    ).search(record.message)


def test_unchanged_dataset_is_opened_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = prepared(tmp_path / "set", changed())
    with caplog.at_level(logging.WARNING):
        open_square(root, originals=True)

    assert caplog.records == []


@pytest.mark.parametrize("short_side", [SIDE, SIDE - 1])
def test_images_downscaled_to_the_crop_are_refused(tmp_path: Path, short_side: int) -> None:
    root = prepared(tmp_path / "set", changed(resized=1, short_side=short_side))
    with pytest.raises(
        UsageError,
        match=says("images-downscaled-short-side-crops", ..., short_side, ..., "--keep-original"),
    ):
        open_square(root)

    assert len(list(open_square(root, originals=False))) == 1


@pytest.mark.parametrize("how", [{"resized": 1}, {"repaired": 1}])
def test_originals_refuses_a_dataset_with_changed_images(
    tmp_path: Path, how: dict[str, int]
) -> None:
    root = prepared(tmp_path / "set", changed(**how))

    with pytest.raises(UsageError, match=says("originals-true-accepts-no-changed")):
        open_square(root, originals=True)


def test_boxes_follow_the_central_square_and_its_mirroring(scenes: Path) -> None:
    reader = open_square(scenes)
    views = next(iter(reader.encoded_batches())).views[0]
    views = dataclasses.replace(
        views, boxes=np.array([[0, 0, 100, 200]] * 2), mirrored=np.array([False, True])
    )
    boxes = np.array([[[0, 0, 1, 1], [0.25, 0, 0.5, 0.5], [0, 0, 0.2, 1]]] * 2)
    found = boxes_in(views, boxes, np.array([100] * 2), np.array([200] * 2), (50, 50), square=True)

    assert found[0].tolist() == [[0, 0, 50, 50], [0, 0, 25, 25], [0] * 4]
    assert found[1].tolist() == [[0, 0, 50, 50], [25, 0, 50, 25], [0] * 4]
