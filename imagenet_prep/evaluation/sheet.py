"""Fills the table: first datasets and lists are opened, then predictions are entered."""

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
    """The table of one network, filled dataset by dataset.

    Attributes:
      sets: by name, as it was given.
      labels: by dataset and list, the classes by number of the image; only lists with any.
      lists: see `Table.lists`.
    """

    def __init__(self, sets: Sequence[str], labels: Sequence[str | os.PathLike[str]] = ()) -> None:
        """Opens datasets and files of labels; reads tables of samples, and no image."""
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

        Args:
          name: of the dataset.
          classes: [images, 5] class indices, the likeliest first; -1 if there are fewer.
          within: the same, chosen only among the classes of the dataset; None: unknown.
          keys: of the images; None: all, in the order of the records.
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
        """Returns the labels of each list for a dataset, as columns of a file of predictions.

        They are named by file name and sha256, and hold class indices by key.
        """
        keys = self.sets[name].keys
        return {
            f"{of} sha256:{self._digests[of]}": {
                keys[number]: " ".join(map(str, classes)) for number, classes in labels.items()
            }
            for of, labels in self.labels[name].items()
        }

    @property
    def table(self) -> Table:
        """The rows so far."""
        num_classes = next(iter(self.sets.values())).num_classes
        return Table(self._rows, num_classes, self.lists, self._corruptions, self._notes)


def _shares(
    classes: Integers, labelled: Integers, own: Integers, *, by_class: bool
) -> tuple[int, float, float, int]:
    """Returns the number of images, top-1, top-5, and the number of their classes.

    Args:
      classes: [images, 5] that a network chose.
      labelled: [labels, 2] number of the image, and a class that is right.
      own: [images] class in the dataset.
      by_class: whether a share is the mean of the shares of these classes.
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
    """Returns how good predictions are on a data set, by its labels and by those of lists.

    The split is `test` where the set has one, else `validation`, else `holdout`. Of equal scores,
    the class that comes first counts as the likelier one.

    Args:
      predictions: an array of floats [images, classes], logits or shares; or of integers
        [images, 5], class indices, the likeliest first; or the path of a file that
        `train --evaluate --predictions` has written.
      data_dir: the set: a folder, s3:// or http(s)://.
      labels: files: CSV with the header `key,class`, ReaL's JSON, or the several-label annotations.
      keys: of the images, as readers give them; None: all images in the order of the records. A
        file has its own.

    Raises:
      UsageError: the predictions are not of these images and classes; or a list cannot be used, is
        of another set, or has its classes in another order.
      ImagenetPrepError: a file or the set cannot be read, or is damaged.

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
