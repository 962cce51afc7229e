"""Channels deliver only complete messages that the other end may send, for any input."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import strict_json
from imagenet_prep.dataset.column import WHOLE
from imagenet_prep.distribute import hosts
from imagenet_prep.distribute.config import ReplicateConfig
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
from tests.kit.messages import says

ENDS = {
    "TO_GIVER": hosts.TO_GIVER,
    "TO_RECEIVER": hosts.TO_RECEIVER,
    "FROM_STORING": hosts.FROM_STORING,
    "FROM_LOOKING": hosts.FROM_LOOKING,
    "FROM_GIVER": hosts.FROM_GIVER,
}
STREAMS = {end: peers.streams(allowed) for end, allowed in ENDS.items()}


class Ends:
    """A channel, and the other ends of its pipes."""

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
def test_hostile_headers_are_refused_or_bounded(header: bytes) -> None:
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
def test_any_stream_gives_messages_or_a_broken_peer(end: str, data: st.DataObject) -> None:
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
def test_counts_are_integers_within_bounds(number: object) -> None:
    with pytest.raises(ValueError):
        count(number)


MOST = 1 << 53  # exact in every JSON reader


@pytest.mark.parametrize(
    ("check", "least", "most", "refused"),
    [
        (count, 0, MOST, [-1, MOST + 1, True, 1.0, "1"]),
        (channel.number, 0, 1e300, [-1, -0.1, True, float("inf"), float("nan"), "1"]),
        (channel.word, "", "x" * MAX_TEXT, ["x" * (MAX_TEXT + 1), "a\0b", "\0", b"a", 1]),
        (channel.flag, False, True, [0, 1, "true"]),
        (sentence, "", "x" * MAX_TEXT, [b"a", 1, True]),
    ],
)
def test_values_of_fields_have_a_type_and_bounds(
    check: Callable[[object], object], least: object, most: object, refused: list[object]
) -> None:
    assert [check(least), check(most)] == [least, most]
    for value in (*refused, None, [], {}):
        with pytest.raises(ValueError):
            check(value)


@pytest.mark.parametrize("most", [0, 7])
def test_bodies_have_at_most_the_announced_bytes(most: int) -> None:
    messages = {"body": channel.MessageKind(max_body_bytes=most)}

    assert checked(messages, "body", most, {}) == ("body", most, {})
    with pytest.raises(ValueError, match=says("announces-bytes-expected-most", most + 1, most)):
        checked(messages, "body", most + 1, {})


def test_closed_channel_writes_nothing() -> None:
    """A file that is opened later may get the number of the closed pipe."""
    with ends() as made:
        with made.channel.closing():
            pass
        with pytest.raises(BrokenPipeError):
            made.channel.write("alive")
        os.set_blocking(made.hears, False)
        with pytest.raises(BlockingIOError):
            os.read(made.hears, 1)


def test_valid_messages_arrive_with_their_bytes() -> None:
    with ends(hosts.TO_RECEIVER) as made:
        made.say(b'["alive",0,{}]\n["file",0,{"name":"index/a","start":5}]\n["chunk",3,{}]\na\nb')
        made.end()
        assert made.channel.read() == ("file", {"name": "index/a", "start": 5}, b"")
        assert made.channel.read() == ("chunk", {}, b"a\nb")
        assert made.channel.read() is None


def test_invalid_first_messages_are_not_a_banner() -> None:
    with ends() as made:
        made.say(b'["lacks",0,{"files":Infinity}]\n')
        with pytest.raises(BrokenError, match=says("sent", "Infinity")):
            made.channel.read()


def test_truncated_messages_end_the_stream() -> None:
    with ends(hosts.TO_RECEIVER) as made:
        made.say(b'["chunk",3,{}]\na')
        made.end()
        assert made.channel.read() is None


def test_login_banners_are_skipped_and_reported_in_errors() -> None:
    with ends() as made:
        # Its last line has no end; `begin` ends it.
        made.say(peers.GREETING + b"\n" + peers.line("lacks", files=3))
        frame = made.channel.read()
        assert frame is not None
        assert frame.fields == {"files": 3}
        assert made.channel.noise == "3 updates; $ "
        made.say(b"Bye.\n")
        with pytest.raises(BrokenError, match=says("sent-not-valid-message", "Bye")):
            made.channel.read()


@pytest.mark.parametrize("noise", [b"x" * 79 + b"\n", b"x"])
def test_peers_without_messages_are_given_up_early(noise: bytes) -> None:
    with ends() as made:
        sent = 0

        def flood() -> None:
            nonlocal sent
            with contextlib.suppress(OSError):
                while sent < 64 << 20:
                    sent += os.write(made._says, noise * (4096 // len(noise)))

        flooding = threading.Thread(target=flood)
        flooding.start()
        with pytest.raises(BrokenError, match=says("sent-not-valid-message")):
            made.channel.read()
        # The bytes read and those in the pipe are no more than that.
        assert len(made.channel._buffer) < 4 << 20
        os.close(made.channel._reads)
        made._open.discard(made.channel._reads)
        flooding.join()
        assert sent < 64 << 20


def test_silence_ends_a_channel_after_its_limit(
    limits: Limits,
) -> None:
    limits(host_start_s=0.0)
    with ends(silence_s=0.0) as made:
        with pytest.raises(BrokenError, match=says("sent-nothing-s", "0")) as raised:
            made.channel.read()
        assert raised.value.cause is Cause.SILENT


def test_the_first_message_has_more_time() -> None:
    with ends(silence_s=0.0) as made:
        made.say(peers.line("alive"))
        with pytest.raises(BrokenError, match=says("sent-nothing-s", "0")):
            made.channel.read()


def test_heartbeats_follow_an_unread_first_message() -> None:
    body = b"m" * (8 << 20)
    with ends(silence_s=0.01) as made:
        made.channel.begin("give", body, protocol=PROTOCOL)
        # `begin` has returned, although no pipe has room for so many bytes.
        heard = b""
        while heard.count(b"alive") < 2:
            heard += os.read(made.hears, 1 << 20)
        header = f'["give",{len(body)},{{"protocol":{PROTOCOL}}}]\n'.encode()
        assert heard.startswith(b"\n" + header + body)
        assert heard.endswith(b'["alive",0,{}]\n')


def test_different_versions_are_distinguished_from_invalid_messages() -> None:
    with ends(hosts.TO_RECEIVER) as made:
        made.say(b'["begin",0,{"protocol":2,"task":"store"}]\n')
        with pytest.raises(OtherVersionError, match=says("imagenet-prep-uses-protocol-one-end")):
            made.channel.read()


def test_texts_contain_no_control_characters() -> None:
    text = sentence("a\x1b[2Jb\nc\u202ed" + "x" * 9999)
    assert text.startswith("a?[2Jb c?d")
    assert len(text) == MAX_TEXT


@pytest.mark.parametrize(
    ("body", "sizes", "manifest"),
    [
        (b"manifest", {}, b"manifest"),
        (b"manifestonetwo", {"a": 3, "b": 3}, b"manifest"),
        (b"onetwo", {"a": 3, "b": 3}, b""),
    ],
)
def test_body_has_the_manifest_then_each_column(
    body: bytes, sizes: dict[str, int], manifest: bytes
) -> None:
    columns = {"a": b"one", "b": b"two"} if sizes else {}
    assert hosts.documents(body, sizes) == (manifest, columns)


@pytest.mark.parametrize("names", [*itertools.permutations(("a", "b", "long"))])
def test_columns_arrive_in_any_order_of_their_names(names: tuple[str, ...], tmp_path: Path) -> None:
    columns = {name: name.encode() for name in names}
    config = ReplicateConfig(str(tmp_path), "hosts:hosts.txt:/data/x")
    request = hosts.HostRequest(config, b"manifest", {"node1": WHOLE}, columns)
    fields = strict_json.loads(strict_json.dumps(request.fields("node1")))
    assert hosts.documents(request.body, fields["columns"]) == (b"manifest", columns)


def test_columns_longer_than_their_body_are_refused() -> None:
    with pytest.raises(channel.BrokenError):
        hosts.documents(b"onetwo", {"a": 3, "b": 4})
