"""Reads evaluation datasets: ImageNetV2, ImageNet-A, -R, -O, -Sketch, -C and ObjectNet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.formats import ARCHIVE_EXTENSIONS, ending, most_frequent
from imagenet_prep.dataset.keys import CORRUPTIONS, WNID
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import containers, folder, labels, layout, scan, source
from imagenet_prep.sources.layout import (
    MAPPING,
    OBJECTNET_FOLDERS,
    Layout,
    edition_called,
    edition_of,
    layout_of,
    mapped,
)
from imagenet_prep.sources.scan import subfolders
from imagenet_prep.sources.source import IndexTask, PackedImage
from imagenet_prep.storage.remote_path import Location

# ImageNet-C has one archive per group of corruptions.
_C = {"blur.tar", "digital.tar", "extra.tar", "noise.tar", "weather.tar"}
_LOOKED_AT = 64  # files of an archive to search for the first image or tar
_FEW_FOLDERS = 20
_MAPPING_BYTES = 1 << 20
_FOLDERS_BYTES = 16 << 20  # the names of ImageNet-C's 95,000 folders have 3 MB in total


@dataclass(frozen=True)
class EvaluationFolder(folder.FolderSource):
    """An evaluation dataset in a folder."""

    def index(self, task: IndexTask) -> list[Member]:
        """Returns all images of the dataset, sorted by key."""
        files = self._below(task).images
        members = (
            _member(self, f"{task.part}/{path}", f"{task.archive}/{path}", size)
            for path, size, _ in files
        )
        return source.sorted_by_key(filter(None, members), str(self.root))


@dataclass(frozen=True)
class EvaluationArchives(source.Packed):
    """An evaluation dataset in tars or zips; `archives` has their paths by name."""

    archives: dict[str, Location]

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Unpacks one archive and yields its images; raises SourceError if it is damaged."""
        most = MAX_IMAGE_BYTES + 1
        files = containers.contents(
            self.archives[task.part], lambda path: most * (_member(self, path) is not None)
        )
        for path, _, data in files:
            member = _member(self, path)
            if member is not None:
                yield PackedImage(member.key, member.class_index, data)


def _member(of: source.Source, path: str, archive: str = "", size: int = 0) -> Member | None:
    assert of.evaluation is not None
    place = of.evaluation.place(path, path) if scan.is_called_an_image(path) else None
    if place is None:
        return None
    key = of.key_of(schema.TEST, place[0], path, path, place[1])
    return Member(key, archive, 0, size, place[0])


def locate(root: Location) -> list[Location]:
    """Returns the folders or archives at or in `root` that are evaluation datasets."""
    if root.is_file():
        return [root] if root.name.endswith(ARCHIVE_EXTENSIONS) and _is_archive(root) else []
    if not root.is_dir():
        return []
    below: list[Path] = []
    if isinstance(root, Path):
        if layout.named_splits(root).folders:
            return []
        # Prefer folders with the name of a dataset to folders that only have its contents.
        below = [root / name for name in subfolders(root)]
        named = [path for path in below if edition_called(path.name)]
        datasets: list[Location] = [path for path in named if _is_set(path)]
        if datasets:
            return datasets
        if _is_set(root):
            return [root]
        # Many folders are probably classes; checking each would take minutes.
        if len(below) >= _FEW_FOLDERS:
            below = []
    archives = [
        path
        for path in root.iterdir()
        if path.name.endswith(ARCHIVE_EXTENSIONS) and (path.name in _C or edition_called(path.name))
    ]
    return sorted(archives, key=str) or [path for path in below if _is_set(path)]


def _is_archive(archive: Location) -> bool:
    """Returns whether the archive's name or its first image matches an evaluation dataset."""
    if edition_called(archive.name):
        return True
    try:
        files = (path for path, *_ in islice(containers.contents(archive, lambda _: 0), _LOOKED_AT))
        # Stop at a class tar, because to find the next file would read gigabytes.
        matches = (p for p in files if p.endswith(".tar") or scan.is_called_an_image(p))
        first = next(matches, "")
    except SourceError:
        return False  # reading the archive later reports the error
    folder_name = first.rpartition("/")[0].rpartition("/")[2]
    return bool(WNID.fullmatch(folder_name) or folder_name.isdigit())


def _called(place: Path) -> str:
    """Returns a folder's name, or CORRUPTION/NAME if its parent is an ImageNet-C corruption."""
    above = place.parent.name
    return f"{above}/{place.name}" if above in CORRUPTIONS else place.name


