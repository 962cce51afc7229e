"""Finds the Parquet files and the columns of a dataset, as the Hugging Face Hub names them.

| files | written by |
|---|---|
| data/train-00000-of-00294.parquet | `datasets` |
| data/train-00000-of-00001-2b29be5e9a5d5a0e.parquet | `datasets` before 2.14 |
| default/train/0000.parquet | the Hub, in its branch refs/convert/parquet |
| train.parquet, valid_1.parquet | users |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.dataset import schema
from imagenet_prep.sources import layout
from imagenet_prep.sources.scan import subfolders

if TYPE_CHECKING:
    from pyarrow import Schema  # type: ignore[import-untyped]

# The Hub converts only the first 5 GB of a dataset, then its folders are named "partial-train".
_NAME = re.compile(
    r"(?:partial-)?(?P<split>[A-Za-z]+)(?:-(?P=split))?"
    r"(?:[-_.](?P<number>\d+)(?:-of-(?P<total>\d+))?(?:-[0-9a-f]+)?)?\.parquet"
)
_FOLDERS = ("data", "", "default")
_LABELS = ("label", "labels", "fine_label", "target", "class", "cls")
# The types of the columns in an image. Values of other types can take more memory than their pages.
_IMAGE = {
    "bytes": ("binary", "large_binary", "binary_view"),
    "path": ("string", "large_string", "string_view", "null"),
}
_SHOWN = 100
_EXPECTED = "expected image {bytes, path} and label, as in Hugging Face's image datasets"


class SplitFile(NamedTuple):
    """A Parquet file of a split."""

    split: str
    name: str  # unique, and valid as a file name
    path: Path
    number: int
    total: int | None  # number of files of the split, if known


class Columns(NamedTuple):
    """The names of the columns that are read."""

    image: str
    label: str

    @property
    def leaves(self) -> list[str]:
        """The columns in the file that have the labels, paths and bytes of the images."""
        return [self.label, f"{self.image}.path", f"{self.image}.bytes"]


def files_of(root: Path) -> list[SplitFile]:
    """Returns the Parquet files of all splits, sorted by name, from the first folder with any."""
    below = subfolders(root, any_name=True) if root.is_dir() else []
    # A configuration of a dataset may have its own folder.
    names = [*_FOLDERS, *below] if len(below) == 1 else _FOLDERS
    for name in names:
        found = _matching(root / name, [""]) or _in_split_folders(root / name)
        if found:
            return found
    return []


def has_split_folders(root: Path) -> bool:
    """Returns whether the Parquet files are in folders named after splits, such as `train`."""
    return bool(_in_split_folders(root))


def _in_split_folders(folder: Path) -> list[SplitFile]:
    below = subfolders(folder, any_name=True) if folder.is_dir() else []
    # Class folders are not opened, because they may have millions of files.
    return _matching(folder, [name for name in below if layout.split_in_name(name)])


def _matching(folder: Path, below: Sequence[str]) -> list[SplitFile]:
    found = []
    for path in chain.from_iterable((folder / name).glob("*.parquet") for name in below):
        name = "-".join(path.relative_to(folder).parts)
        match = _NAME.fullmatch(name)
        split = layout.split_in_name(match["split"]) if match else None
        if match and split:
            total = int(match["total"]) if match["total"] else None
            found.append(SplitFile(split, name, path, int(match["number"] or 0), total))
    return sorted(found)


def num_absent(files: Sequence[SplitFile]) -> int:
    """Returns the number of missing files of a split; raises SourceError for mixed datasets."""
    totals = {file.total for file in files}
    if len(totals) > 1 or len({file.number for file in files}) < len(files):
        raise SourceError(
            f"{files[0].path.parent}: its {files[0].split} files belong to datasets with different "
            f"numbers of files, or to two datasets: {some([file.name for file in files])}. Keep "
            "the files of only one dataset."
        )
    return (files[0].total or len(files)) - len(files)


def columns_of(columns: Schema, where: object) -> Columns:
    """Returns the columns of the images and labels; raises SourceError if there are none."""
    import pyarrow as pa

    index_of = columns.get_field_index
    # `get_field_index` is -1 for a name that is missing or appears twice.
    structs = [f for f in columns if pa.types.is_struct(f.type) and index_of(f.name) >= 0]
    images = [s.name for s in structs if min(map(s.type.get_field_index, _IMAGE)) >= 0]
    if "image" in images:
        images = ["image"]
    label = next((name for name in _LABELS if index_of(name) >= 0), None)
    if len(images) != 1 or label is None:
        raise SourceError(
            f"{where}: has the columns {', '.join(columns.names) or 'none'}; {_EXPECTED}."
        )
    kind = columns.field(label).type
    if not pa.types.is_integer(kind):
        raise SourceError(
            f"{where}: the column {label} is of type {kind}, but only integer labels are read. Use "
            f"dataset.class_encode_column({label!r}) of Hugging Face's datasets, and save it again."
        )
    for leaf, types in _IMAGE.items():
        found = str(columns.field(images[0]).type.field(leaf).type)
        if found not in types:
            raise SourceError(
                f"{where}: the column {images[0]}.{leaf} is of type {found[:_SHOWN]}, expected "
                f"{types[0]}. Save the dataset with this type."
            )
    return Columns(images[0], label)


def split_files(files: Sequence[SplitFile], split: str) -> list[SplitFile]:
    """Returns the files of a split; a test split is validation if there is no other."""
    found = [file for file in files if file.split == split]
    if not found and split == schema.VALIDATION:
        found = [file for file in files if file.split == schema.TEST]
    return found
