"""Reads folders of images with a table of labels, as on Kaggle and in the Hub's `imagefolder`.

The table is a CSV, TSV or JSON Lines file with one line per image. It is next to the folder of the
images, or in it. The names of tables and columns are listed here and in docs/photographs.md.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.ignored import ending, most_frequent
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import labels, layout, listing, source
from imagenet_prep.sources.folder import Folder
from imagenet_prep.sources.scan import File, Problems, read_errors, refuse_link_out, subfolders
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.remote_path import open_to_read

# fmt: off
FILE_COLUMNS = (
    "file_name", "filename", "file", "file_path", "filepath", "path",
    "image", "image_name", "image_path", "image_id", "img", "id",
)
CLASS_COLUMNS = (
    "label", "labels", "class", "class_name", "label_name", "category", "breed", "species",
)
# fmt: on
SPLIT_COLUMNS = ("split", "set", "subset")
# Names of tables for all images; those for one split are named after it, as `train_labels.csv`.
_SPLITS = {
    **dict.fromkeys(("train", "training"), schema.TRAIN),
    **dict.fromkeys(("val", "valid", "validation"), schema.VALIDATION),
}
_NAMES = re.compile(
    rf"(?:(?:({'|'.join(_SPLITS)})[_-])?(?:labels|metadata)|({'|'.join(_SPLITS)}))\.(?:csv|tsv|jsonl)"
)
_MOST_BYTES = 256 << 20  # two million images with long paths
_MOST_LINE_BYTES = 1 << 16
_MOST_SHOWN = 300


class Table(NamedTuple):
    """A table of labels: its file, its folder relative to the source ("" or "x/"), its split."""

    path: Path
    folder: str
    split: str | None  # None if it lists the images of all splits

    @property
    def name(self) -> str:
        """Its path relative to the source."""
        return self.folder + self.path.name


class Row(NamedTuple):
    """A line of a table; `split` is None if neither the table nor the line names it."""

    where: str  # the file and the number of the line
    table: Table
    file: str
    class_name: str
    split: str | None


@dataclass(frozen=True)
class ImageTable(Folder):
    """A folder of images with a table of labels."""

    # The split and class index of each image, by path relative to the source.
    listed: dict[str, tuple[str, int]] = field(default_factory=dict, kw_only=True)
    # The folder with all images of a split ("x/"), or "" if they are in several, by split.
    folders: dict[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def split_folders(self) -> list[Path]:
        """The folders with images that are read."""
        return [self.root / folder for folder in self.folders.values()]

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one split, sorted by key."""
        problems = Problems()
        members: list[Member] = []
        for file in listing.below(self.root, self.inside, by_content=True).images:
            split, index = self.listed.get(file.path, ("", 0))
            if split != task.split:
                continue
            name = file.path.removeprefix(self.folders[split])
            folder = name[: name.rfind("/") + 1]
            try:
                key = self.key_of(split, index, name, str(self.root / file.path), folder)
                members.append(Member(key, file.path, 0, file.num_bytes, index))
            except SourceError as error:
                problems.add(error)
        problems.raise_all(self.root)
        return source.sorted_by_key(members, str(self.root))


def locate(root: Path) -> list[Table]:
    """Returns the tables of labels in a folder and in its subfolders, judged by their names."""
    tables: list[Table] = []
    names = subfolders(root, any_name=True) if root.is_dir() else []
    folders = ["", *(f"{name}/" for name in names)] if root.is_dir() else []
    for folder in folders:
        for path in sorted((root / folder).iterdir()):
            match = _NAMES.fullmatch(path.name.casefold())
            if match is None or path.name.startswith("."):
                continue
            split = _SPLITS.get(match[1] or match[2] or "", layout.split_called(folder))
            if split in (None, *schema.SOURCE_SPLITS):
                tables.append(Table(path, folder, split))
    return [table for table in tables if table.path.is_file()]


def is_readable(table: Table) -> bool:
    """Returns whether a table has the columns of files and classes."""
    try:
        _demand_columns(table, _header(table)[0])
    except (SourceError, UsageError):
        return False
    return True


