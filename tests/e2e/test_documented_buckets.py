"""Commands of the documents that read or write buckets, with an S3 server on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from imagenet_prep import report
from tests.kit import blocks, evaluation_datasets, s3_server
from tests.kit.dataset import contents, split_records
from tests.kit.evaluation_datasets import put
from tests.kit.http_server import serve
from tests.kit.machine import (
    Machine,
    expected,
    labels,
    lines_of,
    manifest,
    small_machine,
    with_datasets,
)
from tests.kit.ports import free_ports
from tests.kit.s3_server import BUCKET, S3Server, key_of
from tests.kit.unplotted import unplotted

__all__ = ["unplotted"]

pytestmark = [pytest.mark.slow, pytest.mark.extras]

MIRROR = "https://mirror.example.edu"


class Bucket:
    """The test's part of a bucket, which replaces s3://bucket on the pages."""

    def __init__(self, s3: S3Server, prefix: str) -> None:
        self.client: Any = s3.client()
        self.prefix = prefix

    def give(self, machine: Machine, s3: S3Server) -> None:
        """Lets the commands of a machine use it."""
        machine.environment |= s3.environment
        machine.places |= {"s3://bucket": self.prefix, "s3://BUCKET": self.prefix}

    def upload(self, folder: Path, name: str, pattern: str = "*") -> None:
        """Uploads the files of a folder below a name."""
        for path in folder.rglob(pattern):
            if path.is_file() and ".work" not in path.parts:
                key = PurePosixPath(key_of(self.prefix), name, path.relative_to(folder))
                self.client.put_object(Bucket=BUCKET, Key=f"{key}", Body=path.read_bytes())

    def contents(self, name: str) -> dict[str, bytes]:
        """Returns the objects of a dataset, without the work folder's."""
        found = s3_server.objects(self.client, f"{self.prefix}/{name}")
        return {key: data for key, data in found.items() if not key.startswith(".work/")}


@pytest.fixture
def bucket(s3: S3Server, prefix: str) -> Bucket:
    return Bucket(s3, prefix)


@pytest.fixture
def small(shared_cache: Path, tmp_path: Path, s3: S3Server, bucket: Bucket) -> Machine:
    """A machine that has small archives."""
    made = small_machine(shared_cache, tmp_path / "machine")
    bucket.give(made, s3)
    return made


@pytest.fixture
def machine(small: Machine, shared_cache: Path) -> Machine:
    """A machine that also has datasets."""
    return with_datasets(small, shared_cache)


def test_bucket_page_prepares_equal_bytes_everywhere(small: Machine, bucket: Bucket) -> None:
    bucket.upload(small.source.root, "ilsvrc2012")
    first, second, third, verify = lines_of(
        "$ bucket.md: Read archives from a bucket, write a dataset into one"
    )
    small.run(first)
    small.run(second.replace("/sets/", "/other/"))
    archives = {f"ilsvrc/{path.name}": path.read_bytes() for path in small.source.root.iterdir()}
    with serve(archives) as server:
        small.places[MIRROR] = server.url
        small.run(third)
    checked = small.run(verify)

    local = small.dataset("imagenet-480")
    assert labels(local) == expected(small.source)
    shards = [path.name for path in local.glob("*-of-*")]
    for name in ("sets", "other"):
        found = bucket.contents(f"{name}/imagenet-480")
        assert found.keys() == contents(local).keys()
        assert all(found[shard] == (local / shard).read_bytes() for shard in shards)
    assert checked.out.startswith(f"sound: {len(labels(local))} examples")


