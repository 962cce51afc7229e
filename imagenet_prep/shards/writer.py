"""Writes one shard and its index from images. Archives and codecs are other modules' work."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import example, tfrecord
from imagenet_prep.dataset.measures import Measures
from imagenet_prep.dataset.member import QUARANTINED, REPAIRED, Member, PreparedImage
from imagenet_prep.dataset.orientation import turned_boxes
from imagenet_prep.storage.large_file import LargeFile
from imagenet_prep.storage.new_file import new_file
from imagenet_prep.storage.os_errors import removed_on_failure, storage_errors

# Of a member, what an incident names.
_PLACE = ("key", "archive", "offset", "size", "class_index")
_INCIDENT = {
    **dict.fromkeys(("key", "archive", "action", "reason", "detail"), str),
    **dict.fromkeys(("offset", "size", "class_index"), int),
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
    """Writes both files, and returns what the receipt keeps.

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
    with removed_on_failure(shard_path, index_path), storage_errors("write", shard_path):
        found: dict[str, Any] = dict.fromkeys(("source_bytes", "resized", "transform_s"), 0)
        found["incidents"] = []
        lines: list[str] = []
        measures = Measures()
        with LargeFile(shard_path) as file:
            for member, image in _stored(shard, images, transform, fail_on_bad_image, found):
                record = _record(member, image, classes[member.class_index], label_offset)
                lines.append(tfrecord.index_line(file.num_bytes, sum(map(len, record))))
                measures.add(member, image)
                for part in record:
                    file.append(part)
        if not lines:
            raise _no_good_image(shard, found["incidents"])
        index = "".join(lines).encode()
        with new_file(index_path) as index_file:
            index_file.write(index)
        return {
            "shard": shard,
            "examples": len(lines),
            "num_bytes": file.num_bytes,
            "sha256": file.sha256,
            "index_bytes": len(index),
            "index_sha256": hashlib.sha256(index).hexdigest(),
            **found,
            "transform_s": round(found["transform_s"], 3),
            **measures.content(),
        }


def _stored(
    shard: str,
    images: Iterable[tuple[Member, bytes]],
    transform: Callable[[bytes], PreparedImage],
    fail_on_bad_image: bool,
    found: dict[str, Any],
) -> Iterator[tuple[Member, PreparedImage]]:
    """Yields the images to store; counts for the receipt what was `found` on the way."""
    for member, data in images:
        found["source_bytes"] += member.size
        start = time.perf_counter()
        try:
            image = transform(data)
        except BadImageError as error:
            if fail_on_bad_image:
                raise _bad_image(shard, member, error) from error
            line = incident(member, QUARANTINED, error.reason, error.detail)
            found["incidents"].append(line)
            continue
        finally:
            found["transform_s"] += time.perf_counter() - start
        if image.repair is not None:
            line = incident(member, REPAIRED, image.repair, image.detail)
            found["incidents"].append(line)
        found["resized"] += image.resized
        yield member, image


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
        # The key without its class: of photographs of one's own with the folders below.
        filename=member.key.removeprefix(f"{wnid}/"),
        stored_label=member.class_index + label_offset,
        wnid=wnid,
        text=text,
        boxes=turned_boxes(member.boxes, image.turn) if member.boxes.xmin else member.boxes,
    )
    return tfrecord.frame_parts(example.encode_parts(stored))


def incident(member: Member, action: str, reason: str, detail: str) -> dict[str, Any]:
    """Returns a line of quarantine.jsonl about an image."""
    place = {name: getattr(member, name) for name in _PLACE}
    return {**place, "action": action, "reason": reason, "detail": detail}
