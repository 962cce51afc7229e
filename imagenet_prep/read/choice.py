"""Which examples of a split are read: classes, keys, a fraction, a fold."""

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
from imagenet_prep.dataset.keys import read_list
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
        """Looks classes up, and reads the list of keys.

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
        self._config = config
        self._classes = sorted({index[each] for each in asked})
        self._keys = None if config.keys is None else read_list(config.keys)

    def asked(self) -> dict[str, Any]:
        """Returns what was asked for as JSON; lists as their digests; empty for everything."""
        asked: dict[str, Any] = {}
        if self._classes:
            asked["classes"] = canonical.digest(self._classes)
        if self._keys is not None:
            asked["keys"] = self._keys.sha256
        seed = {"choice_seed": self._config.choice_seed}
        if self._config.fraction < 1:
            asked |= {"fraction": self._config.fraction, **seed}
        if self._config.fold[1] > 1:
            asked |= {"fold": [*self._config.fold], **seed}
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
        if self._classes:
            chosen &= np.isin(names["class_index"], self._classes)
        if self._keys is not None:
            hashed = {_hash(key): key for key in self._keys.keys}
            listed = np.fromiter(hashed, np.uint64, len(hashed))
            unknown = listed[~np.isin(listed, names["hashed"])]
            self._keys.refuse_unknown([hashed[each] for each in unknown.tolist()], where)
            chosen &= np.isin(names["hashed"], listed)
        uniform = mix(names["hashed"] ^ stream(self._config.choice_seed, _FRACTION))
        chosen &= (uniform >> np.uint64(11)) * 2.0**-53 < self._config.fraction
        part, parts = self._config.fold
        dealt = mix(names["hashed"] ^ stream(self._config.choice_seed, _FOLD))
        chosen &= dealt % np.uint64(parts) == part
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
