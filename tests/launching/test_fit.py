"""The answer of a host about itself is checked before it is used."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import imports, strict_json
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.dataset import schema
from imagenet_prep.hosts.commands import Ending, Host
from imagenet_prep.launching import host, host_checks
from imagenet_prep.launching.rank_command import RankCommand
from tests.kit.messages import says, wording
from tests.kit.replicas import make_dataset

NODE = Host("node1", 1)


def answered(text: str) -> host.Answer | str:
    return host_checks.answer_of(NODE, Ending(0, "", text), sys.executable)


def test_answers_of_hosts_are_parsed() -> None:
    told = json.dumps(vars(host.probe(None)))

    assert answered(f"Welcome to node1\n{told}") == strict_json.parse_record(
        host.Answer, told.encode()
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("versions", {"python": "3.11.7"}),
        ("versions", [1]),
        ("gpus", "8"),
        ("interfaces", {"eth0": None}),
        ("part", [0, 1]),
        ("part", "012"),
        ("ports", [1]),
        ("problems", None),
        ("problems", "text"),
        ("dataset", None),
        ("reached", 1),
    ],
)
def test_answers_with_wrong_types_are_reported(key: str, value: Any) -> None:
    said = answered(json.dumps({**vars(host.probe(None)), key: value}))

    assert isinstance(said, str)
    assert says("version-imagenet-prep-not-installed-install").search(said)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (["No route to host", "Connection refused"], IncompleteError),
        (["No route to host", "Permission denied (publickey)."], ImagenetPrepError),
    ],
)
def test_only_temporary_ssh_errors_suggest_a_rerun(
    monkeypatch: pytest.MonkeyPatch, said: list[str], kind: type[ImagenetPrepError]
) -> None:
    endings = [Ending(255, f"ssh: {each}") for each in said]
    monkeypatch.setattr(host_checks, "run_all", lambda *_, **__: endings)
    hosts = [Host(f"node{number}", 1) for number in range(2)]
    with pytest.raises(
        ImagenetPrepError, match=says("nothing-started", "2 problems", "2 hosts")
    ) as caught:
        host_checks.check(hosts, RankCommand((), None, None), timeout_s=1.0, interface=None)
    assert type(caught.value) is kind


def test_torchruns_ranks_and_mxnets_scheduler_get_separate_ports() -> None:
    answer = host.probe(None)
    first, second = answer.ports

    network, problems = host_checks.network_of([Host("localhost", 1)], [answer], None)

    assert first != second
    assert problems == []
    assert network == host_checks.RankNetwork("127.0.0.1", ("lo",), "127.0.0.1", (first, second))


def test_hosts_with_different_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first = host.probe(None)
    monkeypatch.setattr(host, "program_digest", lambda: "0" * 64)
    second = host.probe(None)

    (problem,) = host_checks.differences(Host("node1", 1), first, Host("node2", 1), second)

    assert "(program 000000000000)" in problem
    assert says("install-same-version").search(problem)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "1", "[" * 100_000, "1" * 5_000, "NaN"])
def test_malformed_answers_are_reported(text: str) -> None:
    assert isinstance(answered(text), str)


def checked(
    monkeypatch: pytest.MonkeyPatch, slots: dict[str, int], gpus: dict[str, int]
) -> list[Host]:
    """Checks hosts that answer with these numbers of GPUs; returns them in the order of ranks."""
    answers = {address: vars(host.probe(None)) | {"gpus": gpus[address]} for address in slots}
    endings = [Ending(0, "", json.dumps(answers[address])) for address in slots]
    monkeypatch.setattr(host_checks, "run_all", lambda *_, **__: endings)
    hosts = [Host(*pair) for pair in slots.items()]
    return host_checks.check(hosts, RankCommand((), None, None), timeout_s=1.0, interface="lo")[0]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (
            {"localhost": 8, "node1": 0},
            says("no-gpu-check-nvidia-smi-remove", "node1", "localhost", 8),
        ),
        (
            {"localhost": 0, "node1": 2},
            says("no-gpu-check-nvidia-smi-remove", "localhost", "node1", 2),
        ),
        ({"localhost": 8, "node1": 1}, says("write-slots", "node1", "1 GPU", "2 ranks", 1)),
    ],
)
def test_hosts_with_too_few_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: dict[str, int], expected: re.Pattern[str]
) -> None:
    with pytest.raises(ImagenetPrepError) as caught:
        checked(monkeypatch, {"localhost": 2, "node1": 2}, gpus)

    assert expected.search(str(caught.value))
    assert says("nothing-started", "1 problem", "2 hosts").match(str(caught.value))


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        ({"localhost": 2, "node1": 4}, "4 GPUs"),
        ({"localhost": 0, "node1": 0}, wording("cpus-no-gpu-found")),
    ],
)
def test_the_first_line_names_the_devices_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpus: dict[str, int],
    devices: str,
) -> None:
    checked(monkeypatch, {"localhost": 2, "node1": 2}, gpus)

    assert capsys.readouterr().out == f"2 hosts checked, 4 ranks on {devices}\n"


def test_frameworks_that_ignore_the_hosts_gpus_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imports, "gpus", lambda: 2)
    monkeypatch.setattr(imports, "version", lambda *_: "tensorflow-cpu 2.21.0")
    (problem,) = host.probe(None, None, "tensorflow").problems
    assert says("not-use-host-see-imagenet-prep", "tensorflow-cpu 2.21.0", "2 GPUs").match(problem)

    monkeypatch.setattr(imports, "version", lambda *_: "tensorflow 2.21.0")
    assert host.probe(None, None, "tensorflow").problems == []
    monkeypatch.setattr(imports, "gpus", lambda: 0)
    monkeypatch.setattr(imports, "version", lambda *_: "tensorflow-cpu 2.21.0")
    assert host.probe(None, None, "tensorflow").problems == []


# Each host has a network interface of its own name, at which ssh reaches it.
HERE = Host("localhost", 2)
NODE1 = Host("node1", 2)
NODE2 = Host("node2", 2)
PORTS = {HERE: (1009, 1010), NODE1: (1001, 1002), NODE2: (1003, 1004)}
INTERFACES = {
    HERE: {"lo": "127.0.0.1", "eth0": "10.0.0.9"},
    NODE1: {"lo": "127.0.0.1", "eth0": "192.168.0.1", "ib0": "10.0.0.1"},
    NODE2: {"lo": "127.0.0.1", "eno1": "10.0.0.2", "eth0": "192.168.0.2"},
}
REACHED = {HERE: "", NODE1: "10.0.0.1", NODE2: "10.0.0.2"}
OF_HOST = {HERE: "eth0", NODE1: "ib0", NODE2: "eno1"}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this machine the interfaces of HERE; it uses eth0 for all other hosts."""
    monkeypatch.setattr(host, "interfaces", lambda: INTERFACES[HERE])
    monkeypatch.setattr(host_checks, "_source", lambda _address: "10.0.0.9")


