"""Turn TFRecord shards from other programs into a dataset with an index, labels and a manifest.

No image is re-encoded, and no existing file is replaced. With --out, the shards are hard-linked
into a new folder, copied to or from a bucket, or rewritten (with --rewrite). After an interruption,
run the same command again to resume.

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

from imagenet_prep.core import errors, program
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import ImagenetPrepError, UsageError, some
from imagenet_prep.core.flags import AddressKind, WorkerFlags, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.shared_flags import data_set

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import Manifest
    from imagenet_prep.preparation import rewrite
    from imagenet_prep.preparation.existing_set import ExistingSet
    from imagenet_prep.sources.shard_files import TfrecordSet
    from imagenet_prep.storage.store import Store

_SHOWN = 5  # maximum number of problems in a message
_STALE = dict.fromkeys(
    ((schema.HEIGHT, "untrue"), (schema.WIDTH, "untrue")),
    ": the records store the size before a resize. To correct it, use --rewrite",
)


@dataclass(frozen=True)
class AdoptConfig(WorkerFlags):
    """Settings of one run; see the help of each flag."""

    folder: str = data_set(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix with TFRecord shards, flat or in train/ and validation/",
    )
    out: str | None = optional(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="new dataset; its shards are hard links, or copies if either dataset is on s3://",
    )
    rewrite: bool = switch(help="write new shards to --out, with all fields and correct sizes")
    allow_subset: bool = switch(help="accept image counts that differ from ILSVRC2012's")
    dry_run: bool = switch(help="check the shards and print all changes; change nothing")
    json: bool = switch(help="print the result as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rewrite and self.out is None:
            raise ValueError("--rewrite needs --out: existing shards are never replaced")
        if is_remote(self.folder) and self.out is None and not self.dry_run:
            raise ValueError(f"{self.folder}: objects in a bucket cannot be renamed. Add --out")


def adopt(config: AdoptConfig) -> tuple[Json, ImagenetPrepError | None]:
    """Adopts the shards; returns the summary, and an error if the shards were refused."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import adoption, rewrite
    from imagenet_prep.preparation.existing_set import check_existing_set
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.dataset_store import Dataset, refuse_inside
    from imagenet_prep.storage.store import open_store, same_place

    source = open_store(config.folder)
    store = source
    if config.out is not None:
        store = open_store(config.out)
        if same_place(store.where(), source.where()):
            raise UsageError(
                f"--out {config.out} is the source. To adopt it in place, remove --out"
            )
        existing = shard_files.find(source).dataset
        if existing:
            refuse_inside(store.where(), existing)
        columns.say_left_behind(source)
    if config.dry_run:
        return _previewed(config, source, store)
    if config.out is None:
        if store.size(schema.MANIFEST) is not None:
            return _completed(config, store), None
        adoption.finish_renames(store.local)
    shard_files.find(source)  # fails if there is no dataset, before anything is created
    workers = Workers(config.workers, config.worker_kind)
    with store.lock():
        # Search again: the lock removed a killed run's links, which changed timestamps of shards.
        tfrecords = shard_files.find(source)
        checked = check_existing_set(tfrecords, store, workers, quiet=config.json)
        refusal = _refusal(config, tfrecords, checked)
        if refusal is None and not config.rewrite:
            adoption.complete(
                store, tfrecords, checked, workers, in_place=config.out is None, quiet=config.json
            )
    if refusal is not None:
        return _summary(config, tfrecords, checked, None), refusal
    if config.rewrite:
        rewrite.run(_rewriting(config, tfrecords, checked), store)
    return _summary(config, tfrecords, checked, Dataset.at(store).manifest), None


def _previewed(
    config: AdoptConfig, source: Store, store: Store
) -> tuple[Json, ImagenetPrepError | None]:
    """Checks the shards as a run would; changes nothing."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import adoption, rewrite
    from imagenet_prep.preparation.existing_set import check_existing_set
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import scratch
    from imagenet_prep.storage.folder import LocalStore

    tfrecords = shard_files.find(source)
    workers = Workers(config.workers, config.worker_kind)
    with scratch.temporary_folder() as place:
        checked = check_existing_set(tfrecords, LocalStore(place), workers, quiet=config.json)
    refusal = _refusal(config, tfrecords, checked)
    is_new = config.out is not None or store.size(schema.MANIFEST) is None
    try:
        if refusal is None and config.rewrite:
            rewrite.preview(_rewriting(config, tfrecords, checked), store)
        elif refusal is None and is_new:
            adoption.is_begun(store, tfrecords, checked, in_place=config.out is None)
    except UsageError as error:
        refusal = error
    return _summary(config, tfrecords, checked, None), refusal


def _rewriting(
    config: AdoptConfig, tfrecords: TfrecordSet, checked: ExistingSet
) -> rewrite.ResizeJob:
    """Returns the job that writes new shards; `resize --keep-original` runs the same job."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import rewrite

    return rewrite.ResizeJob(
        found=tfrecords,
        splits=tuple(tfrecords.splits),
        policy=None,
        workers=Workers(config.workers, config.worker_kind),
        allowed_bad_images=0,
        labelling=checked.labelling,
        renamed=checked.renamed,
        quiet=config.json,
    )


