"""One kind of work on one data set: its receipts, and the notes that its workers share."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from imagenet_prep.core import canonical, errors, records
from imagenet_prep.core.regular_file import MOST_LIST_BYTES
from imagenet_prep.dataset import naming
from imagenet_prep.storage.os_errors import removed_on_failure, storage_errors
from imagenet_prep.storage.remote import Check, unchecked
from imagenet_prep.storage.store import Store

# 900 characters of a message, at most 4 bytes each, and a task's name.
_RESERVE_BYTES = 4096
# A receipt has nine values for each image that was left out or repaired.
_MOST_VALUES = 4 * canonical.MOST_VALUES
# Others may read a bucket with receipts: workers have a random name, not that of their host.
_PROCESS = uuid.uuid4().hex[:12]


class Task(Protocol):
    """A picklable description of work; `name` is unique in its stage and fit for a file."""

    @property
    def name(self) -> str:
        """The receipt's name."""


AnyTask = TypeVar("AnyTask", bound=Task)
# The type of what a task finds out or makes, a dataclass.
AnyContent = TypeVar("AnyContent", covariant=True)


class Output(NamedTuple):
    """A finished, synced temporary file and the name it gets when its receipt is published.

    Attributes:
      name: relative to the dataset.
      sha256: of its content, if that is known.
      settle: called before it gets its name, while the next task runs: it syncs the files that the
        task has written next to it.
    """

    temporary: Path
    name: str
    sha256: str | None = None
    settle: Callable[[], None] | None = None


class Result(NamedTuple, Generic[AnyContent]):
    """What a task's function returns: the content of its receipt, and files to publish."""

    content: AnyContent
    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True)
class Published:
    """A file that a receipt names."""

    name: str
    num_bytes: int


@dataclass(frozen=True)
class _Work:
    """What `Stage.make` adds to the content of each receipt."""

    outputs: list[Published]
    start_s: float
    seconds: float
    worker: str


@dataclass(frozen=True)
class Receipt(_Work, Generic[AnyContent]):
    """The proof that a task is finished. On the disk, the content's fields stand beside the others.

    Attributes:
      outputs: the published files; without them the receipt does not count.
      start_s: when the task started, in seconds since the epoch.
      seconds: how long it took.
      content: the result of its function.
    """

    content: AnyContent

    def dumps(self) -> bytes:
        """Returns the bytes of its file."""
        whole = canonical.fields(self)
        return canonical.dumps(canonical.fields(whole.pop("content")) | whole)


@dataclass(frozen=True)
class Failure:
    """The note of a failed task: the class of our error, or "" and the traceback of a bug."""

    error: str
    message: str


