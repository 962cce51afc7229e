"""A set of shards written anew, shard by shard: what `resize` and `adopt --rewrite` share.

The output is filled a split at a time and each split is committed whole, so that a second run
may add another: the manifest names what is finished, at any moment.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import imagenet_prep
from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import manifest, naming, schema
from imagenet_prep.dataset.manifest import Manifest, Split
from imagenet_prep.dataset.member import Member, PreparedImage
from imagenet_prep.preparation.survey import (
    ShardTask,
    check_validation_labels,
    identity,
    note_validation,
    num_per_class,
    settle_labels,
)
from imagenet_prep.shards.commit import publish, split_of
from imagenet_prep.shards.limit import BadImageLimit, check_finished
from imagenet_prep.shards.summary import summarise
from imagenet_prep.shards.writer import write_shard
from imagenet_prep.sources import tfrecords
from imagenet_prep.sources.labelling import Labelling, are_wnids
from imagenet_prep.sources.labels import ClassList
from imagenet_prep.sources.tfrecords import TfrecordSet
from imagenet_prep.storage import notes
from imagenet_prep.storage.folder import LocalStore

_BEGUN = f"{naming.WORK}/run.json"


@dataclass(frozen=True)
class Job:
    """One request, resolved.

    Attributes:
      verb: who asks; the manifest's config is kept under this name.
      found: the input.
      splits: those to write.
      settings: what decides the bytes of a split, beside its source.
      transform: source bytes to the stored image; raises BadImageError.
      libraries: versions that decide bytes.
      workers: how much runs at once.
      allowed_bad_images: 0 stops at the first, None never.
      labelling: what the labels mean, where that is known already.
      lacks: what is known to be untrue of the stored images.
      wnids_only: refuse classes that have other names.
      force: replace a split that has other settings; None where the verb has no such flag.
      quiet: show no progress.
    """

    verb: str
    found: TfrecordSet
    splits: tuple[str, ...]
    settings: dict[str, Any]
    transform: Callable[[bytes], PreparedImage]
    libraries: dict[str, str]
    workers: engine.Workers
    allowed_bad_images: int | None = None
    labelling: Labelling | None = None
    lacks: dict[str, str] = field(default_factory=dict)
    wnids_only: bool = False
    force: bool | None = None
    quiet: bool = False

    def settings_of(self, split: str) -> dict[str, Any]:
        """Returns what decides the bytes of a split; its source goes by names and sizes."""
        files = [[shard.path.name, shard.num_bytes] for shard in self.found.splits[split]]
        return {**self.settings, "source": canonical.digest(files)}


@dataclass(frozen=True)
class WriteWork:
    """Writes a shard anew: the same records in the same order, with the whole schema.

    Attributes:
      store: the data set that is written.
      labelling: what the labels of the source mean.
      transform: source bytes to the stored image; raises BadImageError.
      fail_on_bad_image: raise instead of leaving a bad image out.
    """

    store: LocalStore
    labelling: Labelling
    transform: Callable[[bytes], PreparedImage]
    fail_on_bad_image: bool

    def __call__(self, task: ShardTask) -> engine.Result:
        """Returns the receipt of the shard and of its source."""
        num_per_class: Counter[int] = Counter()
        validation: dict[str, int] = {}

        def images() -> Iterator[tuple[Member, bytes]]:
            for member, data in tfrecords.read(task.shard, self.labelling):
                num_per_class[member.class_index] += 1
                note_validation(member, validation)
                yield member, data

        md5 = _md5(task.shard.path)
        classes = self.labelling.classes
        shard, index = self.store.temporary(), self.store.temporary()
        content = write_shard(
            task.name,
            images(),
            transform=self.transform,
            classes=tuple(zip(classes.wnids, classes.words, strict=True)),
            label_offset=schema.DEFAULT_LABEL_OFFSET,
            fail_on_bad_image=self.fail_on_bad_image,
            shard_path=shard,
            index_path=index,
        )
        content["num_per_class"] = {str(i): n for i, n in sorted(num_per_class.items())}
        content["validation"] = validation
        content["source"] = {
            "name": task.shard.path.name,
            "num_bytes": task.shard.num_bytes,
            "md5": md5,
            "members": num_per_class.total(),
        }
        # The index first: whoever sees a shard finds its index.
        return engine.Result(
            content,
            (
                engine.Output(index, naming.index_name(task.name), content["index_sha256"]),
                engine.Output(shard, task.name, content["sha256"]),
            ),
        )


def run(job: Job, out: Path) -> dict[str, Any]:
    """Writes what is left of a job and returns the summary.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    folders = {shard.path.parent.resolve() for s in job.splits for shard in job.found.splits[s]}
    if out.resolve() in {job.found.root.resolve(), *folders}:
        raise UsageError(f"{out} is the input; the result needs a folder of its own")
    start = time.time()
    output = _Output(job, LocalStore(out))
    if output.left():
        with output.store.lock():
            output.store.remove_temporaries()
            output.write(output.left())
    return output.summary(start)


