"""Addresses that a user gives: which are supported, and that none holds a secret."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from imagenet_prep.core.errors import UsageError

AnyConfig = TypeVar("AnyConfig")

# An address with a login in it, wherever it stands: before the path comes an @, or a port that is
# no number, which is the beginning of a password with a slash in it.
LOGIN = re.compile(r"""://[^/?#\s"',;<>\[]*(?:@|:[0-9]*[^0-9/?#\s"',;<>}])""")


class Place(enum.Enum):
    """What a text of the user must name; each value says it to the user."""

    FOLDER = "a folder of this machine; imagenet-prep replicate brings data sets from and to s3://"
    FILE = "a file of this machine"
    RUN = "a path of this machine; --mirror s3://bucket/prefix keeps a copy of a run in a bucket"
    BUCKET = "s3://bucket/prefix"
    FOLDER_OR_BUCKET = "a folder or s3://bucket/prefix"
    FILE_OR_OBJECT = "a folder or file of this machine, http(s)://... or s3://bucket/key"
    ANYWHERE = "a folder, http(s)://... or s3://bucket/prefix"

    def check(self, name: str, text: str) -> None:
        """Raises ValueError unless `text`, the value of the flag `name`, names such a place."""
        is_bucket, is_address = text.startswith("s3://"), "://" in text
        allowed = not is_address and self is not Place.BUCKET
        allowed |= is_bucket and self in (Place.BUCKET, Place.FOLDER_OR_BUCKET)
        allowed |= self in (Place.ANYWHERE, Place.FILE_OR_OBJECT)
        try:
            refuse_login(text)
            if allowed:
                check_base(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not allowed:
            shown = public(text) if is_address else text
            raise ValueError(f"{name} {shown}: expected {self.value}")


def check_base(base: str) -> None:
    """Refuses addresses that are unsupported, or hold what must not be printed."""
    refuse_login(base)
    parts = urlsplit(base)
    if "://" in base and parts.scheme not in ("http", "https", "s3"):
        raise ValueError(f"{parts.scheme}:// is not supported; give http(s)://, s3:// or a folder")
    if parts.scheme not in ("http", "https", "s3"):
        return
    if not parts.hostname:
        raise ValueError("the address names no host or bucket")
    if parts.query or parts.fragment:
        raise ValueError("give the address of a folder, without ? or #")


def refuse_login(text: str) -> None:
    """Raises ValueError for a word that holds an address with a user name or password."""
    if LOGIN.search(text):
        raise ValueError(
            "the address holds a user name or password, which would end up in logs, process "
            "lists and shell histories. For http(s) put it into ~/.netrc: machine HOST login "
            "NAME password SECRET; for s3:// into the AWS_... variables or ~/.aws"
        )


def is_remote(base: str) -> bool:
    """Returns whether `base` is an address rather than a folder of this machine."""
    return base.startswith(("http://", "https://", "s3://"))


def public(url: str) -> str:
    """Returns an address without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def refuse_logins(words: Sequence[str]) -> None:
    """Refuses passwords in addresses before any word is shown, passed on or stored."""
    for number, word in enumerate(words, start=1):
        try:
            refuse_login(word)
        except ValueError as error:
            raise UsageError(f"argument {number} after the verb: {error}") from None


def absolute(place: str) -> str:
    """Returns a folder by its absolute path, for other processes; addresses stay as they are."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


def with_absolute(config: AnyConfig, *names: str) -> AnyConfig:
    """Returns a config whose flags of these names are `absolute`."""
    places = {name: absolute(getattr(config, name)) for name in names}
    return dataclasses.replace(config, **places)  # type: ignore[type-var]
