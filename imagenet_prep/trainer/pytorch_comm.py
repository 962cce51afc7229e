"""Communication of PyTorch's ranks: torch.distributed (NCCL on GPUs, else Gloo), or Horovod.

Small values (the sums of a log row, the reader's position, and the request to stop) are sent from
CPU memory, so that no rank waits for its GPU.
"""

from __future__ import annotations

import inspect
import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed

from imagenet_prep.core.errors import ImagenetPrepError, UsageError, some
from imagenet_prep.core.terminal import counted, say
from imagenet_prep.core.world import World
from imagenet_prep.trainer.comm import TOLD_S, Comm, meet

_PLACE = ("MASTER_ADDR", "MASTER_PORT")  # rank 0's address, set by torchrun and `launch`
_SENDS_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")
# The variable set by `launch --stall-timeout`, and its default.
_STALL = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
_STALL_S = "600"
_CONNECT_S = 5.0
_POLL_S = 0.2


class _ProcessGroup(Comm):
    def _add_up(self, tensor: Any) -> None:
        """Replaces a tensor with its sum over all ranks."""
        raise NotImplementedError

    def _send(self, tensor: Any) -> None:
        """Replaces a tensor with rank 0's."""
        raise NotImplementedError

    def sum(self, tensor: Any) -> Any:
        return self.totals([tensor])[0]

    def totals(self, sums: Any) -> list[float]:
        tensor = torch.as_tensor(sums, dtype=torch.float64, device="cpu").clone()
        self._add_up(tensor)
        return list(map(float, tensor))

    def average(self, arrays: Sequence[Any]) -> None:
        _together(arrays, self._average)

    def _average(self, tensor: Any) -> None:
        self._add_up(tensor)
        tensor /= self.world.size

    def broadcast(self, arrays: Sequence[Any], name: str) -> None:  # noqa: ARG002 - matched by order
        _together(arrays, self._send)

    def gather(self, array: Any, name: str) -> Any:  # noqa: ARG002 - matched by order
        room = torch.zeros((self.world.size, *array.shape), dtype=torch.float64)
        room[self.world.rank] = torch.as_tensor(array)
        self._add_up(room)
        return room.numpy()

    def from_first(self, name: str, array: Any) -> Any:  # noqa: ARG002 - matched by order
        tensor = torch.tensor(array)
        self._send(tensor)
        return tensor.numpy()


class Distributed(_ProcessGroup):
    """torch.distributed; start ranks with `imagenet-prep launch`, torchrun, mpirun or srun."""

    def __init__(self, world: World, device: Any, *, fp16_compression: bool) -> None:
        missing = [name for name in _PLACE if not os.environ.get(name)]
        if missing:
            raise UsageError(
                f"{counted(world.size, 'PyTorch rank')} need {' and '.join(missing)}. Start "
                "the ranks with `imagenet-prep launch -np N -- train ...` or torchrun, or export "
                "the address of rank 0's host and a free port on that host."
            )
        self.world, self._device = world, device
        self._fp16_compression = fp16_compression
        on_gpu = device.type == "cuda"
        limit = timedelta(seconds=float(os.environ.get(_STALL, _STALL_S)))
        try:
            store = _all_ranks(world, limit)
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                store=store,
                rank=world.rank,
                world_size=world.size,
                timeout=limit,
                device_id=device if on_gpu else None,
            )
        except (OSError, RuntimeError, ValueError) as error:
            place = ":".join(os.environ[name] for name in _PLACE)
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ImagenetPrepError(
                f"rank {world.rank} of {world.size} did not connect to the other ranks at {place}: "
                f"{reason}. Check that all ranks are running and can reach each other on all ports."
            ) from error

    @property
    def versions(self) -> dict[str, str]:
        """The version of NCCL; empty if ranks have no GPU."""
        if self._device.type != "cuda":
            return {}
        return {"NCCL": ".".join(map(str, torch.cuda.nccl.version()))}

    def parallel(self, network: Any) -> Any:
        """Returns a network whose backward pass sends each gradient as soon as it is computed."""
        parallel = torch.nn.parallel.DistributedDataParallel
        # Do not synchronise batch norm statistics. PyTorch 2.15 renamed this argument.
        parameters = inspect.signature(parallel).parameters
        name = next(name for name in _SENDS_BUFFERS if name in parameters)
        averaging = parallel(network, gradient_as_bucket_view=True, **{name: False})
        if self._fp16_compression:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            averaging.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return averaging

    def _add_up(self, tensor: Any) -> None:
        distributed.all_reduce(tensor)

    def _send(self, tensor: Any) -> None:
        distributed.broadcast(tensor, 0)

    def close(self) -> None:
        """Waits for all ranks, then disconnects."""
        self.totals([0.0])
        distributed.destroy_process_group()


