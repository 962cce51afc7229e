"""Finds and writes the shards that an amend command changes.

Only tables of samples are read to find them. Unchanged records are copied byte for byte.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from imagenet_prep import engine
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.small_files import not_utf_8
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import example, keys, record_files, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList, Lookup
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.member import Incident, Member
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.preparation.additions import Additions
from imagenet_prep.preparation.tasks import WriteWork, excluded_record
from imagenet_prep.shards import plan
from imagenet_prep.shards.sorted_tables import equal_keys
from imagenet_prep.shards.writer import StoredRecord, WrittenShard
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.sources.source import MemberReader
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.remote import as_file, hashed


class ShardChange(NamedTuple):
    """The change of one shard: excluded images, new class indices by key, and images to add.

    `excluded` maps each key to the salt for its line, or to "" if the line names the image.
    """

    shard: Shard
    excluded: Mapping[str, str]
    relabelled: Mapping[str, int]
    added: tuple[Member, ...]

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name


class Relabels(NamedTuple):
    """The images to relabel: the list of their keys, and the new class index by line number."""

    listed: KeyList
    class_of: Mapping[int, int]

    def apply(self, add: Additions, splits: Collection[str]) -> Additions:
        """Returns images to add, with the new class of those in `splits` that the list names."""
        members = dict(add.members)
        for split in members.keys() & {*splits}:
            named = self.listed.named_in(split)
            members[split] = tuple(
                member._replace(class_index=self.class_of[named[member.key]])
                if member.key in named
                else member
                for member in members[split]
            )
        return replace(add, members=members)


@dataclass(frozen=True)
class ChangeRequest:
    """All requested changes: images to exclude, relabel or add.

    Attributes:
      salt: the images of `exclude` are forgotten, and their lines have this salt; "" if not.
      forgotten: further images to forget, as (split, key): they are not stored, but have a line in
        quarantine.jsonl.
    """

    exclude: KeyList | None = None
    relabel: Relabels | None = None
    add: Additions | None = None
    splits: tuple[str, ...] | None = None  # the lists are only for these splits; None for all
    salt: str = ""
    forgotten: frozenset[tuple[str, str]] = frozenset()

    def __post_init__(self) -> None:
        for listed in self.lists:
            _refuse(listed.path, listed.named_twice(), "a key that is already on an earlier line")
        for split in self.splits or schema.SPLITS:
            self._refuse_contradictions(split)

    def _refuse_contradictions(self, split: str) -> None:
        """Raises UsageError if two flags name the same image of a split."""
        if self.exclude and self.relabel:
            excluded = self.exclude.named_in(split)
            relabelled = self.relabel.listed
            twice = [n for key, n in relabelled.named_in(split).items() if key in excluded]
            _refuse(relabelled.path, twice, f"a key that is also in {self.exclude.path}")

    @property
    def lists(self) -> list[KeyList]:
        """The lists of keys to exclude and to relabel, if given."""
        lists = self.exclude, self.relabel and self.relabel.listed
        return [listed for listed in lists if listed]

    @property
    def narrowing(self) -> tuple[str, ...]:
        """The value of `splits`; () if it changes nothing, since every line names one of them."""
        chosen = self.splits or ()
        for listed in self.lists:
            for split, named in listed.by_split.items():
                if named and split not in chosen:
                    return chosen
        return ()


def read_relabels(path: str, classes: ClassList, *, allows_unknown: bool = False) -> Relabels:
    """Reads a CSV file with the header key,class; a class is a name, as of a folder, or an index.

    A semicolon or a tab may replace the comma, as in files of a spreadsheet. Keys are read exactly
    as they are, like the lines of `keys.read_list`.
    """
    try:
        text = keys.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(not_utf_8(path, error)) from None
    numbered: dict[str, int] = {}
    class_of: dict[int, int] = {}
    repeated: list[int] = []
    absent: dict[int, str] = {}
    try:
        for line, key, name in keys.rows_with_class(text):
            number = numbered.setdefault(key, line)
            if number != line:
                repeated.append(line)
            index = classes.index_of(name)
            if index is None:
                absent[line] = name
            else:
                class_of[number] = index
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}: {error}") from None
    problem = f"a class that is not among the dataset's {len(classes.wnids):,} classes"
    advice = ""
    if absent:
        # The advice names known classes, and not the word of the file, which may be a secret.
        advice = printable(f". {classes.advice(absent[min(absent)])}")
    _refuse(path, absent, problem, advice)
    if not numbered and not allows_unknown:
        raise UsageError(
            f"{path}: no key after the header. For a list that is applied repeatedly and may be "
            "empty, add --allow-unknown."
        )
    digest = strict_json.digest(sorted([key, class_of[number]] for key, number in numbered.items()))
    listed = KeyList(path, numbered, digest, repeated, allows_unknown=allows_unknown)
    return Relabels(listed, class_of)


def changes_of(request: ChangeRequest, dataset: Dataset, seed: int) -> list[ShardChange]:
    """Returns the change of each changed shard; `seed` decides the shard of each new image."""
    splits = dataset.manifest.splits
    chosen = [name for name in splits if request.splits is None or name in request.splits]

    def lookup_of(listed: KeyList | None) -> Lookup | None:
        return None if listed is None else Lookup(listed, splits, chosen)

    exclude = lookup_of(request.exclude)
    relabel = lookup_of(request.relabel and request.relabel.listed)
    changes: list[ShardChange] = []
    by_bytes = _named_by_bytes(exclude, dataset) if exclude else {}
    for name in splits:
        recognised = by_bytes.get(name, {}) if name in chosen else {}
        shard_changes = _changes_in(request, exclude, relabel, name, dataset, seed, recognised)
        changes += [change for change in shard_changes if any(change[1:])]
    for line in request.add.excluded if request.add else ():
        if exclude:
            exclude.lines(line.split, [line.key])
    for split, members in request.add.members.items() if request.add else ():
        if relabel:
            relabel.lines(split, [member.key for member in members])
    where = f"{' and '.join(splits)} of {dataset.where}"
    for lookup in (exclude, relabel):
        if lookup:
            lookup.check(where, _stored(dataset, request.add))
    return changes


def _stored(dataset: Dataset, add: Additions | None) -> Iterator[tuple[str, str]]:
    """Yields the split and key of each stored and each new image."""
    for name, split in dataset.manifest.splits.items():
        for _, key, _ in itertools.chain.from_iterable(dataset.heads(split.shards)):
            yield name, key
    for name, members in add.members.items() if add else ():
        for member in members:
            yield name, member.key


def _named_by_bytes(exclude: Lookup, dataset: Dataset) -> dict[str, dict[str, str]]:
    """Returns the salt of each image that a list names by bytes or as forgotten, by split, key."""
    listed = exclude.listed
    found: dict[str, dict[str, str]] = {}
    for name, split in dataset.manifest.splits.items() if listed.files else ():
        origin = dataset.manifest.settings.origin(name)
        for sample in itertools.chain.from_iterable(dataset.rows(split.shards)):
            file = listed.find(origin, sample.source_sha256, sample.sha256)
            salt = file.salt if file else exclude.salt_of(name, sample.key)
            if file or salt:
                found.setdefault(name, {})[sample.key] = salt
            if file:
                exclude.recognise(name, sample.key, file)
            elif salt:
                exclude.lines(name, [sample.key])
    return found


def _changes_in(
    request: ChangeRequest,
    exclude: Lookup | None,
    relabel: Lookup | None,
    name: str,
    dataset: Dataset,
    seed: int,
    by_bytes: Mapping[str, str],
) -> Iterable[ShardChange]:
    """Yields the change of each shard of a split, which may be empty."""
    split = dataset.manifest.splits[name]
    listed = set(by_bytes)
    for lookup in (exclude, relabel):
        if lookup:
            listed |= lookup.named[name].keys()
    added = defaultdict[int, list[Member]](list)
    for member in request.add.members.get(name, ()) if request.add else ():
        added[plan.keyed_hash(seed, "add", member.key) % len(split.shards)].append(member)
    emptied: list[str] = []
    seen: set[str] = set()
    tables = dataset.heads(split.shards)
    for number, (shard, heads) in enumerate(zip(split.shards, tables, strict=True)):
        class_of: dict[str, int] = {}
        for class_index, key, _ in heads:
            if key in listed:
                if key in seen or key in class_of:
                    raise equal_keys(dataset.store, split.shards, key)
                class_of[key] = class_index
        seen |= class_of.keys()
        relabelled: dict[str, int] = {}
        for key, line in _lines_by_key(relabel, name, class_of).items():
            assert request.relabel is not None
            new_class = request.relabel.class_of[line]
            if new_class != class_of[key]:
                relabelled[key] = new_class
        named = _lines_by_key(exclude, name, class_of).keys() | (class_of.keys() & by_bytes.keys())
        excluded = {key: by_bytes.get(key, request.salt) for key in named}
        if len(excluded) == shard.examples and not added[number]:
            emptied.append(shard.name)
        yield ShardChange(shard, excluded, relabelled, tuple(added[number]))
    if emptied:
        raise without_images(emptied)


def without_images(shards: Sequence[str]) -> UsageError:
    """Returns the error for shards that would lose all their images."""
    return UsageError(
        f"no image would remain in {some(shards)}, and no shard may be empty. Keep at least one "
        "image in each shard, or prepare the dataset again with fewer shards."
    )


def _lines_by_key(lookup: Lookup | None, split: str, keys: Collection[str]) -> dict[str, int]:
    """Returns the keys of a split that a list names, with the numbers of its lines."""
    if lookup is None:
        return {}
    lines = lookup.lines(split, keys)
    return {key: line for key, line in zip(keys, lines, strict=True) if line}


def _refuse(path: str, lines: Collection[int], problem: str, more: str = ".") -> None:
    """Raises UsageError if `lines` is not empty. The message has a line number but no key."""
    if lines:
        count = counted(len(lines), "line")
        raise UsageError(f"{path}: {count} with {problem}; the first is line {min(lines):,}{more}")


@dataclass(frozen=True)
class AmendWork:
    """Writes one changed shard of the dataset `parent`; picklable."""

    parent: Dataset
    seed: int  # seed with which the images of `parent` were assigned to shards
    writes: Mapping[str, WriteWork]  # by split; encodes new images like the existing ones
    images: MemberReader | None  # reads the new images
    sha256: Mapping[str, str]  # expected hashes of the new images, by `Member.archive`

    def __call__(self, change: ShardChange) -> engine.Result[WrittenShard]:
        """Writes the shard; returns its receipt content and files."""
        excluded: list[Incident] = []
        write = self.writes[split_of(change.name)]
        content, outputs = write(change.name, self._in_order(change, excluded))
        # The origins of copied records are unknown, so the shard lists no origins.
        content = replace(content, incidents=[*content.incidents, *excluded], origins=[])
        return engine.Result(content, outputs)

    def _in_order(
        self, change: ShardChange, excluded: list[Incident]
    ) -> Iterator[StoredRecord | tuple[Member, bytes]]:
        """Yields the kept records in order, with each new image at its sorted position."""

        def place(image: StoredRecord | tuple[Member, bytes]) -> tuple[int, str]:
            key = image.sample.key if isinstance(image, StoredRecord) else image[0].key
            return plan.keyed_hash(self.seed, "order", key), key

        added = sorted(change.added, key=lambda member: place((member, b"")))
        return heapq.merge(self._staying(change, excluded), map(self._read, added), key=place)

    def _read(self, member: Member) -> tuple[Member, bytes]:
        assert self.images
        data = self.images.read(member)
        if hashlib.sha256(data).hexdigest() != self.sha256[member.archive]:
            raise DataDamagedError(
                f"{member.archive}: has changed since it was listed. Run the same command again, "
                "and do not change the images of --add while amend runs."
            )
        return member, data

    def _staying(self, change: ShardChange, excluded: list[Incident]) -> Iterator[StoredRecord]:
        shard = change.shard
        digest = hashlib.sha256()
        number = 0
        store = self.parent.store
        classes = self.parent.classes
        where = store.where(shard.name)
        samples = list(dataset_store.sample_rows(store, shard))
        with store.open_file(shard.name) as opened:
            stream = as_file(hashed(opened, [digest]))
            for number, record in enumerate(record_files.read_records(stream, where), start=1):
                if number > len(samples):
                    raise DataDamagedError(
                        f"{where}: has more records than the {len(samples):,} in its table of "
                        f"samples. Run imagenet-prep verify on {store.where()}."
                    )
                sample = samples[number - 1]
                payload = record.payload
                if sample.key in change.excluded:
                    self._demand(payload, sample, f"{where}: record {record.number}")
                    split = split_of(change.name)
                    salt = change.excluded[sample.key]
                    excluded.append(excluded_record(change.name, split, sample, salt))
                    continue
                index = change.relabelled.get(sample.key)
                if index is not None:
                    self._demand(payload, sample, f"{where}: record {record.number}")
                    label = index + self.parent.manifest.label_offset
                    words = classes.words[index]
                    payload = example.relabelled(payload, label, classes.wnids[index], words)
                    sample = sample._replace(class_index=index)
                yield StoredRecord(record_files.frame_parts((payload, b"", b"")), sample)
        if digest.hexdigest() != shard.sha256 or number != len(samples):
            raise DataDamagedError(
                f"{where}: {number:,} records, sha256 {digest.hexdigest()}; the manifest lists "
                f"{shard.examples:,} records, sha256 {shard.sha256}. Run imagenet-prep verify on "
                f"{store.where()}."
            )

    def _demand(self, payload: bytes, sample: Sample, where: str) -> None:
        """Checks that a record to be changed matches its row in the table of samples."""
        manifest = self.parent.manifest
        stored = example.decode(payload, manifest.lacks)
        index = stored.stored_label - manifest.label_offset
        sha256 = hashlib.sha256(stored.encoded)
        if (index, sha256.hexdigest()) != (sample.class_index, sample.sha256):
            raise DataDamagedError(
                f"{where}: its label or its image differs from its row in the table of samples. "
                f"Run imagenet-prep verify on {self.parent.where}."
            )
