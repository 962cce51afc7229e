"""Launching: every host is asked first, and all that is wrong is said at once."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.imports import version
from imagenet_prep.dataset.manifest import loads
from imagenet_prep.launching import host
from imagenet_prep.launching.ranks import MARK
from imagenet_prep.pipelines import launch as program
from imagenet_prep.pipelines.launch import LaunchConfig
from tests.kit import command
from tests.kit.command import PATIENCE_S, Finished

pytestmark = pytest.mark.slow  # servers or processes in each test

# ssh that reaches hosts of this machine: one is down, one hangs, one lacks the program, one
# has another data set, some have a part of it.
SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
down) echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255 ;;
unknown) echo "Host key verification failed." >&2; exit 255 ;;
hangs) exec sleep 60 ;;
bare) echo "No module named pipelines" >&2; exit 1 ;;
other) exec sh -c "$(echo "$3" | sed 's|/set|/other|g')" ;;
part*) exec sh -c "$(echo "$3" | sed "s|/set|/$2|")" ;;
*) exec sh -c "$3" ;;
esac
"""


@pytest.fixture
def cluster(tmp_path: Path, shades: Path) -> Path:
    """A folder with the data set `set`, another one `other`, and such an ssh in `bin`."""
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    for name in ("set", "other"):
        shutil.copytree(shades, tmp_path / name)
    manifest = tmp_path / "other" / "dataset.json"
    changed = dataclasses.replace(loads(manifest.read_bytes(), "other"), plan_digest="another")
    manifest.write_bytes(changed.dumps())
    return tmp_path


def run(cluster: Path, hosts: str, *words: str, verb: str = "launch") -> Finished:
    (cluster / "hosts").write_text(hosts)
    path = f"{cluster / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return command.run(verb, *words, cwd=cluster, env={"PATH": path})


def launch(cluster: Path, hosts: str, ranks: int, *words: str) -> Finished:
    trained = ("--", "train", "--data-dir", str(cluster / "set"))
    options = ("-np", str(ranks), "--hosts", "hosts", "--check-timeout", "20", "--dry-run")
    return run(cluster, hosts, *options, *words, *trained)


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        ("localhost slots=1\nnode1 slot=8\n", "line 2: expected slots=N after the address"),
        ("", "no hosts. Write one per line"),
        ("localhost slots=1\nnode1 slots=2\n", "the hosts have only 3 slots"),
    ],
)
def test_a_hosts_file_that_cannot_be_is_a_usage_error(
    cluster: Path, hosts: str, named: str
) -> None:
    finished = launch(cluster, hosts, 4)

    assert finished.code == 2
    assert named in finished.err


@pytest.mark.parametrize(
    ("address", "code", "named"),
    [
        ("down", 4, "ssh failed: ssh: connect to host down port 22: Connection refused"),
        ("unknown", 1, "ssh failed: Host key verification failed."),
        ("bare", 1, "(No module named pipelines). Install it at the same path on every host."),
        (
            "other",
            1,
            "these are different datasets. Copy the dataset again from one host to the other.",
        ),
    ],
)
def test_a_host_that_is_not_fit_is_named_before_anything_starts(
    cluster: Path, address: str, code: int, named: str
) -> None:
    finished = launch(cluster, f"localhost slots=1\n{address} slots=1\n", 2)

    assert finished.code == code
    assert "nothing was started" in finished.err
    assert f"  {address}: " in finished.err
    assert named in finished.err
    assert finished.out == ""


@pytest.mark.skipif(version("mxnet") is not None, reason="MXNet is installed here")
def test_all_that_is_missing_on_all_hosts_is_named_at_once(cluster: Path) -> None:
    hosts = "localhost slots=1\ndown slots=1\n"
    options = ("-np", "2", "--hosts", "hosts", "--dry-run", "--", "train", "--framework", "mxnet")
    finished = run(cluster, hosts, *options, "--data-dir", str(cluster / "absent"))

    assert finished.code == 1
    assert (
        "localhost: MXNet is not installed: create its environment (docs/mxnet.md)" in finished.err
    )
    assert (
        "localhost: Horovod is not built for MXNet: run `imagenet-prep" in finished.err
        or (
            "localhost: Horovod is not installed: run "
            "`imagenet-prep install-horovod --framework mxnet`"
        )
        in finished.err
    )
    assert f"localhost: {cluster / 'absent'}" in finished.err
    assert "down: ssh failed" in finished.err


