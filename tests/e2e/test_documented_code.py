"""Python code of the documents, executed unchanged, except for paths and small numbers.

`Torch` is a double of PyTorch in NumPy; tests/frameworks executes the same blocks with PyTorch.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import shutil
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.core.world import World
from imagenet_prep.dataset import column, manifest
from imagenet_prep.read import ColumnWriter, Reader, make_dataset, make_mix
from imagenet_prep.read.receipt import of_run
from tests.kit import blocks, command
from tests.kit.codec.square import pillows
from tests.kit.dataset import split_records
from tests.kit.faults import flip_bit
from tests.kit.miniature import miniature_for_tests
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, colours, dali, scenes
from tests.kit.tfrecords import colour, wnid

__all__ = ["colours", "dali", "scenes"]

SET = "/data/imagenet-480"
STEPS = NUM_TRAIN // 8
# A different backend would import its framework here.
SMALL = '=8, backend="native"'


class Tensor(np.ndarray):
    """The methods of a tensor that docs/columns.md calls."""

    def cuda(self) -> Any:
        return self

    cpu = cuda

    def float(self) -> Any:
        return self.astype(np.float32)

    def half(self) -> Any:
        return self.astype(np.float16)

    def flip(self, axis: int) -> Any:
        return np.flip(self, axis)


class Encoder:
    """Replaces an autoencoder: returns the means of 8 x 8 pixels of R, G and B, and their mean.

    Attributes:
        given: the images of each call.
    """

    def __init__(self) -> None:
        self.given: list[Any] = []

    def cuda(self) -> Encoder:
        return self

    def __call__(self, images: Any) -> Any:
        self.given.append(np.array(images))
        return latents_of(images).view(Tensor)


def latents_of(images: Any) -> Any:
    """Returns [images, 4, 32, 32] of [images, 3, 256, 256]."""
    colours = images.reshape(-1, 3, 32, 8, 32, 8).mean(axis=(3, 5))
    return np.concatenate([colours, colours.mean(axis=1, keepdims=True)], axis=1)


@contextmanager
def no_grad() -> Iterator[None]:
    yield


def double_of_torch(encoder: Encoder) -> types.ModuleType:
    module: Any = types.ModuleType("torch")
    module.from_dlpack = lambda array: array.view(Tensor)
    module.no_grad = no_grad
    module.stack = lambda tensors, dim: np.stack(tensors, axis=dim).view(Tensor)
    module.jit = types.SimpleNamespace(load=lambda _: encoder)
    return module


@pytest.fixture
def copy(scenes: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scenes, tmp_path / "set"))


def test_documented_functions_prepare_and_verify(
    shared_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "/data/ilsvrc2012": str(miniature_for_tests(shared_cache).root),
        "/data/imagenet-480": str(tmp_path / "set"),
        "short_side=480": "short_side=64, allow_subset=True",
    }
    names = blocks.run("api.md: Commands as functions", changes)
    written = manifest.loads((tmp_path / "set" / "dataset.json").read_bytes(), "dataset.json")
    assert capsys.readouterr().out.split()[0] == names["made"]["digest"] == written.digest

    shard = next((tmp_path / "set").glob("train-*"))
    flip_bit(shard, 100)
    blocks.run("api.md: Commands as functions", changes)
    assert f"\n{shard.name}: record 0 " in capsys.readouterr().out


def test_documented_latents_match_images_and_their_mirrors(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder()
    monkeypatch.setitem(sys.modules, "torch", double_of_torch(encoder))
    names = blocks.run("columns.md: Write", {"/data/imagenet": str(copy), "=64": "=16"})

    given = np.concatenate(encoder.given)
    assert given.dtype == np.float32
    assert -1 <= given.min() < -0.9
    assert 0.9 < given.max() <= 1
    made = column.loads((copy / column.record_name("latents")).read_bytes(), "", "latents")
    assert made.view == "evaluation crop, recipe adm, 256 px"
    assert (made.dtype, made.shape) == ("float16", (2, 4, 32, 32))
    assert made.about["scale"] == 0.18215

    reader: Any = make_dataset(
        copy, "train", 16, backend="native", world=World(), fields=("number", "column:latents")
    )
    rows = {}
    for batch in reader:
        rows |= zip(batch["number"].tolist(), batch["column:latents"], strict=True)
    encoded = [record.encoded for record in split_records(copy, "train")]
    assert len(rows) >= NUM_TRAIN // 16 * 16
    for number, row in rows.items():
        image = pillows(encoded[number], 256).transpose(2, 0, 1)[None] / 127.5 - 1
        expected = latents_of(image)[0] * 0.18215
        mirrored = latents_of(image[..., ::-1])[0] * 0.18215
        np.testing.assert_allclose(row[0], expected, atol=1e-3)
        np.testing.assert_allclose(row[1], mirrored, atol=1e-3)

    # The next block reads the column; it uses the variables of this block.
    names = blocks.run(
        "columns.md: Read", {"=256,": "=16,", "image_size=16": "image_size=256"}, **names
    )
    assert names["chosen"].shape == (16, 4, 32, 32)
    check_latents_of_views(copy)


def check_latents_of_views(root: Path) -> None:
    """The rows that `mirrored` selects are those of the images next to them."""
    reader: Any = make_dataset(
        root,
        "train",
        16,
        256,
        recipe="adm",
        backend="native",
        layout="NCHW",
        world=World(),
        fields=("images", "mirrored", "column:latents"),
    )
    seen = set()
    for batch in reader:
        images, mirrored, both = batch.values()
        chosen = both[range(len(both)), mirrored.astype(int)]
        expected = latents_of(images / 127.5 - 1) * 0.18215
        np.testing.assert_allclose(chosen, expected, atol=1e-3)
        seen |= {*mirrored.tolist()}
    assert seen == {True, False}


def numbered_rows(root: Path, name: str) -> Iterator[tuple[int, Any]]:
    """Yields the rows of a column in an epoch, each with the number of its example."""
    fields = ("number", f"column:{name}")
    reader: Any = make_dataset(root, "train", 8, backend="native", world=World(), fields=fields)
    for batch in reader:
        yield from zip(batch["number"], batch[f"column:{name}"], strict=True)


def test_documented_tokens_match_their_keys(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"{record.wnid}/{record.filename}" for record in split_records(copy, "train")]
    tokens = {key: np.full((5, 77), number).tolist() for number, key in enumerate(keys)}
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    monkeypatch.chdir(tmp_path)
    blocks.run("columns.md: Write 2", {"=256": "=16"}, root=copy, ColumnWriter=ColumnWriter)

    for number, row in numbered_rows(copy, "tokens"):
        assert np.array_equal(row, np.full((5, 77), number))


def test_documented_captions_come_from_metadata_csv(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"{record.wnid}/{record.filename}" for record in split_records(copy, "train")]
    expected = [[f"{key}, text {i}\n" for i in range(1 + n % 3)] for n, key in enumerate(keys)]
    monkeypatch.chdir(tmp_path)
    for before in ("train/", ""):
        with open("metadata.csv", "w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(("file_name", "text"))
            for key, texts in zip(keys, expected, strict=True):
                lines.writerows((before + key, text) for text in texts)
        # Names that are no keys must not become a column without texts.
        with pytest.raises(KeyError) if before else contextlib.nullcontext():
            blocks.run("columns.md: Texts", {"=256": "=16"}, root=copy, ColumnWriter=ColumnWriter)

    for number, texts in numbered_rows(copy, "captions"):
        assert texts == expected[number]


def test_readme_loop_reads_each_example_once_per_epoch(colours: Path) -> None:
    given: list[Any] = []
    states: list[Any] = []
    names = blocks.run(
        "README.md: Read a dataset",
        {SET: str(colours), "=256": SMALL, "range(90)": "range(2)"},
        step=lambda *arrays: given.append(arrays),
        save=states.append,
        predict=lambda images: np.zeros(len(images), int),
    )

    labels = [np.asarray(class_index) for _, class_index in given]
    assert [each.shape for each in labels] == [(8,)] * 2 * STEPS
    for epoch in range(2):
        seen = np.concatenate(labels[epoch * STEPS : (epoch + 1) * STEPS])
        assert len({*seen.tolist()}) == STEPS * 8
    check_colours(given)
    assert [(state["epoch"], state["examples_read"]) for state in states] == [(1, 0), (2, 0)]
    assert names["train"].num_examples == NUM_TRAIN


def check_colours(given: list[Any]) -> None:
    """Each image of `colours` has the colour of its class, normalised."""
    mean = np.array([123.675, 116.28, 103.53])
    std = np.array([58.395, 57.12, 57.375])
    for images, class_index in given:
        means = np.asarray(images).mean(axis=(1, 2)) * std + mean
        for found, label in zip(means, np.asarray(class_index).tolist(), strict=True):
            np.testing.assert_allclose(found, colour(label), atol=4)


def test_the_page_of_types_reads_bytes(colours: Path) -> None:
    names = blocks.run("api.md: Types", {SET: str(colours), "=256": SMALL})

    assert names["images"].dtype == "uint8"
    assert names["images"].shape == (8, 224, 224, 3)
    assert {*np.asarray(names["labels"]).tolist()} <= {*range(NUM_TRAIN)}


def test_documented_scores_match_predictions_of_network(colours: Path, tmp_path: Path) -> None:
    """One prediction is wrong by the labels. The list gives its image the predicted class."""
    reader: Any = make_dataset(
        colours,
        "validation",
        8,
        backend="native",
        world=World(),
        fields=("class_index", "key", "mask"),
    )
    keys: list[str] = []
    labels: list[int] = []
    for batch in reader:
        keys += batch["key"][batch["mask"]].tolist()
        labels += batch["class_index"][batch["mask"]].tolist()
    scores = np.eye(reader.num_classes)[labels]
    lines = [f"{key},{label}\n" for key, label in zip(keys, labels, strict=True)]
    lines[0] = f"{keys[0]},{labels[1]}\n"
    (tmp_path / "own.csv").write_text("key,class\n" + "".join(lines))
    numbers = {SET: str(colours), "real.json": str(tmp_path / "own.csv")}
    names = blocks.run("evaluation.md: Networks of your own", numbers, scores=scores, keys=keys)

    rows = [row for row in names["table"].rows if row.among == reader.num_classes]
    assert [row.top1 for row in rows] == [1, pytest.approx(1 - 1 / NUM_VALIDATION)]


def test_documented_generator_crop_has_pillows_bytes(scenes: Path) -> None:
    numbers = {"/data/imagenet": str(scenes), '", 256': '", 8'}
    reader: Any = blocks.run(
        "reading.md: The crop of image generators", numbers, make_dataset=make_dataset
    )["reader"]
    encoded = [record.encoded for record in split_records(scenes, "train")]
    # In this dataset, the class identifies the example.
    for batch in reader:
        for image, number in zip(batch["images"], batch["class_index"].tolist(), strict=True):
            expected = pillows(encoded[number], 256)
            assert np.array_equal(image, expected) or np.array_equal(image, expected[:, ::-1])


def test_documented_condition_selects_large_images_of_two_classes(scenes: Path) -> None:
    numbers = {SET: str(scenes), ", 256,": ", 1,", "512": "100"}
    numbers |= {"n01440764": wnid(3), "n01443537": wnid(7)}
    names = blocks.run("reading.md: A condition", numbers, make_dataset=make_dataset)
    records = [*split_records(scenes, "train")]
    expected = [n for n in (3, 7) if records[n].width >= 100]

    assert names["goldfish"].num_examples == len(expected) == 1


def test_documented_share_makes_the_crops_of_timm(scenes: Path) -> None:
    """timm resizes the shorter side first, and then crops the centre.

    The reader's crop begins at a complete pixel of these small images. A share of 1 would differ by
    6.8 grey levels, and one of 0.875 by 11.7.
    """
    numbers = {SET: str(scenes), "    256,": "    8,", "384": "64"}
    reader: Any = blocks.run("reading.md: Recipes", numbers, make_dataset=make_dataset)["evaluated"]
    mean, std = map(np.array, reader.normalisation)
    images = np.concatenate([batch["images"][batch["mask"]] for batch in reader])
    encoded = [record.encoded for record in split_records(scenes, "validation")]

    assert len(images) == len(encoded)
    differences = [
        np.abs(image * std + mean - resized_and_cropped(data, 64, math.floor(64 / 0.95))).mean()
        for image, data in zip(images, encoded, strict=True)
    ]
    assert np.mean(differences) < 4


def resized_and_cropped(data: bytes, side: int, shorter: int) -> Any:
    """Returns the central square of an image with its shorter side resized, as timm makes it."""
    with Image.open(io.BytesIO(data)) as image:
        scale = shorter / min(image.size)
        width = round(image.width * scale)
        height = round(image.height * scale)
        small = image.resize((width, height), Image.Resampling.BICUBIC)
    left = round((width - side) / 2)
    top = round((height - side) / 2)
    return np.asarray(small.crop((left, top, left + side, top + side)), float)


def test_documented_views_show_their_image(colours: Path) -> None:
    numbers = {SET: str(colours), ", 64,": ", 8,"}
    names = blocks.run("reading.md: Several crops of an image", numbers, make_dataset=make_dataset)
    labels = names["batch"]["class_index"]

    assert names["large"].shape == (8, 2, 224, 224, 3)
    assert names["small"].shape == (8, 8, 96, 96, 3)
    for views in (names["large"], names["small"]):
        check_colours([(images, labels) for images in np.moveaxis(views, 1, 0)])


def test_documented_sizes_change_with_the_epoch(colours: Path) -> None:
    given: list[Any] = []
    numbers = {SET: str(colours), "=512": "=16", "=384": "=8", "=256": "=4"}
    numbers |= {"=6": "=1", "=12)": "=2)", ", 18)": ", 3)", ", 256,": ", 8,"}
    numbers |= {"=128": "=32", "=160": "=48", "=192": "=64"}
    blocks.run(
        "reading.md: Sizes that change",
        numbers,
        make_dataset=make_dataset,
        step=lambda *arrays: given.append(arrays),
    )

    first = 0
    for size, side in ((16, 32), (8, 48), (4, 64)):
        steps = given[first : first + NUM_TRAIN // size]
        first += len(steps)
        assert {images.shape for images, _ in steps} == {(size, side, side, 3)}
        seen = np.concatenate([labels for _, labels in steps]).tolist()
        assert len({*seen}) == len(seen) == NUM_TRAIN // size * size
    assert first == len(given)
    check_colours(given)


def test_documented_buckets_are_nearest_to_their_images(scenes: Path) -> None:
    given: list[Any] = []
    numbers = {SET: str(scenes), "    256,": "    4,"}
    blocks.run("reading.md: Buckets", numbers, step=lambda *arrays: given.append(arrays))
    records = [*split_records(scenes, "train")]
    aspects = [width / height for height, width in ((224, 224), (224, 320), (320, 224))]

    assert len(given) >= 10
    for images, labels in given:
        _, height, width, _ = images.shape
        for label in labels.tolist():
            own = records[label].width / records[label].height
            nearest = min(aspects, key=lambda aspect: abs(math.log(aspect / own)))
            assert width / height == nearest


def test_documented_mix_has_its_proportions(scenes: Path, colours: Path) -> None:
    given: list[Any] = []
    numbers = {SET: str(scenes), "/data/photographs": str(colours), ", 256)": ", 8)"}
    names = blocks.run(
        "reading.md: A mix of datasets",
        numbers,
        make_dataset=make_dataset,
        step=lambda *arrays: given.append(arrays),
    )
    parts = np.concatenate([part for _, _, part in given])
    dropped = 2 * NUM_TRAIN % 8

    assert len(parts) == 2 * NUM_TRAIN - dropped
    assert 0 <= 2 * NUM_TRAIN / 4 - np.count_nonzero(parts == 1) <= dropped
    check_colours([(images[part == 1], labels[part == 1]) for images, labels, part in given])
    assert (names["state"]["epoch"], names["state"]["examples_read"]) == (1, 0)


def test_documented_validation_has_the_classes_of_the_mix(colours: Path) -> None:
    own = make_dataset(colours, "validation", 8)
    every = make_dataset(colours, "train", 2)
    chosen = every.present[-3:]
    last = make_dataset(colours, "train", 2, classes=chosen, remap=True)
    mix = make_mix({"last": last, "all": every})
    found: list[str] = []

    def evaluate(images: Any, labels: Any, mask: Any) -> None:
        found.extend(mix.classes[label] for label in labels[mask])

    blocks.run(
        "reading.md: A mix of datasets 2",
        {"/data/photographs": str(colours), ", 256)": ", 8)"},
        make_dataset=make_dataset,
        np=np,
        mix=mix,
        evaluate=evaluate,
    )
    expected = [own.classes[n] for batch in own for n in batch["class_index"][batch["mask"]]]
    assert mix.classes[: len(own.classes)] != own.classes
    assert found == expected


class Loader:
    """Replaces the datasets of Grain and Ray Data: calls functions of all items in their order."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def seed(self, _: int) -> Loader:
        return self

    def shuffle(self) -> Loader:
        return self

    def map(self, function: Any) -> Loader:
        return Loader([function(self.items[number]) for number in range(len(self.items))])

    def batch(self, size: int) -> Loader:
        return Loader(
            [self.items[first : first + size] for first in range(0, len(self.items), size)]
        )


