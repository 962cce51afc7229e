"""Checks that a DataLoader's workers never write to a batch that is still in use.

`python worker_memory.py SET CHECK...` asserts, and prints the number of compared batches.
"""

import itertools
import os
import random
import signal
import sys

import torch
from torch.utils.data import DataLoader

from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset
from imagenet_prep.read.shared_batches import worker_pool
from tests.kit.processes import open_files

BATCH = 2
LARGE = 600  # two images of this side take more than 1 MB
MEMORY = "/memfd:imagenet-prep batch"


def opened(**more):
    """Opens the dataset of the command line."""
    how = {"framework": "torch", "seed": 3, "world": World(), "image_size": 16}
    return make_dataset(sys.argv[1], "train", BATCH, **how | more)


def loader_of(reader, workers=2, method="fork", **more):
    """Returns a loader of the steps of a reader, by default with persistent workers."""
    how = {"num_workers": workers, "multiprocessing_context": method, "persistent_workers": True}
    return DataLoader(reader, batch_size=None, sampler=reader.sampler(), **how | more)


def epochs(loader, count):
    """Yields the batches of several epochs."""
    for _ in range(count):
        yield from loader


def same(found, expected):
    """Returns whether two batches are equal."""
    return all(torch.equal(found[name], expected[name]) for name in expected)


def require_same(found, expected):
    """Asserts that all batches are equal; returns their number."""
    pairs = list(zip(found, expected, strict=True))
    assert all(same(*pair) for pair in pairs)
    return len(pairs)


def workers_of(loader):
    """Returns the process IDs of persistent workers."""
    return [worker.pid for worker in loader._iterator._workers]


def memory_of(pid):
    """Returns the number of shared memories that a worker has open."""
    # Each of them is also open for its mapping.
    return len({file.inode for file in open_files(pid) if file.path.startswith(MEMORY)})


def kept():
    """Keeps all batches of two epochs, with every way to start and feed workers."""
    expected = list(epochs(opened(), 2))
    compared = 0
    for method, persistent, prefetch in (
        ("fork", True, 2),
        ("fork", False, 5),
        ("spawn", True, 1),
        ("forkserver", False, 2),
    ):
        how = {"persistent_workers": persistent, "prefetch_factor": prefetch, "pin_memory": True}
        loader = loader_of(opened(), method=method, **how)
        compared += require_same(list(epochs(loader, 2)), expected)
    return compared


def released():
    """Releases each batch before the next one: few memories are enough."""
    expected = list(epochs(opened(), 4))
    for more in ({}, {"prefetch_factor": 4}):
        loader = loader_of(opened(), **more)
        for found, own in zip(epochs(loader, 4), expected, strict=True):
            assert same(found, own)
            del found
        for pid in workers_of(loader):
            # The fetched ones, one that the loop had, and two that are decoded or handed over.
            assert 1 <= memory_of(pid) <= more.get("prefetch_factor", 2) + 3, memory_of(pid)
    return 2 * len(expected)


def held_at_random():
    """Holds batches for a random number of steps; compares each one before it is released."""
    compared = 0
    for seed in range(3):
        draw = random.Random(seed)
        expected = list(epochs(opened(), 6))
        held = []
        loader = loader_of(opened(), workers=1 + seed)
        for pair in zip(epochs(loader, 6), expected, strict=True):
            held.append(pair)
            draw.shuffle(held)
            while len(held) > draw.choice((0, 1, 3, 40)):
                assert same(*held.pop())
                compared += 1
        compared += require_same(*zip(*held, strict=True)) if held else 0
        assert max(map(memory_of, workers_of(loader))) <= 50
    return compared


def many_kept_and_released():
    """After many batches were kept for a while, a worker keeps a bounded number of memories."""
    loader = loader_of(opened(), workers=1)
    held = list(epochs(loader, 4))
    held.clear()
    for _ in epochs(loader, 1):
        pass
    (pid,) = workers_of(loader)
    assert memory_of(pid) <= 16 + 2, memory_of(pid)
    return memory_of(pid)


def forked():
    """A child of the main process has a batch, which the main process then releases."""
    expected = list(epochs(opened(), 5))
    loader = loader_of(opened())
    steps = epochs(loader, 5)
    children = []
    for number in range(6):
        batch = next(steps)
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            os.read(ready, 1)
            os._exit(0 if same(batch, expected[number]) else 1)
        os.close(ready)
        children.append((child, told))
    del batch
    rest = 6 + require_same(list(steps), expected[6:])
    for child, told in children:
        os.write(told, b"x")
        assert os.waitpid(child, 0)[1] == 0
    # The child's own end changes nothing in a batch of the main process.
    steps = epochs(loader, 5)
    batch = next(steps)
    child = os.fork()
    if not child:
        del batch
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    expected = list(epochs(at_epoch(5), 5))
    require_same(list(steps), expected[1:])
    assert same(batch, expected[0])
    return rest + 1


def at_epoch(epoch):
    """Returns a reader that begins with an epoch."""
    reader = opened()
    reader.restore(reader.state() | {"epoch": epoch})
    return reader


