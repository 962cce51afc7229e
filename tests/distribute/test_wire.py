"""Channels: only whole messages that the other end may send come out of them, whatever goes in."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.distribute import hosts
from imagenet_prep.hosts import channel
from imagenet_prep.hosts.channel import (
    MAX_TEXT,
    PROTOCOL,
    BrokenError,
    Cause,
    Messages,
    OtherVersionError,
    checked,
    count,
    sentence,
)
from tests.kit.hostile import peers
from tests.kit.lengths import examples
from tests.kit.limits import Limits

ENDS = {
    "TO_GIVER": hosts.TO_GIVER,
    "TO_RECEIVER": hosts.TO_RECEIVER,
    "FROM_STORING": hosts.FROM_STORING,
    "FROM_LOOKING": hosts.FROM_LOOKING,
    "FROM_GIVER": hosts.FROM_GIVER,
}
STREAMS = {end: peers.streams(allowed) for end, allowed in ENDS.items()}


class Ends:
    """A channel, and what is at the other ends of its pipes."""

    def __init__(self, allowed: Messages, silence_s: float) -> None:
        reads, self._says = os.pipe()
        self.hears, writes = os.pipe()
        self._open = {reads, writes, self._says, self.hears}
        self.channel = channel.Channel(reads, writes, allowed, silence_s=silence_s)

    def say(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._says, data) :]

    def end(self) -> None:
        self._open.discard(self._says)
        os.close(self._says)

    def close(self) -> None:
        with self.channel.closing():
            for descriptor in self._open:
                os.close(descriptor)


@contextlib.contextmanager
def ends(allowed: Messages = hosts.FROM_GIVER, *, silence_s: float = 60.0) -> Iterator[Ends]:
    made = Ends(allowed, silence_s)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("header", peers.HEADERS, ids=lambda header: header[:60].decode())
def test_what_has_done_harm_once_is_refused_or_within_bounds(header: bytes) -> None:
    for allowed in ENDS.values():
        with ends(allowed) as made:
            made.say(header + b"\n")
            made.end()
            with contextlib.suppress(BrokenError):
                frame = made.channel.read()
                assert frame is None or frame.kind in allowed


@pytest.mark.parametrize("end", ENDS)
@given(data=st.data())
@examples(60)
def test_any_stream_is_messages_then_an_end_or_a_broken_peer(end: str, data: st.DataObject) -> None:
    allowed = ENDS[end]
    with ends(allowed) as made:
        made.say(data.draw(STREAMS[end])[:60_000])
        made.end()
        try:
            while (frame := made.channel.read()) is not None:
                kind = allowed[frame.kind]
                assert frame.fields.keys() == kind.fields.keys()
                assert len(frame.body) <= kind.max_body_bytes
        except BrokenError as error:
            assert str(error).isprintable()
            assert len(str(error)) < 1000


def test_every_field_is_checked() -> None:
    for allowed in ENDS.values():
        for name, kind in allowed.items():
            for field, check in kind.fields.items():
                # A message may name no columns.
                for odd in (None, {"a": []}, [] if field == "columns" else {}):
                    with pytest.raises(ValueError):
                        check(odd)
                    alone = {name: kind._replace(fields={field: check})}
                    with pytest.raises(
                        (ValueError, OtherVersionError), match=f"^{field}:|protocol"
                    ):
                        checked(alone, name, 0, {field: odd})
                assert field.isidentifier(), name


@pytest.mark.parametrize("number", [*peers.NUMBERS, float("inf"), float("nan")])
def test_a_number_of_things_is_a_whole_one_within_bounds(number: object) -> None:
    with pytest.raises(ValueError):
        count(number)


def test_an_honest_message_comes_whole_with_its_bytes() -> None:
    with ends(hosts.TO_RECEIVER) as made:
        made.say(b'["alive",0,{}]\n["file",0,{"name":"index/a","start":5}]\n["chunk",3,{}]\na\nb')
        made.end()
        assert made.channel.read() == ("file", {"name": "index/a", "start": 5}, b"")
        assert made.channel.read() == ("chunk", {}, b"a\nb")
        assert made.channel.read() is None


def test_a_first_message_that_is_no_json_is_no_banner() -> None:
    with ends() as made:
        made.say(b'["lacks",0,{"files":Infinity}]\n')
        with pytest.raises(BrokenError, match="it sent .*Infinity"):
            made.channel.read()


def test_a_message_that_breaks_off_is_an_end() -> None:
    with ends(hosts.TO_RECEIVER) as made:
        made.say(b'["chunk",3,{}]\na')
        made.end()
        assert made.channel.read() is None


def test_a_login_banner_is_passed_over_and_kept_for_messages() -> None:
    with ends() as made:
        # Its last line has no end: `begin` ends it.
        made.say(peers.GREETING + b"\n" + peers.line("lacks", files=3))
        frame = made.channel.read()
        assert frame is not None
        assert frame.fields == {"files": 3}
        assert made.channel.noise == "3 updates; $ "
        made.say(b"Bye.\n")
        with pytest.raises(BrokenError, match="Bye.*not a valid message"):
            made.channel.read()


@pytest.mark.parametrize("noise", [b"x" * 79 + b"\n", b"x"])
def test_a_peer_that_never_says_a_message_is_given_up_at_bounded_memory(noise: bytes) -> None:
    with ends() as made:
        sent = 0

        def flood() -> None:
            nonlocal sent
            with contextlib.suppress(OSError):
                while sent < 64 << 20:
                    sent += os.write(made._says, noise * (4096 // len(noise)))

        flooding = threading.Thread(target=flood)
        flooding.start()
        with pytest.raises(BrokenError, match="not a valid message"):
            made.channel.read()
        # What was read of it, and what the pipe holds, is no more than that.
        assert len(made.channel._buffer) < 4 << 20
        os.close(made.channel._reads)
        made._open.discard(made.channel._reads)
        flooding.join()
        assert sent < 64 << 20


def test_silence_breaks_it_at_once_where_no_time_is_given(
    limits: Limits,
) -> None:
    limits(host_start_s=0.0)
    with ends(silence_s=0.0) as made:
        with pytest.raises(BrokenError, match="it has sent nothing for 0 s") as raised:
            made.channel.read()
        assert raised.value.cause is Cause.SILENT


def test_the_first_word_has_more_time_than_the_next() -> None:
    with ends(silence_s=0.0) as made:
        made.say(peers.line("alive"))
        with pytest.raises(BrokenError, match="it has sent nothing for 0 s"):
            made.channel.read()


def test_signs_of_life_follow_a_first_message_that_nobody_reads_at_first() -> None:
    body = b"m" * (8 << 20)
    with ends(silence_s=0.01) as made:
        made.channel.begin("give", body, protocol=PROTOCOL)
        # `begin` has returned, although no pipe holds so much.
        heard = b""
        while heard.count(b"alive") < 2:
            heard += os.read(made.hears, 1 << 20)
        header = f'["give",{len(body)},{{"protocol":{PROTOCOL}}}]\n'.encode()
        assert heard.startswith(b"\n" + header + body)
        assert heard.endswith(b'["alive",0,{}]\n')


def test_another_version_is_told_from_nonsense() -> None:
    with ends(hosts.TO_RECEIVER) as made:
        made.say(b'["begin",0,{"protocol":2,"task":"store"}]\n')
        with pytest.raises(OtherVersionError, match="Install the same version on every host"):
            made.channel.read()


def test_texts_for_people_hold_nothing_that_a_terminal_obeys() -> None:
    text = sentence("a\x1b[2Jb\nc\u202ed" + "x" * 9999)
    assert text.startswith("a?[2Jb c?d")
    assert len(text) == MAX_TEXT
