"""Show a dataset, its images by key or class, a shard, or the images used by a training run.

Examples:
  imagenet-prep show /data/imagenet-480
  imagenet-prep show /data/imagenet-480/train-00000-of-01024 --image 17 --out 17.jpg
  imagenet-prep show /data/imagenet-480 --keys --splits train
  imagenet-prep show /data/imagenet-480 --class n01440764 --limit 20
  imagenet-prep show /data/imagenet-480 --key n01440764/n01440764_10026.JPEG --out fish.jpg
  imagenet-prep show runs/1 --step 1000
  imagenet-prep show runs/1 --key n01440764/n01440764_10026.JPEG
  imagenet-prep show runs/1 --check
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from imagenet_prep.core import program, small_files, terminal
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.flags import AddressKind, Settings, optional, switch
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.spelling import suggested
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.keys import split_and_key, with_split
from imagenet_prep.dataset.shared_flags import data_set
from imagenet_prep.storage.local_file import complete_file

if TYPE_CHECKING:
    from imagenet_prep.read.catalogue import Catalogue, CatalogueEntry
    from imagenet_prep.read.receipt import Receipt
    from imagenet_prep.storage.dataset_store import Dataset

_FIRST_VALUES = 8
_SHOWN_CHARACTERS = 200  # of a text; --json prints complete texts
# Columns of the table of samples that --key shows.
_OF_SOURCE = ("action", "reason", "source_sha256")
# A record may lack every field except its image.
_MAY_LACK = {key: schema.ABSENT for key in schema.ALL_KEYS if key != schema.ENCODED}


@dataclass(frozen=True)
class ShowConfig(Settings):
    """Settings of one run; see the help of each flag."""

    dataset: str = data_set(
        place=AddressKind.FILE_OR_OBJECT,
        help="dataset, TFRecord file, or the --log-dir of a training run",
    )
    limit: int | None = optional(least=0, help="show at most N records or images")
    image: int | None = optional(
        help="write the image of record number RECORD of a shard to --out", metavar="RECORD"
    )
    out: str | None = optional(
        place=AddressKind.FILE, help="file for the image of --image or --key"
    )
    keys: bool = switch(
        help="list the keys of the images, one per line, as --exclude reads them",
        without=("image", "key"),
    )
    key: str | None = optional(
        help="show the image with key CLASS/NAME or NAME; for a run, show the steps that used it",
        without=("image", "class_"),
    )
    class_: str | None = optional(
        help="show the images of this class: a WNID, class index, folder, or word of its name",
        metavar="CLASS",
        without=("image",),
    )
    step: int | None = optional(
        least=0,
        help="list the images used in this training step; the first step is 0",
        without=("key",),
    )
    check: bool = switch(
        help="check that a training run used each image once per epoch; exit with code 1 if not",
        without=("step", "key"),
    )
    trained_on: str | None = optional(
        place=AddressKind.ANYWHERE,
        help="new location of the run's dataset, if moved",
        metavar="SET",
    )
    image_file: str | None = optional(
        place=AddressKind.FILE,
        help="find this file in the dataset or its source; exit with code 1 if it is in neither",
        without=("image", "keys", "key", "class_"),
    )
    splits: tuple[str, ...] | None = optional(
        choices=schema.SPLITS,
        help="only search these splits, separated by commas (default: all)",
        metavar="NAMES",
    )
    json: bool = switch(help="print one JSON object per line")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and self.image is None and self.key is None:
            raise ValueError("--out needs --image or --key, which select the image to write")
        if self.image is not None and self.out is None:
            raise ValueError("--image needs --out, the file to write")
        if self.splits is not None and not self.finds_images:
            raise ValueError("--splits needs --keys, --key, --class or --image-file")

    @property
    def finds_images(self) -> bool:
        """Whether the flags select images by key, class or file."""
        return self.keys or (self.key, self.class_, self.image_file) != (None, None, None)


def records(shard: str) -> Iterator[Json]:
    """Yields the fields of each record of a shard, with the bytes of the image as "encoded"."""
    from imagenet_prep.dataset import example, protobuf, record_files

    name = shard.rpartition("/")[2]
    with _opened(shard) as stream:
        for record in record_files.read_records(stream, name):
            try:
                # All known schemas are accepted; missing fields are empty or 0.
                features = protobuf.renamed(protobuf.parse(record.payload))
                image = example.with_true_size(example.checked(features, _MAY_LACK))
            except DataDamagedError as error:
                raise DataDamagedError(
                    f"{name}: record {record.number} at byte {record.offset:,}: {error}"
                ) from error
            yield {
                "record": record.number,
                "offset": record.offset,
                "size": len(record.payload) + record_files.FRAMING_BYTES,
                **image._asdict(),
                "boxes": image.boxes._asdict(),
            }


def _opened(shard: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if is_remote(shard):
        from imagenet_prep.storage.store import open_readable

        base, _, name = shard.rpartition("/")
        return open_readable(base).open_file(name)
    try:
        return open(small_files.open_to_read(Path(shard).expanduser()), "rb")
    except OSError as error:
        raise UsageError(f"{shard}: cannot be opened: {error.strerror}") from error


@program.verb("imagenet_prep.show", ShowConfig, __doc__, resumes=False)
def run(config: ShowConfig) -> int:
    log = Path(config.dataset).expanduser() / schema.TRAINING_LOG
    is_run = log.is_file() and not (log.parent / schema.MANIFEST).exists()
    if is_run or config.check or (config.step, config.trained_on) != (None, None):
        others = (config.image, config.class_, config.image_file, config.splits)
        if config.keys or others != (None, None, None, None):
            raise UsageError(
                f"{config.dataset} is a training run: expected --step, --key or --check"
            )
        return _show_run(config, log)
    if config.finds_images:
        return _show_images(config)
    if _is_set(config.dataset):
        return _show_set(config)
    if config.image is not None and config.out is not None:
        return _write_image(config.dataset, config.image, Path(config.out))
    for row in itertools.islice(records(config.dataset), config.limit):
        _print(config, row, f"{row['record']:>6} @{row['offset']:<12,}")
    return 0


def _is_set(place: str) -> bool:
    """Returns whether a path or address is a dataset rather than a single file."""
    from imagenet_prep.storage.store import open_readable

    if not is_remote(place):
        return Path(place).expanduser().is_dir()
    is_bucket = not urlsplit(place).path.strip("/")
    return is_bucket or open_readable(place).size(schema.MANIFEST) is not None


def _show_run(config: ShowConfig, log: Path) -> int:
    from imagenet_prep.read import receipt
    from imagenet_prep.read.catalogue import Catalogue

    dataset, used = receipt.of_run(log, config.trained_on)
    if config.key is not None:
        return _show_uses(config, log, dataset, used)
    if config.step is None:
        images, faults = used.faults()
        segment = used.segments[-1]
        row: Json = {"steps": segment.kept, "images": images, "faults": faults}
        if segment.state.crops:
            row["crops"] = segment.state.crops
        _print_row(config, row)
        if not faults and not config.json:
            print("sound: each step used new images until the end of its epoch")
        return 1 if faults else 0
    uses = list(itertools.islice(used.step(config.step), config.limit))
    if not uses:
        last = max(segment.reached for segment in used.segments) - 1
        raise UsageError(f"{log}: no step {config.step:,}; the last step in the log is {last:,}")
    numbers = {number for _, number in uses}
    catalogue = Catalogue(dataset, (used.split,))
    entries = {entry.number: entry for entry in catalogue.entries() if entry.number in numbers}
    absent = numbers - entries.keys()
    if absent:
        raise UsageError(
            f"{dataset.where} is only a part of the dataset: it lacks "
            f"{terminal.counted(len(absent), 'image')} of the step. Pass the complete dataset with "
            "--trained-on SET"
        )
    for use, number in uses:
        _print_row(config, {**use._asdict(), **entries[number]._asdict()})
    return 0


def _show_uses(config: ShowConfig, log: Path, dataset: Dataset, used: Receipt) -> int:
    """Shows the last checkpoint before an image's first use, and the steps that used the image."""
    from imagenet_prep.read.catalogue import Catalogue
    from imagenet_prep.trainer import checkpoint

    catalogue = Catalogue(dataset, tuple(dataset.manifest.splits))
    entries = _found(dataset, catalogue, config.key or "")
    entry = next((entry for entry in entries if entry.split == used.split), None)
    if entry is None:
        raise UsageError(
            f"{config.dataset}: no step used {entries[0].key}: the image is in "
            f"{entries[0].split}, and the run read {used.split}."
        )
    step, uses = used.unseen(entry.number)
    file = checkpoint.name(step) if (log.parent / checkpoint.name(step)).exists() else None
    key = {} if entry.key == config.key else {"key": entry.key}  # --key may lack the class
    _print_row(config, {**key, "unseen_until": step, "checkpoint": file})
    for use in itertools.islice(uses, config.limit):
        _print_row(config, use._asdict())
    return 0


