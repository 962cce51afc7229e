"""Reads Parquet files with columns image {bytes, path} and label, like Hugging Face's imagenet-1k.

The files are in the source folder or in its folder `data`. The test split of imagenet-1k is
ignored, because it has no labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
from imagenet_prep.sources import labels, pages, source
from imagenet_prep.sources.source import IndexTask, PackedImage
from imagenet_prep.storage.os_errors import demand_disk
from imagenet_prep.storage.remote_path import open_to_read

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

_NAME = re.compile(
    rf"^(?P<split>{'|'.join(schema.SOURCE_SPLITS)})-(?P<index>\d{{5}})-of-(?P<count>\d{{5}})\.parquet$"
)
# Hugging Face appends the WNID to every image name, also in validation.
_APPENDED_WNID = re.compile(rf"^(?P<stem>.+)_(?P<wnid>{keys.WNID.pattern})(?P<suffix>\.[A-Za-z]+)$")

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
            raise SourceError(
                f"{where}: label {label!r}, expected 0 to {len(self.classes.wnids) - 1:,}. "
                "The file is damaged or from a different dataset: download it again."
            )
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
        if (appended := _APPENDED_WNID.match(base)) is not None:
            if appended["wnid"] != class_id and keys.WNID.fullmatch(class_id):
                raise SourceError(
                    f"{where}: label {label} is {class_id}, but the path {base!r} names "
                    f"{appended['wnid']}. The file is damaged: download it again."
                )
            base = appended["stem"] + appended["suffix"]
        return PackedImage(self.key_of(task.split, label, base, where), label, data)


def folder(root: Path) -> Path | None:
    """Returns the folder that contains Parquet files of train or validation, or None."""
    for candidate in (root / "data", root):
        if candidate.is_dir() and any(_NAME.match(path.name) for path in candidate.iterdir()):
            return candidate
    return None


def find(root: Path, splits: Sequence[str]) -> Parquet:
    """Returns the source of `splits`; raises UsageError if a split has no files."""
    place = folder(root) or root
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    matches = [match for name in names if (match := _NAME.match(name))]
    of_split = {s: [match for match in matches if match["split"] == s] for s in splits}
    if missing := [split for split in splits if not of_split[split]]:
        raise UsageError(
            f"--source {root}: no {' and no '.join(f'{split}-*.parquet' for split in missing)}; "
            f"it holds {some(names) or 'nothing'}. Choose different --splits or a different folder."
        )
    absent = {}
    for split in splits:
        counts = {int(match["count"]) for match in of_split[split]}
        if len(counts) > 1:
            raise SourceError(
                f"{place}: its {split} files belong to datasets with different numbers of files: "
                f"{' and '.join(map(str, sorted(counts)))}. Keep the files of only one dataset."
            )
        absent[split] = counts.pop() - len(of_split[split])
    files = {match.string: place / match.string for s in splits for match in of_split[s]}
    tasks = tuple(
        IndexTask(match.string, split, match.string, num_bytes=_image_bytes(files[match.string]))
        for split in splits
        for match in of_split[split]
    )
    classes = _classes(next(iter(files.values())))
    parts = tuple(source.file_part(path) for path in files.values())
    return Parquet(classes, parts, files, absent, tasks=tasks)


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
            columns = file.schema_arrow
            image = columns.field("image").type if "image" in columns.names else pa.null()
            fields = {field.name for field in image} if pa.types.is_struct(image) else set()
            if not {"bytes", "path"} <= fields or "label" not in columns.names:
                raise SourceError(
                    f"{path}: has the columns {', '.join(columns.names) or 'none'}; expected "
                    "image {bytes, path} and label, as in Hugging Face's image datasets."
                )
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
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            if f"{chunk.path_in_schema}.".startswith(("label.", f"{column}.")):
                pages.check(descriptor, chunk)
    for batch in file.iter_batches(at_once, columns=["label", column], use_threads=False):
        columns = (batch.column("label").to_pylist(), batch.column("image").to_pylist())
        yield from zip(*columns, strict=True)


def _image_bytes(path: Path) -> int:
    with _opened(path) as (file, _):
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    if any(not 0 <= c.total_uncompressed_size <= _MAX_GROUP_BYTES for c in columns):
        raise SourceError(
            f"{path}: a row group has more than {_MAX_GROUP_BYTES:,} bytes, but must fit in "
            "memory. Save the dataset with fewer rows per group."
        )
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == "image.bytes")


def _is_ours(file: ParquetFile) -> bool:
    """Returns whether `export` wrote the file, so that the paths of images are their keys."""
    return schema.PARQUET_KEYS.encode() in (file.schema_arrow.metadata or {})


def _base(image: dict[str, Any]) -> str:
    return str(image["path"] or "").rpartition("/")[2]


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
            match = _APPENDED_WNID.match(_base(image or {"path": None}))
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
        names = canonical.loads(text)["info"]["features"]["label"].get("names", [])
        return [str(name) for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{path}: the schema's metadata 'huggingface' is invalid: {error!r}. Save it again."
        ) from error
