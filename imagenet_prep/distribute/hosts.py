"""Starts one process per host for a replication, and defines the messages between processes."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_prep.core import children, strict_json, terminal
from imagenet_prep.core.errors import (
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    by_exit_code,
    by_name,
)
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.column import Placement
from imagenet_prep.dataset.manifest import FileProblem
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.hosts.channel import (
    CHUNK_BYTES,
    PROTOCOL,
    BrokenError,
    Cause,
    MessageFrame,
    MessageKind,
    Messages,
    Process,
    count,
    flag,
    number,
    sentence,
    word,
)
from imagenet_prep.hosts.commands import Ending, command_on, plain, run_all

# A manifest of 99,999 shards has 40 MB, and a column.json with as many files has 30 MB.
_MAX_MANIFEST_BYTES = 512 << 20
_MAX_COLUMNS = 1000


def _name(value: Any) -> str:
    return schema.require_relative_name(word(value))


def _placement(value: Any) -> Placement:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("expected three numbers: node, nodes and copies")
    return Placement(*map(count, value))


def _sizes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MAX_COLUMNS:
        raise ValueError(f"expected at most {_MAX_COLUMNS:,} columns with their sizes")
    return {column.require_name(name): count(size) for name, size in value.items()}


def _origin(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"origin-[0-9a-f]{32}", value):
        raise ValueError("expected origin- and 32 hex digits")
    return value


# The body is the manifest, then each column.json. "columns" has the size of each column.json.
_TO_LOOK = {
    "protocol": count,
    "columns": _sizes,
    "prove": flag,
    "placement": _placement,
    "replaces": flag,
}
_TO_STORE = {**_TO_LOOK, "origin": _origin, "parent": word}

_TO_GIVE = dict.fromkeys(("root", "address", "path", "python"), word)

TO_GIVER: Messages = {
    "give": MessageKind(
        {**_TO_STORE, **_TO_GIVE, "trusted": flag, "limit": number}, _MAX_MANIFEST_BYTES
    ),
}
TO_RECEIVER: Messages = {
    "store": MessageKind(_TO_STORE, _MAX_MANIFEST_BYTES),
    "look": MessageKind(_TO_LOOK, _MAX_MANIFEST_BYTES),
    "file": MessageKind({"name": _name, "start": count}),
    "chunk": MessageKind({}, CHUNK_BYTES),
    "end": MessageKind(),
    "abandon": MessageKind(),
}
_ANSWERS = {"error": MessageKind({"error": word, "message": sentence})}
_PROGRESS = _ANSWERS | {
    "lacks": MessageKind({"files": count}),
    "stored": MessageKind({"name": _name}),
    "wrong": MessageKind({"name": _name, "message": sentence}),
    "whole": MessageKind(),
}
FROM_STORING: Messages = _PROGRESS | {"lacking": MessageKind({"name": _name, "begun": count})}
FROM_LOOKING: Messages = _ANSWERS | {
    "problem": MessageKind({"text": sentence, "is_missing": flag}),
    "looked": MessageKind({"lacking_bytes": count}),
}
FROM_GIVER: Messages = _PROGRESS | {
    "spoiled": MessageKind({"name": _name}),
    "lost": MessageKind({"cause": Cause, "why": sentence}),
}


def documents(body: bytes, sizes: Mapping[str, int]) -> tuple[bytes, dict[str, bytes]]:
    """Returns the manifest in the body of a message, and each column.json by column name."""
    total = sum(sizes.values())
    if total > len(body):
        raise BrokenError(f"the columns have {total:,} bytes, but the body has {len(body):,}")
    data = io.BytesIO(body)
    manifest = data.read(len(body) - total)
    return manifest, {name: data.read(sizes[name]) for name in sorted(sizes)}


# Number of hosts that are checked at the same time, each through its own ssh process.
_MAX_ASKED = 32
# A host may report a problem of each file, and also of the manifest and of placement.json.
_MORE_PROBLEMS = 2


@dataclass(frozen=True)
class HostRequest:
    """The leader's request to every host."""

    config: ReplicateConfig
    data: bytes  # the manifest
    placements: Mapping[str, Placement]  # by address
    columns: Mapping[str, bytes] = field(default_factory=dict)  # each column.json, by column name

    @property
    def root(self) -> str:
        """The folder of the dataset on the leader."""
        return str(Path(self.config.dataset).expanduser().absolute())

    @property
    def path(self) -> str:
        """The folder of the replica, the same on every host."""
        return self.config.hosts_and_path[1]

    @property
    def body(self) -> bytes:
        """The body of a message: the manifest, then each column.json, ordered by name.

        JSON sorts the names in a message's fields, so the order of `columns` does not arrive.
        """
        return b"".join([self.data, *(self.columns[name] for name in sorted(self.columns))])

    def fields(self, address: str) -> Json:
        """Returns fields for a message to a host; they describe `body` and the host's part."""
        sizes = {name: len(data) for name, data in self.columns.items()}
        placement = dataclasses.astuple(self.placements[address])
        replaces = self.config.replace
        fields = {"columns": sizes, "placement": placement, "replaces": replaces}
        return {"protocol": PROTOCOL, **fields}


