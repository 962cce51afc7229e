"""dataset.json, the manifest of a dataset: its files with digests, its counts and its settings.

The manifest is written last, so a dataset with a manifest is complete. It also has the digests
of the source archives, and its own digest. It contains no time or host, and only the names of
source archives and folders, not their paths: equal input and settings give an equal manifest.
Fields that have their default value are omitted from the file.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import ManifestError, UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import formats, schema
from imagenet_prep.dataset.settings import Config, DatasetSettings, recognised

SCHEMA_VERSION = 1
# Every record is larger, even with an image of one pixel.
_LEAST_RECORD_BYTES = 64
# Nine times the images of ImageNet-21K. Readers keep the positions of all examples in memory.
_MOST_EXAMPLES = 1 << 27
# Limit for the sum of all counts, so that every partial sum also fits into 64 bits.
_MOST = (1 << 63) - 1
# Limit for the number of values in the file. A manifest with the maximum, 99,999 shards in each of
# three splits, has 2.7 million values. `loads` renders them again, which takes seconds.
_MOST_VALUES = 3_200_000


@dataclass(frozen=True)
class Producer:
    """The program that made the dataset.

    `libraries` has the codec that encoded the images, e.g. {"codec": "planes-1"}. In old datasets,
    it has library versions. It is empty if no image was encoded.
    """

    name: str
    version: str
    libraries: dict[str, str]


@dataclass(frozen=True)
class Classes:
    """Summary of `labels.txt`.

    `digest` is the sha256 of the sorted WNIDs, one per line; `official` means ILSVRC2012's list.
    """

    count: int
    digest: str
    official: bool


@dataclass(frozen=True)
class ManifestSource:
    """One archive or folder that the examples came from.

    Attributes:
      md5: hash of the complete archive; None if `--check header` has not read all of it.
      members: number of its images that were used or quarantined.
      ignored: for folders and tars, the number of files not read, by extension.
      images: for a small folder that `amend` added, its images as SPLIT:KEY; else omitted.
    """

    name: str
    num_bytes: int
    md5: str | None
    members: int
    ignored: dict[str, int] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)

    def without(self, names: Collection[str]) -> ManifestSource:
        """Returns the source without these names in `images`."""
        return replace(self, images=[name for name in self.images if name not in names])


@dataclass(frozen=True)
class Shard:
    """One TFRecord file, its DALI index, and its table of samples, if the dataset has tables."""

    name: str
    examples: int
    num_bytes: int
    sha256: str
    index_bytes: int
    index_sha256: str
    samples_bytes: int = 0
    samples_sha256: str = ""

    @property
    def files(self) -> tuple[DatasetFile, ...]:
        """All files of the shard, with their paths in the dataset; the TFRecord file is last."""
        shard = DatasetFile(self.name, self.num_bytes, self.sha256)
        return (*filter(None, [self.index, self.samples]), shard)

    @property
    def index(self) -> DatasetFile:
        """The DALI index."""
        return DatasetFile(schema.index_name(self.name), self.index_bytes, self.index_sha256)

    @property
    def samples(self) -> DatasetFile | None:
        """The table of samples, or None if the dataset has none."""
        if not self.samples_sha256:
            return None
        return DatasetFile(schema.samples_name(self.name), self.samples_bytes, self.samples_sha256)


@dataclass(frozen=True)
class Split:
    """One split; `examples` and `num_bytes` are totals over its shards.

    Attributes:
      max_height, max_width: largest stored sides in pixels, for decoders' buffers.
      samples_root: root of RFC 6962's tree over all samples (images and labels); "" if the
        dataset has no tables.
      wnids: for an evaluation set, the classes that have images, in the order of the class list.
    """

    examples: int
    num_bytes: int
    examples_per_class: list[int]  # counts by class index
    resized: int  # number of examples whose pixels were resampled
    max_height: int
    max_width: int
    shards: list[Shard]  # in the order of their numbers, from 0
    samples_root: str = ""
    wnids: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DatasetFile:
    """A file of the dataset."""

    name: str
    num_bytes: int
    sha256: str


class FileProblem(str):
    """A damaged or missing file of a replica, in words; running the same command restores it.

    It is a string, so that results with problems can be written as JSON.
    """

    is_missing: bool

    def __new__(cls, text: str, *, is_missing: bool = False) -> Self:
        """Returns the problem that `text` describes."""
        problem = super().__new__(cls, text)
        problem.is_missing = is_missing
        return problem


@dataclass(frozen=True)
class Manifest:
    """The contents of dataset.json.

    Attributes:
      quarantined, repaired: counts by reason; quarantine.jsonl has one line per image.
      lacks: schema keys that are "absent", "empty" or "untrue" in records of a different program;
        `adopt` keeps such records.
      edition: ImageNet edition, e.g. "ImageNet-21K winter21"; "" for the original ILSVRC2012 and
        for unknown editions.
      answers: for each class of ObjectNet, the WNIDs that are correct predictions for its images;
        there may be several.
    """

    schema_version: int
    producer: Producer
    config: Config  # the settings that decide the bytes; `config_digest` is their digest
    config_digest: str
    plan_digest: str  # digest of the assignment of members to shards
    label_offset: int  # difference of stored label and class index
    subset: bool  # True if the counts differ from ILSVRC2012's official ones
    classes: Classes
    sources: list[ManifestSource]
    splits: dict[str, Split]
    quarantined: dict[str, int]
    repaired: dict[str, int]
    files: list[DatasetFile]
    lacks: dict[str, str] = field(default_factory=dict)
    edition: str = ""
    answers: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def settings(self) -> DatasetSettings:
        """The settings in `config`; without a verb if a different program wrote them."""
        return recognised(self.config)

    @property
    def evaluates(self) -> bool:
        """Whether this is an evaluation set, such as ImageNetV2."""
        return schema.TEST in self.splits

    @property
    def ignored(self) -> dict[str, int]:
        """The number of files not read, by extension; a folder that has grown counts once.

        `amend --add` counts all such files of the folder. The folder of an earlier source has the
        same name, and at least as many files of each extension.
        """
        by_folder: dict[str, list[dict[str, int]]] = {}
        for source in self.sources:
            folder = source.name
            if folder.startswith(schema.ADDED):
                _, _, folder = folder.partition("/")
            counts = by_folder.setdefault(folder, [])
            last = counts[-1] if counts else {}
            has_grown = all(source.ignored.get(name, 0) >= n for name, n in last.items())
            if counts and has_grown and source.name != folder:
                counts[-1] = source.ignored
            else:
                counts.append(source.ignored)
        return formats.together(itertools.chain.from_iterable(by_folder.values()))

    @property
    def has_samples(self) -> bool:
        """Whether each shard has a table of samples, and each split a Merkle root."""
        return all(split.samples_root for split in self.splits.values())

    @property
    def claims_ilsvrc2012(self) -> bool:
        """Whether the classes or an archive's name are those of ILSVRC2012."""
        names = (source.name for source in self.sources)
        if self.evaluates:
            return False
        return self.classes.official or any(name.startswith("ILSVRC2012") for name in names)

    def present(self, split: str, wnids: Sequence[str]) -> list[int]:
        """Returns the sorted class indices that occur in a split, as labels or as answers."""
        counts = self.splits[split].examples_per_class
        answers = {*itertools.chain.from_iterable(self.answers.values())}
        present = {index for index, count in enumerate(counts[: len(wnids)]) if count}
        return sorted(present | {index for index, wnid in enumerate(wnids) if wnid in answers})

    def shards_of(self, splits: Iterable[str]) -> list[Shard]:
        """Returns the shards of these splits."""
        return [*itertools.chain.from_iterable(self.splits[split].shards for split in splits)]

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits."""
        return self.shards_of(self.splits)

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards of all splits."""
        return [shard.name for shard in self.shards]

    def files_of(self, splits: Iterable[str]) -> list[DatasetFile]:
        """Returns the small files of the dataset, and all files of the shards in these splits."""
        files = (shard.files for shard in self.shards_of(splits))
        return [*self.files, *itertools.chain.from_iterable(files)]

    def dumps(self) -> bytes:
        """Returns the file's bytes, including its own digest."""
        return render(strict_json.fields(self))

    @cached_property
    def digest(self) -> str:
        """The sha256 that identifies this exact dataset."""
        return strict_json.digest(self)


