"""Records the locations of the sources of datasets, for later runs of this user.

`report` shows images from these locations, and its page may be published. The locations are not
stored in the dataset, since its author could then choose which of a reader's files are shown. They
are in the user's cache folder, in one file per digest of a manifest.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import canonical, own_file, records
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import naming
from imagenet_prep.storage.folder import LocalStore

_FOLDER = "origins"
# A thousand archives need 200 kB.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Origin:
    """The folder of a source, and the paths of its files by name."""

    root: str
    files: dict[str, str]


@dataclass(frozen=True)
class _Note(Origin):
    digest: str


def note(digest: str, origin: Origin) -> None:
    """Records the source of the dataset whose manifest has this digest."""
    content = canonical.dumps(_Note(origin.root, origin.files, digest))
    # The note is optional. Some users have no home folder, or one that they cannot write to.
    with contextlib.suppress(OSError, ImagenetPrepError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_file.replaced(folder / _name(digest), None) as file:
            # Only this user may write the file, whatever the umask.
            os.fchmod(file.fileno(), 0o600)
            file.write(content)


def find(digest: str) -> Origin | None:
    """Returns the origin of a dataset; None if there is no note that only this user can write."""
    with contextlib.suppress(OSError, ImagenetPrepError, ValueError):
        noted = records.loads(_Note, LocalStore(_folder()).read_ours(_name(digest), _MAX_BYTES))
        # Compare the digests: in a shared folder, the file may belong to a different dataset.
        return Origin(noted.root, noted.files) if noted.digest == digest else None
    return None


def _folder() -> Path:
    return naming.cache_folder() / _FOLDER


def _name(digest: str) -> str:
    return f"{digest}.json"
