"""Recall, precision and speed of finding duplicates: planted variants of real photographs.

python -m benchmarks.duplicates recall --photographs DIR     # by kind of variant
python -m benchmarks.duplicates precision --photographs DIR  # false proofs
python -m benchmarks.duplicates peers --photographs DIR --peers-venv /tmp/dup-peers
python -m benchmarks.duplicates hash --photographs DIR       # images/s a core, decoding included
python -m benchmarks.duplicates search --num 14200000        # all joins
python -m benchmarks.duplicates proofs                       # the first look, and the proof
python -m benchmarks.duplicates exact                        # equal rows of tables

DIR holds photographs in folders, one per source; the sha256 of a file decides on its half.
Thresholds were fixed on `--half tune`; the document has the figures of `--half report`, run once.
"""

from __future__ import annotations

import argparse
import io
import itertools
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks import duplicate_peers, planted
from benchmarks.planted import photographs
from imagenet_prep.codec import likeness
from imagenet_prep.dataset import samples, schema
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.matching import search
from imagenet_prep.matching.find import equal_bytes
from imagenet_prep.matching.pictures import columns
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.folder import LocalStore

# Sizes in pixels of the tiles of the precision test, and of the steps between tiles.
TILE = 128
STEP = 36
LARGE_STEP = 120


class Seen(NamedTuple):
    """Images as the product stores them: their means, and their rows."""

    means: np.ndarray
    rows: np.ndarray
    sides: np.ndarray  # the shorter one, in pixels


def look(files: Sequence[bytes]) -> Seen:
    """Returns the means and rows of files."""
    means = np.stack([likeness.means(data) for data in files])
    sides = [min(Image.open(io.BytesIO(data)).size) for data in files]
    return Seen(means, np.stack([search.row(each) for each in means]), np.array(sides))


def plant(path: Path) -> Seen:
    """Returns a photograph as a dataset would store it, and its variants."""
    stored = planted.stored(path)
    return look([stored, *(planted.variant(path, stored, kind) for kind in planted.VARIANTS)])


def found(base: Seen, other: Seen) -> np.ndarray:
    """Returns the pairs of images that the product would find: candidates that are proven."""
    there = np.zeros(len(base.rows), bool)
    forms = [("whole", "whole", search.WHOLE_RADII)]
    forms += [("whole", "window", search.WINDOW_RADII), ("window", "whole", search.WINDOW_RADII)]
    for mirror in (None, likeness.mirror()):
        for one, two, radii in forms:
            differing = base.rows[one] ^ other.rows[two]
            if mirror is not None:
                differing ^= mirror
            counts = np.bitwise_count(differing)
            near = (counts[:, 0] <= radii.key) & (counts.sum(axis=1) <= radii.all)
            near &= search.judged(other.rows, search.LESS) & ~there
            at = np.flatnonzero(near)
            there[at] = proven(
                *(Seen(*(column[at] for column in each)) for each in (base, other)),
                mirror is not None,
            )
    return there


def proven(left: Seen, right: Seen, mirrored: bool) -> np.ndarray:
    """Returns the candidates that both comparisons accept."""
    there = search.likely(left.rows["small"], right.rows["small"], mirrored)
    for at in np.flatnonzero(there).tolist():
        side = min(left.sides[at], right.sides[at])
        there[at] = search.proven(left.means[at], right.means[at], mirrored, side)
    return there


def recall(folder: Path, half: str, workers: int, keep: Path | None) -> None:
    """Prints the share of variants that are found, by kind."""
    paths = list(photographs(folder, half))
    with futures.ProcessPoolExecutor(workers) as pool:
        seen = list(pool.map(plant, paths, chunksize=8))
    every = Seen(*(np.stack(column) for column in zip(*seen, strict=True)))
    if keep:
        np.savez(keep, **every._asdict())
    judged = search.judged(every.rows[:, 0])
    print(f"{len(paths):,} photographs of {half}; {1 - judged.mean():.2%} are not judged")
    base = Seen(*(column[judged, 0] for column in every))
    for number, kind in enumerate(planted.VARIANTS, start=1):
        there = found(base, Seen(*(column[judged, number] for column in every)))
        missed = len(there) - int(there.sum())
        print(f"| {kind} | {there.mean():.4f} | {missed:,} of {len(there):,} missed |")


def tiles_of(path: Path) -> Seen:
    """Returns overlapping tiles of a photograph; only pairs from two photographs are counted."""
    with Image.open(path) as opened:
        luma = np.asarray(opened.convert("L"))
    step = STEP if max(luma.shape) < 1000 else LARGE_STEP
    corners = itertools.product(*(range(0, side - TILE + 1, step) for side in luma.shape))
    cuts = [
        np.ascontiguousarray(luma[top : top + TILE, left : left + TILE]) for top, left in corners
    ]
    means = [likeness.means_of_pixels(cut) for cut in cuts]
    rows = [search.row(each) for each in means]
    keep = [i for i, each in enumerate(rows) if search.judged(each, search.LESS)]
    return Seen(
        np.array([means[i] for i in keep], np.uint16).reshape(-1, likeness.CELLS, likeness.CELLS),
        np.array([rows[i] for i in keep], search.ROW),
        np.full(len(keep), TILE),
    )


