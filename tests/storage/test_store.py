"""Places of datasets: the same place, and one inside another, as paths or addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.storage.store import is_inside, same_place


@pytest.mark.parametrize(
    ("place", "folder", "expected"),
    [
        ("s3://b/set", "s3://b/set", True),
        ("s3://b/set/new", "s3://b/set", True),
        ("s3://b/set/new/er", "s3://b", True),
        ("s3://b/set-2", "s3://b/set", False),
        ("s3://b/set", "s3://b/set-2", False),
        ("s3://b/set", "s3://b/set/new", False),
        ("s3://b2/set", "s3://b", False),
        ("https://h/set/new", "https://h/set", True),
        ("https://h/set", "http://h/set", False),
        ("s3://b/set", "/b/set", False),
        ("/b/set", "s3://b", False),
        ("set/new", "set", True),
        ("set", "set", True),
        ("set-2", "set", False),
        ("set", "set-2", False),
        ("set", "set/new", False),
        ("set/../other", "set", False),
        ("link/new", "set", True),
        ("set", "link", True),
        ("set", "link/new", False),
    ],
)
def test_places_are_compared_by_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, folder: str, expected: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("set")

    assert is_inside(place, folder) is expected
    assert same_place(place, folder) is (expected and is_inside(folder, place))
    assert same_place(place, place)
