"""Servers and networks that misbehave: what passes is waited for, the rest is explained."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from imagenet_prep import download
from tests.commands.download.conftest import (
    FILES,
    MIB,
    TRAIN,
    archives,
    arguments,
)
from tests.kit import command
from tests.kit.http_server import serve

ONE = {TRAIN: FILES[TRAIN]}
TRAIN_ONLY = ("--what", "train", "--allow-other")


def test_a_server_that_asks_for_a_day_is_not_waited_for(tmp_path: Path) -> None:
    with serve(ONE, plan=lambda *_: "429", retry_after="86400") as server:
        result = command.run("download", *arguments(tmp_path, server.url, *TRAIN_ONLY))

    assert (result.code, result.out) == (4, "")
    assert "the server answers 429, and asks to wait 86,400 s" in result.err
    assert len(server.requests) == 1


def test_one_hopeless_range_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    """The other ranges would wait for minutes: their budget is large."""

    def plan(_number: int, _path: str, first: int, last: int) -> str:
        if last == 511 and first == 0:
            return ""
        return "404" if first == 8 * MIB else "503"

    with serve(ONE, plan=plan) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "9")
        result = command.run("download", *flags, "--retries", "1000000")

    assert result.code in (1, 4), result


@pytest.mark.parametrize(("status", "code"), [("401", 1), ("403", 1), ("404", 1), ("410", 1)])
def test_what_does_not_pass_is_explained_at_once(tmp_path: Path, status: str, code: int) -> None:
    with serve(ONE, plan=lambda *_: status) as server:
        result = command.run("download", *arguments(tmp_path, server.url, *TRAIN_ONLY))

    assert (result.code, result.out) == (code, "")
    assert f"{server.url}/{TRAIN}: the server answers {status}" in result.err
    remedy = "IMAGENET_PREP_COOKIES" if status in ("401", "403") else "--base-url"
    assert remedy in result.err
    assert len(server.requests) == 1


def test_a_status_nobody_knows_is_named(tmp_path: Path) -> None:
    with serve(ONE, plan=lambda *_: "418") as server:
        result = command.run("download", *arguments(tmp_path, server.url, *TRAIN_ONLY))

    assert (result.code, result.out) == (1, "")
    assert "the server answers 418, expected 200 or 206" in result.err


@pytest.mark.parametrize("begin", [0, 3])
def test_a_login_page_is_called_one(tmp_path: Path, begin: int) -> None:
    with serve(ONE, plan=lambda number, *_: "login" if number >= begin else "") as server:
        result = command.run("download", *arguments(tmp_path, server.url, *TRAIN_ONLY))

    assert (result.code, result.out) == (1, "")
    assert "sends a web page instead of the archive" in result.err
    assert "IMAGENET_PREP_COOKIES" in result.err
    assert archives(tmp_path) == {}


def test_a_web_page_that_claims_to_be_a_tar_is_called_one(tmp_path: Path) -> None:
    page = b"\n<!DOCTYPE html><html>" + b" " * 5000
    with serve({TRAIN: page}) as server:
        result = command.run("download", *arguments(tmp_path, server.url, *TRAIN_ONLY))

    assert (result.code, result.out) == (1, "")
    assert "sends a web page instead of the archive" in result.err


def test_a_redirect_is_followed_and_its_login_page_named_without_the_query(tmp_path: Path) -> None:
    with serve(ONE) as target, serve({}) as server:
        server.redirect = target.url + "{path}?signature=sesame"
        assert download.run(arguments(tmp_path / "a", server.url, *TRAIN_ONLY)) == 0
        target.plan = lambda *_: "login"
        result = command.run("download", *arguments(tmp_path / "b", server.url, *TRAIN_ONLY))
        target.plan = lambda *_: "503"
        tired = command.run("download", *arguments(tmp_path / "b", server.url, *TRAIN_ONLY))

    assert archives(tmp_path / "a") == ONE
    assert f"(redirected to {target.url}/{TRAIN})" in result.err
    assert tired.code == 4
    assert "sesame" not in result.err + tired.err


def test_a_server_that_never_honours_a_range_is_given_up(tmp_path: Path) -> None:
    def plan(_number: int, _path: str, first: int, last: int) -> str:
        return "" if (first, last) == (0, 511) else "no range"

    with serve(ONE, plan=plan) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--retries", "1")
        result = command.run("download", *flags)

    assert (result.code, result.out) == (4, "")
    assert "the server ignores the requested byte range" in result.err


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = command.run("download", *arguments(tmp_path, url, *TRAIN_ONLY))

    assert (result.code, result.out) == (4, "")
    assert f"{url}/{TRAIN}: Connection refused" in result.err
    assert "Traceback" not in result.err


def test_something_that_is_no_web_server_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        flags = arguments(tmp_path, url, *TRAIN_ONLY, "--timeout", "1", "--retries", "0")
        with command.started("download", *flags) as run:
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
            connection.close()
            result = run.finish()

    assert result.code in (1, 4), result
    assert f"{url}/{TRAIN}: " in result.err
    assert "Traceback" not in result.err
