"""Commands of the documents that download or read sources, with servers on this machine."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import blocks, evaluation_datasets, layouts
from tests.kit.dataset import contents, split_records
from tests.kit.evaluation_datasets import put
from tests.kit.http_server import Server, serve
from tests.kit.machine import Machine, expected, labels, lines_of, manifest, small_machine
from tests.kit.photographs import photograph

pytestmark = [pytest.mark.slow, pytest.mark.extras]

MIRROR = "https://mirror.example.edu"
SPLITS = ("train", "holdout", "validation")


@pytest.fixture
def machine(shared_cache: Path, tmp_path: Path) -> Machine:
    """A machine that has small archives."""
    return small_machine(shared_cache, tmp_path / "machine")


@contextlib.contextmanager
def mirror_of(machine: Machine, folder: Path, name: str = "") -> Iterator[Server]:
    """Serves the files of a folder as the mirror of the pages; `name` is their folder there."""
    files = {str(Path(name) / path.name): path.read_bytes() for path in folder.iterdir()}
    with serve(files) as server:
        machine.places[MIRROR] = server.url
        yield server


def downloaded(machine: Machine, line: str) -> str:
    """Downloads from the mirror, whose archives are not the official ones."""
    address = "" if "--base-url" in line else f" --base-url {MIRROR}"
    return machine.run(f"{line.partition(' #')[0]} --allow-other{address}").out


def published(machine: Machine) -> Path:
    """Writes the archives that the pages download, except those that the machine has."""
    folder = machine.root / "published"
    shutil.copytree(machine.source.root, folder)
    layouts.make_box_archives(machine.source, folder)
    test = {"test/ILSVRC2012_test_00000001.JPEG": evaluation_datasets.image("1")}
    put(test, folder, "ILSVRC2012_img_test_v10102019", "tar")
    return folder


def test_download_page_gets_each_archive_from_mirrors(machine: Machine) -> None:
    """A bucket is one mirror; test_documented_buckets.py downloads from it."""
    lines = lines_of("$ download.md: Download the archives")
    folder = published(machine)
    into = machine.dataset("ilsvrc2012")
    shutil.rmtree(into)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with mirror_of(machine, folder):
        said = downloaded(machine, lines[0])
        assert not [name for name in files if (into / name).exists()]
        downloaded(machine, lines[2])
        assert [path.name for path in into.glob("I*")] == ["ILSVRC2012_devkit_t12.tar.gz"]
        for line in (lines[1], *lines[3:5]):
            downloaded(machine, line)
    for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"):
        assert name in said
    found = {path.name: path.read_bytes() for path in into.iterdir() if path.is_file()}
    assert found.items() <= files.items()
    assert len(found) == 5

    shutil.rmtree(into)
    with mirror_of(machine, folder, "ilsvrc"):
        downloaded(machine, lines[5])
    assert {path.name for path in into.glob("*.tar")} == {
        "ILSVRC2012_img_train.tar",
        "ILSVRC2012_img_val.tar",
    }


def write_cifar10(folder: Path) -> Path:
    """Writes CIFAR-10's archive with 20 images per batch."""
    root = layouts.make_cifar10(folder)
    archive = root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root / "cifar-10-batches-py", "cifar-10-batches-py")
    shutil.rmtree(root / "cifar-10-batches-py")
    return archive


def test_small_datasets_are_downloaded_and_prepared(machine: Machine) -> None:
    cifar10, mnist, real, prepare = lines_of("$ download.md: Download the archives 2")
    folder = machine.root / "published"
    write_cifar10(folder)
    layouts.make_mnist(folder)
    (folder / "real.json").write_text("[[1]]")
    with mirror_of(machine, folder):
        for line in (cifar10, mnist, real, *lines_of("$ evaluation.md: Lists of labels")):
            downloaded(machine, line)
    machine.run(prepare.replace("10000", "10"))

    counts = {name: split["examples"] for name, split in splits_of(machine, "cifar10-set").items()}
    assert counts == {"train": 90, "holdout": 10, "validation": 20}
    assert len([*machine.dataset("mnist").glob("*.gz")]) == 4
    for path in (machine.dataset("labels"), machine.root / "labels"):
        assert (path / "real.json").read_text() == "[[1]]"


def splits_of(machine: Machine, name: str) -> dict[str, dict[str, Any]]:
    return dict(manifest(machine.dataset(name))["splits"])


def test_prepare_page_reads_cifar10_and_mnist(machine: Machine) -> None:
    shutil.copy(write_cifar10(machine.root / "in"), machine.root)
    layouts.make_mnist(machine.root / "MNIST" / "raw")
    cifar10, mnist = lines_of("$ prepare.md: CIFAR-10 and MNIST")
    machine.run(cifar10.replace("10000", "10"))
    machine.run(mnist)

    for name, counts in (("cifar10", (90, 10, 20)), ("mnist", (40, 0, 10))):
        splits = splits_of(machine, name)
        found = [splits.get(each, {"examples": 0})["examples"] for each in SPLITS]
        assert found == [*counts]
        labelled = [record.stored_label for record in split_records(machine.dataset(name), "train")]
        assert {*labelled} == {*range(1, 11)}


def test_parquet_of_the_hub_gives_the_archives_images(machine: Machine) -> None:
    """Needs no login, because the files are made here; the other lines download them."""
    wnids = [wnid for wnid, _ in machine.source.classes]
    layouts.make_parquet(machine.source, machine.dataset("hub"), wnids, wnids)
    machine.typed("$ download.md: From the Hugging Face Hub", 5)
    found = labels(machine.dataset("imagenet-480"))

    assert sorted(found.values()) == sorted(expected(machine.source).values())


