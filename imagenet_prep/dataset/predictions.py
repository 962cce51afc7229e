"""What a network says of each image of a split: a file of comma-separated values.

    key,class_index,top1,p1,top2,p2,top3,p3,top4,p4,top5,p5
    n01440764/n01440764_10026.JPEG,0,0,0.981,389,0.012,…

One line per image, in the order of the records. Class indices count from 0, in the class list of
the data set; `class_index` is the label. p is a share of 1. If there are fewer than five classes,
the last fields are empty; all are if the network's scores are not finite. Behind them there may be
columns of other labels, which are not read.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import DataDamagedError, UsageError

MOST = 5
HEADER = ("key", "class_index", *(f"{n}{k}" for k in range(1, MOST + 1) for n in ("top", "p")))
# A key is a file name with its class: a few hundred characters. A line has eleven numbers more.
_MOST_CHARACTERS = 10_000
# Images whose scores are sorted at a time.
_AT_ONCE = 1024


class Prediction(NamedTuple):
    """What a network says of one image.

    Attributes:
      key: of the image, see `dataset.keys`.
      class_index: its label.
      classes: up to five classes, the likeliest first; none if scores are not finite.
      shares: how likely each is.
    """

    key: str
    class_index: int
    classes: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether the likeliest class is not the label."""
        return self.classes[:1] != (self.class_index,)


def top(scores: Any, among: Sequence[int] | None = None) -> Any:
    """Returns the classes with the highest scores, the highest first: [images, 5 or all].

    Of equal scores, the class that comes first is the higher one.

    Args:
      scores: [images, classes].
      among: the classes that are looked at, sorted; by default all.
    """
    import numpy as np

    numbers = np.arange(scores.shape[1]) if among is None else np.asarray(among)
    found = np.empty((len(scores), min(MOST, len(numbers))), np.int64)
    for start in range(0, len(scores), _AT_ONCE):
        part = -scores[start : start + _AT_ONCE, numbers]
        found[start : start + _AT_ONCE] = numbers[np.argsort(part, 1, "stable")[:, :MOST]]
    return found


def ahead_of(labels: Any, scores: Any) -> Any:
    """Returns how many classes `top` places before the label of each image."""
    import numpy as np

    labels = labels[:, np.newaxis]
    own = np.take_along_axis(scores, labels, 1)
    # Equal scores are common: those of bfloat16 have 8 bits.
    level = (scores == own) & (np.arange(scores.shape[1]) < labels)
    return ((scores > own) | level).sum(1)


def are_finite(scores: Any) -> Any:
    """Returns of which images all scores are finite. The others have no likeliest class."""
    import numpy as np

    return np.isfinite(scores).all(1)


def five(rows: Sequence[Sequence[int]]) -> Any:
    """Returns [images, 5], the classes of each image, -1 where there are fewer."""
    import numpy as np

    found = np.full((len(rows), MOST), -1, np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


def write(
    stream: TextIO,
    predictions: Iterable[Prediction],
    more: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> None:
    """Writes the header and a line for each prediction.

    Args:
      stream: is written to.
      predictions: of the images, in the order of the records.
      more: columns behind these, by name: texts by key.
    """
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*HEADER, *more])
    for each in predictions:
        pairs = zip(each.classes, (f"{share:.6g}" for share in each.shares), strict=True)
        fields = list(itertools.chain.from_iterable(pairs))
        empty = [""] * (2 * MOST - len(fields))
        others = (texts.get(each.key, "") for texts in more.values())
        writer.writerow([each.key, each.class_index, *fields, *empty, *others])


def demand_replaceable(path: Path) -> None:
    """Raises UsageError if another kind of file is at the path for predictions."""
    regular_file.demand_own(path, "a file of predictions", ",".join(HEADER).encode())


def read(path: Path, num_classes: int | None = None) -> Iterator[Prediction]:
    """Yields the predictions of a file.

    Args:
      path: the file.
      num_classes: class indices are smaller than this; None where that is not known.
    """
    try:
        descriptor = regular_file.open_to_read(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror}") from error
    with open(descriptor, encoding="utf-8", newline="") as stream:
        lines = csv.reader(_short_lines(stream, path), strict=True)
        number = 1
        try:
            header = next(lines, [])
            if tuple(header[: len(HEADER)]) != HEADER:
                raise UsageError(
                    f"{path}: expected {','.join(HEADER)} as its first line. "
                    "`imagenet-prep train --evaluate --predictions FILE` writes such a file."
                )
            for fields in lines:
                number = lines.line_num
                if len(fields) != len(header):
                    raise ValueError(f"{len(fields)} fields, expected {len(header)}")
                yield _parsed(fields[: len(HEADER)], num_classes)
        except (ValueError, csv.Error) as error:
            why = "no UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise DataDamagedError(
                f"{path}: line {max(number, lines.line_num)} is not what imagenet-prep writes: "
                f"{why}. Write it again by `imagenet-prep train --evaluate --predictions FILE`."
            ) from None


def _short_lines(stream: TextIO, path: Path) -> Iterator[str]:
    """Yields lines; a file from elsewhere may have none that ends."""
    while line := stream.readline(_MOST_CHARACTERS + 1):
        if len(line) > _MOST_CHARACTERS:
            raise DataDamagedError(f"{path}: a line has more than {_MOST_CHARACTERS:,} characters")
        yield line


def _parsed(fields: Sequence[str], num_classes: int | None) -> Prediction:
    """Returns the prediction of a line."""
    key, label, *pairs = fields
    said = [(top, share) for top, share in zip(pairs[::2], pairs[1::2], strict=True) if top]
    if not key:
        raise ValueError("no key")
    classes = tuple(_class_index(top, num_classes) for top, _ in said)
    try:
        shares = tuple(float(share) for _, share in said)
    except ValueError:
        shares = (math.nan,)
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError("a share is not from 0 to 1")
    return Prediction(key, _class_index(label, num_classes), classes, shares)


def _class_index(text: str, num_classes: int | None) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else -1
    if number < 0 or (num_classes is not None and number >= num_classes):
        raise ValueError("a class index is not one of the classes")
    return number
