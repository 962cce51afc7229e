"""The table of accuracies of a network, and its error rates on ImageNet-C.

`Table` can be formatted as text and JSON.

`errors` returns the errors on ImageNet-C for each corruption, relative to AlexNet's errors.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from imagenet_prep.core.errors import some
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, in_columns, printable
from imagenet_prep.dataset.keys import CORRUPTIONS
from imagenet_prep.dataset.predictions import FEW_CLASSES

# AlexNet's mean top-1 error over five severities. The errors of networks are divided by it
# (Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
# Perturbations", 2019).
ALEXNET_ERRORS = dict(
    zip(
        CORRUPTIONS,
        (
            0.886428,
            0.894468,
            0.922640,
            0.819880,
            0.826268,
            0.785948,
            0.798360,
            0.866816,
            0.826572,
            0.819324,
            0.564592,
            0.853204,
            0.646056,
            0.717840,
            0.606500,
        ),
        strict=False,  # mCE excludes the other corruptions
    )
)
SEVERITIES = ("1", "2", "3", "4", "5")


def errors(keys: Sequence[str], right: npt.NDArray[np.bool_]) -> Json | None:
    """Returns the error rates defined for ImageNet-C, or None if `keys` do not match its images.

    `right` [images] is True for correct top-1 predictions. Each item of `corruptions` has `errors`,
    the error rate by severity, and `ce`, the mean error rate divided by AlexNet's. `mce` is the
    mean of the 15 `ce`. If a severity is missing, `ce` and `mce` are None.
    """
    groups = defaultdict(list)
    for number, key in enumerate(keys):
        groups[tuple(key.split("/", 2)[:2])].append(number)
    if not groups.keys() <= {*itertools.product(CORRUPTIONS, SEVERITIES)}:
        return None
    results: dict[str, Json] = {}
    for name in CORRUPTIONS:
        images = {level: groups[name, level] for level in SEVERITIES if (name, level) in groups}
        rates = {level: 1 - float(right[numbers].mean()) for level, numbers in images.items()}
        if rates:
            complete = len(rates) == len(SEVERITIES) and name in ALEXNET_ERRORS
            mean = sum(rates.values()) / len(SEVERITIES)
            results[name] = {
                "errors": rates,
                "ce": mean / ALEXNET_ERRORS[name] if complete else None,
            }
    shares = [result["ce"] for result in results.values() if result["ce"] is not None]
    complete = len(shares) == len(ALEXNET_ERRORS)
    return {"corruptions": results, "mce": sum(shares) / len(shares) if complete else None}


_HEADER = ("set", "labels", "images", "classes", "chosen among", "top-1", "top-5")


@dataclass(frozen=True)
class Row:
    """The accuracy of a network on one dataset, by one label list.

    Attributes:
      set: path or URL of the dataset, as it was given.
      labels: file name of the label list, or "dataset" for the dataset's own labels.
      images: number of images with labels.
      top1, top5: share of these images, in [0, 1], with a right class first or in the first five.
      classes: number of classes of these images, by the dataset's own labels.
      among: number of classes that could be predicted: all, or only the classes in the dataset.
      mean: "images", or "classes" if top1 and top5 are averaged over classes.
      sha256: hash of the label list, or the digest of the dataset's manifest.

    Example:
      >>> from imagenet_prep.evaluation import Row
      >>> row = Row("/data/v2", "dataset", 10_000, 0.67, 0.88, 1000, 1000, "images", "d83e...")
      >>> f"{row.top1:.1%} of {row.images:,} images"
      '67.0% of 10,000 images'
    """

    set: str
    labels: str
    images: int
    top1: float
    top5: float
    classes: int
    among: int
    mean: str
    sha256: str


@dataclass(frozen=True)
class Table:
    """All rows and label lists. `str()` returns the table as text.

    Attributes:
      rows: one per dataset, label list and number of classes that could be predicted.
      num_classes: number of classes in the class list.
      lists: the `name`, `sha256` and `form` of each label list, the number of its `keys`, the
        number of its `unknown` keys, which have no image, and the `first` five unknown keys.
      corruptions: error rates by corruption and severity, for each dataset that is ImageNet-C.
      notes: sentences about results that are missing in the table.

    Example:
      >>> import json
      >>> from imagenet_prep.evaluation import Table
      >>> table = Table(rows=[], num_classes=1000, lists=[], corruptions={}, notes=[])
      >>> print(table)
      set  labels  images  classes  chosen among  top-1  top-5
      >>> json.dumps(table.as_json())
      '{"rows": [], "num_classes": 1000, "lists": [], "corruptions": {}, "notes": []}'
    """

    rows: Sequence[Row]
    num_classes: int
    lists: Sequence[Json]
    corruptions: Mapping[str, Json]
    notes: Sequence[str]

    def as_json(self) -> Json:
        """Returns the table as JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        text = [in_columns([_HEADER, *map(self._cells, self.rows)], 2)]
        for name, errors in self.corruptions.items():
            text += [f"{printable(name)}: top-1 errors by severity, and CE (relative to AlexNet)"]
            text += [f"{'':<18}" + "".join(f"{title:>8}" for title in (*SEVERITIES, "CE"))]
            for corruption, rates in errors["corruptions"].items():
                shares = [*map(rates["errors"].get, SEVERITIES), rates["ce"]]
                cells = (f"{'-' if share is None else f'{share:.2%}':>8}" for share in shares)
                text.append(f"{corruption:<18}" + "".join(cells))
            missing = "mCE needs all five severities of all 15 corruptions"
            text.append(missing if errors["mce"] is None else f"mCE {errors['mce']:.2%}")
        for facts in self.lists:
            first = some(list(map(printable, facts["first"])))
            line = (
                f"{printable(facts['name'])}: {facts['form']}, {counted(facts['keys'], 'key')}, "
                f"sha256 {facts['sha256']}"
            )
            if first:
                line += f"; {counted(facts['unknown'], 'key')} without an image: {first}"
            text.append(line)
        return "\n".join([*text, *self.notes])

    def _cells(self, row: Row) -> tuple[str, ...]:
        chosen = f"{'all' if row.among == self.num_classes else 'its'} {row.among:,}"
        name = f"{row.labels}, mean of classes" if row.mean == "classes" else row.labels
        classes = f"{row.classes:,}"
        if row.classes < self.num_classes:
            classes += f" of {self.num_classes:,}"
        counts = f"{row.images:,}", classes
        top5 = f"{row.top5:.2%}" if row.among > FEW_CLASSES else "-"
        shares = f"{row.top1:.2%}", top5
        return printable(row.set), printable(name), *counts, chosen, *shares
