"""`report` describes valid and damaged datasets, and refuses invalid requests."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import html
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_prep import report, verify
from imagenet_prep import report as report_verb
from imagenet_prep.core.errors import ImagenetPrepError, StoreError, UsageError
from imagenet_prep.dataset import predictions, schema
from imagenet_prep.dataset.member import OF_INPUT
from imagenet_prep.reporting import facts, render, sample
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.commands.report.conftest import Demo
from tests.kit import command
from tests.kit.columns import make_column
from tests.kit.command import REPOSITORY
from tests.kit.dataset import contents, everything, receipts
from tests.kit.faults import cut, disk, flip_bit
from tests.kit.hostile import manifests
from tests.kit.layouts import write
from tests.kit.messages import says, wording
from tests.kit.pages import labels
from tests.kit.photographs import photograph
from tests.kit.system import System

Report = Callable[..., str]


def data(page: str) -> dict[str, list[dict[str, object]]]:
    """Returns the data of the page's script."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    found: dict[str, list[dict[str, object]]] = json.loads(match[1])
    return found


def verdict(page: str) -> str:
    """Returns the text of the page's verdict."""
    match = re.search(r'<div class="verdict.*?</div>', page, re.DOTALL)
    assert match is not None
    return " ".join(re.sub(r"<[^>]+>", " ", match[0]).split())


def test_page_has_the_facts_of_the_manifest(small: Demo) -> None:
    page = (small.out / "report.html").read_text("utf-8")
    manifest = json.loads((small.out / "dataset.json").read_bytes())

    assert verdict(page).startswith("Sound, as a subset Checked on ")
    assert "at level decode: " in verdict(page)
    assert manifest["digest"] in page
    assert "torch.from_dlpack" in page
    of_tiles = [dict(tile["rows"])["class"] for tile in data(page)["tiles"]]
    classes = len(set(of_tiles))
    assert len(set(of_tiles[:classes])) == classes, "each class comes before any comes twice"
    for source in manifest["sources"]:
        assert source["md5"] in page
    for split in manifest["splits"].values():
        assert all(shard["sha256"] in page for shard in split["shards"])
    for line in (small.out / "quarantine.jsonl").read_text().splitlines():
        assert json.loads(line)["key"] in page
    assert str(small.out) in page


def test_readmes_picture_has_the_labels_of_today(small: Demo) -> None:
    with Image.open(REPOSITORY / "docs" / "report.png") as picture:
        shown = picture.info["labels"].splitlines()

    assert shown == labels((small.out / "report.html").read_text("utf-8")), "make picture"
    assert shown[0] == "Sound, as a subset"


