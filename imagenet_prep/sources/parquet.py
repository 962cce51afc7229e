"""Finds and reads Parquet files with images and labels, like Hugging Face's imagenet-1k.

`ParquetSource` reads columns image {bytes, path} and label. The test split of imagenet-1k is
ignored, because it has no labels.

`files_of` and `columns_of` find the Parquet files and the columns of a dataset, as the Hugging Face
Hub names them.

| files | written by |
|---|---|
| data/train-00000-of-00294.parquet | `datasets` |
| data/train-00000-of-00001-2b29be5e9a5d5a0e.parquet | `datasets` before 2.14 |
| default/train/0000.parquet | the Hub, in its branch refs/convert/parquet |
| train.parquet, valid_1.parquet | users |
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.imports import require_modules
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.sources import containers, labels, layout, pages, source
from imagenet_prep.sources.labels import CLASSES, Claim, Statement, compare
from imagenet_prep.sources.scan import subfolders
from imagenet_prep.sources.source import IndexTask, PackedImage
from imagenet_prep.storage.local_file import require_disk
from imagenet_prep.storage.remote_path import open_to_read

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema  # type: ignore[import-untyped]
    from pyarrow.parquet import (  # type: ignore[import-untyped]
        ColumnChunkMetaData,
        ParquetFile,
        RowGroupMetaData,
    )


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


class ParquetColumns(NamedTuple):
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


def columns_of(columns: Schema, where: object) -> ParquetColumns:
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
    return ParquetColumns(images[0], label)


def split_files(files: Sequence[SplitFile], split: str) -> list[SplitFile]:
    """Returns the files of a split; a test split is validation if there is no other."""
    found = [file for file in files if file.split == split]
    if not found and split == schema.VALIDATION:
        found = [file for file in files if file.split == schema.TEST]
    return found


_PAGE_BUFFER_BYTES = 1 << 20
# A value of a dictionary is in memory four times: in its page, in the dictionary, in the row and in
# the previous row, which pyarrow keeps until the next one is complete. Other values: three times.
_COPIES = 4
# Memory for a listed image: 460 bytes with a short key. Keys of up to 350 bytes are rare.
_ROW_BYTES = 640
# Enough for row groups of 134 MB, which are 1,200 images of ImageNet, or for 800,000 small images.
_MOST_BYTES = 512 << 20
_PROBE_ROWS = 100  # rows with paths to compare with the official class list


class _File(NamedTuple):
    """An open Parquet file and its columns."""

    path: Path
    reader: ParquetFile
    descriptor: int
    columns: ParquetColumns


class _ImageRow(NamedTuple):
    """The values of one row; `data` is None if there is no image, or if images are not read."""

    number: int
    label: Any
    path: str | None
    data: memoryview | None = None


@dataclass(frozen=True)
class ParquetSource(source.Packed):
    """The Parquet files of a dataset by name, and the number of missing files by split."""

    files: dict[str, Path]
    absent: dict[str, int]
    # The class index of each label, for files that list the same classes in a different order.
    orders: dict[str, tuple[int, ...]]

    @property
    def identity(self) -> list[object]:
        """JSON values on which the index depends; the order of classes only if files differ."""
        return [*super().identity, self.orders] if self.orders else super().identity

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of one file, in row order."""
        path = self.files[task.part]
        with _opened(path) as file:
            allowance = containers.allowance(os.fstat(file.descriptor).st_size)
            ours = _is_ours(file)
            for row in _rows(file, file.columns.leaves):
                allowance.take(len(row.data or b""), str(path))
                yield self._image(task, row, ours=ours)
                del row  # its memory is needed for the next row

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns messages about missing files and about differences from the published counts."""
        problems = []
        absent = self.absent[split]
        if absent:
            existing = len(self.index_tasks(split))
            problems.append(f"{split} has {existing} of {counted(existing + absent, 'file')}")
        else:
            problems += source.missing_file_problems(split, self.index_tasks(split))
        return problems + super().count_problems(split, num_per_class)

    def _image(self, task: IndexTask, row: _ImageRow, *, ours: bool) -> PackedImage:
        where = f"{self.files[task.part]}: row {row.number:,}"
        label = row.label
        if not isinstance(label, int) or not 0 <= label < len(self.classes.wnids):
            advice = "The file is damaged or from a different dataset: download it again."
            if label in (None, -1):
                advice = "Images without a label, as in many test splits, are not read."
            raise SourceError(
                f"{where}: label {label!r}, expected 0 to {len(self.classes.wnids) - 1:,}. {advice}"
            )
        if task.part in self.orders:
            label = self.orders[task.part][label]
        if row.data is None:
            raise SourceError(
                f"{where}: holds no image bytes, only the path {row.path!r}. "
                "Save the dataset with its images embedded."
            )
        class_id = self.classes.wnids[label]
        # An image without a path is named after its file and row.
        base = _base(row.path) or f"{task.part.removesuffix('.parquet')}_{row.number:08d}"
        if ours and row.path is not None and keys.problem(row.path) is None:
            # The label is right, even if the key names a different class.
            return PackedImage(row.path, label, row.data)
        appended = keys.APPENDED_WNID.match(base)
        if appended is not None:
            if appended["wnid"] != class_id and keys.WNID.fullmatch(class_id):
                raise SourceError(
                    f"{where}: label {label} is {class_id}, but the path {base!r} names "
                    f"{appended['wnid']}. The file is damaged: download it again."
                )
            base = keys.without_wnid(base)
        return PackedImage(self.key_of(task.split, label, base, where), label, row.data)


def is_there(root: Path) -> bool:
    """Returns whether a folder contains Parquet files of a split."""
    return bool(files_of(root))


def find(root: Path, splits: Sequence[str]) -> ParquetSource:
    """Returns the source of `splits`; raises UsageError if a split has no files."""
    all_files = files_of(root)
    files_by_split = {split: split_files(all_files, split) for split in splits}
    missing = [split for split in splits if not files_by_split[split]]
    if missing:
        names = [file.name for file in all_files]
        if not names and root.is_dir():
            names = sorted(path.name for path in root.iterdir())
        raise UsageError(
            f"--source {root}: no {' and no '.join(f'{split}-*.parquet' for split in missing)}; "
            f"it holds {some(names) or 'nothing'}. Choose different --splits or a different folder."
        )
    absent = {split: num_absent(found) for split, found in files_by_split.items()}
    files: dict[str, Path] = {}
    named: dict[str, list[str]] = {}
    tasks = []
    for split, found in files_by_split.items():
        for part in found:
            files[part.name] = part.path
            with _opened(part.path) as file:
                num_bytes, memory = _sizes(file)
                names = _class_names(file)
            task = IndexTask(part.name, split, part.name, num_bytes=num_bytes, memory=memory)
            tasks.append(task)
            if names:
                named[part.name] = names
    orders = _orders(files, named)
    classes = _classes(files[next(iter(named), next(iter(files)))])
    parts = tuple(source.file_part(path)._replace(name=name) for name, path in files.items())
    evidence = tuple(_statements(named, orders))
    return ParquetSource(
        classes, parts, files, absent, orders, tasks=tuple(tasks), evidence=evidence
    )


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    """Opens a file; raises SourceError if it lacks the expected columns, or is damaged."""
    require_modules("parquet", str(path), "pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The other pools keep freed memory for a while.
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        # Without memory mapping and read-ahead, memory is limited to a page or two.
        reading = {"buffer_size": _PAGE_BUFFER_BYTES, "pre_buffer": False}
        with open_to_read(path) as opened:
            pages.require_sound_footer(opened.fileno(), path)
            with pq.ParquetFile(opened, **reading) as reader:
                columns = columns_of(reader.schema_arrow, path)
                yield _File(path, reader, opened.fileno(), columns)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        require_disk(path, error)
        raise SourceError(
            f"{path}: cannot be read as Parquet: {error}. It is damaged: download it again."
        ) from error


def _groups(
    file: _File, columns: Sequence[str]
) -> Iterator[tuple[RowGroupMetaData, list[ColumnChunkMetaData]]]:
    """Yields the metadata of each row group, and of these columns in it."""
    metadata = file.reader.metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        yield group, [chunk for chunk in chunks if chunk.path_in_schema in columns]


def _rows(file: _File, columns: Sequence[str]) -> Iterator[_ImageRow]:
    """Yields all rows with these columns: all `leaves`, or all except the bytes of the images."""
    for _, chunks in _groups(file, columns):
        for chunk in chunks:
            pages.check(file.descriptor, chunk, file.path)
    # In a batch of several rows, a value would be repeated for each row that uses it.
    batches = file.reader.iter_batches(1, columns=columns, use_threads=False)
    for number, batch in enumerate(batches):
        yield _row(file, batch, number)


def _row(file: _File, batch: RecordBatch, number: int) -> _ImageRow:
    image = batch.column(file.columns.image)
    values = {field.name: image.field(field.name)[0] for field in image.type}
    path = values["path"]
    if path.is_valid and len(path.as_buffer()) > keys.MOST_KEY_BYTES:
        raise SourceError(
            f"{file.path}: row {number:,}: its path has {len(path.as_buffer()):,} bytes, expected "
            f"at most {keys.MOST_KEY_BYTES:,}. Save the dataset with shorter paths."
        )
    data = values.get("bytes")
    # The bytes are not copied.
    shown = memoryview(data.as_buffer()) if data is not None and data.is_valid else None
    return _ImageRow(number, batch.column(file.columns.label)[0].as_py(), path.as_py(), shown)


def _sizes(file: _File) -> tuple[int, int]:
    """Returns the bytes of all pages with images, and the memory for reading the file."""
    columns = file.columns.leaves
    num_bytes = largest = num_rows = 0
    for group, chunks in _groups(file, columns):
        group_bytes = 0
        for chunk in chunks:
            sizes = (chunk.total_uncompressed_size, chunk.total_compressed_size)
            if min(sizes) < 0:
                raise ValueError("the size of a column is negative")
            group_bytes += max(sizes)
            if chunk.path_in_schema == columns[-1]:
                num_bytes += sizes[0]
        largest = max(largest, group_bytes)
        num_rows += max(0, group.num_rows)
    memory = _COPIES * largest + _ROW_BYTES * num_rows
    if memory > _MOST_BYTES:
        raise SourceError(
            f"{file.path}: reading it takes {memory:,} bytes of memory, expected at most "
            f"{_MOST_BYTES:,}. The images of its largest row group have {largest:,} bytes, and the "
            f"file has {counted(num_rows, 'row')}. Save the dataset with fewer rows per group, or "
            "in more files."
        )
    return num_bytes, memory


def _is_ours(file: _File) -> bool:
    """Returns whether `export` wrote the file, so that the paths of images are their keys."""
    return schema.PARQUET_KEYS.encode() in (file.reader.schema_arrow.metadata or {})


def _base(path: str | None) -> str:
    return (path or "").rpartition("/")[2]


def _orders(
    files: Mapping[str, Path], named: Mapping[str, list[str]]
) -> dict[str, tuple[int, ...]]:
    """Returns the class index of each label for files that list the classes in another order.

    Raises SourceError if a file lists other classes than the first one.
    """
    orders: dict[str, tuple[int, ...]] = {}
    first = next(iter(named), "")
    for part, names in named.items():
        indices = {name: index for index, name in enumerate(named[first])}
        if sorted(names) == sorted(indices) and names != named[first]:
            orders[part] = tuple(indices[name] for name in names)
        else:
            pair = (Claim(str(files[f]), dict(enumerate(named[f]))) for f in (first, part))
            advice = "Keep only the files of one dataset, or save both with the same ClassLabel."
            compare("label", pair, advice, complete=True)
    return orders


def _statements(
    named: Mapping[str, list[str]], orders: Mapping[str, object]
) -> Iterator[Statement]:
    for part, names in named.items():
        order = " in a different order: labels are mapped by name" if part in orders else ""
        yield Statement(CLASSES, part, counted(len(names), "name") + order)


def _classes(path: Path) -> ClassList:
    """Returns ILSVRC2012's class list if most of the first paths match it, else the schema's."""
    official = labels.official_classes()
    with _opened(path) as file:
        names = _class_names(file)
        if names and (_is_ours(file) or all(keys.WNID.fullmatch(name) for name in names)):
            return labels.classes_called(names, str(path))
        verdicts: Counter[bool] = Counter()
        # Without image.bytes, this reads a few kB.
        for row in _rows(file, file.columns.leaves[:-1]):
            match = keys.APPENDED_WNID.match(_base(row.path))
            verdicts[match is not None and official.index.get(match["wnid"]) == row.label] += 1
            if verdicts.total() == _PROBE_ROWS:
                break
    if verdicts[True] > verdicts[False]:
        return official
    if names:
        return labels.classes_called(names, str(path))
    raise UsageError(
        f"{path}: has no class names in the schema's metadata (huggingface: features: label: "
        "names), and no paths with the WNIDs of the labels. Save the dataset with its ClassLabel "
        "feature."
    )


def _class_names(file: _File) -> list[str]:
    text = (file.reader.schema_arrow.metadata or {}).get(b"huggingface")
    if text is None:
        return []
    try:
        names = strict_json.loads(text)["info"]["features"][file.columns.label].get("names", [])
        return [str(name) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{file.path}: the schema's metadata 'huggingface' is invalid: {error!r}. Save it "
            "again."
        ) from error