def _print_row(config: ShowConfig, row: Json) -> None:
    if config.json:
        print(json.dumps(row, ensure_ascii=False))
        return
    for fault in row.pop("faults", ()):
        print(fault)
    print("  ".join(f"{name} {terminal.printable(str(value))}" for name, value in row.items()))


def _show_set(config: ShowConfig) -> int:
    from imagenet_prep.shards import commit
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.dataset_store import open_dataset

    if config.image is not None or config.limit is not None:
        raise UsageError(f"{config.dataset} is a dataset: --image and --limit need a single shard")
    dataset = open_dataset(config.dataset, parts=True)
    first_class = dataset.classes.wnids[0]
    content = commit.of_set(dataset.store.where(schema.MANIFEST), dataset)
    column_facts: Json = {}
    for name in columns.names(dataset.store):
        column_facts[name] = None
        found = columns.find(dataset.store, name)
        if found:
            files = [*itertools.chain.from_iterable(found.splits.values())]
            column_facts[name] = {**vars(found.begun()), "splits": [*found.splits]}
            column_facts[name]["rows"] = sum(file.rows for file in files)
            column_facts[name]["bytes"] = sum(file.num_bytes for file in files)
    if config.json:
        content |= {"first_class": first_class, "columns": column_facts}
        print(json.dumps(content, indent=1))
        return 0
    print(commit.render_set(dataset.manifest, content, first_class))
    for name, of in column_facts.items():
        words = []
        if dataset.store.size(column.begun_name(name)) is not None:
            words.append("not complete")
        if of:
            size = terminal.human_bytes(of["bytes"])
            splits = ", ".join(of["splits"])
            kind = "texts" if of["dtype"] == column.TEXT else f"{of['dtype']} {[*of['shape']]}"
            rows = terminal.counted(of["rows"], "row")
            words.insert(0, f"{kind} of {splits}, {rows}, {size}")
        print(terminal.printable(f"column {name}: {'; '.join(words) or 'not complete'}"))
    return 0


