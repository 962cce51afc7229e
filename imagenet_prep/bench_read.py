"""Measure how fast this host reads, decodes and crops a dataset for training.

Examples:
  imagenet-prep bench-read /data/imagenet-480
  imagenet-prep bench-read /data/imagenet-480 --backend dali --batch-size 256
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import program
from imagenet_prep.core.flags import Settings, flag, switch
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.shared_flags import data_set

if TYPE_CHECKING:
    from imagenet_prep.read.reader import Reader

# In the first steps, libraries tune themselves, files are opened and queues fill.
_WARM_UP_STEPS = 5


@dataclasses.dataclass(frozen=True)
class BenchReadConfig(Settings):
    """Settings of one measurement; see the help of each flag."""

    dataset: str = data_set()
    split: str = flag("train", choices=schema.SPLITS, help="split to read")
    backend: str = flag(
        "auto", choices=("auto", "tfdata", "dali", "native"), help="library that decodes the images"
    )
    device: str = flag("cpu", choices=("cpu", "gpu"), help="device on which DALI decodes")
    batch_size: int = flag(128, above=0, help="batch size")
    image_size: int = flag(224, above=0, help="height and width of the crops", metavar="PX")
    seconds: float = flag(10.0, above=0, help="duration of the measurement in seconds", metavar="S")
    json: bool = switch(help="print the result as JSON")


@program.verb("imagenet_prep.bench_read", BenchReadConfig, __doc__, resumes=False)
def run(config: BenchReadConfig) -> None:
    from imagenet_prep.read import make_dataset
    from imagenet_prep.storage.dataset_store import open_dataset

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    backend: Any = config.backend
    # In a partitioned dataset, this node only has its own part.
    part = open_dataset(config.dataset, parts=True).placement
    reader = make_dataset(
        config.dataset,
        config.split,
        config.batch_size,
        config.image_size,
        training=True,
        world=World(part.node, part.nodes, 0, 1),
        backend=backend,
        device=config.device,  # type: ignore[arg-type]
        # No copy: a trainer on a GPU takes DALI's tensors as they are.
        framework=None if backend == "tfdata" else "dlpack",
    )
    wall, cpu, steps = _read(reader, config.seconds)
    images = steps * config.batch_size
    read_cpu = _cost_of_reading(reader, steps)
    cores = num_cores()
    rate = images / wall
    split = reader.manifest.splits[config.split]
    result = {
        "images": images,
        "images_per_s": round(rate, 1),
        "megabytes_per_s": round(rate * split.num_bytes / split.examples / 1e6, 1),
        "images_per_cpu_s": round(images / cpu, 1),
        "cores": cores,
        **reader.decoder,
        "decode_share": round(max(0.0, 1 - read_cpu / cpu), 3),
    }
    print(json.dumps(result, indent=1) if config.json else _render(result))


def _read(reader: Reader, seconds: float) -> tuple[float, float, int]:
    steps = 0
    start = time.perf_counter()
    cpu = time.process_time()
    while True:
        for _ in reader:
            steps += 1
            if steps == _WARM_UP_STEPS:
                start = time.perf_counter()
                cpu = time.process_time()
            elapsed = time.perf_counter() - start
            if steps > _WARM_UP_STEPS and elapsed >= seconds:
                return elapsed, time.process_time() - cpu, steps - _WARM_UP_STEPS


def _cost_of_reading(reader: Reader, steps: int) -> float:
    """Returns the CPU seconds for reading this number of batches without decoding them."""
    cpu = time.process_time()
    epochs = (reader.encoded_batches() for _ in itertools.count())
    for _ in itertools.islice(itertools.chain.from_iterable(epochs), steps):
        pass
    return time.process_time() - cpu


def _render(result: Json) -> str:
    return (
        f"{result['images_per_s']:,.0f} images/s, {result['megabytes_per_s']:,.1f} MB/s of "
        f"records, on {counted(result['cores'], 'core')}, decoded by {result['backend']} "
        f"({result['device']})\n"
        f"{result['images_per_cpu_s']:,.0f} images per CPU second; {result['decode_share']:.0%} of "
        "the CPU time is spent on decoding, cropping and resizing"
    )
