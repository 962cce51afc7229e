"""Commands of the documents, run unchanged in a folder that replaces /data.

The archives are those of the miniature, so `prepare` and `adopt` also get --allow-subset.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import Prediction
from imagenet_prep.read import make_dataset
from tests.kit import blocks, evaluation_datasets, layouts, text_columns
from tests.kit.codec import corpus
from tests.kit.columns import make_column
from tests.kit.dataset import contents, split_records
from tests.kit.evaluation_datasets import put
from tests.kit.machine import Machine, expected, labels, lines_of, manifest, with_datasets
from tests.kit.messages import says
from tests.kit.miniature import miniature_for_tests

pytestmark = pytest.mark.slow

AMEND = "$ amend.md: Make a new dataset from an existing one"
# Their commands on the page train with an export.
TRAINERS = (
    "$ trainers.md: flax examples/imagenet",
    "$ trainers.md: pytorch/examples",
    "$ trainers.md: WebDataset",
    "$ trainers.md: Hugging Face datasets",
)


@pytest.fixture(scope="module")
def machine(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with /data/imagenet-480 and /data/imagenet-256, made by the documented commands."""
    source = miniature_for_tests(shared_cache)
    root = tmp_path_factory.mktemp("machine") / "machine"
    return with_datasets(Machine(root, source), shared_cache)


def test_readme_commands_prepare_verify_and_report(machine: Machine, tmp_path: Path) -> None:
    """Other tests run its lines for hosts and for a network."""
    fresh = Machine(tmp_path / "machine", machine.source)
    made, checked, reported = fresh.typed("$ README.md: imagenet-prep", 1, 2, 6)

    found = labels(fresh.dataset("imagenet-480"))
    assert found == expected(machine.source)
    assert checked.out.startswith(f"sound: {len(found)} examples")
    assert "report.html" in reported.out
    assert (fresh.dataset("imagenet-480") / "report.html").stat().st_size > 10_000
    assert "train" in made.out


def test_prepare_page_plans_prepares_and_shows(machine: Machine, tmp_path: Path) -> None:
    fresh = Machine(tmp_path / "machine", machine.source)
    (planned,) = fresh.typed("$ prepare.md: Prepare a dataset", 1)
    assert says("would-run-nothing-written").search(planned.out)
    assert not fresh.dataset("imagenet-480").exists()
    _, checked, shown = fresh.typed("$ prepare.md: Prepare a dataset", 2, 3, 4)
    examples = expected(machine.source)
    assert labels(fresh.dataset("imagenet-480")) == examples
    assert f"{len(examples)} examples" in checked.out
    assert "train" in shown.out
    # The miniature has fewer shards and other classes.
    shard = manifest(fresh.dataset("imagenet-480"))["splits"]["train"]["shards"][0]
    wnid = machine.source.classes[0][0]
    lines = blocks.block("$ prepare.md: Prepare a dataset").text.splitlines()
    records = fresh.run(lines[4].replace("train-00000-of-01024", shard["name"]))
    of_class = fresh.run(lines[5].replace("n01440764", wnid))
    assert len([line for line in records.out.splitlines() if ".JPEG" in line]) == min(
        5, shard["examples"]
    )
    shown_names = [name for name in expected(machine.source, "train") if name in of_class.out]
    assert shown_names
    assert all(expected(machine.source, "train")[name] == 0 for name in shown_names)


def test_resize_page_keeps_all_examples(machine: Machine) -> None:
    assert labels(machine.dataset("imagenet-256")) == expected(machine.source)
    sides = [
        min(record.width, record.height)
        for record in split_records(machine.dataset("imagenet-256"), "train")
    ]
    assert max(sides) <= 64


def test_amend_page_excludes_and_relabels_listed_images(machine: Machine) -> None:
    first, second, *_ = labels(machine.dataset("imagenet-480"), "validation")
    for name, text in (("bad.txt", f"{first}\n"), ("labels.csv", f"key,class\n{second},0\n")):
        (machine.root / name).write_text(text)
    machine.typed(AMEND, 1, 2)

    before = expected(machine.source)
    without = {name: label for name, label in before.items() if name != first}
    assert labels(machine.dataset("imagenet-480-clean")) == without
    assert labels(machine.dataset("imagenet-480-v2")) == before | {second: 0}