@read_errors("")
def find(root: Path, splits: Sequence[str], *, follow_links: bool = False) -> ImageTable:
    """Returns the source of `splits`; raises UsageError for unknown or ambiguous tables."""
    inside = None if follow_links else root
    tables, rows, ignored = labelled(root, inside)
    files = {split: [f for f, row in rows.items() if row.split == split] for split in splits}
    missing = [split for split in splits if not files[split]]
    if missing:
        raise UsageError(
            f"--source {root}: {some([table.path.name for table in tables])}: no image of "
            f"{' and '.join(missing)}. Choose different --splits, or add a column "
            f"{SPLIT_COLUMNS[0]} with {schema.TRAIN} or {schema.VALIDATION}."
        )
    names = {row.class_name for row in rows.values()}
    classes = labels.official_classes()
    if not names <= classes.index.keys():
        is_numbered = all(name.isascii() and name.isdecimal() for name in names)
        ordered = sorted(names, key=int) if is_numbered else sorted(names)
        classes = labels.classes_called(ordered, str(tables[0].path))
    folders: dict[str, str] = {}
    for split, of_split in files.items():
        tops = {_top(file.path) for file in of_split}
        folders[split] = tops.pop() if len(tops) == 1 else ""
    images = source.folder_part(root.resolve().name, files.items())
    index = {name: classes.of_folder(name) or 0 for name in names}
    return ImageTable(
        classes,
        (
            images._replace(ignored=tuple(most_frequent(ignored).items())),
            *(source.file_part(table.path)._replace(name=table.name) for table in tables),
        ),
        root,
        None,
        inside,
        is_own=True,
        tasks=tuple(IndexTask(split, split, images.name) for split in splits),
        listed={f.path: (str(row.split), index[row.class_name]) for f, row in rows.items()},
        folders=folders,
    )


def class_names(root: Path) -> set[str]:
    """Returns the names of the classes in the tables of a source; invalid lines are ignored."""
    rows = (_rows(table, Problems()) for table in _chosen(root))
    return {row.class_name for row in itertools.chain.from_iterable(rows)}


def labelled(root: Path, inside: Path | None) -> tuple[list[Table], dict[File, Row], Counter[str]]:
    """Returns the tables of a source, the line of each image, and the numbers of ignored files.

    Raises SourceError for all lines that are invalid, and for images without a line next to listed
    images. Images in folders without any listed image are ignored, and so are images of test.
    """
    tables = _chosen(root)
    problems = Problems()
    below = listing.below(root, inside, by_content=True, problems=problems)
    ignored = below.ignored
    ignored.subtract(ending(table.path.name) for table in tables)
    by_name: dict[str, list[File]] = {}
    for image in below.images:
        base = image.path.rpartition("/")[2]
        for name in {base, base.rpartition(".")[0]}:
            by_name.setdefault(name, []).append(image)
    rows: dict[File, Row] = {}
    for row in itertools.chain.from_iterable(_rows(table, problems) for table in tables):
        # Images of test need not exist.
        file = _file_of(row, by_name, Problems() if row.split == schema.TEST else problems)
        if file in rows:
            problems.add(
                f"{row.where}: {row.file!r} is listed again, as {row.class_name!r}; "
                f"{rows[file].where} says {rows[file].class_name!r}. Keep one line per image."
            )
        elif file is not None:
            split = row.split or layout.split_called(_top(file.path)) or schema.TRAIN
            rows[file] = row._replace(split=split)
    read = {_top(file.path) for file in rows}
    for file in below.images:
        top = _top(file.path)
        if file in rows:
            ignored["images of test"] += rows[file].split == schema.TEST
        elif top in read:
            problems.add(
                f"{root / file.path}: has no line in {tables[0].path.name}. Add one, or move the "
                "image away."
            )
        else:
            ignored[top or ending(file.path)] += 1
    problems.raise_all(f"--source {root}")
    return tables, {f: row for f, row in rows.items() if row.split != schema.TEST}, +ignored


def _top(path: str) -> str:
    """Returns the first folder of a path ("x/"), or "" if there is none."""
    first, slash, _ = path.partition("/")
    return first + slash if slash else ""


def _chosen(root: Path) -> list[Table]:
    """Returns the tables to read: one for all images, or one per split."""
    located = locate(root)
    tables = [table for table in located if is_readable(table)]
    if not tables:
        for table in located:
            _demand_columns(table, _header(table)[0])
        raise UsageError(
            f"--source {root}: holds no table of labels, such as labels.csv or metadata.csv."
        )
    splits = [table.split for table in tables]
    if len({*splits}) < len(splits) or (None in splits and len(splits) > 1):
        raise UsageError(
            f"--source {root}: holds {printable(' and '.join(table.name for table in tables))}, "
            "which list the same images. Keep only one of them, or one per split."
        )
    return tables


