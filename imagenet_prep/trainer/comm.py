"""Connects ranks (TensorFlow's through Horovod), and finds the cores and GPUs of a rank.

tests/trainer/test_two_ranks.py compares two-rank and one-rank runs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from imagenet_prep.core import imports, program, strict_json, terminal
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, UsageError
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import LEFT, World

_MAX_OBJECT_BYTES = 1 << 20  # reader positions and error messages have a few hundred bytes


class Comm:
    """Operations that all ranks call in the same order; this base class is for a single rank."""

    world = World()
    _hvd: Any = None  # Horovod's module, if it is used

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Horovod and of the NCCL that Horovod uses; empty without Horovod."""
        if self._hvd is None:
            return {}
        versions = {"Horovod": str(importlib.import_module("horovod").__version__)}
        code = int(self._hvd.nccl_built())
        if code:
            # NCCL changed its version codes in 2.9: 2.8 is 2800, and 2.18.3 is 21803.
            thousands = 1000 if code < 10_000 else 10_000
            minor, patch = divmod(code % thousands, 100)
            versions["NCCL"] = f"{code // thousands}.{minor}.{patch}"
        return versions

    def totals(self, sums: Any) -> list[float]:
        """Returns the sum of each number over all ranks."""
        return [float(number) for number in sums]

    def tape(self, tape: Any) -> Any:
        """Returns a gradient tape that averages gradients over all ranks."""
        return tape

    def parallel(self, network: Any) -> Any:
        """Returns a PyTorch network that averages gradients over all ranks."""
        return network

    def arrive(self) -> None:
        """Waits for the gradients of a `parallel` network after its backward pass."""

    def sum(self, tensor: Any) -> Any:
        """Returns a tensor's sum over all ranks; works inside tf.function."""
        return tensor

    def add_up(self, arrays: Sequence[Any], name: str) -> None:
        """Starts to replace each MXNet array with its sum over all ranks.

        Calls with the same `name` need the same shapes, and must not run at the same time.
        """

    def average(self, arrays: Sequence[Any]) -> None:
        """Replaces each array or variable with its mean over all ranks; waits for the result."""

    def broadcast(self, arrays: Sequence[Any], name: str) -> None:
        """Replaces each array or variable with rank 0's; waits for the result."""

    def broadcast_object(self, value: Any) -> Any:
        """Returns rank 0's `value` after a JSON round trip: a tuple becomes a list.

        Horovod would send a pickle, which can run arbitrary code. Use `broadcast` for arrays.
        """
        data = strict_json.dumps(value) if self.world.rank == 0 else b""
        num_bytes = int(self.from_first("object.size", np.array([len(data)], np.int32))[0])
        if not 0 < num_bytes <= _MAX_OBJECT_BYTES:
            raise ImagenetPrepError(
                f"rank 0 announces {num_bytes:,} bytes of JSON, expected 1 to "
                f"{_MAX_OBJECT_BYTES:,}. Run the same version of imagenet-prep on every host."
            )
        room = np.frombuffer(data.ljust(num_bytes, b"\0"), np.uint8)
        received = self.from_first("object.bytes", room).tobytes()
        try:
            return strict_json.loads(received)
        except ValueError as error:
            raise ImagenetPrepError(
                f"the message of rank 0 is not valid JSON: {error}. Run the same version of "
                "imagenet-prep on every host, on a network without other users."
            ) from error

    def gather(self, array: Any, name: str) -> Any:  # noqa: ARG002 - for several ranks
        """Returns the float64 NumPy arrays of all ranks, stacked as [ranks, ...].

        Integers up to 16 million are exact. Calls with the same `name` need the same shape.
        """
        return array[None]

    def from_first(self, name: str, array: Any) -> Any:  # noqa: ARG002 - for several ranks
        """Returns rank 0's NumPy array; every rank must pass an array of the same shape."""
        return array

    def close(self) -> None:
        """Waits for all ranks, then disconnects."""
        if self._hvd is not None:
            self.totals([0.0])  # waits for all ranks
            self._hvd.shutdown()


class Horovod(Comm):
    """TensorFlow's ranks, started by `imagenet-prep launch`, horovodrun or mpirun."""

    def __init__(self, world: World, *, fp16_compression: bool) -> None:
        self._hvd, self.world = meet("tensorflow", world)
        self._tf = importlib.import_module("tensorflow")
        compression = self._hvd.Compression
        self._compression = compression.fp16 if fp16_compression else compression.none

    def tape(self, tape: Any) -> Any:
        """Returns Horovod's tape, which sends each gradient as soon as it is computed."""
        return self._hvd.DistributedGradientTape(tape, compression=self._compression)

    def sum(self, tensor: Any) -> Any:
        """Returns a tensor's sum over all ranks."""
        return self._hvd.allreduce(tensor, op=self._hvd.Sum)

    def totals(self, sums: Any) -> list[float]:
        """Returns the sum of each number over all ranks."""
        return list(map(float, self.sum(self._tf.convert_to_tensor(sums)).numpy()))

    def average(self, arrays: Sequence[Any]) -> None:
        """Replaces each variable with its mean over all ranks."""
        if not arrays:
            return
        means = self._hvd.grouped_allreduce([v.value() for v in arrays], op=self._hvd.Average)
        for variable, mean in zip(arrays, means, strict=True):
            variable.assign(mean)

    def broadcast(self, arrays: Sequence[Any], name: str) -> None:  # noqa: ARG002 - matched by order
        """Replaces each variable with rank 0's."""
        self._hvd.broadcast_variables(arrays, root_rank=0)

    def gather(self, array: Any, name: str) -> Any:
        """Returns the NumPy arrays of all ranks, stacked as [ranks, ...]."""
        return self._hvd.allgather(self._tf.constant(array[None]), name=name).numpy()

    def from_first(self, name: str, array: Any) -> Any:
        """Returns rank 0's NumPy array; every rank must pass an array of the same shape."""
        return self._hvd.broadcast(self._tf.constant(array), root_rank=0, name=name).numpy()


