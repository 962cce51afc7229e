"""Exports one folder per class, for torchvision's ImageFolder and compatible readers."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.dataset import keys, naming, schema
from imagenet_prep.dataset.ignored import is_hidden
from imagenet_prep.exporting.examples import Example, Part, Source
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format, Written
from imagenet_prep.read.names import Names
from imagenet_prep.sources.folder import SYNSET_MAPPING

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records

FOLDERS = {schema.VALIDATION: "val"}  # the name in `prepare` and most programs
# New names for colliding files, by split and key.
Numbered = dict[tuple[str, str], str]
# IMG_EXTENSIONS in torchvision/datasets/folder.py, without those that `prepare` ignores.
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Folder(Format):
    """The ImageFolder format, see `Format`."""

    wnids: tuple[str, ...]
    labels: str  # content of labels.txt
    allow_empty_class: bool = False
    numbered: Numbered = field(default_factory=dict)
    file_an_image = True

    def settled(self, source: Source, parts: Sequence[Part]) -> Folder:
        """Returns the format; raises UsageError if folder names would change labels."""
        ordered = sorted(self.wnids)
        moved = [a for a, b in zip(self.wnids, ordered, strict=True) if a != b]
        if moved:
            raise UsageError(
                f"{source.root}: ImageFolder numbers classes in the order of their names, which "
                f"would change the labels of {len(moved):,} of {len(ordered):,} classes: "
                f"{moved[0]} would be {ordered.index(moved[0]):,} instead of "
                f"{self.wnids.index(moved[0]):,}. Choose a different format."
            )
        folders = Counter(map(_folded, self.wnids))
        alike = [wnid for wnid in self.wnids if folders[_folded(wnid)] > 1]
        if alike:
            raise UsageError(
                f"{source.root}: {some(alike)}: these classes would be the same folder on a disk "
                "that ignores case or Unicode form. Choose a different format."
            )
        numbered: Numbered = {}
        for split in dict.fromkeys(part.split for part in parts):
            chosen = np.concatenate([np.asarray(p.numbers) for p in parts if p.split == split])
            numbered |= self._numbered(source.split(split), chosen)
        return replace(self, numbered=numbered)

    def _numbered(self, records: Records, chosen: npt.NDArray[np.int64]) -> Numbered:
        """Picks names for colliding files; raises UsageError for missing classes or bad names."""
        where = f"{records.split} of {records.dataset.where}"
        is_chosen = np.zeros(len(records), bool)
        is_chosen[chosen] = True
        has_images = np.zeros(len(self.wnids), bool)
        hashes = np.empty(len(chosen), np.int64)
        invalid = []
        for number, (class_index, key) in enumerate(_heads(records, is_chosen)):
            has_images[class_index] = True
            file = _file(self._path(class_index, key))
            hashes[number] = _hash(file)
            if not _is_found(file):
                invalid.append(key)
        _refuse_invalid(invalid, where)
        numbered = self._renamed(records, is_chosen, hashes)
        if not self.allow_empty_class:
            self._refuse_missing_classes(has_images, where)
        return numbered

    def _renamed(
        self, records: Records, is_chosen: npt.NDArray[np.bool_], hashes: npt.NDArray[np.int64]
    ) -> Numbered:
        """Returns a new name for each file that would replace a different file."""
        # Only hashes of the names are kept, because the names of millions of files take gigabytes.
        # A false collision renames a file without need.
        values, counts = np.unique(hashes, return_counts=True)
        colliding = values[counts > 1].tolist()
        if not colliding:
            return {}
        groups: dict[int, list[tuple[bool, str, str]]] = {value: [] for value in colliding}
        for class_index, key in _heads(records, is_chosen):
            path = self._path(class_index, key)
            file = _file(path)
            group = groups.get(_hash(file))
            if group is not None:
                group.append((file != path, path, key))
        used = {*values.tolist()}
        numbered: Numbered = {}
        for group in groups.values():
            # The first name stays unchanged. Names without an added extension are sorted first.
            for _, path, key in sorted(group)[1:]:
                names = (f"{path}~{number}.jpg" for number in itertools.count(1))
                file = next(name for name in names if _hash(name) not in used)
                used.add(_hash(file))
                numbered[records.split, key] = file
        return numbered

    def _refuse_missing_classes(self, has_images: npt.NDArray[np.bool_], where: str) -> None:
        """Raises UsageError if ImageFolder, which skips empty classes, would change labels."""
        missing = np.flatnonzero(~has_images)
        moved = has_images[missing[0] :].sum() if len(missing) else 0
        if moved:
            raise UsageError(
                f"{where} has no images of {len(missing):,} of {len(has_images):,} classes: "
                f"{some([self.wnids[index] for index in missing])}. ImageFolder would find "
                f"{has_images.sum():,} classes, and change the labels of the {moved:,} classes "
                f"after {self.wnids[missing[0]]}. To write empty folders for the missing classes, "
                "use --allow-empty-class, and read them with ImageFolder(..., allow_empty=True)."
            )

    def _path(self, class_index: int, key: str) -> str:
        wnid = self.wnids[class_index]
        return f"{wnid}/{keys.name_in(key, wnid)}"

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields each class folder ("train/CLASS/") if `allow_empty_class`, and then each image."""
        if self.allow_empty_class and not part.number:
            top = FOLDERS.get(part.split, part.split)
            yield from (Piece(f"{top}/{wnid}/", b"") for wnid in self.wnids)
        for example in examples:
            yield Piece(self._file_of(part.split, example), example.encoded, example.sha256)

    def place_of(self, part: Part, position: int, example: Example) -> tuple[str, str]:  # noqa: ARG002
        """Returns the file of an image, which is its name as well."""
        path = self._file_of(part.split, example)
        return path, path.split("/", 2)[2]

    def _file_of(self, split: str, example: Example) -> str:
        file = self.numbered.get((split, example.key))
        if file is None:
            file = _file(f"{example.wnid}/{example.name}")
        return f"{FOLDERS.get(split, split)}/{file}"

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns Kaggle's and DINOv2's class lists if all classes are WNIDs, else no files."""
        # `prepare` takes class indices from Kaggle's list. DINOv2 and DINOv3 only read WNIDs.
        if not all(map(keys.WNID.fullmatch, self.wnids)):
            return {}
        lines = io.StringIO()
        rows = (line.partition(" ")[::2] for line in self.labels.split("\n")[:-1])
        names = ((wnid, words.partition(",")[0].strip() or wnid) for wnid, words in rows)
        csv.writer(lines, lineterminator="\n").writerows(names)
        return {SYNSET_MAPPING: self.labels.encode(), naming.LABELS: lines.getvalue().encode()}


def _heads(records: Records, is_chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    """Yields class index and key of each chosen image."""
    for class_index, key, _ in itertools.compress(Names(records), is_chosen):
        yield class_index, key


def _refuse_invalid(invalid: Sequence[str], where: str) -> None:
    """Raises an error for keys that are not valid as file names."""
    leading_out = [key for key in invalid if keys.leads_out(key)]
    if leading_out:
        raise DataDamagedError(
            f"{where}: {some(leading_out)}: a key has a part that is empty, . or .., so its "
            "file would be outside the export. Copy the dataset again."
        )
    if invalid:
        raise UsageError(
            f"{where}: {len(invalid):,} keys are not valid file names, or ImageFolder would "
            f"skip their images: {some(invalid)}. Exclude them with --exclude, or choose a "
            "different format."
        )


def _hash(file: str) -> int:
    return hash(_folded(file))


def _folded(name: str) -> str:
    """Returns a name as seen by a file system that ignores case and Unicode form."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _file(path: str) -> str:
    """Returns the path of an image, adding .jpg unless it has a supported extension."""
    return path if path.lower().endswith(_ENDINGS) else f"{path}.jpg"


def _is_found(path: str) -> bool:
    """Returns whether ImageFolder and `prepare` find a file with this name."""
    with contextlib.suppress(ValueError):
        return not any(map(is_hidden, naming.check_inside(path).split("/")))
    return False
