"""A double of a process on a different host: its messages are prepared, its input is recorded."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from imagenet_prep.hosts.channel import MessageFrame, Process
from imagenet_prep.hosts.commands import Ending, Login


def say(kind: str, **fields: Any) -> MessageFrame:
    """Returns a message."""
    return MessageFrame(kind, fields, b"")


class ScriptedProcess(Process):
    """Replaces a process and the channel to it.

    Attributes:
      heard: (kind, fields) of the messages that it received, in order, without chunks.
      chunks: the bodies of chunks, by the name of their file.
      killed: whether it was killed.
      answer: called with each received message; returns its answers. None ends it.
    """

    def __init__(
        self,
        says: Sequence[MessageFrame | Exception | None],
        answer: Callable[[str, dict[str, Any]], Sequence[MessageFrame | None]] = lambda *_: (),
        ending: Ending = Ending(0, ""),  # noqa: B008 - it is never changed
    ) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.chunks: dict[str, bytes] = {}
        self.killed = False
        self.answer = answer
        self.channel: Any = self
        self._login = Login(["no-ssh"])
        self._ending = ending
        self._file = ""
        self._queue: queue.SimpleQueue[MessageFrame | Exception | None] = queue.SimpleQueue()
        for each in says:
            self._queue.put(each)

    def begin(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        self.write(kind, body, **fields)

    def write(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        if kind == "chunk":
            self.chunks[self._file] = self.chunks.get(self._file, b"") + body
            return
        self._file = fields.get("name", self._file)
        self.heard.append((kind, fields))
        for each in self.answer(kind, {"name": self._file} | fields):
            self._queue.put(each)

    def read(self) -> MessageFrame | None:
        said = self._queue.get()
        if isinstance(said, Exception):
            raise said
        return said

    def kill(self) -> None:
        self.killed = True
        self._queue.put(None)

    def _end(self, patience_s: float = 0.0) -> Ending:  # noqa: ARG002 - it has ended
        return self._ending
