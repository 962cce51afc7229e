"""The program of a host of `benchmarks.exchange`, in the environment with MXNet and Horovod.

python benchmarks/exchange_host.py rendezvous WORKERS
python benchmarks/exchange_host.py (scheduler | server)
python benchmarks/exchange_host.py (ring | worker) WIDTH STEPS

Imports only the standard library before it starts.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

# Halves of integers are exact, so every sum can be compared with its expected value.
LEARNING_RATE = 0.5

# How to exchange gradients for weights, how to wait for all workers, this worker's rank, and
# their number.
Way = tuple[Callable[[list[Any], list[Any]], None], Callable[[], None], int, int]


def shapes(width: int) -> list[tuple[int, ...]]:
    """Returns the shapes of a ResNet-50's weights, first layer first.

    Args:
      width: channels of the first layer. 64 is ResNet-50: 25,557,032 weights in 161 tensors. Half
        of it has a quarter of the weights in the same number of tensors.
    """

    def convolution(inputs: int, outputs: int, side: int) -> list[tuple[int, ...]]:
        return [(outputs, inputs, side, side), (outputs,), (outputs,)]  # with its batch norm

    found = convolution(3, width, 7)
    inputs = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width << stage
        for block in range(blocks):
            found += convolution(inputs, inner, 1) + convolution(inner, inner, 3)
            found += convolution(inner, 4 * inner, 1)
            if not block:
                found += convolution(inputs, 4 * inner, 1)
            inputs = 4 * inner
    classes = 1000 * width // 64
    return [*found, (classes, inputs), (classes,)]


def num_bytes(width: int) -> int:
    """Returns the bytes of all gradients, float32."""
    return 4 * sum(map(math.prod, shapes(width)))


def rendezvous(workers: int) -> None:
    """Tells Horovod's workers their ranks; prints its port, and ends when it is killed."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    hosts = ",".join(f"host{number}:1" for number in range(workers))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(hosts), workers))
    print(port, flush=True)
    while True:
        time.sleep(3600)


def ring() -> Way:
    """Returns Horovod's exchange: all get the sum of the gradients and then update."""
    import horovod.mxnet as hvd
    import mxnet as mx

    hvd.init()

    def exchange(gradients: list[Any], weights: list[Any]) -> None:
        for key in reversed(range(len(weights))):  # in the order of a backward pass
            hvd.allreduce_(gradients[key], average=False, name=str(key), priority=-key)
        for gradient, weight in zip(gradients, weights, strict=True):
            weight -= LEARNING_RATE * gradient

    def meet() -> None:
        hvd.allreduce(mx.nd.zeros(1), name="meet").wait_to_read()

    return exchange, meet, hvd.rank(), hvd.size()


def servers(weights: list[Any]) -> Way:
    """Returns the exchange of MXNet's parameter servers: they get gradients and return weights."""
    import mxnet as mx

    store = mx.kv.create("dist_sync")
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=LEARNING_RATE, wd=0.0))
    for key, weight in enumerate(weights):
        store.init(key, weight)

    def exchange(gradients: list[Any], weights: list[Any]) -> None:
        for key in reversed(range(len(weights))):
            store.push(key, gradients[key], priority=-key)
            store.pull(key, out=weights[key], priority=-key)

    return exchange, store._barrier, store.rank, store.num_workers


def work(method: str, width: int, steps: int) -> None:
    """Exchanges gradients `steps` times after one to warm up, and prints the time of each."""
    import mxnet as mx

    sizes = shapes(width)
    weights = [mx.nd.zeros(shape) for shape in sizes]
    exchange, meet, rank, workers = ring() if method == "ring" else servers(weights)
    times = []
    for step in range(1, steps + 2):
        gradients = [mx.nd.full(shape, (rank + 1) * step) for shape in sizes]
        mx.nd.waitall()
        meet()
        begin = time.monotonic()
        exchange(gradients, weights)
        mx.nd.waitall()
        times.append((begin, time.monotonic()))
    # Workers summed 1 + 2 + ... + workers, steps 1 + 2 + ... + (steps + 1).
    total = workers * (workers + 1) // 2 * (steps + 1) * (steps + 2) // 2
    for key, weight in enumerate(weights):
        if not (weight.asnumpy() == -LEARNING_RATE * total).all():
            raise SystemExit(f"Rank {rank}: weights {key} are not the sum of all gradients.")
    print(json.dumps(times[1:]), flush=True)
    meet()  # all stay while others need them


def main(role: str, *numbers: str) -> None:
    if role == "rendezvous":
        rendezvous(int(numbers[0]))
    elif role in ("ring", "worker"):
        work(role, *map(int, numbers))
    else:
        import mxnet  # noqa: F401 (serves by DMLC_ROLE for as long as there are workers, then exits)


if __name__ == "__main__":
    main(*sys.argv[1:])
