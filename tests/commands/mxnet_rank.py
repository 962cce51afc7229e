"""A rank in MXNet's environment: `horovodrun ... python mxnet_rank.py DATA [alone]`."""

from __future__ import annotations

import json
import sys

import numpy as np

from imagenet_prep.core.world import World
from tests.kit.batches import digests


def main(data: str, *, alone: bool) -> None:
    """Prints the sum over ranks and the images read; a single rank adds nothing up."""
    world = World(1, 2)
    total = None
    if not alone:
        import horovod.mxnet as hvd
        import mxnet as mx

        hvd.init()
        added = hvd.allreduce(mx.nd.array([1.0, 10.0]) * (hvd.rank() + 1), op=hvd.Sum)
        world = World.from_environment()
        total = added.asnumpy().tolist()
        assert (world.rank, world.size) == (hvd.rank(), hvd.size())
    told = [world.rank, np.__version__, total, digests(data, world)]
    print(f"TOLD {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], alone=sys.argv[2:] == ["alone"])
