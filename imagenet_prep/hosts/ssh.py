"""The command line that runs something on another host through ssh."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def ssh_argv(
    address: str,
    argv: Sequence[str],
    *,
    connect_timeout_s: int = 10,
    options: Sequence[str] = (),
) -> list[str]:
    """Returns the command line that runs `argv` on a host.

    Never asks: keys must be set up, and the host's own key be known. A host that changed its
    key is refused, where the tutorial's scripts accepted any.

    Args:
      address: of a `Host`.
      argv: reaches the other side word by word, whatever it holds.
      connect_timeout_s: seconds until a host that does not answer is given up.
      options: more of ssh_config(5), "Name=value".
    """
    return ["ssh", *ssh_options(connect_timeout_s, options), "--", address, shlex.join(argv)]


def ssh_options(connect_timeout_s: int = 10, more: Sequence[str] = ()) -> list[str]:
    """Returns the flags of every ssh of ours; arguments as for `ssh_argv`."""
    options = (
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        f"ConnectTimeout={connect_timeout_s}",
        *more,
    )
    return [part for option in options for part in ("-o", option)]
