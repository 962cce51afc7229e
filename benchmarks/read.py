"""From a prepared dataset to training batches: our readers and those of other projects.

python -m benchmarks.read --peers-venv /tmp/peers-venv

Without --peers-venv, only our readers are measured. A second table shows the steps of an image.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import measure, read_steps
from benchmarks.peer_readers import PEERS
from benchmarks.readers import BATCH, NATIVE, READERS, SIDE, WORKERS, Epoch, Job

NUM_SHARDS = 16
# One epoch before the clock starts, for pools, caches and buffers.
WARM_UP = 1
SETS = {"256 px": ("--short-side", "256"), "originals": ("--keep-original",)}
EXPORTS = ("folder", "webdataset", "parquet")
ALL = READERS | PEERS


@dataclass
class Result:
    """One row of one round.

    Attributes:
      images: read in the measured epochs.
      seconds: of these epochs.
      cpu_s: of the process and its descendants in these epochs.
      first_s: from the start of the reader, with its imports, to its first batch.
      pss_mb: peak memory of these processes.
    """

    images: int
    seconds: float
    cpu_s: float
    first_s: float
    pss_mb: float


def prepared(scratch: Path, num_images: int, size: tuple[int, int], kind: str) -> Path:
    """Returns a prepared dataset, made on the first call."""
    final = scratch / f"set-{num_images}-{size[0]}x{size[1]}-{kind.partition(' ')[0]}"
    if not final.is_dir():
        source = measure.corpus(scratch, num_images, size)
        partial_ = final.with_suffix(".partial")
        flags = (*SETS[kind], "--train-shards", NUM_SHARDS, "--allow-subset")
        measure.run(measure.prepare_argv(source, partial_, *flags))
        partial_.rename(final)
    return final


def exported(root: Path) -> dict[str, str]:
    """Returns the folder of each export of a dataset, made on the first call."""
    program = [sys.executable, "-m", "imagenet_prep", "export", str(root)]
    folders = {name: f"{root}-{name}" for name in EXPORTS}
    for name, folder in folders.items():
        # A finished export is only checked.
        measure.run([*program, "--to", name, "--out", folder, "--json"], sample=False)
    return folders


class Bench:
    """The rows of one dataset."""

    def __init__(self, kind: str, root: Path, epochs: int, peers_venv: Path | None) -> None:
        self.kind = kind
        self.root = root
        self.epochs = epochs
        self.pythons = {False: sys.executable}
        self.exports: dict[str, str] = {}
        if peers_venv:
            self.pythons[True] = str(peers_venv / "bin" / "python")
            self.exports = exported(root)

    def rows(
        self, versions: Mapping[bool, Mapping[str, str]]
    ) -> dict[str, Callable[[], Result | None]]:
        """Returns the rows that can be measured, by name.

        Args:
          versions: of packages in our environment (False) and in that of the peers (True).
        """
        found = {}
        for name, reader in ALL.items():
            installed = versions.get(reader.is_peer)
            if installed is None:
                continue
            missing = [package for package in reader.packages if package not in installed]
            if missing:
                measure.say(f"{name}: skipped, no {', '.join(missing)}")
                continue
            found[f"{self.kind}: {name}"] = partial(self._row, name)
        return found

    def steps(self) -> dict[str, float]:
        """Returns the CPU time per image of each step, in microseconds."""
        with self._job("") as path:
            run = measure.run([self.pythons[True], "-m", "benchmarks.read_steps", path])
        return dict(json.loads(run.stdout))

    def _row(self, name: str) -> Result | None:
        """Returns None if a peer fails, so that the other rows are not lost."""
        python = self.pythons[ALL[name].is_peer]
        with self._job(name) as path:
            try:
                run = measure.run([python, "-m", "benchmarks.read", "--job", path])
            except RuntimeError as error:
                if not ALL[name].is_peer:
                    raise
                measure.say(f"{self.kind}: {name}: failed, {error}")
                return None
        times = json.loads(run.stdout)
        memory = run.peak(times.pop("start_s"), times.pop("stop_s"))
        return Result(**times, pss_mb=memory.pss_mb)

    @contextlib.contextmanager
    def _job(self, reader: str) -> Iterator[Path]:
        """Yields the file of a job, which exists only as long as its process."""
        job = Job(reader, str(self.root), self.exports, self.epochs)
        path = self.root.with_name(f"{self.root.name}.job.json")
        path.write_text(json.dumps(dataclasses.asdict(job)))
        try:
            yield path
        finally:
            path.unlink()


def complete(results: Mapping[str, Sequence[Result | None]]) -> dict[str, list[Result]]:
    """Returns the rows without those that failed in a round."""
    found = {}
    for name, rounds in results.items():
        measured = [result for result in rounds if result is not None]
        if len(measured) == len(rounds):
            found[name] = measured
    return found


def render(results: Mapping[str, Sequence[Result]]) -> str:
    """Returns the table of benchmarks/README.md: medians, and ratios within a round."""
    kinds = [kind for kind in SETS if any(name.startswith(f"{kind}: ") for name in results)]
    header = [""]
    for kind in kinds:
        header += [f"{kind}: per CPU s", "per s", "x"]
    header += ["first batch, s", "PSS MB"]
    rows = []
    for name in ALL:
        measured = [results.get(f"{kind}: {name}") for kind in kinds]
        if not any(measured):
            continue
        row = [name]
        for kind, rounds in zip(kinds, measured, strict=True):
            row += _speed(rounds, results.get(f"{kind}: {NATIVE}"))
        first = next(rounds for rounds in measured if rounds)
        row.append(f"{measure.median([r.first_s for r in first]):.2f}")
        row.append(f"{measure.median([r.pss_mb for r in first]):,.0f}")
        rows.append(row)
    return measure.table(header, rows)


def _speed(rounds: Sequence[Result] | None, native: Sequence[Result] | None) -> list[str]:
    """Returns a row's cells for a dataset; dashes for results that are missing."""
    if rounds is None:
        return ["-", "-", "-"]
    ratio = "-"
    if native is not None:
        pairs = zip(native, rounds, strict=True)
        times = [(one.images / one.cpu_s) / (r.images / r.cpu_s) for one, r in pairs]
        ratio = f"{measure.median(times):.2f}"
    return [
        f"{measure.median([r.images / r.cpu_s for r in rounds]):,.0f}",
        f"{measure.median([r.images / r.seconds for r in rounds]):,.0f}",
        ratio,
    ]


