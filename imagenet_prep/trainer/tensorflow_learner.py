"""The TensorFlow learner: a Keras model, our optimizer and Horovod.

`TensorFlowLearner` trains one rank.

`build` returns Keras models: ResNets for ImageNet, and small networks for CIFAR-10, MNIST, demos
and tests.

`Optimizer` has SGD, Adam, RMSprop, and LARS and LARC with a rate for each layer. Keras' optimizers
lack LARS and LARC, and do not add L2 weight decay to the gradient.
"""

from __future__ import annotations

import functools
import math
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from imagenet_prep.dataset import schema
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import complete_file, storage_errors, sync
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.comm import Comm, Horovod, cores, launched, require_gpus
from imagenet_prep.trainer.config import TrainConfig, residual_blocks
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.recipe import Run, decays

# Batch norm constants of ResNet-50 v1.5 (Sandler, Goyal).
_BN_MOMENTUM = 0.9
_BN_EPSILON = 1e-5


def build(name: str, image_size: int, num_classes: int) -> Any:
    """Returns a Keras model: [batch, size, size, 3] normalised images -> float32 logits.

    Kernels are initialised as in He et al. 2015 (MSRA). The last batch norm of each residual block
    starts with gamma 0, so that the block starts as its shortcut (Goyal et al. 2017).

    "resnet18" and "resnet34" have plain blocks. "resnet50", "resnet101" and "resnet152" have
    bottlenecks with the stride in the 3x3 convolution (v1.5); with the suffix "-v1", the stride is
    in the first 1x1 convolution, as in He et al. "tiny" has plain blocks and 0.08 million weights.
    "cifar" is the VGG-like network of the SageMaker guide; it needs images of 22 pixels or more.
    "mnist" has two convolutions.
    """
    images = keras.Input((image_size, image_size, 3), name="images")
    if name == "cifar":
        x = _cifar(images)
    elif name == "mnist":
        x = _mnist(images)
    else:
        x = _resnet(images, name)
        x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dense(
        num_classes, kernel_initializer=keras.initializers.RandomNormal(stddev=0.01), name="classes"
    )(x)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name=name)


def with_interface(network: Any, interface: Interface) -> Any:
    """Returns a Keras model for deployment: [batch, size, size, 3] -> [batch, classes] float32.

    The input is RGB from 0 to 255, the output probabilities. The layer `network.name` is the
    trained network, from normalised images to logits.
    """
    images = keras.Input(network.input_shape[1:], name="images")
    scale = [1 / std for std in interface.std]
    offset = [-mean / std for mean, std in zip(interface.mean, interface.std, strict=True)]
    x = keras.layers.Rescaling(scale, offset, dtype="float32", name="normalised")(images)
    x = keras.layers.Softmax(dtype="float32", name="probabilities")(network(x))
    return keras.Model(images, x, name=f"{network.name}_with_interface")


def dropout_seeds(network: Any) -> list[Any]:
    """Returns each dropout layer's seed: a [2] int64 variable that determines the next mask."""
    layers = [layer for layer in network.layers if isinstance(layer, keras.layers.Dropout)]
    return [layer.seed_generator.state.value for layer in layers]


def _resnet(x: Any, name: str) -> Any:
    """Applies a ResNet whose layers have torchvision's names."""
    if name == "tiny":
        stride = 2 if x.shape[1] >= 48 else 1  # halve large images, to limit their cost
        x = _batch_norm(_convolution(x, 16, 3, stride, "conv1"), "bn1", relu=True)
    else:
        x = _batch_norm(_convolution(x, 64, 7, 2, "conv1"), "bn1", relu=True)
        x = keras.layers.ZeroPadding2D(1)(x)
        x = keras.layers.MaxPooling2D(3, 2)(x)
    for block, convolutions in residual_blocks(name):
        x = _block(x, block, *convolutions)
    return x


def _cifar(x: Any) -> Any:
    """Applies the network of `get_model` in the SageMaker guide's model_def.py."""
    for stage, (filters, dropped) in enumerate(((32, 0.2), (64, 0.3), (128, 0.4))):
        for number, padding in enumerate(("same", "valid")):
            called = f"{stage}.{number}"
            x = keras.layers.Conv2D(filters, 3, padding=padding, name=f"conv{called}")(x)
            x = _batch_norm(x, f"bn{called}", relu=True)
        x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.Dropout(dropped)(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(512, activation="relu", name="hidden")(x)
    return keras.layers.Dropout(0.5)(x)


def _mnist(x: Any) -> Any:
    """Applies a network as small as LeNet-5 (LeCun et al. 1998), for fast epochs on a CPU."""
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 5, activation="relu", name=f"conv{filters}")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(128, activation="relu", name="hidden")(x)
    return keras.layers.Dropout(0.5)(x)


def _block(x: Any, name: str, *convolutions: tuple[int, int, int]) -> Any:
    """Applies a residual block of convolutions, each as (filters, size, stride)."""
    width = convolutions[-1][0]
    stride = math.prod(stride for _, _, stride in convolutions)
    shortcut = x
    if stride > 1 or x.shape[-1] != width:
        shortcut = _convolution(x, width, 1, stride, f"{name}.downsample.0")
        shortcut = _batch_norm(shortcut, f"{name}.downsample.1")
    for number, convolution in enumerate(convolutions, start=1):
        x = _convolution(x, *convolution, f"{name}.conv{number}")
        if number < len(convolutions):
            x = _batch_norm(x, f"{name}.bn{number}", relu=True)
    x = _batch_norm(x, f"{name}.bn{len(convolutions)}", gamma="zeros")
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def _convolution(x: Any, filters: int, size: int, stride: int, name: str) -> Any:
    # TensorFlow's "same" padding is asymmetric for stride 2; published weights need symmetry.
    if size > 1:
        x = keras.layers.ZeroPadding2D((size - 1) // 2)(x)
    return keras.layers.Conv2D(
        filters,
        size,
        stride,
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "truncated_normal"),
        name=name,
    )(x)


def _batch_norm(x: Any, name: str, *, relu: bool = False, gamma: str = "ones") -> Any:
    x = keras.layers.BatchNormalization(
        momentum=_BN_MOMENTUM, epsilon=_BN_EPSILON, gamma_initializer=gamma, name=name
    )(x)
    return keras.layers.ReLU()(x) if relu else x


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
            require_gpus(world.local_rank, len(gpus))
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
        self._model = build(plan.model, plan.image_size, plan.num_classes)
        # Horovod and the optimizer need TensorFlow's variables, not Keras' wrappers.
        self._weights = [v.value for v in self._model.trainable_variables]
        self._statistics = [v.value for v in self._model.non_trainable_weights]
        variables = (*self._model.trainable_variables, *self._model.non_trainable_weights)
        self._names = [variable.path for variable in variables]
        self._dropouts = dropout_seeds(self._model)
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
        exported = with_interface(self._model, interface)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".keras":
            with (
                storage_errors("export", path),
                tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as private,
            ):
                partial = Path(private) / path.name
                exported.save(partial)
                with zipfile.ZipFile(partial, "a") as file:
                    file.writestr(schema.LABELS, interface.classes)
                sync(partial)
                LocalStore(path.parent).publish(partial, path.name)
        else:
            exported.export(path, verbose=False)
            with complete_file(path / schema.LABELS, None) as file:
                file.write(interface.classes.encode())
            with storage_errors("export", path):
                sync(path)
