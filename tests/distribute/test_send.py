"""A giver whose own disk fails: the leader must not hear that the neighbour is lost."""

from __future__ import annotations

import errno
import io
import queue
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.placement import WHOLE
from imagenet_prep.distribute import send
from imagenet_prep.distribute.wire import Frame
from imagenet_prep.hosts.process import Ending
from tests.kit.replicas import make_dataset

SHARD = "train-00000-of-00002"
INDEX = naming.index_name(SHARD)


class Neighbour:
    """A receiver that lacks one file, and its channel."""

    def __init__(self, *_: object) -> None:
        self.channel = self
        self._says: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._says.put(Frame("lacking", {"name": INDEX, "begun": 0}))
        self._says.put(Frame("lacks", {"files": 1}))

    def begin(self, *_: object, **__: object) -> None:
        """As of a channel."""

    def read(self) -> Frame | None:
        return self._says.get()

    def write(self, *_: object, **__: object) -> None:
        """As of a channel."""

    def kill(self) -> None:
        self._says.put(None)

    def end(self) -> Ending:
        return Ending(-9, "")


class Leader:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def write(self, kind: str, **_: object) -> None:
        self.heard.append(kind)


class Failing(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:  # noqa: ARG002
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("trusted", [True, False], ids=["leader", "host"])
def test_a_giver_whose_own_disk_fails_names_the_disk_and_not_its_neighbour(
    tmp_path: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    data = (tmp_path / "set" / naming.MANIFEST).read_bytes()
    monkeypatch.setattr(send, "Process", Neighbour)
    monkeypatch.setattr(send.Hop, "_open", lambda *_: Failing())
    monkeypatch.setattr(send.Hop, "_offer_what_is_here", lambda hop: hop._line.offer([INDEX]))
    fields: dict[str, Any] = {
        "root": str(tmp_path / "set"),
        "trusted": trusted,
        "limit": 0,
        "address": "b",
        "python": "python",
        "path": "~/set",
        "origin": "origin",
        "prove": False,
        "placement": WHOLE,
    }
    leader = Leader()
    hop = send.Hop(Frame("give", fields, data), leader, 60.0)  # type: ignore[arg-type]

    with pytest.raises(StoreError, match=rf"cannot read .*{INDEX}: Input/output error"):
        hop.run()
    assert leader.heard == ["lacks"]
