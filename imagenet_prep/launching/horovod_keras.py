"""Makes Horovod average over the ranks with Keras 3.

`horovod_source.mend` copies this module into Horovod, as `horovod/_keras/keras_3.py`. Horovod
0.28.1 changes methods of Keras 2 that Keras 3 does not have, so its optimizer averages nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


def is_keras_3(keras: Any) -> bool:
    """Returns whether the module is Keras 3; `tf.keras` can also be the package tf_keras."""
    return str(keras.__version__).startswith("3.")


def unwrapped(variables: Sequence[Any]) -> list[Any]:
    """Returns TensorFlow's variables; each Keras 3 variable is replaced by the one it holds."""
    tensorflow_variables = []
    for variable in variables:
        held = getattr(variable, "value", None)
        tensorflow_variables.append(held if isinstance(held, tf.Variable) else variable)
    return tensorflow_variables


def distribute(
    keras: Any,
    optimizer: Any,
    allreduce: Callable[[list[Any], list[Any]], list[Any]],
    backward_passes_per_step: int,
) -> Any:
    """Returns the optimizer, which from now on averages gradients before it applies them.

    The class of the optimizer stays the same, so that a saved model opens without Horovod.

    Args:
      keras: the module of Keras 3.
      optimizer: a Keras 3 optimizer.
      allreduce: returns the averages of gradients; its arguments are the gradients and variables.
      backward_passes_per_step: must be 1.

    Raises:
      ValueError: Keras' backend is not TensorFlow, the optimizer averages already, or
        `backward_passes_per_step` is not 1.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"hvd.DistributedOptimizer: Keras' backend is {keras.config.backend()}, expected "
            "tensorflow. Set KERAS_BACKEND=tensorflow."
        )
    if backward_passes_per_step != 1:
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step}: expected 1. With Keras 3, pass "
            "gradient_accumulation_steps to the optimizer, which averages over these steps."
        )
    if "apply" in vars(optimizer):
        raise ValueError("hvd.DistributedOptimizer: this optimizer is distributed already.")
    apply = optimizer.apply

    def apply_averages(grads: Sequence[Any], trainable_variables: Any = None) -> None:
        _refuse_condition()
        variables = trainable_variables
        if variables is None:
            variables = optimizer._trainable_variables
        apply(allreduce(list(grads), unwrapped(variables)), trainable_variables)

    optimizer.apply = apply_averages
    return optimizer


def _refuse_condition() -> None:
    """Raises ValueError inside tf.cond: ranks on different branches would wait for each other.

    Keras puts an optimizer into LossScaleOptimizer if the policy is mixed_float16. That optimizer
    applies gradients only if this rank's gradients are finite.
    """
    if type(tf.compat.v1.get_default_graph()).__name__ == "CondBranchFuncGraph":
        raise ValueError(
            "hvd.DistributedOptimizer: LossScaleOptimizer skips steps of single ranks. Write "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), so that "
            "all ranks skip the same steps."
        )


def load_model(
    keras: Any,
    distributed: Callable[[Any], Any],
    filepath: Any,
    custom_objects: Mapping[str, Any] | None,
) -> Any:
    """Returns a saved model; its optimizer keeps its state, and averages gradients."""
    model = keras.models.load_model(filepath, custom_objects=custom_objects)
    if model.optimizer is not None:
        distributed(model.optimizer)
    return model


class BroadcastGlobalVariablesCallbackImpl:
    """Sends the root rank's weights and optimizer state to all ranks before the first step.

    If the model is built in the first step, they are sent after this step.
    """

    def __init__(self, backend: Any, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_variables: list[Any] = []

    def register_local_var(self, variable: Any) -> None:
        """Excludes a variable."""
        self._local_variables += unwrapped([variable])

    def set_model(self, model: Any) -> None:
        """Also turns off XLA for the model."""
        super().set_model(model)  # type: ignore[misc]
        _turn_off_xla(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Sends the variables of a model that is built."""
        model: Any = self.model  # type: ignore[attr-defined]
        if not model.built:
            return
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._broadcast()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sends the variables of a model that was built in the first step."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        model: Any = self.model  # type: ignore[attr-defined]
        local = {id(variable) for variable in self._local_variables}
        variables = unwrapped([*model.variables, *model.optimizer.variables])
        sent = [variable for variable in variables if id(variable) not in local]
        with tf.device(self.device):
            hvd.broadcast_variables(sent, root_rank=self.root_rank)
        self.broadcast_done = True


class MetricAverageCallbackImpl:
    """Replaces the metrics of an epoch by their averages over all ranks."""

    def __init__(self, backend: Any, device: str = "") -> None:
        super().__init__()
        self.device = device

    def set_model(self, model: Any) -> None:
        """Also turns off XLA for the model."""
        super().set_model(model)  # type: ignore[misc]
        _turn_off_xla(model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages in the order of the names, which is the same on all ranks."""
        if logs is None:
            return
        with tf.device(self.device):
            for name in sorted(logs):
                value = tf.constant(logs[name], tf.float32)
                logs[name] = float(hvd.allreduce(value, op=hvd.Average, name=f"metric.{name}"))


class LearningRateScheduleCallbackImpl:
    """Sets the learning rate to `initial_lr` times `multiplier`, a number or function of the epoch.

    Momentum is not corrected, because Keras 3 reads the momentum only when it traces a step.
    """

    def __init__(
        self,
        backend: Any,
        initial_lr: float | None,
        multiplier: Any,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.multiplier = multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0

    def _learning_rate(self) -> Any:
        return self.model.optimizer.learning_rate  # type: ignore[attr-defined]

    def on_train_begin(self, logs: Any = None) -> None:
        """Reads the defaults: the optimizer's learning rate, and the steps of `fit`."""
        if self.initial_lr is None:
            self.initial_lr = float(self._learning_rate())
        if self.steps_per_epoch is None:
            self.steps_per_epoch = self.params.get("steps")  # type: ignore[attr-defined]
        if self.steps_per_epoch is None and not self.staircase:
            raise ValueError(
                f"{type(self).__name__}: the number of steps is unknown. Pass steps_per_epoch."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate of a step, or only of an epoch if `staircase` is True."""
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over or (self.staircase and batch):
            return
        epoch = float(self.current_epoch)
        if not self.staircase:
            assert self.steps_per_epoch is not None
            epoch += batch / self.steps_per_epoch
        assert self.initial_lr is not None
        self.model.optimizer.learning_rate = self.initial_lr * self._factor(epoch)  # type: ignore[attr-defined]

    def _factor(self, epoch: float) -> float:
        if callable(self.multiplier):
            return float(self.multiplier(epoch))
        return float(self.multiplier ** (epoch - self.start_epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the metrics."""
        if logs is not None:
            logs["lr"] = float(self._learning_rate())


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    """Raises the learning rate from `initial_lr` / ranks to `initial_lr` in the first epochs."""

    def __init__(
        self,
        backend: Any,
        initial_lr: float | None,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            done = (epoch + 1 / self.steps_per_epoch) / warmup_epochs
            return float((1 + done * (hvd.size() - 1)) / hvd.size())

        super().__init__(
            backend,
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Also reports the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        assert self.end_epoch is not None
        if epoch == self.end_epoch - 1 and self.verbose > 0 and hvd.rank() == 0:
            rate = float(self._learning_rate())
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _turn_off_xla(model: Any) -> None:
    """XLA cannot compile Horovod's sums, but Keras 3 uses XLA by default on GPUs."""
    if model.jit_compile:
        warnings.warn("Horovod does not support XLA: jit_compile is set to False", stacklevel=3)
        model.jit_compile = False
