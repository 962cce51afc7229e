"""Reads CIFAR-10 from its pickles, and MNIST and Fashion-MNIST from their IDX files.

Python's unpickler calls every function that a file names. It also hashes keys: a file of 136 bytes
can create a tuple whose hash visits 2^64 tuples, in C code that no signal interrupts. This module
supports only the operations in CIFAR-10's batches, accepts only text as keys, and calls no function
that a file names.

An IDX file has a magic number (type and number of dimensions), each dimension as a big-endian
32-bit number, and the items.
"""

from __future__ import annotations

import hashlib
import math
import pickletools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList, Edition
from imagenet_prep.sources import containers, labels, published, source
from imagenet_prep.sources.scan import scan
from imagenet_prep.sources.source import Encode, IndexTask, PackedImage
from imagenet_prep.storage.local_file import require_disk

# A batch has four operations per image. Each can create an object of up to 100 bytes.
_MAX_OPERATIONS = 1_000_000


class Array:
    """The bytes of a pickled uint8 array, in C order."""

    data = b""


class _Type:
    """The type of an array's items."""

    def __init__(self, name: Any) -> None:
        self.is_uint8 = name in ("u1", b"u1")


def loads(data: bytes) -> Any:
    """Returns the pickled value: dicts, lists, tuples, text, bytes, numbers and arrays."""
    return _PickleReader(len(data)).run(data)


class _PickleReader:
    """Runs the operations of a pickle; _OPERATIONS maps each to a method."""

    def __init__(self, num_bytes: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        # Limits the text to encode, because a pickle can encode the same text repeatedly.
        self._remaining_bytes = num_bytes

    def run(self, data: bytes) -> Any:
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MAX_OPERATIONS:
                raise ValueError(f"it has more than {_MAX_OPERATIONS:,} operations")
            act = _OPERATIONS.get(operation.name)
            if act is None:
                raise ValueError(f"it has the unsupported operation {operation.name}")
            act(self, argument)
        return self._stack.pop()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop(self, count: int) -> list[Any]:
        return [self._stack.pop() for _ in range(count)][::-1]

    def pop_marked(self) -> list[Any]:
        return self.pop(len(self._stack) - self._marks.pop())

    def put(self, place: int | None) -> None:
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def get(self, place: int) -> None:
        self.push(self._memo[place])

    def append(self, items: Sequence[Any]) -> None:
        self._top(list).extend(items)

    def set(self, items: Sequence[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise TypeError(f"a key is a {type(key).__name__}, expected text")
            target[key] = value

    def name(self, name: str) -> None:
        if name not in _NAMES:
            raise ValueError(f"it requests {name.replace(' ', '.', 1)[:128]}")
        self.push(_NAMES[name])

    def reduce(self) -> None:
        function, arguments = self.pop(2)
        if function is Array:
            self.push(Array())
        elif function is _Type:
            self.push(_Type(arguments[0]))
        elif function is str.encode:
            # In pickles for Python 2, Python 3 writes bytes as a call of encode.
            self._remaining_bytes -= len(arguments[0])
            if self._remaining_bytes < 0:
                raise ValueError("its encoded text is larger than the file")
            self.push(str.encode(arguments[0], "latin-1"))
        else:
            raise TypeError(f"it calls a {type(function).__name__}")

    def build(self) -> None:
        (state,) = self.pop(1)
        built = self._stack[-1]
        if isinstance(built, Array):
            # (version, shape, type, is_fortran, bytes) from numpy's array.__reduce__.
            _, _, kind, is_fortran, data = state
            if not kind.is_uint8 or is_fortran or not isinstance(data, bytes):
                raise ValueError("it holds an array that is not uint8 in C order")
            built.data = data
        elif not isinstance(built, _Type):
            raise TypeError(f"it sets the state of a {type(built).__name__}")

    def _top(self, kind: type) -> Any:
        top = self._stack[-1]
        if not isinstance(top, kind):
            raise TypeError(f"a {type(top).__name__}, expected a {kind.__name__}")
        return top


# Stand-ins for the functions named in pickles of arrays and bytes. No numpy function is called.
_NAMES: dict[str, Any] = {
    "numpy.core.multiarray _reconstruct": Array,
    "numpy._core.multiarray _reconstruct": Array,
    "numpy ndarray": None,
    "numpy dtype": _Type,
    "_codecs encode": str.encode,
}

# Methods by the operation's name in pickletools, called with the operand in the file.
_OPERATIONS: dict[str, Callable[[_PickleReader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _reader, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"), _PickleReader.push),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"), _PickleReader.push),
    # Python 2 text can be any bytes; pickletools decodes it as Latin-1.
    **dict.fromkeys(
        ("BINSTRING", "SHORT_BINSTRING"), lambda reader, text: reader.push(text.encode("latin-1"))
    ),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "MARK": lambda reader, _: reader.mark(),
    "APPEND": lambda reader, _: reader.append(reader.pop(1)),
    "APPENDS": lambda reader, _: reader.append(reader.pop_marked()),
    "SETITEM": lambda reader, _: reader.set(reader.pop(2)),
    "SETITEMS": lambda reader, _: reader.set(reader.pop_marked()),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.pop_marked())),
    "TUPLE1": lambda reader, _: reader.push(tuple(reader.pop(1))),
    "TUPLE2": lambda reader, _: reader.push(tuple(reader.pop(2))),
    "TUPLE3": lambda reader, _: reader.push(tuple(reader.pop(3))),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _PickleReader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _PickleReader.get),
    "GLOBAL": _PickleReader.name,
    "STACK_GLOBAL": lambda reader, _: reader.name(" ".join(reader.pop(2))),
    "REDUCE": lambda reader, _: reader.reduce(),
    "BUILD": lambda reader, _: reader.build(),
}