def test_columns_page_exports_and_removes_captions(machine: Machine) -> None:
    root = machine.dataset("imagenet-480")
    text_columns.write(root)
    text_columns.write(root, "validation")
    machine.typed("$ export.md: Captions in folders")
    for split, folder in (("train", "train"), ("validation", "val")):
        path = machine.dataset("captioned") / folder / "metadata.jsonl"
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        count = len(labels(root, split))
        assert [row["captions"] for row in rows] == [*map(text_columns.texts_of, range(count))]
    (removed,) = machine.typed("$ columns.md: Remove")
    assert "removed the column captions" in removed.out
    assert not (root / "columns").exists()


def test_forget_page_removes_photograph_and_replaces_replica(machine: Machine) -> None:
    anna, *others = corpus.photographs(6)
    for number, data in enumerate([anna, anna, *others]):
        name = f"{('rose', 'tulip')[number % 2]}/{number}.jpg"
        layouts.write(machine.root / "photographs" / name, data)
    (machine.root / "anna.jpg").write_bytes(anna)
    machine.run("imagenet-prep prepare photographs /data/flowers --train-shards 2")
    machine.run("imagenet-prep replicate /data/flowers /data/backup")
    preview, made = machine.typed("$ forget.md: A person asks for removal")
    for place in ("flowers", "backup"):
        assert f": {machine.dataset(place)}\n" in preview.out
        assert f": {machine.dataset(place)}\n" in made.out
    remaining = {f"{number}.jpg" for number in range(2, 7)}
    assert {each.filename for each in split_records(machine.dataset("flowers-2"), "train")} == (
        remaining
    )

    machine.typed("$ forget.md: Replace the replicas")
    digest = manifest(machine.dataset("flowers-2"))["digest"]
    assert manifest(machine.dataset("backup"))["digest"] == digest
    machine.typed("$ forget.md: The image stays out")
    kept = {each.filename for each in split_records(machine.dataset("new"), "train")}
    assert kept == remaining


def test_diff_page_finds_changed_and_stored_images(machine: Machine) -> None:
    record = next(iter(split_records(machine.dataset("imagenet-480"), "train")))
    (machine.root / "photo.jpg").write_bytes(record.encoded)
    name = "$ diff.md: Compare two datasets, or find a photograph in one"
    differing, found = machine.typed(name, 1, 5)

    stored, small = (
        {each.filename: each.encoded for each in split_records(machine.dataset(root), "train")}
        for root in ("imagenet-480", "imagenet-256")
    )
    count = sum(small[name] != data for name, data in stored.items())
    assert re.search(rf"^train:\n +other bytes +{count} ", differing.out, re.MULTILINE)
    assert found.out.split()[2] == f"{record.wnid}/{record.filename}".split("/")[0]
    assert found.out.endswith("byte for byte\n")
    assert record.filename in found.out


def test_duplicates_page_finds_images_of_a_copy(machine: Machine) -> None:
    for old, new in (("imagenet-480", "mine"),):
        shutil.copytree(machine.dataset(old), machine.dataset(new))
    name = "$ duplicates.md: Find duplicates and contamination"
    machine.typed(name, 2)

    pairs = (machine.root / "found" / "pairs.csv").read_text().splitlines()
    kept = {tuple(line.split(",")[2:4]) for line in pairs if ",against:validation," in line}
    copied = expected(machine.source, "validation")
    # One image is too small at 64 pixels to be recognised.
    assert kept <= {(name, str(label)) for name, label in copied.items()}
    assert len(kept) >= len(copied) - 1


@pytest.mark.extras
def test_exports_have_all_images_of_the_dataset(machine: Machine) -> None:
    import pyarrow.parquet

    lines = lines_of("$ export.md: Export to other formats")
    lines += lines_of("$ mxnet.md: Your .rec files 2")
    lines += [lines_of(name)[0] for name in TRAINERS]
    for line in dict.fromkeys(lines):
        machine.run(line)
    count = len(expected(machine.source))
    assert len(list((machine.data / "folders").rglob("*.JPEG"))) == count
    tables = (machine.data / "hub").rglob("*.parquet")
    rows = [len(pyarrow.parquet.read_table(path)) for path in tables]
    assert sum(rows) == count
    for folder in (machine.root / "home" / "tensorflow_datasets", machine.data / "tfds"):
        assert list(folder.rglob("*.tfrecord-*"))
    assert list((machine.data / "tars").rglob("*.tar"))
    # The page on MXNet reads the RecordIO files of this export.
    shutil.move(machine.data / "mxnet", machine.data / "rec")
    again = Machine(machine.root / "again", machine.source)
    shutil.copytree(machine.data / "rec", again.data / "rec")
    again.typed("$ mxnet.md: Your .rec files")
    assert sorted(labels(again.dataset("imagenet-480")).values()) == sorted(
        expected(machine.source).values()
    )


