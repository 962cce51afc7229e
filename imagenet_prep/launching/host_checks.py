"""Checks that hosts can train together; asks all of them in parallel and reports all problems."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagenet_prep.core import children, strict_json
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.hosts.commands import Ending, Host, command_on, local_first, run_all
from imagenet_prep.launching import host as here
from imagenet_prep.launching.host import Answer
from imagenet_prep.launching.rank_command import RankCommand


class RankNetwork(NamedTuple):
    """How ranks connect: this machine's address, and one network interface for each host.

    `ports` are two free ports on the first host: one for torch.distributed, one for MXNet.
    """

    address: str
    interfaces: tuple[str, ...]
    address_of_first: str
    ports: tuple[int, int]


def check(
    used: Sequence[Host], work: RankCommand, *, timeout_s: float, interface: str | None
) -> tuple[list[Host], RankNetwork]:
    """Checks all hosts in parallel; returns them in the order of their ranks, and the network.

    This machine gets the first ranks, unless each host has a different part of the dataset. If
    `interface` is None, each host uses the network interface that ssh connects to.
    """
    asked = (work.data_dir or "", str(work.script or ""), *work.needs)
    argv = children.python("-m", "imagenet_prep.launching.host", "probe", *asked)
    commands = [command_on(host.address, argv) for host in used]
    endings = run_all(commands, timeout_s=timeout_s)
    pairs = zip(used, endings, strict=True)
    answers = [answer_of(host, ending, argv[0]) for host, ending in pairs]
    problems: list[str] = []
    unreachable: list[str] = []  # those of the problems that a new attempt may solve
    reference: tuple[Host, Answer] | None = None
    for host, answer, ending in zip(used, answers, endings, strict=True):
        if isinstance(answer, str):
            problems.append(f"{host.address}: {answer}")
            if ending.is_lost:
                unreachable.append(problems[-1])
            continue
        problems += [f"{host.address}: {problem}" for problem in answer.problems]
        if reference is None:
            reference = host, answer
        else:
            problems += differences(*reference, host, answer)
    facts = {h: a for h, a in zip(used, answers, strict=True) if isinstance(a, Answer)}
    problems += _too_few_gpus(facts)
    problems += _misplaced(used, answers)
    network = None
    ordered = list(used)
    if not problems:
        if all(Placement(*answer.part) == WHOLE for answer in facts.values()):
            ordered = local_first(used)
        network, problems = network_of(ordered, [facts[host] for host in ordered], interface)
    if network is None:
        kind = IncompleteError if problems == unreachable else ImagenetPrepError
        raise kind(
            f"{counted(len(problems), 'problem')} on {counted(len(used), 'host')}, nothing was "
            "started:\n  " + "\n  ".join(problems)
        )
    ranks = sum(host.slots for host in used)
    devices = "CPUs: no GPU was found"
    if any(answer.gpus for answer in facts.values()):
        devices = counted(ranks, "GPU")
    print(
        f"{counted(len(used), 'host')} checked, {counted(ranks, 'rank')} on {devices}", flush=True
    )
    return ordered, network


def answer_of(host: Host, ending: Ending, program: str) -> Answer | str:
    """Returns the answer in a host's output, or the reason why it contains no answer."""
    if ending.code is None:
        return f"{ending.why}. Check that this host is up and `ssh {host.address} true` works here."
    answer = understood(ending.output.rpartition("\n")[2])
    if answer is not None:
        return answer
    if ending.is_of_ssh and not host.is_local:
        return (
            f"ssh failed: {ending.why}. `ssh {host.address} true` must work without a prompt: "
            "put your key into its authorized_keys. If its host key is unknown, run "
            "`imagenet-prep run-on-hosts HOSTS --show-keys`."
        )
    return (
        f"this version of imagenet-prep is not installed there for {program} ({ending.why}). "
        "Install it at the same path on every host."
    )


def understood(text: str) -> Answer | None:
    """Returns a host's facts from JSON, or None if they are from a different version."""
    try:
        return strict_json.parse_record(Answer, text.encode())
    except ValueError:
        return None


