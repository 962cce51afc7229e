"""`export --to croissant`: one file that describes a dataset, without its images."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import export
from imagenet_prep.core.errors import UsageError
from imagenet_prep.exporting import croissant
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import columns, text_columns
from tests.kit.messages import says

ABOUT = {
    "license": "CC0-1.0",
    "creator": {"@type": "sc:Person", "name": "A"},
    "rai:dataBiases": "é",
}


def described(dataset: Path, out: Path, about: dict[str, Any], *flags: str) -> Any:
    (out.parent / "about.json").write_text(json.dumps(about))
    words = ["--about", str(out.parent / "about.json"), "--to", "croissant", "--json"]
    assert export.run([str(dataset), str(out), *words, *flags]) == 0
    return json.loads(out.read_text("utf-8"))


def test_croissant_has_sha256_of_files_and_authors_fields(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = described(prepared, tmp_path / "croissant.json", ABOUT)

    listed = {each["contentUrl"]: each["sha256"] for each in made["distribution"]}
    there = [path for path in prepared.rglob("*") if path.is_file() and ".work" not in path.parts]
    assert listed == {
        str(path.relative_to(prepared)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in there
    }
    assert {name: made[name] for name in ABOUT} == ABOUT
    assert "http://mlcommons.org/croissant/1.1" in made["conformsTo"]
    assert [each["prov:label"] for each in made["prov:wasDerivedFrom"]]
    classes, splits = made["recordSet"]
    assert classes["data"][0]["classes/index"] == 0
    assert {row["splits/name"] for row in splits["data"]} == {"train", "validation"}
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert set(missing) == set(croissant.OF_AUTHORS) - ABOUT.keys()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("licence", "license"),
        ("lisense", "license"),
        ("datepublished", "datePublished"),
        ("creators", "creator"),
        ("Name", "name"),
        ("rai:datalimitations", "rai:dataLimitations"),
    ],
)
def test_misspelt_field_of_authors_is_refused(
    prepared: Path, tmp_path: Path, name: str, meant: str
) -> None:
    with pytest.raises(UsageError, match=says("about-not-field-croissant-did", name, meant)):
        described(prepared, tmp_path / "made.json", {name: "x"})
    assert not (tmp_path / "made.json").exists()


def test_other_fields_of_authors_are_kept(prepared: Path, tmp_path: Path) -> None:
    own = {"licenseUrl": "x", "own:licence": "y", "measurementTechnique": "z", "keywords": ["a"]}
    made = described(prepared, tmp_path / "made.json", own)
    assert own.items() <= made.items()


@pytest.mark.parametrize("text", ["[]x", "[1]", "1", '{"distribution": []}', '{"@context": {}}'])
def test_invalid_fields_of_authors_are_refused(prepared: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "about.json").write_text(text)
    words = ["--to", "croissant", "--about", str(tmp_path / "about.json")]

    with pytest.raises(UsageError, match="--about"):
        export.run([str(prepared), str(tmp_path / "made.json"), *words])
    assert not (tmp_path / "made.json").exists()


def test_only_a_croissant_file_is_replaced(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    about = tmp_path / "about.json"
    described(prepared, out, {})
    first = out.read_bytes()
    described(prepared, out, ABOUT)
    assert out.read_bytes() != first

    written = about.read_bytes()
    (tmp_path / "link.json").symlink_to(about)
    words = ["--to", "croissant", "--about", str(about)]
    for name in ("about.json", "link.json"):
        with pytest.raises(UsageError, match="is not a Croissant file"):
            export.run([str(prepared), str(tmp_path / name), *words])
    with pytest.raises(UsageError, match=says("about-also-out-would-replace")):
        export.run([str(prepared), str(out), "--to", "croissant", "--about", str(out)])
    assert about.read_bytes() == written


def read_without_warnings(
    root: Path, out: Path, caplog: pytest.LogCaptureFixture, *words: str
) -> Any:
    """Describes a dataset completely, and returns it as read by mlcroissant."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    about = {**ABOUT, "citeAs": "A (2026)", "datePublished": "2026-11-27"}
    described(root, out, about, *words)
    read = mlcroissant.Dataset(str(out))
    assert read.metadata.ctx.issues.report() == ""
    assert caplog.text == ""
    return read


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib
def test_mlcroissant_has_no_warnings(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = read_without_warnings(prepared, tmp_path / "croissant.json", caplog)
    assert len(list(read.records("splits"))) == 2


def test_each_value_comes_from_the_manifest(prepared: Path, tmp_path: Path) -> None:
    made = described(prepared, tmp_path / "croissant.json", {})
    manifest = json.loads((prepared / "dataset.json").read_text("utf-8"))
    digest = hashlib.sha256((prepared / "dataset.json").read_bytes()).hexdigest()
    splits = manifest["splits"]

    found = [
        (source["prov:label"], source.get("sc:identifier"))
        for source in made["prov:wasDerivedFrom"]
    ]
    assert found == [
        (source["name"], f"md5:{source['md5']}" if source.get("md5") else None)
        for source in manifest["sources"]
    ]
    assert any(identifier for _, identifier in found)
    _, rows = made["recordSet"]
    assert rows["data"] == [
        {
            "splits/name": name,
            "splits/images": sum(shard["examples"] for shard in splits[name]["shards"]),
            "splits/root": splits[name]["samples_root"],
        }
        for name in splits
    ]
    assert made["version"].startswith("1.0.0+")
    kinds = {"json": "application/json", "txt": "text/plain", "jsonl": "application/jsonlines"}
    for each in made["distribution"]:
        path = prepared / each["contentUrl"]
        assert each["contentSize"] == f"{path.stat().st_size} B"
        kind = kinds.get(path.suffix.removeprefix("."), "application/octet-stream")
        assert each["encodingFormat"] == kind, path
    suffixes = {Path(each["contentUrl"]).suffix for each in made["distribution"]}
    assert {".json", ".txt"} <= suffixes
    assert digest in {each["sha256"] for each in made["distribution"]}


@pytest.mark.parametrize(
    "field", ["@context", "@type", "conformsTo", "distribution", "recordSet", "version"]
)
def test_no_generated_field_is_taken_from_the_authors(
    prepared: Path, tmp_path: Path, field: str
) -> None:
    with pytest.raises(UsageError, match=field):
        described(prepared, tmp_path / "made.json", {field: "mine"})


@pytest.fixture(scope="module")
def captioned(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`prepared` with a column of texts and one of arrays; read-only."""
    root = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("captioned") / "set"))
    text_columns.write(root)
    text_columns.write(root, "validation")
    columns.make_column(root, "latents")
    return root


def test_columns_are_only_described_on_request(captioned: Path, tmp_path: Path) -> None:
    plain = described(captioned, tmp_path / "plain.json", {})
    assert "captions" not in json.dumps(plain)
    made = described(captioned, tmp_path / "made.json", {}, "--columns", "captions")
    listed = {each.get("contentUrl"): each.get("sha256") for each in made["distribution"]}
    for path in (captioned / "columns/captions").iterdir():
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        assert listed[f"columns/captions/{path.name}"] == sha256
    (texts,) = (field for field in made["recordSet"][2]["field"] if field["name"] == "texts")
    assert (texts["dataType"], texts["repeated"]) == ("sc:Text", True)


def test_columns_of_arrays_are_not_described(captioned: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says("columns-only-exports-columns-texts")):
        described(captioned, tmp_path / "made.json", {}, "--columns", "captions,latents")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib
def test_mlcroissant_reads_texts(
    captioned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(shutil.copytree(captioned, tmp_path / "set"))
    read = read_without_warnings(root, root / "croissant.json", caplog, "--columns", "captions")
    rows = list(read.records("column_captions"))
    shards = open_dataset(str(root)).manifest.splits["train"].shards
    (name,) = {shard.name for shard in shards[:1]}
    found = [
        [*row["column_captions/texts"]]
        for row in rows
        if row["column_captions/shard"] == name.encode()
    ]
    expected = [text_columns.texts_of(number) for number in range(shards[0].examples)]
    assert found == [[text.encode() for text in texts] for texts in expected]
