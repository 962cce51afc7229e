"""Make a new version of a dataset: exclude, relabel or add images. The archives are not needed.

Only changed shards are written. All other shards become hard links, or copies made by the bucket's
server. The original dataset never changes. After an interruption, run the same command again.

Examples:
  imagenet-prep amend /data/imagenet-480 --exclude bad.txt --out /data/imagenet-480-clean
  imagenet-prep amend /data/imagenet-480 --relabel labels.csv --out /data/imagenet-480-v2
  imagenet-prep amend /data/flowers --add /data/new-photographs --out /data/flowers-2
  imagenet-prep amend s3://bucket/imagenet --exclude bad.txt --out s3://bucket/imagenet-clean
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from imagenet_prep.core import program
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import AddressKind, WorkerFlags, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes, printable
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.shared_flags import data_set, unknown_keys


@dataclass(frozen=True)
class AmendConfig(WorkerFlags):
    """Settings of one run; see the help of each flag."""

    dataset: str = data_set(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix with the original dataset",
    )
    out: str = flag(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="new dataset; a folder on the same file system, or a prefix on the same server",
    )
    exclude: str | None = optional(
        place=AddressKind.FILE,
        help="exclude the images whose keys are in this file, one per line, or the images that "
        "this quarantine.jsonl of a dataset lists as excluded",
    )
    relabel: str | None = optional(
        place=AddressKind.FILE,
        help="change the class of each image listed in this CSV; its header is key,class",
        metavar="CSV",
    )
    add: str | None = optional(
        place=AddressKind.FOLDER,
        help="add the new images in this folder: train/CLASS/*.jpg, val/CLASS/*.jpg, or "
        "CLASS/*.jpg; images that the dataset has are skipped",
    )
    readmit: bool = switch(help="also add images that an earlier step has excluded")
    allow_unknown: bool = unknown_keys()
    splits: tuple[str, ...] | None = optional(
        choices=schema.SPLITS,
        help="apply --exclude and --relabel only to these splits, separated by commas (default: "
        "all)",
        metavar="NAMES",
    )
    dry_run: bool = switch(help="print the changes; write nothing")
    json: bool = switch(help="print the result as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.exclude or self.relabel or self.add):
            raise ValueError("nothing to change: give --exclude, --relabel or --add")
        if self.readmit and not self.add:
            raise ValueError("--readmit: needs --add, the folder with the images")
        if self.allow_unknown and not (self.exclude or self.relabel):
            raise ValueError("--allow-unknown: needs a list, --exclude or --relabel")
        if self.splits is not None and not (self.exclude or self.relabel):
            raise ValueError("--splits needs --exclude or --relabel; --add FOLDER names its splits")


def amend(config: AmendConfig) -> Json:
    """Makes the new version of a dataset and returns the summary."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import additions, amendment, changes
    from imagenet_prep.shards.equal_bytes import read_exclusions
    from imagenet_prep.storage.dataset_store import open_dataset
    from imagenet_prep.storage.store import open_store

    dataset = open_dataset(config.dataset)
    out = open_store(config.out)
    amendment.refuse(dataset, out)
    classes = dataset.classes
    splits = dataset.manifest.splits
    absent = sorted(set(config.splits or ()) - splits.keys())
    if absent:
        raise UsageError(
            f"--splits {','.join(absent)}: {dataset.where} has only {', '.join(splits)}"
        )
    allows_unknown = config.allow_unknown
    exclude = relabel = add = None
    if config.exclude:
        exclude = read_exclusions(config.exclude, allows_unknown=allows_unknown)
    if config.relabel:
        relabel = changes.read_relabels(config.relabel, classes, allows_unknown=allows_unknown)
    if config.add:
        add = additions.read_additions(config.add, classes, splits)
    request = changes.ChangeRequest(exclude, relabel, add, config.splits)
    workers = Workers(config.workers, config.worker_kind)
    job = amendment.AmendJob(dataset, request, workers, config.readmit, quiet=config.json)
    return amendment.preview(job, out) if config.dry_run else amendment.run(job, out)


@program.verb("imagenet_prep.amend", AmendConfig, __doc__)
def run(config: AmendConfig) -> None:
    summary = amend(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))


def _render(summary: Json) -> str:
    from imagenet_prep.preparation.additions import sentences
    from imagenet_prep.shards.commit import render

    counts = summary["amended"]
    changed = (
        f"{counted(counts['excluded'], 'image')} excluded, {counts['relabelled']:,} relabelled, "
        f"{counts['added']:,} added: {counts['shards']:,} of {counts['of_shards']:,} shards changed"
    )
    columns = [*_column_lines(counts)]
    if "add" in counts:
        columns = [*sentences(counts["add"]), *columns]
    if "manifest" not in summary:
        size = human_bytes(counts["bytes"])
        return "\n".join([changed, f"dry run: would write {size} of shards", *columns])
    empty = [f"{split}: no image of {names} remains" for split, names in counts["emptied"].items()]
    return render(summary, [changed, *empty, *columns])


def _column_lines(counts: Json) -> Iterator[str]:
    for name, column in counts["columns"].items():
        line = f"column {name}: {counted(column['copied_rows'], 'row')} copied, "
        line += f"{counted(column['linked_files'], 'file')} linked"
        missing = column["missing_rows"]
        if missing:
            line += (
                f"; {counted(missing, 'row')} missing, the first for "
                f"{printable(column['first_missing'][0])}. Run the column's script on this "
                "dataset; it only computes the missing rows"
            )
        yield line
    for name in counts["columns_left_behind"]:
        yield f"column {name} is not complete; only its finished splits are kept"
