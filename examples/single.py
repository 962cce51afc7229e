"""Trains a small network on a prepared dataset in one process.

python examples/single.py --data-dir /data/set --image-size 64 --epochs 3
"""

import argparse
import json

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


def reader(split):
    """Returns the batches of a split."""
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
optimizer = keras.optimizers.SGD(flags.learning_rate, momentum=0.9)


@tf.function
def step(images, labels):
    """Trains on a batch and returns its loss."""
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def count(images, labels, mask):
    """Returns the number of correctly classified images of a batch, and the number of images."""
    right = tf.equal(tf.argmax(model(images, training=False), 1, tf.int32), labels)
    return tf.reduce_sum(tf.cast(tf.stack([right & mask, mask]), tf.float32), 1)


for epoch in range(flags.epochs):
    losses = [step(batch["images"], batch["class_index"]) for batch in train]
    loss = tf.reduce_mean(losses)
    counted = tf.add_n([count(b["images"], b["class_index"], b["mask"]) for b in validation])
    right, seen = counted
    row = {"epoch": epoch, "loss": float(loss), "top1": float(right / seen), "images": int(seen)}
    print(json.dumps(row), flush=True)
model.save(flags.out)
