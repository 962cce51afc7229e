"""Trains by Keras' fit in one process, with any Keras backend and without tf.data.

KERAS_BACKEND=jax python examples/with_keras.py --data-dir /data/set --batch-size 64
"""

import argparse
import json

import keras

from imagenet_prep.read import World, make_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--image-size", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", default="model.keras", help="file; its name ends with .keras")
flags = parser.parse_args()
if not flags.out.endswith(".keras"):
    parser.error(f"--out {flags.out}: Keras saves a model to a file whose name ends with .keras")

if World.from_environment().size > 1:
    # Each rank would train a separate model without an error: see docs/own-script.md.
    raise SystemExit("with_keras.py needs one process: Keras' fit does not average over ranks")


def reader(split):
    """Returns the batches of a split: images, labels and weights; the weight of padding is 0."""
    return make_dataset(
        flags.data_dir,
        split,
        flags.batch_size,
        flags.image_size,
        backend="native",
        as_tuple=True,
    )


def endless(batches):
    """Yields the batches of one epoch after the other, without end."""
    while True:
        yield from batches


class Validation(keras.callbacks.Callback):
    """Evaluates after each epoch with a new generator.

    Keras reads ahead in a generator. If the generator were passed as validation_data, an evaluation
    would lose some batches and count others twice.
    """

    def on_epoch_end(self, _epoch, logs):
        """Adds the results to the logs of the epoch, which later callbacks also read."""
        found = self.model.evaluate(
            iter(validation), steps=len(validation), verbose=0, return_dict=True
        )
        logs |= {f"val_{name}": value for name, value in found.items()}


train = reader("train")
validation = reader("validation")
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((flags.image_size, flags.image_size, 3)),
        keras.layers.Conv2D(16, 3, 2, activation="relu"),
        keras.layers.Conv2D(32, 3, 2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(train.num_classes),
    ]
)
model.compile(
    keras.optimizers.SGD(flags.learning_rate, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)
history = model.fit(
    endless(train),
    steps_per_epoch=len(train),
    epochs=flags.epochs,
    shuffle=False,
    callbacks=[Validation()],
    verbose=0,
)
model.save(flags.out)
for epoch, top1 in enumerate(history.history["val_accuracy"]):
    print(json.dumps({"epoch": epoch, "top1": top1, "images": validation.num_examples}))
