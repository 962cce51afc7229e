"""Flags of several commands: the dataset, --allow-unknown, and the list of --exclude.

`data_set` is the flag of the dataset (positional, or --data-dir), and `unknown_keys` is
--allow-unknown.

`read_exclusions` reads the list of an --exclude flag: keys, or the quarantine.jsonl of a dataset. A
quarantine.jsonl names the images that were excluded from its dataset, by key and by bytes, or, if
they were forgotten, by salted digests of both.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import AddressKind, flag, switch
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.keys import KeyList, ListedFile
from imagenet_prep.dataset.member import Incident, parse_incident, require_few_salts


def data_set(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "folder, s3:// or http(s):// address of the dataset",
    place: AddressKind = AddressKind.ANYWHERE,
    names: Sequence[str] = (),
) -> Any:
    """Returns a dataclass field for an existing dataset; `names` are aliases of its flag."""
    return flag(
        default,
        help=help,
        place=place,
        positional=True,
        aliases=("--data-dir", *names),
        metavar="SET",
        read=without_manifest,
    )


def without_manifest(typed: str) -> str:
    """Returns SET if a user has typed SET/dataset.json; other text is returned unchanged."""
    base, slash, name = typed.rpartition("/")
    return (base or slash or ".") if name == schema.MANIFEST else typed


def unknown_keys(**how: Any) -> Any:
    """Returns a dataclass field for --allow-unknown, which concerns lists of keys."""
    return switch(
        help="accept listed keys that no image has, and print their number; for a list that is "
        "applied repeatedly",
        **how,
    )


def read_exclusions(
    path: str | os.PathLike[str],
    *,
    allows_unknown: bool = False,
    complete: Callable[[list[Incident]], list[Incident]] = list,
) -> KeyList:
    """Returns the images in a list of keys or in a quarantine.jsonl; see `KeyList`.

    `complete` may add to the lines of a quarantine.jsonl what an older version did not write.
    """
    data = keys.read_bytes(path)
    if not data.startswith(b'{"'):
        return keys.parse_list(path, data, allows_unknown=allows_unknown)
    listed: list[str] = []
    files: dict[str, ListedFile] = {}
    for incident in complete(_incidents(path, data)):
        if not incident.is_excluded:
            # An empty line, so that the numbers of lines stay the same.
            listed.append("")
            continue
        split = incident.split
        listed.append(keys.with_split(split, incident.key) if split else incident.key)
        for sha256, num_bytes in incident.sizes.items():
            kept_in = frozenset(incident.kept_in)
            if sha256 in files:
                kept_in &= files[sha256].kept_in
            files[sha256] = ListedFile(num_bytes, listed[-1], incident.salt, kept_in)
        if incident.salt:
            files[incident.key] = ListedFile(incident.size, listed[-1], incident.salt)
    of_keys = keys.parse_list(path, "\n".join(listed).encode(), allows_unknown=allows_unknown)
    bytes_of = {sha256: [file.num_bytes, file.line, file.salt] for sha256, file in files.items()}
    kept = {sha256: sorted(file.kept_in) for sha256, file in files.items() if file.kept_in}
    digest = strict_json.digest([of_keys.sha256, bytes_of, *([kept] if kept else [])])
    return KeyList(of_keys.path, of_keys.keys, digest, (), files, allows_unknown)


def _incidents(path: str | os.PathLike[str], data: bytes) -> list[Incident]:
    """Returns the lines of a quarantine.jsonl; raises UsageError for any other line."""
    incidents: list[Incident] = []
    salts: set[str] = set()
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            incident = parse_incident(line)
            salts.add(incident.salt)
            require_few_salts(salts)
        except ValueError as error:
            raise UsageError(
                f"{path}: line {number:,} is not a line of a {schema.QUARANTINE}: {error}"
            ) from None
        incidents.append(incident)
    return incidents
