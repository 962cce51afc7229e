"""The capacity model of docs/sizing.md: the time and the cost of a preparation.

python -m benchmarks.capacity      # prints the tables of docs/sizing.md

The slowest of the workers, of reading and of writing decides on the images per second. A worker has
one core. Its time per image is that of benchmarks/README.md#write, measured with two workers side
by side; tests compare the model with that table. Beyond two workers the model is linear, which is
not measured: workers share only the disk, and each has its own shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# The measured corpus, and ILSVRC2012: archives of 147.9 and 6.7 GB. Time is assumed to grow with an
# image's bytes, because most of it is entropy coding.
CORPUS_BYTES = 83e3
IMAGENET = 1_281_167 + 50_000
IMAGENET_BYTES = 154.6e9 / IMAGENET
BILLION = 1_000_000_000
# Measured for 1,281,167 members, by CPU time of all processes: listing and planning.
PLAN_S = 59.3 / 1_281_167
# The CPUs of one machine plan; those of other machines wait.
PLANNING_CPUS = 64
# Measured with `benchmarks.scale --descriptors`, by CPU time: the roots and the manifest, after the
# last shard. Threads of one process compute the roots.
COMMIT_S = 31.2 / 14_197_122
COMMIT_CPUS = 4
# A sorted run has about this number of images, and is read in as many pieces as there are runs.
RUN_IMAGES = 167_000
PIECE_S = 3.6e-6
# An assumption in US dollars: an on-demand core of a general-purpose machine, sold as two virtual
# CPUs.
DOLLARS_A_CPU_HOUR = 0.10


class Job(NamedTuple):
    """The cost of one image.

    Attributes:
      name: in the tables.
      row: of benchmarks/README.md#write.
      worker_s: seconds of a worker for an image of CORPUS_BYTES, while both wrote shards.
      reads: how often an image's bytes are read; the md5 of an archive reads them once more.
      kept: bytes written for each byte of the source.
    """

    name: str
    row: str
    worker_s: float
    reads: int
    kept: float


RESIZE = Job("resize to 256", "R ours, 2 threads", 2 / 1926, 2, 27.5 / 83)
PROVE = Job("pass, decoded", "P ours, 2 threads", 2 / 3746, 2, 1.0)
COPY = Job("pass, header", "P ours, 2 processes, header", 2 / 11246, 1, 1.0)
JOBS = (RESIZE, PROVE, COPY)

# MB/s of payload: of links without headers, and of disks in long reads.
MEDIA = {
    "1 Gbit/s": 118,
    "a hard disk": 180,
    "a SATA SSD": 500,
    "10 Gbit/s": 1180,
    "NVMe": 2500,
    "100 Gbit/s": 11_800,
}


class Cost(NamedTuple):
    """The CPU time of a verb, measured with `benchmarks.verbs`.

    Attributes:
      name: in the table.
      start_s: seconds for a dataset without images.
      image_us: microseconds for each image, whatever its size.
      mb_ms: milliseconds for each megabyte of shards.
      shard_ms: milliseconds for each shard.
    """

    name: str
    start_s: float
    image_us: float
    mb_ms: float
    shard_ms: float


PREPARE_HEADER = Cost("prepare --keep-original --check header", 4.2, 135, 0.0, 0.94)
PREPARE_DECODED = Cost("prepare --keep-original", 3.4, 214, 4.5, 1.77)
VERIFY_MANIFEST = Cost("verify --level manifest", 0.3, 1, 0.0, 0.14)
VERIFY_CRC = Cost("verify", 0.4, 11, 1.55, 1.45)
VERIFY_DECODE = Cost("verify --level decode", 0.6, 203, 4.32, 0.6)
AMEND = Cost("amend --exclude, one image", 0.5, 17, 0.0, 1.22)
REPLICATE = Cost("replicate to a folder", 0.3, 2, 1.99, 4.84)
COSTS = (
    PREPARE_HEADER,
    PREPARE_DECODED,
    VERIFY_MANIFEST,
    VERIFY_CRC,
    VERIFY_DECODE,
    AMEND,
    REPLICATE,
)


def cpu_s(cost: Cost, images: int, num_bytes: int, shards: int) -> float:
    """Returns the CPU seconds of a verb on a dataset with `num_bytes` of shards."""
    in_images = images * cost.image_us / 1e6
    in_bytes = num_bytes / 1e6 * cost.mb_ms / 1e3
    return cost.start_s + in_images + in_bytes + shards * cost.shard_ms / 1e3


def costs_table(costs: Sequence[Cost]) -> str:
    """Returns the table of the verbs' CPU times."""
    rows = [
        "| CPU time of | start, s | an image, µs | a MB, ms | a shard, ms |",
        f"|---{'|---:' * 4}|",
    ]
    for cost in costs:
        cells = f"{cost.image_us:.0f} | {cost.mb_ms:.2f} | {cost.shard_ms:.2f}"
        rows.append(f"| {cost.name} | {cost.start_s:.1f} | {cells} |")
    return "\n".join(rows)


