"""What only a GPU can show: nvJPEG, ResNet-50, NCCL. `make gpu` runs it and keeps the table.

python -m benchmarks.gpu               # all steps; writes benchmarks/gpu.md
python -m benchmarks.gpu --dry-run     # prints them, says what is missing, runs those without a GPU
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure, train

PAGE = Path(__file__).with_suffix(".md")
_PROGRAM = (sys.executable, "-P", "-m", "imagenet_prep")
# Grey levels by which two decoders may differ on average (docs/reading.md).
_BOUND = 1.0
_SUM = """\
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
assert hvd.nccl_built(), "this Horovod was built without NCCL"
tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[hvd.local_rank()], "GPU")
with tf.device("GPU:0"):
    total = hvd.allreduce(tf.fill([1 << 20], float(hvd.rank() + 1)), op=hvd.Sum)
expected = hvd.size() * (hvd.size() + 1) / 2
assert "GPU" in total.device and bool(tf.reduce_all(total == expected)), total
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks: right")
"""
_HEAD = """\
# GPU

What a GPU alone can show. `make gpu` runs it on a Linux host with NVIDIA's driver, gcc, g++ and
make; Horovod's NCCL also wants nvcc in `CUDA_HOME` (default: /usr/local/cuda). It needs no network
but for the wheels of `docker/prep.lock` and `docker/train.lock`, and what builds Horovod, which
`imagenet_prep/horovod*.lock` pin. `make gpu GPU_ARGS=--dry-run` prints the steps, says
what is missing, and runs those that need no GPU.

"""
_EMPTY = """\
**No GPU has run it yet: there are no figures.** If you have one, please run it and commit this.
"""


class Step(NamedTuple):
    """One thing to be shown.

    Attributes:
      name: what it shows.
      command: what is run.
      needs: names in `THERE`.
      figure: the cell of the table, from what the command printed.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    figure: Callable[[str], str]


def _module(name: str) -> Callable[[], bool]:
    def there() -> bool:
        importlib.invalidate_caches()
        top = name.partition(".")[0]
        return bool(importlib.util.find_spec(top) and importlib.util.find_spec(name))

    return there


def _nvcc() -> bool:
    return Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc").exists()


THERE: dict[str, Callable[[], bool]] = {
    "gpu": lambda: shutil.which("nvidia-smi") is not None and gpus() > 0,
    "nvcc": _nvcc,
    "g++": lambda: shutil.which("g++") is not None,
    "tensorflow": _module("tensorflow"),
    "dali": _module("nvidia.dali"),
    "horovod": _module("horovod"),
}