def require_samples(manifest: Manifest | None, where: str) -> Manifest:
    """Returns the manifest unchanged; raises UsageError if the dataset has no tables of samples."""
    if manifest is None or not manifest.has_samples:
        raise UsageError(
            f"{where}: has no tables of samples, which list its images. To write them: "
            f"imagenet-prep adopt {shlex.quote(where)} (add --out NEW if a different program made "
            "the shards). The images stay unchanged."
        )
    return manifest


def loads(data: bytes, where: str) -> Manifest:
    """Returns the manifest in the bytes of dataset.json; raises ManifestError if it is damaged."""
    advice = (
        "Copy it again from the original dataset; or delete only this file, and run the command "
        "that made the dataset again, which keeps finished shards."
    )
    try:
        content = strict_json.loads(data, _MOST_VALUES)
        strict_json.dumps(content)  # Raises ValueError for values that this program cannot write.
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: damaged, not JSON ({error}). {advice}") from error
    if not isinstance(content, dict) or "schema_version" not in content:
        raise ManifestError(f"{where}: not a manifest of imagenet-prep. {advice}")
    version = content["schema_version"]
    if version != SCHEMA_VERSION:
        raise ManifestError(
            f"{where}: schema version {version!r}, expected {SCHEMA_VERSION}. If the dataset is "
            "newer, upgrade imagenet-prep; if not, the file is damaged."
        )
    stated = content.pop("digest", None)
    if stated != strict_json.digest(content):
        raise ManifestError(
            f"{where}: damaged or edited: its digest is {strict_json.digest(content)}, expected "
            f"{stated!r}. {advice}"
        )
    # The digest only covers the values; this comparison also covers the formatting.
    if render(content) != data:
        raise ManifestError(f"{where}: its formatting was changed. {advice}")
    try:
        manifest = strict_json.parse(Manifest, content, where)
    except ValueError as error:
        raise ManifestError(str(error)) from None
    problem = _numbers_problem(content) or _names_problem(manifest) or _sizes_problem(manifest)
    if problem is not None:
        raise ManifestError(f"{where}: {problem}. This program did not write it. {advice}")
    return manifest


