"""Complete the TFRecord shards of another program: names, index, labels.txt, TFDS files, manifest.

No image is encoded again and no existing file is replaced. With --out, the shards are hard-linked
into a new folder, copied from or to a bucket, or written again with --rewrite. If it is
interrupted, run the same command again to resume.

Examples:
  imagenet-prep adopt /data/imagenet-tfrecords --dry-run
  imagenet-prep adopt /data/imagenet-tfrecords
  imagenet-prep adopt /data/train-val-tfrecord-480 --out /data/imagenet-480
  imagenet-prep adopt /data/imagenet2012/5.1.0 --rewrite --out /data/imagenet
  imagenet-prep adopt s3://bucket/imagenet-tfrecords --out s3://bucket/imagenet
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagenet_prep.core import program
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    SourceError,
    UsageError,
    some,
)
from imagenet_prep.core.flags import Place, WorkerFlags, optional, switch
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.flag import data_set

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import Manifest
    from imagenet_prep.preparation.existing_set import ExistingSet
    from imagenet_prep.sources.shard_files import TfrecordSet
    from imagenet_prep.storage.store import Store

_SHOWN = 5  # problems listed in a message
_STALE = dict.fromkeys(
    ((schema.HEIGHT, "untrue"), (schema.WIDTH, "untrue")),
    ": from before a resize, --rewrite corrects it",
)


@dataclass(frozen=True)
class Config(WorkerFlags):
    """Settings of one run; see the help of each flag."""

    folder: str = data_set(
        place=Place.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix with TFRecord shards, flat or in train/ and validation/",
    )
    out: str | None = optional(
        place=Place.FOLDER_OR_BUCKET,
        help="leave the shards where they are and make the data set here: from folder to folder of "
        "hard links, from or to s3:// of copies",
    )
    rewrite: bool = switch(
        help="write the shards again to --out, with all keys, true sizes and labels from 1; the "
        "images stay byte for byte"
    )
    allow_subset: bool = switch(help="accept other numbers of images than those of ILSVRC2012")
    dry_run: bool = switch(
        help="read everything, print what was found and would be done; change nothing"
    )
    json: bool = switch(help="print the result as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rewrite and self.out is None:
            raise ValueError("--rewrite: give --out, since no shard is ever replaced")
        if is_remote(self.folder) and self.out is None and not self.dry_run:
            raise ValueError(f"{self.folder}: give --out, since no object is renamed in a bucket")


def adopt(config: Config) -> tuple[Json, ImagenetPrepError | None]:
    """Adopts, or resumes; returns the summary, and the reason if the dataset was refused."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import adoption, rewrite
    from imagenet_prep.preparation.existing_set import check_existing_set
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import columns, scratch
    from imagenet_prep.storage.folder import LocalStore
    from imagenet_prep.storage.opened import Dataset
    from imagenet_prep.storage.store import open_store, same_place

    source = open_store(config.folder)
    store = source if config.out is None else open_store(config.out)
    if config.out is not None and same_place(store.where(), source.where()):
        raise UsageError(f"--out {config.out} is the folder itself; leave it out to work in place")
    if config.out is not None:
        columns.say_left_behind(source)
    workers = Workers(config.workers, config.worker_kind)
    if config.dry_run:
        found = shard_files.find(source)
        with scratch.place() as place:
            seen = check_existing_set(found, LocalStore(place), workers, quiet=config.json)
        return _summary(config, found, seen, None), _refusal(config, found, seen)
    if config.out is None:
        if store.size(naming.MANIFEST) is not None:
            return _completed(config, store), None
        adoption.finish_renames(store.local)
    shard_files.find(source)  # fails if there is no dataset, before anything is created
    with store.lock():
        # Locking removed a killed run's links, which changed the shards' timestamps: look again.
        found = shard_files.find(source)
        seen = check_existing_set(found, store, workers, quiet=config.json)
        refusal = _refusal(config, found, seen)
        if refusal is None and not config.rewrite:
            adoption.complete(
                store, found, seen, workers, in_place=config.out is None, quiet=config.json
            )
    if refusal is None and config.rewrite:
        # The same job as `resize --keep-original`.
        job = rewrite.Job(
            found=found,
            splits=tuple(found.splits),
            policy=None,
            workers=workers,
            allowed_bad_images=0,
            labelling=seen.labelling,
            renamed=seen.renamed,
            quiet=config.json,
        )
        rewrite.run(job, store)
    made = None if refusal else Dataset.at(store).manifest
    return _summary(config, found, seen, made), refusal


