"""Workers on this machine, threads or processes; and what a worker does on any machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self

from imagenet_prep.core import children, counter, errors, program, terminal, turns
from imagenet_prep.engine.lease import Claimed
from imagenet_prep.engine.stage import AnyTask, Output, Receipt, Stage

THREADS = "threads"
PROCESSES = "processes"

# Threads start at once and share their memory, and the codecs release the GIL. But each image takes
# it a few times: 8 threads made 1,809 images/s where 8 processes made 2,651 (4: 1,561 and 1,754).
MAX_THREAD_WORKERS = 4

_PROGRAM = "from imagenet_prep.engine import workers; workers.run_process({})"


@dataclass(frozen=True)
class Workers:
    """How much runs at once.

    Attributes:
      num: tasks in work at a time; 0 is one a core this process may use.
      kind: "threads", "processes", or "auto" to choose by their number.
      beam_args: options for Apache Beam, with a --runner: then that runner has the workers.
    """

    num: int = 0
    kind: str = "auto"
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for Beam's options without a --runner, or without Beam."""
        if self.remote and importlib.util.find_spec("apache_beam") is None:
            raise errors.UsageError(
                "options after -- are for Apache Beam, which is not installed. Run: "
                "pip install 'imagenet-prep[beam]'"
            )
        if self.beam_args and not self.remote:
            raise errors.UsageError(
                f"{' '.join(self.beam_args)}: expected a --runner among the options after --. "
                "For Apache Beam on this machine, add --runner=DirectRunner; to run without Beam, "
                "leave these options out."
            )

    @property
    def count(self) -> int:
        """The number of workers on this machine."""
        return self.num or len(os.sched_getaffinity(0))

    @property
    def resolved_kind(self) -> str:
        """The kind of workers: "threads" or "processes"."""
        if self.kind != "auto":
            return self.kind
        return THREADS if self.count <= MAX_THREAD_WORKERS else PROCESSES

    @property
    def remote(self) -> bool:
        """Whether Beam's options name a runner of their own."""
        return any(arg == "--runner" or arg.startswith("--runner=") for arg in self.beam_args)


class Started:
    """Running workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Ends them, unless this process would have to wait for it."""

    def wait(self, seconds: float) -> bool:
        """Returns whether they are still running after at most `seconds`; raises their error."""
        raise NotImplementedError


class Threads(Started):
    """Workers that are threads of this process. A thread that hangs ends with the process."""

    def __init__(self, stage: Stage[AnyTask, Any], tasks: list[AnyTask], count: int) -> None:
        """Starts them."""
        turns.among_threads(count)
        pool = futures.ThreadPoolExecutor(count, thread_name_prefix="worker")
        self._workers = [pool.submit(run_worker, stage, tasks) for _ in range(count)]
        pool.shutdown(wait=False)

    def wait(self, seconds: float) -> bool:
        """As for `Started`."""
        done, running = futures.wait(self._workers, seconds)
        for worker in () if running else done:
            worker.result()
        return bool(running)


class Processes(Started):
    """Workers that are processes. The kernel kills them when this process ends."""

    def __init__(self, stage: Stage[AnyTask, Any], tasks: list[AnyTask], count: int) -> None:
        """Starts them; what they print goes to the stage's log."""
        with (
            os.fdopen(os.memfd_create("work"), "wb") as work,
            open(stage.log("processes"), "ab") as log,
            open(os.dup(2), "wb") as stderr,
        ):
            pickle.dump((stage, tasks, count), work)
            work.flush()
            shared = [stderr.fileno(), counter.begin()]
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
        """Returns whether, after at most `seconds`, some are running and none has died."""
        end = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        codes = [process.poll() for process in self._processes]
        return None in codes and not any(codes)


def run_process(shared: tuple[int, int]) -> NoReturn:
    """Runs in each of `Processes`: standard input is a file with the pickled work.

    Its own stderr is the log of the stage. It shares the stderr of the run, for messages to the
    user, and the count of images.
    """
    terminal.say_on(shared[0])
    counter.begin(shared[1])
    # pread, since all workers share the file's position. Only the launching process wrote the file.
    stage, tasks, count = pickle.loads(os.pread(0, os.fstat(0).st_size, 0))  # noqa: S301
    turns.among_processes(count, 0)

    def work() -> int:
        run_worker(stage, tasks)
        return 0

    program.finish(work)


def run_worker(stage: Stage[AnyTask, Any], tasks: list[AnyTask]) -> None:
    """Does tasks that no other worker of this machine has claimed; notes a failure in the stage."""
    try:
        for _ in done(stage, _claimed(stage, tasks)):
            pass
    except Exception as error:  # noqa: BLE001 - `run` raises it again, in the launching process
        try:
            stage.note(error)
        except (errors.ImagenetPrepError, OSError):
            # The disk that made it fail takes no note either.
            raise error from None


class Done(NamedTuple):
    """A finished task, its receipt, and whether this run has done it."""

    task: Any
    receipt: Receipt[Any]
    new: bool


def done(stage: Stage[AnyTask, Any], tasks: Iterable[AnyTask]) -> Iterator[Done]:
    """Does tasks one after the other, on any machine; those of a lease are published under it.

    What has a receipt already is not done again.
    """

    def publish(task: AnyTask, made: tuple[Receipt[Any], Sequence[Output]]) -> Done:
        check = (tasks.check,) if isinstance(tasks, Claimed) else ()
        return Done(task, stage.publish(task, made, *check), new=True)

    # The disk, or the server, gets the result of one task while the next task runs.
    with futures.ThreadPoolExecutor(1, thread_name_prefix="publish") as publisher:
        # The last two: one is being published, the other waits for it, or has ended.
        publishing: list[futures.Future[Done]] = []
        try:
            for task in tasks:
                if (receipt := stage.receipt(task.name)) is not None:
                    yield Done(task, receipt, new=False)
                    continue
                made = stage.make(task)
                publishing = [*publishing[-1:], publisher.submit(publish, task, made)]
                if len(publishing) == 2:
                    yield publishing[0].result()
            if publishing:
                yield publishing[-1].result()
        except Exception as error:
            failures = [failure for each in publishing if (failure := each.exception())]
            if failures in ([], [error]):
                raise
            raise _together(failures if error in failures else [*failures, error]) from error


def _together(failures: Sequence[BaseException]) -> BaseException:
    """Returns one error for several, in their order: of the class of the first, or a bug."""
    first = failures[0]
    if all(isinstance(failure, errors.ImagenetPrepError) for failure in failures):
        return type(first)(". And then: ".join(str(failure).rstrip(".") for failure in failures))
    return BaseExceptionGroup("a task has failed, and so has the one before it", failures)


def _claimed(stage: Stage[AnyTask, Any], tasks: list[AnyTask]) -> Iterator[AnyTask]:
    """Yields tasks that no other worker has claimed, until none is left or one has failed."""
    for task in tasks:
        if stage.stopped:
            return
        if stage.store.local.take(f"{stage.folder}/claims/{task.name}"):
            yield task
