"""What a network says of each image of a split, of all ranks together, in one file of rank 0."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import MOST, Prediction
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.feed import Batch

# Keys are sent in a room of so many bytes, or a multiple: MXNet's servers want few shapes.
_KEY_BYTES = 64


class Predicted:
    """Gathers predictions batch by batch; every rank sees its own, in the order of the records."""

    def __init__(self, path: Path, comm: Comm, class_numbers: Sequence[int]) -> None:
        """Takes the file, and the number in the class list of each class index of the network."""
        self._path = path
        self._comm = comm
        self._class_numbers = np.asarray(class_numbers)
        self._found: list[Prediction] = []

    def see(self, batch: Batch, logits: Any) -> None:
        """Takes one batch of each rank."""
        most = min(MOST, logits.shape[1])
        rows = np.asarray(logits, np.float64)
        with np.errstate(invalid="ignore"):
            shares = np.exp(rows - rows.max(1, keepdims=True))
            shares = np.nan_to_num(shares / shares.sum(1, keepdims=True))
        # Of equal ones, the class that comes first.
        order = np.argsort(-shares, axis=1, kind="stable")[:, :most]
        label, mask = (np.asarray(batch[name])[:, None] for name in ("class_index", "mask"))
        likely = np.take_along_axis(shares, order, 1)
        mine = np.concatenate([mask, label, order, likely], 1).astype(np.float64)
        keys = [each.encode() if isinstance(each, str) else each for each in _texts(batch["key"])]
        said = self._comm.gather(mine, "predictions")
        names = self._gathered(keys)
        for row, key in zip(said.reshape(-1, mine.shape[1]), names, strict=True):
            if row[0]:
                numbers = self._class_numbers[row[1 : 2 + most].astype(np.int64)].tolist()
                share = tuple(map(float, row[2 + most :]))
                self._found.append(Prediction(key.decode(), numbers[0], tuple(numbers[1:]), share))

    def _gathered(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the keys of all ranks, rank after rank."""
        lengths = self._comm.gather(np.array([len(key) for key in keys], np.float64), "lengths")
        room = -(-max(1, int(lengths.max())) // _KEY_BYTES) * _KEY_BYTES
        mine = np.frombuffer(b"".join(key.ljust(room, b"\0") for key in keys), np.uint8)
        came = self._comm.gather(mine.astype(np.float64), f"keys-{room}")
        data = came.astype(np.uint8).tobytes()
        sizes = lengths.astype(np.int64).ravel().tolist()
        return [data[n * room : n * room + size] for n, size in enumerate(sizes)]

    def write(self) -> None:
        """Writes the file, on rank 0; whole or not at all.

        Raises:
          StoreError, IncompleteError: it cannot be written, or the disk is full.
        """
        if self._comm.world.rank:
            return
        stream = io.StringIO()
        predictions.write(stream, self._found)
        with storage_errors("write", self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        LocalStore(self._path.parent).write(self._path.name, stream.getvalue().encode())


def _texts(keys: Any) -> list[Any]:
    """Returns keys as text or bytes, from an array of NumPy or a tensor of TensorFlow."""
    found: list[Any] = np.asarray(keys).tolist()
    return found
