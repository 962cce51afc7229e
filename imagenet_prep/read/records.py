"""Random access to the examples of one split, each of which is verified before it is returned.

`Records` reads examples by number. It reads, verifies and parses the records of a batch with one
call of gather.c (`gather`).

`parse` reads a shard's index, which has the offset and size of each record, and checks it.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
import os
import shlex
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import imports, small_files
from imagenet_prep.core.errors import BadImageError, DataDamagedError, StoreError, UsageError, some
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import example, jpeg, keys, record_files, schema
from imagenet_prep.dataset.example import Places
from imagenet_prep.dataset.jpeg import MAX_PIXELS
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.read.batch import leased
from imagenet_prep.read.cache import HeldFile
from imagenet_prep.storage import local_file
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.manifest import DatasetFile
    from imagenet_prep.read.cache import NodeCache


# For each record, gather.c writes the fields of `Places`, then height and width of the image.
_NUM_PLACES = len(Places._fields)
_NUM_FOUND = _NUM_PLACES + 2
_LIBRARY = Path(__file__).with_name("_gather.so")
_POINTER = ctypes.c_void_p
_TYPES = (ctypes.c_int, ctypes.c_int, *[_POINTER] * 3, ctypes.c_int64, *[_POINTER] * 2)


def gather(
    descriptors: Sequence[int],
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    free: deque[npt.NDArray[Any]],
) -> tuple[memoryview, list[tuple[Places, tuple[int, int]] | None]]:
    """Reads records into memory from `free`, given the file, offset and size of each record.

    Returns the bytes of all records. For each record, it also returns the offsets of its parts and
    the (height, width) of its JPEG, or None if the record is damaged or not in the format of
    `prepare`. All are None if gather.c was not compiled or the processor has no CRC32C instruction.
    """
    library = imports.find(_LIBRARY, gather=_TYPES)
    if library is None:
        return memoryview(b""), [None] * len(descriptors)
    batch = leased(int(sizes.sum()), free)
    rows = np.empty((len(descriptors), _NUM_FOUND), np.int64)
    files = np.array(descriptors, np.int32)
    arrays = (array.ctypes.data for array in (files, offsets, sizes))
    done = library.gather(len(files), *arrays, MAX_PIXELS, batch.ctypes.data, rows.ctypes.data)
    if not done:
        return memoryview(b""), [None] * len(descriptors)
    return batch.data, [
        (Places(*row[:_NUM_PLACES]), (row[-2], row[-1])) if row[0] >= 0 else None
        for row in rows.tolist()
    ]


# Numbers of 18 digits fit into 63 bits. A line has two numbers, a space and a newline.
_DIGITS = 18
_LINE_BYTES = 2 * _DIGITS + 2


def most_bytes(shard: Shard) -> int:
    """Returns how many bytes of an index to read: one more than the longest valid index has."""
    return min(_LINE_BYTES * shard.examples, shard.index_bytes) + 1


def parse(content: bytes, shard: Shard, root: Path) -> npt.NDArray[np.int64]:
    """Returns [records, 2]: offset and size in bytes of each record; errors name `root`."""
    path = root / schema.index_name(shard.name)
    words = content.split()
    try:
        # Check for digits, since NumPy also accepts words like "+1" and "1_000".
        odd = next((w for w in words if not w.isdigit() or len(w) > _DIGITS), None)
        if odd is not None:
            raise ValueError(f"{odd[:32]!r} is not a byte offset")
        numbers = np.array(words, np.int64)
    except ValueError as error:
        raise DataDamagedError(f"{path}: cannot be read: {error}") from error
    index = numbers.reshape(-1, 2) if len(numbers) == 2 * shard.examples else None
    if index is not None and len(index):
        stops = index.sum(axis=1)
        starts = np.concatenate(([0], stops[:-1]))
        payloads = index[:, 1] - record_files.FRAMING_BYTES
        possible = ((payloads >= 0) & (payloads <= record_files.MAX_PAYLOAD_BYTES)).all()
        if possible and (index[:, 0] == starts).all() and stops[-1] == shard.num_bytes:
            return index
    raise DataDamagedError(
        f"{path}: does not match {shard.name}, which has {shard.examples:,} records and "
        f"{shard.num_bytes:,} bytes. Run imagenet-prep verify "
        f"{shlex.quote(str(root))}"
    )


# Larger records are read one by one, because a damaged index may claim 256 MB for each record.
_TOGETHER_BYTES = 16 << 20
_FREE = 3  # buffers of one batch each that are kept for reuse


class Records:
    """Reads examples of one split by number, counted through all shards. Thread-safe."""

    def __init__(self, dataset: Dataset, split: str, cache: NodeCache | None = None) -> None:
        """Checks the sizes of local shards; `cache` fetches the shards of a remote dataset."""
        self.dataset, self.manifest = dataset, dataset.manifest
        folder = cache or dataset.store.as_folder
        assert folder is not None
        self.root = root = folder.root
        if split not in self.manifest.splits:
            problem = f"no split {split!r}; the dataset has {', '.join(self.manifest.splits)}"
            if self.manifest.evaluates:
                problem += (
                    f". {self.manifest.edition or 'This'} is an evaluation set. To evaluate a run "
                    "on this set, run imagenet-prep train --data-dir SET --log-dir RUN --evaluate "
                    f"--also {shlex.quote(dataset.where)}, with the dataset of the run as SET"
                )
            raise UsageError(f"{dataset.where}: {problem}")
        self.split = split
        self.cache = cache
        self.shards = self.manifest.splits[split].shards
        self.placement = dataset.placement
        self.examples_per_shard = tuple(shard.examples for shard in self.shards)
        self._first = list(itertools.accumulate(self.examples_per_shard, initial=0))
        self._starts = np.array(self._first)
        self.wnids = dataset.classes.wnids
        if cache is None:
            self._check_sizes()
        self._lock = threading.Lock()
        self._open: dict[int, HeldFile] = {}
        # Offset and size of each record in bytes; zeros until the index of its shard is read.
        try:
            self._places = np.zeros((len(self), 2), np.int64)
        except MemoryError:
            raise StoreError(
                f"{root}: not enough memory for the positions of the "
                f"{counted(len(self), 'example')} of {split}. If this number in the manifest is "
                "wrong, copy the manifest again."
            ) from None
        self._indexed: set[int] = set()
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=_FREE)
        if cache is not None:
            # The cache's threads keep it alive, so stop it if the reader is not closed.
            weakref.finalize(self, cache.stop)
        local_file.allow_open_files(len(self.shards))

    def __len__(self) -> int:
        return self._first[-1]

    def follow(
        self,
        windows: Sequence[Sequence[int]],
        columns: Sequence[Callable[[int], DatasetFile]] = (),
        *,
        only_columns: bool = False,
    ) -> None:
        """Tells the cache which shards and column files an epoch reads, window by window."""
        if self.cache is not None:
            kinds = [*(() if only_columns else [self.shards.__getitem__]), *columns]
            items = []
            for window in windows:
                files = ([kind(number) for kind in kinds] for number in window)
                items.append([*itertools.chain.from_iterable(files)])
            self.cache.follow(items)

    def close(self) -> None:
        """Closes all shards. A shard that is being read is closed after the read."""
        if self.cache is not None:
            self.cache.close()
        with self._lock:
            self._open.clear()

    def open_shard(self, number: int) -> None:
        """Opens the shard of an example and checks its index, unless that was done before."""
        shard, _ = self.place(number)
        self._index(shard)
        self._shard(shard)

    def will_need(self, numbers: Sequence[int]) -> None:
        """Tells the kernel which examples will be read soon."""
        if self.cache is not None:
            return  # files of the cache were just written, so the kernel still has them in memory
        files, places = self._located(numbers)
        # A file system may not support this advice; reading then is slower.
        with contextlib.suppress(OSError):
            for file, (offset, size) in zip(files, places.tolist(), strict=True):
                os.posix_fadvise(file.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def read_many(self, numbers: Sequence[int]) -> list[example.ImageExample | None]:
        """Reads examples much faster than `read`; returns None for each that needs `read`."""
        # With a cache, read one example at a time: the cache then has to keep fewer shards.
        if self.manifest.lacks or self.cache is not None:
            return [None] * len(numbers)
        files, places = self._located(numbers)
        offsets, sizes = places.T.copy()
        sizes[sizes > _TOGETHER_BYTES] = 0  # so that `gather` skips these records
        data, parts = gather([file.descriptor for file in files], offsets, sizes, self._free)
        return [self._image_at(data, *part) if part else None for part in parts]

    def _image_at(
        self, data: memoryview, places: example.Places, sides: tuple[int, int]
    ) -> example.ImageExample | None:
        """Returns the example whose parts are at `places`, or None if `read` must check it."""
        image = example.decode_at(data, places)
        fits = image is not None and (image.height, image.width) == sides
        return image if image and fits and self._is_of_class(image) else None

    def _located(self, numbers: Sequence[int]) -> tuple[list[HeldFile], npt.NDArray[np.int64]]:
        """Returns the files of records, and their offsets and sizes in bytes [records, 2]."""
        shards = self.shards_of(numbers).tolist()
        files = {}
        for shard in set(shards):
            self._index(shard)
            files[shard] = self._shard(shard)
        return [files[shard] for shard in shards], self._places[np.asarray(numbers, np.int64)]

    def num_bytes(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> int:
        """Returns the size of these records together, from the indexes of their shards."""
        for shard in np.unique(self.shards_of(numbers)).tolist():
            self._index(shard)
        return int(self._places[np.asarray(numbers, np.int64), 1].sum())

    def read(self, number: int) -> example.ImageExample:
        """Returns one example after checking both CRCs, the image's size, and label and WNID."""
        file, offset, size = self._located_one(number)
        missing = self.manifest.lacks
        advice = f". To list all damage: imagenet-prep verify {shlex.quote(str(self.root))}"
        with self._named(number, advice):
            data = os.pread(file.descriptor, size, offset)
            image = example.decode(record_files.unframe(data, size), missing)
            # Check size and format here, since TensorFlow and DALI decode any size and format.
            frame = jpeg.refuse_bombs(image.encoded)
            if frame is None:
                raise DataDamagedError(
                    f"its image is not a JPEG: it starts with {image.encoded[:8]!r}"
                )
            if schema.HEIGHT in missing or schema.WIDTH in missing:
                image = image._replace(height=frame.height, width=frame.width)
            elif (frame.height, frame.width) != (image.height, image.width):
                raise DataDamagedError(
                    f"its image is {frame.width} x {frame.height}, but its record says "
                    f"{image.width} x {image.height}"
                )
            self._class_of(image)
        return image

    def key(self, image: example.ImageExample) -> str:
        """Returns the key of an example; see `dataset.keys`."""
        return keys.key_of(self.split, self.wnids[self._class_of(image)], image.filename)

    def name(self, number: int) -> tuple[int, str]:
        """Returns class index and key of an example without reading its image or checking CRCs."""
        file, offset, size = self._located_one(number)
        offset += record_files.HEAD_BYTES
        with self._named(number):
            image = example.decode_without_image(
                lambda start, count: os.pread(file.descriptor, count, offset + start),
                size - record_files.FRAMING_BYTES,
                self.manifest.lacks,
            )
            return self._class_of(image), self.key(image)

    def _located_one(self, number: int) -> tuple[HeldFile, int, int]:
        """Returns the file of a record, and its offset and size in bytes."""
        shard, record = self.place(number)
        offset, size = self._index(shard)[record].tolist()
        return self._shard(shard), offset, size

    @contextlib.contextmanager
    def _named(self, number: int, advice: str = "") -> Iterator[None]:
        """Adds the location of an example, and `advice`, to errors."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.where(number)}: cannot be read: {error.strerror}") from error
        except (DataDamagedError, BadImageError) as error:
            raise DataDamagedError(f"{self.where(number)}: {error}{advice}") from error

    def numbers_of(self, shard: int) -> range:
        """Returns the numbers of the examples of a shard."""
        return range(*self._first[shard : shard + 2])

    def located(self, number: int) -> Json:
        """Returns shard, record, byte offset and size of an example."""
        shard, record = self.place(number)
        offset, size = self._index(shard)[record].tolist()
        name = self.shards[shard].name
        return {"shard": name, "record": record, "offset": offset, "size": size}

    def where(self, number: int) -> str:
        """Returns an example's shard, record and byte offset for error messages."""
        at = self.located(number)
        return f"{self.root / at['shard']}: record {at['record']} at byte {at['offset']:,}"

    def _class_of(self, image: example.ImageExample) -> int:
        """Returns the class index; raises DataDamagedError if the label is not the WNID's class."""
        if not self._is_of_class(image):
            raise DataDamagedError(
                f"label {image.stored_label} is not the class of synset {image.wnid}"
            )
        return image.stored_label - self.manifest.label_offset

    def _is_of_class(self, image: example.ImageExample) -> bool:
        class_index = image.stored_label - self.manifest.label_offset
        if not 0 <= class_index < len(self.wnids):
            return False
        return self.wnids[class_index] == image.wnid or schema.SYNSET in self.manifest.lacks

    def shards_of(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the number of each example's shard."""
        return np.searchsorted(self._starts, numbers, "right") - 1

    def place(self, number: int) -> tuple[int, int]:
        """Returns the numbers of an example's shard and of its record in the shard."""
        shard = bisect.bisect_right(self._first, number) - 1
        return shard, number - self._first[shard]

    def _check_sizes(self) -> None:
        store = LocalStore(self.root)
        problems = []
        for shard in self.placement.shards(self.manifest, self.split):
            for file in reversed(shard.files):
                size = store.size(file.name)
                if size is None:
                    problems.append(f"{file.name} is missing")
                elif size != file.num_bytes:
                    problems.append(f"{file.name} has {size:,} bytes instead of {file.num_bytes:,}")
        if problems:
            raise DataDamagedError(
                f"{self.root}: {some(problems)}. Copy these files again, or run "
                "the same imagenet-prep prepare command again."
            )

    def _shard(self, shard: int) -> HeldFile:
        if self.cache is not None:
            return self.cache.need(self.shards[shard])
        with self._lock:
            if shard not in self._open:
                path = self.root / self.shards[shard].name
                with storage_errors("open", path):
                    self._open[shard] = HeldFile(path)
            return self._open[shard]

    def _index(self, shard: int) -> npt.NDArray[np.int64]:
        index = self._places[self._first[shard] : self._first[shard + 1]]
        if shard not in self._indexed:
            index[:] = parse(self._index_bytes(shard), self.shards[shard], self.root)
            self._indexed.add(shard)
        return index

    def _index_bytes(self, shard: int) -> bytes:
        name = self.shards[shard].name
        most = most_bytes(self.shards[shard])
        path = self.root / schema.index_name(name)
        file = self._shard(shard)  # while a shard is open, a cache does not remove its index
        with storage_errors("read", path):
            try:
                return _head(path, most)
            except FileNotFoundError:
                if self.cache is None:
                    raise
            # Someone has removed files of the cache, so fetch this shard again.
            self.cache.forget(name)
            file = self._shard(shard)
            content = _head(path, most)
        del file
        return content


def _head(path: Path, most: int) -> bytes:
    with open(small_files.open_to_read(path), "rb") as file:
        return file.read(most)
