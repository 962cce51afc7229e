"""Servers and networks that misbehave: what passes is waited for, the rest is explained."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from imagenet_prep import download
from imagenet_prep.core.errors import StoreError
from tests.commands.download.conftest import (
    FILES,
    MIB,
    TRAIN,
    VALIDATION,
    archives,
    arguments,
    finished,
    noise,
)
from tests.kit import command
from tests.kit.http_server import PASSING, SeededFaults, serve
from tests.kit.lengths import long_but

ONE = {TRAIN: FILES[TRAIN]}
TRAIN_ONLY = ("--what", "train", "--allow-other")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "seed"), long_but([(40, 1)], [(40, 1), (200, 1), (200, 2)]))
def test_an_archive_is_exact_after_random_faults(tmp_path: Path, count: int, seed: int) -> None:
    patient = ("--retries", "200", "--timeout", "3", "--connections", "32")
    data = noise(seed, count * MIB // 3 + seed)
    faults = SeededFaults(seed, count)
    with serve({TRAIN: data}, plan=faults, stall_s=30.0) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, *patient)
        # A loaded machine's own silences count as faults, and are waited for as well.
        result = command.run("download", *flags)

    assert result.code == 0, result
    assert faults.left == 0
    assert archives(tmp_path) == {TRAIN: data}
    assert {request.fault for request in server.requests} == {"", *PASSING}


@pytest.mark.parametrize("fault", PASSING)
def test_a_passing_fault_is_waited_for(tmp_path: Path, fault: str) -> None:
    faults = SeededFaults(0, 6, kinds=(fault,))
    with serve(ONE, plan=faults) as server:
        assert download.run(arguments(tmp_path, server.url, *TRAIN_ONLY, "--timeout", "1")) == 0

    assert faults.left == 0
    assert archives(tmp_path) == ONE


def test_a_range_is_continued_from_the_byte_reached(tmp_path: Path) -> None:
    faults = SeededFaults(0, 1, rate=1.0, kinds=("cut",))
    with serve(ONE, plan=faults) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "1")
        assert download.run(flags) == 0
    first, second, *_ = server.reads(f"/{TRAIN}")

    assert (first.first, first.last, first.fault) == (0, MIB - 1, "cut")
    # A connection may lose its last bytes with it, but never repeats what was written.
    assert 0 < second.first <= first.sent
    assert second.last == MIB - 1


def test_a_look_at_a_file_is_tried_again_too(tmp_path: Path) -> None:
    with serve(ONE, plan=lambda number, *_: "503" if number < 2 else "") as server:
        assert download.run(arguments(tmp_path, server.url, *TRAIN_ONLY)) == 0

    assert archives(tmp_path) == ONE


def test_a_server_that_asks_for_a_day_is_not_waited_for(tmp_path: Path) -> None:
    with serve(ONE, plan=lambda *_: "429", retry_after="86400") as server:
        result = command.run("download", *arguments(tmp_path, server.url, *TRAIN_ONLY))

    assert (result.code, result.out) == (4, "")
    assert "the server answers 429, and asks to wait 86,400 s" in result.err
    assert len(server.requests) == 1


def test_a_spent_budget_keeps_what_was_fetched(tmp_path: Path) -> None:
    def plan(_number: int, _path: str, first: int, _last: int) -> str:
        return "503" if first >= 4 * MIB else ""

    with serve(ONE, plan=plan) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "1")
        result = command.run("download", *flags, "--retries", "2")
        assert (result.code, result.out) == (4, "")
        assert "the server answers 503, given up after 3 failed attempts" in result.err
        assert f"{server.url}/{TRAIN}, bytes 4,194,304 to 5,242,880" in result.err
        assert "Traceback" not in result.err
        kept = finished(tmp_path)
        assert sorted(kept) == [0, MIB, 2 * MIB, 3 * MIB]
        del server.requests[:]
        server.plan = lambda *_: ""
        again = command.run("download", *flags)

    assert again.code == 0, again
    assert archives(tmp_path) == ONE
    assert min(r.first for r in server.reads(f"/{TRAIN}")) == 4 * MIB


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


@pytest.mark.parametrize("more", [{"etags": True}, {"etags": False}])
def test_a_file_that_changes_is_fetched_from_its_start(
    tmp_path: Path, more: dict[str, bool]
) -> None:
    new = noise(99, len(FILES[TRAIN]) + (0 if more["etags"] else 1))

    def plan(_number: int, _path: str, first: int, _last: int) -> str:
        if first == 4 * MIB:
            server.files[f"/{TRAIN}"] = new
        return ""

    with serve(ONE, plan=plan, **more) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "1")
        changed = command.run("download", *flags)
        assert (changed.code, changed.out) == (4, "")
        assert "has changed since this run began" in changed.err
        assert archives(tmp_path) == {}
        again = command.run("download", *flags)

    assert again.code == 0, again
    assert "downloading it from the start, as the file on the server has changed" in again.err
    assert archives(tmp_path) == {TRAIN: new}


@pytest.mark.parametrize("name", [TRAIN, VALIDATION])  # several parts; exactly one
def test_a_server_without_ranges_sends_the_file_as_a_whole(tmp_path: Path, name: str) -> None:
    cut = SeededFaults(0, 2, rate=1.0, kinds=("cut",))
    what = "train" if name == TRAIN else "validation"
    with serve(FILES, ranges=False, plan=lambda n, *rest: cut(n, *rest) if n else "") as server:
        flags = arguments(tmp_path, server.url, "--allow-other", "--what", what)
        result = command.run("download", *flags, "--part-size", "2")

    assert result.code == 0, result
    assert cut.left == 0
    assert archives(tmp_path) == {name: FILES[name]}
    assert ("cannot send parts" in result.err) == (name == TRAIN)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranges", "moments"),
    long_but(
        [(16, (7,))],
        [(16, (7,)), (48, (2, 9, 10, 17, 25, 31, 38, 44))],
    ),
)
def test_a_download_killed_at_random_moments_fetches_no_finished_range_again(
    tmp_path: Path, ranges: int, moments: tuple[int, ...]
) -> None:
    data = noise(5, ranges * MIB + 1)
    with serve({TRAIN: data}) as server:

        def plan(_number: int, _path: str, _first: int, _last: int) -> str:
            # The server waits for the killer, never for a clock.
            command.wait_until(lambda: len(finished(tmp_path)) < moment or ended, "the kill")
            return ""

        server.plan = plan
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "3")
        kept: dict[int, int] = {}
        for moment in moments:
            ended = False
            del server.requests[:]
            with command.started("download", *flags) as run:
                command.wait_until(
                    lambda m=moment: len(finished(tmp_path)) >= m, f"{moment} ranges"
                )
                assert run.kill() == -signal.SIGKILL
                ended = True
            asked = {r.first // MIB * MIB for r in server.reads(f"/{TRAIN}")}
            assert asked & set(kept) == set()
            assert kept.items() <= finished(tmp_path).items()
            kept = finished(tmp_path)
            assert archives(tmp_path) == {}
        moment = 1000
        del server.requests[:]
        result = command.run("download", *flags)

    assert result.code == 0, result
    asked = {r.first // MIB * MIB for r in server.reads(f"/{TRAIN}")}
    assert asked == set(range(0, len(data), MIB)) - set(kept)
    assert archives(tmp_path) == {TRAIN: data}


@pytest.mark.parametrize("signum", long_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_download_says_how_to_resume(tmp_path: Path, signum: signal.Signals) -> None:
    def plan(_number: int, _path: str, first: int, _last: int) -> str:
        return "stall" if first >= 3 * MIB else ""

    with serve(ONE, plan=plan, stall_s=0.5) as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "2")
        with command.started("download", *flags) as run:
            command.wait_until(lambda: len(finished(tmp_path)) >= 2, "two ranges")
            run.send(signum)
            result = run.finish()
        server.plan = lambda *_: ""
        again = command.run("download", *flags)

    assert (result.code, result.out) == (130, "")
    assert "run the same command again to resume" in result.err
    assert again.code == 0
    assert archives(tmp_path) == ONE


def test_a_deleted_partial_file_is_fetched_again_as_a_whole(tmp_path: Path) -> None:
    with serve(ONE, plan=lambda _n, _p, first, _l: "404" if first == 5 * MIB else "") as server:
        flags = arguments(tmp_path, server.url, *TRAIN_ONLY, "--connections", "1")
        with pytest.raises(StoreError):
            download.run(flags)
        assert len(finished(tmp_path)) == 5
        os.unlink(tmp_path / ".work" / f"{TRAIN}.partial")
        server.plan = lambda *_: ""
        assert download.run(flags) == 0

    assert archives(tmp_path) == ONE
