"""Forget an image: find it and its copies everywhere, and make a version of the dataset without it.

The command lists all places that have the image, and what to do with each. The new version only
keeps salted digests of the image, and no later step can add the image again. The original dataset
never changes: delete it by hand. After an interruption, run the same command again.

Examples:
  imagenet-prep forget /data/flowers --image me.jpg --search /data --out /data/flowers-2 --dry-run
  imagenet-prep forget /data/flowers --image me.jpg --search /data --out /data/flowers-2
  imagenet-prep forget /data/imagenet-480 --keys asked.txt --out /data/imagenet-480-v2
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import program, small_files
from imagenet_prep.core.errors import IncompleteError, UsageError, some
from imagenet_prep.core.flags import AddressKind, WorkerFlags, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.shared_flags import data_set, unknown_keys


@dataclass(frozen=True)
class ForgetConfig(WorkerFlags):
    """Settings of one run; see the help of each flag."""

    dataset: str = data_set(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix with the newest version of the dataset",
    )
    out: str = flag(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="new version; a folder on the same file system, or a prefix on the same server",
    )
    keys: str | None = optional(
        place=AddressKind.FILE,
        help="forget the images whose keys are in this file, one per line",
    )
    allow_unknown: bool = unknown_keys()
    image: tuple[str, ...] = flag(
        (),
        place=AddressKind.FILE,
        help="forget this picture; can be given several times",
    )
    search: tuple[str, ...] = flag(
        (),
        place=AddressKind.FOLDER_OR_BUCKET,
        help="also search this folder or s3://bucket/prefix; can be given several times",
    )
    exact: bool = switch(
        help="only forget images with equal bytes; do not compare pictures to find copies"
    )
    dry_run: bool = switch(help="only list the places and the copies; make no new version")
    json: bool = switch(help="print the result as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys is None and not self.image:
            raise ValueError("nothing to forget: give --keys or --image")
        if self.allow_unknown and self.keys is None:
            raise ValueError("--allow-unknown is for the list of --keys")


def forget(config: ForgetConfig) -> Json:
    """Lists the places that have the images, makes the new version, and returns the summary."""
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import amendment
    from imagenet_prep.removal import images
    from imagenet_prep.removal.traces import TraceSearch
    from imagenet_prep.storage.dataset_store import Dataset, open_dataset
    from imagenet_prep.storage.store import open_store

    dataset = open_dataset(config.dataset)
    out = open_store(config.out)
    amendment.refuse(dataset, out)
    listed = None
    if config.keys is not None:
        listed = keys.read_list(config.keys, allows_unknown=config.allow_unknown)
    pictures = [images.Picture(path, _read(path)) for path in config.image]
    workers = Workers(config.workers, config.worker_kind)
    found = images.find_images(
        dataset, listed, pictures, None if config.exact else workers, quiet=config.json
    )

    def compare(other: Dataset) -> None:
        images.add_copies_in(other, found, dataset, workers, quiet=config.json)

    asked = found.lines | found.forgotten
    search = TraceSearch(dataset, found.sizes, config.search, config.out, compare, asked)
    search.find()
    images.add_equal(found, dataset)
    job = images.job(dataset, out, found, workers, quiet=config.json)
    traces = search.traces(config.out if job else dataset.where)
    result: Json = {
        "dataset": dataset.where,
        "out": config.out,
        "images": [{"image": line, "found": how} for line, how in found.how.items()],
        "forgotten_before": found.num_forgotten,
        "places": [trace._asdict() for trace in traces],
        "not_opened": search.not_opened,
        "problems": [*found.problems, *search.problems],
    }
    if job is None:
        return result
    summary = amendment.preview(job, out) if config.dry_run else amendment.run(job, out)
    return {**summary, **result}


def _read(path: str) -> bytes:
    from imagenet_prep.dataset.member import MAX_IMAGE_BYTES

    try:
        return small_files.read(Path(path).expanduser(), MAX_IMAGE_BYTES)
    except OSError as error:
        raise UsageError(f"--image {path}: cannot be read: {error.strerror}") from error


def judge(config: ForgetConfig, result: Json) -> None:
    """Raises IncompleteError if the list of places may be incomplete."""
    del config
    if result["problems"]:
        raise IncompleteError(
            f"{counted(len(result['problems']), 'problem')}: some places or copies may be missing "
            "from the list. Fix this and run the same command again; for further places, add "
            "--search."
        )


@program.verb("imagenet_prep.forget", ForgetConfig, __doc__)
def run(config: ForgetConfig) -> int:
    result = forget(config)
    if config.json:
        print(json.dumps(result, indent=1))
    else:
        print(_render(config, result))
    judge(config, result)
    is_known = bool(result["images"] or result["forgotten_before"])
    return 0 if is_known or config.allow_unknown else 1


def _render(config: ForgetConfig, result: Json) -> str:
    from imagenet_prep.shards.commit import render

    lines = [f"{image['image']}: {image['found']}" for image in result["images"]]
    if result["forgotten_before"]:
        lines.append(f"{counted(result['forgotten_before'], 'key')} of images forgotten before")
    if not result["images"]:
        lines.append(f"{result['dataset']} has no such image, so nothing was written")
    for place in result["places"]:
        lines.append(f"{place['kind']}: {place['place']}")
        lines.append(f"  {place['content']}")
        lines.append(f"  to do: {place['action']}")
    by_folder = itertools.groupby(result["not_opened"], key=lambda path: path.rpartition("/")[0])
    for folder, paths in by_folder:
        names = [path.rpartition("/")[2] for path in paths]
        lines.append(f"not opened, may have the image: {folder}/: {some(names)}")
    lines += [f"not searched: {problem}" for problem in result["problems"]]
    lines = [*map(printable, lines)]
    if "manifest" in result:
        return render(result, lines)
    if config.dry_run and result["images"]:
        shards = result["amended"]["shards"]
        lines.append(f"dry run: would write {counted(shards, 'shard')} of {config.out}")
    return "\n".join(lines)
