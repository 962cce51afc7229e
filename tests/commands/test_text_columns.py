"""A column of texts in all verbs: show, verify, diff, replicate, amend, report and export."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imagenet_prep.core.world import World
from imagenet_prep.read import ColumnWriter, make_dataset
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import amended, command
from tests.kit.amended import Changes, make_changes
from tests.kit.columns import NATIVE
from tests.kit.dataset import Reference, contents
from tests.kit.s3_server import BUCKET, S3Server
from tests.kit.text_columns import CAPTIONS, TEXTS, file_of

FIELD = f"column:{CAPTIONS}"


def caption_all(root: Path) -> list[str]:
    """Writes captions that name their image; returns the keys of the computed rows."""
    computed = []
    fields = NATIVE | {"fields": ("key",)}
    for split in ("train", "validation"):
        with ColumnWriter(
            root, split, CAPTIONS, (), "str", batch_size=4, view="image", reader=fields,
            world=World(),
        ) as writer:  # fmt: skip
            for batch in writer:
                keys = [key for key in batch["key"].tolist() if key]
                computed += keys
                writer.write([*map(captions_of, keys)])
    return computed


def captions_of(key: str) -> list[str]:
    texts = TEXTS[sum(key.encode()) % len(TEXTS)]
    return [f"{key} {text}" if text else "" for text in texts]


@pytest.fixture(scope="module")
def captioned(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference with a column of texts; read-only."""
    root = tmp_path_factory.mktemp("captioned") / "set"
    shutil.copytree(reference.out, root)
    caption_all(root)
    return root


@pytest.fixture
def copy(captioned: Path, tmp_path: Path) -> Path:
    """A copy of `captioned` that a test may change."""
    return Path(shutil.copytree(captioned, tmp_path / "copy"))


