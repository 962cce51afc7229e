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
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import capacity, codec, download, measure, replicate, scale, verbs, write
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


def test_cpu_time_includes_children_that_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    code = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
        f"subprocess.Popen([sys.executable, '-c', {burn + 'print(flush=True); input()'!r}]).wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        assert measure.cpu_of_tree(parent.pid) > 0.5
        parent.stdin.close()  # ends both


def test_versions_are_found_by_any_spelling() -> None:
    found = measure.versions(sys.executable, ["Pytest_Xdist", "pillow", "no-such-package"])

    assert set(found) == {"pillow", "Pytest_Xdist"}
    assert measure.versions_line({"b": "2", "a": "1.0"}) == "a 1.0, b 2"


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


@pytest.mark.long
def test_write_measures_the_peer(tmp_path: Path, peers_venv: Path) -> None:
    source = measure.corpus(tmp_path, 20, (96, 72))
    bench = write.Bench(lambda: source, tmp_path, 48, peers_venv)
    rows = {**bench.resized(), **bench.passed()}
    for name in (write.WEBDATASET_R, write.WEBDATASET_P):
        result = rows[name]()
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
def test_verbs_compares_a_prediction_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs.main(["--images", "8000", "--rounds", "1", f"--scratch={tmp_path}"])

    out = capsys.readouterr().out
    assert "8,000 of 300 bytes, 1,024 shards" in out
    for cost in capacity.COSTS:
        assert re.search(rf"^\| {re.escape(cost.name)} +\|( +[\d.]+ \|){{3}}$", out, re.MULTILINE)


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
