"""From archive to shards, end to end: the floors, our prepare, and the peers' writers.

python -m benchmarks.write --peers-venv /tmp/peers-venv
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import measure
from benchmarks.delay import delayed
from benchmarks.measure import Member

if TYPE_CHECKING:
    from tests.kit.s3_server import S3Server

QUALITY = 90
# Equal numbers for both workers, and small enough for several shards per worker.
NUM_SHARDS = 32
# ImageNet has 1.28 million images in 1,024 shards. The extra cost of a shard is one or two requests
# of S3, which must not weigh six times as much here.
IMAGES_A_SHARD = 1200
# P has this many times the images of R, so that both rows take equally long, and fixed costs do not
# decide on P.
PASSED_TIMES = 4
_FLOOR_ARRAYS = 64

FLOOR_R = "R floor"
FLOOR_P = "P floor: cp + fsync"
COLD_P = "P floor: cp + fsync, cold"
OURS_R = "R ours, 2 threads"
OURS_R1 = "R ours, 1 worker"
OURS_R_CARRIED = "R ours, 2 threads, md5 from download"
# From SeaweedFS, with this additional delay of each request; the second run has kept lists. One
# worker each, so that the server has the other core, as it has a separate machine elsewhere.
LATENCY_S = 0.005
OURS_R_S3 = "R ours, 1 worker, from S3"
OURS_R_S3_AGAIN = "R ours, 1 worker, from S3, second set"
OURS_R_TO_S3 = "R ours, 1 worker, to S3"
# These are compared with these, with shards of IMAGES_A_SHARD, like theirs.
OURS_R1_HERE = "R ours, 1 worker, large shards"
OURS_P = "P ours, 2 threads, header"
OURS_P_COLD = "P ours, 2 threads, header, cold"
# The choice of `--worker-kind auto` for inputs as large as ImageNet.
OURS_P_LARGE = "P ours, 2 processes, header"
WEBDATASET_R = "R WebDataset x2"
WEBDATASET_P = "P WebDataset x2"


@dataclass(frozen=True)
class Job:
    """The job of a program other than ours; travels as JSON.

    Attributes:
      tool: a key of TOOLS.
      archive, members: the source; only our program has to find the members.
      out: folder, absent or empty.
      short_side: pixels; None keeps the bytes.
      workers: processes.
    """

    tool: str
    archive: str
    members: list[Member]
    out: str
    short_side: int | None
    workers: int


# The start function of a tool, which is not timed, returns a function for the part of a worker, and
# one that the launcher calls at the end.
Part = Callable[[int, Sequence[Member]], None]
Tool = Callable[[Job], tuple[Part, Callable[[], None]]]


@dataclass
class Result:
    """One row of one round.

    Attributes:
      images: written.
      clock_s: by its own clock, without imports; ours from its summary.
      wall_s: the complete process.
      shards_s: from the first shard's start to the last one's end, with the md5 of the archive if
        it is a task among them; ours only.
      sync_s: the time to write the remaining bytes afterwards.
      cpu_s: of all processes.
      pss_mb, rss_mb: peaks; rss_mb counts shared memory once for each process.
      bytes_out: written, without work files.
      phases: seconds of the phases of prepare; ours only.
    """

    images: int
    clock_s: float
    wall_s: float
    shards_s: float | None
    sync_s: float
    cpu_s: float
    pss_mb: float
    rss_mb: float
    bytes_out: int
    phases: dict[str, float]


class OnS3(NamedTuple):
    """The archives on an S3 server.

    Attributes:
      server: answers at once.
      address: of the archives.
      environment: for a program with requests that take `LATENCY_S` longer.
    """

    server: S3Server
    address: str
    environment: dict[str, str]


class Bench:
    """The rows over one corpus, which `corpus` returns before the first measured row."""

    def __init__(
        self,
        corpus: Callable[[], Path],
        scratch: Path,
        short_side: int,
        peers_venv: Path | None,
    ) -> None:
        self._corpus = corpus
        self.scratch = scratch
        self.short_side = short_side
        self.peers_venv = peers_venv

    @cached_property
    def source(self) -> Path:
        """The folder of the archives."""
        return self._corpus()

    @property
    def archive(self) -> Path:
        """That of train."""
        return self.source / measure.TRAIN_ARCHIVE

    @cached_property
    def members(self) -> list[Member]:
        """Its images."""
        return measure.members(self.archive)

    def resized(self, s3: OnS3 | None = None) -> dict[str, Callable[[], Result]]:
        """Returns the rows of R, which resizes, by name."""
        rows: dict[str, Callable[[], Result]] = {
            FLOOR_R: partial(self._job, "floor", True),
            "R floor, 1 process": partial(self._job, "floor", True, workers=1),
            "R only the codec x2": partial(self._job, "codec", True),
            OURS_R: partial(self.ours, True, 2, "threads", "decode"),
            OURS_R_CARRIED: partial(self.ours, True, 2, "threads", "decode", carried=True),
            "R ours, 2 threads, header": partial(self.ours, True, 2, "threads", "header"),
            "R ours, 2 processes": partial(self.ours, True, 2, "processes", "decode"),
            OURS_R1: partial(self.ours, True, 1, "threads", "decode"),
        }
        if self.peers_venv:
            rows[WEBDATASET_R] = partial(self._job, "webdataset", True, self.peers_venv)
        if s3:
            here = partial(self.ours, True, 1, "threads", "decode", shards=self._large_shards)
            from_s3 = partial(here, s3=s3)
            rows[OURS_R1_HERE] = here
            rows[OURS_R_S3] = from_s3
            rows[OURS_R_S3_AGAIN] = partial(from_s3, again=True)
            rows[OURS_R_TO_S3] = partial(self._to_bucket, s3.server)
        return rows

    def passed(self) -> dict[str, Callable[[], Result]]:
        """Returns the rows of P, which keeps the bytes, by name."""
        rows: dict[str, Callable[[], Result]] = {
            FLOOR_P: self._copy,
            OURS_P: partial(self.ours, False, 2, "threads", "header"),
            "P ours, 2 threads": partial(self.ours, False, 2, "threads", "decode"),
            OURS_P_LARGE: partial(self.ours, False, 2, "processes", "header"),
        }
        if self.peers_venv:
            rows[WEBDATASET_P] = partial(self._job, "webdataset", False, self.peers_venv)
        rows |= {
            COLD_P: partial(self._copy, cold=True),
            OURS_P_COLD: partial(self.ours, False, 2, "threads", "header", cold=True),
        }
        return rows

    def ours(
        self,
        resize: bool,
        workers: int,
        kind: str,
        check: str,
        *,
        shards: int = NUM_SHARDS,
        cold: bool = False,
        carried: bool = False,
        s3: OnS3 | None = None,
        again: bool = False,
    ) -> Result:
        """Prepares once: to `short_side` or with unchanged bytes, with these workers."""
        out = self._empty(cold)
        if not again:
            shutil.rmtree(out.with_name("imagenet-prep-lists"), ignore_errors=True)
        if carried:
            self._note_md5()
        source = s3.address if s3 else None
        argv = self._argv(str(out), resize, workers, kind, check, shards, source)
        run = measure.run(argv, environment=s3.environment if s3 else {})
        sync_s = _sync()
        shutil.rmtree(self.source / ".work", ignore_errors=True)
        summary = json.loads(run.stdout)
        spans = measure.phases(out, run.start_s, run.wall_s)
        shards = spans["shards"]
        seconds = {name: round(stop - start, 3) for name, (start, stop) in spans.items()}
        clock = summary["seconds"]
        images = summary["written_examples"]
        return self._result(run, images, clock, sync_s, shards[1] - shards[0], seconds)

    def _argv(
        self,
        out: str,
        resize: bool,
        workers: int,
        kind: str,
        check: str,
        shards: int,
        source: str | None = None,
    ) -> list[str]:
        flags: list[str | int] = ["--check", check, "--workers", workers, "--worker-kind", kind]
        flags += ["--short-side", self.short_side] if resize else ["--keep-original"]
        flags += ["--train-shards", shards, "--allow-subset"]
        return measure.prepare_argv(source or self.source, out, *flags)

    @property
    def _large_shards(self) -> int:
        return max(1, round(len(self.members) / IMAGES_A_SHARD))

    def _to_bucket(self, server: S3Server) -> Result:
        """Prepares into a bucket; the CPU time of its server is not counted."""
        self._empty()
        bucket = f"b{time.time_ns()}"
        server.client().create_bucket(Bucket=bucket)
        out = f"s3://{bucket}/set"
        shards = self._large_shards
        argv = self._argv(out, True, 1, "threads", "decode", shards)
        run = measure.run(argv, environment=server.environment)
        summary = json.loads(run.stdout)
        return self._result(run, summary["written_examples"], summary["seconds"], _sync())

    def _job(
        self, tool: str, resize: bool, venv: Path | None = None, *, workers: int = 2
    ) -> Result:
        out = self._empty()
        job = Job(
            tool=tool,
            archive=str(self.archive),
            members=self.members,
            out=str(out),
            short_side=self.short_side if resize else None,
            workers=workers,
        )
        path = out.with_name("job.json")
        path.write_text(json.dumps(dataclasses.asdict(job)))
        python = venv / "bin" / "python" if venv else sys.executable
        run = measure.run([python, "-m", "benchmarks.write", "--job", path])
        sync_s = _sync()
        path.unlink()
        return self._result(run, len(self.members), json.loads(run.stdout), sync_s)

    def _copy(self, *, cold: bool = False) -> Result:
        out = self._empty(cold)
        out.mkdir()
        copy = 'cp "$0" "$1" && sync "$1"'
        run = measure.run(["sh", "-c", copy, self.archive, out / "copy"])
        return self._result(run, len(self.members), run.wall_s, _sync())

    def _note_md5(self) -> None:
        """Records the archive's md5 like `download`, which saves prepare from reading it."""
        from imagenet_prep.storage.folder import LocalStore
        from imagenet_prep.storage.ledger import MOST_ARCHIVES, NOTES, Ledger, verified_md5

        with self.archive.open("rb") as file:
            md5 = hashlib.file_digest(file, "md5").hexdigest()
            ledger = Ledger(LocalStore(self.archive.parent), NOTES, MOST_ARCHIVES)
            ledger.add({self.archive.name: os.fstat(file.fileno())}, md5=md5)
        if verified_md5(self.archive) != md5:
            raise RuntimeError(f"{self.archive}: its md5 could not be noted beside it")

    def _empty(self, cold: bool = False) -> Path:
        """Returns a new folder path for the output; earlier output is on the disk."""
        out = self.scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        with self.archive.open("rb") as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass
        return out

    def _result(
        self,
        run: measure.Run,
        images: int,
        clock_s: float,
        sync_s: float,
        shards_s: float | None = None,
        phases: dict[str, float] | None = None,
    ) -> Result:
        if images != len(self.members):
            raise RuntimeError(f"{images} images written, expected {len(self.members)}")
        out = self.scratch / "out"
        files = [p for p in out.rglob("*") if p.is_file() and ".work" not in p.parts]
        num_bytes = sum(path.stat().st_size for path in files)
        shutil.rmtree(out, ignore_errors=True)
        _, pss, rss = run.peak()
        wall, cpu = run.wall_s, run.cpu_s
        return Result(
            images, clock_s, wall, shards_s, sync_s, cpu, pss, rss, num_bytes, phases or {}
        )


