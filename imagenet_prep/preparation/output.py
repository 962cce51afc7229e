"""Manages the output location of a run: claims it for the run and commits finished splits.

`prepare` commits all splits at once. `resize` commits splits one by one, and a later run can add
splits. The manifest always lists the finished splits.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from imagenet_prep import engine
from imagenet_prep.core import monitoring, strict_json
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    ManifestError,
    UsageError,
)
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.version import version
from imagenet_prep.dataset import class_list, formats, manifest, schema, settings
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, ManifestSource, Split
from imagenet_prep.dataset.member import OF_INPUT, QUARANTINED, Incident
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.engine import Stage, TaskReceipt
from imagenet_prep.preparation import output_state
from imagenet_prep.preparation.output_state import Begun, Decision, Noted, Standing, WantedDataset
from imagenet_prep.shards.commit import publish, refuse_too_many, summarise
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources.shard_files import TfrecordSet, split_of
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset, refuse_unrelated, shard_files, stray_files
from imagenet_prep.storage.ledger import note_source
from imagenet_prep.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The splits that a run adds or replaces, and the remaining values for the manifest."""

    splits: dict[str, Split]
    classes: ClassList
    incidents: Sequence[Incident] = ()
    sources: Sequence[ManifestSource] = ()
    lacks: dict[str, str] = field(default_factory=dict)
    plan_digest: str | None = None  # None to compute it from the sources
    edition: str | None = None  # "" for no known edition; None to derive it from the sources
    answers: dict[str, list[str]] = field(default_factory=dict)
    parent: Manifest | None = None  # its edition and answers are used instead

    def with_kept(
        self,
        existing: Manifest,
        kept: set[str],
        listed: Iterable[Incident],
        lacks: dict[str, str],
    ) -> Draft:
        """Adds the `kept` splits of the existing manifest, with their incidents and sources."""
        before = (source for source in existing.sources if split_of(source.name) in kept)

        def place(source: ManifestSource) -> tuple[int, str]:
            return schema.SPLITS.index(split_of(source.name)), source.name

        # Lines of an unknown split, and of excluded images of the input, may be in both lists.
        # The splits that keep the bytes are only noted in the finished list.
        new = {replace(line, kept_in=()) for line in self.incidents}
        others = existing.splits.keys() - kept
        kept_lines = (
            line
            for line in listed
            if replace(line, kept_in=()) not in new and line.split not in others
        )
        return replace(
            self,
            splits=self.splits | {split: existing.splits[split] for split in kept},
            lacks=lacks | self.lacks,
            incidents=[*self.incidents, *kept_lines],
            sources=sorted([*self.sources, *before], key=place),
        )

    def manifest(
        self, wanted: WantedDataset, config: settings.Config, libraries: dict[str, str]
    ) -> Manifest:
        """Returns an incomplete manifest of the dataset; `shards.commit.publish` completes it."""
        plan_digest = self.plan_digest
        classes = self.classes
        parent = self.parent
        if plan_digest is None:
            plan_digest = strict_json.digest([[s.name, s.num_bytes, s.md5] for s in self.sources])
        edition = parent.edition if parent else self.edition
        subset = wanted.subset
        if subset is None:
            edition, subset = self._identified(edition)
        return Manifest(
            schema_version=manifest.SCHEMA_VERSION,
            producer=manifest.Producer("imagenet-prep", version(), libraries),
            config=config,
            config_digest=strict_json.digest(config),
            plan_digest=plan_digest,
            label_offset=wanted.label_offset,
            subset=subset,
            classes=manifest.Classes(len(classes.wnids), classes.digest, classes.official),
            sources=[*self.sources],
            splits={name: self._with_wnids(name) for name in schema.SPLITS if name in self.splits},
            quarantined={},
            repaired={},
            files=[],
            lacks=self.lacks,
            edition=edition or "",
            answers=parent.answers if parent else self.answers,
        )

    def _with_wnids(self, name: str) -> Split:
        """Returns a split; adds the WNIDs of its images if it is `test` (of an evaluation set)."""
        split = self.splits[name]
        if name != schema.TEST:
            return split
        counts = zip(self.classes.wnids, split.examples_per_class, strict=True)
        return replace(split, wnids=[wnid for wnid, count in counts if count])

    def _identified(self, edition: str | None) -> tuple[str, bool]:
        """Returns the edition, and whether the sources lack images of ILSVRC2012."""
        members = Counter(dict.fromkeys(self.splits, 0))
        for source in self.sources:
            members[split_of(source.name)] += source.members
        totals = {name: members[name] or split.examples for name, split in self.splits.items()}
        complete = "" if edition == "" else class_list.recognised(self.classes, totals)
        is_it = class_list.ILSVRC2012.is_it(self.classes, totals)
        return edition or complete, not complete and not is_it