@dataclass(frozen=True)
class Stage(Generic[AnyTask, AnyContent]):
    """One kind of work on one data set.

    Attributes:
      name: "index", "write", ...
      digest: of everything that decides the results.
      store: where receipts and outputs go; shared by all workers.
      function: task -> result; picklable, without side effects outside its temporary files.
      kind: of the receipts' contents, a dataclass or a union of them; a receipt with another
        content does not count.
    """

    name: str
    digest: str
    store: Store
    function: Callable[[AnyTask], Result[AnyContent]]
    kind: Any

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

    def receipts(self, tasks: Iterable[str]) -> dict[str, Receipt[AnyContent]]:
        """Returns the receipts of the finished tasks, by task.

        A receipt does not count if its files are gone, or if no task of this program can have
        written it. Names in it that lead outside the data set are never looked at.
        """
        there = set(self.store.names(f"{self.folder}/receipts"))
        return self._sound([task for task in tasks if f"{task}.json" in there])

    def receipt(self, task: str) -> Receipt[AnyContent] | None:
        """Returns the receipt of one task, as `receipts` does, or None if it is not finished."""
        there = self.store.size(self._receipt(task)) is not None
        return self._sound([task]).get(task) if there else None

    def _receipt(self, task: str) -> str:
        return f"{self.folder}/receipts/{task}.json"

    def _sound(self, tasks: Sequence[str]) -> dict[str, Receipt[AnyContent]]:
        # The receipt of a shard lists its images that were left out or repaired.
        texts = self.store.read_each(map(self._receipt, tasks), MOST_LIST_BYTES)
        receipts = {
            task: receipt
            for task, text in zip(tasks, texts, strict=True)
            if (receipt := self._parse(text)) is not None
            # The receipt of a shard has the name of that shard.
            and getattr(receipt.content, "shard", task) == task
        }
        outputs = [output for receipt in receipts.values() for output in receipt.outputs]
        sizes = self.store.sizes(output.name for output in outputs)
        return {
            task: receipt
            for task, receipt in receipts.items()
            if all(sizes.get(output.name) == output.num_bytes for output in receipt.outputs)
        }

    def _parse(self, text: bytes) -> Receipt[AnyContent] | None:
        """Returns a receipt, or None if `make` cannot have made it."""
        try:
            whole = canonical.loads(text, _MOST_VALUES)
            work = records.parse(_Work, whole, others=True)
            rest = {name: whole[name] for name in whole.keys() - vars(work)}
            for output in work.outputs:
                naming.check_inside(output.name)
            return Receipt(**vars(work), content=records.parse(self.kind, rest))
        except ValueError:
            return None

    def make(self, task: AnyTask) -> tuple[Receipt[AnyContent], Sequence[Output]]:
        """Does one task; returns its receipt and files. Errors have a note with its name."""
        start = time.time()
        with _named(task):
            content, outputs = self.function(task)
            listed = [Published(each.name, each.temporary.stat().st_size) for each in outputs]
        seconds = round(time.time() - start, 3)
        worker = f"{_PROCESS}/{threading.current_thread().name}"
        return Receipt(listed, round(start, 3), seconds, worker, content), outputs

    def publish(
        self,
        task: AnyTask,
        made: tuple[Receipt[AnyContent], Sequence[Output]],
        check: Check = unchecked,
    ) -> Receipt[AnyContent]:
        """Publishes what `make` has returned; returns the receipt.

        The receipt is published before its files. So every visible file has its receipt, and a
        receipt without its files is no finished task. `check` is called before each of them.
        """
        receipt, outputs = made
        with _named(task), removed_on_failure(*(output.temporary for output in outputs)):
            check()
            self.store.write(self._receipt(task.name), receipt.dumps())
            for temporary, name, sha256, settle in outputs:
                if settle is not None:
                    settle()
                self.store.publish(temporary, name, sha256, check)
        return receipt

    def note(self, error: Exception) -> None:
        """Notes the error of a worker; `run` raises it in the launching process."""
        error = errors.of_memory(error) or error
        if isinstance(error, errors.ImagenetPrepError):
            self.fail(type(error).__name__, str(error))
        else:
            self.fail("", "".join(traceback.format_exception(error)))

    def fail(self, error: str, message: str) -> None:
        """Notes a failure, as `Failure`; `run` raises it, and the other workers see it and stop."""
        local = self.store.local
        # The first comes first in the list of names.
        name = f"{self.folder}/failed/{time.time_ns():020d}{uuid.uuid4().hex}"
        try:
            local.write(name, canonical.dumps(Failure(error, message)))
        except (errors.IncompleteError, errors.StoreError):
            # The disk is full, or fails. One note fits into a file that was made beforehand.
            short = canonical.dumps(Failure(error, message[:900]))
            with os.fdopen(local.open(self._reserve, os.O_WRONLY), "wb") as file:
                file.write(short.ljust(_RESERVE_BYTES))
            local.rename(self._reserve, name)

    def raise_failure(self) -> None:
        """Raises the failure that was noted, if any."""
        local = self.store.local
        for name in local.names(f"{self.folder}/failed"):
            path = f"{self.folder}/failed/{name}"
            try:
                failure = records.loads(Failure, local.read(path))
            except ValueError as damage:
                raise errors.IncompleteError(
                    f"{local.where(path)}: a task has failed, and its note is damaged "
                    f"({damage}). Run the same command again."
                ) from damage
            kind = errors.by_name(failure.error) if failure.error else RuntimeError
            raise kind(failure.message)

    @property
    def stopped(self) -> bool:
        """Whether a task has failed on this machine, or the run is being ended."""
        return bool(self.store.local.names(f"{self.folder}/failed"))

    def log(self, name: str) -> Path:
        """Returns a file of this machine that other programs append to, by an absolute path."""
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
