"""Pixels of batches, compared with Pillow, NumPy and the other backends."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.recipes import RANDOM, RECIPES
from tests.kit.dataset import split_records
from tests.kit.lengths import long_except
from tests.kit.reading import NUM_TRAIN, ODD, on_backends
from tests.kit.tfrecords import jpeg, picture, scene, write_dataset

# Grey levels: decoders that crop see less around the edge of the crop than Pillow does, and weights
# of the filters are rounded in other places. The native one resizes chroma before it makes colours,
# and rounds between the two axes.
MEAN = {"tfdata": 0.5, "dali": 0.5, "native": 1.0}
INSIDE = {"tfdata": 4, "dali": 4, "native": 8}
EDGE = 4  # pixels
# Options that must not change an augmentation.
MANY = {"world": World(0, 2), "batch_size": 3, "num_threads": 3}


def reader_of(root: Path, split: str, backend: str, **more: Any) -> Reader:
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "world": World()}
    settings |= {"batch_size": 5, "image_size": 64}
    return make_dataset(root, split, backend=backend, **settings | more)


def by_example(reader: Reader) -> dict[int, Any]:
    """Returns the images of an epoch by class index, which is unique in these datasets."""
    images: dict[int, Any] = {}
    for batch in reader:
        mask = batch["mask"]
        images |= zip(batch["class_index"][mask].tolist(), batch["images"][mask], strict=True)
    return images


def evaluated(root: Path, share: float, *, keep_aspect: bool, size: int) -> Any:
    """Returns the validation split as Pillow makes it: crop, then an antialiased filter."""
    images = []
    for record in split_records(root, schema.VALIDATION):
        with Image.open(io.BytesIO(record.encoded)) as image:
            sides = (min(image.size),) * 2 if keep_aspect else image.size
            width, height = (round(side * share) for side in sides)
            left = (image.width - width + 1) // 2
            top = (image.height - height + 1) // 2
            box = (left, top, left + width, top + height)
            images.append(
                np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
            )
    return np.stack(images)


def assert_close(found: Any, expected: Any, backend: str) -> None:
    """Compares uint8 images [N, height, width, 3], with room for rounding."""
    assert found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected.astype(int))
    inside = difference[:, EDGE:-EDGE, EDGE:-EDGE]

    assert difference.mean(axis=(1, 2, 3)).max() < MEAN[backend]
    assert inside.max() <= INSIDE[backend]


@on_backends(["size"], [40, 150], [40, 64, 150])
def test_evaluation_images_equal_those_of_pillow(scenes: Path, backend: str, size: int) -> None:
    reader = reader_of(scenes, "validation", backend, image_size=size)
    found = np.stack(list(by_example(reader).values()))

    assert_close(found, evaluated(scenes, 224 / 256, keep_aspect=True, size=size), backend)


def test_tutorial_evaluation_squashes_the_centre(scenes: Path, backend: str) -> None:
    reader = reader_of(scenes, "validation", backend, recipe="tutorial")
    found = np.stack(list(by_example(reader).values()))

    assert_close(found, evaluated(scenes, 0.8, keep_aspect=False, size=64), backend)


@pytest.mark.parametrize("recipe", RECIPES)
def test_evaluation_and_fixed_training_views_are_antialiased(recipe: str) -> None:
    evaluation, training = (
        ReadConfig("set", "train", 8, recipe=recipe, training=training)
        for training in (False, True)
    )
    antialiased = ("resnet", "mnist", "adm", "timm", "torchvision-v2", "mae")

    assert evaluation.shown[0][0].antialias
    assert training.shown[0][0].antialias == (recipe in antialiased)
    assert (training.view("") is None) == (recipe not in ("mnist", "adm"))
    assert evaluation.view("") == f"evaluation crop, recipe {recipe}, 224 px"


ON_ALL_BACKENDS = [
    name for name, recipe in RECIPES.items() if not recipe.square and recipe.filter != RANDOM
]
HOW = (
    *({"recipe": name} for name in ON_ALL_BACKENDS),
    {"recipe": "tutorial", "antialias": True},
    {"recipe": "tutorial", "colour": True},
)


# The tutorial's crops are drawn as those of resnet.
@pytest.mark.parametrize(
    "how", long_except([how for how in HOW if how != {"recipe": "tutorial"}], HOW), ids=str
)
def test_all_backends_show_the_same_training_crops(
    scenes: Path, tf: Any, dali: Any, how: dict[str, Any]
) -> None:
    names = ("tfdata", "dali", "native")
    readers = [reader_of(scenes, "train", name, seed=6, **how) for name in names]
    for _ in range(2):
        first, *others = (by_example(reader) for reader in readers)

        assert len(first) == NUM_TRAIN
        for name, other in zip(names[1:], others, strict=True):
            assert list(first) == list(other)
            assert_close(np.stack(list(first.values())), np.stack(list(other.values())), name)


def test_all_backends_show_odd_images_equally(tmp_path: Path, tf: Any, dali: Any) -> None:
    """As a dataset contains them, after repair for decoders: CMYK has become RGB."""
    whole = Policy(short_side=None)
    images = {kind: transform(data, whole).encoded for kind, data in ODD.items()}
    pictures = [picture(n, encoded) for n, encoded in enumerate(images.values())]
    splits = {"train": [pictures], "validation": [pictures]}
    write_dataset(tmp_path / "set", splits, num_classes=len(pictures))
    for split in splits:
        found, *others = (
            by_example(reader_of(tmp_path / "set", split, name, seed=6, batch_size=3))
            for name in ("native", "tfdata", "dali")
        )
        for other, expected in zip(("tfdata", "dali"), others, strict=True):
            assert found.keys() == expected.keys()
            for number, kind in enumerate(images):
                off = np.abs(found[number].astype(int) - expected[number].astype(int))
                # Its view is a single pixel, and DALI's decoder sees no neighbour of it.
                alone = (other, kind) == ("dali", "one row")
                assert off.mean() < (3.0 if alone else MEAN["native"]), (split, other, kind)


@on_backends(
    ["other"],
    [MANY],
    [
        {"batch_size": 7},
        {"num_threads": 1},
        {"num_threads": 4},
        {"world": World(1, 3)},
        {"shuffle_window": 2},
        MANY,
    ],
)
def test_augmentation_only_depends_on_seed_epoch_and_example(
    scenes: Path, backend: str, other: dict[str, Any]
) -> None:
    plain = reader_of(scenes, "train", backend, seed=6, colour=True)
    varied = reader_of(scenes, "train", backend, seed=6, colour=True, **other)
    for _ in range(2):
        expected = by_example(plain)
        found = by_example(varied)

        assert len(expected) == NUM_TRAIN
        assert len(found) >= 14
        assert [n for n in found if not np.array_equal(found[n], expected[n])] == []


def test_colours_are_applied_to_the_same_crops(scenes: Path, backend: str) -> None:
    plain, coloured = (
        reader_of(scenes, "train", backend, seed=6, colour=colour) for colour in (False, True)
    )
    colours = {}
    for batch in coloured.encoded_batches():
        (views,) = batch.views
        assert views.colours is not None
        colours |= dict(zip(batch.class_index.tolist(), views.colours, strict=True))
    found = by_example(coloured)

    assert len(found) == NUM_TRAIN
    for number, image in by_example(plain).items():
        pixels = image.astype(np.float32)
        of_pixel, of_mean, offset = np.split(colours[number], [3, 6], axis=1)
        mean = pixels.mean((0, 1))
        expected = pixels @ of_pixel.T + of_mean @ mean + offset[:, 0]
        # The plain crop was rounded, and colours enlarge its errors.
        np.testing.assert_allclose(found[number], np.clip(expected, 0, 255), atol=2.5)
    evaluation = reader_of(scenes, "validation", backend, colour=True)
    assert all(batch.views[0].colours is None for batch in evaluation.encoded_batches())


def test_padding_moves_the_complete_image_over_black(tmp_path: Path, backend: str) -> None:
    pictures = {}
    for number in range(16):
        small = np.random.default_rng(number).integers(60, 256, (4, 4, 3), np.uint8)
        pixels = np.asarray(Image.fromarray(small).resize((32, 32), Image.Resampling.BICUBIC))
        pictures[number] = picture(number, jpeg(pixels))
    write_dataset(tmp_path / "set", {"train": [list(pictures.values())]}, num_classes=16)
    reader = reader_of(
        tmp_path / "set", "train", backend, seed=6, recipe="cifar10", image_size=32, batch_size=4
    )
    views = {}
    for batch in reader.encoded_batches():
        (shown,) = batch.views
        each = zip(shown.boxes.tolist(), shown.mirrored.tolist(), strict=True)
        views |= dict(zip(batch.class_index.tolist(), each, strict=True))
    found = by_example(reader)

    assert sorted(found) == sorted(views) == list(range(16))
    for number, ((top, left, height, width), mirrored) in views.items():
        assert (height, width) == (32, 32)
        with Image.open(io.BytesIO(pictures[number].encoded)) as image:
            moved = image.transform(
                (32, 32), Image.Transform.AFFINE, (1, 0, left, 0, 1, top), fillcolor=0
            )
        expected = np.asarray(moved)[:, ::-1] if mirrored else np.asarray(moved)
        assert np.abs(found[number].astype(int) - expected.astype(int)).max() <= INSIDE[backend]


def test_each_epoch_and_seed_gives_different_images(scenes: Path, backend: str) -> None:
    reader = reader_of(scenes, "train", backend, seed=6)
    first = by_example(reader)
    second = by_example(reader)
    other = by_example(reader_of(scenes, "train", backend, seed=7))

    for numbers in (second, other):
        assert [n for n in first if np.array_equal(first[n], numbers[n])] == []


def normalised(pixels: Any, recipe: str) -> Any:
    constants = RECIPES[recipe]
    return (pixels.astype(np.float32) - np.array(constants.mean)) / np.array(constants.std)


@on_backends(["recipe"], ["tutorial"], ON_ALL_BACKENDS)
def test_floats_are_normalised_pixels(scenes: Path, backend: str, recipe: str) -> None:
    pixels, floats = (
        by_example(reader_of(scenes, "validation", backend, dtype=dtype, recipe=recipe))
        for dtype in ("uint8", "float32")
    )
    for number, image in floats.items():
        assert image.dtype == np.float32
        # Half a grey level was lost by rounding to integers.
        assert np.abs(image - normalised(pixels[number], recipe)).max() < 0.51 / 57


def test_normalisation_constants_are_the_usual_ones() -> None:
    resnet, tutorial = RECIPES["resnet"], RECIPES["tutorial"]

    assert np.array(resnet.mean) / 255 == pytest.approx([0.485, 0.456, 0.406])
    assert np.array(resnet.std) / 255 == pytest.approx([0.229, 0.224, 0.225])
    assert (tutorial.mean, tutorial.std) == ((121, 115, 100), (70, 68, 71))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("tfdata", "bfloat16", marks=pytest.mark.tf),
        pytest.param("dali", "float16", marks=pytest.mark.dali),
        ("native", "float16"),
        pytest.param("native", "bfloat16", marks=pytest.mark.tf),  # its types for NumPy
    ],
)
def test_short_floats_are_the_rounded_long_ones(
    request: pytest.FixtureRequest, scenes: Path, name: str, dtype: str
) -> None:
    needed = {("tfdata", "bfloat16"): "tf", ("dali", "float16"): "dali"}.get((name, dtype))
    if needed is not None:
        request.getfixturevalue(needed)
    short, full = (
        by_example(reader_of(scenes, "train", name, dtype=kind)) for kind in (dtype, "float32")
    )
    for number, image in short.items():
        assert image.dtype.name == dtype
        step = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
        assert np.abs(image.astype(np.float32) - full[number]).max() <= 4 * step


@on_backends(
    ["split", "dtype"],
    [("train", "uint8"), ("train", "float32")],
    itertools.product(["train", "validation"], ["uint8", "float32"]),
)
def test_channels_may_come_first(scenes: Path, backend: str, split: str, dtype: str) -> None:
    last, first = (
        by_example(reader_of(scenes, split, backend, dtype=dtype, layout=layout))
        for layout in ("NHWC", "NCHW")
    )
    for number, image in first.items():
        assert image.shape == (3, 64, 64)
        assert np.array_equal(image.transpose(1, 2, 0), last[number])


@on_backends(["dtype"], ["float32"], ["uint8", "float32"])
def test_tensorflow_gets_tensors_of_the_same_values(
    scenes: Path, backend: str, tf: Any, dtype: str
) -> None:
    arrays = list(reader_of(scenes, "validation", backend, dtype=dtype))
    tensors = list(reader_of(scenes, "validation", backend, dtype=dtype, framework="tensorflow"))

    assert len(tensors) == len(arrays)
    for expected, batch in zip(arrays, tensors, strict=True):
        assert all(isinstance(value, tf.Tensor) for value in batch.values())
        assert (batch["class_index"].dtype, batch["mask"].dtype) == (tf.int32, tf.bool)
        assert {n: v.numpy().tolist() for n, v in batch.items() if n != "images"} == {
            n: v.tolist() for n, v in expected.items() if n != "images"
        }
        assert np.array_equal(batch["images"].numpy(), expected["images"])


@pytest.mark.dali
@pytest.mark.parametrize("framework", ["dlpack", "numpy", "tensorflow"])
def test_batch_is_unchanged_by_reading_later_ones(
    scenes: Path, request: pytest.FixtureRequest, dali: Any, framework: str
) -> None:
    if framework == "tensorflow":
        request.getfixturevalue("tf")

    def array(value: Any) -> Any:
        if framework == "tensorflow":
            return value.numpy()
        return np.from_dlpack(value) if framework == "dlpack" else value

    reader = reader_of(scenes, "train", "dali", framework=framework)
    kept = []
    copies = []
    for _ in range(2):
        for batch in reader:
            kept.append(batch)
            copies.append({name: np.array(array(value)) for name, value in batch.items()})
    assert len(kept) == 20

    again = reader_of(scenes, "train", "dali")
    fresh = [*itertools.chain(again, again)]
    for batch, copied, expected in zip(kept, copies, fresh, strict=True):
        for name, value in batch.items():
            assert np.array_equal(array(value), copied[name])
            assert np.array_equal(copied[name], expected[name])


@on_backends(
    ["recipe", "training"],
    [("resnet", True), ("cifar10", False)],
    itertools.product(["resnet", "cifar10"], [True, False]),
)
def test_exif_orientation_is_ignored(
    tmp_path: Path, backend: str, recipe: str, training: bool
) -> None:
    """Crops are chosen on the frame as it is stored, and no decoder turns it first."""
    examples = []
    for number in range(9):
        exif = Image.Exif()
        exif[0x0112] = number  # 0 is no orientation, 1 is the usual one.
        stream = io.BytesIO()
        with Image.open(io.BytesIO(scene(number))) as image:
            image.resize((96, 160)).save(stream, "JPEG", quality=95, exif=exif.tobytes())
        examples.append(picture(number, stream.getvalue()))
    write_dataset(tmp_path / "set", {"train": [examples]}, num_classes=9)
    settings: dict[str, Any] = {"batch_size": 3, "recipe": recipe, "training": training}
    found = by_example(reader_of(tmp_path / "set", "train", backend, **settings))
    expected = by_example(reader_of(tmp_path / "set", "train", "native", **settings))

    assert found.keys() == expected.keys() == set(range(9))
    for number, image in found.items():
        assert np.abs(image.astype(int) - expected[number].astype(int)).mean() < 1.5