def test_bucket_page_resizes_adopts_and_reports(
    machine: Machine, bucket: Bucket, unplotted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload(machine.dataset("imagenet-480"), "imagenet-full")
    bucket.upload(machine.dataset("imagenet-256"), "tfrecords", "*-of-*")
    resize, adopt, show = lines_of("$ bucket.md: Datasets in a bucket")
    machine.run(f"{resize} --size 64")
    machine.run(adopt)
    monkeypatch.chdir(machine.root)
    assert report.run(machine.words(show)[2:]) == 0

    small = contents(machine.dataset("imagenet-256"))
    shards = {name: data for name, data in small.items() if name.startswith(("train", "valid"))}
    for name in ("imagenet-480", "imagenet"):
        assert shards.items() <= bucket.contents(name).items()
    page = (machine.root / "imagenet-480.html").read_text("utf-8")
    assert f"{bucket.prefix}/imagenet-480" in page


def test_report_page_looks_at_buckets_lists_and_pairs(
    machine: Machine, bucket: Bucket, unplotted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload(machine.dataset("imagenet-480"), "imagenet-480")
    name = next(iter(labels(machine.dataset("imagenet-480"), "validation")))
    (machine.root / "own.csv").write_text(f"key,class\n{name},0 1\n")
    machine.places["real.json"] = "own.csv"
    monkeypatch.chdir(machine.root)
    own_page = machine.dataset("imagenet-480") / "report.html"
    places = (own_page, own_page, Path("report.html"), own_page, Path("comparison.html"))
    pages = []
    for line, place in zip(lines_of("$ report.md: Look at a dataset"), places, strict=True):
        assert report.run(machine.words(line)[2:]) == 0
        pages.append(place.read_text("utf-8"))
        place.unlink()

    first, decoded, remote, listed, compared = pages
    assert "Not read" in first
    assert "Sound" in decoded
    assert f"{bucket.prefix}/imagenet-480" in remote
    assert name in listed[listed.index('id="labels"') :]
    assert ">imagenet-256<" in compared


def test_amend_page_excludes_images_in_a_bucket(machine: Machine, bucket: Bucket) -> None:
    bucket.upload(machine.dataset("imagenet-480"), "imagenet")
    name = next(iter(labels(machine.dataset("imagenet-480"), "validation")))
    (machine.root / "bad.txt").write_text(f"{name}\n")
    machine.typed("$ amend.md: Make a new dataset from an existing one", 4)

    made = json.loads(bucket.contents("imagenet-clean")["dataset.json"])
    count = len(labels(machine.dataset("imagenet-480"), "validation"))
    assert made["splits"]["validation"]["examples"] == count - 1


def test_replicate_page_copies_by_bucket_to_hosts(machine: Machine, bucket: Bucket) -> None:
    machine.places["/local"] = str(machine.root / "local")
    hosts = machine.with_hosts("node-3")
    machine.typed("$ replicate.md: S3")

    reference = contents(machine.dataset("imagenet-480"))
    assert bucket.contents("imagenet-480") == reference
    assert contents(machine.root / "local" / "imagenet-480") == reference
    assert contents(hosts.root / "node-3" / "local" / "imagenet-480") == reference


def test_ec2_page_brings_archives_to_hosts(small: Machine, bucket: Bucket) -> None:
    """Without `launch`. A loopback server replaces image-net.org."""
    archives = small.dataset("ilsvrc2012")
    shutil.rmtree(archives)
    hosts = small.with_hosts("node-3", file="hosts")
    download, prepare, upload = lines_of("$ ec2.md: From nothing to training 5")
    files = {path.name: path.read_bytes() for path in small.source.root.iterdir()}
    with serve(files) as server:
        small.run(f"{download} --allow-other --base-url {server.url}")
    for line in (prepare, upload, *lines_of("$ ec2.md: From nothing to training 6")):
        small.run(line)

    made = small.dataset("imagenet-480")
    assert labels(made) == expected(small.source)
    assert contents(hosts.root / "node-3" / "data" / "imagenet-480") == contents(made)
    assert bucket.contents("imagenet-480") == contents(made)


def test_download_page_gets_archives_from_a_bucket(small: Machine, bucket: Bucket) -> None:
    bucket.upload(small.source.root, "ilsvrc")
    shutil.rmtree(small.dataset("ilsvrc2012"))
    line = lines_of("$ download.md: Download the archives")[6]
    small.run(f"{line} --allow-other")

    there = {path.name: path.read_bytes() for path in small.source.root.iterdir()}
    found = contents(small.dataset("ilsvrc2012"))
    assert found.items() <= there.items()
    assert len(found) == 3


def test_evaluation_page_reads_archives_where_they_are(small: Machine, bucket: Bucket) -> None:
    names = ("n01498041", "n01531178")
    for letter in "ar":
        made = evaluation_datasets.by_wnid(f"imagenet-{letter}", dict.fromkeys(names, 2))
        put(made.files, small.root / letter, f"imagenet-{letter}", "tar")
    bucket.upload(small.root / "r", "")
    _, _, remote, in_bucket = lines_of("$ evaluation.md: One command each")
    archive = "imagenet-a.tar"
    with serve({archive: (small.root / "a" / archive).read_bytes()}) as server:
        small.places[MIRROR] = server.url
        small.run(remote)
    small.run(in_bucket)

    found = split_records(small.root / "sets" / "a", "test")
    assert sorted(record.stored_label - 1 for record in found) == [6, 6, 11, 11]
    in_bucket_made = json.loads(bucket.contents("sets/r")["dataset.json"])
    for edition, made in (("a", manifest(small.root / "sets" / "a")), ("r", in_bucket_made)):
        assert made["edition"] == f"imagenet-{edition}"
        assert made["splits"]["test"]["examples"] == 4


@pytest.mark.long
def test_s3_can_be_tried_as_documented(machine: Machine, s3: S3Server) -> None:
    """The program is installed already, and its ports are free ones."""
    del machine.places["s3://bucket"]
    machine.environment = {}
    master, volume, filer, port = free_ports(4, offset=10_000)
    ports = f"-master.port={master} -volume.port={volume} -filer.port={filer} -s3.port={port}"
    more = "-s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=64"
    _, text = blocks.block("$ bucket.md: Try S3 on a laptop").text.split("\n", 1)
    server = f" -s3 {ports} {more} > log 2>&1 & trap 'kill $!' EXIT;"
    text = blocks.small(text, {" -s3 &": server, "8333": f"{port}"})
    done = machine.shell(text)

    assert done.returncode == 0, done
    count = len(contents(machine.dataset("imagenet-480")))
    assert done.stdout.startswith(f"s3://bucket/imagenet-480: complete: {count} files")
