"""The flags of `replicate`, and the part of the dataset for each target."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from imagenet_prep.core.address import HOSTS
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.dataset.shared_flags import data_set

_PARTITION = {"mode": ("partition",)}


@dataclass(frozen=True)
class ReplicateConfig(Settings):
    """Settings of one run; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Dataset and target": "dataset to from_parent",
        "Parts of a dataset": "columns mode copies part",
        "Check and repair": "check repair replace",
        "Transfer and result": "bandwidth_limit connections dry_run json",
    }
    dataset: str = data_set(
        place=AddressKind.FOLDER_OR_BUCKET, help="the dataset in a folder or s3://bucket/prefix"
    )
    to: str = flag(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="a folder, s3://bucket/prefix, or hosts:HOSTSFILE:PATH for the folder PATH on "
        "every host of the file",
        positional=True,
        aliases=("--to",),
        metavar="TARGET",
    )
    columns: tuple[str, ...] = flag(
        (column.ALL,),
        help="names of the columns to copy, separated by commas; or all, or none",
        metavar="NAMES",
    )
    mode: str = flag(
        "full",
        choices=("full", "partition"),
        help="shards to copy to each host: all (full), or those that its ranks will read",
    )
    copies: int = flag(1, help="number of hosts that get each shard", metavar="R", only=_PARTITION)
    part: str | None = optional(
        help="copy the part of host K of N; K starts at 0", metavar="K/N", only=_PARTITION
    )
    from_parent: str | None = optional(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="replica made before the dataset was amended, at the same path on every host; "
        "unchanged shards are linked or copied from it instead of transferred",
        without=("check", "dry_run"),
    )
    check: bool = switch(help="read every byte of the replicas and report problems; copy nothing")
    repair: bool = switch(help="read every byte first, then replace damaged and missing files")
    replace: bool = switch(
        help="replace an older version of the dataset at the target, from which amend or forget "
        "made this one",
        without=("check",),
    )
    dry_run: bool = switch(help="print the bytes to copy and the estimated time; copy nothing")
    bandwidth_limit: float = flag(
        0.0,
        least=0,
        help="bandwidth limit for all files together, or per host of a hosts file; 0: no limit",
        metavar="MB/S",
    )
    connections: int = flag(
        8, least=1, help="number of files copied at a time to a folder or S3", metavar="N"
    )
    python: str = flag(
        sys.executable,
        place=AddressKind.FILE,
        help="path, on each host, of the Python that has imagenet-prep installed",
        metavar="PATH",
    )
    wait: int = flag(
        60, least=0, help="seconds to wait for lost hosts after all others finish", metavar="S"
    )
    retries: int = flag(20, least=0, help="failed attempts allowed per file or host", metavar="N")
    timeout: int = flag(60, least=1, help="fail after this many seconds without data", metavar="S")
    json: bool = switch(help="print the result as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "partition":
            if self.to.startswith("s3://"):
                raise ValueError("--mode partition: expected --to hosts:HOSTSFILE:PATH or a folder")
            if self.to_hosts != (self.part is None):
                raise ValueError("--part K/N: required for a folder, not allowed for hosts")
            self.placement()
        if sum((self.check, self.repair, self.dry_run)) > 1:
            raise ValueError("--check, --repair, --dry-run: expected at most one of them")
        if self.to_hosts and not all(self.hosts_and_path):
            raise ValueError("--to: expected hosts:HOSTSFILE:PATH")
        if self.to_hosts and "$" in self.hosts_and_path[1]:
            raise ValueError(
                "--to: the path on the hosts contains $, but no shell expands variables there. "
                "Write the path itself, or ~ for the home folder"
            )

    @property
    def prove(self) -> bool:
        """Whether to read all files of the replica, even those that were verified before."""
        return self.check or self.repair

    def placement(self) -> Placement:
        """Returns the part of the dataset for the target folder."""
        if self.part is None:
            return WHOLE
        node, _, nodes = self.part.partition("/")
        try:
            return Placement(int(node), int(nodes), self.copies)
        except ValueError as error:
            raise ValueError(f"--part {self.part}, --copies {self.copies}: {error}") from None

    def placements(self, addresses: Sequence[str]) -> dict[str, Placement]:
        """Returns the part of the dataset for each host, by address."""
        if self.mode == "full":
            return dict.fromkeys(addresses, WHOLE)
        count = len(addresses)
        try:
            return {host: Placement(k, count, self.copies) for k, host in enumerate(addresses)}
        except ValueError as error:
            raise UsageError(f"--copies {self.copies} on {count} hosts: {error}") from None

    @property
    def to_hosts(self) -> bool:
        """Whether the target has the form hosts:HOSTSFILE:PATH."""
        return self.to.startswith(HOSTS)

    @property
    def hosts_and_path(self) -> tuple[str, str]:
        """HOSTSFILE and PATH of the target hosts:HOSTSFILE:PATH."""
        hosts_file, _, path = self.to.removeprefix(HOSTS).partition(":")
        return hosts_file, path
