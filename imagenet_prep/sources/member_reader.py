"""Reads images in archives, and verifies remote images by their tar headers.

A remote archive's list of images may be stored next to a dataset, where others can change it.
"""

from __future__ import annotations

from collections.abc import Iterable

from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import tar
from imagenet_prep.storage.archive import Range, RangeReader


class MemberReader:
    """Reads images at their listed byte ranges; picklable."""

    _header_bytes = 0

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    def will_need(self, members: Iterable[Member]) -> None:
        """Announces the images that this thread reads next, in order, for prefetching."""
        self._reader.will_need(map(self._range_of, members))

    def read(self, member: Member) -> bytes:
        """Returns the bytes of an image; a huge image is truncated to a size the codec refuses."""
        return self._reader.read(*self._range_of(member))

    def _range_of(self, member: Member) -> Range:
        start = member.offset - self._header_bytes
        return member.archive, start, min(member.size, MAX_IMAGE_BYTES + 1) + self._header_bytes


class TarReader(MemberReader):
    """Reads images of tars and verifies the name and size of each against its header."""

    _header_bytes = tar.HEADER_BYTES

    def read(self, member: Member) -> bytes:
        """Returns the bytes of an image; raises SourceError if its tar header does not match."""
        data = super().read(member)
        if not _is_of(member, data[: tar.HEADER_BYTES]):
            # A long name is stored in separate headers, before the header of the file.
            size = min(tar.MOST_HEADER_BYTES, member.offset)
            before = self._reader.read(member.archive, member.offset - size, size)
            if not _is_of(member, before):
                raise _wrong(member)
        return data[tar.HEADER_BYTES :]

    def _range_of(self, member: Member) -> Range:
        if member.offset < tar.HEADER_BYTES:
            raise _wrong(member)
        return super()._range_of(member)


def _is_of(member: Member, before: bytes) -> bool:
    """Returns whether the tar headers before an image have its listed name and size."""
    file = tar.file_behind(before, member.archive, member.offset)
    expected = member.filename, member.size
    return file is not None and (file.name.rpartition("/")[2], file.size) == expected


def _wrong(member: Member) -> SourceError:
    return SourceError(
        f"{member.archive}: byte {member.offset:,}: expected {member.key} with {member.size:,} "
        "bytes. The stored list of this archive, in imagenet-prep-lists next to the dataset or in "
        ".work, is damaged. Run the same command again with --rehash to list the archive again."
    )
