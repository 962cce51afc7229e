"""Detects the kind of a source from the contents of its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.formats import PHOTOGRAPH_EXTENSIONS, ending, ignored_in_words, is_hidden
from imagenet_prep.dataset.keys import ExportKeys
from imagenet_prep.sources import (
    cifar_mnist,
    evaluation,
    folder,
    ilsvrc,
    image_table,
    layout,
    parquet,
    recordio,
    webdataset,
)
from imagenet_prep.sources.labels import CLASSES, Statement
from imagenet_prep.sources.scan import read_errors, refuse_link_out
from imagenet_prep.sources.source import Encode, Source, SourcePart
from imagenet_prep.storage.remote_path import Location, RemotePath

AUTO = "auto"
ILSVRC = "ilsvrc"
FOLDER = "folder"
PARQUET = "parquet"
RECORDIO = "recordio"
IMAGENET21K = "imagenet21k"
CIFAR10 = "cifar10"
MNIST = "mnist"
EVALUATION = "evaluation"
WEBDATASET = "webdataset"
TABLE = "table"
# The kinds that `export` writes, with all splits of a dataset.
_EXPORTS = (FOLDER, PARQUET, RECORDIO, WEBDATASET)

# The Hub's archives of ImageNet, which hold the images of a split, without folders.
_HUB = re.compile(r"(?P<split>train|val|test)_images(?:_\d+)?\.tar\.gz")
_NUMBERED = re.compile(r"(\D*)(\d+)(\D*)")

LAYOUTS = {
    ILSVRC: "ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz; "
    "ILSVRC2012_img_test_v10102019.tar with --splits test",
    IMAGENET21K: "fall11_whole.tar; a folder of nNNNNNNNN.tar, as in winter21_whole.tar.gz",
    FOLDER: "CLASS/*.jpg; train/CLASS/*.JPEG and val/CLASS/*.JPEG, or val/*.JPEG with a list of "
    "labels; Kaggle's ILSVRC/Data/CLS-LOC; tiny-imagenet-200; train_blurred/ and val_blurred/; "
    "imagenet21k_train/ and imagenet21k_val/",
    EVALUATION: "imagenetv2-*.tar.gz, imagenet-a.tar ..., packed or unpacked (docs/evaluation.md)",
    PARQUET: "data/train-00000-of-00294.parquet ..., data/validation-00000-of-00014.parquet ...; "
    "default/train/0000.parquet ...",
    WEBDATASET: "train-000000.tar ..., imagenet1k-validation-00.tar ..., val/000000.tar ..., with "
    "NAME.jpg and NAME.cls or NAME.json",
    TABLE: "images/*.jpg and labels.csv (file, label); train/*.jpg and train.csv; "
    "train/metadata.csv (docs/photographs.md)",
    RECORDIO: "train*.rec and val*.rec, each with its .lst; synset.txt if .lst has no class names",
    CIFAR10: "cifar-10-python.tar.gz, or cifar-10-batches-py/",
    MNIST: "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-..., compressed or not",
}


@read_errors("")
def find(
    root: Location,
    splits: Sequence[str],
    kind: str,
    *,
    encode: Encode,
    encoding: str,
    follow_links: bool = False,
    classes: ClassList | None = None,
) -> tuple[Source, str]:
    """Returns the source of a `kind` (a key of LAYOUTS, or AUTO) and a line that describes it.

    Only folders and tables can be given a class list with `classes`: their labels are names.
    """
    kinds = recognised(root) if kind == AUTO else [kind]
    if kind == AUTO and kinds[:1] == [FOLDER] and TABLE in kinds:
        raise UsageError(
            f"--source {root}: holds class folders and a table of labels. Choose --source-kind "
            f"{FOLDER} or {TABLE}."
        )
    finders: dict[str, Callable[[], Source]] = {
        ILSVRC: partial(ilsvrc.find, root, splits),
        IMAGENET21K: partial(ilsvrc.find_class_tars, root, splits),
        EVALUATION: partial(evaluation.find, root, splits, follow_links=follow_links),
        WEBDATASET: partial(webdataset.find, root, splits),
    }
    if isinstance(root, Path):
        finders |= {
            FOLDER: partial(folder.find, root, splits, follow_links=follow_links, classes=classes),
            TABLE: partial(
                image_table.find, root, splits, follow_links=follow_links, classes=classes
            ),
            PARQUET: partial(parquet.find, root, splits),
            RECORDIO: partial(recordio.find, root, splits),
            CIFAR10: partial(cifar_mnist.find_cifar10, root, encode, encoding),
            MNIST: partial(cifar_mnist.find_mnist, root, splits, encode, encoding),
        }
    if not kinds or kinds[0] not in finders:
        if isinstance(root, Path) and root.is_dir() and layout.has_image(root):
            raise layout.without_classes(root)
        raise UsageError(_nothing(root))
    if schema.TEST in splits and kinds[0] not in (EVALUATION, ILSVRC):
        raise UsageError(
            f"--source {root}: its kind is {kinds[0]}, but only evaluation datasets and "
            f"ILSVRC2012's archives have a {schema.TEST} split. Choose different --splits."
        )
    if schema.HOLDOUT in splits and kinds[0] not in _EXPORTS:
        raise UsageError(
            f"--source {root}: its kind is {kinds[0]}, but only the kinds {', '.join(_EXPORTS)} "
            f"can have the split {schema.HOLDOUT}. To take images out of train, use --holdout."
        )
    if classes is not None and kinds[0] not in (FOLDER, TABLE):
        raise UsageError(
            f"--classes-of: the source {root} is of the kind {kinds[0]}, whose class list is its "
            "own. Remove the flag, or use it with class folders or a table of labels."
        )
    source = finders[kinds[0]]()
    if classes is not None:
        given = Statement(CLASSES, "--classes-of", counted(len(classes.wnids), "class"))
        source = dataclasses.replace(source, evidence=(given, *source.evidence))
    if isinstance(root, Path) and kinds[0] in (FOLDER, RECORDIO):
        source = dataclasses.replace(source, keys=_export_keys(root))
    if kinds[0] in (PARQUET, RECORDIO):
        source = dataclasses.replace(source, parts=_with_unread(source.parts))
    if isinstance(root, Path) and any(root.glob(f"*{schema.EXPORT}")):
        source = dataclasses.replace(source, is_export=True)
    return source, _described(source, kinds, root)


def _described(source: Source, kinds: Sequence[str], root: Location) -> str:
    """Returns the line that describes a source; `kinds` has its kind, then the kinds not read."""
    classes = source.classes
    names = "ILSVRC2012's" if classes.official else f"{some(classes.wnids)}; not ILSVRC2012's"
    parts = [part.name for part in source.parts]
    line = f"{kinds[0]}: {some(parts)}; {counted(len(classes.wnids), 'class')} ({names})"
    places = [s.where for s in source.evidence if s.about == CLASSES]
    if places:
        line += f" from {places[0]}"
    if source.evaluation is not None:
        line += f"; {source.evaluation.edition.name}: all images are in {schema.TEST}"
    if isinstance(source, webdataset.WebDatasetSource):
        line += source.remark
    if kinds[0] == FOLDER and isinstance(source, folder.FolderSource):
        line += "".join(f"; {remark}" for remark in _remarks(source, root))
    if kinds[1:]:
        line += f"; also found, but not read: {', '.join(kinds[1:])} (see --source-kind)"
    return printable(line)


def _with_unread(parts: Sequence[SourcePart]) -> tuple[SourcePart, ...]:
    """Adds the files of other splits to the ignored files of a source."""
    first, *others = parts
    assert isinstance(first.path, Path)
    read = {part.path for part in parts}
    files = sorted({*first.path.parent.glob(f"*{first.path.suffix}")} - read)
    unread = [path.name for path in files if path.name.startswith((schema.HOLDOUT, schema.TEST))]
    return (first._replace(ignored=tuple((name, 1) for name in unread)), *others)


def _export_keys(root: Path) -> ExportKeys:
    """Returns the keys that exports in this folder list; each split is in only one export."""
    listed: dict[str, Mapping[str, str]] = {}
    for path in root.glob(f"*{schema.EXPORT_KEYS}"):
        refuse_link_out(path)
        listed |= keys.parse(small_files.read(path, MOST_LIST_BYTES), str(path))
    return listed


def _remarks(source: folder.FolderSource, root: Location) -> Iterator[str]:
    """Yields remarks that explain how folders with ambiguous names are interpreted."""
    if isinstance(root, Path) and root.resolve() in source.split_folders:
        yield "no train/ or val/ folder, so all images go to the train split"
        for name in filter(layout.split_in_name, source.classes.wnids):
            yield f"{name}/ is a class, since it directly contains images"
    for name in sorted({task.part for task in source.tasks if task.split == schema.VALIDATION}):
        if layout.split_in_name(name) == schema.TEST:
            yield f"{name}/ is read as {schema.VALIDATION}, since there is no validation folder"
    yield from _numbered_as_text(source.classes.wnids)
    for name, number in chain.from_iterable(part.ignored for part in source.parts):
        if name.endswith("/") and not is_hidden(name[:-1]):
            yield f"{name} is not read: {counted(number, 'image')}"


def _numbered_as_text(names: Iterable[str]) -> Iterator[str]:
    """Yields a remark if text order differs from the order of the numbers in class names."""
    matches = [match for match in map(_NUMBERED.fullmatch, names) if match]
    ordered = sorted(matches, key=lambda match: (match[1], int(match[2])))
    for match, expected in zip(matches, ordered, strict=True):
        if match.group(1, 3) == expected.group(1, 3) and int(match[2]) > int(expected[2]):
            yield f"numbered as text: {match[0]} before {expected[0]}"
            return


@read_errors("")
def recognised(root: Location) -> list[str]:
    """Returns the kinds of source that a folder matches, original archives first."""
    kinds = []
    if any((root / name).is_file() for name in ilsvrc.ARCHIVES.values()):
        kinds.append(ILSVRC)
    elif root.name != ilsvrc.WHOLE and evaluation.locate(root):
        kinds.append(EVALUATION)
    elif any(ilsvrc.locate(root)):
        kinds.append(IMAGENET21K)
    tars = {} if kinds else webdataset.locate(root)
    if isinstance(root, RemotePath):
        return [*kinds, *([WEBDATASET] if tars else [])]
    tables = image_table.locate(root)
    is_folder = bool(layout.named_splits(root).folders)
    if tables:
        # Folders of splits can also hold images that a table lists.
        is_folder = _has_classes(root)
    elif tars:
        # Tars can be in folders of splits, or next to the folders that they were unpacked to.
        splits = layout.split_folders(root)
        is_folder = any(layout.has_image(place, below=True) for place in splits.places)
    contents = {
        FOLDER: is_folder and not parquet.has_split_folders(root),
        PARQUET: parquet.is_there(root),
        RECORDIO: recordio.locate(root),
        CIFAR10: cifar_mnist.locate(root),
        MNIST: cifar_mnist.is_there(root),
        WEBDATASET: tars,
    }
    kinds += [kind for kind, content in contents.items() if content]
    if any(image_table.is_readable(table) or not kinds for table in tables):
        kinds.append(TABLE)
    # This is checked last, because any folder can be a class.
    if not kinds and layout.split_folders(root).folders:
        kinds.append(FOLDER)
    return kinds


def _has_classes(root: Path) -> bool:
    """Returns whether a split in a folder has several class folders."""
    splits = layout.split_folders(root)
    for place in splits.places:
        with contextlib.suppress(UsageError):
            return len(layout.class_folders(place)) > 1
    return False


def _nothing(root: Location) -> str:
    """Returns the error message for a location that contains no source."""
    if isinstance(root, RemotePath):
        return (
            f"--source {root}: has none of the archives that can be read from a server: "
            f"{', '.join([*ilsvrc.ARCHIVES.values(), ilsvrc.WHOLE])}, archives of evaluation "
            "datasets, WebDataset tars with their _info.json and, in a bucket, class tars and all "
            "WebDataset tars. Download the source into a folder."
        )
    if not root.exists():
        return f"--source {root}: no such folder."
    if not root.is_dir():
        unpack = _to_unpack(root.parent, [root.name])
        unpack = unpack or "Set --source to the folder that contains it, or unpack it first."
        return f"--source {root}: is a file that cannot be read directly. {unpack}"
    names = sorted(f"{path.name}/" if path.is_dir() else path.name for path in root.iterdir())
    if layout.has_shards(root):
        return f"--source {root}: {layout.use_shards(root)}"
    files = Counter(ending(Path(path).name) for path in layout.files_below(root))
    unread = {name: files[name] for name in sorted(PHOTOGRAPH_EXTENSIONS & files.keys())}
    if unread:
        return f"--source {root}: holds no supported image, but {ignored_in_words(unread)}."
    lines = "".join(f"\n  {kind:11} {layout}" for kind, layout in LAYOUTS.items())
    return (
        f"supported layouts:{lines}\n"
        f"--source {root}: holds {printable(', '.join(names[:20])) or 'nothing'}, which matches "
        f"no supported layout. {_to_unpack(root, names)}Set --source to a folder that has one."
    )


def _to_unpack(folder: Path, names: Sequence[str]) -> str:
    """Returns commands that unpack .tar.gz files, which do not allow random access."""
    commands = []
    for name in names:
        if name.endswith((".tar.gz", ".tgz")):
            match = _HUB.fullmatch(name)
            target = str(folder / match["split"] if match else folder)
            commands += [["mkdir", "-p", target]] if match else []
            commands.append(["tar", "-xzf", str(folder / name), "-C", target])
    if not commands:
        return ""
    return f"Run {'; '.join(map(shlex.join, commands))}. Then set --source to the new folder. "
