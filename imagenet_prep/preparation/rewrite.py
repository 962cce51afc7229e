"""Writes the shards of an existing set anew, split by split: `resize` and `adopt --rewrite`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from imagenet_prep import engine
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import is_rgb, keep, transform
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import BadImageError, SourceError, UsageError
from imagenet_prep.dataset import example, schema
from imagenet_prep.dataset.manifest import Source
from imagenet_prep.dataset.member import Member, PreparedImage
from imagenet_prep.dataset.settings import KEEP_ORIGINAL, RESIZE, Settings
from imagenet_prep.preparation.existing_set import (
    check_validation_labels,
    identity,
    note_validation,
    settle_labels,
)
from imagenet_prep.preparation.output import Output, Wanted
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.shards import writer
from imagenet_prep.shards.commit import num_per_class, split_of
from imagenet_prep.sources import tfrecords
from imagenet_prep.sources.labelling import Labelling, are_wnids
from imagenet_prep.sources.labels import ClassList
from imagenet_prep.sources.shard_files import ShardFile, TfrecordSet
from imagenet_prep.storage.folder import LocalStore

_SOURCE = {"name": str, "num_bytes": int, "md5": str, "members": int}
# What a rewritten shard's receipt holds, as for `canonical.fits`.
_RECEIPT = {
    **writer.RECEIPT,
    "num_per_class": {int: int},
    "validation": {int: int},
    "source": _SOURCE,
}


@dataclass(frozen=True)
class Job:
    """One request, resolved.

    Attributes:
      found: the input.
      splits: those to write.
      policy: for the codec; None keeps every image byte for byte.
      workers: how much runs at once.
      allowed_bad_images: 0 stops at the first, None never.
      labelling: what the labels mean, if that is known already.
      wnids_only: refuse classes whose names are not WNIDs.
      force: replace a split that has other settings; None if the verb has no such flag.
      quiet: show no progress.
    """

    found: TfrecordSet
    splits: tuple[str, ...]
    policy: Policy | None
    workers: engine.Workers
    allowed_bad_images: int | None = None
    labelling: Labelling | None = None
    wnids_only: bool = False
    force: bool | None = None
    quiet: bool = False

    @property
    def transform(self) -> Callable[[bytes], PreparedImage]:
        """Source bytes to the stored image."""
        return keep if self.policy is None else partial(transform, policy=self.policy)

    @cached_property
    def wanted(self) -> Wanted:
        """The data set to make. The source is identified by names and sizes of its files."""
        byte_settings, libraries = KEEP_ORIGINAL, {}
        if self.policy is not None:
            byte_settings = {name: getattr(self.policy, name) for name in KEEP_ORIGINAL}
            libraries = self.policy.libraries
        files = {
            split: [[shard.path.name, shard.num_bytes] for shard in self.found.splits[split]]
            for split in self.splits
        }
        shards = [shard for split in self.found.splits.values() for shard in split]
        return Wanted(
            Settings(
                RESIZE,
                {s: {**byte_settings, "source": canonical.digest(files[s])} for s in self.splits},
            ),
            libraries,
            allowed_bad_images=self.allowed_bad_images,
            origin={
                "root": str(self.found.root.absolute()),
                "files": {shard.path.name: str(shard.path.absolute()) for shard in shards},
            },
            force=self.force,
        )


def recorded_images(
    shard: ShardFile, receipt: dict[str, Any], *, labelling: Labelling, count_colorspaces: bool
) -> Iterator[tuple[Member, bytes]]:
    """Yields the images of a source shard; for `WriteWork`.

    Args:
      shard: of the source.
      receipt: gets counts of the images, and name, size and md5 of the file.
      labelling: what the labels of the source mean.
      count_colorspaces: count images that are kept although they are not RGB.
    """
    path, num_bytes = shard.path, shard.num_bytes
    source = {"name": path.name, "num_bytes": num_bytes, "md5": _md5(path)}
    counts: Counter[int] = Counter()
    validation: dict[str, int] = {}
    not_rgb = 0
    for member, data in tfrecords.read(shard, labelling):
        counts[member.class_index] += 1
        note_validation(member, validation)
        not_rgb += count_colorspaces and _is_kept_without_rgb(data)
        yield member, data
    receipt["num_per_class"] = {str(i): n for i, n in sorted(counts.items())}
    receipt["validation"] = validation
    receipt["not_rgb"] = not_rgb
    receipt["source"] = {**source, "members": counts.total()}


def run(job: Job, out: Path) -> dict[str, Any]:
    """Writes the splits that are not finished and returns the summary.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    folders = {shard.path.parent.resolve() for s in job.splits for shard in job.found.splits[s]}
    if out.resolve() in {job.found.root.resolve(), *folders}:
        raise UsageError(f"{out} is the input; the result needs a folder of its own")
    store = LocalStore(out)
    output = Output(store, job.wanted)
    if output.left():
        with output.lock():
            left = output.left()
            labelling = _labelling(job, store, output, left)
            output.begin(left)
            for split in left:
                _write(job, store, output, split, labelling)
    summary = output.summary()
    return {**summary, "left_in_input": sorted(set(job.found.splits) - set(summary["splits"]))}


