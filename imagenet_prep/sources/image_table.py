"""Reads folders of images with a table of labels, as on Kaggle and in the Hub's `imagefolder`.

The table is a CSV file with one line per image. It is next to the folder of the images, or in it.
The names of tables and columns are listed here and in docs/photographs.md.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.small_files import csv_rows
from imagenet_prep.core.spelling import as_seen, same_looking, suggested
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.formats import ending, most_frequent
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import labels, layout, scan, source
from imagenet_prep.sources.folder import FolderSource
from imagenet_prep.sources.scan import FoundFile, SourceProblems, read_errors, subfolders
from imagenet_prep.sources.source import IndexTask

# fmt: off
FILE_COLUMNS = (
    "file_name", "filename", "file", "file_path", "filepath", "path",
    "image", "image_name", "image_path", "image_id", "img", "id",
)
CLASS_COLUMNS = (
    "label", "labels", "class", "class_name", "label_name", "category", "breed", "species",
)
# fmt: on
SPLIT_COLUMN = "split"
# Tables for all images, and for one split, such as `train.csv` and `val_labels.csv`.
_NAMES = re.compile(
    r"(?:(train|training|val|valid|validation)(?:[_-](?:labels|metadata))?|labels|metadata)"
    r"\.(?:csv|tsv)"
)
# A million images with long paths. A file with one rare character takes four times its size.
_MOST_BYTES = 128 << 20
_MOST_SHOWN = 300


class LabelTable(NamedTuple):
    """A table of labels: its file, its folder relative to the source ("" or "x/"), its split."""

    path: Path
    folder: str
    split: str | None  # None if it lists the images of all splits


class LabelRow(NamedTuple):
    """A line of a table; `split` is None if neither the table nor the line names it."""

    where: str  # the file and the number of the line
    table: LabelTable
    file: str
    class_name: str
    split: str | None


@dataclass(frozen=True)
class ImageTable(FolderSource):
    """A folder of images with a table of labels."""

    # The split and class index of each image, by path relative to the source.
    listed: dict[str, tuple[str, int]] = field(default_factory=dict, kw_only=True)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one split, sorted by key."""
        problems = SourceProblems()
        members: list[Member] = []
        below = scan.below(self.root / task.archive, self.inside, by_content=True)
        for file in below.images:
            path = task.archive + file.path
            split, index = self.listed.get(path, ("", 0))
            if split != task.split:
                continue
            folder = file.path[: file.path.rfind("/") + 1]
            try:
                key = self.key_of(split, index, file.path, str(self.root / path), folder)
                members.append(Member(key, path, 0, file.num_bytes, index))
            except SourceError as error:
                problems.add(error)
        problems.raise_all(self.root)
        return source.sorted_by_key(members, str(self.root))


def locate(root: Path) -> list[LabelTable]:
    """Returns the tables of labels in a folder and in its subfolders, judged by their names."""
    tables: list[LabelTable] = []
    folders = ["", *subfolders(root, any_name=True)] if root.is_dir() else []
    for folder in folders:
        for path in sorted((root / folder).iterdir()):
            match = _NAMES.fullmatch(path.name.casefold())
            if match is None or not path.is_file():
                continue
            split = layout.split_in_name(match[1] or folder)
            if split in (None, *schema.SOURCE_SPLITS):
                tables.append(LabelTable(path, f"{folder}/" if folder else "", split))
    return tables


def is_readable(table: LabelTable) -> bool:
    """Returns whether a table has the columns of files and classes."""
    try:
        _header(table, _lines(table))
    except (SourceError, UsageError):
        return False
    return True


