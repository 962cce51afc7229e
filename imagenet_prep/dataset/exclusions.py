"""Reads the list of an --exclude flag: keys, or the quarantine.jsonl of a dataset.

A quarantine.jsonl names the images that were excluded from its dataset, by key and by bytes.
"""

from __future__ import annotations

import os
from dataclasses import replace

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import keys, naming
from imagenet_prep.dataset.keys import KeyList, ListedFile
from imagenet_prep.dataset.member import parse_incident


def read(path: str | os.PathLike[str], *, allows_unknown: bool = False) -> KeyList:
    """Returns the images in a list of keys or in a quarantine.jsonl; see `KeyList`."""
    data = keys.read_bytes(path)
    if not data.startswith(b'{"'):
        return replace(keys.parse_list(path, data), allows_unknown=allows_unknown)
    listed: list[str] = []
    files: dict[str, ListedFile] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            incident = parse_incident(line)
        except ValueError as error:
            raise UsageError(
                f"{path}: line {number:,} is not a line of a {naming.QUARANTINE}: {error}"
            ) from None
        if not incident.is_excluded:
            # An empty line, so that the numbers of lines stay the same.
            listed.append("")
            continue
        split = incident.split
        listed.append(keys.with_split(split, incident.key) if split else incident.key)
        for sha256, num_bytes in incident.sizes.items():
            files[sha256] = ListedFile(num_bytes, listed[-1])
    of_keys = keys.parse_list(path, "\n".join(listed).encode())
    digest = canonical.digest([of_keys.sha256, files])
    return KeyList(of_keys.path, of_keys.keys, digest, (), files, allows_unknown)
