"""Commands on hosts have bounded output, and none outlives its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.hosts import commands
from imagenet_prep.hosts.commands import Ending, Login, run, run_all
from tests.kit.messages import wording


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_results_come_in_the_order_of_commands() -> None:
    program = "import sys; print('out', {0}); print('err', {0}, file=sys.stderr); sys.exit({0})"
    endings = run_all([python(program.format(number)) for number in (3, 0)])

    assert [each[:3] for each in endings] == [(3, "err 3", "out 3"), (0, "err 0", "out 0")]


def test_the_end_of_an_endless_output_is_kept() -> None:
    megabytes = "import sys; sys.{0}.write('x' * (3 << 20) + 'end')"
    out, err = run_all([python(megabytes.format(name)) for name in ("stdout", "stderr")])

    assert (len(out.output), len(err.said)) == (1 << 20, 4096)
    assert out.output.endswith("xend")
    assert err.said.endswith("xend")


def test_standard_error_may_be_merged_into_the_output() -> None:
    (ending,) = run_all([["sh", "-c", "echo one; echo two >&2; echo three"]], together=True)

    assert ending[:3] == (0, "", "one\ntwo\nthree")


def test_unstarted_and_unfinished_commands_have_no_code() -> None:
    missing = run(["no-such-program"])
    late = run(["sleep", "600"], timeout_s=0.1)

    assert missing[:2] == (None, "no-such-program cannot be started: No such file or directory")
    assert late[:2] == (None, "no answer in 0.1 s")


def test_a_command_has_no_input() -> None:
    assert run(python("import sys; print(repr(sys.stdin.read()))")).output == "''"


def test_an_interrupt_ends_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begin = commands.start

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(begin(*words, **options))
        return started[-1]

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "start", start)
    monkeypatch.setattr(commands._Running, "has_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all([["sleep", "600"]] * 2)
    assert [each.returncode for each in started] == [-signal.SIGKILL] * 2


def test_the_reason_is_one_line_without_escapes() -> None:
    assert Ending(1, "first\n\x1b[31mlast.\n").why == "?[31mlast"
    assert Ending(1, "", "This account is not available.").why == "This account is not available"
    final = Ending(255, "Host key verification failed.\nlost connection")
    assert (final.is_final, final.why) == (True, wording("host-key-verification-failed"))
    assert Ending(7, "").why == "its process ended with code 7"


@pytest.mark.parametrize(
    ("ending", "is_lost"),
    [
        (Ending(None, "no answer in 10 s", seconds=10.0), True),
        (Ending(None, "ssh cannot be started: No such file or directory"), False),
        (Ending(255, "ssh: connect to host b: No route to host"), True),
        (Ending(255, "x: Permission denied (publickey)."), False),
        (Ending(-9, ""), True),
        (Ending(137, "Killed"), True),
        (Ending(1, "cannot write"), False),
        (Ending(0, ""), False),
        (Ending(136, ""), False),
        (Ending(138, ""), False),
        (Ending(254, "x"), False),
        (Ending(255, "x: Host key verification failed."), False),
    ],
)
def test_only_temporary_failures_are_lost_hosts(ending: Ending, is_lost: bool) -> None:
    assert ending.is_lost == is_lost


def fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a program `ssh` into the PATH; $COUNT is a file for it."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("COUNT", str(folder / "count"))
    monkeypatch.setattr(commands, "RETRY_S", 0.01)


DROPPED = "kex_exchange_identification: Connection closed by remote host"


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("message", "code", "starts"),
    [
        (DROPPED, 255, 2),
        ("ssh_exchange_identification: read: Connection reset by peer", 255, 2),
        ("Connection closed by 10.0.0.1 port 22", 255, 2),
        ("Connection reset by 10.0.0.1 port 22", 255, 2),
        ("Connection to n1 closed by remote host.", 255, 1),
        ("Permission denied (publickey)", 255, 1),
        ("half of the output; Connection closed by 10.0.0.1 port 22", 255, 1),
        (DROPPED, 1, 1),
    ],
)
def test_only_connections_dropped_before_login_are_retried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    message: str,
    code: int,
    starts: int,
    *,
    together: bool,
) -> None:
    script = (
        "echo x >>$COUNT; [ $(wc -l <$COUNT) = 2 ] && echo connected >&2 && exit 0; "
        f"echo '{message}' >&2; exit {code}"
    )
    fake_ssh(tmp_path, monkeypatch, script)
    heard: list[tuple[int, bytes]] = []
    commands = [["true"], ["ssh", "n1", "true"]]
    endings = run_all(commands, together=together, hear=lambda *line: heard.append(line))

    assert (tmp_path / "count").read_text() == "x\n" * starts
    assert [ending.code for ending in endings] == [0, 0 if starts == 2 else code]
    if not together:
        lines = [(1, f"{message}\n".encode()), (1, b"connected\n")]
        assert heard == lines[:starts]


def test_few_connections_log_in_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_LOGIN_S", 1e6)
    monkeypatch.setattr(Login, "_free", threading.Semaphore(8))
    logins = [Login(["ssh", "n"]) for _ in range(8)]
    local = [Login(["sh"]) for _ in range(8)]  # do not wait
    assert not Login._free.acquire(blocking=False)
    for _ in range(2):
        logins[0].end()
        local[0].end()
    assert Login._free.acquire(blocking=False)
    assert not Login._free.acquire(blocking=False)
    for login in logins:
        login.end()


def test_sshd_accepts_as_many_logins_as_we_make() -> None:
    # MaxStartups of sshd is 10:30:100.
    assert commands._MOST_LOGINS < 10


def test_the_first_output_ends_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, "echo logged in; while [ ! -e $COUNT ]; do sleep 0.01; done")
    monkeypatch.setattr(commands, "_LOGIN_S", 1e6)
    monkeypatch.setattr(Login, "_free", threading.Semaphore(1))
    # The second command ends the first one, so both exist at the same time.
    endings = run_all([["ssh", "n1", "x"], ["ssh", "n2", "y"], ["touch", str(tmp_path / "count")]])

    assert [ending.code for ending in endings] == [0, 0, 0]
