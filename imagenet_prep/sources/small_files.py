"""Small files of a published archive, or of the folder that it was extracted to."""

from __future__ import annotations

from collections.abc import Sequence

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import tar
from imagenet_prep.storage.remote_path import Location


def read(
    path: Location, names: Sequence[str], *, max_bytes: int, max_unpacked_bytes: int, advice: str
) -> list[bytes]:
    """Returns the contents of some files, in the order of their names.

    Args:
      path: a tar, which may be packed, or a folder.
      names: relative to the folder; in a tar, relative to any folder.
      max_bytes: of one file.
      max_unpacked_bytes: of all that is unpacked on the way.
      advice: the last sentence of each error.

    Raises:
      SourceError: one of them is missing, empty or too large, or cannot be read.
    """
    try:
        found = (_in_folder if path.is_dir() else _in_tar)(
            path, names, max_bytes + 1, max_unpacked_bytes
        )
    except (*tar.UNPACKING_ERRORS, SourceError) as error:
        raise SourceError(f"{path}: cannot be read: {error}. {advice}") from error
    if missing := [name for name in names if not found.get(name)]:
        raise SourceError(f"{path}: holds no {' and no '.join(missing)}. {advice}")
    for name in names:
        if len(found[name]) > max_bytes:
            raise SourceError(f"{path}: {name} has more than {max_bytes:,} bytes. {advice}")
    return [found[name] for name in names]


def _in_folder(path: Location, names: Sequence[str], limit: int, _: int) -> dict[str, bytes]:
    found = {}
    for name in names:
        with (path / name).open("rb") as file:
            found[name] = file.read(limit)
    return found


def _in_tar(
    path: Location, names: Sequence[str], limit: int, max_unpacked: int
) -> dict[str, bytes]:
    found = {}
    with tar.unpacked(path) as stream:
        reader = tar.Forward(stream, tar.Allowance(max_unpacked))
        for member in tar.members(reader, path.name, 0, tar.Forward.END):
            for name in names:
                if f"/{member.name}".endswith(f"/{name}"):
                    found[name] = reader.read(path.name, member.offset, min(member.size, limit))
        reader.finish(path.name)
    return found
