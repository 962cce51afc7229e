"""The formats of an export: ImageFolder, Parquet, RecordIO, TFDS and WebDataset.

`ImageFolderFormat` writes one folder per class, for torchvision's ImageFolder and compatible
readers.

`ParquetFormat` writes Parquet files as on the Hugging Face Hub: columns image {bytes, path} and
label.

`RecordIOFormat` writes MXNet's RecordIO: a .rec file per split, with .idx and .lst files like
im2rec.py's.

`Tfds` writes the files that `tfds build` writes, for imagenet2012 or a dataset of a different name.

`WebDatasetFormat` writes tars in which an image's files are adjacent, and a list of the tars.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.imports import require_modules
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import keys, protobuf, record_files, schema, tfds
from imagenet_prep.dataset.column import Column
from imagenet_prep.dataset.formats import is_hidden
from imagenet_prep.exporting.examples import (
    Example,
    ExportPart,
    ExportSource,
    FilePiece,
    Format,
    Written,
)
from imagenet_prep.read.selection import Names
from imagenet_prep.sources.folder import SYNSET_MAPPING
from imagenet_prep.sources.recordio import SYNSET
from imagenet_prep.storage.dataset_store import Dataset

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records


FOLDERS = {schema.VALIDATION: "val"}  # the name in `prepare` and most programs
# New names for colliding files, by split and key.
Numbered = dict[tuple[str, str], str]
# IMG_EXTENSIONS in torchvision/datasets/folder.py, without those that `prepare` ignores.
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class ImageFolderFormat(Format):
    """The ImageFolder format, see `Format`."""

    wnids: tuple[str, ...]
    labels: str  # content of labels.txt
    allow_empty_class: bool = False
    columns: tuple[str, ...] = ()  # of texts
    numbered: Numbered = field(default_factory=dict)
    holdout_as_val: bool = False
    file_an_image = True

    def settled(self, source: ExportSource, parts: Sequence[ExportPart]) -> ImageFolderFormat:
        """Returns the format; raises UsageError if folder names would change labels."""
        _refuse_nested(self.wnids, source.root)
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

    def pieces(self, part: ExportPart, examples: Iterable[Example]) -> Iterator[FilePiece]:
        """Yields each class folder ("train/CLASS/") if `allow_empty_class`, and then each image."""
        if self.allow_empty_class and not part.number:
            top = self._top(part.split)
            yield from (FilePiece(f"{top}/{wnid}/", b"") for wnid in self.wnids)
        for example in examples:
            yield FilePiece(self._file_of(part.split, example), example.encoded, example.sha256)

    def place_of(self, part: ExportPart, position: int, example: Example) -> tuple[str, str]:  # noqa: ARG002
        """Returns the file of an image, which is its name as well."""
        path = self._file_of(part.split, example)
        return path, path.split("/", 2)[2]

    def metadata_name(self, split: str) -> str:
        """Returns the name of the file from which `imagefolder` of `datasets` takes columns."""
        return f"{self._top(split)}/metadata.jsonl" if self.columns else ""

    def metadata(self, part: ExportPart, example: Example) -> bytes:
        """Returns the file, the label and the texts of an image."""
        file = self._file_of(part.split, example).split("/", 1)[1]
        row = {schema.METADATA_FILE: file, schema.PARQUET_LABEL: example.class_index}
        return strict_json.dumps({**row, **example.rows}) + b"\n"

    def _file_of(self, split: str, example: Example) -> str:
        file = self.numbered.get((split, example.key))
        if file is None:
            file = _file(f"{example.wnid}/{example.name}")
        return f"{self._top(split)}/{file}"

    def split_read(self, split: str) -> str:
        """Returns `validation` for the holdout if it is written as `val`."""
        is_moved = self.holdout_as_val and split == schema.HOLDOUT
        return schema.VALIDATION if is_moved else split

    def _top(self, split: str) -> str:
        read = self.split_read(split)
        return FOLDERS.get(read, read)

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns Kaggle's and DINOv2's class lists if all classes are WNIDs, else no files."""
        # `prepare` takes class indices from Kaggle's list. DINOv2 and DINOv3 only read WNIDs.
        if not all(map(keys.WNID.fullmatch, self.wnids)):
            return {}
        lines = io.StringIO()
        rows = (line.partition(" ")[::2] for line in self.labels.split("\n")[:-1])
        names = ((wnid, words.partition(",")[0].strip() or wnid) for wnid, words in rows)
        csv.writer(lines, lineterminator="\n").writerows(names)
        return {SYNSET_MAPPING: self.labels.encode(), schema.LABELS: lines.getvalue().encode()}


