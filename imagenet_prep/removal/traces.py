"""Finds the places where images of a dataset are stored, shown or used.

`TraceSearch` looks through folders and buckets for datasets with these images, and for everything
that was made from these datasets: replicas, exports, pages, caches and training runs. It reads the
notes that every command leaves, such as the digest of the dataset in export.json.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    some,
)
from imagenet_prep.dataset import column, keys, schema
from imagenet_prep.exporting import examples
from imagenet_prep.matching import find
from imagenet_prep.read import receipt
from imagenet_prep.removal.folders import (
    Folder,
    SearchedFolders,
    hard_links_elsewhere,
    is_below,
    real,
)
from imagenet_prep.removal.naming_files import (
    ExportNote,
    delimiter_in,
    export_note,
    fields_in,
    lines_in,
    page_text,
    sums_in,
)
from imagenet_prep.removal.traced_images import TracedImage, images_with, shards_of
from imagenet_prep.reporting import facts
from imagenet_prep.storage import columns, dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.ledger import find_source
from imagenet_prep.storage.remote import hashed
from imagenet_prep.storage.store import open_readable, same_place
from imagenet_prep.trainer import checkpoint

# Kinds of places.
DATASET = "dataset"
PARENT = "parent"
VERSION = "version"  # a later version, or a different version with a common parent
REPLICA = "replica"
OTHER = "other dataset"
EXPORT = "export"
PAGE = "page"
LIST = "list"
CACHE = "cache"
RUN = "run"
FILE = "file"

# Folders of `.work` that list images or have their hashes, by the start of their names.
_LISTS = ("plan", "index", "hashes")
# Files that pack many images: archives, files of the Hub, of MXNet and of TensorFlow.
_PACKED = re.compile(
    r".*(\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|lz4|z)|zip|7z|rar|parquet|arrow|rec|tfrecords?)|-\d{5}-of-\d{5})",
    re.IGNORECASE | re.DOTALL,
)
# The format of an export with one file per image.
_IMAGE_FOLDER = "folder"


class Trace(NamedTuple):
    """A place with a forgotten image: its kind, what it has, and what to do there."""

    place: str
    kind: str
    content: str
    action: str


class Holder(NamedTuple):
    """A dataset that has some of the images, or names some in its quarantine.jsonl."""

    dataset: Dataset
    kind: str
    images: list[TracedImage]
    named: list[str]  # lines for a list of keys

    @property
    def digest(self) -> str:
        """The digest of its manifest."""
        return self.dataset.manifest.digest


class _FoundExport(NamedTuple):
    """An export that the search knows.

    Attributes:
      trace: its trace if it has the images.
      files: the places of its files that need not be named on their own.
      may_have: whether it may have images of which the bytes are not known.
    """

    trace: Trace | None
    files: list[str]
    may_have: bool


@dataclass
class TraceSearch:
    """One search for traces of images of `dataset`.

    Attributes:
      sizes: the size of each known file of the images, by sha256; the search adds files.
      out: the location of the new version, for messages.
      compare: called with each different dataset that is found; may add to `sizes`.
      lines: images, as (split, key), that the quarantine.jsonl of the dataset names, or that it
        has forgotten.
      problems: sentences about what could not be searched.
    """

    dataset: Dataset
    sizes: dict[str, int]
    places: Sequence[str]
    out: str
    compare: Callable[[Dataset], None] = lambda _: None
    lines: Collection[tuple[str, str]] = ()
    holders: list[Holder] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _packed_sources: set[str] = field(default_factory=set)  # archives that notes name
    _datasets: list[Dataset] = field(default_factory=list)  # in the searched folders
    _searched: list[Dataset] = field(default_factory=list)  # those whose tables are readable
    _caches: list[str] = field(default_factory=list)  # places of caches with the images
    # Those of `lines` of which the bytes are known.
    _located: set[tuple[str, str]] = field(default_factory=set)
    _newest: str = ""

    @cached_property
    def _folders(self) -> SearchedFolders:
        return SearchedFolders(self._problems_of)

    @property
    def not_opened(self) -> list[str]:
        """The archives and other packed files in the searched folders, which are not read."""
        packed = {*self._packed_sources}
        packed |= {where for (where, _), export in self._exports.items() if export.may_have}
        known = {
            dataset.where: {shard.name for shard in dataset.manifest.shards}
            for dataset in self._datasets
        }
        for folder in self._folders.by_place.values():
            # A run that adds a split to a dataset publishes the shards before the manifest.
            names = folder.files.keys() - known.get(folder.where, ())
            if self._is_in_known_cache(folder):
                names = {name for name in names if not schema.looks_like_shard(name)}
            packed |= {folder.store.where(name) for name in names if _PACKED.fullmatch(name)}
            if not folder.is_dataset:
                packed |= {folder.store.where(f"{schema.WORK}/{name}") for name in folder.hashes()}
        packed -= self._exported
        return sorted(packed)

    def find(self) -> None:
        """Finds the datasets with the images, and all files of the images."""
        num_known = 0
        pending = [self.dataset.where, *self.places]
        # A dataset may tell the hash of a further version of an image, such as its source file.
        while pending or len(self.sizes) > num_known:
            num_known = len(self.sizes)
            for place in pending:
                self._find_datasets(place)
            self._find_holders()
            pending = self._noted_folders()

    def traces(self, newest: str) -> list[Trace]:
        """Returns all traces, in the order of their kinds and places.

        `newest` is the location of the version without the images, for messages.
        """
        self._newest = newest
        traces = [self._of_holder(holder) for holder in self.holders]
        traces += self._missing_parents()
        traces += self._noted_replicas()
        for folder in self._folders.by_place.values():
            with self._problems_of(folder.where):
                traces += self._in_folder(folder)
        self.problems += self._folders.links_out()
        self.problems += hard_links_elsewhere(self._files_to_delete(traces))
        unique = {(trace.kind, trace.place): trace for trace in traces}
        return [*unique.values()]

    @contextlib.contextmanager
    def _problems_of(self, where: str) -> Iterator[None]:
        try:
            yield
        except ImagenetPrepError as error:
            problem = str(error)
            if where not in problem:
                problem = f"{where}: {problem}"
            if problem not in self.problems:
                self.problems.append(problem)

    @cached_property
    def _ancestors(self) -> set[str]:
        return {step.parent for step in self.dataset.manifest.settings.amendments}

    def _kind_of(self, dataset: Dataset) -> str:
        digest = dataset.manifest.digest
        ours = self.dataset.manifest.digest
        if same_place(dataset.where, self.dataset.where):
            return DATASET
        if digest == ours:
            return REPLICA
        if digest in self._ancestors:
            is_second = any(h.kind == PARENT and h.digest == digest for h in self.holders)
            return REPLICA if is_second or self._is_noted(dataset) else PARENT
        theirs = {step.parent for step in dataset.manifest.settings.amendments}
        return VERSION if theirs & {ours, *self._ancestors} else OTHER

    def _is_noted(self, dataset: Dataset) -> bool:
        """Returns whether a note of one of the datasets names this one as a replica."""
        notes = (facts.replicas_of(each.store) for each in self._datasets)
        places = (note.where for note in itertools.chain.from_iterable(notes))
        return any(same_place(dataset.where, place) for place in places)

    @cached_property
    def _images_of(self) -> dict[str, list[TracedImage]]:
        """The images by the digest of a dataset; a parent that was not found whole has ours too."""
        images_of = {h.digest: self._stored_in(h.digest) for h in self.holders}
        ours = {image.line: image for image in self._ours}
        for digest in sorted(self._ancestors - self._whole):
            images_of[digest] = ours | self._stored_in(digest)
        return {digest: [*images.values()] for digest, images in images_of.items()}

    def _stored_in(self, digest: str) -> dict[str, TracedImage]:
        """Returns the images in all copies and parts of a dataset that were found, by line."""
        stored: dict[str, TracedImage] = {}
        for holder in self.holders:
            if holder.digest == digest:
                stored.update((image.line, image) for image in holder.images)
        return stored

    @property
    def _found(self) -> set[str]:
        """The digests of the datasets of which at least a part was found."""
        return {dataset.manifest.digest for dataset in self._datasets}

    @cached_property
    def _whole(self) -> set[str]:
        """The digests of the datasets of which all shards were searched: all images are known."""
        whole: set[str] = set()
        for manifest in (dataset.manifest for dataset in self._searched):
            if shards_of(manifest.digest, self._searched) == {s.name for s in manifest.shards}:
                whole.add(manifest.digest)
        return whole

    @cached_property
    def _lines_of(self) -> dict[str, set[str]]:
        """The images and named images by the digest of a dataset, as lines of a list of keys."""
        lines_of = {
            digest: {image.line for image in images} for digest, images in self._images_of.items()
        }
        for holder in self.holders:
            lines_of[holder.digest].update(holder.named)
        # Parents may have the images that this dataset has forgotten.
        asked = {keys.with_split(*image) for image in self.lines}
        for digest in self._ancestors | {self.dataset.manifest.digest}:
            lines_of.setdefault(digest, set()).update(asked)
        return lines_of

    @cached_property
    def _lines_by_form(self) -> dict[str, set[str]]:
        """The lines in `_lines_of` by each form in which lists name images: SPLIT:KEY and KEY."""
        by_form: dict[str, set[str]] = {}
        for line in itertools.chain.from_iterable(self._lines_of.values()):
            for form in (line, keys.split_and_key(line)[1]):
                by_form.setdefault(form, set()).add(line)
        return by_form

    @property
    def _ours(self) -> list[TracedImage]:
        return next((holder.images for holder in self.holders if holder.kind == DATASET), [])

    def _named(self, images: Sequence[TracedImage]) -> str:
        return self._in_words({image.line for image in images})

    def _in_words(self, lines: set[str]) -> str:
        """Returns lines of images in words; briefly if they are all images of the dataset."""
        if len(lines) > 1 and lines == {image.line for image in self._ours}:
            return f"all {len(lines):,} images"
        return some(sorted(lines))

    def _find_datasets(self, place: str) -> None:
        """Adds the folders of a place, and the datasets in them."""
        for folder in self._folders.add(place):
            if folder.is_dataset:
                with self._problems_of(folder.where):
                    self._add_dataset(Dataset.at(open_readable(folder.where)))

    def _add_dataset(self, dataset: Dataset) -> None:
        if not dataset.manifest.has_samples:
            raise DataDamagedError(
                f"{dataset.where}: cannot be searched, because it has no tables of samples. Run "
                f"imagenet-prep adopt {shlex.quote(dataset.where)}"
            )
        digest = dataset.manifest.digest
        # Different parts of a dataset have different images.
        seen = shards_of(digest, self._datasets)
        self._datasets.append(dataset)
        has_new_shards = shards_of(digest, self._datasets) != seen
        is_new = digest != self.dataset.manifest.digest and has_new_shards
        if self.lines and self._kind_of(dataset) != OTHER:
            self._add_files_of_lines(dataset)
        if is_new:
            self.compare(dataset)

    def _add_files_of_lines(self, dataset: Dataset) -> None:
        """Adds the files of images that a version has forgotten, if a different version has them.

        The version that has forgotten an image only knows its key.
        """
        for split in dataset.manifest.splits:
            # A part of a dataset lacks the tables of the other parts.
            for sample in itertools.chain.from_iterable(dataset.rows(dataset.shards(split))):
                if (split, sample.key) in self.lines:
                    self.sizes.update(sample.sizes)
                    self._located.add((split, sample.key))

    def _find_holders(self) -> None:
        """Searches the tables of all datasets for the hashes that are known by now."""
        self.holders = []
        self._searched = []
        for dataset in self._datasets:
            with self._problems_of(dataset.where):
                self._add_holder(dataset)

    def _add_holder(self, dataset: Dataset) -> None:
        kind = self._kind_of(dataset)
        images = images_with(dataset, self.sizes)
        named = [*self._named_lines(dataset, kind)]
        if images or named:
            self.holders.append(Holder(dataset, kind, images, named))
            for image in images:
                self.sizes.update(image.sizes)
        self._searched.append(dataset)

    def _named_lines(self, dataset: Dataset, kind: str) -> Iterator[str]:
        """Yields the images that the quarantine.jsonl of a dataset names."""
        for line in dataset_store.incidents(dataset.store, dataset.manifest):
            # Another dataset may have a different image with this key.
            is_same = kind != OTHER and (line.split, line.key) in self.lines
            if is_same and line.sizes:
                self._located.add((line.split, line.key))
            if not line.salt and (is_same or line.sizes.keys() & self.sizes.keys()):
                yield keys.with_split(line.split, line.key)

    def _noted_folders(self) -> list[str]:
        """Returns new local folders that notes name: replicas of the holders, and the source."""
        paths: list[Path] = []
        for holder in self.holders:
            # Another user may have written the note, so only a dataset is searched.
            notes = facts.replicas_of(holder.dataset.store)
            replicas = (Path(note.where) for note in notes if note.where.startswith("/"))
            paths += (path for path in replicas if (path / schema.MANIFEST).is_file())
        digests = {self.dataset.manifest.digest, *self._ancestors}
        for origin in filter(None, map(find_source, sorted(digests))):
            for source in self.dataset.manifest.sources:
                path = Path(origin.root, source.name)
                if path.is_dir():
                    paths.append(path)
                elif path.is_file() and _PACKED.fullmatch(path.name):
                    self._packed_sources.add(str(path))
        return [str(path) for path in paths if not self._folders.has(str(path))]

    def _of_holder(self, holder: Holder) -> Trace:
        dataset = holder.dataset
        content = self._named(holder.images)
        has = []
        if holder.named and holder.images:
            has.append(schema.QUARANTINE)
        elif holder.named:
            content = f"{schema.QUARANTINE} names {some(holder.named)}"
        has += [f"column {name}" for name in columns.names(dataset.store)]
        with self._problems_of(dataset.where):
            store = dataset.store
            names = {*store.list_folder(schema.WORK)} - {*store.names(schema.WORK)}
            work = [
                name
                for name in sorted(names)
                if name.startswith(_LISTS) or store.names(f"{schema.WORK}/{name}/receipts")
            ]
            has += [f"{schema.WORK}/{name}" for name in work]
        if has:
            content += f"; also {', '.join(has)}"
        where = dataset.where
        delete = f"delete {where}"
        if where.startswith("s3://"):
            delete = f"delete all objects below {where}"
        others = dataset_store.unrelated_names(dataset.store)
        if others:
            delete = (
                f"delete the dataset in {where}, but keep the other files there: {some(others)}"
            )
        is_part = dataset.placement.nodes > 1
        whole = "the complete dataset of this part" if is_part else "it"
        replicate = self._replicate(where, holder.digest, dataset.placement.flags)
        action = {
            DATASET: f"made again without it: {self._newest}. Then {delete}",
            REPLICA: f"{replicate}; or {delete}",
            PARENT: f"{delete}: its shards keep the image",
            VERSION: f"run imagenet-prep forget on {whole}; then {delete}",
            OTHER: f"run imagenet-prep forget on {whole}; then {delete}",
        }[holder.kind]
        return Trace(where, holder.kind, content, action)

    def _replicate(self, to: str, digest: str, flags: Sequence[str]) -> str:
        """Returns how to replace a replica of the dataset with this digest, with further flags."""
        successor = self._successor(digest)
        if successor != self._newest:
            return f"replace it by {successor}: replicate --replace"
        words = ["imagenet-prep", "replicate", self._newest, "--to", to, "--replace", *flags]
        return shlex.join(words)

    def _successor(self, digest: str) -> str:
        """Returns the version without the images that replaces the one with this digest."""
        if digest in {self.dataset.manifest.digest, *self._ancestors}:
            return self._newest
        found = [each for each in self._datasets if each.manifest.digest == digest]
        # A new version is made from the complete dataset.
        first, *_ = sorted(found, key=lambda each: each.placement.nodes)
        part = "the complete dataset of " if first.placement.nodes > 1 else ""
        return f"the new version of {part}{first.where}"

    def _missing_parents(self) -> Iterator[Trace]:
        for digest in sorted(self._ancestors - self._whole):
            content = "only a part was found" if digest in self._found else "not found"
            action = "if it still exists, delete it"
            yield Trace(f"manifest {digest[:16]}", PARENT, f"{content}; may have it", action)

    def _noted_replicas(self) -> Iterator[Trace]:
        """Yields replicas on hosts and in buckets that notes name and the search did not see."""
        for holder in self.holders:
            for note in facts.replicas_of(holder.dataset.store):
                where = note.where
                is_deleted = where.startswith("/") and not Path(where).is_dir()
                is_known = note.digest in self._images_of
                if is_deleted or real(where) in self._folders.by_place or not is_known:
                    continue
                content = f"copied from {holder.dataset.where} on {note.when}; not looked at"
                to = where
                flags: list[str] = []
                if not is_remote(where) and not where.startswith("/"):
                    to = f"hosts:HOSTSFILE:{where.partition(':')[2]}"
                    flags = column.parts_on_hosts(note.copies)
                action = f"{self._replicate(to, note.digest, flags)}; or delete it"
                yield Trace(where, REPLICA, content, action)

    def _in_folder(self, folder: Folder) -> Iterator[Trace]:
        files = folder.files
        is_export = any(name.endswith(schema.EXPORT) for name in files)
        for name in files:
            export = self._exports.get((folder.where, name))
            if export is not None and export.trace is not None:
                yield export.trace
            elif name.endswith(".html"):
                yield from self._of_page(folder, name)
            elif name.lower().endswith((".csv", ".txt")):
                yield from self._of_list(folder, name)
        self._require_finished(folder)
        yield from self._of_files(folder)
        if folder.is_dataset:
            return
        if schema.TRAINING_LOG in files:
            yield from self._of_run(folder)
        elif not is_export:
            yield from self._of_cache(folder)

    def _require_finished(self, folder: Folder) -> None:
        """Raises IncompleteError if a command has left images in `.work`."""
        holders = {holder.dataset.where for holder in self.holders}
        if folder.where in holders or schema.TRAINING_LOG in folder.files:
            return  # it is deleted as a whole, or has no images
        left = folder.unfinished()
        if left and not same_place(folder.where, self.out):
            raise IncompleteError(
                f"{folder.where}: has an unfinished run, which cannot be searched ({some(left)}). "
                f"Finish it, or delete {'these' if folder.is_dataset else 'the folder'}."
            )

    @cached_property
    def _exports(self) -> dict[tuple[str, str], _FoundExport]:
        """The exports of the datasets that were found, and of parents, by folder and name.

        The contents of all other exports are unknown, so they are ordinary folders.
        """
        datasets = self._found | self._ancestors
        exports: dict[tuple[str, str], _FoundExport] = {}
        for where, folder in self._folders.by_place.items():
            for name in folder.files:
                if name.endswith(schema.EXPORT):
                    with self._problems_of(where):
                        note = export_note(folder.store, name)
                        if note is not None and note.dataset in datasets:
                            exports[where, name] = self._of_export(folder, name, note)
        return exports

    @cached_property
    def _exported(self) -> set[str]:
        """The places of the files of all exports that need not be named on their own."""
        return {place for export in self._exports.values() for place in export.files}

    def _of_export(self, folder: Folder, name: str, note: ExportNote) -> _FoundExport:
        images = [i for i in self._images_of.get(note.dataset, ()) if i.split in note.splits]
        called = name.removesuffix(schema.EXPORT)
        found: list[str] = []
        packed: list[str] = []
        for sha256, file in sums_in(folder.store, called + examples.SUMS):
            # Only the files of images have these hashes, not those that pack many images.
            if sha256 in self.sizes:
                found.append(file)
            elif _PACKED.fullmatch(file):
                packed.append(file)
        if not found and (not images or note.to == _IMAGE_FOLDER):
            return self._of_other_export(folder, note, packed)
        what = f"{note.to}: {self._named(images) or 'the same bytes'}"
        if found:
            what += f" ({some(found)})"
        elif note.chosen:
            what += ", unless its filters excluded it"
        # Several exports may share a folder.
        place = f"{folder.where}/{called}*" if called else folder.where
        action = f"export {self._successor(note.dataset)} to a new folder; then delete {place}"
        files = [*map(folder.store.where, [*found, *packed])]
        return _FoundExport(Trace(place, EXPORT, what, action), files, may_have=False)

    def _of_other_export(
        self, folder: Folder, note: ExportNote, packed: Iterable[str]
    ) -> _FoundExport:
        """Returns an export that has no file of the images, as far as they are known."""
        if note.dataset in self._whole:
            return _FoundExport(None, [*map(folder.store.where, packed)], may_have=False)
        splits = {split for split, _ in {*self.lines} - self._located}
        may_have = note.to == _IMAGE_FOLDER and not splits.isdisjoint(note.splits)
        return _FoundExport(None, [], may_have)

    def _of_page(self, folder: Folder, name: str) -> Iterator[Trace]:
        text = page_text(folder, name)
        shown: set[str] = set()
        successors: list[str] = []
        for digest, lines in self._lines_of.items():
            if digest[:16] not in text:
                continue
            there = {
                line for line in lines if f">{html.escape(keys.split_and_key(line)[1])}<" in text
            }
            images = self._images_of.get(digest, ())
            there |= {image.line for image in images if image.record_on_pages in text}
            if there:
                shown |= there
                successors.append(self._successor(digest))
        if shown:
            where = folder.store.where(name)
            made_from = " and ".join(dict.fromkeys(successors))
            action = f"delete {where}; make it again from {made_from}"
            yield Trace(where, PAGE, f"shows {self._in_words(shown)}", action)

    def _of_list(self, folder: Folder, name: str) -> Iterator[Trace]:
        if self._is_in_listed_cache(folder):
            return
        delimiter = delimiter_in(folder, name)
        if delimiter is not None:
            values = fields_in(folder, name, delimiter)
        elif name.startswith("exclude-") and find.PAIRS in folder.files:
            values = lines_in(folder, name)
        else:
            return
        named: set[str] = set()
        for value in values:
            named |= self._lines_by_form.get(value, set())
        if named:
            where = folder.store.where(name)
            yield Trace(where, LIST, f"names {self._in_words(named)}", f"delete {where}")

    def _of_cache(self, folder: Folder) -> Iterator[Trace]:
        """Yields a reader's cache, whose folder is named after the digest of the dataset."""
        name = folder.where.rpartition("/")[2]
        for digest, images in self._images_of.items():
            if name != digest[:16]:
                continue
            files = [*self._files_of_shards(folder, {image.shard for image in images})]
            if files:
                content = f"{self._named(images)} in {some(sorted(files))}"
                self._caches.append(folder.where)
                yield Trace(folder.where, CACHE, content, f"delete {folder.where}")

    def _is_in_known_cache(self, folder: Folder) -> bool:
        """Returns whether a folder is in a cache that is listed, or that is known to be free."""
        # The folder of a reader's cache is named after its dataset.
        free = {digest[:16] for digest in self._whole}
        return self._is_in_listed_cache(folder) or not free.isdisjoint(folder.where.split("/"))

    def _is_in_listed_cache(self, folder: Folder) -> bool:
        return any(is_below(folder.where, place) for place in self._caches)

    def _files_of_shards(self, cache: Folder, shards: Collection[str]) -> Iterator[str]:
        """Yields the cached shards, and their tables of samples and files of columns."""
        for where, folder in self._folders.by_place.items():
            below = where.removeprefix(cache.where).strip("/")
            # The files of an index only have sizes.
            if is_below(where, cache.where) and below != schema.INDEX:
                yield from (
                    f"{below}/{name}".lstrip("/")
                    for name in folder.files
                    if name.partition(".")[0] in shards
                )

    def _of_run(self, folder: Folder) -> Iterator[Trace]:
        local = folder.store.as_folder
        if local is None:
            raise DataDamagedError(
                f"{folder.where}: a training run in a bucket cannot be searched. Copy it to a "
                "folder, and search there."
            )
        log = local.path(schema.TRAINING_LOG)
        segments = receipt.segments_of(log)
        digest = segments[-1].state.dataset
        holder = next((holder for holder in self.holders if holder.digest == digest), None)
        traces: list[Trace] = []
        if holder is not None:
            used = receipt.receipt_for(holder.dataset, segments, log)
            traces += self._of_uses(folder, digest, used)
        yield from traces
        if not traces and digest in self._ancestors - self._whole:
            content = f"used a parent that was not found (manifest {digest[:16]})"
            yield Trace(folder.where, RUN, content, f"train again on {self._newest}")

    def _of_uses(self, folder: Folder, digest: str, used: receipt.Receipt) -> Iterator[Trace]:
        firsts: list[int] = []
        named: list[TracedImage] = []
        for image in self._stored_in(digest).values():
            if image.split == used.split:
                kept = (u for u in used.uses(image.number) if u.weights != receipt.DISCARDED)
                use = next(kept, None)
                if use is not None:
                    firsts.append(use.step)
                    named.append(image)
        if not firsts:
            return
        first = min(firsts)
        # The checkpoint of step N has the weights before step N.
        steps = checkpoint.steps(Path(folder.where))
        seen = [checkpoint.name(step) for step in steps if step > first]
        unseen = [checkpoint.name(step) for step in steps if step <= first]
        content = f"used {self._named(named)}, first in step {first:,}"
        content += f"; seen by {some(seen)}" if seen else "; no checkpoint has seen it"
        action = f"train again on {self._successor(digest)}"
        action += f"; delete {some(seen)} and the models exported from them" if seen else ""
        if unseen:
            action += f"; {unseen[-1]} has not seen it, and may be kept"
        yield Trace(folder.where, RUN, content, action)

    def _of_files(self, folder: Folder) -> Iterator[Trace]:
        """Yields files with the bytes of an image, such as the photograph in the source."""
        for name, stat in folder.all_files().items():
            if stat.size in self.sizes.values() and folder.store.where(name) not in self._exported:
                digest = hashlib.sha256()
                with folder.store.open_file(name, stat) as opened:
                    for _ in hashed(opened, [digest]):
                        pass
                if digest.hexdigest() in self.sizes:
                    yield _of_file(folder.store.where(name))

    def _files_to_delete(self, traces: Iterable[Trace]) -> Iterator[Path]:
        """Yields the local shards with an image, and the files with the bytes of one."""
        for holder in self.holders:
            local = holder.dataset.store.as_folder
            if local is not None:
                yield from (local.path(shard) for shard in {i.shard for i in holder.images})
        for trace in traces:
            if trace.kind == FILE and not is_remote(trace.place):
                yield Path(trace.place)


def _of_file(where: str) -> Trace:
    """Returns the trace of a file with the bytes of an image, or of a link to it."""
    target = real(where)
    # A link may have links in front of it, too, but only its own place is not real.
    if is_remote(where) or not Path(where).is_symlink():
        return Trace(where, FILE, "the same bytes", f"delete {where}")
    return Trace(target, FILE, f"the same bytes; {where} links to it", f"delete {target}, {where}")
