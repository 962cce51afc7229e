"""Checkpoints: one file per step, written atomically and verified when read.

Log directories can be shared, so a checkpoint is untrusted input: the sizes that it claims never
decide how much memory is allocated.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from imagenet_prep.core import strict_json, terminal
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.storage.folder import LocalStore

Arrays = Mapping[str, npt.NDArray[np.generic]]
Shape = tuple[int, ...]

_NAME = re.compile(r"checkpoint-([0-9]{8})\.npz")
_DAMAGED = ".damaged"  # suffix of damaged checkpoints, which are kept for inspection
_FACTS = "facts"
_VERSION = 1  # format version, increased if older programs would misread the file
# Limit of the head's size. Most of it is the class list: 1 MB for ImageNet-21K.
_HEAD_BYTES = 1 << 24
_LAST_TIME = 1 << 40  # limit of `saved_at`, in seconds since 1970
# The first bytes of an array in the file, and the maximum length of its header.
_NPY = b"\x93NUMPY\x01\x00"
_NPY_HEADER_BYTES = 1000
_NPY_HEADER = re.compile(
    r"\{'descr': '([<|][fiu][1248])', 'fortran_order': (False|True), "
    r"'shape': \(((?:[0-9]{1,18},? ?)*)\), \} *\n"
)
# zipfile raises RuntimeError for unsupported features, OverflowError for impossible offsets.
_DAMAGE = (ValueError, KeyError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile)
_SPARSE_BYTES = 256 << 20
_SPARSE_RATIO = 16
_PIECE_BYTES = 1 << 20  # limit of one read; the zip directory of 10,000 arrays is smaller


class Header(NamedTuple):
    """What a checkpoint claims about one of its arrays; `num_bytes` is the size of its values."""

    dtype: np.dtype[Any]
    shape: Shape
    order: Literal["C", "F"]
    num_bytes: int


Headers = Mapping[str, Header]
Shapes = Sequence[Shape] | Callable[[Json, Headers], Sequence[Shape]]


@dataclass(frozen=True)
class _Head:
    version: int
    step: int
    saved_at: float
    facts: Json


@dataclass(frozen=True)
class Checkpoint(_Head):
    """A saved state of a run; `saved_at` is in seconds since 1970, `arrays` are in saved order."""

    arrays: Arrays


def name(step: int) -> str:
    """Returns the file name of a step's checkpoint."""
    return f"checkpoint-{step:08d}.npz"


def step_of(text: str) -> int | None:
    """Returns the step in the file name of a checkpoint, or None for other names."""
    match = _NAME.fullmatch(text)
    return int(match[1]) if match else None


def save(folder: Path, step: int, facts: Json, arrays: Arrays, *, keep: int) -> None:
    """Saves a checkpoint; keeps only the last `keep` valid ones, and renames damaged ones."""
    head = json.dumps(vars(_Head(_VERSION, step, time.time(), facts))).encode()
    stream = io.BytesIO()
    # An uncompressed zip: each array has a CRC, which is verified when it is read.
    np.savez(stream, **{_FACTS: np.frombuffer(head, np.uint8)}, **arrays)  # type: ignore[arg-type]
    store = LocalStore(folder)
    try:
        store.write(name(step), stream.getvalue())
    except IncompleteError as error:
        raise IncompleteError(
            f"{folder / name(step)}: the disk is full ({error.__cause__}). Earlier checkpoints are "
            "kept. Free some space, then run the same command again to resume from the last one."
        ) from error
    sound = 0
    for saved in reversed(steps(folder)):
        path = folder / name(saved)
        if sound == keep:
            store.remove(path.name)
        elif saved == step or _is_sound(path, [np.shape(array) for array in arrays.values()]):
            sound += 1


def steps(folder: Path) -> list[int]:
    """Returns the steps that have checkpoints, sorted."""
    saved = (step_of(file) for file in LocalStore(folder).names(""))
    return sorted(step for step in saved if step is not None)


def clear(folder: Path) -> None:
    """Removes all checkpoints, including damaged ones."""
    store = LocalStore(folder)
    for file in store.names(""):
        if step_of(file.removesuffix(_DAMAGED)) is not None:
            store.remove(file)


def load_latest(
    folder: Path,
    shapes: Shapes | None = None,
    accept: Callable[[Json], object] = lambda _: None,
) -> Checkpoint | None:
    """Returns the last valid checkpoint, or None if there is none; for the arguments, see `load`.

    Reports damaged checkpoints and renames them, unless all checkpoints are damaged.
    """
    damaged: list[Path] = []
    for step in reversed(steps(folder)):
        path = folder / name(step)
        try:
            latest = load(path, shapes, accept)
        except DataDamagedError as error:
            terminal.say(f"{error} Trying the previous checkpoint.")
            damaged.append(path)
            continue
        for path in damaged:
            _set_aside(path)
        return latest
    if damaged:
        raise DataDamagedError(
            f"{folder}: all checkpoints ({len(damaged):,}) are damaged, see above. "
            "Remove them to start from scratch."
        )
    return None


