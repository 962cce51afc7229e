"""The folder or bucket that a run fills: whose it is, which splits are left, the commit.

Prepare commits all its splits at once. Resize commits one after the other, so that a second run
may add another. At any moment, the manifest names the finished splits.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import imagenet_prep
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.dataset import manifest, naming, schema, settings
from imagenet_prep.dataset.manifest import Manifest, Source, Split
from imagenet_prep.dataset.member import QUARANTINED
from imagenet_prep.dataset.settings import Settings
from imagenet_prep.shards import tfds
from imagenet_prep.shards.commit import check_finished, publish, refuse_too_many
from imagenet_prep.shards.summary import summarise
from imagenet_prep.sources import editions
from imagenet_prep.sources.labels import ClassList
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.sources.tfrecords import listed_classes
from imagenet_prep.storage import notes
from imagenet_prep.storage.store import Store

_BEGUN = f"{naming.WORK}/run.json"
# Of the libraries, the one that names the bytes of images.
_CODEC = "codec"


@dataclass(frozen=True)
class Wanted:
    """The data set to make.

    Attributes:
      settings: who makes it, and what decides the bytes of the splits that this run makes.
      libraries: what makes the bytes of images: {"codec": name}, empty if all are kept.
      label_offset: stored label = class index + this.
      subset: whether images of ILSVRC2012 are missing; None to work it out from the sources.
      name: what dataset_info.json calls it.
      source_sizes: bytes by name of the sources that a finished set must have; empty if the
        settings identify the source.
      allowed_bad_images: 0 stops at the first, None never.
      origin: where the source lies, for `report`: its root, and paths by file name.
      force: replace splits that have other settings; None if the verb has no such flag.
    """

    settings: Settings
    libraries: dict[str, str]
    label_offset: int = schema.DEFAULT_LABEL_OFFSET
    subset: bool | None = None
    name: str = tfds.IMAGENET
    source_sizes: dict[str, int] = field(default_factory=dict)
    allowed_bad_images: int | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    force: bool | None = None


class Output:
    """The folder or prefix that runs fill.

    Attributes:
      store: where it is.
    """

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.store = store
        self._wanted = wanted
        self._splits = wanted.settings.splits
        self._bad: list[dict[str, Any]] = []
        self._start = time.time()
        self._new: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the place for this run, and removes temporary files of killed runs."""
        with self.store.lock():
            self.store.local.remove_temporaries()
            yield

    def left(self) -> list[str]:
        """Returns the wanted splits that are not yet here and complete.

        Raises:
          UsageError: another program's files are here, or a split that another codec made, or one
            with other settings, without --force.
          DataDamagedError: more images were left out than are allowed.
        """
        there, made = self._found()
        if not self._wanted.force:
            self._refuse_differences(there, made)
        self._refuse_strangers(made)
        replaced = self._replaced(there, made)
        left = [s for s in self._splits if s in replaced or not self._is_whole(there, s)]
        if kept := set(made) - set(replaced):
            self._refuse_other_codec(there, left, kept)
        if not left and there is not None:
            check_finished(self.store.where(), there, self._wanted.allowed_bad_images)
        return left

    def begin(self, left: Sequence[str]) -> None:
        """Marks the place as this run's; a refused run has left no such mark.

        Args:
          left: the splits that will be written. What --force replaces of them is removed.

        Raises:
          UsageError: another run took it since `left` looked.
        """
        there, made = self._found()
        for split in self._replaced(there, made):
            self._discard(split)
            del made[split]
        content = self._mark(made, left)
        if self.store.claim(_BEGUN, content) != content:
            # A bucket keeps what was there: the mark of another run, or of ours for other splits.
            self.left()
            self.store.write(_BEGUN, self._mark(self._found()[1], left))
        if folder := self.store.as_folder:
            # For `report`. A bucket gets no paths of this machine.
            folder.write(naming.ORIGIN, json.dumps(self._wanted.origin).encode())

    def _mark(self, made: dict[str, dict[str, Any]], left: Sequence[str]) -> bytes:
        """Returns the content of run.json where `left` is added to what was made."""
        wanted = self._wanted
        begun = Settings(
            wanted.settings.verb, made | {split: self._splits[split] for split in left}
        )
        return canonical.dumps({"config": begun.config, "libraries": wanted.libraries})

    def watch(self, receipt: dict[str, Any]) -> None:
        """Counts bad images, and what this run wrote; for `engine.run`."""
        self._bad += [i for i in receipt.get("incidents", ()) if i["action"] == QUARANTINED]
        refuse_too_many(self._bad, self._wanted.allowed_bad_images)
        if "shard" in receipt and receipt["start_s"] >= self._start:
            self._new.append(receipt)

    def commit(
        self,
        splits: dict[str, Split],
        classes: ClassList,
        *,
        incidents: Sequence[dict[str, Any]] = (),
        sources: Sequence[Source] = (),
        missing_features: dict[str, str] | None = None,
        plan_digest: str | None = None,
        edition: str | None = None,
        dropped: str = "",
    ) -> None:
        """Publishes a manifest of these splits and of those that were there before.

        Args:
          splits: complete ones to add or replace.
          classes, incidents, sources, missing_features: for the manifest and small files.
          plan_digest: None for the digest of the sources.
          edition: of ImageNet, "" for none that has a name; None to work it out from the sources.
          dropped: a split to leave out of the manifest.

        Raises:
          IncompleteError: the disk is full, or a published file is gone.
        """
        wanted, there = self._wanted, self.committed()
        made = {split: self._splits[split] for split in splits}
        libraries, missing_features = wanted.libraries, missing_features or {}
        if there and (kept := set(there.splits) - {*splits, dropped}):
            splits = splits | {split: there.splits[split] for split in kept}
            libraries = there.producer.libraries | (libraries if made else {})
            made |= {split: settings.parse(there.config).splits[split] for split in kept}
            missing_features = there.lacks | missing_features
            incidents = [*incidents, *self._listed_incidents(kept)]
            before = (source for source in there.sources if split_of(source.name) in kept)
            sources = sorted([*sources, *before], key=_place)
        if plan_digest is None:
            plan_digest = canonical.digest([[s.name, s.num_bytes, s.md5] for s in sources])
        if (subset := wanted.subset) is None:
            edition, subset = _identified(edition, classes, splits, sources)
        config = Settings(wanted.settings.verb, made).config
        draft = Manifest(
            schema_version=manifest.SCHEMA_VERSION,
            producer=manifest.Producer("imagenet-prep", imagenet_prep.__version__, libraries),
            config=config,
            config_digest=canonical.digest(config),
            plan_digest=plan_digest,
            label_offset=wanted.label_offset,
            subset=subset,
            classes=manifest.Classes(len(classes.wnids), classes.digest, classes.official),
            sources=[*sources],
            splits={split: splits[split] for split in schema.SPLITS if split in splits},
            quarantined={},
            repaired={},
            files=[],
            lacks=missing_features,
            edition=edition or "",
        )
        labels = classes.render()
        publish(self.store, draft, incidents=incidents, labels_file=labels, name=wanted.name)

    def _listed_incidents(self, splits: set[str]) -> list[dict[str, Any]]:
        """Returns the lines of quarantine.jsonl that belong to these splits.

        A run that was killed before its manifest may have left lines of its own there.
        """
        lines = map(canonical.loads, self.store.read(naming.QUARANTINE).splitlines())
        return [incident for incident in lines if split_of(incident["archive"]) in splits]

    def committed(self) -> Manifest | None:
        """Returns the manifest that is here, if one is."""
        # A listing fails if there is no such bucket; a request for the manifest would not.
        if naming.MANIFEST not in self.store.list_folder():
            return None
        return manifest.loads(self.store.read(naming.MANIFEST), self.store.where(naming.MANIFEST))

    def summary(self) -> dict[str, Any]:
        """Returns the summary for the user."""
        committed = self.committed()
        assert committed is not None
        path = self.store.where(naming.MANIFEST)
        return summarise(path, committed, self._new, time.time() - self._start)

    def _found(self) -> tuple[Manifest | None, dict[str, dict[str, Any]]]:
        """Returns the manifest, and the settings of the splits this verb finished or began here."""
        verb = self._wanted.settings.verb
        there, begun = self.committed(), self._begun()
        made: dict[str, dict[str, Any]] = {}
        for config in [*([begun["config"]] if begun else []), *([there.config] if there else [])]:
            try:
                found = settings.parse(config)
            except ValueError:
                found = Settings("", {})
            if found.verb != verb:
                raise UsageError(
                    f"{self.store.where()} holds a data set that {verb} did not make. Choose "
                    "another folder."
                )
            made |= found.splits
            if verb == settings.PREPARE:
                # It makes all splits at once: with others it is another set.
                made |= dict.fromkeys(self._splits, config)
        return there, made

    def _begun(self) -> dict[str, Any] | None:
        if self.store.size(_BEGUN) is None:
            return None
        return notes.read(self.store, _BEGUN, config=dict, libraries=dict)

    def _refuse_differences(self, there: Manifest | None, made: dict[str, dict[str, Any]]) -> None:
        found = [
            f"{name} is {made[split].get(name)!r} there, {wanted.get(name)!r} here"
            for split, wanted in self._splits.items()
            for name in wanted | made.get(split, {})
            if split in made and made[split].get(name) != wanted.get(name)
        ]
        if there and (sizes := self._wanted.source_sizes):
            was = {source.name: source.num_bytes for source in there.sources}
            found += [
                f"{name} was {was[name]:,} bytes, is {size:,}"
                if name in was
                else f"{name} was not there"
                for name, size in sizes.items()
                if was.get(name) != size
            ]
        if not found:
            return
        held, first = "another data set", ""
        if there is None:
            held, first = "the unfinished work of another run", "Finish it as it was started, or c"
        advice = ""
        if self._wanted.force is not None:
            advice = ", or let --force replace what is there"
        raise UsageError(
            f"{self.store.where()} holds {held}: {'; '.join(dict.fromkeys(found))}. "
            f"{first or 'C'}hoose another folder{advice}."
        )

    def _refuse_strangers(self, made: dict[str, dict[str, Any]]) -> None:
        strangers = [
            name
            for name in filter(naming.looks_like_shard, self.store.list_folder())
            if (shard := naming.parse_shard_name(name)) is None or shard.split not in made
        ]
        if strangers:
            raise UsageError(
                f"{self.store.where()} already holds {some(strangers)}, which no run "
                f"of {self._wanted.settings.verb} left there. Choose an empty folder."
            )

    def _replaced(self, there: Manifest | None, made: dict[str, dict[str, Any]]) -> list[str]:
        """Returns the splits here that --force replaces: of other settings, or another codec."""
        if not self._wanted.force:
            return []
        other = bool(self._other_codec(there))
        return [s for s in self._splits if s in made and (other or made[s] != self._splits[s])]

    def _other_codec(self, there: Manifest | None) -> dict[str, str]:
        """Returns the libraries that were used here, empty if this run may go on with them."""
        begun, ours = self._begun(), self._wanted.libraries
        used: dict[str, str] = there.producer.libraries if there else {}
        if begun is not None:
            used = begun["libraries"]
        return used if ours and used != ours else {}  # without any, images are only kept

    def _refuse_other_codec(
        self, there: Manifest | None, left: Sequence[str], kept: set[str]
    ) -> None:
        """Refuses to finish what another codec began, or to add to what it finished."""
        used = self._other_codec(there)
        if self._begun() is None and there and set(there.splits) <= set(left):
            return  # nothing stays of what it made
        where, advice = self.store.where(), "or choose another folder."
        if self._wanted.force is False and kept <= self._splits.keys():
            advice = "choose another folder, or let --force replace what is there."
        if _CODEC in used:
            raise UsageError(
                f"{where} was begun with {_CODEC} {used[_CODEC]} (here "
                f"{self._wanted.libraries.get(_CODEC)}). Finish it with that, {advice}"
            )
        if used and left:
            raise UsageError(
                f"{where} was begun by an older imagenet-prep, whose images depend on the "
                "processor: this one makes other bytes of them. Finish it with the older one, "
                f"{advice}"
            )

    def _is_whole(self, there: Manifest | None, split: str) -> bool:
        if there is None or settings.parse(there.config).splits.get(split) != self._splits[split]:
            return False
        files = there.files_of([split])
        sizes = self.store.sizes(file.name for file in files)
        return all(sizes.get(file.name) == file.num_bytes for file in files)

    def _discard(self, split: str) -> None:
        """Removes a split, from the manifest first: it never names files that are gone."""
        store, there = self.store, self.committed()
        if there is not None and split in there.splits:
            if len(there.splits) > 1:
                self.commit({}, listed_classes(store, there), dropped=split)
            else:
                store.remove(naming.MANIFEST)
        for name in store.names(""):
            parsed = naming.parse_shard_name(name)
            if parsed is not None and parsed.split == split:
                store.remove(name)
                store.remove(naming.index_name(name))
        # A new shard of the same size would seem finished by an old receipt.
        for name in store.list_folder(naming.WORK):
            if name.startswith(f"{self._wanted.settings.verb}-{split}-"):
                store.remove_tree(f"{naming.WORK}/{name}")


def _place(source: Source) -> tuple[int, str]:
    return schema.SPLITS.index(split_of(source.name)), source.name


def _identified(
    edition: str | None, classes: ClassList, splits: dict[str, Split], sources: Sequence[Source]
) -> tuple[str, bool]:
    """Returns the edition, and whether images of ILSVRC2012 are missing.

    What counts are the images before any was left out, as far as sources count them.
    """
    members = Counter(dict.fromkeys(splits, 0))
    for source in sources:
        members[split_of(source.name)] += source.members
    totals = {split: members[split] or splits[split].examples for split in splits}
    whole = "" if edition == "" else editions.recognised(classes, totals)
    return edition or whole, not whole and not editions.ILSVRC2012.is_it(classes, totals)
