"""Writes the shards of an existing set anew, split by split: `resize` and `adopt --rewrite`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from imagenet_prep import engine
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import is_rgb, keep, transform
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import BadImageError, UsageError
from imagenet_prep.dataset import example, schema
from imagenet_prep.dataset.manifest import Source
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.orientation import KEEP
from imagenet_prep.dataset.settings import KEEP_ORIGINAL, ORIENTATION, RESIZE, Settings
from imagenet_prep.preparation.existing_set import (
    check_validation_labels,
    count_member,
    identity,
    settle_labels,
)
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.shards import writer
from imagenet_prep.shards.commit import num_per_class, split_of
from imagenet_prep.sources import tfrecords
from imagenet_prep.sources.labelling import Labelling, are_wnids
from imagenet_prep.sources.shard_files import ShardFile, TfrecordSet
from imagenet_prep.storage.origins import Origin
from imagenet_prep.storage.store import Store, same_place

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

    @cached_property
    def wanted(self) -> Wanted:
        """The data set to make. The source is identified by names and sizes of its files."""
        byte_settings, libraries = KEEP_ORIGINAL, {}
        if self.policy is not None:
            byte_settings = {name: getattr(self.policy, name) for name in KEEP_ORIGINAL}
            if self.policy.orientation != KEEP:
                byte_settings[ORIENTATION] = self.policy.orientation
            libraries = self.policy.libraries
        files = {
            split: [[shard.file, shard.num_bytes] for shard in self.found.splits[split]]
            for split in self.splits
        }
        # For `report`: where the images were before.
        origin = None
        if folder := self.found.store.as_folder:
            root = folder.root.absolute()
            shards = [shard for split in self.found.splits.values() for shard in split]
            origin = Origin(str(root), {shard.file: str(root / shard.path) for shard in shards})
        return Wanted(
            Settings(
                RESIZE,
                {s: {**byte_settings, "source": canonical.digest(files[s])} for s in self.splits},
            ),
            libraries,
            allowed_bad_images=self.allowed_bad_images,
            origin=origin,
            force=self.force,
        )


def recorded_images(
    shard: ShardFile,
    receipt: dict[str, Any],
    *,
    store: Store,
    labelling: Labelling,
    count_colorspaces: bool,
) -> Iterator[tuple[Member, bytes]]:
    """Yields the images of a source shard, which is read once; for `WriteWork`.

    Args:
      shard: of the source.
      receipt: gets counts of the images, and name, size and md5 of the file.
      store: where the source lies.
      labelling: what the labels of the source mean.
      count_colorspaces: count images that are kept although they are not RGB.
    """
    md5 = hashlib.md5(usedforsecurity=False)
    counts: Counter[str] = Counter()
    validation: dict[str, int] = {}
    not_rgb = 0
    for member, data in tfrecords.read(store, shard, labelling, [md5]):
        count_member(member, counts, validation)
        not_rgb += count_colorspaces and _is_kept_without_rgb(data)
        yield member, data
    receipt.update(num_per_class=counts, validation=validation, not_rgb=not_rgb)
    receipt["source"] = {
        "name": shard.file,
        "num_bytes": shard.num_bytes,
        "md5": md5.hexdigest(),
        "members": counts.total(),
    }


def run(job: Job, store: Store) -> dict[str, Any]:
    """Writes the splits that are not finished into a store and returns the summary.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    source = job.found.store
    folders = {shard.path.rpartition("/")[0] for s in job.splits for shard in job.found.splits[s]}
    if any(same_place(store.where(), source.where(folder)) for folder in {"", *folders}):
        raise UsageError(f"{store.where()} is the input; the result needs a folder of its own")
    output = Output(store, job.wanted)
    if output.left():
        with output.lock():
            left = output.left()
            labelling = _labelling(job, store, output, left)
            output.begin(left)
            for split in left:
                _write(job, store, output, split, labelling)
    summary = output.end()
    return {**summary, "left_in_input": sorted(set(job.found.splits) - set(summary["splits"]))}


