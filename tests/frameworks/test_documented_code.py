"""The Python of docs/columns.md and docs/reading.md, executed with PyTorch itself.

tests/e2e/test_documented_code.py executes the same code with a double of PyTorch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.frameworks.programs import ended
from tests.kit import blocks
from tests.kit.reading import NUM_TRAIN, scenes

__all__ = ["scenes"]

pytestmark = pytest.mark.long

# An encoder that keeps the value range of its input.
ENCODER = """\
import json, numpy, torch


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("range", torch.zeros(2))

    def forward(self, images):
        self.range[0] = torch.minimum(self.range[0], images.min())
        self.range[1] = torch.maximum(self.range[1], images.max())
        colours = torch.nn.functional.avg_pool2d(images, 8)
        return torch.cat([colours, colours.mean(1, keepdim=True)], 1)


torch.jit.script(Encoder()).save("encoder.pt")
"""
# Compares the column's rows with latents of the images next to them.
COMPARED = """
apart, seen = 0.0, 0
for split_view in (False, True):
    reader = make_dataset(
        root, "train", 8, 256, recipe="adm", backend="native", layout="NCHW",
        fields=("images", "mirrored", "column:latents"), training=split_view,
    )
    for images, mirrored, both in (batch.values() for batch in reader):
        rows = torch.from_numpy(both[range(len(both)), mirrored.astype(int)]).float()
        expected = encode(torch.from_numpy(images).float() / 127.5 - 1) * 0.18215
        real = rows.abs().sum((1, 2, 3)) > 0
        apart = max(apart, float((rows - expected)[real].abs().max()))
        seen += int(real.sum())
print(json.dumps([encode.range.tolist(), column.column.view, apart, seen, list(chosen.shape)]))
"""
# Ends the loop of the page, and compares its images with those in NumPy's memory.
SAME = """
    seen.append(images.clone())
others = make_dataset(
    reader.receipt()["data_dir"], "train", 8, backend="native", layout="NCHW"
)
same = [bool((one.numpy() == other["images"]).all()) for one, other in zip(seen, others)]
print(len(same), all(same), float(torch.stack(seen).std()))
"""


def test_the_documented_latents_match_their_images(
    python: Path, scenes: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(scenes, tmp_path / "set")
    write, read = (blocks.block(f"columns.md: {name}").text for name in ("Write", "Read"))
    write = blocks.small(
        write,
        {
            "/data/imagenet": str(root),
            ".cuda()": "",
            "=64": "=16",
            "encoder.pt": f"{tmp_path}/encoder.pt",
        },
    )
    read = blocks.small(read, {"=256,": "=16,", "image_size=16": "image_size=256"})
    program = tmp_path / "page.py"
    encoder = ENCODER.replace("encoder.pt", f"{tmp_path}/encoder.pt")
    program.write_text(f"{encoder}\n{write}\n{read}\n{COMPARED}")
    (low, high), view, apart, seen, shape = json.loads(ended(python, program))

    assert -1 <= low < -0.9
    assert 0.9 < high <= 1
    assert view == "evaluation crop, recipe adm, 256 px"
    assert apart < 1e-3
    assert seen == NUM_TRAIN + NUM_TRAIN // 8 * 8
    assert shape == [16, 4, 32, 32]


def test_documented_pinned_images_equal_the_readers(
    python: Path, scenes: Path, tmp_path: Path
) -> None:
    """On the CPU; `make gpu` runs such a loop on a GPU."""
    page = blocks.small(
        blocks.block("reading.md: Backends").text,
        {
            "/data/imagenet-480": str(scenes),
            "(256, 3": "(8, 3",
            "    256,": "    8,",
            "pin_memory=True": "pin_memory=False",
            '"cuda"': '"cpu"',
            "for batch in reader:": "seen = []\nfor batch in reader:",
        },
    )
    program = tmp_path / "page.py"
    program.write_text(page.rstrip() + SAME)
    steps, is_same, deviation = ended(python, program).split()

    assert (int(steps), is_same) == (NUM_TRAIN // 8, "True")
    assert float(deviation) > 0.1
