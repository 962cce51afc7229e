"""The list of the keys in an export that readers cannot derive from classes and file names.

The label of a listed image is right, even if its name starts with the WNID of a different class.
All other images have the keys that images of other programs would have.
"""

from __future__ import annotations

from collections.abc import Mapping

from imagenet_prep.core import records
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import keys

# Keys by split and place: the path of an image file, or FILE:NUMBER for a record of a file.
ExportKeys = Mapping[str, Mapping[str, str]]


def is_derived(key: str, split: str, class_id: str, name: str) -> bool:
    """Returns whether every reader derives `key` from `name`, the path below the class folder."""
    base = name.rpartition("/")[2]
    prefixes = {match[0] for match in map(keys.WNID.match, (name, base)) if match}
    return (
        key == keys.key_of(split, class_id, keys.below_class(name, class_id))
        and prefixes <= {class_id}
        and len(base.encode()) <= keys.MOST_BASE_BYTES
    )


def parse(data: bytes, where: str) -> ExportKeys:
    """Returns the keys in the file `where`, unchecked; raises DataDamagedError if it is damaged."""
    try:
        return records.loads(dict[str, dict[str, str]], data)
    except ValueError as error:
        raise DataDamagedError(f"{where}: {error}. Export the dataset again.") from None
