"""The sender of `replicate`: a process that sends one host the files that the host lacks.

The leader starts `python -m imagenet_prep.distribute.send SILENCE_S`, if needed through ssh, and
the sender ends when the leader ends. A file is forwarded while it is still arriving, so a chain of
hosts takes hardly longer than a single transfer.

`Hop.run` sends files, while two threads read messages from the receiver and from the leader.

`Pace` is a rate limit in bytes per second that several threads share.

`Original` is the dataset to replicate, in a folder or a bucket: its manifest and the bytes of its
files.

`Line` has the files that a receiving host lacks, in the order in which they are sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from imagenet_prep.core import small_files
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, StoreError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.distribute.hosts import FROM_STORING, TO_GIVER, documents
from imagenet_prep.distribute.lead import MAX_WRONG
from imagenet_prep.distribute.replica import Replica, incoming_name
from imagenet_prep.hosts.channel import (
    CHUNK_BYTES,
    PROTOCOL,
    BrokenError,
    Cause,
    Channel,
    MessageFrame,
    Process,
)
from imagenet_prep.storage.dataset_store import refuse_unfinished
from imagenet_prep.storage.fetch import contents
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Journal
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import AbsentError, Access
from imagenet_prep.storage.store import open_readable


class Pace:
    """Limits the rate to `bytes_per_s`; 0 means no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> None:
        """Waits until `num_bytes` more may be sent."""
        if not self._bytes_per_s:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + num_bytes / self._bytes_per_s
        time.sleep(max(0.0, start - time.monotonic()))


class Original:
    """The dataset to replicate; thread-safe. `data` is its manifest at the start of the run."""

    def __init__(
        self, base: str, *, connections: int, timeout_s: float, retries: int, bytes_per_s: float
    ) -> None:
        """Reads the manifest. `bytes_per_s` limits the total rate; 0 means no limit."""
        if not is_remote(base):
            small_files.refuse_other_kinds(Path(base).expanduser() / schema.MANIFEST)
        self.base = base
        remedy = "Files that have arrived are kept: run the same command again to resume."
        access = Access(
            connections=connections, timeout_s=timeout_s, retries=retries, remedy=remedy
        )
        self._store = open_readable(base, access)
        self._pace = Pace(bytes_per_s)
        self.columns: dict[str, bytes] = {}  # column.json of each column to copy, by column name
        try:
            self.data = self._read(schema.MANIFEST)
        except AbsentError as error:
            if self._store.sizes(schema.BEGUN):
                refuse_unfinished(self._store)
            advice = (
                " If train and validation are in two buckets, copy one split into the bucket of "
                "the other before."
            )
            raise UsageError(
                f"{error} Without {schema.MANIFEST}, it is not a dataset of imagenet-prep. For "
                "TFRecords of a different program, first run imagenet-prep adopt "
                f"{shlex.quote(base)}." + (advice if is_remote(base) else "")
            ) from None

    def chunks(self, file: DatasetFile) -> Iterator[bytes]:
        """Yields the bytes of a file, as fast as the rate limit allows."""
        for chunk in contents(self._store, file, "Run verify on the dataset."):
            self._pace.take(len(chunk))
            yield chunk

    def require_unchanged(self) -> None:
        """Raises IncompleteError if the dataset has changed since the run began."""
        try:
            last = {column.record_name(name): data for name, data in self.columns.items()}
            last[schema.MANIFEST] = self.data
            unchanged = all(self._read(name) == data for name, data in last.items())
        except AbsentError:
            unchanged = False
        if not unchanged:
            raise IncompleteError(
                f"{self.base}: the dataset, or a column, has changed since this run started, so "
                "the copies have no manifest. Run the same command again when the change is "
                "complete. If it is a new dataset now, choose a different target."
            )

    def note_replicas(self, places: Sequence[str], digest: str, copies: int = 0) -> None:
        """Records the locations of complete replicas of the dataset with this digest.

        `copies`: the number of hosts with each shard if each place has only its part; else 0.
        """
        if "://" in self.base:
            return
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        journal = Journal(LocalStore(Path(self.base).expanduser()), schema.REPLICAS)
        noted: dict[str, dict[str, Any]] = {}
        # Ignore errors: only `report` shows this list, and the dataset may be read-only.
        with contextlib.suppress(OSError, StoreError):
            for entry in journal.news():
                match entry:
                    case {"where": str(where), "digest": str()}:
                        noted[where] = entry
            for place in places:
                entry = {"where": place, "when": when, "digest": digest}
                if copies:
                    entry["copies"] = copies
                last = noted.get(place, {})
                if any(last.get(name) != entry.get(name) for name in ("digest", "copies")):
                    journal.add(entry)

    def _read(self, name: str) -> bytes:
        self._store.stat(name)  # raises AbsentError, also in a folder
        return self._store.read(name)


