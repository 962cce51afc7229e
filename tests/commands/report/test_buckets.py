"""`report s3://…` makes a folder's page by ranged reads, in a local file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagenet_prep import report
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import rewrite
from imagenet_prep.reporting import facts, sample
from imagenet_prep.reporting.facts import DatasetFacts
from imagenet_prep.sources import shard_files
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import Access
from imagenet_prep.storage.store import Store
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import S3Server
from tests.kit.tfrecords import picture, scene, write_dataset


@pytest.fixture
def both(prefix: str, tmp_path: Path) -> tuple[LocalStore, BucketStore]:
    """A dataset before and after resize, in a folder and in a bucket: in/ and out/ of both."""
    pictures = [picture(number, scene(number)) for number in range(8)]
    write_dataset(tmp_path / "in", {"train": [pictures[:3], pictures[3:]]}, num_classes=8)
    found = shard_files.find(LocalStore(tmp_path / "in"))
    job = rewrite.ResizeJob(found, ("train",), Policy(32, 85), Workers(1, "threads"), quiet=True)
    rewrite.run(job, LocalStore(tmp_path / "out"))
    bucket = BucketStore(prefix)
    for path in tmp_path.rglob("*"):
        if path.is_file() and "claims" not in path.parts:
            bucket.write(str(path.relative_to(tmp_path)), path.read_bytes())
    return LocalStore(tmp_path), bucket


def gathered(store: Store, source: Store | None) -> DatasetFacts:
    return facts.gather(open_dataset(store), [], source)


def test_bucket_and_folder_give_the_same_report(
    both: tuple[LocalStore, BucketStore],
) -> None:
    folder = Path(both[0].where())
    bucket = both[1].where()
    here = gathered(LocalStore(folder / "out"), LocalStore(folder / "in"))
    there = gathered(BucketStore(f"{bucket}/out"), BucketStore(f"{bucket}/in"))

    assert there.tasks
    for name in ("classes", "measured", "tasks", "seconds_of", "name"):
        assert getattr(there, name) == getattr(here, name)
    tiles = sample.draw(there, seed=1)
    assert tiles == sample.draw(here, seed=1)
    assert all(tile.before for tile in tiles)
    assert (there.problems, here.problems) == ([], [])
    there.store.remove(schema.index_name("train-00000-of-00002"))
    sample.draw(there, seed=1)
    assert any(
        says("cannot-read-2", "index/train-00000-of-00002").search(each) for each in there.problems
    )


@pytest.mark.parametrize("at", ["folder", "bucket"])
def test_report_ignores_source_named_by_the_dataset(
    both: tuple[LocalStore, BucketStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str
) -> None:
    """A dataset may come from strangers: only this user's notes and --source are trusted."""
    folder = Path(both[0].where())
    bucket = both[1].where()
    store = LocalStore(folder / "out") if at == "folder" else BucketStore(f"{bucket}/out")
    for root in (str(folder / "in"), f"{bucket}/in"):
        store.write(f"{schema.WORK}/origin.json", json.dumps({"root": root, "files": {}}).encode())
        assert any(tile.before for tile in sample.draw(gathered(store, None), seed=1))
        with monkeypatch.context() as patch:
            patch.setenv(schema.CACHE, str(tmp_path / "of-another-user"))
            assert not any(tile.before for tile in sample.draw(gathered(store, None), seed=1))


def test_page_of_a_bucket_is_written_locally(
    both: tuple[LocalStore, BucketStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unplotted: None,
) -> None:
    address = f"{both[1].where()}/out"
    before = BucketStore(address).everything()
    monkeypatch.chdir(tmp_path)
    out = report.report(report.ReportConfig(address))

    assert out == Path(schema.REPORT)
    page = out.read_text("utf-8")
    assert "<h1>out</h1>" in page
    assert f"make_dataset(&#39;{address}&#39;, &#39;train&#39;" in page
    assert "builder_from_directory" not in page
    assert BucketStore(address).everything() == before


def test_unreadable_bucket_is_explained(
    both: tuple[LocalStore, BucketStore],
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    address = f"{both[1].where()}/out"
    limits(retry_pause_s=0.0)
    with pytest.raises(UsageError, match=says("not-dataset-imagenet-prep-no-make", "nothing")):
        report.report(report.ReportConfig(f"{address}/nothing"))
    with pytest.raises(StoreError, match=says("server-answers", "404")):
        report.report(report.ReportConfig("s3://nobody/out"))
    with proxied(s3.url, seed=0, faults=0, rate=0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        found = gathered(BucketStore(address, Access(retries=2)), None)
        proxy.down = True
        with pytest.raises(IncompleteError, match=says("given-up-after", "3 failed attempts")):
            sample.draw(found, seed=0)
