"""remove-column removes all files of a column, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import remove_column as verb
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset
from tests.kit import command, text_columns
from tests.kit.columns import make_column
from tests.kit.dataset import Reference, contents
from tests.kit.messages import says
from tests.kit.s3_server import BUCKET, S3Server, objects
from tests.kit.system import System
from tests.kit.text_columns import CAPTIONS

FIELD = f"column:{CAPTIONS}"


@pytest.fixture(scope="module")
def plain(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference with one column of arrays; read-only."""
    root = tmp_path_factory.mktemp("plain") / "set"
    shutil.copytree(reference.out, root)
    make_column(root, "latents")
    return root


@pytest.fixture
def dataset(plain: Path, tmp_path: Path) -> Path:
    """`plain` with a column of texts, which a test may change."""
    root = Path(shutil.copytree(plain, tmp_path / "set"))
    text_columns.write(root)
    text_columns.write(root, "validation")
    return root


def remove(root: Path | str, name: str = CAPTIONS, *flags: str, **more: Any) -> command.Finished:
    return command.run("remove-column", root, name, *flags, **more)


def without_work(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(root).items() if not name.startswith(".work")}


def test_only_the_files_of_the_column_are_removed(dataset: Path, plain: Path) -> None:
    files = [*(dataset / "columns" / CAPTIONS).iterdir()]
    size = sum(path.stat().st_size for path in files)
    planned = remove(dataset, CAPTIONS, "--dry-run", "--json").json
    assert (planned["files"], planned["bytes"], planned["removed"]) == (len(files), size, False)
    assert (dataset / "columns" / CAPTIONS / "column.json").exists()
    done = remove(dataset)
    assert done.code == 0, done
    assert f"removed the column captions of {dataset}: {len(files)} files, " in done.out
    assert without_work(dataset) == without_work(plain)
    assert command.run("verify", dataset, "--json").json["columns"] == ["latents"]


def test_last_column_leaves_no_folder(reference: Reference, tmp_path: Path) -> None:
    root = Path(shutil.copytree(reference.out, tmp_path / "set"))
    make_column(root, "latents")
    assert remove(root, "latents").code == 0
    assert not (root / "columns").exists()


def unfinished(root: Path) -> None:
    shutil.rmtree(root / "columns" / CAPTIONS)
    with text_columns.begin(root) as writer:
        for batch in writer:
            writer.write(text_columns.rows_of(batch))
            if batch["number"][0] > 30:
                break


def of_a_killed_writer(root: Path) -> None:
    folder = root / "columns" / CAPTIONS
    (folder / f".train-00000-of-00008.jsonl.{'0' * 32}.partial").write_bytes(b"half")


def of_a_killed_removal(root: Path) -> None:
    (root / "columns" / CAPTIONS / "column.json").unlink()
    min((root / "columns" / CAPTIONS).iterdir()).unlink()


def damaged(root: Path) -> None:
    (root / "columns" / CAPTIONS / "column.json").write_bytes(b'{"shape": [1')


def signed(root: Path) -> None:
    (root / "columns" / CAPTIONS / "column.json.sig").write_bytes(b"signature")


def with_a_link(root: Path) -> None:
    path = next((root / "columns" / CAPTIONS).glob("train*"))
    path.unlink()
    path.symlink_to(root / "labels.txt")


def empty(root: Path) -> None:
    shutil.rmtree(root / "columns" / CAPTIONS)
    (root / "columns" / CAPTIONS).mkdir()


@pytest.mark.parametrize(
    "change",
    [unfinished, of_a_killed_writer, of_a_killed_removal, damaged, signed, with_a_link, empty],
)
def test_columns_in_every_state_are_removed(
    dataset: Path, plain: Path, change: Callable[[Path], None]
) -> None:
    change(dataset)
    done = remove(dataset)
    assert done.code == 0, done
    assert without_work(dataset) == without_work(plain)


def test_folder_with_other_files_is_refused(dataset: Path) -> None:
    folder = dataset / "columns" / CAPTIONS
    for name in ("notes.txt", "train-00000.npy", "folder", "train-00000-of-00001.npy"):
        if name == "notes.txt":
            (folder / name).write_bytes(b"mine")
        else:
            (folder / name).mkdir()
            (folder / name / "notes.txt").write_bytes(b"mine")
        before = contents(dataset)
        refused = remove(dataset)
        assert refused.code == 2
        assert says("not-file-column-nothing-removed", ..., name).search(refused.err)
        assert contents(dataset) == before
        os.rename(folder / name, dataset.parent / name)


