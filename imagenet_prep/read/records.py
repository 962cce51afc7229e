"""Random access to the examples of one split, each proven before it is handed out."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.core import regular_file
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import BadImageError, DataDamagedError, StoreError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import example, jpeg, keys, naming, schema, tfrecord
from imagenet_prep.read.fetch_ahead import Windows
from imagenet_prep.read.gather import gather
from imagenet_prep.read.held import HeldFile
from imagenet_prep.read.index import most_bytes, parse
from imagenet_prep.storage import open_files
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.os_errors import storage_errors

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.manifest import File
    from imagenet_prep.read.cache import NodeCache


# Larger records are read alone. A damaged index may claim 256 MB for each record of a batch.
_TOGETHER_BYTES = 16 << 20
# The memory of so many batches is kept for the next ones.
_FREE = 3


class Records:
    """The examples of one split by number, counted through all shards in record order.

    Safe for threads. `root` is the folder that holds the shards, or some of them.
    """

    def __init__(self, dataset: Dataset, split: str, cache: NodeCache | None = None) -> None:
        """Opens a split, and compares the size of every shard here with the manifest.

        The cache brings the shards of a dataset elsewhere into a folder, one by one.
        """
        self.dataset, self.manifest = dataset, dataset.manifest
        folder = cache or dataset.store.as_folder
        assert folder is not None
        self.root = root = folder.root
        if split not in self.manifest.splits:
            problem = f"no split {split!r}; there are: {', '.join(self.manifest.splits)}"
            if self.manifest.evaluates:
                problem += (
                    f". {self.manifest.edition or 'This'} is a set to evaluate on: train on "
                    "another one, then evaluate on this one by imagenet-prep train --evaluate"
                )
            raise UsageError(f"{dataset.where}: {problem}")
        self.split = split
        self._cache = cache
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
        # Offset and size in bytes of each record, of the shards whose index was read.
        try:
            self._places = np.zeros((len(self), 2), np.int64)
        except MemoryError:
            raise StoreError(
                f"{root}: its manifest says that {split} has {counted(len(self), 'example')}, and "
                "there is not enough memory to note where they are. If it should have fewer, get "
                "the manifest again from where the data set was made."
            ) from None
        self._indexed: set[int] = set()
        # The memory of earlier batches that nobody uses any more.
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=_FREE)
        if cache is not None:
            # The cache's threads refer to it, so it would stay after a reader that nobody closed.
            weakref.finalize(self, cache.stop)
        open_files.allow(len(self.shards))

    def __len__(self) -> int:
        return self._first[-1]

    def follow(
        self,
        windows: Sequence[Sequence[int]],
        beside: Sequence[Callable[[int], File]] = (),
        *,
        alone: bool = False,
    ) -> None:
        """Notes which shards an epoch reads together, one window after the other.

        `beside` returns a file of a column that is read with a shard, by its number; with `alone`,
        only these are read.
        """
        if self._cache is not None:
            ways = [*(() if alone else [self.shards.__getitem__]), *beside]
            items = [[way(shard) for shard in window for way in ways] for window in windows]
            self._cache.follow(Windows(items))

    def fetched(self, file: File) -> HeldFile | None:
        """Returns a file of a column, once a cache has it, verified; None if there is no cache."""
        return self._cache.need(file) if self._cache is not None else None

    @property
    def is_here(self) -> bool:
        """Whether all files are here, and none has to be fetched."""
        return self._cache is None

    def bring_samples(self) -> None:
        """Fetches the tables of samples of all shards, where they lie elsewhere."""
        if self._cache is not None:
            self._cache.bring_samples(self.shards)

    def close(self) -> None:
        """Closes the shards, each once it is not being read."""
        if self._cache is not None:
            self._cache.close()
        with self._lock:
            self._open.clear()

    def open_shard(self, number: int) -> None:
        """Opens the shard of an example, and proves its index, if that was not done yet."""
        shard, _ = self.place(number)
        self._index(shard)
        self._shard(shard)

    def will_need(self, numbers: Sequence[int]) -> None:
        """Tells the kernel which examples come soon."""
        if self._cache is not None:
            return  # shards were just fetched, so they are in memory; and this must not wait
        files, places = self._located(numbers)
        # Advice only: a file system that ignores it is merely slower.
        with contextlib.suppress(OSError):
            for file, (offset, size) in zip(files, places.tolist(), strict=True):
                os.posix_fadvise(file.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def read_many(self, numbers: Sequence[int]) -> list[example.ImageExample | None]:
        """Returns examples as `read` does, but much quicker, and None for some.

        These are damaged, or so unusual that only `read` knows what they are worth.
        """
        # A cache holds no more than it must if its shards are read one after the other.
        if self.manifest.lacks or self._cache is not None:
            return [None] * len(numbers)
        files, places = self._located(numbers)
        offsets, sizes = places.T.copy()
        sizes[sizes > _TOGETHER_BYTES] = 0  # `read` takes one at a time
        data, found = gather([file.descriptor for file in files], offsets, sizes, self._free)
        return [self._image_at(data, *each) if each else None for each in found]

    def _image_at(
        self, data: memoryview, places: example.Places, sides: tuple[int, int]
    ) -> example.ImageExample | None:
        """Returns the example at these places, if `read` would return the same."""
        image = example.decode_at(data, places)
        if image is None or (image.height, image.width) != sides:
            return None
        return image if self._is_of_class(image) else None

    def _located(self, numbers: Sequence[int]) -> tuple[list[HeldFile], npt.NDArray[np.int64]]:
        """Returns the files of records, and [records, 2]: their offsets and sizes in bytes."""
        shards = self.shards_of(numbers).tolist()
        files = {}
        for shard in set(shards):
            self._index(shard)
            files[shard] = self._shard(shard)
        return [files[shard] for shard in shards], self._places[np.asarray(numbers, np.int64)]

    def read(self, number: int) -> example.ImageExample:
        """Returns one example, its bytes proven by both CRCs and its label by its WNID."""
        shard, record = self.place(number)
        offset, size = self._index(shard)[record].tolist()
        held = self._shard(shard)
        try:
            data = os.pread(held.descriptor, size, offset)
        except OSError as error:
            raise StoreError(f"{self.where(number)}: cannot be read: {error.strerror}") from error
        try:
            payload = tfrecord.unframe(data, size)
            missing = self.manifest.lacks
            image = example.decode(payload, missing)
            # TensorFlow and DALI would decode it without a limit, and other formats too.
            frame = jpeg.refuse_bombs(image.encoded)
            if frame is None:
                raise DataDamagedError(
                    f"its image is no JPEG: it starts with {image.encoded[:8]!r}"
                )
            if schema.HEIGHT in missing or schema.WIDTH in missing:
                image = image._replace(height=frame.height, width=frame.width)
            elif (frame.height, frame.width) != (image.height, image.width):
                raise DataDamagedError(
                    f"its image is {frame.width} x {frame.height}, the record says "
                    f"{image.width} x {image.height}"
                )
            self._class_of(image)
        except (DataDamagedError, BadImageError) as error:
            raise DataDamagedError(
                f"{self.where(number)}: {error}. To see all: imagenet-prep verify {self.root}"
            ) from error
        return image

    def key(self, image: example.ImageExample) -> str:
        """Returns the key of an example, as `dataset.keys` says."""
        return keys.key_of(self.split, self.wnids[self._class_of(image)], image.filename)

    def name(self, number: int) -> tuple[int, str]:
        """Returns class index and key of an example, unproven: its image is not read."""
        shard, record = self.place(number)
        offset, size = self._index(shard)[record].tolist()
        held, offset = self._shard(shard), offset + tfrecord.HEAD_BYTES
        try:
            image = example.decode_without_image(
                lambda start, count: os.pread(held.descriptor, count, offset + start),
                size - tfrecord.FRAMING_BYTES,
                self.manifest.lacks,
            )
            return self._class_of(image), self.key(image)
        except OSError as error:
            raise StoreError(f"{self.where(number)}: cannot be read: {error.strerror}") from error
        except DataDamagedError as error:
            raise DataDamagedError(f"{self.where(number)}: {error}") from error

    def numbers_of(self, shard: int) -> range:
        """Returns the numbers of the examples of a shard."""
        return range(*self._first[shard : shard + 2])

    def located(self, number: int) -> Json:
        """Returns shard, record, byte offset and size of an example."""
        shard, record = self.place(number)
        offset, size = self._index(shard)[record].tolist()
        return {
            "shard": self.shards[shard].name,
            "record": record,
            "offset": offset,
            "size": size,
        }

    def where(self, number: int) -> str:
        """Returns an example's shard, record and byte offset, for errors."""
        at = self.located(number)
        return f"{self.root / at['shard']}: record {at['record']} at byte {at['offset']:,}"

    def _class_of(self, image: example.ImageExample) -> int:
        """Returns the class index of an example; DataDamagedError where its WNID is another's."""
        if not self._is_of_class(image):
            raise DataDamagedError(
                f"label {image.stored_label} and synset {image.wnid} do not belong together"
            )
        return image.stored_label - self.manifest.label_offset

    def _is_of_class(self, image: example.ImageExample) -> bool:
        """Returns whether the label of an example is there, and its WNID that class's."""
        class_index = image.stored_label - self.manifest.label_offset
        if not 0 <= class_index < len(self.wnids):
            return False
        return self.wnids[class_index] == image.wnid or schema.SYNSET in self.manifest.lacks

    def shards_of(self, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        """Returns the number of the shard of each example."""
        return np.searchsorted(self._starts, numbers, "right") - 1

    def place(self, number: int) -> tuple[int, int]:
        """Returns (shard, record) of an example."""
        shard = bisect.bisect_right(self._first, number) - 1
        return shard, number - self._first[shard]

    def _check_sizes(self) -> None:
        store, problems = LocalStore(self.root), []
        for shard in self.placement.shards(self.manifest, self.split):
            for file in reversed(shard.files):
                size = store.size(file.name)
                if size is None:
                    problems.append(f"{file.name} is missing")
                elif size != file.num_bytes:
                    problems.append(f"{file.name} has {size:,} bytes, expected {file.num_bytes:,}")
        if problems:
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise DataDamagedError(
                f"{self.root}: {'; '.join(problems[:5])}{more}. Copy these files again, or run the "
                "same imagenet-prep prepare again to make them anew."
            )

    def _shard(self, shard: int) -> HeldFile:
        if self._cache is not None:
            return self._cache.need(self.shards[shard])
        with self._lock:
            if shard not in self._open:
                path = self.root / self.shards[shard].name
                with storage_errors("open", path):
                    self._open[shard] = HeldFile(path)
            return self._open[shard]

    def _index(self, shard: int) -> npt.NDArray[np.int64]:
        """Returns [records, 2]: offset and size in bytes of each record of a shard."""
        index = self._places[self._first[shard] : self._first[shard + 1]]
        if shard not in self._indexed:
            index[:] = parse(self._index_bytes(shard), self.shards[shard], self.root)
            self._indexed.add(shard)
        return index

    def _index_bytes(self, shard: int) -> bytes:
        there = self.shards[shard]
        path = self.root / naming.index_name(there.name)
        most = most_bytes(there)
        held = self._shard(shard)  # while it is held, a cache does not remove the index
        with storage_errors("read", path):
            try:
                return _head(path, most)
            except FileNotFoundError:
                if self._cache is None:
                    raise
            # Somebody removed files of the cache, this shard among them perhaps.
            self._cache.forget(there.name)
            held = self._shard(shard)
            content = _head(path, most)
        del held
        return content


def _head(path: Path, most: int) -> bytes:
    """Returns up to `most` bytes of a file."""
    with open(regular_file.open_to_read(path), "rb") as file:
        return file.read(most)
