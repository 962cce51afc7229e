"""The model of docs/scaling.md: a step of ResNet-50 on hosts with 8 GPUs each.

python -m benchmarks.scaling             # prints the tables of docs/scaling.md
python -m benchmarks.scaling --price 12  # the cost of 90 epochs if a host of 8 GPUs costs $12
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

WEIGHTS = 25_557_032
LOCAL_BATCH = 256
GPUS_A_HOST = 8
# The tutorial's 4 GPUs without input: 3,012 images/s.
COMPUTE_S = LOCAL_BATCH / (3_012 / 4)
# p3.16xlarge: 25 Gbit/s between hosts; NVLink rings within one, measured by NCCL's all_reduce_perf.
NETWORK_BYTES_S = 25e9 / 8
NVLINK_BYTES_S = 25e9
LATENCY_S = 50e-6  # a message over TCP between two hosts of one placement group
FUSION_BYTES = 16 << 20  # HOROVOD_FUSION_THRESHOLD of train.sh


class Printed(NamedTuple):
    """The figures of AWS's documents for a number of GPUs, as they print them."""

    speed: str = "-"
    share: str = "-"
    time: str = "-"


# The tutorial of 2018 (speeds without its first rows), the blog posts of its releases, and the
# article on MXNet with Horovod (64 GPUs).
PRINTED = {
    4: Printed("3,012"),
    8: Printed("5,871.7 to 5,874.3", time="8 hours"),
    32: Printed("18,631 to 20,902", time="6,004 s"),
    64: Printed("45,000 (MXNet, float16)", time="44 minutes (MXNet)"),
    256: Printed("142,660 to 144,808; 171,000 (CUDA 10)", "85%; 90% (CUDA 10)", "860 s"),
}
EPOCHS = 90
IMAGES = 1_281_167
# On-demand dollars per hour in us-east-1: the tutorial's p3.16xlarge, which AWS has withdrawn; and
# for a server a c5.18xlarge, which has 25 Gbit/s too but no GPU.
PRICE = 24.48
SERVER_PRICE = 3.06
# AWS's article on MXNet with Horovod: the remaining share of 64 GPUs' speed with parameter servers.
ARTICLE = {64: 0.38}


def ring_s(peers: int, num_bytes: float, bytes_s: float, latency_s: float) -> float:
    """Returns the seconds of a ring allreduce: 2 (n - 1) messages of 1/n of the data each."""
    return 2 * (peers - 1) * (latency_s + num_bytes / peers / bytes_s)


def reduction_s(gpus: int, bytes_a_weight: int) -> float:
    """Returns the seconds of a hierarchical allreduce of all gradients, buffer by buffer."""
    total = WEIGHTS * bytes_a_weight
    inside = ring_s(min(gpus, GPUS_A_HOST), total, NVLINK_BYTES_S, 0.0)
    buffers = math.ceil(total / FUSION_BYTES)
    hosts = math.ceil(gpus / GPUS_A_HOST)
    return inside + buffers * ring_s(hosts, total / buffers, NETWORK_BYTES_S, LATENCY_S)


def images_s(gpus: int, bytes_a_weight: int, hidden: float = 0.0) -> float:
    """Returns images per second; `hidden` is the overlap of reduction and backward pass."""
    return gpus * LOCAL_BATCH / (COMPUTE_S + (1 - hidden) * reduction_s(gpus, bytes_a_weight))


def share(speed: float, gpus: int) -> str:
    """Returns images per second as a share of the speed of these GPUs without communication."""
    return f"{speed:,.0f}, {speed * COMPUTE_S / LOCAL_BATCH / gpus:.0%}"


def servers_s(hosts: int, servers: int, num_bytes: float, bytes_s: float) -> float:
    """Returns the seconds in which all hosts push to parameter servers, then pull from them.

    Each server has its share of the weights and a separate host. The slowest link is either that of
    a server, which carries this share once for each host, or that of a host, which carries all
    weights.
    """
    return 2 * max(1.0, hosts / servers) * num_bytes / bytes_s


def efficiency(gpus: int, exchange_s: float) -> float:
    """Returns the remaining share of the speed: float32, the ring within a host, no overlap."""
    return COMPUTE_S / (COMPUTE_S + reduction_s(min(gpus, GPUS_A_HOST), 4) + exchange_s)


