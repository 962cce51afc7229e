"""Ranks: which this is, what it has of its host, how they communicate; TensorFlow's by Horovod.

Horovod with Keras 3 wants raw variables (`v.value`): its optimizer wrapper and callbacks run,
but average nothing. tests/trainer/test_two_ranks.py holds two real ranks against one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import LEFT, World

# The position of the reader, or an error's message: a few hundred bytes.
_MAX_OBJECT_BYTES = 1 << 20


class Comm:
    """The ways in which ranks work together; here there is only one rank.

    All ranks call the same methods in the same order.
    """

    world = World()
    # The module of Horovod, if ranks communicate by it.
    _hvd: Any = None

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Horovod, and of NCCL if it was built with it; of other ways, none."""
        return {} if self._hvd is None else horovod_versions(self._hvd)

    def totals(self, sums: Any) -> list[float]:
        """Returns the sums over the ranks of a few numbers."""
        return [float(each) for each in sums]

    def tape(self, tape: Any) -> Any:
        """Returns a gradient tape whose gradients are the mean over the ranks."""
        return tape

    def parallel(self, network: Any) -> Any:
        """Returns a network of PyTorch's whose gradients are the mean over the ranks."""
        return network

    def arrive(self) -> None:
        """Waits for the gradients of such a network, after its backward pass."""

    def sum(self, tensor: Any) -> Any:
        """Returns the sum over the ranks; works inside tf.function."""
        return tensor

    def add_up(self, arrays: Sequence[Any], what: str) -> None:
        """Sets each array of MXNet to its sum over the ranks, as soon as it is known.

        Arrays of the same `what` have the same number and shapes, and are waited for in between.
        """

    def average(self, arrays: Sequence[Any]) -> None:
        """Sets each array, or variable, to its mean over the ranks, and waits for it."""

    def broadcast(self, arrays: Sequence[Any], what: str) -> None:
        """Sets each array, or variable, to what it is on rank 0, and waits for it."""

    def broadcast_object(self, value: Any) -> Any:
        """Returns what `value` is on rank 0, as JSON has it: a tuple becomes a list.

        It is never a pickle, as Horovod's own would be: a pickle runs whatever the sender wants.
        What is not JSON is sent as variables.
        """
        data = canonical.dumps(value) if self.world.rank == 0 else b""
        num_bytes = int(self.from_first("object.size", np.array([len(data)], np.int32))[0])
        if not 0 < num_bytes <= _MAX_OBJECT_BYTES:
            raise ImagenetPrepError(
                f"rank 0 announces an object of {num_bytes:,} bytes, expected 1 to "
                f"{_MAX_OBJECT_BYTES:,}. Run the same version on every host."
            )
        room = np.frombuffer(data.ljust(num_bytes, b"\0"), np.uint8)
        came = self.from_first("object.bytes", room).tobytes()
        try:
            return canonical.loads(came)
        except ValueError as error:
            raise ImagenetPrepError(
                f"what rank 0 sent is no JSON: {error}. Run the same version on every host, in a "
                "network where nobody else can speak to the ranks."
            ) from error

    def gather(self, array: Any, what: str) -> Any:  # noqa: ARG002 - for several ranks
        """Returns [ranks, ...]: a NumPy array of float64 of every rank, all of one shape.

        Whole numbers up to 16 million come exactly. What bears the same word has the same shape.
        """
        return array[None]

    def from_first(self, name: str, array: Any) -> Any:  # noqa: ARG002 - for several ranks
        """Returns what a NumPy array is on rank 0; it has the same shape on every rank."""
        return array

    def close(self) -> None:
        """Waits for all ranks and parts from them."""
        if self._hvd is not None:
            self.totals([0.0])  # returns when all ranks are here
            self._hvd.shutdown()