def _is_set(place: Path) -> bool:
    place = place.resolve()
    try:
        folders = subfolders(place)
        has_mapping = (place / OBJECTNET_FOLDERS).is_file()
    except (OSError, SourceError):
        return False  # the folder may not belong to the source
    if not folders:
        return has_mapping
    images = filter(scan.is_called_an_image, layout.files_below(place / folders[0]))
    paths = (f"{_called(place)}/{Path(path).relative_to(place)}" for path in images)
    sample = next(paths, f"{place.name}/{folders[0]}/")
    if has_mapping or edition_of([place.name], folders, sample) is not None:
        return True
    # Numbers are usual names of classes. Only ImageNetV2 has 10 images in each of 1,000 folders.
    return {*folders} == {*map(str, range(1000))} and all(
        sum(map(scan.is_called_an_image, layout.files_below(place / name))) == 10
        for name in folders
    )


def find(
    root: Location, splits: Sequence[str], *, follow_links: bool
) -> EvaluationFolder | EvaluationArchives:
    """Returns the evaluation dataset; its class list is ILSVRC2012's."""
    places = locate(root) or [root] * root.is_file()
    names = [place.name for place in places]
    if not places:
        raise UsageError(
            f"--source {root}: holds no evaluation dataset. docs/evaluation.md lists them."
        )
    if len(places) > 1 and not {*names} <= _C:
        raise UsageError(f"--source {root}: holds {' and '.join(names)}. Set --source to one.")
    # The default splits mean that the user did not choose any.
    if tuple(splits) not in (schema.SOURCE_SPLITS, (schema.TEST,)):
        raise UsageError(
            f"--source {root}: {names[0]} is an evaluation dataset, which only has the split test. "
            "Choose --splits test, or remove --splits."
        )
    (place, *_) = places
    if isinstance(place, Path) and place.is_dir():
        return _folder(place.resolve(), None if follow_links else Path(str(root)))
    return _archives({place.name: place for place in places})


def _folder(place: Path, inside: Path | None) -> EvaluationFolder:
    files = scan.below(place, inside, by_content=False)
    name = _called(place)
    in_folder = Counter(f"{name}/{path}".rpartition("/")[0] for path, *_ in files.images)
    lists = [path for path in MAPPING if (place / path).is_file()]
    mapping = {path: source.read_list(place / path).encode() for path in lists}
    sample = f"{name}/{files.images[0][0]}" if files.images else ""
    layout = layout_of([name], sample, in_folder, mapping)
    part = source.folder_part(name, [("", files.images)])
    part = _with_ignored(part, files.ignored, in_folder, layout)
    task = IndexTask(schema.TEST, schema.TEST, name, archive=place.name)
    arguments = labels.official_classes(), (part,), place.parent, None, inside
    return EvaluationFolder(*arguments, is_own=False, evaluation=layout, tasks=(task,))


def _archives(archives: dict[str, Location]) -> EvaluationArchives:
    num_bytes: Counter[str] = Counter()
    in_folder: dict[str, Counter[str]] = {name: Counter() for name in archives}
    ignored: dict[str, Counter[str]] = {name: Counter() for name in archives}
    mapping: dict[str, bytes] = {}
    sample = ""
    remaining_bytes = _FOLDERS_BYTES
    for name, archive in archives.items():
        files = containers.contents(archive, lambda path: _MAPPING_BYTES * bool(mapped(path)))
        for path, size, data in files:
            known, kind = in_folder[name], path.rpartition("/")[0]
            if not scan.is_called_an_image(path):
                known = ignored[name]
                kind = ending(path)
                mapping |= dict.fromkeys(mapped(path), data)
            else:
                sample = sample or path
                num_bytes[name] += size
            remaining_bytes -= len(kind) * (kind not in known)
            if remaining_bytes < 0:
                raise SourceError(
                    f"{archive}: its folder names have over {_FOLDERS_BYTES:,} bytes in total. "
                    "Get the original archive."
                )
            known[kind] += 1
    layout = layout_of([*archives], sample, sum(in_folder.values(), Counter()), mapping)
    parts = (
        _with_ignored(source.file_part(archive), ignored[name], in_folder[name], layout)
        for name, archive in archives.items()
    )
    tasks = (
        IndexTask(f"{schema.TEST}-{i:02d}", schema.TEST, name, num_bytes=num_bytes[name])
        for i, name in enumerate(archives)
    )
    classes = labels.official_classes()
    return EvaluationArchives(
        classes, tuple(parts), archives, evaluation=layout, tasks=tuple(tasks)
    )


def _with_ignored(
    part: source.SourcePart, ignored: Counter[str], in_folder: Counter[str], layout: Layout
) -> source.SourcePart:
    """Returns `part` with the numbers of ignored files and of ObjectNet images without a class."""
    others = sum(
        number for path, number in in_folder.items() if layout.place(f"{path}/*", path) is None
    )
    ignored["of other objects"] += others
    counted = tuple(most_frequent(+ignored).items())
    return part._replace(ignored=counted, images=part.images - others)
