"""The benchmark of readers: its tables, and small runs of each row. No time is asserted."""

from __future__ import annotations

import json
import random
from importlib import util
from pathlib import Path

import pytest

from benchmarks import measure, peer_readers, read, read_steps
from benchmarks.read import Result
from benchmarks.readers import BATCH, NATIVE, READERS, Job
from tests.kit.command import REPOSITORY
from tests.kit.documents import table_headers, table_rows

SIZE = (96, 72)
# A batch for each of two workers, some of which drop the rest.
NUM_IMAGES = 320
TORCHVISION = next(iter(peer_readers.PEERS))


def test_ratios_are_of_one_round() -> None:
    native = [Result(100, 1.0, 2.0, 0.5, 300), Result(100, 2.0, 4.0, 0.7, 310)]
    other = [Result(100, 4.0, 10.0, 3.0, 900), Result(100, 4.0, 40.0, 3.5, 950)]
    results = {
        f"256 px: {NATIVE}": native,
        f"256 px: {TORCHVISION}": other,
        f"originals: {NATIVE}": native,
    }
    table = table_rows(read.render(results))

    assert table[NATIVE] == ["38", "75", "1.00", "38", "75", "1.00", "0.60", "305"]
    assert table[TORCHVISION] == ["6", "25", "7.50", "-", "-", "-", "3.25", "925"]


def test_row_without_native_has_no_ratio() -> None:
    results = {f"256 px: {TORCHVISION}": [Result(100, 4.0, 10.0, 3.0, 900)]}

    assert table_rows(read.render(results))[TORCHVISION][2] == "-"


def test_row_that_fails_in_a_round_is_excluded() -> None:
    result = Result(100, 4.0, 10.0, 3.0, 900)

    assert read.complete({"a": [result, None], "b": [result, result]}) == {"b": [result, result]}


def test_failure_of_a_peer_ends_only_its_row(tmp_path: Path) -> None:
    bench = read.Bench("256 px", tmp_path / "set", 1, None)
    bench.pythons = {False: "/bin/false", True: "/bin/false"}
    packages = {"torch": "2", "torchvision": "0"}
    rows = bench.rows({False: {}, True: packages})

    assert list(rows)[:2] == [f"256 px: {NATIVE}", "256 px: native, antialias=False"]
    assert "256 px: Grain, 2 threads" not in rows
    assert rows[f"256 px: {TORCHVISION}"]() is None
    with pytest.raises(RuntimeError, match="exit code 1"):
        rows[f"256 px: {NATIVE}"]()
    assert list(tmp_path.iterdir()) == []


def test_peers_need_their_environment(tmp_path: Path) -> None:
    rows = read.Bench("256 px", tmp_path, 1, None).rows({False: {}})

    names = [name.removeprefix("256 px: ") for name in rows]
    assert names == [name for name, reader in READERS.items() if not (reader[1] or reader[2])]


def test_random_crops_stay_inside_the_image() -> None:
    random.seed(0)
    shares = []
    for _ in range(2_000):
        width = random.randint(1, 300)
        height = random.randint(1, 300)
        left, top, wide, tall = peer_readers.crop(width, height)
        assert 0 <= left <= left + wide <= width
        assert 0 <= top <= top + tall <= height
        if 0.75 < width / height < 1.33 and min(width, height) > 100:
            shares.append(wide * tall / width / height)
    assert 0.4 < sum(shares) / len(shares) < 0.6
    assert min(shares) > 0.07


def test_classes_are_numbered_by_folder_names(tmp_path: Path) -> None:
    for name in ("n2/b.jpg", "n2/a.jpg", "n1/c.jpg"):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    job = Job("", "", {"folder": str(tmp_path)}, 1)
    found = [(path[-8:], class_index) for path, class_index in peer_readers.files(job)]

    assert found == [("n1/c.jpg", 0), ("n2/a.jpg", 1), ("n2/b.jpg", 1)]


def test_readme_has_the_columns_that_are_printed() -> None:
    text = (REPOSITORY / "benchmarks" / "README.md").read_text()
    result = [Result(1, 1.0, 1.0, 1.0, 1.0)]
    results = {f"{kind}: {NATIVE}": result for kind in read.SETS}
    names = [*read_steps.TORCHVISION, read_steps.SUM, read_steps.FASTER_DECODE]
    names += [read_steps.NATIVE, read_steps.COMPLETE]
    steps = read_steps.render({kind: dict.fromkeys(names, 1.0) for kind in read.SETS})
    found = table_rows(text)

    assert table_headers(read.render(results))[0] in table_headers(text)
    assert table_headers(steps)[0] in table_headers(text)
    assert found.keys() >= table_rows(steps).keys()


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.dali
def test_our_readers_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("tensorflow", "nvidia.dali"):
        if not util.find_spec(module.partition(".")[0]):
            pytest.skip(f"{module} is not installed")
    raw = tmp_path / "raw.json"
    arguments = [f"--images={NUM_IMAGES}", "--rounds=1", "--epochs=2", "--only=^256 px"]
    read.main([*arguments, "--size", "96", "72", f"--scratch={tmp_path}", f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]["read"]
    printed = capsys.readouterr().out

    assert [*results] == [f"256 px: {name}" for name, each in READERS.items() if not each.is_peer]
    for name, (result,) in results.items():
        assert f"| {name.removeprefix('256 px: ')} " in printed
        assert result["images"] == 2 * 2 * BATCH
        assert min(result[key] for key in ("seconds", "cpu_s", "first_s")) > 0
    assert "nvidia-dali-cuda120 " in printed


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, peers_venv: Path) -> read.Bench:
    root = read.prepared(tmp_path_factory.mktemp("read"), NUM_IMAGES, SIZE, "originals")
    return read.Bench("originals", root, 1, peers_venv)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name, each in (READERS | peer_readers.PEERS).items() if each.is_peer]
)
def test_each_peer_is_measured(bench: read.Bench, name: str) -> None:
    packages = (READERS | peer_readers.PEERS)[name].packages
    versions = measure.versions(bench.pythons[True], packages)
    result = bench.rows({True: versions})[f"originals: {name}"]()

    assert result is not None
    assert result.images == 2 * BATCH
    assert min(result.seconds, result.cpu_s, result.first_s) > 0


@pytest.mark.long
def test_peers_read_the_bytes_of_our_dataset(bench: read.Bench) -> None:
    shards = b"".join(path.read_bytes() for path in bench.root.glob("train-*"))
    listed = peer_readers.files(Job("", str(bench.root), bench.exports, 1))

    assert len(listed) == NUM_IMAGES
    for path, _ in listed:
        assert Path(path).read_bytes() in shards


@pytest.mark.long
def test_steps_of_an_image_are_measured(bench: read.Bench) -> None:
    steps = bench.steps()

    assert min(steps.values()) > 0
    assert steps[read_steps.SUM] == pytest.approx(
        sum(steps[name] for name in read_steps.TORCHVISION)
    )
    assert read_steps.NATIVE in read_steps.render({"originals": steps})
