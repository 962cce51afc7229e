"""A rank in MXNet's environment: `horovodrun ... python mxnet_rank.py DATA [alone]`."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset


def batches(data: str, world: World) -> dict[str, str]:
    """Returns a hash of what a rank reads in two epochs of training and one of evaluation."""
    found = {}
    for split, dtype, epochs in (("train", "float16", 2), ("validation", "float32", 1)):
        reader = make_dataset(
            data, split, 8, image_size=16, world=world, dtype=dtype, backend="native"
        )
        digest = hashlib.sha256()
        for _ in range(epochs):
            for batch in reader:
                for name in ("images", "class_index", "mask"):
                    digest.update(np.ascontiguousarray(batch[name]).tobytes())
        found[split] = digest.hexdigest()
    return found


def main(data: str, *, alone: bool) -> None:
    """Prints what the rank has added up and read; alone, it adds up nothing."""
    world, total = World(1, 2), None
    if not alone:
        import horovod.mxnet as hvd
        import mxnet as mx

        hvd.init()
        added = hvd.allreduce(mx.nd.array([1.0, 10.0]) * (hvd.rank() + 1), op=hvd.Sum)
        world, total = World.from_environment(), added.asnumpy().tolist()
        assert (world.rank, world.size) == (hvd.rank(), hvd.size())
    told = [world.rank, np.__version__, total, batches(data, world)]
    print(f"TOLD {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], alone=sys.argv[2:] == ["alone"])
