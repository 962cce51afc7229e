"""Ports of loopback that no process uses."""

from __future__ import annotations

import contextlib
import socket

_LOWEST = 20_000


def free_ports(count: int, *, offset: int = 0) -> list[int]:
    """Returns free ports; the ports that are `offset` above them are free too."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if offset:
                # The kernel's ports are too high for an offset.
                port = port % _LOWEST + _LOWEST
            with contextlib.suppress(OSError):
                for each in {port, port + offset} - {probe.getsockname()[1]}:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", each))
                found.append(port)
    return found
