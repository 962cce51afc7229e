"""Training logs and checkpoints of other users: each field is changed, for all verbs.

A log directory may be shared, so all its files are untrusted. Each verb must end with exit code 0,
2 or 3 (1 if `show --check` finds faults), contact no address, and raise no other error.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pytest

from imagenet_prep import export, report, show
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError
from imagenet_prep.read import receipt
from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.config import TORCHVISION, residual_blocks
from tests.hostile import readers
from tests.kit.hostile import fields
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.training import make_shades

EXPORTS = ("folder", "tfds", "webdataset", "parquet", "recordio", "torch", "croissant")
Case = TypeVar("Case")
READ = ("kind", "step", "receipt")  # the fields of a line that show reads
MOST_BYTES = 600_000_000  # more than before the case
MOST_CPU_S = 20.0
KEY = "n00001000/n00001000_0.JPEG"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and the log directory of a run on it that was resumed once."""
    root = tmp_path_factory.mktemp("trained")
    make_shades(root / "set")
    readers._train(str(root / "set"), str(root / "log"), "2")
    (root / "log" / checkpoint.name(16)).unlink()
    readers._train(str(root / "set"), str(root / "log"), "2")
    return root


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes any connection fail the test."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("an address was contacted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def code_of(run: Callable[[list[str]], int], words: list[str]) -> int:
    """Returns the exit code of a verb; only errors of this program have one."""
    try:
        return run(words)
    except ImagenetPrepError as error:
        assert str(error)
        return error.exit_code


# `make test` runs one quarter of the cases of each test, `make test-long` all.
QUARTERS = long_except((0,), range(4))


def quarter(cases: Iterable[Case], number: int) -> Iterator[Case]:
    return itertools.islice(cases, number, None, 4)


def peak_bytes() -> int:
    """Returns the peak of this process's memory since the last call."""
    status = Path("/proc/self/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(peak)


def failures(
    cases: Iterator[tuple[str, Callable[[], int]]], codes: set[int], *, bounded: bool = False
) -> list[str]:
    """Runs cases; returns those that end with other codes, errors or, if bounded, much memory."""
    found = []
    for name, case in cases:
        before = peak_bytes() if bounded else 0
        start = time.process_time()
        try:
            code = case()
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        used = peak_bytes() - before if bounded else 0
        if code not in codes or used > MOST_BYTES or time.process_time() - start > MOST_CPU_S:
            found.append(f"{name}: exit code {code}, {used:,} bytes")
    return found


def logs(log: Path) -> Iterator[tuple[str, bytes]]:
    """Yields logs in which a field of a line at a start or a checkpoint is changed."""
    lines = log.read_bytes().splitlines(keepends=True)
    places: dict[tuple[str, bool], int] = {}
    for number, line in enumerate(lines):
        kind = json.loads(line)["kind"]
        if kind in ("start", "saved", "train"):
            places.setdefault((kind, len(places) > 2), number)
    for (kind, _), number in places.items():
        for change, content in fields.changed(json.loads(lines[number]), READ):
            changed = [*lines[:number], fields.dumps(content) + b"\n", *lines[number + 1 :]]
            yield f"{kind}: {change}", b"".join(changed)


@pytest.mark.parametrize("number", QUARTERS)
@pytest.mark.parametrize(
    "words", [["--check"], ["--step", "3"], ["--key", KEY], ["--check", "--trained-on", "set"]]
)
@pytest.mark.usefixtures("offline")
def test_changed_field_of_a_log_never_breaks_show(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], number: int
) -> None:
    monkeypatch.chdir(trained)
    run = tmp_path / "run"
    run.mkdir()

    def cases() -> Iterator[tuple[str, Callable[[], int]]]:
        for name, data in quarter(logs(trained / "log" / "train.jsonl"), number):
            (run / "train.jsonl").write_bytes(data)
            yield name, lambda: code_of(show.run, [str(run), *words, "--limit", "3"])

    assert failures(cases(), {0, 1, 2, 3} if "--check" in words else {0, 2, 3}) == []
    assert not (trained / "owned").exists()


