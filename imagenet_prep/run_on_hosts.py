"""Run a command on all hosts at once; write it after --, or as one quoted line for the shell.

Examples:
  imagenet-prep run-on-hosts hosts --show-keys      # on first contact
  imagenet-prep run-on-hosts hosts -- df -h /data
  imagenet-prep run-on-hosts hosts "df -h /data | tail -n 1"
  imagenet-prep run-on-hosts hosts --timeout 600 -- imagenet-prep verify /data/imagenet-480
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.flags import AddressKind, Settings, after_dashes, flag, switch
from imagenet_prep.core.terminal import counted
from imagenet_prep.hosts import host_keys
from imagenet_prep.hosts.commands import Ending, Host, command_on, read_hosts, run_all


@dataclass(frozen=True)
class RunOnHostsConfig(Settings):
    """Settings of one run; see the help of each flag."""

    hosts: str = flag(
        place=AddressKind.FILE,
        help="hosts file, with one host per line as ADDRESS slots=N",
        positional=True,
    )
    timeout: float = flag(60.0, above=0, help="time limit for each host, in seconds", metavar="S")
    show_keys: bool = switch(
        help="show the ssh keys of the hosts, and add new keys to known_hosts if you agree"
    )
    yes: bool = switch(
        help="add the new keys of --show-keys without asking", only={"show_keys": (True,)}
    )
    command: tuple[str, ...] = after_dashes("the command goes", line=True)


def show_keys(config: RunOnHostsConfig) -> None:
    """Shows the ssh keys of the hosts, and adds new keys to known_hosts if the user agrees."""
    contacts = host_keys.look(read_hosts(Path(config.hosts)), config.timeout)
    if not contacts:
        raise UsageError(f"{config.hosts} lists only this host, which needs no ssh key")
    print(host_keys.table(contacts), flush=True)
    new = [contact for contact in contacts if contact.state == host_keys.NEW]
    if new and (config.yes or _says_yes(len(new))):
        host_keys.add(new)
        print(f"added {len(new)} to {', '.join(sorted({str(contact.file) for contact in new}))}")
        new = []
    problems = [f"{contact.address}: not added" for contact in new]
    problems += [
        f"{contact.address}: its key differs from the key in {contact.file} or the system's "
        "known_hosts, and was not added. If you know why the key changed, run ssh-keygen -R "
        f"'{contact.name}', then --show-keys again."
        for contact in contacts
        if contact.state == host_keys.CHANGED
    ]
    problems += [f"{contact.address}: {contact.reason}" for contact in contacts if not contact.key]
    if problems:
        raise ImagenetPrepError("ssh will refuse these hosts:\n  " + "\n  ".join(problems))


def _says_yes(count: int) -> bool:
    print(
        f"new keys: {count}. Compare each key with the list of your provider, or with the output "
        "of this command on the host's console:\n"
        "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
        "Type yes to add the new keys: ",
        end="",
        flush=True,
    )
    return sys.stdin.readline().strip().lower() == "yes"


def _render(outcomes: Sequence[tuple[Host, Ending]]) -> str:
    width = max(len("host"), *(len(host.address) for host, _ in outcomes))
    lines = [f"{'host':<{width}}  exit  seconds  output"]
    for host, ending in outcomes:
        code = "-" if ending.code is None else str(ending.code)
        first, *more = (ending.said or ending.output).splitlines() or [""]
        lines.append(f"{host.address:<{width}}  {code:>4}  {ending.seconds:7.1f}  {first}")
        lines += [f"{'':<{width}}                 {line}" for line in more]
    return "\n".join(lines)


@program.verb("imagenet_prep.run_on_hosts", RunOnHostsConfig, __doc__)
def run(config: RunOnHostsConfig) -> int:
    if config.show_keys:
        if config.command:
            raise UsageError("--show-keys runs no command: remove -- and the words after it")
        show_keys(config)
        return 0
    if not config.command:
        raise UsageError(
            "no command: write it after --, for example: run-on-hosts hosts -- df -h /data"
        )
    hosts = read_hosts(Path(config.hosts))
    line = len(config.command) == 1 and len(config.command[0].split()) > 1
    command = ("sh", "-c", *config.command) if line else config.command
    commands = [command_on(host.address, command) for host in hosts]
    endings = run_all(commands, timeout_s=config.timeout, together=True)
    outcomes = list(zip(hosts, endings, strict=True))
    print(_render(outcomes))
    failed = [host.address for host, ending in outcomes if ending.code != 0]
    if failed:
        message = (
            f"failed on {len(failed)} of {counted(len(outcomes), 'host')}: {', '.join(failed)}"
        )
        if any(ending.is_of_ssh for host, ending in outcomes if not host.is_local):
            message += f". If a host key is unknown, run: run-on-hosts {config.hosts} --show-keys"
        raise ImagenetPrepError(message)
    return 0
