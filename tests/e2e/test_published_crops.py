"""Crops of evaluation sets are those of their authors' programs, which are repeated here.

A network of templates compares the means of 8 x 8 blocks. Its scores for our reader and for Pillow
with NumPy must give the same classes, and so the same error rates.
"""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import class_list
from imagenet_prep.evaluation import score
from imagenet_prep.read import ColumnWriter, Reader, make_dataset
from imagenet_prep.read import backend as native_module
from imagenet_prep.sources.labels import published_labels
from tests.kit import command, evaluation_datasets
from tests.kit.documents import read
from tests.kit.evaluation_datasets import OBJECTS, WNIDS, put
from tests.kit.messages import says
from tests.kit.reading import backend, dali

__all__ = ["backend", "dali"]

pytestmark = pytest.mark.slow

MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])
CLASSES = (3, 207, 409, 530, 954, 999)  # three of them are objects of ObjectNet
GROUPS = [("fog", 1), ("fog", 4), ("spatter", 1), ("spatter", 4)]  # `extra` has spatter
BLOCKS = 8


def pattern(class_index: int) -> Any:
    """Returns the colours [8, 8, 3] of a class; its images have them in different strengths."""
    return np.random.default_rng(class_index).integers(0, 256, (BLOCKS, BLOCKS, 3))


def photograph(class_index: int, number: int, width: int, height: int) -> Image.Image:
    """Returns a picture of a class, mixed with a different class; all pictures differ."""
    rng = np.random.default_rng([class_index, number])
    other = int(rng.choice([index for index in CLASSES if index != class_index]))
    share = rng.uniform(0.35, 0.65)
    colours = (1 - share) * pattern(class_index) + share * pattern(other)
    image = Image.fromarray(colours.astype(np.uint8)).resize((width, height))
    noisy = np.asarray(image) + rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def stored(image: Image.Image, form: str = "JPEG") -> bytes:
    """Returns a file as make_imagenet_c.py writes it."""
    file = io.BytesIO()
    image.save(file, form, **({"quality": 85, "optimize": True} if form == "JPEG" else {}))
    return file.getvalue()


def classes_found(images: Any) -> Any:
    """Returns scores [images, 1000] of normalised images [images, 3, 224, 224]."""
    blocks = images.reshape(len(images), 3, BLOCKS, 28, BLOCKS, 28).mean(axis=(3, 5))
    scores = np.full((len(images), 1000), -1e9)
    for class_index in CLASSES:
        template = (pattern(class_index) / 255 - MEAN) / STD
        apart = blocks - template.transpose(2, 0, 1)
        scores[:, class_index] = -(apart**2).mean(axis=(1, 2, 3))
    return scores


# The transforms of torchvision, as the authors' programs call them.


