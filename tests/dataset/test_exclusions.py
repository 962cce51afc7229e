"""The list of an --exclude flag: keys, or the quarantine.jsonl of a dataset."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.keys import parse_list
from imagenet_prep.dataset.member import Incident
from imagenet_prep.dataset.shared_flags import read_exclusions
from tests.kit.messages import says

LINE = Incident("cat/1.jpg", "a", 0, 9, 0, "excluded", "listed", "", "train", "a" * 64)
OTHER = Incident("cat/2.jpg", "a", 0, 9, 0, "repaired", "png", "", "train")


def listed(path: Path, *lines: Incident | bytes) -> Path:
    data = [line if isinstance(line, bytes) else line.line for line in lines]
    path.write_bytes(b"".join(data))
    return path


def test_only_excluded_images_are_listed(tmp_path: Path) -> None:
    second = replace(LINE, key="cat/3.jpg", action="input_excluded", source_sha256="b" * 64)
    found = read_exclusions(listed(tmp_path / "list", OTHER, LINE, OTHER, second))

    assert [*found.keys.values()] == [2, 4]
    assert {sha256: file.num_bytes for sha256, file in found.files.items()} == {
        "a" * 64: 9,
        "b" * 64: 9,
    }
    assert not found.allows_unknown
    # The digest covers the bytes, since they decide which images are excluded.
    same_keys = read_exclusions(listed(tmp_path / "list", LINE, replace(LINE, key="cat/3.jpg")))
    assert same_keys.sha256 != found.sha256


def test_kept_copies_change_the_digest(tmp_path: Path) -> None:
    """Lists of earlier versions keep their digest, which finished datasets contain."""
    kept = [(), ("train",), ("validation",), ("train", "validation")]
    found = [
        read_exclusions(listed(tmp_path / "list", replace(LINE, kept_in=splits))) for splits in kept
    ]
    assert len({each.sha256 for each in found}) == len(kept)
    of_keys = parse_list("list", b"train:cat/1.jpg\n").sha256
    files = {"a" * 64: [9, "train:cat/1.jpg", ""]}
    assert found[0].sha256 == strict_json.digest([of_keys, files])


@pytest.mark.parametrize(
    ("first", "second"),
    [*itertools.product([(), ("train",), ("validation",), ("train", "validation")], repeat=2)],
)
def test_kept_splits_are_those_of_every_line(
    first: tuple[str, ...], second: tuple[str, ...], tmp_path: Path
) -> None:
    """In all other splits, an image with these bytes is excluded under any name."""
    lines = [
        replace(LINE, key=key, kept_in=kept)
        for key, kept in (("cat/1.jpg", first), ("cat/3.jpg", second))
    ]
    found = read_exclusions(listed(tmp_path / "list", *lines))
    assert found.files["a" * 64].kept_in == {*first} & {*second}


def test_list_of_keys_has_no_bytes(tmp_path: Path) -> None:
    found = read_exclusions(listed(tmp_path / "list", b"{cat/1.jpg\n"), allows_unknown=True)

    assert ([*found.keys], found.files, found.allows_unknown) == (["{cat/1.jpg"], {}, True)


@pytest.mark.parametrize("line", [b'{"key":"secret"}\n', b"secret\n", b"\xff\n", b"\n"])
def test_line_of_a_different_file_is_named(tmp_path: Path, line: bytes) -> None:
    path = listed(tmp_path / "list", LINE, line)
    with pytest.raises(UsageError, match=says("line-not-line", ..., "2", "quarantine")) as refused:
        read_exclusions(path)
    assert "secret" not in str(refused.value)


def test_list_without_an_excluded_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no keys"):
        read_exclusions(listed(tmp_path / "list", OTHER))
