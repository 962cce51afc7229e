"""The folder or bucket that a run fills: whose it is, which splits are left, the commit.

Prepare commits all its splits at once. Resize commits one after the other, so that a second run
may add another. At any moment, the manifest names the finished splits.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from imagenet_prep.core import canonical, monitoring, records
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    ManifestError,
    StoreError,
)
from imagenet_prep.dataset import naming, settings
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.member import QUARANTINED, Incident
from imagenet_prep.dataset.settings import Settings
from imagenet_prep.engine import Receipt, Stage
from imagenet_prep.preparation import standing
from imagenet_prep.preparation.draft import Draft
from imagenet_prep.preparation.standing import Begun, Decision, Noted, Standing, Wanted
from imagenet_prep.shards.commit import publish, refuse_too_many
from imagenet_prep.shards.summary import summarise
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage import origins
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.store import Readable, Store

# A key and a path have 4,096 bytes at most, and a detail some hundreds.
_MOST_LINE_BYTES = 64 << 10


class Output:
    """The folder or prefix that runs fill.

    Attributes:
      seen: its content when `left` was last called.
      changed: splits that --force replaces, since their source has changed.
    """

    seen: Standing

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.store = store
        self.wanted = wanted
        self._splits = wanted.settings.splits
        self.changed = set[str]()
        self._decision: Decision | None = None
        self._bad: list[Incident] = []
        self._start = time.time()
        self._new: list[WrittenShard] = []

    @property
    def is_doubted(self) -> bool:
        """Whether the dataset may have been made from other sources, as `left` last saw it."""
        return self._decision is not None and self._decision.is_doubted

    def left(self) -> list[str]:
        """Looks at the place again; returns the wanted splits that are not complete there."""
        return self._decide().left

    def begin(self, left: Sequence[str]) -> None:
        """Marks the place as this run's, which will write the splits `left`.

        A refused run has left no such mark. What --force replaces of these splits is removed.
        """
        decision = self._decision or self._decide()
        made = dict(decision.made)
        for split in decision.replaced:
            self._discard(split)
            del made[split]
        content = self._mark(made, left)
        if self.store.claim(standing.BEGUN, content) != content:
            # A bucket keeps what was there: the mark of another run, or of ours for other splits.
            self.store.write(standing.BEGUN, self._mark(self._decide().made, left))

    def _decide(self) -> Decision:
        self.seen = standing.look(self.store, self.wanted)
        decision = self._decision = standing.decide(self.seen, self.wanted, self.changed)
        if not decision.left and (folder := self.store.as_folder):
            folder.settle()
        return decision

    def _mark(self, made: dict[str, settings.Config], left: Sequence[str]) -> bytes:
        """Returns the content of run.json where `left` is added to what was made."""
        begun = made | {split: self._splits[split] for split in left}
        config = Settings(self.wanted.settings.verb, begun).config
        return canonical.dumps(Begun(config, self.wanted.libraries))

    def forget_others(self, stage: Stage[Any, Any]) -> None:
        """Removes receipts of other runs of a stage: its files may have the sizes of theirs."""
        for name in self.store.list_folder(naming.WORK):
            others = name.startswith(f"{stage.name}-") and len(name) == len(stage.name) + 17
            if others and f"{naming.WORK}/{name}" != stage.folder:
                self.store.remove_tree(f"{naming.WORK}/{name}")

    def watch(self, receipt: Receipt[Any]) -> None:
        """Counts bad images, and what this run wrote; for `engine.run`."""
        shard = receipt.content
        if isinstance(shard, WrittenShard):
            self._bad += [each for each in shard.incidents if each.action == QUARANTINED]
            monitoring.quarantined(len(self._bad))
            refuse_too_many(self._bad, self.wanted.allowed_bad_images)
            if receipt.start_s >= self._start:
                self._new.append(shard)

    def commit(self, draft: Draft, *, dropped: str = "") -> None:
        """Publishes a manifest of a draft's splits and of those that were there; `dropped` goes."""
        wanted, seen = self.wanted, standing.look(self.store, self.wanted)
        there, libraries = seen.committed, wanted.libraries
        made = {split: self._splits[split] for split in draft.splits}
        noted = {split: (wanted.identities.get(split, ""), draft.lacks) for split in draft.splits}
        kept, listed = self._kept(there, {*draft.splits, dropped}) if there else (set(), [])
        if there and kept:
            noted |= {split: seen.noted.splits[split] for split in kept}
            finished = seen.finished
            libraries = there.producer.libraries | (libraries if made else {})
            made |= {split: finished[split] for split in kept}
            lacks = {key: kind for split in kept for key, kind in noted[split][1].items()}
            draft = draft.with_kept(there, kept, listed, lacks)
        if not draft.splits:
            self.store.remove(naming.MANIFEST, naming.REPLACED)
            return
        manifest = publish(
            self.store,
            draft.manifest(wanted, Settings(wanted.settings.verb, made).config, libraries),
            incidents=draft.incidents,
            classes=draft.classes,
            name=wanted.name,
            replaced=there,
        )
        if wanted.identities:
            self._note(manifest.digest, noted)

    def _kept(self, there: Manifest, others: set[str]) -> tuple[set[str], list[Incident]]:
        """Returns the splits that stay, and the lines of quarantine.jsonl.

        None stays if lines are lost. A run that was killed before its manifest may have left lines
        of its own there.
        """
        kept = set(there.splits) - others
        if not kept:
            return kept, []
        with contextlib.suppress(ManifestError):
            listed = [*listed_incidents(self.store)]
            if len(listed) >= sum((*there.quarantined.values(), *there.repaired.values())):
                return kept, listed
        if kept - {*(self._decision.left if self._decision else ())}:
            raise DataDamagedError(
                f"{self.store.where(naming.QUARANTINE)}: missing or cut, and it names images of "
                f"{', '.join(sorted(kept))}. Run the same command for all splits together "
                f"({', '.join(there.splits)}): it makes the file again."
            )
        return set(), []

    def note_source(self) -> None:
        """Notes that the finished splits are what their source would make."""
        noted, wanted = self.seen.noted, self.wanted.identities
        splits = {s: (wanted.get(s, was), lacks) for s, (was, lacks) in noted.splits.items()}
        self._note(noted.dataset, splits)

    def _note(self, dataset: str, splits: dict[str, tuple[str, dict[str, str]]]) -> None:
        # A file may have a time in the future: what changes later must be newer.
        newest = min(self.wanted.newest, int(self._start * 1e9))
        # Without the note, the next run compares source and dataset.
        with contextlib.suppress(ImagenetPrepError):
            noted = Noted(dataset, newest, splits)
            self.store.write(standing.NOTED, canonical.dumps(noted))

    def end(self) -> Json:
        """Notes for `report` where the source of the finished set is; returns the summary."""
        finished = Dataset.at(self.store)
        monitoring.quarantined(sum(finished.manifest.quarantined.values()))
        if self.wanted.origin is not None:
            origins.note(finished.manifest.digest, self.wanted.origin)
        path = self.store.where(naming.MANIFEST)
        return summarise(path, finished, self._new, time.time() - self._start)

    def _discard(self, split: str) -> None:
        """Removes a split, from the manifest first: it never names files that are gone."""
        store, dataset = self.store, self.seen.dataset
        if dataset and split in dataset.manifest.splits:
            self.commit(Draft(splits={}, classes=dataset.classes), dropped=split)
        shards = [
            name
            for name in store.names("")
            if (parsed := naming.parse_shard_name(name)) is not None and parsed.split == split
        ]
        store.remove(*shards, *(name for shard in shards for name in naming.beside(shard)))
        # A new shard of the same size would seem finished by an old receipt.
        for name in store.list_folder(naming.WORK):
            if name.startswith(f"{self.wanted.settings.verb}-{split}-"):
                store.remove_tree(f"{naming.WORK}/{name}")


def listed_incidents(store: Readable, there: Manifest | None = None) -> Iterator[Incident]:
    """Yields the lines of quarantine.jsonl, which grows with the dataset, one at a time.

    The manifest `there` must name this file; without it, any run may have left it.
    """
    digest, where = hashlib.sha256(), store.where(naming.QUARANTINE)
    try:
        if store.size(naming.QUARANTINE) is None:
            raise ValueError("missing")
        with store.opened(naming.QUARANTINE) as opened:
            file = as_file(hashed(opened, [digest]))
            while line := file.readline(_MOST_LINE_BYTES):
                yield records.loads(Incident, line)
        if there and digest.hexdigest() not in (f.sha256 for f in there.files):
            raise ValueError(f"sha256 {digest.hexdigest()} is not in {naming.MANIFEST}")
    except ValueError as error:
        raise ManifestError(f"{where}: {error}. Fetch it again.") from None
    except OSError as error:
        raise StoreError(f"cannot read {where}: {error.strerror or error}") from error
