"""DataLoaders of PyTorch and of torchdata over one reader, with all numbers of workers.

`python loaders.py SET` asserts, and prints the cases that it checked.
"""

import itertools
import json
import sys

import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset

EPOCHS = 2
STEPS = 5


def opened(**more):
    """Returns rank 1 of 2."""
    how = {"backend": "native", "world": World(1, 2), "seed": 3}
    return make_dataset(sys.argv[1], "train", 5, 16, **how | more)


def loader(kind, reader, sampler, workers, method=None, **more):
    """Returns a loader of steps."""
    how = {"batch_size": None, "sampler": sampler, "num_workers": workers}
    return kind(reader, **how, multiprocessing_context=method if workers else None, **more)


def same(found, expected):
    """Returns whether batches of tensors equal batches of arrays."""
    assert all(isinstance(value, torch.Tensor) for value in found.values())
    return found.keys() == expected.keys() and all(
        (found[name].numpy() == expected[name]).all() for name in found
    )


def whole_epochs(expected):
    """Checks complete epochs with every kind and number of workers; yields the cases."""
    reader = opened()
    for kind, (workers, method, persistent) in itertools.product(
        (DataLoader, StatefulDataLoader),
        [(0, None, False), (1, "fork", True), (2, "fork", False), (3, "fork", True)],
    ):
        next(iter(reader))  # its own threads have started, so that forks lack them
        yield one_kind(expected, reader, kind, workers, method, persistent)
    yield one_kind(expected, reader, DataLoader, 2, "spawn", True)


def one_kind(expected, reader, kind, workers, method, persistent):
    """Checks one kind of loader; returns the case."""
    sampler = opened().sampler()
    steps = loader(kind, reader, sampler, workers, method, persistent_workers=persistent)
    assert len(steps) == STEPS
    found = [list(steps) for _ in range(EPOCHS)]
    assert [len(each) for each in found] == [STEPS] * EPOCHS
    assert all(map(same, itertools.chain(*found), itertools.chain(*expected)))
    return [kind.__name__, workers, method, persistent]


def resumed(expected):
    """Checks that StatefulDataLoader resumes after some steps; yields the cases."""
    everything = list(itertools.chain(*expected))
    for workers, done in itertools.product((0, 1, 2, 3), (0, 2, STEPS)):
        first = loader(StatefulDataLoader, opened(), opened().sampler(), workers)
        steps = iter(first)
        before = [next(steps) for _ in range(done)]
        state = first.state_dict()
        del steps, first
        again = loader(StatefulDataLoader, opened(), opened().sampler(), workers)
        again.load_state_dict(state)
        after = [*itertools.chain.from_iterable([*again] for _ in range(EPOCHS))]
        assert len(before + after) >= len(everything)
        assert all(map(same, before + after, everything)), (workers, done)
        yield ["resumed", workers, done]


def without_copies():
    """Checks the types that DLPack shares; yields the cases."""
    for dtype, expected in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        batch = next(iter(opened(framework="dlpack", dtype=dtype, layout="NCHW")))
        images = torch.from_dlpack(batch["images"])
        assert (images.dtype, images.shape) == (expected, (5, 3, 16, 16))
        yield ["dlpack", dtype]


def tensors():
    """Checks that StatefulDataLoader resumes a reader of tuples of tensors; yields the cases."""
    named = list(opened(framework="torch"))
    for workers in (0, 2):
        reader = opened(framework="torch", as_tuple=True)
        first = loader(StatefulDataLoader, reader, reader.sampler(), workers)
        steps = iter(first)
        before = [next(steps) for _ in range(2)]
        state = first.state_dict()
        del steps, first
        again = loader(StatefulDataLoader, reader, reader.sampler(), workers)
        again.load_state_dict(state)
        for (images, labels), expected in zip([*before, *again], named, strict=True):
            assert torch.equal(images, expected["images"])
            assert torch.equal(labels, expected["class_index"])
            assert labels.dtype == torch.int64
        yield ["tensors", workers]


def sources():
    """Checks that StatefulDataLoader shuffles and resumes a source; yields the cases."""
    source = opened().source()
    for workers in (0, 2):
        how = {"batch_size": 4, "shuffle": True, "num_workers": workers}
        first = StatefulDataLoader(source, **how)
        steps = iter(first)
        before = [next(steps) for _ in range(3)]
        state = first.state_dict()
        expected = [batch["key"] for batch in steps]
        again = StatefulDataLoader(source, **how)
        again.load_state_dict(state)
        after = [batch["key"] for batch in again]
        assert after == expected
        keys = [*itertools.chain(*(batch["key"] for batch in before), *after)]
        assert len(keys) == len(set(keys)) == len(source)
        assert all(batch["class_index"].dtype == torch.int64 for batch in before)
        yield ["source", workers]


def main():
    """Prints the checked cases."""
    reader = opened()
    expected = [list(reader) for _ in range(EPOCHS)]
    assert [len(each) for each in expected] == [STEPS] * EPOCHS
    looked = [*whole_epochs(expected), *resumed(expected), *without_copies()]
    looked += [*tensors(), *sources()]
    print(json.dumps(looked))


if __name__ == "__main__":
    main()
