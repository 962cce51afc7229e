"""What ranks say to each other is JSON: nothing that is received is run."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.core.world import LEFT, World
from imagenet_prep.trainer.comm import Comm, Horovod, lost_rank, require_gpus
from tests.kit.limits import Limits

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("tf")]

VALUE = {"epoch": 3, "at": 1764000000.123456, "name": "数据", "none": None, "all": [True, 1.5]}


class Wire:
    """Stands for Horovod: what rank 0 broadcasts, another rank receives."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def rank(self, number: int, monkeypatch: pytest.MonkeyPatch) -> Comm:
        """Returns a rank of two; 0 speaks, 1 hears."""
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
        # The import system takes the attribute of the package, where there is one.
        sys.modules["horovod"].tensorflow = fake  # type: ignore[attr-defined]
        return Horovod(World(number, 2, number, 2), fp16_compression=False)

    def say(self, data: bytes) -> None:
        """Lets rank 0 have sent some bytes."""
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

    with pytest.raises(ImagenetPrepError, match="the message of rank 0 is not valid JSON"):
        wire.rank(1, monkeypatch).broadcast_object(None)
    assert not (tmp_path / "owned").exists()
    # It would have run.
    pickle.loads(poison)
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize("data", [b"\xff", b"[" * 100_000, b"NaN", b"{} {}"])
def test_what_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    wire = Wire()
    wire.say(data)

    with pytest.raises(ImagenetPrepError, match="the message of rank 0 is not valid JSON"):
        wire.rank(1, monkeypatch).broadcast_object(None)


@pytest.mark.parametrize("num_bytes", [-1, 0, (1 << 20) + 1, (1 << 31) - 1])
def test_an_object_without_bounds_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    wire = Wire()
    wire.sent["object.size"] = np.array([num_bytes], np.int32)

    with pytest.raises(ImagenetPrepError, match=f"announces {num_bytes:,} bytes of JSON"):
        wire.rank(1, monkeypatch).broadcast_object(None)


def test_what_is_no_json_never_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    for comm in (Comm(), wire.rank(0, monkeypatch)):
        with pytest.raises(TypeError):
            comm.broadcast_object(ValueError("an object"))
    assert wire.sent == {}


def test_only_the_loss_of_another_rank_is_told_to_the_launcher(
    limits: Limits, capsys: pytest.CaptureFixture[str]
) -> None:
    limits(left_ranks_s=0.0)
    lost = type("HorovodInternalError", (Exception,), {"__module__": "horovod.common"})

    for error in (ValueError("horovod"), ImagenetPrepError("no such thing")):
        with pytest.raises(type(error)), lost_rank():
            raise error
    assert capsys.readouterr().err == ""

    with pytest.raises(IncompleteError, match="another rank died or stalled"), lost_rank():
        raise lost("Horovod has been shut down")
    assert capsys.readouterr().err == f"{LEFT}\n"


def test_each_local_rank_has_a_gpu_of_its_own_or_there_is_none() -> None:
    require_gpus(local_rank=7, gpus=8)
    require_gpus(local_rank=1, gpus=0)
    with pytest.raises(ImagenetPrepError, match=r"local rank 8 has no GPU.*8 GPUs.*slots=8"):
        require_gpus(local_rank=8, gpus=8)