def test_documented_loaders_get_all_examples(
    colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grain: Any = types.ModuleType("grain")
    grain.MapDataset = types.SimpleNamespace(source=Loader)
    ray: Any = types.ModuleType("ray")
    ray.data = types.SimpleNamespace(range=lambda n: Loader([{"id": i} for i in range(n)]))
    monkeypatch.setitem(sys.modules, "grain", grain)
    monkeypatch.setitem(sys.modules, "ray", ray)
    names = blocks.run("trainers.md: Grain", {SET: str(colours), "256": "8"})
    examples = blocks.run("trainers.md: Ray Data", {}, **names)["examples"].items
    encoded = [record.encoded for record in split_records(colours, "train")]

    found = [example for batch in names["train"].items for example in batch]
    assert [label for _, label in found] == [*range(NUM_TRAIN)]
    for pixels, label in found:
        assert pixels.shape == (224, 224, 3)
        np.testing.assert_allclose(pixels.mean(axis=(0, 1)), colour(label), atol=4)
    assert [example["class_index"] for example in examples] == [*range(NUM_TRAIN)]
    assert [example["encoded"] for example in examples] == encoded


def test_documented_log_lists_images_of_each_step(colours: Path, tmp_path: Path) -> None:
    reader: Reader = make_dataset(
        colours, "train", 8, backend="native", world=World(), fields=("number",)
    )
    seen: list[list[int]] = []

    def noted() -> Iterator[Any]:
        for batch in reader:
            seen.append(batch["number"].tolist())
            yield batch

    numbers = {"for batch in reader": "for batch in noted()", "% 1000": "% 2"}
    blocks.run(
        "train.md: Which images a model has seen",
        numbers,
        log_dir=tmp_path,
        step=0,
        json=json,
        reader=reader,
        noted=noted,
    )

    _, receipt = of_run(tmp_path / "train.jsonl", str(colours))
    last = len(seen) // 2 * 2
    for step in range(last):
        assert [number for _, number in receipt.step(step)] == seen[step]

    keys = [f"{record.wnid}/{record.filename}" for record in split_records(colours, "train")]
    shown = {
        "runs/1": str(tmp_path),
        "1000": "1",
        "n01440764/n01440764_10026.JPEG": keys[seen[1][0]],
    }
    text = blocks.small(blocks.block("$ train.md: Which images a model has seen").text, shown)
    images, steps, check = (
        command.run(*line.split()[1:], "--trained-on", colours).out for line in text.splitlines()
    )
    assert [line.split()[-1] for line in images.splitlines()] == [keys[n] for n in seen[1]]
    assert steps.splitlines()[1].startswith("step 1 ")
    assert check.startswith(f"steps {last}  images {8 * last} ")


def test_documented_writers_get_labels_from_0(colours: Path) -> None:
    reader: Reader = make_dataset(colours, "train", 8, backend="native", world=World())
    written: list[Any] = []
    blocks.run(
        "trainers.md: LitData and MosaicML streaming", {}, reader=reader, write=written.append
    )

    records = list(split_records(colours, "train"))
    assert [each["class"] for each in written] == [*range(NUM_TRAIN)]
    assert [each["image"] for each in written] == [record.encoded for record in records]


@pytest.mark.tf
def test_keras_gets_labels_from_0(colours: Path, tf: Any) -> None:
    numbers = {"/data/imagenet-480": str(colours), "batch(256)": "batch(10)"}
    train = blocks.run("trainers.md: Keras", numbers, tf=tf)["train"]

    found: list[tuple[Any, int]] = []
    for images, labels in train:
        found += zip(images, map(int, labels), strict=True)
    assert sorted(label for _, label in found) == [*range(NUM_TRAIN)]
    for image, label in found:
        np.testing.assert_allclose(np.asarray(image).mean(axis=(0, 1)), colour(label), atol=4)


@pytest.mark.dali
def test_dali_reader_gets_labels_from_0(colours: Path, dali: Any) -> None:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali import tfrecord as tfrec

    @pipeline_def(batch_size=NUM_TRAIN, num_threads=1, device_id=None)
    def pipeline() -> Any:
        names = {"root": colours, "fn": fn, "tfrec": tfrec}
        made = blocks.run("trainers.md: NVIDIA DALI", {}, **names)
        return made["records"]["image/encoded"], made["class_index"]

    encoded, labels = pipeline().run()
    images = {record.stored_label - 1: record.encoded for record in split_records(colours, "train")}
    found = {
        int(np.asarray(labels.at(n))[0]): bytes(np.asarray(encoded.at(n))) for n in range(NUM_TRAIN)
    }
    assert found == images