class Line:
    """The files that a receiving host lacks. Not thread-safe: the caller must hold a lock.

    Each file is first *lacking*. It is *offered* when the sending host has or is receiving it,
    then taken by `next`, and finally *stored* by the receiving host. A shard's index and samples
    table are sent before the shard, so that they exist when the shard appears.
    """

    def __init__(self, files: Sequence[DatasetFile]) -> None:
        self.all_named = False  # whether the receiving host has listed all lacking files
        self._files = {file.name: file for file in files}
        # The number of leading bytes that the receiving host has, by name of a lacking file.
        self._lacking: dict[str, int] = {}
        self._offered: set[str] = set()
        self._ready: deque[str] = deque()
        # Shards that wait until a different file is sent, by the name of that file.
        self._held: dict[str, str] = {}
        self._going: set[str] = set()
        self._wrong: Counter[str] = Counter()

    def lacks(self, name: str, begun: int) -> None:
        """Notes a missing file, of which the receiving host has the first `begun` bytes."""
        file = self._files.get(name)
        if self.all_named or file is None or name in self._lacking:
            raise BrokenError(f"it unexpectedly reported {name} as missing")
        if begun > file.num_bytes:
            raise BrokenError(f"{name}: it has {begun:,} of {file.num_bytes:,} bytes")
        self._lacking[name] = begun

    def lacks_no_more(self, files: int) -> None:
        """Notes that the receiving host has listed all missing files; `files` is their number."""
        if self.all_named or files != len(self._lacking):
            raise BrokenError(
                f"it named {len(self._lacking):,} of {counted(files, 'missing file')}"
            )
        self.all_named = True

    def offer(self, names: Iterable[str]) -> None:
        """Notes files that the sender has or is receiving; ignores files that are not lacking."""
        for name in names:
            if name in self._lacking and name not in self._offered:
                self._offered.add(name)
                self._ready.append(name)

    def next(self) -> tuple[DatasetFile, int] | None:
        """Takes the next file to send, if any; returns it and the number of bytes to skip."""
        if not self.all_named:
            return None
        while self._ready:
            name = self._ready.popleft()
            waits_for = next((part for part in schema.beside(name) if part in self._lacking), None)
            if waits_for is not None:
                self._held[waits_for] = name
                continue
            shard = self._held.pop(name, None)
            if shard is not None:
                self._ready.appendleft(shard)
            self._offered.discard(name)
            self._going.add(name)
            return self._files[name], self._lacking.pop(name)
        return None

    def put_back(self, name: str) -> None:
        """Notes that a file vanished before it was sent, so that it can be offered again."""
        if name in self._going:
            self._going.remove(name)
            # Send the file from its start, since the first bytes may be damaged.
            self._lacking[name] = 0

    def stored(self, name: str) -> None:
        """Notes that the receiving host has stored and verified a file."""
        if name not in self._going:
            raise BrokenError(f"it stored {name}, which was not sent")
        self._going.remove(name)

    def wrong(self, name: str) -> bool:
        """Re-offers a file that arrived damaged; returns whether the sender's copy is damaged."""
        if name not in self._going:
            raise BrokenError(f"it reported {name} as damaged, which was not sent")
        self.put_back(name)
        self.offer([name])
        self._wrong[name] += 1
        return self._wrong[name] >= MAX_WRONG

    def finish(self) -> None:
        """Raises BrokenError if a host lacks files, although it reports that it is complete."""
        remaining = len(self._lacking) + len(self._going)
        if not self.all_named or remaining:
            raise BrokenError(f"it reports success, but lacks {counted(remaining, 'file')}")


# Pause between checks for new bytes of an arriving file. Each host of a chain adds this delay.
_POLL_S = 0.01


class Hop:
    """The connection to one receiver, whose answers are forwarded to the leader."""

    def __init__(self, give: MessageFrame, leader: Channel, silence_s: float) -> None:
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
        names = ("columns", "origin", "prove", "parent", "replaces")
        same = {name: settings[name] for name in names}
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

    def _message(self, frame: MessageFrame) -> bool:
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

    def _is_valid(self, file: DatasetFile) -> bool:
        return self._trusted or self._replica.is_proven(file.name)

    def _next(self) -> tuple[DatasetFile, int] | None:
        """Offers all files that this host has or is receiving; returns `Line.next()`."""
        with self._news:
            if not self._trusted and self._line.all_named:
                self._line.offer(self._replica.reload())
                self._line.offer(self._replica.arriving())
            return self._line.next()

    def _send(self, file: DatasetFile, start: int) -> None:
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

    def _errors_of(self, file: DatasetFile) -> contextlib.AbstractContextManager[None]:
        """Turns OSError into StoreError, because `run` treats an OSError as a lost connection."""
        return storage_errors("read", self._replica.store.path(file.name))

    def _open(self, file: DatasetFile) -> IO[bytes] | None:
        """Opens a file that is verified or still arriving; returns None if it has vanished."""
        store = self._replica.store
        with self._errors_of(file):
            if not self._is_valid(file):
                with contextlib.suppress(FileNotFoundError):
                    growing = store.open(incoming_name(file.name), os.O_RDONLY)
                    return os.fdopen(growing, "rb", buffering=0)
            with contextlib.suppress(FileNotFoundError):
                path = store.path(file.name)
                return open(small_files.open_to_read(path), "rb", buffering=0)
        return None

    def _put_back(self, file: DatasetFile) -> None:
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
