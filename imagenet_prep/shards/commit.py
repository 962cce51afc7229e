"""Publishes a dataset's small files and its manifest; limits the number of quarantined images."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import naming, tfds
from imagenet_prep.dataset.claims import tfds_files
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import File, Manifest, Split
from imagenet_prep.dataset.member import OF_INPUT, QUARANTINED, REPAIRED, Incident
from imagenet_prep.shards.samples_root import root_of
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage.store import Store


def publish(
    store: Store,
    draft: Manifest,
    *,
    incidents: Iterable[Incident],
    classes: ClassList,
    name: str = tfds.IMAGENET,
    replaced: Manifest | None = None,
) -> Manifest:
    """Publishes the small files and then dataset.json; returns the manifest.

    The store already contains all shards, indexes and tables. `draft` is the manifest without the
    fields quarantined, repaired, files and samples_root. `replaced` is the old manifest, if any.
    """
    splits = {split: with_root(store, entry) for split, entry in draft.splits.items()}
    incidents = sorted(incidents, key=lambda incident: (incident.key, incident.line))
    contents = small_files(draft, incidents=incidents, classes=classes, name=name)
    manifest = dataclasses.replace(
        draft,
        splits=splits,
        quarantined=_count(incidents, QUARANTINED),
        repaired=_count(incidents, REPAIRED),
        files=[
            File(name, len(data), hashlib.sha256(data).hexdigest())
            for name, data in sorted(contents.items())
        ],
    )
    store.verify_published(manifest.files_of(splits)[len(manifest.files) :])
    if replaced:
        # The old manifest must not be visible together with the new small files.
        store.write(naming.REPLACED, replaced.dumps())
        store.remove(naming.MANIFEST)
    for name, data in contents.items():
        store.write(name, data)
    # Write the manifest last: once it is visible, all files that it names exist.
    store.verify_published(manifest.files)
    store.write(naming.MANIFEST, manifest.dumps())
    if replaced:
        store.remove(naming.REPLACED)
    return manifest


def small_files(
    draft: Manifest, *, incidents: Iterable[Incident], classes: ClassList, name: str
) -> dict[str, bytes]:
    """Returns the contents of a dataset's small files by name; see `publish` for the arguments."""
    return {
        naming.LABELS: classes.render(),
        **tfds_files(draft, classes),
        naming.QUARANTINE: b"".join(incident.line for incident in incidents),
        naming.TFDS_INFO: tfds.dataset_info(
            name, {split: entry.shards for split, entry in draft.splits.items()}, draft.subset
        ),
    }


def with_root(store: Store, split: Split) -> Split:
    """Returns a split with the root of its samples added, or unchanged if it has no tables."""
    if split.samples_root or split.shards[0].samples is None:
        return split
    return dataclasses.replace(split, samples_root=root_of(store, split))


def emptied(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Returns the indices of classes that had images before and have none now."""
    counts = zip(before, after, strict=True)
    return [index for index, (had, has) in enumerate(counts) if had and not has]


def split_of(receipts: Sequence[WrittenShard], num_per_class: Sequence[int]) -> Split:
    """Returns the manifest entry of a split, from the receipts of its shards in order.

    `num_per_class` is the number of members by class index, including quarantined members.
    """
    examples_per_class = list(num_per_class)
    for receipt in receipts:
        for incident in receipt.incidents:
            if incident.action == QUARANTINED:
                if not 0 <= incident.class_index < len(examples_per_class):
                    raise DataDamagedError(
                        f"{receipt.shard}: its receipt in .work quarantines an image of class "
                        f"{incident.class_index:,}, but there are {len(examples_per_class):,} "
                        "classes. Remove .work, then run the same command again."
                    )
                examples_per_class[incident.class_index] -= 1
    return Split(
        examples=sum(examples_per_class),
        num_bytes=sum(receipt.num_bytes for receipt in receipts),
        examples_per_class=examples_per_class,
        resized=sum(receipt.resized for receipt in receipts),
        max_height=max(receipt.max_height for receipt in receipts),
        max_width=max(receipt.max_width for receipt in receipts),
        shards=[receipt.entry for receipt in receipts],
    )


def num_per_class(receipts: Iterable[Mapping[int, int]], num_classes: int) -> list[int]:
    """Adds up counts by class index; returns the totals as a list."""
    total: Counter[int] = Counter()
    for counts in receipts:
        total.update(counts)
    return [total[index] for index in range(num_classes)]


def _count(incidents: Iterable[Incident], action: str) -> dict[str, int]:
    counted = (i.reason for i in incidents if i.action.removeprefix(OF_INPUT) == action)
    return dict(sorted(Counter(counted).items()))


def refuse_too_many(bad: Sequence[Incident], limit: int | None) -> None:
    """Raises DataDamagedError if a run has found more bad images than `limit` allows."""
    if limit is not None and len(bad) > limit:
        last = bad[-1]
        raise DataDamagedError(
            f"{len(bad)} bad images, more than --max-bad {limit}; the last is {last.key} "
            f"({last.archive} byte {last.offset:,}): {last.detail}. Finished shards are kept. "
            "Check the source, then run again with a higher --max-bad, or without it."
        )


def check_finished(where: str, bad: int, allowed: int | None) -> None:
    """Raises DataDamagedError if a finished dataset has more bad images than the run allows."""
    if allowed is not None and bad > allowed:
        raise DataDamagedError(
            f"{where} is finished, but {bad} images are quarantined or doubtful, and only "
            f"{allowed} are allowed. They are listed in {naming.QUARANTINE}."
        )