def render(results: dict[str, list[Result]]) -> str:
    """Returns the table and the results of the design's requirements."""
    rows = []
    for name, rounds in results.items():
        floor = results.get(FLOOR_R if name.startswith("R") else FLOOR_P)
        if name.endswith("cold"):
            floor = results.get(COLD_P)
        shards = [r.images / r.shards_s for r in rounds if r.shards_s]
        rows.append(
            (
                name,
                f"{measure.median([r.images / r.clock_s for r in rounds]):,.0f}",
                f"{_ratio(rounds, floor):.2f}" if floor else "-",
                f"{measure.median(shards):,.0f}" if shards else "-",
                f"{measure.median([r.images / r.wall_s for r in rounds]):,.0f}",
                f"{measure.median([r.images / (r.clock_s + r.sync_s) for r in rounds]):,.0f}",
                f"{measure.median([r.cpu_s / r.images * 1000 for r in rounds]):.2f}",
                f"{max(r.pss_mb for r in rounds):,.0f}",
                f"{max(r.rss_mb for r in rounds):,.0f}",
                f"{rounds[-1].bytes_out / 1e6:,.0f}",
            )
        )
    header = (
        "",
        "images/s",
        "of floor",
        "only shards",
        "whole process",
        "until on disk",
        "CPU ms/image",
        "PSS MB",
        "RSS MB",
        "MB out",
    )
    return f"{measure.table(header, rows)}\n\n{_bars(results)}"


