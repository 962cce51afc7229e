"""Credentials reach only the server: no output, file or process list shows them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.commands.download.conftest import FILES, MIB, TRAIN, archives, arguments
from tests.kit import command
from tests.kit.http_server import serve
from tests.kit.lengths import long_except
from tests.kit.messages import says

SECRET = "open-sesame-7f3a"
BASIC = "YW5uOm9wZW4tc2VzYW1lLTdmM2E="  # base64 of ann:open-sesame-7f3a


def make_token(_folder: Path, url: str) -> dict[str, str]:
    return {"IMAGENET_PREP_TOKEN": f"{url.removeprefix('http://')}={SECRET}"}


def make_cookies(folder: Path, _url: str) -> dict[str, str]:
    cookies = folder / "cookies.txt"
    line = f"127.0.0.1\tFALSE\t/\tFALSE\t0\tsession\t{SECRET}"
    cookies.write_text(f"# Netscape HTTP Cookie File\n{line}\n")
    return {"IMAGENET_PREP_COOKIES": str(cookies)}


def make_netrc(folder: Path, _url: str) -> dict[str, str]:
    netrc = folder / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login ann password {SECRET}\n")
    netrc.chmod(0o600)
    return {"NETRC": str(netrc)}


def make_broken_cookies(folder: Path) -> dict[str, str]:
    cookies = folder / "cookies.txt"
    cookies.write_text(f"# Netscape HTTP Cookie File\nsession={SECRET}\n")
    return {"IMAGENET_PREP_COOKIES": str(cookies)}


def holds_secret(headers: Mapping[str, str]) -> bool:
    sent = headers.get("Authorization", "") + headers.get("Cookie", "")
    return SECRET in sent or BASIC in sent


def assert_no_secret(result: command.Finished, folder: Path) -> None:
    said = [result.out.encode(), result.err.encode()]
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    names = [str(path).encode() for path in folder.rglob("*")]
    for text in said + files + names:
        assert SECRET.encode() not in text
        assert BASIC.encode() not in text


FAULTS = ("", "503", "404", "403", "cut", "login", "no range")


# Each fault with one kind of credentials, and each kind with a success and with a refusal.
@pytest.mark.parametrize(
    ("make", "fault"),
    long_except(
        [
            *((make_token, fault) for fault in FAULTS),
            *itertools.product((make_cookies, make_netrc), ("", "403")),
        ],
        itertools.product((make_token, make_cookies, make_netrc), FAULTS),
    ),
)
def test_credentials_grant_access_and_are_never_shown(
    tmp_path: Path, make: object, fault: str
) -> None:
    assert callable(make)
    into = tmp_path / "into"

    def plan(_number: int, _path: str, first: int, _last: int) -> str:
        return fault if first >= 3 * MIB else ""

    with serve({TRAIN: FILES[TRAIN]}, plan=plan, authorized=holds_secret) as server:
        # A signed address after a redirect would have this form.
        flags = arguments(into, server.url, "--allow-other", "--what", "train", "--retries", "2")
        result = command.run("download", *flags, env=make(tmp_path, server.url))

    assert bool(result.code) == bool(fault), result
    assert archives(into) == ({} if fault else {TRAIN: FILES[TRAIN]})
    assert len(server.requests) > 3
    assert_no_secret(result, into)


@pytest.mark.parametrize("fault", ["", "503", "reset", "login", "404"])
def test_signed_redirect_address_is_never_shown(tmp_path: Path, fault: str) -> None:
    into = tmp_path / "into"
    with serve({TRAIN: FILES[TRAIN]}, plan=lambda *_: fault) as target, serve({}) as server:
        server.redirect = target.url + "{path}?X-Signature=" + SECRET
        flags = arguments(into, server.url, "--allow-other", "--what", "train", "--retries", "1")
        result = command.run("download", *flags)

    assert bool(result.code) == bool(fault), result
    assert_no_secret(result, into)


def test_signed_address_of_unreachable_host_is_never_shown(tmp_path: Path) -> None:
    into = tmp_path / "into"
    with serve({}) as server:
        server.redirect = "http://127.0.0.1:9{path}?X-Signature=" + SECRET
        flags = arguments(into, server.url, "--allow-other", "--what", "train", "--retries", "1")
        result = command.run("download", *flags)

    assert result.code == 4, result
    assert_no_secret(result, into)


def test_address_with_password_is_refused_without_quoting(tmp_path: Path) -> None:
    base = f"http://ann:{SECRET}@127.0.0.1/archives"
    result = command.run("download", *arguments(tmp_path / "into", base))

    assert (result.code, result.out) == (2, "")
    assert "~/.netrc" in result.err
    assert_no_secret(result, tmp_path)


def test_broken_cookie_file_is_not_quoted(tmp_path: Path) -> None:
    env = make_broken_cookies(tmp_path)
    into = tmp_path / "into"
    result = command.run("download", *arguments(into, "http://127.0.0.1:9"), env=env)

    assert (result.code, result.out) == (2, "")
    assert says("not-netscape-cookie-file-export").search(result.err)
    assert_no_secret(result, into)
