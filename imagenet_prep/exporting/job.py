"""Runs an export: divides the examples into parts, writes each, and then writes export.json."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep import engine
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import RECORD_OVERHEAD_BYTES
from imagenet_prep.dataset.keys import is_derived
from imagenet_prep.exporting import examples
from imagenet_prep.exporting.examples import (
    Example,
    ExportPart,
    ExportSource,
    FilePiece,
    Format,
    Numbers,
    Written,
)
from imagenet_prep.read.selection import Choice
from imagenet_prep.storage.free_space import require_space
from imagenet_prep.storage.local_file import removed_on_failure
from imagenet_prep.storage.remote import hashed
from imagenet_prep.storage.store import Store

_README = "README.md"
_LICENCE = "# Images exported by imagenet-prep\n\nLicence of the images: {}\n"


@dataclass(frozen=True)
class PartExport:
    """Exports one part in a worker process; picklable."""

    source: ExportSource
    format: Format
    store: Store
    folder: str  # below `.work`, for the lists of finished parts
    tree: examples.Tree | None  # only for a local folder with one file per image

    def sums(self, part: ExportPart) -> str:
        """Returns the name of the list of a part's files and SHA-256 sums."""
        return f"{self.folder}/sums/{part.name}"

    def metadata(self, part: ExportPart) -> str:
        """Returns the name of the file with a part's lines of metadata."""
        return f"{self.folder}/metadata/{part.name}"

    def __call__(self, part: ExportPart) -> engine.Result[Written]:
        """Writes the files of a part; returns its receipt and the files to publish."""
        keys: dict[str, str] = {}
        metadata: list[bytes] = []
        pieces = self.format.pieces(part, self._examples(part, keys, metadata))
        if self.tree is not None:
            done = self.tree.write(pieces)
        elif self.format.file_an_image:
            done = examples.write_each(self.store.write, pieces)
        else:
            done = examples.write_few(self.store, pieces)
        with removed_on_failure(*(output.temporary for output in done.outputs)):
            lists = [FilePiece(self.sums(part), "".join(done.sums).encode())]
            lists += [FilePiece(self.metadata(part), line) for line in metadata]
            listed, *described = examples.write_few(self.store, lists).outputs
        written = Written(len(part.numbers), done.num_bytes, len(done.sums), done.sizes, keys)
        last = listed._replace(settle=done.settle)
        return engine.Result(written, (*done.outputs, *described, last))

    def _examples(
        self, part: ExportPart, keys: dict[str, str], metadata: list[bytes]
    ) -> Iterator[Example]:
        """Yields the examples of a part, and appends their lines of metadata, if there are any.

        Adds the keys that readers cannot derive to `keys`.
        """
        split = self.format.split_read(part.split)
        has_metadata = bool(self.format.metadata_name(part.split))
        for position, example in enumerate(self.source.read(part)):
            place, name = self.format.place_of(part, position, example)
            if place and not is_derived(example.key, split, example.wnid, name):
                keys[place] = example.key
            if has_metadata:
                metadata.append(self.format.metadata(part, example))
            yield example

    def publish_metadata(self, parts: Sequence[ExportPart]) -> examples.Files:
        """Joins and publishes the metadata of all parts of each split."""
        pieces = (
            FilePiece(name, chunk)
            for part in parts
            if (name := self.format.metadata_name(part.split))
            for chunk in self._stored(self.metadata(part))
        )
        done = examples.write_few(self.store, pieces)
        for output in done.outputs:
            self.store.publish(output.temporary, output.name, output.sha256 or "")
        return done

    def _stored(self, name: str) -> Iterator[bytes]:
        with self.store.open_file(name) as file:
            yield from hashed(file, ())


