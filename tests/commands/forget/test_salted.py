"""Lines of forgotten images have salted digests, and no command uses or prints their names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.photographs import photograph

CLASSES = ("cat", "dog")
KEY = "cat/2.jpg"


def image(number: int) -> bytes:
    return photograph(40, 50, number)


def done(*words: object, code: int = 0) -> command.Finished:
    result = command.run(*words)
    assert result.code == code, result
    return result


def lines(dataset: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dataset / "quarantine.jsonl").read_text().splitlines()]


def stored(dataset: Path) -> set[str]:
    return set(done("show", dataset, "--keys").out.splitlines())


def digest(salt: str, name: str) -> str:
    """Returns HMAC-SHA256 as RFC 2104 defines it."""
    key = bytes.fromhex(salt).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + name.encode()).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eight photographs; the key of number 2 is `KEY`."""
    for number in range(8):
        write(tmp_path / "photos" / CLASSES[number % 2] / f"{number}.jpg", image(number))
    return tmp_path / "photos"


@pytest.fixture
def dataset(photos: Path, tmp_path: Path) -> Path:
    done("prepare", photos, tmp_path / "set", "--short-side", "30")
    return tmp_path / "set"


def forget(dataset: Path, out: Path, *keys: str, code: int = 0) -> command.Finished:
    asked = out.with_suffix(".txt")
    write(asked, "".join(f"{key}\n" for key in keys).encode())
    return done("forget", dataset, "--keys", asked, "--exact", "--out", out, code=code)


def test_forgotten_line_has_the_documented_digests(dataset: Path, tmp_path: Path) -> None:
    shown = json.loads(done("show", dataset, "--key", KEY, "--json").out)
    forget(dataset, tmp_path / "new", KEY)

    again = forget(tmp_path / "new", tmp_path / "again", KEY)
    assert says("images-forgotten-before", "1 key").search(again.out)
    (line,) = lines(tmp_path / "new")
    salt = line.pop("salt")
    assert len(bytes.fromhex(salt)) == 16
    assert line == {
        "key": digest(salt, KEY),
        "archive": "",
        "offset": 0,
        "size": shown["encoded_bytes"],
        "class_index": -1,
        "action": "excluded",
        "reason": "forgotten",
        "detail": line["detail"],
        "split": "train",
        "source_sha256": digest(salt, sha256(image(2))),
        "sha256": digest(salt, digest_of_stored(dataset)),
        "source_bytes": len(image(2)),
    }
    assert "forget 1 (" in done("show", tmp_path / "new").out
    manifest = (tmp_path / "new/dataset.json").read_text()
    assert sha256(f"train:{KEY}\n".encode()) not in manifest


def digest_of_stored(dataset: Path) -> str:
    """Returns the sha256 of the stored image, from the table of samples."""
    rows = (dataset / "samples/train-00000-of-00001.csv").read_text().splitlines()
    (row,) = (row for row in rows if row.startswith(f"{KEY},"))
    return row.split(",")[5]


def test_salts_differ_between_datasets_and_stay_in_versions(dataset: Path, tmp_path: Path) -> None:
    forget(dataset, tmp_path / "one", KEY)
    forget(dataset, tmp_path / "two", KEY)
    forget(tmp_path / "one", tmp_path / "three", "dog/3.jpg")
    one, two, three = (
        {line["salt"] for line in lines(tmp_path / n)} for n in ("one", "two", "three")
    )
    assert len(lines(tmp_path / "three")) == 2
    assert one == three
    assert len(one | two) == 2


