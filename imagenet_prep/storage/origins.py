"""Where the sources of data sets lie, as runs of this user on this machine have noted it.

`report` shows images of the source beside those of a set, and its page is made to be handed on. So
no data set says where to look: whoever made it would choose which files of its reader are shown.
The notes lie in the cache folder of the user, by the digest of the manifest. Without a note nothing
is lost but pictures.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import canonical, records, regular_file
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import naming
from imagenet_prep.storage import inside
from imagenet_prep.storage.folder import LocalStore

_FOLDER = "origins"
# A thousand archives have 200 kB.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Origin:
    """Where a source lies: a folder, and files by name, which may lie elsewhere."""

    root: str
    files: dict[str, str]


@dataclass(frozen=True)
class _Note(Origin):
    """The origin of the data set whose manifest has this digest."""

    digest: str


def note(digest: str, origin: Origin) -> None:
    """Notes the source of the dataset with this manifest; reports show no other sources."""
    content = canonical.dumps(_Note(origin.root, origin.files, digest))
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Nobody else may write it, whatever the umask.
        descriptor, temporary = tempfile.mkstemp(dir=folder)
        with open(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(folder / _name(digest))


def find(digest: str) -> Origin | None:
    """Returns what was noted of a dataset; None if another user could have written the note."""
    store = LocalStore(_folder())
    name = _name(digest)
    with contextlib.suppress(OSError, ImagenetPrepError, ValueError):
        with os.fdopen(store.open(name, os.O_RDONLY), "rb") as file:
            if not inside.is_only_ours(os.fstat(file.fileno())):
                return None
            text = regular_file.read_whole(file, store.path(name), _MAX_BYTES)
        found = records.loads(_Note, text)
        # The folder may be shared: what lies under this name may be a note of another set.
        return Origin(found.root, found.files) if found.digest == digest else None
    return None


def _folder() -> Path:
    return naming.cache_folder() / _FOLDER


def _name(digest: str) -> str:
    return f"{digest}.json"
