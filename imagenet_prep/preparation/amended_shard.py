"""Writes one shard of an amended dataset; unchanged records are copied byte for byte."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example, tfrecord
from imagenet_prep.dataset.member import Incident, Member
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.preparation.changes import ShardChange
from imagenet_prep.preparation.tasks import WriteWork, excluded_record
from imagenet_prep.shards import plan
from imagenet_prep.shards.writer import Stored, WrittenShard
from imagenet_prep.sources.member_reader import MemberReader
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.remote import as_file, hashed


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
    ) -> Iterator[Stored | tuple[Member, bytes]]:
        """Yields the kept records in order, with each new image at its sorted position."""

        def place(image: Stored | tuple[Member, bytes]) -> tuple[int, str]:
            key = image.sample.key if isinstance(image, Stored) else image[0].key
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

    def _staying(self, change: ShardChange, excluded: list[Incident]) -> Iterator[Stored]:
        shard = change.shard
        digest = hashlib.sha256()
        number = 0
        store = self.parent.store
        classes = self.parent.classes
        where = store.where(shard.name)
        samples = list(dataset_store.sample_rows(store, shard))
        with store.open_file(shard.name) as opened:
            stream = as_file(hashed(opened, [digest]))
            for number, record in enumerate(tfrecord.read_records(stream, where), start=1):
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
                    excluded.append(excluded_record(change.name, split, sample))
                    continue
                index = change.relabelled.get(sample.key)
                if index is not None:
                    self._demand(payload, sample, f"{where}: record {record.number}")
                    label = index + self.parent.manifest.label_offset
                    words = classes.words[index]
                    payload = example.relabelled(payload, label, classes.wnids[index], words)
                    sample = sample._replace(class_index=index)
                yield Stored(tfrecord.frame_parts((payload, b"", b"")), sample)
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
