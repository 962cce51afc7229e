"""The hosts file of a training cluster, in the format of AWS's tutorial."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import UsageError

LOCAL = ("localhost", "127.0.0.1", "::1")

# A host name, an address or user@host. Other characters are refused, since ssh gets the text.
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*")
_SLOTS = re.compile(r"slots=([0-9]{1,6})")
# Largest size of a hosts file: enough for ten thousand hosts.
_MOST_BYTES = 1 << 20


class Host(NamedTuple):
    """One line of a hosts file: [USER@]ADDRESS, and the number of ranks, one for each GPU."""

    address: str
    slots: int

    @property
    def is_local(self) -> bool:
        """Whether the address is a name of the local machine."""
        return self.address in LOCAL


def local_first(hosts: Sequence[Host]) -> list[Host]:
    """Returns the hosts in the order of their ranks, this machine first."""
    return sorted(hosts, key=lambda host: not host.is_local)


def where_ranks_run(hosts_file: str | None, ranks: int) -> list[Host]:
    """Returns the hosts in `hosts_file`; if that is None, this machine with slots for all ranks."""
    return [Host("localhost", ranks)] if hosts_file is None else read_hosts(Path(hosts_file))


def read_hosts(path: Path) -> list[Host]:
    """Returns the hosts of a file with lines `ADDRESS [slots=N]`; # starts a comment."""
    try:
        text = regular_file.read(path, _MOST_BYTES).decode()
    except OSError as error:
        raise UsageError(f"{path}: the hosts file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the hosts file is not UTF-8: byte {error.start:,}") from None
    hosts: dict[str, tuple[int, Host]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = _SLOTS.fullmatch(words[1]) if len(words) == 2 else None
        if not _ADDRESS.fullmatch(words[0]):
            raise UsageError(f"{path}: line {number}: the first word is not the address of a host")
        if len(words) > 1 and slots is None:
            raise UsageError(f"{path}: line {number}: expected slots=N after the address")
        host = Host(words[0], int(slots[1]) if slots else 1)
        if host.slots < 1:
            raise UsageError(f"{path}: line {number}: slots=0. Remove this line")
        if (first := hosts.setdefault(host.address, (number, host))[0]) != number:
            raise UsageError(f"{path}: line {number}: the same host as in line {first}")
    if not hosts:
        raise UsageError(f"{path}: no hosts. Write one per line: ADDRESS slots=N")
    return [host for _, host in hosts.values()]
