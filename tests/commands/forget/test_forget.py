"""`forget` finds an image and its copies in everything that was made from a dataset."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import shutil
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from imagenet_prep.read import make_dataset
from imagenet_prep.trainer import checkpoint
from tests.kit import command, faults
from tests.kit.codec import corpus
from tests.kit.dataset import contents
from tests.kit.fake_hosts import Hosts, make_hosts
from tests.kit.http_server import serve
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.photographs import photograph

CLASSES = ("cat", "dog")
PHOTO = "cat/anna.jpg"
COPIES = ("dog/smaller.jpg", "cat/mirrored.jpg")
FORGOTTEN = (PHOTO, *COPIES)
SPLIT = "train"
FORMATS = ("folder", "tfds", "webdataset", "parquet", "recordio")


def done(*words: object, code: int = 0, **how: Any) -> command.Finished:
    result = command.run(*words, **how)
    assert result.code == code, result
    return result


def jpeg(picture: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def photographs(number: int) -> list[bytes]:
    """Returns different photographs with enough detail to be compared."""
    made = []
    for data in corpus.photographs(number):
        picture = Image.open(io.BytesIO(data))
        picture.thumbnail((220, 220))
        made.append(jpeg(picture, 92))
    return made


def write_photos(folder: Path, *, with_copies: bool = True) -> bytes:
    """Writes photographs, among them Anna's and its copies; returns the bytes of Anna's."""
    anna, *others = photographs(9)
    for number, data in enumerate(others):
        write(folder / CLASSES[number % 2] / f"{number}.jpg", data)
    write(folder / PHOTO, anna)
    if with_copies:
        picture = Image.open(io.BytesIO(anna))
        smaller = picture.resize((picture.width * 3 // 4, picture.height * 3 // 4))
        write(folder / COPIES[0], jpeg(smaller, 75))
        write(folder / COPIES[1], jpeg(ImageOps.mirror(picture), 85))
    return anna


def prepare(photos: Path, out: Path) -> None:
    done("prepare", photos, out, "--short-side", "160", "--train-shards", "2")


def stored_keys(dataset: Path) -> set[str]:
    listed = done("show", dataset, "--keys").out.splitlines()
    return {key.removeprefix(f"{SPLIT}:") for key in listed}


def lines(dataset: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dataset / "quarantine.jsonl").read_text().splitlines()]


def train(dataset: Path, run: Path) -> None:
    """Writes the log of a run of two epochs, and its checkpoints."""
    run.mkdir(parents=True)
    rows = []
    with closing(make_dataset(str(dataset), SPLIT, 4, 32, seed=1)) as reader:
        rows.append({"kind": "start", "step": 0, "receipt": reader.receipt()})
        step = 0
        (run / checkpoint.name(0)).touch()
        for _ in range(2):
            for _ in reader:
                rows.append({"kind": "train", "step": step})
                step += 1
                rows.append({"kind": "saved", "step": step, "receipt": reader.state()})
                (run / checkpoint.name(step)).touch()
    (run / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    made = make_hosts(tmp_path)
    made.only(made.addresses[0])
    return made


class World:
    """A folder with a dataset and everything that was made from it, and with other datasets."""

    def __init__(self, root: Path, hosts: Hosts) -> None:
        self.root = root / "world"
        self.photos = root / "phone"
        self.set = self.root / "set"
        self.replica = root / "elsewhere/replica"
        self.cache = self.root / "cache"
        self.anna = write_photos(self.photos)
        self.picture = root / "sent-by-anna.jpg"
        self.picture.write_bytes(self.anna)
        self._versions(root)
        done("replicate", self.set, "--to", self.replica)
        result = hosts.run(self.set)
        assert result.code == 0, result
        for name in FORMATS:
            done("export", self.set, self.root / "exports" / name, "--to", name)
        self._cache()
        done("report", self.set, "--out", self.root / "report.html")
        done("duplicates", self.set, "--out", self.root / "found")
        train(self.set, self.root / "runs/1")
        self._others(root / "other-photos")

    def _versions(self, root: Path) -> None:
        """Makes two parents and the newest version."""
        prepare(self.photos, self.root / "set-1")
        write(root / "asked", b"dog/1.jpg\n")
        words = ("--exclude", root / "asked", "--out", self.root / "set-2")
        done("amend", self.root / "set-1", *words)
        write(root / "labels", b"key,class\ncat/0.jpg,dog\n")
        done("amend", self.root / "set-2", "--relabel", root / "labels", "--out", self.set)

    def _cache(self) -> None:
        """Reads the dataset from a server into a cache."""
        paths = [path for path in self.set.rglob("*") if path.is_file()]
        with serve({str(p.relative_to(self.root)): p.read_bytes() for p in paths}) as server:
            settings = {"seed": 1, "cache_dir": self.cache}
            with closing(make_dataset(f"{server.url}/set", SPLIT, 4, 32, **settings)) as reader:
                for _ in reader:
                    pass

    def _others(self, photos: Path) -> None:
        """Makes a dataset without the image, with equal keys, and everything from it."""
        write_photos(photos, with_copies=False)
        write(photos / PHOTO, photographs(12)[-1])
        dataset = self.root / "other"
        prepare(photos, dataset)
        done("export", dataset, self.root / "exports/other", "--to", "folder")
        done("duplicates", dataset, "--out", self.root / "found-other")
        done("report", dataset)
        train(dataset, self.root / "runs/other")

    @property
    def places(self) -> set[tuple[str, str]]:
        """Kind and location of everything that has the image."""
        exports = [path.parent for path in (self.root / "exports").rglob("export.json")]
        (cache,) = self.cache.iterdir()
        locations = {
            "dataset": [self.set],
            "parent": [self.root / "set-1", self.root / "set-2"],
            "replica": [self.replica],
            "export": [path for path in exports if path.name != "other"],
            "cache": [cache],
            "page": [self.root / "report.html", self.root / "found/duplicates.html"],
            "list": [self.root / "found/pairs.csv", self.root / "found/exclude-train.txt"],
            "run": [self.root / "runs/1"],
            "file": [self.photos / key for key in FORGOTTEN],
        }
        return {(kind, str(path)) for kind, paths in locations.items() for path in paths}


@pytest.mark.slow
def test_advice_keeps_other_files_of_the_folder(tmp_path: Path) -> None:
    anna = write_photos(tmp_path / "photos", with_copies=False)
    dataset = tmp_path / "set"
    prepare(tmp_path / "photos", dataset)
    picture = tmp_path / "anna.jpg"
    picture.write_bytes(anna)
    words = [
        "forget",
        dataset,
        "--image",
        picture,
        "--out",
        tmp_path / "new",
        "--dry-run",
        "--json",
    ]
    (place,) = [p for p in done(*words).json["places"] if p["kind"] == "dataset"]
    assert place["action"].endswith(f"Then delete {dataset}")
    write(dataset / "diary" / "1.jpg", b"mine")
    (place,) = [p for p in done(*words).json["places"] if p["kind"] == "dataset"]
    kept = "but keep the other files there: diary"
    assert place["action"].endswith(f"Then delete the dataset in {dataset}, {kept}")


def excluded(root: Path, keys: Collection[str], **how: Any) -> Path:
    """Makes a dataset `set` of photographs, and `set-2` without some; returns the photographs."""
    photos = root / "photos"
    write_photos(photos, **how)
    prepare(photos, root / "set")
    asked = root / "asked.txt"
    asked.write_text("\n".join(keys))
    done("amend", root / "set", "--exclude", asked, "--out", root / "set-2")
    return photos


@pytest.mark.slow
@pytest.mark.parametrize("kept", [PHOTO, ""])
def test_excluded_copies_are_found_in_older_version(tmp_path: Path, kept: str) -> None:
    photos = excluded(tmp_path, {*FORGOTTEN} - {kept})
    picture = tmp_path / "sent.jpg"
    picture.write_bytes(jpeg(Image.open(photos / PHOTO).reduce(2), 60))

    words = ("forget", tmp_path / "set-2", "--image", picture, "--search", tmp_path)
    result = done(*words, "--out", tmp_path / "new", "--json").json

    assert {each["image"] for each in result["images"]} == {f"{SPLIT}:{key}" for key in FORGOTTEN}
    files = {each["place"] for each in result["places"] if each["kind"] == "file"}
    assert files >= {str(photos / key) for key in FORGOTTEN}
    assert_names_nothing(tmp_path / "new", {key: (photos / key).read_bytes() for key in FORGOTTEN})
    add = ("amend", tmp_path / "new", "--add", photos, "--readmit", "--out", tmp_path / "again")
    assert says("forgotten-no-flag-adds", "3").search(done(*add, code=2).err)


@pytest.mark.slow
def test_damage_of_an_older_version_is_named(tmp_path: Path) -> None:
    photos = excluded(tmp_path, COPIES)
    shard = tmp_path / "set/train-00000-of-00002"
    faults.flip_bit(shard, 1000)

    words = ("forget", tmp_path / "set-2", "--image", photos / PHOTO, "--search", tmp_path)
    result = done(*words, "--out", tmp_path / "new", "--dry-run", "--json", code=4).json

    assert [problem for problem in result["problems"] if str(shard) in problem]


def test_listed_line_of_quarantine_finds_its_files(tmp_path: Path) -> None:
    photos = excluded(tmp_path, [PHOTO], with_copies=False)

    words = ("--keys", tmp_path / "asked.txt", "--search", tmp_path, "--out", tmp_path / "new")
    result = done("forget", tmp_path / "set-2", *words, "--exact", "--json").json

    places = {each["place"]: each["kind"] for each in result["places"]}
    assert places[str(photos / PHOTO)] == "file"
    assert places[str(tmp_path / "set")] == "parent"


def test_list_of_requests_can_be_used_again(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", with_copies=False)
    prepare(tmp_path / "photos", tmp_path / "set")
    stored = sorted(stored_keys(tmp_path / "set"))
    asked = tmp_path / "asked.txt"
    words = "--keys", asked, "--exact", "--json"
    asked.write_text(f"{SPLIT}:{stored[0]}\n{stored[1]}\n")
    first = done("forget", tmp_path / "set", *words, "--out", tmp_path / "set-2").json
    assert first["forgotten_before"] == 0

    again = done("forget", tmp_path / "set-2", *words, "--out", tmp_path / "set-3").json
    assert (again["images"], again["forgotten_before"]) == ([], 2)
    assert not (tmp_path / "set-3").exists()
    # Nothing was deleted yet, and the newest version is the one that exists.
    done("replicate", tmp_path / "set", "--to", tmp_path / "copy")
    search = ("--search", tmp_path)
    again = done("forget", tmp_path / "set-2", *words, *search, "--out", tmp_path / "set-3").json
    left = {place["place"]: place for place in again["places"]}
    assert left[str(tmp_path / "set")]["kind"] == "parent"
    assert str(tmp_path / "photos" / stored[0]) in left
    action = left[str(tmp_path / "copy")]["action"].partition(";")[0]
    assert shlex.split(action)[:3] == ["imagenet-prep", "replicate", str(tmp_path / "set-2")]
    shutil.rmtree(tmp_path / "copy")

    asked.write_text(f"{SPLIT}:{stored[0]}\n{stored[1]}\n{stored[2]}\n")
    more = done("forget", tmp_path / "set-2", *words, "--out", tmp_path / "set-3").json
    assert [each["image"] for each in more["images"]] == [f"{SPLIT}:{stored[2]}"]
    assert more["forgotten_before"] == 2
    assert stored_keys(tmp_path / "set-3") == {*stored[3:]}


@pytest.mark.parametrize(
    ("unknown", "code"), [("validation:{}", 2), ("{}.unknown", 2), ("{}", 0), (SPLIT + ":{}", 0)]
)
def test_unknown_key_of_requests_needs_the_flag(tmp_path: Path, unknown: str, code: int) -> None:
    write_photos(tmp_path / "photos", with_copies=False)
    prepare(tmp_path / "photos", tmp_path / "set")
    first = min(stored_keys(tmp_path / "set"))
    asked = tmp_path / "asked.txt"
    asked.write_text(f"{first}\n")
    words = "--keys", asked, "--exact", "--json"
    done("forget", tmp_path / "set", *words, "--out", tmp_path / "set-2")
    asked.write_text(f"{unknown.format(first)}\n")
    last = "forget", tmp_path / "set-2", *words, "--out", tmp_path / "set-3"
    done(*last, code=code)
    known = done(*last, "--allow-unknown").json
    assert (known["images"], known["forgotten_before"]) == ([], int(code == 0))


@pytest.mark.parametrize("exact", [False, True])
def test_reencoded_copy_in_a_different_dataset_is_listed(tmp_path: Path, exact: bool) -> None:
    """A file with the bytes of this copy is listed, too."""
    photo = write_photos(tmp_path / "photos", with_copies=False)
    prepare(tmp_path / "photos", tmp_path / "set")
    shutil.copytree(tmp_path / "set", tmp_path / "copy", ignore=shutil.ignore_patterns(".work"))
    copy = tmp_path / "others/cat/small.jpg"
    write(copy, jpeg(Image.open(io.BytesIO(photo)), 60))
    write(tmp_path / "others/cat/grey.jpg", photograph(30, 40))
    write(tmp_path / "others" / PHOTO, photograph(30, 41))
    other = tmp_path / "other-set"
    done("prepare", tmp_path / "others", other)
    words = "forget", tmp_path / "set", "--image", tmp_path / "photos" / PHOTO, "--dry-run"
    words = *words, "--search", tmp_path, "--out", tmp_path / "new", *["--exact"] * exact

    result = done(*words, "--json").json

    places = {each["place"]: each["content"].partition(";")[0] for each in result["places"]}
    expected = {} if exact else {str(other): f"{SPLIT}:cat/small.jpg", str(copy): "the same bytes"}
    assert {place: places.get(place) for place in expected} == expected
    # The ledger of sources also has the photographs of the test with the other parameter.
    below = {place for place in places if place.startswith(str(tmp_path))}
    own = {str(tmp_path / name) for name in ("set", "copy", f"photos/{PHOTO}")}
    assert below == own | expected.keys()
    assert [each["image"] for each in result["images"]] == [f"{SPLIT}:{PHOTO}"]


def test_different_dataset_tells_further_bytes_of_image(tmp_path: Path) -> None:
    """A set made from the photograph stores smaller bytes, and the dataset has these, too."""
    photos = tmp_path / "photos"
    photo = write_photos(photos, with_copies=False)
    write(tmp_path / "others" / PHOTO, photo)
    done("prepare", tmp_path / "others", tmp_path / "smaller", "--short-side", "100")
    done("export", tmp_path / "smaller", "--to", "folder", "--out", tmp_path / "files")
    (stored,) = (tmp_path / "files").rglob("*.jpg")
    write(photos / "dog/stored.jpg", stored.read_bytes())
    done("prepare", photos, tmp_path / "set")
    words = "--image", photos / PHOTO, "--search", tmp_path / "smaller", "--exact"
    new = tmp_path / "new"

    result = done("forget", tmp_path / "set", *words, "--out", new, "--json").json

    expected = {PHOTO, "dog/stored.jpg"}
    assert {each["image"] for each in result["images"]} == {f"{SPLIT}:{key}" for key in expected}
    assert stored_keys(new) == stored_keys(tmp_path / "set") - expected


def test_unknown_keys_are_only_allowed_in_a_list(tmp_path: Path) -> None:
    words = "--image", tmp_path / "x.jpg", "--allow-unknown", "--out", tmp_path / "new"
    assert says("allow-unknown-list-keys").search(done("forget", tmp_path, *words, code=2).err)


@pytest.mark.parametrize("flag", ["--keys", "--image"])
def test_image_that_prepare_excluded_is_found(tmp_path: Path, flag: str) -> None:
    """Its line in quarantine.jsonl has only the hash of the photograph."""
    photos = tmp_path / "photos"
    write_photos(photos, with_copies=False)
    asked = tmp_path / "asked.txt"
    asked.write_text(PHOTO)
    done("prepare", photos, tmp_path / "set", "--exclude", asked)
    given = {"--keys": asked, "--image": photos / PHOTO}[flag]

    words = (flag, given, "--search", photos, "--out", tmp_path / "new", "--exact", "--json")
    result = done("forget", tmp_path / "set", *words).json

    assert [each["image"] for each in result["images"]] == [f"{SPLIT}:{PHOTO}"]
    files = [each["place"] for each in result["places"] if each["kind"] == "file"]
    assert files == [str(photos / PHOTO)]
    assert_names_nothing(tmp_path / "new", {PHOTO: (photos / PHOTO).read_bytes()})


def test_repaired_image_is_listed_as_stored(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", with_copies=False)
    Image.new("L", (64, 64), 90).save(tmp_path / "photos/cat/grey.jpg")
    done("prepare", tmp_path / "photos", tmp_path / "set")
    (line,) = lines(tmp_path / "set")
    assert (line["key"], line["action"]) == ("cat/grey.jpg", "repaired")
    (tmp_path / "asked").write_text("cat/grey.jpg")

    words = ("--keys", tmp_path / "asked", "--out", tmp_path / "new", "--exact", "--json")
    result = done("forget", tmp_path / "set", *words, "--dry-run").json
    assert result["images"] == [{"image": f"{SPLIT}:cat/grey.jpg", "found": "listed"}]


@pytest.mark.slow
def test_images_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", with_copies=False)
    dataset = tmp_path / "set"
    prepare(tmp_path / "photos", dataset)
    shard = dataset / "train-00000-of-00002"
    records = done("show", shard).out.splitlines()
    assert not [line for line in records if PHOTO in line]
    faults.flip_bit(shard, 1000)
    words = ("forget", dataset, "--image", tmp_path / "photos" / PHOTO, "--out", tmp_path / "new")
    result = done(*words, "--dry-run", "--json", code=4).json

    assert [problem for problem in result["problems"] if shard.name in problem]
    assert done(*words, "--dry-run", "--json", "--exact").json["problems"] == []


@pytest.mark.slow
@pytest.mark.extras
def test_forget_finds_image_everywhere_and_nothing_else(tmp_path: Path, hosts: Hosts) -> None:
    world = World(tmp_path, hosts)
    new = world.root / "new"
    before = {path: contents(path) for path in (world.root / "set-1", world.set)}
    words = ("forget", world.set, "--image", world.picture, "--search", world.root, "--out", new)

    preview = done(*words, "--json", "--dry-run").json
    assert not new.exists()
    result = done(*words, "--json").json

    assert preview["places"] == result["places"]
    assert result["problems"] == []
    assert {each["image"] for each in result["images"]} == {f"{SPLIT}:{key}" for key in FORGOTTEN}
    places = {(each["kind"], each["place"]) for each in result["places"]}
    assert places == world.places | {("replica", f"{hosts.addresses[0]}:~/set")}
    assert {path: contents(path) for path in before} == before
    done("verify", new, "--level", "decode")
    assert stored_keys(new) == stored_keys(world.set) - {*FORGOTTEN}
    assert_names_nothing(new, {key: (world.photos / key).read_bytes() for key in FORGOTTEN})
    assert_stays_out(world, new, tmp_path / "add")


def assert_names_nothing(dataset: Path, files: dict[str, bytes]) -> None:
    """Checks that no file of a dataset has a key or hash of these images in clear."""
    everything = b"".join(path.read_bytes() for path in dataset.rglob("*") if path.is_file())
    for key, data in files.items():
        assert key.encode() not in everything
        assert Path(key).name.encode() not in everything
        assert hashlib.sha256(data).hexdigest().encode() not in everything
    forgotten = [line for line in lines(dataset) if "salt" in line]
    assert len(forgotten) == len(files)
    assert len({line["salt"] for line in forgotten}) == 1


def assert_stays_out(world: World, new: Path, add: Path) -> None:
    """Checks that neither amend nor prepare stores the images again, under any name."""
    write(add / "cat/20.jpg", photographs(10)[-1])
    for name in ("cat/renamed.jpg", "dog/anna.jpg", PHOTO):
        write(add / name, world.anna)
    write(add / COPIES[0], photographs(11)[-1])
    write(add / "dog/x.jpg", (world.photos / COPIES[1]).read_bytes())
    for flags in ((), ("--readmit",)):
        out = world.root / f"next{len(flags)}"
        amended = done("amend", new, "--add", add, *flags, "--out", out, "--json").json["amended"]
        assert (amended["added"], amended["add"]["forgotten"]) == (1, 5)
    flags = ("--exclude", str(new / "quarantine.jsonl"), "--allow-unknown")
    done("prepare", world.photos, world.root / "again", *flags)
    assert stored_keys(world.root / "again") == stored_keys(new)
    assert not any(key in json.dumps(lines(world.root / "again")) for key in FORGOTTEN)