def _completed(config: AdoptConfig, store: Store) -> Json:
    """Restores lost files of a finished dataset, and adds tables of samples if there are none."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import adoption
    from imagenet_prep.storage.dataset_store import Dataset, open_dataset

    store.local.settle()
    dataset = open_dataset(store, check=False)
    lost = dataset.missing_files()
    if not lost:
        _ = dataset.classes  # raises if the class list differs from the manifest
    if lost or not dataset.manifest.has_samples:
        with store.lock():
            workers = Workers(config.workers, config.worker_kind)
            adoption.restore(store, dataset.manifest, lost, workers, quiet=config.json)
    return {
        "folder": store.where(),
        "already": Dataset.at(store).manifest.digest,
        "tables": "there" if dataset.manifest.has_samples else "added",
        "restored": lost,
    }


def _refusal(
    config: AdoptConfig, tfrecords: TfrecordSet, checked: ExistingSet
) -> ImagenetPrepError | None:
    where = tfrecords.store.where()
    if checked.problems:
        shown = "; ".join(checked.problems[:_SHOWN])
        if len(checked.problems) > _SHOWN:
            shown += "; ..."
        return errors.DataDamagedError(
            f"{where}: {counted(len(checked.problems), 'problem')} (all listed above): {shown}. "
            "Nothing was changed. Replace the damaged files, then run the same command again."
        )
    if checked.count_problems and not config.allow_subset:
        return errors.SourceError(
            f"{where}: incomplete ILSVRC2012: {'; '.join(checked.count_problems)}. Get the missing "
            "images, or accept this subset with --allow-subset."
        )
    if schema.ENCODED in checked.lacks and not config.rewrite:
        return UsageError(
            f"{where}: the records have the feature names of TensorFlow Datasets, which readers of "
            "the slim schema do not know. Use --rewrite --out DIR; the images stay unchanged."
        )
    return None


def _findings(tfrecords: TfrecordSet, checked: ExistingSet) -> list[str]:
    findings = []
    for split, shards in tfrecords.splits.items():
        first = shards[0]
        folder = first.path.rpartition("/")[0]
        if folder:
            findings.append(f"{split}: shards are in {folder}/; readers expect them one folder up")
        if not first.file.startswith(f"{split}-"):
            findings.append(f"{split}: files are named as in TensorFlow Datasets: {first.file}")
        elif first.file != first.name:
            findings.append(f"{split}: file numbers start at 1, not 0; last: {shards[-1].file}")
    offset = checked.labelling.offset
    last_label = len(checked.labelling.classes.wnids) - 1 + offset
    findings.append(f"labels: {offset} ... {last_label}, class index + {offset}")
    renamed = [key for new_keys in checked.renamed.values() for key in new_keys.values()]
    if renamed:
        findings.append(
            f"keys: {counted(len(renamed), 'record')} had the class and file name of an earlier "
            f"record; their keys now end in a number: {some(renamed)}"
        )
    history = tfrecords.manifest.settings.amendments if tfrecords.manifest else []
    if history:
        findings.append(
            f"history: {counted(len(history), 'amendment')} of the input; its {schema.MANIFEST} "
            "describes them, the new one does not"
        )
    findings += [f"counts: {problem}" for problem in checked.count_problems]
    if schema.ENCODED in checked.lacks:
        findings.append("records: feature names from TensorFlow Datasets, not from the slim schema")
    else:
        for key, kinds in sorted(checked.lack_counts.items()):
            for kind, number in kinds.items():
                found = f"{key}: {kind} in {number:,} of {counted(checked.examples, 'record')}"
                findings.append(found + _STALE.get((key, kind), ""))
    if checked.not_rgb:
        findings.append(
            f"grey or CMYK, although the records say RGB: {counted(checked.not_rgb, 'image')}"
        )
    if checked.refused:
        findings.append(
            f"refused by Pillow or DALI because of the header: {counted(checked.refused, 'image')}."
            " Use --rewrite --out DIR, or resize, to encode them again"
        )
    findings += [f"damaged: {problem}" for problem in checked.problems]
    return findings


def _summary(
    config: AdoptConfig, tfrecords: TfrecordSet, checked: ExistingSet, manifest: Manifest | None
) -> Json:
    from imagenet_prep.preparation import adoption

    return {
        "folder": config.out or config.folder,
        "digest": manifest.digest if manifest else None,
        "splits": {
            split: {
                "examples": sum(shard.examples for shard in shards),
                "shards": len(shards),
                "bytes": sum(shard.num_bytes for shard in shards),
            }
            for split, shards in checked.shards.items()
        },
        "findings": _findings(tfrecords, checked),
        "problems": checked.problems,
        "lacks": checked.lacks if manifest is None else manifest.lacks,
        "renames": [] if config.rewrite else adoption.moves(tfrecords),
    }


@program.verb("imagenet_prep.adopt", AdoptConfig, __doc__)
def run(config: AdoptConfig) -> None:
    summary, refusal = adopt(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    if refusal is not None:
        raise refusal


def _render(summary: Json) -> str:
    if "already" in summary:
        action = "tables of samples were added" if summary["tables"] == "added" else "nothing to do"
        restored = summary["restored"]
        if restored:
            action = f"{counted(len(restored), 'lost file')} restored: {some(restored)}"
        digest = summary["already"][:16]
        return (
            f"{summary['folder']} is already a dataset ({digest}): {action}. To check it, run "
            "imagenet-prep verify."
        )
    lines = [
        f"{name}: {counted(s['examples'], 'example')} in {counted(s['shards'], 'shard')}, "
        f"{human_bytes(s['bytes'])}"
        for name, s in summary["splits"].items()
    ]
    lines += [f"found: {finding}" for finding in summary["findings"]]
    renamed = "would be renamed to" if summary["digest"] is None else "was renamed to"
    lines += [f"{before} {renamed} {after}" for before, after in summary["renames"]]
    if summary["digest"] is None:
        lines.append("nothing was changed")
    else:
        manifest = f"{summary['folder'].rstrip('/')}/{schema.MANIFEST}"
        lines.append(f"manifest: {manifest} ({summary['digest'][:16]})")
    return "\n".join(lines)
