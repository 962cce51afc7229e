"""The copy of a run in a bucket: uploaded in the background, downloaded by a new machine.

The local folder is authoritative. Each object is uploaded atomically with its sha256, which the
server verifies.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.core import terminal
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
)
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.storage import local_file
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.fetch import bring
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Identity
from imagenet_prep.storage.remote import (
    CHUNK_BYTES,
    Access,
    RetryBudget,
    TransientError,
    as_file,
    with_retries,
)
from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.log import LOG, SCALARS
from imagenet_prep.trainer.scalars import EVENTS

_Place = tuple[Path, str]  # a folder, and the name of a file in it

_EXPORT = "export"
_EXPORTED = (  # names that TensorFlow and Gluon write into a model's folder
    "saved_model.pb",
    "fingerprint.pb",
    "variables",
    "assets",
    "model-symbol.json",
    "model-0000.params",
    naming.LABELS,
)
# Time-out of a request in seconds without data; retries per object before training starts.
_TIMEOUT_S = 15.0
_RETRIES = 10
_NOT_STARTED = "Training has not started: run the same command again."
# Seconds of retries at the end: `launch` kills ranks after 60 s, a spot interruption after 120 s.
_LAST_S = 30.0


class Mirror:
    """The copy of a run below a bucket prefix: log, checkpoints, `tensorboard/` and `export/`."""

    def __init__(self, base: str, folder: Path, scalars: Path, export: Path | None) -> None:
        self._base = base.rstrip("/")
        # During training, `_run` retries and reports failures instead of the store.
        access = Access(connections=1, timeout_s=_TIMEOUT_S, retries=0, remedy="")
        self._store = BucketStore(self._base, access)
        self._folder, self._scalars, self._export = folder, scalars, export
        self._uploaded: dict[str, Identity] = {}  # only these objects are ever removed
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._in_trouble = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def fetch(self) -> None:
        """Downloads the log and checkpoints if there is no local checkpoint."""
        access = Access(connections=1, timeout_s=_TIMEOUT_S, retries=_RETRIES, remedy=_NOT_STARTED)
        store = BucketStore(self._base, access)
        names = [name for name in sorted(store.everything()) if _is_needed(name)]
        mirrored = max((checkpoint.step_of(name) or 0 for name in names), default=0)
        local = checkpoint.steps(self._folder)
        if local and mirrored > local[-1]:
            raise UsageError(
                f"{self._base} has step {mirrored:,}, {self._folder} only step {local[-1]:,}. Use "
                "an empty --log-dir to resume from the mirror, or a new --mirror to keep both."
            )
        for name in names:
            self._compare(store, name, fresh=not local)
        store.try_to_write()

    def flush(self) -> None:
        """Requests an upload of all changes; returns at once."""
        if not self._thread.ident:
            self._thread.start()
        self._asked.set()

    def close(self) -> bool:
        """Uploads remaining changes; if some could not be sent, lists them and returns False."""
        if not self._thread.ident:
            return True  # no upload was requested
        self._closing.set()
        self._asked.set()
        self._thread.join()
        over = threading.Event()
        timer = threading.Timer(_LAST_S, over.set)
        timer.start()
        self._upload_with_retries(over)
        timer.cancel()
        missing = [
            name
            for name, (root, file) in self._files()
            if self._uploaded.get(name) != Identity.of(local_file.stat_inside(root, file))
        ]
        if missing:
            files = f"{terminal.counted(len(missing), 'file')} of this run"
            terminal.say(f"mirror: {self._base} lacks {files}: {', '.join(missing[:4])}")
        return not missing

    def _files(self) -> list[tuple[str, _Place]]:
        """Returns pairs of object name and file: first logs, then checkpoints from new to old."""
        own = LocalStore(self._folder).names("")
        events = LocalStore(self._scalars).names("")
        files = [(name, (self._folder, name)) for name in own if _is_needed(name)]
        events = [name for name in events if name.startswith(EVENTS)]
        files += [(f"{SCALARS}/{name}", (self._scalars, name)) for name in events]
        if self._export is not None:
            root = self._export.parent
            exported = [self._export]
            for name in _EXPORTED:
                exported += [self._export / name, *(self._export / name).rglob("*")]
            names = [str(path.relative_to(root)) for path in exported if path.is_file()]
            files += [(f"{_EXPORT}/{name}", (root, name)) for name in names]
        return sorted((file for file in files if _is_own(*file[1])), reverse=True)

    def _compare(self, store: BucketStore, name: str, *, fresh: bool) -> None:
        """If `fresh`, downloads an object. Marks an identical local file as already uploaded."""
        path = self._folder / name
        stored = store.stored(name)
        # Keep the longer log, since this machine may have started one already.
        folder = LocalStore(self._folder)
        if fresh and (not path.is_file() or path.stat().st_size < stored.num_bytes):
            if stored.sha256 is None:  # uploaded by a user
                folder.write(name, store.read(name, most=stored.num_bytes))
            else:
                try:
                    file = File(name, stored.num_bytes, stored.sha256)
                    bring(store, file, folder, "The object is damaged in the bucket.")
                except DataDamagedError as error:
                    terminal.say(f"mirror: {error} Continuing without this object.")
        if _is_own(self._folder, name):
            with open(folder.open(name, os.O_RDONLY), "rb") as opened:
                sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
                if stored.sha256 == sha256:
                    self._uploaded[name] = Identity.of(os.fstat(opened.fileno()))

    def _run(self) -> None:
        while not self._closing.is_set():
            self._asked.wait()
            self._asked.clear()
            self._upload_with_retries(self._closing)

    def _upload_with_retries(self, ended: threading.Event) -> None:
        """Uploads all files, with retries until `ended` is set."""
        with contextlib.suppress(IncompleteError):  # `close` reports the missing files
            with_retries(self._upload_or_say, RetryBudget("mirror", sys.maxsize, ended))

    def _upload_or_say(self) -> None:
        try:
            self._upload()
        except (ImagenetPrepError, OSError) as error:
            base = "" if self._base in str(error) else f"{self._base}: "
            hint = "" if self._in_trouble else ". Training continues, and the upload is retried"
            self._in_trouble = True
            message = f"mirror: {base}{str(error).rstrip('. ')}{hint}"
            raise TransientError(message) from error
        if self._in_trouble:
            terminal.say(f"mirror: {self._base}: the upload is complete after retries.")
        self._in_trouble = False

    def _upload(self) -> None:
        """Uploads new and changed files, then removes the objects of deleted files."""
        files = self._files()
        for name, (root, file) in files:
            try:
                with open(LocalStore(root).open(file, os.O_RDONLY), "rb") as opened:
                    state = Identity.of(os.fstat(opened.fileno()))
                    if self._uploaded.get(name) == state:
                        continue
                    # Later writes make the file differ from `state`, so it is uploaded again.
                    self._put(name, opened, state.num_bytes)
            except FileNotFoundError:  # replaced by a later checkpoint
                continue
            self._uploaded[name] = state
        for name in self._uploaded.keys() - dict(files).keys():
            self._store.remove(name)
            del self._uploaded[name]

    def _put(self, name: str, opened: BinaryIO, size: int) -> None:
        """Uploads the first `size` bytes of an open file, which may grow meanwhile."""
        sha256 = hashlib.sha256()
        for chunk in _beginning(opened, size):
            sha256.update(chunk)
        file = File(name, size, sha256.hexdigest())
        self._store.put(file, lambda: as_file(_beginning(opened, size)))


def _beginning(opened: BinaryIO, size: int) -> Iterator[bytes]:
    opened.seek(0)
    while size > 0 and (chunk := opened.read(min(size, CHUNK_BYTES))):
        size -= len(chunk)
        yield chunk


def _is_needed(name: str) -> bool:
    """Returns True for the log and for checkpoints, which a resumed run needs."""
    return name == LOG or checkpoint.step_of(name) is not None


def _is_own(root: Path, name: str) -> bool:
    try:
        return stat.S_ISREG(local_file.stat_inside(root, name).st_mode)
    except (OSError, StoreError):
        return False
