"""Fills the table: opens datasets and label lists, then adds predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    """The table of one network, filled dataset by dataset; no image is read.

    `sets` has the datasets by name as given. `labels` maps datasets to their label lists, each with
    classes by image number. For `lists`, see `Table.lists`.
    """

    def __init__(self, sets: Sequence[str], labels: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.sets = {name: EvaluatedSet(name) for name in dict.fromkeys(sets)}
        digests = {each.manifest.classes.digest for each in self.sets.values()}
        lists = {each.name: each for each in map(label_list.read, labels)}
        if len(digests) > 1 or len(lists) < len(labels):
            raise UsageError(
                f"{', '.join(sets)} have different class lists, so indices mean different things"
                if len(digests) > 1
                else "two lists of labels have the same file name: rename one"
            )
        self.labels: dict[str, dict[str, Any]] = {name: {} for name in self.sets}
        self.lists: list[Json] = []
        for name, each in lists.items():
            unknown = list(each.classes)
            for of, there in self.sets.items():
                if found := there.labels(each):
                    self.labels[of][name] = found
                    unknown = [key for key in unknown if key not in there.number_of]
            if len(unknown) == len(each.classes):
                raise UsageError(
                    f"{name}: no image of {', '.join(sets)} has one of its {len(unknown):,} keys. "
                    "`imagenet-prep show SET --keys` prints keys."
                )
            facts = {"name": name, "sha256": each.sha256, "form": each.form}
            counts = {"keys": len(each.classes), "unknown": len(unknown), "first": unknown[:5]}
            self.lists.append(facts | counts)
        self._by_class = {name for name, each in lists.items() if each.is_by_class}
        self._digests = {name: each.sha256 for name, each in lists.items()}
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
        """Adds the rows of a dataset.

        `classes` [images, 5] are class indices, the likeliest first, with -1 if there are fewer.
        `within` is the same, chosen only among the dataset's classes, or None if unknown. Without
        `keys`, `classes` has all images in record order.
        """
        there = self.sets[name]
        order, own = there.order(keys, len(classes)), there.class_index
        chosen = {there.num_classes: classes[order]}
        if len(there.present) < there.num_classes and within is not None:
            chosen[len(there.present)] = within[order]
        elif len(there.present) < there.num_classes:
            self._notes.append(
                f"{name} has {len(there.present):,} of {there.num_classes:,} classes. What the "
                "network would choose among these alone cannot be told from five classes an image: "
                "`train --evaluate --also` and evaluation.score of all scores tell it."
            )
        pairs = {DATASET: there.pairs}
        for of, labels in self.labels[name].items():
            flat = [(number, each) for number, classes in labels.items() for each in classes]
            pairs[of] = np.array(flat, np.int64).reshape(-1, 2)
        digests = {**self._digests, DATASET: there.manifest.digest}
        for of, labelled in pairs.items():
            for among, first in chosen.items():
                shares = _shares(first, labelled, own, by_class=of in self._by_class)
                mean = "classes" if of in self._by_class else "images"
                self._rows.append(Row(name, of, *shares, among, mean, digests[of]))
        found = corruptions.errors(there.keys, chosen[there.num_classes][:, 0] == own)
        if found is not None:
            self._corruptions[name] = found

    def columns(self, name: str) -> dict[str, dict[str, str]]:
        """Returns the labels of each list for a dataset, as columns of a predictions file."""
        keys = self.sets[name].keys
        return {
            f"{of} sha256:{self._digests[of]}": {
                keys[number]: " ".join(map(str, classes)) for number, classes in labels.items()
            }
            for of, labels in self.labels[name].items()
        }

    @property
    def table(self) -> Table:
        """The table of all rows so far."""
        num_classes = next(iter(self.sets.values())).num_classes
        return Table(self._rows, num_classes, self.lists, self._corruptions, self._notes)


def _shares(
    classes: Integers, labelled: Integers, own: Integers, *, by_class: bool
) -> tuple[int, float, float, int]:
    """Returns the number of images, top-1, top-5, and the number of their classes.

    `classes` [images, 5] are the predictions, `labelled` [labels, 2] pairs of an image number and a
    right class, and `own` [images] the dataset's classes. `by_class` averages over these classes.
    """
    image, label = labelled.T
    hits = classes[image] == label[:, None]
    right = np.zeros((len(classes), 2))
    np.maximum.at(right, image, np.stack([hits[:, 0], hits.any(1)], 1))
    counted = np.unique(image)
    there, of_class, images = np.unique(own[counted], return_inverse=True, return_counts=True)
    sums = right[counted].sum(0) / max(len(counted), 1)
    if by_class:
        of_each = [np.bincount(of_class, each) / images for each in right[counted].T]
        sums = np.mean(of_each, 1)
    return len(counted), float(sums[0]), float(sums[1]), len(there)


def score(
    predictions: Any,
    data_dir: str | os.PathLike[str],
    *,
    labels: Sequence[str | os.PathLike[str]] = (),
    keys: Sequence[str] | None = None,
) -> Table:
    """Returns the accuracy of predictions on a dataset, by its own labels and by label lists.

    The split is `test` if the dataset has one, else `validation`, else `holdout`. If scores are
    equal, the first class wins.

    Args:
      predictions: floats [images, classes], as logits or probabilities; or integers [images, 5], as
        class indices, the likeliest first; or the path of a file that
        `train --evaluate --predictions` has written.
      data_dir: the dataset: a folder, s3:// or http(s)://.
      labels: files: CSV with the header `key,class`, ReaL's JSON, or the several-label annotations.
      keys: the keys of the images, as readers return them; None for all images in record order, or
        if `predictions` is a file, which has its own.

    Raises:
      UsageError: the predictions do not match the dataset's images and classes; or a label list is
        invalid, for a different dataset, or has its classes in a different order.
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
    there = sheet.sets[name]
    if isinstance(predictions, str | os.PathLike):
        said = list(predictions_file.read(Path(predictions).expanduser(), there.num_classes))
        sheet.enter(name, five([each.classes for each in said]), keys=[each.key for each in said])
    else:
        array, wanted = np.asarray(predictions), (MOST, there.num_classes)
        kind, shape = array.dtype.kind, array.shape
        if kind == "f" and shape[1:] == wanted[1:] and np.isfinite(array).all():
            sheet.enter(name, five(top(array)), five(top(array, there.present)), keys)
        elif (
            kind in "iu" and shape[1:] == wanted[:1] and ((array >= -1) & (array < wanted[1])).all()
        ):
            sheet.enter(name, array.astype(np.int64), keys=keys)
        else:
            raise UsageError(
                f"predictions are {array.dtype} {list(shape)}, expected [images, {wanted[1]}] "
                f"finite floats, or [images, {MOST}] class indices below {wanted[1]}"
            )
    return sheet.table
