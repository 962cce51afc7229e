"""Hosts that are folders: a replaced `ssh` runs their commands here, each in its own home."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit import command
from tests.kit.dataset import contents

# The effects of ssh on a command, without the network: arguments, exit codes, streams, messages.
_SSH = """\
#!/bin/bash
while [ "$1" != -- ]; do shift; done
address=$2 command=$3
cd "${FAKE_HOSTS:?}" || exit 255
if [ -e "$address.down" ]; then
  cat "$address.down" >&2
  exit 255
fi
export HOME=$FAKE_HOSTS/$address
if [ -e "$HOME/instead" ]; then . "$HOME/instead"; fi
exec bash -c "$command"
"""


NO_ROUTE = "ssh: connect to host {}: No route to host\n"
TARGET = "~/set"


@dataclass
class Hosts:
    """Hosts as folders.

    Attributes:
      root: a folder per host, by address.
      file: the hosts file.
      addresses: of the hosts file, in its order.
    """

    root: Path
    file: Path
    addresses: list[str]

    @property
    def to(self) -> str:
        return f"hosts:{self.file}:{TARGET}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "FAKE_HOSTS": str(self.root),
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
        }

    def replica(self, address: str) -> Path:
        """Returns a host's folder of the dataset."""
        return self.root / address / "set"

    def only(self, *addresses: str) -> None:
        """Keeps only these hosts in the hosts file, because each costs two processes per run."""
        self.addresses = list(addresses)
        self.file.write_text("".join(f"{address} slots=8\n" for address in addresses))

    def have(self, dataset: Path) -> None:
        """Gives every host the complete dataset, like an earlier run."""
        for address in self.addresses:
            shutil.copytree(dataset, self.replica(address), ignore=shutil.ignore_patterns(".work"))

    def down(self, address: str, complaint: str = NO_ROUTE) -> None:
        """Makes a host unreachable, and kills its processes."""
        (self.root / f"{address}.down").write_text(complaint.format(address))
        self.kill(address)

    def instead(self, address: str, script: str) -> None:
        """Makes a host's shell run this first; `$command` is the original command."""
        (self.root / address / "instead").write_text(script)

    def up(self, address: str) -> None:
        (self.root / f"{address}.down").unlink()

    def kill(self, address: str) -> int:
        """Kills every process of a host; returns their number."""
        killed = 0
        home = f"HOME={self.root / address}".encode()
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and home in (process / "environ").read_bytes().split(
                    b"\0"
                ):
                    os.kill(int(process.name), signal.SIGKILL)
                    killed += 1
        return killed

    def run(self, dataset: Path | str, *flags: str | Path, **how: Any) -> command.Finished:
        """Replicates to all hosts, to the end."""
        return command.run(
            "replicate", dataset, "--to", self.to, *flags, env=self.environment, **how
        )

    def started(
        self, dataset: Path, *flags: str
    ) -> contextlib.AbstractContextManager[command.Running]:
        """Starts a replication to all hosts."""
        return command.started("replicate", dataset, "--to", self.to, *flags, env=self.environment)

    def assert_whole(self, dataset: Path, *but: str) -> None:
        """Asserts that every host except `but` has the dataset, byte for byte."""
        reference = contents(dataset)
        for address in set(self.addresses) - set(but):
            assert contents(self.replica(address)) == reference, address


def make_hosts(folder: Path) -> Hosts:
    """Makes four hosts and their hosts file in a folder."""
    root = folder / "hosts"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "ssh").write_text(_SSH)
    (root / "bin" / "ssh").chmod(0o755)
    addresses = ["10.0.0.1", "10.0.0.2", "node-3", "ubuntu@node-4"]
    for address in addresses:
        (root / address).mkdir()
    made = Hosts(root, folder / "hosts.txt", addresses)
    made.only(*addresses)
    return made