ARCHIVE = published.CIFAR10.name
FOLDER = "cifar-10-batches-py"
_CIFAR_ADVICE = f"Download {ARCHIVE} again (md5 {published.CIFAR10.md5})."

BATCHES = {
    schema.TRAIN: tuple(f"data_batch_{number}" for number in range(1, 6)),
    schema.VALIDATION: ("test_batch",),
}
_META = "batches.meta"
_CIFAR_SIDE = 32
_PIXEL_BYTES = 3 * _CIFAR_SIDE * _CIFAR_SIDE
_BATCH_BYTES = 10_000 * _PIXEL_BYTES
# A batch has 31 MB; the archive unpacks to 186 MB.
_MAX_BATCH_BYTES = 64 << 20
_MAX_UNPACKED_BYTES = 512 << 20
_MAX_NAME_BYTES = 255


@dataclass(frozen=True)
class Cifar10(source.Pixels):
    """CIFAR-10 at `path`, which is the archive or the extracted folder."""

    name = "cifar10"
    edition = Edition(
        "CIFAR-10",
        10,
        {schema.TRAIN: 50_000, schema.VALIDATION: 10_000},
        {schema.TRAIN: (5000, 5000), schema.VALIDATION: (1000, 1000)},
    )
    path: Path

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of a batch as image files; raises SourceError for a damaged batch."""
        import numpy as np

        where = f"{self.path}: {task.name}"
        batch = _load(_read_batch(self.path, task.name), where)
        pixels, classes, names = (batch.get(key) for key in ("data", "labels", "filenames"))
        if (
            not isinstance(pixels, Array)
            or not isinstance(classes, list)
            or not isinstance(names, list)
            or not all(isinstance(name, str | bytes) for name in names)
            or not len(classes) == len(names) == len(pixels.data) / _PIXEL_BYTES
        ):
            raise SourceError(
                f"{where}: expected data [N, 3072] uint8, N labels and N filenames. {_CIFAR_ADVICE}"
            )
        for row, (label, name) in enumerate(zip(classes, names, strict=True)):
            if not isinstance(label, int) or not 0 <= label < len(self.classes.wnids):
                raise SourceError(
                    f"{where}: row {row:,}: label {label!r}, expected 0 to 9. {_CIFAR_ADVICE}"
                )
            # File names may repeat, so the key includes the batch and the row.
            stem = _text(name, where).rpartition("/")[2].rpartition(".")[0]
            base = f"{task.name}_{row:05d}_{stem}.jpg"
            planes = np.frombuffer(pixels.data, np.uint8, _PIXEL_BYTES, row * _PIXEL_BYTES)
            image = planes.reshape(3, _CIFAR_SIDE, _CIFAR_SIDE).transpose(1, 2, 0)
            encoded = self.encode(np.ascontiguousarray(image))
            yield PackedImage(f"{self.classes.wnids[label]}/{base}", label, encoded)


def locate(root: Path) -> Path | None:
    """Returns the path of the archive or extracted folder at or in `root`, or None."""
    for path in (root, root / ARCHIVE, root / FOLDER):
        if (path / _META).is_file() or (path.is_file() and path.name == ARCHIVE):
            return path
    return None


def find_cifar10(root: Path, encode: Encode, encoding: str) -> Cifar10:
    """Returns the source; raises UsageError if `root` does not contain CIFAR-10."""
    path = locate(root)
    if path is None:
        raise UsageError(f"--source {root}: expected {ARCHIVE} or {FOLDER}/. Download CIFAR-10.")
    where = f"{path}: {_META}"
    names = _load(_read_batch(path, _META), where).get("label_names")
    if not isinstance(names, list) or len(names) != 10:
        raise SourceError(f"{where}: label_names is not a list of ten names. {_CIFAR_ADVICE}")
    classes = labels.classes_called([_text(name, where) for name in names], where)
    if path.is_dir():
        part = source.folder_part(path.name, [("", scan(path))])
    else:
        part = source.file_part(path, published.CIFAR10.md5)
    tasks: list[IndexTask] = []
    for split, batches in BATCHES.items():
        tasks += [IndexTask(name, split, path.name, num_bytes=_BATCH_BYTES) for name in batches]
    return Cifar10(classes, (part,), encode, encoding, path, tasks=tuple(tasks))


def _read_batch(path: Path, name: str) -> bytes:
    (data,) = containers.small_files(
        path,
        [name],
        max_bytes=_MAX_BATCH_BYTES,
        max_unpacked_bytes=_MAX_UNPACKED_BYTES,
        advice=_CIFAR_ADVICE,
    )
    return data


def _load(data: bytes, where: str) -> dict[str, Any]:
    """Returns the dict in a pickle, with keys as text; raises SourceError for anything else."""
    try:
        items = loads(data).items()
    except Exception as error:
        # A damaged pickle can raise any exception.
        require_disk(where, error)
        raise SourceError(
            f"{where}: is not a pickle of CIFAR-10: {error}. None of its code was run. "
            f"{_CIFAR_ADVICE}"
        ) from error
    return {_text(key, where): value for key, value in items}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str | bytes):
        raise SourceError(f"{where}: a {type(value).__name__}, expected a name. {_CIFAR_ADVICE}")
    if len(value) > _MAX_NAME_BYTES:
        raise SourceError(f"{where}: a name has more than {_MAX_NAME_BYTES} bytes. {_CIFAR_ADVICE}")
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


_PREFIX = {schema.TRAIN: "train", schema.VALIDATION: "t10k"}
_IMAGES = "images-idx3-ubyte"
_LABELS = "labels-idx1-ubyte"
_MNIST_SIDE = 28
_NUM_CLASSES = 10
# Average size of a digit as a JPEG of quality 100. Its pixels take 784 bytes.
_ENCODED_BYTES = 1_100
_MAGIC = 0x0800  # type 8 is uint8; the number of dimensions is added
_MAX_EXAMPLES = 100_000  # limits the pixels in memory to 78 MB
_COUNTS = {schema.TRAIN: 60_000, schema.VALIDATION: 10_000}
_MNIST_ADVICE = "Download it again."


_DIGITS = tuple("0123456789")
# The class names are from zalandoresearch/fashion-mnist. The md5s are of the uncompressed files, as
# Debian's package dataset-fashion-mnist compresses them again.
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FASHION_MD5S = {
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
}


@dataclass(frozen=True)
class Mnist(source.Pixels):
    """A source of IDX files: the images and the labels of each split."""

    files: dict[str, tuple[Path, Path]]
    is_fashion: bool

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return "fashion_mnist" if self.is_fashion else "mnist"

    @property
    def edition(self) -> Edition:
        """The edition, whose counts are required."""
        return Edition("Fashion-MNIST" if self.is_fashion else "MNIST", _NUM_CLASSES, _COUNTS)

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of a split as image files; raises SourceError if a file is damaged."""
        import numpy as np

        images, truth = self.files[task.split]
        pixels = _read_idx(images, (_MNIST_SIDE, _MNIST_SIDE))
        classes = _read_idx(truth, ())
        planes = np.frombuffer(pixels, np.uint8).reshape(-1, _MNIST_SIDE, _MNIST_SIDE)
        if len(planes) != len(classes):
            raise SourceError(
                f"{truth}: {counted(len(classes), 'label')}, expected {len(planes):,}, one "
                f"per image in {images.name}. Download both again."
            )
        for row, (plane, label) in enumerate(zip(planes, classes, strict=True)):
            if label >= _NUM_CLASSES:
                raise SourceError(
                    f"{truth}: label {row:,} is {label}, expected 0 to 9. {_MNIST_ADVICE}"
                )
            key = f"{self.classes.wnids[label]}/{_PREFIX[task.split]}_{row:05d}.jpg"
            yield PackedImage(key, label, self.encode(np.stack([plane] * 3, axis=-1)))


