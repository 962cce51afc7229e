"""Trains with JAX on all devices, without TensorFlow or DALI; after a kill, it resumes mid-epoch.

python examples/with_jax.py --data-dir /data/set --batch-size 256
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from imagenet_prep.read import World, make_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--image-size", type=int, default=64)
parser.add_argument(
    "--batch-size", type=int, default=32, help="images per step, for all devices of a process"
)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
parser.add_argument("--out", type=Path, default=Path("model.npz"))
flags = parser.parse_args()

# On several hosts, call jax.distributed.initialize() first and start one process per host. Each
# process reads its share. Process 0 writes and reads the checkpoint, so only it needs --out.
world = World(jax.process_index(), jax.process_count(), local_rank=0, local_size=1)
rows = NamedSharding(Mesh(jax.devices(), "rows"), PartitionSpec("rows"))


def reader(split):
    """Returns this process's batches of a split."""
    return make_dataset(
        flags.data_dir, split, flags.batch_size, flags.image_size, backend="native", world=world
    )


def arrays(batch):
    """Returns images, labels and mask of a batch, distributed over the devices."""
    names = ("images", "class_index", "mask")
    return [jax.make_array_from_process_local_data(rows, batch[name]) for name in names]


def logits(weights, images):
    """Returns logits [batch, classes] by two convolutions, a mean over the image and a matrix."""
    for name in ("first", "second"):
        layout = ("NHWC", "HWIO", "NHWC")
        images = jax.lax.conv_general_dilated(
            images, weights[name], (2, 2), "SAME", None, None, layout
        )
        images = jax.nn.relu(images)
    return images.mean((1, 2)) @ weights["head"]


def loss(weights, images, labels):
    """Returns the mean cross-entropy of a batch."""
    scores = jax.nn.log_softmax(logits(weights, images))
    return -jnp.take_along_axis(scores, labels[:, None], 1).mean()


@jax.jit
def step(weights, images, labels):
    """Returns the loss of a batch, and the weights after a step of gradient descent."""
    value, slope = jax.value_and_grad(loss)(weights, images, labels)
    return value, jax.tree.map(lambda w, d: w - flags.learning_rate * d, weights, slope)


@jax.jit
def count(weights, images, labels, mask):
    """Returns the number of correctly classified images of a batch, and the number of images."""
    right = (logits(weights, images).argmax(1) == labels) & mask
    return jnp.stack([right.sum(), mask.sum()])


def save():
    """Writes a checkpoint by renaming a complete file, so a kill leaves the old or the new one."""
    partial = flags.out.with_suffix(".partial.npz")
    np.savez(partial, reader=json.dumps(train.state()), **weights)
    partial.replace(flags.out)


train = reader("train")
validation = reader("validation")
shapes = {"first": (3, 3, 3, 16), "second": (3, 3, 16, 32), "head": (32, train.num_classes)}
keys = jax.random.split(jax.random.key(0), len(shapes))
weights = {
    name: jax.random.normal(key, shape) * (2 / np.prod(shape[:-1])) ** 0.5
    for key, (name, shape) in zip(keys, shapes.items(), strict=True)
}
state = train.state()
if jax.process_index() == 0 and flags.out.exists():
    saved = np.load(flags.out)
    weights = {name: jnp.asarray(saved[name]) for name in shapes}
    state = json.loads(str(saved["reader"]))
# All processes continue at the position of process 0, sent as an array of fixed length.
position = np.frombuffer(json.dumps(state).encode().ljust(1 << 16), np.uint8)
weights, position = broadcast_one_to_all((weights, position))
train.restore(json.loads(bytes(position)))
if train.epoch >= flags.epochs:
    print(f"{flags.out} is finished (epochs: {train.epoch}). Raise --epochs, or use another --out.")
while train.epoch < flags.epochs:
    epoch = train.epoch
    for number, batch in enumerate(train, 1):
        images, labels, _ = arrays(batch)
        value, weights = step(weights, images, labels)
        # After the last step the reader is already in the next epoch: evaluate this epoch first.
        is_due = number % flags.save_every == 0 and train.epoch == epoch
        if jax.process_index() == 0 and is_due:
            save()
    right, seen = np.sum([count(weights, *arrays(batch)) for batch in validation], 0)
    if jax.process_index() == 0:
        row = {"epoch": epoch, "loss": float(value), "top1": float(right / seen)}
        print(json.dumps(row | {"images": int(seen)}), flush=True)
        save()
