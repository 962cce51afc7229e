"""The rendezvous of hosts without ssh works, and strangers cannot disturb it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.hosts.commands import Host
from imagenet_prep.trainer import rendezvous
from imagenet_prep.trainer.rendezvous import RendezvousAddress
from tests.kit.command import PATIENCE_S
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.training import horovod

__all__ = ["horovod"]

TOKEN = "a-token-of-this-job"
HOSTS = [Host("algo-1", 1), Host("algo-2", 1)]
WRONG = "a-token-of-another-job"
STRANGE = [
    b"",
    b"\n",
    b"G",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
    b"A" * 100_000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /facts/algo-1 HTTP/1.0\r\n\r\n",
    b"PUT /facts/algo-2 HTTP/1.0\r\nContent-Length: 1\r\n\r\n-",
    f"PUT /{WRONG}:1/facts/algo-2 HTTP/1.0\r\nContent-Length: 1\r\n\r\n-".encode(),
    f"PUT /{TOKEN[:-1]}:1/facts/algo-2 HTTP/1.0\r\nContent-Length: 1\r\n\r\n-".encode(),
    f"PUT /x/{TOKEN}:1/facts/algo-2 HTTP/1.0\r\nContent-Length: 1\r\n\r\n-".encode(),
    b"PUT /:1/facts/algo-2 HTTP/1.0\r\nContent-Length: 1\r\n\r\n-",
]


@pytest.fixture
def place(limits: Limits) -> Iterator[RendezvousAddress]:
    """A rendezvous that admits eight strangers, and one client for each of two ranks and hosts."""
    limits(strangers=8, rendezvous_poll_s=0.02)
    with rendezvous.serving(HOSTS, RendezvousAddress("127.0.0.1", 0, TOKEN)) as found:
        yield found


def say(place: RendezvousAddress, words: bytes) -> bytes:
    """Returns the complete answer to some bytes."""
    with (
        socket.create_connection((place.address, place.port), timeout=PATIENCE_S) as stranger,
        contextlib.suppress(ConnectionError),  # refused before all bytes were sent
    ):
        stranger.sendall(words)
        try:
            stranger.shutdown(socket.SHUT_WR)
        except OSError as error:
            # shutdown() reports a refused connection as ENOTCONN, not as a ConnectionError.
            if error.errno != errno.ENOTCONN:
                raise
        return b"".join(iter(lambda: stranger.recv(65536), b""))
    return b""


@contextlib.contextmanager
def crowd(place: RendezvousAddress) -> Iterator[list[socket.socket]]:
    """Sends requests to the rendezvous continuously, and holds many connections open."""
    ended = threading.Event()

    def shout() -> None:
        while not ended.is_set():
            for words in STRANGE:
                with contextlib.suppress(OSError):
                    say(place, words)

    thread = threading.Thread(target=shout)
    with contextlib.ExitStack() as stack:
        held = [socket.create_connection((place.address, place.port)) for _ in range(60)]
        for each in held:
            stack.enter_context(each)
            with contextlib.suppress(OSError):
                each.sendall(b"G")
        thread.start()
        try:
            yield held
        finally:
            ended.set()
            thread.join()


def meet(place: RendezvousAddress) -> list[dict[str, str]]:
    """Lets all hosts exchange their identities."""
    with ThreadPoolExecutor() as pool:
        told = [
            pool.submit(
                rendezvous.exchange,
                "facts",
                f"I am {host.address}",
                HOSTS,
                host.address,
                place,
                limit_s=PATIENCE_S,
            )
            for host in HOSTS
        ]
        return [each.result() for each in told]


def test_hosts_meet_despite_strangers(place: RendezvousAddress) -> None:
    expected = {host.address: f"I am {host.address}" for host in HOSTS}
    with crowd(place) as held:
        assert meet(place) == [expected, expected]
        # The oldest of the silent connections was closed to make room.
        held[0].settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            assert held[0].recv(1) == b""
    assert meet(place) == [expected, expected]


@pytest.mark.parametrize("words", STRANGE, ids=range(len(STRANGE)))
def test_strangers_read_and_change_nothing(place: RendezvousAddress, words: bytes) -> None:
    rendezvous.ask(place, "PUT", "facts/algo-1", "a secret")

    assert say(place, words) in (b"", b"HTTP/1.0 403 Forbidden\r\nContent-Length: 0\r\n\r\n") or (
        len(words) > 65536
    )
    assert rendezvous.ask(place, "GET", "facts/algo-1") == "a secret"
    assert rendezvous.ask(place, "GET", "facts/algo-2") is None


def test_a_wrong_token_is_refused_without_printing_it(place: RendezvousAddress) -> None:
    with pytest.raises(ImagenetPrepError, match=says("refuses-host-s-token-different")) as caught:
        rendezvous.exchange(
            "facts", "-", HOSTS, "algo-1", place._replace(token=WRONG), limit_s=PATIENCE_S
        )

    assert TOKEN not in str(caught.value)
    assert WRONG not in str(caught.value)


@pytest.mark.parametrize("length", ["", "-1", "x", "1" * 5000, str((1 << 20) + 1)])
def test_the_size_of_a_value_is_bounded(place: RendezvousAddress, length: str) -> None:
    line = f"PUT /{TOKEN}:1/facts/algo-1 HTTP/1.0\r\nContent-Length: {length}\r\n\r\n-"

    assert say(place, line.encode()).startswith(b"HTTP/1.0 413 ")


def test_the_number_of_values_is_bounded(place: RendezvousAddress) -> None:
    kept = [rendezvous.ask(place, "PUT", f"facts/{number}", "-") for number in range(80)]

    # Two ranks and two hosts have sixteen values each.
    assert [answer is not None for answer in kept] == [True] * 64 + [False] * 16
    assert rendezvous.ask(place, "PUT", "facts/0", "anew") is not None


def test_truncated_values_are_not_kept(place: RendezvousAddress) -> None:
    say(place, f"PUT /{TOKEN}:1/facts/algo-1 HTTP/1.0\r\nContent-Length: 9\r\n\r\nabc".encode())

    assert rendezvous.ask(place, "GET", "facts/algo-1") is None


# The short tests cover the hosts above, and the two hosts of test_sagemaker_container.
@pytest.mark.long
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("tf", "horovod")
def test_horovod_ranks_meet_by_token_despite_strangers(place: RendezvousAddress) -> None:
    program = """\
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
print(float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum)))
"""
    two = [Host("localhost", 2)]
    variables = rendezvous.environments(two, "localhost", place, "lo")
    with crowd(place):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                env=os.environ | each,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for each in variables
        ]
        said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]

    assert [out.strip() for out, _ in said] == ["3.0", "3.0"], said
