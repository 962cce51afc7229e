"""The optimizers of `trainer.optimizer` in PyTorch, with one GPU operation for all variables.

PyTorch lacks LARS and LARC, and its Adam and RMSprop add epsilon at a different point than Keras.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from imagenet_prep.trainer.recipe import Run, decays

_FIRST_DECAY = 0.9
_SECOND_DECAY = 0.999
_EPSILON = 1e-7


class Optimizer:
    """Updates float32 variables with averaged gradients; for `slots`, see `trainer.optimizer`."""

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
