"""Workers on this machine: threads, or Beam's worker processes; and what every worker does."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from imagenet_prep.core import children, errors
from imagenet_prep.engine.stage import AnyTask, Stage
from imagenet_prep.storage.folder import LocalStore, storage_errors

THREADS = "threads"
PROCESSES = "processes"

# Threads start at once and the codecs release the GIL; beyond a few workers what remains of
# Python in the loop (2 % of the image's time) starts to serialise them.
MAX_THREAD_WORKERS = 8


@dataclass(frozen=True)
class Workers:
    """How much runs at once.

    Attributes:
      num: tasks in work at a time; 0 is one a core this process may use.
      kind: "threads", "processes", or "auto" to choose by their number.
      beam_args: options for Beam; with a --runner the workers are the runner's.
    """

    num: int = 0
    kind: str = "auto"
    beam_args: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of workers on this machine."""
        return self.num or len(os.sched_getaffinity(0))

    @property
    def resolved_kind(self) -> str:
        """What a worker is: "threads" or "processes"."""
        if self.kind != "auto":
            return self.kind
        return THREADS if self.count <= MAX_THREAD_WORKERS else PROCESSES

    @property
    def remote(self) -> bool:
        """Whether Beam's options name a runner of their own."""
        return any(arg == "--runner" or arg.startswith("--runner=") for arg in self.beam_args)


class LocalWorkers:
    """The workers at work behind a thread, so that nothing they do can hold up an interrupt."""

    def __init__(self, stage: Stage[AnyTask], tasks: list[AnyTask], workers: Workers) -> None:
        self._error: BaseException | None = None
        self._lost_worker = False
        self._thread = threading.Thread(
            target=self._run, args=(stage, tasks, workers), name="pipeline", daemon=True
        )
        self._hook, threading.excepthook = threading.excepthook, self._thread_died
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves what is stuck alone: it ends with this process."""

    def wait(self, seconds: float) -> bool:
        """As for `_Started`."""
        self._thread.join(seconds)
        if self._thread.is_alive() and not self._lost_worker:
            return True
        if not self._lost_worker:
            threading.excepthook = self._hook
        if self._error is not None:
            raise self._error
        return False

    def _run(self, stage: Stage[Any], tasks: list[Any], workers: Workers) -> None:
        try:
            if workers.resolved_kind == PROCESSES and workers.count > 1:
                _run_beam(stage, tasks, workers)
            else:
                _run_threads(stage, tasks, workers)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it again
            self._error = error

    def _thread_died(self, arguments: threading.ExceptHookArgs) -> None:
        # Beam watches each worker process in such a thread, which dies with it; Beam itself
        # would wait for the dead process's answer for ever. Its other threads lose their
        # connections at the same moment, and would each print a traceback about it.
        if arguments.thread is not None and arguments.thread.name == "run_worker":
            self._lost_worker = True


def _run_threads(stage: Stage[AnyTask], tasks: list[AnyTask], workers: Workers) -> None:
    count = min(workers.count, len(tasks))
    with ThreadPoolExecutor(count, thread_name_prefix="worker") as pool:
        for worker in [pool.submit(run_worker, None, stage, tasks) for _ in range(count)]:
            worker.result()


def _run_beam(stage: Stage[AnyTask], tasks: list[AnyTask], workers: Workers) -> None:
    # Beam costs 1 s and 125 MB: not before there is work. It warns of cloud extras on import.
    logging.disable(logging.WARNING)
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.transforms import environments

    logging.disable(logging.NOTSET)
    # What goes wrong in a task is in its receipt; these would add what they saw of it.
    for noisy in ("apache_beam", "grpc"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)

    count = min(workers.count, len(tasks))
    log = stage.log("processes")
    # What Beam's own multi_processing mode starts, plus a log file. A worker that outlived its
    # launcher would wait for ever for a runner that is gone, or write beside the next run.
    worker = children.python("-m", "apache_beam.runners.worker.sdk_worker_main")
    command = children.bound(worker)
    environment = environments.SubprocessSDKEnvironment.from_command_string(
        f"exec {shlex.join(command)} 2>>{shlex.quote(str(log))}"
    )
    # Options reach worker processes in the provision info only.
    information = beam_provision_api_pb2.ProvisionInfo()
    information.pipeline_options.update({"beam:option:default_sdk_harness_log_level:v1": "ERROR"})
    # Beam's default runner first looks for another one online; this one is here.
    runner = fn_runner.FnApiRunner(
        default_environment=environment,
        provision_info=fn_runner.ExtendedProvisionInfo(information, job_name=stage.name),
    )
    options = PipelineOptions([*workers.beam_args, f"--direct_num_workers={count}"])
    with beam.Pipeline(runner=runner, options=options) as pipeline:
        _ = (
            pipeline
            | "Worker slots" >> beam.Create([(worker, None) for worker in range(count)])
            # The local runner deals groups out round robin: one slot to each of its processes.
            | "Spread" >> beam.GroupByKey()
            | "Run" >> beam.Map(run_worker, stage, tasks)
        )


def run_worker(_: object, stage: Stage[AnyTask], tasks: list[AnyTask]) -> None:
    """Does tasks that no other worker has claimed, until none is left."""
    if stage.attempt:
        stage.arrive()
    if isinstance(stage.store, LocalStore):
        for task in _claimed(stage, tasks):
            stage.execute(task)
        return
    # What one task made is sent elsewhere while the next is at work.
    with ThreadPoolExecutor(1, thread_name_prefix="send") as sender:
        sending: Future[None] | None = None
        for task in _claimed(stage, tasks):
            made = stage.make(task)
            if sending is not None:
                sending.result()
            if made is not None:
                sending = sender.submit(stage.publish, task, made)


def _claimed(stage: Stage[AnyTask], tasks: list[AnyTask]) -> Iterator[AnyTask]:
    """Yields tasks that no other worker has claimed, until none is left or one has failed."""
    claims = f"{stage.attempt_folder}/claims"
    taken = set(stage.coordination.names(claims)) if stage.attempt else set()
    for task in tasks:
        if task.name in taken:
            continue
        if stage.stopped:
            return
        if _claim(stage, task):
            yield task
        elif stage.attempt:
            # Elsewhere each try is a request.
            taken = set(stage.coordination.names(claims))


def _claim(stage: Stage[AnyTask], task: AnyTask) -> bool:
    """Returns whether this worker is the first to claim the task."""
    name = f"{stage.attempt_folder}/claims/{task.name}"
    if not isinstance(stage.coordination, LocalStore):
        mine = uuid.uuid4().bytes
        return stage.coordination.claim(name, mine) == mine
    try:
        with (
            storage_errors("create", stage.coordination.path(name)),
            contextlib.suppress(FileExistsError),
        ):
            os.close(stage.coordination.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return True
    except errors.ImagenetPrepError as error:
        # Out of inodes or space: one failure stops the run with the reason.
        stage.fail(task.name, type(error).__name__, str(error))
    return False
