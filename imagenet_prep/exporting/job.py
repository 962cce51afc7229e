"""One export: the chosen examples in parts, the run, and the receipt that ends it."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.regular_file import MOST_LIST_BYTES
from imagenet_prep.dataset import naming
from imagenet_prep.exporting import files
from imagenet_prep.exporting.examples import Numbers, Part, Source
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format, Written
from imagenet_prep.read.choice import Choice
from imagenet_prep.storage.os_errors import removed_on_failure
from imagenet_prep.storage.store import Store


@dataclass(frozen=True)
class Work:
    """Exports a part; picklable.

    Attributes:
      folder: below `.work`, of the sums of finished parts.
      tree: for single images in a folder.
    """

    source: Source
    format: Format
    store: Store
    folder: str
    tree: files.Tree | None

    def sums(self, part: Part) -> str:
        """Returns the name of the file with the sums of a part."""
        return f"{self.folder}/sums/{part.name}"

    def __call__(self, part: Part) -> engine.Result[Written]:
        """Writes the files of a part; returns its receipt and the files to publish."""
        pieces = self.format.pieces(part, self.source.read(part))
        if self.tree is not None:
            made = self.tree.write(pieces)
        elif self.format.file_an_image:
            made = files.write_each(self.store.write, pieces)
        else:
            made = files.write_few(self.store, pieces)
        with removed_on_failure(*(output.temporary for output in made.outputs)):
            sums = [Piece(self.sums(part), "".join(made.sums).encode())]
            (listed,) = files.write_few(self.store, sums).outputs
        written = Written(len(part.numbers), made.num_bytes, len(made.sums), made.sizes)
        return engine.Result(written, (*made.outputs, listed._replace(settle=made.settle)))


@dataclass(frozen=True)
class Job:
    """One request, resolved.

    Attributes:
      to: the name of the format.
      called: the prefix of file names in a folder that others share; "" for a folder of its own.
    """

    source: Source
    splits: Sequence[str]
    choice: Choice
    to: str
    format: Format
    store: Store
    called: str
    workers: engine.Workers
    quiet: bool

    def parts(self) -> list[Part]:
        """Returns the parts to write; a split without chosen examples has none."""
        splits = [self.source.split(split) for split in self.splits]
        chosen: list[Numbers] = [range(len(records)) for records in splits]
        if self.choice.asked():
            chosen = [*self.choice.of_each(splits)]
        parts = []
        for records, numbers in zip(splits, chosen, strict=True):
            ends = [len(records)]
            if not self.format.whole_splits:
                ends = [records.numbers_of(shard).stop for shard in range(len(records.shards))]
            cuts = [0, *(bisect.bisect_left(numbers, end) for end in ends)]
            groups = [numbers[a:b] for a, b in itertools.pairwise(cuts) if a < b]
            parts += [Part(records.split, n, len(groups), each) for n, each in enumerate(groups)]
        return parts

    def digest(self) -> str:
        """Returns the digest that tells this export from others."""
        dataset = self.source.dataset.manifest.digest
        wanted = [self.to, dataset, self.splits, self.choice.asked(), self.called]
        return canonical.digest([*wanted, self.format])

    def receipt(self, written: Mapping[str, Sequence[Written]], sums: str, sha256: str) -> Json:
        """Returns the content of export.json; `sha256` is of the list `sums` of all files."""
        splits = {
            split: {
                "examples": sum(part.examples for part in parts),
                "files": sum(part.files for part in parts),
                "bytes": sum(part.num_bytes for part in parts),
            }
            for split, parts in written.items()
        }
        totals = sum((Counter(each) for each in splits.values()), Counter())
        dataset = self.source.dataset.manifest.digest
        asked = {"to": self.to, "dataset": dataset, "chosen": self.choice.asked()}
        return {**asked, "splits": splits, **totals, "sums": sums, "sha256": sha256}


def run(job: Job) -> Json:
    """Exports the remaining parts; returns the content of export.json."""
    parts, store, digest = job.parts(), job.store, job.digest()
    settled = job.format.settled(job.source, parts)
    mark = f"{naming.WORK}/{job.called}export"
    _refuse_others(job, mark, digest)
    of_parts, tree = f"{naming.WORK}/parts-{digest[:16]}", None
    if job.format.file_an_image and (folder := store.as_folder):
        tree = files.Tree(folder, f"{of_parts}/made")
    work = Work(job.source, settled, store, of_parts, tree)
    stage = engine.Stage("export", digest, store, work, Written)
    images = sum(len(part.numbers) for part in parts)
    with store.lock():
        _refuse_others(job, mark, digest)
        if store.claim(mark, digest.encode()) != digest.encode():
            raise _others(store)
        if job.format.file_an_image:
            named = {part.name: work.sums(part) for part in parts}
            finished = stage.receipts(named).items()
            files.forget_lost(store, tree, {named[name]: r.content.sizes for name, r in finished})
        receipts = engine.run(
            stage, parts, job.workers, title="export", images=images, quiet=job.quiet
        )
        if tree is not None:
            tree.show()
        written: dict[str, list[Written]] = {}
        for part, receipt in zip(parts, receipts, strict=True):
            written.setdefault(part.split, []).append(receipt.content)
        lines = store.read_each(map(work.sums, parts), MOST_LIST_BYTES)
        for name, data in job.format.beside(written).items():
            store.write(name, data)
            line = files.sum_line(name, hashlib.sha256(data).hexdigest())
            lines = itertools.chain(lines, [line.encode()])
        sums = f"{job.called}SHA256SUMS"
        (output,) = files.write_few(store, (Piece(sums, each) for each in lines)).outputs
        store.publish(output.temporary, sums, output.sha256)
        done = job.receipt(written, sums, str(output.sha256))
        store.write(job.called + naming.EXPORT, canonical.dumps(done))
    return done


def _refuse_others(job: Job, mark: str, digest: str) -> None:
    """Raises UsageError if there is something that is not part of this export."""
    names = job.store.list_folder()
    if naming.WORK in names and job.store.size(mark) is not None:
        if job.store.read(mark) != digest.encode():
            raise _others(job.store)
        return
    alike = [name for name in names if name.startswith(job.called) and not name.startswith(".")]
    if alike:
        raise UsageError(
            f"{job.store.where()} already holds {some(alike)}, which no export left there as it "
            "is asked for now. Choose an empty folder."
        )


def _others(store: Store) -> UsageError:
    return UsageError(
        f"{store.where()} holds another export, or one that was begun with other flags or from "
        "another set. Finish it as it was begun, or choose another folder."
    )
