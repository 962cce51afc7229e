"""The cost of a step by ring allreduce and by parameter servers, between hosts with slow links.

sudo python -m benchmarks.exchange

Hosts are network namespaces; tc shapes their links, each way. Horovod's ring runs over Gloo. The
servers are MXNet's (kvstore dist_sync), each on a separate host. Only the exchange of gradients is
run. The time of the computation is taken from AWS's article, in units of S / B: the bytes of all
gradients over the bandwidth of a link.

The namespaces belong to this process and its children, so the kernel removes them with their links
and shapes when it ends, for any reason.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import exchange_host, measure, scaling
from imagenet_prep.core import children
from tests.kit.cluster import make_bridge, plug

RING = "ring"
ONE = "1 server"
EACH = "N servers"
TWICE = "2N servers"
WORKERS = (1, 2, 4, 8)

# AWS's article: ResNet-50 on 64 GPUs of 8 hosts, 256 images per GPU. The time of its step without
# the exchange by a ring, in units of S / B.
ARTICLE_IMAGES_S = 45_000
_ARTICLE_GPUS = 64
_ARTICLE_S_B = 4 * scaling.WEIGHTS / scaling.NETWORK_BYTES_S
_ARTICLE_RING_S = scaling.ring_s(8, 4 * scaling.WEIGHTS, scaling.NETWORK_BYTES_S, 0.0)
_ARTICLE_STEP_S = _ARTICLE_GPUS * scaling.LOCAL_BATCH / ARTICLE_IMAGES_S
COMPUTE = (_ARTICLE_STEP_S - _ARTICLE_RING_S) / _ARTICLE_S_B

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_SWITCH = "switch"
_SWITCH_ADDRESS = "10.77.0.254"
# All ports of a separate namespace are free.
_SCHEDULER_PORT = 9000
# MXNet spreads tensors of more weights than this over all servers.
_BIG_TENSOR = 1_000_000
_OURS = Path("/run")  # a private file system, mounted by `network`: names and logs
_LOOK_EVERY_S = 0.1
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """One way to exchange gradients; a ring if there are no servers."""

    method: str
    workers: int
    servers: int

    @property
    def name(self) -> str:
        return f"{self.method}, {self.workers} worker{'s' if self.workers > 1 else ''}"

    def model(self) -> float:
        """Returns the model's time of an exchange, in units of S / B."""
        if not self.servers:
            return scaling.ring_s(self.workers, 1.0, 1.0, 0.0)
        return scaling.servers_s(self.workers, self.servers, 1.0, 1.0)


class Result(NamedTuple):
    """A measured run.

    Attributes:
      exchange_s: of each step, from the first worker's start to the last one's end.
      cpu: share of all cores that its processes used.
    """

    exchange_s: list[float]
    cpu: float


def rows() -> list[Row]:
    """Returns the measured rows; N servers of 1 worker are the same as its 1 server."""
    return [
        *(Row(RING, workers, 0) for workers in WORKERS),
        *(Row(ONE, workers, 1) for workers in WORKERS),
        *(Row(EACH, workers, workers) for workers in WORKERS[1:]),
        *(Row(TWICE, workers, 2 * workers) for workers in WORKERS),
    ]


def efficiency(exchange: float) -> float:
    """Returns the share of a step without the exchange, in units of S / B, without overlap."""
    return COMPUTE / (COMPUTE + exchange)


def images_s(workers: int, exchange: float) -> float:
    """Returns the article's images/s of hosts with 8 GPUs; `exchange` in units of S / B."""
    images = workers * scaling.GPUS_A_HOST * scaling.LOCAL_BATCH
    return images / ((COMPUTE + exchange) * _ARTICLE_S_B)


