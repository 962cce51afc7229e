"""The native backend: odd images, fallback to Pillow, and user memory for batches."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import planes
from imagenet_prep.core.errors import BadImageError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, backend, make_dataset
from imagenet_prep.read.augment import Views
from imagenet_prep.read.batch import Bfloat16
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch
from imagenet_prep.read.recipes import RECIPES
from tests.kit.codec import corpus, jpegs
from tests.kit.command import PATIENCE_S
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.reading import ODD


def wanted(**more: Any) -> ReadConfig:
    settings: dict[str, Any] = {"dtype": "uint8", "antialias": True, "num_threads": 1}
    return ReadConfig("nowhere", "train", 1, 24, backend="native", **settings | more)


def shown(data: bytes, box: list[int], mirrored: bool = False, **more: Any) -> Any:
    views = (Views(np.array([box], np.int32), np.array([mirrored])),)
    numbers = np.zeros(1, int)
    config = wanted(**more)
    classes = np.zeros(1, np.int32)
    mask = np.ones(1, bool)
    batch = EncodedBatch([data], classes, mask, views, numbers, {}, config.shown[0])
    (found,) = backend.NativeBackend(config).batches(iter([batch]), 1)
    return found[0].astype(int)


def pillows(data: bytes, box: list[int]) -> Any:
    top, left, height, width = box
    with Image.open(io.BytesIO(data)) as image:
        crop = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(crop.resize((24, 24), Image.Resampling.BILINEAR)).astype(int)


@pytest.mark.parametrize("hidden", [False, True], ids=["planes", "plain"])
@pytest.mark.parametrize("kind", list(ODD))
def test_odd_images_look_as_in_pillow(installed: Installed, kind: str, hidden: bool) -> None:
    if hidden:
        installed.no_planes()
    with Image.open(io.BytesIO(ODD[kind])) as image:
        whole = [0, 0, image.height, image.width]
    for box in (whole, [whole[2] // 4, whole[3] // 3, -(-whole[2] // 2), -(-whole[3] // 2)]):
        found = shown(ODD[kind], box)

        assert np.abs(found - pillows(ODD[kind], box)).mean() < 1
        assert np.array_equal(shown(ODD[kind], box, mirrored=True), found[:, ::-1])
        first = shown(ODD[kind], box, layout="NCHW")
        assert np.array_equal(first.transpose(1, 2, 0), found)


@pytest.mark.parametrize(("sampling", "columns"), [("411", 40), ("420", 4), ("422", 3)])
def test_chroma_repeated_by_libjpeg_is_not_interpolated(sampling: str, columns: int) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (30, columns, 3), np.uint8)
    data = jpegs.encode(noise, 90, sampling)
    box = [0, 0, 30, columns]

    assert np.abs(shown(data, box) - pillows(data, box)).mean() < 1


def test_fallback_interpolates_like_the_codec(installed: Installed) -> None:
    box = [3, 5, 30, 41]
    quick = shown(ODD["4:4:4"], box, antialias=False)
    installed.no_planes()

    assert np.abs(shown(ODD["4:4:4"], box, antialias=False) - quick).mean() < 0.7


def test_damaged_image_is_an_error() -> None:
    with pytest.raises(BadImageError, match="starts with b'no JPEG'"):
        shown(b"no JPEG", [0, 0, 4, 4])


def test_every_sound_file_of_the_corpus_is_decoded() -> None:
    for name, data in corpus.files().items():
        with Image.open(io.BytesIO(data)) as image:
            box = [0, 0, image.height, image.width]
        assert shown(data, box).shape == (24, 24, 3), name


@pytest.mark.tf
def test_bfloat16_is_rounded_to_the_nearest_for_dlpack(tf: Any) -> None:
    recipe = RECIPES["resnet"]
    values, full = (
        planes.Values(dtype, recipe.mean, recipe.std).table for dtype in ("bfloat16", "float32")
    )

    found = tf.experimental.dlpack.from_dlpack(Bfloat16(values).__dlpack__())

    assert found.dtype == tf.bfloat16
    assert np.array_equal(tf.cast(full, tf.bfloat16).numpy(), found.numpy())


def test_tensor_is_on_the_cpu_device() -> None:
    tensor = Bfloat16(np.zeros((2, 3), np.uint16))

    assert (tensor.shape, tensor.__dlpack_device__()) == ((2, 3), (1, 0))


def opened(root: Path, **more: Any) -> Reader:
    settings = {"world": World(), "backend": "native", "num_threads": 2} | more
    return make_dataset(root, "train", 4, 24, **settings)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
@pytest.mark.parametrize("colour", [False, True])
def test_fallback_to_pillow_matches_and_is_logged_once(
    installed: Installed,
    caplog: pytest.LogCaptureFixture,
    scenes: Path,
    dtype: str,
    colour: bool,
) -> None:
    """The same crops and mirroring; the mean of each image differs by less than a grey level."""
    quick = [batch["images"] for batch in opened(scenes, dtype=dtype, colour=colour)]
    installed.no_planes()
    backend.say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        plain = [batch["images"] for batch in opened(scenes, dtype=dtype, colour=colour)]
        opened(scenes)

    level = 1.0 if dtype == "uint8" else 1 / 57
    for ours, pillows in zip(quick, plain, strict=True):
        assert ours.dtype == pillows.dtype == dtype
        difference = np.abs(ours.astype(np.float32) - pillows.astype(np.float32))
        assert difference.mean(axis=(1, 2, 3)).max() < level
    assert [record.message for record in caplog.records] == [
        "images are decoded by Pillow, which is slower: no compiler"
    ]


def test_memory_of_a_batch_is_reused_if_released(scenes: Path) -> None:
    reader = opened(scenes)
    kept = [batch["images"][1:, :, ::2] for batch in reader]  # views keep their batch
    copies = [images.copy() for images in kept]
    places = {images.ctypes.data for images in kept}
    rest = [batch["images"] for batch in reader]

    assert len(places) == len(kept)
    assert all(np.array_equal(*pair) for pair in zip(kept, copies, strict=True))
    del kept, rest
    again = {batch["images"].ctypes.data for batch in reader}
    assert len(again) < reader.steps_per_epoch


class Tensor:
    """An array of a different library, which NumPy only supports through DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("wrap", [lambda array: array, Tensor], ids=["NumPy", "DLPack"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_batches_are_written_into_user_memory(
    scenes: Path, layout: str, wrap: Callable[[Any], Any]
) -> None:
    shape = (4, 24, 24, 3) if layout == "NHWC" else (4, 3, 24, 24)
    given = []

    def out() -> Any:
        given.append(np.full(shape, 7.0, np.float32))
        return wrap(given[-1])

    expected = [batch["images"] for batch in opened(scenes, layout=layout)]
    found = list(opened(scenes, layout=layout, out=out))

    assert len(given) == len(found)
    for batch, memory, images in zip(found, given, expected, strict=True):
        assert isinstance(batch["images"], type(wrap(memory)))
        assert np.array_equal(memory, images)


def test_broken_dali_does_not_affect_other_backends(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for DALI imports `nvidia`, and any error of this import ended the reader."""
    broken = tmp_path / "nvidia"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('no driver')")
    for name in ("nvidia", "nvidia.dali"):  # a different test may have imported DALI
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    assert len(opened(scenes)) > 0
    with pytest.raises(OSError, match="no driver"):
        opened(scenes, backend="dali")


def test_abandoned_epoch_stops_writing_into_reused_memory(
    scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers used in turn contained its images instead of the next epoch's."""
    show = backend.NativeBackend._show
    writing = []
    busy = []
    begun = threading.Event()
    asked = threading.Event()

    def slow(backend: Any, batch: Any, images: Any, part: slice) -> None:
        if asked.is_set() or np.shares_memory(images[0], given[0]):
            show(backend, batch, images, part)
            return
        writing.append(part)
        begun.set()
        asked.wait(0.3)
        show(backend, batch, images, part)
        writing.remove(part)

    def out() -> Any:
        if len(given) == 3:
            busy.extend(writing)
            asked.set()
        given.append(np.empty((4, 24, 24, 3), np.float32))
        return given[-1]

    given: list[Any] = []
    monkeypatch.setattr(backend.NativeBackend, "_show", slow)
    reader = opened(scenes, out=out)
    left = iter(reader)
    next(left)
    assert begun.wait(PATIENCE_S)
    left.close()
    next(iter(reader))

    assert len(given) == 6
    assert not busy


def test_bfloat16_is_written_into_memory_of_that_type(scenes: Path) -> None:
    given = []

    def out() -> Any:
        given.append(np.empty((4, 24, 24, 3), np.uint16))
        return Bfloat16(given[-1])

    reader = opened(scenes, dtype="bfloat16", framework="dlpack")
    expected = [batch["images"].bits for batch in reader]
    list(opened(scenes, dtype="bfloat16", out=out))

    assert all(np.array_equal(*pair) for pair in zip(expected, given, strict=True))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (
            np.empty((4, 24, 24, 3)),
            r"returned float64 \[4, 24, 24, 3\]: expected .* float32 \[4, 24",
        ),
        (np.empty((3, 24, 24, 3), np.float32), r"returned float32 \[3, 24, 24, 3\]: expected"),
        (np.empty((4, 24, 24, 6), np.float32)[..., ::2], "not contiguous or not aligned: expected"),
        (
            np.frombuffer(bytearray(4 * 24 * 24 * 3 * 4 + 1), np.float32, offset=1).reshape(
                4, 24, 24, 3
            ),
            "not aligned: expected contiguous, aligned float32",
        ),
        (np.broadcast_to(np.float32(0), (4, 24, 24, 3)), says("read-only")),
        ([1.0, 2.0], says("out-returned-no-usable-memory", "memoryview")),
    ],
)
def test_unsuitable_memory_is_refused(scenes: Path, memory: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        next(iter(opened(scenes, out=lambda: memory)))


def test_framework_is_refused_with_user_memory(scenes: Path) -> None:
    with pytest.raises(UsageError, match=says("out-determines-type-arrays-batches")):
        opened(scenes, out=bytearray, framework="numpy")


def test_memory_without_the_field_images_is_refused(scenes: Path) -> None:
    with pytest.raises(UsageError, match=says("out-provides-memory-images-fields")):
        opened(scenes, out=bytearray, fields=("key",))


@pytest.mark.parametrize("other", ["tfdata", "dali"])
def test_other_backends_refuse_user_memory(installed: Installed, scenes: Path, other: str) -> None:
    installed.packages(lambda _: True)
    with pytest.raises(UsageError, match=says("out-needs-backend-native-backend", f"'{other}'")):
        opened(scenes, out=bytearray, backend=other)