def is_there(root: Path) -> bool:
    """Returns whether a folder contains MNIST's train or validation images."""
    return any(_locate(root, f"{prefix}-{_IMAGES}") for prefix in _PREFIX.values())


def find_mnist(root: Path, splits: Sequence[str], encode: Encode, encoding: str) -> Mnist:
    """Returns the source of `splits`; raises UsageError if a file is missing."""
    files: dict[str, tuple[Path, Path]] = {}
    missing: list[str] = []
    for split in splits:
        images = _locate(root, f"{_PREFIX[split]}-{_IMAGES}")
        truth = _locate(root, f"{_PREFIX[split]}-{_LABELS}")
        if images is None:
            missing.append(f"{_PREFIX[split]}-{_IMAGES}")
        if truth is None:
            missing.append(f"{_PREFIX[split]}-{_LABELS}")
        if images is not None and truth is not None:
            files[split] = images, truth
    if missing:
        raise UsageError(f"--source {root}: has no {' and no '.join(missing)}, compressed or not.")
    found = [*chain.from_iterable(files.values())]
    # The smallest file is read first, so that MNIST's images are not hashed.
    by_size = sorted(found, key=lambda path: path.stat().st_size)
    is_fashion = all(_md5(path) in _FASHION_MD5S for path in by_size)
    words = _FASHION if is_fashion else _DIGITS
    # A class ID is part of a path.
    classes = ClassList(tuple(re.sub("[ /]", "_", name) for name in words), words)
    parts = tuple(map(source.file_part, found))
    sizes = {split: _ENCODED_BYTES * number for split, number in _COUNTS.items()}
    tasks = tuple(
        IndexTask(f"{_PREFIX[split]}-{_IMAGES}", split, path.name, num_bytes=sizes[split])
        for split, (path, _) in files.items()
    )
    return Mnist(classes, parts, encode, encoding, files, is_fashion, tasks=tasks)


