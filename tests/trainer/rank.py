"""What one of two ranks does in a test: `horovodrun ... python rank.py WHAT FOLDER [SETTINGS]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.trainer import comm as comms
from imagenet_prep.trainer import device, loop
from imagenet_prep.trainer.config import Config


def gradients(folder: Path, compression: bool) -> None:
    """Saves this rank's own gradient, the mean that comes back, and the joined batch's."""
    import tensorflow as tf

    comm = comms.connect(fp16_compression=compression)
    rng = np.random.default_rng(3)
    images = rng.normal(size=(8, 6)).astype(np.float32)
    targets = rng.normal(size=(8, 2)).astype(np.float32)
    weights = tf.Variable(rng.normal(size=(6, 2)).astype(np.float32))

    def gradient(rows: slice, wrap: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(images[rows] @ weights) - targets[rows]) ** 2)
        return wrap(tape).gradient(loss, [weights])[0].numpy()

    mine = slice(4 * comm.world.rank, 4 * comm.world.rank + 4)
    np.savez(
        folder / f"gradients-{comm.world.rank}.npz",
        own=gradient(mine, lambda tape: tape),
        mean=gradient(mine, comm.tape),
        joined=gradient(slice(None), lambda tape: tape),
    )
    comm.close()


def weights(folder: Path, settings: dict[str, Any], averaging: bool) -> None:
    """Trains and saves this rank's variables as they are at the end."""
    from imagenet_prep.read import make_dataset

    config = Config(**settings)
    comm = comms.connect(fp16_compression=False)
    if not averaging:
        comm.tape = lambda tape: tape  # type: ignore[method-assign]
    device.settle(comm.world, config.precision, config.seed + comm.world.rank)
    training = loop._Training(
        config,
        comm,
        lambda split, training, world: make_dataset(
            settings["data_dir"],
            split,
            config.batch_size,
            config.image_size,
            training=training,
            world=world,
            backend="tfdata",
        ),
    )
    score = training.run()
    values = {f"v{n:03d}": v.numpy() for n, v in enumerate(training._variables)}
    np.savez(folder / f"weights-{comm.world.rank}.npz", **values)
    (folder / f"score-{comm.world.rank}.json").write_text(json.dumps(score))
    training.close()
    comm.close()


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what.startswith("gradients"):
        gradients(folder, compression=what.endswith("fp16"))
    else:
        weights(folder, json.loads(sys.argv[3]), averaging=what != "weights-without-averaging")
