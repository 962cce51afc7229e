"""A stage of work on a dataset: its function, its receipts, and the lease of its cluster job.

The next run on a dataset takes over the lease. A job can outlive the process that started it. Its
workers check the lease before each task and before they publish a file, so a job whose launcher was
killed ends when the next run starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import socket
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from imagenet_prep.core import errors, strict_json
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.dataset import schema
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import removed_on_failure, storage_errors
from imagenet_prep.storage.remote import Check, unchecked
from imagenet_prep.storage.store import Store

# Size of a short failure record: 900 characters of at most 4 bytes, and the class of the error.
_RESERVE_BYTES = 4096
# A receipt has nine values for each quarantined or repaired image.
_MOST_VALUES = 4 * strict_json.MOST_VALUES
# `Stage.folder` below `.work`.
_FOLDER = re.compile(r"[a-z0-9-]+-[0-9a-f]{16}")
# Receipts in a bucket may be public, so workers get a random name instead of their host's.
_PROCESS = uuid.uuid4().hex[:12]


class Task(Protocol):
    """A picklable unit of work; `name` is unique in its stage and a valid file name."""

    @property
    def name(self) -> str:
        """The name of the task and of its receipt."""


AnyTask = TypeVar("AnyTask", bound=Task)
AnyContent = TypeVar("AnyContent", covariant=True)


class TaskOutput(NamedTuple):
    """A finished temporary file and its final name, relative to the dataset.

    The file must be synced, unless it is below `.work` and has a sha256, which the receipt records.
    """

    temporary: Path
    name: str
    sha256: str | None = None
    settle: Callable[[], None] | None = None  # called before the rename; syncs other files


class Result(NamedTuple, Generic[AnyContent]):
    """The result of a task's function: the content of its receipt, and files to publish."""

    content: AnyContent
    outputs: tuple[TaskOutput, ...] = ()


@dataclass(frozen=True)
class Published:
    """A published file, as recorded in a receipt; `sha256` only if it may not be synced."""

    name: str
    num_bytes: int
    sha256: str = ""


@dataclass(frozen=True)
class _Work:
    outputs: list[Published]
    start_s: float
    seconds: float
    worker: str


@dataclass(frozen=True)
class TaskReceipt(_Work, Generic[AnyContent]):
    """The record of a finished task. It is ignored if an output is missing or has changed."""

    content: AnyContent

    def dumps(self) -> bytes:
        """Returns the bytes of the receipt file."""
        work = strict_json.fields(self)
        return strict_json.dumps(strict_json.fields(work.pop("content")) | work)


@dataclass(frozen=True)
class Failure:
    """The class and message of an ImagenetPrepError in a task; for a bug, "" and the traceback."""

    error: str
    message: str