def model_arrays(model: str, classes: int, framework: str) -> dict[str, Any]:
    """Returns arrays with the names and shapes of a trained model, computed from torchvision's."""
    width, size = (16, 3) if model == "tiny" else (64, 7)
    found: dict[str, Any] = {}

    def add(layer: str, inputs: int, outputs: int, size: int, norm: str) -> None:
        found[f"{layer}.weight"] = np.ones((outputs, inputs, size, size), np.float32)
        for kind in ("weight", "bias", "running_mean", "running_var"):
            found[f"{norm}.{kind}"] = np.ones(outputs, np.float32)

    add("conv1", 3, width, size, "bn1")
    for block, convolutions in residual_blocks(model):
        inputs = width
        stride = 1
        for number, (filters, size, step) in enumerate(convolutions, start=1):
            add(f"{block}.conv{number}", width, filters, size, f"{block}.bn{number}")
            width = filters
            stride = stride * step
        if inputs != width or stride > 1:
            add(f"{block}.downsample.0", inputs, width, 1, f"{block}.downsample.1")
    found["fc.weight"] = np.ones((classes, width), np.float32)
    found["fc.bias"] = np.ones(classes, np.float32)
    if framework == "tensorflow":
        found = {
            name.replace(".weight", "/kernel" if array.ndim > 1 else "/gamma")
            .replace(".bias", "/beta")
            .replace(".running_mean", "/moving_mean")
            .replace(".running_var", "/moving_variance")
            .replace("fc/", "classes/"): array
            for name, array in found.items()
        }
    return found | {"slot_0000": np.zeros((300, 300), np.float32)}


@pytest.mark.parametrize("model", long_except(("tiny", "resnet18"), TORCHVISION))
def test_valid_checkpoint_of_each_network_is_exported(
    trained: Path, tmp_path: Path, model: str
) -> None:
    from imagenet_prep.trainer import interface

    for framework in ("tensorflow", "pytorch"):
        latest = checkpoint.load_latest(trained / "log")
        assert latest is not None
        run = latest.facts["run"] | {"model": model, "framework": framework, "num_classes": 4}
        arrays = model_arrays(model, 4, framework)
        facts = {**latest.facts, "run": run}
        checkpoint.save(tmp_path / framework, 8, facts, arrays, keep=1)
        out = tmp_path / f"{framework}.safetensors"
        for _ in range(2):  # the second time, the file is replaced
            words = [str(tmp_path / framework), str(out), "--to", "torch"]
            assert code_of(export.run, words) == 0
        needed = sum(array.size for name, array in arrays.items() if "slot" not in name)
        assert interface.network_of(facts).num_weights == needed


def checkpoints(head: Any, arrays: dict[str, Any], folder: Path, number: int) -> Iterator[str]:
    """Writes checkpoints with one changed field each; yields their descriptions."""
    for change, content in quarter(fields.changed(head), number):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        data = np.frombuffer(fields.dumps(content), np.uint8)
        with open(folder / checkpoint.name(head["step"]), "wb") as file:
            np.savez(file, facts=data, **arrays)
        yield change


