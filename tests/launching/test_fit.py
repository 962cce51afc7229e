"""What a host tells of itself is checked before anything of it is used."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from imagenet_prep.core import imports, strict_json
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.hosts.commands import Ending, Host
from imagenet_prep.launching import host, host_checks
from imagenet_prep.launching.rank_command import RankCommand

NODE = Host("node1", 1)


def answered(text: str) -> host.Answer | str:
    return host_checks.answer_of(NODE, Ending(0, "", text), sys.executable)


def test_what_a_host_tells_of_itself_is_taken() -> None:
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
def test_an_answer_of_another_form_is_said(key: str, value: Any) -> None:
    said = answered(json.dumps({**vars(host.probe(None)), key: value}))

    assert isinstance(said, str)
    assert "this version of imagenet-prep is not installed there" in said


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (["No route to host", "Connection refused"], IncompleteError),
        (["No route to host", "Permission denied (publickey)."], ImagenetPrepError),
    ],
)
def test_hosts_that_may_come_back_are_worth_another_run(
    monkeypatch: pytest.MonkeyPatch, said: list[str], kind: type[ImagenetPrepError]
) -> None:
    endings = [Ending(255, f"ssh: {each}") for each in said]
    monkeypatch.setattr(host_checks, "run_all", lambda *_, **__: endings)
    hosts = [Host(f"node{number}", 1) for number in range(2)]
    with pytest.raises(ImagenetPrepError, match="2 problems on 2 hosts, nothing was") as caught:
        host_checks.check(hosts, RankCommand((), None, None), timeout_s=1.0, interface=None)
    assert type(caught.value) is kind


def test_ranks_of_torchrun_and_mxnets_scheduler_meet_at_two_ports() -> None:
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
    assert "install the same version" in problem


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "1", "[" * 100_000, "1" * 5_000, "NaN"])
def test_what_is_no_answer_is_said(text: str) -> None:
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
        ({"localhost": 8, "node1": 0}, "node1: no GPU, but localhost has 8. Check `nvidia-smi`"),
        ({"localhost": 0, "node1": 2}, "localhost: no GPU, but node1 has 2."),
        ({"localhost": 8, "node1": 1}, "node1: 1 GPU for 2 ranks: write slots=1"),
    ],
)
def test_a_host_with_fewer_gpus_than_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: dict[str, int], expected: str
) -> None:
    with pytest.raises(ImagenetPrepError) as caught:
        checked(monkeypatch, {"localhost": 2, "node1": 2}, gpus)

    assert expected in str(caught.value)
    assert str(caught.value).startswith("1 problem on 2 hosts, nothing was started")


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        ({"localhost": 2, "node1": 4}, "4 GPUs"),
        ({"localhost": 0, "node1": 0}, "CPUs: no GPU was found"),
    ],
)
def test_the_first_line_says_what_the_ranks_run_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpus: dict[str, int],
    devices: str,
) -> None:
    checked(monkeypatch, {"localhost": 2, "node1": 2}, gpus)

    assert capsys.readouterr().out == f"2 hosts checked, 4 ranks on {devices}\n"


def test_a_framework_that_cannot_use_the_gpus_of_its_host_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imports, "gpus", lambda: 2)
    monkeypatch.setattr(imports, "version", lambda *_: "tensorflow-cpu 2.21.0")
    (problem,) = host.probe(None, None, "tensorflow").problems
    assert problem.startswith("tensorflow-cpu 2.21.0 does not use the 2 GPUs of this host")

    monkeypatch.setattr(imports, "version", lambda *_: "tensorflow 2.21.0")
    assert host.probe(None, None, "tensorflow").problems == []
    monkeypatch.setattr(imports, "gpus", lambda: 0)
    monkeypatch.setattr(imports, "version", lambda *_: "tensorflow-cpu 2.21.0")
    assert host.probe(None, None, "tensorflow").problems == []
