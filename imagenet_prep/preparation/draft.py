"""A dataset about to be committed: the result of a run, and its manifest."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import imagenet_prep
from imagenet_prep.core import canonical
from imagenet_prep.dataset import editions, manifest, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, Source, Split
from imagenet_prep.dataset.member import Incident
from imagenet_prep.dataset.settings import Config
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.sources.shard_files import split_of


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The splits that a run adds or replaces, and the facts about their images.

    `plan_digest` is None for the digest of the sources. `edition` is "" for an unnamed one, None to
    derive it from the sources. If there is a `parent`, its edition and answers are used.
    """

    splits: dict[str, Split]
    classes: ClassList
    incidents: Sequence[Incident] = ()
    sources: Sequence[Source] = ()
    lacks: dict[str, str] = field(default_factory=dict)
    plan_digest: str | None = None
    edition: str | None = None
    answers: dict[str, list[str]] = field(default_factory=dict)
    parent: Manifest | None = None

    def with_kept(
        self,
        existing: Manifest,
        kept: Collection[str],
        listed: Iterable[Incident],
        lacks: dict[str, str],
    ) -> Draft:
        """Returns this draft plus the splits that stay, with their incidents and missing keys."""
        before = (source for source in existing.sources if split_of(source.name) in kept)

        def place(source: Source) -> tuple[int, str]:
            return schema.SPLITS.index(split_of(source.name)), source.name

        return dataclasses.replace(
            self,
            splits=self.splits | {split: existing.splits[split] for split in kept},
            lacks=lacks | self.lacks,
            incidents=[*self.incidents, *(i for i in listed if split_of(i.archive) in kept)],
            sources=sorted([*self.sources, *before], key=place),
        )

    def manifest(self, wanted: Wanted, config: Config, libraries: dict[str, str]) -> Manifest:
        """Returns the dataset's manifest, to be completed by `shards.commit.publish`."""
        plan_digest, classes, parent = self.plan_digest, self.classes, self.parent
        if plan_digest is None:
            plan_digest = canonical.digest([[s.name, s.num_bytes, s.md5] for s in self.sources])
        edition, subset = parent.edition if parent else self.edition, wanted.subset
        if subset is None:
            edition, subset = self._identified(edition)
        return Manifest(
            schema_version=manifest.SCHEMA_VERSION,
            producer=manifest.Producer("imagenet-prep", imagenet_prep.__version__, libraries),
            config=config,
            config_digest=canonical.digest(config),
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
        """Returns a split; the split of an evaluation set lists only the classes that occur."""
        split = self.splits[name]
        if name != schema.TEST:
            return split
        counts = zip(self.classes.wnids, split.examples_per_class, strict=True)
        return dataclasses.replace(split, wnids=[wnid for wnid, count in counts if count])

    def _identified(self, edition: str | None) -> tuple[str, bool]:
        """Returns the edition, and whether the sources lack images of ILSVRC2012."""
        members = Counter(dict.fromkeys(self.splits, 0))
        for source in self.sources:
            members[split_of(source.name)] += source.members
        totals = {name: members[name] or split.examples for name, split in self.splits.items()}
        complete = "" if edition == "" else editions.recognised(self.classes, totals)
        is_it = editions.ILSVRC2012.is_it(self.classes, totals)
        return edition or complete, not complete and not is_it
