"""Reads Parquet files with columns image {bytes, path} and label, like Hugging Face's imagenet-1k.

The test split of imagenet-1k is ignored, because it has no labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.installed import demand
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.sources import labels, pages, parquet_layout, source
from imagenet_prep.sources.evidence import CLASSES, Claim, Statement, compare
from imagenet_prep.sources.parquet_layout import columns_of
from imagenet_prep.sources.source import IndexTask, PackedImage
from imagenet_prep.storage.os_errors import demand_disk
from imagenet_prep.storage.remote_path import open_to_read

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]


# 64 images of ImageNet have 7 MB. A page is in memory twice, which takes 11 to 110 MB.
_BATCH_ROWS = 64
_PAGE_BUFFER_BYTES = 1 << 20
_MAX_GROUP_BYTES = 384 << 20  # 1,000 images that are three times as large as ImageNet's
_PROBE_ROWS = 100  # rows with paths to compare with the official class list


@dataclass(frozen=True)
class Parquet(source.Packed):
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
        with _opened(path) as (file, descriptor):
            rows = _rows(file, descriptor, "image", _BATCH_ROWS)
            ours = _is_ours(file)
            for row, (label, image) in enumerate(rows):
                yield self._image(task, f"{path}: row {row:,}", row, label, image, ours=ours)

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns messages about missing files and about differences from the published counts."""
        problems = []
        if absent := self.absent[split]:
            existing = len(self.index_tasks(split))
            problems.append(f"{split} has {existing} of {counted(existing + absent, 'file')}")
        return problems + super().count_problems(split, num_per_class)

    def _image(
        self, task: IndexTask, where: str, row: int, label: Any, image: Any, *, ours: bool
    ) -> PackedImage:
        if not isinstance(label, int) or not 0 <= label < len(self.classes.wnids):
            advice = "The file is damaged or from a different dataset: download it again."
            if label in (None, -1):
                advice = "Images without a label, as in many test splits, are not read."
            raise SourceError(
                f"{where}: label {label!r}, expected 0 to {len(self.classes.wnids) - 1:,}. {advice}"
            )
        if task.part in self.orders:
            label = self.orders[task.part][label]
        data = (image or {}).get("bytes")
        if data is None:
            raise SourceError(
                f"{where}: holds no image bytes, only the path {(image or {}).get('path')!r}. "
                "Save the dataset with its images embedded."
            )
        class_id = self.classes.wnids[label]
        # An image without a path is named after its file and row.
        base = _base(image) or f"{task.part.removesuffix('.parquet')}_{row:08d}"
        if ours and keys.problem(str(image["path"])) is None:
            # The label is right, even if the key names a different class.
            return PackedImage(image["path"], label, data)
        if (appended := keys.APPENDED_WNID.match(base)) is not None:
            if appended["wnid"] != class_id and keys.WNID.fullmatch(class_id):
                raise SourceError(
                    f"{where}: label {label} is {class_id}, but the path {base!r} names "
                    f"{appended['wnid']}. The file is damaged: download it again."
                )
            base = keys.without_wnid(base)
        return PackedImage(self.key_of(task.split, label, base, where), label, data)


def is_there(root: Path) -> bool:
    """Returns whether a folder contains Parquet files of a split."""
    return bool(parquet_layout.files_of(root))