def _completed(config: Config, store: Store) -> Json:
    """Restores lost files of a finished dataset, and adds tables of samples if it has none."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import adoption
    from imagenet_prep.storage.opened import Dataset, open_dataset

    store.local.settle()
    there = open_dataset(store, check=False)
    lost = there.lost()
    if not lost:
        _ = there.classes  # raises if the class list differs from the manifest
    if lost or not there.manifest.has_samples:
        with store.lock():
            workers = Workers(config.workers, config.worker_kind)
            adoption.restore(store, there.manifest, lost, workers, quiet=config.json)
    return {
        "folder": store.where(),
        "already": Dataset.at(store).manifest.digest,
        "tables": "there" if there.manifest.has_samples else "added",
        "restored": lost,
    }


def _refusal(config: Config, found: TfrecordSet, seen: ExistingSet) -> ImagenetPrepError | None:
    where = found.store.where()
    if seen.problems:
        shown = "; ".join(seen.problems[:_SHOWN])
        return DataDamagedError(
            f"{where}: {counted(len(seen.problems), 'problem')}, all of them listed above: {shown}"
            f"{'; ...' if len(seen.problems) > _SHOWN else ''}. Nothing was changed. Fetch what is "
            "damaged again."
        )
    counts = seen.count_problems
    if counts and not config.allow_subset:
        return SourceError(
            f"{where}: not the whole of ILSVRC2012: {'; '.join(counts)}. Get the missing "
            "part, or pass --allow-subset if this is what you want."
        )
    if schema.ENCODED in seen.lacks and not config.rewrite:
        return UsageError(
            f"{where}: the records have TensorFlow Datasets' keys, which readers of the slim "
            "schema do not know. Give --rewrite --out DIR: the images stay byte for byte."
        )
    return None


def _findings(found: TfrecordSet, seen: ExistingSet) -> list[str]:
    findings = []
    for split, shards in found.splits.items():
        first, last = shards[0], shards[-1]
        if below := first.path.rpartition("/")[0]:
            findings.append(f"{split}: lies in {below}/, readers look one folder up")
        if first.file.startswith(f"{split}-") and first.file != first.name:
            findings.append(
                f"{split}: names count from 1: {first.name} is missing, {last.file} is there"
            )
        elif not first.file.startswith(f"{split}-"):
            findings.append(f"{split}: named as TensorFlow Datasets does, {first.file}")
    labelling = seen.labelling
    last_label = len(labelling.classes.wnids) - 1 + labelling.offset
    findings.append(
        f"labels: {labelling.offset} ... {last_label}, class index + {labelling.offset}"
    )
    if renamed := [key for of_shard in seen.renamed.values() for key in of_shard.values()]:
        findings.append(
            f"keys: {counted(len(renamed), 'record')} with the class and file name of an earlier "
            f"one, numbered: {some(renamed)}"
        )
    findings += [f"counts: {problem}" for problem in seen.count_problems]
    if schema.ENCODED in seen.lacks:
        findings.append("records: TensorFlow Datasets' keys, not those of the slim schema")
    else:
        findings += [
            f"{key}: {kind} in {n:,} of {counted(seen.examples, 'record')}"
            + _STALE.get((key, kind), "")
            for key, kinds in sorted(seen.lack_counts.items())
            for kind, n in kinds.items()
        ]
    if seen.not_rgb:
        findings.append(
            f"grey or CMYK, not RGB as their records say: {counted(seen.not_rgb, 'image')}"
        )
    findings += [f"damaged: {problem}" for problem in seen.problems]
    return findings


def _summary(config: Config, found: TfrecordSet, seen: ExistingSet, made: Manifest | None) -> Json:
    from imagenet_prep.preparation import adoption

    return {
        "folder": config.out or config.folder,
        "digest": made.digest if made else None,
        "splits": {
            split: {
                "examples": sum(shard.examples for shard in shards),
                "shards": len(shards),
                "bytes": sum(shard.num_bytes for shard in shards),
            }
            for split, shards in seen.shards.items()
        },
        "findings": _findings(found, seen),
        "problems": seen.problems,
        "lacks": seen.lacks if made is None else made.lacks,
        "renames": [] if config.rewrite else adoption.moves(found),
    }


@program.verb("imagenet_prep.adopt", Config, __doc__)
def run(config: Config) -> None:
    """Runs the verb; errors are raised."""
    summary, refusal = adopt(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    if refusal is not None:
        raise refusal


def _render(summary: Json) -> str:
    if "already" in summary:
        what = "nothing to do"
        if summary["tables"] == "added":
            what = "it has tables of samples now"
        if restored := summary["restored"]:
            what = f"{counted(len(restored), 'lost file')} made again: {some(restored)}"
        return (
            f"{summary['folder']} is a data set already ({summary['already'][:16]}); {what}. "
            "imagenet-prep verify proves it."
        )
    lines = [
        f"{name}: {counted(s['examples'], 'example')} in {counted(s['shards'], 'shard')}, "
        f"{human_bytes(s['bytes'])}"
        for name, s in summary["splits"].items()
    ]
    lines += [f"found: {finding}" for finding in summary["findings"]]
    how = "would be named" if summary["digest"] is None else "is now"
    lines += [f"{before} {how} {after}" for before, after in summary["renames"]]
    if summary["digest"] is None:
        lines.append("nothing was changed")
    else:
        manifest = f"{summary['folder'].rstrip('/')}/{naming.MANIFEST}"
        lines.append(f"manifest: {manifest} ({summary['digest'][:16]})")
    return "\n".join(lines)
