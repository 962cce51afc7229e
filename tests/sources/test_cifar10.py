"""CIFAR-10 as a source: batches are read without running their pickles."""

from __future__ import annotations

import os
import pickle
import pickletools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.sources import cifar_mnist
from imagenet_prep.sources.cifar_mnist import Cifar10
from tests.kit import layouts
from tests.kit.messages import says


def raw(pixels: Any) -> bytes:
    """Encodes pixels unchanged, so that tests can compare them."""
    return bytes(pixels.tobytes())


def find(root: Path) -> Cifar10:
    return cifar_mnist.find_cifar10(root, raw, "raw")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layouts.make_cifar10(tmp_path, num=10)


def batch(root: Path, name: str = "data_batch_1") -> Path:
    return root / cifar_mnist.FOLDER / name


def test_images_have_pixels_labels_and_names_of_batches(root: Path) -> None:
    source = find(root)
    truth = layouts.cifar_batch(10, 0)
    images = list(source.images(source.index_tasks("train")[0]))

    assert source.classes.wnids == layouts.CIFAR_NAMES
    assert [image.class_index for image in images] == truth["labels"]
    assert images[3].key == "cat/data_batch_1_00003_cat_s_000003.jpg"
    pixels = np.frombuffer(images[3].data, np.uint8).reshape(32, 32, 3)
    assert (pixels == truth["data"][3].reshape(3, 32, 32).transpose(1, 2, 0)).all()


def test_pickles_of_python_2_are_read(root: Path) -> None:
    """The published files contain byte strings as Python 2's str, and module names of numpy 1."""
    data = bytes(range(256)) * 12
    with_py2_strings = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03"
        b"cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01M\x00\x0c\x86"
        b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89T" + len(data).to_bytes(4, "little") + data + b"tb"
        b"U\x06labelsq\x08]q\x09K\x07aU\x09filenamesq\x0a]q\x0bU\x0aox_s_1.pngau."
    )
    batch(root).write_bytes(with_py2_strings)
    source = find(root)
    (image,) = source.images(source.index_tasks("train")[0])

    assert (image.key, image.class_index) == ("horse/data_batch_1_00000_ox_s_1.jpg", 7)
    assert np.frombuffer(image.data, np.uint8)[:3].tolist() == [0, 0, 0]


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_python_3_are_read(root: Path, protocol: int) -> None:
    for name in ("data_batch_1", "batches.meta"):
        content = pickle.loads(batch(root, name).read_bytes(), encoding="bytes")
        text = {key.decode(): value for key, value in content.items()}
        batch(root, name).write_bytes(pickle.dumps(text, protocol=protocol))
    source = find(root)
    images = list(source.images(source.index_tasks("train")[0]))

    truth = layouts.cifar_batch(10, 0)
    assert source.classes.wnids == layouts.CIFAR_NAMES
    assert [image.class_index for image in images] == truth["labels"]
    pixels = np.frombuffer(images[3].data, np.uint8).reshape(32, 32, 3)
    assert (pixels == truth["data"][3].reshape(3, 32, 32).transpose(1, 2, 0)).all()


class Poison:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["data_batch_2", "batches.meta"])
def test_poisoned_pickle_runs_nothing(root: Path, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    batch(root, name).write_bytes(pickle.dumps({b"data": Poison(mark)}, protocol=2))
    with pytest.raises(
        SourceError, match=says("not-pickle-cifar-10-none-code", ..., "it requests")
    ):
        source = find(root)
        for task in source.index_tasks("train"):
            list(source.images(task))
    assert not mark.exists()


def pickled(data: object, labels: list[int], names: list[object]) -> bytes:
    return pickle.dumps({b"data": data, b"labels": labels, b"filenames": names}, protocol=2)


def black(num: int, dtype: type = np.uint8) -> np.ndarray[Any, Any]:
    return np.zeros((num, 3072), dtype)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps([1, 2], protocol=2),
        pickled(1, [], []),
        pickled(b"0" * 3072, [0], [b"a"]),
        pickled(black(1, np.int64), [0], [b"a"]),
        pickled(black(1), [0, 1], [b"a"]),
        pickled(black(1), [0], [b"a", b"b"]),
        pickled(black(1), [0, 1], [b"a", b"b"]),
        pickled(black(2), [0], [b"a"]),
        pickled(np.asfortranarray(black(2)), [0, 1], [b"a", b"b"]),
        pickled(black(1), [10], [b"a"]),
        pickled(black(1), [-1], [b"a"]),
        pickled(black(1), [0], [3]),
    ],
    ids=range(14),
)
def test_invalid_batch_is_refused(root: Path, content: bytes) -> None:
    batch(root).write_bytes(content)
    source = find(root)
    with pytest.raises(SourceError, match=r"data_batch_1"):
        list(source.images(source.index_tasks("train")[0]))


