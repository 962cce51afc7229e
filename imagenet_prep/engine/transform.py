"""The Apache Beam transform that runs tasks. Import this module only to build or run a job."""

from __future__ import annotations

import contextlib
import re
import socket
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from imagenet_prep.core import errors
from imagenet_prep.engine.stage import Lease, Stage, TaskReceipt
from imagenet_prep.engine.workers import Done, done

METRICS = "imagenet-prep"
_COUNTED = {
    "examples": "images",
    "source_bytes": "bytes_in",
    "num_bytes": "bytes_out",
    "resized": "resized",
}


class BugError(Exception):
    """An unexpected error on a worker; the message is its traceback."""


class Receipts(beam.PTransform):
    """Runs tasks on the workers of a cluster: PCollection of tasks -> PCollection of `Done`.

    Flink assigns elements to slots in advance, so a job would last as long as its slowest slot.
    Here, a worker that gets an element claims tasks one by one until none is left. Finished tasks
    are not repeated.

    Metrics, in the namespace `imagenet-prep`: the counters images, bytes_in, bytes_out, resized,
    repaired_REASON and quarantined_REASON, and the distribution STAGE_ms of the time per task.

    `stage` is a Stage or an AsSingleton with a Stage. `lease` comes from `Lease.acquire(store)`.
    """

    def __init__(self, stage: Any, lease: Lease) -> None:
        super().__init__()
        self._stage = stage
        self._lease = lease

    def expand(self, tasks: Any) -> Any:
        """Returns the finished tasks, including tasks that earlier runs have finished."""
        return (
            tasks
            | "Spread" >> beam.Reshuffle()
            | "Do" >> beam.ParDo(_Do(self._lease), self._stage, beam.pvalue.AsList(tasks))
        )


@beam.typehints.with_output_types(Any)
class _Do(beam.DoFn):
    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._none_left = False

    def start_bundle(self) -> None:
        self._none_left = False

    def process(self, _: Any, stage: Stage[Any, Any], tasks: Sequence[Any]) -> Iterator[Done]:
        if self._none_left:
            return
        with (
            reported(self._lease),
            contextlib.closing(self._lease.claimed(stage, tasks)) as claimed,
        ):
            for finished in done(stage, claimed, self._lease.check):
                if finished.new:
                    _count(stage.name, finished.receipt)
                yield finished
        self._none_left = True


@contextlib.contextmanager
def reported(lease: Lease) -> Iterator[None]:
    """Waits for the lease of the job; converts errors to classes that the launcher recognises."""
    lease.arrive()
    try:
        try:
            yield
        except errors.StoreError:
            lease.check()
            raise
    except errors.ImagenetPrepError as error:
        # The launcher only recognises the classes in `errors`. A dataset in a bucket may be public,
        # so messages about it must not contain host names.
        kind = next(c for c in type(error).__mro__ if c.__module__ == errors.__name__)
        where = f" (on worker {socket.gethostname()})" if lease.store.as_folder else ""
        # Drop the cause: the launcher would print it first.
        raise kind(f"{error}{where}") from None
    except Exception as error:  # noqa: BLE001 - the launcher raises it again
        of_memory = errors.of_memory(error)
        if of_memory is not None:
            raise of_memory from None
        raise BugError("".join(traceback.format_exception(error))) from None


def _count(stage: str, receipt: TaskReceipt[Any]) -> None:
    for field, name in _COUNTED.items():
        if hasattr(receipt.content, field):
            Metrics.counter(METRICS, name).inc(getattr(receipt.content, field))
    for incident in getattr(receipt.content, "incidents", ()):
        name = re.sub(r"\W", "_", f"{incident.action}_{incident.reason}")
        Metrics.counter(METRICS, name).inc()
    Metrics.distribution(METRICS, f"{stage}_ms").update(round(1000 * receipt.seconds))
