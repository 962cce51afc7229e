"""Trains with each form of Horovod's Keras functions, on the ranks of this launch.

    keras_cases.py FOLDER

Rank 0 writes into FOLDER. For each case, it prints a number that must be the same on all ranks, or
the error.
"""

import json
import sys
import warnings
from pathlib import Path

import horovod.keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras
import keras
import numpy as np
import tensorflow as tf

folder = Path(sys.argv[1])
hvd.init()
random = np.random.default_rng(hvd.rank())
images = random.normal(size=(64, 8)).astype("float32")
labels = random.normal(size=(64, 4)).astype("float32")
told = {}


def network(**options):
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Input((8,)), keras.layers.Dense(4, **options)]
    return keras.Sequential(layers)


def trained(model, *callbacks, epochs=2):
    return model.fit(images, labels, epochs=epochs, batch_size=16, callbacks=callbacks, verbose=0)


def total(model):
    return float(np.abs(np.concatenate([w.ravel() for w in model.get_weights()])).sum())


def broadcast(kind=horovod.keras):
    return kind.callbacks.BroadcastGlobalVariablesCallback(0)


def errors(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def of_optimizers():
    for kind in (horovod.keras, horovod.tensorflow.keras, hvd):
        for optimizer in (keras.optimizers.Adam(0.1), keras.optimizers.RMSprop(0.1)):
            model = network()
            model.compile(kind.DistributedOptimizer(optimizer), "mse")
            trained(model, broadcast())
            told[f"{kind.__name__} {type(optimizer).__name__}"] = total(model)


def of_options():
    model = network()
    compressed = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=hvd.Compression.fp16
    )
    model.compile(compressed, "mse", run_eagerly=True)
    trained(model, broadcast())
    told["float16 and eager"] = total(model)

    model = keras.Sequential([keras.layers.Dense(4)])  # built by the first batch
    keras.utils.set_random_seed(hvd.rank())
    summed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), op=hvd.Sum)
    model.compile(summed, "mse")
    trained(model, broadcast())
    told["sum, built late"] = total(model)

    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model = network()
    model.compile(hvd.DistributedOptimizer(accumulating), "mse")
    trained(model, broadcast())
    told["accumulation"] = total(model)


def of_float16():
    model = network(dtype="mixed_float16")
    inner = keras.optimizers.SGD(0.1)
    scaled = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(inner))
    model.compile(scaled, "mse")
    if hvd.rank() == 1:
        images[0] = np.inf  # the gradients of this step are not finite on one rank
    trained(model, broadcast())
    images[0] = 0
    told["skipped steps"] = total(model)

    outer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model = network()
    model.compile(outer, "mse")
    told["error of a scaled optimizer"] = errors(lambda: trained(model))


def of_saving():
    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse")
    trained(model, broadcast())
    path = folder / f"{hvd.rank()}.keras"
    model.save(path)
    told["class without Horovod"] = type(keras.models.load_model(path).optimizer).__name__
    again = horovod.keras.load_model(path)
    momenta = [v.numpy() for v in again.optimizer.variables]
    told["loaded state"] = float(sum(np.abs(value).sum() for value in momenta))
    trained(again)
    told["loaded and trained"] = total(again)


def of_a_loop():
    model = network()
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(3):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((model(images) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    told["loop"] = total(model)


def of_rates():
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)), "mse")
    rates = []

    def note(batch, logs):
        rates.append(round(float(model.optimizer.learning_rate), 6))

    noting = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    warmup = horovod.keras.callbacks.LearningRateWarmupCallback(warmup_epochs=2, verbose=1)
    later = horovod.keras.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2)
    history = trained(model, broadcast(), warmup, later, noting, epochs=4)
    told["rates"] = rates
    told["logged rates"] = [round(rate, 6) for rate in history.history["lr"]]


def of_metrics():
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    hvd.broadcast_variables(model.variables, root_rank=0)
    own = float(model.evaluate(images, labels, verbose=0))
    average = horovod.keras.callbacks.MetricAverageCallback()
    history = model.fit(
        images,
        labels,
        validation_data=(images, labels),
        callbacks=[average],
        verbose=0,
    ).history
    mean = float(hvd.allreduce(tf.constant(own), op=hvd.Average))
    told["metrics"] = [abs(history[name][0] - mean) < 1e-4 for name in ("loss", "val_loss")]
    told["metrics differ"] = abs(own - mean) > 1e-3


def of_local_variables():
    model = network()
    bias = model.layers[0].bias.value
    bias.assign_add(tf.fill([4], float(hvd.rank())))
    kept = horovod.keras.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[bias])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    trained(model, kept, epochs=1)
    told["kernel"] = float(np.abs(model.get_weights()[0]).sum())
    told["local bias is kept"] = model.get_weights()[1].tolist() == [float(hvd.rank())] * 4


def of_refusals():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    told["error of a second time"] = errors(lambda: hvd.DistributedOptimizer(optimizer))
    told["error of several passes"] = errors(
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    )
    model = network()
    model.compile(optimizer, "mse", jit_compile=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(model, broadcast())
    told["warnings"] = [str(w.message) for w in caught if "XLA" in str(w.message)]
    told["without XLA"] = total(model)


for work in (
    of_optimizers,
    of_options,
    of_float16,
    of_saving,
    of_a_loop,
    of_rates,
    of_metrics,
    of_local_variables,
    of_refusals,
):
    work()
print("TOLD", json.dumps(told), flush=True)
