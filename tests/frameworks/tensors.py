"""Checks batches of framework="torch" against the reader's NumPy arrays, with PyTorch itself.

`python tensors.py SET CHECK...` asserts, and prints the number of compared batches of each check.
"""

import itertools
import json
import sys

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from imagenet_prep.core.world import World
from imagenet_prep.read import View, make_dataset, make_mix

BATCH = 4
SIDE = 16
IGNORED = -100
FIELDS = (
    "images",
    "class_index",
    "mask",
    "key",
    "number",
    "boxes",
    "width",
    "height",
    "mirrored",
    "encoded",
    "column:marks",
    "column:half",
    "column:brain",
)
TYPES = {
    "class_index": torch.int64,
    "mask": torch.bool,
    "number": torch.int64,
    "boxes": torch.float32,
    "width": torch.int32,
    "height": torch.int32,
    "mirrored": torch.bool,
    "column:marks": torch.int32,
    "column:half": torch.float16,
    "column:brain": torch.bfloat16,
}
PIXELS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
}


def opened(split="train", framework="torch", **more):
    """Opens the dataset of the command line."""
    usual = {"backend": "native", "world": World(), "seed": 3, "batch_size": BATCH}
    return make_dataset(sys.argv[1], split, image_size=SIDE, framework=framework, **usual | more)


def bits(value):
    """Returns a tensor or an array as a NumPy array; bfloat16 becomes its bits."""
    if isinstance(value, torch.Tensor):
        is_bfloat16 = value.dtype == torch.bfloat16
        return value.view(torch.int16).numpy() if is_bfloat16 else value.numpy()
    return value.view(np.int16) if value.dtype.name == "bfloat16" else value


def same(found, expected):
    """Returns whether a tensor has the values of an array, or a list those of a list."""
    if isinstance(found, list):
        return all(isinstance(one, str | bytes) for one in found) and found == list(expected)
    return found.shape == expected.shape and np.array_equal(bits(found), bits(expected))


def same_batch(found, expected):
    """Returns whether batches of both frameworks have the same fields with the same values."""
    return [*found] == [*expected] and all(same(found[name], expected[name]) for name in found)


def types():
    """Each field has its type, in each type and layout of images, with padding."""
    for dtype, layout in itertools.product(PIXELS, ("NHWC", "NCHW")):
        how = {"dtype": dtype, "layout": layout, "fields": FIELDS}
        for split in ("train", "validation"):
            both = zip(opened(split, **how), opened(split, "numpy", **how), strict=True)
            for found, expected in both:
                assert same_batch(found, expected)
                images = found["images"]
                shape = (3, SIDE, SIDE) if layout == "NCHW" else (SIDE, SIDE, 3)
                assert images.shape == (BATCH, *shape)
                assert images.dtype == PIXELS[dtype]
                assert images.is_contiguous()
                assert {name: found[name].dtype for name in TYPES} == TYPES
                assert isinstance(found["key"], list)
                assert isinstance(found["encoded"], list)
                yield 1
        assert not found["mask"].all()
        assert found["class_index"][-1] == -1


def views():
    """Several views have an axis, and a list of views has a tensor for each of its items."""
    for wanted in (2, [View(), View(count=3, image_size=(8, 12), area=(0.05, 0.3))]):
        for found, expected in zip(
            opened(views=wanted), opened(framework="numpy", views=wanted), strict=True
        ):
            images, arrays = found["images"], expected["images"]
            if isinstance(wanted, int):
                images, arrays = (images,), (arrays,)
                assert images[0].shape == (BATCH, 2, SIDE, SIDE, 3)
            else:
                assert images[1].shape == (BATCH, 3, 8, 12, 3)
            assert len(images) == len(arrays)
            assert all(isinstance(image, torch.Tensor) for image in images)
            assert all(map(same, images, arrays))
            yield 1