def _bars(results: dict[str, list[Result]]) -> str:
    bars = []

    def bar(
        name: str, ours: str, others: Sequence[str], at_least: float, *, alone: bool = False
    ) -> None:
        there = [results[other] for other in others if other in results]
        if ours in results and there:
            found = min(_ratio(results[ours], other, alone=alone) for other in there)
            bars.append((name, f">= {at_least:.2f}", f"{found:.2f}", _verdict(found >= at_least)))

    bar("R: of the floor", OURS_R, [FLOOR_R], 0.95)
    bar("R: of the floor, md5 from download", OURS_R_CARRIED, [FLOOR_R], 1.0)
    bar("R: against WebDataset", OURS_R, (WEBDATASET_R,), 2.5)
    bar("R: 2 workers against 1", OURS_R, [OURS_R1], 1.95)
    bar("R: 2 workers against 1, only shards", OURS_R, [OURS_R1], 1.95, alone=True)
    bar("R: to S3, against a folder", OURS_R_TO_S3, [OURS_R1_HERE], 0.95)
    bar("R: from S3 at 5 ms against here", OURS_R_S3, [OURS_R1_HERE], 0.8)
    bar("R: from S3 at 5 ms against here, only shards", OURS_R_S3, [OURS_R1_HERE], 0.8, alone=True)
    bar("R: from S3 at 5 ms against here, second set", OURS_R_S3_AGAIN, [OURS_R1_HERE], 0.8)
    bar("P: against WebDataset", OURS_P, [WEBDATASET_P], 1.0)
    bar("P: against WebDataset, only shards", OURS_P_LARGE, [WEBDATASET_P], 1.0, alone=True)
    bar("P: against copying, cold", OURS_P_COLD, [COLD_P], 0.9)
    ours: list[Result] = []
    for name in results:
        if "ours, 2" in name:
            ours += results[name]
    if ours:
        limit = measure.MEMORY_BAR_MB + 2 * measure.MEMORY_BAR_MB_A_WORKER
        peak = max(result.pss_mb for result in ours)
        bars.append(
            ("peak PSS MB, 2 workers", f"<= {limit}", f"{peak:.0f}", _verdict(peak <= limit))
        )
    return measure.table(("bar", "wanted", "found", ""), bars) if bars else ""