def interrupted():
    """Ends loops early, and has several of them at once."""
    loader = loader_of(opened())
    expected = list(epochs(opened(), 1))
    held = [list(itertools.islice(loader, end)) for end in (1, 5, 3)]
    held.append(list(loader))
    for found in held:
        require_same(found, expected[: len(found)])
    one_shot = loader_of(opened(), persistent_workers=False)
    other = loader_of(opened(), persistent_workers=False)
    pairs = list(zip(one_shot, other, strict=True))
    for found in zip(*pairs, strict=True):
        require_same(found, expected)
    return len(expected)


def killed():
    """A killed worker leaves the batches of the others, and its own, as they are."""
    expected = list(epochs(opened(), 2))
    loader = loader_of(opened(), persistent_workers=True)
    steps = iter(loader)
    held = [next(steps) for _ in range(5)]
    for pid in workers_of(loader):
        os.kill(pid, signal.SIGKILL)
    try:
        held.extend(steps)
    except RuntimeError as error:
        assert "worker" in str(error), error
    except (EOFError, ConnectionError):
        pass  # PyTorch was receiving a batch, and saw the end of the pipe before the worker's end
    else:
        raise AssertionError("no error")
    return require_same(held, expected[: len(held)])


def changed():
    """Changes images in place, as a training loop may do."""
    compared = 0
    for found, expected in zip(epochs(loader_of(opened()), 4), epochs(opened(), 4), strict=True):
        assert same(found, expected)
        found["images"].fill_(7)
        compared += 1
    return compared


KEPT = []


def keeping(batch):
    """Keeps all batches in the worker, and gives an old one again."""
    if not KEPT:
        pool = worker_pool()
        child = os.fork()
        if not child:  # the child must not write to the memory of the worker
            os._exit(worker_pool() is pool)
        assert os.waitpid(child, 0)[1] == 0
        assert worker_pool() is pool
    KEPT.append(batch)
    return batch | {"again": KEPT[0]["images"], "twice": batch["images"]}


def kept_by_worker():
    """A worker's own code keeps its batches."""
    expected = list(epochs(opened(), 3))
    loader = loader_of(opened(), workers=1, collate_fn=keeping)
    for found, own in zip(epochs(loader, 3), expected, strict=True):
        assert same(found, own)
        assert torch.equal(found["twice"], own["images"])
        assert torch.equal(found["again"], expected[0]["images"])
    return len(expected)


def transformed(batch):
    """Makes several large tensors: new ones, parts of one, and one that is not contiguous."""
    images = batch["images"]
    doubled = images * 2
    return {
        "images": images,
        "half": images[1:],
        "doubled": doubled,
        "of doubled": doubled[1:],
        "turned": doubled.permute(0, 3, 1, 2),
        "one": images.flatten()[0].expand(1000, 1000),
    }


def transforms():
    """Compares the large results of `collate_fn`, some of which are kept."""
    how = {"image_size": LARGE}
    expected = [transformed(batch) for batch in epochs(opened(**how), 2)]
    loader = loader_of(opened(**how), collate_fn=transformed)
    held = []
    for number, (found, own) in enumerate(zip(epochs(loader, 2), expected, strict=True)):
        assert same(found, own)
        if number % 3 == 0:
            held.append((found, own))
    for pair in held:
        assert same(*pair)
    for pid in workers_of(loader):
        assert memory_of(pid) > 2
    return len(expected)


def arrays():
    """Reads NumPy arrays and bfloat16, which PyTorch's default collate_fn takes."""
    compared = 0
    for how in ({"framework": "numpy"}, {"dtype": "bfloat16"}, {"views": 2, "dtype": "uint8"}):
        expected = list(epochs(opened(**how, framework="torch") if "dtype" in how else opened(), 2))
        loader = loader_of(opened(**how))
        compared += require_same(list(epochs(loader, 2)), expected)
        assert all(memory_of(pid) > 0 for pid in workers_of(loader))
    return compared


def stacked(batch):
    """Makes a large tensor of the stored bytes."""
    rows = [torch.full((LARGE, LARGE), len(encoded)) for encoded in batch["encoded"]]
    return {"rows": torch.stack(rows)}


def undecoded():
    """Hands over what `collate_fn` makes of stored bytes, in memory of the same kind."""
    how = {"fields": ("encoded",)}
    expected = [stacked(batch) for batch in epochs(opened(**how), 2)]
    loader = loader_of(opened(**how), collate_fn=stacked)
    for found, own in zip(epochs(loader, 2), expected, strict=True):
        assert same(found, own)
        del found
    for pid in workers_of(loader):
        assert 1 <= memory_of(pid) <= 5, memory_of(pid)
    return len(expected)


def examples():
    """Collates the examples of a source, which are no batches."""
    source = opened().source(("images", "number"))
    loader = DataLoader(source, batch_size=4, num_workers=2, persistent_workers=True)
    expected = {
        int(example["number"]): example["images"]
        for example in map(source.__getitem__, range(len(source)))
    }
    held = list(epochs(loader, 2))
    for batch in held:
        for number, image in zip(batch["number"].tolist(), batch["images"], strict=True):
            assert torch.equal(image, expected[number])
    assert not any(memory_of(pid) for pid in workers_of(loader))
    return len(held)


if __name__ == "__main__":
    print(sum(globals()[name]() for name in sys.argv[2:]))