def answer(of: Host, **more: Any) -> host.Answer:
    of = of._replace(slots=2)
    facts: dict[str, Any] = {
        "interfaces": INTERFACES[of],
        "reached": REACHED[of],
        "address": "",
        "ports": PORTS[of],
    }
    return dataclasses.replace(host.probe(None), **facts | more)


@pytest.mark.parametrize("hosts", [(HERE, NODE1, NODE2), (NODE1, NODE2, HERE), (NODE2, NODE1)])
def test_each_host_uses_the_interface_that_ssh_reached(
    network: None, hosts: tuple[Host, ...]
) -> None:
    first = hosts[0]
    found = host_checks.network_of(hosts, [answer(each) for each in hosts], None)

    interfaces = tuple(OF_HOST[each] for each in hosts)
    address = INTERFACES[first][OF_HOST[first]]
    assert found == (host_checks.RankNetwork("10.0.0.9", interfaces, address, PORTS[first]), [])


def test_a_given_interface_is_used_on_every_host(network: None) -> None:
    hosts = (NODE1, NODE2)
    found = host_checks.network_of(hosts, [answer(each) for each in hosts], "eth0")

    expected = host_checks.RankNetwork("10.0.0.9", ("eth0", "eth0"), "192.168.0.1", PORTS[NODE1])
    assert found == (expected, [])