def test_repeated_command_uses_salt_of_killed_run(dataset: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    write(new / ".work/salt", json.dumps("ab" * 16).encode())
    forget(dataset, new, KEY)
    assert lines(new)[0]["salt"] == "ab" * 16
    assert not (new / ".work/salt").exists()
    manifest = (new / "dataset.json").read_bytes()
    forget(dataset, new, KEY)
    assert (new / "dataset.json").read_bytes() == manifest


def test_failed_run_leaves_salt_for_next(dataset: Path, tmp_path: Path) -> None:
    shard = dataset / "train-00000-of-00001"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    new = tmp_path / "new"
    forget(dataset, new, KEY, code=3)
    salt = json.loads((new / ".work/salt").read_bytes())
    shard.write_bytes(data)
    forget(dataset, new, KEY)
    assert lines(new)[0]["salt"] == salt


def test_earlier_lines_and_sources_lose_names(photos: Path, tmp_path: Path) -> None:
    write(photos / "dog/bad.jpg", image(20)[:300])
    done("prepare", photos, tmp_path / "set")
    write(tmp_path / "add/cat/10.png", image(10))
    write(tmp_path / "asked", b"dog/1.jpg\n")
    flags = ("--add", tmp_path / "add", "--exclude", tmp_path / "asked")
    done("amend", tmp_path / "set", *flags, "--out", tmp_path / "set-2")
    named = ("cat/10.png", "dog/bad.jpg", "dog/1.jpg")
    before = (tmp_path / "set-2/quarantine.jsonl").read_text()
    before += (tmp_path / "set-2/dataset.json").read_text()
    assert all(name in before for name in named)

    result = forget(tmp_path / "set-2", tmp_path / "new", *named)

    everything = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    text = b"".join(path.read_bytes() for path in everything)
    assert not [name for name in named if name.rpartition("/")[2].encode() in text]
    assert sha256(image(1)).encode() not in text
    assert len(lines(tmp_path / "new")) == 3
    assert says("not-stored-only-quarantine.jsonl").search(result.out)
    # The bytes of the image that was excluded before still keep it out.
    write(tmp_path / "add/dog/renamed.jpg", image(1))
    words = ("amend", tmp_path / "new", "--add", tmp_path / "add", "--readmit")
    refused = done(*words, "--out", tmp_path / "again", code=2)
    assert says("forgotten-no-flag-adds", "2").search(refused.err)


def test_every_verb_recognises_forgotten_images_of_a_list(dataset: Path, tmp_path: Path) -> None:
    forget(dataset, tmp_path / "new", KEY)
    listed = ("--exclude", tmp_path / "new/quarantine.jsonl", "--allow-unknown")
    rest = stored(dataset) - {KEY}
    done("resize", "-i", dataset, "-o", tmp_path / "small", "-r", "20", *listed)
    done("amend", dataset, *listed, "--out", tmp_path / "amended")
    done("export", dataset, tmp_path / "files", "--to", "folder", *listed)
    for name in ("small", "amended"):
        assert stored(tmp_path / name) == rest
        assert KEY not in (tmp_path / name / "quarantine.jsonl").read_text()
    files = {str(path.relative_to(tmp_path / "files/train")) for path in files_of(tmp_path)}
    assert files == rest
    # A later version of the new dataset refuses it, too.
    done("resize", "-i", tmp_path / "new", "-o", tmp_path / "smaller", "-r", "20")
    write(tmp_path / "add" / KEY, image(30))
    words = ("amend", tmp_path / "smaller", "--add", tmp_path / "add", "--readmit")
    refused = done(*words, "--out", tmp_path / "again", code=2)
    assert says("forgotten-no-flag-adds", "1").search(refused.err)


def files_of(folder: Path) -> list[Path]:
    return list((folder / "files/train").rglob("*.jpg"))


def test_equal_key_of_a_different_split_stays(tmp_path: Path) -> None:
    """In most folders, train and validation have images with equal names."""
    for number in range(16):
        split = ("train", "val")[number // 8]
        place = tmp_path / "photos" / split / CLASSES[number % 2]
        write(place / f"{number % 8}.jpg", image(number))
    done("prepare", tmp_path / "photos", tmp_path / "set")
    forget(tmp_path / "set", tmp_path / "new", f"validation:{KEY}")
    listed = ("--exclude", tmp_path / "new/quarantine.jsonl", "--allow-unknown")
    done("prepare", tmp_path / "photos", tmp_path / "again", *listed)
    done("amend", tmp_path / "set", *listed, "--out", tmp_path / "amended")
    both = ("--splits", "train,validation")
    done("resize", "-i", tmp_path / "set", "-o", tmp_path / "small", "-r", "20", *both, *listed)
    for name in ("again", "amended", "small"):
        found = {
            split: done("show", tmp_path / name, "--keys", "--splits", split).out.splitlines()
            for split in ("train", "validation")
        }
        assert (len(found["train"]), len(found["validation"])) == (8, 7)
        assert KEY in found["train"]
        assert KEY not in found["validation"]
        (line,) = lines(tmp_path / name)
        assert (line["split"], len(line["salt"])) == ("validation", 32)


def test_holdout_and_train_share_the_forgotten_key(photos: Path, tmp_path: Path) -> None:
    """A different share is held out, so the image would be in train; its bytes have changed."""
    done("prepare", photos, tmp_path / "set", "--holdout", "4")
    (held,) = done("show", tmp_path / "set", "--keys", "--splits", "holdout").out.split()[:1]
    forget(tmp_path / "set", tmp_path / "new", held)
    write(photos / held, image(40))
    listed = ("--exclude", tmp_path / "new/quarantine.jsonl", "--allow-unknown")
    done("prepare", photos, tmp_path / "again", *listed)
    done("prepare", photos, tmp_path / "whole")
    done("amend", tmp_path / "whole", *listed, "--out", tmp_path / "amended")
    for name in ("again", "amended"):
        assert stored(tmp_path / name) == stored(tmp_path / "whole") - {held}


def test_prepare_excludes_renamed_and_equally_named_images(
    photos: Path, dataset: Path, tmp_path: Path
) -> None:
    forget(dataset, tmp_path / "new", KEY, "dog/3.jpg")
    (photos / KEY).rename(photos / "dog/renamed.jpg")
    write(photos / "dog/3.jpg", image(40))
    listed = ("--exclude", tmp_path / "new/quarantine.jsonl", "--allow-unknown")
    done("prepare", photos, tmp_path / "again", *listed)
    assert stored(tmp_path / "again") == stored(dataset) - {KEY, "dog/3.jpg"}
    text = (tmp_path / "again/quarantine.jsonl").read_text()
    assert "renamed" not in text
    assert "dog/3" not in text
    assert len(lines(tmp_path / "again")) == 2


@pytest.mark.parametrize("salt", ["", "ab", "g" * 32, "A" * 32])
def test_invalid_salts_are_refused(dataset: Path, tmp_path: Path, salt: str) -> None:
    forget(dataset, tmp_path / "new", KEY)
    (line,) = lines(tmp_path / "new")
    write(tmp_path / "list", json.dumps(line | {"salt": salt}, separators=(",", ":")).encode())
    words = ("amend", dataset, "--exclude", tmp_path / "list", "--out", tmp_path / "out")
    refused = done(*words, code=2)
    if salt:
        assert says("salt-not-hex-digits").search(refused.err)


def test_list_with_many_salts_is_refused(dataset: Path, tmp_path: Path) -> None:
    forget(dataset, tmp_path / "new", KEY)
    (line,) = lines(tmp_path / "new")
    made = [json.dumps(line | {"salt": f"{n:032x}", "key": f"{n}"}) for n in range(20)]
    write(tmp_path / "list", "\n".join(made).replace('": ', '":').encode())
    words = ("amend", dataset, "--exclude", tmp_path / "list", "--out", tmp_path / "out")
    assert says("more-different-salts-expected-1").search(done(*words, code=2).err)


def test_wrong_requests_write_nothing(dataset: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    forget(dataset, new, "cat/999.jpg", code=2)
    forget(dataset, new, *stored(dataset), code=2)
    done("forget", dataset, "--out", new, code=2)
    write(tmp_path / "text.jpg", b"no image")
    refused = done("forget", dataset, "--image", tmp_path / "text.jpg", "--out", new, code=2)
    assert says("image-cannot-decoded-compare-only", str(tmp_path / "text.jpg")).search(refused.err)
    gone = done("forget", dataset, "--image", tmp_path / "gone.jpg", "--out", new, code=2)
    assert says("image-cannot-read", str(tmp_path / "gone.jpg")).search(gone.err)
    write(tmp_path / "other.jpg", image(99))
    words = ("forget", dataset, "--image", tmp_path / "other.jpg", "--exact", "--out", new)
    absent = done(*words, code=1)
    assert says("no-such-image-nothing-written", str(dataset)).search(absent.out)
    assert not new.exists()
