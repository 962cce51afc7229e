"""Which examples of a split are read: classes, keys, a fraction, a fold, or all but these."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import StoreError, UsageError, some
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import KeyList, read_list
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.held import only_one
from imagenet_prep.read.order import mix, stream
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records

# Independent streams of random numbers from one seed.
_FRACTION, _FOLD = 1, 2
_NAME = np.dtype([("class_index", "<i4"), ("hashed", "<u8")])
_SHA256_BYTES = 32


class Choice:
    """Chooses the examples that fulfil all that the settings of a reader ask for."""

    def __init__(self, config: ReadConfig, wnids: Sequence[str]) -> None:
        """Looks classes up, and reads the lists of keys.

        Raises:
          UsageError: a list of keys cannot be read, or a class is not in the class list.
        """
        self._config = config
        self._classes = class_indices(() if config.classes is None else config.classes, wnids)
        self._keys = None if config.keys is None else read_list(config.keys)
        self._excluded = None if config.exclude is None else read_list(config.exclude)
        self._wnids = wnids

    @property
    def class_numbers(self) -> list[int] | None:
        """The index of each class in the class list, where batches number them anew; else None."""
        return self._classes if self._config.remap else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The WNID of each class index of batches."""
        numbers = self.class_numbers
        return tuple(self._wnids if numbers is None else (self._wnids[each] for each in numbers))

    def asked(self) -> dict[str, Any]:
        """Returns what was asked for as JSON; lists as their digests; empty for everything."""
        asked: dict[str, Any] = {}
        if self._classes:
            asked["classes"] = canonical.digest(self._classes)
        if self._config.remap:
            asked["remap"] = True
        if self._keys is not None:
            asked["keys"] = self._keys.sha256
        if self._excluded is not None:
            asked["exclude"] = self._excluded.sha256
        seed = {"choice_seed": self._config.choice_seed}
        if self._config.fraction < 1:
            asked |= {"fraction": self._config.fraction, **seed}
        if self._config.fold[1] > 1:
            asked |= {"fold": [*self._config.fold], **seed}
        if self._config.others:
            asked["others"] = True
        return asked

    def numbers(self, records: Records, kept: Path) -> npt.NDArray[np.int64]:
        """Returns the numbers of the chosen examples, sorted.

        Args:
          records: of the split.
          kept: folder where names are kept that were read once.

        Raises:
          UsageError: nothing is chosen, a class or key is unknown, or the set has no names.
          ImagenetPrepError: as for `Records.name`.
        """
        where = f"{records.split} of {records.root}"
        if records.placement.nodes > 1:
            raise UsageError(f"{where} is {records.placement}: choose examples of a whole set")
        if schema.FILENAME in records.manifest.lacks and self.asked().keys() - {"classes", "remap"}:
            raise UsageError(f"{where}: its records name no files, so only classes can be chosen")
        names = _names(records, kept, in_turn=True)
        chosen = np.ones(len(names), bool)
        if self._classes:
            chosen &= np.isin(names["class_index"], self._classes)
        if self._keys is not None:
            chosen &= _listed(self._keys, names["hashed"], where)
        if self._excluded is not None:
            chosen &= ~_listed(self._excluded, names["hashed"], where)
        uniform = mix(names["hashed"] ^ stream(self._config.choice_seed, _FRACTION))
        chosen &= (uniform >> np.uint64(11)) * 2.0**-53 < self._config.fraction
        part, parts = self._config.fold
        dealt = mix(names["hashed"] ^ stream(self._config.choice_seed, _FOLD))
        chosen &= (dealt % np.uint64(parts) == part) != self._config.others
        if not chosen.any():
            raise UsageError(f"{where}: no example of it is chosen. Choose more, or all.")
        return np.flatnonzero(chosen)


class Finder:
    """Finds examples by their keys, by a sorted table of hashes: 16 bytes an example."""

    def __init__(self, records: Records, kept: Path) -> None:
        """Takes a split, and the folder where its names are kept, as `Choice.numbers` does."""
        self._records = records
        hashed = _names(records, kept, in_turn=False)["hashed"]
        self._numbers = np.argsort(hashed, kind="stable")
        self._hashed = hashed[self._numbers]

    def find(self, key: str) -> int:
        """Returns and raises as `Reader.find`."""
        wnids = self._records.wnids
        # An example is kept under one of them, and asked for under either.
        spelled = itertools.chain((key, key.partition("/")[2]), (f"{wnid}/{key}" for wnid in wnids))
        for hashed in map(_hash, spelled):
            at = int(np.searchsorted(self._hashed, np.uint64(hashed)))
            while at < len(self._hashed) and self._hashed[at] == hashed:
                number = int(self._numbers[at])
                class_index, found = self._records.name(number)
                folder = f"{wnids[class_index]}/"
                if key in (name := found.removeprefix(folder), folder + name):
                    return number
                at += 1
        raise KeyError(key)


def class_indices(asked: Sequence[str | int], wnids: Sequence[str]) -> list[int]:
    """Returns the class indices of classes that are given by WNID or by class index, sorted.

    Raises:
      UsageError: one of them is not in the class list.
    """
    numbers = range(len(wnids))
    index: dict[str | int, int] = {str(number): number for number in numbers}
    # A class may be called by a number: its name counts first.
    index |= dict(zip(wnids, numbers, strict=True)) | dict(zip(numbers, numbers, strict=True))
    if unknown := [each for each in asked if each not in index]:
        raise UsageError(
            f"classes: {some(unknown)} not in the class list, which has {len(wnids):,} classes "
            f"from {wnids[0]} (0) to {wnids[-1]} ({len(wnids) - 1})"
        )
    return sorted({index[each] for each in asked})


def _listed(keys: KeyList, hashed: npt.NDArray[np.uint64], where: str) -> npt.NDArray[np.bool_]:
    """Returns which of the examples, given by the hashes of their keys, a list names.

    Raises:
      UsageError: it names one that is not among them.
    """
    key_of = {_hash(key): key for key in keys.keys}
    listed = np.fromiter(key_of, np.uint64, len(key_of))
    unknown = listed[~np.isin(listed, hashed)]
    keys.refuse_unknown([key_of[each] for each in unknown.tolist()], where)
    return np.isin(hashed, listed)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def _names(records: Records, kept: Path, *, in_turn: bool) -> npt.NDArray[Any]:
    """Returns class index and hash of the key of each example; they are read once a machine.

    In turn: a cache may fetch the shards ahead, since no epoch is reading them.
    """
    store, name = LocalStore(kept), f"{naming.WORK}/names-{records.split}"
    with contextlib.ExitStack() as held:
        try:
            # One of the ranks reads the names, and the others wait for them.
            held.enter_context(only_one(store, f"names-{records.split}"))
        except StoreError as error:
            raise StoreError(
                f"{error}. The names of all examples are kept there: let {naming.CACHE} name a "
                "folder that can be written to."
            ) from error
        num_bytes = _SHA256_BYTES + len(records) * _NAME.itemsize
        content = store.read(name, most=num_bytes) if store.size(name) == num_bytes else b""
        proof, table = content[:_SHA256_BYTES], content[_SHA256_BYTES:]
        if hashlib.sha256(table).digest() != proof:
            if in_turn:
                # A remote set comes through the cache, shard by shard.
                records.follow([[shard] for shard in range(len(records.examples_per_shard))])
            read = map(records.name, range(len(records)))
            rows = ((class_index, _hash(key)) for class_index, key in read)
            table = np.fromiter(rows, _NAME, len(records)).tobytes()
            store.write(name, hashlib.sha256(table).digest() + table)
    return np.frombuffer(table, _NAME)
