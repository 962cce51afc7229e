"""Runs small tasks in parallel, each leaving a receipt.

A task is finished when its receipt, `.work/<stage>-<digest>/receipts/<task>.json`, lies
beside the files it names. Finished tasks are skipped by the next run; another
configuration has another digest and never sees them. An element of the pipeline is a
lane, never image bytes, so memory does not grow with the data set.

N lanes take tasks one by one until none is left: runners would deal them out beforehand,
and the slowest lane would hold up the rest. Lanes are threads, which need no pipeline,
Beam's worker processes, or, with Beam's options after `--`, slots of a cluster. What the
lost worker of a cluster had in hand is done again in another turn.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from imagenet_prep import cluster
from imagenet_prep.core import canonical, errors, naming
from imagenet_prep.core.store import LocalStore, Store, storage_errors

THREADS = "threads"
PROCESSES = "processes"

# Threads start at once and the codecs release the GIL; beyond a few lanes what remains of
# Python in the loop (2 % of the image's time) starts to serialise them.
MAX_THREAD_LANES = 8

# A worker process must die with its launcher, however that ends: left alone it would wait
# for ever for a runner that is gone, or write beside the next run. 1 is PR_SET_PDEATHSIG.
_WORKER_PROCESS = """
import ctypes, os, runpy, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == {launcher}:
    runpy.run_module("apache_beam.runners.worker.sdk_worker_main", run_name="__main__")
"""

# 900 characters of a message, at most 4 bytes each, and a task's name.
_RESERVE = "reserve"
_RESERVE_BYTES = 4096

# Looking costs nothing here, and a request elsewhere.
_POLL_S = 0.2
_POLL_ELSEWHERE_S = 2.0
_LINE_EVERY_S = 30.0

# What launcher and workers of one turn have in common; without it they do not share a folder.
_OPEN = "open"
_SEEN_WITHIN_S = 10.0
# A worker may be lost again and again, but each turn gets on. Flink counts a dead TaskManager's
# slots for a while, so that a turn may come to nothing.
_FUTILE_TURNS = 3
_PAUSE_S = 5.0


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
class Lanes:
    """How much runs at once.

    Attributes:
      num: tasks in work at a time; 0 is one a core this process may use.
      kind: "threads", "processes", or "auto" to choose by their number.
      beam_args: options for Beam; with a --runner the lanes are the runner's.
    """

    num: int = 0
    kind: str = "auto"
    beam_args: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of lanes on this machine."""
        return self.num or len(os.sched_getaffinity(0))

    @property
    def resolved_kind(self) -> str:
        """What a lane is: "threads" or "processes"."""
        if self.kind != "auto":
            return self.kind
        return THREADS if self.count <= MAX_THREAD_LANES else PROCESSES

    @property
    def remote(self) -> bool:
        """Whether Beam's options name a runner of their own."""
        return any(arg == "--runner" or arg.startswith("--runner=") for arg in self.beam_args)


