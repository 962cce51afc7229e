"""Checks `Reader.source` with the shuffles, workers and checkpoints of Grain and torchtitan.

`python in_grain.py CHECK SET MOVED OTHER` asserts, and prints the number of compared examples.
MOVED is a copy of the dataset SET in a different folder, and OTHER a different dataset.
"""

import itertools
import json
import sys
from typing import Protocol, runtime_checkable

import grain
import numpy as np
from absl import flags
from grain import python as pygrain

from imagenet_prep.core.world import World
from imagenet_prep.read import decode, make_dataset

SEED = 7
SIDE = 16
BATCH = 4
EPOCHS = 2


def opened(folder, **more):
    """Returns the reader of a dataset's training split."""
    return make_dataset(folder, "train", 1, SIDE, backend="native", world=World(), **more)


def source_of(folder, **more):
    """Returns the encoded images of a dataset, by number."""
    return opened(folder, **more).source(("encoded", "class_index", "key", "number"))


def expected():
    """Returns the example of each key, read without a source."""
    found = {}
    reader = opened(sys.argv[2], training=False, fields=("encoded", "class_index", "key"))
    for batch in reader:
        found[str(batch["key"][0])] = (batch["encoded"][0], int(batch["class_index"][0]))
    return found


def check_epoch(examples):
    """Asserts that examples are all of the dataset, each once; returns their number."""
    wanted = expected()
    assert len(examples) == len(wanted)
    found = {example["key"]: (example["encoded"], example["class_index"]) for example in examples}
    assert found == wanted
    return len(examples)


def numbers(examples):
    """Returns the numbers of examples, in order."""
    return [int(example["number"]) for example in examples]


def pixels(example):
    """Decodes an example, in the process or thread that Grain chooses."""
    image = decode(example["encoded"], size=SIDE, filter="bicubic")
    return {"image": image, "number": example["number"], "key": example["key"]}


def maps():
    """A MapDataset is shuffled, repeated, sliced and read by threads."""
    source = source_of(sys.argv[2])
    shuffled = grain.MapDataset.source(source).shuffle(seed=SEED)
    count = len(shuffled)
    in_order = [shuffled[index] for index in range(count)]
    yield check_epoch(in_order)
    assert numbers(in_order) != list(range(count))
    # 16 threads read ahead.
    iterated = [*shuffled.repeat(EPOCHS).to_iter_dataset()]
    epochs = [iterated[:count], iterated[count:]]
    for epoch in epochs:
        yield check_epoch(epoch)
    assert numbers(epochs[0]) == numbers(in_order) != numbers(epochs[1])
    parts = [shuffled[rank::3] for rank in range(3)]
    yield check_epoch([*itertools.chain.from_iterable(parts)])
    images = grain.MapDataset.source(source).map(pixels).batch(BATCH)
    batch = images[1]
    assert batch["image"].shape == (BATCH, SIDE, SIDE, 3)
    assert batch["number"].tolist() == [4, 5, 6, 7]
    assert np.array_equal(batch["image"][1], pixels(source[5])["image"])


def pipeline(folder, workers):
    """Returns the shuffled and decoded batches of two epochs, made by worker processes."""
    dataset = grain.MapDataset.source(source_of(folder)).shuffle(seed=SEED)
    dataset = dataset.repeat(EPOCHS).map(pixels).batch(BATCH)
    dataset = dataset.to_iter_dataset()
    if workers:
        options = grain.MultiprocessingOptions(num_workers=workers)
        dataset = dataset.mp_prefetch(options)
    return dataset