def test_tars_of_hub_and_mirror_are_equal(machine: Machine) -> None:
    """Our export is read; the first line downloads timm's."""
    machine.typed("$ prepare.md: Prepare a dataset", 2)
    first = labels(machine.dataset("imagenet-480"))
    export = lines_of("$ trainers.md: WebDataset")[0]
    machine.run(export.replace("/data/tars", "/data/wds"))
    _, local, remote = lines_of("$ download.md: WebDataset tars")
    machine.run(local.replace("imagenet-480", "local"))
    with mirror_of(machine, machine.dataset("wds"), "wds"):
        machine.run(remote.replace("imagenet-480", "remote"))

    assert labels(machine.dataset("local")) == first
    assert contents(machine.dataset("remote")) == contents(machine.dataset("local"))


def test_prepare_page_holds_out_photographs(machine: Machine) -> None:
    for number in range(24):
        name = f"{('cat', 'dog')[number % 2]}/{number}.jpg"
        layouts.write(machine.root / "photos" / name, photograph(20, 30, number))
    machine.typed("$ prepare.md: Your own photographs")

    train, held = (labels(machine.dataset("photos"), split) for split in ("train", "holdout"))
    assert train | held == {f"{number}.jpg": number % 2 for number in range(24)}
    assert sorted(held.values()) == [0, 1]


def test_prepare_page_reads_every_form_of_imagenet21k(machine: Machine) -> None:
    counts = {"n00015388": 5, "n02084071": 6}
    classes = {
        wnid: [f"{wnid}_{number}.JPEG" for number in range(count)] for wnid, count in counts.items()
    }
    layouts.make_class_tars(classes, machine.root, whole=True)
    layouts.make_class_tars(classes, machine.root / "in", whole=False)
    with tarfile.open(machine.root / "winter21_whole.tar.gz", "w:gz") as tar:
        tar.add(machine.root / "in" / "winter21_whole", "winter21_whole")
    for split in ("train", "val"):
        for wnid in counts:
            name = f"imagenet21k_resized/imagenet21k_{split}/{wnid}/{wnid}_{split}.JPEG"
            layouts.write(machine.root / name, photograph(20, 30))
    fall, unpack, winter, resized = lines_of("$ prepare.md: ImageNet-21K")
    unpacked = machine.shell(unpack)
    assert unpacked.returncode == 0, unpacked
    for line, name in ((fall, "fall"), (winter, "winter")):
        small = {"-class 50": "-class 2", "8192": "2", "/imagenet21k": f"/{name}"}
        machine.run(blocks.small(line, small))
        splits = splits_of(machine, name)
        assert splits["validation"]["examples_per_class"] == [2, 2]
        assert splits["train"]["examples_per_class"] == [3, 4]
    assert labels(machine.dataset("fall")) == labels(machine.dataset("winter"))

    machine.run(resized)
    found = labels(machine.dataset("imagenet21k-p"), "validation")
    assert found == {"n00015388_val.JPEG": 0, "n02084071_val.JPEG": 1}


def test_tutorials_command_keeps_original_photographs(machine: Machine) -> None:
    """Its first line only differs by the download, which needs a login."""
    machine.places["DIR"] = "out"
    machine.typed("$ prepare.md: Step 1 of the 2018 tutorial", 2)
    out = machine.root / "out"

    assert labels(out) == expected(machine.source)
    assert manifest(out)["config"]["short_side"] is None


def test_unlabelled_images_are_prepared_by_their_split(machine: Machine) -> None:
    test = {"test/ILSVRC2012_test_00000001.JPEG": evaluation_datasets.image("1")}
    put(test, machine.dataset("ilsvrc2012"), "ILSVRC2012_img_test_v10102019", "tar")
    machine.typed("$ data-format.md: The unlabelled test images")

    (record,) = split_records(machine.dataset("imagenet-test"), "test")
    assert record.filename == "ILSVRC2012_test_00000001.JPEG"
    assert record.encoded == test["test/ILSVRC2012_test_00000001.JPEG"]


def test_lines_for_cron_prepare_verify_and_print_reasons(machine: Machine) -> None:
    nightly, weekly = lines_of("$ prepare.md: On a schedule, with cron")
    machine.places["prepare --source"] = "prepare --allow-subset --source"
    for line, log in ((nightly, "prepare.log"), (weekly, "verify.log"), (nightly, "prepare.log")):
        # Five fields are the schedule.
        done = machine.shell(line.split(maxsplit=5)[5])
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (machine.data / log).stat().st_size
    assert labels(machine.dataset("imagenet-480")) == expected(machine.source)

    shard = next(machine.dataset("imagenet-480").glob("train-0*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    failed = machine.shell(weekly.split(maxsplit=5)[5])
    assert shard.name in failed.stdout
    assert len(failed.stdout.splitlines()) == 3


def test_processes_of_slurm_share_one_dataset(machine: Machine) -> None:
    """A double of srun starts two processes on this machine."""
    (line,) = lines_of("$ slurm.md: Prepare on several nodes")
    programs = machine.root / "bin"
    programs.mkdir()
    (programs / "srun").write_text(
        'while [ "${1#--}" != "$1" ]; do shift; done\n'
        '"$@" & first=$!\n"$@" & second=$!\nwait $first && wait $second\n'
    )
    (programs / "srun").chmod(0o755)
    machine.environment["SLURM_CPUS_PER_TASK"] = "1"
    machine.places["/shared"] = str(machine.data)
    machine.places["--share"] = "--share --allow-subset"
    done = machine.shell(line)

    assert done.returncode == 0, done
    assert labels(machine.dataset("imagenet-480")) == expected(machine.source)
    assert done.stdout.count("manifest: ") == 2
