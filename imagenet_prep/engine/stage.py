"""One kind of work on one data set: its receipts, and the notes that its workers share."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from imagenet_prep.core import canonical, errors
from imagenet_prep.dataset import naming
from imagenet_prep.storage.os_errors import removed_on_failure, storage_errors
from imagenet_prep.storage.store import Store

# 900 characters of a message, at most 4 bytes each, and a task's name.
_RESERVE_BYTES = 4096


class Task(Protocol):
    """A picklable description of work; `name` is unique in its stage and fit for a file."""

    @property
    def name(self) -> str:
        """The receipt's name."""


AnyTask = TypeVar("AnyTask", bound=Task)


class Output(NamedTuple):
    """A finished, synced temporary file and the name it gets when its receipt is published.

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
    """

    name: str
    digest: str
    store: Store
    function: Callable[[AnyTask], Result]
    shape: Any = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The stage's folder, relative to the data set."""
        return f"{naming.WORK}/{self.name}-{self.digest[:16]}"

    @property
    def _reserve(self) -> str:
        return f"{self.folder}/reserve"

    def clear(self) -> None:
        """Removes claims and failures of an earlier run on this machine."""
        local = self.store.local
        for name in ("failed", "claims"):
            local.remove_tree(f"{self.folder}/{name}")
            local.make_folder(f"{self.folder}/{name}")
        local.make_folder(f"{self.folder}/receipts")
        local.write(self._reserve, bytes(_RESERVE_BYTES))

    def receipts(self, tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Returns the receipts of the finished tasks, by task.

        A receipt does not count if its files are gone, or if no task of this program can have
        written it. Names in it that lead outside the data set are never looked at.
        """
        there = set(self.store.names(f"{self.folder}/receipts"))
        return self._sound([task for task in tasks if f"{task}.json" in there])

    def receipt(self, task: str) -> dict[str, Any] | None:
        """Returns the receipt of one task, as `receipts` does, or None if it is not finished."""
        there = self.store.size(self._receipt(task)) is not None
        return self._sound([task]).get(task) if there else None

    def _receipt(self, task: str) -> str:
        return f"{self.folder}/receipts/{task}.json"

    def _sound(self, found: Sequence[str]) -> dict[str, dict[str, Any]]:
        contents = self.store.read_each(map(self._receipt, found))
        receipts = {
            task: receipt
            for task, content in zip(found, contents, strict=True)
            if (receipt := _parse(content, self.shape)) is not None
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

    def make(self, task: AnyTask) -> Result:
        """Does one task; returns its receipt and files. Errors have a note with its name."""
        start = time.time()
        with _named(task):
            content, outputs = self.function(task)
            listed = [
                {"name": output.name, "num_bytes": output.temporary.stat().st_size}
                for output in outputs
            ]
        receipt = {
            **content,
            "outputs": listed,
            "start_s": round(start, 3),
            "seconds": round(time.time() - start, 3),
            "worker": _worker(),
        }
        return Result(receipt, outputs)

    def publish(self, task: AnyTask, result: Result) -> dict[str, Any]:
        """Publishes what `make` has returned; returns the receipt.

        The receipt is published before its files. So every visible file has its receipt, and a
        receipt without its files is no finished task.
        """
        temporaries = [output.temporary for output in result.outputs]
        with _named(task), removed_on_failure(*temporaries):
            self.store.write(self._receipt(task.name), canonical.dumps(result.content))
            for output in result.outputs:
                self.store.publish(*output)
        return result.content

    def note(self, error: Exception) -> None:
        """Notes the error of a worker; `run` raises it in the launching process."""
        if isinstance(error, errors.ImagenetPrepError):
            self.fail(type(error).__name__, str(error))
        else:
            self.fail("", "".join(traceback.format_exception(error)))

    def fail(self, error: str, message: str) -> None:
        """Notes a failure; `run` raises it, and the other workers see it and stop.

        Args:
          error: class name of an ImagenetPrepError, or "" for a bug.
          message: of the error, or the traceback.

        Raises:
          StoreError, OSError: it could not be noted.
        """
        local, failure = self.store.local, {"error": error, "message": message}
        # The first comes first in the list of names.
        name = f"{self.folder}/failed/{time.time_ns():020d}{uuid.uuid4().hex}"
        try:
            local.write(name, canonical.dumps(failure))
        except (errors.IncompleteError, errors.StoreError):
            # The disk is full, or fails. One note fits into a file that was made beforehand.
            short = canonical.dumps({**failure, "message": message[:900]})
            with os.fdopen(local.open(self._reserve, os.O_WRONLY), "wb") as file:
                file.write(short.ljust(_RESERVE_BYTES))
            local.rename(self._reserve, name)

    def raise_failure(self) -> None:
        """Raises the failure that was noted, if any.

        Raises:
          ImagenetPrepError: with the class and message of the task's error.
          RuntimeError: with the traceback of a bug.
        """
        local = self.store.local
        for name in local.names(f"{self.folder}/failed"):
            path = f"{self.folder}/failed/{name}"
            try:
                failure = canonical.loads(local.read(path))
                error, message = str(failure["error"]), str(failure["message"])
            except (ValueError, KeyError, TypeError) as damage:
                raise errors.StoreError(
                    f"{local.where(path)}: a task has failed, and its note is damaged "
                    f"({damage}). Run the same command again."
                ) from damage
            raise errors.by_name(error)(message) if error else RuntimeError(message)

    @property
    def stopped(self) -> bool:
        """Whether a task has failed on this machine, or the run is being ended."""
        return bool(self.store.local.names(f"{self.folder}/failed"))

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


@contextlib.contextmanager
def _named(task: Task) -> Iterator[None]:
    """Gives errors a note with the task's name; what the system refuses is no bug."""
    try:
        try:
            yield
        except OSError as error:
            with storage_errors("use", Path(str(error.filename or task.name))):
                raise
    except Exception as error:
        error.add_note(f"Task: {task.name}")
        raise


def _parse(content: bytes, shape: Any) -> dict[str, Any] | None:
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