def _header(table: Table) -> tuple[list[str], str]:
    """Returns the names of the columns in lower case, and the delimiter ("" for JSON)."""
    refuse_link_out(table.path)
    with read_errors(table.path), open_to_read(table.path) as file:
        line = file.readline(_MOST_LINE_BYTES).decode("utf-8-sig", "replace")
    if table.path.suffix.casefold() == ".jsonl":
        return [*_fields(line, f"{table.path}: line 1")], ""
    delimiter = max((",", ";", "\t"), key=line.count)
    names = next(csv.reader([line], delimiter=delimiter), [])
    return [_column_name(name) for name in names], delimiter


def _column_name(text: str) -> str:
    return re.sub(r"[\s-]+", "_", text.strip().casefold())


def _fields(line: str, where: str) -> dict[str, str]:
    """Returns the fields of a line of JSON; numbers become text, and other values are left out."""
    try:
        content = canonical.loads(line)
    except ValueError as error:
        raise SourceError(f"{where}: is not JSON: {error}. Get the file again.") from None
    fields = content if isinstance(content, dict) else {}
    return {
        _column_name(name): str(value)
        for name, value in fields.items()
        if type(value) in (int, str)
    }


def _demand_columns(table: Table, columns: Sequence[str]) -> tuple[str, str]:
    """Returns the columns of files and classes; raises UsageError if one is not clear."""
    files = [name for name in FILE_COLUMNS if name in columns]
    classes = [name for name in columns if name in CLASS_COLUMNS]
    if files and len(classes) == 1:
        return files[0], classes[0]
    problem = f"none of them names the image. Name one of them {FILE_COLUMNS[0]}."
    if files:
        which = some(classes) if classes else "none of them"
        problem = f"{which} names the class. Name only one of them {CLASS_COLUMNS[0]}."
    named = printable(some(columns))[:_MOST_SHOWN]
    raise UsageError(f"{table.path}: has the columns {named}; {problem}")


def _rows(table: Table, problems: Problems) -> Iterator[Row]:
    """Yields the lines of a table; adds invalid lines to `problems`."""
    columns, delimiter = _header(table)
    of_split = [name for name in SPLIT_COLUMNS if name in columns] or [""]
    names = (*_demand_columns(table, columns), of_split[0])
    for number, fields in _lines(table, columns, delimiter, problems):
        file, class_name, split_name = (fields.get(name, "").strip() for name in names)
        where = f"{table.path}: line {number:,}"
        split = table.split
        if split_name:
            split = layout.split_called(split_name)
        if not file:
            problems.add(f"{where}: names no image. Add its name, or remove the line.")
        elif split_name and split is None:
            problems.add(f"{where}: unknown split {split_name!r}, expected train, val or test.")
        elif not class_name and split != schema.TEST:
            problems.add(f"{where}: {file!r} has no label. Add it, or remove the line.")
        else:
            yield Row(where, table, file, class_name, split)


def _lines(
    table: Table, columns: Sequence[str], delimiter: str, problems: Problems
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number and the fields of each line that is not empty."""
    text = source.read_list(table.path, most=_MOST_BYTES).removeprefix("\ufeff")
    if not delimiter:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, _fields(line, f"{table.path}: line {number:,}")
        return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        next(reader, None)
        for values in reader:
            if len(values) == len(columns):
                yield reader.line_num, dict(zip(columns, values, strict=True))
            elif any(values):
                problems.add(
                    f"{table.path}: line {reader.line_num:,}: has {counted(len(values), 'field')}, "
                    f"expected {len(columns)}. Quote fields that contain {delimiter!r}."
                )
    except csv.Error as error:
        raise SourceError(
            f"{table.path}: line {reader.line_num:,}: {error}. Get it again."
        ) from None


def _file_of(row: Row, by_name: Mapping[str, list[File]], problems: Problems) -> File | None:
    """Returns the image of a line; adds a problem if there is none, or if there are several.

    The name may lack the extension, and folders at its beginning. If images of several folders
    match, those in the folder of the table and in a folder of the split are preferred.
    """
    name = row.file.replace("\\", "/").removeprefix("./")
    folder, slash, base = name.rpartition("/")
    files = [
        file
        for file in by_name.get(base, ())
        if f"/{file.path[: file.path.rfind('/') + 1]}".endswith(f"/{folder}{slash}")
    ]
    in_folder = [file for file in files if file.path.startswith(row.table.folder + name)]
    files = in_folder or files
    wanted = (None, row.split or schema.TRAIN)
    of_split = [file for file in files if layout.split_called(_top(file.path)) in wanted]
    files = of_split or files
    if len(files) == 1:
        return files[0]
    if files:
        found = some([file.path for file in files])
        problems.add(f"{row.where}: {row.file!r} can be {found}. Write the folder, too.")
    else:
        problems.add(f"{row.where}: there is no image {row.file!r}. Get it, or remove the line.")
    return None
