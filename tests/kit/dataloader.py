"""The part of torch.utils.data.DataLoader that uses a map-style dataset, without PyTorch.

As in torch/utils/data/dataloader.py (`_MultiProcessingDataLoaderIter`), this process reads the
sampler, `prefetch` indices ahead for each worker. Worker i gets every n-th index by its own queue
and answers with dataset[index]. Batches are yielded in the sampler's order. tests/frameworks tests
the same with PyTorch itself.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

PREFETCH = 2
# A dead worker is an error of the test, not a hang.
_PATIENCE_S = 300


def in_new_process(function: Callable[..., None], *args: Any) -> None:
    """Calls a function that forks, without the threads of other tests in its process.

    Workers have hung if they were forked next to DALI's pipelines.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(function, *args).result(_PATIENCE_S)


def batches(dataset: Any, sampler: Any, workers: int, method: str = "forkserver") -> Iterator[Any]:
    """Yields dataset[index] for each index of the sampler, made by processes.

    With the method "fork", call it by `in_new_process`.
    """
    if not workers:
        yield from (dataset[index] for index in sampler)
        return
    context: Any = multiprocessing.get_context(method)
    asked = [context.Queue() for _ in range(workers)]
    made = [context.Queue() for _ in range(workers)]
    processes = [
        context.Process(target=_work, args=(dataset, *queues), daemon=True)
        for queues in zip(asked, made, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        indices = enumerate(sampler)
        ahead = list(itertools.islice(indices, PREFETCH * workers))
        for number, index in ahead:
            asked[number % workers].put(index)
        for number in itertools.count():
            if number == len(ahead):
                return
            batch = made[number % workers].get(timeout=_PATIENCE_S)
            for more in itertools.islice(indices, 1):
                ahead.append(more)
                asked[more[0] % workers].put(more[1])
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(dataset: Any, asked: Any, made: Any) -> None:
    while True:
        try:
            made.put(dataset[asked.get()])
        except Exception as error:
            made.put(error)
