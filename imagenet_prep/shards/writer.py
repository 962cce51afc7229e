"""Writes one shard and its index from images. Archives and codecs are other modules' work."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import example, tfrecord
from imagenet_prep.dataset.measures import Measures
from imagenet_prep.dataset.member import QUARANTINED, REPAIRED, Member, PreparedImage
from imagenet_prep.storage.folder import write_synced
from imagenet_prep.storage.large_file import LargeFile
from imagenet_prep.storage.os_errors import storage_errors

_INCIDENT = {
    "key": str,
    "class_index": int,
    "archive": str,
    "offset": int,
    "size": int,
    "action": str,
    "reason": str,
    "detail": str,
}
# What `write_shard` returns, as for `canonical.fits`.
RECEIPT = {
    **dict.fromkeys(("shard", "sha256", "index_sha256"), str),
    **dict.fromkeys(("examples", "num_bytes", "index_bytes", "source_bytes", "resized"), int),
    **dict.fromkeys(("max_height", "max_width", "num_classes"), int),
    "incidents": [_INCIDENT],
    "histograms": {str: {str: int}},
    "sums": {str: float},
}


def write_shard(
    shard: str,
    images: Iterable[tuple[Member, bytes]],
    *,
    transform: Callable[[bytes], PreparedImage],
    classes: Sequence[tuple[str, str]],
    label_offset: int,
    fail_on_bad_image: bool,
    shard_path: Path,
    index_path: Path,
) -> dict[str, Any]:
    """Writes both files, synced to the disk, and returns what the receipt keeps.

    Args:
      shard: name for the receipt and errors.
      images: (member, its source bytes) in the order of the records; read once.
      transform: source bytes to the stored image; raises BadImageError.
      classes: (WNID, words) by class index.
      label_offset: added to the class index.
      fail_on_bad_image: raise instead of leaving a bad image out.
      shard_path, index_path: temporary files to create; removed on failure.

    Raises:
      DataDamagedError: a bad image with `fail_on_bad_image`, or no good image at all.
      IncompleteError: the disk is full.
    """
    with _removed_on_failure(shard_path, index_path), storage_errors("write", shard_path):
        contents = _Contents()
        with LargeFile(shard_path) as file:
            good = _good_images(shard, images, transform, contents, fail=fail_on_bad_image)
            for member, image in good:
                record = _record(member, image, classes[member.class_index], label_offset)
                contents.add(member, image, file.num_bytes, sum(map(len, record)))
                for part in record:
                    file.append(part)
        if not contents.index:
            raise _no_good_image(shard, contents.incidents)
        index = "".join(contents.index).encode()
        write_synced(index_path, index)
        return {
            "shard": shard,
            "num_bytes": file.num_bytes,
            "sha256": file.sha256,
            "index_bytes": len(index),
            "index_sha256": hashlib.sha256(index).hexdigest(),
            **contents.receipt(),
        }


def _good_images(
    shard: str,
    images: Iterable[tuple[Member, bytes]],
    transform: Callable[[bytes], PreparedImage],
    contents: _Contents,
    *,
    fail: bool,
) -> Iterator[tuple[Member, PreparedImage]]:
    """Yields the images to store; notes the others, or raises DataDamagedError for the first."""
    for member, data in images:
        try:
            image = contents.transformed(transform, data)
        except BadImageError as error:
            if fail:
                raise _bad_image(shard, member, error) from error
            contents.leave_out(member, error)
        else:
            yield member, image


class _Contents:
    """What the receipt and the index of one shard say about its images.

    Attributes:
      index: lines of DALI's index.
      incidents: images that were left out or repaired.
    """

    def __init__(self) -> None:
        self.index: list[str] = []
        self.incidents: list[dict[str, Any]] = []
        self._measures = Measures()
        self._source_bytes = self._resized = self._max_height = self._max_width = 0
        self._transform_s = 0.0

    def transformed(
        self, transform: Callable[[bytes], PreparedImage], data: bytes
    ) -> PreparedImage:
        """Returns the image to store, and counts the time that it took; raises BadImageError."""
        start = time.perf_counter()
        try:
            return transform(data)
        finally:
            self._transform_s += time.perf_counter() - start

    def leave_out(self, member: Member, error: BadImageError) -> None:
        """Notes an image that is not stored."""
        self._source_bytes += member.size
        self.incidents.append(_incident(member, QUARANTINED, error.reason, error.detail))

    def add(self, member: Member, image: PreparedImage, offset: int, size: int) -> None:
        """Notes an image that is stored as the record of `size` bytes at byte `offset`."""
        self._source_bytes += member.size
        self._measures.add(member, image)
        if image.repair is not None:
            detail = "encoded as RGB JPEG"
            self.incidents.append(_incident(member, REPAIRED, image.repair, detail))
        self.index.append(tfrecord.index_line(offset, size))
        self._resized += image.resized
        self._max_height = max(self._max_height, image.height)
        self._max_width = max(self._max_width, image.width)

    def receipt(self) -> dict[str, Any]:
        """Returns what the receipt keeps."""
        return {
            "examples": len(self.index),
            "source_bytes": self._source_bytes,
            "resized": self._resized,
            "max_height": self._max_height,
            "max_width": self._max_width,
            "transform_s": round(self._transform_s, 3),
            "incidents": self.incidents,
            **self._measures.content(),
        }


def _bad_image(shard: str, member: Member, error: BadImageError) -> DataDamagedError:
    return DataDamagedError(
        f"{shard}: {member.key} ({member.archive} byte {member.offset:,}, {member.size:,} bytes) "
        f"is {error}. Run without --on-bad-image fail to leave such images out and list them."
    )


def _no_good_image(shard: str, incidents: Sequence[dict[str, Any]]) -> DataDamagedError:
    first = incidents[0]
    return DataDamagedError(
        f"{shard}: not one of its {len(incidents)} images can be used; the first is "
        f"{first['key']}: {first['detail']}. Look at the source, or ask for fewer shards."
    )


def _record(
    member: Member, image: PreparedImage, class_names: tuple[str, str], label_offset: int
) -> tuple[bytes, bytes, bytes]:
    """Returns the framed record of one image in three parts, the second being its bytes."""
    wnid, text = class_names
    stored = example.ImageExample(
        encoded=image.encoded,
        height=image.height,
        width=image.width,
        filename=member.filename,
        stored_label=member.class_index + label_offset,
        wnid=wnid,
        text=text,
        boxes=member.boxes,
    )
    return tfrecord.frame_parts(example.encode_parts(stored))


@contextlib.contextmanager
def _removed_on_failure(*paths: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise


def _incident(member: Member, action: str, reason: str, detail: str) -> dict[str, Any]:
    return {
        "key": member.key,
        "class_index": member.class_index,
        "archive": member.archive,
        "offset": member.offset,
        "size": member.size,
        "action": action,
        "reason": reason,
        "detail": detail,
    }
