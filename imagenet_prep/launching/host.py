"""What `launch` starts on each host, through ssh.

`python -P -m imagenet_prep.launching.host probe|run`

`probe` tells in one line of JSON what is there. `run` starts the host's ranks and ends when they
have ended. It is told all it needs through its input, so that no command line shows it, and the end
of its input is the end of `launch`: then no rank stays.
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
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from imagenet_prep.core import regular_file, signals, terminal
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import manifest, naming, placement
from imagenet_prep.dataset.placement import WHOLE, Placement
from imagenet_prep.launching.ranks import Rank, Ranks

# In the environment of every rank of one launch, and of nothing else.
MARK = "IMAGENET_PREP_LAUNCH"

PACKAGES = (
    *("imagenet-prep", "tensorflow", "tensorflow-cpu", "keras", "mxnet", "torch"),
    *("horovod", "numpy"),
)
_RANK = (b"HOROVOD_RANK=", b"OMPI_COMM_WORLD_RANK=")
_POLL_S = 0.2
# What ranks have left when `launch` is gone without a word: killed, or its machine is.
_ABANDONED_S = 5.0
# Of linux/sockios.h: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915


def probe(data_dir: str | None, script: str | None = None) -> dict[str, Any]:
    """Returns versions, GPUs, and what is known of the data set and of the user's own script.

    Keys: "versions" by package; "gpus"; "address" that its own name has, "" if none;
    "interfaces": IPv4 addresses by name; "reached": its address that ssh came to, "" without ssh;
    "dataset": digest of its manifest, "" without a data set of this host; "part": which of it is
    here, as [node, nodes, copies]; "script": its sha256, "" if none; "ports": two that are free for
    TCP at this moment; "problem": what is wrong with data set or script, "" if nothing.
    """
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    digest, part, problem = _dataset(data_dir) if data_dir is not None else ("", WHOLE, "")
    code = ""
    if script is not None:
        try:
            with open(regular_file.open_to_read(Path(script)), "rb") as file:
                code = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            problem = problem or f"{script}: {error.strerror}"
        except ImagenetPrepError as error:
            problem = problem or str(error)
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
    address = ""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    # NVIDIA's driver lists its devices here; asking TensorFlow takes seconds.
    gpus = Path("/proc/driver/nvidia/gpus")
    return {
        "versions": versions,
        "gpus": len(list(gpus.iterdir())) if gpus.is_dir() else 0,
        "address": address,
        "interfaces": interfaces(),
        # The client's address and port, then ours.
        "reached": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2],
        "dataset": digest,
        "part": dataclasses.astuple(part),
        "script": code,
        "ports": ports,
        "problem": problem,
    }


def interfaces() -> dict[str, str]:
    """Returns the first IPv4 address of each network interface that has one, by name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def _dataset(data_dir: str) -> tuple[str, Placement, str]:
    root = Path(data_dir).expanduser()
    part = WHOLE
    try:
        path = root / naming.MANIFEST
        facts = manifest.loads(regular_file.read(path), str(path))
        part = placement.load(root, facts)
        for split in facts.splits:
            for shard in part.shards(facts, split):
                size = (root / shard.name).stat().st_size
                if size != shard.num_bytes:
                    found = f"{root / shard.name} has {size:,} bytes"
                    return facts.digest, part, f"{found}, expected {shard.num_bytes:,}"
    except OSError as error:
        return "", part, f"{error.filename}: {error.strerror}"
    except ImagenetPrepError as error:
        return "", part, str(error)
    return facts.digest, part, ""


def run(orders: IO[str]) -> None:
    """Runs this host's ranks until they have ended, or `launch` has.

    What happens is told on stderr, as the launch's mark and JSON: of each rank that fails its
    "rank", "code" and whether it was "left" by another; {"done": true} when no rank is left.

    Args:
      orders: lines of JSON. The first has "mark", "folder" (to be in, where it is there),
        "command", "shared" (variables of all ranks), "ranks" (those of each, and of each server;
        none where mpirun starts them) and "logs" (the folder of their outputs, or None). Then
        {"ask": seconds}: ask the ranks to end, and kill them after that time; {"limit": seconds}:
        kill what lives then.

    Raises:
      StoreError: the output of a rank cannot be written where it is asked for. None runs then.
    """
    begin = json.loads(orders.readline())
    with contextlib.suppress(OSError):
        os.chdir(Path(begin["folder"]).expanduser())
    if not begin["ranks"]:
        # mpirun has started them here. They end when `launch` says so, or is gone.
        order = json.loads(orders.readline() or "{}")
        end(begin["mark"], order.get("ask", _ABANDONED_S))
        return
    ranks = Ranks()
    obeying = threading.Thread(target=_obey, args=(orders, ranks), daemon=True)
    # How long they may take to save, `launch` says; where it is gone, the end of the orders.
    with signals.handled(lambda *_: ranks.ask(), signal.SIGINT):
        obeying.start()
        environments = [begin["shared"] | each for each in begin["ranks"]]
        ranks.start(begin["command"], environments, begin.get("logs"))
        mark = begin["mark"]
        ranks.wait(lambda rank: _tell_failed(mark, rank), lambda: _tell(mark, {"done": True}))


def _obey(orders: IO[str], ranks: Ranks) -> None:
    for line in orders:
        order = json.loads(line)
        if "ask" in order:
            ranks.ask(order["ask"])
        else:
            ranks.limit(order["limit"])
    ranks.ask(_ABANDONED_S)


def _tell_failed(mark: str, rank: Rank) -> None:
    # The code first: by then its last line has come, which tells who left whom.
    code = rank.code()
    if rank.number < 0 or (code > 128 and code != 128 + signal.SIGTERM):
        # It says nothing itself, and ranks that wait for a server wait for ever.
        with contextlib.suppress(OSError):
            terminal.say(rank.reason())
    _tell(mark, {"rank": rank.number, "code": code, "left": rank.left})


def _tell(mark: str, told: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        print(f"{mark} {json.dumps(told)}", file=sys.stderr, flush=True)


def end(mark: str, grace_s: float) -> None:
    """Asks the ranks of a launch to end, and kills those that live `grace_s` seconds later."""
    _signal(_marked(mark), signal.SIGTERM)
    patience = time.monotonic() + grace_s
    while (left := _marked(mark)) and time.monotonic() < patience:
        time.sleep(_POLL_S)
    _signal(left, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    """Returns this user's processes that are ranks of a launch; its mpirun is none."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                if wanted in environment and any(line.startswith(_RANK) for line in environment):
                    found.append(int(folder.name))
            except OSError:  # another user's, or just gone
                continue
    return found


def _signal(pids: Sequence[int], signum: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        print(json.dumps(probe(*(word or None for word in sys.argv[2:]))))
    else:
        try:
            run(sys.stdin)
        except ImagenetPrepError as error:
            terminal.say(error)
            sys.exit(error.exit_code)