@dataclass(frozen=True)
class Stage(Generic[AnyTask, AnyContent]):
    """One kind of work on one dataset, such as "index" or "write"."""

    name: str
    digest: str  # changes with everything that affects the results
    store: Store
    function: Callable[[AnyTask], Result[AnyContent]]  # picklable; only writes temporary files
    kind: Any  # type of the receipts' content; receipts with other content are ignored
    # Folder for the failures and logs of this process; None for `store.local`.
    own: LocalStore | None = None

    @property
    def folder(self) -> str:
        """The stage's folder, relative to the dataset."""
        return f"{schema.WORK}/{self.name}-{self.digest[:16]}"

    @property
    def local(self) -> LocalStore:
        """The folder of the workers that stop together after a failure."""
        return self.own or self.store.local

    def clear(self) -> None:
        """Removes failures of an earlier run on this machine."""
        local = self.local
        local.remove_tree(f"{self.folder}/failed")
        local.make_folder(f"{self.folder}/failed")
        local.make_folder(f"{self.folder}/receipts")
        local.write(f"{self.folder}/reserve", bytes(_RESERVE_BYTES))

    def receipts(self, tasks: Iterable[str]) -> dict[str, TaskReceipt[AnyContent]]:
        """Returns the receipts of the finished tasks by name; skips invalid receipts."""
        files = set(self.store.names(f"{self.folder}/receipts"))
        return self._sound([task for task in tasks if f"{task}.json" in files])

    def receipt(self, task: str) -> TaskReceipt[AnyContent] | None:
        """Returns the receipt of one task, or None if it is not finished."""
        exists = self.store.size(self._receipt(task)) is not None
        return self._sound([task]).get(task) if exists else None

    def _receipt(self, task: str) -> str:
        return f"{self.folder}/receipts/{task}.json"

    def _sound(self, tasks: Sequence[str]) -> dict[str, TaskReceipt[AnyContent]]:
        # Receipts may be large: a shard's receipt lists its quarantined and repaired images.
        texts = self.store.read_each(map(self._receipt, tasks), MOST_LIST_BYTES)
        receipts: dict[str, TaskReceipt[AnyContent]] = {}
        names: list[str] = []
        for task, text in zip(tasks, texts, strict=True):
            receipt = self._parse(text)
            # The receipt of a shard must name that shard.
            if receipt is not None and getattr(receipt.content, "shard", task) == task:
                receipts[task] = receipt
                names += [output.name for output in receipt.outputs]
        # Ask for all sizes at once, because each request to a bucket takes tens of milliseconds.
        sizes = self.store.sizes(names)
        return {
            task: receipt
            for task, receipt in receipts.items()
            if all(self._is_complete(output, sizes.get(output.name)) for output in receipt.outputs)
        }

    def _is_complete(self, output: Published, num_bytes: int | None) -> bool:
        # All objects of a bucket are durable. In a folder, a file that was not synced may have its
        # size after a loss of power, but not its bytes.
        if num_bytes != output.num_bytes or not output.sha256 or self.store.as_folder is None:
            return num_bytes == output.num_bytes
        data = self.store.read(output.name, most=MOST_LIST_BYTES)
        return hashlib.sha256(data).hexdigest() == output.sha256

    def _parse(self, text: bytes) -> TaskReceipt[AnyContent] | None:
        try:
            fields = strict_json.loads(text, _MOST_VALUES)
            work = strict_json.parse(_Work, fields, others=True)
            rest = {name: fields[name] for name in fields.keys() - vars(work)}
            for output in work.outputs:
                schema.require_relative_name(output.name)
            return TaskReceipt(**vars(work), content=strict_json.parse(self.kind, rest))
        except ValueError:
            return None

    def make(self, task: AnyTask) -> tuple[TaskReceipt[AnyContent], Sequence[TaskOutput]]:
        """Runs one task; returns its receipt and files. Errors get a note with the task's name."""
        start = time.time()
        with _named(task):
            content, outputs = self.function(task)
            published = [self._published(file) for file in outputs]
        seconds = round(time.time() - start, 3)
        worker = f"{_PROCESS}/{threading.current_thread().name}"
        return TaskReceipt(published, round(start, 3), seconds, worker, content), outputs

    def _published(self, output: TaskOutput) -> Published:
        is_work = output.name.startswith(f"{schema.WORK}/")
        sha256 = output.sha256 if is_work else None
        return Published(output.name, output.temporary.stat().st_size, sha256 or "")

    def publish(
        self,
        task: AnyTask,
        result: tuple[TaskReceipt[AnyContent], Sequence[TaskOutput]],
        check: Check = unchecked,
    ) -> TaskReceipt[AnyContent]:
        """Publishes the result of `make`; returns the receipt. Calls `check` before every file.

        The receipt is published before its files, so every visible file has a receipt. Receipts and
        the names of files are not synced: the commit syncs the names. If a loss of power takes away
        or damages a receipt or a name before, the next run does the task again.
        """
        receipt, outputs = result
        with _named(task), removed_on_failure(*(output.temporary for output in outputs)):
            check()
            self.store.write(self._receipt(task.name), receipt.dumps(), durable=False)
            for temporary, name, sha256, settle in outputs:
                if settle is not None:
                    settle()
                self.store.publish(temporary, name, sha256, check, durable=False)
        return receipt

    def note(self, error: Exception) -> None:
        """Records a worker's error; `run` raises it in the launching process."""
        error = errors.of_memory(error) or error
        if isinstance(error, errors.ImagenetPrepError):
            self.fail(type(error).__name__, str(error))
        else:
            self.fail("", "".join(traceback.format_exception(error)))

    def fail(self, error: str, message: str) -> None:
        """Records a `Failure`, which stops all workers and which `raise_failure` raises."""
        local = self.local
        # The time in the name makes the first failure sort first.
        name = f"{self.folder}/failed/{time.time_ns():020d}{uuid.uuid4().hex}"
        try:
            local.write(name, strict_json.dumps(Failure(error, message)), durable=False)
        except (errors.IncompleteError, errors.StoreError):
            # The disk is full or faulty. The reserved file has space for one short record.
            short = strict_json.dumps(Failure(error, message[:900]))
            reserve = f"{self.folder}/reserve"
            with os.fdopen(local.open(reserve, os.O_WRONLY), "wb") as file:
                file.write(short.ljust(_RESERVE_BYTES))
            local.rename(reserve, name)

    def raise_failure(self) -> None:
        """Raises the first recorded failure, if any."""
        local = self.local
        for name in local.names(f"{self.folder}/failed"):
            path = f"{self.folder}/failed/{name}"
            try:
                failure = strict_json.parse_record(Failure, local.read(path))
            except ValueError as damage:
                raise errors.IncompleteError(
                    f"{local.where(path)}: a task has failed, and the record of its error is "
                    f"damaged ({damage}). Run the same command again."
                ) from damage
            kind = errors.by_name(failure.error) if failure.error else RuntimeError
            raise kind(failure.message)

    @property
    def stopped(self) -> bool:
        """Whether a task has failed on this machine, or the run was stopped."""
        return bool(self.local.names(f"{self.folder}/failed"))

    def log(self, name: str) -> Path:
        """Creates a log file on this machine if it is missing; returns its absolute path."""
        local = self.local
        local.make_folder(self.folder)
        file = f"{self.folder}/{name}.log"
        with storage_errors("create", local.path(file)):
            os.close(local.open(file, os.O_WRONLY | os.O_CREAT))
        return local.path(file).absolute()


