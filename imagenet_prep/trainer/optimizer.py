"""SGD with momentum; LARS and LARC, which scale the learning rate of each layer.

Keras' optimizers are not used: they have no LARS or LARC, and their weight decay is not L2 in the
gradient, as both recipes have it. Gradients come in averaged; the slots are plain variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Optimizer:
    """Moves float32 variables along their averaged gradients.

    Weight decay is L2, added to the gradient before the momentum. Kernels have it; batch norms
    and biases, which have one dimension, do not.

    Attributes:
      slots: the momentum of each variable, in their order.
    """

    def __init__(
        self,
        kind: str,
        variables: Sequence[Any],
        *,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        trust_coefficient: float,
    ) -> None:
        import tensorflow as tf

        self._kind = kind
        self._variables = list(variables)
        self._momentum = momentum
        self._nesterov = nesterov
        self._weight_decay = weight_decay
        self._trust = trust_coefficient
        self.slots = [
            tf.Variable(tf.zeros_like(v), trainable=False, name=f"momentum_{number}")
            for number, v in enumerate(self._variables)
        ]

    def regularizer(self) -> Any:
        """Returns the loss whose gradient the weight decay is: decay / 2 * sum(w^2)."""
        import tensorflow as tf

        # tf.nn.l2_loss halves.
        norms = [tf.nn.l2_loss(variable) for variable in self._variables if _decays(variable)]
        return self._weight_decay * tf.add_n(norms)

    def apply(self, gradients: Sequence[Any], learning_rate: Any) -> None:
        """Makes one step; `gradients` are float32, in the order of the variables."""
        for variable, slot, gradient in zip(self._variables, self.slots, gradients, strict=True):
            if _decays(variable):
                gradient = gradient + self._weight_decay * variable
            gradient = gradient * self._layer_rate(variable, gradient, learning_rate)
            slot.assign(self._momentum * slot + gradient)
            step = gradient + self._momentum * slot if self._nesterov else slot
            variable.assign_sub(learning_rate * step)

    def _layer_rate(self, variable: Any, gradient: Any, learning_rate: Any) -> Any:
        """Returns what multiplies the learning rate for this layer.

        LARS (You et al. 2017) leaves batch norms and biases alone. LARC only ever lowers the
        rate, and as in the tutorial does so for all variables; one that is 0 takes a full step.
        """
        import tensorflow as tf

        if self._kind == "sgd" or (self._kind == "lars" and not _decays(variable)):
            return 1.0
        weights, slope = tf.norm(variable), tf.norm(gradient)
        known = tf.logical_and(weights > 0, slope > 0)
        rate = tf.where(known, self._trust * weights / tf.where(known, slope, 1.0), 1.0)
        return tf.minimum(rate / learning_rate, 1.0) if self._kind == "larc" else rate


def _decays(variable: Any) -> bool:
    return len(variable.shape) > 1