def find(root: Path, splits: Sequence[str]) -> Parquet:
    """Returns the source of `splits`; raises UsageError if a split has no files."""
    all_files = parquet_layout.files_of(root)
    of_split = {split: parquet_layout.split_files(all_files, split) for split in splits}
    if missing := [split for split in splits if not of_split[split]]:
        names = [file.name for file in all_files]
        if not names and root.is_dir():
            names = sorted(path.name for path in root.iterdir())
        raise UsageError(
            f"--source {root}: no {' and no '.join(f'{split}-*.parquet' for split in missing)}; "
            f"it holds {some(names) or 'nothing'}. Choose different --splits or a different folder."
        )
    absent = {split: parquet_layout.num_absent(found) for split, found in of_split.items()}
    files: dict[str, Path] = {}
    tasks = []
    for split, found in of_split.items():
        for file in found:
            files[file.name] = file.path
            num_bytes = _image_bytes(file.path)
            tasks.append(IndexTask(file.name, split, file.name, num_bytes=num_bytes))
    named = _names_by_file(files)
    orders = _orders(files, named)
    classes = _classes(files[next(iter(named), next(iter(files)))])
    parts = tuple(source.file_part(path)._replace(name=name) for name, path in files.items())
    evidence = tuple(_statements(named, orders))
    return Parquet(classes, parts, files, absent, orders, tasks=tuple(tasks), evidence=evidence)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ParquetFile, int]]:
    """Checks the columns of a file; yields the open file and its descriptor."""
    demand("parquet", str(path), "pyarrow")
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq

    try:
        # Without memory mapping and read-ahead, memory is limited to a page or two.
        reading = {"buffer_size": _PAGE_BUFFER_BYTES, "pre_buffer": False}
        with open_to_read(path) as opened, pq.ParquetFile(opened, **reading) as file:
            columns_of(file.schema_arrow, path)
            yield file, opened.fileno()
    except (pa.ArrowException, OSError, ValueError) as error:
        demand_disk(path, error)
        raise SourceError(
            f"{path}: cannot be read as Parquet: {error}. It is damaged: download it again."
        ) from error


def _rows(
    file: ParquetFile, descriptor: int, column: str, at_once: int
) -> Iterator[tuple[Any, Any]]:
    """Yields (label, image) of each row; if `column` is "image.path", images have no bytes."""
    names = columns_of(file.schema_arrow, "the file")
    column = column.replace("image", names.image, 1)
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            if f"{chunk.path_in_schema}.".startswith((f"{names.label}.", f"{column}.")):
                pages.check(descriptor, chunk)
    for batch in file.iter_batches(at_once, columns=[names.label, column], use_threads=False):
        columns = (batch.column(names.label).to_pylist(), batch.column(names.image).to_pylist())
        yield from zip(*columns, strict=True)


def _image_bytes(path: Path) -> int:
    with _opened(path) as (file, _):
        data = f"{columns_of(file.schema_arrow, path).image}.bytes"
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    if any(not 0 <= c.total_uncompressed_size <= _MAX_GROUP_BYTES for c in columns):
        raise SourceError(
            f"{path}: a row group has more than {_MAX_GROUP_BYTES:,} bytes, but must fit in "
            "memory. Save the dataset with fewer rows per group."
        )
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == data)


def _is_ours(file: ParquetFile) -> bool:
    """Returns whether `export` wrote the file, so that the paths of images are their keys."""
    return schema.PARQUET_KEYS.encode() in (file.schema_arrow.metadata or {})


def _base(image: dict[str, Any]) -> str:
    return str(image["path"] or "").rpartition("/")[2]


def _names_by_file(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Returns the class names of each file that has them in its metadata."""
    named: dict[str, list[str]] = {}
    for part, path in files.items():
        with _opened(path) as (file, _):
            names = _class_names(file, path)
        if names:
            named[part] = names
    return named


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
    with _opened(path) as (file, descriptor):
        names = _class_names(file, path)
        if names and (_is_ours(file) or all(keys.WNID.fullmatch(name) for name in names)):
            return labels.classes_called(names, str(path))
        verdicts: Counter[bool] = Counter()
        # Without image.bytes, this reads a few kB.
        for label, image in _rows(file, descriptor, "image.path", _PROBE_ROWS):
            match = keys.APPENDED_WNID.match(_base(image or {"path": None}))
            verdicts[match is not None and official.index.get(match["wnid"]) == label] += 1
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


def _class_names(file: ParquetFile, path: Path) -> list[str]:
    text = (file.schema_arrow.metadata or {}).get(b"huggingface")
    if text is None:
        return []
    try:
        label = columns_of(file.schema_arrow, path).label
        names = canonical.loads(text)["info"]["features"][label].get("names", [])
        return [str(name) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{path}: the schema's metadata 'huggingface' is invalid: {error!r}. Save it again."
        ) from error
