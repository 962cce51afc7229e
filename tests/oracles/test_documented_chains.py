"""Chains of amend, resize, adopt and export against a reading of their documents."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import shlex
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from imagenet_prep import adopt, amend, diff, export, resize, verify
from imagenet_prep.pipelines import prepare
from tests.kit.lengths import long_except
from tests.oracles import documented, plain_reading
from tests.oracles.documented import DONE, Album, Flags, Photograph
from tests.oracles.plain_reading import Stored

SPLITS = {"train": "train", "validation": "val"}
_KINDS = ("rgb", "rgb", "rgb", "png", "grey", "turned", "bad")
_ORIENTATION = 0x0112
# The commands of the current chain.
_COMMANDS: list[str] = []
Records = Mapping[str, Sequence[Sequence[Stored]]]


class Parent(NamedTuple):
    """The first dataset of chains, and the flags that made it."""

    out: Path
    album: Album
    flags: Flags
    records: Records


class Changes(NamedTuple):
    """Changes of a dataset.

    Attributes:
        flags: of amend, by the field that they change.
        excluded: keys.
        relabelled: class indices by key.
        added: photographs by split.
    """

    flags: Mapping[str, str]
    excluded: set[str]
    relabelled: Mapping[str, int]
    added: Mapping[str, Sequence[Photograph]]


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> list[Parent]:
    """Two datasets with different settings; tests must not change them."""
    root = tmp_path_factory.mktemp("parents")
    settings: list[dict[str, Any]] = [
        {"short-side": 40, "train-shards": 4, "validation-shards": 2},
        {"keep-original": True, "train-shards": 3, "label-offset": 0, "seed": 7},
    ]
    found = []
    for number, flags in enumerate(settings):
        album = documented.write_album(
            root / f"album-{number}", 10 + number, has_splits=True, shares_names=False
        )
        out = root / f"set-{number}"
        _run(prepare, "--source", album.root, "--out", out, *_words(flags))
        found.append(Parent(out, album, flags, plain_reading.dataset(out)))
    return found


@pytest.mark.parametrize("seed", long_except(range(1), range(60)))
def test_chain_makes_the_documented_datasets(
    parents: list[Parent], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    parent = rng.choice(parents)
    _COMMANDS.clear()
    try:
        changes = _draw_changes(rng, parent, tmp_path)
        out = _amended(rng, parent, changes, tmp_path)
        same_classes = _in_steps(parent.out, changes, [["exclude", "add"]], tmp_path / "same")
        _hold_resized(rng, rng.choice((out, same_classes)), tmp_path)
        _hold_adopted(rng, out, tmp_path)
        _hold_exported(out, tmp_path)
    except Exception as error:
        error.add_note("\n".join([f"chain {seed}: prepare {_words(parent.flags)}", *_COMMANDS]))
        raise


def _run(verb: Any, *words: Any) -> Any:
    """Runs a verb in this process and returns its JSON; AssertionError if it fails."""
    line = [*map(str, words), "--json"]
    _COMMANDS.append(shlex.join([verb.__name__.rpartition(".")[2], *line]))
    code, said = documented.run(verb.run, line)
    assert code == DONE, f"{_COMMANDS[-1]}: exit code {code}: {said}"
    return json.loads(said[said.index("{") :]) if "{" in said else None


def _words(flags: Flags) -> list[str]:
    return [f"--{k}" if v is True else f"--{k}={v}" for k, v in flags.items()]


def _all(records: Records) -> list[Stored]:
    shards = itertools.chain.from_iterable(records.values())
    return [*itertools.chain.from_iterable(shards)]


# amend


def _draw_changes(rng: random.Random, parent: Parent, folder: Path) -> Changes:
    """Draws images to exclude, relabel and add; each shard and each class keeps an image."""
    shards = itertools.chain.from_iterable(parent.records.values())
    staying = {shard[0].key for shard in shards}
    for split in parent.records:
        records = _all({split: parent.records[split]})
        staying |= {record.key for record in {each.wnid: each for each in records}.values()}
    keys = [record.key for record in _all(parent.records) if record.key not in staying]
    rng.shuffle(keys)
    excluded = {*keys[: rng.randint(1, 4)]}
    (folder / "exclude.txt").write_text("".join(f"{key}\n" for key in excluded), "utf-8")
    names = parent.album.ids
    relabelled = {key: rng.randrange(len(names)) for key in keys[4 : 4 + rng.randint(1, 4)]}
    # The other images may keep their class.
    was = next(each.class_index for each in _all(parent.records) if each.key == keys[4])
    relabelled[keys[4]] = (was + 1) % len(names)
    with (folder / "relabel.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["key", "class"])
        lines.writerows([k, rng.choice((names[n], str(n)))] for k, n in relabelled.items())
    added: dict[str, list[Photograph]] = {split: [] for split in SPLITS}
    classes = rng.sample(range(len(names)), rng.randint(1, 3))
    for number in range(rng.randint(1, 5)):
        split = rng.choice((*SPLITS,)) if number else "train"
        index = classes[number % len(classes)]
        kind = rng.choice(_KINDS)
        name = f"{rng.choice(('', 'new/'))}{split}-{number}.{'png' if kind == 'png' else 'jpg'}"
        data = documented.picture(rng, kind)
        path = folder / "add" / SPLITS[split] / parent.album.classes[index] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        added[split].append(Photograph(kind, name, f"{names[index]}/{name}", index, data))
    flags = {"exclude": "exclude.txt", "relabel": "relabel.csv", "add": "add"}
    paths = {name: str(folder / path) for name, path in flags.items()}
    return Changes(paths, excluded, relabelled, added)


def _amended(rng: random.Random, parent: Parent, changes: Changes, folder: Path) -> Path:
    """Amends a dataset in one run and in several, which must be equal; returns the result."""
    one = _in_steps(parent.out, changes, [[*changes.flags]], folder / "one")
    order = rng.sample([*changes.flags], len(changes.flags))
    three = _in_steps(parent.out, changes, [[each] for each in order], folder / "three")
    pair = rng.choice(([order[:2], order[2:]], [order[:1], order[1:]]))
    two = _in_steps(parent.out, changes, pair, folder / "two")
    for name, other in ((f"{order}", three), (f"{pair}", two)):
        differing = [each for each in _files(one) if _files(one)[each] != _files(other).get(each)]
        assert differing == ["dataset.json"], name
        assert _claims(one) == _claims(other), name
    assert not _run(verify, one, "--level", "decode")["problems"]
    _hold_amended(parent, changes, one)
    if rng.random() < 0.3:
        flags = ("--exclude", changes.flags["exclude"], *_words(parent.flags))
        _run(prepare, "--source", parent.album.root, "--out", folder / "without", *flags)
        less = _in_steps(parent.out, changes, [["exclude"]], folder / "less")
        _hold_equal_shards(less, folder / "without")
    return one


def _in_steps(parent: Path, changes: Changes, steps: Sequence[Sequence[str]], out: Path) -> Path:
    """Amends a dataset once for each step, and returns the last result."""
    for number, names in enumerate(steps):
        place = Path(f"{out}-{number}")
        flags: list[Any] = []
        for name in names:
            flags += [f"--{name}", changes.flags[name]]
        _run(amend, parent, "--out", place, *flags)
        parent = place
    return parent


def _files(out: Path) -> dict[str, bytes]:
    paths = (
        path for path in sorted(out.rglob("*")) if path.is_file() and ".work" not in path.parts
    )
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def _claims(out: Path) -> dict[str, Any]:
    """Returns the manifest without its history."""
    manifest: dict[str, Any] = json.loads((out / "dataset.json").read_bytes())
    return {k: v for k, v in manifest.items() if k not in ("config", "config_digest", "digest")}


def _hold_equal_shards(a: Path, b: Path) -> None:
    """Raises AssertionError unless shards, indexes and tables of two datasets are equal."""
    found = [{name: data for name, data in _files(out).items() if "-of-" in name} for out in (a, b)]
    assert found[0].keys() == found[1].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []


def _hold_amended(parent: Parent, changes: Changes, out: Path) -> None:
    """Compares an amended dataset, record by record, with its parent and the changes."""
    records = plain_reading.dataset(out)
    names = dict.fromkeys(parent.album.ids)
    names |= {record.wnid: record.text for record in _all(parent.records)}
    added = itertools.chain.from_iterable(changes.added.values())
    new = {each.key: each for each in added}
    sound = {key: each for key, each in new.items() if each.kind != "bad"}
    seen: Counter[str] = Counter()
    for split, shards in parent.records.items():
        for before, after in zip(shards, records[split], strict=True):
            stays = [record for record in before if record.key not in changes.excluded]
            old = [record for record in after if record.key not in new]
            assert [record.key for record in old] == [record.key for record in stays]
            for was, now in zip(stays, old, strict=True):
                index = changes.relabelled.get(was.key, was.class_index)
                wnid = parent.album.ids[index]
                row = {**was.row, "class_index": str(index)}
                label = index + was.label - was.class_index
                changed = was._replace(class_index=index, label=label, wnid=wnid, row=row)
                assert now == changed._replace(text=names[wnid] or now.text)
            seed = parent.flags.get("seed", 0)
            order = sorted(after, key=lambda r: (documented.keyed(seed, "order", r.key), r.key))
            assert [record.key for record in after] == [record.key for record in order]
            for record in after:
                if photograph := sound.get(record.key):
                    assert photograph in changes.added[split]
                    assert record.class_index == photograph.class_index
                    assert record.wnid == parent.album.ids[record.class_index]
                    assert record.filename == photograph.name
                    documented.hold_image(photograph, record, parent.flags)
                    seen[record.key] += 1
    assert seen == Counter({*sound})
    said = [each for each in plain_reading.incidents(parent.out) if each[0] not in changes.excluded]
    said += [(key, "excluded") for key in changes.excluded]
    for key, each in new.items():
        if each.kind == "bad" or documented.action(each, parent.flags)[0] == "repaired":
            said.append((key, "quarantined" if each.kind == "bad" else "repaired"))
    assert plain_reading.incidents(out) == sorted(said)
    class_of = {record.key: record.class_index for record in _all(parent.records)}
    counts = {
        "only_in_a": len(changes.excluded),
        "only_in_b": len(sound),
        "other_label": sum(class_of[key] != index for key, index in changes.relabelled.items()),
        "other_bytes": 0,
        "other_size": 0,
    }
    for more in ([], ["--prove"]):
        compared = _run(diff, parent.out, out, *more)
        assert {name: compared[name] for name in counts} == counts


# resize


def _hold_resized(rng: random.Random, source: Path, folder: Path) -> None:
    """Resizes a dataset and compares the result with it, record by record."""
    records = plain_reading.dataset(source)
    flags: dict[str, Any] = {"short-side": rng.choice((16, 25, 33, 100))}
    if rng.random() < 0.2:
        flags = {"keep-original": True}
    elif rng.random() < 0.4:
        flags["orientation"] = rng.choice(("apply", "neutral", "keep"))
    if rng.random() < 0.3:
        flags["quality"] = 95
    if "short-side" in flags and rng.random() < 0.2:
        flags["stretch"] = True
    out = folder / "resized"
    less = folder / "resized-less"
    twice = folder / "resized-twice"
    both = ("--splits", "train,validation", *_words(flags))
    _run(resize, "-i", source, "-o", out, *both)
    found = plain_reading.dataset(out)
    rule = {} if "keep-original" in flags else {"orientation": "neutral"}
    for split, shards in records.items():
        for before, after in zip(shards, found[split], strict=True):
            assert [record.key for record in before] == [record.key for record in after]
            for was, now in zip(before, after, strict=True):
                same = (was.class_index, was.wnid, was.text, was.filename)
                assert (now.class_index, now.wnid, now.text, now.filename) == same
                assert now.label == now.class_index + 1
                documented.hold_image(_as_photograph(was), now, {**rule, **flags})
    for split in rng.sample([*SPLITS], len(SPLITS)):
        _run(resize, "-i", source, "-o", twice, "--splits", split, *_words(flags))
    assert _files(twice) == _files(out)
    shards = itertools.chain.from_iterable(records.values())
    staying = {shard[0].key for shard in shards}
    keys = rng.sample([each.key for each in _all(records) if each.key not in staying], 3)
    listed = folder / "resize-exclude.txt"
    listed.write_text("".join(f"{key}\n" for key in keys), "utf-8")
    _run(resize, "-i", source, "-o", less, *both, "--exclude", listed)
    _run(amend, out, "--exclude", listed, "--out", folder / "amended-less")
    _hold_equal_shards(less, folder / "amended-less")


def _as_photograph(record: Stored) -> Photograph:
    with Image.open(io.BytesIO(record.encoded)) as image:
        kind = "turned" if image.getexif().get(_ORIENTATION, 1) != 1 else "rgb"
    return Photograph(kind, record.filename, record.key, record.class_index, record.encoded)


# adopt


def _hold_adopted(rng: random.Random, source: Path, folder: Path) -> None:
    """Adopts only the shards of a dataset, and compares the result with it."""
    before = plain_reading.dataset(source)
    shards = folder / "shards"
    out = folder / "adopted"
    shards.mkdir()
    for path in source.glob("*-of-*"):
        shutil.copy(path, shards)
    how = rng.choice(("in place", "linked", "written"))
    words = {"in place": [], "linked": ["--out", out], "written": ["--rewrite", "--out", out]}
    _run(adopt, shards, "--allow-subset", *words[how])
    out = shards if how == "in place" else out
    offset = 1 if how == "written" else _all(before)[0].label - _all(before)[0].class_index
    after = plain_reading.dataset(out)
    relabelled = False
    for split, old in before.items():
        for was, now in zip(old, after[split], strict=True):
            for old_record, record in zip(was, now, strict=True):
                # Images of these datasets have different file names, so their keys differ as well.
                assert record.key == f"{old_record.wnid}/{old_record.filename}"
                assert record[1] == old_record.class_index
                assert record.label == record.class_index + offset
                assert record[3:9] == old_record[3:9]
                assert record.row["action"] == "kept"
                assert record.row["source_sha256"] == record.sha256
                relabelled |= record.key != old_record.key
    if how != "written":
        assert all(
            (out / path.name).read_bytes() == path.read_bytes() for path in source.glob("*-of-*")
        )
    compared = _run(diff, source, out, "--prove")
    assert compared["equal"] == (not relabelled), how
    assert not _run(verify, out, "--level", "decode")["problems"], how


# export


def _hold_exported(source: Path, folder: Path) -> None:
    """Exports a dataset and prepares the export: the images and labels are the same."""
    before = plain_reading.dataset(source)
    for to in ("folder", "parquet", "webdataset"):
        place = folder / to
        back = folder / f"from-{to}"
        more = ["--allow-empty-class"] if to == "folder" else []
        _run(export, source, "--to", to, "--out", place, *more)
        if to == "webdataset":
            place = _unpacked(before, place, folder / "unpacked")
        _run(prepare, "--source", place, "--out", back, "--keep-original", "--train-shards=2")
        after = plain_reading.dataset(back)
        renamed = False
        for split, shards in before.items():
            old = {record.sha256: record for record in _all({split: shards})}
            new = {record.sha256: record for record in _all({split: after[split]})}
            assert old.keys() == new.keys(), to
            assert sum(map(len, shards)) == len(old) == sum(map(len, after[split])), to
            for sha256, was in old.items():
                assert (new[sha256].class_index, new[sha256].wnid) == (was.class_index, was.wnid)
                # The folders that were made of the tars are no export, so they list no keys.
                if to != "webdataset" or was.key.partition("/")[0] == was.wnid:
                    assert new[sha256].key == was.key, to
                else:
                    assert new[sha256].key.partition("/")[0] == was.wnid, to
                    renamed = True
        assert _run(diff, source, back, "--prove")["equal"] == (not renamed), to


def _unpacked(records: Records, place: Path, folder: Path) -> Path:
    """Compares the tars of an export with the dataset; returns a folder with their images."""
    listed = json.loads((place / "_info.json").read_bytes())["splits"]
    for split, shards in records.items():
        names = [f"{split}-{number:06d}.tar" for number in range(len(shards))]
        assert listed[split]["filenames"] == names
        assert listed[split]["shard_lengths"] == [len(shard) for shard in shards]
        number = 0
        for name, shard in zip(names, shards, strict=True):
            for record, files in zip(shard, _samples(place / name), strict=True):
                said = json.loads(files["json"])
                assert (said["key"], said["wnid"]) == (record.key, record.wnid)
                assert (said["number"], int(files["cls"])) == (number, record.class_index)
                assert files["jpg"] == record.encoded
                below = said["key"].removeprefix(f"{record.wnid}/")
                path = folder / SPLITS[split] / record.wnid / below
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(files["jpg"])
                number += 1
    return folder


def _samples(tar: Path) -> Iterator[dict[str, bytes]]:
    """Yields the files of each image by their endings, grouped as webdataset groups them."""
    found: dict[str, bytes] = {}
    last = None
    with tarfile.open(tar) as opened:
        for member in opened:
            file = opened.extractfile(member)
            assert file
            stem, dot, ending = member.name.rpartition("/")[2].partition(".")
            assert dot
            key = (member.name.rpartition("/")[0], stem)
            if last not in (None, key):
                yield found
                found = {}
            last = key
            found[ending] = file.read()
    yield found