def test_page_shows_mistakes_if_predictions_are_given(
    small: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Report
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    keys = command.run("show", small.out, "--keys", "--splits", "validation", "--limit", "2")
    first, second = keys.out.split()
    said = tmp_path / "said.csv"
    more = ",,,,,,,,"
    said.write_text(
        f"{','.join(predictions.HEADER)}\n{first},0,1,0.875{more}\n{second},1,1,0.5{more}\n"
        f"<b>/absent.JPEG,1,0,0.75{more}\n"
    )
    page = written(small.out, "--predictions", said)

    section = page[page.index('id="mistakes"') : page.index('id="incidents"')]
    assert "differs from the label for 2 of 3 images; top-1 33.3%" in section
    assert section.count("<img") == 1
    assert section.index("87.5%") < section.index("75.0%")
    assert first in section
    assert second not in section
    assert "&lt;b&gt;/absent.JPEG" in section
    assert '<th scope="col">predicted</th>' in section
    assert "<h3>Accuracy by class</h3>" in section
    assert re.findall(r'number">(\d+)</td><td class="number">([\d.]+%)<', section)[:2] == [
        ("1", "0.0%"),
        ("2", "50.0%"),
    ]
    assert "<dt>Top-1</dt><dd>33.3%<small>of 3 predictions</small>" in page
    assert 'id="mistakes"' not in (small.out / "report.html").read_text("utf-8")


def test_page_of_other_labels_has_a_warning(small: Demo, tmp_path: Path) -> None:
    """The file has no names of classes, so it may be of a different class list."""
    keys = command.run("show", small.out, "--keys", "--splits", "validation", "--limit", "2")
    rows = {
        key: json.loads(command.run("show", small.out, "--key", key, "--json").out)
        for key in keys.out.split()
    }
    said = tmp_path / "said.csv"
    for shift, is_warned in ((0, False), (1, True)):
        lines = [",".join(predictions.HEADER)]
        for key, row in rows.items():
            label = str(row["class_index"] + shift)
            lines.append(f"{key},{label},{label},1{',' * 8}")
        said.write_text("\n".join(lines) + "\n")
        result = command.run(
            "report", small.out, "--predictions", said, "--out", tmp_path / "page.html"
        )
        assert result.code == 0, result
        wrong = says("different-class_index-file-predictions-accuracies", ..., "2 images")
        assert bool(wrong.search(result.err)) is is_warned


@pytest.mark.parametrize("place", ["class_index", "top1"])
def test_predictions_of_more_classes_are_refused(small: Demo, tmp_path: Path, place: str) -> None:
    count = len((small.out / schema.LABELS).read_text().splitlines())
    said = tmp_path / "said.csv"
    values = {"key": "a/1.JPEG", "class_index": "0", "top1": "0", "p1": "1"}
    for number, code in ((count - 1, 0), (count, 3)):
        row = [(values | {place: f"{number}"}).get(name, "") for name in predictions.HEADER]
        said.write_text(f"{','.join(predictions.HEADER)}\n{','.join(row)}\n")
        out = tmp_path / f"{number}.html"
        result = command.run("report", small.out, "--predictions", said, "--out", out)
        assert (result.code, out.exists()) == (code, code == 0), result
    assert says("class-index-not-one-classes").search(result.err)


def test_page_of_photographs_uses_their_words(tmp_path: Path, written: Report) -> None:
    """Repaired pictures are folded, and each path is printed once."""
    photos = tmp_path / "photos"
    for number, name in enumerate(("cats/1.jpg", "cats/2.jpg", "dogs/3.jpg")):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(photograph(60, 80, number))
    Image.new("L", (40, 40)).save(photos / "dogs" / "grey.jpg")
    (photos / "dogs" / "empty.jpg").write_bytes(b"")
    result = command.run("prepare", photos, tmp_path / "set", "--quality", "91")
    assert result.code == 0, result
    page = written(tmp_path / "set")

    assert '<label for="search">Class or file</label>' in page
    assert "recipe=&#34;adm" not in page
    assert 'recipe="adm"' not in page
    section = page[page.index('id="incidents"') : page.index('id="lineage"')]
    assert section.index("dogs/empty.jpg") < section.index("<details>") < section.index("dogs/grey")
    assert section.count("empty.jpg") == section.count("grey.jpg") == 1


@pytest.mark.parametrize(
    ("cards", "most", "columns"), [(8, 7, 4), (7, 7, 7), (9, 4, 3), (5, 4, 3), (1, 7, 1), (0, 7, 1)]
)
def test_rows_of_cards_are_equally_long(cards: int, most: int, columns: int) -> None:
    assert render._columns("<div><dt>x</dt></div>" * cards, most) == columns


def test_page_shows_images_whose_labels_disagree(
    small: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Report
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    shown = command.run("show", small.out, "--keys", "--splits", "validation")
    first, second, third = shown.out.split()[:3]
    own = tmp_path / "<own>.csv"
    own.write_text(f"key,class\n{first},\n{second},0 1\nnobody,1\n")
    page = written(small.out, "--labels", own)

    section = page[page.index('id="labels"') : page.index('id="incidents"')]
    assert section.count("<img") == 2
    assert first in section
    assert second in section
    assert third not in section
    assert "excluded" in section
    assert "1 of them not in this dataset, such as nobody" in section
    assert "&lt;own&gt;.csv" in section
    assert hashlib.sha256(own.read_bytes()).hexdigest() in section
    assert 'id="labels"' not in written(small.out)


@pytest.mark.parametrize("flag", ["--predictions", "--labels", "--training"])
def test_files_of_users_are_read_first(small: Demo, tmp_path: Path, flag: str) -> None:
    absent = tmp_path / "absent.csv"
    words = ("report", small.out, flag, absent, "--out", tmp_path / "page.html")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "verify", lambda _: pytest.fail("the dataset was read first"))
        with pytest.raises(ImagenetPrepError, match="absent.csv"):
            report.run([*map(str, words[1:])])


def test_damaged_dataset_gets_a_page_despite_labels(
    copy: Path, tmp_path: Path, written: Report
) -> None:
    (table,) = sorted(copy.glob("samples/validation-*.csv"))[:1]
    flip_bit(table, table.stat().st_size - 30)
    own = tmp_path / "own.csv"
    own.write_text("key,class\nILSVRC2012_val_00000001.JPEG,0\n")
    page = written(copy, "--labels", own)
    assert verdict(page).startswith("Damaged: 1 problem ")
    assert verdict(page).count(table.name) == 1
    assert 'id="labels"' not in page


def test_tables_unreadable_for_labels_are_a_problem(
    small: Demo, tmp_path: Path, written: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage may fail only while the labels are read."""

    def fail(*_: object) -> None:
        raise StoreError("samples/validation-00000-of-00002.csv: the server has ended")

    monkeypatch.setattr("imagenet_prep.evaluation.sheet.Sheet", fail)
    page = written(small.out, "--labels", tmp_path / "own.csv")
    assert verdict(page).startswith("Damaged: 1 problem ")
    assert "the server has ended" in verdict(page)
    assert 'id="labels"' not in page


def test_page_shows_figures_of_training_if_given(
    small: Demo, training: Path, written: Report
) -> None:
    page = written(small.out, "--training", training)

    assert "8 ranks: 720.0 images/s" in page
    for panel in (wording("hours-90-epochs"), "share", wording("lost-communication")):
        assert f"{panel}</text>" in page
    assert '<td class="number">90.0</td>' in page
    assert page.count('href="#training"') == 1
    assert command.run("report", small.out, "--training", small.out / "labels.txt").code == 2


def test_report_only_changes_its_own_page(small: Demo, written: Report) -> None:
    before = everything(small.out)
    page = written(small.out, "--level", "decode")
    assert verdict(page).startswith("Sound, as a subset Checked on ")

    assert everything(small.out) == before


def test_each_class_is_shown_with_source_facts(small: Demo) -> None:
    found = data((small.out / "report.html").read_text("utf-8"))

    manifest = json.loads((small.out / "dataset.json").read_bytes())
    assert len(found["classes"]) == manifest["classes"]["count"]
    assert sum(line["examples"] for line in found["classes"]) == 48  # type: ignore[misc]
    assert len({tile["title"] for tile in found["tiles"]}) == manifest["classes"]["count"]
    rows = [dict(tile["rows"]) for tile in found["tiles"]]  # type: ignore[call-overload]
    told = [row for row in rows if "archive" in row]
    assert len(told) >= 45
    assert all("source" in row for row in told)
    assert all(float(row["PSNR"].split()[0]) > 25 for row in rows if "PSNR" in row)
    assert sum("PSNR" in row for row in rows) > 40
    assert 10 <= sum(tile["before"] is not None for tile in found["tiles"]) <= 16


def test_seed_decides_the_sample(small: Demo, written: Report) -> None:
    """If the note of the source's location is missing, the flag gives it."""
    source = ("--source", small.source)
    first = data((small.out / "report.html").read_text("utf-8"))
    again = data(written(small.out, *source))
    other = data(written(small.out, *source, "--seed", "1"))

    def pairs(found: dict[str, list[dict[str, object]]]) -> list[object]:
        return [tile["rows"] for tile in found["tiles"] if tile["before"]]

    assert first == again
    assert pairs(first) != pairs(other)
    assert pairs(data(written(small.out))) == [], "no note, and no flag"


def test_source_may_be_the_folder_of_photographs(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for number in range(4):
        write(photos / "cat" / f"{number}.jpg", photograph(60, 80, number))
    out = tmp_path / "set"
    assert command.run("prepare", photos, out, "--short-side", "32").code == 0
    moved = photos.rename(tmp_path / "moved")

    def run(source: Path) -> tuple[command.Finished, bool]:
        result = command.run("report", out, "--source", source, "--out", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text("utf-8")
        return result, any(tile["before"] for tile in data(page)["tiles"])

    result, is_shown = run(moved)
    assert (result.code, result.err, is_shown) == (0, "", True)
    result, is_shown = run(out)
    assert (result.code, is_shown) == (0, False)
    assert says("source-no-image-dataset-found", out).search(result.err)


def test_missing_source_is_reported_before_the_check(copy: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = command.run("report", copy, "--source", tmp_path / "no", "--out", page)

    assert result.code == 2
    assert says("source-no-such-folder-2", tmp_path / "no").search(result.err)
    assert not page.exists()


def test_dataset_without_work_folder_gets_a_report(copy: Path, report: Report) -> None:
    shutil.rmtree(copy / ".work")
    page = report(copy)

    assert verdict(page).startswith("Not read")
    assert len(data(page)["tiles"]) >= 45
    assert all(tile["before"] is None for tile in data(page)["tiles"])
    assert page.count("<figure>") == 6


def test_damaged_receipts_only_remove_plots(copy: Path, written: Report) -> None:
    for number, path in enumerate(receipts(copy)):
        junk = (b"", b"[]", b"{", b'{"shard": 5}', b'{"start_s": "x", "seconds": [], "shard": {}}')
        path.write_bytes(junk[number % len(junk)])
    page = written(copy)

    assert verdict(page).startswith("Not read")
    assert data(page)["tiles"]
    # The result is the same as without receipts, which removes three of nine plots above.
    found = facts.gather(open_dataset(str(copy)), [])
    assert found.tasks == []


def test_report_of_damaged_dataset_says_so_first(copy: Path, written: Report) -> None:
    missing, short, lone, *_ = sorted(path.name for path in copy.glob("train-*"))
    (copy / missing).unlink()
    cut(copy / short, 20_000)
    (copy / "index" / lone).unlink()
    shutil.copy(copy / lone, copy / "train-x")
    (copy / "labels.txt").write_bytes(b"\xff\x00")
    (copy / "quarantine.jsonl").write_bytes(b"1\n{}\n{")
    page = written(copy, "--level", "manifest")
    told = verdict(page)

    assert told.startswith("Damaged: ")
    assert f"{missing}: missing" in told
    assert says("bytes-expected", short, "20,000").search(told)
    assert f"index/{lone}: missing" in told
    for said in ("labels.txt: 2 bytes, expected", "quarantine", "train-x: not in the"):
        assert said in told
    assert data(page)["tiles"]


def test_flipped_bit_is_reported_if_contents_are_read(copy: Path, written: Report) -> None:
    shard = copy / "train-00001-of-00004"
    flip_bit(shard, 10_000)
    page = written(copy, "--level", "crc")

    assert verdict(page).startswith("Damaged: ")
    assert says("record-byte", shard.name, "1").search(verdict(page))
    assert data(page)["tiles"]


def test_damage_found_by_the_sample_is_reported(copy: Path, written: Report) -> None:
    for shard in copy.glob("train-*"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 4 : 3 * len(content) // 4] = bytes(
            len(range(len(content) // 4, 3 * len(content) // 4))
        )
        shard.write_bytes(content)
    page = written(copy)

    assert verdict(page).startswith("Damaged: ")
    assert "CRC" in verdict(page)


def test_page_without_valid_manifest_says_only_this(copy: Path, report: Report) -> None:
    flip_bit(copy / "dataset.json", 400)
    page = report(copy)

    assert verdict(page).startswith("Damaged: the manifest cannot be used")
    assert str(copy / "dataset.json") in page


def test_folder_without_dataset_gets_no_page(tmp_path: Path) -> None:
    result = command.run("report", tmp_path)

    assert result.code == 2
    assert says("not-dataset-imagenet-prep-no-make").search(result.err)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_dataset_gets_no_page(copy: Path) -> None:
    (copy / "dataset.json").unlink()
    result = command.run("report", copy)

    assert result.code == 4
    assert says("no-yet-because-run-not").search(result.err)


@pytest.mark.parametrize(
    "arguments",
    [("--compare", "A"), ("A", "B"), ("A", "--level", "much"), ("A", "--workers", "-1"), ()],
)
def test_incomplete_request_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert command.run("report", *arguments).code == 2


def test_report_never_changes_the_dataset(small: Demo, unplotted: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shrunk = tmp_path / "shrunk"
    flags = ("--allow-subset", "--train-shards", "2", "--validation-shards", "1")
    source = ("--source", small.source, "--short-side", "96", *flags)
    smaller = ("--short-side", "48")
    for words in (
        ("prepare", "--out", out, *source),
        ("resize", "-i", out, "-o", shrunk, *smaller),
    ):
        assert command.run(*words).code == 0
    plain = contents(out)

    for folder in (out, shrunk):
        report.report(report.ReportConfig(str(folder)))
        page = (folder / "report.html").read_text("utf-8")
        assert verdict(page).startswith("Not read")
        assert any(tile["before"] for tile in data(page)["tiles"])
    assert command.run("verify", out, "--level", "decode").code == 0
    found = contents(out)
    assert found.pop("report.html")
    assert found == plain


def test_columns_are_listed_with_their_state(copy: Path, written: Report) -> None:
    assert 'id="columns"' not in written(copy)
    made = make_column(copy, about="<resnet>")
    old = dataclasses.replace(make_column(copy, "old"), splits={})
    for name, file in (
        ("old/column.json", old.with_files("train", made.splits["train"][:1]).dumps()),
        ("part/begun.json", dataclasses.replace(old, name="part").dumps()),
        # A finished column, to which a second split is being added.
        ("more/column.json", dataclasses.replace(made, name="more").dumps()),
        ("more/begun.json", dataclasses.replace(made, name="more").dumps()),
        ("bad/column.json", b"{"),
    ):
        path = copy / "columns" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(file)
    page = written(copy)

    section = page[page.index('id="columns"') : page.index('id="incidents"')]
    rows = [re.sub(r"</t[hd]>", "|", row) for row in re.findall("<tr>.*?</tr>", section)[1:]]
    bad, latents, more, foreign, part = (html.unescape(re.sub("<[^>]+>", "", row)) for row in rows)
    assert bad == "bad|||||||damaged|"
    assert latents.startswith("latents|float32|[2]|")
    assert latents.endswith('|image|image|"<resnet>"|belongs to the current tables of samples|')
    files = itertools.chain.from_iterable(made.splits.values())
    count = sum(file.rows for file in files)
    assert f"|{count:,}|" in latents
    assert says("not-made-records-re-create-column").search(foreign)
    assert part.startswith("part|float32|[2]|")
    assert all(row.endswith("|not complete|") for row in (more, part))
    assert verdict(page).startswith("Damaged"), "the check names damaged and foreign columns"


def test_changed_images_are_counted(copy: Path, written: Report) -> None:
    tables = "".join(table.read_text("utf-8") for table in copy.glob("samples/*.csv"))
    changed = len(re.findall(",(?:shrunk|repaired),", tables))

    assert changed > 0
    assert f"<dt>Changed</dt><dd>{changed}<small>" in written(copy)


def test_replicas_are_listed_with_their_version(copy: Path, written: Report) -> None:
    digest = json.loads((copy / "dataset.json").read_bytes())["digest"]
    lines = [
        {"where": "s3://bucket/imagenet", "when": "2026-10-01 12:00 UTC", "digest": digest},
        {"where": "/mnt/old", "when": "2026-09-01 12:00 UTC", "digest": "0" * 64},
    ]
    (copy / ".work" / "replicas.jsonl").write_text(
        "".join(map("{}\n".format, map(json.dumps, lines)))
    )
    page = written(copy)

    assert "s3://bucket/imagenet" in page
    assert page.count("a different version of this dataset") == 1


def test_page_is_replaced_atomically(copy: Path, unplotted: None, sourceless: None) -> None:
    """A run that is killed while it writes must not leave half a page that looks up to date."""
    page = copy / "report.html"
    before = copy / "before.html"
    page.write_text("<!DOCTYPE html> an older one")
    before.hardlink_to(page)
    assert report_verb.run([str(copy)]) == 0

    assert before.read_text() == "<!DOCTYPE html> an older one"
    assert page.read_text().endswith("</html>")


@pytest.mark.long
@pytest.mark.slow
def test_page_of_720_noisy_classes_is_small(tmp_path: Path, written: Report) -> None:
    """Noise compresses worst: the page stays small by showing fewer classes, and says so."""
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.jpg", quality=60)
    for number in range(720):
        folder = tmp_path / "source" / "train" / f"n{number:08d}"
        folder.mkdir(parents=True)
        shutil.copy(tmp_path / "noise.jpg", folder / "0.JPEG")
    flags = ("--splits", "train", "--train-shards", "8", "--keep-original", "--allow-subset")
    out = tmp_path / "out"
    assert command.run("prepare", "--source", tmp_path / "source", "--out", out, *flags).code == 0
    page = written(out)

    shown = len(data(page)["tiles"])
    assert 600 < shown < 720
    assert f"{shown} stored images of {shown} of 720 classes" in page
    assert 2_500_000 < len(page.encode()) < 5_000_000


@pytest.mark.root
@pytest.mark.parametrize(
    ("user", "owner", "is_refused"),
    [
        (0, 0, False),
        (1000, 1000, False),
        (1000, 0, False),  # an administrator has prepared the dataset
        (1000, 1001, True),
        (0, 1001, True),
    ],
)
def test_folders_of_the_user_and_root_are_trusted(
    system: System, tmp_path: Path, user: int, owner: int, is_refused: bool
) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a folder away")
    os.chown(tmp_path, owner, owner)
    system.instead("geteuid", lambda _: user)
    expected = pytest.raises(UsageError) if is_refused else contextlib.nullcontext()
    with expected:
        report._refuse_folder_of_others(tmp_path)


@pytest.mark.root
def test_page_in_a_different_users_folder_needs_out(
    copy: Path, unplotted: None, sourceless: None, tmp_path: Path
) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a folder away")
    os.chown(copy, 12345, 12345)
    (copy / "report.html").unlink()
    refused = command.run("report", copy)

    assert refused.code == 2
    assert says("belongs-different-user-uid-choose", ..., "12345").search(refused.err)
    assert "--out" in refused.err
    assert not (copy / "report.html").exists()
    assert report_verb.run([str(copy), "--out", str(tmp_path / "page.html")]) == 0


def test_link_in_current_folder_is_replaced_not_followed(
    small: Demo, unplotted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "comparison.html").symlink_to(kept)
    monkeypatch.chdir(tmp_path / "here")
    kept.write_text("the user's own")
    with pytest.raises(UsageError, match=r"comparison.html: is not a page"):
        report_verb.run(["--compare", str(small.out), str(small.out)])
    kept.write_text("<!DOCTYPE html> of another report")
    assert report_verb.run(["--compare", str(small.out), str(small.out)]) == 0

    assert kept.read_text() == "<!DOCTYPE html> of another report"
    assert (tmp_path / "here" / "comparison.html").read_text().endswith("</html>")


def planted(copy: Path, archive: str, private: bytes) -> None:
    """Adds a quarantined image and its location to a dataset; all its digests match."""
    content = json.loads((copy / "dataset.json").read_bytes())
    lines = [
        {
            **dict.fromkeys(("key", "detail", "reason"), "x"),
            "action": "quarantined",
            "archive": archive,
            "class_index": 0,
            "offset": 0,
            "size": len(private),
        }
    ]
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines).encode()
    (copy / "quarantine.jsonl").write_bytes(text)
    (file,) = (file for file in content["files"] if file["name"] == "quarantine.jsonl")
    file |= {"num_bytes": len(text), "sha256": manifests.sha256(text)}
    (copy / "dataset.json").write_bytes(manifests.render(content))


def test_dataset_cannot_make_report_show_private_pictures(copy: Path, tmp_path: Path) -> None:
    """Users share this page, so a location in the dataset is not trusted."""
    home = tmp_path / "home"
    home.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(home / "passport.png")
    private = (home / "passport.png").read_bytes()
    planted(copy, "passport.png", private)
    origin = {"root": str(home), "files": {"passport.png": str(home / "passport.png")}}
    (copy / ".work" / "origin.json").write_text(json.dumps(origin))

    assert incident_pictures(copy, None) == [False]
    # This is also true if the user gives this folder: it is no source of the dataset.
    assert incident_pictures(copy, home) == [False]


def incident_pictures(copy: Path, source: Path | None) -> list[bool]:
    """Returns for each quarantined image whether the page shows it."""
    store = LocalStore(copy)
    at = None if source is None else LocalStore(source)
    found = facts.gather(open_dataset(store), [], at)
    return [each.picture is not None for each in sample.incidents(found)]


def test_quarantined_images_are_shown_only_from_source(small: Demo, copy: Path) -> None:
    assert any(incident_pictures(copy, None))
    assert any(incident_pictures(copy, small.source))


def test_images_of_the_input_have_no_picture(small: Demo, copy: Path) -> None:
    """Their archives are sources of the input, so the same name may be a different file here."""
    found = facts.gather(open_dataset(LocalStore(copy)), [], LocalStore(small.source))
    found.incidents = [
        dataclasses.replace(line, action=f"{OF_INPUT}{line.action}") for line in found.incidents
    ]
    assert {each.picture for each in sample.incidents(found)} == {None}


@pytest.mark.root
@pytest.mark.parametrize("verb", ["report", "duplicates"])
def test_full_disk_keeps_no_work_of_pages(small: Demo, tmp_path: Path, verb: str) -> None:
    with disk(tmp_path / "disk", "size=8k"):
        name = "page.html" if verb == "report" else "found"
        result = command.run(verb, small.out, "--out", tmp_path / "disk" / name)

        assert result.code == 4, result
        assert "No space left on device. Free some space, then run" in result.err
        assert not (tmp_path / "disk" / "page.html").exists()