@read_errors("")
def find(
    root: Path,
    splits: Sequence[str],
    *,
    follow_links: bool = False,
    classes: ClassList | None = None,
) -> ImageTable:
    """Returns the source of `splits`; raises UsageError if a split has no image.

    The class list is `classes`, ILSVRC2012's if it includes all names, or the sorted names.
    """
    inside = None if follow_links else root
    tables, rows, ignored = labelled(root, inside)
    files = {split: [f for f, row in rows.items() if row.split == split] for split in splits}
    missing = [split for split in splits if not files[split]]
    if missing:
        raise UsageError(
            f"--source {root}: {some([table.path.name for table in tables])}: no image of "
            f"{' and '.join(missing)}. Choose different --splits, or add a column "
            f"{SPLIT_COLUMN} with {schema.TRAIN} or {schema.VALIDATION}."
        )
    names = {row.class_name for row in rows.values()}
    if classes is None:
        classes = _classes_of(names, str(tables[0].path))
    found = {name: classes.of_folder(name) for name in names}
    index = {name: number for name, number in found.items() if number is not None}
    others = sorted(names - index.keys())
    if others:
        raise SourceError(
            f"--source {root}: {some(others)}: not in the class list of --classes-of. "
            f"{classes.advice(others[0])} Correct the labels, or remove their lines."
        )
    images = source.folder_part(root.resolve().name, files.items())
    tasks: list[IndexTask] = []
    for split, split_files in files.items():
        tops = {_top(file.path) for file in split_files}
        folder = tops.pop() if len(tops) == 1 else ""
        tasks.append(IndexTask(split, split, images.name, archive=folder))
    parts = [images._replace(ignored=tuple(most_frequent(ignored).items()))]
    for table in tables:
        name = table.folder + table.path.name
        parts.append(source.file_part(table.path)._replace(name=name))
    return ImageTable(
        classes,
        tuple(parts),
        root,
        None,
        inside,
        is_own=True,
        tasks=tuple(tasks),
        listed={f.path: (str(row.split), index[row.class_name]) for f, row in rows.items()},
    )


def _classes_of(names: AbstractSet[str], where: str) -> ClassList:
    classes = labels.official_classes()
    if names <= classes.index.keys():
        return classes
    is_numbered = all(name.isascii() and name.isdecimal() for name in names)
    return labels.classes_called(sorted(names, key=int if is_numbered else None), where)


def labelled(
    root: Path, inside: Path | None
) -> tuple[list[LabelTable], dict[FoundFile, LabelRow], Counter[str]]:
    """Returns the tables of a source, the line of each image, and the numbers of ignored files.

    Raises SourceError for all lines that are invalid, and for images without a line next to listed
    images. Images in folders without any listed image are ignored, and so are images of test.
    """
    located = locate(root)
    if not located:
        raise UsageError(f"--source {root}: holds no table of labels, such as labels.csv.")
    # If no table can be read, reading the first one raises the error.
    tables = [table for table in located if is_readable(table)] or located[:1]
    problems = SourceProblems()
    below = scan.below(root, inside, by_content=True, problems=problems)
    ignored = below.ignored
    ignored.subtract(ending(table.path.name) for table in tables)
    by_name: dict[str, list[FoundFile]] = {}
    for image in below.images:
        for name in {as_seen(name).rpartition("/")[2] for name in _names_of(image.path)}:
            by_name.setdefault(name, []).append(image)
    rows: dict[FoundFile, LabelRow] = {}
    for table in tables:
        for row in _rows(table, problems):
            files = _files_of(row, by_name)
            if len(files) == 1 and files[0] not in rows:
                split = row.split or layout.split_in_name(_top(files[0].path)) or schema.TRAIN
                rows[files[0]] = row._replace(split=split)
            elif row.split != schema.TEST:  # images of test need not exist
                found = [suggested(file.path, files[0].path) for file in files]
                problems.add(
                    f"{row.where}: expected one image {row.file!r} that no other line lists, found "
                    f"{some(found) or 'none'}. Correct or remove the line."
                )
    read = {_top(file.path) for file in rows}
    unlisted: list[str] = []
    for file in below.images:
        top = _top(file.path)
        if file not in rows and top in read:
            unlisted.append(file.path)
        elif file not in rows:
            ignored[top or ending(file.path)] += 1
        elif rows[file].split == schema.TEST:
            ignored["images of test"] += 1
    listed = same_looking(unlisted, (file.path for file in rows)) if unlisted else {}
    for path in unlisted:
        more = f", unlike {suggested(listed[path], path)}" if path in listed else ""
        problems.add(
            f"{root / path}: has no line in {tables[0].path.name}{more}. Add one, or move the "
            "image away."
        )
    problems.raise_all(f"--source {root}")
    return tables, {f: row for f, row in rows.items() if row.split != schema.TEST}, +ignored


