"""Writes a shard, its index and its table, from images that were read from archives.

`write_shard` writes these files.

`sha256` hashes several images, two at a time to save time: see digests.c.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import imports, limits, strict_json
from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import example, keys, record_files, samples, schema
from imagenet_prep.dataset.jpeg import turned_boxes
from imagenet_prep.dataset.manifest import ManifestSource, Shard
from imagenet_prep.dataset.member import (
    QUARANTINED,
    REPAIRED,
    Incident,
    Member,
    Origin,
    Origins,
    PreparedImage,
)
from imagenet_prep.dataset.samples import Sample, SamplesWriter
from imagenet_prep.storage.local_file import LargeFile, new_file, removed_on_failure, storage_errors

_BYTES = 32
_LIBRARY = Path(__file__).with_name("_digests.so")
_TYPES = (ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3)


def sha256(pieces: Sequence[bytes]) -> list[str]:
    """Returns the sha256 of each piece in hex; uses hashlib if the processor is not supported."""
    library = imports.find(_LIBRARY, sha256=_TYPES)
    count = len(pieces)
    if library is not None:
        digests = ctypes.create_string_buffer(_BYTES * count)
        data = (ctypes.c_char_p * count)(*pieces)
        sizes = (ctypes.c_int64 * count)(*map(len, pieces))
        if library.sha256(count, data, sizes, digests):
            raw = digests.raw
            return [raw[at : at + _BYTES].hex() for at in range(0, len(raw), _BYTES)]
    return [hashlib.sha256(piece).hexdigest() for piece in pieces]


# A stored image with its source bytes.
_Image = tuple[Member, PreparedImage, bytes]
# Images are hashed together until their sources have about this number of bytes.
_HASHED_TOGETHER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """The receipt of a shard; see `manifest.Shard` for the fields up to samples_sha256."""

    shard: str
    examples: int
    num_bytes: int
    sha256: str
    index_bytes: int
    index_sha256: str
    samples_bytes: int
    samples_sha256: str
    source_bytes: int  # size of all images that were read
    resized: int  # number of resampled images
    max_height: int  # in pixels
    max_width: int
    transform_s: float  # time of the codec in seconds
    incidents: list[Incident]  # quarantined or changed images
    origins: list[Origin]  # sources of some images
    # Only for a shard that existed before: its images by class index, and the class index by the
    # number in the name of a validation image.
    num_per_class: Counter[int] = field(default_factory=Counter)
    validation: dict[int, int] = field(default_factory=dict)
    not_rgb: int = 0  # number of images that were kept although they are not RGB
    source: ManifestSource | None = None  # the file that the shard was made from

    @property
    def entry(self) -> Shard:
        """The manifest entry of the shard."""
        return strict_json.parse(Shard, vars(self) | {"name": self.shard}, others=True)


class StoredRecord(NamedTuple):
    """A record of an existing shard: its framed bytes, and its line of the table."""

    parts: tuple[bytes, bytes, bytes]
    sample: Sample


@dataclass
class _Tally:
    source_bytes: int = 0
    resized: int = 0
    max_height: int = 0
    max_width: int = 0
    transform_s: float = 0.0
    incidents: list[Incident] = field(default_factory=list)


def write_shard(
    shard: str,
    images: Iterable[tuple[Member, bytes] | StoredRecord],
    *,
    transform: Callable[[bytes], PreparedImage],
    classes: Sequence[tuple[str, str]],
    label_offset: int,
    fail_on_bad_image: bool,
    shard_path: Path,
    index_path: Path,
    samples_path: Path,
) -> WrittenShard:
    """Writes a shard, its index and its table; returns the receipt.

    `images` are members with source bytes, or records of an existing shard, in the order to write.
    `transform` converts source bytes to the stored image. All three files are removed on failure.
    """
    paths = shard_path, index_path, samples_path
    with removed_on_failure(*paths), storage_errors("write", shard_path):
        tally = _Tally()
        lines: list[str] = []
        origins = Origins()
        with LargeFile(shard_path) as file, new_file(samples_path) as samples_file:
            table = SamplesWriter(samples_file)
            waiting: list[_Image] = []
            waiting_bytes = 0
            for stored in _prepared(shard, images, transform, fail_on_bad_image, tally):
                if isinstance(stored, StoredRecord):
                    record = stored.parts
                    table.extend([*_samples(waiting), stored.sample])
                    waiting = []
                    waiting_bytes = 0
                else:
                    member, image, data = stored
                    record = _record(member, image, classes[member.class_index], label_offset)
                    origins.add(member, image)
                    waiting.append(stored)
                    waiting_bytes += len(data)
                    if waiting_bytes >= _HASHED_TOGETHER_BYTES:
                        table.extend(_samples(waiting))
                        waiting = []
                        waiting_bytes = 0
                limits.add()
                lines.append(record_files.index_line(file.num_bytes, sum(map(len, record))))
                for part in record:
                    file.append(part)
            table.extend(_samples(waiting))
        if not lines:
            first = tally.incidents[0]
            raise DataDamagedError(
                f"{shard}: none of its {counted(len(tally.incidents), 'image')} can be used; the "
                f"first is {first.key}: {first.detail}. Check the source."
            )
        index = "".join(lines).encode()
        with new_file(index_path) as index_file:
            index_file.write(index)
        tally.transform_s = round(tally.transform_s, 3)
        return WrittenShard(
            shard=shard,
            examples=len(lines),
            num_bytes=file.num_bytes,
            sha256=file.sha256,
            index_bytes=len(index),
            index_sha256=hashlib.sha256(index).hexdigest(),
            samples_bytes=table.num_bytes,
            samples_sha256=table.sha256,
            **vars(tally),
            origins=origins.chosen,
        )


def _prepared(
    shard: str,
    images: Iterable[tuple[Member, bytes] | StoredRecord],
    transform: Callable[[bytes], PreparedImage],
    fail_on_bad_image: bool,
    tally: _Tally,
) -> Iterator[_Image | StoredRecord]:
    """Yields the images to store, and counts them in `tally`."""
    name = schema.parse_shard_name(shard)
    split = name.split if name else ""
    for source in images:
        if isinstance(source, StoredRecord):
            yield source
            continue
        member, data = source
        tally.source_bytes += member.size
        start = time.perf_counter()
        try:
            image = transform(data)
        except BadImageError as error:
            if fail_on_bad_image:
                raise DataDamagedError(
                    f"{shard}: {member.key} ({member.archive} byte {member.offset:,}, "
                    f"{member.size:,} bytes) is {error}. To skip such images and list them, run "
                    "without --on-bad-image fail."
                ) from error
            bad = Incident(*member[:5], QUARANTINED, error.reason, error.detail, split)
            tally.incidents.append(bad)
            continue
        finally:
            tally.transform_s += time.perf_counter() - start
        if image.repair is not None:
            repaired = Incident(*member[:5], REPAIRED, image.repair, image.detail, split)
            tally.incidents.append(repaired)
        tally.resized += image.resized
        tally.max_height = max(tally.max_height, image.height)
        tally.max_width = max(tally.max_width, image.width)
        yield member, image, data


def _samples(images: Sequence[_Image]) -> Iterator[Sample]:
    """Yields the sample of each image for the table; hashes all images together."""
    changed = [image.encoded for _, image, data in images if image.encoded is not data]
    digests = sha256([*(data for *_, data in images), *changed])
    digests_of_changed = iter(digests[len(images) :])
    for (member, image, data), source_sha256 in zip(images, digests, strict=False):
        action, digest = samples.KEPT, source_sha256
        if image.encoded is not data:
            action = samples.REPAIRED if image.repair else samples.SHRUNK
            digest = next(digests_of_changed)
        height, width = image.source_size or (image.height, image.width)
        yield Sample(
            key=member.key,
            class_index=member.class_index,
            num_bytes=len(image.encoded),
            width=image.width,
            height=image.height,
            sha256=digest,
            action=action,
            reason=image.repair or "",
            source_bytes=len(data),
            source_width=width,
            source_height=height,
            source_sha256=source_sha256,
        )


def _record(
    member: Member, image: PreparedImage, class_names: tuple[str, str], label_offset: int
) -> tuple[bytes, bytes, bytes]:
    """Returns the framed record of one image in three parts; the second is the image's bytes."""
    wnid, text = class_names
    stored = example.ImageExample(
        encoded=image.encoded,
        height=image.height,
        width=image.width,
        # The name of a custom image includes the folders below its class folder.
        filename=keys.name_of(member.key),
        stored_label=member.class_index + label_offset,
        wnid=wnid,
        text=text,
        boxes=turned_boxes(member.boxes, image.turn) if member.boxes.xmin else member.boxes,
    )
    return record_files.frame_parts(example.encode_parts(stored))
