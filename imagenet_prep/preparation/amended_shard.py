"""Writes one shard of an amended dataset; unchanged records are copied byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import example, tfrecord
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Incident, Member
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.dataset.settings import EXCLUDED
from imagenet_prep.preparation.changes import ShardChange
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.shards import plan
from imagenet_prep.shards.writer import Stored, WrittenShard
from imagenet_prep.sources.member_reader import MemberReader
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.storage import tables
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.store import Readable


@dataclass(frozen=True)
class AmendWork:
    """Writes one changed shard of `parent`; picklable.

    `seed` assigned the parent's images to shards. `writes` encodes new images like the existing
    ones of a split. `images` reads new images; `sha256` has their expected hashes by archive.
    """

    parent: Readable
    lacks: Mapping[str, str]
    label_offset: int
    classes: ClassList
    seed: int
    writes: Mapping[str, WriteWork]
    images: MemberReader | None
    sha256: Mapping[str, str]

    def __call__(self, change: ShardChange) -> engine.Result[WrittenShard]:
        """Writes the shard; returns its receipt content and files."""
        left_out: list[Incident] = []
        write = self.writes[split_of(change.name)]
        content, outputs = write(change.name, self._in_order(change, left_out))
        # The origin of most records is unknown, so the shard lists no origins.
        content = replace(content, incidents=[*content.incidents, *left_out], origins=[])
        return engine.Result(content, outputs)

    def _in_order(
        self, change: ShardChange, left_out: list[Incident]
    ) -> Iterator[Stored | tuple[Member, bytes]]:
        """Yields kept records; inserts each new image before the first one that sorts later."""
        assert self.images or not change.added
        coming = sorted(change.added, key=lambda member: self._place(member.key), reverse=True)
        for stored in self._staying(change, left_out):
            while coming and self._place(coming[-1].key) < self._place(stored.sample.key):
                yield self._read(coming.pop())
            yield stored
        while coming:
            yield self._read(coming.pop())

    def _place(self, key: str) -> tuple[int, str]:
        return plan.keyed_hash(self.seed, "order", key), key

    def _read(self, member: Member) -> tuple[Member, bytes]:
        assert self.images
        data = self.images.read(member)
        if hashlib.sha256(data).hexdigest() != self.sha256[member.archive]:
            raise DataDamagedError(
                f"{member.archive}: is another file than when it was listed. Leave the images of "
                "--add as they are while they are read, then run this again."
            )
        return member, data

    def _staying(self, change: ShardChange, left_out: list[Incident]) -> Iterator[Stored]:
        shard, digest, number = change.shard, hashlib.sha256(), 0
        where = self.parent.where(shard.name)
        samples = list(tables.rows(self.parent, shard))
        try:
            with self.parent.opened(shard.name) as opened:
                stream = as_file(hashed(opened, [digest]))
                for number, record in enumerate(tfrecord.read_records(stream, where), start=1):
                    if number > len(samples):
                        raise DataDamagedError(f"{where}: more than {len(samples):,} records")
                    sample, payload = samples[number - 1], record.payload
                    if sample.key in change.excluded:
                        self._demand(payload, sample, f"{where}: record {record.number}")
                        left_out.append(_left_out(change.name, sample))
                        continue
                    index = change.relabelled.get(sample.key)
                    if index is not None:
                        self._demand(payload, sample, f"{where}: record {record.number}")
                        payload = self._relabelled(payload, index)
                        sample = sample._replace(class_index=index)
                    yield Stored(tfrecord.frame_parts((payload, b"", b"")), sample)
        except OSError as error:
            raise StoreError(f"cannot read {where}: {error.strerror or error}") from error
        if digest.hexdigest() != shard.sha256 or number != len(samples):
            raise DataDamagedError(
                f"{where}: {number:,} records, sha256 {digest.hexdigest()}; its manifest says "
                f"{shard.examples:,} and {shard.sha256}. Run verify on {self.parent.where()}."
            )

    def _demand(self, payload: bytes, sample: Sample, where: str) -> None:
        """Checks that a record to be changed matches its row in the table."""
        stored = example.decode(payload, self.lacks)
        index = stored.stored_label - self.label_offset
        if (index, hashlib.sha256(stored.encoded).hexdigest()) != (
            sample.class_index,
            sample.sha256,
        ):
            raise DataDamagedError(f"{where}: is not what the table of samples says")

    def _relabelled(self, payload: bytes, index: int) -> bytes:
        wnid, words = self.classes.wnids[index], self.classes.words[index]
        return example.relabelled(payload, index + self.label_offset, wnid, words)


def _left_out(shard: str, sample: Sample) -> Incident:
    """Returns the incident of an excluded image, without its offset: earlier changes move it."""
    detail = f"the list of amend --exclude has its key; its image had sha256 {sample.sha256}"
    place = sample.key, shard, 0, sample.num_bytes, sample.class_index
    return Incident(*place, EXCLUDED, "listed", detail)
