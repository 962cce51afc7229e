"""Where the lead of the native reader comes from: the steps of an image, in one thread.

benchmarks.read runs it in the peers' environment. The peers' steps are those of torchvision's
ImageFolder in a DataLoader; ours are one call, so its row has the complete time.
"""

from __future__ import annotations

import io
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.peer_readers import crop
from benchmarks.readers import BATCH, MEAN, SIDE, STD, Job

TITLE = "steps of an image"
NUM_IMAGES = 3 * BATCH
REPEATS = 5
DECODE = "decode (Pillow)"
FASTER_DECODE = "instead: decode (simplejpeg)"
RESIZE = "crop, resize with antialias, mirror (Pillow)"
FLOATS = "to float32, normalise (torchvision)"
STACK = "stack a batch in memory that processes share"
SUM = "sum of torchvision's way"
NATIVE = "native: all steps, only the crop is decoded"
COMPLETE = "native: all steps, the complete image is decoded"
TORCHVISION = (DECODE, RESIZE, FLOATS, STACK)


def render(steps: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the table of benchmarks/README.md."""
    header = [f"{TITLE}, CPU us", *steps]
    names = [*TORCHVISION, SUM, FASTER_DECODE, NATIVE, COMPLETE]
    rows = [(name, *(f"{each[name]:,.0f}" for each in steps.values())) for name in names]
    return measure.table(header, rows)


# The rest runs in the peers' environment.


def work(job: Job) -> dict[str, float]:
    """Returns the CPU time per image of each step, in microseconds."""
    import torch

    torch.set_num_threads(1)
    random.seed(0)
    encoded, sizes = _images(job)
    crops = [crop(width, height) for height, width in sizes]
    mirrored = [random.random() < 0.5 for _ in encoded]
    steps = _torchvision(encoded, crops, mirrored)
    steps[SUM] = sum(steps[name] for name in TORCHVISION)
    windows = [(top, left, tall, wide) for left, top, wide, tall in crops]
    steps[NATIVE] = _native(encoded, windows, mirrored)
    steps[COMPLETE] = _native(encoded, [(0, 0, *size) for size in sizes], mirrored)
    return steps


def _images(job: Job) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Returns the first JPEGs of a dataset, and the height and width of each."""
    from imagenet_prep.core.world import World
    from imagenet_prep.read import make_dataset

    reader = make_dataset(job.root, "train", 1, world=World(), backend="native")
    examples = [reader.example(number) for number in range(min(NUM_IMAGES, len(reader)))]
    sizes = [(example.height, example.width) for example in examples]
    return [bytes(example.encoded) for example in examples], sizes


def _per_image(work: Callable[[], Any], num_images: int) -> float:
    """Returns the CPU time of one image, in microseconds: the median of several calls."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) / num_images * 1e6)
    return measure.median(times)


def _torchvision(
    encoded: Sequence[bytes], crops: Sequence[tuple[int, ...]], mirrored: Sequence[bool]
) -> dict[str, float]:
    import simplejpeg
    from PIL import Image
    from torch.utils.data import _utils, default_collate
    from torchvision.transforms import functional

    means = [mean / 255 for mean in MEAN]
    stds = [std / 255 for std in STD]

    def decode(data: bytes) -> Any:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")

    def resize(image: Any, box: tuple[int, ...], mirror: bool) -> Any:
        left, top, wide, tall = box
        small = functional.resized_crop(image, top, left, tall, wide, [SIDE, SIDE])
        return functional.hflip(small) if mirror else small

    def floats(image: Any) -> Any:
        return functional.normalize(functional.to_tensor(image), means, stds)

    # Collating then uses shared memory, as in a worker process.
    _utils.worker._worker_info = _utils.worker.WorkerInfo(0, 1, 0, None)
    images = list(map(decode, encoded))
    resized = list(map(resize, images, crops, mirrored))
    tensors = list(map(floats, resized))

    def time_step(step: Callable[..., Any], *columns: Sequence[Any]) -> float:
        """Returns the time per image; keeps the results of one batch, as a worker does."""

        def run() -> None:
            for start in range(0, len(encoded), BATCH):
                list(map(step, *(column[start : start + BATCH] for column in columns)))

        return _per_image(run, len(encoded))

    starts = range(0, len(tensors), BATCH)
    batches = [tensors[start : start + BATCH] for start in starts]
    return {
        DECODE: time_step(decode, encoded),
        FASTER_DECODE: time_step(partial(simplejpeg.decode_jpeg, colorspace="RGB"), encoded),
        RESIZE: time_step(resize, images, crops, mirrored),
        FLOATS: time_step(floats, resized),
        STACK: _per_image(lambda: [len(default_collate(b)) for b in batches], len(encoded)),
    }


def _native(
    encoded: Sequence[bytes], windows: Sequence[tuple[int, ...]], mirrored: Sequence[bool]
) -> float:
    import numpy as np

    from imagenet_prep.codec import planes

    look = planes.Look(SIDE, SIDE, planes.Values("float32", MEAN, STD), planes.LINEAR)
    pixels = np.empty((BATCH, SIDE, SIDE, 3), np.float32)
    batches = []
    for start in range(0, len(encoded), BATCH):
        part = slice(start, start + BATCH)
        boxes = np.array(windows[part], np.int32)
        is_mirrored = np.array(mirrored[part])
        batches.append(look.jobs(encoded[part], boxes, is_mirrored, pixels[: len(boxes)]))
    return _per_image(lambda: [look.decode_many(jobs) for jobs in batches], len(encoded))


if __name__ == "__main__":
    print(json.dumps(work(Job(**json.loads(Path(sys.argv[1]).read_text())))))
