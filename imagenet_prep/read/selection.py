"""Selects examples of a split by class, key, fraction or fold; finds examples by key.

`Choice` selects examples, and `Finder` finds them by key.

`Names` and `TableColumns` read the keys and classes of examples without reading their images.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema, shared_flags
from imagenet_prep.dataset.keys import Lookup, read_list, spellings
from imagenet_prep.dataset.samples import Head, Sample
from imagenet_prep.read.column_rows import ColumnRows, numbers_of
from imagenet_prep.read.config import WantedExamples, Weights
from imagenet_prep.read.order import MOST_APPEARANCES, mix, stream
from imagenet_prep.read.where import NAMES, SIDES, Where
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.class_list import ClassList
    from imagenet_prep.read.records import Records


class NoExampleError(UsageError):
    """The filters of a reader match no example."""


class Names:
    """Reads class indices and keys from the sample tables; without tables, from the records."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._store = LocalStore(records.root)
        if records.manifest.has_samples:
            if records.cache is not None:
                records.cache.bring_samples(records.shards)
        else:
            logging.getLogger(__name__).warning(
                f"{records.dataset.where} has no tables of samples, so the key of each image is "
                "read from its record, which is slower. imagenet-prep adopt adds tables and "
                "leaves the images unchanged."
            )

    def of(self, shard: int, *, sides: bool = False) -> Iterable[Head]:
        """Yields the `Head` of each example of a shard; the image is b"" unless `sides` is set."""
        records = self._records
        if not records.manifest.has_samples:
            return ((*records.name(number), b"") for number in records.numbers_of(shard))
        return dataset_store.sample_heads(
            self._store, records.shards[shard], len(records.wnids), images=sides
        )

    def __iter__(self) -> Iterator[Head]:
        return itertools.chain.from_iterable(map(self.of, range(len(self._records.shards))))

    def mentions(self, shard: int, texts: Iterable[bytes]) -> bool:
        """Returns False if the table of a shard contains none of the strings in `texts`."""
        records = self._records
        has_samples = records.manifest.has_samples
        return not has_samples or dataset_store.table_mentions(
            self._store, records.shards[shard], texts
        )

    def samples(self, shard: int) -> Iterator[Sample]:
        """Yields the lines of a shard's table; verifies the table after the last line."""
        return dataset_store.sample_rows(
            self._store, self._records.shards[shard], len(self._records.wnids)
        )

    def at(self, number: int) -> tuple[int, str]:
        """Returns class index and key of one example."""
        shard, record = self._records.place(number)
        if not self._records.manifest.has_samples:
            return self._records.name(number)
        # Read the table to its end, which verifies it.
        return list(self.of(shard))[record][:2]


