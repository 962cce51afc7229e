"""Sorts lines on disk, such as samples by key, and computes the root of a split.

`SortedRuns` has sorted runs of lines. A line starts with its key and a zero byte. `key_ranges`
divides runs at the same keys, so that each range of keys fits in memory.

`samples_root` computes the root, one digest of the images and labels of a split. The root is the
Merkle tree hash of RFC 6962, section 2.1, over the samples, ordered by key as UTF-8 bytes. Threads
read the tables and write runs; then they sort and hash one range of keys after the other. The tree
over a power of two of neighbouring leaves is a subtree, so the hashes are reduced block by block.

tables.c does this work without Python's lock. It only accepts undamaged tables. The functions here
do everything else again in Python: for damaged lines, if C was not compiled, and on processors
without instructions for SHA-256.
"""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import itertools
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import imports
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.limits import num_cores
from imagenet_prep.dataset import samples
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.storage import dataset_store, scratch
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import prefetch
from imagenet_prep.storage.store import Readable

# A run has this number of bytes, and at most one more piece; 200,000 samples have about 28 MB.
RUN_BYTES = 32 << 20
# A run contributes one key for each of this number of equal parts to the division into ranges.
_KEYS_OF_A_RUN = 64
# Each thread needs memory for two runs.
_MOST_THREADS = 4
_HASH_BYTES = 32
# The leaves of a subtree; must be a power of two.
_BLOCK_LEAVES = 1 << 16

_LIBRARY = Path(__file__).with_name("_digests.so")
_FUNCTIONS = dict.fromkeys(
    ("table_entries", "sort_lines", "cut_run", "hash_leaves", "hash_tree"),
    (ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p),
)


def _compiled(name: str, data: bytes, most: int) -> bytes | None:
    """Returns the output of a function of tables.c, of at most this size, or None if it refuses."""
    library = imports.find(_LIBRARY, **_FUNCTIONS)
    if library is None:
        return None
    out = ctypes.create_string_buffer(most + 1)
    size = getattr(library, name)(data, len(data), out)
    return ctypes.string_at(out, size) if size >= 0 else None


class Piece(NamedTuple):
    """A part of a file of runs, in bytes."""

    start: int
    stop: int