@dataclass(frozen=True)
class Bench:
    """Runs rows on the hosts of `network`.

    Attributes:
      python: of the environment with MXNet and Horovod.
      width: of the model, see `exchange_host.shapes`.
      steps: number of measured exchanges.
    """

    python: Path
    width: int
    steps: int

    def run(self, row: Row) -> Result:
        """Runs one row to its end.

        Raises:
          RuntimeError: a process failed; the message has the end of its stderr.
        """
        with ExitStack() as stack:
            crew = Crew(self.python, stack)
            names = self._with_servers(crew, row) if row.servers else self._in_a_ring(crew, row)
            samples = crew.wait(names)
            times = [crew.told(name) for name in names]
        # The start and end of every worker in each step.
        steps = [tuple(zip(*step, strict=True)) for step in zip(*times, strict=True)]
        first = min(steps[0][0])
        last = max(steps[-1][1])
        cpu = share([sample for sample in samples if first <= sample[0] <= last])
        return Result([max(ends) - min(begins) for begins, ends in steps], cpu)

    def _in_a_ring(self, crew: Crew, row: Row) -> list[str]:
        crew.start(_SWITCH, "rendezvous", row.workers)
        common = {
            "HOROVOD_SIZE": row.workers,
            "HOROVOD_LOCAL_RANK": 0,
            "HOROVOD_LOCAL_SIZE": 1,
            "HOROVOD_CROSS_SIZE": row.workers,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "eth0",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _SWITCH_ADDRESS,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": crew.first_line(_SWITCH),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": 600,
        }
        for rank in range(row.workers):
            own = {"HOROVOD_RANK": rank, "HOROVOD_CROSS_RANK": rank}
            own |= {"HOROVOD_HOSTNAME": f"host{rank}"}
            crew.start(f"host{rank}", "ring", self.width, self.steps, **common, **own)
        return [f"host{rank}" for rank in range(row.workers)]

    def _with_servers(self, crew: Crew, row: Row) -> list[str]:
        common = {
            "DMLC_PS_ROOT_URI": _SWITCH_ADDRESS,
            "DMLC_PS_ROOT_PORT": _SCHEDULER_PORT,
            "DMLC_NUM_WORKER": row.workers,
            "DMLC_NUM_SERVER": row.servers,
            # The same tensors are divided between servers for every width.
            "MXNET_KVSTORE_BIGARRAY_BOUND": _BIG_TENSOR * self.width**2 // 64**2,
        }
        there = {"DMLC_NODE_HOST": _SWITCH_ADDRESS, "DMLC_INTERFACE": "bridge"}
        crew.start(_SWITCH, "scheduler", DMLC_ROLE="scheduler", **common, **there)
        for number in range(row.workers + row.servers):
            own = {"DMLC_NODE_HOST": address(number), "DMLC_INTERFACE": "eth0", **common}
            if number < row.workers:
                words = ("worker", self.width, self.steps)
                crew.start(f"host{number}", *words, DMLC_ROLE="worker", **own)
            else:
                crew.start(f"host{number}", "server", DMLC_ROLE="server", **own)
        return [f"host{number}" for number in range(row.workers)]


