"""Reads the known lists of validation labels: the WNID of each image, by its file name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset import keys
from imagenet_prep.sources import source
from imagenet_prep.storage.remote_path import Location

# One WNID per line, in order of the file names (tensorflow/models, research/slim).
SYNSET_LABELS = "imagenet_2012_validation_synset_labels.txt"
# Kaggle's list: "ImageId,PredictionString" with "WNID x y x y ...".
SOLUTION = "LOC_val_solution.csv"
# Tiny ImageNet's list: "FILE WNID x y x y", separated by tabs.
TINY = "val_annotations.txt"


def find(folders: Sequence[Location]) -> Iterator[tuple[Location, dict[str, str]]]:
    """Yields the path of each list in these folders, and its WNIDs by name (no extension)."""
    for name, read in _LISTS.items():
        for folder in folders:
            path = folder / name
            if path.is_file():
                yield path, _by_name(read(path), path)


def _by_name(rows: Iterable[tuple[str, str]], path: Location) -> dict[str, str]:
    wnids: dict[str, str] = {}
    for number, (name, wnid) in enumerate(rows, start=1):
        if name in wnids:
            raise SourceError(
                f"{path}: entry {number}: expected one entry per image, but {name!r} appears "
                "twice. Get the file again."
            )
        wnids[name] = wnid
    return wnids


def _synset_labels(path: Location) -> Iterator[tuple[str, str]]:
    for number, wnid in enumerate(source.read_list(path).split(), start=1):
        yield keys.validation_stem(number), wnid


def _solution(path: Location) -> Iterator[tuple[str, str]]:
    text = source.read_list(path)
    columns = ["ImageId", "PredictionString"]
    # Excel writes ";" if the decimal separator is ",".
    separator = ";" if text.startswith(";".join(columns)) else ","
    rows = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        if next(rows, None) != columns:
            raise SourceError(
                f"{path}: expected the columns ImageId,PredictionString. Get it again from Kaggle."
            )
        for row in filter(None, rows):
            yield row[0], row[1].partition(" ")[0] if len(row) > 1 else ""
    except csv.Error as error:
        raise SourceError(f"{path}: line {rows.line_num}: {error}. Get it again.") from error


def _tiny(path: Location) -> Iterator[tuple[str, str]]:
    for line in source.read_list(path).splitlines():
        file, _, rest = line.strip().partition("\t")
        if file:
            yield file.rpartition(".")[0], rest.partition("\t")[0]


_LISTS: dict[str, Callable[[Location], Iterator[tuple[str, str]]]] = {
    SYNSET_LABELS: _synset_labels,
    "synset_labels.txt": _synset_labels,
    SOLUTION: _solution,
    TINY: _tiny,
}
