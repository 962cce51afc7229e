"""The TensorFlow learner: a Keras model, our optimizer and Horovod."""

from __future__ import annotations

import functools
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from imagenet_prep.dataset import naming
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.new_file import complete_file, sync
from imagenet_prep.trainer import model, recipe
from imagenet_prep.trainer.comm import Comm, Horovod, check_gpus, cores, launched
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.optimizer import Optimizer
from imagenet_prep.trainer.recipe import Run

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
_FAST_HALF = (7, 0)  # compute capability of Volta, NVIDIA's first with tensor cores


class TensorFlowLearner(Learner):
    """A rank that trains with TensorFlow."""

    def __init__(self, config: TrainConfig) -> None:
        world = launched()
        self.comm = Comm()
        if world.size > 1:
            self.comm = Horovod(world, fp16_compression=config.fp16_compression)
            world = self.comm.world
        self.versions = {"TensorFlow": tf.__version__} | self.comm.versions
        gpus = tf.config.list_physical_devices("GPU")
        own_gpu = gpus[world.local_rank : world.local_rank + 1]
        details = [tf.config.experimental.get_device_details(gpu) for gpu in own_gpu]
        self.fast_half = any(d.get("compute_capability", (0, 0)) >= _FAST_HALF for d in details)
        self._precision = recipe.precision(config, fast_half=self.fast_half)
        if gpus:
            check_gpus(world.local_rank, len(gpus))
            tf.config.set_visible_devices(own_gpu, "GPU")
            tf.config.experimental.set_memory_growth(own_gpu[0], True)
        elif world.local_size > 1:
            tf.config.threading.set_intra_op_parallelism_threads(cores(world))
        keras.config.set_dtype_policy(_POLICIES[self._precision])
        keras.utils.set_random_seed(config.seed)

    def hold(self, batch: Batch) -> Batch:
        """Returns the batch as TensorFlow tensors."""
        dtype = "bfloat16" if self._precision == "bfloat16" else "float32"
        tensors = {name: tf.constant(array) for name, array in batch.items()}
        return tensors | {"images": tf.cast(tensors["images"], dtype)}

    def build(self, plan: Run, *, jit: bool) -> None:
        """Builds model and optimizer; `jit` compiles the forward and backward passes with XLA."""
        self._plan = plan
        self._model = model.build(plan.model, plan.image_size, plan.num_classes)
        # Horovod and the optimizer need TensorFlow's variables, not Keras' wrappers.
        self._weights = [v.value for v in self._model.trainable_variables]
        self._statistics = [v.value for v in self._model.non_trainable_weights]
        variables = (*self._model.trainable_variables, *self._model.non_trainable_weights)
        self._names = [variable.path for variable in variables]
        self._dropouts = model.dropout_seeds(self._model)
        self._optimizer = Optimizer(plan, self._weights)
        self._variables = [*self._weights, *self._statistics, *self._optimizer.slots]
        self._cross_entropy = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=plan.label_smoothing, reduction="none"
        )
        # XLA also compiles the backward pass of a compiled function. The sum over the ranks stays
        # outside, since XLA does not support Horovod's operation. Without AutoGraph, which would
        # translate Python's `if` and `for`, tracing takes a second less.
        traced = functools.partial(tf.function, autograph=False)
        self._forward = traced(self._loss, jit_compile=True) if jit else self._loss
        self._traced_step = traced(self._move)
        self._logits = traced(lambda images: self._model(images, training=False))

    def values(self) -> list[Any]:
        """Returns all variables as NumPy arrays."""
        return [variable.numpy() for variable in self._variables]

    def assign(self, values: Sequence[Any]) -> None:
        """Sets all variables, or only the model's, to `values`."""
        for variable, value in zip(self._variables, values, strict=False):
            variable.assign(value)

    def step(self, number: int, batch: Batch, rate: float, *, asks: bool) -> tuple[Any, Any]:
        """Runs one step; dropout masks depend only on seed, step and rank."""
        world = self.comm.world
        for nth, seed in enumerate(self._dropouts):
            seed.assign([self._plan.seed + (nth << 32), number * world.size + world.rank])
        inputs = batch["images"], batch["class_index"], batch["mask"]
        numbers = tf.constant(rate), tf.constant(float(asks))
        result: tuple[Any, Any] = self._traced_step(*inputs, *numbers)
        return result

    def _loss(self, images: Any, class_index: Any, mask: Any) -> Any:
        """Returns mean cross entropy and accuracy of the images in the mask."""
        logits = self._model(images, training=True)
        losses = self._cross_entropy(tf.one_hot(class_index, self._plan.num_classes), logits)
        weights = tf.cast(mask, tf.float32)
        hits = tf.equal(tf.argmax(logits, 1, tf.int32), tf.cast(class_index, tf.int32))
        number = tf.maximum(tf.reduce_sum(weights), 1.0)
        accuracy = tf.reduce_sum(tf.cast(hits, tf.float32) * weights) / number
        return tf.reduce_sum(losses * weights) / number, accuracy

    def _move(self, images: Any, class_index: Any, mask: Any, rate: Any, asks: Any) -> Any:
        """Runs one step; returns [loss, total loss, accuracy], and how many ranks ask to stop."""
        plan = self._plan
        with tf.GradientTape() as tape:
            loss, accuracy = self._forward(images, class_index, mask)
            scaled = loss * plan.loss_scale
        gradients = self.comm.tape(tape).gradient(scaled, self._weights)
        gradients = [gradient / plan.loss_scale for gradient in gradients]
        total = loss + self._optimizer.regularizer()
        if plan.precision != "float16":
            self._optimizer.apply(gradients, rate)
        else:
            # If a gradient overflows on one rank, the mean overflows on all, and all skip the step.
            sound = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
            tf.cond(sound, lambda: self._optimizer.apply(gradients, rate), lambda: None)
        return tf.stack([loss, total, accuracy]), self.comm.sum(asks)

    def logits(self, images: Any) -> Any:
        """Returns the model's logits."""
        return self._logits(images).numpy()

    def export(self, path: Path, interface: Interface) -> None:
        """Writes FILE.keras, or a SavedModel folder; both contain labels.txt."""
        exported = model.with_interface(self._model, interface)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".keras":
            with (
                storage_errors("export", path),
                tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as private,
            ):
                partial = Path(private) / path.name
                exported.save(partial)
                with zipfile.ZipFile(partial, "a") as file:
                    file.writestr(naming.LABELS, interface.classes)
                sync(partial)
                LocalStore(path.parent).publish(partial, path.name)
        else:
            exported.export(path, verbose=False)
            with complete_file(path / naming.LABELS, None) as file:
                file.write(interface.classes.encode())
            with storage_errors("export", path):
                sync(path)
