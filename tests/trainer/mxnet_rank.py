"""Runs `train` as one rank of MXNet and saves its weights: `python mxnet_rank.py FOLDER STEP
FLAGS`.

At the end, each rank saves its variables, versions and batches in FOLDER. Rank 1 is killed before
STEP, except if STEP is -1.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import mxnet as mx  # servers and the scheduler never return from this import
import numpy as np

from imagenet_prep.core import program
from imagenet_prep.core.world import World
from imagenet_prep.trainer import loop
from imagenet_prep.trainer.mxnet_learner import MxnetLearner
from tests.kit.batches import digests

FOLDER = sys.argv[1]
FATAL_STEP = int(sys.argv[2])
forwards = 0
call, share, step = mx.gluon.Block.__call__, MxnetLearner.share, MxnetLearner.step
close = loop.Training.close


def counted(self: Any, *images: Any) -> Any:
    """Counts a forward pass of a network or a layer."""
    global forwards
    forwards += isinstance(images[0], mx.nd.NDArray)  # not a symbol, which only infers shapes
    return call(self, *images)


def shared(self: MxnetLearner) -> None:
    """Before weights are shared, each rank has different ones, and none has computed anything."""
    assert not forwards, forwards
    for array in self._weights:
        array += self.comm.world.rank
    share(self)


def fatal(self: MxnetLearner, number: int, *batch: Any, **how: Any) -> Any:
    """Kills rank 1 before the given step."""
    if number == FATAL_STEP and self.comm.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, number, *batch, **how)


def closed(self: loop.Training) -> bool:
    """Saves the results after the last step."""
    learner = self._learner
    values = dict(zip(learner.names(), learner.values(), strict=True))
    world = learner.comm.world
    np.savez(f"{FOLDER}/weights-{world.rank}.npz", **values)
    told = [np.__version__, digests(str(self._config.data_dir), World.from_environment())]
    Path(f"{FOLDER}/read-{world.rank}.json").write_text(json.dumps(told))
    return close(self)


mx.gluon.Block.__call__ = counted
MxnetLearner.share, MxnetLearner.step = shared, fatal  # type: ignore[method-assign]
loop.Training.close = closed  # type: ignore[method-assign]
program.main("imagenet_prep.train", sys.argv[3:])
