"""Encoded images in batches, single examples by number, and single images by `decode`."""

from __future__ import annotations

import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, Size, View, decode, make_dataset
from imagenet_prep.read.batch import FIELDS
from tests.kit.codec import corpus
from tests.kit.dataset import split_records
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION

ROWS = tuple(name for name in FIELDS if name != "mask")


def opened(root: Path, split: str = "train", **settings: Any) -> Reader:
    usual: dict[str, Any] = {"framework": "numpy", "world": World(), "seed": 9, "batch_size": 4}
    return make_dataset(root, split, image_size=16, backend="native", **usual | settings)


def test_encoded_images_are_the_stored_bytes_in_order(scenes: Path) -> None:
    fields = ("encoded", "number", "class_index")
    stored = [record.encoded for record in split_records(scenes, "train")]
    with_images = [b["number"].tolist() for b in opened(scenes, fields=("images", "number"))]
    numbers = []
    for batch in opened(scenes, fields=fields):
        assert list(batch) == list(fields)
        numbers.append(batch["number"].tolist())
        assert batch["encoded"] == [stored[number] for number in numbers[-1]]
    assert numbers == with_images


def test_padding_has_no_encoded_image(scenes: Path) -> None:
    *_, last = opened(scenes, "validation", fields=("encoded", "mask"))
    assert [bool(data) for data in last["encoded"]] == last["mask"].tolist()
    assert sum(last["mask"]) == NUM_VALIDATION % 4


@pytest.mark.tf
def test_encoded_images_are_strings_of_tensorflow(scenes: Path, tf: Any) -> None:
    reader = opened(scenes, fields=("encoded",), framework="tensorflow")
    encoded = next(iter(reader))["encoded"]
    assert encoded.dtype == tf.string
    assert tf.io.decode_jpeg(encoded[0]).shape[-1] == 3


def test_source_has_every_example_once(scenes: Path) -> None:
    source = opened(scenes).source(fields=("encoded", "class_index", "key", "number", "width"))
    records = split_records(scenes, "train")
    assert len(source) == NUM_TRAIN
    for number, record in enumerate(records):
        assert source[number] == {
            "encoded": record.encoded,
            "class_index": record.stored_label - 1,
            "key": f"{record.wnid}/{record.filename}",
            "number": number,
            "width": record.width,
        }
    assert source[-1] == source[NUM_TRAIN - 1]
    assert source[np.int64(3)] == source[3]
    assert sum(1 for _ in source) == NUM_TRAIN


@pytest.mark.parametrize("number", [NUM_TRAIN, -NUM_TRAIN - 1])
def test_example_outside_the_source_is_an_index_error(scenes: Path, number: int) -> None:
    with pytest.raises(IndexError, match=f"{number} of {NUM_TRAIN}"):
        opened(scenes).source()[number]


@pytest.mark.parametrize("number", ["3", 1.0, slice(3)])
def test_only_numbers_select_an_example(scenes: Path, number: Any) -> None:
    with pytest.raises(TypeError):
        opened(scenes).source()[number]


def test_view_of_memory_is_decoded() -> None:
    data = corpus.files()["96x128 420"]
    assert np.array_equal(decode(memoryview(data)), decode(data))


def test_source_has_the_chosen_examples_only(scenes: Path) -> None:
    source = opened(scenes, classes=[8, 3, 41], batch_size=1).source(
        fields=("class_index", "number")
    )
    assert [source[place]["number"] for place in range(len(source))] == [3, 8, 41]


def test_pickled_source_reads_the_same(scenes: Path) -> None:
    source = opened(scenes, where="width > 0 and class_index > 5").source()
    copied = pickle.loads(pickle.dumps(source))
    assert repr(copied) == repr(source)
    assert [copied[n] for n in range(len(copied))] == [source[n] for n in range(len(source))]


