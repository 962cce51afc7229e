"""Runs tasks in parallel; each finished task leaves a receipt.

A task is finished if its receipt, `.work/<stage>-<digest>/receipts/<task>.json`, and the files
named in it exist. The next run skips finished tasks. Each configuration has its own digest.

Workers take one task at a time, so none waits for the slowest. They are threads or processes or,
with Beam's options after `--`, slots of a cluster (`engine.transform.Receipts`). Beam never gets
image bytes, so memory does not grow with the dataset. Tasks of lost workers are done by a new job.
"""

from __future__ import annotations

from imagenet_prep.engine.attempts import Followed, Jobs, run
from imagenet_prep.engine.lease import Lease
from imagenet_prep.engine.progress import Progress
from imagenet_prep.engine.stage import Output, Receipt, Result, Stage
from imagenet_prep.engine.workers import PROCESSES, THREADS, Workers

__all__ = [
    "PROCESSES",
    "THREADS",
    "Followed",
    "Jobs",
    "Lease",
    "Output",
    "Progress",
    "Receipt",
    "Result",
    "Stage",
    "Workers",
    "run",
]
