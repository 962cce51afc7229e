"""The MXNet learner: a Gluon network and MXNet's SGD."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import model_zoo, nn

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.storage.local_file import complete_file, storage_errors, sync
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.comm import Comm, launched, require_gpus
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.mxnet_comm import Ring, Servers
from imagenet_prep.trainer.recipe import Run, decays

# Mean and deviation with which `read` normalises images for recipe mnist. Horovod's mxnet_mnist.py
# uses pixels from 0 to 1. Normalised pixels have nine times the second moment: with the learning
# rate and initial weights of that script, half of the seeds would learn nothing.
_MEAN = 33.3
_STD = 78.6


class MxnetLearner(Learner):
    """A rank that trains with MXNet."""

    def __init__(self, config: TrainConfig) -> None:
        world = launched()
        self.comm = Comm()
        if config.comm != "horovod":
            self.comm = Servers(world, config.comm)
        elif world.size > 1:
            self.comm = Ring(world)
        self.versions = {"MXNet": mx.__version__} | self.comm.versions
        gpus = mx.context.num_gpus()
        local_rank = self.comm.world.local_rank
        require_gpus(local_rank, gpus)
        self.fast_half = gpus > 0
        self._context = mx.gpu(local_rank) if gpus else mx.cpu()
        if recipe.precision(config, fast_half=self.fast_half) == "float16":
            if not gpus:
                raise UsageError("--precision float16: MXNet needs a GPU for float16")
            from mxnet.contrib import amp

            amp.init()  # only changes the forward pass: weights, gradients, logits stay float32
        mx.random.seed(config.seed)

    def hold(self, batch: Batch) -> Batch:
        """Returns the batch as arrays on the device; images have channels first."""
        images = batch["images"].transpose(0, 3, 1, 2)
        return {name: self._array(array) for name, array in {**batch, "images": images}.items()}

    def _array(self, array: Any) -> Any:
        """Returns an array on the device; a DALI array on this GPU is shared, not copied."""
        if isinstance(array, mx.nd.NDArray):
            return array
        if isinstance(array, np.ndarray | list):
            return mx.nd.array(array, ctx=self._context)
        here = array if self._context.device_type == "gpu" else array.as_cpu()
        return mx.nd.from_dlpack(here.__dlpack__())

    def build(self, plan: Run, *, jit: bool) -> None:  # noqa: ARG002 - refused by TrainConfig
        """Builds network and optimizer."""
        self._plan = plan
        self._network = _network(plan, self._context)
        parameters = self._network.collect_params().values()
        trained = [parameter for parameter in parameters if parameter.grad_req != "null"]
        self._weights = [parameter.data() for parameter in trained]
        self._gradients = [parameter.grad() for parameter in trained]
        self._statistics = [p.data() for p in parameters if p.grad_req == "null"]
        # Gradients are summed over the ranks, and losses are scaled; `rescale_grad` reverts both.
        self._optimizer = mx.optimizer.create(
            "nag" if plan.nesterov else "sgd",
            momentum=plan.momentum,
            wd=plan.weight_decay,
            rescale_grad=1 / (self.comm.world.size * plan.loss_scale),
        )
        flat = [number for number, weight in enumerate(self._weights) if not decays(weight)]
        self._optimizer.set_wd_mult(dict.fromkeys(flat, 0.0))
        self._slots = [self._optimizer.create_state(*weight) for weight in enumerate(self._weights)]
        self._momenta = [slot for slot in self._slots if slot is not None]
        of_model = [*self._weights, *self._statistics]
        self._names = [f"variable_{number:04d}" for number in range(len(of_model))]
        self._variables = [*of_model, *self._momenta]

    def values(self) -> list[Any]:
        """Returns all variables as NumPy arrays."""
        return [array.asnumpy() for array in self._variables]

    def assign(self, values: Sequence[Any]) -> None:
        """Sets all variables, or only the model's, to `values`."""
        for array, value in zip(self._variables, values, strict=False):
            array[:] = value

    def share(self) -> None:
        """Replaces all variables with rank 0's."""
        self.comm.broadcast(self._weights, "weight")
        self.comm.broadcast(self._statistics, "statistic")
        # Momenta have the weights' shapes, so servers can store both under the same names.
        self.comm.broadcast(self._momenta, "weight")

    def step(self, number: int, batch: Batch, rate: float, *, asks: bool) -> tuple[Any, Any]:  # noqa: ARG002
        """Runs one step without dropout; returns two MXNet arrays, see `Learner.step`."""
        plan = self._plan
        with mx.autograd.record():
            inputs = {name: self._array(array) for name, array in batch.items()}
            loss, accuracy = self._loss(**inputs)
            scaled = loss * plan.loss_scale
        scaled.backward()
        self.comm.add_up(self._gradients, "weight")
        decaying = [weight for weight in self._weights if decays(weight)]
        squares = mx.nd.multi_sum_sq(*decaying, num_arrays=len(decaying)).sum()
        total = loss + plan.weight_decay / 2 * squares
        # Elements of an MXNet array become numbers only when they are read.
        values = mx.nd.concat(loss, total, accuracy, dim=0).as_np_ndarray()
        # If a gradient overflows on one rank, the sum overflows on all, and all skip the step. This
        # check waits for the device, as MXNet's own loss scaler does.
        is_safe = plan.precision != "float16" and plan.loss_scale == 1.0
        if is_safe or _are_finite(self._gradients):
            self._optimizer.set_learning_rate(rate)
            triples = zip(self._weights, self._gradients, self._slots, strict=True)
            for nth, triple in enumerate(triples):
                self._optimizer.update(nth, *triple)
        asking = self._array([float(asks)])
        self.comm.add_up([asking], "asking")
        return values, asking

    def _loss(self, images: Any, class_index: Any, mask: Any) -> Any:
        """Returns mean cross entropy [1] and accuracy [1] of the images in the mask."""
        share = self._plan.label_smoothing
        logs = mx.nd.log_softmax(self._network(images).astype("float32"))
        losses = (share - 1) * mx.nd.pick(logs, class_index) - share * logs.mean(axis=1)
        number = mx.nd.maximum(mask.sum(), 1)
        hits = logs.detach().argmax(axis=1) == class_index
        return (losses * mask).sum() / number, (hits * mask).sum() / number

    def logits(self, images: Any) -> Any:
        """Returns the network's logits."""
        return self._network(self._array(images)).asnumpy()

    def export(self, path: Path, interface: Interface) -> None:
        """Writes a folder with model-symbol.json, model-0000.params and labels.txt.

        The exported network maps [batch, 3, size, size] images, RGB from 0 to 255, to
        probabilities.
        """
        mean, std = interface.mean, interface.std
        exported = nn.HybridSequential()
        exported.add(nn.HybridLambda(lambda f, images: f.image.normalize(images, mean, std)))
        exported.add(self._network, nn.HybridLambda("softmax"))
        exported.hybridize()
        # Gluon can only export a network that has run once.
        side = self._plan.image_size
        exported(self._array(np.zeros((1, 3, side, side), np.float32)))
        path.mkdir(parents=True, exist_ok=True)
        exported.export(str(path / "model"))
        with complete_file(path / schema.LABELS, None) as file:
            file.write(interface.classes.encode())
        with storage_errors("export", path):
            sync(path)


