"""Checks that paths and addresses from a user are of an allowed kind and contain no password."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from imagenet_prep.core.errors import UsageError

AnyConfig = TypeVar("AnyConfig")

# Matches an address with a login, which has an @ before the path. A port that is not a number also
# matches: it is the beginning of a password that contains a slash.
LOGIN = re.compile(r"""://[^/?#\s"',;<>\[]*(?:@|:[0-9]*[^0-9/?#\s"',;<>}])""")

# The start of hosts:HOSTSFILE:PATH, the folder PATH on each host of a file.
HOSTS = "hosts:"
_ARN = re.compile(r"s3://arn:[^@\s]*")


class AddressKind(enum.Enum):
    """The kinds of paths and addresses that a flag can accept, as described in error messages."""

    FOLDER = "a local folder; `imagenet-prep replicate` copies datasets from and to s3://"
    FILE = "a local file"
    RUN = "a local path; --mirror s3://bucket/prefix keeps a copy of a run in a bucket"
    BUCKET = "s3://bucket/prefix"
    FOLDER_OR_BUCKET = "a folder or s3://bucket/prefix"
    OUTPUT = "a file, a folder or s3://bucket/prefix"
    FILE_OR_OBJECT = "a local folder or file, http(s)://... or s3://bucket/key"
    ANYWHERE = "a folder, http(s)://... or s3://bucket/prefix"

    def check(self, name: str, text: str) -> None:
        """Raises ValueError unless `text`, the value of the flag `name`, is of this kind."""
        is_bucket = text.startswith("s3://")
        is_address = "://" in text
        allowed = not is_address and self is not AddressKind.BUCKET
        allowed |= is_bucket and self in (
            AddressKind.BUCKET,
            AddressKind.FOLDER_OR_BUCKET,
            AddressKind.OUTPUT,
        )
        allowed |= self in (AddressKind.ANYWHERE, AddressKind.FILE_OR_OBJECT)
        try:
            refuse_login(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        shown = public(text) if is_address else text
        if not allowed:
            raise ValueError(f"{name} {shown}: expected {self.value}")
        try:
            require_base(text)
        except ValueError as error:
            raise ValueError(f"{name} {shown}: {error}") from None
        if is_address:
            return
        first = text.partition("/")[0]
        is_on_host = first.endswith((":", ":~")) and not text.startswith(HOSTS)
        if is_on_host and self in _WRITABLE and not os.path.lexists(first):
            raise ValueError(
                f"{name} {text}: looks like a path on a host. To copy to hosts, write their names "
                "into a file, and run imagenet-prep replicate SET --to hosts:FILE:PATH. For a "
                f"local folder of this name, write ./{text}"
            )
        # `Path.expanduser` fails for a user without a home folder.
        path = Path(os.path.expanduser(text))  # noqa: PTH111
        if str(path).startswith("~"):
            raise ValueError(
                f"{name} {text}: there is no such home folder (HOME, /etc/passwd). Write the path "
                "without ~"
            )
        if self is AddressKind.FILE and text.endswith("/"):
            raise ValueError(f"{name} {text}: the name of a folder, expected that of a file")
        if self in (AddressKind.FOLDER, AddressKind.FOLDER_OR_BUCKET):
            existing = next(filter(os.path.lexists, (path, *path.parents)), path)
            if os.path.lexists(existing) and not existing.is_dir():
                raise ValueError(
                    f"{name} {text}: {existing} is a file or a broken link, expected a folder"
                )


_WRITABLE = (AddressKind.FOLDER, AddressKind.FOLDER_OR_BUCKET, AddressKind.OUTPUT, AddressKind.RUN)


def require_base(base: str) -> None:
    """Raises ValueError if an address has an unknown scheme, a login, ? or #, or lacks a host.

    An s3:// address must also be that of a bucket, without empty parts.
    """
    refuse_login(base)
    parts = urlsplit(base)
    if "://" in base and parts.scheme not in ("http", "https", "s3"):
        raise ValueError(f"{parts.scheme}:// is not supported: use http(s)://, s3:// or a folder")
    if parts.scheme not in ("http", "https", "s3"):
        return
    if not base.startswith(parts.scheme):
        raise ValueError(f"write the scheme in lower case: {parts.scheme}://")
    if not parts.hostname:
        raise ValueError(
            f"the address has no host or bucket: it begins with {parts.scheme}://, and their name "
            "follows"
        )
    if parts.query or parts.fragment:
        raise ValueError("the address contains ? or #: give the address of a folder")
    # Some servers treat an empty part as absent, so that objects are not found where they were put.
    if parts.scheme == "s3" and "//" in parts.path:
        raise ValueError("the address contains //: write a single slash between its parts")


def refuse_login(text: str) -> None:
    """Raises ValueError if a text contains an address with a user name or password."""
    if _ARN.fullmatch(text):
        raise ValueError(
            "an ARN is not a bucket: use the alias of the access point (aws s3control "
            "get-access-point lists it), as in s3://NAME-METADATA-s3alias/prefix"
        )
    if LOGIN.search(text):
        raise ValueError(
            "the address contains a user name or password, which would appear in logs, process "
            "lists and shell histories. For http(s)://, add a line to ~/.netrc: machine HOST login "
            "NAME password SECRET. For s3://, use the AWS_... variables or ~/.aws"
        )


def is_remote(base: str) -> bool:
    """Returns whether `base` is an http(s):// or s3:// address and not a local path."""
    return base.startswith(("http://", "https://", "s3://"))


def public(url: str) -> str:
    """Returns an address without its user name, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def refuse_logins(words: Sequence[str]) -> None:
    """Raises UsageError if an argument contains an address with a user name or password."""
    for number, word in enumerate(words, start=1):
        try:
            refuse_login(word)
        except ValueError as error:
            raise UsageError(f"argument {number} after the verb: {error}") from None


def absolute(path: str) -> str:
    """Returns a local path as an absolute path; an address is returned unchanged."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def with_absolute(config: AnyConfig, *names: str) -> AnyConfig:
    """Returns a copy of a config in which the paths of these fields are absolute."""
    paths = {name: absolute(getattr(config, name)) for name in names}
    return dataclasses.replace(config, **paths)  # type: ignore[type-var]