def gpus() -> int:
    """Returns how many GPUs this host has."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _last(out: str) -> str:
    return out.strip().splitlines()[-1]


def _read(out: str) -> str:
    found = json.loads(out)
    return f"{found['images_per_s']:,.0f} images/s"


def _trained(out: str) -> str:
    rows = json.loads(out)
    return "; ".join(
        f"{row['ranks']} GPUs: {row['images_per_s']:,.0f} images/s, "
        f"{row['images_per_s_without_input']:,.0f} without input, {row['input_share']:.0%} for "
        f"input, {row['communication_share']:.0%} for communication"
        for row in rows
    )


def steps(data: Path, num_gpus: int, seconds: str, out: Path) -> list[Step]:
    """Returns all steps, in their order."""
    read = (*_PROGRAM, "bench-read", str(data), "--backend", "dali", "--seconds", seconds, "--json")
    sizes = [str(1 << power) for power in range(num_gpus.bit_length())] or ["1"]

    def trained(ranks: str, *flags: str) -> tuple[str, ...]:
        bench = (*_PROGRAM, "bench-train", "-np", ranks, "--json", "--out", str(out / "bench"))
        return (*bench, "--", "train", "--data-dir", str(data), *flags)

    half = ("--precision", "float16")
    horovod = Path(sys.executable).with_name("horovodrun")
    build = (*_PROGRAM, "install-horovod", "--nccl")
    query = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    compare = (sys.executable, "-m", "benchmarks.gpu", "--compare", str(data))
    frameworks = ("gpu", "tensorflow")
    return [
        Step("GPU, memory, driver", query, ("gpu",), lambda out: "; ".join(out.splitlines())),
        Step("DALI on the CPU", read, ("dali",), _read),
        Step("DALI with nvJPEG", (*read, "--device", "gpu"), ("gpu", "dali"), _read),
        Step("nvJPEG against the CPU", compare, ("gpu", "dali"), _last),
        Step("ResNet-50, bfloat16", trained("1", "--precision", "bfloat16"), frameworks, _trained),
        Step("ResNet-50, float16", trained("1", *half), frameworks, _trained),
        Step("ResNet-50, float16, XLA", trained("1", *half, "--jit"), frameworks, _trained),
        Step("Horovod with NCCL", build, (*frameworks, "nvcc", "g++"), _last),
        Step(
            "NCCL's sum over all GPUs",
            (str(horovod), "--gloo", "-np", str(num_gpus), sys.executable, "-c", _SUM),
            (*frameworks, "horovod"),
            lambda out: _last(out).rpartition(">:")[2],  # without horovodrun's prefix
        ),
        Step(
            "ResNet-50, float16, more GPUs",
            trained(",".join(sizes), *half),
            (*frameworks, "horovod"),
            _trained,
        ),
    ]


def attempt(step: Step) -> tuple[bool, str]:
    """Runs a step unless something is missing; returns whether it failed, and its figure."""
    if missing := [need for need in step.needs if not THERE[need]()]:
        return False, f"not run: no {', no '.join(missing)}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        step.command,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        return True, f"failed with exit code {done.returncode}"
    return False, step.figure(done.stdout)


def page(rows: Iterable[tuple[str, str]]) -> str:
    """Returns benchmarks/gpu.md with a row for each (step, figure)."""
    lines = [f"| {name} | {figure} |" for name, figure in rows]
    table = "\n".join(["| step | figure |", "|---|---|", *lines]) + "\n"
    return _HEAD + (table if lines else _EMPTY)


def compare(data: Path, device: str) -> str:
    """Returns how far DALI's pictures of an epoch are from those decoded on the CPU, in words.

    Raises:
      ValueError: by a grey level or more on average.
    """
    import numpy as np

    from imagenet_prep.core.world import World
    from imagenet_prep.read import make_dataset

    how: dict[str, Any] = {"batch_size": 16, "backend": "dali", "framework": "numpy"}
    how |= {"dtype": "uint8", "world": World(), "seed": 1}
    here, there = (make_dataset(data, "train", **how, device=each) for each in ("cpu", device))
    means, largest = [], 0
    for one, other in zip(here, there, strict=True):
        difference = np.abs(one["images"].astype(int) - other["images"].astype(int))
        means.append(difference.mean(axis=(1, 2, 3)).max())
        largest = max(largest, int(difference.max()))
    if not max(means) < _BOUND:
        raise ValueError(f"a picture differs by {max(means):.2f} grey levels on average")
    return f"at most {max(means):.2f} grey levels a picture on average, {largest} in one value"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--images", type=int, default=4000, help="of the data set")
    parser.add_argument("--seconds", default="10", help="of each reading")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--compare", type=Path, help="a data set: one step alone")
    parser.add_argument("--device", default="gpu", choices=("cpu", "gpu"))
    settings = parser.parse_args(argv)
    if settings.compare is not None:
        print(compare(settings.compare, settings.device))
        return 0
    data = train.dataset(settings.scratch, settings.images)
    rows, failed = [], False
    for step in steps(data, gpus(), settings.seconds, settings.scratch / "gpu"):
        print(f"\n{step.name}: {shlex.join(step.command)}", flush=True)
        if settings.dry_run and "gpu" in step.needs:
            missing = [need for need in step.needs if not THERE[need]()]
            print(f"missing: {', '.join(missing) or 'nothing'}")
            continue
        wrong, figure = attempt(step)
        print(figure, flush=True)
        failed = failed or wrong
        rows.append((step.name, figure))
    if not settings.dry_run:
        PAGE.write_text(page(rows), "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
