"""TensorBoard's files; tests/trainer/test_training.py reads them with TensorFlow."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from imagenet_prep.dataset.record_files import read_records
from imagenet_prep.trainer.log import EVENTS, Scalars


def test_each_write_appends_a_record_immediately(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path / "tensorboard")
    scalars.write(300, "train", {"loss": 1.5, "rate": 1e39, "total": math.nan})
    (file,) = (tmp_path / "tensorboard").iterdir()
    with file.open("rb") as stream:
        version, event = (bytes(each.payload) for each in read_records(stream, file.name))
    scalars.close()

    assert file.name.startswith(EVENTS)
    assert version.endswith(b"\x1a\x0dbrain.Event:2")
    assert b"\x10\xac\x02" in event  # the step as a varint
    for name, value in (("loss", 1.5), ("rate", math.inf)):
        tagged = event.index(f"train/{name}".encode())
        assert struct.pack("<f", value) in event[tagged : tagged + 40]
    assert event.count(b"scalars") == 3
