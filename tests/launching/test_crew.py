"""Ranks of a launch, here and through ssh: their output, their exit codes, and their end.

The ranks are small programs, because these rules do not depend on their computation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.core.world import LEFT
from imagenet_prep.hosts.channel import Channel, MessageFrame
from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching import crew, host
from imagenet_prep.launching.crew import Crew
from imagenet_prep.launching.host import NO_RANK, LaunchOrder
from imagenet_prep.launching.host_checks import RankNetwork
from imagenet_prep.launching.rank_command import travelling
from imagenet_prep.launching.ranks import MARK, Rank, Ranks, through
from imagenet_prep.trainer.loop import Stop
from tests.kit.command import REPOSITORY, Running, started, wait_until
from tests.kit.hostile import peers
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.processes import words_of

pytestmark = pytest.mark.slow  # servers or processes in each test

SECRET = "hunter2-of-this-test"

# Reaches this machine by a different name and without our environment, and records its input.
SSH = f"""\
#!/bin/sh
printf '%s\\n' "$*" >> "$(dirname "$0")/ssh-argv"
while [ "$1" != -- ]; do shift; done
exec env -i PATH=/usr/bin:/bin PYTHONPATH={REPOSITORY} \\
  IMAGENET_PREP_TEST_RUN="$IMAGENET_PREP_TEST_RUN" SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" \\
  sh -c "$3"
"""

# A rank: writes its environment and waits. After a signal it saves, which takes a while.
RANK = """\
import json, os, signal, subprocess, sys, time
def save(*_):
    time.sleep(0.3)
    open(f"saved-{rank}", "w").close()
    os._exit(4)
rank = os.environ["HOROVOD_RANK"]
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif "fails" in sys.argv and rank == "1":
    print("imagenet-prep: no such thing", file=sys.stderr)
    sys.exit(3)
else:
    signal.signal(signal.SIGTERM, save)
child = subprocess.Popen(["sleep", "600"])
print("said by", rank, flush=True)
with open(f"rank-{rank}.partial", "w") as file:
    json.dump(dict(os.environ), file)
os.rename(f"rank-{rank}.partial", f"rank-{rank}")
while True:
    signal.pause()
"""

# Prints 40 lines that are longer than mpirun's buffer, and as many to its error output.
SAYS_LONG_LINES = f"""\
import os, sys
rank = os.environ["OMPI_COMM_WORLD_RANK"]
for _ in range(40):
    print(rank * 9000, flush=True)
    print(rank * 9000, file=sys.stderr, flush=True)
if rank == "1":
    print({LEFT!r}, file=sys.stderr)
"""

# Starts two ranks as mpirun does, and fails.
MPIRUN = """\
import os, subprocess, sys
names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
started = [
    subprocess.Popen(sys.argv[1:], env=os.environ | dict(zip(names, (rank, "2"))), stderr=2)
    for rank in "01"
]
for each in started:
    each.wait()