def test_adopt_page_keeps_shards_unchanged(machine: Machine) -> None:
    (machine.root / "DIR").mkdir()
    for shard in ("train-00000-of-00001", "validation-00000-of-00001"):
        shutil.copy(machine.dataset("imagenet-480") / shard, machine.root / "DIR")
    looked, adopted = machine.typed("$ existing.md: Adopt", 1, 2)

    assert "38 examples in 1 shard" in looked.out
    assert "38 examples in 1 shard" in adopted.out
    assert labels(machine.root / "DIR") == expected(machine.source)


def test_evaluation_page_gives_labels_of_ilsvrc2012(machine: Machine) -> None:
    v2 = evaluation_datasets.v2(range(3), each=2)
    put(v2.files, machine.root, "imagenetv2-matched-frequency", "tar.gz")
    c = evaluation_datasets.corrupted([("fog", 5)], range(3), each=2, side=224)
    put(c.files, machine.root / "imagenet-c", "imagenet-c", "folder")
    machine.typed("$ evaluation.md: One command each", 1, 2)

    for name, made in (("v2", v2), ("c", c)):
        root = machine.root / "sets" / name
        found = labels(root)
        assert found == {key.rpartition("/")[2]: index for key, index in made.class_of.items()}


def test_score_page_counts_correct_predictions(machine: Machine) -> None:
    root = machine.dataset("imagenet-480")
    reader: Any = make_dataset(
        root, "validation", 1, backend="native", fields=("key", "class_index")
    )
    said = []
    for batch in reader:
        label = int(batch["class_index"][0])
        said.append(Prediction(str(batch["key"][0]), label, (label,), (1.0,)))
    said[0] = said[0]._replace(classes=((said[0].classes[0] + 1) % reader.num_classes,))
    with (machine.root / "said.csv").open("w") as file:
        predictions.write(file, said)
    keys = [each.key for each in said]
    rows = [f"{key},{each.classes[0]}\n" for key, each in zip(keys, said, strict=True)]
    (machine.root / "own.csv").write_text("key,class\n" + "".join(rows))
    line = blocks.block("$ evaluation.md: Networks of your own").text.splitlines()[0]
    scored = machine.run(line.replace("real.json", "own.csv"))

    first, second = (row for row in scored.out.splitlines() if str(root) in row)
    assert f"{1 - 1 / len(said):.2%}" in first
    assert "100.00%" in second
    assert np.isclose(len(said), len(expected(machine.source, "validation")))


def test_croissant_page_describes_all_files(machine: Machine) -> None:
    (machine.root / "about.json").write_text('{"license": "CC0-1.0"}')
    machine.typed("$ export.md: Croissant for publication")
    made = json.loads((machine.root / "croissant.json").read_bytes())

    assert made["license"] == "CC0-1.0"
    named = {each["contentUrl"] for each in made["distribution"]}
    files = machine.dataset("imagenet-480")
    assert {*manifest(files)["splits"]} == {
        row["splits/name"] for row in made["recordSet"][1]["data"]
    }
    assert named >= {"dataset.json", "labels.txt", *(p.name for p in files.glob("train-*"))}