def ask(num_files: Mapping[str, int], request: HostRequest) -> list[Json | ImagenetPrepError]:
    """Checks every replica; returns problems and lacking_bytes of each, or the error of its host.

    `num_files` maps each address to the number of files of its replica.
    """

    def ask_one(address: str) -> Json | ImagenetPrepError:
        try:
            return _ask(address, request, num_files[address])
        except ImagenetPrepError as error:
            return error
        except Exception as error:  # noqa: BLE001 - caused by the host's answer
            return StoreError(f"its answer is invalid: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(_MAX_ASKED) as pool:
        return list(pool.map(ask_one, num_files))


def _ask(address: str, request: HostRequest, num_files: int) -> Json:
    words = ("imagenet_prep.distribute.receive", request.path)
    config = request.config
    process = Process(address, config.python, words, FROM_LOOKING, config.timeout)
    process.channel.begin("look", request.body, prove=config.prove, **request.fields(address))
    most = num_files + len(request.columns) + _MORE_PROBLEMS
    problems: list[FileProblem] = []
    answers: list[Json] = []

    def take(frame: MessageFrame) -> None:
        # If the disk has too little space, the host sends "error" after all problems.
        match frame.kind:
            case "error":
                raise by_name(frame.fields["error"])(frame.fields["message"])
            case "problem" if len(problems) < most:
                problems.append(FileProblem(**frame.fields))
            case "looked" if not answers:
                answers.append({"problems": problems, **frame.fields})
            case _:
                raise BrokenError(f"it sent {frame.kind!r} too often")

    broken, ending = process.listen(take)
    # After the end of a connection, the error of ssh says more.
    cause = broken.cause if broken else Cause.ENDED
    if cause is Cause.UNREADABLE or (cause is Cause.SILENT and not answers):
        kind = IncompleteError if cause is Cause.SILENT else StoreError
        raise kind(f"its answer is invalid: {broken}.")
    if not answers:
        raise (IncompleteError if ending.is_lost else StoreError)(ending.explained)
    return answers[0]


def pull(
    addresses: Sequence[str], request: HostRequest, argv_of: Callable[[Placement], Sequence[str]]
) -> list[Json | ImagenetPrepError]:
    """Runs imagenet-prep on all hosts at once; returns the result or error of each run.

    `argv_of` returns the arguments for a host, given the host's part; --json is appended.
    """

    def argv(address: str) -> list[str]:
        words = ("-m", "imagenet_prep", *argv_of(request.placements[address]), "--json")
        return command_on(address, children.python(*words, program=request.config.python))

    def hear(number: int, line: bytes) -> None:
        # Show messages (such as retries) at once: the result follows only at the end.
        program, _, message = plain(line.decode(errors="replace")).partition(": ")
        if program == "imagenet-prep":
            terminal.say(f"{addresses[number]}: {message.rstrip()}")

    endings = run_all([argv(address) for address in addresses], hear=hear)
    return [result_of(ending) for ending in endings]


def result_of(ending: Ending) -> Json | ImagenetPrepError:
    """Returns moved_bytes and problems from the output of `replicate --json`, or its error."""
    if ending.code != 0:
        kind = IncompleteError if ending.is_lost else by_exit_code(ending.code, StoreError)
        return kind(ending.why)
    try:
        # The result begins on a new line, since a login shell may print text before it.
        start = ending.output.rfind("\n{\n") + 1
        replica = strict_json.loads(ending.output[start:])["replicas"][0]
        return {
            "moved_bytes": count(replica["moved_bytes"]),
            "problems": [FileProblem(sentence(problem)) for problem in replica["problems"]],
        }
    except (ValueError, LookupError, TypeError) as error:
        return StoreError(f"its answer is invalid: {type(error).__name__}: {error}")
