"""The command that every rank of a launch runs, and the environment variables of the ranks.

`RankCommand` is the verb `train` (`of_train`), or the user's own training script (`own`).

`travelling` returns variables from this machine. `of_horovod`, `of_torchrun`, `of_mpi` and
`of_servers` return variables from a launch.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from imagenet_prep.core import children, terminal
from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import UsageError
from imagenet_prep.hosts.commands import Host

# Python, TensorFlow, MXNet, PyTorch, Horovod, the network and this program read variables with
# these names or prefixes. All other variables, such as HOME, are not passed on.
_NAMES = {
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
}
_BEGINNINGS = (
    "AWS_",
    "IMAGENET_PREP_",
    "PYTHON",
    "LC_",
    "MALLOC_",
    "TF_",
    "TF2_",
    "XLA_",
    "DALI_",
    "MXNET_",
    "PS_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "CUDA_",
    "CUDNN_",
    "NCCL_",
    "HOROVOD_",
    "GLOO_",
    "UCX_",
    "FI_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
)
# Not passed on, since each host has its own GPUs, and each launch has its own key.
_STAY = re.compile(r"CUDA_VISIBLE_DEVICES|HOROVOD_SECRET_KEY|IMAGENET_PREP_LAUNCH$")
# After this time, Horovod reports the ranks that other ranks wait for.
STALL_WARNING_S = 30
# Horovod's default of 30 s is too short for a host that loads TensorFlow from a shared disk.
_MEETING_S = 120
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY|AUTH|COOKIE", re.IGNORECASE)


def travelling(
    environment: Mapping[str, str], more: Sequence[str], *, private: bool
) -> dict[str, str]:
    """Returns the variables to pass to ranks on other hosts, including the names in `more`.

    Probable secrets are excluded, unless the connection is encrypted (`private`).
    """
    absent = [name for name in more if name not in environment]
    if absent:
        raise UsageError(f"--env {absent[0]}: this variable is not set here")
    passed = {
        name: value
        for name, value in environment.items()
        if (name in _NAMES or name.startswith(_BEGINNINGS)) and not _STAY.search(name)
    }
    passed |= {name: environment[name] for name in more}
    if terminal.LOG_FORMAT in passed:  # The launch logs the ranks' output as JSON.
        passed[terminal.LOG_FORMAT] = "text"
    secrets = {
        name
        for name, value in passed.items()
        # A proxy's address may contain user:password@.
        if _SECRET.search(name) or ("proxy" in name.lower() and "@" in value)
    }
    if private or not secrets:
        return passed
    refused = [name for name in more if name in secrets]
    if refused:
        raise UsageError(
            f"--env {refused[0]}: mpirun would send this secret unencrypted. Configure it on each "
            "host, e.g. in ~/.aws, or launch without --mpi."
        )
    return {name: value for name, value in passed.items() if name not in secrets}


def of_horovod(stall_s: int = 600) -> dict[str, str]:
    """Returns Horovod's time-outs; a job ends if a rank makes others wait over `stall_s`."""
    return {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(STALL_WARNING_S),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(stall_s),
        # Also the time that Gloo waits for a frozen process.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(min(stall_s, _MEETING_S)),
    }


