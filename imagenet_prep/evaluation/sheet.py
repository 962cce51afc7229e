"""Computes the table of accuracies from datasets, label lists and predictions.

`Sheet` computes the accuracies of one network. `EvaluatedSet` has the keys and labels of an
evaluated split, from its samples tables.

`read` reads a label list: a file with the right classes of each image. Three formats are recognized
by their content: CSV with the header `key,class`; ReaL's JSON ("Are we done with ImageNet?", Beyer
et al. 2020); and the JSON of the several-label annotations ("Evaluating Machine Accuracy on
ImageNet", Shankar et al. 2020, version 3 of Vasudevan et al. 2022).
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.small_files import DELIMITERS
from imagenet_prep.core.spelling import same_looking, suggested
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset import predictions as predictions_file
from imagenet_prep.dataset.predictions import MOST, Prediction, five, top
from imagenet_prep.evaluation import table
from imagenet_prep.evaluation.table import Row, Table
from imagenet_prep.storage.dataset_store import Dataset, open_dataset

# The sha256 of real.json from github.com/google-research/reassessed-imagenet, and of TensorFlow
# Datasets' human_accuracy_v3.0.0.json from imagenet2012_multilabel.
PUBLISHED = {
    "d83e9bff374c631aae8439eb064c7019acc56e1b3bc3f56b8380c2a710b0220b": "ReaL as published",
    "d5b2b6111fc9efea16aaebd21bc5a401d16ad18285d3fd99635d8b32ebdb6287": (
        "several labels 3.0.0 as published"
    ),
}
# published lists have up to 200 MB
_MOST_BYTES = 256 << 20
_MOST_VALUES = 1 << 26
_NUM_VALIDATION = schema.OFFICIAL_NUM_EXAMPLES[schema.VALIDATION]


class LabelList(NamedTuple):
    """The labels in one file.

    `classes` maps each key to its right classes, as WNIDs or class indices. Images without classes
    are ignored. If `is_ilsvrc`, indices refer to ILSVRC2012's 1,000 classes. If `is_by_class`,
    accuracy is averaged over classes instead of images.
    """

    classes: Mapping[str, tuple[str, ...]]
    form: str = "CSV"
    is_ilsvrc: bool = False
    is_by_class: bool = False
    name: str = ""
    sha256: str = ""


def read(path: str | os.PathLike[str]) -> LabelList:
    """Reads a label list from a file."""
    file = Path(path).expanduser()
    try:
        data = small_files.read(file, _MOST_BYTES)
        sha256 = hashlib.sha256(data).hexdigest()
        if len(data) > small_files.MOST_BYTES and sha256 not in PUBLISHED:
            raise ValueError(f"over {small_files.MOST_BYTES:,} bytes, and not a published list")
        most = _MOST_VALUES if sha256 in PUBLISHED else strict_json.MOST_VALUES
        is_json = data.lstrip()[:1] in (b"[", b"{")
        labels = _of_json(strict_json.loads(data, most)) if is_json else _of_csv(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(small_files.not_utf_8(path, error)) from None
    except (ValueError, csv.Error) as error:
        raise UsageError(
            f"{path}: not a label list: {error}. Expected CSV (header: key,class), ReaL's "
            "JSON, or the JSON of the several-label annotations."
        ) from None
    unpublished = f"{labels.form}, another file than the published one" if is_json else labels.form
    return labels._replace(name=file.name, sha256=sha256, form=PUBLISHED.get(sha256, unpublished))


def _of_csv(data: bytes) -> LabelList:
    """Parses a CSV list. Error messages contain the number of a line, but not its text."""
    classes_of: dict[str, tuple[str, ...]] = {}
    remaining = strict_json.MOST_VALUES
    if max(map(data.count, f"\n\r{DELIMITERS}".encode())) > keys.MOST_LINES:
        raise ValueError(f"more than {keys.MOST_LINES:,} lines")
    for line, listed_key, names in keys.rows_with_class(data.decode("utf-8-sig")):
        folder, slash, name = listed_key.partition("/")
        # The key of a validation image is its file name, even if the list adds a class folder.
        key = keys.key_of(schema.VALIDATION, folder, name) if slash else folder
        if key in classes_of:
            raise ValueError(f"line {line:,} repeats the key of an earlier line")
        classes_of[key] = tuple(names.split())
        remaining -= len(classes_of[key])
        if remaining < 0:
            raise ValueError(f"more than {strict_json.MOST_VALUES:,} classes")
    return LabelList(classes_of)


def _of_json(content: Any) -> LabelList:
    if isinstance(content, list):
        rows = strict_json.parse(list[list[int]], content)
        # Row i (from 0) has the labels of image i + 1.
        if len(rows) != _NUM_VALIDATION:
            raise ValueError(f"{len(rows):,} lists, expected {_NUM_VALIDATION:,} (one per image)")
        names = (f"{keys.validation_stem(number)}.JPEG" for number in range(1, len(rows) + 1))
        classes = (tuple(map(str, row)) for row in rows)
        return LabelList(dict(zip(names, classes, strict=True)), "ReaL's form", is_ilsvrc=True)
    annotations = strict_json.parse(dict[str, dict[str, list[str]]], content.get("initial_annots"))
    out = content.get("problematic_images", [])
    out = strict_json.parse(dict[str, Any] if isinstance(out, dict) else list[str], out)
    correct = {key: tuple(image.get("correct", ())) for key, image in annotations.items()}
    correct |= dict.fromkeys(correct.keys() & out, ())
    return LabelList(correct, "several labels' form", is_ilsvrc=True, is_by_class=True)


Integers = npt.NDArray[np.int64]
# The first of these is evaluated. A folder of new photographs, CLASS/*, is the split train.
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
        self.manifest = dataset.manifest
        self.wnids = wnids = dataset.classes.wnids
        self.num_classes = len(wnids)
        self._classes = dataset.classes
        heads = list(itertools.chain.from_iterable(dataset.heads(dataset.shards(split))))
        self.keys = [key for _, key, _ in heads]
        self.number_of = {key: number for number, key in enumerate(self.keys)}
        self.class_index = np.array([class_index for class_index, *_ in heads], np.int64)
        self.present = self.manifest.present(split, wnids)

    @property
    def pairs(self) -> Integers:
        """Pairs [labels, 2] of an image number and a correct class for the image."""
        number = np.arange(len(self.keys))
        index = self._classes.index
        pairs = [np.stack([number, self.class_index], 1)]
        for wnid, right in self.manifest.answers.items():
            numbers = number[self.class_index == index.get(wnid)]
            valid = [index[name] for name in right if name in index]
            pairs += [np.stack([numbers, np.full_like(numbers, n)], 1) for n in valid]
        return np.concatenate(pairs)

    def other_labels(self, predictions: Iterable[Prediction]) -> str:
        """Returns a sentence if images have a different label in a file of predictions, or ""."""
        label_of = dict(zip(self.keys, self.class_index.tolist(), strict=True))
        differing = sum(label_of.get(row.key) not in (None, row.class_index) for row in predictions)
        if not differing:
            return ""
        images = counted(differing, "image")
        return (
            f"{self.name}: {images} with a different class_index in the file of predictions. The "
            "accuracies are wrong if the file is of a different class list."
        )

    def labels(self, of: LabelList) -> Mapping[int, tuple[int, ...]]:
        """Returns the class indices in a label list, by image number in this split."""
        labels = {}
        unknown = []
        for entry, (key, classes) in enumerate(of.classes.items(), start=1):
            number = self.number_of.get(key)
            if number is None:
                continue
            found = [self._classes.index_of(name) for name in classes]
            indices = {index for index in found if index is not None}
            if None in found:
                unknown.append(entry)
            else:
                labels[number] = tuple(sorted(indices))
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
                f"{counted(len(number_of), 'key')}{differ}. If they are of a different version of "
                "the dataset, make them again. For batches of a reader, use its mask to exclude "
                "the padding of the last one."
            )
        return np.array([number_of[key] for key in self.keys], np.int64)


def opened(name: str) -> tuple[Dataset, str]:
    """Opens a dataset; returns it and the name of the split to evaluate."""
    dataset = open_dataset(absolute(name))
    split = next(split for split in schema.EVALUATED_SPLITS if split in dataset.manifest.splits)
    if dataset.manifest.edition == "imagenet-o":
        raise UsageError(
            f"{name} is ImageNet-O: its images show none of the classes, so accuracy is undefined. "
            "Use it to evaluate out-of-distribution detection."
        )
    dataset.require_samples()
    return dataset, split


def _pairs(values: Integers) -> int:
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2


DATASET = "dataset"


class Sheet:
    """The accuracies of one network on the datasets passed to `enter`; reads no images.

    `sets` maps paths or URLs to datasets. `labels[path or URL][name of label list]` maps image
    numbers to class indices. For `lists`, see `Table.lists`.
    """

    def __init__(self, sets: Sequence[str], labels: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.sets = {name: EvaluatedSet(name) for name in dict.fromkeys(sets)}
        if len({dataset.manifest.classes.digest for dataset in self.sets.values()}) > 1:
            raise UsageError(
                f"{', '.join(sets)}: their class lists differ: {self._odd_classes()}. Score them "
                "separately, or prepare a new test set with imagenet-prep prepare NEW OUT "
                f"--classes-of {shlex.quote(sets[0])}."
            )
        lists = {listed.name: listed for listed in map(read, labels)}
        if len(lists) < len(labels):
            raise UsageError("two label lists have the same file name. Rename one of them.")
        self.labels: dict[str, dict[str, Any]] = {name: {} for name in self.sets}
        self.lists: list[Json] = []
        self._notes: list[str] = []
        for name, listed in lists.items():
            unknown = list(listed.classes)
            for of, dataset in self.sets.items():
                labels_of_images = dataset.labels(listed)
                if labels_of_images:
                    self.labels[of][name] = labels_of_images
                    unknown = [key for key in unknown if key not in dataset.number_of]
            if len(unknown) == len(listed.classes):
                raise UsageError(
                    f"{name}: none of its {len(unknown):,} keys is in {', '.join(sets)}. "
                    f"{self._meant(unknown)}To see the keys, use `imagenet-prep show SET --keys`."
                )
            meant = self._meant(unknown)
            if meant:
                self._notes.append(f"{printable(name)}: keys without an image: {meant.strip()}")
            facts = {"name": name, "sha256": listed.sha256, "form": listed.form}
            counts = {"keys": len(listed.classes), "unknown": len(unknown), "first": unknown[:5]}
            self.lists.append(facts | counts)
        self._by_class = {name for name, listed in lists.items() if listed.is_by_class}
        self._digests = {name: listed.sha256 for name, listed in lists.items()}
        self._rows: list[Row] = []
        self._corruptions: dict[str, Json] = {}

    def _meant(self, unknown: Sequence[str]) -> str:
        """Returns a question about the first unknown key that looks the same as a key, or ""."""
        known = itertools.chain.from_iterable(dataset.keys for dataset in self.sets.values())
        for typed, key in same_looking(unknown, known).items():
            return f"Did you mean {suggested(key, typed)}? "
        return ""

    def _odd_classes(self) -> str:
        """Returns, in words, the classes that are not in all class lists."""
        listed = {name: {*evaluated.wnids} for name, evaluated in self.sets.items()}
        common = set.intersection(*listed.values())
        found: list[str] = []
        for name, wnids in listed.items():
            odd = sorted(wnids - common)
            if odd:
                found.append(f"not all have {some(odd)} of {name}")
        return "; ".join(found) or "their order"

    def enter(
        self,
        name: str,
        classes: Integers,
        within: Integers | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Adds the rows of a dataset to the table.

        `classes` [images, 5] are the predicted class indices, the likeliest first, padded with -1.
        `within` are the predictions among only the dataset's classes, or None if unknown. If `keys`
        is None, the predictions are those of all images in record order.
        """
        dataset = self.sets[name]
        order = dataset.order(keys, len(classes))
        own = dataset.class_index
        chosen = {dataset.num_classes: classes[order]}
        if len(dataset.present) < dataset.num_classes and within is not None:
            chosen[len(dataset.present)] = within[order]
        elif len(dataset.present) < dataset.num_classes:
            self._notes.append(
                f"{name} has {len(dataset.present):,} of {dataset.num_classes:,} classes. To "
                "compute the accuracy among only these classes, five predictions per image are not "
                "enough: use `train --evaluate --also`, or evaluation.score with all scores."
            )
        pairs = {DATASET: dataset.pairs}
        for of, labels in self.labels[name].items():
            # An image may have several labels: one pair for each.
            counts = np.fromiter(map(len, labels.values()), np.int64)
            numbers = np.repeat(np.fromiter(labels, np.int64), counts)
            right = np.fromiter(itertools.chain.from_iterable(labels.values()), np.int64)
            pairs[of] = np.stack([numbers, right], 1)
        digests = {**self._digests, DATASET: dataset.manifest.digest}
        for of, labelled in pairs.items():
            for among, first in chosen.items():
                shares = _shares(first, labelled, own, by_class=of in self._by_class)
                mean = "classes" if of in self._by_class else "images"
                self._rows.append(Row(name, of, *shares, among, mean, digests[of]))
        errors = table.errors(dataset.keys, chosen[dataset.num_classes][:, 0] == own)
        if errors:
            self._corruptions[name] = errors

    def compare_labels(self, name: str, predictions: Iterable[Prediction]) -> None:
        """Notes how many images have a different label in a file of predictions."""
        note = self.sets[name].other_labels(predictions)
        if note:
            self._notes.append(note)

    def columns(self, name: str) -> dict[str, dict[str, str]]:
        """Returns columns for a predictions file: a dataset's labels from each label list."""
        keys = self.sets[name].keys
        return {
            f"{of} sha256:{self._digests[of]}": {
                keys[number]: " ".join(map(str, classes)) for number, classes in labels.items()
            }
            for of, labels in self.labels[name].items()
        }

    @property
    def table(self) -> Table:
        """The table of all datasets that were passed to `enter`."""
        num_classes = next(iter(self.sets.values())).num_classes
        return Table(self._rows, num_classes, self.lists, self._corruptions, self._notes)


