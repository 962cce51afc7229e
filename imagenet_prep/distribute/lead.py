"""The leader of a replication to hosts: starts a sending process for each host.

For each host, a thread starts the process that sends files to it (a `Giver`), here or on a
different host, and puts its messages into a queue. One loop passes all messages to the `Chain`.
The loop never waits for a host, so a slow host cannot delay other hosts.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from imagenet_prep.dataset import naming
from imagenet_prep.distribute.chain import Chain, Peer
from imagenet_prep.distribute.hosts import Request
from imagenet_prep.distribute.messages import FROM_GIVER
from imagenet_prep.hosts.channel import START_S, Frame, Process
from imagenet_prep.hosts.process import command_on, plain, run
from imagenet_prep.storage.folder import LocalStore

_TICK_S = 0.5
_PROBE_EVERY_S = 1.0
# The maximum number of messages of one sender in the queue. More messages block the sender.
_MAX_WAITING = 64


class Giver:
    """A process that sends files to one host; `room` limits its number of queued messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self.room = threading.Semaphore(_MAX_WAITING)
        self.stopped = False

    def started(self, process: Process) -> None:
        """Stores the process; kills it if `stop` was called before."""
        with self._lock:
            self._process = process
            if self.stopped:
                process.kill()

    def stop(self) -> None:
        """Kills the process; the thread that listens to it then closes its pipes."""
        with self._lock:
            self.stopped = True
            if self._process is not None:
                self._process.kill()
        self.room.release()


class Leader:
    """One replication to hosts; implements the `Actions` of its chain."""

    def __init__(
        self,
        sizes: Mapping[str, Mapping[str, int]],
        request: Request,
        *,
        say: Callable[[str], None],
        count: Callable[[int], None],
    ) -> None:
        """Prepares the chain.

        `sizes[address][name]` is the size of a host's file; addresses are in the chain's order.
        `say` is called with sentences about a host, `count` with the size of each stored file.
        """
        parts = request.placements
        peers = [Peer(host, files, alone=parts[host].nodes > 1) for host, files in sizes.items()]
        self._chain = Chain(peers, request, self)
        self._request = request
        self._say, self._count = say, count
        self._givers: dict[Peer, Giver] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._news: list[Callable[[], None]] = []
        # The largest number of files that each host had: after a loss, count no file again.
        self._counted = Counter[Peer]()
        self._closing = threading.Event()
        # The name of a file in the dataset's folder. A host that finds this file in its target
        # folder has the dataset itself there, for example on a shared file system.
        self._origin = f"origin-{uuid.uuid4().hex}"

    def run(self) -> Sequence[Peer]:
        """Replicates to all hosts; returns the hosts in their final states."""
        # If the leader may not create this file, no host may write to the dataset's folder either.
        with LocalStore(Path(self._request.root)).marked(f"{naming.WORK}/{self._origin}"):
            try:
                self._chain.begin()
                self._report()
                while not self._chain.is_over(time.monotonic()):
                    with contextlib.suppress(queue.Empty):
                        self._events.get(timeout=_TICK_S)()
                    self._report()
            finally:
                self._closing.set()
                for giver in self._givers.values():
                    giver.stop()
        return self._chain.peers

    def start(self, peer: Peer) -> None:
        self.stop(peer)
        self._givers[peer] = giver = Giver()
        host = peer.upstream.address if peer.upstream else None
        prove = self._request.config.prove and not peer.losses
        threading.Thread(target=self._listen, args=(peer, giver, host, prove), daemon=True).start()

    def stop(self, peer: Peer) -> None:
        giver = self._givers.pop(peer, None)
        if giver is not None:
            giver.stop()

    def probe(self, peer: Peer, *, again: bool) -> None:

        def ask() -> None:
            if again and self._closing.wait(_PROBE_EVERY_S):
                return
            ending = run(command_on(peer.address, ["true"]), timeout_s=START_S)
            self._events.put(partial(self._chain.probed, peer, ending))

        threading.Thread(target=ask, daemon=True).start()

    def progress(self, peer: Peer, num_bytes: int) -> None:
        total = len(peer.sizes)
        before = self._counted[peer]
        done = total - (peer.lacking or 0)
        self._news += [partial(self._count, num_bytes)] * (done - before)
        if num_bytes and before * 4 // total < done * 4 // total < 4:
            self.say(peer, f"{100 * done // total}% of its files are complete")
        self._counted[peer] = max(done, before)

    def say(self, peer: Peer, sentence: str) -> None:
        self._news.append(partial(self._say, f"{peer.address}: {sentence}"))

    def _report(self) -> None:
        # Print here and not in `_message`, which would blame the sender for a closed terminal.
        news = self._news
        self._news = []
        for report in news:
            report()

    def _message(self, peer: Peer, giver: Giver, frame: Frame) -> None:
        giver.room.release()
        if self._givers.get(peer) is not giver:
            return  # a new sender has replaced this one
        try:
            self._chain.message(peer, frame)
        except Exception as error:  # noqa: BLE001 - caused by the sender's message
            self._chain.giver_broken(peer, plain(str(error)) or type(error).__name__)

    def _ended(self, peer: Peer, giver: Giver, why: str, code: int | None = None) -> None:
        if self._givers.get(peer) is giver:
            self._chain.giver_broken(peer, why, code)

    def _listen(self, peer: Peer, giver: Giver, host: str | None, prove: bool) -> None:
        """Runs a sender; notifies the loop when it has ended, even after an exception."""
        try:
            why, code = self._forward(peer, giver, host, prove)
        except OSError as error:
            why = f"it cannot be started: {error}"
            code = None
        except Exception as error:  # noqa: BLE001 - else the loop would wait forever
            why = plain(str(error)) or type(error).__name__
            code = None
        self._events.put(partial(self._ended, peer, giver, why, code))

    def _forward(
        self, peer: Peer, giver: Giver, host: str | None, prove: bool
    ) -> tuple[str, int | None]:
        """Runs a sender and queues its messages; returns why it ended, and its exit code."""
        request, config = self._request, self._request.config
        words = ("imagenet_prep.distribute.send",)
        process = Process(host or "localhost", config.python, words, FROM_GIVER, config.timeout)
        giver.started(process)
        process.channel.begin(
            "give",
            request.body,
            root=request.path if host else request.root,
            trusted=host is None,
            address=peer.address,
            path=request.path,
            origin=self._origin,
            python=config.python,
            prove=prove,
            parent=config.from_parent or "",
            limit=config.bandwidth_limit * 1e6,
            **request.fields(peer.address),
        )

        def take(frame: Frame) -> bool:
            giver.room.acquire()
            self._events.put(partial(self._message, peer, giver, frame))
            return giver.stopped

        broken, ending = process.listen(take)
        return str(broken or ending.why), None if broken else ending.code
