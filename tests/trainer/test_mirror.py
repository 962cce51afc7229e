"""The copy of a run in a bucket is complete, up to date, and enough to resume elsewhere."""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.storage import bucket, remote
from imagenet_prep.storage.s3 import CHECK_BY_READING
from imagenet_prep.trainer import checkpoint, saved
from imagenet_prep.trainer.config import TrainConfig
from tests.kit.bounds import peak_bytes
from tests.kit.command import wait_until
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.s3_proxy import Proxy, proxied
from tests.kit.s3_server import BUCKET, S3Server, key_of, objects
from tests.kit.training import NUM_VALIDATION, end_at_step, rows

pytestmark = [pytest.mark.tf, pytest.mark.slow]  # a server takes three seconds to start
Train = Callable[..., Any]


@pytest.fixture
def proxy(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy of the server, which forwards requests until it is `down`."""
    with proxied(s3.url, seed=1, faults=1_000_000, rate=0.0) as standing:
        monkeypatch.setenv("AWS_ENDPOINT_URL", standing.url)
        yield standing


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: data for name, data in found.items() if not name.startswith(".work")}


# Keras' export copies its variables in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_new_machine_resumes_from_an_exact_mirror(
    train: Train, s3: S3Server, proxy: Proxy, prefix: str, tmp_path: Path
) -> None:
    longer = {"num_epochs": 3.0, "checkpoint_every": 10, "keep": 2, "mirror": prefix}
    train(tmp_path / "one", **longer, export=str(tmp_path / "model.keras"))

    client = s3.client()
    found = objects(client, prefix)
    assert found.pop("export/model.keras") == (tmp_path / "model.keras").read_bytes()
    assert found == files(tmp_path / "one")
    assert [name for name in found if name.startswith("checkpoint")] == [
        checkpoint.name(20),
        checkpoint.name(24),
    ]
    assert any(name.startswith("tensorboard/events") for name in found)
    last = {"Bucket": BUCKET, "Key": key_of(f"{prefix}/{checkpoint.name(24)}")}
    head = client.head_object(**last, ChecksumMode="ENABLED")
    assert head["Metadata"]["sha256"] == hashlib.sha256(found[checkpoint.name(24)]).hexdigest()
    assert len(head["ChecksumCRC32C"]) == 8

    # The machine is lost between two checkpoints, and the next one has an empty disk.
    client.delete_object(**last)
    train(tmp_path / "two", **longer)
    first, second = (checkpoint.load(tmp_path / n / checkpoint.name(24)) for n in ("one", "two"))
    assert [k for k in first.arrays if (first.arrays[k] != second.arrays[k]).any()] == []
    assert [row["resumed_at"] for row in rows(tmp_path / "two", "start")] == [0, 20]
    now = objects(client, prefix)
    assert now["train.jsonl"] == (tmp_path / "two" / "train.jsonl").read_bytes()
    assert sum(name.startswith("tensorboard/") for name in now) == 2


def test_mirrors_are_completed_after_an_outage(
    train_by_numpy: Train,
    s3: S3Server,
    proxy: Proxy,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limits: Limits,
) -> None:
    # The reason of a failure is only printed if there is time for a further upload.
    limits(last_upload_s=2.0)
    save = checkpoint.save

    def save_without_network(*words: Any, **more: Any) -> None:
        proxy.down = True
        save(*words, **more)

    monkeypatch.setattr(checkpoint, "save", save_without_network)
    settings = {"checkpoint_every": 4, "mirror": prefix}
    with pytest.raises(IncompleteError, match=says("run-finished-mirror-incomplete-see")):
        train_by_numpy(tmp_path / "run", **settings)

    said = capsys.readouterr().err
    # The message is absent if the run ends before the first retry.
    assert len(says("training-continues-upload-retried").findall(said)) <= 1
    assert says("connection-failed").search(said)
    assert f"{prefix} lacks 5 files of this run: train.jsonl, " in said
    assert rows(tmp_path / "run", "evaluation")[-1]["examples"] == NUM_VALIDATION
    proxy.down = False
    train_by_numpy(tmp_path / "run", **settings)
    assert objects(s3.client(), prefix) == files(tmp_path / "run")


def test_only_regular_files_of_the_run_are_mirrored(
    s3: S3Server, prefix: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    private = tmp_path / ".ssh"
    private.mkdir()
    (private / "id_rsa").write_text("a private key")
    (log / "tensorboard").mkdir(parents=True)
    (log / "model" / "assets").mkdir(parents=True)
    own = ("train.jsonl", "tensorboard/events.out.tfevents.1.a", "model/saved_model.pb")
    for name in own:
        (log / name).write_text("{}\n")
    for place in ("tensorboard/id_rsa", "model/id_rsa", "model/.env", "notes"):
        (log / place).write_text("a private key")
    links = (checkpoint.name(1), "tensorboard/events.out.tfevents.2.b", "model/assets/x")
    for place in links:
        (log / place).symlink_to(private / "id_rsa")
    (log / "model" / "variables").symlink_to(private)
    copy = saved.Mirror(prefix, log, log / "tensorboard", log / "model")
    copy.fetch()
    copy.flush()

    assert copy.close()
    there = ("train.jsonl", "tensorboard/events.out.tfevents.1.a", "export/model/saved_model.pb")
    assert objects(s3.client(), prefix) == dict.fromkeys(there, b"{}\n")


def test_failed_uploads_are_retried_during_training(
    s3: S3Server,
    proxy: Proxy,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.jsonl").write_text("{}\n")
    copy = saved.Mirror(prefix, tmp_path, tmp_path / "tensorboard", None)
    copy.fetch()
    proxy.down = True
    # Retries of an S3 reader in the same outage have used up the lines of retries.
    monkeypatch.setattr(remote._lines, "_allowed", -1000.0)
    monkeypatch.setattr(remote._lines, "_at", time.monotonic())
    # `capsys` may lose what a thread writes while it is read.
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    copy.flush()

    def arrived() -> bool:
        if says("training-continues-upload-retried").search(said.getvalue()):
            proxy.down = False
        return bool(says("mirror-upload-complete-after-retries").search(said.getvalue()))

    wait_until(arrived, "the end of the upload")
    assert copy.close()
    assert objects(s3.client(), prefix) == {"train.jsonl": b"{}\n"}


def test_large_growing_files_are_uploaded_in_parts(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)  # the smallest part that S3 accepts
    log = tmp_path / "train.jsonl"
    log.write_bytes(b"0123456789abcdef" * (bucket.PART_BYTES // 4))
    whole = log.read_bytes()
    copy = saved.Mirror(prefix, tmp_path, tmp_path / "tensorboard", None)
    put = copy._store.put

    def put_while_it_grows(*arguments: Any) -> None:
        with open(log, "ab") as growing:
            growing.write(b"a line more")
        put(*arguments)

    copy._store.put = put_while_it_grows  # type: ignore[method-assign]
    peak = peak_bytes(copy._upload)

    assert objects(s3.client(), prefix) == {"train.jsonl": whole}
    assert peak < 4 * bucket.PART_BYTES == len(whole)


def test_an_unusable_mirror_is_refused_before_training(
    train_by_numpy: Train,
    proxy: Proxy,
    prefix: str,
    tmp_path: Path,
    limits: Limits,
) -> None:
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/run.*404 NoSuchBucket"):
        train_by_numpy(tmp_path / "run", mirror="s3://no-such-bucket/run")
    proxy.keeps_checksums = False
    with pytest.raises(StoreError, match=CHECK_BY_READING):
        train_by_numpy(tmp_path / "run", mirror=prefix)
    limits(upload_retries=1)
    proxy.down = True
    with pytest.raises(IncompleteError, match=says("training-not-started-run-same")):
        train_by_numpy(tmp_path / "run", mirror=prefix)

    assert not (tmp_path / "run" / "train.jsonl").exists()


def test_a_damaged_mirrored_checkpoint_is_reported_and_skipped(
    train_by_numpy: Train,
    s3: S3Server,
    proxy: Proxy,
    prefix: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"checkpoint_every": 6, "mirror": prefix}
    train_by_numpy(tmp_path / "one", **settings)
    key = key_of(f"{prefix}/{checkpoint.name(16)}")
    client = s3.client()
    metadata = client.head_object(Bucket=BUCKET, Key=key)["Metadata"]
    client.put_object(Bucket=BUCKET, Key=key, Body=b"damaged", Metadata=metadata)
    train_by_numpy(tmp_path / "two", **settings)
    said = capsys.readouterr()

    assert f"{checkpoint.name(16)}: sha256 " in said.err
    assert says("resumed-after-step", "12").search(said.out)
    assert objects(s3.client(), prefix).keys() >= files(tmp_path / "two").keys()


def test_a_mirror_with_later_steps_is_never_overwritten(
    train_by_numpy: Train, s3: S3Server, proxy: Proxy, prefix: str, tmp_path: Path
) -> None:
    train_by_numpy(tmp_path / "one", checkpoint_every=6, mirror=prefix)
    before = objects(s3.client(), prefix)
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / checkpoint.name(6), tmp_path / "two")

    with pytest.raises(UsageError, match=says("step-only-step-use-empty", ..., "16", ..., "6")):
        train_by_numpy(tmp_path / "two", mirror=prefix)
    with pytest.raises(UsageError, match=rf"\(from {prefix}\) holds a run with seed 0"):
        train_by_numpy(tmp_path / "three", seed=1, mirror=prefix)
    assert objects(s3.client(), prefix) == before


def test_a_mirror_with_earlier_steps_is_no_conflict(
    s3: S3Server, prefix: str, tmp_path: Path
) -> None:
    client = s3.client()
    key = key_of(f"{prefix}/{checkpoint.name(8)}")
    client.put_object(Bucket=BUCKET, Key=key, Body=b"of step 8")
    for step in (6, 10):
        (tmp_path / checkpoint.name(step)).write_bytes(b"newer")
    saved.Mirror(prefix, tmp_path, tmp_path / "tensorboard", None).fetch()
    (tmp_path / checkpoint.name(10)).unlink()
    with pytest.raises(UsageError, match=says("step-only-step-use-empty", ..., "8", ..., "6")):
        saved.Mirror(prefix, tmp_path, tmp_path / "tensorboard", None).fetch()


@pytest.mark.parametrize(("local", "kept"), [(None, "1 2"), ("1", "1 2"), ("1 2 3", "1 2 3")])
def test_the_longer_log_is_kept(
    s3: S3Server, prefix: str, tmp_path: Path, local: str | None, kept: str
) -> None:
    client = s3.client()
    client.put_object(Bucket=BUCKET, Key=key_of(f"{prefix}/train.jsonl"), Body=b"1 2")
    log = tmp_path / "train.jsonl"
    if local is not None:
        log.write_text(local)
    saved.Mirror(prefix, tmp_path, tmp_path / "tensorboard", None).fetch()
    assert log.read_text() == kept


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_errors_of_the_upload_thread_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: saved.Mirror) -> None:
        raise KeyError("nobody foresaw this")

    (tmp_path / "train.jsonl").write_bytes(b"{}")
    copy = saved.Mirror("s3://bucket/run", tmp_path, tmp_path / "tensorboard", None)
    assert copy.close()
    monkeypatch.setattr(saved.Mirror, "_upload", fail)
    copy.flush()
    copy._thread.join()

    with pytest.raises(KeyError, match="nobody foresaw this"):
        copy.close()


def test_evaluation_of_an_empty_mirror_is_refused(
    train_by_numpy: Train, tmp_path: Path, prefix: str
) -> None:
    with pytest.raises(UsageError, match=says("no-checkpoint-evaluate-train-first")):
        train_by_numpy(tmp_path / "run", mirror=prefix, evaluate=True)


def test_only_mirror_takes_a_bucket() -> None:
    with pytest.raises(ValueError, match="--log-dir s3://b/run: expected a local path; --mirror"):
        TrainConfig(synthetic=True, log_dir="s3://b/run")
    with pytest.raises(ValueError, match="--mirror /data/run: expected s3://bucket/prefix"):
        TrainConfig(synthetic=True, mirror="/data/run")


def test_a_new_spot_instance_resumes_from_the_mirror(
    train_by_numpy: Train,
    s3: S3Server,
    proxy: Proxy,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"num_epochs": 400.0, "display_every": 1, "checkpoint_every": 100_000}
    for part in (1, 2):
        # The first instance loses its disk, so the next one has an empty folder.
        run = tmp_path / f"run-{part}"
        with monkeypatch.context() as patch:
            end_at_step(patch, 6 * part)
            with pytest.raises(IncompleteError, match=says("asked-stop-step-saved-run")):
                train_by_numpy(run, **settings, mirror=prefix)
        assert checkpoint.steps(run)[-1] > 6 * part
        there = objects(s3.client(), prefix)
        assert there == files(run) or part == 2
        assert there["train.jsonl"] == (run / "train.jsonl").read_bytes()
    assert says("resumed-after-step", checkpoint.steps(tmp_path / "run-1")[0]).search(
        capsys.readouterr().out
    )
    assert len(checkpoint.steps(run)) == 2
