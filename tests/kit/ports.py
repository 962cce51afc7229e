"""Ports of loopback that no process uses."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

_LOWEST = 10_000
# The kernel gives higher ports to outgoing connections, of which tests make thousands: one of them
# could take a port before its server has started.
_USUAL_END = 32_768
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, *, offset: int = 0) -> list[int]:
    """Returns free ports; the ports that are `offset` above them are free too."""
    end = max(_USUAL_END, int(_OUTGOING.read_text().split()[0]))
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            # The kernel draws a different number in each process.
            port = _LOWEST + probe.getsockname()[1] % (end - offset - _LOWEST)
            with contextlib.suppress(OSError):
                for each in {port, port + offset}:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", each))
                found.append(port)
    return found