def foresee(job: Job, out: Path) -> dict[str, Any]:
    """Returns what a run would make; reads the first and last shards only."""
    labelling = tfrecords.known_labelling(job.found, job.splits)
    labels = "told by the whole set, which is read twice"
    if labelling is not None:
        last = len(labelling.classes.wnids) - 1 + labelling.offset
        what = "ILSVRC2012's classes" if labelling.classes.official else "its own classes"
        labels = f"{what}, labels {labelling.offset} ... {last}"
    return {
        "out": str(out),
        "splits": {
            split: {
                "shards": len(shards),
                "source_bytes": sum(shard.num_bytes for shard in shards),
                "first_file": str(shards[0].path),
                "first_shard": shards[0].name,
            }
            for split, shards in job.found.splits.items()
            if split in job.splits
        },
        "labels": labels,
        "workers": f"{job.workers.count} {job.workers.resolved_kind}",
    }


class _Output:
    """The folder that runs fill.

    Attributes:
      store: the folder.
    """

    def __init__(self, job: Job, store: LocalStore) -> None:
        self.job = job
        self.store = store
        self._settings = {split: job.settings_of(split) for split in job.splits}
        self._new: list[dict[str, Any]] = []

    def left(self) -> list[str]:
        """Returns the splits that are not yet here as asked for, whole.

        Raises:
          UsageError: the folder holds another program's files, or a split with other settings
            that --force was not given for.
          DataDamagedError: more images were left out than are allowed.
        """
        there = self._committed()
        made = self._made(there)
        differences = [
            f"{split} with {name} {made[split].get(name)!r}, asked for {value!r}"
            for split, settings in self._settings.items()
            for name, value in settings.items()
            if split in made and made[split].get(name) != value
        ]
        if differences and not self.job.force:
            advice = "" if self.job.force is None else ", or let --force replace what is there"
            raise UsageError(
                f"{self.store.root} holds {'; '.join(differences)}. Choose another folder{advice}."
            )
        self._refuse_strangers(made)
        left = [split for split in self.job.splits if not self._is_whole(there, split)]
        kept = [split for split in made if made[split] == self._settings.get(split, made[split])]
        if left and kept and (changed := self._changed_libraries(there)):
            raise UsageError(
                f"{self.store.root} was begun with {', '.join(changed)}. Finish it with that, or "
                "choose another folder."
            )
        if not left and there is not None:
            check_finished(self.store.where(), there, self.job.allowed_bad_images)
        return left

    def write(self, left: Sequence[str]) -> None:
        """Writes and commits splits, one after the other."""
        made = self._made(self._committed())
        for split in left:
            if split in made and made[split] != self._settings[split]:
                self._discard(split)
                del made[split]
        labelling = self._labelling(left)
        # From here on the folder belongs to these settings; a run refused before leaves it free.
        begun = made | {split: self._settings[split] for split in left}
        content = {"config": {self.job.verb: begun}, "libraries": self.job.libraries}
        self.store.write(_BEGUN, canonical.dumps(content))
        shards = [shard for split in self.job.found.splits.values() for shard in split]
        origin = {
            "root": str(self.job.found.root.absolute()),
            "files": {shard.path.name: str(shard.path.absolute()) for shard in shards},
        }
        self.store.write(naming.ORIGIN, json.dumps(origin).encode())
        watch = BadImageLimit(self.job.allowed_bad_images)
        for split in left:
            stage = self._stage(split, labelling)
            tasks = [*map(ShardTask, self.job.found.splits[split])]
            names = {task.name for task in tasks}
            pending = names - stage.receipts(names).keys()
            title = f"{self.job.verb} {split}"
            receipts = engine.run(
                stage, tasks, self.job.workers, title=title, watch=watch, quiet=self.job.quiet
            )
            self._new += [receipt for receipt in receipts if receipt["shard"] in pending]
            self._commit(split, receipts, labelling.classes)

    def summary(self, start: float) -> dict[str, Any]:
        """Returns what the user is told at the end."""
        committed = self._committed()
        assert committed is not None
        path = self.store.where(naming.MANIFEST)
        return {
            **summarise(path, committed, self._new, time.time() - start),
            "left_in_input": sorted(set(self.job.found.splits) - set(committed.splits)),
        }

    def _committed(self) -> Manifest | None:
        if self.store.size(naming.MANIFEST) is None:
            return None
        path = str(self.store.path(naming.MANIFEST))
        return manifest.loads(self.store.read(naming.MANIFEST), path)

    def _made(self, there: Manifest | None) -> dict[str, dict[str, Any]]:
        """Returns the settings of the splits that this verb finished or began here."""
        configs = [there.config] if there else []
        if self.store.size(_BEGUN) is not None:
            configs.insert(0, self._begun()["config"])
        made: dict[str, dict[str, Any]] = {}
        for config in configs:
            ours = config.get(self.job.verb)
            if type(ours) is not dict or not all(type(each) is dict for each in ours.values()):
                raise UsageError(
                    f"{self.store.root} holds a data set that {self.job.verb} did not make. Choose "
                    "another folder."
                )
            made |= ours
        return made

    def _begun(self) -> dict[str, Any]:
        return notes.read(self.store, _BEGUN, config=dict, libraries=dict)

    def _refuse_strangers(self, made: dict[str, dict[str, Any]]) -> None:
        root = self.store.root
        names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
        ours = {name for name in names if (p := naming.parse_shard_name(name)) and p.split in made}
        if strangers := [n for n in names if naming.looks_like_shard(n) and n not in ours]:
            raise UsageError(
                f"{root} already holds {', '.join(strangers[:3])}, which no run of "
                f"{self.job.verb} left there. Choose an empty folder."
            )

    def _changed_libraries(self, there: Manifest | None) -> list[str]:
        if self.store.size(_BEGUN) is not None:
            used = self._begun()["libraries"]
        else:
            used = there.producer.libraries if there else {}
        ours = self.job.libraries
        return [f"{n} {used[n]} (here {ours.get(n)})" for n in used if used[n] != ours.get(n)]

    def _is_whole(self, there: Manifest | None, split: str) -> bool:
        if there is None or there.config[self.job.verb].get(split) != self._settings[split]:
            return False
        files = there.files_of([split])
        return all(self.store.size(file.name) == file.num_bytes for file in files)

    def _discard(self, split: str) -> None:
        """Removes a split: from the manifest first, so that it never names what is gone."""
        there = self._committed()
        if there is not None and split in there.splits:
            if len(there.splits) > 1:
                self._publish(there, self._classes(there), dropped=split)
            else:
                self.store.path(naming.MANIFEST).unlink()
        for name in self.store.names(""):
            parsed = naming.parse_shard_name(name)
            if parsed is not None and parsed.split == split:
                self.store.remove(name)
                self.store.remove(naming.index_name(name))
        # Their sizes could pass for those of the new shards.
        for path in self.store.path(naming.WORK).glob(f"{self.job.verb}-{split}-*"):
            self.store.remove_tree(f"{naming.WORK}/{path.name}")

    def _labelling(self, left: Sequence[str]) -> Labelling:
        there = self._committed()
        kept = set(there.splits) - set(left) if there else set()
        known = self._classes(there) if there and kept else None
        labelling = self.job.labelling or settle_labels(
            self.job.found, left, self.store, self.job.workers, known=known, quiet=self.job.quiet
        )
        classes = labelling.classes
        root = self.job.found.root
        if self.job.wnids_only and not are_wnids(classes.wnids):
            raise UsageError(
                f"{root}: its classes are called {', '.join(classes.wnids[:3])}, no WNIDs. If that "
                "is right, leave --dataset_name out."
            )
        if known is not None and known.digest != classes.digest:
            raise UsageError(
                f"{root}: its {len(classes.wnids)} classes are not the {len(known.wnids)} of "
                f"{self.store.path(naming.LABELS)}. Choose another folder."
            )
        return labelling

    def _stage(self, split: str, labelling: Labelling) -> engine.Stage[ShardTask]:
        work = WriteWork(
            store=self.store,
            labelling=labelling,
            transform=self.job.transform,
            fail_on_bad_image=self.job.allowed_bad_images == 0,
        )
        digest = canonical.digest(
            [
                self._settings[split],
                self.job.libraries,
                labelling.offset,
                labelling.classes.render().decode(),
                identity(self.job.found.splits[split]),
            ]
        )
        return engine.Stage(f"{self.job.verb}-{split}", digest, self.store, work)

    def _classes(self, there: Manifest) -> ClassList:
        return tfrecords.listed_classes(self.store.root, there)

    def _commit(self, split: str, receipts: Sequence[dict[str, Any]], classes: ClassList) -> None:
        check_validation_labels(receipts, classes, self.job.found.root)
        counts = num_per_class(receipts, len(classes.wnids))
        self._publish(
            self._committed(),
            classes,
            made={split: split_of(receipts, counts)},
            incidents=[incident for receipt in receipts for incident in receipt["incidents"]],
            sources=[manifest.Source(**receipt["source"]) for receipt in receipts],
        )

    def _publish(
        self,
        there: Manifest | None,
        classes: ClassList,
        *,
        made: dict[str, Split] | None = None,
        incidents: Sequence[dict[str, Any]] = (),
        sources: Sequence[manifest.Source] = (),
        dropped: str = "",
    ) -> None:
        """Commits what was there, without what is dropped, and what was made now."""
        made = made or {}
        kept = {n: s for n, s in there.splits.items() if n not in {*made, dropped}} if there else {}
        config: dict[str, Any] = {split: self._settings[split] for split in made}
        if there and kept:
            config |= {split: there.config[self.job.verb][split] for split in kept}
            lines = self.store.read(naming.QUARANTINE).splitlines()
            # A run killed between this file and the manifest has left its own lines here.
            incidents = [
                *incidents,
                *(i for i in map(canonical.loads, lines) if _of(i["archive"], kept)),
            ]
            sources = [*sources, *(source for source in there.sources if _of(source.name, kept))]
        splits = {split: (kept | made)[split] for split in schema.SPLITS if split in kept | made}
        sources = sorted(
            sources, key=lambda s: (list(splits).index(tfrecords.split_of(s.name)), s.name)
        )
        publish(
            self.store,
            producer=manifest.Producer(
                "imagenet-prep", imagenet_prep.__version__, self.job.libraries
            ),
            config={self.job.verb: config},
            plan_digest=canonical.digest([[s.name, s.num_bytes, s.md5] for s in sources]),
            splits=splits,
            incidents=incidents,
            sources=sources,
            classes=manifest.Classes(len(classes.wnids), classes.digest, classes.official),
            labels_file=classes.render(),
            label_offset=schema.DEFAULT_LABEL_OFFSET,
            subset=not classes.official or not all(_is_official(s, sources) for s in splits),
            lacks=self.job.lacks,
        )


def _of(name: str, splits: dict[str, Split]) -> bool:
    return tfrecords.split_of(name) in splits


def _is_official(split: str, sources: Sequence[manifest.Source]) -> bool:
    members = sum(s.members for s in sources if tfrecords.split_of(s.name) == split)
    return members == schema.OFFICIAL_NUM_EXAMPLES[split]


def _md5(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()
