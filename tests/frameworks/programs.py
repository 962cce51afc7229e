"""Starts programs in the frameworks' own environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import command

# Loads files of safetensors by the description of the format, and prints torchvision's logits
# for each of them.
LOGITS = """\
import json, sys, numpy as np, torch
name, *files, images = sys.argv[1:]
types = {"F32": torch.float32, "I64": torch.int64}
if name == "tiny":
    from tiny import Tiny

    model = Tiny(10, 64)
else:
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=10)
for file in files:
    data = open(file, "rb").read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    state = {}
    for key, each in header.items():
        begin, end = (8 + size + place for place in each["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=types[each["dtype"]])
        state[key] = flat.reshape(each["shape"])
    assert state.keys() == model.state_dict().keys()
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        print(json.dumps(model(torch.from_numpy(np.load(images))).tolist()))
"""


def ended(python: Path, *program: str | Path, **env: str) -> str:
    """Returns the output of a program without the warnings of its frameworks."""
    words = ("-W", "ignore", *map(str, program))
    with command.started(program=words, python=python, env=env) as running:
        finished = running.finish()
    assert finished.code == 0, finished
    return finished.out


def torchrun(ranks: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))


def launched(python: Path, ranks: int) -> tuple[str, ...]:
    """Returns the command that starts ranks which communicate by Horovod."""
    if not list(python.parents[1].glob(".horovod-*")):
        pytest.skip("Horovod is not built for PyTorch; make test-long does it in .venv/loaders")
    return ("-m", "imagenet_prep.pipelines.launch", "-np", str(ranks), "--", "python")
