"""Writes TensorBoard scalars as tf.summary.scalar does (tensorflow/core/util/event.proto)."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from imagenet_prep.dataset.protobuf import varint
from imagenet_prep.dataset.tfrecord import frame_parts
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors

EVENTS = "events.out.tfevents."  # prefix of the file names
_VERSION = b"brain.Event:2"


class Scalars:
    """Writes a new TensorBoard file in a folder, without buffering."""

    def __init__(self, folder: Path) -> None:
        seconds, rest_ns = divmod(time.time_ns(), 10**9)
        name = f"{EVENTS}{seconds}.{socket.gethostname()}.{os.getpid()}.{rest_ns}.v2"
        with storage_errors("write", folder / name):
            folder.mkdir(parents=True, exist_ok=True)
            file = LocalStore(folder).open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._file = open(file, "wb", buffering=0)  # noqa: SIM115 - until `close`
        self._put(_field(3, _VERSION))

    def write(self, step: int, group: str, values: Mapping[str, float]) -> None:
        """Writes each value of a step as GROUP/NAME."""
        summary = b"".join(_value(f"{group}/{name}", value) for name, value in values.items())
        self._put(b"\x10" + varint(step) + _field(5, summary))

    def _put(self, event: bytes) -> None:
        timed = b"\x09" + struct.pack("<d", time.time()) + event
        self._file.write(b"".join(frame_parts((timed, b"", b""))))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _value(tag: str, value: float) -> bytes:
    """Returns a summary value: a float32 scalar that TensorBoard shows in a scalar plot."""
    tensor = b"\x08\x01" + _field(2, b"") + _field(5, bytes(ctypes.c_float(value)))
    plotted = _field(1, _field(1, b"scalars")) + b"\x20\x01"
    return _field(1, _field(1, tag.encode()) + _field(8, tensor) + _field(9, plotted))


def _field(number: int, content: bytes) -> bytes:
    """Returns a protobuf field of bytes."""
    return bytes((number << 3 | 2,)) + varint(len(content)) + content
