"""One kind of work on one data set: its receipts, and the notes that its workers share."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from imagenet_prep.core import canonical, errors
from imagenet_prep.dataset import naming
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.storage.store import Store

# 900 characters of a message, at most 4 bytes each, and a task's name.
_RESERVE_BYTES = 4096

# A file of the attempt. A worker that does not see it does not share the launcher's folder.
_OPEN = "open"
_SEEN_WITHIN_S = 10.0
_SEEN_POLL_S = 0.2


class Task(Protocol):
    """A picklable description of work; `name` is unique in its stage and fit for a file."""

    @property
    def name(self) -> str:
        """The receipt's name."""


AnyTask = TypeVar("AnyTask", bound=Task)


class Output(NamedTuple):
    """A finished temporary file and the name it gets when its receipt is published.

    Attributes:
      temporary: the file.
      name: relative to the data set.
      sha256: of what was written to it, where that is known.
    """

    temporary: Path
    name: str
    sha256: str | None = None


class Result(NamedTuple):
    """What a task's function returns: the receipt's JSON content, and files to publish."""

    content: dict[str, Any]
    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True)
class Stage(Generic[AnyTask]):
    """One kind of work on one data set.

    Attributes:
      name: "index", "write", ...
      digest: of everything that decides the results.
      store: where receipts and outputs go; shared by all workers.
      function: task -> result; picklable, without side effects outside its temporary files.
      shape: of the receipts, as for `canonical.fits`; a receipt of another shape does not count.
      attempt: names one attempt of workers on other machines; set by `run`. Workers of an
        earlier attempt see that theirs is over and stop.
    """

    name: str
    digest: str
    store: Store
    function: Callable[[AnyTask], Result]
    shape: Any = field(default_factory=dict)
    attempt: str = ""

    @property
    def folder(self) -> str:
        """The stage's folder, relative to the data set."""
        return f"{naming.WORK}/{self.name}-{self.digest[:16]}"

    @property
    def coordination(self) -> Store:
        """Where workers and launcher note what is claimed and what has failed."""
        return self.store if self.attempt else self.store.local

    @property
    def attempt_folder(self) -> str:
        """The folder of these notes, relative to the data set."""
        return f"{self.folder}/attempts/{self.attempt}" if self.attempt else self.folder

    @property
    def _reserve(self) -> str:
        return f"{self.attempt_folder}/reserve"

    def clear(self) -> None:
        """Removes claims and failures of an earlier run; opens the attempt, if there is one."""
        for name in ("failed", "claims", "attempts"):
            self.coordination.remove_tree(f"{self.folder}/{name}")
        if place := self.coordination.as_folder:
            for name in ("claims", "failed"):
                place.make_folder(f"{self.attempt_folder}/{name}")
            place.make_folder(f"{self.folder}/receipts")
            place.write(self._reserve, bytes(_RESERVE_BYTES))
        if self.attempt:
            self.coordination.write(f"{self.attempt_folder}/{_OPEN}", b"")

    def receipts(self, tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Returns the receipts of the finished tasks, by task.

        A receipt does not count if its files are gone, or if no task of this program can have
        written it. Names in it that lead outside the data set are never looked at.
        """
        folder = f"{self.folder}/receipts"
        there = set(self.store.names(folder))
        found = [task for task in tasks if f"{task}.json" in there]
        contents = self.store.read_each([f"{folder}/{task}.json" for task in found])
        receipts = {
            task: receipt
            for task, content in zip(found, contents, strict=True)
            if (receipt := _receipt(content, self.shape)) is not None
            # The receipt of a shard has the name of that shard.
            and receipt.get("shard", task) == task
        }
        outputs = [output for receipt in receipts.values() for output in receipt["outputs"]]
        sizes = self.store.sizes(output["name"] for output in outputs)
        return {
            task: receipt
            for task, receipt in receipts.items()
            if all(sizes.get(o["name"]) == o["num_bytes"] for o in receipt["outputs"])
        }

    def execute(self, task: AnyTask) -> None:
        """Does one task and publishes its result, or notes the failure for `run` to raise.

        The receipt is published before its files. So every visible file has its receipt, and a
        receipt without its files is no finished task.
        """
        if (result := self.make(task)) is not None:
            self.publish(task, result)

    def make(self, task: AnyTask) -> Result | None:
        """Does one task; returns its receipt and files, or None if it failed."""
        start = time.time()
        try:
            content, outputs = self.function(task)
            listed = [
                {"name": output.name, "num_bytes": output.temporary.stat().st_size}
                for output in outputs
            ]
            seconds = round(time.time() - start, 3)
            receipt = {
                **content,
                "outputs": listed,
                "start_s": round(start, 3),
                "seconds": seconds,
                "worker": _worker(),
            }
            return Result(receipt, outputs)
        except Exception as error:  # noqa: BLE001 - `run` raises it again, in the launching process
            self.note(task.name, error)
            return None

    def publish(self, task: AnyTask, result: Result) -> None:
        """Publishes what `make` has returned."""
        try:
            receipt = canonical.dumps(result.content)
            self.store.write(f"{self.folder}/receipts/{task.name}.json", receipt)
            for output in result.outputs:
                self.store.publish(*output)
        except Exception as error:  # noqa: BLE001 - as in `make`
            self.note(task.name, error)

    def note(self, task: str, error: Exception) -> None:
        """Notes the error of a task; `run` raises it in the launching process."""
        if isinstance(error, errors.ImagenetPrepError):
            # Others may read a bucket, and need not know the names of hosts.
            name = socket.gethostname() if self.coordination.as_folder else _worker()
            where = f" (on worker {name})" if self.attempt else ""
            self.fail(task, type(error).__name__, f"{error}{where}")
        else:
            self.fail(task, "", "".join(traceback.format_exception(error)))

    def fail(self, task: str, error: str, message: str) -> None:
        """Notes the failure of a task; `run` raises it, and other workers see it and stop.

        Args:
          task: its name.
          error: class name of an ImagenetPrepError, or "" for a bug.
          message: of the error, or the traceback.
        """
        failure = {"task": task, "error": error, "message": message}
        name = f"{self.attempt_folder}/failed/{task}.json"
        try:
            self.coordination.write(name, canonical.dumps(failure))
        except errors.IncompleteError:
            if (place := self.coordination.as_folder) is None:
                raise
            # The disk is full. The first note fits into a file that was made for it beforehand.
            with contextlib.suppress(OSError, errors.StoreError):
                short = canonical.dumps({**failure, "message": message[:900]})
                with os.fdopen(place.open(self._reserve, os.O_WRONLY), "wb") as file:
                    file.write(short.ljust(_RESERVE_BYTES))
                place.rename(self._reserve, name)

    def raise_failure(self) -> None:
        """Raises the failure that was noted, if any.

        Raises:
          ImagenetPrepError: with the class and message of the task's error.
          RuntimeError: with the traceback of a bug.
        """
        for name in self.coordination.names(f"{self.attempt_folder}/failed"):
            path = f"{self.attempt_folder}/failed/{name}"
            note = self.coordination.read(path)
            try:
                failure = canonical.loads(note)
                task, error, message = (str(failure[key]) for key in ("task", "error", "message"))
            except (ValueError, KeyError, TypeError) as damage:
                raise errors.StoreError(
                    f"{self.coordination.where(path)}: a task has failed, and its note is "
                    f"damaged ({damage}). Run the same command again."
                ) from damage
            if error:
                raise errors.by_name(error)(message)
            raise RuntimeError(f"task {task}:\n{message}")

    @property
    def stopped(self) -> bool:
        """Whether a task has failed, the run is being ended, or another attempt has begun."""
        return self._over or bool(self.coordination.names(f"{self.attempt_folder}/failed"))

    @property
    def _over(self) -> bool:
        return bool(self.attempt) and _OPEN not in self.coordination.names(self.attempt_folder)

    def log(self, name: str) -> Path:
        """Returns a file of this machine that other programs append to, by an absolute path.

        Raises:
          StoreError: it is a link, or cannot be made.
        """
        local = self.store.local
        local.make_folder(self.folder)
        file = f"{self.folder}/{name}.log"
        with storage_errors("create", local.path(file)):
            os.close(local.open(file, os.O_WRONLY | os.O_CREAT))
        return local.path(file).absolute()

    def arrive(self) -> None:
        """Waits until a worker on another machine sees the launcher's output.

        Raises:
          UsageError: it does not see it in time.
        """
        end = time.monotonic() + _SEEN_WITHIN_S
        while self._over:
            if time.monotonic() > end:
                unseen = self.coordination.where(self.attempt_folder)
                raise errors.UsageError(
                    f"worker {socket.gethostname()} does not see {unseen}, "
                    "which was just written where this was started. Give an output that all "
                    "workers share under the same path (NFS, Lustre), or s3://bucket/prefix"
                )
            time.sleep(_SEEN_POLL_S)


def _receipt(content: bytes, shape: Any) -> dict[str, Any] | None:
    """Returns a receipt, or None if `Stage.make` cannot have made it."""
    try:
        receipt: dict[str, Any] = canonical.loads(content)
        if not canonical.fits(receipt, _SHAPE) or not canonical.fits(receipt, shape):
            return None
        for output in receipt["outputs"]:
            naming.check_inside(output["name"])
    except ValueError:
        return None
    return receipt


# What `Stage.make` adds to the content of each receipt.
_SHAPE = {"outputs": [{"name": str, "num_bytes": int}], "start_s": float, "seconds": float}

# Others may read a bucket with receipts: workers have a random name, not that of their host.
_PROCESS = uuid.uuid4().hex[:12]


def _worker() -> str:
    return f"{_PROCESS}/{threading.current_thread().name}"
