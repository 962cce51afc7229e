"""The checks of `make gpu` that are not verbs: each runs as a process and prints one line.

python -m benchmarks.gpu_checks versions
python -m benchmarks.gpu_checks compare SET --device gpu
python -m benchmarks.gpu_checks resume FOLDER -np 1 -- train --data-dir SET --num-batches 60
python -m benchmarks.gpu_checks prepare SOURCE FOLDER
python -m benchmarks.gpu_checks example SET FOLDER -np 1
python -m benchmarks.gpu_checks jax-example SET FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import itertools
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure

PROGRAM = (sys.executable, "-P", "-m", "imagenet_prep")
WORKERS = (1, 2, 4, 8, 16)
# The allowed mean difference of an image in grey levels between DALI's decoders, and between DALI
# and the native reader, which resizes Y, Cb and Cr before their conversion to R, G and B.
_BOUND = 1.0
_NATIVE_BOUND = 1.5
# Grey levels in one unit of a normalised pixel, approximately.
_DEVIATION = 58.0
_BATCHES = 8
_CHECKPOINT_S = 150
# Options of `make_dataset` for which DALI computes differently on a GPU, by the name of the case.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"image_size": 224},
    "colour": {"colour": True},
    "two views": {"views": 2},
    "cifar10's padding": {"recipe": "cifar10", "image_size": 32},
    "tutorial": {"recipe": "tutorial"},
    "NCHW": {"layout": "NCHW"},
    "float16": {"dtype": "float16"},
}
_PACKAGES = {
    "PyTorch": "torch",
    "DALI": "nvidia-dali-cuda130",
    "DALI for CUDA 12": "nvidia-dali-cuda120",
    "JAX": "jax",
    "TensorFlow": "tensorflow",
    "Horovod": "horovod",
    "NumPy": "numpy",
    "Pillow": "pillow",
}


def dataset(folder: Path, images: int, copies: int) -> tuple[Path, Path]:
    """Returns archives and a dataset of `images` photographs, each `copies` times."""
    source = folder / f"gpu-source-{images}x{copies}"
    final = folder / f"gpu-set-{images}x{copies}"
    if not source.is_dir():
        partial = source.with_suffix(".partial")
        shutil.copytree(measure.corpus(folder, images, (500, 375)), partial, dirs_exist_ok=True)
        _repeat(partial / measure.TRAIN_ARCHIVE, copies)
        partial.rename(source)
    if not (final / "dataset.json").is_file():
        flags = ("--short-side", "256", "--train-shards", "16", "--allow-subset", "--json")
        command = [*PROGRAM, "prepare", "--source", str(source), "--out", str(final), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return source, final


def _repeat(archive: Path, copies: int) -> None:
    """Adds each image of a train archive to it under `copies` names."""
    partial = archive.with_suffix(".partial")
    with tarfile.open(archive) as classes, tarfile.open(partial, "w") as repeated:
        for each in classes:
            spool = io.BytesIO()
            with (
                tarfile.open(fileobj=classes.extractfile(each)) as images,
                tarfile.open(fileobj=spool, mode="w") as written,
            ):
                for image in images:
                    content = images.extractfile(image)
                    stem = Path(image.name).stem
                    data = content.read() if content else b""
                    for copy in range(copies):
                        image.name = f"{stem}{copy:02d}.JPEG"
                        written.addfile(image, io.BytesIO(data))
            each.size = spool.tell()
            spool.seek(0)
            repeated.addfile(each, spool)
    partial.replace(archive)


def versions() -> str:
    """Returns the machine and the versions of the relevant installed packages."""
    from PIL import features

    found = [f"libjpeg-turbo {features.version('libjpeg_turbo')}"]
    for name, package in _PACKAGES.items():
        try:
            found.append(f"{name} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join([measure.machine(), *found])


def compare(data: Path, device: str) -> Iterator[tuple[bool, str]]:
    """Yields whether a case of `CASES` is right, and its figures.

    DALI on the CPU is compared with DALI on `device`, whose tensors PyTorch takes by DLPack if it
    is installed, and with the native reader. Labels and their order must be equal.
    """
    for name, case in CASES.items():
        try:
            expected = _batches(data, "dali", "cpu", case)
            other = _farthest(expected, _batches(data, "dali", device, case, by_dlpack=True), case)
            native = _farthest(expected, _batches(data, "native", "cpu", case), case)
        except Exception as error:  # noqa: BLE001 - one case must not hide the others
            yield False, f"{name}: {type(error).__name__}: {error}".strip().replace("\n", " ")
        else:
            right = other < _BOUND and native < _NATIVE_BOUND
            yield right, f"{name} {other:.2f} / {native:.2f}"


def _batches(
    data: Path, backend: str, device: str, case: dict[str, Any], *, by_dlpack: bool = False
) -> list[tuple[Any, Any]]:
    """Returns images and labels of some batches; all are kept until the first is examined."""
    import numpy as np

    from imagenet_prep.core.world import World
    from imagenet_prep.read import make_dataset

    torch = None
    if by_dlpack and importlib.util.find_spec("torch"):
        import torch
    how: dict[str, Any] = {"batch_size": 16, "image_size": 64, "dtype": "uint8", "seed": 1}
    how |= {"framework": "dlpack" if torch else "numpy", "world": World()} | case
    reader = make_dataset(data, "train", backend=backend, device=device, **how)
    held = [dict(batch) for batch in itertools.islice(reader, _BATCHES)]
    return [
        (
            torch.from_dlpack(each["images"]).cpu().numpy() if torch else each["images"],
            np.array(each["class_index"]),
        )
        for each in held
    ]


def _farthest(
    expected: list[tuple[Any, Any]], found: list[tuple[Any, Any]], case: dict[str, Any]
) -> float:
    """Returns the largest mean difference of an image in grey levels."""
    import numpy as np

    unit = 1.0 if "dtype" not in case else _DEVIATION
    worst = 0.0
    for (images, labels), (others, their_labels) in zip(expected, found, strict=True):
        if not np.array_equal(labels, their_labels):
            raise ValueError(f"labels differ: {labels.tolist()} and {their_labels.tolist()}")
        distance = np.abs(images.astype(np.float32) - others.astype(np.float32))
        worst = max(worst, float(distance.mean(axis=(-3, -2, -1)).max()) * unit)
    return worst


def resume(folder: Path, ranks: str, command: Sequence[str]) -> str:
    """Kills a training after its first checkpoint; returns the step where it resumed."""
    argv = [*PROGRAM, "launch", "-np", ranks, "--", *command, "--log-dir", str(folder)]
    _kill(argv, folder, "checkpoint-*")
    subprocess.run(argv, check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text("utf-8").splitlines()]
    starts = [row["resumed_at"] for row in rows if row["kind"] == "start"]
    if len(starts) != 2 or starts[0] or not starts[1] or rows[-1]["kind"] == "train":
        raise RuntimeError(f"{folder}: it was not resumed, or did not end: {starts}")
    loss = [row["loss"] for row in rows if row["kind"] == "train"][-1]
    return f"{ranks} rank(s): killed by SIGKILL, resumed after step {starts[1]}, loss {loss:.3f}"


def example(data: Path, folder: Path, ranks: str, batch: str) -> str:
    """Kills examples/with_pytorch.py; returns the step where it resumed, and its last row."""
    import torch

    out = folder / "example.pt"
    script = str(measure.ROOT / "examples" / "with_pytorch.py")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, script]
    argv += ["--data-dir", str(data), "--batch-size", batch, "--epochs", "2", "--save-every", "5"]
    argv += ["--out", str(out)]
    _kill(argv, folder, out.name)
    place = torch.load(out, weights_only=True, map_location="cpu")["reader"]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    said = done.stdout.strip().splitlines()[-1]
    how = "NCCL" if torch.cuda.is_available() else "Gloo"
    read = f"{place['examples_read']:,} images of epoch {place['epoch']}"
    return f"{how}, {ranks} rank(s): killed by SIGKILL, resumed after {read}, then {said}"


def _kill(argv: Sequence[str], folder: Path, pattern: str) -> None:
    """Starts a program, and kills it with all its processes after its first checkpoint."""
    process = subprocess.Popen(argv, start_new_session=True, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + _CHECKPOINT_S
        while not any(folder.glob(pattern)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {pattern} in {folder}; exit code {process.returncode}")
            time.sleep(0.02)
    finally:
        for pid in measure.tree(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def prepare(source: Path, folder: Path) -> str:
    """Returns the images per second of 1 to 16 workers of prepare, up to the number of cores."""
    total = {}
    shards = {}
    cores = len(os.sched_getaffinity(0))
    for workers in (number for number in WORKERS if number <= cores):
        out = folder / f"prepared-{workers}"
        flags = ("--short-side", "256", "--train-shards", "64", "--allow-subset")
        argv = measure.prepare_argv(source, out, *flags, "--workers", workers)
        run = measure.run(argv, sample=False)
        images = json.loads(run.stdout)["splits"]["train"]["examples"]
        start, stop = measure.phases(out, run.start_s, run.wall_s)["shards"]
        total[workers] = images / run.wall_s
        shards[workers] = images / (stop - start)
        print(f"{workers} workers: {run.wall_s:.1f} s", file=sys.stderr, flush=True)
        shutil.rmtree(out)
    speeds = ", ".join(f"{number}: {speed:,.0f}" for number, speed in total.items())
    most = max(total)
    return (
        f"{speeds} images/s; {most} workers are {total[most] / total[1]:.1f} times one, "
        f"{shards[most] / shards[1]:.1f} times while they write shards"
    )


def jax_example(data: Path, folder: Path, batch: str) -> None:
    """Runs examples/with_jax.py in this process for an epoch: prints its device and its row."""
    import jax

    print(jax.devices()[0].device_kind)
    path = str(measure.ROOT / "examples" / "with_jax.py")
    flags = ("--batch-size", batch, "--epochs", "1", "--out", str(folder / "jax.npz"))
    sys.argv = [path, "--data-dir", str(data), *flags]
    runpy.run_path(path, run_name="__main__")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    places = {
        "versions": "",
        "compare": "data",
        "resume": "folder",
        "prepare": "source folder",
        "example": "data folder",
        "jax-example": "data folder",
    }
    for name, needed in places.items():
        part = parts.add_parser(name)
        for place in needed.split():
            part.add_argument(place, type=Path)
        part.add_argument("--device", default="gpu", choices=("cpu", "gpu"))
        part.add_argument("-np", dest="ranks", default="1")
        part.add_argument("--batch-size", default="128")
    own = argv.index("--") if "--" in argv else len(argv)
    settings = parser.parse_args(argv[:own])
    if settings.part == "versions":
        print(versions())
    elif settings.part == "resume":
        print(resume(settings.folder, settings.ranks, argv[own + 1 :]))
    elif settings.part == "prepare":
        print(prepare(settings.source, settings.folder))
    elif settings.part == "example":
        print(example(settings.data, settings.folder, settings.ranks, settings.batch_size))
    elif settings.part == "jax-example":
        jax_example(settings.data, settings.folder, settings.batch_size)
    else:
        right, lines = zip(*compare(settings.data, settings.device), strict=True)
        if not all(right):
            raise SystemExit(f"differs: {'; '.join(lines)}")
        print(f"grey levels from DALI on the CPU, {settings.device} / native: {'; '.join(lines)}")


if __name__ == "__main__":
    main(sys.argv[1:])