def images_s(
    job: Job,
    cpus: int,
    *,
    read_bytes_s: float = float("inf"),
    write_bytes_s: float = float("inf"),
    image_bytes: float = IMAGENET_BYTES,
) -> float:
    """Returns images per second: of the workers, of reading or of writing, whichever is least."""
    return min(
        cpus / (job.worker_s * image_bytes / CORPUS_BYTES),
        read_bytes_s / (job.reads * image_bytes),
        write_bytes_s / (job.kept * image_bytes),
    )


def hours(job: Job, images: float, cpus: int, **bars: float) -> float:
    """Returns the hours of a preparation; one machine plans and commits."""
    plan_s = images * PLAN_S / min(cpus, PLANNING_CPUS)
    commit_s = images * COMMIT_S / min(cpus, COMMIT_CPUS) + PIECE_S * (images / RUN_IMAGES) ** 2
    return (plan_s + images / images_s(job, cpus, **bars) + commit_s) / 3600


def tables() -> str:
    """Returns the tables of docs/sizing.md: by CPUs, then by disk or network."""
    heads = ("CPU limit", "images/s per CPU", "ImageNet: 2 CPUs", "16", "64", "10^9: 64")
    heads += ("1,024", "dollars: ImageNet, 10^9", "one CPU reads, writes")
    rows = [f"| {' | '.join(heads)} |", f"|---{'|---:' * 8}|"]
    for job in JOBS:
        speed = images_s(job, 1)
        moved = speed * IMAGENET_BYTES / 1e6
        dollars = [count / speed / 3600 * DOLLARS_A_CPU_HOUR for count in (IMAGENET, BILLION)]
        cells = [
            job.name,
            f"{speed:,.0f}",
            *(_said(hours(job, IMAGENET, cpus)) for cpus in (2, 16, 64)),
            *(_said(hours(job, BILLION, cpus)) for cpus in (64, 1024)),
            "{:.2f}, {:.0f}".format(*dollars),
            f"{moved * job.reads:.0f}, {moved * job.kept:.0f} MB/s",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    heads = ("limit of the medium", "MB/s", *(f"ImageNet, {job.name}" for job in JOBS))
    rows += ["", f"| {' | '.join(heads)} | 10^9, {RESIZE.name} |", f"|---{'|---:' * 5}|"]
    for medium, mb_s in MEDIA.items():
        # One medium carries reads and writes.
        cells = [
            _said(count * (job.reads + job.kept) * IMAGENET_BYTES / (mb_s * 1e6) / 3600)
            for job, count in (*((job, IMAGENET) for job in JOBS), (RESIZE, BILLION))
        ]
        rows.append(f"| {medium} | {mb_s:,} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _said(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.1f} min" if hours < 1 / 6 else f"{60 * hours:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


if __name__ == "__main__":
    print(tables())