def launched() -> World:
    """Returns the rank numbers that the launcher has set in the environment."""
    try:
        return World.from_environment()
    except ValueError as error:
        raise ImagenetPrepError(
            f"invalid rank numbers in the environment: {error}. Launch the ranks again."
        ) from error


def cores(world: World) -> int:
    """Returns the number of cores per rank; sharing all cores would slow the ranks down."""
    return max(1, num_cores() // world.local_size)


def require_gpus(local_rank: int, gpus: int) -> None:
    """Raises an error if this host has GPUs, but none for this rank."""
    if 0 < gpus <= local_rank:
        raise ImagenetPrepError(
            f"local rank {local_rank} has no GPU: {os.uname().nodename} has "
            f"{counted(gpus, 'GPU')}. Write slots={gpus} into the hosts file, or start fewer ranks."
        )


# The values of --framework, by the name of Horovod's module.
_NAMES = {"tensorflow": "tensorflow", "torch": "pytorch", "mxnet": "mxnet"}


def meet(framework: str, world: World) -> tuple[Any, World]:
    """Starts Horovod and checks the number of ranks; returns Horovod's module and rank numbers."""
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
        with waiting(f"waiting for the other {world.size - 1} of {world.size} ranks, in Horovod"):
            hvd.init()
    except ImportError as error:
        raise UsageError(
            f"{world.size} ranks need Horovod, which cannot be loaded: {error}. Run "
            f"`{imports.horovod_remedy(_NAMES[framework])}` on every host."
        ) from error
    actual = World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), world.launcher)
    if actual.size != world.size:
        raise UsageError(
            f"the launcher started {counted(world.size, 'rank')}, but Horovod found {actual.size}: "
            "Horovod was built without support for this launcher. Run `imagenet-prep "
            "install-horovod --mpi`, or launch without --mpi."
        )
    gpus = imports.gpus_of(_NAMES[framework])
    if gpus and actual.size > 1 and actual.rank == 0 and not hvd.nccl_built():
        terminal.say(
            f"Horovod sums gradients on the CPU, although this host has {counted(gpus, 'GPU')}. "
            f"Run `{imports.horovod_remedy(_NAMES[framework])}` on every host to use NCCL."
        )
    return hvd, actual


# After this time, a rank says that it waits for others.
TOLD_S = 10.0
_DONE = b"\0"  # ends the thread of `waiting`; all other bytes are numbers of signals


@contextlib.contextmanager
def waiting(about: str) -> Iterator[None]:
    """Lets a signal end the command while the block waits for other ranks in C code.

    Python's signal handlers only run after the C function has returned. If the block takes long,
    `about` is printed.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    watch = threading.Thread(target=_watch, args=(reader, about), name="waiting", daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, _DONE)  # a closed pipe would stay open in forked processes
        watch.join()
        os.close(writer)
        os.close(reader)


def _watch(reader: int, about: str) -> None:
    if not select.select([reader], [], [], TOLD_S)[0]:
        terminal.say(about)
    while (number := os.read(reader, 1)) != _DONE:
        if number[0] in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            program.end_interrupted()


# Launchers report the first process that exits. A rank that lost a peer exits after this time.
_LEFT_S = 1.0
# The error messages of communication libraries contain the library's name.
_OF_RANKS = re.compile("horovod|gloo|nccl", re.IGNORECASE)


@contextlib.contextmanager
def lost_rank() -> Iterator[None]:
    """Turns errors of Horovod, Gloo and NCCL about lost ranks into an IncompleteError."""
    try:
        yield
    except ImagenetPrepError:
        raise
    except Exception as error:
        # Horovod raises HorovodInternalError or a framework's error; PyTorch raises RuntimeError.
        package = type(error).__module__.partition(".")[0]
        if package not in ("horovod", "mxnet", "tensorflow") and not isinstance(
            error, RuntimeError
        ):
            raise
        if not _OF_RANKS.search(str(error)):
            raise
        print(LEFT, file=sys.stderr, flush=True)
        time.sleep(_LEFT_S)
        raise IncompleteError(
            "another rank died or stalled; see its output. The last checkpoint is kept: run "
            "the same command again to resume from it."
        ) from error