def preview(job: Job, store: Store) -> dict[str, Any]:
    """Returns what a run would make; reads only the first and last shards."""
    labelling = tfrecords.known_labelling(job.found, job.splits)
    labels = "known only after the whole set is read, so it is read twice"
    if labelling is not None:
        last = len(labelling.classes.wnids) - 1 + labelling.offset
        what = "ILSVRC2012's classes" if labelling.classes.official else "its own classes"
        labels = f"{what}, labels {labelling.offset} ... {last}"
    return {
        "out": store.where(),
        "splits": {
            split: {
                "shards": len(shards),
                "source_bytes": sum(shard.num_bytes for shard in shards),
                "first_file": job.found.store.where(shards[0].path),
                "first_shard": shards[0].name,
            }
            for split, shards in job.found.splits.items()
            if split in job.splits
        },
        "labels": labels,
        "workers": f"{job.workers.count} {job.workers.resolved_kind}",
    }


def _labelling(job: Job, store: Store, output: Output, left: Sequence[str]) -> Labelling:
    there = output.committed()
    known = None
    if there and set(there.splits) - set(left):
        known = tfrecords.listed_classes(store, there)
    labelling = job.labelling or settle_labels(
        job.found, left, store, job.workers, known=known, quiet=job.quiet
    )
    classes = labelling.classes
    where = job.found.store.where()
    if job.wnids_only and not are_wnids(classes.wnids):
        raise UsageError(
            f"{where}: its classes are called {', '.join(classes.wnids[:3])}, no WNIDs. If that "
            "is right, leave --dataset_name out."
        )
    if known is not None and known.digest != classes.digest:
        raise UsageError(
            f"{where}: its {len(classes.wnids)} classes are not the {len(known.wnids)} that "
            f"{store.where()} has already. Choose another folder."
        )
    return labelling


def _write(job: Job, store: Store, output: Output, split: str, labelling: Labelling) -> None:
    """Writes one split and commits it."""
    shards, classes = job.found.splits[split], labelling.classes
    work = WriteWork(
        store=store,
        images=partial(
            recorded_images,
            store=job.found.store,
            labelling=labelling,
            count_colorspaces=job.policy is None,
        ),
        transform=keep if job.policy is None else partial(transform, policy=job.policy),
        classes=classes,
        label_offset=job.wanted.label_offset,
        fail_on_bad_image=job.allowed_bad_images == 0,
    )
    digest = canonical.digest(
        [
            job.wanted.settings.splits[split],
            job.wanted.libraries,
            labelling.offset,
            classes.render().decode(),
            identity(shards),
        ]
    )
    stage = engine.Stage(f"{RESIZE}-{split}", digest, store, work, _RECEIPT)
    title = f"{RESIZE} {split}"
    receipts = engine.run(
        stage, shards, job.workers, title=title, watch=output.watch, quiet=job.quiet
    )
    check_validation_labels(receipts, classes, job.found.store)
    # Receipts of older versions do not count them; those versions made all images RGB.
    not_rgb = any(receipt.get("not_rgb") for receipt in receipts)
    output.commit(
        {split: split_of(receipts, num_per_class(receipts, len(classes.wnids)))},
        classes,
        incidents=[incident for receipt in receipts for incident in receipt["incidents"]],
        sources=[Source(*(receipt["source"][field] for field in _SOURCE)) for receipt in receipts],
        missing_features={schema.COLORSPACE: example.WRONG} if not_rgb else {},
        # A set without an edition is none by its counts: its images may have been chosen.
        edition=job.found.manifest.edition if job.found.manifest else None,
    )


def _is_kept_without_rgb(data: bytes) -> bool:
    try:
        return not is_rgb(keep(data).encoded)
    except BadImageError:
        return False  # it is left out
