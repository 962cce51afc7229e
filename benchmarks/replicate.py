"""A dataset to many hosts, compared with rsync; to and from S3, with s5cmd, aws and boto3.

sudo python -m benchmarks.replicate
python -m benchmarks.replicate --s3 --s5cmd /path/to/s5cmd

Hosts are network namespaces with an sshd, a disk and a name each; tc shapes their links, each way.
"x ideal" is the time over size / bandwidth. The bytes are random, because JPEGs cannot be
compressed either.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import measure
from tests.kit.cluster import Cluster, Node, cluster
from tests.kit.command import wait_until
from tests.kit.replicas import make_dataset
from tests.kit.s3_server import serve_s3

SHARDS = 8
BUCKET = "sets"
ONE_BY_ONE = "rsync to one host at a time"
AT_ONCE = "rsync to all hosts at once"
OURS = "ours"
OURS_FEW = "ours, {} members"
OURS_KILLED = "ours, one member killed half-way"
DOWN_S3 = "down: {}"
UP_S3 = "up: {}"

# boto3 without settings.
_BOTO3 = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import boto3
client = boto3.client("s3")
def move(name):
    if sys.argv[1] == "down":
        client.download_file(sys.argv[2], f"set/{name}", f"{sys.argv[3]}/{name}")
    else:
        client.upload_file(f"{sys.argv[3]}/{name}", sys.argv[2], f"set/{name}")
with ThreadPoolExecutor(8) as pool:
    list(pool.map(move, sys.argv[4:]))
"""

Row = Callable[[], float]


