"""A user's own script is found in the command after --, prepared for every rank, or refused."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching import rank_command
from imagenet_prep.launching.rank_command import of_mpi, of_servers, of_torchrun
from tests.kit.messages import says


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
def test_scripts_run_by_our_python_with_absolute_path(script: Path, before: list[str]) -> None:
    asked = rank_command.own([*before, "code/my train.py", "--epochs", "3", "--data_dir=../set"])

    options = before[1:]
    assert asked.argv == (sys.executable, "-P", *options, str(script), *asked.argv[-3:])
    assert asked.argv[-3:] == ("--epochs", "3", "--data_dir=../set")
    assert (asked.script, asked.is_own) == (script, True)
    assert asked.data_dir is not None
    assert Path(asked.data_dir).resolve() == script.parents[2] / "set"
    assert asked.log_dir is None


def test_scripts_import_neighbours_but_not_the_current_folder(script: Path) -> None:
    asked = rank_command.own(["python", "code/my train.py", "--log-dir", "a", "--log-dir", "b"])
    told = asked.variables({"PYTHONPATH": "/mine"})

    assert told["PYTHONPATH"] == f"{script.parent}{os.pathsep}/mine"
    assert told["PYTHONSAFEPATH"] == "1"
    assert asked.log_dir == "b"
    assert "PYTHONPATH" not in rank_command.of_train(
        ["train"], None, "runs", "horovod", []
    ).variables({})


def test_modules_run_without_a_changed_pythonpath() -> None:
    asked = rank_command.own(["python", "-m", "my_package.train", "--data-dir", "s3://bucket/set"])

    assert asked.argv[1:4] == ("-P", "-m", "my_package.train")
    assert (asked.script, asked.data_dir) == (None, None)
    assert "PYTHONPATH" not in asked.variables({})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], says("expected-command-ranks-after-such")),
        (["prepare"], says("expected-command-ranks-after-such")),
        (["bash", "train.sh"], says("expected-command-ranks-after-such")),
        (["python"], says("expected-command-ranks-after-such")),
        (["python", "-u"], says("expected-command-ranks-after-such")),
        (["python", "other.py"], says("no-such-script", "other")),
        (["/usr/bin/python3", "code/my train.py"], says("every-rank-runs-program-write")),
    ],
)
def test_commands_that_cannot_be_ranks_are_refused(
    script: Path, words: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        rank_command.own(words)


def test_ranks_get_torchruns_variables_and_read_the_world() -> None:
    hosts = [Host("node1", 2), Host("node2", 1)]
    by_host = of_torchrun(hosts, ("eth0", "eth1"), "10.0.0.1", 4711)
    ranks = [*itertools.chain.from_iterable(by_host)]

    assert [World.from_environment(one) for one in ranks] == [
        World(0, 3, 0, 2),
        World(1, 3, 1, 2),
        World(2, 3, 0, 1),
    ]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks} == {("10.0.0.1", "4711")}
    assert [one["GLOO_SOCKET_IFNAME"] for one in ranks] == ["eth0", "eth0", "eth1"]


def test_servers_alternate_between_hosts_after_the_scheduler() -> None:
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


def test_mpiruns_ranks_get_torchruns_rendezvous() -> None:
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
    # mpirun sets one value for all ranks.
    differ = of_mpi([Host("a", 1), Host("b", 2)], ["eth0", "ens5"], "10.0.0.1", 4321)
    assert differ.keys() == {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"}


# Names of variables that ranks on other hosts get, and of variables that they do not get.
TRAVEL = """
    LANG LANGUAGE TZ TMPDIR SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY
    HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy AWS_REGION IMAGENET_PREP_CACHE PYTHONPATH
    LC_ALL MALLOC_ARENA_MAX TF_CPP_MIN_LOG_LEVEL TF2_BEHAVIOR XLA_FLAGS DALI_X MXNET_X PS_VERBOSE
    TORCH_LOGS TORCHINDUCTOR_CACHE_DIR PYTORCH_ALLOC_CONF CUDA_LAUNCH_BLOCKING CUDNN_X NCCL_DEBUG
    HOROVOD_TIMELINE GLOO_X UCX_TLS FI_PROVIDER OMP_NUM_THREADS GOMP_SPINCOUNT KMP_AFFINITY
    MKL_NUM_THREADS OPENBLAS_NUM_THREADS PATH
