"""Finds the TFRecord shards of this and other programs by their file names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.regular_file import MOST_LIST_BYTES
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import export_keys, naming, schema
from imagenet_prep.dataset.export_keys import ExportKeys
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.sources.scan import read_errors
from imagenet_prep.storage.dataset_store import Dataset, open_dataset, require_file
from imagenet_prep.storage.remote import Stat
from imagenet_prep.storage.store import Store

_SPLIT = "|".join(schema.SPLITS)
_PLAIN = re.compile(rf"({_SPLIT})-(\d{{5}})-of-(\d{{5}})")
_TFDS = re.compile(rf"\w+-({_SPLIT})\.tfrecord-(\d{{5}})-of-(\d{{5}})")


class ShardFile(NamedTuple):
    """A file that is a TFRecord shard."""

    split: str
    number: int  # from 0
    num_shards: int
    path: str
    stat: Stat
    listed: Shard | None = None  # its entry in the manifest, if this program wrote it
    keys: Mapping[str, str] = {}  # by FILE:NUMBER, from an export's list; see `export_keys`

    @property
    def file(self) -> str:
        """The file's base name."""
        return self.path.rpartition("/")[2]

    @property
    def sha256(self) -> str:
        """The file's SHA-256 in the manifest, or "" if there is no manifest."""
        return self.listed.sha256 if self.listed else ""

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.stat.size

    @property
    def name(self) -> str:
        """The name that this program gives to the shard."""
        return naming.shard_name(self.split, self.number, self.num_shards)


@dataclass(frozen=True)
class TfrecordSet:
    """The shards of each split in a store, in order."""

    store: Store
    splits: dict[str, tuple[ShardFile, ...]]
    dataset: Dataset | None  # None if a different program wrote the shards

    @property
    def manifest(self) -> Manifest | None:
        """The dataset's manifest, if this program wrote it."""
        return self.dataset.manifest if self.dataset else None


@read_errors("")
def find(store: Store, *, check: bool = True) -> TfrecordSet:
    """Returns the shards in `store` or its split folders; passes `check` to `open_dataset`."""
    where = store.where()
    local = store.as_folder
    if local is not None and not local.root.is_dir():
        raise UsageError(f"{where}: no such folder. {_remedy(local.root)}")
    require_file(store)
    entries = store.list_folder()
    files: dict[str, dict[tuple[str, int], dict[int, str]]] = {}
    stats: dict[str, Stat] = {}
    for folder in ("", *(split for split in schema.SPLITS if split in entries)):
        below = f"{folder}/" if folder else ""
        for name, stat in sorted(store.stats(folder).items()):
            path = below + name
            stats[path] = stat
            named = _parts(name)
            if named:
                family = (folder, named.num_shards)
                files.setdefault(named.split, {}).setdefault(family, {})[named.number] = path
    if not files:
        raise UsageError(
            f"{where}: no TFRecord shards here; found {some(entries) or 'nothing'}. Shards are "
            "named train-00000-of-01024 (or from 00001, or imagenet2012-train.tfrecord-00000-of-"
            "01024), in this folder or in train/ and validation/."
        )
    dataset = open_dataset(store, check=check) if naming.MANIFEST in stats else None
    listed: dict[str, Shard] = {}
    for listed_split in dataset.manifest.splits.values() if dataset else ():
        listed |= {shard.name: shard for shard in listed_split.shards}
    if len(files) > 1 and not (dataset and dataset.manifest.evaluates):
        files.pop(schema.TEST, None)  # in other programs, test has images without labels
    exported: ExportKeys = {}
    if dataset is None and naming.EXPORT_KEYS in stats:
        data = store.read(naming.EXPORT_KEYS, most=MOST_LIST_BYTES)
        exported = export_keys.parse(data, store.where(naming.EXPORT_KEYS))
    splits = {
        split: tuple(
            ShardFile(
                split,
                number,
                total,
                path,
                stats[path],
                listed=listed.get(path),
                keys=exported.get(split, {}),
            )
            for number, path, total in _in_order(where, split, files[split])
        )
        for split in filter(files.__contains__, schema.SPLITS)
    }
    return TfrecordSet(store, splits, dataset)


def _remedy(missing: Path) -> str:
    """Returns the advice for a missing folder; the parent may have the shards of its split."""
    split, parent = missing.name, missing.parent
    if split in schema.SPLITS and parent.is_dir():
        names = (_parts(path.name) for path in parent.iterdir())
        if any(named is not None and named.split == split for named in names):
            return f"The shards of {split} are in {parent}: give that folder, and --splits {split}."
    return "Check the path."


def _in_order(
    where: str, split: str, families: dict[tuple[str, int], dict[int, str]]
) -> list[tuple[int, str, int]]:
    """Returns (number from 0, path, total) of each shard; raises SourceError if one is missing."""
    (_, total), numbered = max(families.items(), key=lambda item: len(item[1]))
    strangers: list[str] = []
    for family in families.values():
        if family is not numbered:
            strangers += family.values()
    # The AWS resizer counts from 1.
    first = 1 if total in numbered and 0 not in numbered else 0
    expected = range(first, first + total)
    missing = [f"{number:05d}" for number in expected if number not in numbered]
    strangers += [path for number, path in numbered.items() if number not in expected]
    problems = []
    if missing:
        total_text = counted(total, "shard")
        problems.append(f"missing: {len(missing):,} of {total_text} ({some(missing)})")
    if strangers:
        count = counted(len(strangers), "file")
        names = some(sorted(strangers))
        problems.append(f"surplus (different dataset or number of shards): {count} ({names})")
    if problems:
        raise SourceError(
            f"{where}: {split}: {'; '.join(problems)}. Expected numbers {first} to "
            f"{first + total - 1}. Add the missing shards, and move surplus files away."
        )
    return [(number - first, path, total) for number, path in sorted(numbered.items())]


def split_of(name: str) -> str:
    """Returns the split of a shard's file name, or "" if it is not a shard name."""
    named = _parts(name)
    return named.split if named else ""


def becomes(path: str, name: str) -> bool:
    """Returns whether `adopt` can rename the shard at `path` to `name`."""
    base = path.rpartition("/")[2]
    before = _parts(base)
    after = naming.parse_shard_name(name)
    return (
        before is not None
        and after is not None
        and path in (base, *(f"{folder}/{base}" for folder in schema.SPLITS))
        and (after.split, after.num_shards) == (before.split, before.num_shards)
        and before.number - after.number in (0, 1)
        and after.number < after.num_shards
    )


def _parts(name: str) -> naming.ShardName | None:
    """Parses a shard name of any known program; the numbers may start at 1."""
    match = _PLAIN.fullmatch(name) or _TFDS.fullmatch(name)
    return naming.ShardName(match[1], int(match[2]), int(match[3])) if match else None