def _rows(dataset: Dataset, split: str, shard_name: str, record: int) -> Json:
    """Returns dtype, shape and first values, or all texts, of a record's row in each column."""
    import numpy as np

    from imagenet_prep.read.column_rows import numbers_of
    from imagenet_prep.storage import columns

    (shard,) = (shard for shard in dataset.shards(split) if shard.name == shard_name)
    rows: Json = {}
    for name in columns.names(dataset.store):
        found = columns.find(dataset.store, name)
        row = columns.row(dataset, found, split, shard, record) if found else None
        if found and row is not None and found.is_text:
            where = dataset.store.where(found.file_name(shard_name))
            texts = columns.texts(found, row, where, record)
            rows[name] = {"dtype": found.dtype, "texts": texts}
        elif found and row is not None:
            values = np.frombuffer(row, found.descr)[:_FIRST_VALUES]
            first = numbers_of(values, found).tolist()
            rows[name] = {"dtype": found.dtype, "shape": list(found.shape), "first": first}
    return rows


def _show_images(config: ShowConfig) -> int:
    from imagenet_prep.read.catalogue import Catalogue
    from imagenet_prep.storage.dataset_store import open_dataset

    dataset = open_dataset(config.dataset, parts=True)
    splits = dataset.manifest.splits
    absent = set(config.splits or ()) - splits.keys()
    if absent:
        raise UsageError(
            f"{config.dataset}: no split {some(sorted(absent))}; its splits: {', '.join(splits)}"
        )
    catalogue = Catalogue(dataset, config.splits or tuple(splits))
    if config.image_file is not None:
        return _show_file(config, catalogue, Path(config.image_file).expanduser())
    entries: Iterable[CatalogueEntry] = catalogue.entries(config.class_)
    if config.key is not None:
        entries = _found(dataset, catalogue, config.key)
    for entry in itertools.islice(entries, config.limit):
        if config.keys and config.json:
            print(json.dumps(entry._asdict(), ensure_ascii=False))
            continue
        if config.keys:
            is_plain = split_and_key(entry.key)[0] is None
            terminal.print_data(entry.key if is_plain else with_split(entry.split, entry.key))
            continue
        place, image = catalogue.read(entry)
        row = {**entry._asdict(), **place, **image._asdict(), "boxes": image.boxes._asdict()}
        if config.key is not None:
            row["columns"] = _rows(dataset, entry.split, row["shard"], row["record"])
            sample = catalogue.sample(entry)
            if sample:
                row |= {name: getattr(sample, name) for name in _OF_SOURCE}
                row["source"] = catalogue.source(entry)
        _print(config, row, f"{row['shard']} {row['record']:>6}")
        if config.out is not None:
            _write(image.encoded, Path(config.out))
            break
    return 0