def workers():
    """Worker processes give the same batches, and continue after a checkpoint."""
    whole = [*pipeline(sys.argv[2], 0)]
    seen = [key for batch in whole for key in batch["key"]]
    keys = expected().keys()
    assert sorted(seen) == sorted([*keys] * EPOCHS)
    assert sorted(seen[: len(keys)]) == sorted(keys)
    for count, done in ((0, 0), (0, len(whole) - 2), (1, 3), (2, len(whole) // 2 + 1)):
        iterator = iter(pipeline(sys.argv[2], count))
        before = [next(iterator) for _ in range(done)]
        state = json.loads(json.dumps(iterator.get_state()))
        ahead = next(iterator)  # after the checkpoint, so it is read again
        iterator.close()
        again = iter(pipeline(sys.argv[3], count))
        again.set_state(state)
        after = [*again]
        assert np.array_equal(ahead["image"], after[0]["image"])
        for found, wanted in zip([*before, *after], whole, strict=True):
            assert found["key"].tolist() == wanted["key"].tolist()
            assert np.array_equal(found["image"], wanted["image"])
        yield len(after)


class Pixels(pygrain.MapTransform):
    """Decodes an example in a worker of Grain's DataLoader."""

    def map(self, example):
        """Returns the image and its number."""
        return pixels(example)


def loader_of(folder, shard, workers, **choice):
    """Returns Grain's DataLoader over a shard of the shuffled dataset."""
    source = source_of(folder, **choice)
    sampler = pygrain.IndexSampler(
        num_records=len(source),
        shard_options=pygrain.ShardOptions(shard, 2, drop_remainder=False),
        shuffle=True,
        num_epochs=EPOCHS,
        seed=SEED,
    )
    return pygrain.DataLoader(
        data_source=source, sampler=sampler, operations=[Pixels()], worker_count=workers
    )


def loader():
    """Grain's DataLoader compares the text of source and sampler when it continues."""
    for count in (0, 2):
        seen = []
        for shard in range(2):
            whole = [*loader_of(sys.argv[2], shard, count)]
            seen += numbers(whole)
            iterator = iter(loader_of(sys.argv[2], shard, count))
            before = [next(iterator) for _ in range(9)]
            state = iterator.get_state()
            again = iter(loader_of(sys.argv[3], shard, count))
            again.set_state(state)
            after = [*again]
            assert numbers(before + after) == numbers(whole)
            for found, wanted in zip(before + after, whole, strict=True):
                assert np.array_equal(found["image"], wanted["image"])
            yield len(after)
        size = len(source_of(sys.argv[2]))
        assert sorted(seen) == sorted([*range(size)] * EPOCHS)
    # The samplers are the same, but the dataset or the choice is not.
    first = {"classes": range(40)}
    for choice, folder, other in (({}, 4, {}), (first, 3, {"classes": range(10, 50)})):
        state = iter(loader_of(sys.argv[2], 0, 0, **choice)).get_state()
        iter(loader_of(sys.argv[3], 0, 0, **choice)).set_state(state)
        refused = iter(loader_of(sys.argv[folder], 0, 0, **other))
        try:
            refused.set_state(state)
        except ValueError as error:
            assert "source in checkpoint" in str(error)
        else:
            raise AssertionError(f"accepted: {state}")
        yield 1


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """The documented contract of torchtitan's sources: finite, and addressed by integers."""

    def __len__(self): ...

    def __getitem__(self, index): ...


def processed(example, rng):
    """As a torchtitan `SampleProcessor`: randomness comes from Grain."""
    side = int(rng.integers(8, 24))
    image = decode(example["encoded"], window=(0, 0, side, side), size=SIDE)
    return {"pixels": image.astype(np.float32), "key": example["key"]}


def collated(examples):
    """As a torchtitan `Collator`."""
    import torch  # not in the worker processes of the other checks

    images = torch.from_numpy(np.stack([example["pixels"] for example in examples]))
    return images, [example["key"] for example in examples]


class Loader:
    """The steps that torchtitan's README describes: process, shuffle, slice, repeat, batch."""

    def __init__(self, folder, rank, size, repeats):
        source = source_of(folder)
        assert isinstance(source, RandomAccessDataSource)
        dataset = grain.MapDataset.source(source).filter(lambda example: example["encoded"])
        dataset = dataset.random_map(processed, seed=SEED).shuffle(seed=SEED)
        borders = [len(dataset) * part // size for part in (rank, rank + 1)]
        dataset = dataset[slice(*borders)]
        if repeats:
            dataset = dataset.repeat()
        dataset = dataset.to_iter_dataset(grain.ReadOptions(num_threads=4))
        dataset = dataset.batch(BATCH, drop_remainder=repeats, batch_fn=collated)
        dataset = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=2)
        self.name = f"dp_rank_{rank}"
        self.iterator = iter(dataset)

    def state_dict(self):
        """Returns the state of this rank."""
        return {self.name: self.iterator.get_state()}

    def load_state_dict(self, state):
        """Continues from the state of this rank."""
        self.iterator.set_state(state[self.name])


def torchtitan():
    """Ranks read disjoint parts, and continue from the state in a checkpoint."""
    finite = Loader(sys.argv[2], 0, 1, repeats=False)
    keys = [key for _, names in finite.iterator for key in names]
    assert sorted(keys) == sorted(expected())
    yield len(keys)
    size = 2
    by_rank = []
    for rank in range(size):
        loader = Loader(sys.argv[2], rank, size, repeats=True)
        whole = [next(loader.iterator) for _ in range(15)]
        loader.iterator.close()
        own = [key for _, names in whole for key in names]
        by_rank.append(own)
        loader = Loader(sys.argv[2], rank, size, repeats=True)
        before = [next(loader.iterator) for _ in range(6)]
        state = loader.state_dict()
        loader.iterator.close()
        again = Loader(sys.argv[3], rank, size, repeats=True)
        again.load_state_dict(state)
        after = [next(again.iterator) for _ in range(9)]
        again.iterator.close()
        for (images, names), (wanted, own_names) in zip(before + after, whole, strict=True):
            assert images.equal(wanted)
            assert names == own_names
        yield len(after)
    part = len(keys) // size
    for epoch in range(EPOCHS):
        read = [own[epoch * part : (epoch + 1) * part] for own in by_rank]
        assert sorted(read[0] + read[1]) == sorted(keys)
    assert by_rank[0][:part] != by_rank[0][part : 2 * part]


if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])  # Grain's worker processes read flags
    check = globals()[sys.argv[1]]
    print(sum(check()))
