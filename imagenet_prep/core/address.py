"""Addresses that a user gives: which are supported, and that none holds a secret."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

# An address with a login in it, wherever it stands: before the path comes an @, or a port that is
# no number, which is the beginning of a password with a slash in it.
_LOGIN = re.compile(r"""://[^/?#\s"',;<>\[]*(?:@|:[0-9]*[^0-9/?#\s"',;<>}])""")


def check_base(base: str) -> None:
    """Refuses addresses that are unsupported, or hold what must not be printed.

    Raises:
      ValueError: the message does not repeat the address.
    """
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
    """Refuses a word that holds an address with a user name or password in it.

    Args:
      text: any word of a command line, e.g. --base-url=http://ann:secret@host/.

    Raises:
      ValueError: the message does not repeat the word.
    """
    if _LOGIN.search(text):
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
