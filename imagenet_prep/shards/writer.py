"""Writes one shard and its index from its members. Knows no archive format and no codec."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.core import example, tfrecord
from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.core.image import QUARANTINED, REPAIRED, Member, PreparedImage
from imagenet_prep.core.measures import Measures
from imagenet_prep.core.store import LargeFile, storage_errors


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
      DataDamagedError: a bad image where that must fail, or not one good image.
      IncompleteError: the disk is full.
    """
    with (
        _removed_on_failure(shard_path, index_path),
        storage_errors("write", shard_path),
    ):
        incidents: list[dict[str, Any]] = []
        index: list[str] = []
        measures = Measures()
        source_bytes = resized = max_height = max_width = 0
        transform_s = 0.0
        with LargeFile(shard_path) as shard_file:
            for member, data in images:
                source_bytes += member.size
                start = time.perf_counter()
                try:
                    image = transform(data)
                except BadImageError as error:
                    incident = _incident(member, QUARANTINED, error.reason, error.detail)
                    if fail_on_bad_image:
                        raise DataDamagedError(
                            f"{shard}: {member.key} ({member.archive} byte {member.offset:,}, "
                            f"{member.size:,} bytes) is {error}. Run without --on-bad-image "
                            "fail to leave such images out and list them."
                        ) from error
                    incidents.append(incident)
                    continue
                finally:
                    transform_s += time.perf_counter() - start
                measures.add(member, image)
                if image.repair is not None:
                    incidents.append(
                        _incident(member, REPAIRED, image.repair, "encoded as RGB JPEG")
                    )
                wnid, text = classes[member.class_index]
                record = tfrecord.frame_parts(
                    example.encode_parts(
                        example.ImageExample(
                            encoded=image.encoded,
                            height=image.height,
                            width=image.width,
                            filename=member.filename,
                            stored_label=member.class_index + label_offset,
                            wnid=wnid,
                            text=text,
                            boxes=member.boxes,
                        )
                    )
                )
                index.append(tfrecord.index_line(shard_file.num_bytes, sum(map(len, record))))
                for part in record:
                    shard_file.append(part)
                resized += image.resized
                max_height = max(max_height, image.height)
                max_width = max(max_width, image.width)
        if not index:
            raise DataDamagedError(
                f"{shard}: not one of its {len(incidents)} images can be used; the first is "
                f"{incidents[0]['key']}: {incidents[0]['detail']}. Look at the source, or ask for "
                "fewer shards."
            )
        index_bytes = "".join(index).encode()
        with open(index_path, "wb") as file:
            file.write(index_bytes)
            file.flush()
            os.fsync(file.fileno())
        return {
            "shard": shard,
            "examples": len(index),
            "num_bytes": shard_file.num_bytes,
            "sha256": shard_file.sha256,
            "index_bytes": len(index_bytes),
            "index_sha256": hashlib.sha256(index_bytes).hexdigest(),
            "source_bytes": source_bytes,
            "resized": resized,
            "max_height": max_height,
            "max_width": max_width,
            "transform_s": round(transform_s, 3),
            "incidents": incidents,
            **measures.content(),
        }


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
