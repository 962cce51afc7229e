"""A copy of a run in a bucket: brought up in the background, taken from by a fresh machine.

The local folder is the truth. Objects appear whole or not at all: each is sent with the CRC32C
that the server must find, and carries its sha256.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.storage.fetch import fetch
from imagenet_prep.storage.folder import LocalStore, storage_errors
from imagenet_prep.storage.remote import Stat, UnavailableError
from imagenet_prep.storage.retry import Answer, RetryBudget, with_retries
from imagenet_prep.storage.s3 import S3
from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.log import LOG, SCALARS

_SHA256 = "sha256"
_EXPORT = "export"
# Seconds without a byte, and attempts, until the start is given up.
_TIMEOUT_S, _RETRIES = 15.0, 10
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
# How long failures are waited for at the end: `launch` kills after 60 s, a spot notice after 120.
_LAST_DELAY_S, _LAST_PATIENCE_S = 5.0, 30.0


class Mirror:
    """The files of a run below a prefix of a bucket: log, scalars, checkpoints, exported model.

    Args:
      base: s3://bucket/prefix.
      folder: the log directory.
      scalars: where TensorBoard's files are; `tensorboard/` there.
      export: file or folder of the exported model, where there is to be one; `export/` there.

    Raises:
      UsageError: credentials cannot be loaded, or boto3 is not installed.
    """

    def __init__(self, base: str, folder: Path, scalars: Path, export: Path | None) -> None:
        self._base = base.rstrip("/")
        self._s3 = S3(self._base, 1, _TIMEOUT_S)
        self._folder, self._scalars, self._export = folder, scalars, export
        # Size and time of the files that are there as they are here. What of these is gone here
        # is removed there, and nothing else.
        self._there: dict[str, tuple[int, int]] = {}
        self._asked, self._ending = threading.Event(), threading.Event()
        self._deadline = 0.0
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def fetch(self) -> None:
        """Brings log and checkpoints to a folder without checkpoints, proven.

        A damaged object is said, and left where it is.

        Raises:
          UsageError: the run went further there than here.
          IncompleteError: the server does not answer. Beginning anew would lose what is there.
          StoreError: the server or the system refuses.
        """
        listing = self._patiently("", lambda: list(self._s3.pages("list_objects_v2", "Contents")))
        names = [entry["Key"] for entry in listing if _is_needed(entry["Key"])]
        there = max((checkpoint.step_of(name) or 0 for name in names), default=0)
        here = checkpoint.steps(self._folder)
        if here and there > here[-1]:
            raise UsageError(
                f"{self._base} holds step {there:,}, {self._folder} only step {here[-1]:,}. Give "
                "an empty --log-dir to go on from the mirror, or another --mirror to keep both."
            )
        for name in names:
            self._compare(name, fresh=not here)

    def flush(self) -> None:
        """Asks for all to be brought up; returns at once."""
        if not self._thread.ident:
            self._thread.start()
        self._asked.set()

    def close(self) -> bool:
        """Brings up what is left; returns whether all has arrived, and says what has not."""
        if not self._thread.is_alive():
            return True
        self._deadline = time.monotonic() + _LAST_PATIENCE_S
        self._ending.set()
        self._asked.set()
        self._thread.join()
        lacking = [name for name, path in self._files() if self._there.get(name) != _state(path)]
        if lacking:
            _say(f"{self._base} lacks {len(lacking)} files of this run: {', '.join(lacking[:4])}")
        return not lacking

    def _files(self) -> list[tuple[str, Path]]:
        """Returns what there is to mirror, logs first, then the latest checkpoint."""
        own, events = LocalStore(self._folder).names(""), LocalStore(self._scalars).names("")
        found = [(name, self._folder / name) for name in own if _is_needed(name)]
        found += [(f"{SCALARS}/{name}", self._scalars / name) for name in events]
        if self._export is not None:
            exported = [self._export, *self._export.rglob("*")]
            root = self._export.parent
            found += [
                (f"{_EXPORT}/{path.relative_to(root)}", path) for path in exported if path.is_file()
            ]
        return sorted(found, reverse=True)

    def _compare(self, name: str, *, fresh: bool) -> None:
        """Notes whether an object is what is here; brings it first to a fresh machine."""
        path = self._folder / name
        head = self._patiently(name, lambda: self._s3.call("head_object", name))
        expected = head["Metadata"].get(_SHA256)
        # Of a log, the longer one counts: this machine may have begun one already.
        if fresh and (not path.is_file() or path.stat().st_size < head["ContentLength"]):
            found = self._fetch(name, path, head)
            if expected not in (None, found):
                _say(
                    f"{self._s3.where(name)}: sha256 {found}, stored with {expected}: damaged, "
                    "going on without it"
                )
        if path.is_file() and expected == hashlib.sha256(path.read_bytes()).hexdigest():
            self._there[name] = _state(path)

    def _fetch(self, name: str, path: Path, head: dict[str, Any]) -> str:
        """Brings an object and returns its sha256; the file is there if that is the right one."""
        stat = Stat(head["ContentLength"], head["ETag"], True)
        store = LocalStore(path.parent)
        temporary = store.temporary()
        try:
            with storage_errors("write", path):
                temporary.touch()
            fetch(self._s3, name, stat, 0, stat.size, temporary, self._patience(name))
            found = hashlib.sha256(temporary.read_bytes()).hexdigest()
            if head["Metadata"].get(_SHA256) in (None, found):
                store.publish(temporary, path.name)
        finally:
            temporary.unlink(missing_ok=True)
        return found

    def _run(self) -> None:
        delay = _FIRST_DELAY_S
        while True:
            limit = _LAST_DELAY_S if self._ending.is_set() else _MAX_DELAY_S
            self._asked.wait(min(delay, limit) if self._trouble else None)
            self._asked.clear()
            ends = self._ending.is_set()
            try:
                self._bring_up()
            except (UnavailableError, ImagenetPrepError, OSError) as error:
                if not self._trouble:
                    delay = _FIRST_DELAY_S
                    where = "" if self._base in str(error) else f"{self._base}: "
                    said = str(error).rstrip(".")
                    _say(f"{where}{said}. Training goes on, this is tried again.")
                self._trouble = str(error)
                delay *= 2
            else:
                if self._trouble:
                    _say(f"{self._base}: all has arrived after all.")
                self._trouble = ""
            if ends and (not self._trouble or time.monotonic() > self._deadline):
                return

    def _bring_up(self) -> None:
        """Puts what is new or has grown; then removes what is gone."""
        here = self._files()
        for name, path in here:
            try:
                state = _state(path)
                if self._there.get(name) == state:
                    continue
                data = path.read_bytes()
            except FileNotFoundError:  # a later checkpoint has taken its place
                continue
            # Whatever was written since `state` was taken makes the file differ from it again.
            self._put(name, data)
            self._there[name] = state
        for name in self._there.keys() - {name for name, _ in here}:
            self._s3.call("delete_object", name)
            del self._there[name]

    def _put(self, name: str, data: bytes) -> None:
        import crc32c

        self._s3.call(
            "put_object",
            name,
            Body=data,
            Metadata={_SHA256: hashlib.sha256(data).hexdigest()},
            # As S3 wants it: base64 of four bytes, the highest first.
            ChecksumCRC32C=base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode(),
        )

    def _patiently(self, name: str, attempt: Callable[[], Answer]) -> Answer:
        return with_retries(attempt, self._patience(name))

    def _patience(self, name: str) -> RetryBudget:
        remedy = "Nothing was trained yet: run the same command again to go on from what is there."
        return RetryBudget(self._s3.where(name), _RETRIES, threading.Event(), remedy=remedy)


def _is_needed(name: str) -> bool:
    """Returns whether a run resumes with this file; new scalars go into files of their own."""
    return name == LOG or checkpoint.step_of(name) is not None


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _say(text: str) -> None:
    print(f"imagenet-prep: mirror: {text}", file=sys.stderr, flush=True)
