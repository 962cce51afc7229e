"""The PyTorch learner: a channels-last network, our optimizer and torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from imagenet_prep.dataset.schema import NO_CLASS
from imagenet_prep.trainer import pytorch_model, torchvision
from imagenet_prep.trainer.comm import Comm, check_gpus, cores, launched
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.pytorch_comm import Distributed, Horovod
from imagenet_prep.trainer.pytorch_optimizer import Optimizer
from imagenet_prep.trainer.recipe import Run

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FAST_HALF = (7, 0)  # compute capability of Volta, NVIDIA's first with tensor cores


def pinned(batch_size: int, image_size: int) -> Any:
    """Returns pinned memory for a batch of images, which a GPU can copy asynchronously."""
    return torch.empty((batch_size, image_size, image_size, 3), pin_memory=True)


class _Held(dict[str, Any]):
    """A batch of tensors on the device of this rank."""


class PytorchLearner(Learner):
    """A rank that trains with PyTorch."""

    def __init__(self, config: TrainConfig) -> None:
        world = launched()
        self.comm = Comm()
        gpus = torch.cuda.device_count()
        check_gpus(world.local_rank, gpus)
        self._device = torch.device("cuda", world.local_rank) if gpus else torch.device("cpu")
        self._copies: Any = None
        self.fast_half = False
        if gpus:
            torch.cuda.set_device(self._device)
            torch.backends.cudnn.benchmark = True  # measures once: all batches have one size
            self._copies = torch.cuda.Stream(self._device)
            self.fast_half = torch.cuda.get_device_capability(self._device) >= _FAST_HALF
        elif world.local_size > 1:
            torch.set_num_threads(cores(world))
        if world.size > 1:
            kind = Horovod if config.comm == "horovod" else Distributed
            self.comm = kind(world, self._device, fp16_compression=config.fp16_compression)
        cuda = {"CUDA": str(torch.version.cuda)} if gpus else {}
        self.versions = {"PyTorch": torch.__version__} | cuda | self.comm.versions
        torch.manual_seed(config.seed)

    def hold(self, batch: Batch) -> Batch:
        """Returns device tensors; images are [batch, 3, height, width], stored channels last."""
        if isinstance(batch, _Held):
            return batch
        names = ("images", "class_index", "mask")
        images, class_index, mask = (self._on_device(batch[name]) for name in names)
        return _Held(images=images.permute(0, 3, 1, 2), class_index=class_index.long(), mask=mask)

    def _on_device(self, array: Any) -> Any:
        """Returns a tensor on the device; `array` is from PyTorch, NumPy or DALI."""
        if self._copies is None:
            return array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
        # Copy on a separate stream while the GPU computes the previous step. DALI reuses its
        # memory as soon as the tensor is freed, so the copy must be complete by then.
        with torch.cuda.stream(self._copies):
            tensor = array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
            if tensor.is_cuda:
                copy = tensor.clone()
                self._copies.synchronize()
            else:
                copy = tensor.to(self._device, non_blocking=True)
        now = torch.cuda.current_stream(self._device)
        now.wait_stream(self._copies)
        copy.record_stream(now)
        return copy

    def build(self, plan: Run, *, jit: bool) -> None:
        """Builds network and optimizer; `jit` compiles the forward and backward passes."""
        self._plan = plan
        network = pytorch_model.build(plan.model, plan.image_size, plan.num_classes)
        self._network = network.to(self._device, memory_format=torch.channels_last)
        weights = dict(network.named_parameters())
        statistics = dict(network.named_buffers())
        self._names = [*weights, *statistics]
        self._weights = list(weights.values())
        self._statistics = list(statistics.values())
        self._has_dropout = any(isinstance(m, torch.nn.Dropout) for m in network.modules())
        self._optimizer = Optimizer(plan, self._weights)
        self._variables = [*self._weights, *self._statistics, *self._optimizer.slots]
        parallel = self.comm.parallel(network)
        self._trained = torch.compile(parallel, dynamic=False) if jit else parallel

    def _computing(self) -> Any:
        """Returns the autocast context for the plan's precision."""
        dtype = _DTYPES[self._plan.precision]
        return torch.autocast(self._device.type, dtype, enabled=dtype != torch.float32)

    def values(self) -> list[Any]:
        """Returns all variables as NumPy arrays."""
        return [np.array(variable.detach().cpu(), order="C") for variable in self._variables]

    @torch.no_grad()
    def assign(self, values: Sequence[Any]) -> None:
        """Sets all variables, or only the model's, to `values`."""
        for variable, value in zip(self._variables, values, strict=False):
            variable.copy_(torch.tensor(value))

    def step(self, number: int, batch: Batch, rate: float, *, asks: bool) -> tuple[Any, Any]:
        """Runs one step; dropout masks depend only on seed, step and rank."""
        plan = self._plan
        world = self.comm.world
        tensors = self.hold(batch)
        if self._has_dropout:
            sequence = np.random.SeedSequence((plan.seed, number, world.rank))
            torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
        self._network.train()
        with self._computing():
            logits = self._trained(tensors["images"])
        loss, accuracy = self._loss(logits.float(), tensors["class_index"], tensors["mask"])
        (loss * plan.loss_scale).backward()
        self.comm.arrive()
        gradients = [weight.grad for weight in self._weights]
        total = loss.detach() + self._optimizer.regularizer()
        if plan.precision != "float16":
            self._optimizer.apply(gradients, rate)
        else:
            self._apply_if_finite(gradients, rate)
        for weight in self._weights:
            weight.grad = None
        return torch.stack([loss.detach(), total, accuracy]), self.comm.sum(float(asks))

    def _loss(self, logits: Any, class_index: Any, mask: Any) -> Any:
        """Returns mean cross entropy and accuracy of the images in the mask."""
        weights = mask.float()
        count = weights.sum().clamp(min=1.0)
        smoothing = self._plan.label_smoothing
        losses = functional.cross_entropy(
            logits,
            class_index,
            ignore_index=NO_CLASS,
            reduction="none",
            label_smoothing=smoothing,
        )
        hits = (logits.detach().argmax(1) == class_index).float()
        return (losses * weights).sum() / count, (hits * weights).sum() / count

    @torch.no_grad()
    def _apply_if_finite(self, gradients: list[Any], rate: float) -> None:
        """Runs a step, or skips it on all ranks after an overflow, without waiting for the GPU."""
        torch._foreach_div_(gradients, self._plan.loss_scale)
        sound = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        changing = [*self._weights, *self._optimizer.slots]
        before = [variable.clone() for variable in changing]
        self._optimizer.apply(gradients, rate)
        for now, then in zip(changing, before, strict=True):
            now.copy_(torch.where(sound, now, then))

    @torch.no_grad()
    def logits(self, images: Any) -> Any:
        """Returns the network's logits."""
        self._network.eval()
        with self._computing():
            logits = self._network(self._on_device(images).permute(0, 3, 1, 2))
        return logits.float().cpu().numpy()

    def export(self, path: Path, interface: Interface) -> None:
        """Writes a safetensors file."""
        run = vars(self._plan)
        arrays = dict(zip(self.names(), self.values(), strict=True))
        torchvision.write(path, torchvision.tensors(run, arrays), torchvision.notes(run, interface))
