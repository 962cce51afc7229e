"""The benchmarks: their models, and small runs in `make test-long`. No time is asserted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections import Counter
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import codec, download, measure, read, replicate, scale, write
from benchmarks.delay import delayed
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ILSVRC2012
from imagenet_prep.sources import ilsvrc, labels
from tests.kit.command import wait_until
from tests.kit.http_server import serve
from tests.kit.installed import Installed

PHASES = {"start-up", "index", "plan", "launch", "shards", "commit", "end"}
SMALL = ["--size", "96", "72", "--short-side", "48"]


def test_members_match_the_archives_content(tmp_path: Path) -> None:
    root = measure.corpus(tmp_path, 20, (96, 72))
    archive = root / measure.TRAIN_ARCHIVE
    members = measure.members(archive)
    data = archive.read_bytes()

    assert len(members) == 20
    assert all(data[m.offset :][: m.size].startswith(b"\xff\xd8\xff") for m in members)
    assert all(data[m.offset :][: m.size].endswith(b"\xff\xd9") for m in members)
    assert all(m.name.startswith(m.wnid) for m in members)
    assert measure.corpus(tmp_path, 20, (96, 72)) == root
    assert [path.name for path in tmp_path.iterdir()] == [root.name]


def test_memory_includes_all_processes_of_the_tree() -> None:
    code = "import subprocess; subprocess.run(['cat'], start_new_session=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True
    ) as parent:
        wait_until(lambda: len(measure.tree(parent.pid)) == 2, "the child is seen")
        assert parent.pid in measure.tree(os.getpid())
        assert parent.stdin is not None
        parent.stdin.close()  # ends both

    run = measure.run([sys.executable, "-c", "print('heard')"])
    assert run.stdout == "heard\n"
    assert run.samples


@pytest.mark.parametrize(("bench", "program"), [(replicate, "rsync"), (download, "curl")])
def test_missing_programs_are_named(
    bench: ModuleType, program: str, tmp_path: Path, installed: Installed
) -> None:
    installed.programs(lambda name: None if name == program else f"/usr/bin/{name}")
    with pytest.raises(SystemExit, match=f"needs {program}, not installed.*apt-get install"):
        bench.main([f"--scratch={tmp_path}"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_codec_measures_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    codec.main([*SMALL, "--images=10", "--rounds=2", f"--scratch={tmp_path}", f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]
    printed = capsys.readouterr().out

    decoding, results = results["decoding"], results["codec"]
    assert list(decoding) == list(codec.decoding())
    for by_decoder in decoding.values():
        assert {len(ms) for ms in by_decoder.values()} == {2}
    assert list(results) == list(codec.methods(48))
    for name, result in results.items():
        assert f"| {name} " in printed
        assert len(result["ms"]) == 2
        assert (result["psnr_db"] is None) == (name in codec.PASS_THROUGH)
        assert result["psnr_db"] is None or 25 < result["psnr_db"] < 60
    # The reference itself, encoded, is the nearest to it.
    best = max(result["psnr_db"] or 0 for result in results.values())
    assert results[codec.FLOOR]["psnr_db"] == pytest.approx(best, abs=0.3)


@pytest.mark.long
def test_write_measures_floors_and_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    only = "^R floor$|^R codec|^R ours, 2 threads(, carried.*)?$|^P floor|^P ours, 2 .*header"
    arguments = ["--images=40", "--rounds=1", f"--only={only}", f"--scratch={tmp_path}"]
    write.main([*SMALL, *arguments, f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]
    printed = capsys.readouterr().out

    assert len(results) == 9
    assert "R: of the floor" in printed
    assert "P: against copying, cold" in printed
    assert "peer" not in printed
    for name, (result,) in results.items():
        assert f"| {name} " in printed
        assert result["images"] == (40 if name.startswith("R") else 40 * write.PASSED_TIMES)
        assert 0 < result["clock_s"] <= result["wall_s"], "the one is within the other"
        assert bool(result["bytes_out"]) != name.startswith(("R floor", "R codec"))
        if "ours" in name:
            assert 0 < result["shards_s"] <= result["clock_s"]
            assert result["pss_mb"] > 0
            assert set(result["phases"]) == PHASES
    assert {path.name for path in tmp_path.iterdir()} == {
        "corpus-40-96x72",
        f"corpus-{40 * write.PASSED_TIMES}-96x72",
        "raw.json",
    }


def _peers_venv(package: str) -> Path:
    """Returns the peers' environment; skips if it is missing or lacks the package."""
    venv = Path(os.environ.get("PEERS_VENV", "/tmp/peers-venv"))
    python = venv / "bin" / "python"
    found = (
        python.exists()
        and not subprocess.run(
            [python, "-c", f"import importlib.util as u; assert u.find_spec({package!r})"]
        ).returncode
    )
    if not found:
        pytest.skip(f"no {package} in {venv}: see benchmarks/README.md")
    return venv


