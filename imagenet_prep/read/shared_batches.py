"""Hands batches from a DataLoader's workers to the main process in memory that is used again.

By default, PyTorch copies each tensor of a worker to new shared memory, and the kernel clears this
memory first. That takes most of the CPU time of a worker that only reads batches. Here, a worker
decodes into memory that is already shared, and writes to it again after the main process has freed
all tensors of the batch. Large tensors in other memory, such as results of `collate_fn`, are copied
to memory of the same pool.

The last byte of the memory is its state. The memory has no name, so the kernel frees it with the
last process that uses it, even if all of them are killed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from functools import partial
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.read.batch import Memory, PooledMemory

if TYPE_CHECKING:
    import numpy.typing as npt

_FREE = 0  # the worker may write to the memory
_SENT = 1  # the main process has not freed the batch in the memory yet
_LOST = 2  # it has, but its children may use the batch for as long as they want

# Per worker. More are needed only if `prefetch_factor` is larger, or if the training loop keeps
# batches; they are then made for a single batch.
_MOST_IDLE = 16
_LEAST_BYTES = 1 << 20  # PyTorch hands over smaller tensors


class _Shared(Memory):
    """Memory of a worker that other processes can map."""

    def __init__(self, num_bytes: int) -> None:
        self.descriptor = os.memfd_create("imagenet-prep batch")
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, num_bytes + 1)
        super().__init__(np.frombuffer(mmap.mmap(self.descriptor, num_bytes + 1), np.uint8))


class SharedPool:
    """The shared memory of a worker."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        # Memory that nothing in this process refers to; any thread may append to it.
        self._idle: deque[npt.NDArray[Any]] = deque(maxlen=_MOST_IDLE)
        self._shared: weakref.WeakValueDictionary[int, _Shared] = weakref.WeakValueDictionary()

    def lease(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Returns memory that no process uses, or new memory."""
        with self._lock:
            for _ in range(len(self._idle)):
                memory = self._idle.popleft()
                state = memory[-1]
                if state == _FREE and num_bytes < len(memory) <= 2 * num_bytes + 1:
                    break
                if state != _LOST:
                    self._idle.append(memory)
            else:
                shared = _Shared(num_bytes)
                memory = np.asarray(shared)
                self._shared[memory.ctypes.data] = shared
        return np.asarray(PooledMemory(memory, self._idle))[:num_bytes]

    def handed_over(self, storage: Any) -> tuple[Any, int, int] | None:
        """Returns the arguments of `received` for a storage of PyTorch.

        Returns None if PyTorch must hand it over.
        """
        if storage.device.type != "cpu":
            return None
        num_bytes = storage.nbytes()
        shared = self._shared.get(storage.data_ptr())
        if shared is None and num_bytes >= _LEAST_BYTES and not storage.is_shared():
            copy = self.lease(num_bytes)
            shared = self._shared.get(copy.ctypes.data)
            ctypes.memmove(copy.ctypes.data, storage.data_ptr(), num_bytes)
        if shared is None:
            return None
        memory = np.asarray(shared)
        if memory[-1] != _FREE:  # the worker's own code kept a batch, and returned it again
            return None
        memory[-1] = _SENT
        return DupFd(shared.descriptor), len(memory), num_bytes


_pool: SharedPool | None = None


def worker_pool() -> SharedPool | None:
    """Returns the shared memory of this process if it is a DataLoader's worker, else None."""
    global _pool
    data: Any = sys.modules.get("torch.utils.data")
    if data is None or data.get_worker_info() is None:
        return None
    if _pool is None or _pool.process != os.getpid():
        import torch

        _pool = SharedPool()
        ForkingPickler.register(torch.UntypedStorage, partial(_reduced, _pool))
    return _pool


def _reduced(pool: SharedPool, storage: Any) -> tuple[Any, ...]:
    """Returns how to unpickle a storage of PyTorch in the main process."""
    from torch.multiprocessing.reductions import reduce_storage

    arguments = pool.handed_over(storage)
    if arguments is not None:
        return _storage, arguments
    reduced: tuple[Any, ...] = reduce_storage(storage)
    return reduced


_forks = 0  # of this process


def _count_fork() -> None:
    global _forks
    _forks += 1


# In the child too, since a different thread may have received a batch just before the fork.
os.register_at_fork(before=_count_fork, after_in_child=_count_fork)


class _Received(Memory):
    """A batch from a worker in the main process; tells the worker when nothing refers to it."""

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        super().__init__(array)
        self._forks = _forks

    def __del__(self) -> None:
        self._array[-1] = _FREE if self._forks == _forks else _LOST


def received(descriptor: Any, size: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns the memory of a worker."""
    opened = descriptor.detach()
    try:
        memory = mmap.mmap(opened, size)
    finally:
        os.close(opened)
    return np.asarray(_Received(np.frombuffer(memory, np.uint8)))[:num_bytes]


def _storage(*arguments: Any) -> Any:
    """Returns a storage of PyTorch over the memory of a worker."""
    import torch

    return torch.from_numpy(received(*arguments)).untyped_storage()
