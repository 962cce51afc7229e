"""The SageMaker guide's eight changes to a Keras script, in its order and with its calls.

    keras_guide.py LEARNING_RATE BATCH_SIZE EPOCHS OUT

TensorFlow has renamed some functions since 2018; these have their current names. Rank 0 writes OUT.
"""

import json
import sys

# Change 1: import Horovod and Keras' backend.
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K  # noqa: F401, N812 - as printed

# Change 8: hyperparameters are arguments.
lr = float(sys.argv[1])
batch_size = int(sys.argv[2])
epochs = int(sys.argv[3])
out = sys.argv[4]

# Change 2: initialise Horovod, get the number of ranks.
hvd.init()
size = hvd.size()

# Change 3: one GPU per process.
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# Each rank has different initial weights, of which only those of rank 0 may be used.
tf.keras.utils.set_random_seed(100 + hvd.rank())
model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((8,)),
        tf.keras.layers.Dense(16, activation="tanh"),
        tf.keras.layers.Dense(4, activation="softmax"),
    ]
)

# Change 4: multiply the learning rate by the number of ranks.
opt = tf.keras.optimizers.SGD(learning_rate=lr * size, momentum=0.9)

# Change 5: wrap the optimizer.
opt = hvd.DistributedOptimizer(opt)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

# Change 6: send the initial state, average the metrics, save only on rank 0.
callbacks = []
callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(0))
callbacks.append(hvd.callbacks.MetricAverageCallback())
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(out + ".keras"))

images = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
labels = images[:, :4].argmax(1)
mine = np.arange(256).reshape(-1, size, batch_size)[:, hvd.rank()].ravel()

# Change 7: divide the steps of an epoch by the number of ranks.
history = model.fit(
    images[mine],
    labels[mine],
    batch_size=batch_size,
    steps_per_epoch=256 // batch_size // size,
    epochs=epochs,
    shuffle=False,
    callbacks=callbacks,
    verbose=0,
)

weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
told = {
    "rank": hvd.rank(),
    "weights": weights.tolist(),
    "loss": history.history["loss"],
    "accuracy": history.history["accuracy"],
}
print("TOLD", json.dumps(told), flush=True)
