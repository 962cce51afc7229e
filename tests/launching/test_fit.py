"""What a host tells of itself is checked before anything of it is used."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from imagenet_prep.core import records
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.hosts.hosts_file import Host
from imagenet_prep.hosts.process import Ending
from imagenet_prep.launching import fit, host
from imagenet_prep.launching.work import Work

NODE = Host("node1", 1)


def answered(text: str) -> host.Answer | str:
    return fit.answer_of(NODE, Ending(0, "", text), sys.executable)


def test_what_a_host_tells_of_itself_is_taken() -> None:
    told = json.dumps(vars(host.probe(None)))

    assert answered(f"Welcome to node1\n{told}") == records.loads(host.Answer, told.encode())


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
    monkeypatch.setattr(fit, "run_all", lambda *_, **__: endings)
    hosts = [Host(f"node{number}", 1) for number in range(2)]
    with pytest.raises(ImagenetPrepError, match="2 problems on 2 hosts, nothing was") as caught:
        fit.check(hosts, Work((), None, None), timeout_s=1.0, interface=None)
    assert type(caught.value) is kind


def test_ranks_of_torchrun_and_mxnets_scheduler_meet_at_two_ports() -> None:
    answer = host.probe(None)
    first, second = answer.ports

    network, problems = fit.network_of([Host("localhost", 1)], [answer], None)

    assert first != second
    assert problems == []
    assert network == fit.Network("127.0.0.1", ("lo",), "127.0.0.1", (first, second))


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "1", "[" * 100_000, "1" * 5_000, "NaN"])
def test_what_is_no_answer_is_said(text: str) -> None:
    assert isinstance(answered(text), str)
