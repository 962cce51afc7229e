"""Which files of a folder are images, and how many others there are.

What is called like an image is one: if its content is none, it is listed as bad. Of photographs
that are no edition of ImageNet, the content decides where the name does not: telephones write JPEGs
that are called .HEIC. A photograph that cannot be decoded is an image, too, and listed as bad. All
other files are counted by their ending, so that none vanishes silently.
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
    """The images below a folder, sorted by path, and the number of other files by ending.

    `unread` are the images that this installation cannot decode, by format.
    """

    images: list[File]
    ignored: Counter[str]
    unread: Counter[str]


def is_called_an_image(name: str) -> bool:
    """Returns whether a file name, or a path, is that of an image; hidden files are none."""
    return not name.rpartition("/")[2].startswith(".") and name.lower().endswith(_NAMES)


def is_image(path: Path, *, by_content: bool) -> bool:
    """Returns whether a file is an image by its name, or else by its content."""
    return is_called_an_image(path.name) or (by_content and _photograph(path) is not None)


def _photograph(path: Path) -> str | None:
    """Returns the format of a file that is a photograph by its content."""
    if path.name.startswith("."):
        return None
    try:
        with open_to_read(path) as file:
            found = formats.name_of(file.read(formats.HEAD_BYTES))
            return found if found in formats.PHOTOGRAPHS else None
    except OSError as error:
        demand_disk(path, error)
        return None  # nobody may read it; it is counted as ignored
    except DataDamagedError:
        return None  # it is no file, which is named when it is listed


def below(
    folder: Path, inside: Path | None, *, by_content: bool, problems: Problems | None = None
) -> Listing:
    """Returns the images below a folder, and counts all other files; see `scan`.

    With `by_content`, the content decides if the name is not an image's.
    """
    hidden: list[str] = []
    images, ignored, unread = [], Counter[str](), Counter[str]()
    for file in scan(folder, inside, hidden, problems):
        # The name first: there may be a million files, and a path takes longer than all the rest.
        if not is_called_an_image(file.path):
            kind = _photograph(folder / file.path) if by_content else None
            if kind is None:
                ignored[ending(file.path)] += 1
                continue
            unread[kind] += not formats.is_readable(kind)
        images.append(file)
    ignored.update(map(ending, hidden))
    return Listing(images, ignored, +unread)
