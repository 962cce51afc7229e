"""Files on a web server: limits of their size, and how a changed file or a login is noticed."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.storage import http
from imagenet_prep.storage.http import WebFolder
from imagenet_prep.storage.remote import Access, ChangedError
from imagenet_prep.storage.store import open_readable
from tests.kit.http_server import serve
from tests.kit.messages import says

DATA = bytes(range(250)) * 8


def test_small_file_above_its_limit_is_not_read() -> None:
    with serve({"labels.txt": b"labels.txt"}) as server:
        store = open_readable(server.url)
        assert store.read("labels.txt", most=10) == b"labels.txt"
        assert store.read("labels.txt", 2, 99, most=3) == b"bels.txt"
        with pytest.raises(
            DataDamagedError, match=says("more-bytes-program-did-not", "labels.txt", "9")
        ):
            store.read("labels.txt", most=9)


def test_pickled_web_folder_keeps_its_limits() -> None:
    access = Access(
        connections=3, timeout_s=4.0, retries=0, remedy="Wait.", ended=threading.Event()
    )
    with serve({}, plan=lambda *_: "503") as server:
        copy = pickle.loads(pickle.dumps(WebFolder(f"{server.url}/", access)))
        assert copy.access == replace(access, ended=None)
        with pytest.raises(IncompleteError, match=r"x: .*given up after 1 failed attempt\. Wait\."):
            copy.size("x")
    assert copy.where("x") == f"{server.url}/x"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("ETag", '"1"', '"2"'),
        # Servers send the complete file if the condition of a range is a weak tag.
        ("ETag", 'W/"1"', 'W/"2"'),
        ("Last-Modified", "Sun, 01 Jan 2023 00:00:00 GMT", "Sun, 01 Jan 2023 00:00:01 GMT"),
    ],
)
def test_ranges_are_those_of_one_version(name: str, first: str, second: str) -> None:
    with serve({"x": DATA}, etags=False, headers={name: first}) as server:
        folder = WebFolder(server.url)
        stat = folder.stat_once("x")
        assert (stat.validator, stat.ranges) == (first, True)
        assert b"".join(folder.read_once("x", 100, 200, stat)) == DATA[100:300]
        server.headers = {name: second}
        with pytest.raises(ChangedError):
            b"".join(folder.read_once("x", 100, 200, stat))


@pytest.mark.parametrize("status", ["412", "416"])
def test_refused_range_means_a_changed_file(status: str) -> None:
    with serve({"x": DATA}) as server:
        folder = WebFolder(server.url)
        stat = folder.stat_once("x")
        server.plan = lambda *_: status
        with pytest.raises(ChangedError):
            b"".join(folder.read_once("x", 100, 200, stat))


@pytest.mark.parametrize(
    "page", [b"<html>", b"\r\n\t <!DOCTYPE html>", b"<!doctype HTML>", b" <HTML"]
)
def test_page_without_its_type_is_no_archive(page: bytes) -> None:
    with serve({"x": page + DATA, "y": b"x" + page}) as server:
        folder = WebFolder(server.url)
        with pytest.raises(StoreError, match=says("server-sends-web-page-instead")):
            folder.stat_once("x")
        assert folder.stat_once("y").size == 1 + len(page)


@pytest.mark.parametrize("proxy", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_credentials_for_loopback_never_reach_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    base = "http://127.0.0.1:8000"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password open-sesame\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    credentials = http.Credentials(base)
    direct = requests.Request("GET", f"{base}/x", auth=credentials).prepare()
    assert "Authorization" in direct.headers

    monkeypatch.setenv(proxy, "http://gate.example.com:3128")
    passed = requests.Request("GET", f"{base}/x", auth=credentials).prepare()
    assert "Authorization" not in passed.headers
    monkeypatch.setenv(http.TOKEN_VARIABLE, "127.0.0.1:8000=open-sesame")
    with pytest.raises(
        UsageError, match=says("token-would-sent-proxy-http_proxy", ..., ..., "127")
    ):
        WebFolder(base)