class TableColumns:
    """Columns of the sample tables; needs 4 bytes of memory per example, or 34 with keys."""

    def __init__(self, records: Records, fields: Collection[str]) -> None:
        self._records = records
        self._names = Names(records)
        self._fields = fields
        self._has_sides = not {"width", "height"}.isdisjoint(fields)
        self._keys: dict[int, npt.NDArray[np.bytes_] | list[bytes]] = {}
        self.classes = np.zeros(len(records), np.int32)
        self.sides = np.zeros((2, len(records)) if self._has_sides else (2, 0), np.int32)
        self._is_read = np.zeros(len(records.shards), bool)

    def read(self, numbers: Sequence[int]) -> None:
        """Reads the tables that contain these examples; skips tables that were read before."""
        if self._is_read.all():
            return
        for shard in np.unique(self._records.shards_of(numbers)).tolist():
            if not self._is_read[shard]:
                self._read(shard)

    def _read(self, shard: int) -> None:
        numbers = self._records.numbers_of(shard)
        part = slice(numbers.start, numbers.stop)
        classes, keys, images = zip(*self._names.of(shard, sides=self._has_sides), strict=True)
        self.classes[part] = classes
        if "key" in self._fields:
            self._keys[shard] = _compact([key.encode() for key in keys])
        if self._has_sides:
            self.sides[:, part] = np.array([i.split(b",")[1:3] for i in images], np.int64).T
        self._is_read[shard] = True

    def keys(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """Returns the keys of examples, after `read` has read their tables."""
        places = map(self._records.place, numbers.tolist())
        return [self._keys[shard][record].decode() for shard, record in places]


def _compact(keys: list[bytes]) -> npt.NDArray[np.bytes_] | list[bytes]:
    """Returns keys as an array, unless a few long keys would make it much larger."""
    # In an array, each key takes as many bytes as the longest one.
    num_bytes = max(map(len, keys)) * len(keys)
    return np.array(keys) if num_bytes <= 2 * sum(map(len, keys)) else keys


# numbers of independent random streams
_FRACTION = 1
_FOLD = 2
_BLOCK = 1 << 14  # names in memory at a time


class WhereColumns:
    """The values of an expression's names, for one block of examples after the other."""

    def __init__(self, where: Where, records: Records) -> None:
        """Opens the columns; raises UsageError if a name is unknown."""
        self._where = where
        self._wnids = np.array(records.wnids)
        self.needs_tables = not where.names.isdisjoint(SIDES)
        if self.needs_tables and not records.manifest.has_samples:
            raise UsageError(
                f"{records.dataset.where} has no tables of samples, which where= reads: run "
                "imagenet-prep adopt, which adds them"
            )
        self._columns: dict[str, ColumnRows] = {}
        for name in sorted(where.names - set(NAMES)):
            try:
                rows = ColumnRows(records, name)
            except UsageError as error:
                raise UsageError(
                    f"where= has the name {name!r}: expected one of {', '.join(NAMES)}, or a "
                    f"column ({error})"
                ) from None
            if rows.column.shape or rows.column.is_text:
                raise UsageError(
                    f"where= has the name {name!r}: this column has the type {rows.column.dtype} "
                    f"and the shape {rows.column.shape}, expected one number per image"
                )
            self._columns[name] = rows

    def matches(self, first: int, heads: Sequence[Head]) -> npt.NDArray[np.bool_]:
        """Returns whether the expression is true for each example of a block."""
        class_indices, keys, images = zip(*heads, strict=True)
        values: dict[str, npt.NDArray[Any]] = {}
        if self.needs_tables:
            lines = [image.split(b",", len(SIDES))[: len(SIDES)] for image in images]
            columns = np.array(lines, np.int64).T
            values |= zip(("bytes", "width", "height"), columns, strict=True)
        for name in self._where.names - {*SIDES}:
            if name == "key":
                values[name] = np.array(keys)
            elif name == "class_index":
                values[name] = np.array(class_indices)
            elif name == "class":
                values[name] = self._wnids[list(class_indices)]
            else:
                rows = self._columns[name]
                numbers = range(first, first + len(heads))
                values[name] = numbers_of(rows.arrays(numbers, len(heads)), rows.column)
        return self._where(values, len(heads))


class Choice:
    """Selects the examples that match all filters (`WantedExamples`) of a reader."""

    def __init__(self, wanted: WantedExamples, classes: ClassList) -> None:
        self._wanted = wanted
        self._classes = classes.indices(() if wanted.classes is None else wanted.classes)
        self._keys = self._excluded = None
        if wanted.keys is not None:
            listed = read_list(wanted.keys)
            self._keys = replace(listed, allows_unknown=wanted.allow_unknown)
        if wanted.exclude is not None:
            self._excluded = shared_flags.read_exclusions(
                wanted.exclude, allows_unknown=wanted.allow_unknown
            )
        self._num_classes = len(classes.wnids)
        self._where = None if wanted.where is None else Where(wanted.where)
        if self._where is not None:
            self._where.resolve_classes(classes)

    @property
    def class_numbers(self) -> Sequence[int]:
        """Maps a class index in batches to the number of the class in the class list."""
        return self._classes if self._wanted.remap else range(self._num_classes)

    def filters(self) -> dict[str, Any]:
        """Returns the filters as JSON, with digests in place of lists; {} without filters."""
        wanted = self._wanted
        fraction = wanted.fraction if wanted.fraction < 1 else None
        fold = [*wanted.fold] if wanted.fold[1] > 1 else None
        filters = {
            "classes": strict_json.digest(self._classes) if self._classes else None,
            "remap": wanted.remap or None,
            "keys": None if self._keys is None else self._keys.sha256,
            "exclude": None if self._excluded is None else self._excluded.sha256,
            "where": None if self._where is None else strict_json.digest(self._where.text),
            "fraction": fraction,
            "choice_seed": wanted.choice_seed if fraction or fold else None,
            "fold": fold,
            "others": wanted.others or None,
        }
        return {name: value for name, value in filters.items() if value is not None}

    def numbers(self, splits: Sequence[Records]) -> list[npt.NDArray[np.int64]]:
        """Returns the sorted numbers of the chosen examples of each split."""
        where = f"{' and '.join(records.split for records in splits)} of {splits[0].dataset.where}"
        names = [records.split for records in splits]
        all_splits = splits[0].manifest.splits
        lookups = [
            Lookup(listed, all_splits, names)
            for listed in (self._keys, self._excluded)
            if listed is not None
        ]
        unknown = set() if self._where is None else {*self._where.keys}
        chosen = [np.flatnonzero(self._chosen(records, lookups, unknown)) for records in splits]
        for lookup in lookups:
            lookup.check(where, _stored(splits))
        if self._where is not None and not self._wanted.allow_unknown:
            self._where.require_keys(unknown, where, (key for _, key in _stored(splits)))
        if not any(map(len, chosen)):
            raise NoExampleError(f"{where}: the filters match no example. Relax or remove them.")
        return chosen

    def _chosen(
        self, records: Records, lookups: Sequence[Lookup], unknown: set[str]
    ) -> npt.NDArray[np.bool_]:
        """Returns whether each example is chosen; removes each key from `unknown`."""
        where = f"{records.split} of {records.dataset.where}"
        records.dataset.require_complete()
        needs_keys = self.filters().keys() - {"classes", "remap", "where"}
        if self._where is not None and "key" in self._where.names:
            needs_keys.add("where")
        if needs_keys and schema.FILENAME in records.manifest.lacks:
            raise UsageError(
                f"{where}: its records have no file names, so examples can only be chosen by class"
            )
        values = None if self._where is None else WhereColumns(self._where, records)
        names = Names(records)
        sides = values is not None and values.needs_tables
        heads = itertools.chain.from_iterable(
            names.of(shard, sides=sides) for shard in range(len(records.shards))
        )
        parts: list[npt.NDArray[np.bool_]] = []
        first = 0
        while block := list(itertools.islice(heads, _BLOCK)):
            chosen = self._among(records.split, block, lookups)
            if values is not None:
                chosen &= values.matches(first, block)
                unknown.difference_update(key for _, key, _ in block)
            parts.append(chosen)
            first += len(block)
        return np.concatenate(parts)

    def _among(
        self, split: str, heads: Sequence[Head], lookups: Sequence[Lookup]
    ) -> npt.NDArray[np.bool_]:
        chosen = np.ones(len(heads), bool)
        if self._classes:
            chosen &= np.isin([class_index for class_index, _, _ in heads], self._classes)
        keys = [key for _, key, _ in heads]
        for lookup in lookups:
            is_listed = np.array(lookup.lines(split, keys)) > 0
            chosen &= is_listed != (lookup.listed is self._excluded)
        part, parts = self._wanted.fold
        if self._wanted.fraction < 1 or parts > 1:
            hashed = np.fromiter(map(_hash, keys), np.uint64, len(keys))
            uniform = mix(hashed ^ stream(self._wanted.choice_seed, _FRACTION))
            chosen &= (uniform >> np.uint64(11)) * 2.0**-53 < self._wanted.fraction
            dealt = mix(hashed ^ stream(self._wanted.choice_seed, _FOLD))
            chosen &= (dealt % np.uint64(parts) == part) != self._wanted.others
        return chosen


def _stored(splits: Sequence[Records]) -> Iterator[tuple[str, str]]:
    """Yields the split and key of each example."""
    for records in splits:
        for _, key, _ in Names(records):
            yield records.split, key


def class_indices(records: Records) -> npt.NDArray[np.int64]:
    """Returns the class index of each example of a split."""
    indices = (class_index for class_index, _, _ in Names(records))
    return np.fromiter(indices, np.int64, len(records))


def expected_by_class(
    weights: Weights, classes: ClassList, chosen: npt.NDArray[np.int64]
) -> list[float]:
    """Returns how often an example of each class appears in an epoch, on average.

    Args:
      weights: the argument of `make_dataset`.
      classes: the class list of the dataset.
      chosen: the class index of each chosen example.

    Raises:
      UsageError: a class is unknown, or a weight is not a number from 0.
    """
    num_classes = len(classes.wnids)
    counts = np.bincount(chosen, minlength=num_classes)
    if isinstance(weights, (int, float)) and not isinstance(weights, bool):
        expected = np.full(num_classes, float(weights))
    elif isinstance(weights, Mapping):
        values: list[Any] = [*weights.values()]
        if not all(isinstance(share, SupportsFloat) and float(share) >= 0 for share in values):
            raise UsageError(f"weights={weights!r}: expected a weight of at least 0 for each class")
        shares = np.ones(num_classes)
        for name, share in weights.items():
            shares[classes.indices([name])] = share
        total = float((shares * counts).sum())
        expected = shares * (len(chosen) / total if total > 0 else math.nan)
    elif isinstance(weights, str) and weights == "classes":
        num_present = np.count_nonzero(counts)
        expected = len(chosen) / (num_present * np.maximum(counts, 1))
    else:
        kind = type(weights).__name__
        shown = f"={weights!r}" if kind == "str" else f" is a {kind}"
        raise UsageError(
            f"weights{shown}: expected 'classes', a number, or a dict with a weight for each "
            "class. For weights of single images, use torch's WeightedRandomSampler with "
            "reader.source()."
        )
    total = float((expected * counts).sum())
    if not (expected >= 0).all() or not 1 <= total <= MOST_APPEARANCES * len(chosen):
        raise UsageError(
            f"weights={weights!r}: an epoch would have {total:g} images, expected 1 to "
            f"{MOST_APPEARANCES} times the {len(chosen):,} chosen ones"
        )
    return [float(value) for value in expected]


class Finder:
    """Finds examples by key, with a sorted table of hashes that takes 16 bytes per example."""

    def __init__(self, records: Records) -> None:
        self._wnids = records.wnids
        self._names = Names(records)
        # A part of a dataset lacks the tables of the other parts.
        here = records.placement.held(records.examples_per_shard)
        heads = itertools.chain.from_iterable(map(self._names.of, here))
        numbers = np.fromiter(
            itertools.chain.from_iterable(map(records.numbers_of, here)), np.int64
        )
        # Keys are stored with or without their class folder, so hash them without it. Python's
        # hash is fast. It is salted per process, so a dataset cannot provoke collisions.
        names = (spellings(key, self._wnids[index])[0] for index, key, _ in heads)
        hashed = np.fromiter(map(hash, names), np.int64, len(numbers))
        order = np.argsort(hashed, kind="stable")
        self._numbers = numbers[order]
        self._hashed = hashed[order]

    def find(self, key: str) -> int:
        """See `Reader.find`."""
        similar = None
        # The name of a class may have slashes, too.
        ends = itertools.accumulate(
            range(key.count("/")), lambda end, _: end.partition("/")[2], initial=key
        )
        for hashed in map(hash, ends):
            first = np.searchsorted(self._hashed, np.int64(hashed), "left")
            end = np.searchsorted(self._hashed, np.int64(hashed), "right")
            for number in map(int, self._numbers[first:end]):
                class_index, stored = self._names.at(number)
                if stored == key:
                    return number
                if similar is None and key in spellings(stored, self._wnids[class_index]):
                    similar = number
        if similar is None:
            raise KeyError(key)
        return similar


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