def resized(image: Image.Image, side: int) -> Image.Image:
    """Resize(side)."""
    shorter = min(image.size)
    width, height = (int(side * length / shorter) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def central(image: Image.Image, side: int = 224) -> Image.Image:
    """CenterCrop(side)."""
    left, top = (round((length - side) / 2) for length in image.size)
    return image.crop((left, top, left + side, top + side))


def normalised(image: Image.Image) -> Any:
    """ToTensor() and Normalize(mean, std)."""
    return ((np.asarray(image) / 255 - MEAN) / STD).transpose(2, 0, 1)


def of_imagenet_c(image: Image.Image) -> Image.Image:
    return central(image)


def of_objectnet(image: Image.Image) -> Image.Image:
    """The transform of objectnet_pytorch_dataloader.py, which cuts two pixels off, and model/."""
    return central(resized(image.crop((2, 2, image.width - 2, image.height - 2)), 224))


def of_most(image: Image.Image) -> Image.Image:
    return central(resized(image, 256))


def expected_scores(
    files: Mapping[str, bytes], transform: Callable[[Image.Image], Image.Image]
) -> dict[str, Any]:
    """Returns the scores of each file by the authors' transform."""
    images = []
    for data in files.values():
        with Image.open(io.BytesIO(data)) as image:
            images.append(normalised(transform(image.convert("RGB"))))
    return dict(zip(files, classes_found(np.stack(images)), strict=True))


def prepared(root: Path, files: Mapping[str, bytes], name: str, *flags: str) -> Path:
    source = put(files, root / "source" / name, name, "folder")
    top = {path.split("/")[0] for path in files}
    source = source / top.pop() if len(top) == 1 else source
    done = command.run(
        *("prepare", "--source", source, "--out", root / "set", "--allow-subset", *flags)
    )
    assert done.code == 0, done
    return root / "set"


def open_test(root: Path, size: int = 224, **more: Any) -> Reader:
    settings: dict[str, Any] = {"backend": "native", "world": World(), "framework": "numpy"}
    return make_dataset(root, "test", 5, size, **settings | more)


def shown(root: Path, size: int = 224, **more: Any) -> dict[str, Any]:
    """Returns the images by key."""
    reader = open_test(root, size, fields=("images", "key", "mask"), **more)
    return dict(_examples(reader))


def _examples(reader: Reader) -> Iterator[tuple[str, Any]]:
    for batch in reader:
        for key, image, is_real in zip(batch["key"], batch["images"], batch["mask"], strict=True):
            if is_real:
                yield str(key), image


def scored(root: Path) -> tuple[dict[str, Any], Any]:
    """Returns the scores by key, and the table."""
    images = shown(root, layout="NCHW")
    scores = classes_found(np.stack([*images.values()]))
    return dict(zip(images, scores, strict=True)), score(scores, root, keys=[*images])


@pytest.fixture(scope="module")
def corrupted() -> dict[str, bytes]:
    """The images of a small ImageNet-C, by key."""
    files = {}
    for place, (corruption, severity) in enumerate(GROUPS):
        for class_index in CLASSES:
            numbers = [n for n, of in enumerate(published_labels(), 1) if of == class_index]
            for number in range(4):
                image = photograph(class_index, 10 * place + number, 224, 224)
                name = f"ILSVRC2012_val_{numbers[number]:08d}.JPEG"
                files[f"{corruption}/{severity}/{WNIDS[class_index]}/{name}"] = stored(image)
    return files


def key_of_c(path: str) -> str:
    corruption, severity, _, name = path.split("/")
    return f"{corruption}/{severity}/{name}"


@pytest.fixture(scope="module")
def imagenet_c(corrupted: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("c"), corrupted, "imagenet-c")


def pixels_of(corrupted: Mapping[str, bytes]) -> dict[str, Any]:
    pixels = {}
    for path, data in corrupted.items():
        with Image.open(io.BytesIO(data)) as image:
            pixels[key_of_c(path)] = np.asarray(image.convert("RGB"))
    return pixels


@pytest.mark.parametrize("recipe", ["resnet", "tutorial", "cifar10", "mnist", "adm"])
def test_imagenet_c_pixels_reach_the_network_unchanged(
    imagenet_c: Path, corrupted: dict[str, bytes], recipe: Any
) -> None:
    stored_pixels = pixels_of(corrupted)
    found = shown(imagenet_c, recipe=recipe, dtype="uint8")

    assert found.keys() == stored_pixels.keys()
    assert all(np.array_equal(found[key], stored_pixels[key]) for key in found)


def test_all_backends_return_complete_images_of_imagenet_c(
    imagenet_c: Path, corrupted: dict[str, bytes], backend: Any
) -> None:
    """Their decoders use libjpeg too."""
    stored_pixels = pixels_of(corrupted)
    found = shown(imagenet_c, dtype="uint8", backend=backend)

    assert found.keys() == stored_pixels.keys()
    off = [np.abs(found[key].astype(int) - stored_pixels[key]).max() for key in found]
    assert max(off) <= 1


@pytest.mark.parametrize("size", [160, 288])
def test_imagenet_c_is_resized_uncropped_for_other_sizes(
    imagenet_c: Path, corrupted: dict[str, bytes], size: int
) -> None:
    found = shown(imagenet_c, size, dtype="uint8")
    for key, pixels in pixels_of(corrupted).items():
        image = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)
        assert np.abs(found[key].astype(int) - np.asarray(image)).mean() < 1.0


