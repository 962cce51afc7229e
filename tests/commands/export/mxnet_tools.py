"""Runs MXNet's own tools in MXNet's environment: FOLDER -> JSON on stdout.

FOLDER has train.*, as exported; images/, the same images as files; and payloads.json with rows
[label, whether it is an array, hex]. The output is tool/, im2rec.py's files from our list; packed/,
its files with --pack-label; list/, its own list; and payloads.rec and .idx.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import runpy
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

BATCH = 16


def im2rec(folder: Path, root: Path, *flags: str) -> None:
    # It decodes with OpenCV, which is not installed; files that pass through are not decoded.
    sys.modules["cv2"] = types.ModuleType("cv2")
    sys.argv = ["im2rec.py", *flags, str(folder / "train"), str(root)]
    tool = Path(mx.__file__).parent / "tools" / "im2rec.py"
    with contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(str(tool), run_name="__main__")


def pack(folder: Path) -> None:
    files = folder / "payloads.idx", folder / "payloads.rec"
    records = mx.recordio.MXIndexedRecordIO(*map(str, files), "w")
    for number, (label, as_array, data) in enumerate(
        json.loads((folder / "payloads.json").read_text())
    ):
        header = mx.recordio.IRHeader(0, [label] if as_array else label, number, 0)
        records.write_idx(number, mx.recordio.pack(header, bytes.fromhex(data)))
    records.close()


def seen(path: Path) -> dict[str, Any]:
    """Returns the labels and image hashes that MXNet's three readers find in a file."""
    index = path.with_suffix(".idx")
    records = mx.recordio.MXIndexedRecordIO(str(index), str(path), "r")
    indexed = []
    for key in records.keys:
        header, image = mx.recordio.unpack(records.read_idx(key))
        indexed.append([float(np.ravel(header.label)[0]), hashlib.sha256(image).hexdigest()])
    dataset = mx.gluon.data.vision.ImageRecordDataset(str(path))
    gluon = [[float(np.ravel(label)[0]), *image.shape] for image, label in dataset]
    iterated: list[float] = []
    batches = mx.io.ImageRecordIter(
        path_imgrec=str(path),
        path_imgidx=str(index),
        data_shape=(3, 32, 32),
        resize=32,
        batch_size=BATCH,
        round_batch=True,
        preprocess_threads=1,
    )
    for batch in batches:
        iterated += batch.label[0].asnumpy()[: BATCH - batch.pad].tolist()
    return {"indexed": indexed, "gluon": gluon, "iterated": iterated}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for made, flags in {"tool": (), "packed": ("--pack-label",)}.items():
        (folder / made).mkdir()
        shutil.copy(folder / "train.lst", folder / made)
        im2rec(folder / made, folder / "images", "--pass-through", *flags)
    (folder / "list").mkdir()
    im2rec(folder / "list", folder / "images", "--list", "--recursive", "--no-shuffle")
    pack(folder)
    print(json.dumps(seen(folder / "train.rec")))
