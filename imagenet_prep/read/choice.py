"""Which examples of a split are read: classes, keys, a fraction, a fold."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import StoreError, UsageError, some
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import KeyList, read_list
from imagenet_prep.read.config import FOLDER_VARIABLE, ReadConfig
from imagenet_prep.read.order import mix, stream
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records

# Independent streams of random numbers from one seed.
_FRACTION, _FOLD = 1, 2
_NAME = np.dtype([("class_index", "<i4"), ("hashed", "<u8")])
_SHA256_BYTES = 32


@dataclass(frozen=True)
class Choice:
    """What was asked for; an example is read if all of it holds.

    Attributes:
      classes: class indices; empty for all.
      keys: a list of keys; None for all.
      fraction: share of the examples, as their keys' hashes fall; 1 for all.
      fold: (k, n): part k, from 0, of n that hashes deal out; (0, 1) for all.
      seed: of the hashes.
    """

    classes: frozenset[int] = frozenset()
    keys: KeyList | None = None
    fraction: float = 1.0
    fold: tuple[int, int] = (0, 1)
    seed: int = 0

    @classmethod
    def of(cls, config: ReadConfig, wnids: Sequence[str]) -> Choice:
        """Returns what a reader is asked for.

        Raises:
          UsageError: the list of keys cannot be read, or a class is not in the class list.
        """
        index: dict[str | int, int] = {}
        for number, wnid in enumerate(wnids):
            index[wnid] = index[number] = number
        asked = () if config.classes is None else config.classes
        if unknown := [each for each in asked if each not in index]:
            raise UsageError(
                f"classes: {some(unknown)} not in the class list, which has {len(wnids):,} classes "
                f"from {wnids[0]} (0) to {wnids[-1]} ({len(wnids) - 1})"
            )
        keys = None if config.keys is None else read_list(config.keys)
        classes = frozenset(index[each] for each in asked)
        return cls(classes, keys, config.fraction, config.fold, config.choice_seed)

    def asked(self) -> dict[str, Any]:
        """Returns what was asked for as JSON; lists as their digests; empty for everything."""
        asked: dict[str, Any] = {}
        if self.classes:
            asked["classes"] = canonical.digest(sorted(self.classes))
        if self.keys is not None:
            asked["keys"] = self.keys.sha256
        if self.fraction < 1:
            asked |= {"fraction": self.fraction, "choice_seed": self.seed}
        if self.fold[1] > 1:
            asked |= {"fold": [*self.fold], "choice_seed": self.seed}
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
        if schema.FILENAME in records.manifest.lacks and self.asked().keys() - {"classes"}:
            raise UsageError(f"{where}: its records name no files, so only classes can be chosen")
        names = _names(records, kept, in_turn=True)
        chosen = np.ones(len(names), bool)
        if self.classes:
            chosen &= np.isin(names["class_index"], list(self.classes))
        if self.keys is not None:
            hashed = {_hash(key): key for key in self.keys.keys}
            listed = np.fromiter(hashed, np.uint64, len(hashed))
            unknown = listed[~np.isin(listed, names["hashed"])]
            self.keys.refuse_unknown([hashed[each] for each in unknown.tolist()], where)
            chosen &= np.isin(names["hashed"], listed)
        uniform = mix(names["hashed"] ^ stream(self.seed, _FRACTION))
        chosen &= (uniform >> np.uint64(11)) * 2.0**-53 < self.fraction
        part, parts = self.fold
        chosen &= mix(names["hashed"] ^ stream(self.seed, _FOLD)) % np.uint64(parts) == part
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
        """Returns the number of the example with a key: CLASS/NAME, or NAME alone.

        Raises:
          KeyError: there is none.
          DataDamagedError: the name in a record is damaged.
        """
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


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def _names(records: Records, kept: Path, *, in_turn: bool) -> npt.NDArray[Any]:
    """Returns class index and hash of the key of each example; they are read once a machine.

    Args:
      records: of the split.
      kept: folder where they are kept.
      in_turn: whether a cache may fetch the shards ahead, which no epoch is reading then.
    """
    store, name = LocalStore(kept), f"{naming.WORK}/names-{records.split}"
    try:
        store.make_folder(naming.WORK)
        lock = store.open(f"{name}.lock", os.O_RDWR | os.O_CREAT)
    except StoreError as error:
        raise StoreError(
            f"{error}. The names of all examples are kept there: let {FOLDER_VARIABLE} name a "
            "folder that can be written to."
        ) from error
    try:
        # One of the ranks reads them, the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = store.read(name) if store.size(name) is not None else b""
        proof, table = content[:_SHA256_BYTES], content[_SHA256_BYTES:]
        if len(table) != len(records) * _NAME.itemsize or hashlib.sha256(table).digest() != proof:
            if in_turn:
                # A remote set comes through the cache, shard by shard.
                records.follow([[shard] for shard in range(len(records.examples_per_shard))])
            table = _read_names(records).tobytes()
            store.write(name, hashlib.sha256(table).digest() + table)
    finally:
        os.close(lock)
    return np.frombuffer(table, _NAME)


def _read_names(records: Records) -> npt.NDArray[Any]:
    names = (records.name(number) for number in range(len(records)))
    return np.fromiter(
        ((class_index, _hash(key)) for class_index, key in names), _NAME, len(records)
    )
