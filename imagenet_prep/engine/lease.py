"""The lease of a cluster job on a dataset. The next run on the dataset takes over the lease.

A job can outlive the process that started it. Its workers check the lease before each task and
before they publish a file, so a job whose launcher was killed ends when the next run starts.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_prep.core import errors
from imagenet_prep.dataset import naming
from imagenet_prep.engine.stage import AnyTask, Stage
from imagenet_prep.storage.store import Store

_FOLDER = f"{naming.WORK}/jobs"
_HELD = "held"
# A worker that does not see the lease within this time does not share the launcher's folder.
_SEEN_WITHIN_S = 10.0
_SEEN_POLL_S = 0.2
# Maximum number of unfinished tasks of a worker: one being built, one being published, one queued.
_IN_HAND = 3
# Not the global generator of `random`, which a pipeline may have seeded.
_chance = random.Random()
# Jobs whose leases this process has seen.
_seen: set[str] = set()


@dataclass(frozen=True)
class Lease:
    """The lease of the job with the unique name `job`; picklable, for the job's workers."""

    store: Store
    job: str

    @classmethod
    def acquire(cls, store: Store) -> Lease:
        """Ends all earlier jobs on the dataset and returns a new lease."""
        end_jobs(store)
        lease = cls(store, uuid.uuid4().hex[:16])
        store.write(f"{lease._folder}/{_HELD}", b"")
        return lease

    @property
    def _folder(self) -> str:
        return f"{_FOLDER}/{self.job}"

    @property
    def held(self) -> bool:
        """Whether this job still has the lease."""
        return self.store.size(f"{self._folder}/{_HELD}") is not None

    def check(self) -> None:
        """Raises JobLostError if a newer run has taken over the lease."""
        if not self.held:
            raise errors.JobLostError(
                f"{self.store.where()}: a newer run has taken over, so this run has stopped"
            )

    def arrive(self) -> None:
        """Waits until this worker sees the lease; raises UsageError after 10 s."""
        if self.job in _seen:
            self.check()
            return
        end = time.monotonic() + _SEEN_WITHIN_S
        while not self.held:
            if time.monotonic() > end:
                raise errors.UsageError(
                    f"worker {socket.gethostname()} cannot see {self.store.where(self._folder)}, "
                    "which the launching machine has just written. Choose an output that all "
                    "workers share under the same path (NFS, Lustre), or s3://bucket/prefix"
                )
            time.sleep(_SEEN_POLL_S)
        _seen.add(self.job)

    def claimed(
        self, stage: Stage[Any, Any], tasks: Sequence[AnyTask]
    ) -> Generator[AnyTask, None, None]:
        """Claims and yields tasks one by one until the workers of this job have claimed all tasks.

        If a task is already claimed, the worker lists all claims and skips a random number of
        tasks. If the generator is closed early, it releases the unfinished tasks, so that a retry,
        such as Spark's, fails with the same error instead of skipping them.
        """
        claims = f"{self._folder}/{stage.name}"
        folder = self.store.as_folder
        if folder:
            folder.make_folder(claims)
        pending = _without(tasks, self.store.names(claims))
        spread = 1
        mine: deque[str] = deque(maxlen=_IN_HAND)
        try:
            while pending:
                task = pending.popleft()
                self.check()
                if self.store.try_create(f"{claims}/{task.name}"):
                    mine.append(task.name)
                    yield task
                    continue
                # In a bucket, each attempt costs a request, so list all claims after a failed one.
                pending = _without(pending, self.store.names(claims))
                # Workers that collided at this task would collide at the next one, too.
                spread *= 2
                if pending:
                    pending.rotate(-_chance.randrange(min(spread, len(pending))))
        except GeneratorExit:
            with contextlib.suppress(errors.ImagenetPrepError):
                failed = set(mine).difference(stage.receipts(mine))
                self.store.remove(*(f"{claims}/{name}" for name in failed))
            raise


def _without(tasks: Iterable[AnyTask], names: Iterable[str]) -> deque[AnyTask]:
    claimed = set(names)
    return deque(task for task in tasks if task.name not in claimed)


def end_jobs(store: Store) -> None:
    """Ends all jobs on a dataset: the workers stop when they next check the lease."""
    store.remove_tree(_FOLDER)