def _network(plan: Run, context: Any) -> Any:
    """Returns an initialised network: [batch, 3, size, size] normalised images -> logits."""
    if plan.model == "tiny":
        network = nn.HybridSequential()
        for filters in (16, 32, 64):
            network.add(nn.Conv2D(filters, 3, strides=2, padding=1, activation="relu"))
        network.add(nn.GlobalAvgPool2D(), nn.Dense(plan.num_classes))
    elif plan.model == "mnist":  # the net of Horovod's example mxnet_mnist.py
        network = nn.HybridSequential()
        for filters in (20, 50):
            network.add(nn.Conv2D(filters, 5, activation="relu"), nn.MaxPool2D(2, 2))
        network.add(nn.Flatten(), nn.Dense(512, activation="relu"), nn.Dense(plan.num_classes))
    else:
        zoo = f"{plan.model.removesuffix('-v1')}_v1"
        network = model_zoo.vision.get_model(zoo, classes=plan.num_classes)
    if plan.recipe == "mnist":
        inner = network
        network = nn.HybridSequential()
        network.add(nn.HybridLambda(lambda _, images: (images * _STD + _MEAN) / 255), inner)
    # Infer the shapes here: a forward pass would leave weights in oneDNN's layout, which Horovod
    # cannot read. It would crash at random.
    network.infer_shape(mx.nd.zeros((1, 3, plan.image_size, plan.image_size)))
    # The initialisation of He et al. 2015 (MSRA) and of Horovod's example for MXNet.
    first = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
    network.initialize(first, ctx=context)
    network.hybridize()
    return network


def _are_finite(arrays: list[Any]) -> bool:
    # On a GPU, multi_all_finite accepts at most 200 arrays.
    parts = [arrays[first : first + 200] for first in range(0, len(arrays), 200)]
    return all(mx.nd.multi_all_finite(*part, num_arrays=len(part)).asscalar() for part in parts)