def test_names_of_sources_differ_by_dataset_and_choice(scenes: Path, colours: Path) -> None:
    """Grain compares the names when it resumes; the folder may have moved."""
    sources = [
        opened(scenes).source(),
        opened(colours).source(),
        opened(scenes, "validation").source(),
        opened(scenes, classes=[3], batch_size=1).source(),
    ]
    assert len({repr(source) for source in sources}) == 4
    assert str(scenes) not in repr(sources[0])
    assert repr(opened(scenes, seed=1).source()) == repr(sources[0])


def test_threads_share_a_source(scenes: Path) -> None:
    source = opened(scenes).source(fields=("encoded", "number", "key"))
    expected = [source[number] for number in range(NUM_TRAIN)]
    fresh = opened(scenes).source(fields=("encoded", "number", "key"))
    begin = threading.Barrier(4)

    def read(worker: int) -> list[dict[str, Any]]:
        begin.wait()
        return [fresh[(number + 12 * worker) % NUM_TRAIN] for number in range(NUM_TRAIN)]

    with ThreadPoolExecutor(4) as pool:
        for worker, found in enumerate(pool.map(read, range(4))):
            shifted = expected[12 * worker :] + expected[: 12 * worker]
            assert found == shifted


def test_images_of_a_source_belong_to_its_epoch(scenes: Path) -> None:
    fields = ("images", "number")
    for epoch in (0, 2):
        reader = opened(scenes, fields=fields)
        reader.epoch = epoch
        source = opened(scenes).source(fields=fields, epoch=epoch)
        for batch in reader:
            for number, image in zip(batch["number"].tolist(), batch["images"], strict=True):
                assert np.array_equal(source[number]["images"], image)


@pytest.mark.parametrize(
    "views", [1, 3, [View(count=2)], [View(count=2), View(image_size=(9, 12), area=(0.1, 0.3))]]
)
def test_examples_of_a_source_are_rows_of_batches(scenes: Path, views: Any) -> None:
    """With each field, and with the images of one or several kinds of views."""
    batch = next(iter(opened(scenes, fields=ROWS, views=views)))
    source = opened(scenes, views=views).source(fields=ROWS)
    for row in range(4):
        example = source[batch["number"][row]]
        assert list(example) == list(ROWS)
        for name, value in example.items():
            if isinstance(batch[name], tuple):
                assert isinstance(value, tuple)
                expected = [array[row] for array in batch[name]]
                assert [*map(np.array_equal, value, expected)] == [True] * len(views)
            else:
                assert np.array_equal(value, batch[name][row]), name


@pytest.mark.parametrize("weights", ["classes", 0.5, 2.0])
def test_weights_change_no_source(scenes: Path, weights: Any) -> None:
    """The loader that takes a source chooses how often an example appears."""
    source = opened(scenes, weights=weights).source()
    plain = opened(scenes).source()
    assert len(source) == len(plain)
    assert source[-1] == plain[NUM_TRAIN - 1]
    assert repr(source) == repr(plain)


def test_source_shows_the_size_of_its_epoch(scenes: Path) -> None:
    sizes = [Size(image_size=8), Size(image_size=24, epoch=1)]
    for epoch, side in ((0, 8), (1, 24), (2, 24)):
        reader = opened(scenes, fields=("images", "number"), sizes=sizes)
        reader.epoch = epoch
        batch = next(iter(reader))
        source = opened(scenes, sizes=sizes).source(fields=("images",), epoch=epoch)
        image = source[batch["number"][0]]["images"]
        assert image.shape == (side, side, 3)
        assert np.array_equal(image, batch["images"][0])


def test_damaged_record_of_a_source_is_named(damaged: Path) -> None:
    path = min(damaged.glob("train-*[0-9]"))
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    source = opened(damaged, on_bad_record="skip").source()
    with pytest.raises(DataDamagedError, match=f"{path.name}.*record 0"):
        _ = source[0]
    assert source[20]["encoded"]


