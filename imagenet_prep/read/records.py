"""Random access to the examples of one split; each is verified before it is returned."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.core import regular_file
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import BadImageError, DataDamagedError, StoreError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import example, jpeg, keys, naming, schema, tfrecord
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


# Larger records are read one by one: a damaged index may claim 256 MB per record of a batch.
_TOGETHER_BYTES = 16 << 20
_FREE = 3  # batches of memory kept for reuse


class Records:
    """The examples of one split, numbered through all shards in record order. Thread-safe."""

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
                    f". {self.manifest.edition or 'This'} is an evaluation set: train on a "
                    "different dataset, then run imagenet-prep train --evaluate on this one"
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
        # Offset and size in bytes of each record, zeros until the index of its shard is read.
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
            # The cache's threads keep it alive, so it must be stopped if no one closes the reader.
            weakref.finalize(self, cache.stop)
        open_files.allow(len(self.shards))

    def __len__(self) -> int:
        return self._first[-1]

    def follow(
        self,
        windows: Sequence[Sequence[int]],
        columns: Sequence[Callable[[int], File]] = (),
        *,
        only_columns: bool = False,
    ) -> None:
        """Sets the windows of an epoch: its shards (unless `only_columns`) and files of columns."""
        # Each function in `columns` returns the file of a column for a shard number.
        if self.cache is not None:
            kinds = [*(() if only_columns else [self.shards.__getitem__]), *columns]
            self.cache.follow([[of(n) for n in window for of in kinds] for window in windows])

    def close(self) -> None:
        """Closes each shard as soon as it is not being read."""
        if self.cache is not None:
            self.cache.close()
        with self._lock:
            self._open.clear()

    def open_shard(self, number: int) -> None:
        """Opens the shard of an example and verifies its index, if not done yet."""
        shard, _ = self.place(number)
        self._index(shard)
        self._shard(shard)

    def will_need(self, numbers: Sequence[int]) -> None:
        """Advises the kernel which examples will be read soon."""
        if self.cache is not None:
            return  # just fetched, so in memory; and this must not wait
        files, places = self._located(numbers)
        # This is only advice: a file system that ignores it is merely slower.
        with contextlib.suppress(OSError):
            for file, (offset, size) in zip(files, places.tolist(), strict=True):
                os.posix_fadvise(file.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def read_many(self, numbers: Sequence[int]) -> list[example.ImageExample | None]:
        """Like `read` but much faster; None for examples that are damaged or need `read`."""
        # A cache needs the least space if its shards are read one after the other.
        if self.manifest.lacks or self.cache is not None:
            return [None] * len(numbers)
        files, places = self._located(numbers)
        offsets, sizes = places.T.copy()
        sizes[sizes > _TOGETHER_BYTES] = 0  # `read` takes one at a time
        data, parts = gather([file.descriptor for file in files], offsets, sizes, self._free)
        return [self._image_at(data, *part) if part else None for part in parts]

    def _image_at(
        self, data: memoryview, places: example.Places, sides: tuple[int, int]
    ) -> example.ImageExample | None:
        """Returns the example at these offsets, or None if `read` must check it."""
        image = example.decode_at(data, places)
        if image is None or (image.height, image.width) != sides:
            return None
        return image if self._is_of_class(image) else None

    def _located(self, numbers: Sequence[int]) -> tuple[list[HeldFile], npt.NDArray[np.int64]]:
        """Returns the files of records, and their offsets and sizes in bytes [records, 2]."""
        shards = self.shards_of(numbers).tolist()
        files = {}
        for shard in set(shards):
            self._index(shard)
            files[shard] = self._shard(shard)
        return [files[shard] for shard in shards], self._places[np.asarray(numbers, np.int64)]

    def read(self, number: int) -> example.ImageExample:
        """Returns one example after checking both CRCs, and its label against its WNID."""
        file, offset, size = self._located_one(number)
        missing = self.manifest.lacks
        with self._named(number, f". To see all: imagenet-prep verify {self.root}"):
            data = os.pread(file.descriptor, size, offset)
            image = example.decode(tfrecord.unframe(data, size), missing)
            # TensorFlow and DALI decode images of any size, and formats other than JPEG.
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
        """Returns class index and key of an example, unverified: its image is not read."""
        file, offset, size = self._located_one(number)
        offset += tfrecord.HEAD_BYTES
        with self._named(number):
            image = example.decode_without_image(
                lambda start, count: os.pread(file.descriptor, count, offset + start),
                size - tfrecord.FRAMING_BYTES,
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
        """Names the example in errors."""
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
        return {
            "shard": self.shards[shard].name,
            "record": record,
            "offset": offset,
            "size": size,
        }

    def where(self, number: int) -> str:
        """Returns an example's shard, record and byte offset for error messages."""
        at = self.located(number)
        return f"{self.root / at['shard']}: record {at['record']} at byte {at['offset']:,}"

    def _class_of(self, image: example.ImageExample) -> int:
        """Returns the class index of an example; DataDamagedError if the WNID does not match."""
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

    def shards_of(self, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        """Returns the shard number of each example."""
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
        name, most = self.shards[shard].name, most_bytes(self.shards[shard])
        path = self.root / naming.index_name(name)
        file = self._shard(shard)  # while it is open, a cache does not remove the index
        with storage_errors("read", path):
            try:
                return _head(path, most)
            except FileNotFoundError:
                if self.cache is None:
                    raise
            # Files of the cache were removed, possibly including this shard.
            self.cache.forget(name)
            file = self._shard(shard)
            content = _head(path, most)
        del file
        return content


def _head(path: Path, most: int) -> bytes:
    with open(regular_file.open_to_read(path), "rb") as file:
        return file.read(most)