def published(store: Store, tasks: Collection[str]) -> set[tuple[str, int]]:
    """Returns the names and sizes of the files in the receipts of these tasks, of all stages."""
    found: set[tuple[str, int]] = set()
    folders = filter(_FOLDER.fullmatch, store.list_folder(schema.WORK) if tasks else ())
    for folder in (f"{schema.WORK}/{name}/receipts" for name in folders):
        files = {f"{task}.json" for task in tasks}.intersection(store.names(folder))
        for text in store.read_each([f"{folder}/{file}" for file in files], MOST_LIST_BYTES):
            # A dataset from elsewhere may have anything in its `.work`.
            with contextlib.suppress(ValueError):
                work = strict_json.parse(_Work, strict_json.loads(text, _MOST_VALUES), others=True)
                found.update((output.name, output.num_bytes) for output in work.outputs)
    return found


@contextlib.contextmanager
def _named(task: Task) -> Iterator[None]:
    """Adds the task's name to errors; converts an OSError to an ImagenetPrepError."""
    try:
        try:
            yield
        except OSError as error:
            with storage_errors("use", Path(str(error.filename or task.name))):
                raise
    except Exception as error:
        error.add_note(f"Task: {task.name}")
        raise


# Each job has a folder here.
JOBS = f"{schema.WORK}/jobs"
_HELD = "held"
# A worker that does not see the lease within this time does not share the launcher's folder.
_SEEN_WITHIN_S = 10.0
_SEEN_POLL_S = 0.2
# Maximum number of unfinished tasks of a worker: one being built, one being published, one queued.
_IN_HAND = 3
# Not the global generator of `random`, which a pipeline may have seeded.
_chance = random.Random()
# Jobs whose leases this process has seen.
_seen: set[str] = set()


