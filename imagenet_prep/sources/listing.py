"""Lists the image files of a folder and counts all other files by extension.

In custom datasets, images are also recognised by their content, because phones write JPEGs named
.HEIC.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import DataDamagedError, SourceError
from imagenet_prep.dataset import formats
from imagenet_prep.dataset.ignored import ending
from imagenet_prep.sources.scan import File, Problems, read_errors, scan
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
    """Returns the format of a photograph; raises SourceError if a file cannot be read."""
    if path.name.startswith("."):
        return None
    # `scan` reports files that are not regular.
    with read_errors(path), contextlib.suppress(DataDamagedError), open_to_read(path) as file:
        name = formats.name_of(file.read(formats.HEAD_BYTES))
        return name if name in formats.PHOTOGRAPHS else None
    return None


def below(
    folder: Path, inside: Path | None, *, by_content: bool, problems: Problems | None = None
) -> Listing:
    """Lists the images below a folder and counts all other files; see `scan` and `is_image`."""
    hidden: list[str] = []
    images = []
    ignored = Counter[str]()
    unread = Counter[str]()
    for file in scan(folder, inside, hidden, problems):
        # Check the name first: for a million files, building paths takes most of the time.
        if not is_called_an_image(file.path):
            try:
                kind = _photograph(folder / file.path) if by_content else None
            except SourceError as error:
                if problems is None:
                    raise
                problems.add(error)
                continue
            if kind is None:
                ignored[ending(file.path)] += 1
                continue
            unread[kind] += not formats.is_readable(kind)
        images.append(file)
    ignored.update(map(ending, hidden))
    return Listing(images, ignored, +unread)
