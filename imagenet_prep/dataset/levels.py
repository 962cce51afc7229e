"""How thoroughly a data set can be verified."""

from __future__ import annotations

MANIFEST = "manifest"
CRC = "crc"
DECODE = "decode"

# What each level proves; each includes the levels before it.
LEVELS = {
    MANIFEST: "every file is there with its size",
    CRC: "every byte of every file is unchanged",
    DECODE: "every byte is unchanged, and every image decodes and has its label",
}