@pytest.mark.parametrize("name", ["absent", "../samples", "", ".work", "latents/../captions"])
def test_name_of_no_column_is_refused(dataset: Path, name: str) -> None:
    before = contents(dataset)
    refused = remove(dataset, name)
    assert refused.code == 2
    assert contents(dataset) == before


def test_folder_of_no_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "columns" / CAPTIONS).mkdir(parents=True)
    assert remove(tmp_path).code == 2
    assert (tmp_path / "columns" / CAPTIONS).exists()


def test_linked_column_folder_is_refused(dataset: Path, tmp_path: Path) -> None:
    folder = dataset / "columns" / CAPTIONS
    os.rename(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert remove(dataset).code == 3
    assert (tmp_path / "elsewhere/column.json").exists()


def test_interrupted_removal_is_repeated(dataset: Path, plain: Path, system: System) -> None:
    """Each state that a killed removal leaves is an incomplete column, which readers refuse."""
    settings = {"dataset": str(dataset), "name": CAPTIONS}
    folder = dataset / "columns" / CAPTIONS
    count = len([*folder.iterdir()])

    def stopped(real: Callable[..., None], *args: Any, **more: Any) -> None:
        real(*args, **more)
        raise KeyboardInterrupt

    system.instead("unlink", stopped)
    for removed in range(1, count + 1):
        with pytest.raises(KeyboardInterrupt):
            verb.remove_column(verb.RemoveColumnConfig(**settings))
        assert len([*folder.iterdir()]) == count - removed
        with pytest.raises(ImagenetPrepError):
            make_dataset(str(dataset), "train", 8, fields=(FIELD,), backend="native", world=World())
    assert remove(dataset).code == 0
    assert without_work(dataset) == without_work(plain)


def test_column_that_is_being_written_is_refused(dataset: Path) -> None:
    partial = dataset / "columns" / CAPTIONS / f".train-00000-of-00008.jsonl.{'0' * 32}.partial"
    with open(partial, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = contents(dataset)
        refused = remove(dataset)
        assert refused.code == 75
        assert contents(dataset) == before
    assert remove(dataset).code == 0


def test_open_readers_fail_or_end(dataset: Path) -> None:
    settings: dict[str, Any] = {"backend": "native", "world": World(), "framework": "numpy"}
    reader = make_dataset(str(dataset), "train", 8, fields=("number", FIELD), **settings)
    batches = iter(reader)
    next(batches)
    assert remove(dataset).code == 0
    try:
        rest = [*batches]
    except ImagenetPrepError as error:
        assert CAPTIONS in str(error)
    else:
        for batch in rest:
            expected = [*map(text_columns.texts_of, batch["number"].tolist())]
            assert batch[FIELD] == expected
    with pytest.raises(ImagenetPrepError, match=says("no-such-column-columns-dataset")):
        make_dataset(str(dataset), "train", 8, fields=("number", FIELD), **settings)


def test_removed_column_can_be_written_again(dataset: Path) -> None:
    before = without_work(dataset)
    assert remove(dataset).code == 0
    text_columns.write(dataset)
    text_columns.write(dataset, "validation")
    assert without_work(dataset) == before


def test_column_is_removed_from_a_bucket(plain: Path, s3: S3Server) -> None:
    place = f"s3://{BUCKET}/with-column"
    command.run("replicate", plain, "--to", place, env=s3.environment)
    done = remove(place, "latents", "--json", env=s3.environment)
    assert done.code == 0, done
    assert json.loads(done.out)["files"] > 1
    names = objects(s3.client(), "with-column")
    assert names
    assert not [name for name in names if name.startswith("columns")]
    assert command.run("verify", place, env=s3.environment).code == 0


def test_replicas_and_versions_keep_their_column(dataset: Path, tmp_path: Path) -> None:
    command.run("replicate", dataset, "--to", tmp_path / "replica")
    before = contents(tmp_path / "replica")
    assert remove(dataset).code == 0
    assert contents(tmp_path / "replica") == before
