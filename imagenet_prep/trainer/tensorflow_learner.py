"""TensorFlow's part of a run: a Keras model, our optimizer, Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.trainer import device, model, recipe
from imagenet_prep.trainer.comm import connect
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.optimizer import Optimizer
from imagenet_prep.trainer.recipe import Run
from imagenet_prep.trainer.step import make_step


class TensorFlowLearner:
    """See `trainer.learner.Learner`."""

    def __init__(self, config: Config) -> None:
        """Meets the other ranks, takes a GPU or cores, and seeds the first weights."""
        device.quieten()
        self.comm = connect(fp16_compression=config.fp16_compression)
        self.fast_half = device.fast_half(self.comm.world)
        self._precision = recipe.precision(config, fast_half=self.fast_half)
        device.settle(self.comm.world, self._precision, config.seed)

    def hold(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns tensors."""
        import tensorflow as tf

        dtype = "bfloat16" if self._precision == "bfloat16" else "float32"
        held = {name: tf.constant(array) for name, array in batch.items()}
        return held | {"images": tf.cast(held["images"], dtype)}

    def build(self, plan: Run, *, jit: bool) -> None:
        """Makes model and optimizer; `jit` compiles both passes with XLA."""
        import tensorflow as tf

        self._model = model.build(plan.model, plan.image_size, plan.num_classes)
        # Horovod, like the optimizer, wants TensorFlow's own variables, not Keras' around them.
        self._weights = [v.value for v in self._model.trainable_variables]
        self._statistics = [v.value for v in self._model.non_trainable_weights]
        self._dropouts = model.dropout_seeds(self._model)
        self._seed = plan.seed
        optimizer = Optimizer(
            plan.optimizer,
            self._weights,
            momentum=plan.momentum,
            nesterov=plan.nesterov,
            weight_decay=plan.weight_decay,
            trust_coefficient=plan.trust_coefficient,
        )
        self._variables = [*self._weights, *self._statistics, *optimizer.slots]
        self._step = make_step(self._model, self._weights, optimizer, self.comm, plan, jit=jit)
        self._logits = tf.function(lambda images: self._model(images, training=False))

    def values(self) -> list[Any]:
        """Returns all variables as arrays."""
        return [variable.numpy() for variable in self._variables]

    def assign(self, values: Sequence[Any], *, only_model: bool) -> None:
        """Sets all variables, or the model's."""
        model_has = len(self._weights) + len(self._statistics)
        variables = self._variables[:model_has] if only_model else self._variables
        for variable, value in zip(variables, values, strict=not only_model):
            variable.assign(value)

    def share(self) -> None:
        """Sets all variables to what they are on rank 0."""
        self.comm.broadcast_variables(self._variables)

    def average_statistics(self) -> None:
        """Sets the statistics of batch norms to their mean over the ranks."""
        self.comm.average_variables(self._statistics)

    def step(
        self, number: int, batch: dict[str, Any], rate: float, *, asks: bool
    ) -> tuple[Any, Any]:
        """Makes a step; what dropouts leave out depends on seed, step and rank alone."""
        import tensorflow as tf

        world = self.comm.world
        for nth, seed in enumerate(self._dropouts):
            seed.assign([self._seed + (nth << 32), number * world.size + world.rank])
        made: tuple[Any, Any] = self._step(
            *(batch["images"], batch["class_index"], batch["mask"]),
            *(tf.constant(rate), tf.constant(float(asks))),
        )
        return made

    def logits(self, images: Any) -> Any:
        """Returns the model's answers."""
        return self._logits(images).numpy()

    def export(self, path: Path) -> None:
        """Writes FILE.keras, or a folder as a SavedModel."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".keras":
            partial = path.with_name(f".{path.name}.partial.keras")
            self._model.save(partial)
            partial.replace(path)
        else:
            self._model.export(path, verbose=False)