def _numbers_problem(content: Json) -> str | None:
    """Returns the problem if a number is negative or does not fit into 64 bits."""
    # Settings are not counts: a seed may be negative.
    if not all(-_MOST - 1 <= number <= _MOST for number in _numbers(content["config"])):
        return f"a setting is beyond {_MOST:,}"
    counts = list(_numbers({key: content[key] for key in content if key != "config"}))
    if min(counts) < 0:
        return "a number is below 0"
    return f"its counts add up to more than {_MOST:,}" if sum(counts) > _MOST else None


def _numbers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)


def _names_problem(manifest: Manifest) -> str | None:
    """Returns the problem if a name is invalid as a path or object key."""
    for name, split in manifest.splits.items():
        if name not in schema.SPLITS:
            return f"the split {name!r} is unknown, expected one of {', '.join(schema.SPLITS)}"
        total = len(split.shards)
        if not 0 < total <= schema.MAX_SHARDS:
            return f"{total:,} shards of {name}, expected 1 to {schema.MAX_SHARDS:,}"
        for number, shard in enumerate(split.shards):
            expected = schema.shard_name(name, number, total)
            if shard.name != expected:
                return f"the split {name} has a shard {shard.name!r}, expected {expected}"
    seen = set()
    for file in manifest.files:
        if not schema.is_small_file(file.name):
            return f"{file.name!r} is not a valid name for a small file"
        if file.name in seen:
            return f"the file {file.name!r} is listed twice"
        seen.add(file.name)
    if not manifest.edition.isprintable():
        return f"the edition {manifest.edition!r} has unprintable characters"
    return None if schema.LABELS in seen else f"it does not list {schema.LABELS}"


def _sizes_problem(manifest: Manifest) -> str | None:
    """Returns the problem if a count is impossible; readers allocate memory based on counts."""
    if not manifest.splits:
        return "it has no splits"
    for name, split in manifest.splits.items():
        for shard in split.shards:
            if shard.examples * _LEAST_RECORD_BYTES > shard.num_bytes:
                return f"{shard.name}: {shard.examples:,} examples in {shard.num_bytes:,} bytes"
        examples = sum(shard.examples for shard in split.shards)
        if examples > _MOST_EXAMPLES:
            return f"{examples:,} examples of {name}, expected at most {_MOST_EXAMPLES:,}"
        has_tables = {bool(shard.samples_sha256) for shard in split.shards}
        if has_tables != {bool(split.samples_root)}:
            return f"{name}: only some shards have tables of samples"
    return None


def render(content: Json) -> bytes:
    """Returns `content` as the bytes of a JSON file, with the digest of `content` added."""
    signed = {**content, "digest": strict_json.digest(content)}
    text = json.dumps(
        signed, indent=1, sort_keys=True, ensure_ascii=False, default=strict_json.fields
    )
    return text.encode() + b"\n"