@pytest.fixture(scope="module")
def changes(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Changes:
    return make_changes(reference.out, tmp_path_factory.mktemp("changes") / "of")


def done(*arguments: str | Path, env: dict[str, str] | None = None) -> command.Finished:
    finished = command.run(*arguments, env=env)
    assert finished.code == 0, finished
    return finished


def keys_of(root: Path) -> list[str]:
    return [
        row[0] for split in ("train", "validation") for row in amended.rows(root, split).values()
    ]


def texts_in(root: Path) -> dict[str, list[str]]:
    """Returns the texts that a reader gives, by key."""
    texts = {}
    for split in ("train", "validation"):
        for batch in make_dataset(
            str(root), split, 4, training=False, backend="native", framework="numpy",
            fields=("key", FIELD), world=World(),
        ):  # fmt: skip
            texts |= zip(batch["key"].tolist(), batch[FIELD], strict=True)  # type: ignore[typeddict-item]
    texts.pop("", None)
    return texts


def test_show_lists_column_and_texts(captioned: Path) -> None:
    listed = done("show", captioned)
    count = len(keys_of(captioned))
    assert f"column captions: texts of train, validation, {count} rows, " in listed.out
    fact = done("show", captioned, "--json").json["columns"][CAPTIONS]
    size = sum(path.stat().st_size for path in (captioned / "columns" / CAPTIONS).glob("*.jsonl"))
    assert (fact["rows"], fact["bytes"]) == (count, size)
    for key in keys_of(captioned)[:12]:
        shown = done("show", captioned, "--key", key, "--json").json["columns"]
        assert shown[CAPTIONS] == {"dtype": "str", "texts": captions_of(key)}


def test_shown_text_is_short_and_escaped(captioned: Path) -> None:
    for key in keys_of(captioned):
        out = done("show", captioned, "--key", key).out
        assert "\0" not in out
        assert "\x85" not in out
        assert max(map(len, out.splitlines())) < 400
        count = len(captions_of(key))
        assert f"  captions: {count} text" in out


def test_verify_finds_damage(copy: Path) -> None:
    assert done("verify", copy, "--json").json["columns"] == [CAPTIONS]
    shard = open_dataset(str(copy)).shards("train")[0].name
    path = file_of(copy, shard)
    complete = path.read_bytes()
    path.write_bytes(complete[:-3] + b" ]}")
    found = command.run("verify", copy)
    assert found.code == 3
    assert path.name in found.out
    path.write_bytes(complete[:-1])
    assert command.run("verify", copy, "--level", "manifest").code == 3


def test_copies_on_folder_and_bucket_are_equal(captioned: Path, tmp_path: Path) -> None:
    done("replicate", captioned, "--to", tmp_path / "replica")
    assert contents(tmp_path / "replica") == contents(captioned)
    equal = command.run("diff", captioned, tmp_path / "replica", "--json")
    assert equal.json["columns"] == {}


def test_bucket_has_texts(
    captioned: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place = f"s3://{BUCKET}/texts"
    done("replicate", captioned, "--to", place, env=s3.environment)
    done("verify", place, env=s3.environment)
    key = next(key for key in keys_of(captioned) if len(captions_of(key)) > 1)
    shown = done("show", place, "--key", key, "--json", env=s3.environment).json["columns"]
    assert shown[CAPTIONS]["texts"] == captions_of(key)
    texts = {}
    for batch in make_dataset(
        place, "train", 4, training=False, backend="native", framework="numpy",
        fields=("key", FIELD), world=World(), cache_dir=str(tmp_path / "cache"),
    ):  # fmt: skip
        texts |= zip(batch["key"].tolist(), batch[FIELD], strict=True)  # type: ignore[typeddict-item]
    texts.pop("", None)
    assert texts == {key: captions_of(key) for key in texts}


def test_hosts_read_texts_of_their_parts(captioned: Path, tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    for node in range(2):
        root = tmp_path / f"part-{node}"
        flags = ("--mode", "partition", "--part", f"{node}/2")
        done("replicate", captioned, "--to", root, *flags)
        done("verify", root)
        world = World(node, 2, 0, 1)
        for batch in make_dataset(
            str(root), "train", 4, training=False, backend="native", framework="numpy",
            fields=("key", FIELD), world=world,
        ):  # fmt: skip
            keys = [key for key in batch["key"].tolist() if key]
            texts = batch[FIELD]  # type: ignore[typeddict-item]
            assert not found.keys() & set(keys)
            found |= zip(keys, texts[: len(keys)], strict=True)
    train = [row[0] for row in amended.rows(captioned, "train").values()]
    assert found == {key: captions_of(key) for key in train}


def test_amend_keeps_texts_of_unchanged_images(
    captioned: Path, changes: Changes, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    told = done("amend", captioned, "--out", new, *changes.flags, "--json").json
    assert told["amended"]["columns"][CAPTIONS]["missing_rows"] == 4
    begun = command.run("verify", new)
    assert begun.code == 0, begun
    assert {*caption_all(new)} == {*changes.added, changes.relabelled}
    done("verify", new)
    assert texts_in(new) == {key: captions_of(key) for key in keys_of(new)}
    carried = {name: data for name, data in contents(new).items() if "columns" in name}
    shutil.rmtree(new / "columns")
    caption_all(new)
    again = {name: data for name, data in contents(new).items() if "columns" in name}
    assert carried == again


def test_amend_refuses_damaged_texts(copy: Path, changes: Changes, tmp_path: Path) -> None:
    for path in (copy / "columns" / CAPTIONS).glob("train*.jsonl"):
        path.write_bytes(path.read_bytes()[:-3] + b" ]}")
    refused = command.run("amend", copy, "--out", tmp_path / "new", *changes.flags)
    assert refused.code == 3
    assert "jsonl" in refused.err


def test_report_lists_texts(captioned: Path, tmp_path: Path) -> None:
    done("report", captioned, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert '<th scope="row">captions</th><td>str</td><td>texts</td>' in page
