"""Measurements that need a GPU: nvJPEG, ResNet-50, NCCL. `make gpu` runs it and keeps the table.

python -m benchmarks.gpu               # all steps; writes benchmarks/gpu.md
python -m benchmarks.gpu --dry-run     # all steps that need no GPU, with small inputs

Each step is a process with a time limit. A step that fails, or lacks packages, gets a row with the
reason, and the next step runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import gpu_checks, measure
from benchmarks.gpu_steps import FULL, SMALL, THERE, Step, gpus, steps

PAGE = Path(__file__).with_suffix(".md")
# A step is not started if less is left of --minutes.
_LEAST_S = 5
_HEAD = """\
# GPU

What only a GPU can show, and how many images a second its host prepares and reads. `make gpu` runs
it on a Linux host with NVIDIA's driver. Without `GPU_PYTHON`, it first installs
`docker/prep.lock` and `docker/train.lock`: TensorFlow and DALI for CUDA 12, 9 GB. With
`GPU_PYTHON=python3` it installs nothing, needs no network, and takes the packages that this Python
has; a step whose packages are missing says so. Horovod's NCCL also needs gcc, g++, make, and nvcc
in `CUDA_HOME` (default: /usr/local/cuda). `make gpu GPU_ARGS=--dry-run` runs all steps that need no
GPU, with small inputs. For a machine without network, `python -m benchmarks.gpu_bundle` packs what
it lacks.

"""
_EMPTY = """\
**No GPU has run it yet: there are no figures.** If you have one, please run it and commit this.
"""


def attempt(step: Step, log: Path, left_s: float = float("inf")) -> tuple[bool, str]:
    """Runs a step if no requirement is missing; returns whether it failed, and its figure.

    `log` gets all of its output.
    """
    missing = [need for need in step.needs if not THERE[need]()]
    if missing:
        return False, f"not run: no {', no '.join(missing)}"
    if left_s < _LEAST_S:
        return False, "not run: no time left"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    limit_s = min(step.limit_s, left_s)
    with log.open("a+", encoding="utf-8", errors="replace") as file:
        file.write(f"\n## {step.name}: {shlex.join(step.command)}\n")
        file.flush()
        began = file.tell()
        process = subprocess.Popen(
            step.command,
            env=os.environ | {"PATH": path},
            cwd=measure.ROOT,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            for pid in measure.tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            out, _ = process.communicate()
        file.seek(began)
        said = file.read()
        file.write(out)
    if process.returncode:
        how = f"failed with exit code {process.returncode}"
        if process.returncode == -signal.SIGKILL:
            how = f"failed: killed after {limit_s:.0f} s"
        return True, f"{how}{_tail(said or out)}"
    try:
        return False, step.figure(out)
    except (OSError, LookupError, ValueError) as error:
        return True, f"failed: the output is not as expected: {error}{_tail(said or out)}"


def _tail(text: str) -> str:
    """Returns the last line of the output of a step, as a table cell."""
    line = (text.strip().splitlines() or [""])[-1]
    return re.sub(r"[|\s]+", " ", f": {line}"[:400]) if line else ""


def page(rows: Iterable[tuple[str, str]]) -> str:
    """Returns benchmarks/gpu.md with a row for each (step, figure)."""
    lines = [f"| {name} | {figure} |" for name, figure in rows]
    table = "\n".join(["| step | figure |", "|---|---|", *lines]) + "\n"
    return _HEAD + (table if lines else _EMPTY)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no step later")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--page", type=Path, default=PAGE, help="gets the table")
    parser.add_argument("--log", type=Path, help="gets all that the steps print")
    settings = parser.parse_args(argv)
    end = time.monotonic() + 60 * settings.minutes
    # The processes of the steps find the package here, installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(measure.ROOT), os.environ.get("PYTHONPATH")))
    )
    size = SMALL if settings.dry_run else FULL
    out = settings.scratch.absolute() / "gpu"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    log = settings.log or out / "gpu.log"
    log.unlink(missing_ok=True)
    source, data = gpu_checks.dataset(settings.scratch.absolute(), size.images, size.copies)
    rows = []
    failed = []
    for step in steps(source, data, gpus(), size, out):
        print(f"\n{step.name}: {shlex.join(step.command)}", flush=True)
        if settings.dry_run and {"gpu", "second gpu"} & set(step.needs):
            missing = [need for need in step.needs if not THERE[need]()]
            print(f"not run by --dry-run; missing: {', '.join(missing) or 'nothing'}")
            continue
        began = time.monotonic()
        wrong, figure = attempt(step, log, end - began)
        print(f"{figure} ({time.monotonic() - began:.0f} s)", flush=True)
        failed += [step.name] * wrong
        rows.append((step.name, figure))
        if not settings.dry_run:
            settings.page.write_text(page(rows), "utf-8")
    if failed:
        print(f"\nFAILED: {', '.join(failed)}. All output: {log}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
