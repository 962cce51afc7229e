"""Records of RecordIO in the form of other programs."""

from __future__ import annotations

import struct

from imagenet_prep.dataset import record_files

# The magic number, and kind and length.
_FRAME_BYTES = 8


def framed(number: int, label: int, image: bytes, *, as_array: bool) -> bytes:
    """Returns one record, with its label as a number, or as an array of one before the image."""
    if not as_array:
        return record_files.frame(number, label, image)
    record = record_files.frame(number, 0, struct.pack("<f", label) + image)
    num_labels = struct.pack("<I", 1)
    return record[:_FRAME_BYTES] + num_labels + record[_FRAME_BYTES + len(num_labels) :]
