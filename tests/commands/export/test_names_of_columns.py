"""Column names that exports and flags use for other purposes."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from imagenet_prep import export, replicate, show
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import column
from imagenet_prep.read import ColumnWriter
from tests.kit import columns
from tests.kit.messages import says
from tests.kit.training import make_shades


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A small dataset with tables of samples."""
    return make_shades(tmp_path / "set")


def exported_names(dataset: Path, out: Path) -> set[str]:
    """Returns all names that the exports with columns give to their own fields and files."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    names: set[str] = set()
    for to in ("parquet", "webdataset"):
        assert export.run([str(dataset), str(out / to), "--to", to]) == 0
    for path in (out / "parquet").rglob("*.parquet"):
        names |= {*pq.read_schema(path).names}
    for path in (out / "webdataset").rglob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                names.add(member.name.rpartition(".")[2])
    return names


def test_all_field_names_of_exports_are_reserved(dataset: Path, tmp_path: Path) -> None:
    assert exported_names(dataset, tmp_path) | {"all", "none", "key", "split"} == column.RESERVED


@pytest.mark.parametrize(
    "name",
    [*sorted(column.RESERVED), "Label", "IMAGE", "image.bytes", "None", "__key__", "__url"],
)
def test_new_column_cannot_have_a_reserved_name(dataset: Path, name: str) -> None:
    with pytest.raises(UsageError, match=says("flags-exports-use-themselves-choose")):
        ColumnWriter(dataset, "train", name, (2,), "uint8", batch_size=2, reader=columns.NATIVE)
    assert not (dataset / "columns").exists()


@pytest.mark.parametrize("name", ["labels", "images", "soft-label", "my_none", "_key"])
def test_similar_names_are_allowed(name: str) -> None:
    assert column.require_new_name(name) == name


@pytest.mark.parametrize("name", ["all", "none"])
def test_old_column_with_reserved_name_must_be_chosen(
    dataset: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns.make_column(dataset, name)
    columns.make_column(dataset, "latents")

    for chosen in ([], ["--columns", "all"], ["--columns", f"latents,{name}"]):
        with pytest.raises(UsageError, match=says("column-called-columns-uses-itself", ..., name)):
            replicate.run([str(dataset), "--to", str(tmp_path / "copy"), *chosen])
    for number, chosen in enumerate((["--columns", "latents"], ["--columns", "none"])):
        copy = tmp_path / str(number)
        assert replicate.run([str(dataset), "--to", str(copy), *chosen]) == 0
        copied = copy / "columns"
        assert [path.name for path in copied.glob("*")] == chosen[1:] * (number == 0)
    assert show.run([str(dataset)]) == 0
    assert f"column {name}: " in capsys.readouterr().out


def test_parquet_refuses_old_column_named_label(dataset: Path, tmp_path: Path) -> None:
    columns.make_column(dataset, "label")
    words = [str(dataset), str(tmp_path / "out"), "--columns", "label"]

    with pytest.raises(UsageError, match=says("columns-parquet-files-their-own", "label")):
        export.run([*words, "--to", "parquet"])
    assert export.run([*words, "--to", "webdataset"]) == 0