@dataclass(frozen=True)
class ExportJob:
    """One export, with all defaults filled in."""

    source: ExportSource
    splits: Sequence[str]
    choice: Choice
    to: str  # format name
    format: Format
    store: Store
    called: str  # file name prefix if `store` is shared with other files, else ""
    workers: engine.Workers
    quiet: bool

    def parts(self) -> list[ExportPart]:
        """Returns the parts to write; a split without selected examples has no parts."""
        splits = [self.source.split(split) for split in self.splits]
        chosen: list[Numbers] = [range(len(records)) for records in splits]
        if self.choice.filters():
            chosen = [*self.choice.numbers(splits)]
        parts = []
        for records, numbers in zip(splits, chosen, strict=True):
            ends = [len(records)]
            if not self.format.whole_splits:
                ends = [records.numbers_of(shard).stop for shard in range(len(records.shards))]
            cuts = [0, *(bisect.bisect_left(numbers, end) for end in ends)]
            groups = [numbers[a:b] for a, b in itertools.pairwise(cuts) if a < b]
            parts += [
                ExportPart(records.split, n, len(groups), group) for n, group in enumerate(groups)
            ]
        return parts

    def digest(self) -> str:
        """Returns a digest of the dataset, the selection and the format of this export."""
        dataset = self.source.dataset.manifest.digest
        request = [self.to, dataset, self.splits, self.choice.filters(), self.called]
        rows = self.source.rows_of(self.splits[0]) if self.splits else {}
        columns = [of_column.column.digest for of_column in rows.values()]
        return strict_json.digest([*request, self.format, *columns])

    def receipt(
        self, written: Mapping[str, Sequence[Written]], beside: int, sums: str, sha256: str
    ) -> Json:
        """Returns the content of export.json; `beside` is the total size of the small files."""
        splits = {
            split: {
                "examples": sum(part.examples for part in parts),
                "files": sum(part.files for part in parts),
                "bytes": sum(part.num_bytes for part in parts),
            }
            for split, parts in written.items()
        }
        totals = sum(map(Counter, splits.values()), Counter[str]())
        return {
            "request": self.digest(),
            "to": self.to,
            "dataset": self.source.dataset.manifest.digest,
            "chosen": self.choice.filters(),
            "splits": splits,
            **totals,
            "sums": sums,
            "sha256": sha256,
            "listed_bytes": totals["bytes"] + beside,
        }

    def finished(self) -> Json:
        """Returns the content of export.json; {} if it is missing or invalid."""
        name = self.called + schema.EXPORT
        with contextlib.suppress(ValueError, DataDamagedError):
            if self.store.size(name) is not None:
                content = strict_json.loads(self.store.read(name))
                return content if isinstance(content, dict) else {}
        return {}

    def is_complete(self, done: Json) -> bool:
        """Returns whether a finished export still has all its files and the same total size."""
        sums = self.called + examples.SUMS
        if done.get("request") != self.digest() or self.store.size(sums) is None:
            return False
        digest = hashlib.sha256()
        names = []
        with self.store.open_file(sums) as lines:
            for line in lines:
                digest.update(line)
                names.append(examples.name_in(line))
        if digest.hexdigest() != done.get("sha256"):
            return False
        sizes = self.store.sizes(names)
        return len(sizes) == len(names) and sum(sizes.values()) == done.get("listed_bytes")


def run(job: ExportJob) -> Json:
    """Exports the parts that are not finished; returns the content of export.json.

    A finished export has no receipts in `.work`. If one of its files is missing, all are rewritten.
    """
    parts = job.parts()
    store = job.store
    digest = job.digest()
    settled = job.format.settled(job.source, parts)
    mark = f"{schema.WORK}/{job.called}export"
    _refuse_others(job, mark, digest)
    parts_folder = f"{schema.WORK}/parts-{digest[:16]}"
    tree = None
    if job.format.file_an_image and (folder := store.as_folder):
        tree = examples.Tree(folder, f"{parts_folder}/made")
    work = PartExport(job.source, settled, store, parts_folder, tree)
    stage = engine.Stage("export", digest, store, work, Written)
    images = sum(len(part.numbers) for part in parts)
    with store.lock():
        _refuse_others(job, mark, digest)
        done = job.finished()
        if job.is_complete(done):
            _remove_work(store, mark, parts_folder, stage.folder)
            return done
        # Otherwise many files are there, which are kept or replaced.
        if not done and store.size(mark) is None:
            _require_space(job, parts)
        store.remove(job.called + schema.EXPORT)
        # Another run with different settings may have written the mark since the check above.
        if store.write_if_absent(mark, digest.encode()) != digest.encode():
            raise _others(store)
        if job.format.file_an_image:
            sums_of = {part.name: work.sums(part) for part in parts}
            finished = stage.receipts(sums_of).items()
            examples.forget_lost(
                store, tree, {sums_of[name]: r.content.sizes for name, r in finished}
            )
        receipts = engine.run(
            stage, parts, job.workers, title="export", images=images, quiet=job.quiet
        )
        if tree is not None:
            tree.show()
        elif store.as_folder:
            store.as_folder.settle()
        written: dict[str, list[Written]] = {}
        for part, receipt in zip(parts, receipts, strict=True):
            written.setdefault(part.split, []).append(receipt.content)
        lines = store.read_each(map(work.sums, parts), MOST_LIST_BYTES)
        metadata = work.publish_metadata(parts)
        lines = itertools.chain(lines, (line.encode() for line in metadata.sums))
        beside = job.format.beside(written) | _lists(job, written)
        beside_bytes = metadata.num_bytes + sum(map(len, beside.values()))
        for name, data in beside.items():
            store.write(name, data)
            line = examples.sum_line(name, hashlib.sha256(data).hexdigest())
            lines = itertools.chain(lines, [line.encode()])
        sums = job.called + examples.SUMS
        (output,) = examples.write_few(store, (FilePiece(sums, line) for line in lines)).outputs
        store.publish(output.temporary, sums, output.sha256)
        done = job.receipt(written, beside_bytes, sums, str(output.sha256))
        store.write(job.called + schema.EXPORT, strict_json.dumps(done))
        _remove_work(store, mark, parts_folder, stage.folder)
    return done


