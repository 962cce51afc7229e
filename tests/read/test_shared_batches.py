"""The memory that DataLoader workers use again; tests/frameworks tests it with PyTorch itself."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.read.shared_batches import SharedPool, received, worker_pool
from tests.kit.processes import open_files

SMALL = 1000
LARGE = 3_000_000


class Storage:
    """The part of PyTorch's storages that a pool uses, over a NumPy array."""

    def __init__(self, array: np.ndarray, device: str = "cpu", *, shared: bool = False) -> None:
        self._array = array
        self._shared = shared
        self.device = SimpleNamespace(type=device)

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def nbytes(self) -> int:
        return self._array.nbytes

    def is_shared(self) -> bool:
        return self._shared


def filled(pool: SharedPool, value: int, size: int = SMALL) -> np.ndarray:
    memory = pool.lease(size)
    memory[:] = value
    return memory


def hand_over(pool: SharedPool, array: np.ndarray, **how: Any) -> np.ndarray | None:
    """Returns the memory of the main process; None if PyTorch hands it over."""
    arguments = pool.handed_over(Storage(array, **how))
    return None if arguments is None else received(*arguments)


def sent(pool: SharedPool, value: int, size: int = SMALL) -> np.ndarray:
    """Returns the memory of the main process; the worker has released its own."""
    memory = hand_over(pool, filled(pool, value, size))
    assert memory is not None
    assert memory.tolist() == [value] * size
    return memory


def memories() -> set[int]:
    """Returns the inodes of the memories of pools in this process."""
    return {file.inode for file in open_files() if "imagenet-prep batch" in file.path}


def place(memory: np.ndarray) -> int:
    return int(memory.ctypes.data)


def test_released_memory_is_used_again() -> None:
    pool = SharedPool()
    first = pool.lease(SMALL)
    where = place(first)
    second = pool.lease(SMALL)
    assert place(second) != where
    del first

    assert place(pool.lease(SMALL)) == where
    # A smaller batch, as at the end of an epoch, fits too; a much smaller one would waste memory.
    assert place(pool.lease(SMALL // 2)) == where
    assert place(pool.lease(SMALL // 2 - 1)) != where
    assert place(pool.lease(SMALL + 1)) != where


def test_memory_returns_after_main_process_releases_it() -> None:
    pool = SharedPool()
    held = [sent(pool, value) for value in range(20)]
    for value, memory in enumerate(held):
        assert (memory == value).all()
    del held, memory
    before = memories()
    for value in range(40):
        memory = sent(pool, value)
        del memory

    assert memories() == before


def test_memory_that_a_worker_keeps_is_not_reused() -> None:
    pool = SharedPool()
    own = filled(pool, 7)
    memory = hand_over(pool, own)
    assert memory is not None
    # While the main process has it, PyTorch hands it over again, as a copy.
    assert hand_over(pool, own) is None
    del memory

    assert place(pool.lease(SMALL)) != place(own)
    again = hand_over(pool, own)
    assert again is not None
    assert (again == 7).all()


def test_large_tensors_are_copied_to_shared_memory() -> None:
    pool = SharedPool()
    array = np.arange(LARGE, dtype=np.uint8)
    memory = hand_over(pool, array)

    assert memory is not None
    assert (memory == array).all()
    array[:] = 0
    assert memory[1] == 1
    assert hand_over(pool, np.zeros(1 << 20, np.uint8)) is not None
    assert hand_over(pool, np.zeros((1 << 20) - 1, np.uint8)) is None
    assert hand_over(pool, array, shared=True) is None
    assert hand_over(pool, array, device="meta") is None
    assert hand_over(pool, pool.lease(SMALL), device="cuda") is None


def test_memory_of_forked_batches_never_returns() -> None:
    pool = SharedPool()
    before = memories()
    held = sent(pool, 5)
    lost = memories() - before
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    del held
    # The new memory replaces the one that the child may still use.
    other = sent(pool, 6)
    assert len(memories() - before) == 1
    assert not memories() & lost
    del other

    assert pool.lease(SMALL) is not None
    assert len(memories() - before) == 1


@pytest.mark.parametrize("count", [3, 40])
def test_worker_keeps_a_bounded_number_of_memories(count: int) -> None:
    pool = SharedPool()
    before = memories()
    held = [pool.lease(SMALL) for _ in range(count)]
    assert len({place(memory) for memory in held}) == count
    held.clear()

    assert len(memories() - before) == min(count, 16)


def test_only_workers_of_a_dataloader_have_a_pool() -> None:
    assert worker_pool() is None
