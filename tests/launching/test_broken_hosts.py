"""A launch with a broken or hostile host is given up, and no rank is left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching.crew import Crew
from imagenet_prep.launching.host import LaunchOrder
from tests.kit.command import PATIENCE_S
from tests.kit.hostile import peers
from tests.kit.limits import Limits
from tests.kit.messages import says

# Each of these must be refused, regardless of the host's other messages.
WRONG = {
    "garbage": b"\x00\xff no message\n",
    "another-end": peers.line("whole"),
    "no-text-of-fields": b'["failed",0,"all"]\n',
    "a-rank-by-name": peers.line("failed", rank="0", code=1),
    "a-rank-below-none": peers.line("failed", rank=-2, code=1),
    "a-rank-that-did-not-fail": peers.line("failed", rank=1, code=0),
    "a-code-that-would-be-0": peers.line("failed", rank=1, code=256),
    "a-code-of-true": peers.line("failed", rank=1, code=True),
    "left-by-none": peers.line("left", rank=-1),
    "a-field-too-few": peers.line("failed", rank=1),
    "a-field-too-many": peers.line("done", more=1),
    "more-bytes-than-a-line": b'["printed",99999999,{}]\n',
    "bytes-below-none": b'["printed",-1,{}]\n',
    "done-twice": peers.line("done") + peers.line("done"),
    "more-failures-than-ranks": 2 * peers.line("failed", rank=1, code=9),
    "more-left-than-ranks": 3 * peers.line("left", rank=1),
}
LONG_LINE = "exec head -c 10000000 /dev/zero | tr '\\0' x"


# Replaces a sound host, because Python takes too long to start: reads the order to run its rank,
# and then the order to end it.
DONE = peers.program(peers.line("done"), then="exit 0")
SOUND = peers.program(peers.line("alive"), then=f"read -r run; read -r end\n{DONE}")


def launched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, first: str = "node0"
) -> int:
    """Returns the exit code of a launch of two ranks, in which ssh to the second host is a script.

    Args:
      folder: the current folder of the ranks.
      monkeypatch: sets the path.
      script: replaces ssh to the second host.
      first: the other host, "node0" or "localhost".
    """
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\ncase "$*" in *node0*)\n{SOUND}\n;; esac\n{script}')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    Limits(monkeypatch)(failed_host_s=0.1)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    orders = [
        LaunchOrder("m", str(folder), command, {}, [{"RANK": rank}], None) for rank in ("0", "1")
    ]
    begun = time.monotonic()
    code = Crew([Host(first, 1), Host("node1", 1)], 60.0).run(orders)
    assert time.monotonic() - begun < PATIENCE_S
    return code


@pytest.mark.parametrize("sentence", WRONG.values(), ids=WRONG)
def test_hosts_that_break_the_protocol_are_given_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sentence: bytes,
) -> None:
    said = peers.GREETING + b"\n" + peers.line("alive") + sentence
    first = "localhost" if sentence == WRONG["garbage"] else "node0"
    code = launched(tmp_path, monkeypatch, peers.program(said), first)
    err = capsys.readouterr().err

    assert code in (1, 9)
    assert says("process-runs-ranks", "imagenet-prep: node1", "was ended: it s").search(err)
    assert "\x1b" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("first", [b"", peers.line("alive")], ids=["at-first", "later"])
def test_hosts_that_send_endless_lines_are_given_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: bytes,
) -> None:
    code = launched(tmp_path, monkeypatch, peers.program(first, then=LONG_LINE), "localhost")

    assert code == 1
    assert says("sent", "'xxxxx").search(err := capsys.readouterr().err)
    assert len(err) < 1000


def test_silent_hosts_are_given_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limits: Limits,
) -> None:
    # Python starts on this machine within the limit of the first message, which is longer.
    limits(silent_host_s=5.0)
    hangs = peers.program(peers.line("alive"), then="exec sleep 1000")

    assert launched(tmp_path, monkeypatch, hangs, "localhost") == 4
    assert says("process-runs-ranks", "node1", "was ended: it has sent nothing for 5 s").search(
        capsys.readouterr().err
    )


def test_the_output_of_ranks_is_passed_on_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = [b"one\n", "\u00e9\n".encode(), b"\xff\n", b'["done",0,{}]\n', b"no end"]
    said = b"".join(peers.line("printed", each) for each in printed)
    code = launched(tmp_path, monkeypatch, peers.program(said, then="exit 1"))

    assert code == 1
    assert capsys.readouterr().out == 'one\n\u00e9\n\ufffd\n["done",0,{}]\nno end'


@pytest.mark.parametrize("drops", [1, 2])
def test_connections_dropped_before_login_are_retried_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drops: int,
) -> None:
    monkeypatch.setattr("imagenet_prep.launching.crew.RETRY_S", 0.01)
    dropped = "kex_exchange_identification: read: Connection reset by peer"
    count = tmp_path / "count"
    script = f"echo x >>{count}\n"
    script += f"if [ $(wc -l <{count}) -le {drops} ]; then echo '{dropped}' >&2; exit 255; fi\n"
    code = launched(tmp_path, monkeypatch, script + SOUND)
    err = capsys.readouterr().err

    assert count.read_text() == "x\nx\n"
    # The second drop is reported, and the launch may be repeated.
    assert code == (0 if drops == 1 else 4), err
    assert (bool(says("process-runs-ranks", "node1", "ended").search(err))) == (drops == 2)
