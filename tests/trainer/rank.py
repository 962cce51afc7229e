"""The program of one of two ranks: `launch ... -- python rank.py FOLDER SETTINGS [dies]`."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.evaluation.sheet import Sheet
from imagenet_prep.train import readers
from imagenet_prep.trainer import comm as comms
from imagenet_prep.trainer import loop, recipe, tensorflow_learner
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner
from tests.kit.command import REPOSITORY
from tests.kit.training import EXAMPLE, end_at_step, network


def gradients(comm: comms.Comm, file: str) -> None:
    """Saves the gradients of this rank, of the mean over ranks, and of the joined batch."""
    import tensorflow as tf

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
        file.format(comm.world.rank),
        own=gradient(mine, lambda tape: tape),
        mean=gradient(mine, comm.tape),
        joined=gradient(slice(None), lambda tape: tape),
    )


def weights(learner: TensorFlowLearner, file: str, config: TrainConfig) -> list[float]:
    """Trains, saves the variables of this rank, and returns the last score."""
    with pytest.MonkeyPatch.context() as patch:
        # This rank has already been initialized by Horovod.
        patch.setattr(loop, "connect", lambda _: learner)
        leads = learner.comm.world.rank == 0
        data_dir = str(config.data_dir)
        sheet = Sheet([data_dir], config.labels) if leads else None
        score = loop.train(config, readers(recipe.settled(config)), sheet)
    values = {f"v{n:03d}": value for n, value in enumerate(learner.values())}
    np.savez(file.format(learner.comm.world.rank), **values)
    return score


def example(data: str, out: Path) -> None:
    """Runs the script of docs/own-script.md, which finds Horovod started."""
    half = ("--batch-size", "4", "--learning-rate", "0.05", "--out", str(out))
    script = str(REPOSITORY / "examples" / "distributed.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, "--data-dir", data, *EXAMPLE, *half])
        runpy.run_path(script)


def main(folder: Path, settings: dict[str, Any], *, dies: bool) -> None:
    """Does everything that the tests compare in one start of Horovod.

    With `dies`, one more run, `killed`, follows, and rank 1 is killed in its step 12.
    """
    import tensorflow as tf

    # The same setting as in the process of the tests.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow_learner.build = network
    # A thread of Horovod polls continuously if there is a timeline.
    timeline = os.environ.pop("HOROVOD_TIMELINE", None)
    levers = [timeline, os.environ.get("HOROVOD_FUSION_THRESHOLD")]
    (folder / f"levers-{comms.launched().rank}.json").write_text(json.dumps(levers))
    config = TrainConfig(**settings, log_dir=str(folder / "two"))
    # Each rank starts with different weights.
    seed = config.seed + comms.launched().rank
    learner = TensorFlowLearner(dataclasses.replace(config, seed=seed))
    comm = learner.comm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "close", lambda: None)  # the ranks do not end; they continue below
        with pytest.MonkeyPatch.context() as ending, pytest.raises(IncompleteError) as ended:
            if comm.world.rank == 1:
                end_at_step(ending, 4)
            weights(learner, "", config)
        (folder / f"ended-{comm.world.rank}").write_text(str(ended.value))
        score = weights(learner, str(folder / "weights-{}.npz"), config)
    (folder / f"score-{comm.world.rank}.json").write_text(json.dumps(score))
    gradients(comm, str(folder / "gradients-{}.npz"))
    gradients(
        comms.Horovod(comm.world, fp16_compression=True), str(folder / "gradients-fp16-{}.npz")
    )
    example(str(config.data_dir), folder / "both.keras")
    if dies:
        with pytest.MonkeyPatch.context() as patch:
            if comm.world.rank == 1:
                end_at_step(patch, 12, signal.SIGKILL)
            log_dir = str(folder / "killed")
            weights(learner, "", dataclasses.replace(config, log_dir=log_dir, checkpoint_every=5))
    comm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), dies="dies" in sys.argv)
