"""Fields of a batch: keys, numbers, sizes and boxes; and several views of each image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset.member import Boxes
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.augment import Views, boxes_in, random_views
from imagenet_prep.read.batch import FIELDS
from imagenet_prep.read.feed import MOST_BOXES
from imagenet_prep.read.recipes import RECIPES
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN
from tests.kit.tfrecords import jpeg, picture, wnid, write_dataset

SIDE = 64
COUNT = 16


def boxed(number: int) -> Any:
    """Returns an example with a white rectangle on black at its first box."""
    height = 100 + 10 * (number % 3)
    width = 90 + 20 * (number % 4)
    top = 10 + 3 * number % 40
    left = 8 + 5 * number % 35
    bottom = top + 24 + number % 7
    right = left + 30 + number % 9
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top:bottom, left:right] = 255
    boxes = Boxes(
        (left / width, 0.0), (right / width, 1.0), (top / height, 0.0), (bottom / height, 1.0)
    )
    # Every third example has a second box, the complete image; some have none.
    few = {0: boxes, 1: Boxes(*(side[:1] for side in boxes)), 2: Boxes((), (), (), ())}[number % 3]
    return picture(number, jpeg(pixels, 100))._replace(boxes=few)


@pytest.fixture(scope="module")
def rectangles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 + 1 examples with boxes; read-only."""
    root = tmp_path_factory.mktemp("boxes") / "set"
    made = [boxed(number) for number in range(COUNT)]
    # The position of a record differs from its class.
    train = [made[:7][::-1], made[7:]]
    write_dataset(root, {"train": train, "validation": [[made[0]]]}, num_classes=COUNT)
    return root


def reader_of(root: Path, backend: str = "native", split: str = "train", **more: Any) -> Reader:
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "world": World(), "seed": 3}
    settings |= {"batch_size": 4, "image_size": SIDE, "fields": FIELDS}
    return make_dataset(root, split, backend=backend, **settings | more)


def seen(image: Any) -> Any:
    """Returns left, top, right, bottom of the white part of [side, side, 3] pixels."""
    bright = image.astype(int).mean(axis=2) > 127
    places = [np.flatnonzero(bright.any(axis=axis)) for axis in (0, 1)]
    if not all(map(len, places)):
        return np.zeros(4)
    x, y = places
    return np.array([x[0], y[0], x[-1] + 1, y[-1] + 1])


def test_batch_identifies_examples_and_shows_two_views(rectangles: Path, backend: str) -> None:
    reader = reader_of(rectangles, backend, views=2)
    numbers = []
    mirrored = []
    for batch in reader:
        assert tuple(batch) == FIELDS
        assert batch["images"].shape == (4, 2, SIDE, SIDE, 3)
        assert batch["boxes"].shape[:2] == (4, 2)
        for i, number in enumerate(batch["number"].tolist()):
            class_index = int(batch["class_index"][i])
            example = reader.example(number)
            assert batch["key"][i] == f"{wnid(class_index)}/{example.filename}"
            assert (batch["height"][i], batch["width"][i]) == (example.height, example.width)
            for view in range(2):
                found = batch["boxes"][i, view]
                assert found.min(initial=0) == 0
                assert found.max(initial=0) <= SIDE
                if example.boxes.xmin:
                    # A pixel of the image is up to seven of a small crop's; edges are blurred.
                    off = np.abs(found[0] - seen(batch["images"][i, view]))
                    assert off.max() <= 3, (number, view)
                assert not found[len(example.boxes.xmin) :].any()
            numbers.append(number)
    for batch in reader.encoded_batches():
        mirrored += [views.mirrored.tolist() for views in batch.views]

    assert sorted(numbers) == list(range(COUNT))
    assert len(np.unique(mirrored)) == 2


def test_first_view_equals_a_reader_with_one_view(scenes: Path, backend: str) -> None:
    def by_number(**more: Any) -> dict[int, Any]:
        settings = {"fields": ("number", "images"), "colour": True, "batch_size": 5}
        batches = list(reader_of(scenes, backend, **settings | more))
        images: dict[int, Any] = {}
        for batch in batches:
            images |= zip(batch["number"].tolist(), batch["images"], strict=True)
        return images

    one = by_number()
    three = by_number(views=3, batch_size=2)

    assert one.keys() == three.keys() == set(range(NUM_TRAIN))
    for number, image in one.items():
        assert np.array_equal(three[number][0], image)
        assert not np.array_equal(three[number][1], image)
        assert not np.array_equal(three[number][2], three[number][1])


def test_padding_has_empty_fields(rectangles: Path) -> None:
    reader = reader_of(rectangles, split="validation")
    (batch,) = reader

    assert batch["mask"].tolist() == [True, False, False, False]
    assert batch["key"].tolist() == [f"{wnid(0)}/{wnid(0)}_0.JPEG", "", "", ""]
    assert batch["number"].tolist() == [0, -1, -1, -1]
    assert batch["width"][1:].tolist() == batch["height"][1:].tolist() == [0, 0, 0]
    assert batch["boxes"].shape == (4, 2, 4)
    assert batch["boxes"][0, 1].tolist() == [0, 0, SIDE, SIDE]
    assert not batch["boxes"][1:].any()