@pytest.mark.parametrize("fields", [("mask",), ("encoded", "size"), (), "encoded"])
def test_unknown_fields_of_a_source_are_refused(scenes: Path, fields: Any) -> None:
    with pytest.raises(UsageError, match="fields="):
        opened(scenes).source(fields=fields)


@pytest.mark.parametrize("name", ["96x128 420", "96x128 444", "progressive", "grey"])
def test_decoded_image_is_that_of_pillow(name: str) -> None:
    data = next(data for key, data in corpus.files().items() if name in key)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB")).astype(int)
    found = decode(data)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 1.0


def test_decoded_window_is_a_part_of_the_image() -> None:
    data = corpus.files()["96x128 444"]
    whole = decode(data)
    assert np.array_equal(decode(data, window=(10, 20, 30, 40)), whole[10:40, 20:60])
    mirrored = decode(data, window=(10, 20, 30, 40), mirrored=True)
    assert np.array_equal(mirrored, whole[10:40, 20:60][:, ::-1])


@pytest.mark.parametrize("form", ["PNG", "WEBP", "CMYK"])
def test_other_formats_are_decoded(form: str) -> None:
    pixels = corpus.photograph(40, 50)
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    if form == "CMYK":
        image.convert("CMYK").save(buffer, "JPEG", quality=100)
    else:
        image.save(buffer, form, lossless=True)
    found = decode(buffer.getvalue(), window=(4, 5, 20, 30), mirrored=True)
    assert np.abs(found.astype(int) - pixels[4:24, 5:35][:, ::-1]).mean() < 3


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"window": (0, 0, 97, 10)}, ("(0, 0, 97, 10)", "96 x 128")),
        ({"window": (-1, 0, 10, 10)}, ("(-1, 0, 10, 10)",)),
        ({"window": (0, 100, 10, 29)}, ("(0, 100, 10, 29)",)),
        ({"window": (0, 0, 0, 10)}, ("(0, 0, 0, 10)",)),
        ({"window": (0, 0, 10)}, ("(0, 0, 10)",)),
        ({"window": (0, 0, 10, "9")}, ("'9'",)),
        ({"window": (0, 0, 10, 9.5)}, ("9.5",)),
        ({"size": 0}, ("size=0",)),
        ({"filter": "random"}, ("filter", "random")),
        ({"filter": "bicubic", "antialias": False}, ("bicubic", "antialias")),
    ],
    ids=str,
)
def test_invalid_arguments_of_decode_are_refused(
    settings: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        decode(corpus.files()["96x128 420"], **settings)
    for fact in facts:
        assert fact in str(refused.value)


@pytest.mark.parametrize("data", [b"no image", b"\xff\xd8\xff", b"\0"])
def test_undecodable_bytes_are_damaged_data(data: bytes) -> None:
    with pytest.raises(DataDamagedError):
        decode(data)


def test_padding_is_no_damaged_image(scenes: Path) -> None:
    *_, last = opened(scenes, "validation", fields=("encoded", "mask"))
    padding = last["encoded"][-1]
    assert not last["mask"][-1]
    with pytest.raises(UsageError, match=says("no-image-padding-skipped-records")):
        decode(padding)


def test_labels_of_tuples_ignore_padding(scenes: Path) -> None:
    batches = list(opened(scenes, "validation", as_tuple=True))
    named = list(opened(scenes, "validation"))
    for (images, labels, weights), batch in zip(batches, named, strict=True):
        assert np.array_equal(images, batch["images"])
        assert np.array_equal(labels, np.where(batch["mask"], batch["class_index"], 0))
        assert weights.dtype == np.float32
        assert weights.tolist() == batch["mask"].tolist()
    assert batches[-1][2].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_tuples_have_no_other_fields(scenes: Path) -> None:
    with pytest.raises(UsageError, match=says("as_tuple-true-returns-images-labels")):
        opened(scenes, as_tuple=True, fields=("images", "key"))
