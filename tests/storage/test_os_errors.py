from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.storage.local_file import removed_on_failure, require_disk, storage_errors


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.ENOSPC, IncompleteError, "Free some space"),
        (errno.EDQUOT, IncompleteError, "Free some space"),
        (errno.EMFILE, StoreError, "Too many open files. Raise the limit: ulimit -n"),
        (errno.EROFS, StoreError, "Read-only file system"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    code: int, kind: type[Exception], advice: str
) -> None:
    with (
        pytest.raises(kind, match=f"cannot write here/x: .*{advice}"),
        storage_errors("write", Path("here/x")),
    ):
        raise OSError(code, os.strerror(code))


def test_an_unfinished_file_that_cannot_be_removed_hides_no_error(tmp_path: Path) -> None:
    """As on a file system that has become read-only: that is what the user must be told."""
    folder = tmp_path / "folder"
    file = tmp_path / "file"
    folder.mkdir()
    file.touch()
    with pytest.raises(StoreError, match="the disk fails"), removed_on_failure(folder, file):
        raise StoreError("the disk fails")

    assert not file.exists()


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_only_a_wrong_path_or_offset_may_be_the_fault_of_the_data(code: int) -> None:
    of_input = ("ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EINVAL", "EOVERFLOW")
    error = OSError(code, os.strerror(code))
    if errno.errorcode[code] in of_input:
        require_disk("x", error)
    elif code == errno.ENOMEM:
        with pytest.raises(IncompleteError, match="x: cannot be read: out of memory"):
            require_disk("x", error)
    else:
        with pytest.raises(StoreError, match="x: cannot be read: .* Check the disk or the file"):
            require_disk("x", error)


def test_an_error_without_a_number_is_of_a_library() -> None:
    require_disk("x", OSError("the footer is damaged"))
    require_disk("x", ValueError("no"))
