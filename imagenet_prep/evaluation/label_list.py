"""Reads label lists: files with the right classes of each image.

Three formats are recognized by their content: CSV with the header `key,class`; ReaL's JSON ("Are we
done with ImageNet?", Beyer et al. 2020); and the JSON of the several-label annotations ("Evaluating
Machine Accuracy on ImageNet", Shankar et al. 2020, version 3 of Vasudevan et al. 2022).
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.core import canonical, records, regular_file
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import keys, schema

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
        data = regular_file.read(file, _MOST_BYTES)
        sha256 = hashlib.sha256(data).hexdigest()
        if len(data) > regular_file.MOST_BYTES and sha256 not in PUBLISHED:
            raise ValueError(f"over {regular_file.MOST_BYTES:,} bytes, and not a published list")
        most = _MOST_VALUES if sha256 in PUBLISHED else canonical.MOST_VALUES
        is_json = data.lstrip()[:1] in (b"[", b"{")
        labels = _of_json(canonical.loads(data, most)) if is_json else _of_csv(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a label list: byte {error.start:,} is not UTF-8") from None
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
    remaining = canonical.MOST_VALUES
    if max(map(data.count, (b"\n", b"\r", b","))) > keys.MOST_LINES:
        raise ValueError(f"more than {keys.MOST_LINES:,} lines")
    lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
    if next(lines, None) != ["key", "class"]:
        raise ValueError("line 1 is not the header")
    for fields in filter(None, lines):
        if len(fields) != 2 or not fields[0]:
            raise ValueError(f"line {lines.line_num:,} does not have a key and its classes")
        folder, slash, name = fields[0].partition("/")
        # The key of a validation image is its file name, even if the list adds a class folder.
        key = keys.key_of(schema.VALIDATION, folder, name) if slash else folder
        if key in classes_of:
            raise ValueError(f"line {lines.line_num:,} repeats the key of an earlier line")
        classes_of[key] = tuple(fields[1].split())
        remaining -= len(classes_of[key])
        if remaining < 0:
            raise ValueError(f"more than {canonical.MOST_VALUES:,} classes")
    return LabelList(classes_of)


def _of_json(content: Any) -> LabelList:
    if isinstance(content, list):
        rows = records.parse(list[list[int]], content)
        # Row i (from 0) has the labels of image i + 1.
        if len(rows) != _NUM_VALIDATION:
            raise ValueError(f"{len(rows):,} lists, expected {_NUM_VALIDATION:,} (one per image)")
        names = (f"{keys.validation_stem(number)}.JPEG" for number in range(1, len(rows) + 1))
        classes = (tuple(map(str, row)) for row in rows)
        return LabelList(dict(zip(names, classes, strict=True)), "ReaL's form", is_ilsvrc=True)
    annotations = records.parse(dict[str, dict[str, list[str]]], content.get("initial_annots"))
    out = content.get("problematic_images", [])
    out = records.parse(dict[str, Any] if isinstance(out, dict) else list[str], out)
    correct = {key: tuple(image.get("correct", ())) for key, image in annotations.items()}
    correct |= dict.fromkeys(correct.keys() & out, ())
    return LabelList(correct, "several labels' form", is_ilsvrc=True, is_by_class=True)