class SortedRuns:
    """Sorted runs of lines in one file, which is not synced. Threads may write at the same time.

    Attributes:
      keys: keys, with their zero bytes, that divide the runs into roughly equal parts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._runs: list[Piece] = []
        self.keys: list[bytes] = []
        with storage_errors("create", path), open(path, "wb"):
            pass

    def write(self, pieces: Iterable[bytes]) -> None:
        """Writes lines as sorted runs that fit in memory; each piece has one or more lines."""
        waiting: list[bytes] = []
        num_bytes = 0
        for piece in pieces:
            waiting.append(piece)
            num_bytes += len(piece)
            if num_bytes >= RUN_BYTES:
                self._add(waiting)
                num_bytes = 0
        self._add(waiting)

    def _add(self, pieces: list[bytes]) -> None:
        """Writes the lines of the pieces as one run; empties the list, to free memory."""
        unsorted = b"".join(pieces)
        pieces.clear()
        lines = _sorted(unsorted)
        del unsorted
        places = range(0, len(lines), RUN_BYTES // _KEYS_OF_A_RUN)
        begins = (lines.rfind(b"\n", 0, place) + 1 for place in places)
        keys = [lines[begin : lines.find(b"\0", begin) + 1] for begin in begins]
        with self._lock:
            start = self._runs[-1].stop if self._runs else 0
            self._runs.append(Piece(start, start + len(lines)))
            self.keys += keys
        with storage_errors("write", self._path), open(self._path, "r+b") as file:
            file.seek(start)
            file.write(lines)

    def read(self, pieces: Iterable[Piece]) -> bytes:
        """Returns the lines of some pieces, one after the other."""
        lines = []
        with storage_errors("read", self._path), open(self._path, "rb") as file:
            for start, stop in pieces:
                file.seek(start)
                lines.append(file.read(stop - start))
        return b"".join(lines)

    def cuts(self, stops: Sequence[bytes]) -> list[array[int]]:
        """Returns, for each run, where these sorted keys divide it, with its start and its stop."""
        cuts = []
        for run in self._runs:
            lines = self.read([run]) if stops else b""
            offsets = (run.start + offset for offset in _offsets(lines, stops))
            cuts.append(array("q", [run.start, *offsets, run.stop]))
        return cuts


def _offsets(lines: bytes, stops: Sequence[bytes]) -> array[int]:
    """Returns the offsets of the first sorted lines that are not less than these sorted keys."""
    offsets = _compiled("cut_run", b"".join([*stops, b"\n", lines]), 8 * len(stops))
    if offsets is not None:
        return array("q", offsets)
    rows = lines.splitlines(keepends=True)
    places = [0, *itertools.accumulate(map(len, rows))]
    return array("q", (places[bisect.bisect_left(rows, stop)] for stop in stops))


def _sorted(lines: bytes) -> bytes:
    return _compiled("sort_lines", lines, len(lines)) or b"".join(
        sorted(lines.splitlines(keepends=True))
    )


def key_ranges(sides: Sequence[SortedRuns]) -> Iterator[list[list[Piece]]]:
    """Yields, for each range of keys, the pieces of each side (e.g. of each dataset).

    All lines of a key are in the same range, which has about as many bytes as a run.
    """
    keys = sorted(itertools.chain.from_iterable(side.keys for side in sides))
    stops = keys[_KEYS_OF_A_RUN::_KEYS_OF_A_RUN]
    cuts = [side.cuts(stops) for side in sides]
    # A range has one part of a run for each of its keys, and at most one more part of every run.
    most = (_KEYS_OF_A_RUN + sum(map(len, cuts))) * (RUN_BYTES // _KEYS_OF_A_RUN) * 9 // 8
    for number in range(len(stops) + 1):
        of_range = [_pieces(of_side, number) for of_side in cuts]
        pieces = itertools.chain.from_iterable(of_range)
        if sum(piece.stop - piece.start for piece in pieces) > most:
            raise DataDamagedError(
                "the tables of samples are damaged: thousands of lines have the same "
                "key. Get the dataset again."
            )
        yield of_range


def _pieces(cuts: Sequence[array[int]], number: int) -> list[Piece]:
    pieces = (Piece(cut[number], cut[number + 1]) for cut in cuts)
    return [piece for piece in pieces if piece.start < piece.stop]


def side_by_side(sides: Sequence[SortedRuns]) -> Iterator[list[list[bytes]]]:
    """Yields, for each range of keys, one sorted list of lines per side; see `key_ranges`."""
    for of_range in key_ranges(sides):
        lines = (_sorted(side.read(p)) for side, p in zip(sides, of_range, strict=True))
        yield [of_side.splitlines(keepends=True) for of_side in lines]


def wrong_roots(dataset: Dataset) -> list[str]:
    """Returns a problem for each split with repeated keys or (unless partitioned) a wrong root."""
    problems = []
    for name, split in dataset.manifest.splits.items():
        try:
            root = samples_root(dataset.store, dataset.shards(name))
        except DataDamagedError as error:
            problems.append(str(error))
            continue
        if dataset.placement.nodes == 1 and root != split.samples_root:
            problems.append(
                f"{name}: the root of its tables of samples is {root}, expected "
                f"{split.samples_root} as in the manifest"
            )
    return problems


def samples_root(store: Readable, shards: Sequence[Shard]) -> str:
    """Returns the root of a split in hex, from the tables of its shards; verifies each table."""
    threads = min(num_cores(), _MOST_THREADS)
    # The tables of a group have at most about as many bytes as a run.
    most = max([1, *(shard.samples_bytes for shard in shards)])
    size = max(1, RUN_BYTES // most)
    groups = (shards[first : first + size] for first in range(0, len(shards), size))
    with scratch.temporary_folder() as folder:
        runs = SortedRuns(folder / "samples")
        for _, written in prefetch(partial(_sort_tables, runs, store), groups, threads):
            written.result()
        ranges = (pieces for (pieces,) in key_ranges([runs]))
        hashing = prefetch(partial(_hash_leaves, runs, store, shards), ranges, threads)
        hashes = (hashed.result() for _, hashed in hashing)
        trees = b"".join(map(_hash_tree, _blocks(hashes)))
    return (_hash_tree(trees) if trees else hashlib.sha256().digest()).hex()


def _sort_tables(runs: SortedRuns, store: Readable, shards: Sequence[Shard]) -> None:
    """Writes the entries of all samples of these shards as sorted runs."""
    runs.write(_pieces_of_entries(store, shards))


def digests(store: Readable, shards: Sequence[Shard]) -> Iterator[tuple[str, bytes]]:
    """Yields, for each sample, its key and the sha256 of its stored bytes in hex."""
    for piece in _pieces_of_entries(store, shards):
        for line in piece.splitlines():
            key, _, leaf = line.partition(b"\0")
            yield key.decode(), leaf.removesuffix(b'"]')[-2 * _HASH_BYTES :]


def _pieces_of_entries(store: Readable, shards: Sequence[Shard]) -> Iterator[bytes]:
    """Yields the entries of all samples of these shards, in pieces; see `samples.entry`."""
    tables = prefetch(partial(dataset_store.sound_table, store, most=RUN_BYTES), shards)
    for shard, table in tables:
        yield from _entries(store, shard, table.result())


def _entries(store: Readable, shard: Shard, table: bytes | None) -> Iterator[bytes]:
    """Yields the entries of a shard; if `table` is None, reads it again and raises errors."""
    header = samples.HEADER
    if table is not None and table.startswith(header) and table.count(b"\n") == shard.examples + 1:
        rows = table[len(header) :]
        is_text = rows == rows.decode(errors="ignore").encode()
        entries = _compiled("table_entries", rows, 3 * len(rows)) if is_text else None
        if entries is not None:
            yield entries
            return
    (heads,) = dataset_store.each_table(partial(samples.heads, images=True), store, [shard])
    yield from map(samples.entry, heads)


def _hash_leaves(
    runs: SortedRuns, store: Readable, shards: Sequence[Shard], pieces: Sequence[Piece]
) -> bytes:
    """Returns the hashes of the leaves in a range of keys, in the order of the keys."""
    entries = runs.read(pieces)
    hashes = _compiled("hash_leaves", entries, _HASH_BYTES * entries.count(b"\n"))
    if hashes is not None:
        return hashes
    leaves = []
    previous = None
    for line in sorted(entries.splitlines()):
        key, _, leaf = line.partition(b"\0")
        if key == previous:
            raise equal_keys(store, shards, key.decode())
        previous = key
        leaves.append(hashlib.sha256(b"\0" + leaf).digest())
    return b"".join(leaves)


def _blocks(hashes: Iterable[bytes]) -> Iterator[bytes]:
    """Divides the hashes of all leaves into blocks of a power of two, and a last block."""
    waiting = bytearray()
    most = _HASH_BYTES * _BLOCK_LEAVES
    for piece in hashes:
        waiting += piece
        while len(waiting) >= most:
            yield bytes(waiting[:most])
            del waiting[:most]
    if waiting:
        yield bytes(waiting)


def _hash_tree(hashes: bytes) -> bytes:
    """Returns the hash of the tree over at least one hash, of leaves or of equal subtrees.

    The last subtree may be smaller.
    """
    tree = _compiled("hash_tree", hashes, len(hashes))
    if tree is not None:
        return tree
    nodes = [hashes[at : at + _HASH_BYTES] for at in range(0, len(hashes), _HASH_BYTES)]
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        parents = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs]
        # A node without a neighbour belongs to the next level.
        nodes = [*parents, *nodes[2 * len(parents) :]]
    return nodes[0]


def equal_keys(store: Readable, shards: Sequence[Shard], key: str) -> DataDamagedError:
    """Returns the error for two records with the same key, after searching for their locations."""
    places: list[str] = []
    for shard, heads in zip(
        shards, dataset_store.each_table(samples.heads, store, shards), strict=True
    ):
        keys = enumerate(head[1] for head in heads)
        places += (f"record {number} of {shard.name}" for number, found in keys if found == key)
    return same_key(store, key, *places[:2])


def same_key(store: Readable, key: str, *places: str) -> DataDamagedError:
    """Returns the error for records at these locations with the same key."""
    return DataDamagedError(
        f"{store.where()}: two records have the same key {key!r}: {' and '.join(places)}. Every "
        "image needs a unique key. If a different program wrote these shards, imagenet-prep adopt "
        "--out NEW gives the images of NEW unique keys."
    )
