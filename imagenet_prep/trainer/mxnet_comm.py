"""Communication of MXNet's ranks: Horovod's ring, or MXNet's parameter servers.

Parameter servers can only add, so all operations are sums, even with Horovod. Servers and Horovod
give the same weights (bit for bit with two ranks), and a run may switch from one to the other.
Gluon's trainer is not used: with servers, its learning rate is fixed (apache/mxnet issue 15919).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.trainer.comm import Comm, meet, waiting

_PIECE = 4096  # numbers per message: servers need messages of the same shape


class _MxnetGroup(Comm):
    _dtype = "float64"  # type for sums of counts

    @property
    def _nd(self) -> Any:
        import mxnet as mx

        return mx.nd

    def broadcast(self, arrays: Sequence[Any], name: str) -> None:
        """Replaces arrays with those of rank 0, by adding zeros from all other ranks."""
        if self.world.rank:
            for array in arrays:
                array[:] = 0
        self._nd.waitall()
        self.add_up(arrays, name)
        self._nd.waitall()

    def average(self, arrays: Sequence[Any]) -> None:
        self._nd.waitall()
        self.add_up(arrays, "statistic")
        for array in arrays:
            array /= self.world.size
        self._nd.waitall()

    def totals(self, sums: Any) -> list[float]:
        """Returns the sums of at most four numbers over all ranks."""
        numbers = np.zeros(4)
        numbers[: len(sums)] = super().totals(sums)
        array = self._nd.array(numbers, dtype=self._dtype)
        self.add_up([array], "totals")
        return super().totals(array.asnumpy())[: len(sums)]

    def gather(self, array: Any, name: str) -> Any:
        """Returns [ranks, ...], the sum of arrays in which each rank fills only its own row."""
        rows = np.zeros((self.world.size, *array.shape))
        rows[self.world.rank] = array
        total = self._nd.array(rows, dtype=self._dtype)
        self.add_up([total], name)
        return total.asnumpy()

    def from_first(self, name: str, array: Any) -> Any:  # noqa: ARG002 - all pieces have one name
        """Returns rank 0's NumPy array of small integers."""
        room = np.zeros(-(-array.size // _PIECE) * _PIECE, np.float32)
        room[: array.size] = array
        # Float32 is exact for these numbers: bytes, and the number of bytes.
        pieces = [self._nd.array(piece) for piece in room.reshape(-1, _PIECE)]
        for piece in pieces:
            self.broadcast([piece], "object")
        received = np.concatenate([piece.asnumpy() for piece in pieces])
        return received[: array.size].astype(array.dtype)


class Ring(_MxnetGroup):
    """Horovod for MXNet; ranks are started by `imagenet-prep launch`, horovodrun or mpirun."""

    def __init__(self, world: World) -> None:
        # Horovod makes all symbols of MXNet global, including the symbols of an old libjpeg. Load
        # Pillow's libjpeg first, which our reader uses, too: otherwise it crashes.
        import PIL.Image  # noqa: F401

        self._hvd, self.world = meet("mxnet", world)

    def add_up(self, arrays: Sequence[Any], name: str) -> None:
        """Starts to replace each array with its sum over all ranks."""
        for number, array in enumerate(arrays):
            key = f"{name}.{number}"
            self._hvd.allreduce_(array, average=False, name=key, priority=-number)


class Servers(_MxnetGroup):
    """MXNet's parameter servers, started by `imagenet-prep launch --servers`."""

    _dtype = "float32"  # servers always add in float32: counts are exact up to 16 million

    def __init__(self, world: World, kind: str) -> None:
        if "DMLC_PS_ROOT_URI" not in os.environ:
            raise UsageError(
                f"--comm {kind} needs parameter servers. Start them with `imagenet-prep launch "
                "-np N --servers N -- train ...`."
            )
        import mxnet as mx

        with waiting(f"waiting for the servers and the other ranks of {world.size}, in MXNet"):
            self._store: Any = mx.kv.create(kind)
        self.world = world  # MXNet numbers ranks differently, but rank 0 must be on the first host
        self._known: set[str] = set()

    def add_up(self, arrays: Sequence[Any], name: str) -> None:
        """Starts to replace each array with its sum over all ranks."""
        for number, array in enumerate(arrays):
            key = f"{name}.{number}"
            if key not in self._known:
                self._known.add(key)
                self._store.init(key, self._nd.zeros(array.shape, dtype=array.dtype))
            # Without an optimizer, a server stores the sum of the arrays that all ranks push.
            self._store.push(key, array, priority=-number)
            self._store.pull(key, out=array, priority=-number)

    def close(self) -> None:
        """Waits for all ranks, disconnects, and ends the servers."""
        self._store = None
        gc.collect()
