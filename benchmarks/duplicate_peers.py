"""Our `duplicates`, fastdup and imagededup: time, memory, recall and precision for one folder.

Imports only the standard library, because the peers run in a separate environment.
"""

from __future__ import annotations

import csv
import itertools
import json
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure

OURS = "imagenet-prep"
# The numbers of photographs in the folder, and of variants of each.
NUM_FILES = 20_000
VARIANTS_EACH = 5
CLASSES = 20
# Columns of the table, and the kinds of variants that belong to them.
COLUMNS = {
    "re-encoded": ("re-encoded, q50", "re-encoded, q75", "re-encoded, q95, 4:4:4"),
    "resized": ("resized, 0.5", "resized, 0.7", "resized, 1.5", "resized, 2"),
    "grey, CMYK": ("grey", "CMYK"),
    "mirrored": ("mirrored",),
    "cropped": ("cropped, <= 5 % a side", "cropped, 5 % of all sides"),
}
KINDS = tuple(itertools.chain.from_iterable(COLUMNS.values()))
Pair = tuple[str, str]


class Row(NamedTuple):
    """The cost of a program, and the pairs of files that it reported."""

    run: measure.Run
    pairs: set[Pair]


def plant(path: Path, number: int, folder: Path) -> dict[str, str]:
    """Writes a photograph and variants of it; returns the kind of each variant by its file."""
    from benchmarks import planted

    place = folder / "train" / f"n{number % CLASSES:08d}"
    place.mkdir(parents=True, exist_ok=True)
    stored = planted.stored(path)
    (place / f"{number:05d}-0.jpg").write_bytes(stored)
    kinds = random.Random(number).sample(KINDS, VARIANTS_EACH)
    for variant, kind in enumerate(kinds, start=1):
        data = planted.variant(path, stored, kind)
        (place / f"{number:05d}-{variant}.jpg").write_bytes(data)
    return {f"{number:05d}-{variant}": kind for variant, kind in enumerate(kinds, start=1)}


def compare(paths: Sequence[Path], peers_venv: Path | None, workers: int) -> None:
    """Prints a row for each program."""
    chosen = paths[: NUM_FILES // (1 + VARIANTS_EACH)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "files"
        with futures.ProcessPoolExecutor(workers) as pool:
            kinds: dict[str, str] = {}
            for made in pool.map(plant, chosen, itertools.count(), itertools.repeat(folder)):
                kinds |= made
        measure.say(f"{len(chosen):,} photographs, {len(kinds):,} variants")
        names = [OURS, *(TOOLS if peers_venv else ())]
        lines = []
        for name in names:
            row = _ours(folder, workers) if name == OURS else _peer(name, folder, peers_venv)
            lines.append([name, *_figures(row, kinds)])
            measure.say(" ".join(lines[-1]))
            if name == OURS:
                for (one, other), number in Counter(_false(row.pairs)).items():
                    measure.say(f"  {number:,} of {chosen[one].name} and {chosen[other].name}")
    header = ["", "s", "CPU s", "PSS MB", "RSS MB", *COLUMNS, "all", "precision", "pairs"]
    print(measure.machine())
    print(measure.table(header, lines))


def _figures(row: Row, kinds: dict[str, str]) -> Iterator[str]:
    """Yields the cells of a row: cost, recall of the variants of each column, precision."""
    peak = row.run.peak()
    yield from (f"{row.run.wall_s:.0f}", f"{row.run.cpu_s:.0f}")
    yield from (f"{peak.pss_mb:.0f}", f"{peak.rss_mb:.0f}")
    found = {name: (f"{name[:5]}-0", name) in row.pairs for name in kinds}
    for wanted in (*COLUMNS.values(), KINDS):
        there = [found[name] for name, kind in kinds.items() if kind in wanted]
        yield f"{sum(there) / max(1, len(there)):.4f}"
    yield f"{1 - len(_false(row.pairs)) / max(1, len(row.pairs)):.4f}"
    yield f"{len(row.pairs):,}"


def _false(pairs: Iterable[Pair]) -> list[tuple[int, int]]:
    """Returns the two photographs of each pair that has two."""
    numbers = ((int(one[:5]), int(other[:5])) for one, other in pairs)
    return [(one, other) for one, other in numbers if one != other]


def _ours(folder: Path, workers: int) -> Row:
    out = folder.with_name("found")
    words = ["duplicates", "--source", folder, "--splits", "train", "--out", out]
    program = [sys.executable, "-m", "imagenet_prep", *words, "--workers", str(workers)]
    run = measure.run(program)
    groups = defaultdict(list)
    with open(out / "pairs.csv", newline="") as file:
        for line in csv.DictReader(file):
            groups[line["group"]].append(Path(line["key"]).stem)
    pairs = set()
    for group in groups.values():
        pairs.update(itertools.combinations(sorted(group), 2))
    return Row(run, pairs)


def _peer(name: str, folder: Path, venv: Path | None) -> Row:
    assert venv is not None
    out = folder.with_name("pairs.json")
    run = measure.run([venv / "bin" / "python", "-m", __spec__.name, name, folder, out])
    return Row(run, {(one, other) for one, other in json.loads(out.read_text())})


# The rest of this file runs in the peers' environment.


def _imagededup(method: str) -> Callable[[Path, Path], Iterator[Pair]]:
    def find(folder: Path, _: Path) -> Iterator[Pair]:
        from imagededup import methods

        found = getattr(methods, method)().find_duplicates(str(folder), recursive=True)
        for name, others in found.items():
            yield from ((name, other) for other in others)

    return find


def _fastdup(folder: Path, scratch: Path) -> Iterator[Pair]:
    import fastdup

    program = fastdup.create(str(scratch), str(folder))
    # A few more neighbours than the variants of a photograph.
    program.run(nearest_neighbors_k=10, print_summary=False)
    table = program.similarity()
    yield from zip(table["filename_from"], table["filename_to"], strict=True)


# Each program's default threshold: a similarity of 0.9, and 10 of 64 bits.
TOOLS: dict[str, Callable[[Path, Path], Iterator[Pair]]] = {
    "fastdup": _fastdup,
    **{
        f"imagededup, {method}": _imagededup(method)
        for method in ("PHash", "DHash", "WHash", "AHash")
    },
}


def main() -> None:
    """Writes each pair that a peer finds in a folder once, by file names."""
    name, folder, out = sys.argv[1:]
    scratch = Path(out).with_name("scratch")
    found = TOOLS[name](Path(folder), scratch)
    pairs = {tuple(sorted((Path(one).stem, Path(other).stem))) for one, other in found}
    Path(out).write_text(json.dumps(sorted(pair for pair in pairs if pair[0] != pair[1])))
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