def of_torchrun(
    hosts: Sequence[Host], interfaces: Sequence[str], address: str, port: int
) -> list[list[dict[str, str]]]:
    """Returns, for each host, torchrun's variables for each of its ranks.

    Ranks are numbered host by host, as in Horovod. Rank 0 listens at `address` and `port`.
    """
    size = sum(host.slots for host in hosts)
    ranks_by_host = []
    first = 0
    for host, interface in zip(hosts, interfaces, strict=True):
        shared = {
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(host.slots),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        ranks = range(host.slots)
        ranks_by_host.append(
            [shared | {"RANK": str(first + n), "LOCAL_RANK": str(n)} for n in ranks]
        )
        first += host.slots
    return ranks_by_host


def of_mpi(
    hosts: Sequence[Host], interfaces: Sequence[str], address: str, port: int
) -> dict[str, str]:
    """Returns the torchrun variables that are equal for all ranks; mpirun numbers the ranks."""
    ranks = chain.from_iterable(of_torchrun(hosts, interfaces, address, port))
    return dict(set.intersection(*({*rank.items()} for rank in ranks)))


def of_servers(
    hosts: Sequence[Host], interfaces: Sequence[str], address: str, port: int, servers: int
) -> tuple[list[dict[str, str]], list[list[dict[str, str]]]]:
    """Returns MXNet's variables for the ranks of each host, and for each server of each host.

    Servers are assigned to hosts in turn. The scheduler, which connects all processes, runs on
    the first host, at `address` and `port`.
    """
    of_ranks = []
    of_others = []
    for place, (_, interface) in enumerate(zip(hosts, interfaces, strict=True)):
        shared = {
            "DMLC_PS_ROOT_URI": address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NUM_WORKER": str(sum(host.slots for host in hosts)),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_INTERFACE": interface,
        }
        here = [
            shared | {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(number)}
            for number in range(place, servers, len(hosts))
        ]
        of_ranks.append(shared | {"DMLC_ROLE": "worker"})
        of_others.append(here if place else [shared | {"DMLC_ROLE": "scheduler"}, *here])
    return of_ranks, of_others


EXPECTED = (
    "expected the command of the ranks after --, such as: -- train --data-dir DIR ..., or for your "
    "script: -- python SCRIPT.py ..."
)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# The value of these Python options is the next word.
_WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True)
class RankCommand:
    """A command, and the facts about it that are needed to check the hosts.

    `data_dir` is None if there is no dataset or it is at a URL. `is_own` is True for the user's
    script or module. `comm` is the value of `train --comm`. `needs`: see `core.imports.lacking`.
    """

    argv: tuple[str, ...]
    data_dir: str | None
    log_dir: str | None
    script: Path | None = None
    is_own: bool = False
    comm: str | None = None
    needs: tuple[str, ...] = ()

    @property
    def by_servers(self) -> bool:
        """Whether ranks communicate through MXNet's parameter servers."""
        return self.comm in ("dist_sync", "dist_device_sync")

    def variables(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Returns variables to make Python import from the script's folder, not the current one."""
        safe = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        if self.script is None:
            return safe
        folders = [str(self.script.parent), environment.get("PYTHONPATH", "")]
        return safe | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def of_train(
    words: Sequence[str], data_dir: str | None, log_dir: str, comm: str, needs: Sequence[str]
) -> RankCommand:
    """Returns the command for the verb `train` with the flags in `words`."""
    argv = children.python("-m", "imagenet_prep", *words)
    return RankCommand(tuple(argv), _folder(data_dir), log_dir, comm=comm, needs=tuple(needs))


def own(words: Sequence[str]) -> RankCommand:
    """Returns the work for `python SCRIPT.py ...`, `SCRIPT.py ...` or `python -m MODULE ...`."""
    if not words or (_PYTHON.fullmatch(Path(words[0]).name) is None and words[0][-3:] != ".py"):
        raise UsageError(EXPECTED)
    rest = list(words)
    if words[0][-3:] != ".py":
        program = rest.pop(0)
        ours = Path(sys.executable).parent
        # Do not resolve links: the Python of a virtual environment is a link to the system's.
        if os.sep in program and Path(program).absolute().parent != ours:
            raise UsageError(
                f"{program}: every rank runs with {sys.executable}, as this program does. Write: "
                "-- python ..."
            )
    place = 0
    while place < len(rest) and rest[place].startswith("-") and rest[place] not in ("-m", "-c"):
        place += 2 if rest[place] in _WITH_VALUE else 1
    if place >= len(rest):
        raise UsageError(EXPECTED)
    script = None
    if rest[place] not in ("-m", "-c"):
        script = Path(absolute(rest[place]))
        rest[place] = str(script)
        if not script.is_file():
            raise UsageError(f"{script}: no such script")
    argv = children.python(*rest)
    arguments = rest[place + (1 if script else 2) :]
    data_dir = _folder(_value(arguments, "--data-dir"))
    return RankCommand(tuple(argv), data_dir, _value(arguments, "--log-dir"), script, is_own=True)


def _folder(data_dir: str | None) -> str | None:
    return None if data_dir is None or "://" in data_dir else absolute(data_dir)


def _value(words: Sequence[str], flag: str) -> str | None:
    """Returns the last value of a flag, which may be spelled with dashes or underscores."""
    spellings = (flag, f"--{flag[2:].replace('-', '_')}")
    last = None
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in spellings and (equals or place + 1 < len(words)):
            last = value if equals else words[place + 1]
    return last
