"""Compute top-1 and top-5 accuracy against the labels of a dataset and other label lists.

No image is read, and no framework is needed.

Examples:
  imagenet-prep score predictions.csv /data/imagenet-480
  imagenet-prep score predictions.csv /data/imagenet-480 --labels real.json --labels own.csv
  imagenet-prep score predictions.csv s3://bucket/imagenetv2 --json
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from imagenet_prep.core import program
from imagenet_prep.core.flags import AddressKind, Settings, flag, switch
from imagenet_prep.dataset.shared_flags import data_set


@dataclass(frozen=True)
class ScoreConfig(Settings):
    """Settings of one run; see the help of each flag."""

    predictions: str = flag(
        place=AddressKind.FILE,
        help="CSV with key,class_index,top1,p1,...,top5,p5, as train --predictions writes it",
        positional=True,
        metavar="PREDICTIONS.csv",
    )
    dataset: str = data_set()
    labels: tuple[str, ...] = flag(
        (),
        place=AddressKind.FILE,
        help="also score against these labels: key,class CSV, ReaL's real.json or multi-label JSON",
    )
    json: bool = switch(help="print the table as JSON")


@program.verb("imagenet_prep.score", ScoreConfig, __doc__, resumes=False)
def run(config: ScoreConfig) -> None:
    from imagenet_prep.evaluation import score

    table = score(config.predictions, config.dataset, labels=config.labels)
    print(json.dumps(table.as_json(), indent=1) if config.json else table)
