"""The hosts of a training cluster: a file in the format of AWS's tutorial, or a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import UsageError

LOCAL = ("localhost", "127.0.0.1", "::1")

# A host name, an address or user@host. Other characters are refused, since ssh gets the text.
_ADDRESS = re.compile(r"(::)?[A-Za-z0-9_][A-Za-z0-9_.:@-]*")
_SLOTS = re.compile(r"slots=([0-9]{1,6})")
# Open MPI's limit of ranks is never reached: a host gets as many ranks as it has slots.
_MAX_SLOTS = re.compile(r"max[_-]slots=[0-9]{1,6}")
_AROUND_EQUALS = re.compile(r"\s*=\s*")
# The form of Horovod and Open MPI. An IPv6 address has more than one colon.
_WITH_SLOTS = re.compile(r"([^:]+):([0-9]{1,6})")
_LIST = re.compile(r"[^:,/]+:[0-9]{1,6}(,[^:,/]+:[0-9]{1,6})*")
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


def where_ranks_run(hosts: str | None, ranks: int) -> list[Host]:
    """Returns the hosts in the file or list `hosts`; if it is None, this machine for all ranks.

    A list has the form of `horovodrun -H`: ADDRESS:SLOTS,ADDRESS:SLOTS. A file with this name takes
    precedence.
    """
    if hosts is None:
        return [Host("localhost", ranks)]
    if _LIST.fullmatch(hosts) and not Path(hosts).exists():
        return _parse(hosts.split(","), "--hosts", "host")
    return read_hosts(Path(hosts))


def read_hosts(path: Path) -> list[Host]:
    """Returns the hosts of a file with lines `ADDRESS [slots=N]` or `ADDRESS:N`; # is a comment.

    `max_slots=N`, which Open MPI allows, is ignored.
    """
    try:
        text = regular_file.read(path, _MOST_BYTES).decode()
    except OSError as error:
        raise UsageError(f"{path}: the hosts file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the hosts file is not UTF-8: byte {error.start:,}") from None
    hosts = _parse(text.split("\n"), str(path), "line")
    if not hosts:
        raise UsageError(f"{path}: no hosts. Write one per line: ADDRESS slots=N")
    return hosts


def _parse(lines: Sequence[str], source: str, unit: str) -> list[Host]:
    """Returns the hosts; an error has the number of the line, but not its text."""
    hosts: dict[str, tuple[int, Host]] = {}
    for number, line in enumerate(lines, start=1):
        words = _AROUND_EQUALS.sub("=", line.partition("#")[0]).split()
        words = [word for word in words if not _MAX_SLOTS.fullmatch(word)]
        if not words:
            continue
        where = f"{source}: {unit} {number}"
        if not _ADDRESS.fullmatch(words[0]):
            raise UsageError(
                f"{where}: the first word is not the address of a host, without brackets and port "
                "(write a port into ~/.ssh/config)"
            )
        host = _host(words)
        if host is None:
            raise UsageError(f"{where}: expected slots=N after the address")
        if host.slots < 1:
            raise UsageError(f"{where}: the host has 0 slots. Remove this {unit}")
        first, _ = hosts.setdefault(host.address, (number, host))
        if first != number:
            raise UsageError(f"{where}: the same host as in {unit} {first}")
    return [host for _, host in hosts.values()]


def _host(words: Sequence[str]) -> Host | None:
    """Returns the host in the words of a line; None if its slots are not understood."""
    address = words[0]
    if len(words) == 1:
        with_slots = _WITH_SLOTS.fullmatch(address)
        return Host(with_slots[1], int(with_slots[2])) if with_slots else Host(address, 1)
    slots = _SLOTS.fullmatch(words[1]) if len(words) == 2 else None
    return Host(address, int(slots[1])) if slots else None