# The rest runs in the process of a reader.


def work(job: Job) -> dict[str, float]:
    """Returns the fields of `Result`, except for memory, and when the measured epochs began."""
    begin = time.perf_counter()
    epoch = ALL[job.reader].start(job)
    first_s = _read(epoch)[1] - begin
    for _ in range(WARM_UP - 1):
        _read(epoch)
    start_s = time.time()
    cpu_s = measure.cpu_of_tree(os.getpid())
    images = sum(_read(epoch)[0] for _ in range(job.epochs))
    if not images:
        raise SystemExit(f"an epoch has no batch of {BATCH} images: raise --images")
    stop_s = time.time()
    return {
        "images": images,
        "seconds": stop_s - start_s,
        "cpu_s": measure.cpu_of_tree(os.getpid()) - cpu_s,
        "first_s": first_s,
        "start_s": start_s,
        "stop_s": stop_s,
    }


def _read(epoch: Epoch) -> tuple[int, float]:
    """Reads an epoch; returns its number of images, and the time of its first batch."""
    first = 0.0
    images = 0
    for size in epoch():
        first = first or time.perf_counter()
        images += size
    return images, first


def _work_from(path: Path) -> None:
    # Frameworks print too; only the last line is the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer, "w") as file:
        file.write(json.dumps(work(Job(**json.loads(path.read_text())))))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints, or runs one job for a measuring run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.read")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("W", "H"))
    parser.add_argument("--epochs", type=int, default=2, help="measured, after one to warm up")
    parser.add_argument("--rounds", type=int, default=3)
    measure.add_peer_flags(parser, only="rows whose name it matches")
    args = parser.parse_args(argv)
    if args.job:
        _work_from(args.job)
        return
    size = (args.size[0], args.size[1])
    roots = {kind: prepared(args.scratch, args.images, size, kind) for kind in SETS}
    benches = [Bench(kind, root, args.epochs, args.peers_venv) for kind, root in roots.items()]
    versions = {}
    for is_peer, python in benches[0].pythons.items():
        packages = {
            package
            for reader in ALL.values()
            if reader.is_peer == is_peer
            for package in reader.packages
        }
        versions[is_peer] = measure.versions(python, sorted(packages))
    rows: dict[str, Callable[[], Result | None]] = {}
    for bench in benches:
        rows |= bench.rows(versions)
    rows = {name: row for name, row in rows.items() if re.search(args.only, name)}

    def watch(name: str, result: Result | None) -> None:
        if result is not None:
            measure.say(f"{name}: {result.images / result.cpu_s:,.0f} images per CPU second")

    results = complete(measure.interleave(rows, args.rounds, watch))
    title = (
        f"read: {args.images:,} images, batch {BATCH}, {SIDE} px, {WORKERS} threads or workers, "
        f"{args.epochs} epochs, {args.rounds} rounds"
    )
    parts = [render(results)]
    raw = {name: [dataclasses.asdict(r) for r in rounds] for name, rounds in results.items()}
    steps = {}
    if args.peers_venv and re.search(args.only, read_steps.TITLE):
        steps = {bench.kind: bench.steps() for bench in benches}
        parts.append(read_steps.render(steps))
    for is_peer, installed in versions.items():
        parts.append(f"{'Peers' if is_peer else 'Ours'}: {measure.versions_line(installed)}")
    raw_all = {"read": raw, "steps": steps, "versions": list(versions.values())}
    measure.finish(title, "\n\n".join(parts), raw_all, args.json)


if __name__ == "__main__":
    main()
