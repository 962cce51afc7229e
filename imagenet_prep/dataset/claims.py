"""Compares the claims of a manifest with its counts and with the class list.

Some facts are stored in two places, and each reader uses one of them. If the two differ, readers
disagree about labels although every checksum is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import editions, naming, schema, tfds
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, Split


def untrue(there: Manifest, classes: ClassList) -> Iterator[str]:
    """Yields a sentence for each claim of a manifest that contradicts its counts or class list."""
    if (len(classes.wnids), classes.digest) != (there.classes.count, there.classes.digest):
        said = f"{naming.LABELS}: its classes or their order differ from {naming.MANIFEST}"
        if len(classes.wnids) != there.classes.count:
            said += f" ({len(classes.wnids):,} classes, expected {there.classes.count:,})"
        yield said
        return
    if len(classes.index) != len(classes.wnids):
        yield f"{naming.LABELS}: a class is in it twice"
    if there.classes.official != classes.official:
        yield (
            f"{naming.MANIFEST}: says {'' if there.classes.official else 'not '}that the classes "
            f"are ILSVRC2012's, but {naming.LABELS} {'lists' if classes.official else 'is not'} "
            "that list"
        )
    stated = {file.name: file.sha256 for file in there.files}
    for name, data in tfds_files(there, classes).items():
        if stated.get(name, digest := hashlib.sha256(data).hexdigest()) != digest:
            yield (
                f"{name}: differs from {naming.LABELS} and {naming.MANIFEST}, so TensorFlow "
                "Datasets would read other labels or features"
            )
    for name, split in there.splits.items():
        yield from _miscounted(name, split, classes)
    yield from _no_edition(there, classes)


def tfds_files(there: Manifest, classes: ClassList) -> dict[str, bytes]:
    """Returns the two files that describe the labels to TensorFlow Datasets, by name."""
    absent = [key for key, kind in there.lacks.items() if kind == schema.ABSENT]
    num_labels = len(classes.wnids) + there.label_offset
    return {
        naming.TFDS_FEATURES: tfds.features(num_labels, absent),
        naming.TFDS_LABELS: tfds.label_names(classes.wnids, there.label_offset),
    }


def _miscounted(name: str, split: Split, classes: ClassList) -> Iterator[str]:
    counts = split.examples_per_class
    if len(counts) != len(classes.wnids):
        yield (
            f"{naming.MANIFEST}: counts {counted(len(counts), 'class')} of {name}, and "
            f"{naming.LABELS} has {len(classes.wnids):,}"
        )
    in_shards = sum(shard.examples for shard in split.shards)
    num_bytes = sum(shard.num_bytes for shard in split.shards)
    if {sum(counts), in_shards} != {split.examples} or num_bytes != split.num_bytes:
        yield (
            f"{naming.MANIFEST}: says that {name} has {counted(split.examples, 'example')} in "
            f"{split.num_bytes:,} bytes; its classes have {sum(counts):,} and its shards "
            f"{in_shards:,} in {num_bytes:,} bytes"
        )
    present = [w for w, count in zip(classes.wnids, counts, strict=False) if count]
    if split.wnids and split.wnids != present:
        yield f"{naming.MANIFEST}: the classes that it names for {name} are not those with images"


def _no_edition(there: Manifest, classes: ClassList) -> Iterator[str]:
    """Yields the reasons why a dataset cannot be the edition that its manifest names."""
    edition = editions.named(there.edition) if there.edition else editions.ILSVRC2012
    if edition is None:
        yield (
            f"{naming.MANIFEST}: says that this is {there.edition!r}, an edition that this program "
            "does not know. If the dataset is newer, upgrade imagenet-prep"
        )
        return
    if there.edition and not edition.has(classes):
        yield f"{naming.MANIFEST}: says that this is {edition.name}, which has other classes"
    elif not there.subset and edition.has(classes) and (there.edition or not there.evaluates):
        # Quarantined images belong to the edition, but are not counted per split.
        left_out = sum(there.quarantined.values())
        expected = {split: edition.examples.get(split, -1) for split in there.splits}
        missing = {s: expected[s] - split.examples for s, split in there.splits.items()}
        if edition.examples and (min(missing.values()) < 0 or sum(missing.values()) != left_out):
            found = ", ".join(f"{s}: {split.examples:,}" for s, split in there.splits.items())
            yield (
                f"{naming.MANIFEST}: says that this is all of {edition.name}, but it has {found} "
                f"and {left_out:,} quarantined; expected "
                + ", ".join(f"{split}: {count:,}" for split, count in edition.examples.items())
            )
        test = there.splits.get(schema.TEST)
        if test and edition.num_classes not in (0, len(test.wnids)) and not left_out:
            yield (
                f"{naming.MANIFEST}: says that this is all of {edition.name}, but it has images of "
                f"{counted(len(test.wnids), 'class')}, expected {edition.num_classes:,}"
            )
