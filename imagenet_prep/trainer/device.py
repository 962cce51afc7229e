"""Chooses the GPU or the cores of a rank, before a framework uses them."""

from __future__ import annotations

import os

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.core.world import World

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def quieten() -> None:
    """Keeps TensorFlow's start-up lines from the table; call before it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


# NVIDIA's GPUs from Volta on have tensor cores for float16.
_FAST_HALF = (7, 0)


def fast_half(world: World) -> bool:
    """Returns whether this rank has a GPU that computes faster in float16 than in float32."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")[world.local_rank : world.local_rank + 1]
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return any(each.get("compute_capability", (0, 0)) >= _FAST_HALF for each in details)


def cores(world: World) -> int:
    """Returns a rank's share of the cores: with all of them, ranks would wait for each other."""
    return max(1, len(os.sched_getaffinity(0)) // world.local_size)


def check(local_rank: int, gpus: int) -> None:
    """Refuses more ranks than GPUs, where there are any.

    Raises:
      ImagenetPrepError: the host has GPUs, but fewer than ranks.
    """
    if 0 < gpus <= local_rank:
        raise ImagenetPrepError(
            f"local rank {local_rank}: {os.uname().nodename} has {gpus} GPUs. "
            f"Write slots={gpus} into the hosts file, or start fewer ranks."
        )


def settle(world: World, precision: str, seed: int) -> None:
    """Takes a GPU or a share of the cores, sets the precision, and seeds first weights.

    Raises:
      ImagenetPrepError: the host has GPUs, but fewer than ranks.
    """
    import keras
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        check(world.local_rank, len(gpus))
        tf.config.set_visible_devices(gpus[world.local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[world.local_rank], True)
    elif world.local_size > 1:
        tf.config.threading.set_intra_op_parallelism_threads(cores(world))
    keras.config.set_dtype_policy(_POLICIES[precision])
    keras.utils.set_random_seed(seed)
