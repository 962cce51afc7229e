"""Remove a column of a dataset, also an unfinished or damaged one.

Only the files of the column are removed. Images, labels and other columns stay, and so do copies of
the column in replicas and in other versions of the dataset. Stop programs that write or read the
column first. After an interruption, run the same command again.

Examples:
  imagenet-prep remove-column /data/imagenet-480 captions --dry-run
  imagenet-prep remove-column /data/imagenet-480 captions
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from imagenet_prep.core import program
from imagenet_prep.core.flags import AddressKind, Settings, flag, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes, printable
from imagenet_prep.dataset import column
from imagenet_prep.dataset.shared_flags import data_set


@dataclass(frozen=True)
class RemoveColumnConfig(Settings):
    """Settings of one run; see the help of each flag."""

    dataset: str = data_set(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix of the dataset",
    )
    name: str = flag(
        help="name of the column, as `show` lists it", positional=True, aliases=("--name",)
    )
    dry_run: bool = switch(help="only print what would be removed")
    json: bool = switch(help="print the result as JSON")


def remove_column(config: RemoveColumnConfig) -> Json:
    """Removes the column and returns the number and size of its files."""
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.dataset_store import open_dataset
    from imagenet_prep.storage.store import open_store

    store = open_store(config.dataset)
    dataset = open_dataset(config.dataset, parts=True)
    groups = columns.files_to_remove(dataset.store, config.name)
    stats = store.stats(column.folder_name(config.name))
    if not config.dry_run:
        columns.remove(store, config.name)
    return {
        "dataset": dataset.where,
        "column": config.name,
        "files": sum(map(len, groups)),
        "bytes": sum(status.size for status in stats.values()),
        "removed": not config.dry_run,
    }


@program.verb("imagenet_prep.remove_column", RemoveColumnConfig, __doc__)
def run(config: RemoveColumnConfig) -> None:
    result = remove_column(config)
    if config.json:
        print(json.dumps(result, indent=1))
        return
    size = f"{counted(result['files'], 'file')}, {human_bytes(result['bytes'])}"
    done = "removed" if result["removed"] else "dry run: would remove"
    print(printable(f"{done} the column {result['column']} of {result['dataset']}: {size}"))