def test_a_host_that_does_not_answer_in_time_is_named(cluster: Path) -> None:
    hosts = "localhost slots=1\nhangs slots=1\n"
    options = ("-np", "2", "--hosts", "hosts", "--check-timeout", "2", "--dry-run")
    finished = run(cluster, hosts, *options, "--", "train", "--synthetic")

    assert finished.code == 4
    assert "hangs: no answer in 2 s" in finished.err


@pytest.fixture
def parts(cluster: Path) -> Path:
    """The same with the hosts part0 and part1, which share the data set."""
    for node in (0, 1):
        flags = ("--to", cluster / f"part{node}", "--mode", "partition", f"--part={node}/2")
        assert command.run("replicate", cluster / "set", *flags).code == 0
    return cluster


@pytest.mark.parametrize(
    ("hosts", "ranks", "named"),
    [
        (
            "part1 slots=1\npart0 slots=1\n",
            2,
            "part1: has part 1 of 2, copies: 1, expected part 0",
        ),
        (
            "part0 slots=1\npart1 slots=1\n",
            1,
            "part0: has part 0 of 2, copies: 1, expected the complete dataset",
        ),
        (
            "part0 slots=1\nlocalhost slots=1\n",
            2,
            "localhost: has the complete dataset, expected part 1",
        ),
        ("part0 slots=2\npart1 slots=2\n", 3, "give all hosts the same number of ranks"),
    ],
)
def test_parts_that_would_not_be_read_once_each_are_named(
    parts: Path, hosts: str, ranks: int, named: str
) -> None:
    finished = launch(parts, hosts, ranks)

    assert finished.code == 1, finished
    assert named in finished.err


@pytest.mark.horovod
def test_hosts_with_their_parts_in_order_are_fit(parts: Path, horovod: None) -> None:
    finished = launch(parts, "part0 slots=2\npart1 slots=2\n", 4)

    assert finished.code == 0, finished
    assert finished.out.startswith("2 hosts checked, 4 ranks")


def test_a_shard_that_is_cut_on_one_host_is_named(cluster: Path) -> None:
    shard = next((cluster / "set").glob("train-*"))
    os.truncate(shard, shard.stat().st_size - 1)
    finished = launch(cluster, "localhost slots=2\n", 2)

    assert finished.code == 1
    assert f"{shard} has " in finished.err


@pytest.mark.horovod
def test_a_dry_run_prints_the_command_of_all_hosts(cluster: Path, horovod: None) -> None:
    hosts = "localhost slots=8 # this one\nnode1 slots=8\nnode2 slots=8\n"
    finished = launch(cluster, hosts, 12, "--network-interface", "lo")

    assert finished.code == 0, finished.err
    first, *commands = finished.out.splitlines()
    assert first == "2 hosts checked, 12 ranks on CPUs: no GPU was found"
    told = dict(line.split(": ") for line in commands)
    assert list(told) == ["localhost, ranks 0 to 7", "node1, ranks 8 to 11"]
    for line in told.values():
        words = shlex.split(line)
        assert words[1:4] == ["-P", "-m", "imagenet_prep"]
        assert words[4:] == ["train", "--data-dir", str(cluster / "set")]


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("hosts", "ranks", "expected"),
    [
        # As the tutorial's hosts file has it.
        ("node1 slots=2\nnode2 slots=2\nlocalhost slots=2\n", 2, ["localhost, ranks 0 to 1"]),
        (
            "node1 slots=2\nnode2 slots=2\nlocalhost slots=2\n",
            5,
            ["localhost, ranks 0 to 1", "node1, ranks 2 to 3", "node2, rank 4"],
        ),
        ("down slots=2\n127.0.0.1 slots=2\n", 2, ["127.0.0.1, ranks 0 to 1"]),
    ],
)
def test_the_slots_of_this_machine_are_used_first(
    cluster: Path, horovod: None, hosts: str, ranks: int, expected: list[str]
) -> None:
    finished = launch(cluster, hosts, ranks, "--network-interface", "lo")

    assert finished.code == 0, finished.err
    assert [line.partition(":")[0] for line in finished.out.splitlines()[1:]] == expected