class Crew:
    """The processes of one run, one per host; all are killed when the stack is left."""

    def __init__(self, python: Path, stack: ExitStack) -> None:
        self._python, self._stack = python, stack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str, *words: object, **environment: object) -> None:
        """Starts `exchange_host` with these arguments on a host."""
        own = {"OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1, **environment}
        program = children.python(exchange_host.__file__, program=str(self._python))
        inside = ["ip", "netns", "exec", host, *program, *map(str, words)]
        with open(_OURS / f"{host}.out", "wb") as out, open(_OURS / f"{host}.err", "wb") as err:
            process = subprocess.Popen(
                children.bound(inside),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **{name: str(value) for name, value in own.items()}},
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._processes[host] = process

    def first_line(self, host: str) -> str:
        """Returns the first line that a process prints; waits for it."""
        while not (said := (_OURS / f"{host}.out").read_text()).endswith("\n"):
            self._check()
            time.sleep(_LOOK_EVERY_S)
        return said.strip()

    def told(self, host: str) -> Any:
        """Returns the JSON that a process printed in its last line."""
        return json.loads((_OURS / f"{host}.out").read_text().splitlines()[-1])

    def wait(self, hosts: Sequence[str]) -> list[tuple[float, float]]:
        """Returns samples of (time.monotonic(), CPU seconds of all) until these have ended."""
        samples = []
        while not all(self._processes[host].poll() == 0 for host in hosts):
            self._check()
            cpu_s = sum(cpu_seconds(process.pid) for process in self._processes.values())
            samples.append((time.monotonic(), cpu_s))
            time.sleep(_LOOK_EVERY_S)
        return samples

    def _check(self) -> None:
        for host, process in self._processes.items():
            if process.poll():
                said = (_OURS / f"{host}.err").read_text(errors="replace")
                raise RuntimeError(f"{host}: exit code {process.returncode}:\n{said[-4000:]}")


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of all threads of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def share(samples: Sequence[tuple[float, float]]) -> float:
    """Returns the share of all cores that was used between the first and the last sample."""
    if len(samples) < 2:
        return 0.0
    (start, before), (stop, after) = samples[0], samples[-1]
    return (after - before) / (stop - start) / len(os.sched_getaffinity(0))


def address(number: int) -> str:
    """Returns the address of a host."""
    return f"10.77.0.{number + 1}"


def network(hosts: int, mbit: float) -> None:
    """Moves this process to a separate network with this number of hosts on a bridge.

    Raises:
      SystemExit: the kernel or the container does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
        why = os.strerror(ctypes.get_errno())
        raise SystemExit(f"This benchmark needs network namespaces, refused here: {why}.")
    # `ip netns` keeps names below /run.
    for words in (("--make-rprivate", "/"), ("-t", "tmpfs", "exchange", str(_OURS))):
        subprocess.run(["mount", *words], check=True)
    subprocess.run(["ip", "netns", "add", _SWITCH], check=True)
    make_bridge(_SWITCH)
    own = ("address", "add", f"{_SWITCH_ADDRESS}/24", "dev", "bridge")
    for words in (own, ("link", "set", "lo", "up")):
        subprocess.run(["ip", "-n", _SWITCH, *words], check=True)
    for number in range(hosts):
        plug(f"host{number}", address(number), _SWITCH, f"port{number}", f"{mbit}mbit")


def in_units(results: Mapping[Row, Sequence[Result]], s_b: float) -> dict[Row, float]:
    """Returns the median exchange of each row in units of S / B, which is `s_b` seconds."""
    medians = {}
    for row, found in results.items():
        seconds = itertools.chain.from_iterable(result.exchange_s for result in found)
        medians[row] = measure.median([*seconds]) / s_b
    return medians


def render(results: Mapping[Row, Sequence[Result]], s_b: float) -> str:
    """Returns the table, and its comparison with the article; `s_b` are the seconds of S / B."""
    lines = []
    cpu = {row: max(result.cpu for result in found) for row, found in results.items()}
    found = in_units(results, s_b)
    for row, exchange in found.items():
        model = row.model()
        cells = [
            f"{exchange * s_b:.2f}",
            f"{model * s_b:.2f}",
            f"{exchange / model:.2f}" if model else "-",
            f"{(COMPUTE + exchange) * s_b:.2f}",
            f"{efficiency(exchange):.3f}",
            f"{efficiency(model):.3f}",
            f"{cpu[row]:.0%}",
        ]
        lines.append([row.name, *cells])
    heads = ["", "exchange s", "model s", "/ model", "step s", "efficiency", "model's", "CPU"]
    busiest = max(cpu, key=lambda row: cpu[row] if row.model() else 0.0)
    text = (
        f"S / B is {s_b:.2f} s, computing {COMPUTE:.2f} S / B = {COMPUTE * s_b:.2f} s. "
        f"The busiest run ({busiest.name}) used {cpu[busiest]:.0%} of the cores."
    )
    worst = Row(ONE, 8, 1)
    if worst in found:
        here = efficiency(found[worst])
        model = efficiency(worst.model())
        text += (
            f"\nOne server for 8 hosts leaves {here:.3f} of their speed, by the model {model:.3f}; "
            f"the article printed {scaling.ARTICLE[64]:.2f}."
        )
    return f"{measure.table(heads, lines)}\n\n{text}"


def plot(found: Mapping[Row, float], path: Path) -> None:
    """Draws images/s as columns and efficiency as lines, like figure 1 of the article, into a PNG.

    The lines are measured; the dashes are the model.

    Args:
      found: time of an exchange, in units of S / B.
      path: of the PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    columns = figure.subplots()
    axes = columns.twinx()
    for number, method in enumerate((RING, TWICE, EACH, ONE)):
        mine = [row for row in found if row.method == method]
        workers = [row.workers for row in mine]
        look: Any = {"color": f"C{number}", "markersize": 4}
        # The axis is logarithmic: columns next to each other, all of the same width.
        edges = [each * 2 ** (0.15 * (number - 2)) for each in workers]
        widths = [edge * (2**0.15 - 1) for edge in edges]
        speeds = [images_s(row.workers, found[row]) for row in mine]
        columns.bar(edges, speeds, widths, align="edge", color=f"C{number}", alpha=0.35)
        axes.plot(workers, [efficiency(found[row]) for row in mine], "o-", label=method, **look)
        axes.plot(workers, [efficiency(row.model()) for row in mine], "--", alpha=0.6, **look)
    axes.plot([], [], "--", color="0.5", label="paper model")
    axes.plot(8, scaling.ARTICLE[64], "*", color="0.2", markersize=10, label="the article, 8 hosts")
    columns.set_xscale("log", base=2)
    columns.set_xticks(WORKERS, map(str, WORKERS))
    columns.set_xlabel("workers N, of 8 GPUs each")
    columns.set_ylabel("images/s (columns)")
    columns.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("efficiency (lines)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=6, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def settings(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, Row]]:
    """Returns the flags, and the rows that they select; ends if a requirement is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m benchmarks.exchange",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=measure.ROOT / ".venv" / "mxnet" / "bin" / "python",
        help="of the environment with MXNet and Horovod",
    )
    parser.add_argument("--mbit", type=float, default=200, help="rate of every link")
    parser.add_argument("--width", type=int, default=32, help="64: ResNet-50; 32: 1/4 of its bytes")
    parser.add_argument("--steps", type=int, default=3, help="exchanges that a run measures")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name it matches")
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    parser.add_argument("--plot", type=Path, help="draw a PNG here")
    args = parser.parse_args(argv)
    measure.need(ip="iproute2", tc="iproute2")
    if os.geteuid():
        parser.error("hosts are network namespaces, which need root")
    if not args.python.exists():
        parser.error(
            f"{args.python} is not there: MXNet and Horovod live in an environment of their own, "
            "which `make test` makes; or name another one's interpreter with --python"
        )
    chosen = {row.name: row for row in rows() if re.search(args.only, row.name)}
    if not chosen:
        parser.error(f"--only {args.only}: no row matches, of {', '.join(r.name for r in rows())}")
    return args, chosen


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    args, chosen = settings(argv)
    network(max(row.workers + row.servers for row in chosen.values()), args.mbit)
    bench = Bench(args.python.absolute(), args.width, args.steps)
    by_name = measure.interleave(
        {name: lambda row=row: bench.run(row) for name, row in chosen.items()},
        args.rounds,
        lambda name, result: measure.say(
            f"{name}: {', '.join(f'{s:.2f}' for s in result.exchange_s)} s, CPU {result.cpu:.0%}"
        ),
    )
    results = {chosen[name]: found for name, found in by_name.items()}
    size = exchange_host.num_bytes(args.width)
    s_b = size * 8 / args.mbit / 1e6
    title = (
        f"exchange: {size / 1e6:.1f} MB, 1 / {4 * scaling.WEIGHTS / size:.1f} of ResNet-50, links "
        f"of {args.mbit:g} Mbit/s, {args.steps} steps, {args.rounds} rounds"
    )
    raw = {name: [result._asdict() for result in found] for name, found in by_name.items()}
    measure.finish(title, render(results, s_b), raw, args.json)
    if args.plot:
        plot(in_units(results, s_b), args.plot)


if __name__ == "__main__":
    main()
