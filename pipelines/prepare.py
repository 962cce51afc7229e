"""The batch run: archives -> index -> plan -> shards -> manifest.

This is `imagenet-prep prepare` and `python -m pipelines.prepare`. You can kill it at any moment
and run it again: it only does the remaining work.
"""

from __future__ import annotations

import json
import logging
import sys

from imagenet_prep.core import program
from imagenet_prep.core.address import with_absolute
from imagenet_prep.core.errors import StoreError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes, printable
from imagenet_prep.dataset.formats import ignored_in_words
from imagenet_prep.preparation.config import PrepareConfig

HELP = """\
Convert the ILSVRC2012 archives to resized, sharded, verified TFRecords.
After an interruption, run it again: it resumes.
Options for Apache Beam go after --; with --runner=DirectRunner, Beam runs on this machine.

Examples:
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-256 --short-side 256
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet --keep-original
  imagenet-prep prepare --source /data/ilsvrc2012 --out /tmp/tenth --subset-per-class 128
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480 --dry-run
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet -- --runner=DirectRunner
  imagenet-prep prepare --source /data/ilsvrc2012 --out s3://bucket/imagenet-480
  imagenet-prep prepare --source s3://bucket/ilsvrc2012 --out s3://bucket/sets/imagenet-480
  imagenet-prep prepare --source https://mirror.example.edu/ilsvrc --out /data/imagenet-480"""


def prepare(config: PrepareConfig) -> Json:
    """Runs or resumes the preparation, and returns the summary to print."""
    from imagenet_prep.preparation import sharing
    from imagenet_prep.preparation.job import PrepareJob
    from imagenet_prep.preparation.output import Output
    from imagenet_prep.preparation.planning import remove_unpacked, take_inventory
    from imagenet_prep.preparation.same_source import require_same_source
    from imagenet_prep.preparation.writing import preview, write
    from imagenet_prep.storage.store import open_store

    if config.beam_args:
        config = with_absolute(config, "source", "out")
    job = PrepareJob.of(config)
    if not config.json:
        print(f"source: {job.description}", file=sys.stderr)
    store = open_store(config.out)
    images, workers = job.selection, job.workers
    output = Output(store, job.wanted)
    incomplete = output.left()
    require_same_source(job, output, note=not config.dry_run)
    if config.dry_run:
        return preview(job, output)
    if incomplete:
        with store.lock(shared=config.share):
            output.left()
            forecast = job.forecast(store, plans=store.local)
            remove_unpacked(store, keep=images)
            forecast.require_space_to_unpack()
            if workers.remote:
                # Beam takes seconds to import, and prints irrelevant warnings.
                logging.getLogger().addHandler(logging.NullHandler())
                from imagenet_prep.pipelines import submit

                submit.until_committed(job, output)
            elif config.share:
                sharing.until_committed(job, output)
            else:
                inventory = take_inventory(images, store, workers, quiet=config.json)
                write(job, inventory, forecast, output)
    remove_unpacked(store)
    return output.end()


@program.verb("imagenet_prep.pipelines.prepare", PrepareConfig, HELP)
def run(config: PrepareConfig) -> None:
    summary = prepare(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    judge(config, summary)


def judge(config: PrepareConfig, summary: Json) -> None:
    """Raises StoreError if a dry run has found that the dataset does not fit on the disk."""
    del config
    if summary.get("refusal"):
        raise StoreError(summary["refusal"])


def _render(summary: Json) -> str:
    from imagenet_prep.shards.commit import render  # not for --help
    from imagenet_prep.sources import labels

    if "free_bytes" in summary:
        lines = [
            f"{name}: {counted(s['examples'], 'image')}, {human_bytes(s['source_bytes'])} -> "
            f"{counted(s['shards'], 'shard')}, about {human_bytes(s['estimated_bytes'])}"
            for name, s in summary["splits"].items()
        ]
        unpacked = summary["unpacked_bytes"]
        if unpacked:
            lines.append(f"temporary, for unpacking: about {human_bytes(unpacked)}")
        if summary["disk"] != summary["out"]:
            shards = sum(split["estimated_bytes"] for split in summary["splits"].values())
            lines.append(f"{summary['out']}: about {human_bytes(shards)}")
        lines.append(
            f"disk: about {human_bytes(summary['disk_bytes'])} needed with a margin, "
            f"{human_bytes(summary['free_bytes'])} free at {summary['disk']}"
        )
        lines += labels.lines([labels.Statement(**of) for of in summary["evidence"]])
        if summary["ignored"]:
            lines.append(f"ignored: {printable(ignored_in_words(summary['ignored']))}")
        run = f"would run on {summary['workers']}; nothing was written"
        lines.append(
            run if summary["left"] else f"{summary['out']} already has this dataset: nothing to do"
        )
        return "\n".join(lines)
    return render(summary)