def precision(folder: Path, half: str, workers: int, _: Path | None) -> None:
    """Prints the number of tile pairs of different photographs that are called duplicates."""
    paths = list(photographs(folder, half))
    with futures.ProcessPoolExecutor(workers) as pool:
        tiles = list(pool.map(tiles_of, paths, chunksize=8))
    every = Seen(*(np.concatenate(column) for column in zip(*tiles, strict=True)))
    rows = every.rows
    whose = np.repeat(np.arange(len(paths)), [len(each.rows) for each in tiles])
    of_one = np.bincount(whose).astype(np.int64)
    pairs = len(rows) * (len(rows) - 1) // 2 - int((of_one * (of_one - 1) // 2).sum())
    ids = np.arange(len(rows), dtype=np.uint32)
    whole, window = (search.Side(ids, rows[form].copy()) for form in ("whole", "window"))
    candidates = 0
    bad = []
    with futures.ThreadPoolExecutor(workers) as threads:
        for right, radii in ((whole, search.WHOLE_RADII), (window, search.WINDOW_RADII)):
            for mirror in (None, likeness.mirror()):
                join = search.Search(whole, right, radii, mirror)
                for left, others in join.candidates(threads, workers):
                    strict = search.judged(rows[left]) | search.judged(rows[others])
                    other = (whose[left] != whose[others]) & strict
                    at = left[other], others[other]
                    candidates += len(at[0])
                    one, two = (Seen(*(column[i] for column in every)) for i in at)
                    there = proven(one, two, mirror is not None)
                    bad += zip(whose[at[0][there]], whose[at[1][there]], strict=True)
    print(f"{len(rows):,} tiles of {len(paths):,} photographs, {pairs:,} pairs of different ones")
    print(f"{candidates:,} candidates, {len(bad):,} false proofs")
    for (one, two), number in Counter(bad).items():
        print(f"  {number:,} of {paths[one].name} and {paths[two].name}")


def speed_of_hashes(folder: Path) -> None:
    """Prints images/s of one core, including decoding, for photographs as datasets store them."""
    paths = list(photographs(folder, "both"))[:1000]
    stored = [planted.stored(path) for path in paths]
    rates = []
    for _ in range(5):
        begun = time.process_time()
        for data in stored:
            search.of(data)
        rates.append(len(stored) / (time.process_time() - begun))
    sizes = sum(map(len, stored)) / len(stored)
    print(
        f"{statistics.median(rates):,.0f} images/s a core ({min(rates):,.0f} to {max(rates):,.0f})"
    )
    print(f"{len(stored):,} images of {planted.SHORT_SIDE} px, {sizes:,.0f} bytes")


def speed_of_search(num: int, workers: int) -> None:
    """Prints time and memory of all joins on random hashes with planted pairs."""
    planted = 20_000
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for form in ("whole", "window"):
            path = Path(folder) / form
            with open(path, "wb") as file:
                for start in range(0, num, 1 << 18):
                    size = (min(1 << 18, num - start), 4)
                    file.write(rng.integers(0, 2**64, size, dtype=np.uint64).tobytes())
            bits = np.memmap(path, np.uint64, "r+", shape=(num, 4))
            sides.append((path, bits))
        pairs = rng.choice(num, (planted, 2), replace=False)
        for left, right in pairs.tolist():
            bits = sides[rng.integers(0, 2)][1]
            other = sides[0][1][left].copy()
            for _ in range(20):
                other[rng.integers(0, 4)] ^= np.uint64(1) << np.uint64(rng.integers(0, 64))
            bits[right] = other
        del bits
        stored = [np.memmap(path, np.uint64, "r", shape=(num, 4)) for path, _ in sides]
        for _, each in sides:
            each.flush()
        del sides
        wanted = _near(stored, pairs)
        for each in stored:  # these pages are not part of the search
            search.forget(each)
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory starts again
        ids = np.arange(num, dtype=np.uint32)
        begun = time.perf_counter()
        cpu = time.process_time()
        seen = set()
        candidates = 0
        whole, window = (search.Side(ids, each) for each in stored)
        with futures.ThreadPoolExecutor(workers) as pool:
            for right, radii in ((whole, search.WHOLE_RADII), (window, search.WINDOW_RADII)):
                for mirror in (None, likeness.mirror()):
                    join = search.Search(whole, right, radii, mirror)
                    for each in join.candidates(pool, workers):
                        candidates += len(each[0])
                        both = np.sort(np.stack(each, axis=1), axis=1)
                        seen.update(map(tuple, both.tolist()))
        spent = time.process_time() - cpu
        print(f"{num:,} hashes: {time.perf_counter() - begun:,.1f} s, {spent:,.1f} s of processor")
        peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
        print(f"{int(peak) / 1024:,.0f} MB while it searched")
        print(
            f"{candidates:,} candidates; {len(wanted - seen):,} of {len(wanted):,} planted missed"
        )


