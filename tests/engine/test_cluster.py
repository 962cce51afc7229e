"""What a runner says of a failure becomes one error with its class; no process, no Beam."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, JobLostError, StoreError
from imagenet_prep.engine.cluster import Job

HARNESS = "java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent"
STEP = " [while running 'Shard/Images/Do-ptransform-57']\n\n\tat org.apache.beam.Java(Java.java)"


# It may name an error of ours that was handled before.
BUG = "imagenet_prep.core.errors.StoreError: first\n\nDuring handling\nKeyError: 'x'"


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("imagenet_prep.core.errors.StoreError: the disk", StoreError, "the disk"),
        (
            "imagenet_prep.core.errors.DataDamagedError: a (on worker w)",
            DataDamagedError,
            "a (on worker w)",
        ),
        (f"imagenet_prep.engine.transform.BugError: {BUG}", RuntimeError, BUG),
        (
            "x\nCaused by: java.net.ConnectException: refused",
            JobLostError,
            "Flink: java.net.ConnectException: refused. All it said is in /log",
        ),
    ],
    ids=["store", "worker", "bug", "lost"],
)
def test_a_failure_on_a_worker_keeps_its_class(said: str, kind: type, message: str) -> None:
    job = Job("Flink", Path("/log"), lambda: None)
    step = "" if kind is JobLostError else STEP
    error = job._explained(RuntimeError(f"{HARNESS}\n{said}{step}"))
    assert (type(error), str(error)) == (kind, message)
