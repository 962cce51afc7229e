"""Worker threads and processes on this machine, and the loop in which a worker runs tasks."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self

from imagenet_prep.core import children, errors, imports, limits, program, terminal, threads
from imagenet_prep.core.limits import num_cores
from imagenet_prep.engine.stage import AnyTask, Lease, Stage, TaskOutput, TaskReceipt
from imagenet_prep.storage.remote import Check, unchecked

THREADS = "threads"
PROCESSES = "processes"

# Threads start at once and share memory, and codecs release the GIL. But each image needs the GIL a
# few times: 4 threads prepared 1,561 images/s and 4 processes 1,754; 8 threads prepared 1,809 and
# 8 processes 2,651.
MAX_THREAD_WORKERS = 4

_PROGRAM = "from imagenet_prep.engine import workers; workers.run_process({})"


@dataclass(frozen=True)
class Workers:
    """The number and kind of workers."""

    num: int = 0  # 0 for one worker per CPU core that this process may use
    kind: str = "auto"  # "threads", "processes", or "auto": processes for more than 4 workers
    beam_args: tuple[str, ...] = ()  # a --runner in these options provides its own workers

    def __post_init__(self) -> None:
        if self.remote:
            imports.require_modules("beam", "Apache Beam", "apache_beam")
        if self.beam_args and not self.remote:
            raise errors.UsageError(
                f"{' '.join(self.beam_args)}: the options after -- do not contain a --runner. To "
                "run Apache Beam on this machine, add --runner=DirectRunner; to run without Beam, "
                "remove these options."
            )

    @property
    def count(self) -> int:
        """The number of workers on this machine."""
        return self.num or num_cores()

    @property
    def resolved_kind(self) -> str:
        """The kind of workers, "threads" or "processes", with "auto" resolved."""
        if self.kind != "auto":
            return self.kind
        return THREADS if self.count <= MAX_THREAD_WORKERS else PROCESSES

    @property
    def remote(self) -> bool:
        """Whether `beam_args` contains a --runner."""
        return any(arg == "--runner" or arg.startswith("--runner=") for arg in self.beam_args)


class Started:
    """Workers that have been started: threads, processes or a cluster job."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Ends worker processes and cluster jobs."""

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`; returns whether workers still run, or raises their error."""
        raise NotImplementedError


class Threads(Started):
    """Worker threads of this process; if the run fails, each ends after its task."""

    def __init__(
        self,
        stage: Stage[AnyTask, Any],
        tasks: list[AnyTask],
        count: int,
        lease: Lease | None = None,
    ) -> None:
        limits.among_threads(count)
        pool = futures.ThreadPoolExecutor(count, thread_name_prefix="worker")
        take = itertools.count().__next__
        self._workers = [pool.submit(run_worker, stage, tasks, take, lease) for _ in range(count)]
        pool.shutdown(wait=False)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            threads.leave(self._workers)

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`; returns whether a thread still runs, or raises its error."""
        done, running = futures.wait(self._workers, seconds)
        for worker in () if running else done:
            worker.result()
        return bool(running)


class Processes(Started):
    """Worker processes, which print to the stage's log. If this process dies, they are killed."""

    def __init__(
        self,
        stage: Stage[AnyTask, Any],
        tasks: list[AnyTask],
        count: int,
        lease: Lease | None = None,
    ) -> None:
        with (
            os.fdopen(os.memfd_create("work"), "wb") as work,
            open(stage.log("processes"), "ab") as log,
            open(os.dup(2), "wb") as stderr,
        ):
            pickle.dump((stage, tasks, count, lease), work)
            work.seek(0)
            shared = [stderr.fileno(), limits.begin()]
            argv = children.bound(children.python("-c", _PROGRAM.format(shared)))
            self._processes = [
                subprocess.Popen(argv, stdin=work, stdout=log, stderr=log, pass_fds=shared)
                for _ in range(count)
            ]

    def __exit__(self, kind: object, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`; returns whether a process still runs and none has failed."""
        end = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        codes = [process.poll() for process in self._processes]
        return None in codes and not any(codes)


def run_process(shared: tuple[int, int]) -> NoReturn:
    """Entry point of a worker process; reads the pickled work from stdin."""
    terminal.say_on(shared[0])
    limits.begin(shared[1])
    # All workers share the file's position, which counts the claimed tasks, so use pread. The file
    # is the launching process's own.
    stage, tasks, count, lease = pickle.loads(os.pread(0, os.fstat(0).st_size, 0))  # noqa: S301
    limits.among_processes(count, 0)

    def work() -> int:
        run_worker(stage, tasks, lambda: os.lseek(0, 1, os.SEEK_CUR) - 1, lease)
        return 0

    program.finish(work)


def run_worker(
    stage: Stage[AnyTask, Any],
    tasks: Sequence[AnyTask],
    take: Callable[[], int],
    lease: Lease | None = None,
) -> None:
    """Claims and runs tasks until none is left; records the error if a task fails.

    The workers of this machine share `take`, which returns 0, 1, 2, ... to them. With a lease, the
    worker shares the tasks with all other workers of the lease's job instead.
    """
    claimed = lease.claimed(stage, tasks) if lease else _claimed(tasks, take)
    check = lease.check if lease else unchecked
    try:
        with contextlib.closing(claimed):
            for _ in done(stage, _until_stopped(stage, claimed), check):
                pass
    except Exception as error:  # noqa: BLE001 - `run` raises it again, in the launching process
        try:
            stage.note(error)
        except (errors.ImagenetPrepError, OSError):
            # The disk that caused the error cannot store its record either.
            raise error from None


class Done(NamedTuple):
    """A finished task, its receipt, and whether this run has finished it."""

    task: Any
    receipt: TaskReceipt[Any]
    new: bool


def done(
    stage: Stage[AnyTask, Any], tasks: Iterable[AnyTask], check: Check = unchecked
) -> Iterator[Done]:
    """Runs unfinished tasks; yields all tasks as `Done`; calls `check` before publishing a file."""

    def publish(task: AnyTask, result: tuple[TaskReceipt[Any], Sequence[TaskOutput]]) -> Done:
        return Done(task, stage.publish(task, result, check), new=True)

    # The result of one task is published while the next task runs.
    with futures.ThreadPoolExecutor(1, thread_name_prefix="publish") as publisher:
        # The last two results: the first is being published, the second is queued.
        publishing: list[futures.Future[Done]] = []
        try:
            for task in tasks:
                receipt = stage.receipt(task.name)
                if receipt is not None:
                    yield Done(task, receipt, new=False)
                    continue
                result = stage.make(task)
                publishing = [*publishing[-1:], publisher.submit(publish, task, result)]
                if len(publishing) == 2:
                    yield publishing[0].result()
            if publishing:
                yield publishing[-1].result()
        except Exception as error:
            # Results that are still being published may have failed, too.
            failures = [*filter(None, (future.exception() for future in publishing))]
            if failures in ([], [error]):
                raise
            raise _together(failures if error in failures else [*failures, error]) from error


def _together(failures: Sequence[BaseException]) -> BaseException:
    """Combines errors into one with the class of the first; if any is a bug, into a group."""
    first = failures[0]
    if all(isinstance(failure, errors.ImagenetPrepError) for failure in failures):
        return type(first)(". Then: ".join(str(failure).rstrip(".") for failure in failures))
    return BaseExceptionGroup("a task failed, and the task before it failed too", failures)


def _claimed(tasks: Sequence[AnyTask], take: Callable[[], int]) -> Generator[AnyTask, None, None]:
    """Claims and yields tasks until the workers of this machine have claimed all tasks."""
    number = take()
    while number < len(tasks):
        yield tasks[number]
        number = take()


def _until_stopped(stage: Stage[AnyTask, Any], claimed: Iterable[AnyTask]) -> Iterator[AnyTask]:
    """Yields claimed tasks until one has failed."""
    for task in claimed:
        if stage.stopped:
            return
        yield task