class Progress:
    """Shows tasks done, images/s or MB/s, time left: a bar on a terminal, else a line each 30 s.

    Reads receipts only, so it works the same for remote runners.
    """

    def __init__(self, title: str, total: int, done: int, *, quiet: bool = False) -> None:
        self._title = title
        self._total = total
        self._done = self._first = done
        self._examples = self._bytes = 0
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._quiet = quiet
        # A terminal may have no width (docker run -t): then there is room for lines only.
        if not quiet and sys.stderr.isatty() and os.get_terminal_size(2).columns:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=title,
                total=total,
                initial=done,
                unit="task",
                dynamic_ncols=True,
                leave=False,
            )

    def add(self, receipt: dict[str, Any]) -> None:
        """Counts one finished task."""
        self._done += 1
        self._examples += receipt.get("examples", 0)
        self._bytes += receipt.get("num_bytes", 0)
        if self._bar is not None:
            self._bar.set_postfix_str(self._rate())
            self._bar.update()

    def tick(self) -> None:
        """Prints a line where one is due."""
        now = time.monotonic()
        if self._bar is None and not self._quiet and now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            new = self._done - self._first
            left = (now - self._start) / new * (self._total - self._done) if new else None
            eta = "unknown" if left is None else f"{left / 60:.1f} min"
            print(
                f"{self._title}: {self._done}/{self._total} tasks, {self._rate()}, {eta} left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _rate(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        if self._examples:
            return f"{self._examples / seconds:,.0f} images/s"
        return f"{self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes else "starting"


@dataclass(frozen=True)
class Stage(Generic[AnyTask]):
    """One kind of work on one data set.

    Attributes:
      name: "index", "write", ...
      digest: of everything that decides the results.
      store: where receipts and outputs go; shared by all workers.
      function: task -> result; picklable, without side effects outside its temporary files.
      turn: names one attempt of workers on other machines; `run` says so. Workers that have
        outlived theirs stop, and disturb nobody.
    """

    name: str
    digest: str
    store: Store
    function: Callable[[AnyTask], Result]
    turn: str = ""

    @property
    def folder(self) -> str:
        """The stage's folder, relative to the data set."""
        return f"{naming.WORK}/{self.name}-{self.digest[:16]}"

    @property
    def board(self) -> Store:
        """Where workers and launcher tell each other what is claimed and what has failed."""
        return self.store if self.turn else self.store.local

    @property
    def notes(self) -> str:
        """The folder of that, relative to the data set."""
        return f"{self.folder}/turns/{self.turn}" if self.turn else self.folder

    def receipts(self, tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Returns the receipts of those tasks that are finished; others are done (again)."""
        folder = f"{self.folder}/receipts"
        there = set(self.store.names(folder))
        found = [task for task in tasks if f"{task}.json" in there]
        contents = self.store.read_each([f"{folder}/{task}.json" for task in found])
        receipts: dict[str, dict[str, Any]] = dict(
            zip(found, map(json.loads, contents), strict=True)
        )
        outputs = [output for receipt in receipts.values() for output in receipt["outputs"]]
        sizes = self.store.sizes(output["name"] for output in outputs)
        return {
            task: receipt
            for task, receipt in receipts.items()
            if all(sizes.get(o["name"]) == o["num_bytes"] for o in receipt["outputs"])
        }

    def execute(self, task: AnyTask) -> None:
        """Does one task and publishes it, or leaves the failure for `run` to raise.

        The receipt is published before the files it names: a file that can be seen always
        has its receipt, and a receipt without its files is no finished task.
        """
        if (made := self.make(task)) is not None:
            self.publish(task, made)

    def make(self, task: AnyTask) -> Result | None:
        """Does one task; returns the receipt and what it names, or None where it has failed."""
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
            self._note(task, error)
            return None

    def publish(self, task: AnyTask, made: Result) -> None:
        """Publishes what `make` has returned."""
        try:
            receipt = canonical.dumps(made.content)
            self.store.write(f"{self.folder}/receipts/{task.name}.json", receipt)
            for output in made.outputs:
                self.store.publish(*output)
        except Exception as error:  # noqa: BLE001 - as in `make`
            self._note(task, error)

    def _note(self, task: AnyTask, error: Exception) -> None:
        if isinstance(error, errors.ImagenetPrepError):
            where = f" (on worker {socket.gethostname()})" if self.turn else ""
            self.fail(task.name, type(error).__name__, f"{error}{where}")
        else:
            self.fail(task.name, "", "".join(traceback.format_exception(error)))

    def fail(self, task: str, error: str, message: str) -> None:
        """Leaves the failure of a task for `run` to raise; other lanes see it and stop.

        Args:
          task: its name.
          error: class name of an ImagenetPrepError, or "" for a bug.
          message: of the error, or the traceback.
        """
        failure = {"task": task, "error": error, "message": message}
        name = f"{self.notes}/failed/{task}.json"
        board = self.board
        if not isinstance(board, LocalStore):
            board.write(name, canonical.dumps(failure))
            return
        path = board.path(name)
        reserve = board.path(f"{self.notes}/{_RESERVE}")
        try:
            path.write_bytes(canonical.dumps(failure))
        except OSError:
            # A full disk has no room to say so, except what was reserved for the first to fail.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                with open(reserve, "r+b") as file:
                    short = canonical.dumps({**failure, "message": message[:900]})
                    file.write(short.ljust(_RESERVE_BYTES))
                reserve.rename(path)

    @property
    def stopped(self) -> bool:
        """Whether a task has failed, or the run is being ended or has been followed by another."""
        return self._over or bool(self.board.names(f"{self.notes}/failed"))

    @property
    def _over(self) -> bool:
        return bool(self.turn) and _OPEN not in self.board.names(self.notes)

    def arrive(self) -> None:
        """Makes sure that a worker elsewhere sees the launcher's output.

        Raises:
          UsageError: it does not.
        """
        end = time.monotonic() + _SEEN_WITHIN_S
        while self._over:
            if time.monotonic() > end:
                raise errors.UsageError(
                    f"worker {socket.gethostname()} does not see {self.board.where(self.notes)}, "
                    "which was just written where this was started. Give an output that all "
                    "workers share under the same path (NFS, Lustre), or s3://bucket/prefix"
                )
            time.sleep(_POLL_S)


def run(
    stage: Stage[AnyTask],
    tasks: Sequence[AnyTask],
    lanes: Lanes,
    *,
    title: str,
    watch: Callable[[dict[str, Any]], None] | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Does what is not yet done and returns the receipts of all tasks, in order.

    The first failure stops the run once the tasks in work are finished; they are kept.

    Args:
      stage: what to do, and where.
      tasks: names differ.
      lanes: how much at once, and on what.
      title: for the progress.
      watch: called in this process with each receipt, also with those of earlier runs;
        an ImagenetPrepError from it stops the run.
      quiet: show no progress.

    Raises:
      ImagenetPrepError: of the class and with the message of the first task that failed.
      IncompleteError: a worker was lost with its tasks.
    """
    known = stage.receipts(task.name for task in tasks)
    receipts = {task.name: known.get(task.name) for task in tasks}
    watch = watch or (lambda _: None)
    for receipt in known.values():
        watch(receipt)
    progress = Progress(title, len(tasks), len(known), quiet=quiet or len(known) == len(tasks))
    lost: Exception | None = None
    futile = 0
    try:
        while pending := [task for task in tasks if receipts[task.name] is None]:
            if futile == (_FUTILE_TURNS if lanes.remote else 1):
                raise _incomplete(stage, len(pending), len(tasks), lost)
            if futile:
                time.sleep(_PAUSE_S)
            stage = replace(stage, turn=uuid.uuid4().hex[:16] if lanes.remote else "")
            _clear(stage)
            now_lost = None
            try:
                with _start(stage, pending, lanes) as workers:
                    _follow(stage, workers, receipts, watch, progress)
            except cluster.JobLostError as error:
                lost = now_lost = error
            # First: a job that one task's failure ended may look like a lost one.
            _raise_failure(stage)
            if now_lost is not None and not quiet:
                print(f"{title}: workers were lost. {now_lost}", file=sys.stderr, flush=True)
            left = sum(receipts[task.name] is None for task in pending)
            futile = 0 if lanes.remote and left < len(pending) else futile + 1
    finally:
        progress.close()
        if lanes.remote:
            stage.store.remove_tree(f"{stage.folder}/turns")
    return [receipt for receipt in receipts.values() if receipt is not None]


def _incomplete(
    stage: Stage[Any], left: int, total: int, lost: Exception | None
) -> errors.IncompleteError:
    if lost is not None:
        return errors.IncompleteError(
            f"{stage.name}: {left} of {total} tasks are left, and the workers were lost "
            f"{_FUTILE_TURNS} times on end. {lost}. Finished work is kept: mend that, then run the "
            "same command again to resume."
        )
    return errors.IncompleteError(
        f"{stage.name}: a worker process died (killed for memory?); {left} of {total} tasks are "
        "left. Finished work is kept: run the same command again to resume, with fewer --workers "
        "if it repeats."
    )


def _clear(stage: Stage[Any]) -> None:
    """Forgets what an earlier run claimed, and how it failed."""
    board = stage.board
    for name in ("failed", "claims", "turns"):
        board.remove_tree(f"{stage.folder}/{name}")
    if isinstance(board, LocalStore):
        with storage_errors("create", board.path(stage.notes)):
            board.path(f"{stage.folder}/receipts").mkdir(parents=True, exist_ok=True)
            for name in ("claims", "failed"):
                board.path(f"{stage.notes}/{name}").mkdir(parents=True, exist_ok=True)
            board.path(f"{stage.notes}/{_RESERVE}").write_bytes(bytes(_RESERVE_BYTES))
    if stage.turn:
        board.write(f"{stage.notes}/{_OPEN}", b"")


class _Workers(Protocol):
    """What was started, to be waited for; leaving it ends it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, *_: object) -> None: ...

    def wait(self, seconds: float) -> bool:
        """Returns whether it is still at work after at most `seconds`; raises what it raised."""


def _start(stage: Stage[AnyTask], tasks: list[AnyTask], lanes: Lanes) -> _Workers:
    if not lanes.remote:
        return _Pipeline(stage, tasks, lanes)
    return cluster.submit(
        lanes.beam_args,
        partial(_run_lane, stage=stage, tasks=tasks),
        len(tasks),
        name=f"imagenet-prep-{stage.name}-{stage.turn}",
        log=stage.store.local.path(f"{stage.folder}/runner.log").absolute(),
    )


def _follow(
    stage: Stage[AnyTask],
    workers: _Workers,
    receipts: dict[str, dict[str, Any] | None],
    watch: Callable[[dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Picks up receipts until the pipeline has ended, and stops it where `watch` says so."""
    poll_s = _POLL_S if isinstance(stage.store, LocalStore) else _POLL_ELSEWHERE_S
    try:
        running = True
        while running:
            running = workers.wait(poll_s)
            left = [name for name, receipt in receipts.items() if receipt is None]
            for name, found in stage.receipts(left).items():
                receipts[name] = found
                progress.add(found)
                watch(found)
            progress.tick()
    except cluster.JobLostError:
        raise
    except BaseException:
        # Ctrl-C, a limit, a failed runner: lanes finish the task they hold and stop. A store
        # that cannot be told is likely what has failed.
        with contextlib.suppress(errors.ImagenetPrepError):
            stage.fail("run", "", "the run was ended")
        raise


class _Pipeline:
    """The lanes at work behind a thread, so that nothing they do can hold up an interrupt."""

    def __init__(self, stage: Stage[AnyTask], tasks: list[AnyTask], lanes: Lanes) -> None:
        self._error: BaseException | None = None
        self._lost_worker = False
        self._thread = threading.Thread(
            target=self._run, args=(stage, tasks, lanes), name="pipeline", daemon=True
        )
        self._hook, threading.excepthook = threading.excepthook, self._thread_died
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves what is stuck alone: it ends with this process."""

    def wait(self, seconds: float) -> bool:
        """As for `_Workers`."""
        self._thread.join(seconds)
        if self._thread.is_alive() and not self._lost_worker:
            return True
        if not self._lost_worker:
            threading.excepthook = self._hook
        if self._error is not None:
            raise self._error
        return False

    def _run(self, stage: Stage[Any], tasks: list[Any], lanes: Lanes) -> None:
        try:
            if lanes.resolved_kind == PROCESSES and lanes.count > 1:
                _run_beam(stage, tasks, lanes)
            else:
                _run_threads(stage, tasks, lanes)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it again
            self._error = error

    def _thread_died(self, arguments: threading.ExceptHookArgs) -> None:
        # Beam watches each worker process in such a thread, which dies with it; Beam itself
        # would wait for the dead process's answer for ever. Its other threads lose their
        # connections at the same moment, and would each print a traceback about it.
        if arguments.thread is not None and arguments.thread.name == "run_worker":
            self._lost_worker = True


def _raise_failure(stage: Stage[Any]) -> None:
    for name in stage.board.names(f"{stage.notes}/failed"):
        data = stage.board.read(f"{stage.notes}/failed/{name}")
        failure = json.loads(data)
        if failure["error"]:
            raise errors.by_name(failure["error"])(failure["message"])
        raise RuntimeError(f"task {failure['task']}:\n{failure['message']}")


def _run_threads(stage: Stage[AnyTask], tasks: list[AnyTask], lanes: Lanes) -> None:
    count = min(lanes.count, len(tasks))
    with ThreadPoolExecutor(count, thread_name_prefix="lane") as pool:
        for lane in [pool.submit(_run_lane, None, stage, tasks) for _ in range(count)]:
            lane.result()


def _run_beam(stage: Stage[AnyTask], tasks: list[AnyTask], lanes: Lanes) -> None:
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

    count = min(lanes.count, len(tasks))
    log = stage.store.local.path(f"{stage.folder}/processes.log").absolute()
    # What Beam's own multi_processing mode starts, plus a log file, and a bootstrap.
    command = [sys.executable, "-c", _WORKER_PROCESS.format(launcher=os.getpid())]
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
    options = PipelineOptions([*lanes.beam_args, f"--direct_num_workers={count}"])
    with beam.Pipeline(runner=runner, options=options) as pipeline:
        _ = (
            pipeline
            | "Lanes" >> beam.Create([(lane, None) for lane in range(count)])
            # The local runner deals groups out round robin: one lane to each of its workers.
            | "Spread" >> beam.GroupByKey()
            | "Run" >> beam.Map(_run_lane, stage, tasks)
        )


def _run_lane(_: object, stage: Stage[AnyTask], tasks: list[AnyTask]) -> None:
    """Does tasks that no other lane has claimed, until none is left."""
    if stage.turn:
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
    """Yields tasks that no other lane has claimed, until none is left or one has failed."""
    claims = f"{stage.notes}/claims"
    taken = set(stage.board.names(claims)) if stage.turn else set()
    for task in tasks:
        if task.name in taken:
            continue
        if stage.stopped:
            return
        if _claim(stage, task):
            yield task
        elif stage.turn:
            # Elsewhere each try is a request.
            taken = set(stage.board.names(claims))


def _worker() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{threading.current_thread().name}"


def _claim(stage: Stage[AnyTask], task: AnyTask) -> bool:
    """Returns whether this lane is the first to claim the task."""
    name = f"{stage.notes}/claims/{task.name}"
    if not isinstance(stage.board, LocalStore):
        mine = uuid.uuid4().bytes
        return stage.board.claim(name, mine) == mine
    path = stage.board.path(name)
    try:
        with storage_errors("create", path), contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return True
    except errors.ImagenetPrepError as error:
        # Out of inodes or space: one failure stops the run with the reason.
        stage.fail(task.name, type(error).__name__, str(error))
    return False
