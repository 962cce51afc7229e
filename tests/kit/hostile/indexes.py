"""Lines of index files (offset, size) that break parsers of numbers."""

from __future__ import annotations

MANY_DIGITS = b"9" * 5000

LINES = {
    "5,000 digits": b"0 " + MANY_DIGITS + b"\n",
    "beyond 2^63": b"0 %d\n" % (1 << 63),
    "beyond 2^64": b"%d 16\n" % (1 << 64),
    "negative": b"0 -16\n",
    "negative offset": b"-16 32\n",
    "wraps around": b"0 %d\n" % ((1 << 63) - 1),
    "words": b"zero sixteen\n",
    "a fraction": b"0.0 1e3\n",
    "underscores": b"0 1_6\n",
    "other digits": "0 ١٦\n".encode(),
    "not text": b"\xff\xfe\x00\n",
    "nothing": b"",
}