sys.exit(7)
"""

LAUNCHER = """\
import json, os, sys
from imagenet_prep.core import program
from imagenet_prep.hosts.channel import Channel
from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching.crew import Crew
from imagenet_prep.launching.host import LaunchOrder
from imagenet_prep.launching.rank_command import travelling
hosts = [Host("localhost", 1), Host("node1", 1)]
sent = travelling(os.environ, [], private=True)
command = json.loads(sys.argv[1])
orders = [
    LaunchOrder("the-mark", os.getcwd(), command, shared, [{"HOROVOD_RANK": str(rank)}], None)
    for rank, shared in enumerate([{}, sent])
]
program.finish(lambda: Crew(hosts, float(sys.argv[2])).run(orders))
"""


@contextlib.contextmanager
def launched(folder: Path, *how: str, grace: str = "60", hup: bool = True) -> Iterator[Running]:
    """Yields a running launch of two ranks, one of them behind ssh, in the folder."""
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    rank = [sys.executable, "-P", "-c", RANK, *how]
    program = ("-P", "-c", LAUNCHER)
    python = sys.executable
    if not hup:
        program = ("-c", 'trap "" HUP; exec "$0" "$@"', sys.executable, *program)
        python = "/bin/sh"
    env = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "IMAGENET_PREP_TOKEN": SECRET,
        "UNRELATED": "stays here",
    }
    arguments = (json.dumps(rank), grace)
    with started(*arguments, program=program, python=python, env=env, cwd=folder) as running:
        yield running


def said_to_host(order: LaunchOrder) -> bytes:
    """Returns the first message of a launch to a host."""
    return peers.line("run", json.dumps(dataclasses.asdict(order)).encode())


def both_run(folder: Path, running: Running) -> None:
    def there() -> bool:
        assert not running.ended, running.finish()
        return all((folder / f"rank-{rank}").exists() for rank in (0, 1))

    wait_until(there, "two ranks run")


def command_lines(running: Running) -> list[list[bytes]]:
    """Returns the words of the launch and its processes, without those that have ended."""
    return [*filter(None, map(words_of, [running.pid, *running.workers()]))]


def test_command_lines_contain_no_secret_and_nohup_works(
    tmp_path: Path,
) -> None:
    with launched(tmp_path, hup=False) as running:
        while not (tmp_path / "rank-0").exists() or not (tmp_path / "rank-1").exists():
            assert not running.ended, running.finish()
            assert SECRET.encode() not in b" ".join(chain(*command_lines(running)))
            time.sleep(0.05)  # listing all processes costs as much
        assert len(command_lines(running)) >= 5  # two host processes, two ranks, and the launch
        assert SECRET.encode() not in b" ".join(chain(*command_lines(running)))
        status = Path(f"/proc/{running.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:\t")[2].split()[0], 16)
        # An ignored signal cannot end it at any time. The first bit is SIGHUP.
        assert ignored & 1
        assert not ignored >> (signal.SIGTERM - 1) & 1
        running.send(signal.SIGTERM)
        finished = running.finish()
        wait_until(lambda: not running.workers(), "nothing is left")

    assert finished.code == 4, finished
    assert [(tmp_path / f"saved-{rank}").exists() for rank in (0, 1)] == [True, True]
    assert "said by 0" in finished.out
    assert "said by 1" in finished.out
    assert SECRET not in finished.out + finished.err
    for rank in (0, 1):
        environment = json.loads((tmp_path / f"rank-{rank}").read_text())
        assert environment["AWS_SECRET_ACCESS_KEY"] == SECRET
        assert environment["IMAGENET_PREP_TOKEN"] == SECRET
        assert environment["PYTHONSAFEPATH"] == "1"
        assert ("UNRELATED" in environment) == (rank == 0)
    told = (tmp_path / "bin" / "ssh-argv").read_text()
    assert SECRET not in told
    assert "StrictHostKeyChecking=yes" in told
    assert "StrictHostKeyChecking=no" not in told


# SIGTERM: above.
@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGINT], ids=str)
def test_a_signal_lets_all_ranks_save_and_end(tmp_path: Path, signum: signal.Signals) -> None:
    with launched(tmp_path) as running:
        both_run(tmp_path, running)
        running.send(signum)
        finished = running.finish()
        wait_until(lambda: not running.workers(), "nothing is left")

    assert finished.code == 4, finished
    assert (tmp_path / "saved-0").exists()
    assert (tmp_path / "saved-1").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "deaf"])
def test_nothing_is_left_if_a_launch_is_killed(tmp_path: Path, how: str) -> None:
    with launched(tmp_path, how) as running:
        both_run(tmp_path, running)
        running.kill()
        wait_until(lambda: not running.workers(), "nothing is left")

    assert (tmp_path / "saved-1").exists() == (not how)


def test_ranks_are_killed_after_the_grace_period(tmp_path: Path) -> None:
    with launched(tmp_path, "deaf", grace="0.5") as running:
        both_run(tmp_path, running)
        running.send(signal.SIGTERM)
        finished = running.finish()
        wait_until(lambda: not running.workers(), "nothing is left")

    assert not (tmp_path / "saved-0").exists()
    assert "may be left" not in finished.err


@pytest.mark.slow
def test_ranks_die_with_their_host_process(tmp_path: Path) -> None:
    with launched(tmp_path, grace="1") as running:
        both_run(tmp_path, running)
        for pid in running.workers():
            if b"imagenet_prep.launching.host" in words_of(pid):
                running.send(signal.SIGKILL, [pid])
        finished = running.finish()
        ranks = [pid for pid in running.workers() if RANK.encode() in words_of(pid)]

    assert ranks == []
    assert finished.code == 4
    assert says("process-runs-ranks", ..., "ended with code").search(finished.err)


def test_a_failing_rank_ends_all_with_its_code(tmp_path: Path) -> None:
    with launched(tmp_path, "fails", grace="0.5") as running:
        finished = running.finish()
        wait_until(lambda: not running.workers(), "nothing is left")

    assert finished.code == 3, finished
    assert "[1] imagenet-prep: no such thing\n" in finished.err
    assert "HOROVOD_RANK" not in finished.err


def test_the_first_unkilled_failure_decides_the_exit_code() -> None:
    assert crew.exit_code([(1, True), (137, False), (3, False)]) == 137
    assert crew.exit_code([(1, True)]) == 1
    assert crew.exit_code([]) == 0


def test_only_variables_for_training_are_sent() -> None:
    ours = {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "AWS_REGION": "eu",
        "HTTP_PROXY": "http://proxy",
    }
    secrets = {
        "AWS_SESSION_TOKEN": SECRET,
        "IMAGENET_PREP_TOKEN": SECRET,
        "HTTPS_PROXY": f"http://me:{SECRET}@proxy",
    }
    others = {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "3", "DB_PASSWORD": SECRET}
    environment = {**ours, **secrets, **others, "MY_FLAG": "1"}
    # A launch reads the lines of its ranks.
    environment["IMAGENET_PREP_LOG_FORMAT"] = "json"
    ours["IMAGENET_PREP_LOG_FORMAT"] = "text"
    through_ssh = travelling(environment, ["MY_FLAG"], private=True)
    through_mpi = travelling(environment, ["MY_FLAG"], private=False)

    assert through_ssh == {**ours, **secrets, "MY_FLAG": "1"}
    assert through_mpi == {**ours, "MY_FLAG": "1"}
    with pytest.raises(UsageError, match=says("env-mpirun-would-send-secret", "DB_PASSWORD")):
        travelling(environment, ["DB_PASSWORD"], private=False)
    with pytest.raises(UsageError, match=says("env-variable-not-set-here", "OTHER")):
        travelling(environment, ["OTHER"], private=True)


def test_mpirun_gets_only_names_and_our_ssh() -> None:
    hosts = [Host("node1", 2), Host("node2", 1)]
    network = RankNetwork("10.0.0.1", ("eth0", "eth0"), "10.0.0.1", (29500, 29501))
    more = ["-mca", "btl_base_verbose", "30"]
    words = crew.mpirun(hosts, network, {"NCCL_DEBUG": "a value"}, ["python", "train"], more)

    assert "a value" not in words
    assert words[words.index("-x") + 1] == "NCCL_DEBUG"
    agent = words[words.index("plm_rsh_agent") + 1]
    assert agent.startswith("ssh -o BatchMode=yes -o StrictHostKeyChecking=yes ")
    assert words[words.index("-H") + 1] == "node1:2,node2:1"
    assert words[-2 - len(through([])) - len(more) :] == [*more, *through(["python", "train"])]


def unique(mark: str) -> str:
    """Returns the mark of a launch: the end of a launch kills all ranks of this machine with it."""
    return f"{mark}-{os.getpid()}"


def test_mpiruns_ranks_keep_complete_lines_of_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # otherwise Python writes most lines in one piece
    starter = [sys.executable, "-c", MPIRUN, *through([sys.executable, "-c", SAYS_LONG_LINES])]
    order = LaunchOrder(unique("of-this-test"), str(tmp_path), [], {}, [], str(tmp_path / "logs"))
    code = Crew([Host("localhost", 2)], 60).run([order], starter, os.environ | {MARK: order.mark})

    said = capfd.readouterr()
    assert Counter(said.out.splitlines()) == {number * 9000: 40 for number in "01"}
    errors = Counter(said.err.splitlines())
    assert [errors[f"[{number}] {number * 9000}"] for number in "01"] == [40, 40]
    # Rank 1 reported a lost rank, so rank 0 died first.
    assert said.err.endswith("imagenet-prep: died or stalled: rank 0 on localhost\n")
    assert LEFT not in said.err
    assert code == 7
    for number in "01":
        log = (tmp_path / "logs" / f"rank-{number}.log").read_text()
        assert Counter(log.splitlines()) == {number * 9000: 80}


def test_mpiruns_ranks_start_only_if_logs_are_writable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("no folder")
    starter = [sys.executable, "-c", MPIRUN, *through([sys.executable, "-c", "print('evil')"])]
    order = LaunchOrder(unique("of-that-test"), str(tmp_path), [], {}, [], str(tmp_path / "logs"))
    code = Crew([Host("localhost", 2)], 60).run([order], starter, os.environ | {MARK: order.mark})

    said = capfd.readouterr()
    assert (code, said.out) == (7, "")
    assert says("rank-gets-no-pipes", "cannot write").search(said.err)


@pytest.mark.parametrize(
    ("rank", "code", "has_left", "limit_s"),
    [
        (1, 4, False, 600.0),  # it saves a checkpoint with all others
        (1, 4, True, crew._FAILED_S),  # it lost the other ranks
        (1, 1, False, crew._FAILED_S),
        (NO_RANK, 4, False, crew._FAILED_S),  # a host was lost
    ],
)
def test_only_orderly_ends_give_ranks_the_grace_period(
    monkeypatch: pytest.MonkeyPatch, rank: int, code: int, has_left: bool, limit_s: float
) -> None:
    orders: list[tuple[str, float]] = []
    launch = Crew([Host("a", 2)], 600.0)
    monkeypatch.setattr(launch, "_order", lambda *order: orders.append(order))
    if has_left:
        launch._heard(MessageFrame("left", {"rank": rank}))
    launch._heard(MessageFrame("failed", {"rank": rank, "code": code}))
    assert orders == [("limit", limit_s)]


def test_launch_returns_the_exit_code_of_mpirun() -> None:
    for code in (0, 7):
        starter = [sys.executable, "-c", f"raise SystemExit({code})"]
        assert Crew([], 1).run([], starter) == code
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert Crew([], 1).run([], killed) == 137


def test_only_the_exact_line_marks_a_lost_rank(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sentence = (
        "import sys; print(sys.argv[1], 'imagenet-prep: why', sep='\\n', file=sys.stderr); exit(1)"
    )
    known: list[int] = []
    left, cause = [
        Rank([sys.executable, "-c", sentence, line], {"HOROVOD_RANK": number}, left=known.append)
        for number, line in (("0", LEFT), ("1", f"it said {LEFT}"))
    ]
    assert (left.code(), cause.code()) == (1, 1)
    assert (left.voice.left, cause.voice.left, known) == (True, False, [0])
    assert left.reason() == "rank 0: why"
    assert f"[0] {LEFT}" not in capfd.readouterr().err


def test_logs_of_ranks_refuse_links_and_pipes(tmp_path: Path) -> None:
    mine = tmp_path / ".bashrc"
    logs = tmp_path / "logs"
    mine.write_text("# my own\n")
    logs.mkdir()
    (logs / "rank-0.log").symlink_to(mine)
    os.mkfifo(logs / "rank-1.log")
    for number in ("0", "1"):
        with pytest.raises(
            StoreError, match=says("file-folder-above-link-wrong", f"rank-{number}.log")
        ):
            Rank([sys.executable, "-c", "print('evil')"], {"RANK": number}, str(logs))
    assert mine.read_text() == "# my own\n"

    order = LaunchOrder("the-mark", str(tmp_path), ["true"], {}, [{"RANK": "0"}], str(logs))
    argv = [sys.executable, "-P", "-m", "imagenet_prep.launching.host", "run", "60"]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes, text=True) as process:
        # The end of its input would mean the end of `launch`.
        print(said_to_host(order).decode(), file=process.stdin, end="", flush=True)
        assert process.stderr is not None
        said = process.stderr.read()

    assert process.returncode == 1, said
    assert says("file-folder-above-link-wrong", f"imagenet-prep: {logs / 'rank-0.log'}").match(said)


def test_servers_get_no_signal_before_the_grace_period(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time; path = os.path.join(sys.argv[1], os.environ['DMLC_ROLE']);"
        "deaf = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN;"
        "open(path + '.partial', 'w').write(str(deaf));"
        "os.rename(path + '.partial', path); time.sleep(600)"
    )
    roles = [{"RANK": "0", "DMLC_ROLE": "worker"}, {"DMLC_ROLE": "server", "DMLC_SERVER_ID": "1"}]
    ranks = Ranks()
    ranks.start([sys.executable, "-c", code, str(tmp_path)], roles)
    names = {"worker", "server"}
    wait_until(lambda: {path.name for path in tmp_path.iterdir()} == names, "both run")
    # Servers ignore a SIGTERM from elsewhere, because ranks need them to save.
    assert {name: (tmp_path / name).read_text() for name in names} == {
        "worker": "False",
        "server": "True",
    }
    failed: list[tuple[str, int]] = []
    ranks.ask(1.0)
    done: list[int] = []
    ranks.wait(lambda rank: failed.append((rank.name, rank.code())), lambda: done.append(1))

    # A rank that the launch kills has not failed.
    assert failed == [("rank 0", 128 + signal.SIGTERM)]
    assert done == [1]
    assert [rank.name for rank in ranks._ranks] == ["rank 0", "server 1"]


def test_a_signalled_host_leaves_killing_to_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    class Asked(Ranks):
        def ask(self, grace_s: float = math.inf) -> None:
            asked.append(grace_s)

        def start(self, *_: object) -> None:
            """Starts no process."""

        def wait(self, *_: object) -> None:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(host, "Ranks", Asked)
    reading, writing = os.pipe()
    order = LaunchOrder("the-mark", ".", ["true"], {}, [{"RANK": "0"}], None)
    with os.fdopen(reading) as orders, os.fdopen(writing, "wb", 0) as launch:
        launch.write(said_to_host(order))
        host.run(Channel(orders.fileno(), os.dup(launch.fileno()), host.TO_HOST, silence_s=60))
        assert asked == [math.inf]


@pytest.mark.parametrize("alone", [True, False])
def test_a_second_signal_ends_only_a_single_process(alone: bool) -> None:
    """A signal to all processes reaches a rank twice: directly, and through its host."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    at_once = pytest.raises(KeyboardInterrupt) if alone else contextlib.nullcontext()
    try:
        stop = Stop(alone=alone)
        with stop.heard():
            assert not stop.came
            signal.raise_signal(signal.SIGTERM)
            with at_once:
                signal.raise_signal(signal.SIGTERM)
            assert stop.came
    finally:
        signal.signal(signal.SIGTERM, before)


