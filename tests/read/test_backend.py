"""Where a rank decodes: on its GPU if there is one and DALI is installed, else on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import backend, make_dataset


@pytest.mark.parametrize(
    ("device", "name", "local_rank", "gpus", "installed", "expected"),
    [
        ("auto", "auto", 0, 0, True, "cpu"),
        ("auto", "auto", 1, 2, True, "gpu"),
        ("auto", "dali", 1, 2, True, "gpu"),
        ("auto", "auto", 2, 2, True, "cpu"),
        ("auto", "auto", 0, 2, False, "cpu"),
        ("auto", "native", 0, 2, True, "cpu"),
        ("auto", "tfdata", 0, 2, True, "cpu"),
        ("cpu", "auto", 0, 2, True, "cpu"),
        ("gpu", "auto", 0, 0, False, "gpu"),
    ],
)
def test_choose_device(
    device: str,
    name: str,
    local_rank: int,
    gpus: int,
    installed: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "gpus", lambda: gpus)
    monkeypatch.setattr(backend, "lacking", lambda _: [] if installed else ["DALI is missing"])
    assert backend.choose_device(device, name, local_rank) == expected


@pytest.mark.parametrize("world", [World(1, 2), None])
def test_device_gpu_without_a_gpu_is_refused(
    colours: Path, world: World | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI's own error is a page about CUDA, and comes with the first batch."""
    monkeypatch.setattr(backend, "gpus", lambda: 1)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UsageError, match=r"local rank 1 needs its own GPU, but CUDA lists 1 .* device 'cpu'"
    ):
        make_dataset(colours, "train", 8, world=world, device="gpu")