def _md5(path: Path) -> str:
    """Returns the md5 of a file's uncompressed content."""
    with containers.errors(path, _MNIST_ADVICE), containers.unpacked(path) as stream:
        data = stream.read(_MAX_EXAMPLES * _MNIST_SIDE * _MNIST_SIDE)
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _locate(root: Path, name: str) -> Path | None:
    return next((p for p in (root / name, root / f"{name}.gz") if p.is_file()), None)


def _read_idx(path: Path, shape: tuple[int, ...]) -> bytes:
    """Returns the items of an IDX file of uint8 [N, *shape]; raises SourceError if invalid."""
    header = struct.Struct(f">{2 + len(shape)}I")
    expected = f"expected an IDX file of uint8 [{', '.join(['N', *map(str, shape)])}]"
    with containers.errors(path, _MNIST_ADVICE), containers.unpacked(path) as stream:
        head = stream.read(header.size)
        if len(head) < header.size:
            raise SourceError(f"{path}: has {len(head)} bytes, {expected}. {_MNIST_ADVICE}")
        magic, number, *sides = header.unpack(head)
        if magic != _MAGIC + 1 + len(shape) or tuple(sides) != shape:
            raise SourceError(
                f"{path}: begins with {head.hex(' ', 4)}, {expected}. {_MNIST_ADVICE}"
            )
        if number > _MAX_EXAMPLES:
            raise SourceError(
                f"{path}: {number:,} items, expected at most {_MAX_EXAMPLES:,}. {_MNIST_ADVICE}"
            )
        num_bytes = number * math.prod(shape)
        # Reading one more byte detects surplus data and makes gzip verify its checksum.
        data = stream.read(num_bytes + 1)
    if len(data) != num_bytes:
        size = "more" if len(data) > num_bytes else f"{len(data):,}"
        raise SourceError(
            f"{path}: expected {num_bytes:,} bytes of items, found {size}. {_MNIST_ADVICE}"
        )
    return data
