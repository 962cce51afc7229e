"""Compares the claims of a manifest with its counts and with the class list.

Some facts are stored in two files, and each reader uses one of them. If the files differ, readers
return different labels although all checksums match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import class_list, schema, tfds
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, Split


def untrue(manifest: Manifest, classes: ClassList) -> Iterator[str]:
    """Yields a sentence for each claim of a manifest that contradicts its counts or class list."""
    count = len(classes.wnids)
    expected = manifest.classes
    if (count, classes.digest) != (expected.count, expected.digest):
        counts = f" ({count:,} classes, expected {expected.count:,})"
        yield (
            f"{schema.LABELS}: its classes or their order differ from {schema.MANIFEST}"
            f"{counts if count != expected.count else ''}"
        )
        return
    if len(classes.index) != count:
        yield f"{schema.LABELS}: a class is listed twice"
    if expected.official != classes.official:
        yield (
            f"{schema.MANIFEST}: says that the classes are {'' if expected.official else 'not '}"
            f"ILSVRC2012's, but {schema.LABELS} {'lists' if classes.official else 'does not list'} "
            "ILSVRC2012's classes"
        )
    stated = {file.name: file.sha256 for file in manifest.files}
    for name, data in tfds_files(manifest, classes).items():
        digest = hashlib.sha256(data).hexdigest()
        if stated.get(name, digest) != digest:
            yield (
                f"{name}: differs from {schema.LABELS} and {schema.MANIFEST}, so TensorFlow "
                "Datasets would read different labels or features"
            )
    for name, split in manifest.splits.items():
        yield from _miscounted(name, split, classes)
    yield from _no_edition(manifest, classes)


def tfds_files(manifest: Manifest, classes: ClassList) -> dict[str, bytes]:
    """Returns the contents of the two files with the labels for TensorFlow Datasets, by name."""
    absent = [key for key, kind in manifest.lacks.items() if kind == schema.ABSENT]
    num_labels = len(classes.wnids) + manifest.label_offset
    return {
        schema.TFDS_FEATURES: tfds.features(num_labels, absent),
        schema.TFDS_LABELS: tfds.label_names(classes.wnids, manifest.label_offset),
    }


def _miscounted(name: str, split: Split, classes: ClassList) -> Iterator[str]:
    counts = split.examples_per_class
    if len(counts) != len(classes.wnids):
        yield (
            f"{schema.MANIFEST}: has counts for {counted(len(counts), 'class')} of {name}, but "
            f"{schema.LABELS} has {len(classes.wnids):,}"
        )
    in_shards = sum(shard.examples for shard in split.shards)
    num_bytes = sum(shard.num_bytes for shard in split.shards)
    if {sum(counts), in_shards} != {split.examples} or num_bytes != split.num_bytes:
        yield (
            f"{schema.MANIFEST}: says that {name} has {counted(split.examples, 'example')} in "
            f"{split.num_bytes:,} bytes, but its class counts add up to {sum(counts):,} "
            f"and its shards have {in_shards:,} examples in {num_bytes:,} bytes"
        )
    present = [w for w, count in zip(classes.wnids, counts, strict=False) if count]
    if split.wnids and split.wnids != present:
        yield f"{schema.MANIFEST}: the classes listed for {name} are not those of its images"


def _no_edition(manifest: Manifest, classes: ClassList) -> Iterator[str]:
    """Yields the reasons why a dataset cannot be the edition that its manifest names."""
    splits = manifest.splits
    claims_all = not manifest.subset and (manifest.edition or not manifest.evaluates)
    edition = class_list.named(manifest.edition) if manifest.edition else class_list.ILSVRC2012
    if edition is None:
        yield (
            f"{schema.MANIFEST}: says that this is {manifest.edition!r}, an edition that this "
            "program does not know. If the dataset is newer, upgrade imagenet-prep"
        )
    elif manifest.edition and not edition.has(classes):
        yield f"{schema.MANIFEST}: says that this is {edition.name}, which has different classes"
    elif claims_all and edition.has(classes):
        # Quarantined images belong to the edition, but the manifest does not count them per split.
        quarantined = sum(manifest.quarantined.values())
        # With -1 for a split that the edition lacks, the difference is negative.
        missing = [edition.examples.get(s, -1) - split.examples for s, split in splits.items()]
        if edition.examples and (min(missing) < 0 or sum(missing) != quarantined):
            actual = ", ".join(f"{s}: {split.examples:,}" for s, split in splits.items())
            expected = ", ".join(f"{s}: {count:,}" for s, count in edition.examples.items())
            yield (
                f"{schema.MANIFEST}: says that this is all of {edition.name}, but it has {actual} "
                f"and {quarantined:,} quarantined images; expected {expected}"
            )
        test = splits.get(schema.TEST)
        if test and edition.num_classes not in (0, len(test.wnids)) and not quarantined:
            yield (
                f"{schema.MANIFEST}: says that this is all of {edition.name}, but it has images of "
                f"{counted(len(test.wnids), 'class')}, expected {edition.num_classes:,}"
            )
