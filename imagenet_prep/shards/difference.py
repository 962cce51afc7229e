"""Compares two datasets by their sorted tables of samples, and computes the root of a split.

`splits_that_differ` compares the manifests. If a split has the same root and size in both, its
tables are not read. For the other splits, `common_tables` finds the tables that are equal in both
datasets, which are skipped. So comparing a dataset with an amended copy takes almost no time.
`differences` sorts the samples in the remaining tables on disk and compares them in key ranges.

`write` writes sorted runs. An entry of a run is a line of bytes that starts with its key and a zero
byte.

`samples_root` computes the root, one digest of the images and labels of a split. The root is the
Merkle tree hash of RFC 6962 (`root` in `dataset.samples`) over the samples, ordered by key as UTF-8
bytes. The samples are sorted on disk, because 14 million of them do not fit in memory.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import mmap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import samples, schema
from imagenet_prep.dataset.manifest import Shard, Split
from imagenet_prep.dataset.samples import ONLY_IN_A, ONLY_IN_B, Difference, Head, StoredImage
from imagenet_prep.storage import dataset_store, scratch
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.store import Readable

# Maximum entries and bytes per sorted run; 250,000 entries of a dataset's images have 40 MB.
RUN_ENTRIES = 250_000
RUN_BYTES = 64 << 20
# The bytes of this number of entries are counted together, which is faster.
_FEW = 100
# The number of keys that each run contributes to the division of all runs into ranges.
_KEYS_OF_A_RUN = 64
# UTF-8 text never contains this byte.
_BEHIND_ALL = b"\xff"


def write(folder: Path, name: str, entries: Iterable[bytes]) -> list[Path]:
    """Writes entries as sorted runs that fit in memory; returns the files, which are not synced."""
    runs: list[Path] = []
    for run in _runs(entries):
        run.sort()
        path = folder / f"{name}.run-{len(runs):04d}"
        with storage_errors("write", path), open(path, "wb") as file:
            file.writelines(run)
        runs.append(path)
    return runs


def _runs(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    remaining = iter(entries)
    run: list[bytes] = []
    num_bytes = 0
    while few := list(itertools.islice(remaining, min(_FEW, RUN_ENTRIES - len(run)))):
        run += few
        num_bytes += sum(map(len, few))
        if num_bytes >= RUN_BYTES or len(run) == RUN_ENTRIES:
            yield run
            run = []
            num_bytes = 0
    if run:
        yield run


def side_by_side(sides: Sequence[Sequence[Path]]) -> Iterator[list[list[bytes]]]:
    """Yields, for each range of keys, one sorted list of entries per side (e.g. per dataset).

    All entries of a key are in the same range, which has about as many entries as a run. Only one
    file is open at a time.
    """
    everything = [*itertools.chain.from_iterable(sides)]
    keys = sorted(itertools.chain.from_iterable(map(_some_keys, everything)))
    starts = dict.fromkeys(everything, 0)
    # A range has one piece of a run for each of its keys, and at most one more piece of every run.
    most = (_KEYS_OF_A_RUN + len(everything)) * (RUN_BYTES // _KEYS_OF_A_RUN) * 9 // 8
    for stop in [*keys[_KEYS_OF_A_RUN::_KEYS_OF_A_RUN], _BEHIND_ALL]:
        num_bytes = 0
        entries_of_sides: list[list[bytes]] = []
        for side in sides:
            entries: list[bytes] = []
            for run in side:
                with _mapped(run) as data:
                    end = _first(data, stop, starts[run])
                    num_bytes += end - starts[run]
                    if num_bytes > most:
                        raise DataDamagedError(
                            "the tables of samples are damaged: thousands of lines have the same "
                            "key. Get the dataset again."
                        )
                    entries += data[starts[run] : end].splitlines(keepends=True)
                starts[run] = end
            entries_of_sides.append(sorted(entries))
        yield entries_of_sides


def _some_keys(run: Path) -> list[bytes]:
    """Returns keys, with their zero bytes, that divide a run into roughly equal pieces."""
    with _mapped(run) as data:
        places = range(0, len(data), -(-len(data) // _KEYS_OF_A_RUN))
        begins = (data.rfind(b"\n", 0, place) + 1 for place in places)
        return [data[begin : data.find(b"\0", begin) + 1] for begin in begins]


@contextlib.contextmanager
def _mapped(run: Path) -> Iterator[mmap.mmap]:
    # Each range is mapped again, because pages stay in memory until the file is unmapped.
    with open(run, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _first(run: mmap.mmap, least: bytes, start: int) -> int:
    """Returns the offset of the first entry that is at least `least`, by bisection."""

    def entry_at(place: int) -> bytes:
        begin = run.rfind(b"\n", 0, place) + 1
        return run[begin : begin + len(least)]

    return bisect.bisect_left(range(len(run)), least, start, key=entry_at)


def wrong_roots(dataset: Dataset) -> list[str]:
    """Returns a problem for each split with repeated keys or (unless partitioned) a wrong root."""
    problems = []
    for name, split in dataset.manifest.splits.items():
        try:
            root = root_of(dataset.store, replace(split, shards=dataset.shards(name)))
        except DataDamagedError as error:
            problems.append(str(error))
            continue
        if dataset.placement.nodes == 1 and root != split.samples_root:
            problems.append(
                f"{name}: the root of its tables of samples is {root}, expected "
                f"{split.samples_root} as in the manifest"
            )
    return problems


def root_of(store: Readable, split: Split) -> str:
    """Returns the root of a split from its tables in a store; each table is verified."""
    parse = partial(samples.heads, images=True)
    heads = itertools.chain.from_iterable(dataset_store.each_table(parse, store, split.shards))
    return samples_root(heads, store, split.shards)


def samples_root(heads: Iterable[Head], store: Readable, shards: Sequence[Shard]) -> str:
    """Returns the root, in hex, of samples in any order; errors name `store` and `shards`."""
    with scratch.temporary_folder() as folder:
        files = write(folder, "samples", map(samples.entry, heads))
        ranges = side_by_side([files])
        lines = itertools.chain.from_iterable(entries for (entries,) in ranges)
        return samples.root(_leaves(lines, store, shards))


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


def _leaves(lines: Iterable[bytes], store: Readable, shards: Sequence[Shard]) -> Iterator[bytes]:
    previous = None
    for line in lines:
        key, _, leaf = line.partition(b"\0")
        if key == previous:
            raise equal_keys(store, shards, key.decode())
        previous = key
        yield leaf[:-1]


# An entry of a run is a key, a zero byte, the values to compare (class, bytes, width, height,
# sha256), a zero byte, the shard's number (5 digits), the record's number (9), and a line end.
_RECORDS = 10**9
_PLACE = 5 + 9 + 1
# The number of keys that are searched in the common tables at a time.
_MOST_KEYS = 1 << 20


def splits_that_differ(a: Dataset, b: Dataset) -> list[str]:
    """Returns the splits with different images or labels, according to the manifests."""
    for side in (a, b):
        side.require_samples()
    stated = [
        {name: (split.samples_root, split.examples) for name, split in side.manifest.splits.items()}
        for side in (a, b)
    ]
    same_classes = a.classes.wnids == b.classes.wnids
    return [
        split
        for split in schema.SPLITS
        if stated[0].get(split) != stated[1].get(split) or (split in stated[0] and not same_classes)
    ]


def common_tables(a: Dataset, b: Dataset, split: str) -> frozenset[str]:
    """Returns the sha256 of the tables that both datasets have; none if the class lists differ."""
    if a.classes.wnids != b.classes.wnids:
        return frozenset()
    tables_of_a = {shard.samples_sha256 for shard in a.shards(split)}
    return frozenset(tables_of_a.intersection(shard.samples_sha256 for shard in b.shards(split)))


def differences(a: Dataset, b: Dataset, splits: Sequence[str]) -> Iterator[Difference]:
    """Yields the differing images, ordered by key; `splits` come from `splits_that_differ`."""
    sides = (a, b)
    same_classes = a.classes.wnids == b.classes.wnids
    classes = sorted({*a.classes.wnids, *b.classes.wnids})
    number_of = {wnid: number for number, wnid in enumerate(classes)}
    labels = [[number_of[wnid] for wnid in side.classes.wnids] for side in sides]
    for split in splits:
        common = common_tables(a, b, split)
        with scratch.temporary_folder() as folder:
            files = [
                write(folder, name, _entries(side, split, of_side, common))
                for name, side, of_side in zip("ab", sides, labels, strict=True)
            ]
            is_different = False
            # A key that one dataset lacks may also be in a common table, which is an error.
            unmatched: tuple[set[str], set[str]] = (set(), set())
            kinds = ONLY_IN_A, ONLY_IN_B
            for entries in side_by_side(files):
                for difference in _between(split, sides, classes, entries):
                    is_different = True
                    for side, keys, kind in zip(sides, unmatched, kinds, strict=True):
                        if common and difference.kinds == [kind]:
                            keys.add(difference.key)
                            if len(keys) == _MOST_KEYS:
                                _refuse_twice(side, split, keys, common)
                                keys.clear()
                    yield difference
            for side, keys in zip(sides, unmatched, strict=True):
                _refuse_twice(side, split, keys, common)
        if not is_different and same_classes:
            raise DataDamagedError(
                f"{a.where} and {b.where}: the samples_root of {split} differs, but its images "
                "are equal. One of the manifests is wrong: run imagenet-prep verify on both."
            )


def _refuse_twice(side: Dataset, split: str, keys: set[str], common: Collection[str]) -> None:
    """Raises DataDamagedError if any of these keys is also in a common table."""
    shards = [shard for shard in side.shards(split) if keys and shard.samples_sha256 in common]
    for shard, heads in zip(shards, side.heads(shards), strict=True):
        for record, (_, key, _) in enumerate(heads):
            if key in keys:
                raise _twice(side, split, shard.name, record)


def _twice(side: Dataset, split: str, shard: str, record: int) -> DataDamagedError:
    return DataDamagedError(
        f"{side.store.where(schema.samples_name(shard))}: line {record + 2:,} has the same key as "
        f"a different line of {split}. Run imagenet-prep verify."
    )


def _entries(
    side: Dataset, split: str, labels: Sequence[int], common: Collection[str]
) -> Iterator[bytes]:
    """Yields an entry for each sample of a split, except for samples in the tables of `common`."""
    shards = [
        (number, shard)
        for number, shard in enumerate(side.shards(split))
        if shard.samples_sha256 not in common
    ]
    tables = side.heads((shard for _, shard in shards), images=True)
    for (number, _), heads in zip(shards, tables, strict=True):
        for place, (index, key, image) in enumerate(heads, number * _RECORDS):
            yield b"%b\0%d,%b\0%014d\n" % (key.encode(), labels[index], image, place)


def _between(
    split: str,
    sides: tuple[Dataset, Dataset],
    classes: Sequence[str],
    entries: Sequence[list[bytes]],
) -> Iterator[Difference]:
    def place(at: int, entry: bytes) -> tuple[str, int]:
        number, record = divmod(int(entry[-_PLACE:]), _RECORDS)
        return sides[at].manifest.splits[split].shards[number].name, record

    def stored(at: int, key: bytes) -> StoredImage | None:
        rest = rests[at].get(key)
        if rest is None:
            return None
        label, _, width, height, sha256 = rest[: -_PLACE - 1].decode().split(",")
        return StoredImage(classes[int(label)], int(width), int(height), sha256, *place(at, rest))

    rests = [dict(entry.split(b"\0", 1) for entry in of_side) for of_side in entries]
    for at, (side, of_side) in enumerate(zip(sides, entries, strict=True)):
        if len(rests[at]) < len(of_side):
            keys = (entry.partition(b"\0")[0] for entry in of_side)
            pairs = zip(itertools.pairwise(keys), of_side[1:], strict=True)
            second = next(entry for (key, next_key), entry in pairs if key == next_key)
            raise _twice(side, split, *place(at, second))
    of_a, of_b = rests
    differing = [
        key for key, rest in of_a.items() if of_b.get(key, b"")[:-_PLACE] != rest[:-_PLACE]
    ]
    for key in sorted(itertools.chain(differing, of_b.keys() - of_a.keys())):
        yield Difference(split, key.decode(), stored(0, key), stored(1, key))