class Output:
    """The output folder or prefix of a run."""

    seen: Standing  # the content of the output at the last call of `left`

    def __init__(self, store: Store, wanted: WantedDataset) -> None:
        self.store = store
        self.wanted = wanted
        self._splits = wanted.settings.splits
        self.changed = set[str]()  # splits that --force replaces because their source has changed
        self.is_doubted = False  # whether the sources may have changed, set by `left`
        self._decision: Decision | None = None
        self._pending = set[str]()  # the splits that this run writes
        self._bad: list[Incident] = []
        self._start = time.time()
        self._new: list[WrittenShard] = []

    def left(self) -> list[str]:
        """Reads the output again; returns the wanted splits that are not finished."""
        return self._decide().left

    def begin(self, left: Sequence[str], shards: Sequence[str]) -> None:
        """Claims the output for the splits `left`, with these `shards`.

        Removes splits that --force replaces, and shards of older plans.
        """
        older = self.older_files(shards)
        decision = self._decision or self._decide()
        self._pending = {*left}
        for split in decision.replaced:
            self._discard(split)
        self.store.remove(*older)
        existing = decision.made.items()
        kept = {split: config for split, config in existing if split not in decision.replaced}
        content = self._mark(kept, left)
        if self.store.write_if_absent(output_state.BEGUN, content) != content:
            # A bucket keeps an existing claim, by a different run or by ours for other splits.
            self.store.write(output_state.BEGUN, self._mark(self._decide().made, left))

    def older_files(self, shards: Sequence[str]) -> list[str]:
        """Returns the files of older plans, which `begin` removes; see `_older` for the error."""
        decision = self._decision or self._decide()
        listed = self.seen.committed.shard_names if self.seen.committed else []
        return self._older([*shards, *listed], decision.replaced)

    def _older(self, shards: Collection[str], others: Collection[str]) -> list[str]:
        """Returns files of older plans, neither of these shards nor of the splits `others`.

        Raises UsageError if no receipt proves that this program wrote one of them.
        """
        names = stray_files(self.store, shards)
        older = [name for name in names if schema.split_of(name) not in others]
        sizes = self.store.sizes(older)
        written = engine.published(self.store, {*map(schema.shard_of, older)})
        unknown = [name for name in older if (name, sizes.get(name)) not in written]
        if unknown:
            raise output_state.not_ours(self.store.where(), self.wanted.settings.verb, unknown)
        return older

    def _decide(self) -> Decision:
        local = self.store.as_folder
        if local and local.size(schema.PLACEMENT) is not None:
            raise UsageError(
                f"{self.store.where()} has one host's part of a dataset ({schema.PLACEMENT}), "
                "which only replicate completes. Choose a different folder."
            )
        self.seen = output_state.look(self.store, self.wanted)
        if self.seen.dataset is None and self.seen.begun is None:
            origin = self.wanted.origin
            refuse_unrelated(self.store, origin.root if origin else None)
        decision = self._decision = output_state.decide(self.seen, self.wanted, self.changed)
        self.is_doubted = decision.is_doubted
        if not decision.left and self.store.as_folder:
            self.store.as_folder.settle()
        return decision

    def _mark(self, made: dict[str, settings.Config], left: Sequence[str]) -> bytes:
        begun = made | {split: self._splits[split] for split in left}
        config = DatasetSettings(self.wanted.settings.verb, begun).config
        return strict_json.dumps(Begun(config, self.wanted.libraries))

    def forget_others(self, stage: Stage[Any, Any]) -> None:
        """Removes receipts that this stage wrote with different settings: they may look valid."""
        for name in self.store.list_folder(schema.WORK):
            is_other = name.startswith(f"{stage.name}-") and len(name) == len(stage.name) + 17
            if is_other and f"{schema.WORK}/{name}" != stage.folder:
                self.store.remove_tree(f"{schema.WORK}/{name}")

    def watch(self, receipt: TaskReceipt[Any]) -> None:
        """Counts bad images and collects new shards; a callback for `engine.run`."""
        shard = receipt.content
        if isinstance(shard, WrittenShard):
            self._bad += [incident for incident in shard.incidents if incident.is_bad]
            monitoring.quarantined(sum(bad.action == QUARANTINED for bad in self._bad))
            refuse_too_many(self._bad, self.wanted.allowed_bad_images)
            if receipt.start_s >= self._start:
                self._new.append(shard)

    def commit(self, draft: Draft, *, dropped: str = "") -> None:
        """Publishes a manifest: the splits of `draft`, and the existing splits except `dropped`."""
        wanted = self.wanted
        seen = output_state.look(self.store, self.wanted)
        existing = seen.committed
        libraries = wanted.libraries
        made = {split: self._splits[split] for split in draft.splits}
        noted = {split: (wanted.identities.get(split, ""), draft.lacks) for split in draft.splits}
        kept, listed = self._kept(existing, {*draft.splits, dropped}) if existing else (set(), [])
        if existing and kept:
            noted |= {split: seen.noted.splits[split] for split in kept}
            finished = seen.finished
            libraries = existing.producer.libraries | (libraries if made else {})
            made |= {split: finished[split] for split in kept}
            lacks: dict[str, str] = {}
            for split in kept:
                lacks |= noted[split][1]
            draft = draft.with_kept(existing, kept, listed, lacks)
        if not draft.splits:
            self.store.remove(schema.MANIFEST, schema.REPLACED)
            return
        # A killed run, or a lost worker of a cluster, may have written shards of an older plan.
        shards = itertools.chain.from_iterable(split.shards for split in draft.splits.values())
        unfinished = self._pending.difference(draft.splits)
        names = [shard.name for shard in shards]
        self.store.remove(*self._older(names, {dropped, *unfinished}))
        published = publish(
            self.store,
            draft.manifest(wanted, DatasetSettings(wanted.settings.verb, made).config, libraries),
            incidents=draft.incidents,
            classes=draft.classes,
            name=wanted.name,
            replaced=existing,
        )
        if wanted.identities:
            self._note(published.digest, noted)

    def _kept(self, existing: Manifest, others: set[str]) -> tuple[set[str], list[Incident]]:
        """Returns the splits to keep, if any, and the lines of quarantine.jsonl."""
        kept = set(existing.splits) - others
        if not kept:
            return kept, []
        with contextlib.suppress(ManifestError):
            # A killed run may have left extra lines.
            listed = [*dataset_store.incidents(self.store)]
            if len(listed) >= sum((*existing.quarantined.values(), *existing.repaired.values())):
                return kept, listed
        if kept - {*(self._decision.left if self._decision else ())}:
            raise DataDamagedError(
                f"{self.store.where(schema.QUARANTINE)}: missing or truncated, but needed for the "
                f"images of {', '.join(sorted(kept))}. To write the file again, run the same "
                f"command for all splits together ({', '.join(existing.splits)})."
            )
        return set(), []

    def note_source(self) -> None:
        """Records that the finished splits match their source."""
        noted = self.seen.noted
        wanted = self.wanted.identities
        splits = {s: (wanted.get(s, was), lacks) for s, (was, lacks) in noted.splits.items()}
        self._note(noted.dataset, splits)

    def _note(self, dataset: str, splits: dict[str, tuple[str, dict[str, str]]]) -> None:
        # At most the start time: after a file time in the future, later changes would look older.
        newest = min(self.wanted.newest, int(self._start * 1e9))
        # If the note cannot be written, the next run compares source and dataset instead.
        with contextlib.suppress(ImagenetPrepError):
            noted = Noted(dataset, newest, splits)
            self.store.write(output_state.NOTED, strict_json.dumps(noted))

    def end(self) -> Json:
        """Records the source location for `report`; returns the summary."""
        finished = Dataset.at(self.store)
        monitoring.quarantined(sum(finished.manifest.quarantined.values()))
        if self.wanted.origin is not None:
            note_source(finished.manifest.digest, self.wanted.origin)
        path = self.store.where(schema.MANIFEST)
        summary = summarise(path, finished, self._new, time.time() - self._start)
        if "unknown_format" in finished.manifest.quarantined:
            with contextlib.suppress(ImagenetPrepError):  # a missing list must not fail the run
                details = (
                    line.detail
                    for line in dataset_store.incidents(self.store)
                    if line.reason == "unknown_format"
                )
                summary["unread"] = formats.unsupported_in_words(details)
        return summary

    def _discard(self, split: str) -> None:
        """Removes a split: first from the manifest, which must never list missing files."""
        store = self.store
        dataset = self.seen.dataset
        if dataset and split in dataset.manifest.splits:
            self.commit(Draft(splits={}, classes=dataset.classes), dropped=split)
        store.remove(*(name for name in shard_files(store) if schema.split_of(name) == split))
        # With its old receipt, a new shard of the same size would look finished.
        for name in store.list_folder(schema.WORK):
            if name.startswith(f"{self.wanted.settings.verb}-{split}-"):
                store.remove_tree(f"{schema.WORK}/{name}")


def incidents_of_input(found: TfrecordSet) -> list[Incident]:
    """Returns the lines of a dataset's quarantine.jsonl, marked as lines of the input."""
    if found.manifest is None:
        return []
    return [
        line if line.is_of_input else replace(line, action=f"{OF_INPUT}{line.action}")
        for line in dataset_store.incidents(found.store, found.manifest)
    ]
