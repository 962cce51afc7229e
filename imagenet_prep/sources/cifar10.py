"""Reads CIFAR-10's Python version: pickles of raw pixels, in the archive or extracted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.editions import Edition
from imagenet_prep.sources import labels, pickles, published, source, tar
from imagenet_prep.sources.scan import scan
from imagenet_prep.sources.source import Encode, IndexTask, PackedImage
from imagenet_prep.storage.local_file import require_disk

ARCHIVE = published.CIFAR10.name
FOLDER = "cifar-10-batches-py"
_ADVICE = f"Download {ARCHIVE} again (md5 {published.CIFAR10.md5})."

BATCHES = {
    schema.TRAIN: tuple(f"data_batch_{number}" for number in range(1, 6)),
    schema.VALIDATION: ("test_batch",),
}
_META = "batches.meta"
_SIDE = 32
_PIXEL_BYTES = 3 * _SIDE * _SIDE
_BATCH_BYTES = 10_000 * _PIXEL_BYTES
# A batch has 31 MB; the archive unpacks to 186 MB.
_MAX_BATCH_BYTES = 64 << 20
_MAX_UNPACKED_BYTES = 512 << 20
_MAX_NAME_BYTES = 255


@dataclass(frozen=True)
class Cifar10(source.Pixels):
    """CIFAR-10 at `path`, which is the archive or the extracted folder."""

    name = "cifar10"
    edition = Edition(
        "CIFAR-10",
        10,
        {schema.TRAIN: 50_000, schema.VALIDATION: 10_000},
        {schema.TRAIN: (5000, 5000), schema.VALIDATION: (1000, 1000)},
    )
    path: Path

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of a batch as image files; raises SourceError for a damaged batch."""
        import numpy as np

        where = f"{self.path}: {task.name}"
        batch = _load(_read(self.path, task.name), where)
        pixels, classes, names = (batch.get(key) for key in ("data", "labels", "filenames"))
        if (
            not isinstance(pixels, pickles.Array)
            or not isinstance(classes, list)
            or not isinstance(names, list)
            or not all(isinstance(name, str | bytes) for name in names)
            or not len(classes) == len(names) == len(pixels.data) / _PIXEL_BYTES
        ):
            raise SourceError(
                f"{where}: expected data [N, 3072] uint8, N labels and N filenames. {_ADVICE}"
            )
        for row, (label, name) in enumerate(zip(classes, names, strict=True)):
            if not isinstance(label, int) or not 0 <= label < len(self.classes.wnids):
                raise SourceError(
                    f"{where}: row {row:,}: label {label!r}, expected 0 to 9. {_ADVICE}"
                )
            # File names may repeat, so the key includes the batch and the row.
            stem = _text(name, where).rpartition("/")[2].rpartition(".")[0]
            base = f"{task.name}_{row:05d}_{stem}.jpg"
            planes = np.frombuffer(pixels.data, np.uint8, _PIXEL_BYTES, row * _PIXEL_BYTES)
            image = planes.reshape(3, _SIDE, _SIDE).transpose(1, 2, 0)
            encoded = self.encode(np.ascontiguousarray(image))
            yield PackedImage(f"{self.classes.wnids[label]}/{base}", label, encoded)


def locate(root: Path) -> Path | None:
    """Returns the path of the archive or extracted folder at or in `root`, or None."""
    for path in (root, root / ARCHIVE, root / FOLDER):
        if (path / _META).is_file() or (path.is_file() and path.name == ARCHIVE):
            return path
    return None


def find(root: Path, encode: Encode, encoding: str) -> Cifar10:
    """Returns the source; raises UsageError if `root` does not contain CIFAR-10."""
    path = locate(root)
    if path is None:
        raise UsageError(f"--source {root}: expected {ARCHIVE} or {FOLDER}/. Download CIFAR-10.")
    where = f"{path}: {_META}"
    names = _load(_read(path, _META), where).get("label_names")
    if not isinstance(names, list) or len(names) != 10:
        raise SourceError(f"{where}: label_names is not a list of ten names. {_ADVICE}")
    classes = labels.classes_called([_text(name, where) for name in names], where)
    if path.is_dir():
        part = source.folder_part(path.name, [("", scan(path))])
    else:
        part = source.file_part(path, published.CIFAR10.md5)
    tasks: list[IndexTask] = []
    for split, batches in BATCHES.items():
        tasks += [IndexTask(name, split, path.name, num_bytes=_BATCH_BYTES) for name in batches]
    return Cifar10(classes, (part,), encode, encoding, path, tasks=tuple(tasks))


def _read(path: Path, name: str) -> bytes:
    (data,) = tar.small_files(
        path,
        [name],
        max_bytes=_MAX_BATCH_BYTES,
        max_unpacked_bytes=_MAX_UNPACKED_BYTES,
        advice=_ADVICE,
    )
    return data


def _load(data: bytes, where: str) -> dict[str, Any]:
    """Returns the dict in a pickle, with keys as text; raises SourceError for anything else."""
    try:
        items = pickles.loads(data).items()
    except Exception as error:
        # A damaged pickle can raise any exception.
        require_disk(where, error)
        raise SourceError(
            f"{where}: is not a pickle of CIFAR-10: {error}. None of its code was run. {_ADVICE}"
        ) from error
    return {_text(key, where): value for key, value in items}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str | bytes):
        raise SourceError(f"{where}: a {type(value).__name__}, expected a name. {_ADVICE}")
    if len(value) > _MAX_NAME_BYTES:
        raise SourceError(f"{where}: a name has more than {_MAX_NAME_BYTES} bytes. {_ADVICE}")
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
