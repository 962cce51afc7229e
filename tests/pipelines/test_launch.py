"""Launch checks all hosts first, and reports all problems at the same time."""

from __future__ import annotations

import dataclasses
import os
import re
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
from tests.kit.messages import says

pytestmark = pytest.mark.slow  # servers or processes in each test

# An ssh that reaches hosts of this machine. One is down, one hangs, one lacks the program, one has
# a different dataset, and some have a part of it. node has an environment of its own.
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
node) exec env -i PATH="$PATH" HOME="$HOME" sh -c "$3" ;;
*) exec sh -c "$3" ;;
esac
"""


@pytest.fixture
def cluster(tmp_path: Path, shades: Path) -> Path:
    """A folder with the dataset `set`, a different dataset `other`, and the ssh in `bin`."""
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


def run(cluster: Path, hosts: str, *words: str, verb: str = "launch", **env: str) -> Finished:
    """Runs a verb next to a hosts file; `env` are more variables."""
    (cluster / "hosts").write_text(hosts)
    path = f"{cluster / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return command.run(verb, *words, cwd=cluster, env={"PATH": path, **env})


def launch(cluster: Path, hosts: str, ranks: int, *words: str) -> Finished:
    trained = ("--", "train", "--data-dir", str(cluster / "set"))
    options = ("-np", str(ranks), "--hosts", "hosts", "--check-timeout", "600", "--dry-run")
    return run(cluster, hosts, *options, *words, *trained)


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        ("localhost slots=1\nnode1 slot=8\n", says("expected-slots-n-after-address", "line 2")),
        ("", says("no-hosts-write-one-per")),
        ("localhost slots=1\nnode1 slots=2\n", says("np-hosts-only-add-hosts", ..., "3 slots")),
    ],
)
def test_invalid_hosts_file_is_a_usage_error(cluster: Path, hosts: str, named: str) -> None:
    finished = launch(cluster, hosts, 4)

    assert finished.code == 2
    assert re.search(named, finished.err)


@pytest.mark.parametrize(
    ("address", "code", "named"),
    [
        ("down", 4, "ssh failed: ssh: connect to host down port 22: Connection refused"),
        ("unknown", 1, "ssh failed: Host key verification failed."),
        (
            "bare",
            1,
            says("version-imagenet-prep-not-installed-install", ..., "No module named pipelines"),
        ),
        (
            "other",
            1,
            says("manifest-different-datasets-copy-dataset"),
        ),
    ],
)
def test_launch_names_unfit_host_before_it_starts_ranks(
    cluster: Path, address: str, code: int, named: str
) -> None:
    finished = launch(cluster, f"localhost slots=1\n{address} slots=1\n", 2)

    assert finished.code == code
    assert says("nothing-started").search(finished.err)
    assert f"  {address}: " in finished.err
    assert re.search(named, finished.err)
    assert finished.out == ""


@pytest.mark.skipif(version("mxnet") is not None, reason="MXNet is installed here")
def test_launch_reports_missing_programs_of_all_hosts(cluster: Path) -> None:
    hosts = "localhost slots=1\ndown slots=1\n"
    options = ("-np", "2", "--hosts", "hosts", "--dry-run", "--", "train", "--framework", "mxnet")
    finished = run(cluster, hosts, *options, "--data-dir", str(cluster / "absent"))

    assert finished.code == 1
    assert says(
        "not-installed-2", "localhost: MXNet", says("create-environment-docs-mxnet.md")
    ).search(finished.err)
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


def test_launch_names_host_that_does_not_answer(cluster: Path) -> None:
    hosts = "localhost slots=1\nhangs slots=1\n"
    options = ("-np", "2", "--hosts", "hosts", "--check-timeout", "2", "--dry-run")
    finished = run(cluster, hosts, *options, "--", "train", "--synthetic")

    assert finished.code == 4
    assert "hangs: no answer in 2 s" in finished.err


@pytest.fixture
def parts(cluster: Path) -> Path:
    """The same cluster with the hosts part0 and part1, which share the dataset."""
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
            says(
                "expected-train-hosts-last-replicate", "part1", "part 1 of 2, copies: 1", "part 0"
            ),
        ),
        (
            "part0 slots=1\npart1 slots=1\n",
            1,
            says(
                "expected-train-hosts-last-replicate",
                "part0",
                "part 0 of 2, copies: 1",
                "the complete dataset",
            ),
        ),
        (
            "part0 slots=1\nlocalhost slots=1\n",
            2,
            says(
                "expected-train-hosts-last-replicate", "localhost", "the complete dataset", "part 1"
            ),
        ),
        ("part0 slots=2\npart1 slots=2\n", 3, says("dataset-partitioned-give-hosts-same")),
    ],
)
def test_launch_refuses_parts_not_read_exactly_once(
    parts: Path, hosts: str, ranks: int, named: str
) -> None:
    finished = launch(parts, hosts, ranks)

    assert finished.code == 1, finished
    assert re.search(named, finished.err)


@pytest.mark.horovod
def test_launch_accepts_hosts_with_parts_in_order(parts: Path, horovod: None) -> None:
    finished = launch(parts, "part0 slots=2\npart1 slots=2\n", 4)

    assert finished.code == 0, finished
    assert finished.out.startswith("2 hosts checked, 4 ranks")


def test_launch_names_truncated_shard_of_a_host(cluster: Path) -> None:
    shard = next((cluster / "set").glob("train-*"))
    os.truncate(shard, shard.stat().st_size - 1)
    finished = launch(cluster, "localhost slots=2\n", 2)

    assert finished.code == 1
    assert f"{shard} has " in finished.err


@pytest.mark.horovod
def test_dry_run_prints_the_command_of_each_host(cluster: Path, horovod: None) -> None:
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
        # The order of the tutorial's hosts file.
        ("node1 slots=2\nnode2 slots=2\nlocalhost slots=2\n", 2, ["localhost, ranks 0 to 1"]),
        (
            "node1 slots=2\nnode2 slots=2\nlocalhost slots=2\n",
            5,
            ["localhost, ranks 0 to 1", "node1, ranks 2 to 3", "node2, rank 4"],
        ),
        ("down slots=2\n127.0.0.1 slots=2\n", 2, ["127.0.0.1, ranks 0 to 1"]),
    ],
)
def test_launch_uses_slots_of_this_machine_first(
    cluster: Path, horovod: None, hosts: str, ranks: int, expected: list[str]
) -> None:
    finished = launch(cluster, hosts, ranks, "--network-interface", "lo")

    assert finished.code == 0, finished.err
    assert [line.partition(":")[0] for line in finished.out.splitlines()[1:]] == expected


@pytest.mark.horovod
def test_launch_keeps_host_order_for_partitioned_dataset(parts: Path, horovod: None) -> None:
    shutil.rmtree(parts / "set")
    (parts / "part1").rename(parts / "set")
    finished = launch(parts, "part0 slots=1\nlocalhost slots=1\n", 2)

    assert finished.code == 0, finished.err
    places = [line.partition(",")[0] for line in finished.out.splitlines()[1:]]
    assert places == ["part0", "localhost"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "prepare"), says("expected-command-ranks-after-such")),
        (("--mpi-args=-v", "--", "train", "--synthetic"), says("mpi-args-needs-mpi")),
        (
            ("--servers", "1", "--mpi", "--", "train", "--synthetic"),
            says("servers-cannot-combined-mpi-flags"),
        ),
        (("--fusion-threshold-mb", "-1", "--", "train"), "--fusion-threshold-mb -1: expected"),
        (("--detach", "--", "script.py"), says("detach-script-no-log-dir-set")),
    ],
)
def test_launch_refuses_invalid_commands(cluster: Path, words: tuple[str, ...], said: str) -> None:
    (cluster / "script.py").touch()
    finished = run(cluster, "localhost\n", "-np", "1", *words)

    assert finished.code == 2
    assert re.search(said, finished.err)


@pytest.mark.parametrize(
    ("servers", "comm"), [(2, ()), (0, ("--framework", "mxnet", "--comm", "dist_sync"))]
)
def test_servers_and_distributed_comm_require_each_other(
    servers: int, comm: tuple[str, ...]
) -> None:
    asked = LaunchConfig(num_processes=2, servers=servers, command=("train", "--synthetic", *comm))
    with pytest.raises(UsageError, match=says("servers-expected-1-more-train", servers)):
        program.launch(asked)


def test_flags_become_horovod_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_launch_runs_script_and_ends_if_rank_fails(cluster: Path) -> None:
    run_own_script(cluster)


@pytest.mark.long
def test_mpirun_starts_a_custom_script(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Next to our Python, Horovod's tests would treat it as the one that Horovod was built with.
    path = f"{Path(sys.prefix) / 'mpi' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here; make test-long installs it into .venv/mpi")
    run_own_script(cluster, "--mpi")


def run_own_script(cluster: Path, *how: str) -> None:
    """Launches a script on two ranks: once to the end, once with a failure of rank 1."""
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


def test_variables_reach_ranks_on_other_hosts(cluster: Path) -> None:
    names = ("RANK", "MINE", "NCCL_DEBUG")
    program = f"import os; print('rank', *map(os.environ.get, {names}))"
    (cluster / "shown.py").write_text(program)
    options = ("-np", "2", "--hosts", "hosts", "--network-interface", "lo", "--env", "MINE")
    hosts = "localhost slots=1\nnode slots=1\n"
    finished = run(
        cluster, hosts, *options, "--", "python", "shown.py", MINE="7", NCCL_DEBUG="INFO"
    )

    assert finished.code == 0, finished
    said = [line for line in finished.out.splitlines() if line.startswith("rank")]
    assert sorted(said) == ["rank 0 7 INFO", "rank 1 7 INFO"]


def test_launch_compares_script_and_data_of_hosts(cluster: Path) -> None:
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
    assert says("manifest-different-datasets-copy-dataset").search(finished.err)
    assert "other: its script differs from the one on localhost" in finished.err


def test_run_on_hosts_reports_exit_codes_and_output(cluster: Path) -> None:
    hosts = "localhost slots=8\nnode1 slots=8\ndown slots=8\n"
    words = ("hosts", "--", "sh", "-c", "echo one; echo two words")
    finished = run(cluster, hosts, *words, verb="run-on-hosts")

    assert finished.code == 1
    assert says("failed-2", "1", "3 hosts", "down").search(finished.err)
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
def test_run_on_hosts_passes_quoted_line_to_shell(cluster: Path, dashes: tuple[str, ...]) -> None:
    words = ("hosts", *dashes, "echo one && echo 'two  words' | tr w W")
    finished = run(cluster, "localhost\nnode1\n", *words, verb="run-on-hosts")

    assert finished.code == 0, finished.err
    assert [finished.out.count(said) for said in ("one\n", "tWo  Words\n")] == [2, 2]


def test_end_kills_only_ranks_of_the_launch() -> None:
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
        # The rank stays a zombie until its parent waits for it. A zombie has no environment.
        host.end(mark, PATIENCE_S)
        assert rank.wait(PATIENCE_S) == -15
        assert launcher.poll() is None
        assert stranger.poll() is None
    finally:
        for process in (rank, launcher, stranger):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("ranks", "said"), [("1", "localhost, rank 0: "), ("3", "localhost, ranks 0 to 2: ")]
)
def test_dry_run_numbers_the_ranks_of_one_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: str, said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert program.run(["-np", ranks, "--dry-run", "--", "python", str(script)]) == 0

    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(said)
    assert line.endswith(str(script))
