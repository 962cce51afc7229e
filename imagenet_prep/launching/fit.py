"""Checks that hosts can train together: all are asked at once, and all problems reported."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagenet_prep.core import children, records
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset.placement import WHOLE, Placement
from imagenet_prep.hosts.hosts_file import Host, local_first
from imagenet_prep.hosts.process import Ending, command_on, run_all
from imagenet_prep.launching import host as here
from imagenet_prep.launching.host import Answer
from imagenet_prep.launching.work import Work


class Network(NamedTuple):
    """How ranks connect: this machine's address, and one network interface for each host.

    `ports` are free on the first host: for torchrun's ranks, and for MXNet's scheduler.
    """

    address: str
    interfaces: tuple[str, ...]
    address_of_first: str
    ports: tuple[int, int]


def check(
    used: Sequence[Host], work: Work, *, timeout_s: float, interface: str | None
) -> tuple[list[Host], Network]:
    """Asks all hosts at once; returns them in the order of their ranks, and their network.

    This machine has the first ranks, unless each host has its own part of the dataset. Each host
    must answer within `timeout_s`. The default of `interface` is the one that ssh connects to.
    """
    asked = (work.data_dir or "", str(work.script or ""), *work.needs)
    argv = children.python("-m", "imagenet_prep.launching.host", "probe", *asked)
    commands = [command_on(host.address, argv) for host in used]
    endings = run_all(commands, timeout_s=timeout_s)
    answers = [answer_of(*each, argv[0]) for each in zip(used, endings, strict=True)]
    ranks = sum(host.slots for host in used)
    problems: list[str] = []
    reference: tuple[Host, Answer] | None = None
    for host, answer in zip(used, answers, strict=True):
        if isinstance(answer, str):
            problems.append(f"{host.address}: {answer}")
            continue
        problems += [f"{host.address}: {each}" for each in _unfit(host, answer)]
        if reference is None:
            reference = host, answer
        else:
            problems += differences(*reference, host, answer)
    problems += _misplaced(used, answers)
    pairs = zip(used, answers, strict=True)
    known = {host: answer for host, answer in pairs if isinstance(answer, Answer)}
    is_part = any(Placement(*answer.part) != WHOLE for answer in known.values())
    ordered = list(used) if is_part else local_first(used)
    network = None
    if not problems:
        network, problems = network_of(ordered, [known[host] for host in ordered], interface)
    if network is None:
        is_lost = len(problems) == sum(ending.is_lost for ending in endings)
        raise (IncompleteError if is_lost else ImagenetPrepError)(
            f"{counted(len(problems), 'problem')} on {counted(len(used), 'host')}, nothing was "
            "started:\n  " + "\n  ".join(problems)
        )
    print(f"{counted(len(used), 'host')} fit, {counted(ranks, 'rank')}", flush=True)
    return ordered, network


def answer_of(host: Host, ending: Ending, program: str) -> Answer | str:
    """Returns the answer of `launching.host` there, or the reason for no answer."""
    if ending.code is None:
        return f"{ending.why}. Is it up, and does `ssh {host.address} true` work here?"
    if (answer := understood(ending.output.rpartition("\n")[2])) is not None:
        return answer
    if ending.is_of_ssh and not host.is_local:
        return (
            f"ssh failed: {ending.why}. `ssh {host.address} true` must work "
            "without a question: key in authorized_keys, host key in known_hosts."
        )
    return (
        f"{program} has no imagenet-prep of this version there ({ending.why}). "
        "Install it at the same path on every host."
    )


def understood(text: str) -> Answer | None:
    """Returns a host's facts from JSON, or None if this version did not write them."""
    try:
        return records.loads(Answer, text.encode())
    except ValueError:
        return None


def _unfit(host: Host, answer: Answer) -> list[str]:
    found = list(answer.problems)
    if answer.gpus and answer.gpus < host.slots:
        what = f"{counted(answer.gpus, 'GPU')} for {counted(host.slots, 'rank')}"
        found.append(f"{what}: write slots={answer.gpus}")
    return found


def network_of(
    used: Sequence[Host], answers: Sequence[Answer], interface: str | None
) -> tuple[Network | None, list[str]]:
    """Returns the network of the hosts, or the problems that prevent one."""
    ports, interfaces = answers[0].ports, here.interfaces()
    # The interface of this machine, and that of each host; None if unknown.
    own, names = interface, [interface] * len(used)
    if interface is None:
        addresses = [_remote_address(*each) for each in zip(used, answers, strict=True)]
        elsewhere = [address for address in addresses if address is not None]
        if not elsewhere:
            return Network("127.0.0.1", ("lo",) * len(used), "127.0.0.1", ports), []
        own = _having(_source(elsewhere[0]), interfaces)
        names = [
            own if address is None else _having(address, answer.interfaces)
            for address, answer in zip(addresses, answers, strict=True)
        ]
    problems, of_hosts = [], []
    for host, answer, name in zip(used, answers, names, strict=True):
        if name is not None and name in answer.interfaces:
            of_hosts.append(name)
        else:
            known = ", ".join(f"{n} {a}" for n, a in answer.interfaces.items())
            problems.append(
                f"{host.address}: no network interface {name or 'at which it was reached'}; it "
                f"has {known}. Say which by --network-interface."
            )
    if own not in interfaces and not problems:
        problems.append(f"this machine has no network interface {own}: see --network-interface")
    if problems or own is None:
        return None, problems
    address = answers[0].interfaces[of_hosts[0]]
    return Network(interfaces[own], tuple(of_hosts), address, ports), []


def _remote_address(host: Host, answer: Answer) -> str | None:
    """Returns the address at which ssh reached a host, or None for this machine."""
    address = answer.reached or answer.address
    return None if host.is_local or address.startswith("127.") else address


def _having(address: str, interfaces: Mapping[str, str]) -> str | None:
    return next((name for name, each in interfaces.items() if each == address), None)


def _source(address: str) -> str:
    """Returns this machine's source address for a connection; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, 9))
            return str(asking.getsockname()[0])
        except OSError:
            return ""


def differences(one: Host, first: Answer, other: Host, second: Answer) -> list[str]:
    """Returns the differences that prevent two hosts from training together."""
    found = [
        f"{other.address}: {package} {second.versions.get(package, 'none')}, "
        f"{one.address} has {version}: install the same"
        for package, version in first.versions.items()
        if second.versions.get(package) != version
    ]
    if first.dataset and second.dataset and first.dataset != second.dataset:
        found.append(
            f"{other.address}: manifest {second.dataset[:16]}, {one.address} has "
            f"{first.dataset[:16]}: these are different data sets. "
            "Copy the set again from one host to the other."
        )
    if first.script and second.script and first.script != second.script:
        found.append(
            f"{other.address}: its script differs from that of {one.address}: copy it, and what it "
            "imports, to all hosts"
        )
    return found


def _misplaced(used: Sequence[Host], answers: Sequence[Answer | str]) -> list[str]:
    """Returns problems with the parts of a partitioned dataset: each host must read its own."""
    found = []
    parts = [Placement(*a.part) for a in answers if not isinstance(a, str) and a.dataset]
    if len(parts) < len(used) or all(part == WHOLE for part in parts):
        return []
    for number, (host, part) in enumerate(zip(used, parts, strict=True)):
        expected = Placement(number, len(used), min(parts[0].copies, len(used)))
        if part != expected:
            found.append(
                f"{host.address}: holds {part}, expected {expected}: train on the hosts that "
                "replicate was given, in their order, or replicate to these"
            )
    if len({host.slots for host in used}) > 1:
        found.append("the set is partitioned: give all hosts equally many ranks")
    return found