@pytest.mark.parametrize(
    ("hosts", "interface", "lacking"),
    [
        ((HERE, NODE1), "ib0", ["localhost"]),
        ((NODE1, NODE2), "eno1", ["node1"]),
        ((HERE, NODE1, NODE2), "wlan0", ["localhost", "node1", "node2"]),
        ((NODE1,), "ib0", ["this machine"]),  # which has no rank, but starts them
    ],
)
def test_missing_interface_is_a_problem_of_its_hosts(
    network: None, hosts: tuple[Host, ...], interface: str, lacking: list[str]
) -> None:
    found, problems = host_checks.network_of(hosts, [answer(each) for each in hosts], interface)

    assert found is None
    assert [problem.startswith(name) for problem, name in zip(problems, lacking, strict=True)] == [
        True
    ] * len(lacking)
    assert all(interface in problem for problem in problems)


def test_address_that_no_interface_has_is_a_problem(network: None) -> None:
    found, problems = host_checks.network_of([NODE1], [answer(NODE1, reached="10.9.9.9")], None)

    assert found is None
    assert [problem.partition(":")[0] for problem in problems] == ["node1"]


@pytest.mark.parametrize(("reached", "address"), [("", "127.0.1.1"), ("127.0.0.1", "10.0.0.1")])
def test_host_with_a_loopback_address_is_this_machine(
    network: None, reached: str, address: str
) -> None:
    found, problems = host_checks.network_of(
        [NODE1], [answer(NODE1, reached=reached, address=address)], None
    )

    assert found == host_checks.RankNetwork("127.0.0.1", ("lo",), "127.0.0.1", PORTS[NODE1])
    assert problems == []


WHOLE = (0, 1, 1)


def orders(
    monkeypatch: pytest.MonkeyPatch, hosts: Sequence[Host], **facts: Sequence[Any]
) -> tuple[list[Host], host_checks.RankNetwork]:
    """Checks hosts whose answers have these facts, one for each host."""
    endings = []
    for number, each in enumerate(hosts):
        own = {name: values[number] for name, values in facts.items()}
        endings.append(Ending(0, "", json.dumps(vars(answer(each, **own)))))
    monkeypatch.setattr(host_checks, "run_all", lambda *_, **__: endings)
    return host_checks.check(hosts, RankCommand((), None, None), timeout_s=1.0, interface=None)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((WHOLE, WHOLE, WHOLE), [HERE, NODE1, NODE2]),
        (((0, 3, 2), (1, 3, 2), (2, 3, 2)), [NODE1, NODE2, HERE]),
    ],
)
def test_this_machine_has_first_ranks_unless_partitioned(
    network: None,
    monkeypatch: pytest.MonkeyPatch,
    parts: Sequence[tuple[int, int, int]],
    expected: list[Host],
) -> None:
    hosts = [NODE1, NODE2, HERE]
    found, made = orders(monkeypatch, hosts, part=parts, dataset=["0" * 64] * 3)

    first = expected[0]
    assert found == expected
    assert made.interfaces == tuple(OF_HOST[each] for each in expected)
    assert made.ports == PORTS[first]
    assert made.address_of_first == INTERFACES[first][OF_HOST[first]]


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        (((1, 3, 1), (0, 3, 1), (2, 3, 1)), ["node1", "node2"]),
        (((0, 3, 2), (1, 3, 2), (2, 3, 1)), ["localhost"]),
        (((0, 3, 1), WHOLE, (2, 3, 1)), ["node2"]),
        (((0, 4, 1), (1, 4, 1), (2, 4, 1)), ["node1", "node2", "localhost"]),
    ],
)
def test_host_with_a_different_part_is_a_problem(
    network: None,
    monkeypatch: pytest.MonkeyPatch,
    parts: Sequence[tuple[int, int, int]],
    wrong: list[str],
) -> None:
    with pytest.raises(ImagenetPrepError) as caught:
        orders(monkeypatch, [NODE1, NODE2, HERE], part=parts, dataset=["0" * 64] * 3)

    _, *problems = str(caught.value).splitlines()
    assert [problem.strip().partition(":")[0] for problem in problems] == wrong