def _found(dataset: Dataset, catalogue: Catalogue, key: str) -> list[CatalogueEntry]:
    from imagenet_prep.storage.dataset_store import incidents

    # Lists and messages may also name the split, as SPLIT:KEY.
    split, name = split_and_key(key)
    entries = catalogue.find({key, name})
    if key in entries:
        return entries[key]
    of_split = [entry for entry in entries.get(name, ()) if entry.split == split]
    if of_split:
        return of_split
    for line in incidents(dataset.store, dataset.manifest):
        if line.key == key:
            raise UsageError(
                f"{dataset.where}: {key} is not stored: {line.action} ({line.reason}: "
                f"{line.detail})"
            )
    near = catalogue.like(key)
    meant = f"Did you mean {suggested(near, key)}? " if near else ""
    raise UsageError(
        f"{dataset.where}: no image has the key {key}. {meant}Keys are CLASS/NAME or NAME; "
        "--keys lists all of them."
    )


def _show_file(config: ShowConfig, catalogue: Catalogue, path: Path) -> int:
    import hashlib

    try:
        with open(small_files.open_to_read(path), "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    is_found = False
    for entry, sample in itertools.islice(catalogue.having(sha256), config.limit):
        is_found = True
        shard, record = catalogue.place(entry)
        is_stored = sample.sha256 == sha256
        if config.json:
            row = {**entry._asdict(), "shard": shard, "record": record, "is_stored": is_stored}
            print(json.dumps({**row, **sample._asdict()}, ensure_ascii=False))
            continue
        how = "byte for byte"
        if not is_stored:
            action = ", ".join(filter(None, (sample.action, sample.reason)))
            how = f"equal to the source; stored as {sample.width}x{sample.height} ({action})"
        print(f"{shard} {record:>6} {terminal.printable(f'{entry.wnid} {entry.key}')}  {how}")
    if not is_found and not config.json:
        print(f"{path} (sha256 {sha256}) is not in {config.dataset}")
    return 0 if is_found else 1


def _print(config: ShowConfig, row: Json, where: str) -> None:
    num_bytes = len(row.pop("encoded"))
    if config.json:
        print(json.dumps({**row, "encoded_bytes": num_bytes}, ensure_ascii=False))
        return
    wnid, name, text = (terminal.printable(row[key]) for key in ("wnid", "filename", "text"))
    size = f"{row['width']:>5}x{row['height']:<5} {num_bytes:>9,} B"
    origin = ""
    if "action" in row:
        action = "+".join(filter(None, (row["action"], row["reason"])))
        origin = f"  {action} from {row['source'] or 'the source'}, sha256 {row['source_sha256']}"
    words = terminal.printable(f"{name}  {text}{origin}")
    print(f"{where} {row['stored_label']:>4} {wnid} {size}  {words}")
    for column_name, of in row.get("columns", {}).items():
        if "texts" in of:
            count = terminal.counted(len(of["texts"]), "text")
            print(terminal.printable(f"  {column_name}: {count}"))
            for text in of["texts"]:
                more = f"... ({len(text):,} characters)" if len(text) > _SHOWN_CHARACTERS else ""
                print(terminal.printable(f"    {text[:_SHOWN_CHARACTERS]}{more}"))
            continue
        values = ", ".join(f"{value:.6g}" for value in of["first"])
        more = ", ..." if len(of["first"]) < math.prod(of["shape"]) else ""
        print(terminal.printable(f"  {column_name}: {of['dtype']} {of['shape']}: {values}{more}"))


def _write_image(shard: str, number: int, out: Path) -> int:
    last = -1
    for row in records(shard):
        last = row["record"]
        if last == number:
            _write(row["encoded"], out)
            label = terminal.printable(f"{row['wnid']} {row['text']}")
            print(f"{out}: {row['width']}x{row['height']} {label}")
            return 0
    raise UsageError(f"{shard.rpartition('/')[2]}: no record {number}; it has records 0 to {last}")


def _write(encoded: bytes, out: Path) -> None:
    with complete_file(out, FileKind("an image of the same format", encoded[:2])) as file:
        file.write(encoded)