@pytest.mark.horovod
def test_parts_of_a_dataset_keep_the_order_of_the_hosts_file(parts: Path, horovod: None) -> None:
    shutil.rmtree(parts / "set")
    (parts / "part1").rename(parts / "set")
    finished = launch(parts, "part0 slots=1\nlocalhost slots=1\n", 2)

    assert finished.code == 0, finished.err
    places = [line.partition(",")[0] for line in finished.out.splitlines()[1:]]
    assert places == ["part0", "localhost"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "prepare"), "-- train --data-dir DIR ..., or for your script: -- python SCRIPT.py"),
        (("--mpi-args=-v", "--", "train", "--synthetic"), "--mpi-args needs --mpi"),
        (
            ("--servers", "1", "--mpi", "--", "train", "--synthetic"),
            "--servers cannot be combined with --mpi",
        ),
        (("--fusion-threshold-mb", "-1", "--", "train"), "--fusion-threshold-mb -1: expected"),
        (("--detach", "--", "script.py"), "Set launch.log's folder with --rank-logs DIR"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    cluster: Path, words: tuple[str, ...], said: str
) -> None:
    (cluster / "script.py").touch()
    finished = run(cluster, "localhost\n", "-np", "1", *words)

    assert finished.code == 2
    assert said in finished.err


@pytest.mark.parametrize(
    ("servers", "comm"), [(2, ()), (0, ("--framework", "mxnet", "--comm", "dist_sync"))]
)
def test_servers_and_what_needs_them_come_together(servers: int, comm: tuple[str, ...]) -> None:
    asked = LaunchConfig(num_processes=2, servers=servers, command=("train", "--synthetic", *comm))
    with pytest.raises(UsageError, match=f"--servers {servers}: expected 1 or more for"):
        program.launch(asked)


def test_the_flags_are_horovods_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = LaunchConfig(
        num_processes=2,
        fusion_threshold_mb=16,
        cycle_time_ms=2.5,
        torus_allreduce=True,
    )

    assert LaunchConfig(num_processes=2).horovod() == {}
    assert LaunchConfig(num_processes=2, fusion_threshold_mb=0).horovod() == {
        "HOROVOD_FUSION_THRESHOLD": "0"
    }
    assert config.horovod() == {
        "HOROVOD_FUSION_THRESHOLD": "16777216",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_TORUS_ALLREDUCE": "1",
    }


SCRIPT = """\
import os, sys
import neighbour
from imagenet_prep.core.world import World
world = World.from_environment()
print(f"out {world.rank} of {world.size}, {neighbour.NAME}, {sys.argv[1:]}", flush=True)
print(f"err {world.rank}", file=sys.stderr, flush=True)
if "OMPI_COMM_WORLD_RANK" not in os.environ:
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(world.rank), "2")
    assert os.environ["MASTER_ADDR"] == "127.0.0.1" and int(os.environ["MASTER_PORT"]) > 1023
if "--fail" in sys.argv and world.rank == 1:
    sys.exit(7)
if "--fail" in sys.argv:
    import time
    time.sleep(600)
"""


def test_an_own_script_runs_on_every_rank_and_one_death_ends_all(cluster: Path) -> None:
    run_own_script(cluster)


@pytest.mark.long
def test_mpirun_starts_an_own_script_for_launch(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Next to our Python, Horovod's tests would take it for one that Horovod was built with.
    path = f"{Path(sys.prefix) / 'mpi' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here; make test-long installs it into .venv/mpi")
    run_own_script(cluster, "--mpi")