def _shares(
    classes: Integers, labelled: Integers, own: Integers, *, by_class: bool
) -> tuple[int, float, float, int]:
    """Returns the number of labelled images, their top-1 and top-5 accuracy, and their class count.

    `classes` [images, 5] are the predictions, `labelled` [labels, 2] are pairs of an image number
    and a correct class, and `own` [images] are the classes that `by_class` averages over.
    """
    image, label = labelled.T
    hits = classes[image] == label[:, None]
    right = np.zeros((len(classes), 2))
    np.maximum.at(right, image, np.stack([hits[:, 0], hits.any(1)], 1))
    counted = np.unique(image)
    present, position, images = np.unique(own[counted], return_inverse=True, return_counts=True)
    shares = right[counted].sum(0) / max(len(counted), 1)
    if by_class:
        shares = np.mean([np.bincount(position, hits) / images for hits in right[counted].T], 1)
    return len(counted), float(shares[0]), float(shares[1]), len(present)


def _texts(keys: Iterable[Any]) -> list[str]:
    """Returns keys as text. TensorFlow's tensors contain bytes, and so may NumPy's arrays."""
    values = np.asarray(keys).tolist() if hasattr(keys, "__array__") else keys
    texts = []
    for value in values:
        # A list may contain NumPy's strings, or tensors with one string each.
        key = np.asarray(value).tolist() if hasattr(value, "__array__") else value
        texts.append(key.decode(errors="replace") if isinstance(key, bytes) else str(key))
    return texts


