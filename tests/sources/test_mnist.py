"""MNIST and Fashion-MNIST as a source."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.sources import cifar_mnist
from imagenet_prep.sources.cifar_mnist import Mnist
from imagenet_prep.sources.source import PackedImage
from tests.kit import layouts
from tests.kit.messages import says

BOTH = ("train", "validation")
IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


def raw(pixels: Any) -> bytes:
    """Encodes pixels unchanged, so that tests can compare them."""
    return bytes(pixels.tobytes())


def find(root: Path, splits: tuple[str, ...] = BOTH) -> Mnist:
    return cifar_mnist.find_mnist(root, splits, raw, "raw")


def train(root: Path) -> list[PackedImage]:
    source = find(root, ("train",))
    return [*itertools.chain.from_iterable(map(source.images, source.index_tasks("train")))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layouts.make_mnist(tmp_path, packed=False)


def test_images_have_pixels_labels_and_names_of_files(root: Path) -> None:
    pixels, digits = layouts.mnist_digits(40, 0)
    images = train(root)

    assert find(root).classes.wnids == tuple("0123456789")
    assert [image.class_index for image in images] == digits
    assert images[13].key == "3/train_00013.jpg"
    stored = np.frombuffer(images[13].data, np.uint8).reshape(28, 28, 3)
    assert all((stored[:, :, channel] == pixels[13]).all() for channel in range(3))
    source = find(root)
    (task,) = source.index_tasks("validation")
    assert [image.key for image in source.images(task)][:2] == [
        "0/t10k_00000.jpg",
        "1/t10k_00001.jpg",
    ]


def test_packed_files_give_the_same_images(root: Path, tmp_path: Path) -> None:
    packed = layouts.make_mnist(tmp_path / "packed")

    assert train(packed) == train(root)
    assert [part.name for part in find(packed, ("validation",)).parts] == [
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ]


def test_missing_file_is_named(root: Path, tmp_path: Path) -> None:
    (root / LABELS).unlink()
    with pytest.raises(UsageError, match=says("source-no-compressed-not", ..., LABELS)):
        find(root)
    find(root, ("validation",))
    assert cifar_mnist.is_there(root)
    assert not cifar_mnist.is_there(tmp_path / "absent")


def test_published_counts_have_no_problem(root: Path) -> None:
    source = find(root)

    # Classes differ in size in MNIST, but not in Fashion-MNIST.
    assert source.count_problems("train", [5_923, 6_077] * 5) == []
    assert source.count_problems("validation", [1_000] * 9 + [999]) == [
        "validation has 9,999 images, expected 10,000"
    ]


PIXELS = bytes(28 * 28)
HEADER = struct.pack(">4I", 0x803, 1, 28, 28)
DAMAGED = {
    "nothing": (IMAGES, b"", r"has 0 bytes, expected an IDX file of uint8 \[N, 28, 28\]"),
    "half a header": (IMAGES, HEADER[:9], r"has 9 bytes"),
    "no IDX file": (IMAGES, b"\x89PNG" + bytes(1000), r"begins with 89504e47"),
    "floats": (IMAGES, struct.pack(">4I", 0xD03, 1, 28, 28) + PIXELS, r"begins with 00000d03"),
    "labels for images": (IMAGES, layouts.idx([1] * 40), r"begins with 00000801"),
    "images for labels": (LABELS, HEADER + PIXELS, r"expected an IDX file of uint8 \[N\]"),
    "other sides": (IMAGES, struct.pack(">4I", 0x803, 1, 32, 32), r"begins .* 00000020 00000020"),
    "sides of 4 G": (IMAGES, struct.pack(">4I", 0x803, 1, 2**32 - 1, 28), r"begins .* ffffffff"),
    "4 G images": (IMAGES, struct.pack(">4I", 0x803, 2**32 - 1, 28, 28), r"4,294,967,295 items"),
    "cut off": (IMAGES, HEADER + PIXELS[1:], r"expected 784 bytes of items, found 783"),
    "too long": (IMAGES, HEADER + PIXELS + b"x", r"expected 784 bytes of items, found more"),
    "fewer images": (IMAGES, HEADER + PIXELS, r"40 labels, expected 1, one per image"),
    "a label of 10": (LABELS, layouts.idx([3] * 39 + [10]), r"label 39 is 10, expected 0 to 9"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_invalid_file_is_refused(root: Path, kind: str) -> None:
    name, content, sentence = DAMAGED[kind]
    (root / name).write_bytes(content)

    with pytest.raises(SourceError, match=sentence) as caught:
        train(root)
    assert name in str(caught.value)


def test_truncated_or_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = layouts.make_mnist(tmp_path) / f"{IMAGES}.gz"
    whole = path.read_bytes()
    wrong_checksum = whole[:-8] + bytes(4) + whole[-4:]
    for data in [*(whole[:size] for size in range(2, len(whole), 401)), wrong_checksum]:
        path.write_bytes(data)
        with pytest.raises(SourceError, match=IMAGES):
            train(tmp_path)


def test_file_larger_than_its_header_is_not_unpacked(tmp_path: Path) -> None:
    path = layouts.make_mnist(tmp_path) / f"{IMAGES}.gz"
    path.write_bytes(gzip.compress(HEADER + bytes(50 << 20), 1))

    with pytest.raises(SourceError, match="found more"):
        train(tmp_path)


DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_fashion_mnist_of_debian_is_recognised(tmp_path: Path) -> None:
    source = find(DEBIAN)
    assert (source.name, source.edition.name) == ("fashion_mnist", "Fashion-MNIST")
    assert source.classes.wnids[:2] == ("T-shirt_top", "Trouser")
    assert source.classes.words[0::9] == ("T-shirt/top", "Ankle boot")
    (task,) = source.index_tasks("validation")
    # The published test images start with an ankle boot and a pullover.
    images = source.images(task)
    assert [next(images).key for _ in range(2)] == [
        "Ankle_boot/t10k_00000.jpg",
        "Pullover/t10k_00001.jpg",
    ]

    name = f"{IMAGES}.gz"
    for path in DEBIAN.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    pixels = bytearray(gzip.decompress((DEBIAN / name).read_bytes()))
    pixels[-1] ^= 1
    (tmp_path / IMAGES).write_bytes(pixels)
    assert find(tmp_path, ("train",)).name == "mnist"
    assert find(tmp_path, ("validation",)).name == "fashion_mnist"


def test_uncompressed_fashion_mnist_is_recognised(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    md5s = {hashlib.md5(path.read_bytes()).hexdigest() for path in root.iterdir()}
    monkeypatch.setattr(cifar_mnist, "_FASHION_MD5S", md5s)
    assert find(root).name == "fashion_mnist"
    packed = layouts.make_mnist(root / "packed")
    assert find(packed).name == "fashion_mnist"
    assert [image.key.partition("/")[0] for image in train(root)[:2]] == ["T-shirt_top", "Trouser"]
    monkeypatch.setattr(cifar_mnist, "_FASHION_MD5S", {*sorted(md5s)[:3]})
    assert find(root).name == "mnist"


@pytest.mark.parametrize(("most", "is_read"), [(40, True), (39, False)])
def test_largest_number_of_images_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, most: int, *, is_read: bool
) -> None:
    monkeypatch.setattr(cifar_mnist, "_MAX_EXAMPLES", most)
    if is_read:
        assert len(train(root)) == 40
    else:
        with pytest.raises(SourceError, match=says("items-expected-most", IMAGES, 40, 39)):
            train(root)
