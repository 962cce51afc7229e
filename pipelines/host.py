"""What `launch` asks of a host: `python -m pipelines.host probe|end ...`; one line of JSON.

Runs on every host of a cluster, over ssh, before and after training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from imagenet_prep.core.placement import WHOLE, Placement

# In the environment of every rank of one launch, and of nothing else.
MARK = "IMAGENET_PREP_LAUNCH"

_PACKAGES = ("imagenet-prep", "tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy")
_RANK = (b"HOROVOD_RANK=", b"OMPI_COMM_WORLD_RANK=")
_POLL_S = 0.2


def probe(data_dir: str | None) -> dict[str, Any]:
    """Returns versions, GPUs, and what is known of the data set.

    Keys: "versions" by package; "gpus"; "address" that its own name has, "" if none; "dataset":
    digest of its manifest, "" without a data set of this host; "part": which of it is here, as
    [node, nodes, copies]; "problem": what is wrong with it, "" if nothing.
    """
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    digest, part, problem = _dataset(data_dir) if data_dir is not None else ("", WHOLE, "")
    address = ""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    # NVIDIA's driver lists its devices here; asking TensorFlow takes seconds.
    gpus = Path("/proc/driver/nvidia/gpus")
    return {
        "versions": versions,
        "gpus": len(list(gpus.iterdir())) if gpus.is_dir() else 0,
        "address": address,
        "dataset": digest,
        "part": dataclasses.astuple(part),
        "problem": problem,
    }


def _dataset(data_dir: str) -> tuple[str, Placement, str]:
    from imagenet_prep.core import manifest, naming, placement
    from imagenet_prep.core.errors import ImagenetPrepError

    root = Path(data_dir).expanduser()
    part = WHOLE
    try:
        facts = manifest.loads((root / naming.MANIFEST).read_bytes(), str(root / naming.MANIFEST))
        part = placement.load(root, facts)
        for split in facts.splits:
            for shard in part.shards(facts, split):
                size = (root / shard.name).stat().st_size
                if size != shard.num_bytes:
                    return (
                        facts.digest,
                        part,
                        (f"{root / shard.name} has {size:,} bytes, expected {shard.num_bytes:,}"),
                    )
    except OSError as error:
        return "", part, f"{error.filename}: {error.strerror}"
    except ImagenetPrepError as error:
        return "", part, str(error)
    return facts.digest, part, ""


def end(mark: str, grace_s: float) -> dict[str, Any]:
    """Asks the ranks of a launch to end, and kills those that live `grace_s` seconds later.

    Returns:
      "ended": how many there were; "killed": how many of them had to be.
    """
    first = _marked(mark)
    _signal(first, signal.SIGTERM)
    patience = time.monotonic() + grace_s
    while (left := _marked(mark)) and time.monotonic() < patience:
        time.sleep(_POLL_S)
    _signal(left, signal.SIGKILL)
    return {"ended": len(first), "killed": len(left)}


def _marked(mark: str) -> list[int]:
    """Returns this user's processes that are ranks of a launch; its horovodrun is none."""
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


def main(argv: Sequence[str]) -> None:
    """Does one of the two and prints what came of it."""
    if argv[0] == "probe":
        result = probe(argv[1] if len(argv) > 1 else None)
    else:
        result = end(argv[1], float(argv[2]))
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