def exchanges_s(hosts: int) -> list[float]:
    """Returns the seconds by a ring, by a server for each host, and by one server."""
    total = WEIGHTS * 4.0
    servers = [servers_s(hosts, each, total, NETWORK_BYTES_S) for each in (hosts, 1)]
    return [ring_s(hosts, total, NETWORK_BYTES_S, LATENCY_S), *servers]


def server_table() -> list[str]:
    """Returns the rows of the second table: a ring, and two servers per host, one, and one for all.

    Two servers per host do not help, because the link of each host carries all gradients anyway.
    """
    rows = []
    for gpus in (8, 16, 32, 64):
        ring, each, one = exchanges_s(gpus // GPUS_A_HOST)
        kinds = (ring, each, each, one)
        cells = [
            f"{gpus}",
            *(f"{1e3 * each:.0f} ms, {efficiency(gpus, each):.2f}" for each in kinds),
        ]
        rows.append(
            f"| {' | '.join([*cells, f'{ARTICLE[gpus]:.2f}' if gpus in ARTICLE else '-'])} |"
        )
    return rows


def hours(gpus: int, exchange_s: float) -> float:
    """Returns the hours of 90 epochs of ImageNet."""
    images_s = gpus * LOCAL_BATCH / COMPUTE_S * efficiency(gpus, exchange_s)
    return EPOCHS * IMAGES / images_s / 3600


def dollar_table(price: float = PRICE, server_price: float = SERVER_PRICE) -> list[str]:
    """Returns the rows of the third table: the cost of 90 epochs by a ring, and by servers."""
    rows = []
    for gpus in (8, 16, 32, 64):
        hosts = gpus // GPUS_A_HOST
        cells = [f"{gpus}"]
        ring, each, one = exchanges_s(hosts)
        kinds = ((0, ring), (2 * hosts, each), (hosts, each), (1, one))
        for servers, exchange_s in kinds:
            time = hours(gpus, exchange_s)
            dollars = time * (hosts * price + servers * server_price)
            cells.append(f"{time:.1f} h, ${dollars:,.0f}")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def table() -> list[str]:
    """Returns the rows of the first table."""
    rows = []
    for gpus, printed in PRINTED.items():
        speed = images_s(gpus, 4)
        cells = [
            f"{gpus}",
            f"{1e3 * reduction_s(gpus, 4):.0f} ms",
            f"{speed:,.0f}",
            printed.speed,
            f"{speed * COMPUTE_S / LOCAL_BATCH / gpus:.0%}",
            printed.share,
            f"{EPOCHS * IMAGES / speed:,.0f} s",
            printed.time,
            share(images_s(gpus, 2), gpus),
            share(images_s(gpus, 2, hidden=0.8), gpus),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def header(*names: str) -> list[str]:
    """Returns the two lines above the rows of a table of numbers."""
    return [f"| {' | '.join(names)} |", f"|{'---:|' * len(names)}"]


_SPEED = header(
    "GPUs",
    "reduction",
    "images/s",
    "AWS printed",
    "share",
    "AWS printed",
    "90 epochs",
    "AWS printed",
    "`--fp16-compression`",
    "80 % hidden",
)
_WAYS = ("GPUs", "ring", "2 servers for each host", "1 for each host", "one server")
_EXCHANGE = header(*_WAYS, "the article, with servers")
_DOLLARS = header(*_WAYS)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the three tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description="The paper model of docs/scaling.md: ResNet-50 on hosts with 8 GPUs each. "
        "Prints three tables: the speed of N GPUs; a ring against parameter servers, as time of an "
        "exchange and share of the GPUs' speed that is left; and what 90 epochs cost by each.",
    )
    dollars = {"type": float, "metavar": "DOLLARS"}
    parser.add_argument("--price", default=PRICE, help="of a host and hour", **dollars)
    parser.add_argument(
        "--server-price", default=SERVER_PRICE, help="of a parameter server's host", **dollars
    )
    asked = parser.parse_args(argv)
    tables = (
        [*_SPEED, *table()],
        [*_EXCHANGE, *server_table()],
        [*_DOLLARS, *dollar_table(asked.price, asked.server_price)],
    )
    print("\n\n".join("\n".join(each) for each in tables))


if __name__ == "__main__":
    main()
