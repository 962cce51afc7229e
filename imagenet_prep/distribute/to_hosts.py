"""Brings a data set to every host of a hosts file: from the leader, or each host from a bucket."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.dataset import manifest, naming
from imagenet_prep.dataset.placement import WHOLE, Placement
from imagenet_prep.dataset.problem import Problem
from imagenet_prep.distribute import hosts
from imagenet_prep.distribute.chain import Member
from imagenet_prep.distribute.contents import num_bytes
from imagenet_prep.distribute.lead import Leader
from imagenet_prep.hosts.hosts_file import read_hosts

if TYPE_CHECKING:
    from imagenet_prep.distribute.source import Source


class Progress(Protocol):
    """Shows people the progress."""

    def add(self, receipt: dict[str, Any]) -> None:
        """Counts one file."""

    def tick(self) -> None:
        """Updates the time."""

    def close(self) -> None:
        """Ends the line."""


@dataclass(frozen=True)
class Delivery:
    """The settings of a replication to hosts; the flags of replicate explain each."""

    bandwidth_limit: float
    check: bool
    connections: int
    copies: int
    dataset: str
    dry_run: bool
    hosts_file: str
    path: str
    quiet: bool
    mode: str
    python: str
    repair: bool
    retries: int
    timeout: int
    wait: int


def replicate_to_hosts(
    delivery: Delivery, source: Source, progress_of: Callable[[int], Progress]
) -> list[dict[str, Any]]:
    """Replicates to each host of the hosts file, or checks it; returns the result of each.

    Raises:
      UsageError: the hosts file, or more copies than hosts.
      IncompleteError: the data set has changed meanwhile.
    """
    hosts_file, path = delivery.hosts_file, delivery.path
    addresses = [host.address for host in read_hosts(Path(hosts_file).expanduser())]
    there = manifest.loads(source.data, naming.MANIFEST)
    placements = _placements(delivery, addresses)
    # Hosts with the same part share one list: there may be 200,000 files and 300 hosts.
    lists = {part: part.files(there) for part in set(placements.values())}
    files = {address: lists[part] for address, part in placements.items()}
    request = hosts.Request(
        data=source.data,
        root=str(Path(delivery.dataset).expanduser().absolute()),
        path=path,
        python=delivery.python,
        prove=delivery.repair,
        limit=delivery.bandwidth_limit * 1_000_000,
        retries=delivery.retries,
        wait_s=delivery.wait,
        silence_s=delivery.timeout,
        placements=placements,
    )
    if delivery.check or delivery.dry_run:
        num_files = {address: len(each) for address, each in files.items()}
        answers = hosts.ask(num_files, request, prove=delivery.check)
    elif delivery.dataset.startswith("s3://"):
        argv = ["replicate", delivery.dataset, "--to", path, *_pull_flags(delivery)]
        answers = hosts.pull(addresses, request, lambda part: [*argv, *_part_flags(part)])
    else:
        sizes = {part: {f.name: f.num_bytes for f in each} for part, each in lists.items()}
        by_host = {address: sizes[part] for address, part in placements.items()}
        answers = _push(by_host, request, progress_of, quiet=delivery.quiet)
        source.check_unchanged()
    replicas = []
    for address, answer in zip(addresses, answers, strict=True):
        replica = {
            "where": f"{address}:{path}",
            "files": len(files[address]) + 1,
            "bytes": num_bytes(files[address]),
            "problems": [],
            "lacking_bytes": 0,
        }
        if isinstance(answer, ImagenetPrepError):
            replica |= {"error": type(answer).__name__, "problems": [Problem(str(answer))]}
        else:
            replica |= answer
        replicas.append(replica)
    return replicas


def _placements(delivery: Delivery, addresses: Sequence[str]) -> dict[str, Placement]:
    if delivery.mode == "full":
        return dict.fromkeys(addresses, WHOLE)
    count = len(addresses)
    try:
        parts = [Placement(node, count, delivery.copies) for node in range(count)]
    except ValueError as error:
        raise UsageError(f"--copies {delivery.copies} on {count} hosts: {error}") from None
    return dict(zip(addresses, parts, strict=True))


def _part_flags(part: Placement) -> list[str]:
    if part.nodes == 1:
        return []
    place = f"{part.node}/{part.nodes}"
    return ["--mode", "partition", "--part", place, "--copies", str(part.copies)]


def _pull_flags(delivery: Delivery) -> list[str]:
    flags = ["--repair"] if delivery.repair else []
    for name in ("bandwidth_limit", "connections", "retries", "timeout"):
        flags += [f"--{name.replace('_', '-')}", str(getattr(delivery, name))]
    return flags


def _push(
    sizes: Mapping[str, Mapping[str, int]],
    request: hosts.Request,
    progress_of: Callable[[int], Progress],
    *,
    quiet: bool,
) -> list[dict[str, Any] | ImagenetPrepError]:
    """Gives every host what it lacks; shows the progress, and what happens to each host."""
    progress = progress_of(sum(map(len, sizes.values())))
    shown = dict.fromkeys(sizes, 0)

    def say(member: Member, sentence: str) -> None:
        if not quiet:
            print(f"{member.address}: {sentence}", file=sys.stderr, flush=True)

    def show(member: Member, stored_bytes: int) -> None:
        total = len(sizes[member.address])
        before, done = shown[member.address], total - (member.lacking or 0)
        # When a host comes back, files that it already had are not counted again.
        for _ in range(done - before):
            progress.add({"num_bytes": stored_bytes})
        if stored_bytes and before * 4 // total < done * 4 // total < 4:
            say(member, f"{100 * done // total} % of its files")
        shown[member.address] = max(done, before)
        progress.tick()

    leader = Leader(sizes, request, say=say, progress=show)
    try:
        members = leader.run()
    finally:
        progress.close()
    return [
        member.error or {"moved_bytes": member.moved_bytes, "losses": member.losses}
        for member in members
    ]