def tuples():
    """Labels are int64; those of padding are ignored by the loss, in each rank."""
    for batch in opened(as_tuple=True):
        assert isinstance(batch, tuple)
        assert len(batch) == 2
        assert batch[1].dtype == torch.int64
    weights = torch.randn(3, 71, generator=torch.Generator().manual_seed(1))

    def logits(images):
        return images.mean((1, 2)) @ weights

    padded = 0
    for size, batch in ((1, 4), (2, 16), (4, 8)):
        total = torch.zeros(())
        exact = torch.zeros(())
        for rank in range(size):
            how = {"split": "validation", "batch_size": batch, "world": World(rank, size)}
            pairs = opened(**how, as_tuple=True)
            for (images, labels), named in zip(pairs, opened(**how), strict=True):
                mask = named["mask"]
                assert labels.dtype == torch.int64
                assert torch.equal(images, named["images"])
                assert torch.equal(labels[mask], named["class_index"][mask])
                assert (labels[~mask] == IGNORED).all()
                padded += int((~mask).sum())
                real = named["class_index"][mask]
                expected = functional.cross_entropy(
                    logits(named["images"])[mask], real, reduction="sum"
                )
                found = functional.cross_entropy(logits(images), labels, reduction="sum")
                assert torch.allclose(found, expected)
                if mask.any():
                    mean = functional.cross_entropy(logits(images), labels)
                    assert torch.allclose(mean, expected / mask.sum())
                total += found
                exact += expected
                yield 1
        assert torch.allclose(total, exact)
    assert padded == 3 + 11 + 11


def memory():
    """Memory is not reused while a part of a batch's tensor is alive, and not written twice."""
    for how in ({"dtype": "float32"}, {"dtype": "bfloat16", "layout": "NCHW"}, {"views": 2}):
        reader = opened(batch_size=2, num_threads=2, **how)
        expected = [
            bits(batch["images"]).copy() for batch in opened(framework="numpy", batch_size=2, **how)
        ]
        kept = []
        for batch in itertools.islice(reader, 12):
            kept.append(batch["images"][1:])
            del batch
        # The reader makes more batches while those are kept.
        later = [bits(batch["images"]).copy() for batch in reader]
        for tensor, array in zip(kept, expected[:12], strict=True):
            assert same(tensor, torch.from_numpy(array[1:]))
            yield 1
        assert all(map(np.array_equal, later, expected[12:]))
        # A user may write to a tensor, for example to mirror it in place.
        kept[0].zero_()
        for tensor, array in zip(kept[1:], expected[1:12], strict=True):
            assert same(tensor, torch.from_numpy(array[1:]))


def state():
    """A reader of tensors has a length, and continues after a saved state."""
    reader = opened()
    expected = [batch["key"] for batch in opened(fields=("key",))]
    assert len(reader) == len(expected)
    steps = iter(opened(fields=("key", "images")))
    reader = opened(fields=("key", "images"))
    for step in range(1, 8):
        assert next(steps)["key"] == expected[step - 1]
    for _ in itertools.islice(reader, 7):
        pass
    saved = reader.state_dict()
    again = opened(fields=("key", "images"))
    again.load_state_dict(saved)
    rest = [*again]
    assert [batch["key"] for batch in rest] == expected[7:]
    assert all(isinstance(batch["images"], torch.Tensor) for batch in rest)
    assert again.state_dict()["epoch"] == 1
    yield from (1 for _ in rest)


def steps():
    """Steps that the workers of a DataLoader make are those of the reader, also as tuples."""
    named = [*opened()]
    keyed = {"fields": ("key", "images", "encoded", "column:brain")}
    others = [*opened(**keyed)]
    for workers, method in ((0, None), (2, "fork"), (2, "spawn")):
        how = {"batch_size": None, "num_workers": workers, "multiprocessing_context": method}
        reader = opened(as_tuple=True)
        found = [*DataLoader(reader, sampler=reader.sampler(), **how)]
        assert len(found) == len(named)
        for (images, labels), expected in zip(found, named, strict=True):
            assert torch.equal(images, expected["images"])
            assert torch.equal(labels, expected["class_index"])
            assert labels.dtype == torch.int64
            yield 1
        if method == "spawn":
            continue
        reader = opened(**keyed)
        for batch, expected in zip(
            DataLoader(reader, sampler=reader.sampler(), **how), others, strict=True
        ):
            assert batch["key"] == expected["key"]
            assert batch["encoded"] == expected["encoded"]
            assert torch.equal(batch["images"], expected["images"])
            assert torch.equal(batch["column:brain"], expected["column:brain"])
            assert batch["column:brain"].dtype == torch.bfloat16
            yield 1


