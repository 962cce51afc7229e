"""Open recipes: the settings of crops, sizes and filters, and what they show."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import class_list, schema
from imagenet_prep.read import Reader, Size, View, decode, make_dataset
from imagenet_prep.read.augment import central_views, random_views
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.recipes import RECIPES, CropRecipe
from tests.kit.codec import corpus
from tests.kit.command import REPOSITORY
from tests.kit.dataset import split_records
from tests.kit.messages import says

RESNET = RECIPES["resnet"]
NUMBERS = np.arange(4_000)


def opened(root: Path, split: str, batch: int, backend: str, **settings: Any) -> Reader:
    usual: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "world": World()}
    return make_dataset(root, split, batch, backend=backend, **usual | settings)


def config(**settings: Any) -> ReadConfig:
    return ReadConfig("set", "train", 8, **settings)


def random_of(recipe: CropRecipe, height: int, width: int) -> Any:
    heights = np.full(len(NUMBERS), height)
    return random_views(recipe, heights, np.full(len(NUMBERS), width), NUMBERS, 5, 2)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"area": (0, 1)}, ("area", "(0, 1)")),
        ({"area": (0.5, 0.4)}, ("area", "(0.5, 0.4)")),
        ({"area": (0.5, 1.1)}, ("area", "(0.5, 1.1)", "1")),
        ({"area": 0.5}, ("area", "0.5")),
        ({"area": (0.1, 0.2, 0.3)}, ("area", "(0.1, 0.2, 0.3)")),
        ({"area": (float("nan"), 1.0)}, ("area", "nan")),
        ({"area": ("0.1", 1)}, ("area", "0.1")),
        ({"aspect": (0, 1)}, ("aspect", "(0, 1)")),
        ({"aspect": (2, 1)}, ("aspect", "(2, 1)")),
        ({"aspect": (1, float("inf"))}, ("aspect", "inf")),
        ({"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}, ("0.485", "255")),
        ({"mean": (0.5, 0.5, 0.5)}, ("mean", "0.5", "255")),
        ({"std": (0.5, 0.5, 0.5)}, ("std", "0.5", "255")),
        ({"share": 0}, ("share", "0")),
        ({"share": 1.15}, ("share", "1.15")),
        ({"mirror": -0.1}, ("mirror", "-0.1")),
        ({"mirror": 1.1}, ("mirror", "1.1")),
        ({"filter": "lanczos"}, ("filter", "lanczos", "'bilinear', 'bicubic', 'random'")),
        ({"mean": (1, 2)}, ("mean", "(1, 2)")),
        ({"std": (1, 0, 1)}, ("std", "(1, 0, 1)")),
        ({"std": 3}, ("std", "3")),
        ({"mean": (1, 2, 3), "dtype": "uint8"}, ("mean", "uint8", "float32")),
        ({"std": (9, 9, 9), "recipe": "adm"}, ("std", "uint8")),
        ({"filter": "bicubic", "antialias": False}, ("bicubic", "antialias")),
        ({"recipe": "timm", "antialias": False}, ("random", "antialias")),
        ({"recipe": "cifar10", "area": (0.5, 1)}, ("cifar10", "area")),
        ({"recipe": "mnist", "aspect": (1, 1)}, ("mnist", "aspect")),
        ({"recipe": "adm", "share": 0.9}, ("adm", "share")),
        ({"recipe": "adm", "filter": "bicubic"}, ("adm", "filter")),
        ({"recipe": "adm", "keep_aspect": True}, ("adm", "keep_aspect")),
        ({"image_size": 0}, ("image_size", "0")),
        ({"image_size": (3,)}, ("image_size", "(3,)")),
        ({"image_size": (3, 0)}, ("image_size", "(3, 0)")),
        ({"image_size": 2.5}, ("image_size", "2.5")),
        ({"image_size": "224"}, ("image_size", "224")),
        ({"views": []}, ("views", "[]")),
        ({"views": True}, ("views", "True")),
        ({"views": [3]}, ("views", "[3]")),
        ({"views": [View()], "training": False}, ("views", "View")),
        ({"views": [View(area=(2, 3))]}, ("area", "(2, 3)")),
        ({"views": [View(image_size=(0, 1))]}, ("image_size", "(0, 1)")),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        config(**settings)
    for fact in facts:
        assert fact in str(refused.value)


def old_state(reader: Reader) -> dict[str, Any]:
    """Returns a state of version 0.1.0, in the middle of an epoch."""
    state = reader.state() | {"examples_read": 4}
    del state["recipe"]
    return state


# Settings with which the images of a training reader of version 0.1.0 are the same today.
UNCHANGED: tuple[dict[str, Any], ...] = (
    {"recipe": "resnet-1"},
    {"antialias": False},
    {"antialias": True},
    {"recipe": "timm"},
    {"recipe": "tutorial"},
    {"training": False},
    {"fields": ("class_index", "mirrored")},
)
CHANGED: tuple[dict[str, Any], ...] = (
    {},
    {"area": (0.5, 1.0)},
    {"views": [View(filter="bicubic"), View()]},
    {"fields": ("images", "number")},
)


@pytest.mark.parametrize("settings", UNCHANGED, ids=str)
def test_older_states_continue_with_unchanged_images(
    colours: Path, settings: dict[str, Any]
) -> None:
    reader = opened(colours, "train", 4, "native", image_size=16, **settings)
    state = old_state(reader)
    reader.restore(state)
    reader.sampler().load_state_dict(state)

    assert reader.state()["examples_read"] == 4


@pytest.mark.parametrize("settings", CHANGED, ids=str)
def test_older_states_are_refused_if_images_change(colours: Path, settings: dict[str, Any]) -> None:
    reader = opened(colours, "train", 4, "native", image_size=16, **settings)
    state = old_state(reader)
    refused = says("state-run-recipe-reader-filters", "'resnet-1'", "'resnet'")
    for restore in (reader.restore, reader.sampler().load_state_dict):
        with pytest.raises(UsageError, match=refused):
            restore(state)

    assert reader.state()["examples_read"] == 0


def test_state_names_the_recipe_of_its_images(colours: Path) -> None:
    new = opened(colours, "train", 4, "native", image_size=16)
    old = opened(colours, "train", 4, "native", image_size=16, recipe="resnet-1")
    timm = opened(colours, "train", 4, "native", image_size=16, recipe="timm")
    plain = opened(colours, "train", 4, "native", image_size=16, antialias=False)

    for state in (old.state(), new.state()):
        matching, different = (old, new) if state["recipe"] == "resnet-1" else (new, old)
        matching.restore(state)
        timm.restore(state)  # a different recipe is the user's decision
        with pytest.raises(UsageError, match="recipe='resnet"):
            different.restore(state)
    new.restore(timm.state())
    assert "recipe resnet: 16 x 16 px, bilinear, antialiased" in new.receipt()["crops"]
    assert "recipe resnet-1: 16 x 16 px, bilinear, area" in old.receipt()["crops"]
    before, after = (next(iter(reader))["images"] for reader in (old, plain))
    assert (before == after).all()


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({"backend": "tfdata"}, "resnet-1"),
        ({"backend": "tfdata", "antialias": True}, "resnet"),
        ({"backend": "tfdata", "recipe": "torchvision-v2"}, "torchvision-v2"),
        ({"backend": "dali"}, "resnet"),
        ({"backend": "native"}, "resnet"),
        ({}, "resnet"),
    ],
)
def test_only_tensorflow_reads_aliased_by_default(settings: dict[str, Any], recipe: str) -> None:
    training = config(**settings)
    shown = training.shown[0][0]

    assert training.recipe_version == recipe
    assert training.description().startswith(f"recipe {recipe}: ")
    assert shown.antialias == ("antialiased" in training.description()) == (recipe != "resnet-1")
    assert config(**settings, training=False).shown[0][0].antialias


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_view_without_a_count_is_refused(count: Any) -> None:
    with pytest.raises(UsageError, match=says("view-count-expected-least-1", repr(count))):
        View(count=count)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"backend": "tfdata", "filter": "random"}, ("tfdata", "random", "native")),
        ({"backend": "dali", "recipe": "timm"}, ("dali", "random", "native")),
        ({"backend": "tfdata", "views": [View()]}, ("tfdata", "views", "native")),
        ({"out": lambda: None, "views": [View()]}, ("out", "views")),
        ({"recipe": "adm", "image_size": (16, 8)}, ("adm", "(16, 8)")),
    ],
)
def test_crops_that_a_backend_cannot_make_are_refused(
    colours: Path, settings: dict[str, Any], facts: tuple[str, ...]
) -> None:
    how: dict[str, Any] = {"backend": "native", "originals": False} | settings
    with pytest.raises(UsageError) as refused:
        make_dataset(colours, "train", 4, **how)
    for fact in facts:
        assert fact in str(refused.value)


def test_arguments_change_single_settings_of_a_recipe() -> None:
    crops = config(area=[0.2, 1], mean=np.array([1.0, 2, 3]), mirror=0.25).crops
    assert crops == replace(RESNET, area=(0.2, 1), mean=(1.0, 2.0, 3.0), mirror=0.25)
    assert config().crops is not None
    assert config().crops == RESNET


@pytest.mark.parametrize("keep_aspect", [True, False])
def test_random_crops_have_the_given_ranges(keep_aspect: bool) -> None:
    recipe = replace(RESNET, area=(0.05, 0.32), aspect=(0.5, 1.5), keep_aspect=keep_aspect)
    height, width = 3_000, 4_000
    views = random_of(recipe, height, width)
    tall, wide = views.boxes[:, 2], views.boxes[:, 3]
    area = tall * wide / (height * width)
    aspect = wide / tall if keep_aspect else (wide / width) / (tall / height)

    assert area.min() == pytest.approx(0.05, abs=0.001)
    assert area.max() == pytest.approx(0.32, abs=0.001)
    assert aspect.min() == pytest.approx(0.5, abs=0.005)
    assert aspect.max() == pytest.approx(1.5, abs=0.005)


def test_mirroring_has_the_given_share() -> None:
    for share in (0.0, 0.25, 1.0):
        views = random_of(replace(RESNET, mirror=share), 30, 40)
        assert views.mirrored.mean() == pytest.approx(share, abs=0.03)


def test_random_filter_is_drawn_for_each_image() -> None:
    cubic = random_of(RECIPES["timm"], 30, 40).cubic
    assert cubic.mean() == pytest.approx(0.5, abs=0.03)
    assert np.array_equal(cubic, random_of(RECIPES["timm"], 70, 10).cubic)
    assert random_of(RESNET, 30, 40).cubic is None


def test_other_settings_keep_the_boxes() -> None:
    usual = random_of(RESNET, 300, 400)
    changed = random_of(replace(RESNET, filter="random", share=0.5, mirror=0.1), 300, 400)
    assert np.array_equal(usual.boxes, changed.boxes)


def timm_box(height: int, width: int, side: int, share: float) -> tuple[float, float]:
    """Returns top and left of the central crop of timm, in pixels of the image."""
    scaled = int(side / share)
    scale = scaled / min(height, width)
    tall, wide = (int(scale * length) if length > min(height, width) else scaled
                  for length in (height, width))  # fmt: skip
    return round((tall - side) / 2) / scale, round((wide - side) / 2) / scale


def test_published_evaluation_crops_can_be_made() -> None:
    """timm resizes the shorter side to int(side / share), and crops the centre."""
    table = (REPOSITORY / "tests/kit/timm_crops.txt").read_text().splitlines()
    rows = [line.split() for line in table if not line.startswith("#")]
    made = 0
    for count, side, share, filter_ in rows:
        size = int(side)
        exact = size / int(size / float(share))
        if exact > 1:
            with pytest.raises(UsageError):
                config(training=False, image_size=size, share=exact, filter=filter_)
            continue
        reading = config(training=False, image_size=size, share=exact, filter=filter_)
        ((shown,),) = reading.shown
        assert shown.crops.filter == filter_
        assert shown.size == (size, size)
        for height, width in ((375, 500), (1200, 800), (640, 640)):
            heights, widths = np.array([height]), np.array([width])
            box = central_views(shown.crops, heights, widths, shown.size).boxes[0]
            top, left = timm_box(height, width, size, float(share))
            length = min(height, width) * exact
            pixel = length / size  # pixels of the image for one of the crop
            assert np.abs(box - [top, left, length, length]).max() <= 1 + pixel
        made += int(count)
    assert sum(int(row[0]) for row in rows) == 1556
    assert made >= 0.95 * 1556


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (50, 50)])
def test_central_crop_has_the_shape_of_the_result(size: tuple[int, int]) -> None:
    heights, widths = np.array([300, 100, 240]), np.array([200, 400, 240])
    boxes = central_views(replace(RESNET, share=1.0), heights, widths, size).boxes
    for (top, left, tall, wide), height, width in zip(boxes, heights, widths, strict=True):
        assert tall == height or wide == width
        assert tall / wide == pytest.approx(size[0] / size[1], abs=0.01)
        assert abs(2 * top + tall - height) <= 1
        assert abs(2 * left + wide - width) <= 1


def test_squashed_evaluation_shows_the_complete_image() -> None:
    recipe = config(keep_aspect=False, share=1.0).crops
    boxes = central_views(recipe, np.array([300]), np.array([200]), (64, 96)).boxes
    assert boxes.tolist() == [[0, 0, 300, 200]]


def pillow(data: bytes, box: Any, size: tuple[int, int], filter_: Any) -> Any:
    top, left, height, width = map(int, box)
    with Image.open(io.BytesIO(data)) as image:
        part = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(part.resize(size[::-1], filter_)).astype(int)


def test_bicubic_crops_are_those_of_pillow(scenes: Path) -> None:
    size = (48, 56)
    reader = opened(scenes, "validation", 4, "native", image_size=size, filter="bicubic", share=0.9)
    records = split_records(scenes, schema.VALIDATION)
    images = np.concatenate([batch["images"][batch["mask"]] for batch in reader]).astype(int)
    differences = []
    for found, record in zip(images, records, strict=True):
        sides = np.array([record.height]), np.array([record.width])
        (box,) = central_views(reader.feed.config.crops, *sides, size).boxes
        differences.append(
            np.abs(found - pillow(record.encoded, box, size, Image.Resampling.BICUBIC)).mean()
        )
    assert np.mean(differences) <= 0.7


def test_drawn_filter_is_that_of_the_image(scenes: Path) -> None:
    """Threads decode parts of a batch."""
    settings: dict[str, Any] = {"recipe": "timm", "image_size": 32, "seed": 2}
    settings["fields"] = ("images", "number")
    alone = {
        batch["number"].item(): batch["images"][0]
        for batch in opened(scenes, "train", 1, "native", **settings)
    }
    for batch in opened(scenes, "train", 24, "native", num_threads=3, **settings):
        for number, image in zip(batch["number"].tolist(), batch["images"], strict=True):
            assert np.array_equal(image, alone[number])


def test_rectangles_have_their_height_and_width(scenes: Path, backend: str) -> None:
    reader = opened(scenes, "train", 4, backend, image_size=(40, 72))
    assert next(iter(reader))["images"].shape == (4, 40, 72, 3)
    planar = opened(scenes, "train", 4, backend, image_size=(40, 72), layout="NCHW")
    assert next(iter(planar))["images"].shape == (4, 3, 40, 72)


def test_mean_and_deviation_normalise_the_images(colours: Path, backend: str) -> None:
    mean, std = (10.0, 20.0, 30.0), (2.0, 4.0, 8.0)
    plain = opened(colours, "validation", 7, backend, image_size=16)
    settings: dict[str, Any] = {"image_size": 16, "dtype": "float32", "mean": mean, "std": std}
    reader = opened(colours, "validation", 7, backend, **settings)
    assert reader.normalisation == (mean, std)
    for raw, normalised in zip(plain, reader, strict=True):
        expected = (raw["images"] - np.array(mean)) / np.array(std)
        np.testing.assert_allclose(normalised["images"], expected, atol=0.3)


@pytest.mark.parametrize(
    ("settings", "view"),
    [
        ({}, "evaluation crop, recipe resnet, 224 px"),
        ({"share": 0.95}, "evaluation crop of 95.0%, recipe resnet, 224 px"),
        ({"share": 0.95001}, "evaluation crop of 95.001%, recipe resnet, 224 px"),
        ({"filter": "bicubic"}, "evaluation crop, bicubic, recipe resnet, 224 px"),
        ({"keep_aspect": False}, "evaluation crop, squashed, recipe resnet, 224 px"),
        ({"image_size": (32, 64)}, "evaluation crop, recipe resnet, 32 x 64 px"),
        (
            {"mean": (0.0, 0.0, 0.0)},
            "evaluation crop, recipe resnet, 224 px, mean 0.0 0.0 0.0",
        ),
    ],
    ids=str,
)
def test_column_view_names_each_changed_setting(settings: dict[str, Any], view: str) -> None:
    assert config(training=False, **settings).view("") == view


def test_pictures_with_other_colours_have_the_filter() -> None:
    """Pillow decodes what the codec does not accept; the filter is the same."""
    data = corpus.files()["96x128 420"]
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        image.convert("CMYK").save(buffer, "JPEG", quality=100)
    found = decode(buffer.getvalue(), window=(3, 5, 80, 90), size=40, filter="bicubic")
    expected = pillow(buffer.getvalue(), (3, 5, 80, 90), (40, 40), Image.Resampling.BICUBIC)
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize(
    ("edition", "share"), [(schema.OBJECTNET, 1.0), ("imagenet-c", 1.0), ("", 0.875)]
)
def test_a_given_share_is_that_of_every_edition(edition: str, share: float) -> None:
    assert config(training=False, share=0.5).recipe_for(edition).share == 0.5
    assert config(training=False).recipe_for(edition).share == share


@pytest.mark.parametrize(("count", "is_named"), [(1, False), (2, True), (3, True)])
def test_description_has_the_number_of_views(count: int, is_named: bool) -> None:
    described = config(views=[View(count=count)]).shown[0][0].description()

    assert (f"{count} views, " in described) == is_named


@pytest.mark.parametrize("colour", [False, True])
def test_training_with_random_colours_has_no_view(colour: bool) -> None:
    """A column cannot be made from images that are different in each epoch."""
    assert (config(recipe="mnist", colour=colour).view("") is None) == colour


def test_view_size_replaces_size_of_the_epoch() -> None:
    views = [View(image_size=96), View()]
    shown = config(views=views, sizes=[Size(image_size=128)], image_size=64).shown

    assert [(each.height, each.width) for each in shown[0]] == [(96, 96), (128, 128)]


def test_crop_of_the_edition_is_shown(scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"training": False, "backend": "native"}
    whole = next(iter(opened(scenes, "train", 8, share=1.0, **settings)))["images"]
    usual = next(iter(opened(scenes, "train", 8, **settings)))["images"]

    monkeypatch.setattr(class_list, "named", lambda _: class_list.OBJECTNET)
    shown = next(iter(opened(scenes, "train", 8, **settings)))["images"]

    assert np.array_equal(shown, whole)
    assert not np.array_equal(shown, usual)


@pytest.mark.tf
def test_bicubic_pixels_of_tensorflow_stay_in_their_range(scenes: Path, tf: Any) -> None:
    unchanged: dict[str, Any] = {"dtype": "float32", "mean": (0, 0, 0), "std": (1, 1, 1)}
    reader = opened(scenes, "train", 8, "tfdata", filter="bicubic", **unchanged)
    images = np.concatenate([batch["images"] for batch in itertools.islice(reader, 4)])

    assert images.min() >= 0
    assert images.max() <= 255