def run_own_script(cluster: Path, *how: str) -> None:
    """Launches a script on two ranks, once to its end, and once so that rank 1 fails."""
    (cluster / "code").mkdir()
    (cluster / "code" / "my_train.py").write_text(SCRIPT)
    (cluster / "code" / "neighbour.py").write_text("NAME = 'beside it'")
    (cluster / "neighbour.py").write_text("raise SystemExit('of the current folder')")
    script = ("python", "code/my_train.py", "--data-dir", "set")
    words = (*how, "--rank-logs", "logs", "--", *script)
    finished = run(cluster, "", "-np", "2", *words)

    assert finished.code == 0, finished
    for rank in (0, 1):
        line = f"out {rank} of 2, beside it, ['--data-dir', 'set']\n"
        assert line in finished.out
        assert f"[{rank}] err {rank}\n" in finished.err
        log = (cluster / "logs" / f"rank-{rank}.log").read_text()
        assert sorted(log.splitlines(keepends=True)) == sorted([line, f"err {rank}\n"])

    failed = run(cluster, "", "-np", "2", "--grace", "1", *words, "--fail")
    assert failed.code == 7, failed


def test_an_own_script_and_its_data_are_held_against_each_other(cluster: Path) -> None:
    for folder in ("set", "other"):
        (cluster / folder / "my_train.py").write_text(f"# {folder}")
    (cluster / "hosts").write_text("localhost slots=1\nother slots=1\n")
    options = ("-np", "2", "--hosts", "hosts", "--dry-run", "--")
    script = str(cluster / "set" / "my_train.py")
    finished = run(
        cluster, "localhost slots=1\nother slots=1\n", *options, "python", script,
        f"--data_dir={cluster / 'set'}",
    )  # fmt: skip

    assert finished.code == 1
    assert "these are different datasets" in finished.err
    assert "other: its script differs from the one on localhost" in finished.err


def test_one_command_runs_on_every_host_and_a_table_tells(cluster: Path) -> None:
    hosts = "localhost slots=8\nnode1 slots=8\ndown slots=8\n"
    words = ("hosts", "--", "sh", "-c", "echo one; echo two words")
    finished = run(cluster, hosts, *words, verb="run-on-hosts")

    assert finished.code == 1
    assert "failed on 1 of 3 hosts: down" in finished.err
    lines = finished.out.splitlines()
    assert [line.split()[:2] for line in lines if not line.startswith(" ")] == [
        ["host", "exit"],
        ["localhost", "0"],
        ["node1", "0"],
        ["down", "255"],
    ]
    assert finished.out.count("two words") == 2
    assert "Connection refused" in finished.out


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_a_command_in_one_quoted_word_is_a_line_for_a_shell(
    cluster: Path, dashes: tuple[str, ...]
) -> None:
    words = ("hosts", *dashes, "echo one && echo 'two  words' | tr w W")
    finished = run(cluster, "localhost\nnode1\n", *words, verb="run-on-hosts")

    assert finished.code == 0, finished.err
    assert [finished.out.count(said) for said in ("one\n", "tWo  Words\n")] == [2, 2]


def test_only_the_ranks_of_one_launch_are_ended() -> None:
    def sleeper(**environment: str) -> subprocess.Popen[bytes]:
        code = "print(flush=True); import time; time.sleep(3600)"
        variables = {**os.environ, **environment}
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    rank = sleeper(**{MARK: mark, "HOROVOD_RANK": "0"})
    launcher = sleeper(**{MARK: mark})
    stranger = sleeper(**{MARK: mark + "0", "HOROVOD_RANK": "0"})
    try:
        # The rank stays a zombie until it is waited for, and a zombie has no environment.
        host.end(mark, PATIENCE_S)
        assert rank.wait(PATIENCE_S) == -15
        assert launcher.poll() is None
        assert stranger.poll() is None
    finally:
        for process in (rank, launcher, stranger):
            process.kill()
            process.communicate()