class PyTorchHorovod(_ProcessGroup):
    """Horovod as `install-horovod` builds it for PyTorch: it sums gradients in CPU memory."""

    def __init__(self, world: World, device: Any, *, fp16_compression: bool) -> None:
        self._hvd, self.world = meet("torch", world)
        if device.type == "cuda" and not self._hvd.nccl_built():
            raise UsageError(
                "--comm horovod: this Horovod sums tensors on the CPU, but the network is on a "
                "GPU. Omit --comm, so that ranks use NCCL."
            )
        compression = self._hvd.Compression
        self._compression = compression.fp16 if fp16_compression else compression.none
        self._sent: list[tuple[Any, Any, int, Any]] = []

    def parallel(self, network: Any) -> Any:
        """Returns the network; its backward pass sends each gradient as soon as it is computed."""
        for name, weight in network.named_parameters():
            weight.register_post_accumulate_grad_hook(partial(self._post, name))
        return network

    def _post(self, name: str, weight: Any) -> None:
        packed, how = self._compression.compress(weight.grad)
        row = packed.as_strided((packed.numel(),), (1,))  # flat: Horovod refuses channels last
        handle = self._hvd.allreduce_async_(row, name=name, op=self._hvd.Average)
        self._sent.append((weight, packed, handle, how))

    def arrive(self) -> None:
        """Waits for the gradients of a backward pass."""
        for weight, packed, handle, how in self._sent:
            self._hvd.synchronize(handle)
            weight.grad = self._compression.decompress(packed, how)
        self._sent.clear()

    def _add_up(self, tensor: Any) -> None:
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=f"sum.{tuple(tensor.shape)}")

    def _send(self, tensor: Any) -> None:
        self._hvd.broadcast_(tensor, 0, name=f"send.{tuple(tensor.shape)}")


def _all_ranks(world: World, limit: timedelta) -> Any:
    """Waits until all ranks have connected to rank 0; returns the store of rank 0.

    init_process_group would wait in C code: without a message, and without hearing signals.
    """
    address = os.environ[_PLACE[0]]
    port = int(os.environ[_PLACE[1]])
    # torchrun keeps its store when it restarts the ranks. PyTorch, too, separates the attempts.
    attempt = f"imagenet-prep-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    began = time.monotonic()
    is_told = False
    store: Any = None
    missing = [0]
    while missing:
        if store is None:
            store = _store(world, address, port)
            if store is not None:
                store = distributed.PrefixStore(attempt, store)
                store.set(f"rank-{world.rank}", "")
        if store is not None:
            missing = [rank for rank in range(world.size) if not store.check([f"rank-{rank}"])]
        waited_s = time.monotonic() - began
        if waited_s > limit.total_seconds():
            raise TimeoutError(f"no {_ranks(missing)} within {limit.total_seconds():g} s")
        if waited_s > TOLD_S and not is_told:
            say(f"waiting for {_ranks(missing)} of {world.size} at {address}:{port}")
            is_told = True
        time.sleep(_POLL_S if missing else 0)
    store.set_timeout(limit)
    return store


def _store(world: World, address: str, port: int) -> Any:
    """Returns rank 0's store; None if rank 0 is not there."""
    # torchrun starts a store itself.
    leads = world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not leads:
        try:
            socket.create_connection((address, port), _CONNECT_S).close()
        except OSError:
            return None
    timeout = timedelta(seconds=_CONNECT_S)
    return distributed.TCPStore(
        address, port, world.size, leads, timeout=timeout, wait_for_workers=False
    )


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {some(numbers)}"


def _together(tensors: Sequence[Any], work: Any) -> None:
    """Joins tensors into one, applies `work` to it, and copies the results back."""
    if not tensors:
        return
    with torch.no_grad():
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        work(joined)
        parts = joined.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