def load(
    path: Path,
    shapes: Shapes | None = None,
    accept: Callable[[Json], object] = lambda _: None,
) -> Checkpoint:
    """Reads a checkpoint from a file.

    If `shapes` is given, the first arrays must have these shapes, and later arrays are not read. It
    may be a function that returns the shapes for the facts and the headers of all arrays.
    `accept` is called with `Checkpoint.facts` before any array is read. It must raise ValueError
    if the facts are malformed, and a different error if they belong to a different run.
    """
    with _damage(path):
        with _opened(path) as stream, zipfile.ZipFile(stream) as file:
            _refuse_sparse(stream)
            members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
            head = _head(path, _array(file, members.pop(_FACTS), most=_HEAD_BYTES).tobytes())
            if not 0 <= head.saved_at < _LAST_TIME:
                raise ValueError(f"impossible save time: {head.saved_at}")
            if head.step != step_of(path.name):
                raise ValueError(f"its content is from step {head.step:,}")
            accept(head.facts)
            if callable(shapes):
                shapes = shapes(
                    head.facts, {name: _header(file, members[name]) for name in members}
                )
            if shapes is not None and len(members) < len(shapes):
                raise ValueError(f"it has {len(members)} arrays, expected {len(shapes)}")
            pairs = zip(members.items(), repeat(None) if shapes is None else shapes, strict=False)
            arrays = {name: _array(file, member, shape) for (name, member), shape in pairs}
        return Checkpoint(**vars(head), arrays=arrays)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise DataDamagedError(f"{path}: damaged checkpoint ({error}).") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error


def _refuse_sparse(stream: _InPieces) -> None:
    """Raises ValueError if a file claims far more bytes than it occupies on the disk.

    Some file systems compress, and others report no blocks. Weights do not compress well.
    """
    status = os.fstat(stream.fileno())
    stored = 512 * status.st_blocks
    if stored and status.st_size > max(_SPARSE_BYTES, _SPARSE_RATIO * stored):
        raise ValueError(f"sparse: {status.st_size:,} bytes, of which {stored:,} are on the disk")


def _head(path: Path, read: bytes) -> _Head:
    content = strict_json.loads(read)
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version != _VERSION:
        raise UsageError(
            f"{path}: a different version of imagenet-prep wrote this checkpoint: its format is "
            f"{version}, expected {_VERSION}. Nothing was changed. Resume with that version, use "
            "a different --log-dir, or start from scratch with --clear-log."
        )
    return strict_json.parse(_Head, content)


class _InPieces(io.FileIO):
    """Limits the size of one read; zipfile alone would read as many bytes as the zip claims."""

    def read(self, size: int | None = -1) -> bytes:
        """Reads at most 1 MiB, even if `size` is None; raises BadZipFile if there is more."""
        most = _PIECE_BYTES + 1
        data = super().read(most if size is None or size < 0 else min(size, most)) or b""
        if len(data) > _PIECE_BYTES:
            raise zipfile.BadZipFile(f"its list of arrays has more than {_PIECE_BYTES:,} bytes")
        return data


def _opened(path: Path) -> _InPieces:
    try:
        return _InPieces(LocalStore(path.parent).open(path.name, os.O_RDONLY))
    except StoreError as error:
        raise DataDamagedError(f"{path}: damaged checkpoint (not a regular file).") from error


def _array(
    file: zipfile.ZipFile, member: zipfile.ZipInfo, shape: Shape | None = None, most: int = 1 << 63
) -> npt.NDArray[Any]:
    """Returns an array after checking every size and type that the file claims for it."""
    with _opened_array(file, member, most) as (header, opened):
        is_expected = shape is None or (header.shape == shape and header.dtype.kind == "f")
        if not is_expected:
            raise ValueError(
                f"{member.filename!r} is {header.dtype} {header.shape}, expected floats {shape}"
            )
        data = bytearray()
        while piece := opened.read(_PIECE_BYTES):  # zipfile verifies the CRC after the last byte
            data += piece
    return np.ndarray(header.shape, header.dtype, data, order=header.order)


def _header(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    with _opened_array(file, member) as (header, _):
        return header


@contextlib.contextmanager
def _opened_array(
    file: zipfile.ZipFile, member: zipfile.ZipInfo, most: int = 1 << 63
) -> Iterator[tuple[Header, IO[bytes]]]:
    """Yields the checked header of an array, and the file at its first value."""
    # Flag bit 11 marks UTF-8 names. A negative offset would be reported as a disk error.
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & ~0x800:
        raise ValueError(f"{member.filename!r} is compressed or encrypted")
    if member.header_offset < 0 or member.file_size > most:
        raise ValueError(f"{member.filename!r} has {member.file_size:,} bytes")
    with file.open(member) as opened:
        begin = opened.read(len(_NPY) + 2)
        num_bytes = min(int.from_bytes(begin[len(_NPY) :], "little"), _NPY_HEADER_BYTES)
        header = _NPY_HEADER.fullmatch(opened.read(num_bytes).decode("latin-1"))
        if not begin.startswith(_NPY) or header is None:
            raise ValueError(f"{member.filename!r} is not an array of numbers")
        dtype = np.dtype(header[1])
        stored = tuple(int(length) for length in header[3].split(",") if length.strip())
        size = member.file_size - len(begin) - num_bytes
        expected = math.prod(stored) * dtype.itemsize
        if size != expected:
            raise ValueError(f"{member.filename!r} has {size:,} bytes, expected {expected:,}")
        yield Header(dtype, stored, "F" if header[2] == "True" else "C", size), opened


def _is_sound(path: Path, shapes: Sequence[Shape]) -> bool:
    try:
        load(path, shapes)
    except (DataDamagedError, StoreError) as error:
        terminal.say(error)
        if isinstance(error, DataDamagedError):  # an unreadable file keeps its name
            _set_aside(path)
        return False
    return True


def _set_aside(path: Path) -> None:
    aside = path.name + _DAMAGED
    LocalStore(path.parent).rename(path.name, aside)
    terminal.say(f"{path}: set aside as {aside}.")
