"""Shared parts of the benchmarks: a corpus, measured process trees, and tables.

Imports only the standard library, because the peers' workers run it in a separate environment.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import multiprocessing
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / "build" / "bench"
TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"

# Peak memory, for every size of the dataset.
MEMORY_BAR_MB = 400
MEMORY_BAR_MB_A_WORKER = 150

_SAMPLE_EVERY_S = 0.2
# Vector units as Linux calls them, of x86-64 and of ARM.
VECTORS = ("sse2", "avx2", "avx512f", "asimd", "sve")

T = TypeVar("T")


def add_peer_flags(parser: argparse.ArgumentParser, *, only: str) -> None:
    """Adds the flags of a benchmark that runs its rows as jobs; `only` is the help of --only."""
    parser.add_argument("--only", default="", metavar="REGEX", help=only)
    parser.add_argument("--peers-venv", type=Path, help="where the peers are installed")
    parser.add_argument("--scratch", type=Path, default=SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)


class Member(NamedTuple):
    """One image of the train archive."""

    name: str
    wnid: str
    offset: int
    size: int


class Sample(NamedTuple):
    """Memory of a process tree at one moment; pss_mb counts shared pages once."""

    time_s: float
    pss_mb: float
    rss_mb: float


@dataclass
class Run:
    """The cost of a process and its children.

    Attributes:
      start_s: time.time() at the start.
      wall_s, cpu_s: interpreter start and imports included.
      samples: memory over time.
      stdout: the complete output.
    """

    start_s: float
    wall_s: float = 0.0
    cpu_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    stdout: str = ""

    def peak(self, start_s: float = 0.0, stop_s: float = float("inf")) -> Sample:
        """Returns the largest PSS and the largest sum of RSS between two moments."""
        inside = [s for s in self.samples if start_s <= s.time_s <= stop_s]
        return Sample(
            0.0,
            max((s.pss_mb for s in inside), default=0.0),
            max((s.rss_mb for s in inside), default=0.0),
        )


def corpus(folder: Path, num_images: int, size: tuple[int, int]) -> Path:
    """Returns a folder with a train archive of `num_images`, made on the first call."""
    from imagenet_prep.testing.miniature import make_miniature

    final = folder / f"corpus-{num_images}-{size[0]}x{size[1]}"
    if not final.is_dir():
        say(f"making {final}: {num_images:,} images")
        partial = final.with_suffix(".partial")
        make_miniature(
            partial,
            num_train=num_images,
            num_validation=1,
            num_classes=10,
            odd_files=False,
            size=size,
        )
        partial.rename(final)
    return final


def members(archive: Path) -> list[Member]:
    """Returns the images of a train archive in its order, by the standard library's reader."""
    found = []
    with tarfile.open(archive) as outer:
        for inner in outer:
            wnid = inner.name.removesuffix(".tar")
            with tarfile.open(fileobj=outer.extractfile(inner)) as images:
                for image in images:
                    offset = inner.offset_data + image.offset_data
                    found.append(Member(image.name, wnid, offset, image.size))
    return found


def member_reader(archive: str | Path) -> Callable[[Member], bytes]:
    """Returns a function that reads members of an archive, which stays open."""
    descriptor = os.open(archive, os.O_RDONLY)
    return lambda member: os.pread(descriptor, member.size, member.offset)


def run(
    argv: Sequence[str | Path],
    *,
    sample: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Runs a program in the repository's root to its end and measures it.

    Args:
      argv: the program.
      sample: also measure its memory.
      environment: variables besides this process's.

    Raises:
      RuntimeError: it failed; the message has the end of its stderr.
    """
    # Installed peers have their bytecode. Ours is written by the first run, unless this variable of
    # a developer's machine prevents it.
    variables = {**os.environ, **environment}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    before = _cpu_of_children()
    result = Run(time.time())
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(arg) for arg in argv],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    done = threading.Event()
    sampler = threading.Thread(target=_watch, args=(process.pid, done, result.samples))
    if sample:
        sampler.start()
    try:
        result.stdout, stderr = process.communicate()
        result.wall_s = time.perf_counter() - start
    finally:
        process.kill()
        done.set()
        if sample:
            sampler.join()
    if process.returncode:
        raise RuntimeError(f"{argv}: exit code {process.returncode}:\n{stderr[-4000:]}")
    result.cpu_s = _cpu_of_children() - before
    return result


def prepare_argv(source: Path | str, out: Path | str, *flags: str | int) -> list[str]:
    """Returns the command line of our own program."""
    fixed = ["--source", source, "--out", out, "--splits", "train", "--json"]
    program = [sys.executable, "-m", "imagenet_prep", "prepare"]
    return [str(arg) for arg in (*program, *fixed, *flags)]


def phases(out: Path, started_s: float, wall_s: float) -> dict[str, tuple[float, float]]:
    """Returns (start, stop) of the phases of a finished prepare, from its files.

    Receipts have their start and duration, the plan's files and the manifest their date. The time
    between two phases is mostly the start of worker processes.
    """
    work = out / ".work"
    index, write = (_span(work, stage) for stage in ("index", "write"))
    plan = max(path.stat().st_mtime for path in work.glob("plan*/*"))
    manifest = (out / "dataset.json").stat().st_mtime
    return {
        "start-up": (started_s, index[0]),
        "index": index,
        "plan": (index[1], plan),
        "launch": (plan, write[0]),
        "shards": write,
        "commit": (write[1], manifest),
        "end": (manifest, started_s + wall_s),
    }


def side_by_side(tool: str, work: Callable[..., None], parts: Sequence[Sequence[Any]]) -> None:
    """Runs work(*part) in a forked process for each part; RuntimeError means that one failed."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work, args=tuple(part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{tool}: a worker ended with {process.exitcode}")