def test_guarantees_page_signs_and_names_the_signer(machine: Machine) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    secret = machine.root / "home" / ".ssh" / "id_ed25519"
    secret.parent.mkdir(parents=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", secret]
    subprocess.run(words, check=True)
    public = secret.with_suffix(".pub").read_text()
    (machine.root / "allowed_signers").write_text(f"lab@example.org {public}")
    sign, verify = blocks.block("$ guarantees.md: Who made a dataset").text.strip().splitlines()
    signing = sign.replace("/data/", f"{machine.data}/").replace("~", str(machine.root / "home"))
    signed = subprocess.run(shlex.split(signing), capture_output=True, text=True, check=False)
    assert signed.returncode == 0, signed

    assert "lab@example.org" in machine.run(verify).out
    make_column(machine.dataset("imagenet-480"), "features")
    accepting = machine.run(lines_of("$ guarantees.md: Who made a dataset 3")[0])
    assert "not signed: columns/features" in accepting.out
    shutil.rmtree(machine.dataset("imagenet-480") / "columns")
    (machine.dataset("imagenet-480") / "dataset.json.sig").unlink()


def test_amend_page_shows_amendments_and_reuses_parent(machine: Machine, tmp_path: Path) -> None:
    fresh = Machine(tmp_path / "machine", machine.source)
    parent = fresh.dataset("imagenet-480")
    shutil.copytree(machine.dataset("imagenet-480"), parent)
    first, second, *_, third = labels(parent, "validation")
    (fresh.root / "bad.txt").write_text(f"{first}\n{second}\n")
    (fresh.root / "labels.csv").write_text(f"key,class\n{third},0\n")
    exclude, relabel = blocks.block(AMEND).text.strip().splitlines()[:2]
    fresh.run(exclude)
    changed = {"480 ": "480-clean ", "480-v2": "480-v3"}
    fresh.run(blocks.small(relabel, changed))
    prompt, _, *documented = blocks.block("$ amend.md: The new manifest").text.splitlines()
    shown = fresh.run(prompt.removeprefix("$ "))

    for line, found in zip(documented, shown.out.splitlines()[-len(documented) :], strict=True):
        assert without_digests(fresh.replaced(line)) == without_digests(found)
    (replicate,) = lines_of("$ amend.md: The new manifest 2")
    hosts = fresh.with_hosts("node-3")
    there = hosts.root / "node-3" / "data"
    shutil.copytree(parent, there / "imagenet-480")
    new = contents(fresh.dataset("imagenet-480-clean"))
    sent = [name for name, data in new.items() if data != contents(parent).get(name)]
    done = fresh.run(f"{replicate} --json")
    assert contents(there / "imagenet-480-clean") == new
    (replica,) = done.json["replicas"]
    assert replica["moved_bytes"] == sum(len(new[name]) for name in sent if name != "dataset.json")


def without_digests(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", text)


def test_replicate_page_fills_and_checks_hosts(machine: Machine, tmp_path: Path) -> None:
    """A training on parts needs the same number of ranks on each host; no test types its line."""
    fresh = Machine(tmp_path / "machine", machine.source)
    shutil.copytree(machine.dataset("imagenet-480"), fresh.dataset("imagenet-480"))
    hosts = fresh.with_hosts("node-3")
    there = hosts.root / "node-3" / "data"
    dry, real, check = lines_of("$ replicate.md: Replicate a dataset to folders, S3 or every node")
    fresh.run(dry)
    assert not (there / "imagenet-480").exists()
    fresh.run(real)
    assert contents(there / "imagenet-480") == contents(fresh.dataset("imagenet-480"))
    fresh.run(check)

    hosts.only("10.0.0.1", "node-3")
    fresh.run(lines_of("$ replicate.md: A part on every node")[0])
    for node, address in enumerate(hosts.addresses):
        part = hosts.root / address / "data" / "parts" / "placement.json"
        assert json.loads(part.read_bytes())["node"] == node


def test_monitoring_page_writes_metrics_and_log(machine: Machine) -> None:
    folder = machine.root / "textfile"
    folder.mkdir()
    machine.places["/var/lib/node_exporter/textfile"] = str(folder)
    (done,) = machine.typed("$ monitoring.md: Monitoring")

    count = len(expected(machine.source))
    metrics = (folder / "verify-480.prom").read_text()
    assert f"{count} examples" in done.out
    assert re.search(rf"^imagenet_prep_\w*images\w*{{.*}} {count}$", metrics, re.MULTILINE), metrics
    assert all(json.loads(line)["verb"] == "verify" for line in done.err.splitlines())


def test_flags_of_the_tutorial_resize_a_split(machine: Machine) -> None:
    machine.places |= {" IN ": f" {machine.dataset('imagenet-480')} ", " OUT ": " resized "}
    (line,) = lines_of("$ existing.md: Resize 2")
    machine.run(f"{line} --size 64")

    small = contents(machine.dataset("imagenet-256"))
    shards = {name: data for name, data in small.items() if name.startswith("train-")}
    assert shards.items() <= contents(machine.root / "resized").items()
