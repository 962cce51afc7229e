"""Pickles of a few bytes that make an unpickler take gigabytes, or never end."""

from __future__ import annotations

import struct

SMALL = {
    "a memo of 4 GB": b"Nr" + struct.pack("<I", 1 << 28) + b".",
    "bytes of 4 GB": b"B\xff\xff\xff\xff" + b"ab.",
    "bytes of 8 EB": b"\x8e" + struct.pack("<Q", 1 << 62) + b"a.",
    "a bytearray of 4 GB": b"\x96" + struct.pack("<Q", 1 << 32) + b"a.",
    "text of 4 GB": b"X\xff\xff\xff\xff" + b"ab.",
    "a number of 2 GB": b"\x8b\xff\xff\xff\x7f" + b"a.",
    "a frame of 1 EB": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "a number of 5,000 digits": b"L" + b"9" * 5000 + b"L\n.",
}


def repeated_encodings_of_a_text(num_bytes: int, times: int) -> bytes:
    """Returns a pickle that requests `times` copies of one text of `num_bytes`."""
    text = b"X" + struct.pack("<I", num_bytes) + b"a" * num_bytes + b"q\x00"
    encode = b"c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02"
    return b"\x80\x02" + text + encode + b"(" + b"h\x01h\x00h\x02\x86R" * times + b"l."


def many_empty_dicts(count: int) -> bytes:
    """Returns a pickle of one byte for each empty dict; in memory each has 64."""
    return b"(" + b"}" * count + b"l."


def nested_tuples(depth: int) -> bytes:
    """Returns a pickle of a tuple in a tuple in ..."""
    return b")" + b"\x85" * depth + b"."


def key_with_shared_parts(depth: int = 64) -> bytes:
    """Returns 136 bytes with the key (t, t), t being (u, u), and so on: its hash visits 2^64
    objects.
    """
    return b"\x80\x02}" + b")" + b"2\x86" * depth + b"K\x01s."


def memoized_key_with_shared_parts(depth: int = 64) -> bytes:
    """Returns the same key, made of operations that batches contain."""
    return b"\x80\x02})" + b"q\x00h\x00\x86" * depth + b"K\x01s."


def member_with_shared_parts(depth: int = 64) -> bytes:
    """Returns a set with the same structure as a member."""
    return b"\x80\x04\x8f(" + b")" + b"2\x86" * depth + b"\x90."


def key_of_nested_tuples(depth: int) -> bytes:
    """Returns a pickle with a tuple in a tuple in ... as its key; its hash recurses as deep."""
    return b"\x80\x02}" + b")" + b"\x85" * depth + b"K\x01s."
