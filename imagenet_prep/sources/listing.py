"""Which files of a folder are images, and how many others there are.

What is called like an image is one: if its content is none, it is listed as bad. Of photographs
that are no edition of ImageNet, the content decides where the name does not: telephones write JPEGs
that are called .HEIC. All other files are counted by their ending, so that none vanishes silently.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import formats
from imagenet_prep.dataset.ignored import ending
from imagenet_prep.sources.scan import File, scan
from imagenet_prep.storage.os_errors import demand_disk
from imagenet_prep.storage.remote_path import open_to_read

_NAMES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Cameras' own files look like TIFF, and Pillow would read the thumbnail in them.
_BY_CONTENT = formats.READ - {"TIFF"}


class Listing(NamedTuple):
    """The images below a folder, sorted by path, and the number of other files by ending."""

    images: list[File]
    ignored: Counter[str]


def is_called_an_image(name: str) -> bool:
    """Returns whether a file name, or a path, is that of an image; hidden files are none."""
    return not name.rpartition("/")[2].startswith(".") and name.lower().endswith(_NAMES)


def is_image(path: Path, *, by_content: bool) -> bool:
    """Returns whether a file is an image by its name, or else by its content."""
    if is_called_an_image(path.name):
        return True
    if not by_content or path.name.startswith("."):
        return False
    try:
        with open_to_read(path) as file:
            return formats.name_of(file.read(formats.HEAD_BYTES)) in _BY_CONTENT
    except OSError as error:
        demand_disk(path, error)
        return False  # nobody may read it; it is counted as ignored
    except DataDamagedError:
        return False  # it is no file, which is named when it is listed


def below(folder: Path, inside: Path | None, *, by_content: bool) -> Listing:
    """Returns the images below a folder, and counts all other files; see `scan`.

    With `by_content`, the content decides if the name is not an image's.
    """
    hidden: list[str] = []
    images, ignored = [], Counter[str]()
    for file in scan(folder, inside, hidden):
        # The name first: there may be a million files, and a path takes longer than all the rest.
        if is_called_an_image(file.path) or is_image(folder / file.path, by_content=by_content):
            images.append(file)
        else:
            ignored[ending(file.path)] += 1
    ignored.update(map(ending, hidden))
    return Listing(images, ignored)
