"""How MXNet's ranks communicate: by Horovod's ring, or by MXNet's parameter servers.

Parameter servers can only add up, so all that ranks do together is made of sums, with Horovod too.
So ranks have the same weights either way, to the bit where there are two of them, and a run may
change from one to the other. In Gluon's way, servers keep the first learning rate for ever
(apache/mxnet issue 15919).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.trainer.comm import Comm, meet

# The numbers of one message. An object of rank 0 has a few hundred bytes, and the servers want
# arrays of one name to have one shape.
_PIECE = 4096


class _Together(Comm):
    """Several ranks that add up."""

    # The type in which counts are added up.
    _dtype = "float64"

    @property
    def _nd(self) -> Any:
        import mxnet as mx

        return mx.nd

    def broadcast(self, arrays: Sequence[Any], what: str) -> None:
        """Sets each array to rank 0's: other ranks add zeros, since servers can only add up."""
        if self.world.rank:
            for array in arrays:
                array[:] = 0
        self._nd.waitall()
        self.add_up(arrays, what)
        self._nd.waitall()

    def average(self, arrays: Sequence[Any]) -> None:
        """Sets each array to its mean over the ranks, and waits for it."""
        self._nd.waitall()
        self.add_up(arrays, "statistic")
        for array in arrays:
            array /= self.world.size
        self._nd.waitall()

    def totals(self, sums: Any) -> list[float]:
        """Returns the sums over the ranks of at most four numbers."""
        numbers = np.zeros(4)
        numbers[: len(sums)] = super().totals(sums)
        array = self._nd.array(numbers, dtype=self._dtype)
        self.add_up([array], "totals")
        return super().totals(array.asnumpy())[: len(sums)]

    def gather(self, array: Any, what: str) -> Any:
        """Returns [ranks, ...]: each rank adds its NumPy array to zeros, as there is only a sum."""
        room = np.zeros((self.world.size, *array.shape))
        room[self.world.rank] = array
        held = self._nd.array(room, dtype=self._dtype)
        self.add_up([held], what)
        return held.asnumpy()

    def from_first(self, name: str, array: Any) -> Any:  # noqa: ARG002 - pieces are alike
        """Returns what a NumPy array of small whole numbers is on rank 0."""
        room = np.zeros(-(-array.size // _PIECE) * _PIECE, np.float32)
        room[: array.size] = array
        # Float32 holds these numbers exactly: they are bytes, and the number of bytes.
        pieces = [self._nd.array(piece) for piece in room.reshape(-1, _PIECE)]
        for piece in pieces:
            self.broadcast([piece], "object")
        came = np.concatenate([piece.asnumpy() for piece in pieces])
        return came[: array.size].astype(array.dtype)


class Ring(_Together):
    """Horovod: started by `imagenet-prep launch`, horovodrun or mpirun."""

    def __init__(self, world: World) -> None:
        # Horovod makes all symbols of MXNet global, among them those of an old libjpeg. The libjpeg
        # of Pillow, which our reader uses too, crashes unless it was loaded before.
        import PIL.Image  # noqa: F401

        self._hvd, self.world = meet("mxnet", world)

    def add_up(self, arrays: Sequence[Any], what: str) -> None:
        """Sets each array to its sum over the ranks, as soon as it is known."""
        for number, array in enumerate(arrays):
            name = f"{what}.{number}"
            self._hvd.allreduce_(array, average=False, name=name, priority=-number)


class Servers(_Together):
    """MXNet's parameter servers: started by `imagenet-prep launch --servers`."""

    # Servers add up in float32, whatever type they get, so counts are exact to 16 million.
    _dtype = "float32"

    def __init__(self, world: World, kind: str) -> None:
        if "DMLC_PS_ROOT_URI" not in os.environ:
            raise UsageError(
                f"--comm {kind} needs parameter servers: start it by `imagenet-prep launch "
                "-np N --servers N -- train ...`"
            )
        import mxnet as mx

        self._store: Any = mx.kv.create(kind)
        # Servers number the ranks as they come. We keep the launcher's numbers, by which rank 0 is
        # on the first host.
        self.world = world
        self._known: set[str] = set()

    def add_up(self, arrays: Sequence[Any], what: str) -> None:
        """Sets each array to its sum over the ranks, as soon as it is known."""
        for number, array in enumerate(arrays):
            name = f"{what}.{number}"
            if name not in self._known:
                self._known.add(name)
                self._store.init(name, self._nd.zeros(array.shape, dtype=array.dtype))
            # Without an optimizer a server keeps the sum of what all ranks have pushed.
            self._store.push(name, array, priority=-number)
            self._store.pull(name, out=array, priority=-number)

    def close(self) -> None:
        """Waits for all ranks, parts from them, and ends the servers."""
        self._store = None
        gc.collect()