@pytest.mark.parametrize("number", QUARTERS)
@pytest.mark.usefixtures("offline")
def test_changed_fact_of_checkpoint_never_breaks_export(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    latest = checkpoint.load_latest(trained / "log")
    assert latest is not None
    facts = {**latest.facts, "run": latest.facts["run"] | {"framework": "pytorch"}}
    head = {"version": 1, "step": latest.step, "saved_at": 1.0, "facts": facts}
    folder = tmp_path / "run"
    out = tmp_path / "out.safetensors"

    def cases() -> Iterator[tuple[str, Callable[[], int]]]:
        for change in checkpoints(head, model_arrays("tiny", 4, "pytorch"), folder, number):
            yield change, lambda: code_of(export.run, [str(folder), str(out), "--to", "torch"])
            printed = capsys.readouterr().out
            model = [line for line in printed.splitlines() if line.startswith("  model = ")]
            assert model in ([], ["  model = Tiny(4, image_size=16)  # from examples/tiny.py"]) or (
                change.endswith(("is large", "is true")) or "num_classes" in change
            )
            assert "__import__" not in printed

    assert failures(cases(), {0, 2, 3}) == []


@pytest.mark.parametrize("number", QUARTERS)
@pytest.mark.usefixtures("offline")
def test_changed_fact_of_checkpoint_never_breaks_training(
    trained: Path, tmp_path: Path, number: int
) -> None:
    latest = checkpoint.load_latest(trained / "log")
    assert latest is not None
    arrays = {name: np.asarray(array) for name, array in latest.arrays.items()}
    head = {"version": 1, "step": latest.step, "saved_at": 1.0, "facts": latest.facts}
    folder = tmp_path / "run"

    def resume(_: list[str]) -> int:
        return readers._train(str(trained / "set"), str(folder), "2")

    def cases() -> Iterator[tuple[str, Callable[[], int]]]:
        for change in checkpoints(head, arrays, folder, number):
            yield change, lambda: code_of(resume, [])

    assert failures(cases(), {0, 2, 3}) == []


@pytest.mark.usefixtures("offline")
def test_changed_log_never_breaks_training_or_other_verbs(trained: Path, tmp_path: Path) -> None:
    """Training appends to the log; report and the exports of datasets refuse a run."""
    folder = tmp_path / "run"
    shutil.copytree(trained / "log", folder)

    def verbs() -> Iterator[tuple[str, Callable[[list[str]], int], list[str]]]:
        yield "train", lambda _: readers._train(str(trained / "set"), str(folder), "2"), []
        yield "report", report.run, [str(folder)]
        for to in EXPORTS[:-2]:
            yield to, export.run, [str(folder), str(tmp_path / to), "--to", to]
        yield "croissant", export.run, [str(folder), str(tmp_path / "c.json"), "--to", "croissant"]

    def cases() -> Iterator[tuple[str, Callable[[], int]]]:
        for number, (name, data) in enumerate(logs(trained / "log" / "train.jsonl")):
            for place, (verb, run, words) in enumerate(verbs()):
                # Each verb gets one of 29 logs.
                if (number + place) % 29 == 0:
                    (folder / "train.jsonl").write_bytes(data)
                    yield f"{verb}: {name}", lambda run=run, words=words: code_of(run, words)

    assert failures(cases(), {0, 2, 3}) == []


def start_line(trained: Path) -> dict[str, Any]:
    return json.loads((trained / "log" / "train.jsonl").read_bytes().splitlines()[0])


def saved_line(step: int, **state: Any) -> bytes:
    return fields.dumps({"kind": "saved", "time": 1.0, "step": step, "receipt": state}) + b"\n"


def hostile_logs(start: dict[str, Any]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yields logs that require much work or memory, as functions that write them."""
    first = fields.dumps(start) + b"\n"
    state = start["receipt"]
    single = fields.dumps({**start, "receipt": {**state, "ranks": 1, "batch_size": 1}}) + b"\n"

    def write(data: bytes) -> Callable[[Path], None]:
        return lambda path: path.write_bytes(data) and None

    yield "many epochs", write(single + saved_line(58_000_000))
    yield "a late epoch", write(first + saved_line(20, epoch=2**40) + saved_line(40))
    many = {**state, "nodes": 4096, "ranks": 4096, "copies": 4096}
    yield "many nodes", write(fields.dumps({**start, "receipt": many}) + b"\n")
    some = {**state, "nodes": 64, "ranks": 64, "batch_size": 1, "copies": 64}
    yield (
        "epochs of nodes",
        write(fields.dumps({**start, "receipt": some}) + b"\n" + saved_line(16_000)),
    )
    yield (
        "more copies than nodes",
        write(fields.dumps({**start, "receipt": {**state, "copies": 2}}) + b"\n"),
    )
    lines = (saved_line(number, seed=number) for number in range(20_000))
    yield "many checkpoints", write(first + b"".join(lines))

    def sparse(path: Path) -> None:
        path.touch()
        os.truncate(path, 8 << 30)

    yield "no line end", sparse
    yield "a long line", write(first + b'{"receipt": "' + b"7" * (5 << 20) + b'"}\n')
    yield "many values", write(first + b'{"receipt": [' + b"[]," * 400_000 + b"0]}\n")

    def large(path: Path) -> None:
        line = b'{"kind": "train", "step": 1' + b" " * 1_000_000 + b"}\n"
        with open(path, "wb") as file:
            file.write(first)
            file.writelines(line for _ in range(300))

    yield "many bytes", large
    yield "a link", lambda path: path.symlink_to("/etc/hostname")
    yield "a pipe", os.mkfifo
    yield "a device", lambda path: path.symlink_to("/dev/zero")


@pytest.mark.parametrize("words", [["--check"], ["--step", "3"], ["--key", KEY]])
def test_hostile_log_has_bounded_time_and_memory(
    trained: Path, tmp_path: Path, words: list[str]
) -> None:
    start = start_line(trained)
    path = tmp_path / "train.jsonl"

    def cases() -> Iterator[tuple[str, Callable[[], int]]]:
        for name, write in hostile_logs(start):
            path.unlink(missing_ok=True)
            write(path)
            yield name, lambda: code_of(show.run, [str(tmp_path), *words])
        path.unlink()

    # A pipe is no log, so --key needs a dataset.
    assert failures(cases(), {2, 3} if "--key" in words else {3}, bounded=True) == []


def test_limits_match_their_messages(trained: Path) -> None:
    start = fields.dumps(start_line(trained)) + b"\n"
    segments = [saved_line(number) for number in range(receipt._MOST_SEGMENTS)]

    assert len(receipt.parse([start, *segments[1:]], "log")) == receipt._MOST_SEGMENTS
    with pytest.raises(DataDamagedError, match="log: line 16,385 is damaged: more than 16,384"):
        receipt.parse([start, *segments], "log")
    of_many = start_line(trained)
    of_many["receipt"] |= dict.fromkeys(("nodes", "ranks"), receipt._MOST_NODES)
    assert receipt.parse([fields.dumps(of_many) + b"\n"], "log")
    of_many["receipt"] |= dict.fromkeys(("nodes", "ranks"), receipt._MOST_NODES + 1)
    with pytest.raises(DataDamagedError, match=says("line-damaged", "log", "1")):
        receipt.parse([fields.dumps(of_many) + b"\n"], "log")


def test_only_the_user_can_name_an_address(trained: Path, tmp_path: Path) -> None:
    """The address in a log would get the user's credentials for its host."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/set"
        start = start_line(trained)
        start["receipt"]["data_dir"] = address
        (tmp_path / "train.jsonl").write_bytes(fields.dumps(start) + b"\n")
        listening.setblocking(False)

        assert code_of(show.run, [str(tmp_path), "--check"]) == 2
        with pytest.raises(BlockingIOError):
            listening.accept()
    local = ["--trained-on", str(trained / "set")]
    assert code_of(show.run, [str(tmp_path), "--check", *local]) == 0


MANY = 1 << 20  # classes: their weights would take 2 GB


def hostile_checkpoints(
    head: bytes, of_many: bytes
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yields checkpoints with arrays of a different network, as functions that write them."""
    sound = model_arrays("tiny", 4, "pytorch")
    facts = np.frombuffer(head, np.uint8)

    def save(arrays: dict[str, Any]) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            with open(path, "wb") as file:
                np.savez(file, facts=facts, **arrays)

        return write

    yield "one row more", save(sound | {"fc.weight": np.ones((5, 64), np.float32)})
    yield "a larger array", save(sound | {"fc.weight": np.ones((4_000, 64), np.float32)})
    yield "one array more", save(sound | {"zz.weight": np.ones(400_000, np.float32)})
    for kind in (np.float16, np.float64):
        yield kind.__name__, save({name: array.astype(kind) for name, array in sound.items()})
    yield "one array of float16", save(sound | {"bn1.bias": np.ones(16, np.float16)})
    yield "bytes", save(sound | {"bn1.bias": np.ones(16, np.uint8)})
    slot = {"slot_0000": np.ones(3, np.float32)}
    yield "an optimizer's array first", save(slot | sound)

    def sparse(path: Path, head: bytes, name: str, shape: str, n: int) -> None:
        with open(path, "wb") as raw:
            packed = zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED)
            arrays = (("facts", "|u1", f"{len(head)},"), (name, "<f4", shape))
            for called, dtype, sides in arrays:
                text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({sides}), }}"
                text = text.ljust(117) + "\n"
                header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
                info = zipfile.ZipInfo(f"{called}.npy")
                with packed.open(info, "w", force_zip64=True) as member:
                    member.write(header + (head if called == "facts" else b""))
            raw.seek(n, os.SEEK_CUR)
            last = packed.filelist[-1]
            last.file_size += n
            last.compress_size += n
            packed.start_dir = raw.tell()
            packed.close()

    yield "sparse", lambda path: sparse(path, head, "a", f"{(6 << 30) // 4},", 6 << 30)
    shape = f"{MANY}, 512"
    yield (
        "sparse, of a large network",
        lambda path: sparse(path, of_many, "fc.weight", shape, 4 * 512 * MANY),
    )


def test_hostile_checkpoint_has_bounded_memory(trained: Path, tmp_path: Path) -> None:
    latest = checkpoint.load_latest(trained / "log")
    assert latest is not None
    run = latest.facts["run"] | {"framework": "pytorch"}
    content = {"version": 1, "step": 8, "saved_at": 1.0, "facts": {**latest.facts, "run": run}}
    large = {"model": "resnet18", "num_classes": MANY}
    many = {**content, "facts": {**latest.facts, "run": run | large}}
    path = tmp_path / checkpoint.name(8)

    def cases() -> Iterator[tuple[str, Callable[[], int]]]:
        for name, write in hostile_checkpoints(fields.dumps(content), fields.dumps(many)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            write(path)
            words = [str(tmp_path), str(tmp_path / "x.safetensors"), "--to", "torch"]
            yield name, lambda words=words: code_of(export.run, words)

    assert failures(cases(), {3}, bounded=True) == []
    assert not (tmp_path / "x.safetensors").exists()
