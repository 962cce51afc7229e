"""No message repeats the content of a wrong file: it may be a password."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep import amend, export, replicate, report, run_on_hosts, score
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import predictions
from imagenet_prep.pipelines import launch, prepare
from tests.kit import layouts
from tests.kit.tfrecords import plain

SECRET = "hunter2"
_HEADER = ",".join(predictions.HEADER)
CONTENTS = [
    '["hunter2","b"]',
    '[["hunter2"]]',
    "[[1],{}]".replace("{}", '{"hunter2": 1}'),
    '{"initial_annots":{"hunter2":5}}',
    '{"initial_annots":{"a":{"hunter2":["b",7]}}}',
    '{"initial_annots":{"a":{"b":["hunter2",{"hunter2":1}]}}}',
    '{"initial_annots":{},"problematic_images":["a",{"hunter2":1}]}',
    '{"initial_annots":"hunter2"}',
    '{"private_key":"hunter2","rows":["hunter2"]}',
    '{"rows":[{"hunter2":1}]}',
    '{"rows":[{"ranks":"hunter2"}]}',
    '{"rows":{"hunter2":1}}',
    '{"hunter2',
    "PASSWORD=hunter2\n",
    "hunter2:x:0:0:root hunter2:/root:/bin/bash\n",
    "key,class\nhunter2,hunter2\n",
    'key,class\nn01,"hunter2',
    "key,class\nhunter2\n",
    "key,class\na/a.jpg,hunter2\n",
    f"{_HEADER}\nhunter2,hunter2,0,1,,,,,,,,\n",
    f"{_HEADER}\nhunter2,0,hunter2,1,,,,,,,,\n",
    f"{_HEADER}\nhunter2,0,0,hunter2,,,,,,,,\n",
    f"{_HEADER}\nhunter2,hunter2\n",
    f"{_HEADER},hunter2\nhunter2\n",
    "\\xffhunter2",
    "machine localhost login hunter2 password hunter2\n",
]
RUNS: dict[str, Callable[[str, str], object]] = {
    "score predictions": lambda data, file: score.run([file, data]),
    "score labels": lambda data, file: score.run([f"{data}.csv", data, "--labels", file]),
    "report labels": lambda data, file: report.run([data, "--labels", file]),
    "report predictions": lambda data, file: report.run([data, "--predictions", file]),
    "report training": lambda data, file: report.run([data, "--training", file]),
    "export keys": lambda data, file: export.run(
        [data, "--to", "webdataset", "--keys", file, "--out", f"{data}-out"]
    ),
    "export exclude": lambda data, file: export.run(
        [data, "--to", "webdataset", "--exclude", file, "--out", f"{data}-out"]
    ),
    "amend exclude": lambda data, file: amend.run(
        [data, "--exclude", file, "--out", f"{data}-out"]
    ),
    "amend relabel": lambda data, file: amend.run(
        [data, "--relabel", file, "--out", f"{data}-out"]
    ),
    "prepare exclude": lambda data, file: prepare.run(
        ["--source", f"{data}-source", "--out", f"{data}-out", "--exclude", file]
    ),
    "replicate": lambda data, file: replicate.run([data, "--to", f"hosts:{file}:/x"]),
    "run-on-hosts": lambda _, file: run_on_hosts.run([file, "--", "true"]),
    "launch": lambda data, file: launch.run(
        ["-np", "1", "--hosts", file, "--dry-run", "--", "train", "--data-dir", data]
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two images, next to its source; read-only."""
    root = tmp_path_factory.mktemp("sets") / "set"
    source = root.with_name("set-source")
    for number, name in enumerate(("a/a", "b/b")):
        layouts.write(source / "train" / f"{name}.jpg", plain(number))
        layouts.write(source / "val" / f"{name}.jpg", plain(number + 2))
    assert prepare.run(["--source", str(source), "--out", str(root), "--json"]) == 0
    said = f"{_HEADER}\na/a.jpg,0,0,1,,,,,,,,\nb/b.jpg,1,1,1,,,,,,,,\n"
    root.with_name("set.csv").write_text(said)
    return root


@pytest.mark.parametrize("verb", RUNS)
def test_messages_never_repeat_the_content(
    data: Path, tmp_path: Path, verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    slow = verb.startswith(("report", "prepare"))
    for content in CONTENTS[:: 4 if slow else 1]:
        file.write_bytes(content.encode().replace(b"\\xff", b"\xff"))
        with pytest.raises(ImagenetPrepError) as refused:
            RUNS[verb](str(data), str(file))
        said = str(refused.value) + "".join(capfd.readouterr())
        assert SECRET not in said, content
        shutil.rmtree(f"{data}-out", ignore_errors=True)
