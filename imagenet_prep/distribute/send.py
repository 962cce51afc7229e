"""The sender: a process that sends one host the files that the host lacks.

The leader starts `python -m imagenet_prep.distribute.send SILENCE_S`, if needed through ssh, and
the sender ends when the leader ends. A file is forwarded while it is still arriving, so a chain of
hosts takes hardly longer than a single transfer.

`Hop.run` sends files, while two threads read messages from the receiver and from the leader.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset.manifest import File
from imagenet_prep.distribute.line import Line
from imagenet_prep.distribute.messages import FROM_STORING, TO_GIVER, documents
from imagenet_prep.distribute.pace import Pace
from imagenet_prep.distribute.replica import Replica, incoming_name
from imagenet_prep.hosts.channel import Channel, Frame, Process
from imagenet_prep.hosts.messages import CHUNK_BYTES, PROTOCOL, BrokenError, Cause
from imagenet_prep.storage.local_file import storage_errors

# Pause between checks for new bytes of an arriving file. Each host of a chain adds this delay.
_POLL_S = 0.01


class Hop:
    """The connection to one receiver, whose answers are forwarded to the leader."""

    def __init__(self, give: Frame, leader: Channel, silence_s: float) -> None:
        settings = give.fields
        data, columns = documents(give.body, settings["columns"])
        self._replica = Replica(Path(settings["root"]).expanduser(), data, columns=columns)
        # True for the folder of the dataset itself: all files exist and need no verification.
        self._trusted: bool = settings["trusted"]
        self._leader = leader
        self._pace = Pace(settings["limit"])
        self._line = Line(self._replica.files)
        self._news = threading.Condition()
        # `_over`: the receiver has ended or sent its last message. `_failed`: a file on this host
        # cannot be read.
        self._over = self._failed = False
        words = ("imagenet_prep.distribute.receive", settings["path"])
        self.receiver = Process(
            settings["address"], settings["python"], words, FROM_STORING, silence_s
        )
        same = {name: settings[name] for name in ("columns", "origin", "prove", "parent")}
        placement = dataclasses.astuple(settings["placement"])
        self.receiver.channel.begin(
            "store", give.body, protocol=PROTOCOL, placement=placement, **same
        )

    def run(self) -> None:
        """Sends files until the receiver has all, fails or is lost; reports this to the leader."""
        with ThreadPoolExecutor(1, thread_name_prefix="answers") as listener:
            answers = listener.submit(self._listen)
            try:
                while not self._over:
                    following = self._next()
                    if following is None:
                        with self._news:
                            self._news.wait(_POLL_S)
                    else:
                        self._send(*following)
            except OSError:
                # `_listen` sees the same broken connection and reports it.
                self.receiver.kill()
            except ImagenetPrepError:
                self._failed = True
                self.receiver.kill()
                raise
        answers.result()

    def _listen(self) -> None:
        """Reads the receiver's messages to the end; an invalid message ends the connection."""
        try:
            broken, ending = self.receiver.listen(self._message)
        finally:
            # Stop `run` even after an exception, because no more answers are read.
            done = self._over
            self._over = True
        cause = broken.cause if broken else Cause.ENDED
        if cause is Cause.ENDED and ending.is_of_ssh:
            cause = Cause.UNREACHED
        if not done and not self._failed:
            with contextlib.suppress(
                OSError
            ):  # if the leader has ended, `_follow` ends this process
                self._leader.write("lost", cause=cause, why=str(broken or ending.why))

    def _message(self, frame: Frame) -> bool:
        """Handles and forwards a message of the receiver; returns whether it is the last."""
        fields = frame.fields
        spoiled = False
        with self._news:
            match frame.kind:
                case "lacking":
                    self._line.lacks(fields["name"], fields["begun"])
                    return False
                case "lacks":
                    self._line.lacks_no_more(fields["files"])
                    self._offer_files()
                case "stored":
                    self._line.stored(fields["name"])
                case "wrong":
                    spoiled = self._line.wrong(fields["name"])
                case "whole":
                    self._line.finish()
            self._news.notify()
        self._leader.write(frame.kind, **fields)
        if spoiled:
            self._leader.write("spoiled", name=fields["name"])
        self._over = spoiled or frame.kind in ("whole", "error")
        return self._over

    def _offer_files(self) -> None:
        if not self._trusted:
            self._replica.reload()
        self._line.offer(file.name for file in self._replica.files if self._is_valid(file))

    def _is_valid(self, file: File) -> bool:
        return self._trusted or self._replica.is_proven(file.name)

    def _next(self) -> tuple[File, int] | None:
        """Offers all files that this host has or is receiving; returns `Line.next()`."""
        with self._news:
            if not self._trusted and self._line.all_named:
                self._line.offer(self._replica.reload())
                self._line.offer(self._replica.arriving())
            return self._line.next()

    def _send(self, file: File, start: int) -> None:
        channel = self.receiver.channel
        opened = self._open(file)
        if opened is None:
            self._put_back(file)
            return
        channel.write("file", name=file.name, start=start)
        with opened:
            opened.seek(start)
            remaining = file.num_bytes - start
            while remaining and not self._over:
                with self._errors_of(file):
                    data = opened.read(min(CHUNK_BYTES, remaining))
                if data:
                    remaining -= len(data)
                    self._pace.take(len(data))
                    channel.write("chunk", data)
                elif self._trusted or os.fstat(opened.fileno()).st_nlink == 0:
                    # The source file is too short, or its transfer to this host has failed.
                    break
                else:
                    time.sleep(_POLL_S)
        channel.write("end" if not remaining or self._trusted else "abandon")
        if remaining and not self._trusted:
            self._put_back(file)

    def _errors_of(self, file: File) -> contextlib.AbstractContextManager[None]:
        """Turns OSError into StoreError, because `run` treats an OSError as a lost connection."""
        return storage_errors("read", self._replica.store.path(file.name))

    def _open(self, file: File) -> IO[bytes] | None:
        """Opens a file that is verified or still arriving; returns None if it has vanished."""
        store = self._replica.store
        with self._errors_of(file):
            if not self._is_valid(file):
                with contextlib.suppress(FileNotFoundError):
                    growing = store.open(incoming_name(file.name), os.O_RDONLY)
                    return os.fdopen(growing, "rb", buffering=0)
            with contextlib.suppress(FileNotFoundError):
                path = store.path(file.name)
                return open(regular_file.open_to_read(path), "rb", buffering=0)
        return None

    def _put_back(self, file: File) -> None:
        with self._news:
            self._line.put_back(file.name)
            if self._is_valid(file):
                self._line.offer([file.name])
        time.sleep(_POLL_S)


def _follow(leader: Channel, hop: Hop) -> None:
    with contextlib.suppress(BrokenError, OSError):
        while leader.read() is not None:
            pass
    hop.receiver.kill()
    os._exit(1)


def main() -> None:
    """Runs the sender; its standard streams are connected to the leader."""
    silence_s = float(sys.argv[1])
    leader = Channel(0, 1, TO_GIVER, silence_s=silence_s)
    leader.begin()
    try:
        give = leader.read()
        if give is None:
            return
        hop = Hop(give, leader, silence_s)
    except (BrokenError, ImagenetPrepError, OSError) as error:
        sys.exit(str(error))
    threading.Thread(target=_follow, args=(leader, hop), daemon=True).start()
    try:
        hop.run()
    except ImagenetPrepError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    # Exit at once, because a thread still waits for messages of the leader.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