"""
STAY = """
    HOME USER CUDA_VISIBLE_DEVICES HOROVOD_SECRET_KEY IMAGENET_PREP_LAUNCH EDITOR LANGX XLANG
    SSH_AUTH_SOCK DB_PASSWORD
"""


def test_each_variable_that_changes_training_travels() -> None:
    names = set(TRAVEL.split())
    environment = dict.fromkeys(names.union(STAY.split()), "1")

    assert rank_command.travelling(environment, [], private=True).keys() == names
    asked = rank_command.travelling(environment, ["HOME"], private=True)
    assert asked.keys() == names | {"HOME"}


SECRETS = {
    "AWS_SESSION_TOKEN": "1",
    "AWS_SECRET_ACCESS_KEY": "1",
    "TF_PASSWORD": "1",
    "NCCL_CREDENTIAL_FILE": "1",
    "MXNET_auth": "1",
    "PS_COOKIE": "1",
    "http_proxy": "http://me:word@proxy",
    "HTTPS_PROXY": "http://me:word@proxy",
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_travels_only_through_an_encrypted_connection(name: str) -> None:
    environment = {name: SECRETS[name], "TZ": "UTC", "NO_PROXY": "a", "PYTHONPATH": "me@here"}
    public = {"TZ": "UTC", "NO_PROXY": "a", "PYTHONPATH": "me@here"}

    assert rank_command.travelling(environment, [], private=True) == environment
    assert rank_command.travelling(environment, [], private=False) == public
    assert rank_command.travelling(environment, ["TZ"], private=False) == public
    with pytest.raises(UsageError, match=name):
        rank_command.travelling(environment, [name], private=False)


@pytest.mark.parametrize(
    ("stall_s", "gloo_s"), [(60, "60"), (119, "119"), (120, "120"), (600, "120")]
)
def test_gloo_waits_no_longer_than_a_stalled_rank(stall_s: int, gloo_s: str) -> None:
    assert rank_command.of_horovod(stall_s) == {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(stall_s),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": gloo_s,
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--data-dir", "a"], ("a", None)),
        (["--data_dir", "a", "--log_dir=b"], ("a", "b")),
        (["--data-dir=a", "--data-dir", "c"], ("c", None)),
        (["--data-dir="], ("", None)),
        (["--data-dir"], (None, None)),
        (["--data-dirs", "a", "--log-dir"], (None, None)),
        (["x", "--log-dir", "--data-dir"], (None, "--data-dir")),
    ],
)
def test_folders_of_a_script_follow_its_flags(
    script: Path, words: list[str], found: tuple[str | None, str | None]
) -> None:
    asked = rank_command.own(["python", str(script), *words])
    data_dir, log_dir = found

    expected = None if data_dir is None else str(Path.cwd() / data_dir)
    assert asked.data_dir == expected or Path(str(asked.data_dir)) == Path(str(expected))
    assert asked.log_dir == log_dir


@pytest.mark.parametrize(
    ("comm", "by_servers"),
    [("dist_sync", True), ("dist_device_sync", True), ("horovod", False), ("ddp", False)],
)
def test_only_mxnets_key_value_stores_need_servers(comm: str, by_servers: bool) -> None:
    work = rank_command.of_train(["train"], "s3://bucket/set", "runs", comm, ["x"])

    assert work.by_servers is by_servers
    assert (work.data_dir, work.log_dir, work.needs) == (None, "runs", ("x",))
    assert not work.is_own


def test_code_on_the_command_line_runs_unchanged() -> None:
    asked = rank_command.own(["python", "-X", "dev", "-c", "print(1)", "--data-dir", "a"])

    assert asked.argv[-6:] == ("-X", "dev", "-c", "print(1)", "--data-dir", "a")
    assert asked.script is None
    assert asked.data_dir is not None
