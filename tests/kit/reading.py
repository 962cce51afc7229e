"""Datasets with images that encode their example, and all backends that read them."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.read import Batch, Reader, make_dataset
from tests.kit import faults
from tests.kit.samples import add_tables
from tests.kit.tfrecords import numbers_of, picture, plain, scene, write_dataset

# Shards of unequal length; the last step of nearly every world is not full.
TRAIN = (11, 9, 10, 12, 8)
VALIDATION = (7, 6, 8)
NUM_TRAIN = sum(TRAIN)
NUM_VALIDATION = sum(VALIDATION)
BACKENDS = [
    pytest.param("tfdata", marks=pytest.mark.tf),
    pytest.param("dali", marks=pytest.mark.dali),
    "native",
]
# The fixture that skips if a backend's requirements are not installed.
NEEDS = {"tfdata": "tf", "dali": "dali"}


@pytest.fixture(scope="session")
def dali() -> ModuleType:
    """NVIDIA DALI, if it is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        return pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")


def on_backends(
    names: Sequence[str], few: Iterable[Any], cases: Iterable[Any], native: Iterable[Any] = ()
) -> pytest.MarkDecorator:
    """Parametrises a test over all backends and cases: a graph of TensorFlow takes 0.2 s.

    For decisions before a backend gets the images: the order, ranks, states, records.

    Args:
      names: arguments of the test, besides `backend`.
      few: the cases in which `make test` tries tfdata and DALI; all others are long.
      cases: values, or tuples of values if there are several names.
      native: the cases in which it tries the native backend; by default all.
    """
    every = list(cases)
    short = {True: list(few), False: list(native) or every}
    params = []
    for backend, case in itertools.product(("tfdata", "dali", "native"), every):
        values = case if isinstance(case, tuple) else (case,)
        marks = [getattr(pytest.mark, NEEDS[backend])] if backend in NEEDS else []
        if case not in short[backend in NEEDS]:
            marks.append(pytest.mark.long)
        shown = "-".join(str(getattr(value, "__name__", value)) for value in values)
        params.append(pytest.param(backend, *values, marks=marks, id=f"{backend}-{shown}"))
    return pytest.mark.parametrize(("backend", *names), params, indirect=["backend"])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend; each test runs on all."""
    if request.param in NEEDS:
        request.getfixturevalue(NEEDS[request.param])
    return str(request.param)


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 + 21 images of one colour each, which encodes the example's class; read-only."""
    return _written(tmp_path_factory.mktemp("colours") / "set", plain)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 + 21 images that differ everywhere; the class encodes the example; read-only."""
    return _written(tmp_path_factory.mktemp("scenes") / "set", scene)


def _written(root: Path, encode: Callable[[int], bytes]) -> Path:
    splits: dict[str, Any] = {}
    number = 0
    for split, counts in {"train": TRAIN, "validation": VALIDATION}.items():
        shards = []
        for count in counts:
            shards.append([picture(n, encode(n)) for n in range(number, number + count)])
            number += count
        splits[split] = shards
    write_dataset(root, splits, num_classes=number)
    add_tables(root)
    return root


def reader_of(root: Path, split: str, batch: int, backend: str, **more: Any) -> Reader:
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "world": World()}
    return make_dataset(root, split, batch, 16, backend=backend, **settings | more)


def seen(batch: Batch) -> list[int]:
    """Returns the examples of a batch by their colours, which must agree with its labels."""
    mask = batch["mask"]
    numbers = numbers_of(batch["images"][mask])
    assert batch["class_index"][mask].tolist() == numbers
    assert (batch["class_index"][~mask] == -1).all()
    return numbers


def seen_in(batches: Iterable[Batch]) -> list[int]:
    """Returns the examples of batches, in their order."""
    return [*itertools.chain.from_iterable(map(seen, batches))]


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


SHARD = "train-00001-of-00005"


def offsets(root: Path, shard: str = SHARD) -> list[int]:
    lines = (root / schema.index_name(shard)).read_text().splitlines()
    return [int(line.split()[0]) for line in lines]


def flip(record: int, byte: int) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        faults.flip_bit(root / SHARD, offsets(root)[record] + byte)

    return damage


def jpeg(mode: str, size: tuple[int, int] = (50, 40), **how: Any) -> bytes:
    """Returns a smooth image."""
    x, y = np.meshgrid(np.linspace(0, 200, size[0]), np.linspace(20, 230, size[1]))
    picture = Image.fromarray(np.stack([x, y, 255 - x], axis=2).astype(np.uint8)).convert(mode)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=95, **how)
    return out.getvalue()


ODD = {
    "4:2:0": jpeg("RGB", subsampling="4:2:0"),
    "4:2:2": jpeg("RGB", subsampling="4:2:2"),
    "4:4:4": jpeg("RGB", subsampling="4:4:4"),
    "grey": jpeg("L"),
    "progressive": jpeg("RGB", progressive=True),
    "restarts": jpeg("RGB", restart_marker_rows=1),
    "CMYK": jpeg("CMYK"),
    "one row": jpeg("RGB", (50, 1)),
    "one pixel": jpeg("RGB", (1, 1)),
}
