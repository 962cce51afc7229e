"""A data set to every host of a hosts file: given by the leader, or fetched from a bucket."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import manifest, naming
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.hosts import read_hosts
from imagenet_prep.core.placement import WHOLE, Placement
from imagenet_prep.core.problem import Problem
from imagenet_prep.distribute import hosts
from imagenet_prep.distribute.chain import Member
from imagenet_prep.distribute.contents import num_bytes
from imagenet_prep.distribute.lead import Leader
from imagenet_prep.engine import Progress

if TYPE_CHECKING:
    from imagenet_prep.distribute.source import Source
    from imagenet_prep.replicate import Config


def spread(config: Config, source: Source) -> list[dict[str, Any]]:
    """Returns what each host of the hosts file lacks or lacked, or why it failed.

    Raises:
      UsageError: the hosts file, or more copies than hosts.
      IncompleteError: the data set has changed meanwhile.
    """
    hosts_file, path = config.hosts_and_path
    addresses = [host.address for host in read_hosts(Path(hosts_file).expanduser())]
    there = manifest.loads(source.data, naming.MANIFEST)
    placements = _placements(config, addresses)
    # Where all hold the same, it is one list: there may be 200,000 files, and 300 hosts.
    lists = {part: part.files(there) for part in set(placements.values())}
    files = {address: lists[part] for address, part in placements.items()}
    request = hosts.Request(
        data=source.data,
        root=str(Path(config.dataset).expanduser().absolute()),
        path=path,
        python=config.python,
        prove=config.repair,
        limit=config.bandwidth_limit * 1_000_000,
        retries=config.retries,
        wait_s=config.wait,
        silence_s=config.timeout,
        placements=placements,
    )
    if config.check or config.dry_run:
        num_files = {address: len(each) for address, each in files.items()}
        answers = hosts.ask(num_files, request, prove=config.check)
    elif config.dataset.startswith("s3://"):
        argv = ["replicate", config.dataset, "--to", path, *_pull_flags(config)]
        answers = hosts.pull(addresses, request, lambda part: [*argv, *_part_flags(part)])
    else:
        sizes = {part: {f.name: f.num_bytes for f in each} for part, each in lists.items()}
        by_host = {address: sizes[part] for address, part in placements.items()}
        answers = _push(by_host, request, quiet=config.json)
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


def _placements(config: Config, addresses: Sequence[str]) -> dict[str, Placement]:
    if config.mode == "full":
        return dict.fromkeys(addresses, WHOLE)
    count = len(addresses)
    try:
        parts = [Placement(node, count, config.copies) for node in range(count)]
    except ValueError as error:
        raise UsageError(f"--copies {config.copies} on {count} hosts: {error}") from None
    return dict(zip(addresses, parts, strict=True))


def _part_flags(part: Placement) -> list[str]:
    if part.nodes == 1:
        return []
    place = f"{part.node}/{part.nodes}"
    return ["--mode", "partition", "--part", place, "--copies", str(part.copies)]


def _pull_flags(config: Config) -> list[str]:
    flags = ["--repair"] if config.repair else []
    for name in ("bandwidth_limit", "connections", "retries", "timeout"):
        flags += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
    return flags


def _push(
    sizes: Mapping[str, Mapping[str, int]], request: hosts.Request, *, quiet: bool
) -> list[dict[str, Any] | ImagenetPrepError]:
    """Gives every host what it lacks; shows files in total, and each host's fate."""
    progress = Progress("replicate", sum(map(len, sizes.values())), 0, quiet=quiet)
    shown = dict.fromkeys(sizes, 0)

    def say(member: Member, sentence: str) -> None:
        if not quiet:
            print(f"{member.address}: {sentence}", file=sys.stderr, flush=True)

    def show(member: Member, stored_bytes: int) -> None:
        total = len(sizes[member.address])
        before, done = shown[member.address], total - (member.lacking or 0)
        # A host that comes back counts again only what it did not have.
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
