"""Runs small tasks in parallel, each leaving a receipt.

A task is finished when its receipt, `.work/<stage>-<digest>/receipts/<task>.json`, lies
beside the files it names. Finished tasks are skipped by the next run; another
configuration has another digest and never sees them. An element of the pipeline is a
worker, never image bytes, so memory does not grow with the data set.

N workers take tasks one by one until none is left: runners would deal them out beforehand,
and the slowest worker would hold up the rest. Workers are threads, which need no pipeline,
Beam's worker processes, or, with Beam's options after `--`, slots of a cluster. What the
lost worker of a cluster had in hand is done again in another attempt.
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
