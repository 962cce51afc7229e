"""The sending end of a hop: gives one neighbour what it lacks, as soon as it is here.

`python -m imagenet_prep.distribute.send`, started by the leader, through ssh where it is not
the leader's own host. A file that is still arriving is passed on while it arrives, so that a
chain of hosts takes hardly longer than one hop. It ends when the leader does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO

from imagenet_prep.core import children, naming
from imagenet_prep.core.hosts import LOCAL, ssh_argv
from imagenet_prep.core.manifest import File
from imagenet_prep.distribute.pace import Pace
from imagenet_prep.distribute.replica import Replica, incoming_path
from imagenet_prep.distribute.wire import CHUNK_BYTES, PROTOCOL, BrokenError, Channel, Frame

# How soon bytes that arrived here are passed on: costs every host of a chain so much, once.
_POLL_S = 0.01
# The same file wrong twice is no accident of the way.
_MAX_WRONG = 2
_STDERR_BYTES = 2000
# A process whose output has ended has hardly anything left to do.
_END_S = 1.0

# AES in hardware is three times as fast as ssh's first choice. No connection is shared with
# other ssh commands: a master would stay behind. 4 x 5 s without an answer end it.
SSH_OPTIONS = (
    "Ciphers=^aes128-gcm@openssh.com",
    "Compression=no",
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
)


def command_on(address: str, argv: list[str]) -> list[str]:
    """Returns what runs `argv` on a host, which may be this one."""
    return argv if address in LOCAL else ssh_argv(address, argv, options=SSH_OPTIONS)


class Process:
    """A process of ours on some host, and the channel to it.

    Attributes:
      channel: to its standard input and output.
    """

    def __init__(self, address: str, argv: list[str], *, silence_s: float | None = None) -> None:
        """Starts it; it ends when its input does, which is when this process ends."""
        self._popen = subprocess.Popen(
            command_on(address, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is the leader's: it ends the rest in order.
            start_new_session=True,
        )
        self._stderr = b""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.channel = Channel(
            self._popen.stdout.fileno(), self._popen.stdin.fileno(), silence_s=silence_s
        )
        self._drain = threading.Thread(target=self._keep, args=(self._popen.stderr,), daemon=True)
        self._drain.start()

    def end(self) -> tuple[int, str]:
        """Ends it where it has not ended; returns exit code and the last of what it complained.

        Called by the thread that reads from its channel, and by no other.
        """
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        code = self._popen.wait()
        self._drain.join(_END_S)
        with self.channel.closing():
            for pipe in (self._popen.stdin, self._popen.stdout):
                assert pipe is not None
                pipe.close()
        return code, self._stderr.decode(errors="replace").strip()

    def kill(self) -> None:
        """Kills what runs here of it: the ssh, or the process itself."""
        self._popen.kill()

    def _keep(self, stderr: IO[bytes]) -> None:
        with stderr:
            while data := os.read(stderr.fileno(), 4096):
                self._stderr = (self._stderr + data)[-_STDERR_BYTES:]


class Hop:
    """One neighbour that is being given what it lacks."""

    def __init__(self, begin: Frame, leader: Channel) -> None:
        """Starts the receiver.

        Args:
          begin: the manifest, and as fields root (of the files here), proven (all of them are
            the data set's own), address, path, python and placement of the neighbour, origin,
            prove, limit (bytes a second).
          leader: where the neighbour's answers go.
        """
        settings = begin.fields
        self._replica = Replica(Path(settings["root"]).expanduser(), begin.body)
        self._trusted = bool(settings["proven"])
        self._leader = leader
        self._pace = Pace(settings["limit"])
        self._wrong: Counter[str] = Counter()
        self._todo: dict[str, File] | None = None
        self._begun: dict[str, int] = {}
        self._news = threading.Condition()
        self._over = False
        module = "imagenet_prep.distribute.receive"
        self.receiver = Process(
            settings["address"],
            children.python("-m", module, settings["path"], program=settings["python"]),
        )
        self._begin = begin

    def run(self) -> None:
        """Sends until the neighbour is whole, refuses, or is lost; the leader is told which."""
        answers = threading.Thread(target=self._listen, daemon=True)
        answers.start()
        try:
            self.receiver.channel.write(
                "begin",
                self._begin.body,
                protocol=PROTOCOL,
                task="store",
                origin=self._begin.fields["origin"],
                prove=self._begin.fields["prove"],
                placement=self._begin.fields["placement"],
            )
            while not self._over:
                file = self._next()
                if file is None:
                    with self._news:
                        self._news.wait(_POLL_S)
                    self.receiver.channel.keep_alive()
                else:
                    self._send(file)
        except OSError:
            pass  # the neighbour's end of it is what `_listen` reports
        answers.join()

    def _listen(self) -> None:
        verdict = False
        try:
            while (frame := self.receiver.channel.read()) is not None:
                self._leader.write(frame.kind, **frame.fields)
                verdict = frame.kind in ("whole", "error")
                if frame.kind == "lacks":
                    names = set(frame.fields["names"])
                    with self._news:
                        self._begun = frame.fields["begun"]
                        self._todo = {f.name: f for f in self._replica.files if f.name in names}
                        self._news.notify()
                elif frame.kind == "wrong":
                    verdict = self._again(frame.fields["name"])
                if verdict:
                    break
        except BrokenError as error:
            self._leader.write("broken", message=str(error))
        finally:
            self._over = True
            code, said = self.receiver.end()
            if not verdict:
                self._leader.write("lost", code=code, said=said)

    def _again(self, name: str) -> bool:
        """Puts a file that arrived wrong back in line; True where it is wrong here."""
        self._wrong[name] += 1
        if self._wrong[name] >= _MAX_WRONG:
            self._leader.write("spoiled", name=name)
            return True
        with self._news:
            file = next(file for file in self._replica.files if file.name == name)
            assert self._todo is not None
            self._todo[name] = file
            self._news.notify()
        return False

    def _next(self) -> File | None:
        """Takes the first file that is here, or is arriving here, out of the line."""
        with self._news:
            if not self._todo:
                return None
            arriving: set[str] = set()
            if not self._trusted:
                self._replica.reload()
                arriving = self._replica.arriving()
            for name, file in self._todo.items():
                # Whoever sees a shard finds its index.
                if naming.index_name(name) in self._todo:
                    continue
                if self._trusted or name in arriving or self._replica.is_proven(file):
                    return self._todo.pop(name)
            return None

    def _send(self, file: File) -> None:
        channel = self.receiver.channel
        opened = self._open(file)
        if opened is None:
            self._put_back(file)
            return
        # Once: where the beginning turns out to be wrong, all of it is sent.
        start = self._begun.pop(file.name, 0)
        channel.write("file", name=file.name, start=start)
        with opened:
            opened.seek(start)
            left = file.num_bytes - start
            while left and not self._over:
                data = opened.read(min(CHUNK_BYTES, left))
                if data:
                    left -= len(data)
                    self._pace.take(len(data))
                    channel.write("chunk", data)
                elif self._trusted or os.fstat(opened.fileno()).st_nlink == 0:
                    # Cut short at its source, or it broke off here too.
                    break
                else:
                    time.sleep(_POLL_S)
                    channel.keep_alive()
        channel.write("end" if not left or self._trusted else "abandon")
        if left and not self._trusted:
            self._put_back(file)

    def _open(self, file: File) -> IO[bytes] | None:
        """Returns the file as it is here; None where it vanished meanwhile."""
        final = self._replica.store.path(file.name)
        growing = incoming_path(self._replica.store.root, file.name)
        paths = (final,) if self._trusted or self._replica.is_proven(file) else (growing, final)
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                return open(path, "rb", buffering=0)
        return None

    def _put_back(self, file: File) -> None:
        with self._news:
            assert self._todo is not None
            self._todo.setdefault(file.name, file)
        time.sleep(_POLL_S)


def _follow(leader: Channel, hop: Hop) -> None:
    """Ends everything as soon as the leader is gone."""
    with contextlib.suppress(BrokenError, OSError):
        while leader.read() is not None:
            pass
    hop.receiver.kill()
    os._exit(1)


def main() -> None:
    """Runs one hop for the leader at the other end of the standard streams."""
    leader = Channel(0, 1)
    begin = leader.read()
    if begin is None or begin.fields.get("protocol") != PROTOCOL:
        sys.exit("imagenet-prep here and there differ: install the same version on every host")
    hop = Hop(begin, leader)
    threading.Thread(target=_follow, args=(leader, hop), daemon=True).start()
    hop.run()
    # The thread that follows the leader still waits for it.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
