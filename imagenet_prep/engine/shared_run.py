"""A run that several processes share, on one machine or on several.

All of them run the same command. They share the claims of tasks below `.work/jobs`, in a folder
that is named after the settings of the run. Each process has a file there, its heartbeat, and
changes it regularly. If another process sees the same heartbeat for 2 minutes of its own clock, the
process is lost, and its claims are free. If the process was only slow, a task is done twice, which
is harmless: every process writes the same bytes.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from imagenet_prep.core import errors, strict_json
from imagenet_prep.core.terminal import say
from imagenet_prep.engine.stage import JOBS, Lease, killed_worker
from imagenet_prep.storage import scratch
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store

# Seconds between two heartbeats of a process.
_BEAT_S = 10.0
# A process is lost if its heartbeat stays the same for this time. NFS clients may cache the state
# of a file for a minute.
LOST_AFTER_S = 120.0
# Seconds between checks for the work of others. In a bucket, each check costs a request.
_POLL_S = 0.2
_POLL_ELSEWHERE_S = 2.0
# Receipts and claims in a bucket may be public, so processes get a random name.
_PROCESS = re.compile("[0-9a-f]{12}")
_PROCESSES = "processes"
_HEARTBEATS = "heartbeats"
_SETTINGS = "settings.json"
_ONCE = "once"

Result = TypeVar("Result")


@dataclass(frozen=True)
class SharedLease(Lease):
    """The lease of one process of a shared run."""

    process: str = ""

    @property
    def mark(self) -> str:
        """The name of the file that exists while the lease is held."""
        # Not the heartbeat: a stalled process may write it again after the end of the run.
        return f"{self.folder}/{_PROCESSES}/{self.process}"

    @property
    def owner(self) -> str:
        """The content of claims: the name of the process."""
        return self.process

    def heartbeat(self, process: str) -> str:
        """Returns the name of the heartbeat of a process."""
        return f"{self.folder}/{_HEARTBEATS}/{process}"

    def join(self) -> None:
        """Adds the process to its run."""
        self.store.write(self.mark, b"")
        self.beat()

    def leave(self) -> None:
        """Removes the process from its run; others take over its claims at once."""
        self.store.remove(self.mark, self.heartbeat(self.process))

    def beat(self) -> None:
        """Changes the heartbeat."""
        self.store.write(self.heartbeat(self.process), uuid.uuid4().bytes)


class SharedRun:
    """The part of this process in a shared run; `own` is a folder for its failures and logs."""

    def __init__(self, lease: SharedLease, own: LocalStore) -> None:
        self.lease = lease
        self.own = own
        self._owners: dict[str, str] = {}  # by claim
        # The last heartbeat of each process, and the monotonic time at which it was new.
        self._seen: dict[str, tuple[bytes, float]] = {}

    def unclaimed(self, stage: str, tasks: Collection[str]) -> set[str]:
        """Returns the tasks that no living process has claimed; removes claims of lost processes.

        To be called while no worker of this process runs. Raises JobLostError if the run has ended,
        and IncompleteError if this process has claimed a task, because its worker was killed.
        """
        self.lease.check()
        store = self.lease.store
        claims = self.lease.claims(stage)
        claimed = {*store.names(claims)}.intersection(tasks)
        claim_of = {task: f"{claims}/{task}" for task in claimed}
        # A claim without an owner is observed itself.
        holder_of = {task: self._owner(claim) or claim for task, claim in claim_of.items()}
        num_killed = [*holder_of.values()].count(self.lease.owner)
        if num_killed:
            raise killed_worker(stage, num_killed, len(tasks))
        # Each look costs a request to a bucket, and a process may hold many claims.
        lost = set(filter(self._is_lost, {*holder_of.values()}))
        void: set[str] = set()
        for task, claim in claim_of.items():
            # Another process may have taken over the claim since its owner was read.
            if holder_of[task] in lost and (self._read_owner(claim) or claim) == holder_of[task]:
                void.add(task)
        store.remove(*(claim_of[task] for task in void))
        return {*tasks} - claimed | void

    def once(
        self, name: str, finished: Callable[[], Result | None], act: Callable[[], Result]
    ) -> Result:
        """Lets one process of the run `act`; returns its result, or that of `finished`.

        `finished` returns None until a process has acted.
        """
        claims = self.lease.claims(_ONCE)
        store = self.lease.store
        while True:
            result = finished()
            if result is not None:
                return result
            if name in self.unclaimed(_ONCE, [name]):
                if store.as_folder:
                    store.as_folder.make_folder(claims)
                if store.try_create(f"{claims}/{name}", self.lease.owner):
                    return act()
            time.sleep(poll_s(store))

    def _owner(self, claim: str) -> str:
        return self._owners.get(claim) or self._read_owner(claim)

    def _read_owner(self, claim: str) -> str:
        """Returns the owner of a claim; "" if it is not written yet, or was just removed."""
        owner = ""
        with contextlib.suppress(errors.StoreError):
            match = _PROCESS.match(self.lease.store.read(claim).decode(errors="replace"))
            if match:
                owner = match[0]
        self._owners[claim] = owner
        return owner

    def _is_lost(self, holder: str) -> bool:
        """Returns whether a process is lost, or whether a claim has had no owner for that time."""
        beat = self._heartbeat(holder) if _PROCESS.fullmatch(holder) else b""
        if beat is None:
            return True
        now = time.monotonic()
        last, since = self._seen.setdefault(holder, (beat, now))
        if beat != last:
            self._seen[holder] = beat, now
            return False
        return now - since > LOST_AFTER_S

    def _heartbeat(self, process: str) -> bytes | None:
        """Returns the heartbeat of a process; None if the process has left the run."""
        store = self.lease.store
        name = self.lease.heartbeat(process)
        # The content, because NFS clients may cache attributes, but not over an `open`.
        try:
            return store.read(name)
        except errors.StoreError:
            return None if store.size(name) is None else b""


def poll_s(store: Store) -> float:
    """Returns the seconds between two looks at the receipts in a store."""
    return _POLL_S if store.as_folder else _POLL_ELSEWHERE_S


def overtaken(store: Store) -> errors.BusyError:
    """Returns the error for a run whose lease was taken over."""
    return errors.BusyError(
        f"{store.where()}: a newer run has taken over, so this run has stopped. "
        "Its finished work is kept, and the newer run continues from there."
    )


@contextlib.contextmanager
def joined(store: Store, settings: Mapping[str, Any]) -> Iterator[SharedRun]:
    """Joins or starts the run with these settings, which must be the same in all its processes.

    Raises UsageError if a run with different settings is active.
    """
    job = strict_json.digest(settings)[:16]
    lease = SharedLease(store, job, uuid.uuid4().hex[:12])
    _refuse_others(store, job, settings)
    store.write(f"{lease.folder}/{_SETTINGS}", strict_json.dumps(settings))
    lease.join()
    leaving = threading.Event()
    beating = threading.Thread(target=_keep_beating, args=(lease, leaving), daemon=True)
    beating.start()
    try:
        # Of two processes that start at the same time, at least one sees the other here.
        _refuse_others(store, job, settings)
        with scratch.temporary_folder() as own:
            yield SharedRun(lease, LocalStore(own))
    finally:
        leaving.set()
        beating.join()
        lease.leave()


def _keep_beating(lease: SharedLease, leaving: threading.Event) -> None:
    while not leaving.wait(_BEAT_S):
        # After an outage of the storage, others may have taken over claims, which is harmless.
        with contextlib.suppress(errors.ImagenetPrepError):
            if lease.held:
                lease.beat()


def _refuse_others(store: Store, job: str, settings: Mapping[str, Any]) -> None:
    """Ends runs with different settings if they are dead; raises UsageError if one is alive."""
    for name in store.list_folder(JOBS):
        if name != job:
            lease = Lease(store, name)
            if _is_alive(lease):
                raise _different(lease, settings)
            store.remove_tree(lease.folder)


def _is_alive(lease: Lease) -> bool:
    """Waits for a heartbeat of any process of a run."""
    store = lease.store
    folder = f"{lease.folder}/{_HEARTBEATS}"
    first = store.stats(folder)
    beats = first
    end = time.monotonic() + LOST_AFTER_S
    if beats:
        say(f"looking for a sign of life of a run with different settings in {store.where(folder)}")
    while beats and time.monotonic() < end:
        time.sleep(poll_s(store))
        beats = store.stats(folder)
        if any(first.get(process) != beat for process, beat in beats.items()):
            return True
    return False


def _different(lease: Lease, settings: Mapping[str, Any]) -> errors.UsageError:
    store = lease.store
    ours: dict[str, Any] = strict_json.loads(strict_json.dumps(settings))
    theirs: dict[str, Any] = {}
    with contextlib.suppress(ValueError, errors.ImagenetPrepError):
        theirs = dict(strict_json.loads(store.read(f"{lease.folder}/{_SETTINGS}")))
    differences = "; ".join(errors.differences(theirs, ours))
    return errors.UsageError(
        f"{store.where()} is being written by processes with different settings or sources: "
        f"{differences}. Start all processes of a run with the same flags and the same version of "
        "this program, or choose a different output."
    )