def test_partitioned_dataset_needs_equal_ranks_per_host(
    network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ((0, 2, 1), (1, 2, 1))
    with pytest.raises(ImagenetPrepError):
        orders(monkeypatch, [NODE1, HERE._replace(slots=1)], part=parts, dataset=["0" * 64] * 2)


@pytest.mark.parametrize("field", ["dataset", "script"])
@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [("a" * 64, "a" * 64, 0), ("a" * 64, "b" * 64, 1), ("", "b" * 64, 0), ("a" * 64, "", 0)],
)
def test_hosts_that_have_a_file_must_agree(
    field: str, first: str, second: str, differ: int
) -> None:
    one = answer(NODE1, **{field: first})
    other = answer(NODE2, **{field: second})

    problems = host_checks.differences(NODE1, one, NODE2, other)
    assert [problem.partition(":")[0] for problem in problems] == ["node2"] * differ


@pytest.mark.parametrize("version", ["2.0", "none"])
def test_every_package_must_have_the_same_version(version: str) -> None:
    for package in (*host.PACKAGES, "python"):
        one = answer(NODE1)
        other = answer(NODE2, versions=one.versions | {package: version})
        expected = int(one.versions[package] != version)
        assert len(host_checks.differences(NODE1, one, NODE2, other)) == expected


@pytest.mark.parametrize(
    ("of", "code", "has_program"), [(NODE1, 255, False), (HERE, 255, True), (NODE1, 1, True)]
)
def test_only_failed_ssh_is_a_failure_of_ssh(of: Host, code: int, has_program: bool) -> None:
    said = host_checks.answer_of(of, Ending(code, "it failed"), "/opt/the-python")

    assert isinstance(said, str)
    assert ("/opt/the-python" in said) == has_program
    assert "it failed" in said


def test_host_without_an_answer_in_time_is_named() -> None:
    said = host_checks.answer_of(NODE1, Ending(None, "no answer", seconds=1.0), "python")

    assert isinstance(said, str)
    assert says("check-host-up-ssh-true", ..., NODE1.address).search(said)


@pytest.mark.parametrize("name", [schema.shard_name("train", number, 3) for number in range(3)])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sizes_of_shards_are_compared(tmp_path: Path, name: str, more: int) -> None:
    """Neither a shard that was cut nor one that is too long is accepted."""
    made = make_dataset(tmp_path / "set", shards=3, shard_bytes=1000)
    path = tmp_path / "set" / name
    size = path.stat().st_size
    with open(path, "r+b") as shard:
        shard.truncate(size + more)
    told = host.probe(str(tmp_path / "set"))

    wrong = wording("bytes-expected-2", path, f"{size + more:,}", f"{size:,}")
    assert (told.dataset, told.problems) == (made.digest, [wrong] if more else [])


def test_missing_shards_are_named(tmp_path: Path) -> None:
    make_dataset(tmp_path / "set", shards=2)
    path = tmp_path / "set" / schema.shard_name("train", 1, 2)
    path.unlink()
    told = host.probe(str(tmp_path / "set"))

    assert (told.dataset, told.problems) == ("", [f"{path}: No such file or directory"])


@pytest.mark.parametrize(
    ("connection", "reached"),
    [(None, ""), ("10.0.0.1 50000 10.0.0.7 22", "10.0.0.7"), ("10.0.0.1 50000", "")],
)
def test_the_address_of_ssh_is_the_own(
    monkeypatch: pytest.MonkeyPatch, connection: str | None, reached: str
) -> None:
    """SSH_CONNECTION begins with the address of the other machine."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    if connection is not None:
        monkeypatch.setenv("SSH_CONNECTION", connection)

    assert host.probe(None).reached == reached
