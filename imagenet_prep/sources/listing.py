"""Lists the image files of a folder and counts all other files by extension.

In custom datasets, images are also recognised by their content, because phones write JPEGs named
.HEIC.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import formats
from imagenet_prep.dataset.ignored import ending
from imagenet_prep.sources.scan import File, Problems, scan
from imagenet_prep.storage.os_errors import demand_disk
from imagenet_prep.storage.remote_path import open_to_read

_NAMES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


class Listing(NamedTuple):
    """The images of a folder, sorted by path, and the numbers of files that are not read."""

    images: list[File]
    ignored: Counter[str]  # files that are not images, by extension
    unread: Counter[str]  # images that cannot be decoded here, by format


def is_called_an_image(name: str) -> bool:
    """Returns whether a path has an image extension and is not hidden."""
    return not name.rpartition("/")[2].startswith(".") and name.lower().endswith(_NAMES)


def is_image(path: Path, *, by_content: bool) -> bool:
    """Returns whether a file is an image by its name or, if `by_content`, by its content."""
    return is_called_an_image(path.name) or (by_content and _photograph(path) is not None)


def _photograph(path: Path) -> str | None:
    if path.name.startswith("."):
        return None
    try:
        with open_to_read(path) as file:
            name = formats.name_of(file.read(formats.HEAD_BYTES))
            return name if name in formats.PHOTOGRAPHS else None
    except OSError as error:
        demand_disk(path, error)
        return None  # unreadable files are counted as ignored
    except DataDamagedError:
        return None  # not a regular file: reported when it is listed


def below(
    folder: Path, inside: Path | None, *, by_content: bool, problems: Problems | None = None
) -> Listing:
    """Lists the images below a folder and counts all other files; see `scan` and `is_image`."""
    hidden: list[str] = []
    images, ignored, unread = [], Counter[str](), Counter[str]()
    for file in scan(folder, inside, hidden, problems):
        # Check the name first: for a million files, building paths takes most of the time.
        if not is_called_an_image(file.path):
            kind = _photograph(folder / file.path) if by_content else None
            if kind is None:
                ignored[ending(file.path)] += 1
                continue
            unread[kind] += not formats.is_readable(kind)
        images.append(file)
    ignored.update(map(ending, hidden))
    return Listing(images, ignored, +unread)
