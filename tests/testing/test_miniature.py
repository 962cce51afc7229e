"""The miniature, read by the standard library, Pillow and SciPy instead of our readers."""

from __future__ import annotations

import concurrent.futures
import hashlib
import io
import multiprocessing
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.io
from PIL import Image

from imagenet_prep.core.errors import UsageError
from imagenet_prep.testing import photographs
from imagenet_prep.testing.miniature import (
    DEVKIT_ARCHIVE,
    TRAIN_ARCHIVE,
    VALIDATION_ARCHIVE,
    Miniature,
    make_miniature,
)
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.miniature import edit_train_tar, miniature_for_tests, rewrite_tar

ARCHIVES = (TRAIN_ARCHIVE, VALIDATION_ARCHIVE, DEVKIT_ARCHIVE)
SMALL = (96, 72)


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return make_miniature(tmp_path_factory.mktemp("mini"), size=SMALL)


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]


def source_bytes(root: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """Yields (key, bytes) in the order of the archive."""
    if split == "validation":
        yield from members(root / VALIDATION_ARCHIVE)
        return
    for name, data in members(root / TRAIN_ARCHIVE):
        with tarfile.open(fileobj=io.BytesIO(data)) as inner:
            for member in inner:
                yield f"{name.removesuffix('.tar')}/{member.name}", inner.extractfile(member).read()


def devkit(root: Path) -> tuple[list[tuple], list[int]]:
    """Returns the rows of meta.mat, read as torchvision reads them, and the ground truth."""
    data = {name.removeprefix("ILSVRC2012_devkit_t12/"): d for name, d in members(root)}
    assert set(data) == {
        "readme.txt",
        "data/meta.mat",
        "data/ILSVRC2012_validation_ground_truth.txt",
    }
    synsets = scipy.io.loadmat(io.BytesIO(data["data/meta.mat"]), squeeze_me=True)["synsets"]
    lines = data["data/ILSVRC2012_validation_ground_truth.txt"].decode().splitlines()
    return [tuple(row) for row in synsets], [int(line) for line in lines]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_stated_truth_agrees_with_the_bytes(mini: Miniature, split: str) -> None:
    truth = mini.of(split)
    for key, data in source_bytes(mini.root, split):
        image = truth[key]
        assert (image.num_bytes, image.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert mini.classes[image.class_index][0] == image.wnid
        if split == "train":
            assert key.startswith(f"{image.wnid}/{image.wnid}_")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of the broken EXIF
            try:
                with Image.open(io.BytesIO(data)) as decoded:
                    decoded.load()
                    size = decoded.size
            except OSError:
                size = (0, 0)
        assert (image.width, image.height) == size, image
        assert (image.fate == "quarantined") == (size == (0, 0))


def test_unusual_files_have_their_stated_properties(mini: Miniature) -> None:
    kind_of = {key: image.kind for key, image in mini.of("train").items()}
    odd = {kind_of[key]: data for key, data in source_bytes(mini.root, "train")}

    def opened(kind: str) -> Image.Image:
        return Image.open(io.BytesIO(odd[kind]))

    assert opened("png").format == "PNG"
    assert opened("cmyk").mode == "CMYK"
    assert "adobe" in opened("cmyk").info
    assert opened("grey").mode == "L"
    assert opened("exif_rotated").getexif()[0x112] == 6
    with pytest.warns(UserWarning, match="Corrupt EXIF"):
        opened("broken_exif").getexif()
    assert odd["truncated"].startswith(b"\xff\xd8")
    assert odd["empty"] == b""
    assert b"\xff\xd9\x00\x00<!--" in odd["trailing_garbage"]
    assert opened("one_pixel").size == (1, 1)
    assert opened("wide").width == 4000
    assert opened("large").width > 3 * SMALL[0]


def test_images_differ_in_bytes_and_shape(mini: Miniature) -> None:
    assert len({image.sha256 for image in mini.images}) == len(mini.images)
    plain = [image for image in mini.images if image.kind == "plain"]
    landscape = [image for image in plain if (image.width, image.height) == SMALL]
    portrait = [image for image in plain if (image.height, image.width) == SMALL]
    # Half of the images have the most frequent size, and a seventh has it in portrait.
    assert len(plain) > len(landscape) > len(portrait) > 2


@pytest.mark.parametrize("num_classes", [2, 7, 10])
def test_every_class_keeps_an_image_in_each_split(tmp_path: Path, num_classes: int) -> None:
    mini = make_miniature(
        tmp_path,
        num_train=20,
        num_validation=2 * num_classes,
        num_classes=num_classes,
        size=(32, 24),
    )

    for split in ("train", "validation"):
        usable = {i.wnid for i in mini.of(split).values() if i.fate != "quarantined"}
        assert usable == {wnid for wnid, _ in mini.classes}


def test_meta_mat_has_the_real_fields_and_shape(mini: Miniature) -> None:
    data = dict(members(mini.root / DEVKIT_ARCHIVE))["ILSVRC2012_devkit_t12/data/meta.mat"]
    synsets = scipy.io.loadmat(io.BytesIO(data))["synsets"]

    assert synsets.shape == (11, 1)
    assert synsets.dtype.names == (
        "ILSVRC2012_ID",
        "WNID",
        "words",
        "gloss",
        "num_children",
        "children",
        "wordnet_height",
        "num_train_images",
    )
    assert synsets[0, 0]["ILSVRC2012_ID"].shape == (1, 1)


def test_ground_truth_and_meta_mat_give_the_classes(mini: Miniature) -> None:
    rows, ground_truth = devkit(mini.root / DEVKIT_ARCHIVE)
    wnid_of = {row[0]: row[1] for row in rows}
    truth = mini.of("validation")

    assert [wnid_of[i] for i in ground_truth] == [truth[key].wnid for key in sorted(truth)]


@pytest.mark.slow
def test_the_same_seed_gives_equal_bytes_across_processes(tmp_path: Path, mini: Miniature) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from imagenet_prep.testing.miniature import make_miniature\n"
        f"make_miniature(Path(sys.argv[1]), size={SMALL!r})"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, cwd=root)

    for name in ARCHIVES:
        assert (mini.root / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_missing_photographs_are_named_before_anything_is_written(
    tmp_path: Path, installed: Installed
) -> None:
    photographs.photograph_path.cache_clear()
    installed.packages(lambda _: False)

    with pytest.raises(UsageError, match=says("photographs-scikit-image-scikit-learn-missing-run")):
        make_miniature(tmp_path / "new")

    assert not (tmp_path / "new").exists()


def _build(cache_dir: Path) -> Miniature:
    return miniature_for_tests(cache_dir, num_train=20, size=(32, 24))


@pytest.mark.slow
def test_racing_processes_build_the_shared_miniature_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        first, second = pool.map(_build, [tmp_path, tmp_path])

    assert first == second
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [first.root]
    assert first.images == make_miniature(tmp_path / "fresh", num_train=20, size=(32, 24)).images


def test_rewrite_tar_drops_repeats_and_changes_members(tmp_path: Path, mini: Miniature) -> None:
    before = members(mini.root / VALIDATION_ARCHIVE)
    drop, repeat = before[0][0], before[1][0]

    def edit(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name == drop:
            return []
        return [(info, data), (info, b"new")] if info.name == repeat else [(info, data)]

    rewrite_tar(mini.root / VALIDATION_ARCHIVE, tmp_path / "val.tar", edit)

    assert members(tmp_path / "val.tar") == [before[1], (repeat, b"new"), *before[2:]]
    assert [path.name for path in tmp_path.iterdir()] == ["val.tar"]


def test_edit_train_tar_reaches_the_inner_members(tmp_path: Path, mini: Miniature) -> None:
    before = list(source_bytes(mini.root, "train"))
    target = before[7][0]

    def edit(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [(info, b"broken" if target.endswith(info.name) else data)]

    edit_train_tar(mini.root / TRAIN_ARCHIVE, tmp_path / TRAIN_ARCHIVE, edit)
    after = list(source_bytes(tmp_path, "train"))

    assert after == [(key, b"broken" if key == target else data) for key, data in before]
