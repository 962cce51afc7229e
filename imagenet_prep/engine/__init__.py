"""Runs small tasks in parallel, each leaving a receipt.

A task is finished when its receipt, `.work/<stage>-<digest>/receipts/<task>.json`, lies
beside the files it names. Finished tasks are skipped by the next run; another
configuration has another digest and never sees them.

N workers take tasks one by one until none is left: dealt out beforehand, the slowest worker
would hold up the rest. Workers are threads or processes of this machine or, with Beam's
options after `--`, slots of a cluster: elements of a pipeline, never image bytes, so that memory
does not grow with the data set. What the lost worker of a cluster had in hand is done again in
another attempt.
"""

from __future__ import annotations

from imagenet_prep.engine.attempts import run
from imagenet_prep.engine.progress import Progress
from imagenet_prep.engine.stage import Output, Result, Stage, Task
from imagenet_prep.engine.workers import PROCESSES, THREADS, Workers

__all__ = [
    "PROCESSES",
    "THREADS",
    "Output",
    "Progress",
    "Result",
    "Stage",
    "Task",
    "Workers",
    "run",
]
