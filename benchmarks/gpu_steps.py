"""The steps of `make gpu`: their commands, their requirements, and their figures."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_checks import PROGRAM
from imagenet_prep import bench_train

_CHECKS = (sys.executable, "-m", "benchmarks.gpu_checks")
_LIMIT_S = 120
_LONG_S = 600
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


class Step(NamedTuple):
    """One measurement or demonstration.

    Attributes:
      name: the subject.
      command: to run.
      needs: names in `THERE`.
      figure: makes the cell of the table from the output.
      limit_s: maximum duration.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    figure: Callable[[str], str]
    limit_s: float = _LIMIT_S


class Size(NamedTuple):
    """The amount of work of the steps.

    Attributes:
      images, copies: different photographs of the dataset, and the number of copies of each.
      seconds: of each reading.
      steps: of each training.
      network: flags of train.
      needs: requirements of training in this size.
    """

    images: int
    copies: int
    seconds: str
    steps: int
    network: tuple[str, ...]
    needs: tuple[str, ...]


_RESNET50 = ("--model", "resnet50", "--batch-size", "256")
_TINY = ("--model", "tiny", "--batch-size", "16", "--image-size", "64")
FULL = Size(1000, 20, "8", 160, _RESNET50, ("gpu",))
SMALL = Size(64, 4, "1", 15, _TINY, ())


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
    "second gpu": lambda: gpus() > 1,
    "nvcc": _nvcc,
    "g++": lambda: shutil.which("g++") is not None,
    "torch": _module("torch"),
    "jax": _module("jax"),
    "tensorflow": _module("tensorflow"),
    "dali": _module("nvidia.dali"),
    "horovod": _module("horovod"),
}


