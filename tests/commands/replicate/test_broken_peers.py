"""Hosts with invalid answers, login messages or hangs are named; the other hosts continue."""

from __future__ import annotations

from pathlib import Path

from imagenet_prep.distribute.hosts import result_of
from imagenet_prep.hosts.commands import Ending
from tests.kit.fake_hosts import Hosts
from tests.kit.hostile import peers
from tests.kit.messages import says

RECEIVER = "imagenet_prep.distribute.receive"
GIVER = "imagenet_prep.distribute.send"


def only_for(module: str, script: str) -> str:
    """Returns a script that runs and ends if the host should run the module."""
    return f'case "$command" in *{module}*)\n{script}\nexit;; esac\n'


def test_faulty_hosts_do_not_affect_the_others(hosts: Hosts, dataset: Path) -> None:
    outside = peers.line("alive") + peers.line("lacking", name="../../outside", begun=0)
    hosts.instead("10.0.0.1", peers.program(peers.GREETING, then=":"))
    hosts.instead("10.0.0.2", only_for(RECEIVER, peers.program(outside)))
    hosts.instead("node-3", only_for(GIVER, peers.program(b'["lacks",0,{}]\n')))
    result = hosts.run(dataset)

    assert result.code == 1, result
    assert "10.0.0.2:~/set: its receiver is broken: it sent " in result.out
    assert says("name-part-empty-2").search(result.out)
    assert says("cannot-send-host-another-host", "ubuntu@node-4: node-3", "it sent").search(
        result.err
    )
    assert says("first", "1 of 4 replicas failed").search(result.err)
    assert "Traceback" not in result.out + result.err
    hosts.assert_whole(dataset, "10.0.0.2")


def test_hanging_receiver_is_given_up(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.1", "10.0.0.2")
    # Once, the receiver only says that it is alive, and never reads the leader's answers.
    hangs = peers.program(peers.line("alive"), then='rm "$HOME/instead"; exec sleep 1000')
    hosts.instead("10.0.0.2", only_for(RECEIVER, hangs))
    result = hosts.run(dataset, "--timeout", "5")

    assert result.code == 0, result
    assert "10.0.0.2: connection lost (it has sent nothing for 5 s)" in result.err
    hosts.assert_whole(dataset)


def test_hanging_sender_is_skipped(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.1", "10.0.0.2")
    hangs = peers.program(peers.line("alive"), then="exec sleep 1000")
    for address in hosts.addresses:
        hosts.instead(address, only_for(GIVER, hangs))
    result = hosts.run(dataset, "--timeout", "5")

    assert result.code == 0, result
    assert says(
        "cannot-send-host-another-host", "10.0.0.2: 10.0.0.1", "it has sent nothing for 5 s"
    ).search(result.err)
    hosts.assert_whole(dataset)


def test_check_reports_each_faulty_host_separately(hosts: Hosts, dataset: Path) -> None:
    hosts.have(dataset)
    flood = peers.program(b"", then="exec yes")
    too_many = 20 * peers.line("problem", text="\x1b[31mred", is_missing=True)
    hosts.instead("10.0.0.1", peers.program(peers.GREETING, then=":"))
    hosts.instead("10.0.0.2", peers.program(b'["looked",0,{"lacking_bytes":Infinity}]\n'))
    hosts.instead("node-3", only_for(RECEIVER, flood))
    hosts.instead("ubuntu@node-4", only_for(RECEIVER, peers.program(too_many)))
    result = hosts.run(dataset, "--check")

    assert result.code == 1, result
    assert "10.0.0.1:~/set: complete" in result.out
    for address in hosts.addresses[1:]:
        assert says("answer-invalid-3", f"{address}:~/set", "it s").search(result.out)
    assert "\x1b" not in result.out + result.err
    assert "Traceback" not in result.out + result.err


def test_output_of_login_shell_is_ignored() -> None:
    text = '{ hello\n{\n "replicas": [\n  {\n   "moved_bytes": 5,\n   "problems": []\n  }\n ]\n}\n'
    assert result_of(Ending(0, "", text)) == {"moved_bytes": 5, "problems": []}
