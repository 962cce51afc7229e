"""Runs tasks in parallel and stores a receipt for each finished task.

A task is finished if its receipt, `.work/<stage>-<digest>/receipts/<task>.json`, and the files
named in the receipt exist. The next run skips finished tasks. Different settings have different
digests.

Each worker takes one task at a time, so fast workers never wait for slow ones. Workers are threads,
processes or, with a --runner of Apache Beam, slots of a cluster (`engine.transform.Receipts`).
Images never pass through Beam, so its memory use does not grow with the dataset.
"""

from __future__ import annotations

from imagenet_prep.engine.attempts import Followed, Jobs, Progress, run
from imagenet_prep.engine.shared_run import SharedRun
from imagenet_prep.engine.stage import Lease, Result, Stage, TaskOutput, TaskReceipt, published
from imagenet_prep.engine.workers import PROCESSES, THREADS, Workers

__all__ = [
    "PROCESSES",
    "THREADS",
    "Followed",
    "Jobs",
    "Lease",
    "Progress",
    "Result",
    "SharedRun",
    "Stage",
    "TaskOutput",
    "TaskReceipt",
    "Workers",
    "published",
    "run",
]