def _top(path: str) -> str:
    """Returns the first folder of a path ("x/"), or "" if there is none."""
    first, slash, _ = path.partition("/")
    return first + slash if slash else ""


def _lines(table: LabelTable) -> Iterator[tuple[str, list[str]]]:
    """Yields the file and number of each line, and its fields."""
    text = source.read_list(table.path, most=_MOST_BYTES)
    try:
        for number, values in csv_rows(text, strict=False):
            yield f"{table.path}: line {number:,}", values
    except csv.Error as error:
        raise SourceError(f"{table.path}: {error}. Get it again.") from None


def _header(
    table: LabelTable, lines: Iterator[tuple[str, list[str]]]
) -> tuple[list[str], str, str]:
    """Reads the first of `lines`; returns all columns, and those of the files and classes."""
    _, names = next(lines, ("", []))
    columns = [re.sub(r"[\s-]+", "_", name.strip().casefold()) for name in names]
    files = [name for name in FILE_COLUMNS if name in columns]
    classes = [name for name in columns if name in CLASS_COLUMNS]
    if not files or len(classes) != 1:
        raise UsageError(
            f"{table.path}: has the columns {printable(some(columns))[:_MOST_SHOWN]}; expected "
            f"one that names the image, such as {FILE_COLUMNS[0]} or id, and exactly one that "
            f"names the class: {', '.join(CLASS_COLUMNS)}. Rename the columns."
        )
    return columns, files[0], classes[0]


def _rows(table: LabelTable, problems: SourceProblems) -> Iterator[LabelRow]:
    """Yields the lines of a table; adds invalid lines to `problems`."""
    lines = _lines(table)
    columns, file_column, class_column = _header(table, lines)
    for where, values in lines:
        fields = dict(zip(columns, map(str.strip, values), strict=False))
        file = fields.get(file_column, "")
        class_name = fields.get(class_column, "")
        called = fields.get(SPLIT_COLUMN, "")
        split = layout.split_in_name(called) if called else table.split
        problem = ""
        if len(values) != len(columns):
            problem = f"has {counted(len(values), 'field')}, expected {len(columns)}"
        elif not file:
            problem = f"the column {file_column} is empty, expected an image"
        elif not class_name and split != schema.TEST:
            problem = f"the column {class_column} is empty, expected the class of the image"
        elif called and not split:
            problem = f"the column {SPLIT_COLUMN} has {called!r}, expected train, val or test"
        if problem:
            problems.add(f"{where}: {problem[:_MOST_SHOWN]}. Correct or remove the line.")
        else:
            yield LabelRow(where, table, file, class_name, split)


def _files_of(row: LabelRow, by_name: Mapping[str, list[FoundFile]]) -> list[FoundFile]:
    """Returns the images that match a line; its name may lack the extension, and first folders.

    If none has exactly this name, images match whose name looks the same. If several match, those
    in the folder of the table and in a folder of the split are preferred.
    """
    name = row.file.replace("\\", "/").removeprefix("./")
    seen = as_seen(name)
    candidates = by_name.get(seen.rpartition("/")[2], ())
    files = [file for file in candidates if _is_called(file.path, name)]
    if not files:
        files = [file for file in candidates if _is_called(file.path, seen, form=as_seen)]
    preferred: list[FoundFile] = []
    for file in files:
        is_of_split = layout.split_in_name(_top(file.path)) in (None, row.split or schema.TRAIN)
        if is_of_split and file.path.startswith(row.table.folder):
            preferred.append(file)
    return preferred or files


def _names_of(path: str) -> tuple[str, str]:
    """Returns a path with and without its extension."""
    folder, slash, base = path.rpartition("/")
    return path, f"{folder}{slash}{base.rpartition('.')[0] or base}"


def _is_called(path: str, name: str, form: Callable[[str], str] = str) -> bool:
    """Returns whether the last parts of a path, with or without extension, are those of `name`."""
    return any(f"/{form(each)}".endswith(f"/{name}") for each in _names_of(path))