def score(
    predictions: Any,
    data_dir: str | os.PathLike[str],
    *,
    labels: Sequence[str | os.PathLike[str]] = (),
    keys: Iterable[str | bytes] | None = None,
) -> Table:
    """Returns the accuracy of predictions on a dataset, by its own labels and by label lists.

    The split is `test` if the dataset has one, else `validation`, else `holdout`. If scores are
    equal, the first class wins.

    Args:
      predictions: floats [images, classes], as logits or probabilities; or integers [images, 5], as
        class indices, the likeliest first; or the path of a file that
        `train --evaluate --predictions` has written.
      data_dir: the dataset's folder, or its s3:// or http(s):// URL.
      labels: paths of label lists: CSV with the header `key,class`, ReaL's JSON, or the
        several-label annotations.
      keys: the keys of the images, as readers return them with any backend and framework: strings
        or bytes in a list, array or tensor. None means all images in record order, or the keys in
        the file `predictions`.

    Raises:
      UsageError: the predictions do not match the dataset's images and classes; or a label list is
        invalid, is for a different dataset, or numbers the classes differently.
      ImagenetPrepError: a file or the dataset cannot be read, or is damaged.

    Example:
      >>> import numpy as np
      >>> from imagenet_prep.evaluation import score
      >>> from imagenet_prep.read import make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "validation", batch_size=8,
      ...                       backend="native", fields=("class_index", "mask"))
      >>> labels = np.concatenate([each["class_index"][each["mask"]] for each in reader])
      >>> perfect = np.eye(reader.num_classes)[labels]  # scores: [images, classes] floats
      >>> table = score(perfect, "/data/imagenet-480")
      >>> [(row.labels, row.top1) for row in table.rows if row.among == reader.num_classes]
      [('dataset', 1.0)]
    """
    name = os.fspath(data_dir)
    sheet = Sheet([name], labels)
    dataset = sheet.sets[name]
    most = dataset.num_classes
    if isinstance(predictions, str | os.PathLike):
        rows = list(predictions_file.read(Path(predictions).expanduser(), dataset.wnids))
        sheet.enter(name, five([row.classes for row in rows]), keys=[row.key for row in rows])
        sheet.compare_labels(name, rows)
    else:
        array = np.asarray(predictions)
        texts = None if keys is None else _texts(keys)
        kind, width = array.dtype.kind, array.shape[1:]
        if kind == "f" and width == (most,) and np.isfinite(array).all():
            sheet.enter(name, five(top(array)), five(top(array, dataset.present)), texts)
        elif kind in "iu" and width == (MOST,) and ((array >= -1) & (array < most)).all():
            sheet.enter(name, array.astype(np.int64), keys=texts)
        else:
            raise UsageError(
                f"predictions are {array.dtype} {list(array.shape)}, expected [images, {most}] "
                f"finite floats, or [images, {MOST}] class indices below {most}"
            )
    return sheet.table
