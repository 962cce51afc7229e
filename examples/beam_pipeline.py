"""A custom Beam pipeline with the steps of `prepare`, which also counts images and prints shards.

The script takes the flags of `prepare`:

python examples/beam_pipeline.py --source DIR --out DIR -- --runner=FlinkRunner
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from imagenet_prep.pipelines.graph import Archives, Commit, Deal, Index, Preparation, Shard


def tell(line: Any) -> None:
    """Prints a result; replace this by a message to your queue, table or log."""
    print(line, flush=True)


def main(argv: list[str]) -> None:
    """Runs the pipeline with the flags of `prepare`, and with Beam's options after `--`."""
    preparation = Preparation.of(argv)
    options = PipelineOptions([*preparation.beam_args])
    with beam.Pipeline(options=options) as pipeline:
        index = pipeline | Archives(preparation) | Index(preparation)
        plan = index | Deal(preparation)
        shards = plan | Shard(preparation)
        done = shards | Commit(preparation, plan)

        # Your steps start here. Each receipt of `Index` has the image counts of one part.
        _ = (
            index["images"]
            | "Count" >> beam.Map(lambda piece: (piece.task.split, piece.receipt.content))
            | "Of all"
            >> beam.MapTuple(lambda split, listed: (split, sum(listed.num_per_class.values())))
            | "Sum" >> beam.CombinePerKey(sum)
            | "Tell counts" >> beam.Map(tell)
        )
        _ = shards | "Tell shards" >> beam.Map(lambda shard: tell(shard.task.name))
        _ = done | "Tell all" >> beam.Map(tell)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(sys.argv[1:])