def _require_space(job: ExportJob, parts: Sequence[ExportPart]) -> None:
    """Raises StoreError if the images of a new export do not fit on the disk.

    All formats store the images as they are; what they add is not counted.
    """
    splits = job.source.dataset.manifest.splits
    most = sum(splits[split].num_bytes for split in {part.split for part in parts})
    # Do not read the indexes of all shards if the disk has space for the whole dataset.
    if job.store.as_folder is None or job.store.as_folder.free_bytes() >= most:
        return
    images = sum(len(part.numbers) for part in parts)
    needed = sum(job.source.split(part.split).num_bytes(part.numbers) for part in parts)
    needed = max(0, needed - images * RECORD_OVERHEAD_BYTES)
    why = f" for {counted(images, 'image')}"
    require_space(job.store, needed, why, "or choose a folder on a larger disk")


def _lists(job: ExportJob, written: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:
    """Returns the list of the keys that readers cannot derive, and the licence, if there are any.

    The keys are listed by the split that `prepare` reads, and by place.
    """
    keys: dict[str, dict[str, str]] = {}
    for split, parts in written.items():
        for part in parts:
            if part.keys:
                keys.setdefault(job.format.split_read(split), {}).update(part.keys)
    lists = {}
    if keys:
        lists[job.called + schema.EXPORT_KEYS] = strict_json.dumps(keys)
    licence = job.source.dataset.manifest.settings.licence
    if licence:
        lists[job.called + _README] = _LICENCE.format(licence).encode()
    return lists


def _remove_work(store: Store, mark: str, *folders: str) -> None:
    """Removes the work files of an export, `mark` last, so that a killed run can resume."""
    for folder in folders:
        store.remove_tree(folder)
    store.remove(mark)
    local = store.as_folder
    if local:
        local.remove_work()


def _refuse_others(job: ExportJob, mark: str, digest: str) -> None:
    """Raises UsageError if the folder contains anything that is not part of this export."""
    names = job.store.list_folder()
    done = job.finished()
    existing = done.get("request")
    ours = job.source.dataset.manifest.digest
    theirs = str(done.get("dataset", ours))
    if existing and theirs != ours:
        raise UsageError(
            f"{job.store.where()} has an export of the dataset {theirs[:16]}, perhaps an older "
            f"version; this one is {ours[:16]}. Choose a different folder, or delete the export "
            "first."
        )
    if schema.WORK in names and any(job.store.size(name) is not None for name in schema.BEGUN):
        raise UsageError(
            f"{job.store.where()} has an unfinished run of a different command. Finish it with its "
            "command, or choose a different folder."
        )
    if schema.WORK in names and job.store.size(mark) is not None:
        existing = job.store.read(mark).decode(errors="replace")
    if existing and existing != digest:
        raise _others(job.store)
    others = [name for name in names if name.startswith(job.called) and not name.startswith(".")]
    if others and not existing:
        raise UsageError(
            f"{job.store.where()} contains unrelated files: {some(others)}. If they are files of an"
            f" export, its {job.called}{schema.EXPORT} is missing. Choose an empty folder."
        )


def _others(store: Store) -> UsageError:
    return UsageError(
        f"{store.where()} has a different export, or one that was started with different flags or "
        "from a different dataset. Finish it with the original command or use a different folder."
    )
