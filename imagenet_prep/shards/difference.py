"""Compares two datasets by their sorted tables of samples.

`splits_that_differ` compares the manifests. If a split has the same root and size in both, its
tables are not read. For the other splits, `common_tables` finds the tables that are equal in both
datasets, which are skipped. So comparing a dataset with an amended copy takes almost no time.
`differences` sorts the samples in the remaining tables on disk and compares them in ranges of keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.samples import ONLY_IN_A, ONLY_IN_B, Difference, StoredImage
from imagenet_prep.shards.sorted_tables import SortedRuns, side_by_side
from imagenet_prep.storage import scratch
from imagenet_prep.storage.dataset_store import Dataset

# An entry is a line: a key, a zero byte, the values to compare (class, bytes, width, height,
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
            runs = [SortedRuns(folder / name) for name in "ab"]
            for sorted_runs, side, of_side in zip(runs, sides, labels, strict=True):
                sorted_runs.write(_entries(side, split, of_side, common))
            is_different = False
            # A key that one dataset lacks may also be in a common table, which is an error.
            unmatched: tuple[set[str], set[str]] = (set(), set())
            kinds = ONLY_IN_A, ONLY_IN_B
            for entries in side_by_side(runs):
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
