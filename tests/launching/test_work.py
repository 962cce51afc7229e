"""A user's own script: found among the words after --, made ready for every rank, or refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching import rank_command
from imagenet_prep.launching.rank_command import of_mpi, of_servers, of_torchrun


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "code" / "my train.py"
    path.parent.mkdir()
    path.write_text("")
    return path


@pytest.mark.parametrize(
    "before",
    [[], ["python"], ["python3"], [sys.executable], ["python", "-W", "error", "-u"]],
    ids=str,
)
def test_a_script_runs_by_our_python_at_its_whole_path(script: Path, before: list[str]) -> None:
    asked = rank_command.own([*before, "code/my train.py", "--epochs", "3", "--data_dir=../set"])

    options = before[1:]
    assert asked.argv == (sys.executable, "-P", *options, str(script), *asked.argv[-3:])
    assert asked.argv[-3:] == ("--epochs", "3", "--data_dir=../set")
    assert (asked.script, asked.is_own) == (script, True)
    assert asked.data_dir is not None
    assert Path(asked.data_dir).resolve() == script.parents[2] / "set"
    assert asked.log_dir is None


def test_it_may_import_its_neighbours_and_nothing_from_the_current_folder(script: Path) -> None:
    asked = rank_command.own(["python", "code/my train.py", "--log-dir", "a", "--log-dir", "b"])
    told = asked.variables({"PYTHONPATH": "/mine"})

    assert told["PYTHONPATH"] == f"{script.parent}{os.pathsep}/mine"
    assert told["PYTHONSAFEPATH"] == "1"
    assert asked.log_dir == "b"
    assert "PYTHONPATH" not in rank_command.of_train(
        ["train"], None, "runs", "horovod", []
    ).variables({})


def test_a_module_is_one_that_is_installed() -> None:
    asked = rank_command.own(["python", "-m", "my_package.train", "--data-dir", "s3://bucket/set"])

    assert asked.argv[1:4] == ("-P", "-m", "my_package.train")
    assert (asked.script, asked.data_dir) == (None, None)
    assert "PYTHONPATH" not in asked.variables({})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected the command of the ranks after --"),
        (["prepare"], "-- train --data-dir DIR"),
        (["bash", "train.sh"], "-- python SCRIPT.py"),
        (["python"], "-- python SCRIPT.py"),
        (["python", "-u"], "-- python SCRIPT.py"),
        (["python", "other.py"], "other.py: no such script"),
        (["/usr/bin/python3", "code/my train.py"], "every rank runs with "),
    ],
)
def test_what_cannot_run_on_every_rank_is_refused(
    script: Path, words: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        rank_command.own(words)


def test_ranks_have_torchruns_names_and_are_the_world_that_we_read() -> None:
    hosts = [Host("node1", 2), Host("node2", 1)]
    ranks = [one for each in of_torchrun(hosts, ("eth0", "eth1"), "10.0.0.1", 4711) for one in each]

    assert [World.from_environment(one) for one in ranks] == [
        World(0, 3, 0, 2),
        World(1, 3, 1, 2),
        World(2, 3, 0, 1),
    ]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks} == {("10.0.0.1", "4711")}
    assert [one["GLOO_SOCKET_IFNAME"] for one in ranks] == ["eth0", "eth0", "eth1"]


def test_servers_stand_on_the_hosts_in_turn_and_the_scheduler_on_the_first() -> None:
    hosts = [Host("node1", 2), Host("node2", 1)]
    ranks, others = of_servers(hosts, ("eth0", "eth1"), "10.0.0.1", 4711, 3)

    said = [[f"{one['DMLC_ROLE']} {one.get('DMLC_SERVER_ID')}" for one in each] for each in others]
    assert said == [["scheduler None", "server 0", "server 2"], ["server 1"]]
    assert [one["DMLC_ROLE"] for one in ranks] == ["worker", "worker"]
    assert [{one["DMLC_INTERFACE"] for one in each} for each in others] == [{"eth0"}, {"eth1"}]
    assert [one["DMLC_INTERFACE"] for one in ranks] == ["eth0", "eth1"]
    told = [*ranks, *others[0], *others[1]]
    names = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")
    assert {tuple(one[name] for name in names) for one in told} == {("10.0.0.1", "4711", "3", "3")}


def test_ranks_by_mpirun_meet_where_those_of_torchrun_do() -> None:
    hosts = [Host("a", 2), Host("b", 2)]
    given = of_mpi(hosts, ["eth0", "eth0"], "10.0.0.1", 4321)
    assert given == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4321",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    # mpirun gives all ranks one value.
    differ = of_mpi([Host("a", 1), Host("b", 2)], ["eth0", "ens5"], "10.0.0.1", 4321)
    assert differ.keys() == {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"}
