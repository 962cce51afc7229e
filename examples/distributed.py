"""Trains the network of single.py on any number of ranks, with the changes of docs/own-script.md.

imagenet-prep launch -np 2 -- python examples/distributed.py --data-dir /data/set --batch-size 16
"""

import argparse
import json

import horovod.tensorflow as hvd  # 1
import keras
import tensorflow as tf

from imagenet_prep.read import make_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--image-size", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", default="model.keras")
flags = parser.parse_args()

hvd.init()  # 1
gpus = tf.config.list_physical_devices("GPU")  # 2
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)


def reader(split):  # 3
    """Returns this rank's batches of a split; the rank comes from the environment."""
    return make_dataset(flags.data_dir, split, flags.batch_size, flags.image_size, backend="tfdata")


train = reader("train")
validation = reader("validation")
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.Input((flags.image_size, flags.image_size, 3)),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(train.num_classes),
    ]
)
weights = [variable.value for variable in model.trainable_variables]
optimizer = keras.optimizers.SGD(flags.learning_rate * hvd.size(), momentum=0.9)  # 4


@tf.function
def step(images, labels):
    """Trains on a batch and returns its loss."""
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    tape = hvd.DistributedGradientTape(tape)  # 5
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def count(images, labels, mask):
    """Returns the number of correctly classified images of a batch, and the number of images."""
    right = tf.equal(tf.argmax(model(images, training=False), 1, tf.int32), labels)
    return tf.reduce_sum(tf.cast(tf.stack([right & mask, mask]), tf.float32), 1)


hvd.broadcast_variables(weights, root_rank=0)  # 6
for epoch in range(flags.epochs):
    losses = [step(batch["images"], batch["class_index"]) for batch in train]
    loss = hvd.allreduce(tf.reduce_mean(losses), op=hvd.Average)  # 7
    counted = tf.add_n([count(b["images"], b["class_index"], b["mask"]) for b in validation])
    right, seen = hvd.allreduce(counted, op=hvd.Sum)  # 7
    row = {"epoch": epoch, "loss": float(loss), "top1": float(right / seen), "images": int(seen)}
    if hvd.rank() == 0:  # 8
        print(json.dumps(row), flush=True)
if hvd.rank() == 0:  # 8
    model.save(flags.out)
