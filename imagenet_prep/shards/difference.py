"""What differs between two data sets, image by image, from their tables of samples alone.

Sets with equal roots are equal, and no table is read. Of others, tables that both have are passed
over; so a set is compared with one that was made of it in no time. The samples of all other tables
are sorted on the disk, a side each, and held against each other a range of keys at a time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import class_list, naming, samples, schema
from imagenet_prep.dataset.difference import Difference, Stored
from imagenet_prep.dataset.manifest import Manifest, Shard, demand_samples
from imagenet_prep.shards import runs
from imagenet_prep.storage import scratch, tables
from imagenet_prep.storage.small_file import small_file
from imagenet_prep.storage.store import Readable

# An entry of a run is a key, a byte of 0, what is compared (class, bytes, width, height, sha256), a
# byte of 0, the number of the shard and that of the record, and the end of the line.
_SHARD_DIGITS, _RECORD_DIGITS = 5, 9
_PLACE = _SHARD_DIGITS + _RECORD_DIGITS + 1


@dataclass(frozen=True)
class Side:
    """One of the two data sets.

    Attributes:
      place: where it lies.
      manifest: its manifest.
    """

    place: Readable
    manifest: Manifest

    def wnids(self) -> list[str]:
        """Returns the ids of its classes, by class index.

        Raises:
          ManifestError: labels.txt is not the one that the manifest names.
        """
        content = small_file(self.place, self.manifest, naming.LABELS)
        return [wnid for wnid, _ in class_list.parse(content, self.place.where(naming.LABELS))]

    def shards(self, split: str) -> Sequence[Shard]:
        """Returns the shards of a split; none where it has no such split."""
        return self.manifest.splits[split].shards if split in self.manifest.splits else ()


def splits_that_differ(a: Side, b: Side) -> list[str]:
    """Returns the splits whose images or labels are not the same, by their roots alone.

    Raises:
      UsageError: a set has no tables.
    """
    for side in (a, b):
        demand_samples(side.manifest, side.place.where())
    roots = [
        {split: each.samples_root for split, each in side.manifest.splits.items()}
        for side in (a, b)
    ]
    same_classes = a.manifest.classes.digest == b.manifest.classes.digest
    return [
        split
        for split in schema.SPLITS
        if roots[0].get(split) != roots[1].get(split) or (split in roots[0] and not same_classes)
    ]


def differences(a: Side, b: Side, splits: Sequence[str]) -> Iterator[Difference]:
    """Yields the images that are not the same, split by split, in the order of their keys.

    Args:
      a, b: the data sets.
      splits: as `splits_that_differ` returned them.

    Raises:
      DataDamagedError: a table, or a class list, is not what a run of this program wrote.
      StoreError, IncompleteError: it cannot be read, or the disk below TMPDIR is full.
    """
    sides, wnids = (a, b), (a.wnids(), b.wnids())
    classes = sorted({*wnids[0], *wnids[1]})
    number_of = {wnid: number for number, wnid in enumerate(classes)}
    labels = [[number_of[wnid] for wnid in each] for each in wnids]
    for split in splits:
        common: set[str] = set()
        if wnids[0] == wnids[1]:
            of_a, of_b = ({one.samples_sha256 for one in side.shards(split)} for side in sides)
            common = of_a & of_b
        with scratch.place() as folder:
            files = [
                runs.write(folder, name, _entries(side, split, of_side, common))
                for name, side, of_side in zip("ab", sides, labels, strict=True)
            ]
            found = False
            for entries in runs.side_by_side(files):
                for difference in _between(split, sides, classes, entries):
                    found = True
                    yield difference
        if not found and wnids[0] == wnids[1]:
            raise DataDamagedError(
                f"{a.place.where()} and {b.place.where()}: the roots of {split} differ, and no "
                "image does. One of the manifests is wrong: run imagenet-prep verify on both."
            )


def _entries(side: Side, split: str, labels: Sequence[int], common: set[str]) -> Iterator[bytes]:
    """Yields a line for each sample: key, what is compared, and where it lies.

    Args:
      side, split: whose samples.
      labels: numbers that mean the same class on both sides, by class index.
      common: tables that need not be read, by their sha256.
    """
    shards = [
        (number, shard)
        for number, shard in enumerate(side.shards(split))
        if shard.samples_sha256 not in common
    ]
    parse = partial(samples.heads, num_classes=len(labels), images=True)
    found = tables.each(parse, side.place, (shard for _, shard in shards))
    for (number, _), heads in zip(shards, found, strict=True):
        for record, (index, key, image) in enumerate(heads):
            place = number, record
            yield b"%b\0%d,%b\0%05d%09d\n" % (key.encode(), labels[index], image, *place)


def _between(
    split: str,
    sides: tuple[Side, Side],
    classes: Sequence[str],
    entries: Sequence[list[bytes]],
) -> Iterator[Difference]:
    """Yields the differences between the sorted entries of some keys."""
    places = [{entry[:-_PLACE]: entry[-_PLACE:] for entry in each} for each in entries]
    differing = places[0].keys() ^ places[1].keys()
    found: dict[bytes, list[Stored | None]] = {}
    for entry in sorted(differing):
        key, compared, _ = entry.split(b"\0")
        label, _, width, height, sha256 = compared.decode().split(",")
        at = int(entry not in places[0])
        place = places[at][entry]
        shard = sides[at].shards(split)[int(place[:_SHARD_DIGITS])].name
        record = int(place[_SHARD_DIGITS:])
        after = bisect.bisect_right(entries[at], entry + place)
        beside = entries[at][max(after - 2, 0) : after + 1]
        if sum(each.startswith(key + b"\0") for each in beside) > 1:
            raise DataDamagedError(
                f"{sides[at].place.where(naming.samples_name(shard))}: line {record + 2:,} has a "
                f"key that is in another line of {split} as well. Run imagenet-prep verify."
            )
        of_key = found.setdefault(key, [None, None])
        of_key[at] = Stored(classes[int(label)], int(width), int(height), sha256, shard, record)
    for key, (a, b) in found.items():
        yield Difference(split, key.decode(), a, b)
