"""Hosts that answer nonsense, greet at login or hang: named with the reason; the others go on."""

from __future__ import annotations

from pathlib import Path

from imagenet_prep.distribute.hosts import result_of
from imagenet_prep.hosts.commands import Ending
from tests.kit.fake_hosts import Hosts
from tests.kit.hostile import peers

RECEIVER = "imagenet_prep.distribute.receive"
GIVER = "imagenet_prep.distribute.send"


def only_for(module: str, script: str) -> str:
    """Returns a script that does this where the host is to run a module, and ends."""
    return f'case "$command" in *{module}*)\n{script}\nexit;; esac\n'


def test_a_run_with_bad_peers_leaves_every_good_host_whole(hosts: Hosts, dataset: Path) -> None:
    outside = peers.line("alive") + peers.line("lacking", name="../../outside", begun=0)
    hosts.instead("10.0.0.1", peers.program(peers.GREETING, then=":"))
    hosts.instead("10.0.0.2", only_for(RECEIVER, peers.program(outside)))
    hosts.instead("node-3", only_for(GIVER, peers.program(b'["lacks",0,{}]\n')))
    result = hosts.run(dataset)

    assert result.code == 1, result
    assert "10.0.0.2:~/set: its receiver is broken: it sent " in result.out
    assert "has a part that is empty, . or .." in result.out
    assert "ubuntu@node-4: node-3 cannot send to this host (it sent " in result.err
    assert "1 of 4 replicas failed" in result.err
    assert "Traceback" not in result.out + result.err
    hosts.assert_whole(dataset, "10.0.0.2")


def test_a_receiver_that_hangs_while_its_host_lives_is_given_up(
    hosts: Hosts, dataset: Path
) -> None:
    hosts.only("10.0.0.1", "10.0.0.2")
    # Once: it says that it lives, and nothing more; what the leader tells it is never read.
    hangs = peers.program(peers.line("alive"), then='rm "$HOME/instead"; exec sleep 1000')
    hosts.instead("10.0.0.2", only_for(RECEIVER, hangs))
    result = hosts.run(dataset, "--timeout", "5")

    assert result.code == 0, result
    assert "10.0.0.2: connection lost (it has sent nothing for 5 s)" in result.err
    hosts.assert_whole(dataset)


def test_a_giver_that_hangs_is_passed_over(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.1", "10.0.0.2")
    hangs = peers.program(peers.line("alive"), then="exec sleep 1000")
    for address in hosts.addresses:
        hosts.instead(address, only_for(GIVER, hangs))
    result = hosts.run(dataset, "--timeout", "5")

    assert result.code == 0, result
    assert "10.0.0.2: 10.0.0.1 cannot send to this host (it has sent nothing for 5 s)" in result.err
    hosts.assert_whole(dataset)


def test_asked_hosts_answer_each_for_itself(hosts: Hosts, dataset: Path) -> None:
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
        assert f"{address}:~/set: its answer is invalid: it s" in result.out
    assert "\x1b" not in result.out + result.err
    assert "Traceback" not in result.out + result.err


def test_what_a_login_shell_says_is_no_part_of_a_result() -> None:
    text = '{ hello\n{\n "replicas": [\n  {\n   "moved_bytes": 5,\n   "problems": []\n  }\n ]\n}\n'
    assert result_of(Ending(0, "", text)) == {"moved_bytes": 5, "problems": []}
