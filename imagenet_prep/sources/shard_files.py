"""The files of a set of TFRecord shards, as any program names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.dataset import manifest, naming, schema

_SPLIT = "|".join(schema.SPLITS)
_PLAIN = re.compile(rf"({_SPLIT})-(\d{{5}})-of-(\d{{5}})")
_TFDS = re.compile(rf"\w+-({_SPLIT})\.tfrecord-(\d{{5}})-of-(\d{{5}})")


class ShardFile(NamedTuple):
    """One shard as it lies there.

    Attributes:
      split: "train", "validation" or "holdout".
      number: 0-based, whatever the file's name begins to count from.
      num_shards: of the split.
      path: the file.
      num_bytes: its size.
    """

    split: str
    number: int
    num_shards: int
    path: Path
    num_bytes: int

    @property
    def name(self) -> str:
        """The name this shard has in a data set of this program."""
        return naming.shard_name(self.split, self.number, self.num_shards)


@dataclass(frozen=True)
class TfrecordSet:
    """The shards of one folder.

    Attributes:
      root: the folder.
      splits: shards by split, in order, none missing.
      manifest: of the set, where this program made it.
    """

    root: Path
    splits: dict[str, tuple[ShardFile, ...]]
    manifest: manifest.Manifest | None


def find(root: Path) -> TfrecordSet:
    """Returns the set of shards in `root`, or in folders below it that are called as splits.

    Raises:
      UsageError: there is none.
      SourceError: shards are missing, or shards of two sets lie there.
      ManifestError: its dataset.json is damaged.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    files: dict[str, dict[tuple[Path, int], dict[int, Path]]] = {}
    for folder in (root, *(root / split for split in schema.SPLITS)):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            named = _parts(path.name)
            if named and path.is_file():
                family = (folder, named.num_shards)
                files.setdefault(named.split, {}).setdefault(family, {})[named.number] = path
    if not files:
        there = some(sorted(path.name for path in root.iterdir())) or "nothing"
        raise UsageError(
            f"{root}: no TFRecord shards here; found {there}. Shards are named "
            "train-00000-of-01024 (or from 00001, or imagenet2012-train.tfrecord-00000-of-01024), "
            "flat or in train/ and validation/."
        )
    splits = {
        split: _in_order(root, split, files[split]) for split in schema.SPLITS if split in files
    }
    path = root / naming.MANIFEST
    known = manifest.loads(path.read_bytes(), str(path)) if path.is_file() else None
    return TfrecordSet(root, splits, known)


def _in_order(
    root: Path, split: str, families: dict[tuple[Path, int], dict[int, Path]]
) -> tuple[ShardFile, ...]:
    (_, total), numbered = max(families.items(), key=lambda item: len(item[1]))
    strangers = [
        path for family in families.values() if family is not numbered for path in family.values()
    ]
    # The AWS resizer raises its counter before it makes the name.
    first = 1 if total in numbered and 0 not in numbered else 0
    expected = range(first, first + total)
    missing = [number for number in expected if number not in numbered]
    strangers += [path for number, path in numbered.items() if number not in expected]
    problems = []
    if missing:
        numbers = some([f"{number:05d}" for number in missing])
        problems.append(f"{len(missing)} of {total} shards are missing ({numbers})")
    if strangers:
        names = some([path.relative_to(root) for path in sorted(strangers)])
        problems.append(
            f"{len(strangers)} surplus files, of another set or another number of shards ({names})"
        )
    if problems:
        raise SourceError(
            f"{root}: {split}: {'; '.join(problems)}. Names count from {first} to "
            f"{first + total - 1}. Add the missing shards, or move away the files "
            "that do not belong here."
        )
    return tuple(
        ShardFile(split, number - first, total, path, path.stat().st_size)
        for number, path in sorted(numbered.items())
    )


def split_of(name: str) -> str:
    """Returns the split of a shard's file name, "" where it is none."""
    named = _parts(name)
    return named.split if named else ""


def becomes(path: str, name: str) -> bool:
    """Returns whether a shard that `find` lists as `path` may be called `name` here.

    Args:
      path: relative to the folder.
      name: in a data set of this program.
    """
    base = path.rpartition("/")[2]
    there, here = _parts(base), naming.parse_shard_name(name)
    return (
        there is not None
        and here is not None
        and path in (base, *(f"{folder}/{base}" for folder in schema.SPLITS))
        and (here.split, here.num_shards) == (there.split, there.num_shards)
        # Names may count from 1.
        and there.number - here.number in (0, 1)
        and here.number < here.num_shards
    )


def _parts(name: str) -> naming.ShardName | None:
    """Returns the parts of a shard's name, whoever gave it; the number as the name says it."""
    match = _PLAIN.fullmatch(name) or _TFDS.fullmatch(name)
    return naming.ShardName(match[1], int(match[2]), int(match[3])) if match else None