class Horovod(Comm):
    """Several processes, started by `imagenet-prep launch`, horovodrun or mpirun."""

    def __init__(self, world: World, *, fp16_compression: bool) -> None:
        self._hvd, self.world = meet("tensorflow", world)
        compression = self._hvd.Compression
        self._compression = compression.fp16 if fp16_compression else compression.none

    def tape(self, tape: Any) -> Any:
        """Returns Horovod's tape: each gradient is sent as soon as it is known."""
        return self._hvd.DistributedGradientTape(tape, compression=self._compression)

    def sum(self, tensor: Any) -> Any:
        """Returns the sum over the ranks."""
        return self._hvd.allreduce(tensor, op=self._hvd.Sum)

    def totals(self, sums: Any) -> list[float]:
        """Returns the sums over the ranks of a few numbers."""
        import tensorflow as tf

        totals: list[float] = self.sum(tf.convert_to_tensor(sums)).numpy().tolist()
        return totals

    def average(self, arrays: Sequence[Any]) -> None:
        """Sets each variable to its mean over the ranks."""
        if not arrays:
            return
        means = self._hvd.grouped_allreduce([v.value() for v in arrays], op=self._hvd.Average)
        for variable, mean in zip(arrays, means, strict=True):
            variable.assign(mean)

    def broadcast(self, arrays: Sequence[Any], what: str) -> None:  # noqa: ARG002 - as they come
        """Sets each variable to what it is on rank 0."""
        self._hvd.broadcast_variables(arrays, root_rank=0)

    def gather(self, array: Any, what: str) -> Any:
        """Returns [ranks, ...]: a NumPy array of every rank."""
        import tensorflow as tf

        return self._hvd.allgather(tf.constant(array[None]), name=what).numpy()

    def from_first(self, name: str, array: Any) -> Any:
        """Returns what a NumPy array is on rank 0; it has the same shape on every rank."""
        import tensorflow as tf

        return self._hvd.broadcast(tf.constant(array), root_rank=0, name=name).numpy()


def launched() -> World:
    """Returns which rank this is, as the launcher says."""
    try:
        return World.from_environment()
    except ValueError as error:
        raise ImagenetPrepError(f"the launcher's environment: {error}. Launch again.") from error


def cores(world: World) -> int:
    """Returns a rank's share of the cores: with all of them, ranks would wait for each other."""
    return max(1, len(os.sched_getaffinity(0)) // world.local_size)


def check_gpus(local_rank: int, gpus: int) -> None:
    """Refuses more ranks than GPUs, where there are any."""
    if 0 < gpus <= local_rank:
        raise ImagenetPrepError(
            f"local rank {local_rank}: {os.uname().nodename} has {counted(gpus, 'GPU')}. "
            f"Write slots={gpus} into the hosts file, or start fewer ranks."
        )


def meet(framework: str, world: World) -> tuple[Any, World]:
    """Meets the other ranks by Horovod; returns its module, and which rank this is.

    `world` is the launcher's answer to that.
    """
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
        hvd.init()
    except ImportError as error:
        name = "pytorch" if framework == "torch" else framework
        raise UsageError(
            f"{world.size} ranks were started, but Horovod cannot be loaded here: {error}. Run "
            f"`imagenet-prep install-horovod --framework {name}` on every host."
        ) from error
    found = World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    if found.size != world.size:
        raise UsageError(
            f"the launcher says {counted(world.size, 'rank')}, Horovod found {found.size}. It was "
            "built without support for this launcher: build it by `imagenet-prep install-horovod` "
            "with --mpi, or launch without --mpi."
        )
    return hvd, found


def horovod_versions(hvd: Any) -> dict[str, str]:
    """Returns the versions of Horovod, and of NCCL where it was built with it."""
    versions = {"Horovod": str(importlib.import_module("horovod").__version__)}
    if code := int(hvd.nccl_built()):
        # 2.8 is 2800, and 2.18.3 is 21803: NCCL has changed how it counts with 2.9.
        thousands = 1000 if code < 10_000 else 10_000
        minor, patch = divmod(code % thousands, 100)
        versions["NCCL"] = f"{code // thousands}.{minor}.{patch}"
    return versions


# Launchers report the process that ends first, with its exit code. So a rank that lost another one
# waits this long before it ends itself.
_LEFT_S = 1.0
# The libraries by which ranks communicate name themselves in their errors.
_OF_RANKS = re.compile("horovod|gloo|nccl", re.IGNORECASE)


@contextlib.contextmanager
def lost_rank() -> Iterator[None]:
    """Turns errors of Horovod, Gloo and NCCL about other ranks into one that says what to do."""
    try:
        yield
    except ImagenetPrepError:
        raise
    except Exception as error:
        # HorovodInternalError, or the framework's errors around what such an operation said.
        # PyTorch raises a RuntimeError, or one of its own classes below it.
        where = type(error).__module__.partition(".")[0]
        known = where in ("horovod", "mxnet", "tensorflow") or isinstance(error, RuntimeError)
        if not known or not _OF_RANKS.search(str(error)):
            raise
        print(LEFT, file=sys.stderr, flush=True)
        time.sleep(_LEFT_S)
        raise IncompleteError(
            "another rank died or stalled; its own lines say why. The last checkpoint is kept: "
            "run the same command again to go on from it."
        ) from error