def gpus() -> int:
    """Returns the number of GPUs of this host."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _last(out: str) -> str:
    return out.strip().splitlines()[-1]


def _last_two(out: str) -> str:
    return "; ".join(out.strip().splitlines()[-2:])


def _read(out: str) -> str:
    found = json.loads(out)
    return f"{found['images_per_s']:,.0f} images/s, {found['images_per_cpu_s']:,.0f} a CPU second"


def _trained(out: str) -> str:
    rows = json.loads(out)
    return "; ".join(
        f"{row['ranks']} GPUs: {row['images_per_s']:,.0f} images/s, "
        f"{row['images_per_s_without_input']:,.0f} without input, {row['input_share']:.0%} for "
        f"input, {row['communication_share']:.0%} for communication"
        for row in rows
    )


def _settled(log_dir: Path) -> tuple[float, float]:
    """Returns images/s and the last loss of a run."""
    lines = (log_dir / "train.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    return bench_train.settled(rows), rows[-1]["loss"]


def pytorch(data: Path, num_gpus: int, size: Size, out: Path) -> dict[str, Step]:
    """Returns the steps of `train --framework pytorch`, by a short name for each."""
    noise = out / "noise"
    count = ("--num-batches", str(size.steps), "--display-every", str(size.steps // 15))

    def step(
        key: str, name: str, more: Sequence[str], needs: tuple[str, ...] = (), **other: float
    ) -> tuple[str, Step]:
        def figure(_: str) -> str:
            speed, loss = _settled(out / key)
            share = ""
            if key != "noise" and (noise / "train.jsonl").exists():
                share = f", {speed / _settled(noise)[0]:.1%} of the speed on noise"
            return f"{speed:,.0f} images/s{share}; loss {loss:.3f}"

        common = ("train", "--framework", "pytorch", *size.network, *count)
        command = (*PROGRAM, *common, "--log-dir", str(out / key), *more)
        needed = (*size.needs, "torch", *(each for each in needs if each not in size.needs))
        return key, Step(f"ResNet-50 by PyTorch, {name}", command, needed, figure, **other)

    half = ("--precision", "bfloat16")
    real = (*half, "--data-dir", str(data), "--no-evaluation")
    dali = (*real, "--backend", "dali", "--device")
    sizes = [str(1 << power) for power in range(num_gpus.bit_length())] or ["1"]
    bench = ("bench-train", "-np", ",".join(sizes), "--json", "--out", str(out / "torch-bench"))
    train = ("train", "--framework", "pytorch", *size.network, *half, "--data-dir", str(data))
    kill = (*train, *count, "--save-interval", str(size.steps // 3))
    resume = (*_CHECKS, "resume", str(out / "resume"), "-np", str(max(1, num_gpus)))
    return dict(
        [
            step("noise", "bfloat16, noise", (*half, "--synthetic")),
            step("dali-gpu", "bfloat16, DALI on the GPU", (*dali, "gpu"), ("gpu", "dali")),
            step("native", "bfloat16, native", (*real, "--backend", "native", "--device", "cpu")),
            step("dali-cpu", "bfloat16, DALI on the CPU", (*dali, "cpu"), ("dali",)),
            step("float16", "float16, noise", ("--precision", "float16", "--synthetic"), ("gpu",)),
            step("jit", "bfloat16, noise, compiled", (*half, "--jit", "--synthetic"), ("gpu",)),
        ]
    ) | {
        "resume": Step(
            "train by PyTorch, killed and resumed",
            (*resume, "--", *kill),
            (*size.needs, "torch"),
            _last,
            180,
        ),
        "more": Step(
            "ResNet-50 by PyTorch, more GPUs",
            (*PROGRAM, *bench, "--", *train),
            ("second gpu", "torch"),
            _trained,
            _LONG_S,
        ),
    }


def tensorflow(data: Path, num_gpus: int, out: Path) -> list[Step]:
    """Returns the steps of TensorFlow and Horovod."""
    sizes = [str(1 << power) for power in range(num_gpus.bit_length())] or ["1"]

    def trained(ranks: str, *flags: str) -> tuple[str, ...]:
        bench = (*PROGRAM, "bench-train", "-np", ranks, "--json", "--out", str(out / "bench"))
        return (*bench, "--", "train", "--data-dir", str(data), *flags)

    half = ("--precision", "float16")
    horovod = Path(sys.executable).with_name("horovodrun")
    build = (*PROGRAM, "install-horovod", "--nccl")
    total = (str(horovod), "--gloo", "-np", str(num_gpus), sys.executable, "-c", _SUM)
    frameworks = ("gpu", "tensorflow")
    return [
        Step(f"ResNet-50 by TensorFlow, {name}", command, needs, _trained, _LONG_S)
        for name, command, needs in (
            ("bfloat16", trained("1", "--precision", "bfloat16"), frameworks),
            ("float16", trained("1", *half), frameworks),
            ("float16, XLA", trained("1", *half, "--jit"), frameworks),
        )
    ] + [
        Step("Horovod with NCCL", build, (*frameworks, "nvcc", "g++"), _last, 3 * _LONG_S),
        Step(
            "NCCL's sum over all GPUs",
            total,
            (*frameworks, "horovod"),
            lambda out: _last(out).rpartition(">:")[2],  # without horovodrun's prefix
        ),
        Step(
            "ResNet-50 by TensorFlow, more GPUs",
            trained(",".join(sizes), *half),
            (*frameworks, "second gpu", "horovod"),
            _trained,
            _LONG_S,
        ),
    ]


def steps(source: Path, data: Path, num_gpus: int, size: Size, out: Path) -> list[Step]:
    """Returns all steps, the most valuable first."""
    read = (*PROGRAM, "bench-read", str(data), "--batch-size", "256" if size.needs else "16")
    read += ("--seconds", size.seconds, "--json", "--backend")
    device = "gpu" if size.needs else "cpu"
    compare = (*_CHECKS, "compare", str(data), "--device", device)
    query = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    by_torch = pytorch(data, num_gpus, size, out)
    batch = ("--batch-size", "128" if size.needs else "16")
    example = (*_CHECKS, "example", str(data), str(out), "-np", str(max(1, num_gpus)), *batch)
    by_jax = (*_CHECKS, "jax-example", str(data), str(out), *batch)
    return [
        Step("GPU, memory, driver", query, ("gpu",), lambda out: "; ".join(out.splitlines())),
        Step("Machine, packages", (*_CHECKS, "versions"), (), _last),
        *(by_torch[key] for key in ("noise", "dali-gpu", "native", "dali-cpu")),
        Step("Equal labels; pixels of the GPU and the CPU", compare, (*size.needs, "dali"), _last),
        Step("Reading, native", (*read, "native"), (), _read),
        Step("Reading, DALI on the CPU", (*read, "dali"), ("dali",), _read),
        Step(
            "Reading, DALI with nvJPEG", (*read, "dali", "--device", "gpu"), ("gpu", "dali"), _read
        ),
        by_torch["resume"],
        Step(
            "prepare to 256 px, by workers",
            (*_CHECKS, "prepare", str(source), str(out)),
            (),
            _last,
            240,
        ),
        Step("JAX, examples/with_jax.py", by_jax, (*size.needs, "jax"), _last_two),
        by_torch["float16"],
        Step(
            "examples/with_pytorch.py, killed and resumed",
            example,
            (*size.needs, "torch"),
            _last,
            180,
        ),
        Step(
            "verify --level decode", (*PROGRAM, "verify", str(data), "--level", "decode"), (), _last
        ),
        by_torch["jit"],
        by_torch["more"],
        *tensorflow(data, num_gpus, out),
    ]