def _heads(records: Records, is_chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    """Yields class index and key of each chosen image."""
    for class_index, key, _ in itertools.compress(Names(records), is_chosen):
        yield class_index, key


def _refuse_nested(wnids: Sequence[str], where: str) -> None:
    """Raises UsageError for classes with a slash in their names, which would be two folders."""
    nested = [wnid for wnid in wnids if "/" in wnid]
    if nested:
        raise UsageError(
            f"{where}: {some(nested)}: readers of this format would take only one folder of these "
            "paths as the class. Choose --to webdataset or parquet, or change the names."
        )


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
        return not any(map(is_hidden, schema.require_relative_name(path).split("/")))
    return False


_GROUP_ROWS = 100  # as in `datasets` for images: to read one row, its group is read


@dataclass(frozen=True)
class ParquetFormat(Format):
    """The Parquet format, see `Format`; rows of dataset columns become lists."""

    wnids: tuple[str, ...]
    columns: tuple[Column, ...] = ()

    def settled(self, source: ExportSource, parts: Sequence[ExportPart]) -> ParquetFormat:  # noqa: ARG002
        """Raises UsageError if pyarrow is not installed."""
        require_modules("parquet", "--to parquet", "pyarrow")
        return self

    def pieces(self, part: ExportPart, examples: Iterable[Example]) -> Iterator[FilePiece]:
        """Yields the bytes that pyarrow writes for each group of rows."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        shard = schema.shard_name(part.split, part.number, part.total)
        name = f"{schema.PARQUET_FOLDER}/{shard}.parquet"
        columns: Json = {
            schema.PARQUET_IMAGE: pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            schema.PARQUET_LABEL: pa.int64(),
        }
        features: Json = {
            schema.PARQUET_IMAGE: {"_type": "Image"},
            schema.PARQUET_LABEL: {"names": self.wnids, "_type": "ClassLabel"},
        }
        for column in self.columns:
            if column.is_text:
                columns[column.name] = pa.list_(pa.string())
                text = {"_type": "Value", "dtype": "string"}
                features[column.name] = {"_type": "Sequence", "length": -1, "feature": text}
                continue
            dtype = np.dtype(column.descr)
            values = pa.from_numpy_dtype(dtype)
            feature: Json = {"_type": "Value", "dtype": dtype.name}
            for side in reversed(column.shape):
                values = pa.list_(values, side)
                feature = {"_type": "Sequence", "length": side, "feature": feature}
            columns[column.name], features[column.name] = values, feature
        metadata = {
            "huggingface": json.dumps({"info": {"features": features}}),
            schema.PARQUET_KEYS: "image.path",
        }
        table = pa.schema(columns, metadata)
        sink = _Sink()
        # JPEGs cannot be compressed further, and no two are the same.
        options = {"compression": "none", "use_dictionary": False, "write_statistics": ["label"]}
        with pq.ParquetWriter(sink, table, **options) as writer:
            remaining = iter(examples)
            while rows := list(itertools.islice(remaining, _GROUP_ROWS)):
                images = [{"bytes": row.encoded, "path": row.key} for row in rows]
                labels = [row.class_index for row in rows]
                values = []
                for column in self.columns:
                    of_rows = [row.rows[column.name] for row in rows]
                    lists = [v if isinstance(v, list) else v.tolist() for v in of_rows]
                    values.append(pa.array(lists, columns[column.name]))
                writer.write_batch(pa.record_batch([images, labels, *values], schema=table))
                yield from (FilePiece(name, data) for data in sink.taken())
        yield from (FilePiece(name, data) for data in sink.taken())


class _Sink(io.RawIOBase):
    """A file in memory for pyarrow; `taken` returns the bytes written since its last call."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pending.append(bytes(data))  # the memory belongs to pyarrow
        self._position += len(self._pending[-1])
        return len(self._pending[-1])

    def tell(self) -> int:
        return self._position

    def taken(self) -> list[bytes]:
        pending = self._pending
        self._pending = []
        return pending


@dataclass(frozen=True)
class RecordIOFormat(Format):
    """The RecordIO format, see `Format`; without a `prefix`, files are named after the split."""

    prefix: str = ""
    labels: str = ""  # content of labels.txt
    whole_splits = True

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder and the file name prefix; with a `prefix`, `out` is FOLDER/PREFIX."""
        if not self.prefix:
            return out, ""
        folder, slash, _ = out.rstrip("/").rpartition("/")
        return folder or slash or ".", f"{self.prefix}."

    def settled(self, source: ExportSource, parts: Sequence[ExportPart]) -> RecordIOFormat:  # noqa: ARG002
        """Returns the format; raises UsageError if paths in lists would name other classes."""
        _refuse_nested(source.dataset.classes.wnids, source.root)
        return self

    def pieces(self, part: ExportPart, examples: Iterable[Example]) -> Iterator[FilePiece]:
        """Yields each record after its lines in .lst and .idx, so that no line can be missing."""
        prefix = self.prefix or part.split
        offset = 0
        for number, example in enumerate(examples):
            record = record_files.frame(number, example.class_index, example.encoded)
            line = f"{number}\t{example.class_index:f}\t{example.wnid}/{example.name}\n"
            yield FilePiece(f"{prefix}.lst", line.encode())
            yield FilePiece(f"{prefix}.idx", f"{number}\t{offset}\n".encode())
            yield FilePiece(f"{prefix}.rec", record)
            offset += len(record)

    def place_of(self, part: ExportPart, position: int, example: Example) -> tuple[str, str]:
        """Returns the record of an image, and its name in the .lst file."""
        return f"{self.prefix or part.split}.rec:{position}", example.name

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns the class list, since paths do not name classes without images.

        With a `prefix`, the folder may also have files of other datasets, so there is no list.
        """
        return {} if self.prefix else {SYNSET: self.labels.encode()}


# VERSION in tensorflow_datasets/datasets/imagenet2012/imagenet2012_dataset_builder.py
_VERSION = "5.1.0"


@dataclass(frozen=True)
class Tfds(Format):
    """The TFDS format, see `Format`; `name` and `version` identify the dataset in TFDS."""

    name: str
    version: str
    wnids: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> Tfds:
        """Returns the format with the TFDS name and version of a dataset."""
        manifest, wnids = dataset.manifest, dataset.classes.wnids
        if manifest.classes.official and not manifest.edition:
            return cls(tfds.IMAGENET, _VERSION, wnids)
        info = dataset.tfds_info
        name, version = (re.sub(r"[^\w.]", "_", str(info[key])) for key in ("name", "version"))
        return cls(name, version, wnids)

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder in which TFDS looks for the builder."""
        return f"{out.rstrip('/')}/{self.name}/{self.version}", ""

    def pieces(self, part: ExportPart, examples: Iterable[Example]) -> Iterator[FilePiece]:
        """Yields the TFRecord file of a part, record by record."""
        name = self._shard(part)
        for example in examples:
            parts = protobuf.encode_parts(example.encoded, example.class_index, example.name)
            yield from (FilePiece(name, data) for data in record_files.frame_parts(parts))

    def place_of(self, part: ExportPart, position: int, example: Example) -> tuple[str, str]:
        """Returns the record of an image, and its feature file_name."""
        return f"{self._shard(part)}:{position}", example.name

    def _shard(self, part: ExportPart) -> str:
        return f"{self.name}-{part.split}.tfrecord-{part.number:05d}-of-{part.total:05d}"

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:
        """Returns the label names, the features, and the metadata of the splits."""
        schema_keys = protobuf.KEYS.items()
        features = {name: tfds.feature(key, len(self.wnids)) for name, key in schema_keys}
        keys = [{"featureKey": key} for key in (protobuf.IMAGE, protobuf.LABEL)]
        info = {
            "name": self.name,
            "version": self.version,
            "description": f"{self.name}, exported by imagenet-prep.",
            "fileFormat": "tfrecord",
            "supervisedKeys": {"tuple": {"items": keys}},
            "splits": [
                {
                    "name": split,
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    # TFDS counts the records without their TFRecord frames.
                    "numBytes": str(
                        sum(p.num_bytes - record_files.FRAMING_BYTES * p.examples for p in written)
                    ),
                    "shardLengths": [str(part.examples) for part in written],
                }
                for split, written in parts.items()
            ],
        }
        return {
            protobuf.LABELS: tfds.label_names(self.wnids, 0),
            schema.TFDS_FEATURES: _render(tfds.features_dict(features)),
            schema.TFDS_INFO: _render(info),
        }


def _render(content: Json) -> bytes:
    return json.dumps(content, indent=2, sort_keys=True).encode()


INDEX = "_info.json"  # timm's list of the tars of each split, with their numbers of images
_ENDING = ".JPEG"  # extension in ImageNet's file names
# A header without name; its mode is 0o644. tarfile takes 10 times as long to make one.
_EMPTY_HEADER = tarfile.TarInfo().tobuf(tarfile.GNU_FORMAT)
# The bytes of a tar header that contain the size and the checksum, as octal numbers.
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)


@dataclass(frozen=True)
class WebDatasetFormat(Format):
    """The WebDataset format, see `Format`; `classes` has the ID and the words of each class."""

    classes: tuple[tuple[str, str], ...]

    def pieces(self, part: ExportPart, examples: Iterable[Example]) -> Iterator[FilePiece]:
        """Yields the bytes of a tar: KEY.cls, .jpg, .json and the columns of each image.

        A column is in KEY.NAME.npy or, if it has texts, in KEY.NAME.json. The first text of the
        first column of texts is in KEY.txt, which training programs for captions read.
        """
        tar = _tar(part.split, part.number)
        size = 0
        for example in examples:
            about = {
                "filename": example.name,
                "key": example.key,
                "number": example.number,
                "wnid": example.wnid,
            }
            key = sample_key(example.key)
            files = {
                "cls": str(example.class_index).encode(),
                "jpg": example.encoded,
                "json": strict_json.dumps(about),
            }
            for name, row in example.rows.items():
                if isinstance(row, list):
                    files.setdefault("txt", "".join(row[:1]).encode())
                    files[f"{name}.json"] = strict_json.dumps(row)
                else:
                    files[f"{name}.npy"] = _npy(row)
            blocks: list[bytes] = []
            for extension, data in files.items():
                filling = bytes(-len(data) % tarfile.BLOCKSIZE)
                blocks += [_tar_header(f"{key}.{extension}", len(data)), data, filling]
            sample = b"".join(blocks)
            yield FilePiece(tar, sample)
            size += len(sample)
        # Two empty blocks, and padding to a complete tar record.
        size += 2 * tarfile.BLOCKSIZE
        yield FilePiece(tar, bytes(2 * tarfile.BLOCKSIZE + -size % tarfile.RECORDSIZE))

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:
        """Returns timm's list of the tars and their numbers of images, with our class list."""
        splits = {
            split: {
                "name": split,
                "num_samples": sum(part.examples for part in written),
                "filenames": [_tar(split, index) for index in range(len(written))],
                "shard_lengths": [part.examples for part in written],
            }
            for split, written in parts.items()
        }
        # The class list tells `prepare` the names of all classes, also of those without images.
        return {INDEX: strict_json.dumps({"classes": self.classes, "splits": splits})}


def sample_key(key: str) -> str:
    """Returns the name of an image in a tar; different keys get different names.

    Readers group files by the text before the first dot of the name, and ignore folders with names
    like __this__. So dots and two leading underscores are percent-encoded. ImageNet's extension is
    removed.
    """
    key = key.replace("%", "%25")
    if key.startswith("__"):
        key = f"%5F{key[1:]}"
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.partition(".")
    if dot + ending != _ENDING or not stem:
        stem = name.replace(".", "%2E") if dot else f"{name}%"
    return folder + slash + stem


def _tar_header(name: str, num_bytes: int) -> bytes:
    """Returns the header of a file in a tar, with the bytes that Python's tarfile writes."""
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) > tarfile.LENGTH_NAME:
        info = tarfile.TarInfo(name)
        info.size = num_bytes
        return info.tobuf(tarfile.GNU_FORMAT)
    header = bytearray(_EMPTY_HEADER)
    header[: len(encoded)] = encoded
    header[_SIZE] = b"%011o\0" % num_bytes
    # The format defines the checksum as if its own bytes were spaces.
    header[_CHECKSUM] = b"        "
    header[_CHECKSUM] = b"%06o\0 " % sum(header)
    return bytes(header)


def _npy(row: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, row, allow_pickle=False)
    return file.getvalue()


def _tar(split: str, index: int) -> str:
    return f"{split}-{index:06d}.tar"
