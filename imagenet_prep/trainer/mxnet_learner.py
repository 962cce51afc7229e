"""MXNet's part of a run: a Gluon network, MXNet's SGD, and the ranks' sums."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import UsageError
from imagenet_prep.trainer import device, gluon, mxnet_comm, recipe
from imagenet_prep.trainer.comm import launched
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.recipe import Run


class MxnetLearner:
    """See `trainer.learner.Learner`."""

    def __init__(self, config: Config) -> None:
        """Meets the other ranks, takes a GPU or cores, and seeds the first weights.

        Raises:
          UsageError: float16 is asked for without a GPU, or servers or Horovod are missing.
          ImagenetPrepError: the host has GPUs, but fewer than ranks.
        """
        # Read when MXNet is imported, which a server's process does for as long as it lives.
        os.environ.setdefault("OMP_NUM_THREADS", str(device.cores(launched())))
        self.comm = mxnet_comm.connect(config.comm)
        import mxnet as mx

        gpus, local_rank = mx.context.num_gpus(), self.comm.world.local_rank
        device.check(local_rank, gpus)
        self.fast_half = gpus > 0
        self._context = mx.gpu(local_rank) if gpus else mx.cpu()
        if recipe.precision(config, fast_half=self.fast_half) == "float16":
            if not gpus:
                raise UsageError("--precision float16: MXNet has it on GPUs alone; leave it out")
            from mxnet.contrib import amp

            # Casts in the forward pass; weights, gradients and logits stay float32.
            amp.init()
        mx.random.seed(config.seed)

    def hold(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns arrays on the device."""
        images = batch["images"].transpose(0, 3, 1, 2)
        return {name: self._array(each) for name, each in (batch | {"images": images}).items()}

    def _array(self, array: Any) -> Any:
        import mxnet as mx

        held = isinstance(array, mx.nd.NDArray)
        return array if held else mx.nd.array(array, ctx=self._context)

    def build(self, plan: Run, *, jit: bool) -> None:  # noqa: ARG002 - refused by Config
        """Makes network and optimizer."""
        import mxnet as mx

        self._plan = plan
        self._network = gluon.build(plan.model, plan.image_size, plan.num_classes, self._context)
        parameters = self._network.collect_params().values()
        self._weights = [each for each in parameters if each.grad_req != "null"]
        self._statistics = [each for each in parameters if each.grad_req == "null"]
        # The loss is a mean over this rank's images, and gradients come as sums over the ranks:
        # MXNet's optimizers divide by what they are told, and by nothing else.
        self._optimizer = mx.optimizer.create(
            "nag" if plan.nesterov else "sgd",
            momentum=plan.momentum,
            wd=plan.weight_decay,
            rescale_grad=1 / (self.comm.world.size * plan.loss_scale),
        )
        flat = [number for number, each in enumerate(self._weights) if not _decays(each)]
        self._optimizer.set_wd_mult(dict.fromkeys(flat, 0.0))
        self._slots = [
            self._optimizer.create_state(number, each.data())
            for number, each in enumerate(self._weights)
        ]

    def _groups(self) -> list[list[Any]]:
        """Returns weights, statistics and momenta."""
        weights = [each.data() for each in self._weights]
        statistics = [each.data() for each in self._statistics]
        return [weights, statistics, [slot for slot in self._slots if slot is not None]]

    def values(self) -> list[Any]:
        """Returns all variables as arrays."""
        return [array.asnumpy() for group in self._groups() for array in group]

    def assign(self, values: Sequence[Any], *, only_model: bool) -> None:
        """Sets all variables, or the model's."""
        *model, slots = self._groups()
        arrays = [
            array for group in ([*model] if only_model else [*model, slots]) for array in group
        ]
        for array, value in zip(arrays, values, strict=not only_model):
            array[:] = value

    def share(self) -> None:
        """Sets all variables to what they are on rank 0."""
        # Momenta have the shapes of the weights, and servers need room for one of both.
        for group, what in zip(self._groups(), ("weight", "statistic", "weight"), strict=True):
            self.comm.broadcast(group, what)

    def average_statistics(self) -> None:
        """Sets the statistics of batch norms to their mean over the ranks."""
        self.comm.average([each.data() for each in self._statistics], "statistic")

    def step(
        self,
        number: int,  # noqa: ARG002 - nothing in these networks is random
        batch: dict[str, Any],
        rate: float,
        *,
        asks: bool,
    ) -> tuple[Any, Any]:
        """Makes a step; both results are arrays."""
        import mxnet as mx

        plan = self._plan
        with mx.autograd.record():
            loss = self._loss(**{name: self._array(each) for name, each in batch.items()})
            scaled = loss * plan.loss_scale
        scaled.backward()
        weights = [each.data() for each in self._weights]
        gradients = [each.grad() for each in self._weights]
        self.comm.add_up(gradients, "weight")
        decaying = [each.data() for each in self._weights if _decays(each)]
        squares = mx.nd.multi_sum_sq(*decaying, num_arrays=len(decaying)).sum()
        values = mx.nd.concat(loss, loss + plan.weight_decay / 2 * squares, dim=0)
        # float16 overflows now and then. The sum then overflows on every rank, and all skip the
        # step. To look waits for the device, as MXNet's own loss scaler does.
        if plan.loss_scale == 1.0 or _are_finite(gradients):
            self._optimizer.set_learning_rate(rate)
            for nth, each in enumerate(zip(weights, gradients, self._slots, strict=True)):
                self._optimizer.update(nth, *each)
        asking = self._array([float(asks)])
        self.comm.add_up([asking], "asking")
        return values, asking

    def _loss(self, images: Any, class_index: Any, mask: Any) -> Any:
        """Returns the mean cross entropy of the images that are there, [1]."""
        import mxnet as mx

        share = self._plan.label_smoothing
        logs = mx.nd.log_softmax(self._network(images).astype("float32"))
        losses = (share - 1) * mx.nd.pick(logs, class_index) - share * logs.mean(axis=1)
        return (losses * mask).sum() / mx.nd.maximum(mask.sum(), 1)

    def logits(self, images: Any) -> Any:
        """Returns the network's answers."""
        return self._network(self._array(images)).asnumpy()

    def export(self, path: Path) -> None:
        """Writes a folder with model-symbol.json and model-0000.params."""
        import numpy as np

        # Gluon writes what it has computed once.
        self.logits(np.zeros((1, 3, self._plan.image_size, self._plan.image_size), np.float32))
        path.mkdir(parents=True, exist_ok=True)
        self._network.export(str(path / "model"))


def _are_finite(arrays: list[Any]) -> bool:
    import mxnet as mx

    # A GPU takes at most 200 arrays at once.
    parts = [arrays[first : first + 200] for first in range(0, len(arrays), 200)]
    return all(mx.nd.multi_all_finite(*part, num_arrays=len(part)).asscalar() for part in parts)


def _decays(parameter: Any) -> bool:
    return len(parameter.shape) > 1