def test_downscaled_imagenet_c_is_returned_uncropped(
    corrupted: dict[str, bytes], tmp_path: Path
) -> None:
    small = prepared(tmp_path, corrupted, "imagenet-c", "--short-side", "112")
    found = shown(small, 112, dtype="uint8")
    for key, pixels in pixels_of(corrupted).items():
        image = Image.fromarray(pixels).resize((112, 112), Image.Resampling.BICUBIC)
        assert np.abs(found[key].astype(int) - np.asarray(image)).mean() < 8


def test_imagenet_c_error_rates_match_authors_program(
    imagenet_c: Path, corrupted: dict[str, bytes]
) -> None:
    expected = expected_scores(corrupted, of_imagenet_c)
    other = expected_scores(corrupted, of_most)
    scores, table = scored(imagenet_c)

    assert len(scores) == len(corrupted) == 96
    for path, row in expected.items():
        np.testing.assert_allclose(scores[key_of_c(path)], row, rtol=1e-4)
    by_authors = error_rates(expected)
    by_recipe = error_rates(other)
    measured = {}
    for corruption, rates in table.corruptions[str(imagenet_c)]["corruptions"].items():
        for severity, rate in rates["errors"].items():
            measured[corruption, int(severity)] = rate
    assert measured == pytest.approx(by_authors, abs=1e-12)
    # The error rates differ between crops.
    assert 0.1 < np.mean([*by_authors.values()]) < 0.7
    assert by_authors != by_recipe