def network_of(
    used: Sequence[Host], answers: Sequence[Answer], interface: str | None
) -> tuple[RankNetwork | None, list[str]]:
    """Returns the network of the hosts, or the problems that prevent one."""
    ports = answers[0].ports
    interfaces = here.interfaces()
    # The network interfaces of this machine and of each host; None if unknown.
    own = interface
    names = [interface] * len(used)
    if interface is None:
        pairs = zip(used, answers, strict=True)
        addresses = [_remote_address(host, answer) for host, answer in pairs]
        elsewhere = [address for address in addresses if address is not None]
        if not elsewhere:
            # All ranks are on this machine.
            return RankNetwork("127.0.0.1", ("lo",) * len(used), "127.0.0.1", ports), []
        own = _having(_source(elsewhere[0]), interfaces)
        names = [
            own if address is None else _having(address, answer.interfaces)
            for address, answer in zip(addresses, answers, strict=True)
        ]
    problems = []
    found = []
    for host, answer, name in zip(used, answers, names, strict=True):
        if name is not None and name in answer.interfaces:
            found.append(name)
        else:
            own_names = ", ".join(f"{n} {a}" for n, a in answer.interfaces.items())
            problems.append(
                f"{host.address}: no network interface {name or 'with the address that ssh uses'}; "
                f"it has {own_names}. Choose one with --network-interface."
            )
    if own not in interfaces and not problems:
        problems.append(f"this machine has no network interface {own}: see --network-interface")
    if problems or own is None:
        return None, problems
    address = answers[0].interfaces[found[0]]
    return RankNetwork(interfaces[own], tuple(found), address, ports), []


def _remote_address(host: Host, answer: Answer) -> str | None:
    """Returns the address at which ssh reached a host, or None for this machine."""
    address = answer.reached or answer.address
    return None if host.is_local or address.startswith("127.") else address


def _having(address: str, interfaces: Mapping[str, str]) -> str | None:
    return next((name for name, own in interfaces.items() if own == address), None)


def _source(address: str) -> str:
    """Returns the local address for connections to `address`, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, 9))
            return str(asking.getsockname()[0])
        except OSError:
            return ""


def differences(host_1: Host, first: Answer, host_2: Host, second: Answer) -> list[str]:
    """Returns the differences that prevent two hosts from training together."""
    problems = [
        f"{package} {second.versions.get(package, 'none')}, {host_1.address} has {version}: "
        "install the same version"
        for package, version in first.versions.items()
        if second.versions.get(package) != version
    ]
    if first.dataset and second.dataset and first.dataset != second.dataset:
        problems.append(
            f"manifest {second.dataset[:16]}, {host_1.address} has {first.dataset[:16]}: these are "
            "different datasets. Copy the dataset again from one host to the other."
        )
    if first.script and second.script and first.script != second.script:
        problems.append(
            f"its script differs from the one on {host_1.address}: copy the script and the "
            "modules that it imports to all hosts"
        )
    return [f"{host_2.address}: {problem}" for problem in problems]


def _too_few_gpus(facts: Mapping[Host, Answer]) -> list[str]:
    """Returns problems with hosts that have fewer GPUs than ranks, if any host has a GPU."""
    best = max(facts, key=lambda host: facts[host].gpus, default=None)
    if best is None or not facts[best].gpus:
        return []
    problems = []
    for host, answer in facts.items():
        if answer.gpus >= host.slots:
            continue
        if answer.gpus:
            gpus = counted(answer.gpus, "GPU")
            ranks = counted(host.slots, "rank")
            problems.append(f"{host.address}: {gpus} for {ranks}: write slots={answer.gpus}")
        else:
            problems.append(
                f"{host.address}: no GPU, but {best.address} has {facts[best].gpus}. Check "
                "`nvidia-smi` there, or remove this host. To train on the CPUs of all hosts, set "
                "CUDA_VISIBLE_DEVICES='' on each host."
            )
    return problems


def _misplaced(used: Sequence[Host], answers: Sequence[Answer | str]) -> list[str]:
    """Returns problems with a partitioned dataset; host number N must have part number N."""
    problems = []
    parts = [Placement(*a.part) for a in answers if not isinstance(a, str) and a.dataset]
    if len(parts) < len(used) or all(part == WHOLE for part in parts):
        return []
    for number, (host, part) in enumerate(zip(used, parts, strict=True)):
        expected = Placement(number, len(used), min(parts[0].copies, len(used)))
        if part != expected:
            problems.append(
                f"{host.address}: has {part}, expected {expected}. Train on the hosts of the last "
                "`replicate`, in the same order, or replicate to these hosts."
            )
    if len({host.slots for host in used}) > 1:
        problems.append("the dataset is partitioned: give all hosts the same number of ranks")
    return problems
