"""Selects examples of a split by class, key, fraction or fold; finds examples by key."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import exclusions, schema
from imagenet_prep.dataset.keys import Lookup, read_list
from imagenet_prep.dataset.samples import Head
from imagenet_prep.read.config import Wanted
from imagenet_prep.read.names import Names
from imagenet_prep.read.order import mix, stream

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.class_list import ClassList
    from imagenet_prep.read.records import Records

# numbers of independent random streams
_FRACTION = 1
_FOLD = 2
_BLOCK = 1 << 14  # names in memory at a time


class Choice:
    """Selects the examples that match all filters (`Wanted`) of a reader."""

    def __init__(self, wanted: Wanted, classes: ClassList) -> None:
        self._wanted = wanted
        self._classes = classes.indices(() if wanted.classes is None else wanted.classes)
        self._keys = self._excluded = None
        if wanted.keys is not None:
            listed = read_list(wanted.keys)
            self._keys = replace(listed, allows_unknown=wanted.allow_unknown)
        if wanted.exclude is not None:
            self._excluded = exclusions.read(wanted.exclude, allows_unknown=wanted.allow_unknown)
        self._num_classes = len(classes.wnids)

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
            "classes": canonical.digest(self._classes) if self._classes else None,
            "remap": wanted.remap or None,
            "keys": None if self._keys is None else self._keys.sha256,
            "exclude": None if self._excluded is None else self._excluded.sha256,
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
        chosen = [np.flatnonzero(self._chosen(records, lookups)) for records in splits]
        for lookup in lookups:
            lookup.check(where)
        if not any(map(len, chosen)):
            raise UsageError(f"{where}: the filters match no example. Relax or remove them.")
        return chosen

    def _chosen(self, records: Records, lookups: Sequence[Lookup]) -> npt.NDArray[np.bool_]:
        where = f"{records.split} of {records.dataset.where}"
        records.dataset.require_complete()
        needs_keys = self.filters().keys() - {"classes", "remap"}
        if needs_keys and schema.FILENAME in records.manifest.lacks:
            raise UsageError(
                f"{where}: its records have no file names, so examples can only be chosen by class"
            )
        heads = iter(Names(records))
        parts = []
        while block := list(itertools.islice(heads, _BLOCK)):
            parts.append(self._among(records.split, block, lookups))
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


class Finder:
    """Finds examples by key, with a sorted table of hashes that takes 16 bytes per example."""

    def __init__(self, records: Records) -> None:
        self._wnids = records.wnids
        self._names = Names(records)
        # Keys are stored with or without their class folder, so hash them without it. Python's
        # hash is fast. It is salted per process, so a dataset cannot provoke collisions.
        keys = (key.removeprefix(f"{self._wnids[index]}/") for index, key, _ in self._names)
        hashed = np.fromiter(map(hash, keys), np.int64, len(records))
        self._numbers = np.argsort(hashed, kind="stable")
        self._hashed = hashed[self._numbers]

    def find(self, key: str) -> int:
        """See `Reader.find`."""
        for hashed in map(hash, (key, key.partition("/")[2])):
            first = np.searchsorted(self._hashed, np.int64(hashed), "left")
            end = np.searchsorted(self._hashed, np.int64(hashed), "right")
            for number in map(int, self._numbers[first:end]):
                class_index, stored = self._names.at(number)
                folder = f"{self._wnids[class_index]}/"
                name = stored.removeprefix(folder)
                if key in (name, folder + name):
                    return number
        raise KeyError(key)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
