"""Ranks exchange JSON, and nothing that they receive is executed."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core import imports
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.core.world import LEFT, World
from imagenet_prep.trainer.comm import Comm, Horovod, lost_rank, meet, require_gpus
from tests.kit.limits import Limits
from tests.kit.messages import says

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("tf")]

VALUE = {"epoch": 3, "at": 1764000000.123456, "name": "数据", "none": None, "all": [True, 1.5]}


class Wire:
    """Replaces Horovod: a rank receives the message that rank 0 broadcast."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def rank(self, number: int, monkeypatch: pytest.MonkeyPatch) -> Comm:
        """Returns a rank of two: 0 sends and 1 receives."""
        fake: Any = ModuleType("horovod.tensorflow")
        fake.init = lambda: None
        fake.rank = lambda: number
        fake.size = lambda: 2
        fake.local_rank, fake.local_size = fake.rank, fake.size
        fake.Compression = SimpleNamespace(none=None, fp16=None)

        def broadcast(tensor: Any, root_rank: int, name: str) -> Any:
            assert root_rank == 0
            if number == 0:
                self.sent[name] = tensor.numpy()
            assert self.sent[name].dtype == tensor.numpy().dtype
            assert self.sent[name].shape == tensor.numpy().shape
            return SimpleNamespace(numpy=lambda: self.sent[name])

        fake.broadcast = broadcast
        monkeypatch.setitem(sys.modules, "horovod", ModuleType("horovod"))
        monkeypatch.setitem(sys.modules, "horovod.tensorflow", fake)
        # The import system uses the attribute of the package if it exists.
        sys.modules["horovod"].tensorflow = fake  # type: ignore[attr-defined]
        return Horovod(World(number, 2, number, 2), fp16_compression=False)

    def say(self, data: bytes) -> None:
        """Makes rank 0 send these bytes."""
        self.sent["object.size"] = np.array([len(data)], np.int32)
        self.sent["object.bytes"] = np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("value", [None, 1, "", VALUE, [VALUE, [], {}]])
def test_a_value_is_the_same_on_every_rank(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    wire = Wire()

    assert wire.rank(0, monkeypatch).broadcast_object(value) == value
    assert wire.rank(1, monkeypatch).broadcast_object("of rank 1") == value
    assert Comm().broadcast_object(value) == value


class Poison:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_is_refused_and_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wire = Wire()
    poison = pickle.dumps(Poison(tmp_path / "owned"))
    wire.say(poison)

    with pytest.raises(ImagenetPrepError, match=says("message-rank-0-not-valid")):
        wire.rank(1, monkeypatch).broadcast_object(None)
    assert not (tmp_path / "owned").exists()
    # The pickle would have been executed by now.
    pickle.loads(poison)
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize("data", [b"\xff", b"[" * 100_000, b"NaN", b"{} {}"])
def test_messages_of_invalid_json_are_refused(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    wire = Wire()
    wire.say(data)

    with pytest.raises(ImagenetPrepError, match=says("message-rank-0-not-valid")):
        wire.rank(1, monkeypatch).broadcast_object(None)


@pytest.mark.parametrize("num_bytes", [-1, 0, (1 << 20) + 1, (1 << 31) - 1])
def test_an_object_without_bounds_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    wire = Wire()
    wire.sent["object.size"] = np.array([num_bytes], np.int32)

    with pytest.raises(
        ImagenetPrepError, match=says("rank-0-announces-bytes-json", f"{num_bytes:,}")
    ):
        wire.rank(1, monkeypatch).broadcast_object(None)


def test_objects_outside_json_are_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    for comm in (Comm(), wire.rank(0, monkeypatch)):
        with pytest.raises(TypeError):
            comm.broadcast_object(ValueError("an object"))
    assert wire.sent == {}


def test_only_lost_ranks_are_reported_to_the_launcher(
    limits: Limits, capsys: pytest.CaptureFixture[str]
) -> None:
    limits(left_ranks_s=0.0)
    lost = type("HorovodInternalError", (Exception,), {"__module__": "horovod.common"})

    for error in (ValueError("horovod"), ImagenetPrepError("no such thing")):
        with pytest.raises(type(error)), lost_rank():
            raise error
    assert capsys.readouterr().err == ""

    with pytest.raises(IncompleteError, match=says("another-rank-died-stalled-see")), lost_rank():
        raise lost("Horovod has been shut down")
    assert capsys.readouterr().err == f"{LEFT}\n"


def test_more_local_ranks_than_gpus_are_refused() -> None:
    require_gpus(local_rank=7, gpus=8)
    require_gpus(local_rank=1, gpus=0)
    with pytest.raises(
        ImagenetPrepError, match=says("local-rank-no-gpu-write", 8, ..., "8 GPUs", 8)
    ):
        require_gpus(local_rank=8, gpus=8)


@pytest.mark.parametrize(
    ("gpus", "size", "rank", "has_nccl", "warns"),
    [
        (8, 2, 0, False, True),
        (0, 2, 0, False, False),
        (8, 1, 0, False, False),
        (8, 2, 1, False, False),
        (8, 2, 0, True, False),
    ],
)
def test_first_rank_warns_of_sums_on_the_cpu(
    gpus: int,
    size: int,
    rank: int,
    has_nccl: bool,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = SimpleNamespace(
        init=lambda: None,
        rank=lambda: rank,
        size=lambda: size,
        local_rank=lambda: rank,
        local_size=lambda: size,
        nccl_built=lambda: has_nccl,
    )
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "horovod.torch", module)
    monkeypatch.setattr(imports, "gpus_of", lambda _: gpus)

    found, world = meet("torch", World(rank, size, rank, size))

    assert found is module
    assert (world.rank, world.size) == (rank, size)
    said = says("horovod-sums-gradients-cpu-although", "8 GPUs").search(capsys.readouterr().err)
    assert bool(said) == warns