def test_nothing_is_decoded_if_images_are_not_requested(
    rectangles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("imagenet_prep.read.backend.NativeBackend")
    reader = reader_of(rectangles, fields=("key", "mask", "class_index"))
    keys = np.concatenate([batch["key"] for batch in reader]).tolist()

    assert len(set(keys)) == COUNT
    assert reader.epoch == 1


@pytest.mark.tf
def test_tensorflow_gets_tensors_of_every_field(rectangles: Path, tf: Any) -> None:
    for backend in ("native", "tfdata"):
        arrays = next(iter(reader_of(rectangles, backend)))
        tensors = next(iter(reader_of(rectangles, backend, framework="tensorflow")))

        assert all(isinstance(value, tf.Tensor) for value in tensors.values())
        assert tensors["key"].dtype == tf.string
        assert [key.decode() for key in tensors["key"].numpy()] == arrays["key"].tolist()
        for name in FIELDS:
            assert name == "key" or np.array_equal(tensors[name].numpy(), arrays[name])


def test_boxes_follow_the_crop_and_its_mirroring() -> None:
    views = Views(np.array([[10, 20, 50, 100]] * 2, np.int32), np.array([False, True]))
    whole = np.array([[[0, 0, 1, 1], [0.2, 0.2, 0.4, 0.4], [0, 0, 0.1, 1], [0, 0, 0, 0]]] * 2)
    found = boxes_in(views, whole, np.array([100, 100]), np.array([200, 200]), (50, 50))

    assert found.dtype == np.float32
    assert found[0].tolist() == [[0, 0, 50, 50], [10, 10, 30, 30], [0] * 4, [0] * 4]
    assert found[1].tolist() == [[0, 0, 50, 50], [20, 10, 40, 30], [0] * 4, [0] * 4]


def test_boxes_of_a_rectangle_are_in_its_pixels() -> None:
    views = Views(np.array([[0, 0, 100, 200]] * 2, np.int32), np.array([False, True]))
    boxes = np.array([[[0.1, 0.2, 0.3, 0.4]]] * 2)
    found = boxes_in(views, boxes, np.array([100] * 2), np.array([200] * 2), (50, 80))
    np.testing.assert_allclose(found, [[[8, 10, 24, 20]], [[56, 10, 72, 20]]], rtol=1e-6)


def test_views_depend_only_on_their_number() -> None:
    sizes = (np.full(3, 100), np.full(3, 120), np.arange(3))
    drawn = [random_views(RECIPES["resnet"], *sizes, 5, 1, view=view) for view in (0, 1, 2, 1)]

    assert np.array_equal(drawn[0].boxes, random_views(RECIPES["resnet"], *sizes, 5, 1).boxes)
    assert np.array_equal(drawn[1].boxes, drawn[3].boxes)
    assert len({views.boxes.tobytes() for views in drawn}) == 3


def test_more_boxes_than_the_limit_name_their_example(tmp_path: Path) -> None:
    """One image with a million boxes once took gigabytes of each batch."""
    pictures = [boxed(number) for number in range(4)]
    many = (0.25,) * (MOST_BOXES + 1)
    pictures[2] = pictures[2]._replace(boxes=Boxes(many, many, many, many))
    write_dataset(tmp_path / "set", {"train": [pictures]}, num_classes=COUNT)

    with pytest.raises(
        UsageError, match=says("example-boxes-batch-holds-most", "2", "5,001", "5,000")
    ):
        list(reader_of(tmp_path / "set"))
    assert len(list(reader_of(tmp_path / "set", fields=("images",)))) == 1


def test_image_that_fails_in_later_view_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [boxed(number) for number in range(4)]
    # The end of the image is missing; of two views, only the second shows it.
    odd = whole[2]._replace(encoded=whole[2].encoded[: len(whole[2].encoded) * 9 // 10])
    write_dataset(tmp_path / "set", {"train": [[*whole[:2], odd, whole[3]]]}, num_classes=COUNT)
    reader = reader_of(tmp_path / "set", views=2, on_bad_record="skip")
    for seed in range(99):
        monkeypatch.setattr(reader._feed, "config", replace(reader._feed.config, seed=seed))
        (batch,) = reader.encoded_batches()
        place = batch.numbers.tolist().index(2)
        ends = [int(views.boxes[place, [0, 2]].sum()) for views in batch.views]
        if ends[0] <= whole[2].height / 2 and ends[1] == whole[2].height:
            break
    (shown,) = reader

    assert shown["mask"].tolist() == [number != 2 for number in batch.numbers.tolist()]
    (said,) = reader.skipped
    assert says("record-byte", ..., "2").search(said)
    assert says("not-decode").search(said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"fields": ("images", "name")}, says("fields-expected-some-name", "'name'", "'images'")),
        ({"fields": ()}, says("fields-expected-some-name", "()")),
        ({"views": 0}, says("expected-least", "views", "0", "1")),
        ({"views": 2, "split": "validation"}, says("views-evaluation-one-view-central", "2")),
    ],
)
def test_unknown_field_is_refused(rectangles: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        reader_of(rectangles, **asked)
