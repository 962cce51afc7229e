"""amend makes a new dataset with exactly the expected bytes, and never changes its parent."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import amend as amend_verb
from imagenet_prep.core.errors import UsageError
from imagenet_prep.read import make_dataset
from imagenet_prep.storage import folder as folder_store
from tests.kit import command
from tests.kit.amended import Changes, make_changes, rows, shards_of
from tests.kit.dataset import (
    SETTINGS,
    Reference,
    contents,
    everything,
    records,
    split_records,
    stamps,
)
from tests.kit.fake_hosts import make_hosts
from tests.kit.faults import flip_bit
from tests.kit.messages import says


@pytest.fixture(scope="module")
def changes(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Changes:
    """Changes of the reference; read-only."""
    return make_changes(reference.out, tmp_path_factory.mktemp("changes") / "of")


def amend(out: Path, new: Path, *flags: str | Path) -> command.Finished:
    return command.run("amend", out, "--out", new, *flags)


def made(out: Path, new: Path, *flags: str | Path) -> dict[str, bytes]:
    """Returns the files of the new dataset."""
    result = amend(out, new, *flags)
    assert result.code == 0, result
    return contents(new)


def roots(files: dict[str, bytes]) -> dict[str, str]:
    splits = json.loads(files["dataset.json"])["splits"]
    return {name: split["samples_root"] for name, split in splits.items()}


def test_amend_excludes_images_like_prepare(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    before = everything(reference.out)
    amended = made(reference.out, tmp_path / "new", "--exclude", changes.exclude)
    flags = (*SETTINGS, "--exclude", changes.exclude)
    result = command.run(
        "prepare", "--source", reference.source, "--out", tmp_path / "prepared", *flags
    )
    assert result.code == 0, result
    prepared = contents(tmp_path / "prepared")

    assert roots(amended) == roots(prepared) != roots(reference.contents)
    different = {name for name in prepared if amended[name] != prepared[name]}
    assert different == {"dataset.json", "quarantine.jsonl"}
    splits = [json.loads(each["dataset.json"])["splits"] for each in (amended, prepared)]
    assert splits[0] == splits[1]
    lines = [json.loads(line) for line in amended["quarantine.jsonl"].splitlines()]
    left_out = [line for line in lines if line["action"] == "excluded"]
    assert sorted(line["key"] for line in left_out) == sorted(changes.excluded)
    proven = command.run("verify", tmp_path / "new", "--level", "decode")
    assert proven.code == 0, proven
    assert says("excluded-request", "2 images").search(proven.out)
    assert {**everything(reference.out), "": ()} == {**before, "": ()}


def test_only_changed_shards_are_written(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "new", *changes.flags)
    old = stamps(reference.out)
    new = stamps(tmp_path / "new")
    shards = {name for name in old if name.startswith(("train", "validation"))}
    written = {name for name in shards if old[name] != new[name]}
    after = shards_of(tmp_path / "new", *changes.added)
    assert written == shards_of(reference.out, *changes.excluded, changes.relabelled) | after
    for name in shards - written:
        for file in (name, f"index/{name}", f"samples/{name}.csv"):
            assert old[file] == new[file]


def test_relabelling_changes_only_the_label(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "new", "--relabel", changes.relabel)
    (shard,) = shards_of(reference.out, changes.relabelled)
    lines = (reference.out / "labels.txt").read_text().splitlines()
    wnid, _, text = lines[changes.label].partition(" ")
    before = records(reference.out / shard)
    after = records(tmp_path / "new" / shard)
    expected = before[0]._replace(stored_label=changes.label + 1, wnid=wnid, text=text)
    assert after == [expected, *before[1:]]
    # The key stays, so that a later amendment finds the image, and `diff` reports the change.
    was, row = rows(reference.out)[changes.relabelled], rows(tmp_path / "new")[changes.relabelled]
    assert row == [was[0], str(changes.label), *was[2:]]
    proven = command.run("verify", tmp_path / "new", "--level", "decode")
    assert proven.code == 0, proven


def test_command_that_changes_no_label_is_refused(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "new", "--relabel", changes.relabel)

    again = amend(tmp_path / "new", tmp_path / "again", "--relabel", changes.relabel)
    assert (again.code, (tmp_path / "again").exists()) == (2, False)
    assert says("every-image-lists-already-class").search(again.err), again
    repeated = "--relabel", changes.relabel, "--allow-unknown"
    assert amend(tmp_path / "new", tmp_path / "again", *repeated).code == 0


def test_amend_adds_images_like_prepare(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "new", "--add", changes.add)
    alone = ("--splits", "train", "--short-side", "64", "--allow-subset")
    result = command.run("prepare", "--source", changes.add, "--out", tmp_path / "own", *alone)
    assert result.code == 0, result
    own = {record.filename: record.encoded for record in split_records(tmp_path / "own", "train")}
    there = {r.filename: r.encoded for r in split_records(tmp_path / "new", "train")}
    assert own.items() <= there.items()
    assert len(there) == len(split_records(reference.out, "train")) + len(own)
    assert command.run("verify", tmp_path / "new", "--level", "decode").code == 0


def test_order_of_amendments_does_not_matter(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    """One, two or three runs in any order make datasets that only differ in their history."""
    exclude, relabel, add = (changes.flags[at : at + 2] for at in (0, 2, 4))
    one = made(reference.out, tmp_path / "one", *changes.flags)
    for number, steps in enumerate([(exclude, relabel, add), (add, relabel, exclude)]):
        out = reference.out
        for place, step in enumerate(steps):
            found = made(out, tmp_path / f"{number}-{place}", *step)
            out = tmp_path / f"{number}-{place}"
        assert {name for name in one if found[name] != one[name]} == {"dataset.json"}
        assert roots(found) == roots(one)
        splits = [json.loads(each["dataset.json"])["splits"] for each in (found, one)]
        assert splits[0] == splits[1]


def test_order_of_additions_does_not_matter(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    parts = [tmp_path / "first", tmp_path / "second"]
    for part in parts:
        shutil.copytree(changes.add, part)
    for part, key in ((parts[0], changes.added[0]), (parts[1], changes.added[1])):
        (part / "train" / key).unlink()
        (part / "train" / key).parent.rmdir()
    (parts[0] / "train" / changes.added[2]).unlink()
    (parts[0] / "train" / changes.added[2]).parent.rmdir()
    both = made(reference.out, tmp_path / "both", "--add", changes.add)
    for name, order in (("a", parts), ("b", parts[::-1])):
        made(reference.out, tmp_path / f"{name}1", "--add", order[0])
        found = made(tmp_path / f"{name}1", tmp_path / f"{name}2", "--add", order[1])
        assert {each for each in both if found[each] != both[each]} == {"dataset.json"}


def test_manifest_records_all_amendments(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "first", "--relabel", changes.relabel)
    second = made(tmp_path / "first", tmp_path / "second", "--exclude", changes.exclude)
    parents = [
        json.loads((out / "dataset.json").read_text())
        for out in (reference.out, tmp_path / "first")
    ]
    manifest = json.loads(second["dataset.json"])
    steps = manifest["config"]["amendments"]
    assert [step["parent"] for step in steps] == [parent["digest"] for parent in parents]
    assert steps[0]["relabel"]["images"] == 1
    assert steps[1]["exclude"]["images"] == 2
    assert manifest["config"]["base"] == parents[0]["config"]
    assert manifest["subset"] is True
    assert manifest["sources"] == parents[0]["sources"]


@pytest.mark.parametrize("verb", [("prepare", "--source"), ("resize", "-i")])
def test_prepare_and_resize_refuse_to_continue_amended_dataset(
    reference: Reference, changes: Changes, tmp_path: Path, verb: tuple[str, str]
) -> None:
    before = made(reference.out, tmp_path / "new", "--exclude", changes.exclude)
    source = reference.source if verb[0] == "prepare" else reference.out
    flags = (*SETTINGS, "--out") if verb[0] == "prepare" else ("-o",)
    refused = command.run(verb[0], verb[1], source, *flags, tmp_path / "new")
    assert refused.code == 2, refused
    assert contents(tmp_path / "new") == before


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), says("nothing-change-give-exclude-relabel")),
        (("--exclude", "list", "--readmit"), says("readmit-needs-add-folder-images")),
        (("--add", "more", "--allow-unknown"), says("allow-unknown-needs-list-exclude-relabel")),
        (("--add", "more", "--splits", "train"), says("splits-needs-exclude-relabel-add")),
    ],
)
def test_flags_without_their_list_are_refused(
    flags: tuple[str, ...], reason: re.Pattern[str]
) -> None:
    refused = command.run("amend", "set", "--out", "new", *flags)

    assert refused.code == 2
    assert reason.search(refused.err), refused


def test_invalid_additions_are_refused(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "first", "--add", changes.add)
    again = amend(tmp_path / "first", tmp_path / "new", "--add", changes.add)
    assert again.code == 2
    assert says("add-no-new-image-nothing", "folder: 0 new images, 3 known").search(again.err)
    other = Path(shutil.copytree(changes.add, tmp_path / "various")) / "train"
    (other / changes.added[1]).write_bytes((other / changes.added[0]).read_bytes())
    refused = amend(tmp_path / "first", tmp_path / "new", "--add", other.parent)
    expected = says("add-key-dataset-different-bytes", "1 image", changes.added[1])
    assert refused.code == 2
    assert expected.search(refused.err), refused
    stranger = tmp_path / "stranger" / "train" / "n00000007"
    stranger.mkdir(parents=True)
    (stranger / "a.jpg").write_bytes((changes.add / "train" / changes.added[0]).read_bytes())
    refused = amend(reference.out, tmp_path / "new", "--add", tmp_path / "stranger")
    assert (
        refused.code,
        bool(says("add-folders-not-classes-dataset").search(refused.err)),
    ) == (2, True)
    (tmp_path / "empty" / "n01440764").mkdir(parents=True)
    for folder, said in (
        (tmp_path / "no", says("add-no-such-folder-expected", tmp_path / "no")),
        (tmp_path / "empty", says("add-no-images-found-expected", tmp_path / "empty")),
        (
            tmp_path,
            says(
                "folders-not-classes-contain-only", ..., ..., ..., ..., ..., f"{tmp_path}/stranger"
            ),
        ),
    ):
        refused = amend(reference.out, tmp_path / "new", "--add", folder)
        assert (refused.code, bool(said.search(refused.err))) == (2, True), refused
    assert not (tmp_path / "new").exists()


def test_empty_class_is_allowed_and_reported(reference: Reference, tmp_path: Path) -> None:
    name = (reference.out / "labels.txt").read_text().split()[0]
    of_class = [key for key, row in rows(reference.out, "train").items() if row[1] == "0"]
    listed = write(tmp_path / "list", "".join(f"{key}\n" for key in of_class))
    result = amend(reference.out, tmp_path / "new", "--exclude", listed)
    assert result.code == 0, result
    assert says("no-image-remains", "train", name).search(result.out)
    assert (tmp_path / "new" / "labels.txt").read_bytes() == reference.contents["labels.txt"]
    assert command.run("verify", tmp_path / "new", "--level", "decode").code == 0


def test_amend_ends_if_its_parent_is_replaced(
    reference: Reference, changes: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Path(shutil.copytree(reference.out, tmp_path / "parent"))
    other = tmp_path / "other"
    assert amend(parent, other, "--relabel", changes.relabel).code == 0
    link = folder_store.hard_link
    linked = []

    def link_from_a_replaced_parent(path: Path, *given: Any) -> None:
        if not linked:
            parent.rename(tmp_path / "old")
            shutil.copytree(other, parent)
        linked.append(path)
        link(path, *given)

    monkeypatch.setattr(folder_store, "hard_link", link_from_a_replaced_parent)
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=says("dataset-replaced-while-amend-read")):
        amend_verb.run([str(parent), "--exclude", str(changes.exclude), "--out", str(out)])
    assert linked
    assert not (out / "dataset.json").exists()


def test_history_is_shown(reference: Reference, changes: Changes, tmp_path: Path) -> None:
    first = made(reference.out, tmp_path / "first", "--relabel", changes.relabel)
    flags = ("--exclude", changes.exclude, "--add", changes.add)
    made(tmp_path / "first", tmp_path / "second", *flags)
    parents = [json.loads(each["dataset.json"])["digest"] for each in (reference.contents, first)]
    shown = command.run("show", tmp_path / "second")
    assert shown.code == 0, shown
    lines = [line for line in shown.out.splitlines() if line.startswith("amended: ")]
    assert [line.split()[1] for line in lines] == [f"{parent[:16]}," for parent in parents]
    assert "relabel 1 (" in lines[0]
    assert "exclude 2 (" in lines[1]
    assert "add 3 (" in lines[1]
    assert "settings: " in shown.out
    found = command.run("show", tmp_path / "second", "--json").json
    assert [step["parent"] for step in found["amendments"]] == parents
    assert "amendments" not in command.run("show", reference.out, "--json").json


def test_readers_and_export_accept_amended_dataset(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    made(reference.out, tmp_path / "new", *changes.flags)
    reader = make_dataset(
        tmp_path / "new", "train", batch_size=8, backend="native", image_size=32, training=False
    )
    seen: Counter[int] = Counter()
    for batch in reader:
        seen.update(batch["class_index"][batch["mask"]])
    labels = [int(row[1]) for row in rows(tmp_path / "new", "train").values()]
    assert seen == Counter(labels)
    exported = command.run(
        "export", tmp_path / "new", "--split", "train", "--out", tmp_path / "rec" / "train"
    )
    assert exported.code == 0, exported
    lines = (tmp_path / "rec" / "train.lst").read_text().splitlines()
    assert [float(line.split("\t")[1]) for line in lines] == labels
    again = command.run("resize", "-i", tmp_path / "new", "-o", tmp_path / "small", "-r", "32")
    assert again.code == 0, again
    assert command.run("verify", tmp_path / "small", "--level", "decode").code == 0


def test_replicate_copies_only_files_missing_in_parents_replica(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    new = made(reference.out, tmp_path / "new", *changes.flags)
    replicate = ("replicate", tmp_path / "new", "--json", "--to")
    there = tmp_path / "there"
    copy = tmp_path / "copy"
    assert command.run("replicate", reference.out, "--to", there).code == 0
    parent = contents(there)
    # A damaged file of the parent's replica is copied again, and the replica is not changed.
    (unchanged, *_) = sorted(
        name for name in parent if name in new and new[name] == parent[name] and "train-" in name
    )
    flip_bit(there / unchanged, 1)
    done = command.run(*replicate, copy, "--from-parent", there)
    assert done.code == 0, done
    assert contents(copy) == new
    moved = done.json["replicas"][0]["moved_bytes"]
    same = {name for name in new if parent.get(name) == new[name] and name != unchanged}
    others = new.keys() - same - {"dataset.json"}
    assert moved == sum(len(new[name]) for name in others)
    assert contents(there) != parent
    assert command.run("replicate", tmp_path / "new", "--to", copy, "--check").code == 0
    refused = command.run(*replicate, tmp_path / "other", "--from-parent", tmp_path / "nothing")
    assert (refused.code, "has no dataset.json" in refused.err) == (2, True), refused
    # A complete copy needs no parent.
    assert command.run(*replicate, copy, "--from-parent", tmp_path / "nothing").code == 0


def test_hosts_get_only_files_missing_in_parents_replica(
    reference: Reference, changes: Changes, tmp_path: Path
) -> None:
    new = made(reference.out, tmp_path / "new", *changes.flags)
    parent = contents(reference.out)
    hosts = make_hosts(tmp_path)
    hosts.only("10.0.0.2", "node-3", "ubuntu@node-4")
    for address in ("10.0.0.2", "ubuntu@node-4"):
        shutil.copytree(reference.out, hosts.root / address / "parent")
    done = hosts.run(tmp_path / "new", "--from-parent", "~/parent", "--json")
    # One host has no parent and reports it; the other hosts are complete in any order.
    assert done.code == 2, done
    by_host = dict(zip(hosts.addresses, done.json["replicas"], strict=True))
    assert "has no dataset.json" in str(by_host.pop("node-3")["problems"])
    hosts.assert_whole(tmp_path / "new", "node-3")
    others = {name for name in new if parent.get(name) != new[name]} - {"dataset.json"}
    expected = sum(len(new[name]) for name in others)
    assert [each["moved_bytes"] for each in by_host.values()] == [expected] * 2
