"""One export: what is chosen, in which parts; the run; the receipt that ends it."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.dataset import naming
from imagenet_prep.exporting import files
from imagenet_prep.exporting.examples import Numbers, Part, Source
from imagenet_prep.exporting.format import Format, Written
from imagenet_prep.read.choice import Choice
from imagenet_prep.storage.new_file import new_file
from imagenet_prep.storage.os_errors import removed_on_failure, storage_errors
from imagenet_prep.storage.store import Store


@dataclass(frozen=True)
class Work:
    """Exports a part; picklable.

    Attributes:
      source: the set.
      format: what is written.
      store: where the export lies.
      folder: below `.work`, of the sums of finished parts.
      tree: where single images lie; None where the format writes none, or to a bucket.
    """

    source: Source
    format: Format
    store: Store
    folder: str
    tree: files.Tree | None

    def sums(self, part: Part) -> str:
        """Returns the name of the file of a part's sums."""
        return f"{self.folder}/sums/{part.name}"

    def __call__(self, part: Part) -> engine.Result[Written]:
        """Writes the files of a part; returns the content of its receipt and what is published."""
        pieces = self.format.pieces(part, self.source.read(part))
        if self.tree is not None:
            made = self.tree.write(pieces)
        elif self.format.file_an_image:
            made = files.write_each(self.store, pieces)
        else:
            made = files.write_few(self.store, pieces)
        sums = self.store.temporary()
        with (
            removed_on_failure(sums, *(output.temporary for output in made.outputs)),
            storage_errors("write", sums),
            new_file(sums) as file,
        ):
            file.write("".join(made.sums).encode())
        written = Written(len(part.numbers), made.num_bytes, len(made.sums))
        return engine.Result(written, (*made.outputs, engine.Output(sums, self.sums(part))))


@dataclass(frozen=True)
class Job:
    """One request, resolved.

    Attributes:
      source: the set.
      splits: of it.
      choice: which of their examples.
      to: what the format is called.
      format: the format.
      store: where the export goes.
      called: the beginning of its files' names in a folder that others share; "" for a folder of
        its own.
      workers: how much runs at once.
      quiet: show no progress.
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
        """Returns the parts that are to be written; a split of which nothing is chosen has none.

        Raises:
          UsageError: nothing is chosen, or only a part of the set is here.
          ImagenetPrepError: as for `Choice.of_each`.
        """
        splits = [self.source.split(split) for split in self.splits]
        for records in splits:
            if records.placement.nodes > 1:
                raise UsageError(
                    f"{records.root} is {records.placement}: export needs the whole set."
                )
        chosen: list[Numbers] = [range(len(records)) for records in splits]
        if self.choice.asked():
            chosen = [*self.choice.of_each(splits)]
        parts = []
        for records, numbers in zip(splits, chosen, strict=True):
            shards = [range(len(records))]
            if not self.format.whole_splits:
                shards = [*map(records.numbers_of, range(len(records.shards)))]
            cuts = (
                slice(
                    bisect.bisect_left(numbers, each.start), bisect.bisect_left(numbers, each.stop)
                )
                for each in shards
            )
            groups = [numbers[cut] for cut in cuts if cut.start < cut.stop]
            parts += [
                Part(records.split, index, len(groups), group) for index, group in enumerate(groups)
            ]
        return parts

    def digest(self) -> str:
        """Returns the digest of what makes this export another than others."""
        wanted = [self.to, self._dataset, self.splits, self.choice.asked(), self.called]
        return canonical.digest([*wanted, self.format])

    @property
    def _dataset(self) -> str:
        return self.source.split(self.splits[0]).manifest.digest

    def receipt(self, written: Mapping[str, Sequence[Written]], sums: tuple[str, str]) -> Json:
        """Returns what export.json says.

        Args:
          written: the parts of each split.
          sums: name and sha256 of the list of all files.
        """
        splits = {
            split: {
                "examples": sum(part.examples for part in parts),
                "files": sum(part.files for part in parts),
                "bytes": sum(part.num_bytes for part in parts),
            }
            for split, parts in written.items()
        }
        totals = {name: sum(each[name] for each in splits.values()) for name in _COUNTS}
        return {
            "to": self.to,
            "dataset": self._dataset,
            "chosen": self.choice.asked(),
            "splits": splits,
            **totals,
            "sums": sums[0],
            "sha256": sums[1],
        }


_COUNTS = ("examples", "files", "bytes")


def run(job: Job) -> Json:
    """Exports what is left to be exported; returns what export.json says.

    Raises:
      UsageError: nothing is chosen, the format cannot hold it, or something else lies there.
      DataDamagedError: a record is not what the set says. Finished parts are kept.
      ImagenetPrepError: as for `engine.run`.
    """
    parts, store, digest = job.parts(), job.store, job.digest()
    job.format.refuse(job.source, parts)
    mark = f"{naming.WORK}/{job.called}export.json"
    _refuse_others(job, mark, digest)
    of_parts, tree = f"{naming.WORK}/parts-{digest[:16]}", None
    if job.format.file_an_image and (folder := store.as_folder):
        tree = files.Tree(folder, f"{of_parts}/made")
    work = Work(job.source, job.format, store, of_parts, tree)
    stage = engine.Stage("export", digest, store, work, Written)
    images = sum(len(part.numbers) for part in parts)
    with store.lock():
        store.local.remove_temporaries()
        if store.claim(mark, digest.encode()) != digest.encode():
            raise _others(store)
        if tree is not None:
            tree.forget_lost(map(work.sums, parts))
        receipts = engine.run(
            stage, parts, job.workers, title="export", images=images, quiet=job.quiet
        )
        if tree is not None:
            tree.show()
        written: dict[str, list[Written]] = {}
        for part, receipt in zip(parts, receipts, strict=True):
            written.setdefault(part.split, []).append(receipt.content)
        beside = job.format.beside(written)
        for name, data in beside.items():
            store.write(name, data)
        sums = f"{job.called}SHA256SUMS"
        done = job.receipt(written, (sums, _write_sums(store, sums, work, parts, beside)))
        store.write(f"{job.called}export.json", canonical.dumps(done))
    return done


def _write_sums(
    store: Store, name: str, work: Work, parts: Sequence[Part], beside: Mapping[str, bytes]
) -> str:
    """Writes the list of all files, as sha256sum does; returns its own sha256."""
    temporary, digest = store.temporary(), hashlib.sha256()
    with (
        removed_on_failure(temporary),
        storage_errors("write", temporary),
        new_file(temporary) as file,
    ):
        for lines in store.read_each(map(work.sums, parts)):
            file.write(lines)
            digest.update(lines)
        for small, data in beside.items():
            line = files.sum_line(small, hashlib.sha256(data).hexdigest()).encode()
            file.write(line)
            digest.update(line)
    store.publish(temporary, name, digest.hexdigest())
    return digest.hexdigest()


def _refuse_others(job: Job, mark: str, digest: str) -> None:
    """Raises UsageError where something lies that is no part of this export."""
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