def error_rates(scores: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    wrong: dict[tuple[str, int], list[bool]] = {}
    for path, row in scores.items():
        corruption, severity, wnid, _ = path.split("/")
        is_wrong = WNIDS[int(row.argmax())] != wnid
        wrong.setdefault((corruption, int(severity)), []).append(is_wrong)
    return {group: float(np.mean(each)) for group, each in wrong.items()}


def test_objectnet_predictions_match_authors_program(tmp_path: Path) -> None:
    made = evaluation_datasets.objectnet().files
    files = {}
    for path in [path for path in made if path.endswith(".png")]:
        del made[path]
    for folder, (_, indices) in OBJECTS.items():
        for number in range(20 if indices else 1):
            width = 260 + 7 * number
            height = 420 - 5 * number
            image = photograph(indices[0] if indices else CLASSES[0], number, width, height)
            framed = Image.new("RGB", (width + 2, height + 2), (255, 0, 0))
            framed.paste(image, (1, 1))
            path = f"objectnet-1.0/images/{folder}/{folder}{number}.png"
            made[path] = stored(framed, "PNG")
            if indices:
                files[f"{WNIDS[indices[0]]}/{folder}{number}.png"] = made[path]
    root = prepared(tmp_path, made, "objectnet")
    expected = expected_scores(files, of_objectnet)
    scores, table = scored(root)

    found = {key: int(row.argmax()) for key, row in scores.items()}
    assert found == {key: int(row.argmax()) for key, row in expected.items()}
    assert found != {key: int(row.argmax()) for key, row in expected_scores(files, of_most).items()}
    # The pixels are also equal if the authors cut one pixel off, as `prepare` does.
    off = []
    for key, found_image in shown(root, dtype="uint8").items():
        with Image.open(io.BytesIO(files[key])) as image:
            inner = image.convert("RGB").crop((1, 1, image.width - 1, image.height - 1))
        off.append(
            np.abs(found_image.astype(int) - np.asarray(central(resized(inner, 224)))).mean()
        )
    # Encoding the noise again costs 5 levels; a different crop costs more.
    assert max(off) < 6.5
    right = {WNIDS[indices[0]]: {*indices} for _, indices in OBJECTS.values() if indices}
    rate = np.mean([found[key] in right[key.split("/")[0]] for key in found])
    assert table.rows[0].top1 == pytest.approx(rate)
    assert 0.2 < rate < 1


def test_imagenet_r_predictions_match_authors_program(tmp_path: Path) -> None:
    """Resize(256) and CenterCrop(224), as for ImageNet-A, -O and ImageNetV2."""
    files = {}
    for class_index, number in itertools.product(CLASSES, range(10)):
        image = photograph(class_index, number, 290 + 9 * number, 400 - 13 * number)
        files[f"imagenet-r/{WNIDS[class_index]}/art_{number}.jpg"] = stored(image)
    root = prepared(tmp_path, files, "imagenet-r")
    expected = expected_scores(files, of_most)
    scores, table = scored(root)

    found = {key: int(row.argmax()) for key, row in scores.items()}
    by_key = {path.partition("/")[2]: int(row.argmax()) for path, row in expected.items()}
    assert found == by_key
    assert table.rows[0].top1 == pytest.approx(
        np.mean([WNIDS[index] == key.split("/")[0] for key, index in by_key.items()])
    )


def test_reader_warns_once_about_a_different_crop(
    imagenet_c: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first rank warns."""
    native_module.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        open_test(imagenet_c, world=World(1, 2))
        assert not any(
            says("crops-shorter-side-needs-instead").search(each) for each in caplog.messages
        )
        for recipe in ("mnist", "resnet", "resnet"):
            open_test(imagenet_c, recipe=recipe)

    (line,) = [
        each
        for each in caplog.messages
        if "imagenet-c" in each and says("crops-shorter-side-needs-instead").search(each)
    ]
    assert says("crops-shorter-side-needs-instead", ..., "100.0%", "imagenet-c", "87.5%").search(
        line
    )


def test_view_of_column_includes_the_crop(imagenet_c: Path) -> None:
    shown_as = {"backend": "native", "dtype": "uint8"}
    with ColumnWriter(
        imagenet_c, "test", "means", (3,), "float32", batch_size=8, reader=shown_as, world=World()
    ) as column:
        for batch in column:
            column.write(batch["images"].mean(axis=(1, 2), dtype=np.float32))

    assert column.column.view == "evaluation crop of 100.0%, recipe resnet, 224 px"
    batches = open_test(imagenet_c, dtype="uint8", fields=("images", "column:means", "mask"))
    for batch in batches:
        means = batch["images"].mean(axis=(1, 2), dtype=np.float32)
        assert np.array_equal(means[batch["mask"]], batch["column:means"][batch["mask"]])
    with pytest.raises(
        UsageError, match=says("column-made-view-reader-s", ..., "evaluation crop of 100.0%")
    ):
        open_test(imagenet_c, recipe="mnist", fields=("images", "column:means"))


def test_reader_state_does_not_depend_on_crop(imagenet_c: Path) -> None:
    """Readers must resume from states of earlier versions."""
    reader = open_test(imagenet_c)
    next(iter(reader))
    state = reader.state()
    assert state.keys() == {
        "version",
        "dataset",
        "edition",
        "split",
        "training",
        "seed",
        "window",
        "nodes",
        "copies",
        "epoch",
        "examples_read",
        "recipe",
    }
    reader.restore({name: value for name, value in state.items() if name != "recipe"})


def test_documentation_lists_the_crop_of_each_edition() -> None:
    page = read(Path("docs/evaluation.md"))
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    crops = {cells[2].strip(" `"): cells[5].strip() for cells in rows if len(cells) == 7}
    listed = {each.name: each.crop for each in class_list.EVALUATION if each.name != "imagenetv2"}

    assert crops.keys() - {"edition"} == listed.keys()
    for name, crop in listed.items():
        assert crops[name].startswith("224/256" if crop is None else "the complete"), name
