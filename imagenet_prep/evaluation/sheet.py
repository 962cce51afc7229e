"""Computes the table of accuracies from datasets, label lists and predictions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import predictions as predictions_file
from imagenet_prep.dataset.predictions import MOST, five, top
from imagenet_prep.evaluation import corruptions, label_list
from imagenet_prep.evaluation.evaluated_set import EvaluatedSet, Integers
from imagenet_prep.evaluation.table import Row, Table

DATASET = "dataset"


class Sheet:
    """The accuracies of one network on the datasets passed to `enter`; reads no images.

    `sets` maps paths or URLs to datasets. `labels[path or URL][name of label list]` maps image
    numbers to class indices. For `lists`, see `Table.lists`.
    """

    def __init__(self, sets: Sequence[str], labels: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.sets = {name: EvaluatedSet(name) for name in dict.fromkeys(sets)}
        if len({dataset.manifest.classes.digest for dataset in self.sets.values()}) > 1:
            raise UsageError(f"{', '.join(sets)}: their class lists differ. Score them separately.")
        lists = {listed.name: listed for listed in map(label_list.read, labels)}
        if len(lists) < len(labels):
            raise UsageError("two label lists have the same file name. Rename one of them.")
        self.labels: dict[str, dict[str, Any]] = {name: {} for name in self.sets}
        self.lists: list[Json] = []
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
                    "To see the keys, use `imagenet-prep show SET --keys`."
                )
            facts = {"name": name, "sha256": listed.sha256, "form": listed.form}
            counts = {"keys": len(listed.classes), "unknown": len(unknown), "first": unknown[:5]}
            self.lists.append(facts | counts)
        self._by_class = {name for name, listed in lists.items() if listed.is_by_class}
        self._digests = {name: listed.sha256 for name, listed in lists.items()}
        self._rows: list[Row] = []
        self._corruptions: dict[str, Json] = {}
        self._notes: list[str] = []

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
        errors = corruptions.errors(dataset.keys, chosen[dataset.num_classes][:, 0] == own)
        if errors:
            self._corruptions[name] = errors

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
        rows = list(predictions_file.read(Path(predictions).expanduser(), most))
        sheet.enter(name, five([row.classes for row in rows]), keys=[row.key for row in rows])
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
