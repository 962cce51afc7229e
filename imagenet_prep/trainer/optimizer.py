"""TensorFlow optimizers: SGD, Adam, RMSprop, and LARS and LARC with a rate for each layer.

Keras' optimizers lack LARS and LARC, and do not add L2 weight decay to the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from imagenet_prep.trainer.recipe import Run, decays

# Keras' defaults, as in the guide's runs. RMSprop uses the first decay.
_FIRST_DECAY = 0.9
_SECOND_DECAY = 0.999
_EPSILON = 1e-7


class Optimizer:
    """Updates float32 variables with averaged gradients, after adding L2 decay to the gradients.

    `slots` is the state to save: each variable's momentum, or with RMSprop its mean square. For
    Adam, each variable's mean square and the number of steps follow.
    """

    def __init__(self, plan: Run, variables: Sequence[Any]) -> None:
        self._plan, self._kind = plan, plan.optimizer
        self._variables = list(variables)
        like = self._variables * (2 if self._kind == "adam" else 1)
        self._means = [
            tf.Variable(tf.zeros_like(v), trainable=False, name=f"slot_{number}")
            for number, v in enumerate(like)
        ]
        self._steps = tf.Variable(0.0, trainable=False, name="steps")
        self.slots = [*self._means, self._steps] if self._kind == "adam" else self._means

    def regularizer(self) -> Any:
        """Returns the L2 loss of the weight decay: decay / 2 * sum(w^2)."""
        norms = [tf.nn.l2_loss(variable) for variable in self._variables if decays(variable)]
        return self._plan.weight_decay * tf.add_n(norms)  # l2_loss includes the factor 1/2

    def apply(self, gradients: Sequence[Any], learning_rate: Any) -> None:
        """Runs one step; `gradients` are float32, in the order of the variables."""
        if self._kind == "adam":
            self._steps.assign_add(1.0)
        for number, (variable, gradient) in enumerate(zip(self._variables, gradients, strict=True)):
            if decays(variable):
                gradient = gradient + self._plan.weight_decay * variable
            if self._kind == "adam":
                step = self._adam(number, gradient)
            elif self._kind == "rmsprop":
                step = self._rmsprop(number, gradient)
            else:
                gradient = gradient * self._layer_rate(variable, gradient, learning_rate)
                step = self._with_momentum(number, gradient)
            variable.assign_sub(learning_rate * step)

    def _with_momentum(self, number: int, gradient: Any) -> Any:
        slot = self._means[number]
        slot.assign(self._plan.momentum * slot + gradient)
        return gradient + self._plan.momentum * slot if self._plan.nesterov else slot

    def _adam(self, number: int, gradient: Any) -> Any:
        """Returns a step of Adam (Kingma and Ba 2014), with epsilon added as in Keras."""
        mean, square = self._means[number], self._means[number + len(self._variables)]
        mean.assign_add((gradient - mean) * (1 - _FIRST_DECAY))
        square.assign_add((gradient * gradient - square) * (1 - _SECOND_DECAY))
        correction = tf.sqrt(1 - _SECOND_DECAY**self._steps) / (1 - _FIRST_DECAY**self._steps)
        return correction * mean / (tf.sqrt(square) + _EPSILON)

    def _rmsprop(self, number: int, gradient: Any) -> Any:
        """Returns a step of RMSprop (Hinton 2012), as in Keras."""
        square = self._means[number]
        square.assign_add((gradient * gradient - square) * (1 - _FIRST_DECAY))
        return gradient / tf.sqrt(square + _EPSILON)

    def _layer_rate(self, variable: Any, gradient: Any, learning_rate: Any) -> Any:
        """Returns the learning rate factor of this layer."""
        # LARS (You et al. 2017) excludes batch norms and biases. LARC only lowers rates; as in the
        # tutorial, it includes them. A variable that is 0 has the full rate.
        if self._kind == "sgd" or (self._kind == "lars" and not decays(variable)):
            return 1.0
        weights = tf.norm(variable)
        slope = tf.norm(gradient)
        usable = tf.logical_and(weights > 0, slope > 0)
        trust = self._plan.trust_coefficient
        rate = tf.where(usable, trust * weights / tf.where(usable, slope, 1.0), 1.0)
        return tf.minimum(rate / learning_rate, 1.0) if self._kind == "larc" else rate