def _near(stored: Sequence[np.ndarray], pairs: np.ndarray) -> set[tuple[int, int]]:
    """Returns the planted pairs that are near enough to be candidates."""
    found = set()
    for left, right in pairs.tolist():
        for bits, (key, whole) in zip(
            stored, (search.WHOLE_RADII, search.WINDOW_RADII), strict=True
        ):
            counts = np.bitwise_count(stored[0][left] ^ bits[right])
            if counts[0] <= key and counts.sum() <= whole:
                found.add((min(left, right), max(left, right)))
    return found


def speed_of_proofs() -> None:
    """Prints microseconds of one core for the first comparison of a candidate, and its proof."""
    rng = np.random.default_rng(1)
    num = 4000
    for side, divisor, name in ((32, 1, "first look"), (64, 16, "proof")):
        left = rng.integers(0, 256 * divisor, (num, side, side)).astype(np.uint16)
        right = np.clip(left + rng.integers(-9 * divisor, 9 * divisor, left.shape), 0, None)
        for said, other in (("equal", right), ("different", np.roll(left, num // 2, axis=0))):
            begun = time.process_time()
            search.scores(left, other, False, divisor)
            print(f"{name}, {said} pictures: {(time.process_time() - begun) / num * 1e6:,.0f} us")


def speed_of_tables(num: int) -> None:
    """Prints the time of reading tables with `num` rows and finding planted equal bytes."""
    a_shard = 1_155
    planted = 5_000
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        rng = np.random.default_rng(1)
        digests = rng.bytes(32 * num)
        twice = rng.choice(num, (planted, 2), replace=False)
        same = {int(b): int(a) for a, b in twice}
        shards = []
        for number, start in enumerate(range(0, num, a_shard)):
            text = io.BytesIO()
            table = samples.SamplesWriter(text)
            for at in range(start, min(start + a_shard, num)):
                first = same.get(at, at)
                digest = digests[32 * first : 32 * first + 32].hex()
                image = (100_000 + first % 999, 500, 375, digest)
                key = f"n{at // 1300:08d}/n{at // 1300:08d}_{at}.JPEG"
                table.append(Sample(key, at // 1300, *image, samples.KEPT, "", *image))
            name = f"train-{number:05d}-of-01152"
            store.write(schema.samples_name(name), text.getvalue())
            size = min(a_shard, num - start)
            shards.append(Shard(name, size, 1, "", 1, "", table.num_bytes, table.sha256))
        begun = time.perf_counter()
        cpu = time.process_time()
        parts = [columns(dataset_store.sample_rows(store, shard)) for shard in shards]
        found = list(equal_bytes(np.concatenate([part.sha256 for part in parts])))
        expected = {tuple(sorted(pair)) for pair in twice.tolist()}
        right = {tuple(sorted(each.tolist())) for each in found} == expected
        print(
            f"{num:,} rows: {time.perf_counter() - begun:.1f} s, {time.process_time() - cpu:.1f} s "
            f"of processor; {len(found):,} groups, all planted and no other: {right}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "part", choices=("recall", "precision", "peers", "hash", "search", "proofs", "exact")
    )
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--half", default="tune", choices=("tune", "report", "both"))
    parser.add_argument("--num", type=int, default=1_330_000, help="hashes, or rows")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peers-venv", type=Path, help="where fastdup and imagededup are")
    parser.add_argument("--keep", type=Path, help="write what was seen there, as .npz")
    args = parser.parse_args(argv)
    begun = time.perf_counter()
    if args.part in ("recall", "precision"):
        part = recall if args.part == "recall" else precision
        part(args.photographs, args.half, args.workers, args.keep)
    elif args.part == "peers":
        paths = list(photographs(args.photographs, args.half))
        duplicate_peers.compare(paths, args.peers_venv, args.workers)
    elif args.part == "hash":
        speed_of_hashes(args.photographs)
    elif args.part == "search":
        speed_of_search(args.num, args.workers)
    elif args.part == "proofs":
        speed_of_proofs()
    else:
        speed_of_tables(args.num)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{time.perf_counter() - begun:,.0f} s, {peak:,.0f} MB")


if __name__ == "__main__":
    main()