def test_batch_truncated_at_any_byte_is_refused(root: Path) -> None:
    whole = batch(root).read_bytes()
    source = find(root)
    for size in range(0, len(whole) - 1, 611):
        batch(root).write_bytes(whole[:size])
        with pytest.raises(SourceError):
            list(source.images(source.index_tasks("train")[0]))


def test_truncated_archive_is_refused(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "packed" / cifar_mnist.ARCHIVE
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root / cifar_mnist.FOLDER, cifar_mnist.FOLDER)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(SourceError, match=says("cannot-read-2", ..., "Download cifar-10-python")):
        find(path.parent)


def test_missing_batch_is_named(root: Path) -> None:
    batch(root, "data_batch_3").unlink()
    source = find(root)
    with pytest.raises(SourceError, match=says("cannot-read-2", ..., "data_batch_3")):
        list(source.images(source.index_tasks("train")[2]))


def test_missing_files_are_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected cifar-10-python\.tar\.gz or cifar-10-batches"):
        find(tmp_path)


def test_published_counts_have_no_problem(root: Path) -> None:
    source = find(root)

    assert source.count_problems("train", [5000] * 10) == []
    assert source.count_problems("validation", [1000] * 9 + [999]) == [
        "validation has 9,999 images, expected 10,000",
        "validation has truck with 999, expected 1,000 images per class",
    ]


def test_archive_must_have_the_published_md5(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "packed" / cifar_mnist.ARCHIVE
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root / cifar_mnist.FOLDER, cifar_mnist.FOLDER)
    (part,) = find(path.parent).parts

    assert (part.name, part.md5) == (cifar_mnist.ARCHIVE, "c58f30108f718f92721af3b95e74349a")


@pytest.mark.parametrize("surplus", [0, 1, 3071])
def test_pixels_are_exactly_those_of_the_images(root: Path, surplus: int) -> None:
    """Otherwise, a batch with lost labels would be read with the labels of other images."""
    data = np.zeros(2 * 3072 + surplus, np.uint8)
    content = {b"data": data, b"labels": [0, 1], b"filenames": [b"a_1.png", b"b_2.png"]}
    batch(root).write_bytes(pickle.dumps(content, protocol=2))
    source = find(root)
    task = source.index_tasks("train")[0]
    if surplus:
        with pytest.raises(SourceError, match=says("expected-data-n-3072-uint8")):
            list(source.images(task))
    else:
        assert len(list(source.images(task))) == 2


@pytest.mark.parametrize(("length", "is_read"), [(255, True), (256, False)])
def test_names_of_files_have_at_most_255_bytes(root: Path, length: int, *, is_read: bool) -> None:
    name = b"a" * (length - 4) + b".png"
    content = {b"data": np.zeros(3072, np.uint8), b"labels": [0], b"filenames": [name]}
    batch(root).write_bytes(pickle.dumps(content, protocol=2))
    source = find(root)
    task = source.index_tasks("train")[0]
    if is_read:
        assert len(list(source.images(task))) == 1
    else:
        with pytest.raises(SourceError, match=says("name-more-bytes", ..., 255)):
            list(source.images(task))


def test_operations_of_a_pickle_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps([1, 2, 3], protocol=2)
    count = len([*pickletools.genops(data)])
    monkeypatch.setattr(cifar_mnist, "_MAX_OPERATIONS", count)
    assert cifar_mnist.loads(data) == [1, 2, 3]
    monkeypatch.setattr(cifar_mnist, "_MAX_OPERATIONS", count - 1)
    with pytest.raises(ValueError, match=says("more-operations")):
        cifar_mnist.loads(data)


@pytest.mark.parametrize(
    "names",
    [
        None,
        (b"cat",) * 10,
        [b"cat%d" % n for n in range(9)],
        [b"cat%d" % n for n in range(11)],
        [b"cat"] * 9 + [9],
        [b"c" * 10_000] * 10,
    ],
    ids=["none", "tuple", "nine", "eleven", "number", "long"],
)
def test_list_of_class_names_has_ten_names(root: Path, names: object) -> None:
    batch(root, "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    with pytest.raises(SourceError, match=r"batches\.meta"):
        find(root)


@pytest.mark.parametrize("data", [{1: 2}, {b"x" * 10_000: 2}], ids=["number", "long"])
def test_names_in_a_pickle_are_short_texts(root: Path, data: object) -> None:
    batch(root).write_bytes(pickle.dumps(data, protocol=2))
    source = find(root)
    with pytest.raises(SourceError, match=r"data_batch_1"):
        list(source.images(source.index_tasks("train")[0]))