def interleave(
    rows: Mapping[str, Callable[[], T]], rounds: int, watch: Callable[[str, T], None]
) -> dict[str, list[T]]:
    """Returns each row's results; every round runs all rows, with a different one first."""
    results: dict[str, list[T]] = {name: [] for name in rows}
    names = list(rows)
    for number in range(rounds):
        turn = number * len(names) // rounds
        for name in names[turn:] + names[:turn]:
            result = rows[name]()
            results[name].append(result)
            watch(f"{number + 1}/{rounds} {name}", result)
    return results


def median(values: Sequence[float]) -> float:
    """Returns the median."""
    return statistics.median(values)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first column is text, the others are numbers."""
    columns = zip(header, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        for row in (header, rule, *rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rate_table(
    rates: dict[str, list[float]], title: str, ratio: Callable[[float, float], float], base: str
) -> str:
    """Returns a table of rates: medians, and medians of their ratios within a round.

    Args:
      rates: images a CPU second, by row and round.
      title: heading of the ratios.
      ratio: returns the figure of a rate and the rate of the row `base`.
      base: the row with which all are compared.
    """
    rows = []
    for name, each in rates.items():
        ratios = [ratio(rate, other) for rate, other in zip(each, rates[base], strict=True)]
        rows.append((name, f"{median(each):,.0f}", f"{median(ratios):.2f}"))
    return table(("", "images a CPU second", title), rows)


def machine() -> str:
    """Returns location and time in one line; the load reveals a busy machine."""
    cpu = Path("/proc/cpuinfo").read_text()
    models = re.findall(r"model name\s*: (.*)", cpu)
    model = models[0] if models else platform.machine()
    # The fastest reader depends on them.
    vectors = [name for name in VECTORS if re.search(rf"\b{name}\b", cpu)]
    model += f" ({', '.join(vectors)})" if vectors else ""
    load = os.getloadavg()[0]
    today = dt.datetime.now(tz=dt.UTC).date()
    cores = len(os.sched_getaffinity(0))
    return f"{today}, {cores} cores of {model}, Python {platform.python_version()}, load {load:.1f}"


def versions(python: str | Path, packages: Sequence[str]) -> dict[str, str]:
    """Returns the version of each of some packages that an environment has."""
    code = (
        "import importlib.metadata, json\n"
        "installed = importlib.metadata.distributions()\n"
        "print(json.dumps([(each.name, each.version) for each in installed]))"
    )
    names = {re.sub(r"[-_.]+", "-", package.lower()): package for package in packages}
    found = {}
    for name, version in json.loads(run([python, "-c", code], sample=False).stdout):
        package = names.get(re.sub(r"[-_.]+", "-", name.lower()))
        if package:
            found[package] = version
    return found


def versions_line(installed: Mapping[str, str]) -> str:
    """Returns versions in one line."""
    return ", ".join(f"{package} {version}" for package, version in sorted(installed.items()))


def finish(title: str, text: str, raw: Any, path: Path | None) -> None:
    """Prints a benchmark's result and writes the raw figures if requested."""
    where = machine()
    print(f"{title} ({where})\n\n{text}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"benchmark": title, "machine": where, "raw": raw}, indent=1))


def need(**package_of: str) -> None:
    """Ends the benchmark with a message if programs are missing.

    Args:
      **package_of: Debian's package of each program, by the program's name.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = {p: package for p, package in package_of.items() if not shutil.which(p, path=path)}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise SystemExit(
            f"This benchmark needs {', '.join(missing)}, not installed here. "
            f"On Debian: sudo apt-get install {packages}"
        )


def say(line: str) -> None:
    """Prints progress."""
    print(line, file=sys.stderr, flush=True)


def _span(work: Path, stage: str) -> tuple[float, float]:
    receipts = [json.loads(p.read_bytes()) for p in work.glob(f"{stage}-*/receipts/*.json")]
    return (
        min(receipt["start_s"] for receipt in receipts),
        max(receipt["start_s"] + receipt["seconds"] for receipt in receipts),
    )


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _watch(root: int, done: threading.Event, samples: list[Sample]) -> None:
    while True:
        rollups = [_rollup(pid) for pid in tree(root)]
        pss, rss = (sum(column) / 1e6 for column in zip(*rollups, strict=True))
        samples.append(Sample(time.time(), pss, rss))
        if done.wait(_SAMPLE_EVERY_S):
            return


def tree(root: int) -> set[int]:
    """Returns the process, its session and all descendants."""
    parents = {}
    found = {root}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # pid (name) state parent group session ...; the name may contain any characters.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            if int(fields[3]) == root:
                found.add(int(entry.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def cpu_of_tree(root: int) -> float:
    """Returns the CPU seconds of a process, its session and all descendants.

    Processes that have ended are included if their parents have waited for them.
    """
    ticks = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # utime, stime, and the same of children.
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _rollup(pid: int) -> tuple[int, int]:
    """Returns (PSS, RSS) in bytes; zeros if the process has ended."""
    sizes = {"Pss:": 0, "Rss:": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, size = line.split()[:2]
            if name in sizes:
                sizes[name] = int(size) * 1024
    return sizes["Pss:"], sizes["Rss:"]