@pytest.mark.long
@pytest.mark.parametrize(("tool", "package"), [("mds", "streaming"), ("webdataset", "webdataset")])
def test_write_measures_the_peers(tmp_path: Path, tool: str, package: str) -> None:
    venv = _peers_venv(package)
    source = measure.corpus(tmp_path, 20, (96, 72))
    bench = write.Bench(lambda: source, tmp_path, 48, venv)
    for name, row in {**bench.resized(), **bench.passed()}.items():
        if tool in name.lower():
            result = row()
            assert result.images == 20, name
            assert result.bytes_out > 20 * 1000, name


def test_scale_has_ilsvrc2012s_counts() -> None:
    counts = scale.class_counts(scale.NUM_TRAIN)

    assert sum(counts) == 1_281_167
    assert (min(counts), max(counts), len(counts)) == (732, 1300, 1000)
    assert ILSVRC2012.problems("train", labels.official_classes(), counts) == []
    assert sum(scale.class_counts(2_345)) == 2_345


def test_scale_archives_are_real_tars(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    scale.make_source(folder, scale.Row("tiny", 2_000, 50, 4))
    members = measure.members(folder / measure.TRAIN_ARCHIVE)
    classes = Counter(member.wnid for member in members)

    assert len({member.name for member in members}) == 2_000
    assert set(classes.values()) == {2}
    assert len(classes) == 1_000
    with tarfile.open(folder / ilsvrc.ARCHIVES[schema.VALIDATION]) as tar:
        assert len(tar.getnames()) == 50
    assert len(labels.read_devkit(folder / labels.DEVKIT_NAME).validation_class_index) == 50


@pytest.mark.long
def test_scale_prepares_both_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    numbers = ["--train", "1000", "--validation", "100", "--train-shards", "8"]
    scale.main([*numbers, f"--scratch={tmp_path}", f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]

    assert [result["images"] for result in results.values()] == [1000, 1100]
    assert all(result["pss_mb"] > 0 for result in results.values())
    assert "Seconds, and peak PSS in MB" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["raw.json"]


@pytest.mark.long
def test_scale_counts_all_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scale.main(["--descriptors", "3000", f"--scratch={tmp_path}"])

    cells = r" +[\d,.]+ \|" * (len(scale.STEPS) + 4)
    out = capsys.readouterr().out
    assert re.search(rf"^\| 3,000 +\|{cells}$", out, re.MULTILINE)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_download_measures_ours_and_curl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw.json"
    download.main(["--megabytes=3", "--rounds=1", f"--scratch={tmp_path}", f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]
    printed = capsys.readouterr().out

    assert list(results) == [download.CURL, download.CURL_PROVEN, download.OURS, download.OURS_1]
    for name, (rate,) in results.items():
        assert f"| {name} " in printed
        assert rate > 0
    assert [path.name for path in tmp_path.iterdir()] == ["raw.json"]


@pytest.mark.long
def test_replicate_measures_ours_and_boto3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], installed: Installed
) -> None:
    pytest.importorskip("boto3")
    installed.programs(lambda _: None)
    raw = tmp_path / "raw.json"
    replicate.main(["--s3", "--megabytes=2", f"--scratch={tmp_path}", f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]

    assert set(results) == {"down: ours", "down: boto3", "up: ours", "up: boto3"}
    assert all(rate > 0 for (rate,) in results.values())
    assert "| up: ours " in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["raw.json"]


@pytest.mark.long
def test_read_measures_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    arguments = ["--images=160", "--rounds=1", "--epochs=2", "--only=^256 px: Pillow$"]
    read.main([*arguments, "--size", "96", "72", f"--scratch={tmp_path}", f"--json={raw}"])
    ((name, (result,)),) = json.loads(raw.read_text())["raw"].items()

    assert f"| {name} " in capsys.readouterr().out
    assert result["images"] == 2 * read.BATCH
    assert result["cpu_s"] > 0


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.dali
def test_read_measures_ours_and_the_bare_frameworks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("tensorflow", "nvidia.dali"):
        if not util.find_spec(module.partition(".")[0]):
            pytest.skip(f"{module} is not installed")
    raw = tmp_path / "raw.json"
    only = "^256 px: (tf.data, (plain|ours)|DALI, (bare|ours)|Pillow)$"
    arguments = ["--images=320", "--rounds=1", "--epochs=2", f"--only={only}"]
    read.main([*arguments, "--size", "96", "72", f"--scratch={tmp_path}", f"--json={raw}"])
    results = json.loads(raw.read_text())["raw"]
    printed = capsys.readouterr().out

    assert len(results) == 5
    for name, (result,) in results.items():
        assert f"| {name} " in printed
        # Two epochs of the two batches that 320 images make.
        assert result["images"] == 2 * 2 * read.BATCH
        assert result["cpu_s"] > 0
        assert len(result["pss_mb"]) == 2
    assert f"256 px: {read.OURS_TF}, against {read.PLAIN}" in printed
    assert f"256 px: {read.OURS_DALI}, against {read.BARE}" in printed


@pytest.mark.long
@pytest.mark.parametrize(
    ("tool", "package"),
    list(zip(read.PEERS, ("streaming", "webdataset", "litdata", "ffcv"), strict=True)),
)
def test_read_measures_the_peers_on_the_same_jpegs(tmp_path: Path, tool: str, package: str) -> None:
    venv = _peers_venv(package)
    root = read.prepared(tmp_path, 160, (96, 72), "original")
    bench = read.Bench("original", root, 1, venv)
    result = bench.rows()[f"original: {tool}"]()

    assert result.images == read.BATCH
    assert result.cpu_s > 0
    (own,) = set(tmp_path.glob(f"{root.name}-*"))
    theirs = b"".join(path.read_bytes() for path in own.iterdir())
    for picture in bench.pictures:
        assert (root / picture.shard).read_bytes()[picture.offset :][: picture.size] in theirs


@pytest.mark.long
def test_read_measures_torchcodec_on_our_shards(tmp_path: Path) -> None:
    venv = _peers_venv("torchcodec")
    root = read.prepared(tmp_path, 160, (96, 72), "original")
    result = read.Bench("original", root, 1, venv).rows()[f"original: {read.TORCHCODEC}"]()

    assert result.images == read.BATCH
    assert result.cpu_s > 0


@pytest.mark.long
def test_write_measures_archives_in_s3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = "^R ours, 1 worker, "
    arguments = ["--images=40", "--rounds=1", "--s3", f"--only={only}", f"--scratch={tmp_path}"]
    write.main([*SMALL, *arguments])
    printed = capsys.readouterr().out

    assert "R: from S3 at 5 ms against here, second set" in printed
    assert "R: to S3, against a folder" in printed
    made = [path.name for path in tmp_path.glob("corpus-*")]
    assert made == ["corpus-40-96x72"], "none for rows of P"


def test_a_delayed_server_gets_all_bytes_later() -> None:
    with serve({"x": bytes(300_000)}) as server, delayed(server.url, 0.05) as url:
        start = time.monotonic()
        with urllib.request.urlopen(f"{url}/x") as answer:
            assert answer.read() == bytes(300_000)
        assert time.monotonic() - start >= 0.05
