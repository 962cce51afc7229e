"""Runs small tasks in parallel, each leaving a receipt.

A task is finished when its receipt, `.work/<stage>-<digest>/receipts/<task>.json`, lies
beside the files that it names. The next run skips finished tasks. Another configuration has
another digest and never sees them.

N workers take tasks one by one until none is left. If tasks were assigned beforehand, all would
wait for the slowest worker. Workers are threads or processes of this machine or, with Beam's
options after `--`, slots of a cluster, by the transform `engine.transform.Receipts`. Only tasks
and receipts go through Beam, never image bytes, so memory does not grow with the data set. If a
worker of a cluster is lost, another job does its unfinished tasks again.
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
