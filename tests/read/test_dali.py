"""DALI on a simulated GPU: the GPU of a rank, and the lifetime of a batch's memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.world import World
from imagenet_prep.read import batch, make_dataset
from tests.kit import fake_gpu

pytestmark = pytest.mark.dali


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("recipe", ["resnet", "cifar10"])
def test_rank_decodes_on_gpu_of_its_local_rank(
    dali: Any, colours: Path, split: str, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = fake_gpu.install(monkeypatch, gpus=4)
    made: dict[str, Any] = {"backend": "dali", "device": "gpu", "framework": "dlpack"}
    world = World(5, 6, 2, 3)
    reader = make_dataset(colours, split, 2, 16, recipe=recipe, world=world, **made)
    seen = [batch["images"].__dlpack_device__() for batch in reader]
    assert seen == [(2, 2)] * len(reader)
    assert [each.gpu for each in decoded] == [2] * len(reader)
    assert reader.decoder == {"backend": "dali", "device": "gpu"}


def test_memory_of_a_batch_stays_for_two_steps(
    dali: Any, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU may read the images of a step after Python has released them."""
    fake_gpu.install(monkeypatch)
    made: dict[str, Any] = {"backend": "dali", "device": "gpu", "framework": "dlpack"}
    batches = iter(make_dataset(colours, "train", 2, 16, world=World(), **made))
    first = weakref.ref(next(batches)["images"])
    next(batches)
    gc.collect()
    assert first() is not None
    next(batches)
    next(batches)
    gc.collect()
    assert first() is None


@pytest.mark.tf
@pytest.mark.parametrize(("seen", "expected"), [([3], 0), ([1, 3], 1), ([], None), ([0], None)])
def test_tensorflow_gets_its_gpu_number_or_a_copy(
    dali: Any, tf: Any, seen: list[int], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that shows TensorFlow only GPU 3 has it as GPU 0; a different number is an error."""
    from imagenet_prep.read.dali import _to_tensorflow

    class Tensor:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 3

        def as_cpu(self) -> Any:
            return np.arange(3.0)

    def on_device(_: Any, number: int) -> Any:
        numbers.append(number)
        return np.arange(3.0).__dlpack__()

    numbers: list[int] = []
    gpus = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in seen]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: gpus)
    monkeypatch.setattr(batch, "on_device", on_device)
    assert _to_tensorflow(Tensor()).numpy().tolist() == [0, 1, 2]
    assert numbers == ([] if expected is None else [expected])


def test_device_number_is_written_into_a_capsule() -> None:
    array = np.arange(3.0)
    capsule = batch.on_device(array, 5)
    assert fake_gpu.address(capsule) == array.ctypes.data
    assert batch._field(capsule, batch.ctypes.c_int32, 12).value == 5