def _ratio(rounds: Sequence[Result], others: Sequence[Result], *, alone: bool = False) -> float:
    """Returns the median over rounds of the speed, or of its shards', relative to the second."""

    def seconds(result: Result) -> float:
        return result.shards_s if alone and result.shards_s else result.clock_s

    return measure.median([seconds(o) / seconds(r) for r, o in zip(rounds, others, strict=True)])


def _verdict(good: bool) -> str:
    return "met" if good else "MISSED"


def _sync() -> float:
    start = time.perf_counter()
    os.sync()
    return time.perf_counter() - start


# The rest runs in separate processes, for the peers in a separate environment.


def work(job: Job) -> float:
    """Runs a job with forked workers and returns its seconds without the start."""
    part, finish = TOOLS[job.tool](job)
    parts = [(i, job.members[i :: job.workers]) for i in range(job.workers)]
    start = time.perf_counter()
    measure.side_by_side(job.tool, part, parts)
    finish()
    return time.perf_counter() - start


def _nothing() -> None:
    pass


def _floor(job: Job) -> tuple[Part, Callable[[], None]]:
    """Decodes and encodes without writing; encodes images that were resized beforehand."""
    import cv2
    import numpy as np

    from tests.kit.codec import jpegs

    read = measure.member_reader(job.archive)
    assert job.short_side is not None
    arrays = []
    for member in job.members[:: max(1, len(job.members) // _FLOOR_ARRAYS)]:
        pixels = jpegs.decode_strictly(read(member))
        factor = job.short_side / min(pixels.shape[:2])
        height, width = (max(1, round(side * factor)) for side in pixels.shape[:2])
        shrunk = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
        arrays.append(np.ascontiguousarray(shrunk))

    def part(_: int, members: Sequence[Member]) -> None:
        for place, member in enumerate(members):
            jpegs.decode_strictly(read(member))
            jpegs.encode(arrays[place % len(arrays)], QUALITY, "420")

    return part, _nothing


def _codec(job: Job) -> tuple[Part, Callable[[], None]]:
    """Only our codec: the speed of `prepare` if everything else cost nothing."""
    from imagenet_prep.codec.policy import Policy
    from imagenet_prep.codec.transform import transform

    read = measure.member_reader(job.archive)
    policy = Policy(job.short_side, QUALITY)

    def part(_: int, members: Sequence[Member]) -> None:
        for member in members:
            transform(read(member), policy)

    return part, _nothing


def _pillow(job: Job) -> Callable[[bytes], bytes]:
    """Returns the usual preprocessing of the peers' users before they write."""
    short_side = job.short_side
    if short_side is None:
        return lambda data: data
    from PIL import Image

    def resize(data: bytes) -> bytes:
        buffer = io.BytesIO()
        with Image.open(io.BytesIO(data)) as image:
            factor = min(1.0, short_side / min(image.size))
            width, height = (max(1, round(side * factor)) for side in image.size)
            small = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        small.save(buffer, "JPEG", quality=QUALITY, subsampling="4:2:0")
        return buffer.getvalue()

    return resize


def _webdataset(job: Job) -> tuple[Part, Callable[[], None]]:
    # Without torch, it needs a sixth of the memory.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from webdataset import ShardWriter

    read = measure.member_reader(job.archive)
    prepare = _pillow(job)
    Path(job.out).mkdir()

    def part(number: int, members: Sequence[Member]) -> None:
        with ShardWriter(f"{job.out}/{number}-%05d.tar", verbose=0) as writer:
            for member in members:
                image = prepare(read(member))
                key = member.name.partition(".")[0]
                writer.write({"__key__": key, "jpg": image, "wnid.txt": member.wnid})

    return part, _nothing


TOOLS: dict[str, Tool] = {
    "floor": _floor,
    "codec": _codec,
    "webdataset": _webdataset,
}


@contextlib.contextmanager
def on_s3(source: Path, scratch: Path) -> Iterator[OnS3]:
    """Yields a server with the archives of a source."""
    from tests.kit.s3_server import BUCKET, serve_s3

    with tempfile.TemporaryDirectory(dir=scratch) as folder, serve_s3(Path(folder)) as server:
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        for path in source.glob("ILSVRC2012*"):
            client.upload_file(str(path), BUCKET, f"raw/{path.name}")
        with delayed(server.url, LATENCY_S) as url:
            environment = {**server.environment, "AWS_ENDPOINT_URL": url}
            yield OnS3(server, f"s3://{BUCKET}/raw", environment)


def _work_from(path: Path) -> None:
    fields = json.loads(path.read_text())
    fields["members"] = [Member(*member) for member in fields["members"]]
    print(work(Job(**fields)))


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds the sizes of the inputs that `benches` reads, and the number of rounds."""
    help_ = f"of R; P has {PASSED_TIMES} times as many"
    parser.add_argument("--images", type=int, default=6000, help=help_)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("W", "H"))
    parser.add_argument("--short-side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)


def benches(args: argparse.Namespace, peers_venv: Path | None) -> tuple[Bench, Bench]:
    """Returns the benches of R and of P."""
    width, height = args.size
    r, p = (
        Bench(
            partial(measure.corpus, args.scratch, images, (width, height)),
            args.scratch,
            args.short_side,
            peers_venv,
        )
        for images in (args.images, args.images * PASSED_TIMES)
    )
    return r, p


def watch(name: str, result: Result) -> None:
    """Prints progress."""
    measure.say(f"{name}: {result.images / result.clock_s:,.0f} images/s")


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints, or runs one job for a measuring run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.write")
    add_sizes(parser)
    measure.add_peer_flags(parser, only="rows whose name it matches")
    parser.add_argument("--s3", action="store_true", help="also from and into SeaweedFS")
    args = parser.parse_args(argv)
    if args.job:
        _work_from(args.job)
        return
    resizing, passing = benches(args, args.peers_venv)
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(on_s3(resizing.source, args.scratch)) if args.s3 else None
        rows = {**resizing.resized(s3), **passing.passed()}
        rows = {name: row for name, row in rows.items() if re.search(args.only, name)}
        results = measure.interleave(rows, args.rounds, watch)
    measured = passing if any(name.startswith("P") for name in rows) else resizing
    kilobytes = sum(member.size for member in measured.members) / len(measured.members) / 1000
    title = (
        f"write: images of {kilobytes:.0f} kB; R {args.images:,} to {args.short_side} px and "
        f"q{QUALITY}, P {args.images * PASSED_TIMES:,} as they are, {args.rounds} rounds"
    )
    raw = {name: [dataclasses.asdict(r) for r in rounds] for name, rounds in results.items()}
    measure.finish(title, render(results), raw, args.json)


if __name__ == "__main__":
    main()