def test_unused_servers_end_soon_after_the_ranks(
    tmp_path: Path, limits: Limits, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a script sends no request to its servers, they would wait for ever."""
    limits(failed_host_s=0.1)
    code = (
        "import os, sys, time; served = os.environ.get('DMLC_ROLE') == 'server';"
        "time.sleep(600 * served)"
    )
    roles = [{"RANK": "0"}, {"DMLC_ROLE": "server", "DMLC_SERVER_ID": "0"}]
    order = LaunchOrder("the-mark", str(tmp_path), [sys.executable, "-c", code], {}, roles, None)

    assert Crew([Host("localhost", 1)], 60.0).run([order]) == 0
    assert "died or stalled" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signum", "expected"),
    [
        (signal.SIGKILL, "rank 0: ended by signal 9 (Killed), which the kernel also sends if the "),
        (signal.SIGSEGV, "rank 0: ended by signal 11 (Segmentation fault); its last line: last"),
        (40, "rank 0: ended by signal 40 (Real-time signal 6); its last line: last"),
    ],
)
def test_ranks_ended_by_signals_name_the_likely_cause(signum: int, expected: str) -> None:
    code = f"import os, sys; print('last', file=sys.stderr); os.kill(os.getpid(), {int(signum)})"
    rank = Rank([sys.executable, "-c", code], {"HOROVOD_RANK": "0"})
    assert rank.code() == 128 + signum

    assert rank.reason().startswith(expected)
    assert rank.reason().endswith("; its last line: last")


@pytest.mark.parametrize(
    ("hosts", "interfaces", "expected"),
    [
        (["localhost"], ("lo",), {}),
        (["node1"], ("eth0",), {"plm_rsh_num_concurrent": "1", "btl_tcp_if_include": "eth0"}),
        (
            ["localhost", "node1"],
            ("eth0", "ib0"),
            {"plm_rsh_num_concurrent": "2"},  # mpirun takes one name for all hosts
        ),
    ],
)
def test_mpirun_uses_ssh_only_for_remote_hosts(
    hosts: list[str], interfaces: tuple[str, ...], expected: dict[str, str]
) -> None:
    network = RankNetwork("10.0.0.1", interfaces, "10.0.0.1", (29500, 29501))
    words = crew.mpirun([Host(each, 2) for each in hosts], network, {"B": "", "A": ""}, ["x"])

    names = ("plm_rsh_num_concurrent", "btl_tcp_if_include")
    found = {words[at - 1]: word for at, word in enumerate(words) if words[at - 1] in names}
    assert found == expected
    assert ("plm_rsh_agent" in words) == bool(expected)
    assert ("plm_rsh_no_tree_spawn" in words) == bool(expected)
    assert words[words.index("-np") + 1] == str(2 * len(hosts))
    assert [words[at + 1] for at, word in enumerate(words) if word == "-x"] == ["A", "B"]


@pytest.mark.parametrize(
    ("then", "kinds"),
    [
        ([peers.line("ask", seconds=1.0)], ["run", "ask"]),
        ([], ["run"]),
        ([b"junk\n", peers.line("ask", seconds=1.0)], ["run"]),
    ],
    ids=["asked", "ended", "junk"],
)
def test_hosts_wait_for_a_stopped_launch(then: list[bytes], kinds: list[str]) -> None:
    """Ctrl-Z stops `launch`, so that it is silent; its ranks continue."""
    reads, writes = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    order = LaunchOrder("the-mark", ".", ["true"], {}, [], None)
    orders = host._orders(Channel(reads, null, host.TO_HOST, silence_s=0.05))

    def speak() -> None:
        with os.fdopen(writes, "wb", 0) as launch:
            launch.write(said_to_host(order))
            time.sleep(0.3)
            for line in then:
                launch.write(line)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(speak)
        assert [each.kind for each in orders] == kinds


def test_host_starts_nothing_if_its_launch_ends_early() -> None:
    reads, writes = os.pipe()
    os.close(writes)
    null = os.open(os.devnull, os.O_WRONLY)
    host.run(Channel(reads, null, host.TO_HOST, silence_s=60))
