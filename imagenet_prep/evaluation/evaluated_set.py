"""The keys and labels of an evaluated split, from its samples tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.evaluation.label_list import LabelList
from imagenet_prep.storage.dataset_store import Dataset, open_dataset

Integers = npt.NDArray[np.int64]
SPLITS = (schema.TEST, schema.VALIDATION, schema.HOLDOUT)  # the first of these is evaluated
# limits of `_refuse_other_order`
_LEAST_PAIRS = 20
_LEAST_CLASSES = 5
_MANY_CLASSES = 200


class EvaluatedSet:
    """The evaluated split of a dataset, from its manifest, class list and samples tables.

    `keys` are in record order, and `number_of` maps each key to its position. `class_index`
    [images] are the dataset's labels. `present` has the indices of all classes in the split.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        dataset, split = opened(name)
        self.manifest, wnids = dataset.manifest, dataset.classes.wnids
        self.num_classes = len(wnids)
        # If the name of a class is a number, the number means this class, not a class index.
        self._index = {str(number): number for number in range(len(wnids))}
        self._index |= dataset.classes.index
        heads = list(itertools.chain.from_iterable(dataset.heads(dataset.shards(split))))
        self.keys = [key for _, key, _ in heads]
        self.number_of = {key: number for number, key in enumerate(self.keys)}
        self.class_index = np.array([class_index for class_index, *_ in heads], np.int64)
        self.present = self.manifest.present(split, wnids)

    @property
    def pairs(self) -> Integers:
        """Pairs [labels, 2] of an image number and a correct class for the image."""
        number = np.arange(len(self.keys))
        index = self._index
        pairs = [np.stack([number, self.class_index], 1)]
        for wnid, right in self.manifest.answers.items():
            numbers = number[self.class_index == index.get(wnid)]
            valid = [index[name] for name in right if name in index]
            pairs += [np.stack([numbers, np.full_like(numbers, n)], 1) for n in valid]
        return np.concatenate(pairs)

    def labels(self, of: LabelList) -> Mapping[int, tuple[int, ...]]:
        """Returns the class indices in a label list, by image number in this split."""
        labels = {}
        unknown = []
        for entry, (key, classes) in enumerate(of.classes.items(), start=1):
            number = self.number_of.get(key)
            if number is None:
                continue
            if self._index.keys() >= set(classes):
                labels[number] = tuple(sorted({self._index[name] for name in classes}))
            else:
                unknown.append(entry)
        if of.is_ilsvrc and (labels or unknown) and not self.manifest.classes.official:
            raise UsageError(f"{of.name} is for ILSVRC2012's 1,000 classes, unlike {self.name}")
        if unknown:
            raise UsageError(
                f"{of.name}: entry {some(unknown)}: not a class of {self.name}. Expected WNIDs of "
                f"its class list, or 0-based indices up to {self.num_classes - 1}. Replace "
                "ILSVRC2012_IDs, which have a different order, with WNIDs."
            )
        if any(map(str.isdecimal, itertools.chain.from_iterable(of.classes.values()))):
            self._refuse_other_order(of.name, labels)
        return labels

    def _refuse_other_order(self, name: str, labels: Mapping[int, tuple[int, ...]]) -> None:
        """Raises UsageError if a list numbers the classes differently, such as by ILSVRC2012_IDs.

        In a refused list, most labels differ from the dataset's, and all images of a class have the
        same wrong number. Lists that disagree about individual images are accepted.
        """
        single = [(number, *classes) for number, classes in labels.items() if len(classes) == 1]
        number, listed = np.array(single, np.int64).reshape(-1, 2).T
        own = self.class_index[number]
        wrong = np.flatnonzero(own != listed)
        columns = own * self.num_classes + listed, listed, own
        kinds = [len(np.unique(column)) for column in columns]
        together, *alone = map(_pairs, columns)
        moved = kinds[2] >= _LEAST_CLASSES and 2 * together > max(*alone, 2 * _LEAST_PAIRS)
        one_to_one = min(kinds) == max(kinds) >= _MANY_CLASSES
        if 2 * len(wrong) > len(own) and (moved or one_to_one):
            raise UsageError(
                f"{name}: its classes are numbered in a different order than in {self.name}, as "
                f"with ILSVRC2012_IDs: {len(wrong):,} of {counted(len(own), 'number')} differ "
                f"consistently, e.g. {listed[wrong[0]]} for images of class {own[wrong[0]]}. "
                "Replace the numbers with WNIDs."
            )

    def order(self, keys: Sequence[str] | None, count: int) -> Integers:
        """Returns the position of each image's prediction among `count` predictions."""
        number_of = self.number_of if keys is None else {k: n for n, k in enumerate(keys)}
        differing = sorted(number_of.keys() ^ self.number_of.keys())
        if differing or len(number_of) != count or (keys is not None and len(keys) != count):
            differ = f"; keys that differ: {some(differing)}" if differing else ""
            raise UsageError(
                f"{self.name} has {counted(len(self.keys), 'image')}; expected the same number of "
                f"predictions and keys, got {counted(count, 'prediction')} and "
                f"{counted(len(number_of), 'key')}{differ}. "
                "Use the reader's mask to exclude the padding of its last batch."
            )
        return np.array([number_of[key] for key in self.keys], np.int64)


def opened(name: str) -> tuple[Dataset, str]:
    """Opens a dataset; returns it and the name of the split to evaluate."""
    dataset = open_dataset(absolute(name))
    split = next((split for split in SPLITS if split in dataset.manifest.splits), None)
    if dataset.manifest.edition == "imagenet-o":
        raise UsageError(
            f"{name} is ImageNet-O: its images show none of the classes, so accuracy is undefined. "
            "Use it to evaluate out-of-distribution detection."
        )
    if split is None:
        raise UsageError(f"{name}: expected one of the splits {', '.join(SPLITS)}")
    dataset.demand_samples()
    return dataset, split


def _pairs(values: Integers) -> int:
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2