def pairs(loader):
    """Returns the keys of an epoch in order, and the bytes and class of each."""
    keys = []
    examples = {}
    for batch in loader:
        assert batch["class_index"].dtype == torch.int64
        keys += batch["key"]
        for key, data, label in zip(
            batch["key"], batch["encoded"], batch["class_index"].tolist(), strict=True
        ):
            examples[key] = (data, label)
    return keys, examples


def source():
    """PyTorch shuffles the source itself; each of its workers opens the dataset."""
    expected = {}
    for batch in opened("validation", "numpy", fields=("key", "encoded", "class_index", "mask")):
        for key, data, label, is_real in zip(*batch.values(), strict=True):
            if is_real:
                expected[str(key)] = (data, int(label))
    numbers = opened("validation").source()
    assert numbers[0]["encoded"]  # this process has opened the shards before it forks
    for workers, method in ((0, None), (2, "fork"), (2, "spawn")):
        orders = []
        loader = DataLoader(
            numbers,
            BATCH,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context=method,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(5),
        )
        for _ in range(2):
            keys, examples = pairs(loader)
            assert len(keys) == len(numbers) == len(expected)
            assert examples == expected
            orders.append(keys)
            yield 1
        assert orders[0] != orders[1]
        assert orders[0] != [*expected]
    example = numbers[0]
    assert [type(value) for value in example.values()] == [bytes, int, str]
    # Workers show the chosen examples, with the random crops of the chosen epoch.
    how = {"classes": [8, 3, 40, 41], "seed": 1}
    crops = opened(**how).source(fields=("images", "class_index"), epoch=2)
    reader = opened(**how)
    reader.epoch = 2
    (expected,) = reader
    order = torch.argsort(expected["class_index"])
    assert torch.equal(crops[0]["images"], expected["images"][order][0])
    # A fork lacks the threads that this process has started for the first example.
    for method in ("fork", "spawn"):
        (found,) = DataLoader(crops, BATCH, num_workers=1, multiprocessing_context=method)
        assert found["class_index"].tolist() == [3, 8, 40, 41]
        assert torch.equal(found["class_index"], expected["class_index"][order])
        assert torch.equal(found["images"], expected["images"][order])
        yield 1


def mixes():
    """Mixes have the tensors of their parts."""
    how = {"training": True, "as_tuple": False}
    found, expected = (
        make_mix({split: opened(split, framework, **how) for split in ("train", "validation")})
        for framework in ("torch", "numpy")
    )
    for batch, arrays in zip(found, expected, strict=True):
        assert batch["images"].dtype == torch.float32
        assert batch["class_index"].dtype == torch.int64
        assert isinstance(batch["part"], torch.Tensor)
        assert same_batch(batch, arrays)
        yield 1


def dali():
    """DALI's batches are tensors, too; they stay the same while they are kept."""
    for how in ({}, {"dtype": "uint8"}, {"dtype": "float16", "layout": "NCHW"}):
        how |= {"backend": "dali", "fields": ("images", "class_index", "mask", "key", "encoded")}
        for split in ("train", "validation"):
            kept = [*opened(split, **how)]
            expected = [*opened(split, "numpy", **how)]
            assert kept[0]["class_index"].dtype == torch.int64
            assert kept[0]["images"].dtype == PIXELS[how.get("dtype", "float32")]
            assert all(map(same_batch, kept, expected))
            yield from (1 for _ in kept)
    *_, (images, labels) = opened("validation", backend="dali", as_tuple=True)
    assert isinstance(images, torch.Tensor)
    assert labels[1:].tolist() == [IGNORED] * 3


if __name__ == "__main__":
    print(json.dumps({name: sum(globals()[name]()) for name in sys.argv[2:]}))