@dataclass(frozen=True)
class Lease:
    """The lease of the job with the unique name `job`; picklable, for the job's workers."""

    store: Store
    job: str

    @classmethod
    def acquire(cls, store: Store) -> Lease:
        """Ends all earlier jobs on the dataset and returns a new lease."""
        end_jobs(store)
        lease = cls(store, uuid.uuid4().hex[:16])
        store.write(lease.mark, b"")
        return lease

    @property
    def folder(self) -> str:
        """The folder of the job, relative to the dataset."""
        return f"{JOBS}/{self.job}"

    @property
    def mark(self) -> str:
        """The name of the file that exists while the lease is held."""
        return f"{self.folder}/{_HELD}"

    @property
    def owner(self) -> str:
        """The content of claims."""
        return ""

    def claims(self, stage: str) -> str:
        """Returns the folder of the claims of a stage, relative to the dataset."""
        return f"{self.folder}/{stage}"

    @property
    def held(self) -> bool:
        """Whether this job still has the lease."""
        return self.store.size(self.mark) is not None

    def check(self) -> None:
        """Raises JobLostError if a newer run has taken over the lease."""
        if not self.held:
            raise errors.JobLostError(
                f"{self.store.where()}: a newer run has taken over, so this run has stopped"
            )

    def arrive(self) -> None:
        """Waits until this worker sees the lease; raises UsageError after 10 s."""
        if self.job in _seen:
            self.check()
            return
        end = time.monotonic() + _SEEN_WITHIN_S
        while not self.held:
            if time.monotonic() > end:
                raise errors.UsageError(
                    f"worker {socket.gethostname()} cannot see {self.store.where(self.folder)}, "
                    "which the launching machine has just written. Choose an output that all "
                    "workers share under the same path (NFS, Lustre), or s3://bucket/prefix"
                )
            time.sleep(_SEEN_POLL_S)
        _seen.add(self.job)

    def claimed(
        self, stage: Stage[Any, Any], tasks: Sequence[AnyTask]
    ) -> Generator[AnyTask, None, None]:
        """Claims and yields tasks one by one until the workers of this job have claimed all tasks.

        If a task is already claimed, the worker lists all claims and skips a random number of
        tasks. If the generator is closed early, it releases the unfinished tasks, so that a retry,
        such as Spark's, fails with the same error instead of skipping them.
        """
        claims = self.claims(stage.name)
        folder = self.store.as_folder
        if folder:
            folder.make_folder(claims)
        pending = _without(tasks, self.store.names(claims))
        spread = 1
        mine: deque[str] = deque(maxlen=_IN_HAND)
        try:
            while pending:
                task = pending.popleft()
                self.check()
                if self.store.try_create(f"{claims}/{task.name}", self.owner):
                    mine.append(task.name)
                    yield task
                    continue
                # In a bucket, each attempt costs a request, so list all claims after a failed one.
                pending = _without(pending, self.store.names(claims))
                # Workers that collided at this task would collide at the next one, too.
                spread *= 2
                if pending:
                    pending.rotate(-_chance.randrange(min(spread, len(pending))))
        except GeneratorExit:
            with contextlib.suppress(errors.ImagenetPrepError):
                failed = set(mine).difference(stage.receipts(mine))
                self.store.remove(*(f"{claims}/{name}" for name in failed))
            raise


def _without(tasks: Iterable[AnyTask], names: Iterable[str]) -> deque[AnyTask]:
    claimed = set(names)
    return deque(task for task in tasks if task.name not in claimed)


def end_jobs(store: Store) -> None:
    """Ends all jobs on a dataset: the workers stop when they next check the lease."""
    store.remove_tree(JOBS)


def killed_worker(stage: str, pending: int, total: int) -> errors.IncompleteError:
    """Returns the error for tasks that are unfinished because a worker process was killed."""
    # A retry would not help: a process that uses too much memory would be killed again.
    return errors.IncompleteError(
        f"{stage}: a worker process was killed, perhaps because memory ran out; {pending} "
        f"of {total} tasks are not finished. {errors.kept_work()}Run the same command again, with "
        "fewer --workers if this happens again."
    )
