"""Addresses of files: accepted and refused forms, and secrets that stay secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagenet_prep.core import address
from imagenet_prep.core.address import AddressKind, require_base
from tests.kit.messages import says
from tests.kit.system import System

SECRET = "open-sesame"


@pytest.mark.parametrize(
    "base",
    [
        "http://ann:open-sesame@host/x",
        "https://host/x?sig=open-sesame",
        "s3://ann:open-sesame@bucket/x",
        "s3://open-sesame@bucket/x",
        # A slash, a question mark or a number sign in a password hides the rest.
        "https://ann:open/sesame@host/open-sesame",
        "https://ann:open?open-sesame@host/",
        "https://ann:open#open-sesame@host/",
        "ftp://ann:open-sesame@host/x",
        "HTTP://ann:open-sesame@host/x",
    ],
)
def test_address_with_a_secret_is_refused_and_hidden(base: str) -> None:
    with pytest.raises(ValueError) as caught:
        require_base(base)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "base",
    ["/data", "data", "~/x", "https://host/a%20b/", "https://host:8443/a@2x", "s3://bucket/a@b"],
)
def test_good_addresses_pass(base: str) -> None:
    require_base(base)

    assert address.is_remote(base) == ("://" in base)


@pytest.mark.parametrize("base", ["S3://bucket/x", "HTTPS://host/x", "Http://host/x"])
def test_scheme_in_capitals_is_no_folder(base: str) -> None:
    scheme = base.partition("://")[0].lower()
    with pytest.raises(ValueError, match=says("write-scheme-lower-case", scheme)):
        require_base(base)


@pytest.mark.parametrize(
    "base",
    ["s3://bucket//x", "s3://bucket/x//", "s3://bucket/x//y", "s3://bucket//"],
)
def test_empty_parts_of_a_key_are_refused(base: str) -> None:
    with pytest.raises(ValueError, match=says("address-contains-write-single-slash")):
        require_base(base)
    require_base(base.replace("s3://", "https://"))


@pytest.mark.parametrize("scheme", ["http", "https", "s3"])
@pytest.mark.parametrize("end", ["?list=1", "#part", "?list=1#part"])
def test_queries_and_fragments_are_refused(scheme: str, end: str) -> None:
    """Files of the dataset would be searched at addresses without them."""
    require_base(f"{scheme}://host/x")
    with pytest.raises(ValueError, match=says("address-contains-give-address-folder")):
        require_base(f"{scheme}://host/x{end}")


@pytest.mark.parametrize(
    "text",
    [
        "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine",
        "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine/sets/imagenet",
        "s3://arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap",
        "s3://arn:aws-cn:s3-outposts:cn-north-1:123456789012:outpost/op-1/accesspoint/a",
    ],
)
def test_access_point_is_not_called_a_password(text: str) -> None:
    for check in (require_base, address.refuse_login):
        with pytest.raises(ValueError, match=says("arn-not-bucket-use-alias")):
            check(text)
    with pytest.raises(ValueError, match=says("address-contains-user-name-password")):
        require_base(f"{text}:open-sesame@host/x")


def test_missing_home_folder_is_named(system: System) -> None:
    for text in ("~nobody17", "~nobody17/x"):
        with pytest.raises(
            ValueError, match=says("no-such-home-folder-home", "--out", "~nobody17")
        ):
            AddressKind.FOLDER.check("--out", text)
    AddressKind.FILE.check("--out", "~/x")
    AddressKind.FILE.check("--out", "x/~/y")
    system.has_no_home()
    for place in (AddressKind.FILE, AddressKind.FOLDER, AddressKind.ANYWHERE, AddressKind.RUN):
        with pytest.raises(ValueError, match=says("no-such-home-folder-home", "--out", "~/x")):
            place.check("--out", "~/x")
    AddressKind.ANYWHERE.check("--out", "s3://bucket/~x")


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        (AddressKind.ANYWHERE, "s3:/bucket/x", says("address-no-host-bucket", "s3")),
        (AddressKind.ANYWHERE, "https:///x", says("address-no-host-bucket", "https")),
        (AddressKind.BUCKET, "s3://b//x", says("address-contains-write-single-slash")),
        (AddressKind.FILE, "pages/", says("name-folder-expected-file")),
        (AddressKind.FILE, "s3://b/x", says("local-file")),
    ],
)
def test_refusals_of_a_flag_quote_its_value(
    kind: AddressKind, text: str, error: re.Pattern[str]
) -> None:
    with pytest.raises(ValueError, match=error) as refused:
        kind.check("--out", text)

    assert str(refused.value).startswith(f"--out {text}: ")


def test_public_addresses_contain_no_secret() -> None:
    shown = address.public("https://ann:open-sesame@host:8080/a/b?sig=open-sesame#open-sesame")

    assert shown == "https://host:8080/a/b"


@pytest.mark.parametrize("text", ["node1:/x", "user@node1:/x", "hosts.txt:~/x", "host:list:/x"])
def test_path_on_a_host_is_no_local_folder(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync and scp would copy to the host, and replicate would write here."""
    monkeypatch.chdir(tmp_path)
    for kind in (AddressKind.FOLDER, AddressKind.FOLDER_OR_BUCKET, AddressKind.OUTPUT):
        with pytest.raises(ValueError, match=says("path-host-rsync-copy-hosts", "--to", text)):
            kind.check("--to", text)
        kind.check("--to", f"./{text}")
    (tmp_path / text.partition("/")[0]).mkdir()
    AddressKind.FOLDER.check("--to", text)


@pytest.mark.parametrize("text", ["hosts:/etc/hosts:/x", "hosts:a.txt:~/x", "a/b:/c", "T10:00/a"])
def test_hosts_files_and_colons_in_names_pass(text: str) -> None:
    AddressKind.FOLDER_OR_BUCKET.check("--to", text)
