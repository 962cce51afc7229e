"""The MXNet learner: a Gluon network, MXNet's SGD, and Horovod or parameter servers.

`MxnetLearner` trains one rank. Gluon's trainer is not used: with servers, its learning rate is
fixed (apache/mxnet issue 15919).

`Ring` connects the ranks through Horovod's ring, and `Servers` through MXNet's parameter servers.
Parameter servers can only add, so all operations are sums, even with Horovod. Servers and Horovod
give the same weights (bit for bit with two ranks), and a run may switch from one to the other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import model_zoo, nn

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.storage.local_file import complete_file, storage_errors, sync
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.comm import Comm, launched, meet, require_gpus, waiting
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.recipe import Run, decays

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
