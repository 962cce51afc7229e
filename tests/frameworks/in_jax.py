"""Checks batches of framework="jax" against the reader's NumPy arrays, with JAX itself.

`python in_jax.py SET BLOCK` asserts, and prints the cases that it checked.
"""

import itertools
import json
import sys

import jax
import numpy as np
from jax import numpy as jnp

from imagenet_prep.core.world import World
from imagenet_prep.read import View, make_dataset
from tests.kit import blocks

BATCH = 4
SIDE = 16
PIXELS = ("float32", "float16", "bfloat16", "uint8")
FIELDS = ("images", "class_index", "mask", "key", "number", "boxes", "mirrored", "encoded")


def opened(split="train", framework="jax", **more):
    """Opens the dataset of the command line."""
    usual = {"backend": "native", "world": World(), "seed": 3, "batch_size": BATCH}
    return make_dataset(sys.argv[1], split, image_size=SIDE, framework=framework, **usual | more)


def same(found, expected):
    """Returns whether a JAX array has the values of an array, or a list those of a list."""
    if isinstance(found, list):
        return all(isinstance(one, str | bytes) for one in found) and found == list(expected)
    return isinstance(found, jax.Array) and np.array_equal(np.asarray(found), expected)


def types():
    """Each field is an array of JAX, in each type and layout of images."""
    for dtype, layout, split in itertools.product(
        PIXELS, ("NHWC", "NCHW"), ("train", "validation")
    ):
        how = {"dtype": dtype, "layout": layout, "fields": FIELDS}
        for found, expected in zip(
            opened(split, **how), opened(split, "numpy", **how), strict=True
        ):
            assert [*found] == [*expected]
            assert all(same(found[name], expected[name]) for name in found)
            assert found["images"].dtype == jnp.dtype(dtype)
            assert found["class_index"].dtype == jnp.int32
            assert found["mask"].dtype == jnp.bool_
        yield [dtype, layout, split]


def tuples():
    """Images, labels and weights: the weighted loss is that of the real examples."""
    weights = jax.random.normal(jax.random.key(1), (3, 71))

    @jax.jit
    def losses(images, labels):
        scores = jax.nn.log_softmax(images.mean((1, 2)) @ weights)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]

    for size, batch in ((1, 4), (4, 8)):
        sums = np.zeros(2)
        exact = np.zeros(2)
        for rank in range(size):
            how = {"split": "validation", "batch_size": batch, "world": World(rank, size)}
            for found, named in zip(
                opened(**how, as_tuple=True), opened(framework="numpy", **how), strict=True
            ):
                images, labels, counted = found
                assert all(isinstance(array, jax.Array) for array in found)
                assert (labels.dtype, counted.dtype) == (jnp.int32, jnp.float32)
                mask = named["mask"]
                assert np.array_equal(counted, mask)
                assert np.array_equal(labels, np.where(mask, named["class_index"], 0))
                sums += [float((losses(images, labels) * counted).sum()), float(counted.sum())]
                real = losses(jnp.asarray(named["images"]), jnp.abs(named["class_index"]))
                exact += [float(real[mask].sum()), mask.sum()]
        assert np.allclose(sums, exact)
        yield ["tuples", size, int(sums[1])]


def memory():
    """Arrays keep their values while the reader makes more batches."""
    for dtype in ("float32", "bfloat16"):
        expected = [b["images"].copy() for b in opened(framework="numpy", dtype=dtype)]
        kept = [batch["images"] for batch in opened(dtype=dtype)]
        assert all(map(same, kept, expected))
        yield ["memory", dtype, len(kept)]


def views():
    """A list of views has an array for each of its items."""
    how = {"views": [View(), View(count=3, image_size=8, area=(0.05, 0.3))]}
    for found, expected in zip(opened(**how), opened(framework="numpy", **how), strict=True):
        assert [array.shape for array in found["images"]] == [(4, 1, 16, 16, 3), (4, 3, 8, 8, 3)]
        assert all(map(same, found["images"], expected["images"]))
    yield ["views", 2]


def state():
    """A reader of JAX's arrays continues after a saved state."""
    expected = [batch["key"] for batch in opened(fields=("key",))]
    reader = opened(fields=("key", "images"))
    for _ in itertools.islice(reader, 5):
        pass
    again = opened(fields=("key", "images"))
    again.load_state_dict(reader.state_dict())
    assert len(again) == len(expected)
    assert [batch["key"] for batch in again] == expected[5:]
    yield ["state", len(expected)]


def single():
    """Images of a source are arrays, and its other fields numbers, text and bytes."""
    source = opened("validation").source(fields=("images", "encoded", "key"))
    first = next(iter(opened("validation", "numpy", fields=("images", "encoded", "key"))))
    for number in range(BATCH):
        example = source[number]
        assert same(example["images"], first["images"][number])
        assert example["encoded"] == first["encoded"][number]
        assert example["key"] == first["key"][number]
    yield ["source", len(source)]


def page():
    """The line of the page divides a batch among the devices."""
    mesh = jax.make_mesh((len(jax.devices()),), ("images",))
    sharding = jax.NamedSharding(mesh, jax.P("images"))
    for batch in opened(framework="numpy"):
        names = {"jax": jax, "sharding": sharding, "batch": batch}
        divided = blocks.run(sys.argv[2], {}, **names)["images"]
        assert same(divided, batch["images"])
        assert len(divided.sharding.device_set) == len(jax.devices())
    yield ["page", len(jax.devices())]


if __name__ == "__main__":
    checks = (types, tuples, memory, views, state, single, page)
    print(json.dumps([*itertools.chain.from_iterable(check() for check in checks)]))
