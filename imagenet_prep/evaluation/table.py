"""The table of accuracies, which can be formatted as text and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import some
from imagenet_prep.core.terminal import counted, in_columns, printable
from imagenet_prep.evaluation.corruptions import SEVERITIES

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
        shares = f"{row.top1:.2%}", f"{row.top5:.2%}"
        return printable(row.set), printable(name), *counts, chosen, *shares
