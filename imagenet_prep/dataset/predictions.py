"""A network's predictions for each image of a split, as a CSV file.

    key,class_index,top1,p1,top2,p2,top3,p3,top4,p4,top5,p5,class sha256:…
    n01440764/n01440764_10026.JPEG,0,0,0.981,389,0.012,…,n01440764

The file has one line per image, in the order of the records. Class indices are 0-based positions in
the dataset's class list; `class_index` is the label, and p is a probability from 0 to 1. With fewer
than five classes, the last fields are empty. If the network's scores are not finite, all fields
after the label are empty. The last column has the name of the class `class_index`, and its header
the sha256 of the class list; a file of a different program may lack it. Columns for additional
labels may follow; they are not read.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.dataset.class_list import digest_of

MOST = 5
# With at most this number of classes, top-5 says little, so it is not printed.
FEW_CLASSES = 10
_RANKED = ("top1", "p1", "top2", "p2", "top3", "p3", "top4", "p4", "top5", "p5")
HEADER = ("key", "class_index", *_RANKED)
_CLASS = "class sha256:"
OWN = FileKind("a file of predictions", ",".join(HEADER).encode())
# Every valid line is shorter: it has a key of a few hundred characters and eleven numbers.
_MOST_CHARACTERS = 10_000
_AT_ONCE = 1024


class Prediction(NamedTuple):
    """A network's prediction for one image, whose label is `class_index`.

    `classes` has up to five class indices, the most likely first, and `shares` has their
    probabilities. Both are empty if the network's scores are not finite. `wnid` is the class of the
    label, or "" if it is unknown.
    """

    key: str
    class_index: int
    classes: tuple[int, ...]
    shares: tuple[float, ...]
    wnid: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the most likely class is not the label."""
        return self.classes[:1] != (self.class_index,)


def top(scores: Any, among: Sequence[int] | None = None) -> Any:
    """Returns, for each image, the five classes with the highest scores, the highest first.

    `scores` is [images, classes], and the result is [images, 5 or fewer]. If scores are equal, the
    lower class index comes first. `among` has the class indices to choose from, sorted.
    """
    import numpy as np

    numbers = np.arange(scores.shape[1]) if among is None else np.asarray(among)
    highest = np.empty((len(scores), min(MOST, len(numbers))), np.int64)
    for start in range(0, len(scores), _AT_ONCE):
        part = -scores[start : start + _AT_ONCE, numbers]
        highest[start : start + _AT_ONCE] = numbers[np.argsort(part, 1, "stable")[:, :MOST]]
    return highest


def ahead_of(labels: Any, scores: Any) -> Any:
    """Returns, for each image, the number of classes that `top` ranks before the label."""
    import numpy as np

    labels = labels[:, np.newaxis]
    own = np.take_along_axis(scores, labels, 1)
    # Equal scores are common: bfloat16 has 8 significant bits.
    level = (scores == own) & (np.arange(scores.shape[1]) < labels)
    return ((scores > own) | level).sum(1)


def are_finite(scores: Any) -> Any:
    """Returns, for each image, whether all its scores are finite."""
    import numpy as np

    return np.isfinite(scores).all(1)


def five(rows: Sequence[Sequence[int]]) -> Any:
    """Returns the classes of each image as [images, 5], padded with -1."""
    import numpy as np

    padded = np.full((len(rows), MOST), -1, np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def write(
    stream: TextIO,
    predictions: Iterable[Prediction],
    more: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    classes_digest: str = "",
) -> None:
    """Writes predictions and header; `more[COLUMN][KEY]` is a cell of an additional column.

    `classes_digest` is that of the dataset's class list; without it, no classes are written.
    """
    writer = csv.writer(stream, lineterminator="\n")
    named = [_CLASS + classes_digest] if classes_digest else []
    writer.writerow([*HEADER, *named, *more])
    for key, class_index, classes, shares, wnid in predictions:
        pairs = zip(classes, (f"{share:.6g}" for share in shares), strict=True)
        fields = list(itertools.chain.from_iterable(pairs))
        empty = [""] * (2 * MOST - len(fields))
        others = (texts.get(key, "") for texts in more.values())
        writer.writerow([key, class_index, *fields, *empty, *([wnid] if named else []), *others])


def read(path: Path, wnids: Sequence[str] | None = None) -> Iterator[Prediction]:
    """Yields the predictions of a file.

    If `wnids` is given, the classes by index, all class indices must be in it, and the file must
    not be of a different class list.
    """
    try:
        descriptor = small_files.open_to_read(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror}") from error
    with open(descriptor, encoding="utf-8", newline="") as stream:
        lines = csv.reader(_short_lines(stream, path), strict=True)
        number = 1
        try:
            header = next(lines, [])
            if tuple(header[: len(HEADER)]) != HEADER:
                raise UsageError(
                    f"{path}: expected {','.join(HEADER)} as its first line. Write such a file "
                    "with `imagenet-prep train --evaluate --predictions FILE`."
                )
            names_classes = "".join(header[len(HEADER) :][:1]).startswith(_CLASS)
            if names_classes and wnids is not None and all(wnids):
                _require_digest(path, header[len(HEADER)].removeprefix(_CLASS), wnids)
            for fields in lines:
                number = lines.line_num
                if len(fields) != len(header):
                    raise ValueError(f"{len(fields)} fields, expected {len(header)}")
                found = _parsed(fields[: len(HEADER)], None if wnids is None else len(wnids))
                if names_classes:
                    found = found._replace(wnid=fields[len(HEADER)])
                yield found
        except (ValueError, csv.Error) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise DataDamagedError(
                f"{path}: line {max(number, lines.line_num)} is invalid: {reason}. Write the file "
                "again with `imagenet-prep train --evaluate --predictions FILE`."
            ) from None


def _require_digest(path: Path, digest: str, wnids: Sequence[str]) -> None:
    expected = digest_of(wnids)
    if digest != expected:
        raise UsageError(
            f"{path}: its class indices are of a different class list: sha256 {digest[:16]}, "
            f"expected {expected[:16]}. Give the dataset that the network was evaluated on, or "
            "evaluate it on a dataset with its classes."
        )


def _short_lines(stream: TextIO, path: Path) -> Iterator[str]:
    """Yields lines; refuses long lines, since a binary file may have no line ends."""
    while line := stream.readline(_MOST_CHARACTERS + 1):
        if len(line) > _MOST_CHARACTERS:
            raise DataDamagedError(f"{path}: a line has more than {_MOST_CHARACTERS:,} characters")
        yield line


def _parsed(fields: Sequence[str], num_classes: int | None) -> Prediction:
    key, label, *pairs = fields
    filled = [(top, share) for top, share in zip(pairs[::2], pairs[1::2], strict=True) if top]
    if not key:
        raise ValueError("no key")
    classes = tuple(_class_index(top, num_classes) for top, _ in filled)
    try:
        shares = tuple(float(share) for _, share in filled)
    except ValueError:
        shares = (math.nan,)
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError("a probability is not between 0 and 1")
    return Prediction(key, _class_index(label, num_classes), classes, shares)


def _class_index(text: str, num_classes: int | None) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else -1
    if number < 0 or (num_classes is not None and number >= num_classes):
        raise ValueError("a class index is not one of the classes")
    return number
