"""The program that `launch` starts on each host, through ssh.

`python -P -m imagenet_prep.launching.host probe|run`

`probe` prints facts about the host as one line of JSON. `run` starts the host's ranks and exits
when they have ended. It reads the ranks' variables from stdin, so that no command line shows them.
If stdin ends, `launch` has ended, so `run` ends all ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from imagenet_prep.core import imports, program, small_files, strict_json, terminal
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.core.version import program_digest, version
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.hosts.channel import (
    CHUNK_BYTES,
    BrokenError,
    Cause,
    Channel,
    MessageFrame,
    MessageKind,
    Messages,
    count,
    number,
)
from imagenet_prep.hosts.commands import Tail
from imagenet_prep.launching.ranks import MARK, Pipes, Rank, Ranks
from imagenet_prep.storage.dataset_store import open_dataset

PACKAGES = (
    "imagenet-prep",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "mxnet",
    "torch",
    "horovod",
    "numpy",
)
# Each rank has one of these variables in its environment.
_NUMBERS = (b"HOROVOD_RANK=", b"OMPI_COMM_WORLD_RANK=")
_POLL_S = 0.2
# Seconds for ranks to end if `launch` has vanished: it was killed, or its machine failed.
_ABANDONED_S = 5.0
# The ioctl request for the IPv4 address of an interface, from linux/sockios.h.
_SIOCGIFADDR = 0x8915
# The number of MXNet's servers and scheduler, which are not ranks.
NO_RANK = -1
# Limit for variables and command lines: more than any system allows a process.
_MAX_RUN_BYTES = 128 << 20


def _rank(value: Any) -> int:
    return NO_RANK if value == NO_RANK and type(value) is int else count(value)


def _code(value: Any) -> int:
    if not 0 < count(value) < 256:
        raise ValueError("expected an exit code from 1 to 255")
    return count(value)


@dataclass(frozen=True)
class LaunchOrder:
    """The processes that a host must run; `logs` is a folder for copies of their output.

    `ranks` has the environment of each rank and each server, or is empty if mpirun starts ranks.
    """

    mark: str
    folder: str
    command: list[str]
    shared: dict[str, str]
    ranks: list[dict[str, str]]
    logs: str | None


_SECONDS = {"seconds": number}
# "ask": ask the ranks to end, and kill them after `seconds`. "limit": kill them after `seconds`.
TO_HOST: Messages = {
    "run": MessageKind({}, _MAX_RUN_BYTES),
    "ask": MessageKind(_SECONDS),
    "limit": MessageKind(_SECONDS),
}
FROM_HOST: Messages = {
    "printed": MessageKind({}, CHUNK_BYTES),
    "left": MessageKind({"rank": count}),
    "failed": MessageKind({"rank": _rank, "code": _code}),
    "done": MessageKind(),
}


@dataclass(frozen=True)
class Answer:
    """Facts about a host.

    - versions: by package, "none" if not installed.
    - address: IP address of the host's name, "" if unknown.
    - reached: the address to which ssh connected, "" without ssh.
    - dataset: digest of the manifest, "" without a dataset.
    - part: the fields of the `Placement` of this host: node, nodes, copies.
    - script: sha256 of the user's script, or "".
    - ports: two TCP ports that are free at this moment.
    """

    versions: dict[str, str]
    gpus: int
    address: str
    interfaces: dict[str, str]
    reached: str
    dataset: str
    part: tuple[int, int, int]
    script: str
    ports: tuple[int, int]
    problems: list[str]

    def __post_init__(self) -> None:
        lacking = {"python", *PACKAGES} - self.versions.keys()
        if lacking:
            raise ValueError(f"versions of {', '.join(sorted(lacking))} are missing")
        Placement(*self.part)


def probe(data_dir: str | None, script: str | None = None, *needs: str) -> Answer:
    """Returns facts about this host, and problems with packages, dataset and custom script."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    # During development, different programs have the same version.
    versions["imagenet-prep"] = f"{version()} (program {program_digest()[:12]})"
    digest, part, problem = _dataset(data_dir) if data_dir is not None else ("", WHOLE, "")
    problems = imports.lacking(needs)
    if problem:
        problems.append(problem)
    gpus = imports.gpus()
    on_cpu = imports.on_cpu_only(needs[0]) if needs else None
    if gpus and on_cpu is not None:
        problems.append(
            f"{on_cpu} does not use the {terminal.counted(gpus, 'GPU')} of this host: see "
            "`imagenet-prep doctor`, or set CUDA_VISIBLE_DEVICES='' to train on the CPU"
        )
    sha256 = ""
    if script is not None:
        try:
            with open(small_files.open_to_read(Path(script)), "rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            problems.append(f"{script}: {error.strerror}")
        except ImagenetPrepError as error:
            problems.append(str(error))
    with socket.create_server(("", 0)) as first, socket.create_server(("", 0)) as second:
        ports = first.getsockname()[1], second.getsockname()[1]
    address = ""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    return Answer(
        versions=versions,
        gpus=gpus,
        address=address,
        interfaces=interfaces(),
        # SSH_CONNECTION has the client's address and port, then ours.
        reached=(os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2],
        dataset=digest,
        part=dataclasses.astuple(part),
        script=sha256,
        ports=ports,
        problems=problems,
    )


def interfaces() -> dict[str, str]:
    """Returns the first IPv4 address of each network interface that has one, by name."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def _dataset(data_dir: str) -> tuple[str, Placement, str]:
    root = Path(data_dir).expanduser()
    part = WHOLE
    try:
        dataset = open_dataset(data_dir, parts=True)
        facts, part = dataset.manifest, dataset.placement
        for split in facts.splits:
            for shard in dataset.shards(split):
                path = root / shard.name
                expected = shard.num_bytes
                size = path.stat().st_size
                if size != expected:
                    problem = f"{path} has {size:,} bytes, expected {expected:,}"
                    return facts.digest, part, problem
    except OSError as error:
        return "", part, f"{error.filename}: {error.strerror}"
    except ImagenetPrepError as error:
        return "", part, str(error)
    return facts.digest, part, ""


def run(launch: Channel) -> None:
    """Runs this host's ranks until they or `launch` have ended.

    Sends "left" for each rank that lost a peer, "failed" for each that fails, and "done" when all
    have ended. The first message of `launch` is "run": see `TO_HOST`.
    """
    orders = _orders(launch)
    first = next(orders, None)
    if first is None:
        return
    try:
        order = strict_json.parse_record(LaunchOrder, first.body)
    except ValueError as error:
        raise BrokenError(f"invalid message 'run': {error}") from None
    with contextlib.suppress(OSError):
        os.chdir(Path(order.folder).expanduser())

    def left(rank: int) -> None:
        _say(launch, "left", rank=rank)

    if not order.ranks:
        # mpirun starts the ranks here. They end when `launch` asks for it or is gone.
        with Pipes(order.mark, order.logs, left):
            last = next(orders, None)
            end(order.mark, last.fields["seconds"] if last and last.kind == "ask" else _ABANDONED_S)
        return
    ranks = Ranks(left)
    obeying = threading.Thread(target=_obey, args=(orders, ranks), daemon=True)
    # `launch` sends a time limit; if it ends, `_obey` sets one.
    with program.handled(lambda *_: ranks.ask(), signal.SIGINT):
        obeying.start()
        environments = [{**order.shared, **variables} for variables in order.ranks]
        ranks.start(order.command, environments, order.logs)
        ranks.wait(partial(_say_failed, launch), partial(_say, launch, "done"))


def _orders(launch: Channel) -> Iterator[MessageFrame]:
    while True:
        try:
            order = launch.read()
        except OSError:
            return
        except BrokenError as error:
            if error.cause is Cause.SILENT:
                continue  # `launch` is stopped, e.g. by Ctrl-Z: its ranks continue.
            return
        if order is None:
            return
        yield order


def _obey(orders: Iterator[MessageFrame], ranks: Ranks) -> None:
    for order in orders:
        if order.kind == "ask":
            ranks.ask(order.fields["seconds"])
        elif order.kind == "limit":
            ranks.limit(order.fields["seconds"])
    ranks.ask(_ABANDONED_S)


def _say_failed(launch: Channel, rank: Rank) -> None:
    # code() must come first: it waits for the rank's last lines, which may report a lost peer.
    code = rank.code()
    if rank.number < 0 or (code > 128 and code != 128 + signal.SIGTERM):
        # A killed process prints no reason itself. Ranks would wait for a failed server forever.
        with contextlib.suppress(OSError):
            terminal.say(rank.reason())
    _say(launch, "failed", rank=rank.number, code=code)


def _say(launch: Channel, kind: str, **fields: Any) -> None:
    with contextlib.suppress(OSError):  # `launch` is gone, which `_obey` notices, too.
        launch.write(kind, **fields)


@contextlib.contextmanager
def _launch(silence_s: float) -> Iterator[Channel]:
    """Yields the channel to `launch`; sends all output of this process and its ranks through it."""
    launch = Channel(0, os.dup(1), TO_HOST, silence_s=silence_s)
    launch.begin()
    reads, writes = os.pipe()
    os.dup2(writes, 1)
    os.close(writes)

    def pass_on(line: bytes) -> None:
        with contextlib.suppress(OSError):
            launch.write("printed", line)

    printed = Tail(os.fdopen(reads, "rb"), hear=pass_on)
    try:
        yield launch
    finally:
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        printed.text()


def end(mark: str, grace_s: float) -> None:
    """Asks the ranks of a launch to end, and kills those still running after `grace_s`."""
    _signal(_marked(mark), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (running := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal(running, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    """Returns this user's processes that are ranks of a launch; mpirun is not a rank."""
    ours = f"{MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                if ours in environment and any(line.startswith(_NUMBERS) for line in environment):
                    pids.append(int(folder.name))
            except OSError:  # another user's, or just gone
                continue
    return pids


def _signal(pids: Sequence[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        folder, file, *needs = sys.argv[2:]
        print(json.dumps(vars(probe(folder or None, file or None, *needs))))
    else:
        try:
            with _launch(float(sys.argv[2])) as launch:
                run(launch)
        except (ImagenetPrepError, BrokenError) as error:
            terminal.say(error)
            sys.exit(getattr(error, "exit_code", 1))
