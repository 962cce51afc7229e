"""`train --device`: images that DALI decodes on a GPU reach TensorFlow without a copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit import fake_gpu
from tests.kit.messages import says
from tests.kit.reading import dali
from tests.kit.training import NUM_TRAIN, NUM_VALIDATION, rows

__all__ = ["dali"]


@pytest.mark.tf
@pytest.mark.dali
@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_the_network_reads_dalis_memory_without_a_copy(
    tf: Any,
    dali: Any,
    train: Callable[..., Any],
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In all batches of training and of the evaluation."""
    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    class Learner(TensorFlowLearner):
        def step(self, number: int, batch: Any, rate: float, *, asks: bool) -> Any:
            addresses.append(of(batch["images"]))
            return super().step(number, batch, rate, asks=asks)

        def logits(self, images: Any) -> Any:
            addresses.append(of(images))
            return super().logits(images)

    def of(tensor: Any) -> int:
        return fake_gpu.address(tf.experimental.dlpack.to_dlpack(tensor))

    addresses: list[int] = []
    decoded = fake_gpu.install(monkeypatch)
    monkeypatch.setattr("imagenet_prep.trainer.tensorflow_learner.TensorFlowLearner", Learner)
    seen = [SimpleNamespace(name="/physical_device:GPU:0")]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: seen)

    score = train(tmp_path, backend="auto", device=device)

    assert len(decoded) == 2 * (NUM_TRAIN // 8) + -(-NUM_VALIDATION // 8)
    assert [each.address for each in decoded] == addresses
    assert score.top1 > 0.5
    assert says("jpegs-decoded", "dali", "GPU").search(capsys.readouterr().out)
    (start,) = rows(tmp_path, "start")
    assert (start["backend"], start["device"]) == ("dali", "gpu")


@pytest.mark.tf
def test_tfdata_copies_images_to_the_gpu_ahead(
    tf: Any, shades: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is a CPU here, because TensorFlow's transformation takes any device."""
    from imagenet_prep.read import make_dataset

    made: dict[str, Any] = {"batch_size": 8, "image_size": 16, "backend": "tfdata"}
    expected = [batch["images"].numpy() for batch in make_dataset(shades, "train", **made)]
    asked: list[str] = []
    prefetch = tf.data.experimental.prefetch_to_device

    def spied(name: str, buffer_size: int) -> Any:
        asked.append(name)
        return prefetch(name, buffer_size)

    monkeypatch.setattr(tf.data.experimental, "prefetch_to_device", spied)
    gpus = [SimpleNamespace(name="/device:CPU:0")]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: gpus)
    reader = make_dataset(shades, "train", **made)
    found = [batch["images"].numpy() for batch in reader]
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))
    assert asked == ["/device:CPU:0"]
