"""Gives unique keys, within a split, to records that a different program wrote.

Of records with equal keys, the first keeps the key. The keys of later records get a number before
the file extension: dog/3.jpg, dog/3~2.jpg, dog/3~3.jpg. If existing keys contain tildes, new
keys get one tilde more than the longest run of tildes in existing keys, so no new key exists yet.
"""

from __future__ import annotations

import io
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import keys, samples
from imagenet_prep.dataset.samples import Table
from imagenet_prep.shards import plan, runs
from imagenet_prep.storage import scratch
from imagenet_prep.storage.store import Store

_TILDES = re.compile("~+")


def numbered(store: Store, folder: str, tables: Sequence[str]) -> dict[str, dict[int, str]]:
    """Returns {table: {record number: new key}} for a split; `tables` are in shard order."""
    longest = 0
    new_keys = defaultdict[str, dict[int, str]](dict)

    def entries() -> Iterator[bytes]:
        nonlocal longest
        for number, name in enumerate(tables):
            lines = _lines(store, f"{folder}/{name}")
            for record, (_, key, _) in enumerate(samples.heads(lines, name)):
                if "~" in key:
                    longest = max(longest, *map(len, _TILDES.findall(key)))
                yield b"%b\0%05d%09d\n" % (key.encode(), number, record)

    with scratch.temporary_folder() as place:
        files = runs.write(place, "keys", entries())
        for (of_range,) in runs.side_by_side([files]):
            for key, group in itertools.groupby(of_range, lambda entry: entry.partition(b"\0")[0]):
                for number, entry in enumerate(itertools.islice(group, 1, None), start=2):
                    at = entry[len(key) + 1 :]
                    new = keys.numbered(key.decode(), number, "~" * (longest + 1))
                    problem = keys.problem(new)
                    if problem:
                        raise DataDamagedError(f"{store.where()}: {new[:80]!r}: {problem}")
                    new_keys[tables[int(at[:5])]][int(at[5:])] = new
    return dict(new_keys)


def renamed(store: Store, table: str, new: Mapping[int, str]) -> tuple[bytes, str]:
    """Copies a table; `new` maps record numbers to new keys. Returns the copy and its sha256."""
    file = io.BytesIO()
    copy = Table(file)
    for record, sample in enumerate(samples.parse(_lines(store, table), table)):
        copy.append(sample._replace(key=new.get(record, sample.key)))
    return file.getvalue(), copy.sha256


def _lines(store: Store, table: str) -> Iterator[bytes]:
    return samples.read_lines(io.BytesIO(store.read(table, most=plan.MOST_BYTES)))