def preview(job: Job, out: Path) -> dict[str, Any]:
    """Returns what a run would make; reads only the first and last shards."""
    labelling = tfrecords.known_labelling(job.found, job.splits)
    labels = "known only after the whole set is read, so it is read twice"
    if labelling is not None:
        last = len(labelling.classes.wnids) - 1 + labelling.offset
        what = "ILSVRC2012's classes" if labelling.classes.official else "its own classes"
        labels = f"{what}, labels {labelling.offset} ... {last}"
    return {
        "out": str(out),
        "splits": {
            split: {
                "shards": len(shards),
                "source_bytes": sum(shard.num_bytes for shard in shards),
                "first_file": str(shards[0].path),
                "first_shard": shards[0].name,
            }
            for split, shards in job.found.splits.items()
            if split in job.splits
        },
        "labels": labels,
        "workers": f"{job.workers.count} {job.workers.resolved_kind}",
    }


def _labelling(job: Job, store: LocalStore, output: Output, left: Sequence[str]) -> Labelling:
    there = output.committed()
    known = output.classes(there) if there and set(there.splits) - set(left) else None
    labelling = job.labelling or settle_labels(
        job.found, left, store, job.workers, known=known, quiet=job.quiet
    )
    classes = labelling.classes
    root = job.found.root
    if job.wnids_only and not are_wnids(classes.wnids):
        raise UsageError(
            f"{root}: its classes are called {', '.join(classes.wnids[:3])}, no WNIDs. If that "
            "is right, leave --dataset_name out."
        )
    if known is not None and known.digest != classes.digest:
        raise UsageError(
            f"{root}: its {len(classes.wnids)} classes are not the {len(known.wnids)} that "
            f"{store.root} has already. Choose another folder."
        )
    return labelling


def _write(job: Job, store: LocalStore, output: Output, split: str, labelling: Labelling) -> None:
    """Writes one split and commits it."""
    shards = job.found.splits[split]
    work = WriteWork(
        store=store,
        images=partial(recorded_images, labelling=labelling, count_colorspaces=job.policy is None),
        transform=job.transform,
        classes=labelling.classes,
        label_offset=schema.DEFAULT_LABEL_OFFSET,
        fail_on_bad_image=job.allowed_bad_images == 0,
    )
    digest = canonical.digest(
        [
            job.wanted.settings.splits[split],
            job.wanted.libraries,
            labelling.offset,
            labelling.classes.render().decode(),
            identity(shards),
        ]
    )
    stage = engine.Stage(f"{RESIZE}-{split}", digest, store, work, _RECEIPT)
    title = f"{RESIZE} {split}"
    receipts = engine.run(
        stage, shards, job.workers, title=title, watch=output.watch, quiet=job.quiet
    )
    _commit(job.found, output, split, receipts, labelling.classes)


def _commit(
    found: TfrecordSet,
    output: Output,
    split: str,
    receipts: Sequence[dict[str, Any]],
    classes: ClassList,
) -> None:
    check_validation_labels(receipts, classes, found.root)
    # Receipts of older versions do not count them; those versions made all images RGB.
    not_rgb = any(receipt.get("not_rgb") for receipt in receipts)
    output.commit(
        {split: split_of(receipts, num_per_class(receipts, len(classes.wnids)))},
        classes,
        incidents=[incident for receipt in receipts for incident in receipt["incidents"]],
        sources=[Source(*(receipt["source"][field] for field in _SOURCE)) for receipt in receipts],
        missing_features={schema.COLORSPACE: example.WRONG} if not_rgb else {},
        edition=found.manifest.edition if found.manifest else "",
    )


def _is_kept_without_rgb(data: bytes) -> bool:
    try:
        return not is_rgb(keep(data).encoded)
    except BadImageError:
        return False  # it is left out


def _md5(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()