class Nodes:
    """One dataset on the leader, and ways to send it to the members; figures are seconds."""

    def __init__(self, hosts: Cluster, megabytes: int) -> None:
        self.hosts = hosts
        self.megabytes = megabytes
        self.source = hosts.leader.disk / "set"
        make_dataset(self.source, shards=SHARDS, shard_bytes=megabytes * 1_000_000 // SHARDS)

    def rows(self, few: int) -> dict[str, Row]:
        members = self.hosts.members
        return {
            ONE_BY_ONE: lambda: self._rsync(members, at_once=False),
            AT_ONCE: lambda: self._rsync(members, at_once=True),
            OURS: lambda: self._ours(members),
            OURS_FEW.format(few): lambda: self._ours(members[:few]),
            OURS_KILLED: lambda: self._ours(members, victim=members[len(members) // 2]),
        }

    def _rsync(self, members: Sequence[Node], *, at_once: bool) -> float:
        def start(node: Node) -> subprocess.Popen[bytes]:
            target = f"{node.address}:{self.hosts.mount}/set/"
            argv = ["rsync", "-a", "-e", "ssh -o BatchMode=yes", f"{self.hosts.mount}/set/", target]
            return self.hosts.leader.popen(argv)

        begin = time.monotonic()
        if at_once:
            codes = [process.wait() for process in [start(node) for node in members]]
        else:
            codes = [start(node).wait() for node in members]
        return self._proven(members, codes, time.monotonic() - begin)

    def _ours(self, members: Sequence[Node], victim: Node | None = None) -> float:
        lines = "".join(f"{node.address} slots=8\n" for node in members)
        (self.hosts.leader.disk / "hosts").write_text(lines)
        target = f"hosts:{self.hosts.mount}/hosts:{self.hosts.mount}/set"
        begin = time.monotonic()
        process = self.hosts.replicate(
            self.hosts.mount / "set",
            "--to",
            target,
            "--json",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if victim is not None:
            half = victim.disk / "set"
            wait_until(lambda: len(list(half.glob("train-*"))) >= SHARDS // 2, "half is there")
            victim.crash()
            time.sleep(2)
            victim.start()
        code = process.wait()
        return self._proven(members, [code], time.monotonic() - begin)

    def _proven(self, members: Sequence[Node], codes: Sequence[int], seconds: float) -> float:
        if any(codes):
            raise RuntimeError(f"exit codes {codes}")
        for node in members:
            _assert_same(self.source, node.disk / "set")
            shutil.rmtree(node.disk / "set")
        return seconds


class Bucket:
    """One local dataset and one in a bucket; figures are MB/s, including checksums and sync."""

    def __init__(self, folder: Path, megabytes: int, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.source = folder / "set"
        make_dataset(self.source, shards=SHARDS, shard_bytes=megabytes * 1_000_000 // SHARDS)
        self.names = sorted(
            str(p.relative_to(self.source)) for p in self.source.rglob("*") if p.is_file()
        )

    def rows(self, s5cmd: str | None) -> dict[str, Row]:
        """Returns the rows; the peers' downloads are verified by sha256sum, as ours are."""
        replicate = f"{sys.executable} -m imagenet_prep replicate"
        boto3 = f"{sys.executable} -c '{_BOTO3}'"
        here = self.source
        there = f"s3://{BUCKET}/set"
        names = " ".join(self.names)
        rows = {
            DOWN_S3.format("ours"): self._down(f"{replicate} {there} --to ."),
            DOWN_S3.format("boto3"): self._down(
                f"mkdir index; {boto3} down {BUCKET} . {names}; {_PROOF}"
            ),
            UP_S3.format("ours"): self._timed(
                lambda: f"{replicate} {here} --to s3://{BUCKET}/{os.urandom(4).hex()}"
            ),
            UP_S3.format("boto3"): self._timed(lambda: f"{boto3} up {BUCKET} {here} {names}"),
        }
        if s5cmd:
            rows[DOWN_S3.format("s5cmd")] = self._down(f"{s5cmd} cp '{there}/*' . && {_PROOF}")
            rows[UP_S3.format("s5cmd")] = self._timed(
                lambda: f"{s5cmd} cp {here}/ s3://{BUCKET}/{os.urandom(4).hex()}/"
            )
        aws = shutil.which("aws")
        if aws:
            quiet = f"{aws} s3 cp --only-show-errors --recursive"
            rows[DOWN_S3.format("aws")] = self._down(f"{quiet} {there} . && {_PROOF}")
            rows[UP_S3.format("aws")] = self._timed(
                lambda: f"{quiet} {here} s3://{BUCKET}/{os.urandom(4).hex()}"
            )
        return rows

    def _down(self, line: str) -> Row:
        def row() -> float:
            with tempfile.TemporaryDirectory(dir=self.folder) as into:
                seconds = self._shell(line, into)
                _assert_same(self.source, Path(into))
            return self._rate(seconds)

        return row

    def _timed(self, line: Callable[[], str]) -> Row:
        return lambda: self._rate(self._shell(line(), str(self.folder)))

    def _shell(self, line: str, folder: str) -> float:
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(measure.ROOT)}
        environment["S3_ENDPOINT_URL"] = self.environment["AWS_ENDPOINT_URL"]
        begin = time.monotonic()
        argv = ["sh", "-c", line]
        subprocess.run(argv, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        return time.monotonic() - begin

    def _rate(self, seconds: float) -> float:
        return sum((self.source / name).stat().st_size for name in self.names) / seconds / 1e6


_PROOF = "sha256sum $(find . -type f) > /dev/null && sync $(find . -type f)"


def _assert_same(source: Path, copy: Path) -> None:
    for path in source.rglob("*"):
        other = copy / path.relative_to(source)
        if ".work" not in path.parts and path.is_file() and not filecmp.cmp(path, other, False):
            raise RuntimeError(f"{other} is not {path}")


def render_nodes(results: dict[str, list[float]], ideal_s: float) -> str:
    """Returns the table: seconds, and the ratio to size / bandwidth."""
    rows = []
    for name, seconds in results.items():
        middle = measure.median(seconds)
        rows.append([name, f"{middle:.1f}", f"{middle / ideal_s:.2f}"])
    return measure.table(["", "s", "x ideal"], rows)


def render_s3(results: dict[str, list[float]]) -> str:
    """Returns the table: MB/s, and the ratio to ours in the same direction."""
    medians = {name: measure.median(rates) for name, rates in results.items()}
    rows = []
    for name, rate in sorted(medians.items()):
        ours = medians[f"{name.partition(':')[0]}: ours"]
        rows.append([name, f"{rate:,.0f}", f"{ours / rate:.2f}"])
    return measure.table(["", "MB/s", "ours / this"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m benchmarks.replicate",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=8, help="the leader is one of them")
    parser.add_argument("--few", type=int, default=3, help="members of the smaller cluster")
    parser.add_argument("--mbit", type=int, default=80, help="rate of every link")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="SeaweedFS instead of hosts")
    parser.add_argument("--s5cmd", default=shutil.which("s5cmd"), help="where s5cmd is")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    args = parser.parse_args(argv)
    if not args.s3:
        measure.need(rsync="rsync", ssh="openssh-client", sshd="openssh-server", tc="iproute2")
        if os.geteuid():
            parser.error("hosts are network namespaces, which need root; or give --s3")
    args.scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.scratch)))
        rows: dict[str, Row]
        if args.s3:
            server = stack.enter_context(serve_s3(folder))
            server.client().create_bucket(Bucket=BUCKET)
            bucket = Bucket(folder, args.megabytes, server.environment)
            for name in bucket.names:
                server.client().upload_file(str(bucket.source / name), BUCKET, f"set/{name}")
            rows = bucket.rows(args.s5cmd)
            unit = "MB/s"
        else:
            hosts = stack.enter_context(cluster(folder, args.hosts, rate=f"{args.mbit}mbit"))
            rows = Nodes(hosts, args.megabytes).rows(args.few)
            unit = "s"
        results = measure.interleave(
            rows, args.rounds, lambda name, value: measure.say(f"{name}: {value:,.1f} {unit}")
        )
    size = f"{args.megabytes:,} MB in {SHARDS} shards, {args.rounds} rounds"
    if args.s3:
        measure.finish(f"replicate: S3, {size}", render_s3(results), results, args.json)
    else:
        links = f"{args.hosts - 1} members, links of {args.mbit} Mbit/s"
        text = render_nodes(results, args.megabytes * 8 / args.mbit)
        measure.finish(f"replicate: {size}, {links}", text, results, args.json)


if __name__ == "__main__":
    main()
