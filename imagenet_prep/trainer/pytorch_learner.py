"""The PyTorch learner: a channels-last network, our optimizer and torch.distributed.

`PytorchLearner` trains one rank.

`build` returns the networks of `trainer.tensorflow_learner` in PyTorch, with the same
initialisation.

`PyTorchOptimizer` has the optimizers of `trainer.tensorflow_learner`, with one GPU operation for
all variables. PyTorch lacks LARS and LARC, and its Adam and RMSprop add epsilon at a different
point than Keras.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from imagenet_prep.dataset.schema import NO_CLASS
from imagenet_prep.trainer.comm import Comm, cores, launched, require_gpus
from imagenet_prep.trainer.config import TrainConfig, residual_blocks
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import Interface, notes, tensors, write
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.pytorch_comm import Distributed, PyTorchHorovod
from imagenet_prep.trainer.recipe import Run, decays

_CUT = 0.87962566103423978  # standard deviation of a normal distribution truncated at 2

_Layers = dict[str, Any]


def build(name: str, image_size: int, num_classes: int) -> Any:
    """Returns a network: [batch, 3, size, size] images -> logits; see `tensorflow_learner`."""
    if name in ("cifar", "mnist"):
        layers, features = (_cifar if name == "cifar" else _mnist)(image_size)
    else:
        layers, features = _resnet(name, image_size)
        layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    network = nn.Sequential(OrderedDict(layers | {"fc": nn.Linear(features, num_classes)}))
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.bias is None:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            spread = math.sqrt(2 / fan_out) / _CUT
            nn.init.trunc_normal_(module.weight, std=spread, a=-2 * spread, b=2 * spread)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None  # Counting would cost a kernel per layer and step.
        elif isinstance(module, _Block):
            nn.init.zeros_(module.last.weight)
    nn.init.normal_(network.fc.weight, std=0.01)
    return network


def _resnet(name: str, image_size: int) -> tuple[_Layers, int]:
    if name == "tiny":
        layers = _stem(16, 3, 2 if image_size >= 48 else 1)
        inputs = 16
    else:
        layers = _stem(64, 7, 2) | {"maxpool": nn.MaxPool2d(3, 2, 1)}
        inputs = 64
    for path, convolutions in residual_blocks(name):
        layer, _, number = path.partition(".")
        block = _Block(inputs, *convolutions)
        if number:
            layers.setdefault(layer, nn.Sequential()).append(block)
        else:
            layers[layer] = block
        inputs = convolutions[-1][0]
    return layers, inputs


def _cifar(side: int) -> tuple[_Layers, int]:
    layers: _Layers = {}
    inputs = 3
    for stage, (filters, dropped) in enumerate(((32, 0.2), (64, 0.3), (128, 0.4))):
        for number, padding in enumerate((1, 0)):
            called = f"{stage}_{number}"
            layers[f"conv{called}"] = nn.Conv2d(inputs, filters, 3, padding=padding)
            layers[f"bn{called}"] = nn.BatchNorm2d(filters)
            layers[f"relu{called}"] = nn.ReLU()
            inputs = filters
        layers |= {f"pool{stage}": nn.MaxPool2d(2), f"dropout{stage}": nn.Dropout(dropped)}
        side = (side - 2) // 2
    return layers | _hidden(inputs * side**2, 512), 512


def _mnist(side: int) -> tuple[_Layers, int]:
    layers: _Layers = {}
    inputs = 3
    for filters in (16, 32):
        layers[f"conv{filters}"] = nn.Conv2d(inputs, filters, 5)
        layers |= {f"relu{filters}": nn.ReLU(), f"pool{filters}": nn.MaxPool2d(2)}
        inputs = filters
        side = (side - 4) // 2
    return layers | _hidden(inputs * side**2, 128), 128


def _hidden(inputs: int, width: int) -> _Layers:
    layer = {"flatten": nn.Flatten(), "hidden": nn.Linear(inputs, width)}
    return layer | {"relu": nn.ReLU(), "dropout": nn.Dropout(0.5)}


def _stem(filters: int, size: int, stride: int) -> _Layers:
    convolution = _convolution(3, filters, size, stride)
    return {"conv1": convolution, "bn1": nn.BatchNorm2d(filters), "relu": nn.ReLU(inplace=True)}


def _convolution(inputs: int, filters: int, size: int, stride: int) -> Any:
    return nn.Conv2d(inputs, filters, size, stride, (size - 1) // 2, bias=False)


class _Block(nn.Module):
    """A residual block of convolutions, each as (filters, size, stride)."""

    def __init__(self, inputs: int, *convolutions: tuple[int, int, int]) -> None:
        super().__init__()
        self._count = len(convolutions)
        width = inputs
        strides = 1
        for number, (filters, size, stride) in enumerate(convolutions, start=1):
            self.add_module(f"conv{number}", _convolution(width, filters, size, stride))
            self.add_module(f"bn{number}", nn.BatchNorm2d(filters))
            width = filters
            strides = strides * stride
        self.downsample: Any = None
        if strides > 1 or inputs != width:
            shortcut = _convolution(inputs, width, 1, strides)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))

    @property
    def last(self) -> Any:
        """The last batch norm, which starts at 0, so that the block starts as its shortcut."""
        return getattr(self, f"bn{self._count}")

    def forward(self, x: Any) -> Any:
        shortcut = x if self.downsample is None else self.downsample(x)
        for number in range(1, self._count + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            if number == self._count:
                x = x + shortcut
            x = functional.relu(x, inplace=True)
        return x


_FIRST_DECAY = 0.9
_SECOND_DECAY = 0.999
_EPSILON = 1e-7


class PyTorchOptimizer:
    """Updates float32 variables with averaged gradients; see `tensorflow_learner` for `slots`."""

    def __init__(self, plan: Run, variables: Sequence[Any]) -> None:
        self._plan, self._kind = plan, plan.optimizer
        self._variables = list(variables)
        self._decaying = [n for n, variable in enumerate(variables) if decays(variable)]
        like = self._variables * (2 if self._kind == "adam" else 1)
        self._means = [torch.zeros_like(variable) for variable in like]
        self._steps = torch.zeros((), device=self._variables[0].device)
        self.slots = [*self._means, self._steps] if self._kind == "adam" else self._means

    @torch.no_grad()
    def regularizer(self) -> Any:
        """Returns the L2 loss of the weight decay: decay / 2 * sum(w^2)."""
        norms = torch._foreach_norm(_those(self._variables, self._decaying))
        return self._plan.weight_decay / 2 * torch.stack(norms).square().sum()

    @torch.no_grad()
    def apply(self, gradients: list[Any], learning_rate: float) -> None:
        """Runs one step and overwrites `gradients`: float32, in the order of the variables."""
        decaying = _those(gradients, self._decaying), _those(self._variables, self._decaying)
        torch._foreach_add_(*decaying, alpha=self._plan.weight_decay)
        if self._kind == "adam":
            self._adam(gradients, learning_rate)
            return
        if self._kind == "rmsprop":
            gradients = self._rmsprop(gradients)
        else:
            self._scale(gradients, learning_rate)
            torch._foreach_mul_(self._means, self._plan.momentum)
            torch._foreach_add_(self._means, gradients)
            if self._plan.nesterov:
                torch._foreach_add_(gradients, self._means, alpha=self._plan.momentum)
            else:
                gradients = self._means
        torch._foreach_add_(self._variables, gradients, alpha=-learning_rate)

    def _adam(self, gradients: list[Any], learning_rate: float) -> None:
        count = len(self._variables)
        means, squares = self._means[:count], self._means[count:]
        self._steps += 1
        torch._foreach_lerp_(means, gradients, 1 - _FIRST_DECAY)
        torch._foreach_mul_(squares, _SECOND_DECAY)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - _SECOND_DECAY)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, _EPSILON)
        steps = torch._foreach_div(means, roots)
        # `_steps` stays on the device, since reading it would wait for the device.
        correction = (1 - _SECOND_DECAY**self._steps).sqrt() / (1 - _FIRST_DECAY**self._steps)
        torch._foreach_mul_(steps, correction * learning_rate)
        torch._foreach_sub_(self._variables, steps)

    def _rmsprop(self, gradients: list[Any]) -> Any:
        torch._foreach_mul_(self._means, _FIRST_DECAY)
        torch._foreach_addcmul_(self._means, gradients, gradients, 1 - _FIRST_DECAY)
        roots = torch._foreach_add(self._means, _EPSILON)
        torch._foreach_sqrt_(roots)
        return torch._foreach_div(gradients, roots)

    def _scale(self, gradients: list[Any], learning_rate: float) -> None:
        """Multiplies each gradient by the learning rate factor of its layer, for LARS and LARC."""
        if self._kind == "sgd":
            return
        numbers = self._decaying if self._kind == "lars" else range(len(gradients))
        slopes = _those(gradients, numbers)
        slope = torch.stack(torch._foreach_norm(slopes))
        weight = torch.stack(torch._foreach_norm(_those(self._variables, numbers)))
        usable = (weight > 0) & (slope > 0)
        rate = self._plan.trust_coefficient * weight / torch.where(usable, slope, 1.0)
        rate = torch.where(usable, rate, 1.0)
        if self._kind == "larc":
            rate = (rate / learning_rate).clamp(max=1.0)
        torch._foreach_mul_(slopes, rate.unbind())


def _those(tensors: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    return [tensors[number] for number in numbers]


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
        require_gpus(world.local_rank, gpus)
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
            kind = PyTorchHorovod if config.comm == "horovod" else Distributed
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
        network = build(plan.model, plan.image_size, plan.num_classes)
        self._network = network.to(self._device, memory_format=torch.channels_last)
        weights = dict(network.named_parameters())
        statistics = dict(network.named_buffers())
        self._names = [*weights, *statistics]
        self._weights = list(weights.values())
        self._statistics = list(statistics.values())
        self._has_dropout = any(isinstance(m, torch.nn.Dropout) for m in network.modules())
        self._optimizer = PyTorchOptimizer(plan, self._weights)
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
        write(path, tensors(run, arrays), notes(run, interface))
